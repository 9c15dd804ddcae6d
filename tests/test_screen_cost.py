"""The benchmark of the screen's cost finds a cost that is known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from localspec.chat.events import Origin, RoundText, Span
from localspec.ui.conversation.stream import SHORTEST, SPARE_SHORTEST, AnswerStream, FramePacer
from localspec.ui.panel.dashboard import Dashboard
from tests.fakes import rounds_of
from tests.support.chat_pilot import Chat
from tests.support.inline import inline
from tests.support.scripted_session import Gate, ScriptedSession

pytest.importorskip("pexpect")

from benchmarks.screen_cost import FRAMES, NEIGHBOURS, Alternating, Driven, Played


@pytest.mark.parametrize("stretches", [4, 5, 6, 41, 42])
@pytest.mark.parametrize("cost", [0.0, 0.02, 0.5])
def test_the_ratio_is_that_of_the_speeds_whatever_the_context_adds(
    stretches: int, cost: float
) -> None:
    """Rounds take longer and longer, and longer by the factor 1 + `cost` while the screen draws."""
    now, told = 0.0, []
    outbox = Alternating(lambda: told.append(now), lambda: 1.0)
    (done,) = rounds_of([1])
    length = 0.01
    while len(outbox.stretches) < stretches:
        took = length * (1 + cost * outbox.stretches[-1].along) if outbox.stretches else length
        now += took
        outbox.put(RoundText((), replace(done, total_s=took)))
        length *= 1.0001
    assert told == [one.began for one in outbox.stretches if one.along]
    assert outbox.along_over_still() == pytest.approx(1 / (1 + cost), rel=0.001)


@pytest.mark.parametrize("round_s", [0.005, 0.4])
def test_however_fast_the_pair_an_answer_lasts_until_a_round_has_played_often_enough(
    round_s: float,
) -> None:
    announced: list[int] = []
    played: list[bool] = []
    over: list[int] = []
    inbox = Played(lambda: announced.append(1), played.append, lambda: over.append(1))
    (done,) = rounds_of([1])
    while not over:
        slower = 1.02 if played and played[-1] else 1.0
        inbox.put(RoundText((), replace(done, total_s=round_s * slower)))
        assert inbox.collect()
    assert len(announced) > len(played) == NEIGHBOURS + 2
    assert played == [n % 2 == 0 for n in range(NEIGHBOURS + 2)]
    assert inbox.along_over_still() == pytest.approx(1 / 1.02, rel=0.001)


def test_with_a_core_to_spare_frames_come_as_fast_as_an_eye_follows() -> None:
    pace = FramePacer()
    for spare, least in ((False, SHORTEST), (True, SPARE_SHORTEST), (False, SHORTEST)):
        pace.spare = spare
        for _ in range(20):
            pace.drawn()
        assert pace.interval == pytest.approx(least, rel=0.2)
    assert 1 / SPARE_SHORTEST > FRAMES


def test_however_much_a_frame_costs_text_waits_a_third_of_a_second_and_the_first_words_never() -> (
    None
):
    transcript = Mock()
    stream = AnswerStream(transcript, Mock(), Mock())
    stream.begin(Mock())
    for _ in range(20):
        sum(range(1_000_000))
        stream.pace.drawn()
    assert 0.1 < stream.pace.interval <= 1 / 3
    (done,) = rounds_of([1])
    for _ in range(2):
        stream.inbox.put(RoundText((Span("word", Origin.TARGET),), done))
        stream.news()
        transcript.write.assert_called_once()  # the second waits for the next frame
    assert transcript.set_timer.call_args.args[0] <= 1 / 3
    stream.flush()
    assert transcript.write.call_count == 2


class Answering(Driven):
    """Measures nothing but scripted answers."""

    probes = 0


def test_while_answers_are_measured_figures_are_drawn_with_the_text_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = []
    monkeypatch.setattr(Dashboard, "_tick", lambda _: alone.append(1))
    monkeypatch.setattr("localspec.ui.panel.dashboard._FIGURES_S", 0.01)

    async def body() -> None:
        session = ScriptedSession(answers=["A few words."], gate=Gate(is_open=False))
        app = Answering(inline(lambda _progress, _cancel: session), 1, tmp_path / "found.json")
        async with app.run_test(size=(120, 40)) as pilot:
            chat = Chat(app, pilot, session)
            await chat.until(lambda: app.turns.busy, "the answer's beginning")
            await pilot.pause(0.3)
            session.gate.open()
            await chat.until((tmp_path / "found.json").exists, "the end")
        app.engine.shut_down()
        assert app.engine.join(10)

    asyncio.run(body())
    assert len(alone) <= 2  # a timer resumed and paused at once ticks once an answer
