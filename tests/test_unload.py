"""The chat gives the memory back while nothing is asked, and goes on from the stored caches."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.process.engine_client import EngineClient
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.idle_watch import IdleWatch
from tests.support.chat_pilot import Chat, chatting
from tests.support.inline import inline
from tests.support.scripted_session import ScriptedSession
from tests.test_process import TOY, answers

STORY = "Tell me a story of a dog and a cat, and of a bird that they meet in the wood. " * 2


def test_the_time_counts_from_the_last_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rested = 100.0, []
    waits: list[tuple[float, Callable[[], None]]] = []
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("localspec.ui.conversation.idle_watch.time", clock)

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits[-1][1]()

    watch = IdleWatch(60, lambda: rested.append(now), lambda left, call: waits.append((left, call)))
    watch.start()
    now += 40
    watch.stir()
    pass_by(20)
    assert (rested, waits[-1][0]) == ([], 40)
    pass_by(40)
    assert (rested, waits[-1][0]) == ([200.0], 60)
    pass_by(60)
    assert rested == [200.0, 260.0]  # such as after an answer that took long


def test_no_time_means_never() -> None:
    def none(*_: object) -> None:
        raise AssertionError

    IdleWatch(0, none, none).start()


async def test_an_engine_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chatting() as chat:
        end = chat.app.engine.unload()

        def stuck(timeout: float) -> bool:
            end(timeout)
            raise subprocess.TimeoutExpired("engine", timeout)

        monkeypatch.setattr(chat.app.engine, "unload", lambda: stuck)
        await chat.send("/unload")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        await chat.until(lambda: "timed out" in chat.transcript(), "the error")


async def test_models_are_unloaded_and_a_message_loads_them_again() -> None:
    loads: list[ScriptedSession] = []

    def load(*_: Any) -> ScriptedSession:
        loads.append(ScriptedSession())
        return loads[-1]

    app = ChatApp(inline(load))
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        await chat.send("Hello!")
        await chat.until(lambda: len(answers(chat)) == 1 and chat.ready())
        await chat.send("/unload")
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        assert loads[0].closed
        assert "the memory is given back" in chat.status()
        assert app.dashboard.state.memory is None
        await chat.send("/temp 0.5")
        assert "Enter loads them again" in chat.status()
        app.prompt.clear()
        await chat.send("And then?")
        await chat.until(lambda: len(answers(chat)) == 2 and chat.ready(), "an answer")
        assert [one.content for one in loads[1].messages if one.role == "user"] == [
            "Hello!",
            "And then?",
        ]
        await chat.send("/unload")
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        app.prompt.insert("half a quest")
        await chat.press("f5")
        await chat.until(lambda: len(loads) == 3 and chat.ready(), "the models")
        await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready(), "the answer")
        assert app.prompt.text == "half a quest"
    app.engine.shut_down()
    assert app.engine.join(10)


async def test_the_models_come_back_in_the_stored_conversation(tmp_path: Path) -> None:
    loads: list[ScriptedSession] = []

    def load(*_: Any) -> ScriptedSession:
        loads.append(ScriptedSession())
        return loads[-1]

    app = ChatApp(inline(load), archive=tmp_path / "conversations.db")
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        await chat.send("Hello!")
        await chat.until(lambda: len(answers(chat)) == 1 and chat.ready())
        await chat.send("/unload")
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        await chat.press("f5")  # unlike a question it names no conversation
        await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready(), "the answer")
        assert loads[1].entered == [app.library.record.stored_as] == loads[0].entered
    app.engine.shut_down()
    assert app.engine.join(10)
    app.library.shut_down()


async def test_without_a_sign_of_the_user_the_memory_is_given_back() -> None:
    session = ScriptedSession()
    app = ChatApp(inline(lambda *_: session), appearance=Appearance(idle_s=0.01))
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, session)
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        assert session.closed
    assert app.engine.join(10)


async def talked(folder: Path, *, unload: bool, again: bool) -> tuple[list[str], int, int]:
    """Ask twice, or once and answer `again`.

    Returns:
        The answers, and what the second found in the caches and read.
    """
    engine = EngineClient(TOY)
    app = ChatApp(engine, archive=folder / "conversations.db")
    async with app.run_test(size=(100, 40)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        await chat.send(STORY)
        await chat.until(lambda: len(answers(chat)) == 1 and chat.ready())
        if unload:
            await chat.send("/unload")
            await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
            assert engine.info is None
        if again:
            await chat.press("f5")
            await chat.until(lambda: "‹ 2/2 ›" in chat.transcript() and chat.ready())
        else:
            await chat.send("And then?")
            await chat.until(lambda: len(answers(chat)) == 2 and chat.ready())
        end = app.turns.stream.end
        assert end is not None
        found = answers(chat), end.stats.prefill_cached, end.stats.prefill_decoded
    engine.shut_down()
    assert await asyncio.to_thread(engine.join, 20)
    app.library.shut_down()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
async def test_a_stored_conversation_goes_on_without_being_read_again(
    tmp_path: Path, *, again: bool
) -> None:
    expected = await talked(tmp_path / "one", unload=False, again=again)
    found = await talked(tmp_path / "two", unload=True, again=again)
    assert found == expected
    assert found[1] > 60
    assert found[2] < 20
