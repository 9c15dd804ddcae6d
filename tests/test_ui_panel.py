"""What the panel says: whether drafting pays, how the acceptance went, where the memory is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from textual.content import Content

from localspec import formats
from localspec.chat.figures.benefit import baseline_speed, summary
from localspec.chat.figures.figures import Figures, figures_of, gamma_words
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import (
    DeviceMemory,
    GammaNote,
    GammaReason,
    GenerationStats,
    Round,
    Speedup,
)
from localspec.ui.commands.parameters import totals
from localspec.ui.panel.layout import (
    PanelState,
    big_speed,
    compact_lines,
    full_lines,
    head_lines,
    machine_lines,
)
from localspec.ui.transcript.items import footnote
from tests.fakes import ended, fake_session, rounds_of
from tests.support.scripted_session import ScriptedSession

DRAFTED = Figures(
    generating=True, speculation=True, drafted=30, accepted=20, acceptance_rate=2 / 3,
    speed_now=50.0, speed_average=60.0, speedup=Speedup(1.5, 1.4, 1.6),
    context_size=4096,
)  # fmt: skip
NOTE = GammaNote(GammaReason.PAYS, length=3, acceptance=0.6, kind="prose")


def text(lines: list[Content]) -> str:
    return "\n".join(line.plain for line in lines)


def done(accepted: int, drafted: int) -> Round:
    tokens = tuple(range(accepted + 1))
    return Round(tokens, drafted, drafted, accepted, 0.01, 0.02, 0.03)


def shown(figures: Figures) -> tuple[str, str]:
    """The full column and the two lines, without colour."""
    state = PanelState(figures=figures)
    return text(full_lines(state, 36, 40)), text(compact_lines(state, 90))


def test_the_speed_up_is_against_the_baseline_here() -> None:
    full, compact = shown(DRAFTED)
    assert "without 40.0 tokens/s" in full
    assert "1.5×, 1.4–1.6" in full
    assert "×" not in compact  # the status line has the sentence
    noted = replace(DRAFTED, gamma_note=NOTE)
    assert "drafting 3: prose, 60 % accepted" in " ".join(shown(noted)[0].split())
    assert "".join(shown(noted)).count("×") == "".join(shown(DRAFTED)).count("×")  # once measured
    baseline = replace(DRAFTED, drafted=0, speedup=None)
    assert "×" not in "".join(shown(baseline))
    assert "off 4" not in "".join(shown(replace(DRAFTED, speedup=None)))


def test_only_a_ratio_has_the_sign_of_one() -> None:
    state = PanelState(figures=Figures(), note="there is no draft: chat-8x7b-2x stands alone")
    assert "chat-8x7b-2x" in text(full_lines(state, 60, 60))


def test_every_reason_has_words() -> None:
    said = {gamma_words(replace(NOTE, reason=reason)) for reason in GammaReason}
    assert len(said) == len(GammaReason)
    assert not any("{" in words for words in said)


def test_a_lossy_speed_is_called_lossy_in_every_form() -> None:
    lossy = replace(DRAFTED, lossy="lossy 0.5")
    assert "lossy 0.5" in shown(lossy)[1]
    assert big_speed(PanelState(figures=lossy))[1] == "now, lossy 0.5"
    assert big_speed(PanelState(figures=replace(lossy, generating=False)))[1] == "last, lossy 0.5"
    assert "lossy" not in "".join(shown(DRAFTED))
    stats = GenerationStats(lenience=0.5)
    stats.add(done(3, 3))
    assert "lossy 0.5" in footnote(figures_of(stats), None, empty=False)
    without = GenerationStats(lenience=0.5)
    without.add(done(0, 0))
    assert "lossy" not in footnote(figures_of(without), None, empty=False)


def test_the_acceptance_has_a_course_whose_full_height_is_everything() -> None:
    state = PanelState()
    for accepted in (4, 4, 0, 0):
        for _ in range(16):
            state.add_round(done(accepted, 4))
        state.take(DRAFTED)
    course = next(line.plain for line in full_lines(state, 36, 40) if "over time" in line.plain)
    assert course.endswith("██▁▁")
    state.begin({})
    assert "over time" not in text(full_lines(state, 36, 40))


def test_the_speed_has_a_course_in_both_forms() -> None:
    state = PanelState()
    for speed in (10.0, 20.0, 40.0, 80.0):
        state.take(replace(DRAFTED, speed_now=speed))
    assert "▁▂▃▅█" in text(full_lines(state, 36, 40))
    assert "█" in text(compact_lines(state, 90))


def test_the_speed_is_that_of_the_whole_answer_once_it_is_there() -> None:
    assert shown(DRAFTED)[1].startswith("50.0 tokens/s now ")
    assert shown(replace(DRAFTED, generating=False))[1].startswith("60.0 tokens/s last answer ")
    begun = shown(replace(DRAFTED, speed_now=None))[1]
    assert "60.0" not in begun  # an average is not the moment's


def test_a_conversation_that_is_opened_shows_its_last_answer_until_the_next() -> None:
    state = PanelState()
    assert big_speed(state) == ("-", "no answer yet")
    stored = answer(100, 80, 60)
    state.begin(stored | {"tokens_per_second": 12.5, "pair": "other"})
    state.take(Figures())
    assert big_speed(state) == ("12.5", "last answer")
    assert "75 %" in text(full_lines(state, 36, 40))
    state.take(DRAFTED)
    assert big_speed(state) == ("50.0", "now")
    assert big_speed(PanelState(figures=replace(DRAFTED, speed_now=1234.5)))[0] == "1234"
    state.begin(stored | {"tokens_per_second": "many"})
    state.take(Figures())
    assert big_speed(state)[1] == "no answer yet"
    state.begin(stored | {"lossy": 0.5})
    state.take(Figures())
    assert big_speed(state)[1] == "last, lossy 0.5"


@pytest.mark.parametrize(("speed", "width"), [(50.0, 12), (353.0, 9), (1234.0, 12), (0.25, 10)])
def test_the_speed_stands_three_lines_high_with_its_unit_beside_it(
    speed: float, width: int
) -> None:
    head = head_lines(PanelState(figures=replace(DRAFTED, speed_now=speed)), 36)
    digits, unit, meaning, below = (line.plain for line in head)
    assert len(digits) == unit.index("  tokens/s") == meaning.index("  now") <= width
    assert (digits + unit + meaning).isprintable()
    assert not below


def test_memory_is_drawn_for_the_machine_and_for_devices_with_memory_of_their_own() -> None:
    use = ScriptedSession().memory()
    own = DeviceMemory("A card", free=30, total=40, label="CUDA0")
    shared = DeviceMemory("A chip", free=30, total=40, integrated=True, label="MTL0")
    use = replace(use, process=25, machine_total=100, machine_available=50, devices=(own, shared))
    lines = [line.plain for line in machine_lines(use, 29)]
    assert lines[0] == "memory   " + "█" * 5 + "▒" * 5 + "─" * 10
    assert lines[1] == "CUDA0    " + "▒" * 5 + "─" * 15
    assert lines[2].split() == ["█", "localspec", "▒", "in", "use", "─", "free"]
    assert len(lines) == 3
    assert machine_lines(None, 29) == []


def test_the_panel_tells_how_attention_is_computed_where_that_was_chosen() -> None:
    for chosen, said in (("auto", False), ("off", True), ("on", True)):
        state = PanelState(figures=replace(DRAFTED, flash_attn=chosen))
        lines = [line.plain for line in full_lines(state, 30, 60)]
        assert any(line.split() == ["flash", "attention", chosen] for line in lines) is said


def test_what_is_on_a_card_is_a_part_of_what_localspec_takes() -> None:
    use = replace(ScriptedSession().memory(), process=702 << 20, on_devices=8 << 30)
    lines = text(full_lines(PanelState(figures=DRAFTED, memory=use), 36, 60))
    assert re.search(r"Memory, localspec now +9.33 GB", lines)
    models = use.target_weights + use.draft_weights + use.target_cache + use.draft_cache
    assert re.search(rf"reserved for models +{formats.size(models + use.buffers)}\n", lines)


def test_the_least_important_is_left_out_first() -> None:
    state = PanelState(figures=DRAFTED, memory=ScriptedSession().memory())
    forms = [text(full_lines(state, 36, height)) for height in range(60, 0, -1)]
    assert "─ free" in forms[0]
    first_without = next(form for form in forms if "─ free" not in form)
    assert "target weights" in first_without
    assert "Drafting" in forms[-12]


def test_an_answer_without_drafts_has_drafted_for_no_time() -> None:
    figures = replace(DRAFTED, drafted=0, accepted=0, draft_s=0.1, verify_s=0.9)
    without, read = (text(full_lines(PanelState(figures=one), 36, 60))
                   for one in (figures, replace(figures, draft_read=20)))  # fmt: skip
    assert "drafting 0 %" in without
    assert "writing 100 %" in without  # with nothing to check
    assert "drafting 10 %" in read  # it looked, and was not sure enough to guess


def test_several_drafters_are_told_apart() -> None:
    both = (("draft", 9, 6), ("lookup", 20, 15))
    shown = text(full_lines(PanelState(figures=replace(DRAFTED, drafters=both)), 36, 60))
    assert "6 of 9" in shown
    assert "15 of 20" in shown
    alone = text(full_lines(PanelState(figures=replace(DRAFTED, drafters=both[:1])), 36, 60))
    assert "6 of 9" not in alone


def test_a_low_column_still_tells_all_of_the_memory() -> None:
    memory = ScriptedSession().memory()
    figures = replace(DRAFTED, gamma_note=NOTE, prompt_tokens=9, draft_read=9)
    lines = full_lines(PanelState(figures=figures, memory=memory), 35, 17)  # of 80x24
    assert len(lines) <= 17
    assert all(line.cell_length <= 35 for line in lines)
    for part in ("Context", "Memory", "target ", "draft ", "caches", "buffers", "machine"):
        assert any(line.plain.startswith(part) or f" {part}" in line.plain for line in lines), part


def test_an_answer_without_drafts_claims_no_speed_up() -> None:
    answer = [*rounds_of(b"hello, world"), ended()]
    session, _ = fake_session(answer, answer, settings=ChatSettings(gamma=0, lenience=0.5))
    list(session.turn("hi", Cancel()))
    assert session.figures().speedup is None
    assert baseline_speed(session.figures()) is None  # the average is what it is
    assert session.figures().lossy == "lossy 0.5"


def test_why_it_is_slow_is_said_where_the_speed_is() -> None:
    slow = replace(DRAFTED, slow="other programs keep 1.2 of 2 threads busy")
    state = PanelState(figures=slow)
    text = " ".join(line.plain.strip() for line in head_lines(state, 34))
    assert "other programs keep 1.2 of 2 threads busy" in text
    state.take(DRAFTED)
    assert "busy" not in " ".join(line.plain for line in head_lines(state, 34))


def test_the_sentence_stands_below_the_speed_and_the_policy_is_called_now() -> None:
    dear = replace(
        DRAFTED, generated=120, gamma_note=GammaNote(GammaReason.TOO_DEAR), generating=False
    )
    head = " ".join(line.plain for line in head_lines(PanelState(figures=dear), 36)).split()
    assert " ".join(head).endswith("1.5× faster than without drafting")
    assert "now not drafting" in shown(dear)[0]
    busy = replace(dear, busy="a program is busy", slow="a program is busy")
    assert summary(replace(busy, speedup=Speedup(1, 0.9, 1.1))).count("a program is busy") == 1


def test_before_the_first_word_nothing_is_said_of_a_text() -> None:
    empty = Figures(context_size=8192, gamma_note=GammaNote(GammaReason.TOO_LITTLE_REPEATS))
    assert "too little" not in shown(replace(empty, speculation=True))[0]
    assert "too little" in shown(replace(empty, speculation=True, generating=True))[0]
    fixed = replace(empty, speculation=True, gamma_note=GammaNote(GammaReason.FIXED, 3))
    assert "now " in shown(fixed)[0]


def test_what_is_not_known_yet_is_left_out_of_the_two_lines() -> None:
    assert [line.plain for line in compact_lines(PanelState(), 90)][1:] == [""]
    for lines in (compact_lines(PanelState(), 90), full_lines(PanelState(), 36, 40)):
        assert not re.search("● on|○ off", text(lines))  # nothing is loaded yet
    known = PanelState(figures=Figures(context_size=8192), memory=ScriptedSession().memory())
    assert "nothing guessed" in compact_lines(known, 90)[0].plain
    assert compact_lines(known, 90)[1].plain == "0/8,192 context  localspec uses 273 MB"


def test_whether_drafting_is_on_is_seen_beside_the_last_answer_too() -> None:
    after = replace(DRAFTED, generating=False, speed_average=60.2, drafted=1275, accepted=1263)
    for width, on in product((50, 76, 78), (True, False)):
        first = compact_lines(PanelState(figures=replace(after, speculation=on)), width)[0].plain
        assert "last answer" in first
        assert ("● on" if on else "○ off") in first


def answer(tokens: int, drafted: int, accepted: int) -> dict[str, Any]:
    stats = GenerationStats(generated_tokens=tokens, after_first_s=tokens / 50.0)
    stats.drafted_tokens, stats.accepted_tokens = drafted, accepted
    return figures_of(stats) | {"pair": "p"}


def test_where_next_to_nothing_was_drafted_no_share_of_it_reads_as_a_success() -> None:
    few, many = answer(205, 4, 4), answer(100, 80, 40)
    assert "guessed 4, kept 4" in footnote(few, None, empty=False)
    assert "guessed 80, kept 40" in footnote(many, None, empty=False)
    assert "guessed" not in footnote(answer(205, 0, 0), None, empty=False)
    before = {"generated_tokens": 9, "tokens_per_second": 5.0, "acceptance_rate": 0.5}
    assert "50 % accepted" in footnote(before, None, empty=False)  # of an earlier version
    now = replace(DRAFTED, generated=205, drafted=4, accepted=4, acceptance_rate=1.0)
    for lines, few_of_them in zip(shown(now), ("4 of 4", "guessed 4, kept 4"), strict=True):
        assert "100 %" not in lines
        assert few_of_them in lines
        assert "━" not in lines.split(few_of_them)[1][:15]
    assert "guessed 4, kept 4" in totals([few])
    assert "guessed 84, kept 44" in totals([few, many])


def test_a_conversation_that_is_opened_contradicts_itself_nowhere() -> None:
    state = PanelState()
    state.begin(answer(205, 90, 30) | {"context_used": 222})
    state.take(Figures(context_size=1024))
    column, lines = text(full_lines(state, 36, 40)), text(compact_lines(state, 90))
    assert "222/1,024 context" in lines
    assert "33 % kept" in lines  # the counts stand below the answer
    assert "33 %" in column
    assert "222 of 1,024" in column
    state.begin(answer(205, 4, 4) | {"context_used": 222})
    state.take(Figures(answer_note=GammaNote(GammaReason.TOO_DEAR)))  # that of another answer
    assert summary(state.figures) == "guessed 4, kept 4"
    state.begin({"tokens_per_second": 9.0})  # the rest is unknown
    state.take(Figures())
    assert big_speed(state)[1] == "no answer yet"
