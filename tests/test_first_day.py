"""The screen of a first day: figures and sentences that contradict each other are found."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from localspec.chat.figures.benefit import ratio, summary
from localspec.chat.figures.figures import Figures
from localspec.drafter_names import LOOKUP
from localspec.engine.record.stats import FinishReason, GammaNote, GammaReason, Speedup
from localspec.ui.panel.layout import (
    PanelState,
    compact_lines,
    full_lines,
    head_lines,
)
from localspec.ui.transcript.items import footnote
from tests.support import screen_figures

LONG = Figures(
    speculation=True,
    generated=400,
    drafted=320,
    accepted=315,
    acceptance_rate=315 / 320,
    recovered=5,
    bonus=80,
    speed_average=31.24,
    speedup=Speedup(1.32, 1.21, 1.44),
    tokens_per_round=3.2,
    drafters=((LOOKUP, 320, 315),),
    gamma_note=GammaNote(GammaReason.TOO_LITTLE_REPEATS),
    answer_note=GammaNote(GammaReason.TOO_LITTLE_REPEATS),
    time_to_first_token_s=0.4,
    context_used=450,
    context_size=4096,
)


needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def screen(now: Figures, *, wide: bool = True, said: str | None = None) -> str:
    """The chat's screen after an answer, as the app lays it out."""
    told = {
        "generated_tokens": now.generated,
        "tokens_per_second": now.speed_average,
        "drafted_tokens": now.drafted,
        "accepted_tokens": now.accepted,
    }
    left = ["▌ What is the average of 3 tokens/s?", "An answer.", ""]
    left.append(said or footnote(told, FinishReason.STOP, empty=False))
    state = PanelState(figures=now)
    if not wide:
        figures = [line.plain for line in compact_lines(state, 80)]
        below = [f"  ready  {summary(now, counted=True)}", "╭──────╮", "│      │"]
        return "\n".join([*left, *figures, *below])
    panel = ["", *head_lines(state, 36), *full_lines(state, 36, 44)]
    both = zip_longest(left, panel)
    return "\n".join(f"{one or '':<90} {two.plain if two else ''}" for one, two in both)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (LONG, "1.3× faster than without drafting"),
        (replace(LONG, speedup=Speedup(0.81, 0.75, 0.88)), "19 % slower than without drafting"),
        (
            replace(LONG, speedup=Speedup(1.1, 0.9, 1.3)),
            "no clear gain: 0.9 to 1.3× with drafting",
        ),
        (replace(LONG, speedup=Speedup(1.02, 1.01, 1.03)), "as fast as without drafting"),
        (
            replace(LONG, speedup=Speedup(0.72, 0.65, 0.8), busy="other programs are busy"),
            "can't tell what drafting brings: other programs are busy",
        ),
        (
            replace(LONG, repeats=True),
            "can't tell what drafting brings: the answer only repeated itself",
        ),
        (replace(LONG, speedup=None), "copied 315 of 400 tokens"),
        (
            replace(
                LONG,
                generated=120,
                drafted=6,
                accepted=5,
                recovered=1,
                bonus=4,
                speedup=None,
                drafters=((LOOKUP, 6, 5),),
            ),
            "copied 5 of 120 tokens: too little of this text repeats, and no model drafts",
        ),
        (
            replace(LONG, speedup=None, drafters=(("draft", 320, 315),)),
            "guessed 320, kept 315",
        ),
        (
            replace(LONG, speedup=None, drafted=0, accepted=0, drafters=()),
            "no gain here: too little of this text repeats, and no model drafts",
        ),
    ],
)
def test_what_the_app_shows_is_read_and_agrees(now: Figures, sentence: str, *, wide: bool) -> None:
    read = screen_figures.read(screen(now, wide=wide))
    uncounted = re.sub("^(guessed|copied) [^:]*(: )?", "", sentence)
    assert read.sentence == (sentence if wide else uncounted)
    assert (read.tokens, read.speed, read.guessed, read.kept) == (
        now.generated, 31.2, now.drafted, now.accepted,
    )  # fmt: skip
    if wide:
        assert (read.average, read.drafted, read.accepted) == (31.2, now.drafted, now.accepted)
        assert (read.ratio is None) is (ratio(now) is None)
        assert ("×" in read.text) is (ratio(now) is not None)
    assert screen_figures.contradictions(read) == []


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1.3× faster", "1.6× faster", "1.6× faster than"),
        ("1.3× faster than", "no gain here: not drafting", "tokens were guessed"),
        ("average 31.2", "average 35.9", "35.9 in the panel"),
        ("without 23.7", "without 29.9", "is not 1.3"),
        ("kept 315", "kept 215", "320/315 in the panel"),
        ("1.3×, 1.2–1.4", "", "without the speed"),
        ("400 tokens · ", " 40 tokens · ", "a × beside 40 tokens"),
        ("1.3× faster than without drafting", "can't tell", "ratio next to “can't tell”"),
    ],
)
def test_every_planted_contradiction_is_found(before: str, after: str, found: str) -> None:
    whole = screen(LONG)
    assert before in whole
    told = screen_figures.contradictions(
        screen_figures.read(whole.replace(before, f"{after:<{len(before)}}"))
    )
    assert any(found in each for each in told), told


def test_counts_that_a_small_screen_repeats_are_found() -> None:
    guessed = screen(replace(LONG, speedup=None, drafters=(("draft", 320, 315),)), wide=False)
    assert screen_figures.contradictions(screen_figures.read(guessed)) == []
    for same in ("guessed 320, kept 315", "copied 315 of 400 tokens"):
        again = guessed.replace("ready  ", f"ready  {same}")
        told = screen_figures.contradictions(screen_figures.read(again))
        assert told == [f"counted twice on a small screen: guessed 320, kept 315, {same}"]


def test_a_ratio_of_too_few_drafted_rounds_is_found() -> None:
    for bonus, told in ((1, ["a × from 6 drafted rounds"]), (2, [])):
        read = screen_figures.read(screen(replace(LONG, recovered=5, bonus=bonus)))
        assert screen_figures.contradictions(read) == told


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seconds", [0.045, 3.2, 200.0])
def test_the_wait_and_the_context_are_read(seconds: float, *, wide: bool) -> None:
    now = replace(LONG, time_to_first_token_s=seconds)
    read = screen_figures.read(screen(now, wide=wide))
    assert read.wait == pytest.approx(seconds)
    assert read.context == 450
    small = screen_figures.read(screen(replace(now, context_used=300), wide=wide))
    assert screen_figures.contradictions(small) == ["300 tokens of context hold an answer of 400"]


def test_a_sentence_on_two_lines_of_the_status_is_read_whole() -> None:
    slow = replace(LONG, slow="after 3,400 tokens of context a token takes 1.6 times as long")
    lines = screen(slow, wide=False).replace("; after", ";\n after")
    read = screen_figures.read(lines)
    assert read.sentence.endswith("a token takes 1.6 times as long")
    assert screen_figures.contradictions(read) == []


@needs_terminal
def test_a_whole_day_has_40_moments_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    from benchmarks.first_day import MOMENTS, WHOLE, Part, Tally, whole  # noqa: PLC0415

    moments = [(MOMENTS[part.name], part.busy) for part in WHOLE]
    assert sum(n for n, beside in moments if not beside) == 30
    assert sum(n for n, beside in moments if beside) == 10
    asked: list[Part] = []

    def read(part: Part) -> Tally:
        asked.append(part)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Tally([f"| {part.name} |"], moments=1, wrong=["it contradicts"] * part.busy)

    kept = tmp_path / "day.jsonl"
    with pytest.raises(KeyboardInterrupt):
        whole(kept, read)
    found = whole(kept, read)
    assert asked == [*WHOLE[:3], *WHOLE[2:]]
    assert found.rows == [f"| {part.name} |" for part in WHOLE]
    assert (found.moments, len(found.wrong)) == (len(WHOLE), 2)


@pytest.mark.slow
@needs_terminal
def test_answers_of_the_starter_agree_with_their_figures(starter_file: object) -> None:
    from benchmarks.first_day import COPIES, WORDS, day_of, say  # noqa: PLC0415 - needs a terminal

    with day_of("starter", (200, 50)) as day:
        day.moment("the welcome")
        for question in WORDS[:2]:
            now = day.moment("a short answer", day.ask(question).now)
            assert "×" not in now.text
        say(day, "/set n-predict 120")
        now = day.moment("a copy", day.ask(COPIES[0]).now)
        assert now.tokens
        assert now.sentence
        assert day.tally.wrong == []
