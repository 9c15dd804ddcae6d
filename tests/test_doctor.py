"""`localspec doctor`: every finding with its command, and nothing private in what is printed."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.cli.app import cli
from localspec.doctor.bandwidth import read_bandwidth
from localspec.doctor.facts import Facts
from localspec.doctor.findings import Level, findings
from localspec.engine.stats import DeviceMemory

GOOD = Facts(
    localspec="0.1.0",
    python="3.12.0",
    llama_cpp="0.3.36",
    system="linux",
    architecture="x86_64",
    translated=False,
    processor="a processor",
    cores=8,
    logical=16,
    allowed=16,
    threads=8,
    load=0.3,
    features=("avx2", "fma"),
    built_for=("avx2", "fma", "f16c"),
    amx_left_out=False,
    backends=("CPU",),
    devices=(),
    cards=(),
    cuda_compiler=True,
    memory_total=32 * 10**9,
    memory_free=20 * 10**9,
    address_space=None,
    swap_used=0,
    on_battery=None,
    power_profile="balanced",
    clock=3900.0,
    clock_most=4000.0,
    bandwidth=40e9,
    bandwidth_one=15e9,
)
CUDA = 'CMAKE_ARGS="-DGGML_CUDA=on" uv sync --no-cache --reinstall-package llama-cpp-python'


def test_a_good_machine_has_no_findings() -> None:
    assert findings(GOOD) == []
    card = DeviceMemory("a card", 10**10, 10**10, label="CUDA0")
    used = replace(GOOD, cards=("nvidia",), backends=("CUDA", "CPU"), devices=(card,))
    assert findings(used) == []


@pytest.mark.parametrize(
    ("what", "said", "remedy"),
    [
        ({"cards": ("nvidia",)}, "NVIDIA card", CUDA),
        (
            {"cards": ("nvidia",), "system": "win32"},
            "NVIDIA card",
            '$env:CMAKE_ARGS="-DGGML_CUDA=on"; uv',
        ),
        ({"cards": ("nvidia",), "cuda_compiler": False}, "CUDA toolkit first", CUDA),
        ({"cards": ("apple",), "system": "darwin"}, "without Metal", "-DGGML_METAL=on"),
        ({"cards": ("amd",)}, "AMD could be used through Vulkan", "-DGGML_VULKAN=on"),
        ({"cards": ("nvidia",), "backends": ("CUDA", "CPU")}, "sees no such device", "driver"),
        ({"translated": True, "system": "darwin"}, "Rosetta", "uv python install"),
        ({"features": ("avx2", "avx512f")}, "has avx512f, llama.cpp was built without", "NATIVE"),
        ({"amx_left_out": True}, "AMX", ""),
        ({"swap_used": 3 * 10**9, "memory_free": 10**9}, "3.0 GB are swapped out", "smaller pair"),
        ({"address_space": 4 * 10**9}, "leaves 4.0 GB", "ulimit -v unlimited"),
        ({"load": 12.0}, "12.0 of 16 threads busy", "Close them"),
        ({"allowed": 2}, "may use 2 of 16 processors", ""),
        ({"power_profile": "low-power"}, "low-power", "powerprofilesctl set performance"),
        (
            {"power_profile": "low-power", "system": "darwin"},
            "low-power",
            "pmset -a lowpowermode 0",
        ),
        ({"on_battery": True}, "battery", "Plug it in"),
        ({"on_battery": True, "system": "win32"}, "battery", "powercfg /setactive"),
        ({"clock": 1200.0}, "1,200 of 4,000 MHz", "cool down"),
    ],
)
def test_what_is_wrong_is_said_with_what_helps(
    what: dict[str, Any], said: str, remedy: str
) -> None:
    (found,) = findings(replace(GOOD, **what))
    assert said in found.what
    assert remedy in found.remedy


def test_what_slows_down_comes_first() -> None:
    bad = replace(GOOD, amx_left_out=True, allowed=2, cards=("nvidia",), load=12.0)
    levels = [finding.level for finding in findings(bad)]
    assert levels == [Level.SLOW, Level.SLOW, Level.NOTE, Level.NOTE]


def test_swap_that_nobody_needs_is_no_finding() -> None:
    assert findings(replace(GOOD, swap_used=3 * 10**9)) == []


def test_bandwidth_is_that_of_the_fastest_pass() -> None:
    ticks = iter([0.0, 0.0, 0.5, 0.5, 0.6, 0.7, 2.0])
    assert read_bandwidth(1, 1 << 27, seconds=1.0, clock=lambda: next(ticks)) == pytest.approx(
        (1 << 24) / 0.1
    )


def test_it_prints_what_it_sees_and_nothing_private(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--json"], standalone_mode=False)
    said = capsys.readouterr().out
    document = json.loads(said)
    facts = document["facts"]
    assert "CPU" in facts["backends"]
    assert 0 < facts["memory_free"] <= facts["memory_total"]
    assert 1e8 < facts["bandwidth"] < 1e13
    assert {each["level"] for each in document["findings"]} <= {"slow", "note"}
    for private in (platform.node(), str(Path.home()), str(Path.cwd())):
        assert private not in said
    cli.main(["doctor"], standalone_mode=False)
    text = capsys.readouterr().out
    assert facts["processor"] in text
    assert "GB/s" in text
