"""A session on a scripted engine: turns, stopping, errors, switching, figures, closing."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from localspec.chat.conversation import RECALL, Message, Role
from localspec.chat.events import (
    Origin,
    PromptProgress,
    RoundText,
    Span,
    TurnEnd,
    TurnsLeftOut,
)
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.session.turns import SUMMARISE
from localspec.chat.settings import UNMEASURED_GAMMA, ChatSettings
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.grammars.constraint import Anything, Constraint
from localspec.engine.grammars.grammar_reader import GrammarReader
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.neighbours import Neighbours
from localspec.engine.record.stats import DeviceMemory, FinishReason, GammaNote, GammaReason
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.prompt_steps import PromptSteps
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import EngineError, LocalspecError, PromptTooLong
from tests.fakes import FakeModel, ended, fake_session, paced, rounds_of

HELLO = [*rounds_of(b"hello"), ended()]


def contents(messages: list[Message]) -> list[tuple[str, str]]:
    return [(m.role.value, m.content) for m in messages]


def test_a_turn_reports_progress_rounds_and_an_end() -> None:
    session, _ = fake_session(HELLO)
    events = list(session.turn("hi", Cancel()))
    assert isinstance(events[0], PromptProgress)
    assert all(isinstance(event, RoundText) for event in events[1:-1])
    end = events[-1]
    assert isinstance(end, TurnEnd)
    assert (end.text, end.reason) == ("hello", FinishReason.STOP)
    assert end.stats.generated_tokens == 5
    assert session.messages == [
        Message(Role.USER, "hi"),
        Message(Role.ASSISTANT, "hello", FinishReason.STOP, (Span("hello", Origin.TARGET),)),
    ]


@pytest.mark.parametrize(("token_s", "told"), [(None, True), (0.2, True), (1e-4, False)])
def test_a_prompt_that_takes_long_is_announced_before_its_first_pass(
    token_s: float | None, *, told: bool
) -> None:
    session, engine = fake_session(HELLO)
    engine.steps = PromptSteps(512) if token_s is None else paced(token_s)
    read = [each for each in session.turn("hi", Cancel()) if isinstance(each, PromptProgress)]
    assert [each.done == 0 for each in read] == ([True, False] if told else [False])
    assert all(each.seconds_left is None for each in read)  # too little is read to tell


def test_the_second_turn_reads_only_what_is_new() -> None:
    session, engine = fake_session(HELLO, HELLO)
    list(session.turn("hi", Cancel()))
    list(session.turn("more", Cancel()))
    first, second = engine.prefills
    # All but the last generated token is in the cache.
    assert second.cached == first.prompt_tokens + 4
    assert session.figures().prompt_cached == second.cached


def test_settings_reach_the_engine_and_may_change_between_turns() -> None:
    settings = ChatSettings(system_prompt="Be brief.", n_predict=7)
    session, engine = fake_session(HELLO, HELLO, settings=settings)
    list(session.turn("hi", Cancel()))
    assert "Be brief." in FakeModel().text(engine.prompts[0])
    assert (engine.settings.n_predict, engine.settings.accept) == (7, Accept.BLOCK)
    session.settings.system_prompt = "Be long."
    session.settings.sampling = SamplingParams(temperature=0)
    list(session.turn("more", Cancel()))
    assert "Be long." in FakeModel().text(engine.prompts[1])
    assert engine.settings.accept is Accept.MATCH


@pytest.mark.parametrize("seeded", [False, True])
def test_with_a_seed_the_threads_stay_what_they_are(seeded: bool) -> None:
    session, _ = fake_session(HELLO, settings=ChatSettings(repeatable=seeded))
    list(session.turn("hi", Cancel()))
    assert session.pair.target.threads.held is seeded  # type: ignore[attr-defined]


def test_figures_say_what_other_programs_take() -> None:
    session, _ = fake_session(HELLO)
    threads = cast(Any, session.pair.target.threads)
    threads.taken = 1.24
    list(session.turn("hi", Cancel()))
    assert threads.watched == 1
    threads.taken = 2.0  # after the answer, of which the figures speak
    assert session.figures().slow.startswith("other programs keep 1.2 of ")
    assert session.figures().busy == session.figures().slow
    session.open(())  # another conversation, of which no answer was slow
    assert session.figures().slow == ""


def test_why_an_answer_drafted_or_not_stays_when_drafting_is_switched() -> None:
    session, _ = fake_session(HELLO)
    list(session.turn("hi", Cancel()))
    reason = GammaNote(GammaReason.NOT_MEASURED, UNMEASURED_GAMMA)
    assert session.figures().answer_note == reason
    session.speculation = False
    assert session.figures().answer_note == reason
    assert session.figures().gamma_note == GammaNote(GammaReason.OFF)


def test_what_was_stopped_before_its_first_token_leaves_the_figures_of_the_last_answer() -> None:
    session, _ = fake_session(HELLO)
    list(session.turn("hi", Cancel()))
    figures = session.figures()
    assert figures.generated
    stopped = Cancel()
    stopped.set()
    list(session.turn("and now?", stopped))
    assert session.figures() == figures
    session.open(())
    assert session.figures().generated == 0


def test_the_rule_can_be_chosen() -> None:
    assert ChatSettings(accept=Accept.BLOCK).rule is Accept.BLOCK


def test_stop_strings_end_the_answer() -> None:
    session, _ = fake_session(rounds_of(b"one two three"), settings=ChatSettings(stop=(" t",)))
    end = list(session.turn("hi", Cancel()))[-1]
    assert isinstance(end, TurnEnd)
    assert (end.text, end.reason) == ("one", FinishReason.STOP)
    assert end.stats.generated_tokens == 5
    assert session.messages[-1].content == "one"


@pytest.mark.parametrize("ended_by_itself", [False, True])
def test_what_a_draft_wrote_after_a_stop_text_is_not_in_the_claim(ended_by_itself: bool) -> None:
    """The last round copies 31 tokens, of which the second completes the stop text."""
    text = " ".join(map(str, range(60))).encode()
    rounds = rounds_of(text[:4]) + rounds_of(text[4:104], size=5, from_draft=4)
    rounds = [each for at in range(4) for each in (rounds[at], *rounds[4 + 5 * at : 9 + 5 * at])]
    (last,) = rounds_of(b"##" + b"and more tokens than that ...".ljust(30), size=32, from_draft=31)
    finish = FinishReason.STOP if ended_by_itself else None
    table = {1: 0.001, 5: 0.001, 32: 0.001}
    session, _ = fake_session(
        [*rounds, replace(last, finish=finish)],
        settings=ChatSettings(stop=("##",)),
        auto=AutoGamma(Costs({0: table}, {DRAFT: {0: table}})),
    )
    list(session.turn("hi", Cancel()))
    neighbours = Neighbours(Costs({0: table}, {}))
    for done in (*rounds, replace(last, tokens=last.tokens[:2])):
        neighbours.add(done)
    found, kept = session.figures().speedup, neighbours.speedup()
    assert found is not None
    assert kept is not None
    assert kept.estimate == pytest.approx(105 / 24)  # tokens and rounds after the first
    assert found.estimate == pytest.approx(kept.estimate)


def test_the_plain_template_stops_where_the_user_would_speak() -> None:
    session, _ = fake_session(rounds_of(b" hello\nUser: and"), model=FakeModel(chat_template=None))
    list(session.turn("hi", Cancel()))
    assert session.messages[-1].content == " hello"
    assert any("template" in notice for notice in session.notices)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_prompt_is_refused(text: str) -> None:
    session, engine = fake_session(HELLO)
    with pytest.raises(LocalspecError, match="empty"):
        list(session.turn(text, Cancel()))
    assert session.messages == []
    assert engine.prompts == []


def test_a_prompt_longer_than_the_context_leaves_the_conversation_alone() -> None:
    session, _ = fake_session(HELLO, HELLO, n_ctx=80)
    list(session.turn("hi", Cancel()))
    with pytest.raises(PromptTooLong, match=r"has \d+ tokens, the context holds 80") as caught:
        list(session.turn("x" * 100, Cancel()))
    # A new conversation would not help: the older turns were left out already.
    assert caught.value.remedy == "Shorten it, or raise --ctx-size."
    assert contents(session.messages) == [("user", "hi"), ("assistant", "hello")]
    list(session.turn("y", Cancel()))
    assert len(session.messages) == 4


def test_a_full_context_leaves_the_oldest_turns_out_whole_and_keeps_the_system_prompt() -> None:
    settings = ChatSettings(system_prompt="Be brief.")
    session, engine = fake_session(*[HELLO] * 31, n_ctx=600, settings=settings)
    told = []
    for n in range(30):
        events = list(session.turn(f"question {n}", Cancel()))
        told += [event.messages for event in events if isinstance(event, TurnsLeftOut)]
    assert len(session.messages) == 60
    assert told == sorted(set(told))
    assert told[0] % 2 == 0
    assert 1 < len(told) < 10  # not at every turn: all that follows is read again
    last = FakeModel().text(engine.prompts[-1])
    assert "Be brief." in last
    assert "question 0" not in last
    assert f"question {told[-1] // 2}" in last
    assert "question 29" in last
    # A turn after which nothing was left out finds the caches as they were.
    session.open(session.messages[:2])
    events = list(session.turn("short again", Cancel()))
    assert "question 0" in FakeModel().text(engine.prompts[-1])


def test_a_summary_takes_the_place_of_what_was_said() -> None:
    session, engine = fake_session(HELLO, HELLO, rounds_of(b"never ends"))
    with pytest.raises(LocalspecError, match="nothing to sum up"):
        list(session.compact(Cancel()))
    list(session.turn("hi", Cancel()))
    list(session.compact(Cancel()))
    assert SUMMARISE in FakeModel().text(engine.prompts[-1])
    assert contents(session.messages) == [("user", RECALL), ("assistant", "hello")]
    turn = session.compact(Cancel())
    while not isinstance(next(turn), RoundText):
        pass
    turn.close()
    assert contents(session.messages) == [("user", RECALL), ("assistant", "hello")]


@pytest.mark.parametrize(
    ("turns", "n_ctx", "size", "most"),
    [(9, 600, 0, 450), (16, 600, 0, 450), (18, 20_000, 1000, 15_904)],
)
def test_a_summary_is_of_as_many_turns_as_fit(turns: int, n_ctx: int, size: int, most: int) -> None:
    session, engine = fake_session(*[HELLO] * (turns + 2), n_ctx=n_ctx)
    asked = [f"question {n}" + "x" * size for n in range(10, 10 + turns)]
    for question in asked:
        list(session.turn(question, Cancel()))
    events = list(session.compact(Cancel()))
    prompt = engine.prompts[-1]
    told = [question for question in asked if question in FakeModel().text(prompt)]
    left_out = [event.messages // 2 for event in events if isinstance(event, TurnsLeftOut)]
    assert left_out == [len(asked) - len(told)]
    # With one turn more, less than a quarter of the context would be left for the summary, or less
    # than a long summary takes.
    turn = len(prompt) // (len(told) + 1)
    assert most - turn < len(prompt) <= most
    list(session.turn("more", Cancel()))
    assert RECALL in FakeModel().text(engine.prompts[-1])


def test_the_last_turn_is_summed_up_or_no_summary_is_asked_for() -> None:
    session, engine = fake_session(HELLO, HELLO, n_ctx=400)
    list(session.turn("x" * 170, Cancel()))
    list(session.compact(Cancel()))
    assert 350 < len(engine.prompts[-1]) <= 400  # less room than for an answer
    assert "x" * 170 in FakeModel().text(engine.prompts[-1])
    session, engine = fake_session(HELLO, HELLO, n_ctx=300)
    list(session.turn("x" * 170, Cancel()))
    with pytest.raises(PromptTooLong):
        list(session.compact(Cancel()))
    assert contents(session.messages) == [("user", "x" * 170), ("assistant", "hello")]


@pytest.mark.parametrize(
    ("reason", "way"),
    [(FinishReason.LENGTH, "/set n-predict -1"), (FinishReason.CONTEXT, "/set ctx-size N")],
)
def test_a_summary_that_is_cut_replaces_nothing(reason: FinishReason, way: str) -> None:
    session, _ = fake_session(HELLO, [*rounds_of(b"In sh"), ended(reason)])
    list(session.turn("hi", Cancel()))
    with pytest.raises(LocalspecError, match="the summary was cut") as caught:
        list(session.compact(Cancel()))
    assert caught.value.remedy.startswith(f"Say {way}")
    assert contents(session.messages) == [("user", "hi"), ("assistant", "hello")]


def test_a_thought_is_no_summary() -> None:
    session, _ = fake_session(HELLO, [*rounds_of(b"<think>hm</think>"), ended()])
    list(session.turn("hi", Cancel()))
    list(session.compact(Cancel()))
    assert contents(session.messages) == [("user", "hi"), ("assistant", "hello")]


def test_a_summary_is_bound_by_nothing_that_binds_answers() -> None:
    session, engine = fake_session(HELLO, HELLO, HELLO)
    list(session.turn("hi", Cancel()))
    session.settings = replace(session.settings, grammar='root ::= "x"', stop=("ell",))
    list(session.compact(Cancel()))
    assert engine.settings.constraint is None
    assert contents(session.messages) == [("user", RECALL), ("assistant", "hello")]
    session.settings = replace(session.settings, grammar="")
    list(session.turn("more", Cancel()))
    assert session.messages[-1].content == "h"


def test_the_time_to_the_first_token_counts_the_making_of_the_prompt_and_the_reading_of_a_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = fake_session(HELLO, HELLO, HELLO)

    def wait() -> float:
        return (
            cast(TurnEnd, list(session.turn("hi", Cancel()))[-1]).stats.time_to_first_token_s or 0
        )

    def slowly(*_: object) -> Constraint:
        time.sleep(0.3)
        return Anything()

    def rendered(*_: object, **_more: object) -> str:
        time.sleep(0.3)
        return "hi"

    waits = [wait()]
    with monkeypatch.context() as patched:
        patched.setattr(GrammarReader, "begin", slowly)
        session.settings = replace(session.settings, grammar='root ::= "hello"')
        waits.append(wait())
    session.settings = replace(session.settings, grammar="")
    monkeypatch.setattr(ChatTemplate, "render", rendered)
    waits.append(wait())
    assert min(waits[1:]) >= 0.3
    assert min(waits[1:]) - waits[0] > 0.2


@pytest.mark.parametrize("sums_up", [True, False])
def test_what_fails_leaves_no_more_turns_out(sums_up: bool) -> None:
    broken = [EngineError("broken")]
    session, engine = fake_session(HELLO, HELLO, HELLO, broken, HELLO, n_ctx=300)
    for n in range(3):
        list(session.turn(f"question {n}", Cancel()))
    failing = session.compact(Cancel()) if sums_up else session.turn("x" * 200, Cancel())
    with pytest.raises(EngineError):
        list(failing)
    assert "question 0" not in FakeModel().text(engine.prompts[-1])
    list(session.turn("short", Cancel()))
    assert "question 0" in FakeModel().text(engine.prompts[-1])


def test_a_turn_that_is_cancelled_keeps_its_text() -> None:
    cancel = Cancel()
    session, engine = fake_session(rounds_of(b"hello"))
    turn = session.turn("hi", cancel)
    while not isinstance(event := next(turn), RoundText):
        pass
    cancel.set()
    *_, end = turn
    assert isinstance(end, TurnEnd)
    assert (event.text, end.text, end.reason) == ("h", "h", FinishReason.CANCELLED)
    assert contents(session.messages) == [("user", "hi"), ("assistant", "h")]
    assert len(engine.gammas) == 1


def test_a_turn_cancelled_before_its_first_word_leaves_no_empty_answer_in_the_prompt() -> None:
    cancel = Cancel()
    cancel.set()
    session, engine = fake_session(HELLO)
    (end,) = session.turn("hi", cancel)
    assert isinstance(end, TurnEnd)
    assert end.reason is FinishReason.CANCELLED
    assert contents(session.messages) == [("user", "hi"), ("assistant", "")]
    list(session.turn("really", Cancel()))
    assert FakeModel().text(engine.prompts[0]).count("assistant") == 1


def test_closing_a_turn_early_keeps_its_text_and_frees_the_session() -> None:
    session, _ = fake_session(rounds_of(b"hello"), HELLO)
    turn = session.turn("hi", Cancel())
    next(turn)
    next(turn)
    turn.close()
    assert session.messages[-1] == Message(
        Role.ASSISTANT, "h", FinishReason.CANCELLED, (Span("h", Origin.TARGET),)
    )
    assert not session.figures().generating
    list(session.turn("more", Cancel()))
    assert len(session.messages) == 4


def test_an_error_in_the_middle_keeps_what_was_said() -> None:
    session, _ = fake_session([*rounds_of(b"he"), EngineError("broken")], HELLO)
    with pytest.raises(EngineError):
        list(session.turn("hi", Cancel()))
    assert session.messages[-1].content == "he"
    assert session.messages[-1].finish is None
    list(session.turn("more", Cancel()))
    assert session.messages[-1].content == "hello"


def test_an_error_before_the_first_token_takes_the_question_back() -> None:
    session, engine = fake_session([EngineError("broken")], HELLO)
    with pytest.raises(EngineError):
        list(session.turn("hi", Cancel()))
    assert session.messages == []
    engine.prefill_error = EngineError("broken")
    with pytest.raises(EngineError):
        list(session.turn("hi", Cancel()))
    assert session.messages == []
    engine.prefill_error = None
    list(session.turn("hi", Cancel()))


def test_two_turns_never_overlap() -> None:
    session, _ = fake_session(HELLO, HELLO)
    first = session.turn("hi", Cancel())
    next(first)
    with pytest.raises(LocalspecError, match="still being written"):
        next(session.turn("too soon", Cancel()))
    with pytest.raises(LocalspecError, match="still being written"):
        session.reset()
    list(first)
    list(session.turn("now", Cancel()))
    assert [m.content for m in session.messages if m.role is Role.USER] == ["hi", "now"]


def test_regenerate_replaces_the_last_answer() -> None:
    session, engine = fake_session(HELLO, [*rounds_of(b"other"), ended()])
    list(session.turn("hi", Cancel()))
    list(session.regenerate(Cancel()))
    assert contents(session.messages) == [("user", "hi"), ("assistant", "other")]
    assert engine.prompts[0] == engine.prompts[1]
    assert engine.prefills[1].decoded == 0


def test_regenerate_keeps_the_old_answer_when_it_fails() -> None:
    session, _ = fake_session(HELLO, [EngineError("broken")])
    list(session.turn("hi", Cancel()))
    with pytest.raises(EngineError):
        list(session.regenerate(Cancel()))
    assert contents(session.messages) == [("user", "hi"), ("assistant", "hello")]


def test_regenerate_keeps_the_old_answer_when_it_is_stopped_before_a_word() -> None:
    session, _ = fake_session(HELLO, HELLO)
    list(session.turn("hi", Cancel()))
    cancel = Cancel()
    cancel.set()
    list(session.regenerate(cancel))
    assert contents(session.messages) == [("user", "hi"), ("assistant", "hello")]


def test_regenerate_needs_a_question() -> None:
    session, _ = fake_session()
    with pytest.raises(LocalspecError, match="no question"):
        list(session.regenerate(Cancel()))


def test_reset_forgets_the_conversation() -> None:
    session, engine = fake_session(HELLO, HELLO)
    list(session.turn("hi", Cancel()))
    session.reset()
    assert session.messages == []
    assert session.figures().generated == 0
    list(session.turn("hi", Cancel()))
    assert engine.prompts[0] == engine.prompts[1]


def test_speculation_is_switched_between_two_rounds() -> None:
    session, engine = fake_session(HELLO)
    switches = iter((None, False, None, True, None, None))

    def switch() -> None:
        if (wanted := next(switches)) is not None:
            session.speculation = wanted

    engine.on_round = switch
    list(session.turn("hi", Cancel()))
    assert engine.gammas == [
        UNMEASURED_GAMMA,
        0,
        0,
        UNMEASURED_GAMMA,
        UNMEASURED_GAMMA,
        UNMEASURED_GAMMA,
    ]
    assert session.figures().speculation


def test_a_fixed_gamma_of_zero_is_off_until_it_is_switched_on() -> None:
    session, _ = fake_session(settings=ChatSettings(gamma=0))
    assert not session.speculation
    assert session.figures().gamma == 0
    session.speculation = True
    assert session.figures().gamma == UNMEASURED_GAMMA
    assert session.figures().gamma_note == GammaNote(GammaReason.NOT_MEASURED, UNMEASURED_GAMMA)


def test_without_a_drafter_speculation_stays_off_and_says_why() -> None:
    session, _ = fake_session(drafts=False)
    session.speculation = True
    assert not session.speculation
    assert session.speculation_note == "there is no draft"
    assert session.draft_name is None


def test_names() -> None:
    session, _ = fake_session()
    assert (session.pair_name, session.target_name, session.draft_name) == ("fake", "fake", "fake")
    assert session.speculation_note == ""


def test_figures_while_a_turn_runs_and_after() -> None:
    rounds = [replace(done, drafted=3, accepted=1) for done in rounds_of(b"hello", size=2)]
    session, _ = fake_session([rounds[0], *rounds, ended()])
    turn = session.turn("hi", Cancel())
    next(turn)
    assert session.figures().generating
    assert session.figures().speed_average is None
    list(turn)
    figures = session.figures()
    assert not figures.generating
    assert (figures.drafted, figures.accepted, figures.recovered) == (12, 4, 3)
    assert figures.generated == 7
    assert figures.acceptance_rate == pytest.approx(1 / 3)
    assert figures.speed_average is not None
    assert figures.speed_now is not None
    assert figures.context_used == figures.prompt_tokens + 7
    assert figures.context_size == 1000


def test_memory_adds_up() -> None:
    session, _ = fake_session()
    memory = session.memory()
    assert (memory.target_weights, memory.draft_weights) == (1000, 1000)
    assert (memory.target_cache, memory.draft_cache, memory.buffers) == (200, 200, 60)
    assert 0 < memory.process <= memory.peak_process
    assert 0 <= memory.machine_available <= memory.machine_total
    assert session.peak_memory_bytes() >= memory.process


def test_memory_of_a_card_counts_where_it_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = fake_session()
    card, chip = DeviceMemory("A card", 100, 200), DeviceMemory("A chip", 100, 200, integrated=True)
    again = replace(card, left_out=True)  # by another backend
    session.pair = replace(session.pair, devices_before=(card, chip, again))
    now = (replace(card, free=40), replace(chip, free=10), replace(again, free=40))
    monkeypatch.setattr("localspec.chat.session.pair.devices", lambda: now)
    memory = session.memory()
    assert memory.taken == memory.process + 60


def test_closing_waits_for_the_running_turn() -> None:
    session, engine = fake_session(rounds_of(b"hello" * 1000))
    started = threading.Event()
    engine.on_round = started.set
    events: list[object] = []
    thread = threading.Thread(target=lambda: events.extend(session.turn("hi", Cancel())))
    thread.start()
    assert started.wait(5)
    session.close()
    thread.join(5)
    assert not thread.is_alive()
    assert engine.closed
    assert session.pair.target.closed  # type: ignore[attr-defined]
    assert session.messages[-1].finish is FinishReason.CANCELLED
    session.close()
    with pytest.raises(LocalspecError, match="closed"):
        next(session.turn("hi", Cancel()))


def test_a_fault_before_the_end_keeps_no_model_loaded() -> None:
    def broken() -> None:
        raise OSError("the disk is gone")

    session, engine = fake_session()
    session._closing = broken
    with pytest.raises(OSError, match="the disk is gone"):
        session.close()
    assert engine.closed


def test_closing_ends_a_turn_that_nobody_reads_any_more() -> None:
    session, _ = fake_session(rounds_of(b"hello"))
    turn = session.turn("hi", Cancel())
    next(turn)
    next(turn)
    session.close()
    assert session.messages[-1].content == "h"
    assert list(turn) == []


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("/m/big-Q4_K_M-00001-of-00003.gguf", "big-Q4_K_M"),
        (f"/blobs/sha256-{'ab' * 32}", "135M 8k Lc100K Mix1 Ep2"),
    ],
)
def test_a_model_is_shown_by_its_files_name_unless_that_is_a_hash(path: str, shown: str) -> None:
    model = FakeModel(name="135M 8k Lc100K Mix1 Ep2", path=Path(path))
    session, _ = fake_session(model=model)
    assert session.target_name == shown
    assert session.about == "fake, 1 million parameters"
