"""What drafting is expected to bring on a machine not measured yet, from published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import hardware
from localspec.engine.length.cost import Curve
from localspec.engine.length.stopping import gamma_for
from localspec.engine.record.stats import DeviceMemory
from localspec.loading.measurements import published
from localspec.loading.measurements.published import KINDS, PublishedCurve, expected
from tests.support.hub_world import World
from tests.test_ranking import GB, row

ROOT = Path(__file__).parents[1]


def curve(machine: str) -> PublishedCurve:
    return next(one for one in published.curves() if one.machine == machine and not one.experts)


def test_every_curve_is_one_of_small_batches_and_tells_what_lookup_brings() -> None:
    assert len(published.curves()) == 15
    for one in published.curves():
        assert set(one.lookup) == set(KINDS)
        assert one.lookup["edits"] >= one.lookup["chat"] > 0.9
        assert min(one.times) == 2
        assert all(0.9 < ratio < n for n, ratio in one.times.items())


def test_the_page_is_made_from_the_same_data() -> None:
    assert hardware.page() == (ROOT / "docs/hardware.md").read_text("utf-8")


def test_the_page_begins_with_an_answer_for_each_kind_of_machine() -> None:
    for one in published.curves():
        assert sum(belongs(one) for belongs in hardware.KINDS.values()) == 1
    steep = [
        replace(one, times={n: float(n) for n in one.times}, lookup=dict.fromkeys(KINDS, 1.0))
        for one in published.curves()
    ]
    assert "| NVIDIA card | 2.2 to 3.6 | 1.2 to 1.3 | 1.6 to 1.9 | yes |" in hardware.page()
    assert hardware.short(steep, []).count("| no |") == len(hardware.KINDS)


@pytest.mark.parametrize(
    ("processor", "accelerators", "basis"),
    [
        ("AMD EPYC 7B13", (), "processors"),
        ("AMD Ryzen 9 7940HS w/ Radeon 780M", (), "Ryzen 7940HS, 8 cores (12B BF16)"),
        ("Apple M4", (), "Apple's chips"),
        ("Apple M2 Ultra", ("Apple M2 Ultra",), "M2 Ultra (7B Q8_0)"),
        ("AMD EPYC", ("NVIDIA GeForce RTX 3090",), "RTX 3090 (8B Q4_0)"),
        ("AMD EPYC", ("NVIDIA H100 PCIe",), "NVIDIA cards"),
        ("Intel Core", ("AMD Radeon RX 6700 XT",), "AMD cards"),
        ("Intel Core", ("AMD Radeon RX 7900 XTX (RADV NAVI31)",), "RX 7900 XTX (8B Q2_K_M)"),
        ("Intel Core", ("NVIDIA GeForce RTX 4090",), "RTX 4090 (1B Q4_0)"),
        ("Intel Core", ("NVIDIA GeForce RTX 4090 Laptop GPU",), "NVIDIA cards"),
        ("Intel Core", ("AMD Radeon RX 6800 XT",), "AMD cards"),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", (), "processors"),
        ("Intel Core", ("Intel(R) Arc(TM) A770",), None),
    ],
)
def test_the_curves_are_those_of_this_hardware_or_of_its_kind(
    processor: str, accelerators: tuple[str, ...], basis: str | None
) -> None:
    found = expected(processor, accelerators)
    assert (found and found.basis) == basis
    assert found is None or str(found).endswith(f"(from published costs of {basis})")
    assert found is None or found.draft is None


def test_lookup_is_expected_within_the_range_of_the_curves() -> None:
    one = expected("", ("NVIDIA GeForce RTX 3090",))
    assert one is not None
    assert one.lookup["edits"] == (curve("RTX 3090").lookup["edits"],) * 2
    assert str(one).startswith("2.2× for edits and 1.2× for chat with lookup")
    several = expected("a processor")
    assert several is not None
    assert several.lookup["edits"] == (1.42, 3.19)


def test_a_draft_model_is_expected_by_what_its_tokens_read() -> None:
    drafted = row("a", 2, drafter="draft", draft_bytes=GB // 10)
    found = expected("", ("NVIDIA GeForce RTX 3090",), drafted)
    assert found is not None
    points = curve("RTX 3090").points
    gain = gamma_for(0.7, Curve(points).times(max(points)), 0.05)[1]
    assert found.draft == (pytest.approx(gain), pytest.approx(gain))
    assert f"{gain:.1f}× with its draft, if 70 % of it is accepted; 2.2× for edits" in str(found)


def test_of_a_mixture_nothing_but_the_curves_of_mixtures_tells() -> None:
    mixture = row("a", 2, active=0.1, drafter="mtp")
    found = expected("", ("NVIDIA H100 PCIe",), mixture)
    assert found is not None
    assert found.draft is None
    assert found.lookup["code"] == (1.03, 1.03)
    assert expected("", ("AMD Radeon RX 6800",), mixture) is None  # none was published


def test_show_and_list_say_so_until_this_machine_was_measured(
    hub_world: World, starter_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shown = hub_world.run("show", "qwen3-8b", "--no-scan").out
    assert "with its draft, if 70 % of it is accepted" in shown
    assert "from published costs of" in shown
    listed = hub_world.run("list", "--no-scan").out
    assert "Until then, expect " in listed
    assert "with lookup, which copies what repeats (from published costs of " in listed
    cards = [DeviceMemory("NVIDIA GeForce RTX 3090", 24 * GB, 24 * GB, label="CUDA0")]
    monkeypatch.setattr("localspec.engine.llama.devices", lambda: cards)
    listed = hub_world.run("list", "--no-scan").out
    assert "(from published costs of RTX 3090 (8B Q4_0))" in listed
