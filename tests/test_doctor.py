"""`localspec doctor`: every finding with its command, and nothing private in what is printed."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from localspec import errors, machine
from localspec.cli.machine.doctor import _fact_lines, _threads_asked
from localspec.cli.settings_file import SettingsFile
from localspec.cli.subcommands import cli
from localspec.doctor import facts
from localspec.doctor import findings as findings_module
from localspec.doctor.facts import (
    MachineFacts,
    WorkerFacts,
    machine_facts,
    makers,
    read_bandwidth,
)
from localspec.doctor.findings import Level, findings
from localspec.engine.llama import library
from localspec.engine.llama.platform import hardware, rpc
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import EngineError
from localspec.pairs.disk import starter

BUSY = WorkerFacts(
    endpoint="10.0.0.2:1",
    problem="the worker at 10.0.0.2:1 does not answer, or serves another machine",
)
GOOD = MachineFacts(
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
    share=None,
    threads=8,
    threads_asked=0,
    others=0.3,
    features=("avx2", "fma"),
    built_for=("avx2", "fma", "f16c"),
    variant="",
    compiler="Clang 16.0.6",
    amx_left_out=False,
    backends=("CPU",),
    devices=(),
    cards=(),
    compilers=("clang", "nvcc"),
    project=True,
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
CARD = DeviceMemory("a card", 10**10, 10**10, label="CUDA0")
CUDA = (
    'CMAKE_ARGS="-DGGML_CUDA=on" uv sync --inexact --no-cache --reinstall-package llama-cpp-python'
)


def test_a_good_machine_has_no_findings() -> None:
    assert findings(GOOD) == []
    used = replace(GOOD, cards=("nvidia",), backends=("CUDA", "CPU"), devices=(CARD,))
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
        (
            {"cards": ("nvidia",), "compilers": ("clang",)},
            "toolkit, then run localspec doctor again)",
            CUDA,
        ),
        ({"cards": ("apple",), "system": "darwin"}, "without Metal", "-DGGML_METAL=on"),
        (
            {"cards": ("amd",)},
            "AMD could be used through Vulkan",
            'CMAKE_ARGS="-DGGML_VULKAN=on" uv',
        ),
        ({"cards": ("amd",)}, "spirv-headers", "--reinstall-package llama-cpp-python"),
        (
            {"cards": ("amd", "intel"), "system": "win32"},
            "AMD and Intel could be used through Vulkan (install its SDK first)",
            '$env:CMAKE_ARGS="-DGGML_VULKAN=on"; uv',
        ),
        ({"cards": ("nvidia",), "backends": ("CUDA", "CPU")}, "sees no such device", "driver"),
        ({"backends": ("CUDA", "CPU")}, "sees no such device", "driver"),
        (
            {"cards": ("amd",), "backends": ("Vulkan", "CPU"), "variant": "zen4"},
            "sees no such device",
            "driver",
        ),
        (
            {"cards": ("nvidia",), "project": False},
            "NVIDIA card",
            '--no-cache-dir --no-binary llama-cpp-python "llama-cpp-python==0.3.36"',
        ),
        (
            {"cards": ("nvidia",), "project": False, "llama_cpp": "0.3.36+localspec.1"},
            "NVIDIA card",
            '--no-binary llama-cpp-python "llama-cpp-python==0.3.36"',
        ),
        (
            {"cards": ("nvidia",), "llama_cpp": "0.3.36+localspec.1"},
            "NVIDIA card",
            f"{CUDA} --no-binary-package llama-cpp-python",
        ),
        (
            {"translated": True, "system": "darwin"},
            "Rosetta",
            "--python cpython-3.12-macos-aarch64",
        ),
        ({"translated": True, "project": False}, "Rosetta", "Install Python for Apple silicon"),
        ({"features": ("avx2", "avx512f")}, "has avx512f, llama.cpp was built without", "NATIVE"),
        ({"amx_left_out": True}, "AMX", "-DGGML_NATIVE=off -DGGML_AVX512=on"),
        ({"compiler": "GCC 12.2.0"}, "five sixths of the time", "-DCMAKE_CXX_COMPILER=clang++"),
        ({"compiler": "GCC 12.2.0", "compilers": ()}, "of the time (install clang first)", "-DCMA"),
        ({"swap_used": 3 * 10**9, "memory_free": 10**9}, "3.0 GB are swapped out", "smaller pair"),
        ({"address_space": 4 * 10**9}, "leaves 4.0 GB", "ulimit -v unlimited"),
        ({"others": 12.0}, "12.0 of 16 threads busy", "Close them"),
        ({"allowed": 2}, "may use 2 of 16 processors", ""),
        ({"share": 2.0}, "the time of 2 processors", "--cpus"),
        (
            {"threads_asked": 16},
            "asks for 16 threads, the processor has 8 cores",
            "out of the settings file, then run: localspec tune",
        ),
        ({"workers": (BUSY,)}, "or serves another machine", "until the other machine has left"),
        ({"power_profile": "quiet"}, "profile is quiet", "powerprofilesctl set performance"),
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
    (found,) = findings(replace(GOOD, **{"compiler": "", **what}))
    assert said in found.what
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        ({"amx_left_out": True}, {"-DGGML_NATIVE=off", "-DGGML_AVX512=on"}),
        ({"features": ("avx512f",)}, {"-DGGML_NATIVE=on"}),
        ({"features": ("avx512f",), "amx_left_out": True}, {"-DGGML_NATIVE=off"}),
        ({"features": ("avx512f", "amx_int8")}, {"-DGGML_NATIVE=off", "-DGGML_AVX512=on"}),
    ],
)
@pytest.mark.parametrize("clone", [True, False])
def test_a_new_build_has_what_the_present_one_has(
    what: dict[str, Any], flags: set[str], clone: bool
) -> None:
    backends = ("CUDA", "RPC", "CPU")
    facts = replace(GOOD, devices=(CARD,), backends=backends, project=clone, **what)
    found = findings(facts)
    assert found
    for finding in found:
        words = finding.remedy.partition('"')[2].partition('"')[0].split()
        assert {"-DGGML_CUDA=on", "-DCMAKE_CXX_COMPILER=clang++", *flags} <= set(words)
        assert ("-DGGML_RPC=on" in words) is not clone
        assert not {"-DGGML_NATIVE=on", "-DGGML_NATIVE=off"} <= set(words)


def test_cuda_is_found_where_its_packages_put_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvcc").touch()
    monkeypatch.setattr(facts.shutil, "which", lambda _: None)
    for module in (facts, findings_module):
        monkeypatch.setattr(module, "NVCC", tmp_path / "nvcc")
    assert facts._compilers() == (str(tmp_path / "nvcc"),)
    (card,) = findings(replace(GOOD, cards=("nvidia",), compilers=facts._compilers()))
    assert "toolkit" not in card.what
    assert f'"-DGGML_CUDA=on -DCMAKE_CUDA_COMPILER={tmp_path / "nvcc"}" uv sync' in card.remedy
    page = (Path(__file__).parent.parent / "docs/install.md").read_text("utf-8")
    assert "`-DGGML_CUDA=on -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc`" in page
    monkeypatch.setattr(facts.shutil, "which", lambda name: name)
    assert facts._compilers() == ("clang", "nvcc")


def test_one_build_answers_two_findings() -> None:
    both = replace(GOOD, compiler="GCC 12.2.0", amx_left_out=True)
    first, second = findings(both)
    assert first.remedy == second.remedy
    assert "clang++" in first.remedy
    assert "-DGGML_NATIVE=off" in first.remedy
    _, without = findings(replace(both, compilers=()))
    assert "clang" not in without.remedy  # it would have to be installed first
    (card, *_) = findings(replace(both, cards=("nvidia",)))
    assert {"-DGGML_NATIVE=off", "-DGGML_CUDA=on"} <= set(card.remedy.split('"')[1].split())


def test_a_build_by_a_compiler_that_came_for_it_alone_needs_no_clang() -> None:
    (card,) = findings(replace(GOOD, cards=("nvidia",), compilers=()))
    assert "clang" not in card.remedy


def test_a_build_without_amx_is_a_good_one() -> None:
    assert findings(replace(GOOD, features=("avx2", "amx_int8"))) == []


def test_workers_cost_no_build_its_card_or_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "backends", lambda: ("CUDA", "CPU"))
    monkeypatch.setattr(rpc, "compiler", lambda: "Clang 16.0.6")
    monkeypatch.setattr(rpc.shutil, "which", lambda name: name)
    monkeypatch.setattr(hardware, "repacking_works", lambda: True)
    monkeypatch.setattr(hardware, "cpuinfo", lambda _: "avx512f amx_int8")
    with pytest.raises(EngineError) as refused:
        rpc._function("no_such_function")
    kept = {"-DGGML_CUDA=on", "-DCMAKE_CXX_COMPILER=clang++", "-DGGML_NATIVE=off"}
    assert kept <= {*refused.value.remedy.partition('"')[2].partition('"')[0].split()}


@pytest.mark.skipif(os.name == "nt", reason="PowerShell has other rules")
@pytest.mark.parametrize("uv", ["", "/bin/uv"])
def test_outside_of_a_clone_commands_install_for_the_python_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uv: str
) -> None:
    """The Python of a tool stands where no shell looks; its path may have spaces."""
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setattr(errors.shutil, "which", lambda name: uv or None)
    monkeypatch.setattr(errors, "in_clone", lambda: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    python = tmp_path / "a tool" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    (card,) = findings(replace(GOOD, cards=("nvidia",), project=False))
    monkeypatch.setattr(library, "in_clone", lambda: False)
    monkeypatch.setattr(library, "sys", SimpleNamespace(modules={}))
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(EngineError) as refused:
        rpc._function("no_such_function")
    told = [
        refused.value.remedy,
        library._refusal(OSError("damaged")).remedy,
        library._refusal(OSError("GLIBC_2.99 not found")).remedy,
        errors.of_import(ImportError("damaged"))[1],
    ]
    assert "--force-reinstall FILE" in told[-1]  # no release of localspec is published
    commands = [card.remedy, errors.installs_extra("serve"), starter.install()]
    for command in (*commands, *(each.partition(": ")[2] for each in told)):
        words = [str(Path(word).expanduser()) for word in shlex.split(command)]
        install = ["uv", "pip", "install"] if uv else [str(python), "-m", "pip", "install"]
        assert words[words.index(install[0]) :][: len(install)] == install
        assert not uv or words[-2:] == ["--python", str(python)]
        assert str(tmp_path) not in command  # it has the user's name


@pytest.mark.parametrize("uv", ["", "uv.exe"])
@pytest.mark.parametrize("home", [r"C:\Users\Ann Lee", r"D:\elsewhere"])
def test_on_windows_commands_that_install_are_for_powershell(
    monkeypatch: pytest.MonkeyPatch, uv: str, home: str
) -> None:
    """It runs a quoted program after an ampersand, and fills in variables within double quotes."""

    class WindowsPath(PureWindowsPath):
        @staticmethod
        def home() -> PureWindowsPath:
            return PureWindowsPath(home)

    monkeypatch.setattr(errors, "os", SimpleNamespace(name="nt", environ={}))
    monkeypatch.setattr(errors, "Path", WindowsPath)
    monkeypatch.setattr(errors.shutil, "which", lambda _: uv or None)
    monkeypatch.setattr(errors, "in_clone", lambda: False)
    monkeypatch.setattr(sys, "executable", r"C:\Users\Ann Lee\my tools\python.exe")
    theirs = r"$env:USERPROFILE" if "Ann" in home else r"C:\Users\Ann Lee"
    python = rf'"{theirs}\my tools\python.exe"'
    assert errors.installs_extra("serve") == (
        f'uv pip install "localspec[serve]" --python {python}'
        if uv
        else f'& {python} -m pip install "localspec[serve]"'
    )


def test_in_a_clone_uv_keeps_the_extras_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("UV", "uv")
    assert errors.installs_extra("mcp") == "uv sync --inexact --extra mcp"
    assert library.rebuild().startswith(CUDA.partition(" ")[2])
    again = errors.of_import(ImportError("it"))[1]  # llama.cpp may be built for a card
    assert again.endswith(": uv sync --inexact --reinstall --no-install-package llama-cpp-python")


def test_what_is_enough_is_no_finding() -> None:
    assert findings(replace(GOOD, share=8.0, threads_asked=8)) == []
    assert findings(replace(GOOD, on_battery=False, clock=None, clock_most=None)) == []


def test_a_wheel_may_have_backends_for_cards_that_are_not_there() -> None:
    assert findings(replace(GOOD, backends=("Vulkan", "CPU"), variant="haswell")) == []


def test_what_slows_down_comes_first() -> None:
    bad = replace(GOOD, amx_left_out=True, allowed=2, cards=("nvidia",), others=12.0)
    levels = [finding.level for finding in findings(bad)]
    assert levels == [Level.SLOW, Level.SLOW, Level.NOTE, Level.NOTE]


def test_swap_that_nobody_needs_is_no_finding() -> None:
    assert findings(replace(GOOD, swap_used=3 * 10**9)) == []


def test_bandwidth_is_that_of_the_fastest_pass() -> None:
    ticks = iter([0.0, 0.0, 0.5, 0.5, 0.6, 0.7, 2.0])
    assert read_bandwidth(1, 1 << 27, seconds=1.0, clock=lambda: next(ticks)) == pytest.approx(
        (1 << 24) / 0.1
    )


def test_it_prints_what_it_sees_and_nothing_private(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "read_bandwidth", partial(read_bandwidth, seconds=0.1))
    monkeypatch.setattr(facts, "busy_cores", lambda _: 0.0)
    cli.main(["doctor", "--json"], standalone_mode=False)
    said = capsys.readouterr().out
    document = json.loads(said)
    seen = document["facts"]
    assert set(document) == {"facts", "findings"}
    assert "CPU" in seen["backends"]
    assert 0 < seen["memory_free"] <= seen["memory_total"]
    assert 1e8 < seen["bandwidth"] < 1e13
    assert seen["bandwidth_unknown"] is None
    assert {each["level"] for each in document["findings"]} <= {"slow", "note"}
    said = said.replace(sys.executable, "python")  # in a command, unless uv makes it
    for private in (platform.node(), str(Path.home()), str(Path.cwd())):
        assert private not in said
    cli.main(["doctor"], standalone_mode=False)
    text = capsys.readouterr().out
    assert seen["processor"] in text
    assert "read at" in text


def test_no_bound_follows_from_a_bandwidth_that_other_programs_disturbed() -> None:
    text = "\n".join(_fact_lines(GOOD))
    assert "read at 40 GB/s (15 by one thread)" in text
    assert "writes at most 8.0 tokens/s" in text
    text = "\n".join(_fact_lines(replace(GOOD, others=12.0)))
    assert text.count("an unknown speed: other programs were running") == 2
    assert "GB/s" not in text
    assert "tokens/s" not in text


def test_a_disturbed_bandwidth_is_null_for_programs_and_the_reason_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "read_bandwidth", lambda *_: 1e9)
    monkeypatch.setattr(facts, "busy_cores", lambda _: 10_000.0)
    cli.main(["doctor", "--json"], standalone_mode=False)
    seen = json.loads(capsys.readouterr().out)["facts"]
    assert (seen["bandwidth"], seen["bandwidth_one"]) == (None, None)
    assert seen["bandwidth_unknown"] == "other programs were running"


def test_the_kernels_that_were_chosen_are_shown() -> None:
    assert not [line for line in _fact_lines(GOOD) if "chosen" in line]
    shown = "\n".join(_fact_lines(replace(GOOD, variant="haswell")))
    assert "avx2, fma, f16c, by Clang 16.0.6; chosen for this processor: haswell" in shown


# --- odd machines -----------------------------------------------------------------------------


class Nothing:
    """Stands for what the system does not have."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> object:
        raise self.error


@pytest.mark.parametrize("error", [OSError("no"), AttributeError("no"), RuntimeError("no")])
def test_what_the_system_does_not_say_is_left_out(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for name in ("swap_memory", "cpu_freq"):
        monkeypatch.setattr(psutil, name, Nothing(error))
    if not isinstance(error, RuntimeError):
        for name in ("getloadavg", "sensors_battery"):
            monkeypatch.setattr(psutil, name, Nothing(error), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda *_, **__: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(machine, "text_of", lambda _path: "")
    monkeypatch.setattr(facts, "read_bandwidth", lambda *_: 1e9)
    seen = machine_facts()
    assert (seen.swap_used, seen.clock, seen.cores, seen.logical) == (0, None, 6, 6)
    assert seen.processor
    assert all(finding.what for finding in findings(seen))


@pytest.mark.skipif(sys.platform == "win32", reason="the command is a script of the shell")
def test_a_command_may_answer_in_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sysctl").write_text("#!/bin/sh\nprintf 'Caf\\351 9000'\n")
    (tmp_path / "sysctl").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine_facts(measure=False).processor == "Caf\ufffd 9000"


@pytest.mark.parametrize(
    ("held", "named"),
    [
        (b"\0GCC: (Debian 12.2.0-14+deb12u1) 12.2.0\0", "GCC 12.2.0"),
        (
            b"\0GCC: (GNU) 14.2.1 20250110\0Debian clang version 16.0.6 (15~deb12u1)\0",
            "Clang 16.0.6",
        ),
        (b"nothing", ""),
        (None, ""),
    ],
)
def test_the_compiler_is_read_from_the_library(
    tmp_path: Path, held: bytes | None, named: str
) -> None:
    if held is not None:
        (tmp_path / "libggml-cpu.so").write_bytes(held)
    assert hardware.compiler_in(tmp_path) == named


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_proc_that_says_little_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
    monkeypatch.setattr(machine, "_folders", tuple)
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemFree: 2000000 kB\n")
    assert (machine.total(), machine.available()) == (8_192_000_000, 2_048_000_000)
    assert machine.swapped_out() == 0
    (tmp_path / "meminfo").write_text("")
    assert 0 < machine.available() <= machine.total()
    (tmp_path / "meminfo").unlink()
    assert 0 < machine.available() <= machine.total()
    assert machine.swapped_out() == 0


@pytest.mark.parametrize(("plugged", "on_battery"), [(True, False), (False, True), (None, None)])
def test_a_battery_that_does_not_say_is_not_in_use(
    monkeypatch: pytest.MonkeyPatch, plugged: bool | None, on_battery: bool | None
) -> None:
    battery = SimpleNamespace(power_plugged=plugged)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert machine.on_battery() is on_battery


def test_machines_with_arm_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, board = {"CPU implementer": "0x41", "CPU part": "0xd0c"}, tmp_path / "model"
    monkeypatch.setattr(machine, "cpuinfo", lambda field: known.get(field, ""))
    monkeypatch.setattr(machine, "_BOARD", board)
    assert machine.processor_name() == "Arm 0x41 0xd0c"
    known["CPU part"] = "0xd4f"
    assert machine.processor_name() == "Arm 0x41 0xd4f"
    for name in ("Raspberry Pi 5 Model B Rev 1.0", "NVIDIA Jetson AGX Orin Developer Kit"):
        board.write_bytes(name.encode() + b"\0")
        assert machine.processor_name() == name
    known["model name"] = "Some Processor"
    assert machine.processor_name() == "Some Processor"


MOUSE = {"type": "Battery", "scope": "Device", "status": "Discharging"}


@pytest.mark.parametrize(
    ("supplies", "on_battery"),
    [
        ({}, None),
        ({"hidpp_battery_0": MOUSE}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Charging"}, "hidpp_battery_0": MOUSE}, False),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}}, None),
        (
            {
                "BAT0": {"type": "Battery", "scope": "System", "status": "Discharging"},
                "ACAD": {"type": "Mains", "online": "1"},
            },
            False,
        ),
        (
            {
                "BAT0": {"type": "Battery", "status": "Charging"},
                "AC": {"type": "Mains", "online": "0"},
                "ucsi-source-psy-1": {"type": "USB", "online": "1"},
            },
            False,
        ),
        (
            {
                "BAT0": {"type": "Battery", "status": "Unknown"},
                "AC": {"type": "Mains", "online": "0"},
            },
            True,
        ),
        ({"AC": {"type": "Mains", "online": "1"}, "ps-controller-battery-1": MOUSE}, None),
    ],
)
def test_the_battery_of_a_mouse_is_not_the_machine_s(
    supplies: dict[str, dict[str, str]],
    on_battery: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, fields in supplies.items():
        (tmp_path / name).mkdir()
        for field, text in fields.items():
            (tmp_path / name / field).write_text(f"{text}\n")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(machine, "_SUPPLIES", tmp_path)
    assert machine.on_battery() is on_battery


def test_makers_are_known_by_their_drivers() -> None:
    names = ["NVIDIA GeForce RTX 4070", "AMD Radeon(TM) Graphics", "Intel(R) UHD Graphics 770"]
    assert makers(names) == {"nvidia", "amd", "intel"}
    assert makers(["Microsoft Basic Display Adapter", "Parallels Display"]) == set()


def test_threads_come_from_the_settings_file() -> None:
    settings = SettingsFile(Path(), {"": {"threads": 4}, "chat": {"threads": 12}, "run": {}})
    assert _threads_asked(settings) == 12
    assert _threads_asked(None) == 0
    assert "localspec uses 8\n" in "\n".join(_fact_lines(GOOD))
    asked = "\n".join(_fact_lines(replace(GOOD, threads_asked=4)))
    assert "localspec uses 8, the settings file asks for 4\n" in asked


# --- containers -------------------------------------------------------------------------------


def test_the_folders_of_control_groups_of_both_versions(tmp_path: Path) -> None:
    second = machine._under(["0::/user.slice/app"], "memory", tmp_path)
    assert second == (tmp_path / "user.slice/app", tmp_path / "user.slice", tmp_path)
    first = ["5:cpuset:/", "4:memory:/docker/ab", "2:cpu,cpuacct:/docker/ab", "1:name=systemd:/x"]
    memory = machine._under(first, "memory", tmp_path)
    assert memory == tuple(tmp_path / "memory" / name for name in ("docker/ab", "docker", ""))
    assert machine._under(first, "cpu", tmp_path)[0] == tmp_path / "cpu" / "docker" / "ab"
    assert machine._under(["nonsense", "", ":::"], "memory", tmp_path) == ()


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_no_more_threads_than_a_container_gives_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], share: float | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(machine, "_under", lambda *_: (tmp_path,))
    assert machine.processors() == share
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 64)
    monkeypatch.setattr(hardware, "_fast", lambda _: None)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert hardware.default_threads() == (64 if share is None else int(share))


_BACKEND = """
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None, version="0.3.36"):
    name = f"llama_cpp_python-{version}-py3-none-any.whl"
    known = f"llama_cpp_python-{version}.dist-info/"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        about = f"Metadata-Version: 2.2\\nName: llama-cpp-python\\nVersion: {version}\\n"
        wheel.writestr(known + "METADATA", about)
        wheel.writestr(known + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(known + "RECORD", "")
    return name
"""
_PROJECT = """[project]
name = "{name}"
version = "{version}"
dependencies = {needs}
requires-python = ">=3.11"
"""


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is what is tested")
def test_a_clone_goes_back_from_a_wheel_to_the_source_and_keeps_what_it_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command that is printed and written, while uv still knows the folder of wheels."""
    folder, clone = tmp_path / "wheels", tmp_path / "clone"
    folder.mkdir()
    clone.mkdir()
    made: dict[str, Any] = {}
    exec(_BACKEND, made)
    made["build_wheel"](folder, version="0.3.36+localspec.1")
    system = '[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n'

    def publish(version: str) -> None:
        about = _PROJECT.format(name="llama-cpp-python", version=version, needs=[])
        backend = _BACKEND.replace("0.3.36", version)
        with tarfile.open(folder / f"llama_cpp_python-{version}.tar.gz", "w:gz") as archive:
            for name, text in (("pyproject.toml", about + system), ("made.py", backend)):
                entry = tarfile.TarInfo(f"llama_cpp_python-{version}/{name}")
                entry.size = len(text)
                archive.addfile(entry, BytesIO(text.encode()))

    publish("0.3.36")
    needs = ["llama-cpp-python>=0.3.36"]
    (clone / "pyproject.toml").write_text(_PROJECT.format(name="clone", version="1", needs=needs))
    # Without the settings of these tests' own environment, which uv would change.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    settings |= {"UV_FIND_LINKS": str(folder), "UV_NO_INDEX": "1", "UV_OFFLINE": "1"}
    settings |= {"UV_PYTHON": sys.executable, "UV_CACHE_DIR": str(tmp_path / "cache")}
    settings.pop("VIRTUAL_ENV", None)
    back = errors.rebuilds("0.3.36+localspec.1", clone=True, windows=False)
    for command, version in (("uv sync", "0.3.36+localspec.1"), (back, "0.3.36")):
        subprocess.run(shlex.split(command), cwd=clone, env=settings, check=True, timeout=60)
        assert [*clone.glob(f".venv/**/llama_cpp_python-{version}.dist-info")]
        publish("0.3.37")  # from then on: nothing asks for it
    monkeypatch.setattr(errors, "in_clone", lambda: True)
    (built,) = clone.glob(".venv/**/llama_cpp_python-0.3.36.dist-info")
    (built / "INSTALLER").write_text("this one")
    _, _, again = errors.install_again().partition(": ")
    subprocess.run(shlex.split(again), cwd=clone, env=settings, check=True, timeout=60)
    assert (built / "INSTALLER").read_text() == "this one"
    page = (Path(__file__).parent.parent / "docs/install.md").read_text("utf-8")
    assert f"\n    {back}\n" in page


@pytest.mark.parametrize(
    ("system", "cards"),
    [("linux", "nvidia"), ("win32", "nvidia"), ("linux", "amd"), ("win32", "intel")],
)
def test_the_page_on_installing_has_the_same_commands(system: str, cards: str) -> None:
    (found,) = findings(replace(GOOD, system=system, cards=(cards,), compiler=""))
    page = (Path(__file__).parent.parent / "docs/install.md").read_text("utf-8")
    assert f"\n    {found.remedy}\n" in page
