"""What the comparison of quick and long benches reads from a row, and when it is content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quick_advice import CANNOT, EACH, NO_GAIN, many, met, word
from localspec.bench.result import MeanInterval
from localspec.bench.verdict import brought
from tests.support.bench_reports import arm, report

KINDS = {
    "edit": MeanInterval(1.6, 1.5, 1.7),
    "conversion": MeanInterval(0.9, 0.85, 0.95),
    "chat": MeanInterval(1.0, 0.98, 1.02),
    "code": MeanInterval(1.1, 0.9, 1.3),
}


def test_the_advice_for_each_kind_is_read_from_its_row() -> None:
    (on,) = report(arm("on", KINDS["edit"], KINDS)).on
    rows = [*on.kinds, replace(on.kinds[0], kind="story", drafting=0.0)]
    words = {row.kind: word(brought(row)) for row in rows}
    told = {"edit": "gain", "conversion": "loss", "chat": NO_GAIN, "code": CANNOT}
    assert words == {**told, "story": NO_GAIN}


def test_nine_of_ten_must_agree_and_beside_a_busy_process_nothing_may_contradict() -> None:
    nine = ["gain"] * 9
    assert met("quiet", "gain", [*nine, CANNOT])
    assert not met("quiet", "gain", [*nine[1:], CANNOT, CANNOT])
    assert met("a busy neighbour", "gain", [CANNOT] * 9 + ["loss"])
    assert not met("a busy neighbour", "gain", [CANNOT] * 8 + ["loss", "no gain"])


@pytest.mark.slow
def test_the_long_bench_has_24_different_prompts_of_every_kind() -> None:
    prompts = many(EACH, "").prompts
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 4 * EACH
    assert {prompt.kind for prompt in prompts[:4]} == {"edit", "conversion", "chat", "code"}
