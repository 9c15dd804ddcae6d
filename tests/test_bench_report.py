"""The report: its sums, its words, its files."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from localspec.bench import report_files as output
from localspec.bench import summarise
from localspec.bench.comparison import compare, load
from localspec.bench.picture import Drawing
from localspec.bench.report_files import document
from localspec.bench.result import (
    AnswerDifference,
    AnswersAgree,
    ArmReport,
    BenchReport,
    BenchRun,
    MeanInterval,
    TimeShares,
)
from localspec.bench.runner import in_turn
from localspec.bench.summarise import rows, shares, speedups
from localspec.bench.tables import brief, markdown, text
from localspec.bench.tables import csv as as_csv
from localspec.bench.verdict import brought, settled, verdict
from localspec.engine.record.stats import GenerationStats, Round
from localspec.errors import LocalspecError, UsageError, installs_extra
from tests.support.bench_reports import ENVIRONMENT, arm, done, report, run, stats, sweep

GOOD, BAD, SAME = (
    MeanInterval(1.6, 1.5, 1.7),
    MeanInterval(0.7, 0.65, 0.75),
    MeanInterval(1.0, 0.97, 1.03),
)
LITTLE, HARDLY = MeanInterval(1.02, 1.01, 1.03), MeanInterval(0.98, 0.97, 0.99)
SIZE = ("width", "height")
SECONDS = st.floats(1e-6, 1.0)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    drafted = draw(st.integers(0, 8))
    accepted = draw(st.integers(0, drafted))
    emitted = draw(st.integers(0, accepted + 1))
    draft_s, verify_s, rest, between = (draw(SECONDS) for _ in range(4))
    return Round(
        tokens=(7,) * emitted,
        gamma=drafted,
        drafted=drafted,
        accepted=accepted,
        draft_s=draft_s,
        verify_s=verify_s,
        total_s=draft_s + verify_s + rest,
        rollback_s=rest / 2,
        between_s=between,
        draft_passes=drafted,
    )


@st.composite
def runs(draw: st.DrawFn) -> BenchRun:
    chosen = tuple(draw(st.lists(rounds(), min_size=1, max_size=30)))
    prompt_s, after_s = draw(SECONDS), draw(SECONDS)
    wall = prompt_s + after_s + sum(each.total_s + each.between_s for each in chosen)
    return BenchRun(
        prompt=draw(st.sampled_from(["a", "b", "c"])),
        kind=draw(st.sampled_from(["code", "talk"])),
        arm=draw(st.sampled_from(["off", "on"])),
        repeat=0,
        stats=stats(chosen, draw(st.floats(1, 1000))),
        prompt_s=prompt_s,
        after_s=after_s,
        wall_s=wall,
    )


@given(st.lists(runs(), min_size=1, max_size=5))
def test_the_numbers_of_every_run_add_up(made: list[BenchRun]) -> None:
    found = document(report(runs=tuple(made)))["runs"]
    for each, made_from in zip(found, made, strict=True):
        assert each["drafted"] == each["accepted"] + each["rejected"]
        assert min(each["accepted"], each["rejected"]) >= 0
        assert each["generated_tokens"] == sum(d.emitted for d in made_from.stats.rounds)
        assert each["generated_tokens"] == len(made_from.tokens)
        parts = sum(each[part] for part in ("prompt_s", "draft_s", "verify_s", "python_s"))
        assert parts == pytest.approx(each["wall_s"], rel=0.02)
    together = shares(made)
    assert together is not None
    assert together.draft + together.verify + together.python == pytest.approx(1)


def test_what_the_target_reads_again_after_a_rejection_is_no_time_of_python() -> None:
    read_again = [replace(done(1, 2), total_s=0.03, rollback_s=0.019)] * 40
    made = replace(run("a", "on", 20.0), stats=stats(read_again, 20.0))
    assert made.python_s == pytest.approx(40 * 0.001)
    (found,) = document(report(runs=(made,)))["runs"]
    assert found["verify_s"] == pytest.approx(40 * 0.029)
    together = shares([made])
    assert together is not None
    assert together.python == pytest.approx(1 / 30)


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.floats(1, 99), st.floats(1, 99)), min_size=1, max_size=9
    ),
    st.integers(1, 3),
)
def test_rows_are_means_of_what_was_measured(
    speeds: dict[int, tuple[float, float]], repeats: int
) -> None:
    made = [
        run(f"p{n}", name, speed, kind="code" if n % 2 else "talk", repeat=repeat)
        for repeat in range(repeats)
        for n, both in speeds.items()
        for name, speed in zip(("off", "on"), both, strict=True)
    ]
    kinds, overall = rows(made, "on")
    assert sum(each.prompts for each in kinds) == overall.prompts == len(speeds)
    ratios = [ratio for each in speedups(made, "on").values() for ratio in each]
    assert sorted(ratios) == pytest.approx(sorted(on / off for off, on in speeds.values()))
    assert overall.speedup is not None
    assert min(ratios) * 0.999 <= overall.speedup.value <= max(ratios) * 1.001


def test_repeats_of_a_question_count_as_one_by_their_median() -> None:
    made = [
        run("a", name, speed, repeat=repeat)
        for repeat, pair in enumerate([(10, 20), (10, 90), (20, 42)])
        for name, speed in zip(("off", "on"), pair, strict=True)
    ]
    assert speedups(made, "on") == {"code": [pytest.approx(2.1)]}


def answered(name: str, slower: Callable[[], float], sizes: Sequence[int]) -> BenchRun:
    """A run whose passes take 10 ms and 2 ms for each drafted token, times `slower()`."""
    found = GenerationStats(prompt_tokens=20)
    for drafted in sizes:
        found.add(done(drafted + 1, drafted, verify_s=slower() * (0.01 + 0.002 * drafted)))
    return replace(run("a", name, 10), stats=found)


def changing(luck: random.Random) -> Callable[[], float]:
    """How much slower passes are: 5 % from answer to answer, 10 % from pass to pass."""
    answer = luck.gauss(0, 0.05)
    return lambda: math.exp(answer + luck.gauss(0, 0.1))


def test_a_steady_machine_is_one_whose_passes_take_the_same_in_every_answer() -> None:
    sizes = {"off": [0] * 16, "on": [0, 0, 3, 0, 3, 0, 3]}
    calm = [answered(name, lambda: 1.0, each) for name, each in sizes.items()]
    (right,) = speedups(calm, "on", steady=True)["code"]
    assert [right] == pytest.approx(speedups(calm, "on")["code"])
    changing = [
        replace(answered(name, repeat(slower).__next__, sizes[name]), prompt=f"{question}")
        for question, both in enumerate([(1.5, 0.9), (0.9, 1.5), (1.2, 1.2), (1.5, 1.5)])
        for name, slower in zip(sizes, both, strict=True)
    ]
    seen, steady = (speedups(changing, "on", steady=how)["code"] for how in (False, True))
    assert max(seen) > 2.5 * min(seen)
    assert steady == pytest.approx([right] * 4, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("told", "least", "most"), [(True, 0.9, 1.0), (False, 0.0, 0.75)])
def test_the_interval_knows_that_all_answers_share_the_passes_times(
    monkeypatch: pytest.MonkeyPatch, told: bool, least: float, most: float
) -> None:
    """200 benches of eight alike questions on a machine whose speed changes by 5 % and 10 %.

    At 95 % fewer than 180 of 200 hold the truth once in 500 times. The control, without what the
    answers share, is held to fail.
    """
    if not told:
        monkeypatch.setattr(summarise, "shared_errors", lambda *_: {})
    sizes = {"off": [0] * 17, "on": [0, 0, 3, 0, 3, 0, 3, 0, 0, 3, 0, 3, 0, 3]}
    calm = [answered(name, lambda: 1.0, each) for name, each in sizes.items()]
    (right,) = speedups(calm, "on")["code"]
    luck, held = random.Random(8), 0
    for _ in range(200):
        made = [
            replace(answered(name, changing(luck), each), prompt=f"{question}")
            for question in range(8)
            for name, each in sizes.items()
        ]
        (row,), _ = rows(made, "on", steady=True)
        assert row.speedup is not None
        assert row.speedup.low is not None
        assert row.speedup.high is not None
        held += row.speedup.low <= right <= row.speedup.high
    assert least <= held / 200 <= most


def test_a_size_that_two_answers_share_is_known_by_what_the_other_one_took() -> None:
    """Their passes take 0.8 and 1.2 of their mean: off by 0.4 of each other, not by 0.2."""
    made = []
    for question, factor in enumerate((0.8, 1.2, 1.0, 1.0)):
        slower = iter([1.0] * 9 + [factor]).__next__
        on = answered("on", slower, [0] * 9 + ([9] if question < 2 else [0]))
        off = answered("off", repeat(1.0).__next__, [0] * 16)
        made += [replace(run, prompt=f"{question}") for run in (off, on)]
    # A pass takes 28 ms in place of 10, and Python a tenth of each.
    share = 0.028 / (1.1 * (8 * 0.01 + 0.028)) / 2
    found = summarise.shared_errors(made, "on")
    assert found == {"code": pytest.approx(math.sqrt(2) * 0.2 * share, rel=0.03)}


def test_answers_that_are_too_short_count_for_no_speed() -> None:
    made = [run("a", "off", 10), run("a", "on", 20), run("b", "off", 10, n=3), run("b", "on", 90)]
    kinds, overall = rows(made, "on")
    assert overall.prompts == kinds[0].prompts == 1
    assert overall.speedup is not None
    assert overall.speedup.value == pytest.approx(2)


def swept(*lengths: int) -> list[ArmReport]:
    """Settings of a sweep, of which the last is the fastest."""
    found = [BAD] * (len(lengths) - 1) + [GOOD]
    return [
        replace(arm(f"gamma {n}", its, gamma=str(n)), swept=True)
        for n, its in zip(lengths, found, strict=True)
    ]


def test_a_sweep_without_predictions_shows_what_was_measured() -> None:
    for made in (report(arm("on", GOOD), *swept(1, 2)), report(*swept(1, 2))):
        lines = text(made, colour=False).split("Measured, by draft length\n")[1].splitlines()[:4]
        assert lines[0].split()[0] == "gamma"
        assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2"]
        assert lines[3].split()[-4:] == ["1.60×", "(1.50", "to", "1.70)"]


def test_settings_take_turns() -> None:
    pairs = ["".join(in_turn("ab", turn)) for turn in range(5)]
    assert pairs == ["ab", "ba", "ba", "ab", "ab"]
    orders = [in_turn("abc", turn) for turn in range(6)]
    assert {order[0] for order in orders} == set("abc")
    assert all(sorted(order) == list("abc") for order in orders)
    before = sum(order.index("a") < order.index("c") for order in orders)
    assert before == 3


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            report(arm("on", GOOD)),
            "1.60× faster than without drafting, over all (95 % interval 1.50 to 1.70)",
        ),
        (report(arm("on", BAD)), "30 % slower than without drafting, over all"),
        (report(arm("on", BAD)), "Leave drafting off."),
        (report(arm("on", SAME)), "No gain here: as fast as without drafting, over all"),
        (
            report(arm("on", MeanInterval(1.2, 0.8, 1.7))),
            "Can't tell what drafting brings: 1.20× faster than without drafting, over all",
        ),
        (report(arm("on", MeanInterval(1.4))), "in a single question, which is too little"),
        (
            report(draft_note="there is no draft: none"),
            "was not measured: there is no draft: none.",
        ),
        (
            report(
                arm("on", GOOD, {"code": MeanInterval(2.1, 2, 2.2), "edit": GOOD, "story": BAD})
            ),
            "Use it for code and edit, not for story.",
        ),
        (
            report(arm("on", GOOD, {"code": GOOD, "story": SAME})),
            "Use it for code; for story no gain was found.",
        ),
        (report(arm("on", SAME, {"code": SAME, "story": BAD})), "It is no use for story."),
        (
            report(arm("on", GOOD, {"code": GOOD, "edit": LITTLE, "story": HARDLY})),
            "Use it for code; for edit and story no gain was found.",
        ),
        (
            report(*swept(1, 2)),
            "Without drafting: 20.0 tokens/s. The fastest measured draft length is gamma 2: 1.60×"
            " (1.50 to 1.70).",
        ),
        (report(arm("on", GOOD), draft_step_s=4e-3), "A smaller draft would pay"),
        (report(arm("on", BAD, acceptance=0.1)), "The draft is rarely right (10 % accepted)"),
        (
            report(arm("on", GOOD, shares=TimeShares(0.3, 0.5, 0.2))),
            "Python takes 20 % of the time",
        ),
        (
            report(
                arm("on", GOOD),
                sweep=sweep({0: 1, 3: 2.5, 4: 1.6, 5: 1.5}, dict.fromkeys(range(6), 1)),
            ),
            "Your verify pass is too expensive beyond 3 drafted tokens",
        ),
        (
            report(arm("on", BAD), sweep=sweep({0: 1, 1: 1.1, 2: 1.2}, {0: 1, 1: 0.8, 2: 0.7})),
            "even a free draft that is always right would give no more than 1.20×",
        ),
        (
            report(
                arm("on", BAD, gamma="4"),
                sweep=sweep({0: 1, 1: 2, 2: 2, 4: 3}, {0: 1, 1: 0.9, 2: 0.8, 4: 0.7}),
            ),
            "The draft length was fixed at 4; no length is expected to pay.",
        ),
        (
            report(
                arm("on", BAD, gamma="4"),
                sweep=sweep({0: 1, 1: 2, 2: 2, 4: 3}, {0: 1, 1: 1.4, 2: 1.2, 4: 0.7}),
            ),
            "fixed at 4; 1 is expected to give about 1.40×, and `--gamma auto` looks for it",
        ),
        (report(arm("on", GOOD)), "All 12 pairs of answers are the same to the last token."),
        (
            report(
                arm("on", GOOD),
                agreement=AnswersAgree(
                    12,
                    11,
                    greedy=True,
                    partings=(AnswerDifference("a", "on", 9, 0.01),),
                    partings_per_1000=2.5,
                ),
            ),
            "1 of 12 pairs of answers part somewhere (2.5 partings per 1,000 tokens), where both"
            " tokens were all but tied (0.01 apart at most): that is rounding",
        ),
        (
            report(
                arm("on", GOOD),
                agreement=AnswersAgree(
                    12, 11, greedy=True, partings=(AnswerDifference("a", "on", 9, None),)
                ),
            ),
            "1 of 12 pairs of answers part somewhere.",
        ),
        (
            report(
                arm("on", GOOD),
                environment=ENVIRONMENT | {"loaded_with": {"exact": 16}},
                agreement=AnswersAgree(
                    12, 11, greedy=True, partings=(AnswerDifference("a", "on", 9, 0.01),)
                ),
            ),
            "which `--exact` should rule out: please report it",
        ),
        (
            report(
                arm("on", GOOD),
                agreement=AnswersAgree(
                    12, 11, greedy=True, partings=(AnswerDifference("a", "on", 9, 3.0),)
                ),
            ),
            "were 3.00 apart: that is more than rounding",
        ),
        (report(arm("on", GOOD), too_long=("a", "b")), "2 prompts were left out: longer than"),
        (report(arm("on", GOOD), too_short=("a",)), "One prompt was not timed"),
        (report(arm("on", GOOD), ended="interrupted"), "The run was interrupted"),
        (
            report(arm("on", GOOD), ended="out of time", runs=(run("a", "off", 20.0),)),
            "There was time for 1 of 54 prompts.",
        ),
    ],
)
def test_each_verdict_has_its_words(made: BenchReport, said: str) -> None:
    assert said in " ".join(verdict(made))


def test_where_all_was_asked_no_prompts_are_others() -> None:
    runs = run("a", "off", 20.0), run("b", "off", 20.0)
    made = report(arm("on", GOOD), ended="settled", runs=runs)
    assert "2 of 54 prompts were asked" in " ".join(verdict(made))
    assert "were asked" not in " ".join(verdict(replace(made, prompts=2)))


QUICK = {"prompts": "quick", "repeats": 1, "temp": 0.0, "quick": True}
UNSURE = MeanInterval(1.1, 0.8, 1.5)


def undrafted(made: BenchReport, *kinds: str) -> BenchReport:
    """The report, with nothing drafted in these kinds of text."""
    on = made.arms[1]
    changed = [replace(row, drafting=0.0) if row.kind in kinds else row for row in on.kinds]
    share = sum(row.drafting for row in changed) / len(changed)
    overall = replace(on.overall, drafting=share)
    return replace(made, arms=(made.off, replace(on, kinds=tuple(changed), overall=overall)))


@pytest.mark.parametrize(
    ("kinds", "bare", "said"),
    [
        (
            {"edit": GOOD, "conversion": GOOD, "chat": SAME},
            (),
            "Edit: 1.60× (1.50 to 1.70); conversion: 1.60× (1.50 to 1.70); chat: no gain."
            " Leave drafting on: it drafts where that pays, and nothing elsewhere.",
        ),
        (
            {"edit": BAD, "conversion": SAME, "chat": BAD},
            (),
            "Edit: 0.70× (0.65 to 0.75); conversion: no gain; chat: 0.70× (0.65 to 0.75)."
            " Leave drafting off.",
        ),
        (
            {"edit": HARDLY, "conversion": SAME, "chat": BAD},
            ("chat",),
            "Edit: no gain; conversion: no gain; chat: nothing was drafted. All 12 pairs",
        ),
        (
            {"edit": GOOD, "conversion": SAME, "chat": BAD},
            (),
            "Edit: 1.60× (1.50 to 1.70); conversion: no gain; chat: 0.70× (0.65 to 0.75)."
            " Use it for edit, not for chat. All 12 pairs",
        ),
        (
            {"edit": UNSURE, "conversion": MeanInterval(1.2), "chat": BAD},
            ("chat",),
            "Edit: can't tell (0.80 to 1.50×); conversion: can't tell from one question (1.20×);"
            " chat: nothing was drafted. More prompts, more repeats or a quieter machine would",
        ),
        (
            {"edit": BAD, "conversion": BAD, "chat": BAD},
            ("edit", "conversion", "chat"),
            "chat: nothing was drafted. Nothing was drafted in these answers: they tell nothing",
        ),
    ],
)
def test_a_quick_bench_answers_for_each_kind(
    kinds: dict[str, MeanInterval], bare: tuple[str, ...], said: str
) -> None:
    made = undrafted(report(arm("on", BAD, kinds), settings=QUICK), *bare)
    assert said in " ".join(verdict(made))


def test_a_quick_bench_claims_sameness_of_what_it_compared() -> None:
    agreement = AnswersAgree(12, 12, greedy=True, partings=(), tokens=192)
    said = " ".join(verdict(report(arm("on", GOOD), settings=QUICK, agreement=agreement)))
    assert "All 12 pairs of answers are the same in the 192 tokens compared." in said


def test_a_kind_is_settled_when_its_rows_leave_no_doubt() -> None:
    kinds = {"edit": GOOD, "conversion": UNSURE, "chat": SAME, "code": BAD, "story": UNSURE}
    made = undrafted(report(arm("on", BAD, kinds)), "story")
    (on,) = made.on
    rows = [replace(row, prompts=8) for row in on.kinds]
    assert settled(rows) == {"edit", "chat", "code", "story"}
    few = [replace(row, prompts=7) if row.kind == "chat" else row for row in rows]
    assert settled(few) == {"edit", "code", "story"}
    for unsure in (UNSURE, MeanInterval(1.3, 1.1, 1.54), MeanInterval(0.8, 0.7, 0.92)):
        other = [replace(row, speedup=unsure) if row.kind == "edit" else row for row in rows]
        assert settled([*rows, *other]) == {"chat", "code", "story"}


@pytest.mark.slow
def test_looks_after_every_question_raise_few_false_alarms() -> None:
    """300 kinds of 16 prompts in which nothing is gained or lost, stopped as soon as they may be.

    At 5 % more than 25 alarms would come once in 200 times.
    """
    luck, alarms = random.Random(4), 0
    (on,) = report(arm("on", GOOD)).on
    for _ in range(300):
        ratios = [math.exp(luck.gauss(0, 0.2)) for _ in range(16)]
        for prompts in range(8, 17):
            found = summarise.interval({"code": ratios[:prompts]})
            row = replace(on.kinds[0], prompts=prompts, speedup=found)
            if settled([row]):
                break
        alarms += brought(row)[0].isdigit()
    assert alarms <= 25


@pytest.mark.parametrize("quick", [False, True])
def test_no_advice_comes_from_answers_in_which_nothing_was_drafted(quick: bool) -> None:
    settings = QUICK | {"quick": quick}
    kinds = {"chat": BAD, "story": BAD}
    made = undrafted(report(arm("on", BAD, kinds), settings=settings), "chat", "story")
    assert not [line for line in verdict(made) if "eave drafting" in line or "no use" in line]
    kinds = {"edit": SAME, "chat": BAD}
    made = undrafted(report(arm("on", BAD, kinds), settings=settings), "chat")
    assert not [line for line in verdict(made) if "eave drafting" in line]


def test_the_best_setting_is_one_that_drafted() -> None:
    bare = arm("bare", GOOD)
    bare = replace(bare, overall=replace(bare.overall, drafting=0.0))
    small, tiny = arm("small", SAME), arm("tiny", BAD)
    assert report(bare, small, tiny).best == (small, SAME)
    assert report(bare, replace(bare, name="none")).best == (bare, GOOD)
    for few in (report(bare, small), report(bare, replace(bare, name="other"))):
        assert "fastest" not in " ".join(verdict(few))


@pytest.mark.parametrize(
    ("tiny", "said"),
    [
        ([20, 26, 30], "Of the drafts, small is the fastest; the others: tiny 1.20×."),
        ([20, 50, 30], "Which draft is the fastest cannot be told: small 1.60×, tiny 1.20×."),
    ],
)
def test_the_fastest_draft_is_one_that_was_faster_question_by_question(
    tiny: Sequence[float], said: str
) -> None:
    """On questions of very different speed-ups, where the intervals over no drafting overlap."""
    speeds = {"off": [20.0] * 3, "small": [30.0, 40.0, 45.0], "tiny": tiny}
    made = [run(f"{n}", name, its[n]) for name, its in speeds.items() for n in range(3)]
    drafts = arm("small", GOOD), arm("tiny", MeanInterval(1.2, 1.0, 1.9))
    made_of = report(*drafts, runs=tuple(made))
    assert said in " ".join(verdict(made_of))
    quick = replace(made_of, settings={**made_of.settings, "quick": True})
    assert "Only a whole bench tells which draft is the fastest" in " ".join(verdict(quick))


def test_a_good_run_gets_no_complaints() -> None:
    rooflines = {n: 1.0 + 0.9 * n for n in range(6)}
    made = report(arm("on", GOOD), sweep=sweep(rooflines, dict.fromkeys(range(6), 1.5)))
    assert len(verdict(made)) == 2  # it helps, and the answers are the same


def full() -> BenchReport:
    """A report with something in every part."""
    made = [
        run(f"code-{n}", name, speed + n, repeat=repeat)
        for repeat in range(2)
        for n in range(3)
        for name, speed in (("off", 20.0), ("on", 33.0))
    ]
    found = report(
        arm("on", GOOD, {"code": GOOD, "story": BAD}),
        sweep=sweep({0: 1, 1: 1.9, 2: 2.7}, {0: 1, 1: 1.4, 2: 1.2}),
        agreement=AnswersAgree(
            12, 11, greedy=True, partings=(AnswerDifference("code-1", "on", 9, 0.01),)
        ),
        runs=tuple(made),
    )
    return BenchReport(
        **{n: getattr(found, n) for n in BenchReport.__slots__} | {"verdict": verdict(found)}
    )


def test_text_and_markdown_say_the_same() -> None:
    made = full()
    plain, marked = text(made, colour=False), markdown(made)
    for said in ("1.60× (1.50 to 1.70)", "Big 8B", "ab" * 32, "Some CPU", "80 %", made.verdict[0]):
        assert said in plain
        assert said in marked
    assert "\x1b" not in plain + marked
    assert "\x1b[32m" in text(made, colour=True)
    widths = {line.count("|") for line in marked.splitlines() if line.startswith("| code |")}
    assert widths == {9}


def test_in_brief_it_is_the_verdict_first_in_narrow_lines() -> None:
    made = full()
    said = brief(made)
    assert said.startswith("Verdict\n" + made.verdict[0])
    for word in ("code", "1.60× (1.50 to 1.70)", "80 %"):
        assert word in said
    tables = said.split("\n\n", 1)[1].splitlines()
    assert max(map(len, tables)) <= 74
    assert "\x1b" not in said


def test_csv_has_a_line_for_every_setting_and_kind() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(full()))))
    assert [(line["arm"], line["kind"]) for line in lines] == [
        (name, kind) for name in ("off", "on") for kind in ("code", "story", "all")
    ]
    assert float(lines[-1]["speedup_low"]) == 1.5


def test_names_that_models_bear_do_not_break_the_markdown() -> None:
    made = report(arm("a|b`\n<x>", GOOD))
    assert "a\\|b\\` \\<x\\>" in markdown(made)


def test_the_pictures_are_what_they_say(tmp_path: Path) -> None:
    paths = [tmp_path / f"report.{ending}" for ending in output.ENDINGS]
    for path in paths:
        output.write(full(), path)
    root = ET.parse(tmp_path / "report.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "1.60× (1.50 to 1.70)" in [each.text for each in root.iter()]
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == tuple(math.ceil(2 * float(root.attrib[n])) for n in SIZE)
        colours = {colour for _, colour in picture.getcolors(1 << 20) or ()}
    assert (0x2E, 0x8B, 0x57) in colours  # a green bar
    assert json.loads((tmp_path / "report.json").read_text())["format"] == 1


def test_a_report_without_a_draft_can_be_drawn(tmp_path: Path) -> None:
    output.write(report(draft_note="there is no draft"), tmp_path / "report.svg")
    assert "Without drafting" in (tmp_path / "report.svg").read_text()


def test_every_printable_letter_is_painted_as_one_of_its_own() -> None:
    letters, painted = [chr(code) for code in range(33, 127)], set()
    for each in letters:
        drawing = Drawing(20, 20)
        drawing.text(5, 15, each, 12, "#000000")
        painted.add(drawing.png())
    assert len(painted) == len(letters)
    assert Drawing(20, 20).png() not in painted


def test_a_png_without_pillow_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="Pillow is not installed") as caught:
        output.check([tmp_path / "report.png"])
    assert installs_extra("png") in caught.value.remedy
    output.check([tmp_path / "report.svg"])
    output.write(full(), tmp_path / "report.svg")


def test_paths_are_tried_before_and_left_as_they_were(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("precious")
    output.check([kept, tmp_path / "new.png"])
    assert kept.read_text() == "precious"
    assert not (tmp_path / "new.png").exists()
    with pytest.raises(UsageError, match=r"\.txt"):
        output.check([tmp_path / "a.txt"])
    with pytest.raises(LocalspecError, match="No such file"):
        output.check([tmp_path / "nowhere" / "a.json"])
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(LocalspecError, match="directory"):
        output.check([tmp_path / "folder.md"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on a file's size")
def test_a_report_that_finds_no_room_leaves_the_earlier_one(tmp_path: Path) -> None:
    import resource  # noqa: PLC0415 - Windows has none

    path = tmp_path / "report.json"
    output.write(full(), path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(LocalspecError, match="File too large"):
            output.write(full(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_two_programs_write_one_report_whole(tmp_path: Path) -> None:
    program = (
        "import sys; from tests.test_bench_report import *\n"
        "for _ in range(60): output.write(full(), Path(sys.argv[1]))\n"
    )
    path = tmp_path / "report.json"
    command = [sys.executable, "-c", program, str(path)]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert json.loads(path.read_text())["runs"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="few may make links there")
def test_a_link_to_itself_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.symlink_to(path)
    output.check([path])
    output.write(full(), path)
    assert json.loads(path.read_text())["runs"]


def documents(factor: float, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A report, and the same with the speculative speed changed."""

    def made(on: float) -> dict[str, Any]:
        speeds = [
            run(f"p{n}", name, speed * (1 + 0.01 * n))
            for n in range(6)
            for name, speed in (("off", 20.0), ("on", on + 0.05 * n))
        ]
        return json.loads(json.dumps(document(report(arm("on", GOOD), runs=tuple(speeds)))))

    new = made(30.0 * factor)
    new["environment"]["loaded_with"].update(changes)
    return made(30.0), new


def test_a_change_is_told_from_noise() -> None:
    better, same, worse = (compare(*documents(f)) for f in (1.2, 1.0, 0.8))
    assert "The speed-up of on is better by more than noise: +" in " ".join(better.verdict)
    assert "The speed-up of on is worse by more than noise: -" in " ".join(worse.verdict)
    assert "The speed-up of on: no more than noise" in " ".join(same.verdict)
    assert "Without drafting: no more than noise" in " ".join(better.verdict)
    assert not same.different


def test_what_else_was_different_is_named() -> None:
    found = compare(*documents(1.0, threads=4))
    assert found.different == (("threads", "8", "4"),)
    assert "Not the same in both: threads" in found.verdict[-1]


def test_the_name_in_a_file_which_old_reports_lack_is_no_difference() -> None:
    old, new = documents(1.0)
    new["environment"]["target"] = {**new["environment"]["target"], "own_name": "Toy"}
    new["environment"]["drafts"] = [
        {**draft, "own_name": "Small"} for draft in new["environment"]["drafts"]
    ]
    assert compare(old, new).different == ()


@pytest.mark.parametrize(
    "speed",
    ["0", "-3.5", "NaN", "1e999", "1" + "0" * 400, '"fast"', "1e-300", "1e-154", "1e154", "1e300"],
)
def test_a_report_with_an_impossible_speed_is_damaged(speed: str) -> None:
    old, new = documents(1.0)
    new["runs"][0]["tokens_per_second"] = json.loads(speed)
    for pair in ((old, new), (new, old)):
        with pytest.raises(LocalspecError, match="damaged"):
            compare(*pair)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    old, new = documents(1.0)
    for each in new["runs"]:
        each["prompt"] += " other"
    with pytest.raises(LocalspecError, match="no question in common"):
        compare(old, new)
    del new["runs"]
    with pytest.raises(LocalspecError, match="damaged"):
        compare(old, new)
    path = tmp_path / "a.json"
    for content in ("", "[]", '{"format": 99}'):
        path.write_text(content)
        with pytest.raises(LocalspecError, match="not a report"):
            load(path)
    with pytest.raises(LocalspecError, match="cannot read"):
        load(tmp_path / "none.json")
