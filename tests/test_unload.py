"""An idle chat frees the models' memory, and goes on from the stored caches."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from localspec.loading.load_request import LoadRequest
from localspec.process import messages as m
from localspec.process.engine_client import EngineClient
from localspec.process.loader import Loader
from localspec.process.server import EngineServer
from localspec.process.transport import EngineProcess
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
    assert rested == [200.0, 260.0]  # after the end of a long answer, say


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


@asynccontextmanager
async def unloaded(
    archive: Path | None = None,
) -> AsyncIterator[tuple[Chat, list[ScriptedSession]]]:
    """A chat that was unloaded after an answer, and the sessions that it loads."""
    loads: list[ScriptedSession] = []

    def load(*_: Any) -> ScriptedSession:
        loads.append(ScriptedSession())
        return loads[-1]

    app = ChatApp(inline(load), archive=archive)
    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        await chat.send("Hello!")
        await chat.until(lambda: len(answers(chat)) == 1 and chat.ready())
        await chat.send("/unload")
        await chat.until(lambda: app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        yield chat, loads


async def test_models_are_unloaded_and_a_message_loads_them_again() -> None:
    async with unloaded() as (chat, loads):
        app = chat.app
        assert loads[0].closed
        assert "the memory is given back" in chat.status()
        assert app.dashboard.state.memory is None
        await chat.press("f8")
        assert "Enter loads them again" in chat.status()
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


async def test_what_is_told_while_the_models_are_unloaded_is_said_then() -> None:
    async with chatting() as chat:
        chat.app.pair_loader.unload()
        chat.app.pair_loader.tell("a word meanwhile")
        assert "a word meanwhile" not in chat.transcript()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ASLEEP, "the unloading")
        assert "a word meanwhile" in chat.transcript()


async def test_a_command_that_needs_the_models_loads_them_again() -> None:
    async with unloaded() as (chat, loads):
        await chat.send("/unload")
        assert "the models are not loaded" in chat.status()
        chat.app.prompt.clear()
        await chat.send("/temp 0.5")
        await chat.until(lambda: "temperature 0.5" in chat.transcript(), "the temperature")
        assert len(loads) == 2
        assert not chat.app.prompt.text
    chat.app.engine.shut_down()
    assert chat.app.engine.join(10)


async def test_the_models_come_back_in_the_stored_conversation(tmp_path: Path) -> None:
    async with unloaded(tmp_path / "conversations.db") as (chat, loads):
        app = chat.app
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


class Storing(ScriptedSession):
    """Stores its caches in two steps, and says when each begins; the test says when it ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def close(self, progress: Callable[[float], None] = lambda _share: None) -> None:
        for share in (0.0, 0.5):
            progress(share)
            self.begun.release()
            self.goes_on.acquire()
        super().close()


def test_the_end_is_waited_for_while_caches_are_being_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, events, waits = Storing(), queue.SimpleQueue[m.Event](), 0
    server = EngineServer(lambda: Loader(lambda *_: session, print, lambda *_: b""))
    server.listen(lambda envelope: events.put(envelope.body))
    server.send(m.Envelope(1, m.Load(LoadRequest())))
    while not isinstance(events.get(timeout=60), m.Loaded):
        pass
    server.shut_down()
    ended = server._thread.join

    def wait(_seconds: float) -> None:
        """Return in each of two steps before the thread ends, as if the seconds had passed."""
        nonlocal waits
        waits += 1
        if waits > 1:
            session.goes_on.release()
        if waits > 2:
            ended(60)
        else:
            assert session.begun.acquire(timeout=60)

    monkeypatch.setattr(server._thread, "join", wait)
    assert server.join(5)
    assert (waits, session.closed) == (3, True)
    assert [events.get_nowait() for _ in "12"][-1] == m.Loading("Storing the conversation", 0.5)


def test_a_process_that_stores_caches_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = msgspec.msgpack.encode(m.Envelope(1, m.Loading("Storing the conversation", 0.5)))
    frame = (len(data).to_bytes(4, "little") + data).hex()
    script = f"""
import pathlib, sys, time
for step in "01":
    while not pathlib.Path({str(tmp_path)!r}, step).exists():
        time.sleep(0.01)
    sys.stdout.buffer.write(bytes.fromhex({frame!r}))
    sys.stdout.buffer.flush()
"""
    child, heard = EngineProcess(("-c", script)), queue.SimpleQueue[m.Envelope[m.Event]]()
    child.listen(heard.put)
    child.shut_down()
    ended, steps = child._process.wait, iter("01")

    def wait(timeout: float | None = None) -> int:
        """Let the next step begin, then report that the time is over."""
        step = next(steps, "") if timeout is not None else ""
        if not step:
            return ended(60)
        (tmp_path / step).touch()
        assert heard.get(timeout=60).body == m.Loading("Storing the conversation", 0.5)
        raise subprocess.TimeoutExpired("engine", timeout or 0)

    monkeypatch.setattr(child._process, "wait", wait)
    assert child.join(5)
    assert child._process.returncode == 0


async def talked(folder: Path, *, unload: bool, again: bool) -> tuple[list[str], int, int]:
    """Ask twice, or once and answer `again`.

    Returns:
        The answers, and the tokens of the second prompt that were cached and that were read.
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
@pytest.mark.parametrize(("again", "least"), [(False, 60), (True, 50)])
async def test_a_stored_conversation_goes_on_without_being_read_again(
    tmp_path: Path, least: int, *, again: bool
) -> None:
    expected = await talked(tmp_path / "one", unload=False, again=again)
    found = await talked(tmp_path / "two", unload=True, again=again)
    assert found == expected
    assert found[1] > least  # an answer made again needs the question alone
    assert found[2] < 20
