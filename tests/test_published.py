"""What drafting is expected to bring on a machine not measured yet, from published figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import hardware
from localspec.bench.sharing.shared_report import shared
from localspec.engine.length.cost import Curve
from localspec.engine.length.stopping import gamma_for
from localspec.engine.record.stats import DeviceMemory
from localspec.loading.measurements import published
from localspec.loading.measurements.published import KINDS, PublishedCurve, expected
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.names.repository_files import quant_bits
from tests.support.hub_world import World
from tests.test_ranking import GB, row
from tests.test_sharing import measured

ROOT = Path(__file__).parents[1]


def curve(machine: str) -> PublishedCurve:
    return next(one for one in published.curves() if one.machine == machine)


def pair(bits: float, **more: Any) -> ListedPair:
    return row("a", 2, bits=bits, **more)


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
    groups = list(published.groups().values())
    assert sum(len(group.curves) for group in groups) == len(published.curves())
    steep = [
        replace(
            group,
            curves=[
                replace(one, times={n: float(n) for n in one.times}, lookup=dict.fromkeys(KINDS, 1))
                for one in group.curves
            ],
        )
        for group in groups
    ]
    page = hardware.page()
    assert "| NVIDIA cards, weights of 8 bits | 3.3 to 3.6 | 1.3 | 1.9 | yes |" in page
    assert (
        "| Apple's chips, weights of at most 6 bits | ? | ? | 0.8 to 1.1, published"
        " | measure it first |"
    ) in page
    answers = hardware.short(steep)
    assert answers.count("| no |") == sum(
        "experts" not in group.name for group in groups if group.curves
    )


def test_every_curve_stands_for_weights_of_its_own_size_alone() -> None:
    for one in published.curves():
        quant = re.search(r"\S*Q\d\S*|BF16", one.model)
        bits = quant_bits(quant[0]) if quant else 4.25  # gpt-oss has MXFP4
        assert one.bits == (16 if bits > 10 else 8 if bits > 7 else 6)


AMD_CARDS = "AMD cards, Radeon 8060S, weights of at most 6 bits"
HARDWARE = {
    "nvidia": ("", ("NVIDIA H100 PCIe",)),
    "amd": ("", ("AMD Radeon RX 6700 XT",)),
    "mobile": ("", ("AMD Radeon 680M",)),
    "apple": ("Apple M9", ("Apple M9",)),
    "processor": ("AMD EPYC 7B13", ()),
    "experts": ("", ("Intel(R) Arc(TM) A770",)),
}


@pytest.mark.parametrize("key", published.groups())
def test_show_expects_what_the_page_has_for_this_kind_and_size(key: tuple[str, int]) -> None:
    """With a head, whose step both take from its bytes; with none for mixtures of experts."""
    kind, bits = key
    active = 0.1 if kind == "experts" else 1.0
    found = expected(*HARDWARE[kind], pair(bits, drafter="mtp", active=active))
    assert found is not None
    told = (*(found.lookup.get(text) for text in ("edits", "chat")), found.draft)
    cells = ["?" if gains is None else hardware.span(gains) for gains in told]
    line = f"| {found.basis} | {' | '.join(cells)}"
    assert line in hardware.page()
    assert (found.draft is None) == (kind == "experts")
    assert bool(found.lookup) == bool(found.accepted or kind == "experts")


@pytest.mark.parametrize(
    ("machine", "bits", "draft", "basis"),
    [
        (("Apple M4 Pro",), 4.75, (0.84, 0.84), "speeds of M4 Pro (27B Q4_K_M, MTP head)"),
        (("Apple M3",), 4.75, (0.84, 1.06), "speeds of Apple's chips, weights of at most 6 bits"),
        (("AMD Radeon 780M (RADV PHOENIX)",), 4.75, (2.05, 2.05), "speeds of Radeon 780M (27B"),
        (
            ("NVIDIA GeForce RTX 3090",),
            8.5,
            (1.90, 1.91),
            "costs of NVIDIA cards, weights of 8 bits",
        ),
    ],
)
def test_weights_of_another_size_promise_nothing(
    machine: tuple[str, ...], bits: float, draft: published.Range, basis: str
) -> None:
    found = expected("Intel Core", machine, pair(bits, drafter="mtp"))
    assert found is not None
    assert found.draft == pytest.approx(draft, abs=0.005)
    assert f"(from published {basis}" in str(found)
    assert ("accepted" in str(found)) == bool(found.lookup) == (bits > 8)


def test_what_heads_brought_is_not_promised_of_a_draft_model() -> None:
    for device in ("AMD Radeon 780M (RADV PHOENIX)", "Apple M3"):
        assert expected("", (device,), pair(4.75, drafter="draft")) is None


def test_nothing_is_said_of_weights_of_which_nothing_was_published() -> None:
    for bits in (8.5, 16.0):
        assert expected("", ("AMD Radeon RX 6800",), pair(bits, drafter="mtp")) is None
    for bits in (0.0, 32.0):
        assert expected("AMD EPYC", (), pair(bits)) is None
    assert expected("Apple M4", (), pair(4.75)) is None  # of lookup there, nothing was
    found = expected("AMD Ryzen 9 7940HS", (), pair(4.75))
    assert found is not None
    assert found.lookup["edits"] == (1.42, 1.48)


def test_a_shared_row_tells_no_cost_or_gain_that_was_not_measured() -> None:
    told = shared(measured())
    (arm,) = told.arms
    gains = (msgspec.structs.replace(arm.gains[0], acceptance=None), *arm.gains[1:])
    arms = (msgspec.structs.replace(arm, gains=gains),)
    told = msgspec.structs.replace(told, curve=((1, 0.01), (2, 0.011)), arms=arms)
    (cells,) = hardware.shared_rows(told)
    assert cells[2] == "?"
    assert cells[4].startswith("edit nothing drafted, chat 0.98 (")


def test_the_page_says_what_is_not_as_it_was_published() -> None:
    page = hardware.page()
    assert "only acceptances were, and 1 + drafted x acceptance is ours" in page
    assert "| RTX 4090 | 1B Q4_0 | ub |" in page
    assert "leave out the vocabulary's rows" in page
    extrapolated = [line for line in page.splitlines() if "T(5) extrapolated" in line]
    assert [line.split("|")[1:4:2] for line in extrapolated] == [[" RX 7900 XTX ", " 4 "]]


@pytest.mark.parametrize(
    ("processor", "accelerators", "bits", "basis"),
    [
        ("AMD EPYC 7B13", (), 6, "processors without a card, weights of at most 6 bits"),
        ("AMD EPYC 7B13", (), 16, "processors without a card, weights of 16 bits"),
        ("AMD Ryzen 9 7940HS w/ Radeon 780M", (), 16, "Ryzen 7940HS, 8 cores (12B BF16)"),
        ("Apple M4", (), 8, "Apple's chips, weights of 8 bits"),
        ("Apple M2 Ultra", ("Apple M2 Ultra",), 8, "M2 Ultra (7B Q8_0)"),
        ("AMD EPYC", ("NVIDIA GeForce RTX 3090",), 6, "RTX 3090 (8B Q4_0)"),
        ("AMD", ("AMD Radeon 780M", "NVIDIA GeForce RTX 3090"), 6, "RTX 3090 (8B Q4_0)"),
        ("AMD", ("AMD Radeon 780M", "AMD Radeon RX 6800"), 6, "RX 6800 (7B Q4_K_S)"),
        ("AMD EPYC", ("NVIDIA GeForce RTX 3090",), 8, "NVIDIA cards, weights of 8 bits"),
        ("AMD EPYC", ("NVIDIA H100 PCIe",), 6, "NVIDIA cards, weights of at most 6 bits"),
        ("Intel Core", ("AMD Radeon RX 6700 XT",), 6, AMD_CARDS),
        ("Intel Core", ("AMD Radeon RX 7900 XTX (RADV NAVI31)",), 6, "RX 7900 XTX (8B Q2_K_M)"),
        ("Intel Core", ("NVIDIA GeForce RTX 4090",), 6, "RTX 4090 (1B Q4_0)"),
        (
            "Intel Core",
            ("NVIDIA GeForce RTX 4090 Laptop GPU",),
            6,
            "NVIDIA cards, weights of at most 6 bits",
        ),
        ("Intel Core", ("AMD Radeon RX 6800 XT",), 6, AMD_CARDS),
        (
            "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz",
            (),
            6,
            "processors without a card, weights of at most 6 bits",
        ),
        ("Intel Core", ("Intel(R) Arc(TM) A770",), 6, None),
    ],
)
def test_the_curves_are_those_of_this_hardware_or_of_its_kind(
    processor: str, accelerators: tuple[str, ...], bits: int, basis: str | None
) -> None:
    found = expected(processor, accelerators, pair(bits))
    assert (found and found.basis) == basis
    assert found is None or str(found).endswith(f"(from published costs of {basis})")
    assert found is None or found.draft is None


def test_lookup_is_expected_within_the_range_of_the_curves() -> None:
    one = expected("", ("NVIDIA GeForce RTX 3090",))  # of any model, so with the usual weights
    assert one is not None
    assert one.lookup["edits"] == (curve("RTX 3090").lookup["edits"],) * 2
    assert str(one).startswith("2.2× for edits and 1.2× for chat with lookup")
    several = expected("a processor")
    assert several is not None
    assert several.lookup["edits"] == (1.42, 1.48)


def test_a_draft_model_is_expected_by_what_its_tokens_read() -> None:
    drafted = pair(4.75, drafter="draft", draft_bytes=GB // 10)
    found = expected("", ("NVIDIA GeForce RTX 3090",), drafted)
    assert found is not None
    points = curve("RTX 3090").points
    gain = gamma_for(0.7, Curve(points).times(max(points)), 0.05)[1]
    assert found.draft == (pytest.approx(gain), pytest.approx(gain))
    assert f"{gain:.1f}× with its draft, if 70 % of it is accepted; 2.2× for edits" in str(found)


def test_of_a_mixture_nothing_but_the_curves_of_mixtures_tells() -> None:
    mixture = pair(4.75, active=0.1, drafter="mtp")
    for cards, code in (("NVIDIA GeForce RTX 3090", (1.03, 1.03)), ("AMD Radeon", (1.03, 1.13))):
        found = expected("", (cards,), mixture)
        assert found is not None
        assert found.draft is None
        assert found.lookup["code"] == code
    assert expected("", ("NVIDIA H100 PCIe",), replace(mixture, bits=8.5)) is None


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
