"""One sentence says what drafting brought to an answer, and no figure contradicts it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

from localspec.chat.figures.benefit import baseline_speed, benefit, of_two, ratio, summary
from localspec.chat.figures.figures import Figures, Meter
from localspec.drafter_names import LOOKUP
from localspec.engine.record.stats import (
    DrafterStats,
    FinishReason,
    GammaNote,
    GammaReason,
    GenerationStats,
    Round,
    Speedup,
)
from tests.fakes import round_of

BUSY = "other programs keep 1.5 of 2 threads busy"
LOOP = "the answer only repeated itself"
LONG = Figures(
    speculation=True,
    generated=400,
    drafted=320,
    accepted=315,
    drafters=((LOOKUP, 320, 315),),
    gamma_note=GammaNote(GammaReason.PAYS, 4),
)


def done(drafted: int, accepted: int, seconds: float = 0.1) -> Round:
    return round_of(drafted, accepted, seconds=seconds, drafter=LOOKUP if drafted else "")


def answer(
    rounds: int, drafted: int, accepted: int, seconds: float, baseline_s: float = 0.1
) -> GenerationStats:
    stats = GenerationStats()
    for _ in range(rounds):
        stats.add(done(0, 0, baseline_s))
        stats.add(done(drafted, accepted, seconds))
    return stats


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Speedup(1.3, 1.2, 1.4), "1.3× faster than without drafting"),
        (Speedup(1.03, 1.01, 1.05), "as fast as without drafting"),
        (Speedup(0.8, 0.7, 0.9), "20 % slower than without drafting"),
        (Speedup(1.1, 0.9, 1.3), "no clear gain: 0.9 to 1.3× with drafting"),
        (None, "copied 315 of 400 tokens"),
    ],
)
def test_a_drafted_answer(found: Speedup | None, said: str) -> None:
    assert benefit(replace(LONG, speedup=found)) == said


@pytest.mark.parametrize(
    ("why", "now"),
    [(BUSY, replace(LONG, busy=BUSY)), (LOOP, replace(LONG, repeats=True))],
)
def test_no_ratio_that_says_nothing_about_drafting_however_clear(why: str, now: Figures) -> None:
    for found in (Speedup(1.1, 0.9, 1.3), Speedup(2.1, 1.9, 2.3), Speedup(0.7, 0.6, 0.8)):
        told = replace(now, speedup=found, speed_average=30.0)
        assert benefit(told) == f"can't tell what drafting brings: {why}"
        assert (ratio(told), baseline_speed(told)) == (None, None)
    assert benefit(replace(now, speedup=None)) == "copied 315 of 400 tokens"


def test_an_answer_that_only_repeated_itself_is_counted_as_such() -> None:
    for reason in FinishReason:
        meter = Meter(4096)
        for end in (None, None, reason):
            meter.add(replace(done(3, 3), finish=end))
        note = GammaNote(GammaReason.PAYS, 3)
        now = meter.figures(generating=False, speculation=True, note=note)
        assert now.repeats is (reason is FinishReason.REPETITION)


def test_an_answer_without_a_draft_says_why() -> None:
    bare = replace(LONG, drafted=0, accepted=0, drafters=(), check=3.1)
    dear = replace(bare, answer_note=GammaNote(GammaReason.TOO_DEAR))
    assert benefit(dear).endswith("checking four tokens takes as long as writing 3.1")
    repeats = replace(bare, answer_note=GammaNote(GammaReason.TOO_LITTLE_REPEATS))
    assert "too little of this text repeats" in benefit(repeats)
    assert benefit(replace(bare, speculation=False, off=True)) == "drafting is off"
    assert benefit(replace(bare, off=True)) == "drafting was off"  # switched on since
    assert "too little of this text repeats" in benefit(replace(repeats, speculation=False))
    assert benefit(replace(dear, busy=BUSY)) == f"not drafting: {BUSY}"
    assert benefit(replace(repeats, busy=BUSY)) == benefit(repeats)  # busy or not
    off = replace(dear, gamma_note=GammaNote(GammaReason.OFF), speculation=False)
    assert benefit(off) == benefit(dear)  # whatever was switched since


def test_an_answer_in_which_next_to_nothing_was_drafted_says_why() -> None:
    few = replace(LONG, generated=120, drafted=6, accepted=5, drafters=((LOOKUP, 6, 5),), check=3.1)
    dear = replace(few, answer_note=GammaNote(GammaReason.TOO_DEAR))
    why = "checking four tokens takes as long as writing 3.1"
    assert benefit(dear) == f"copied 5 of 120 tokens: {why}"
    assert summary(replace(dear, slow=why)) == benefit(dear)  # said once
    assert summary(replace(dear, busy=BUSY, slow=BUSY)) == f"copied 5 of 120 tokens; {BUSY}"
    repeats = replace(few, answer_note=GammaNote(GammaReason.TOO_LITTLE_REPEATS))
    assert benefit(repeats).startswith("copied 5 of 120 tokens: too little of this text repeats")
    assert benefit(few) == "copied 5 of 120 tokens"
    more = replace(dear, drafted=20, accepted=15, drafters=((LOOKUP, 20, 15),))
    assert benefit(more) == "copied 15 of 120 tokens"


def test_an_answer_that_drafted_is_never_said_not_to_have_drafted() -> None:
    """The sentence is about the whole answer, whatever the policy decides at its end."""
    notes = [GammaNote(reason) for reason in GammaReason]
    ratios = [None, Speedup(1.3, 1.2, 1.4), Speedup(0.8, 0.7, 0.9), Speedup(1.0, 0.8, 1.2)]
    for note, found, on, busy in product(notes, ratios, (True, False), ("", BUSY)):
        now = replace(LONG, answer_note=note, speedup=found, speculation=on, busy=busy)
        assert not re.search("not drafting|is off|nothing was drafted", benefit(now))


def test_no_more_tokens_are_said_to_be_copied_than_there_are() -> None:
    """What was accepted after the end of the answer counts as accepted."""
    ended = replace(LONG, generated=266, drafted=275, accepted=275, drafters=((LOOKUP, 275, 275),))
    assert benefit(ended) == "copied 266 of 266 tokens"


def test_a_draft_of_a_model_is_guessed_and_kept() -> None:
    model = replace(LONG, drafters=(("draft", 36, 18),), drafted=36, accepted=18)
    assert benefit(model) == "guessed 36, kept 18"
    both = replace(model, drafters=(("draft", 30, 12), (LOOKUP, 6, 6)))
    assert benefit(both) == "guessed 36, kept 18"
    assert benefit(Figures()) == ""


def test_counts_that_stand_below_the_answer_are_not_said_again() -> None:
    model = replace(LONG, drafters=(("draft", 36, 18),), drafted=36, accepted=18)
    assert summary(model, counted=True) == ""
    assert summary(replace(model, slow=BUSY, busy=BUSY), counted=True) == BUSY
    dear = replace(model, answer_note=GammaNote(GammaReason.TOO_DEAR))
    assert summary(dear, counted=True) == "this draft costs more than it saves"
    assert summary(LONG, counted=True) == ""  # "guessed 320, kept 315" says it
    told = replace(model, speedup=Speedup(1.3, 1.2, 1.4))
    assert summary(told, counted=True) == summary(told)


def test_an_answer_was_written_without_drafting_if_that_was_off_in_all_its_rounds() -> None:
    for switched in ((True, True), (True, False), (False, True), (False, False)):
        meter = Meter(4096)
        for off in switched:
            meter.add(done(0, 0), off=off)
        note = GammaNote(GammaReason.OFF)
        now = meter.figures(generating=False, speculation=True, note=note)
        assert now.off is all(switched)


@pytest.mark.parametrize(("rounds", "told"), [(7, False), (8, True)])
def test_no_ratio_for_fewer_than_eight_drafted_rounds(rounds: int, *, told: bool) -> None:
    meter = Meter(4096)
    for _ in range(60 - 4 * rounds):
        meter.add(done(0, 0))
    for _ in range(rounds):
        meter.add(done(3, 3), lambda: Speedup(1.3, 1.2, 1.4))
    note = GammaNote(GammaReason.PAYS, 3)
    figures = meter.figures(generating=False, speculation=True, note=note)
    assert figures.generated == 60
    assert (figures.speedup is not None) is told
    assert ("×" in benefit(figures)) is told


def test_no_ratio_for_fewer_than_fifty_tokens() -> None:
    meter = Meter(4096)
    for _ in range(24):
        meter.add(done(1, 1), lambda: Speedup(1.3, 1.2, 1.4))
    note = GammaNote(GammaReason.PAYS, 1)
    now = {"generating": False, "speculation": True, "note": note}
    assert meter.figures(**now).speedup is None
    meter.add(done(1, 1), lambda: Speedup(1.3, 1.2, 1.4))
    assert meter.figures(**now).speedup is not None


def test_a_drafter_that_was_asked_and_guessed_nothing_is_not_named() -> None:
    meter = Meter(4096)
    meter.add(done(3, 2))
    meter.stats.drafters["eagle3"] = DrafterStats()
    note = GammaNote(GammaReason.PAYS, 3)
    now = meter.figures(generating=False, speculation=True, note=note)
    assert now.drafters == ((LOOKUP, 3, 2),)
    assert benefit(now) == "copied 2 of 3 tokens"


def test_two_answers_are_compared_by_their_speeds() -> None:
    baseline = answer(30, 0, 0, 0.1)
    assert of_two(baseline, answer(12, 3, 3, 0.2)) == "1.7× faster than without drafting, this once"
    assert of_two(baseline, answer(12, 3, 0, 0.2)).startswith("guessed") is False
    assert "slower" in of_two(baseline, answer(30, 3, 0, 0.2))


def test_two_answers_are_not_compared_where_that_says_nothing() -> None:
    baseline = answer(30, 0, 0, 0.1)
    assert of_two(baseline, answer(30, 0, 0, 0.1)) == "nothing was drafted"
    assert "too few" in of_two(baseline, answer(7, 3, 3, 0.2))
    assert "too few" in of_two(answer(20, 0, 0, 0.1), answer(12, 3, 3, 0.2))
    fast = answer(12, 3, 3, 0.2)
    assert of_two(baseline, fast, BUSY) == f"can't tell what drafting brings: {BUSY}"
    assert of_two(baseline, answer(30, 0, 0, 0.1), BUSY) == f"nothing was drafted: {BUSY}"
    loop = answer(12, 3, 3, 0.2)
    loop.finish_reason = FinishReason.REPETITION
    assert of_two(baseline, loop) == f"can't tell what drafting brings: {LOOP}"
    busier = answer(12, 3, 3, 0.3, baseline_s=0.13)
    assert "busier during one" in of_two(baseline, busier)


def test_a_drafter_that_was_asked_in_vain_makes_no_machine_busy() -> None:
    drafted = answer(12, 3, 3, 0.2, baseline_s=0.13)
    drafted.rounds = [
        one if one.drafted else replace(one, draft_s=0.03, draft_passes=1) for one in drafted.rounds
    ]
    assert of_two(answer(30, 0, 0, 0.1), drafted).endswith("without drafting, this once")
