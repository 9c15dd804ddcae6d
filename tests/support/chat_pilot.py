"""The chat app in a test: a scripted session, a pilot, and waits for conditions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.timer import Timer

from localspec.errors import EngineDied
from localspec.process import messages as m
from localspec.ui.chat_app import ChatApp
from localspec.ui.conversation.engine_phase import EnginePhase
from tests.support.inline import inline
from tests.support.scripted_session import Gate, ScriptedSession

_PATIENCE_S = 60.0
_LOOK_S = 0.005
_HOPS = 2000  # a bound for what would never come to rest


class Chat:
    """A running app, its session and what a user does with it."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], session: ScriptedSession) -> None:
        self.app, self.pilot, self.session = app, pilot, session

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for `condition`, and draw meanwhile."""
        end = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > end or self.app._exception is not None:
                raise AssertionError(f"never happened: {what or condition}; {self.screen()}")
            await asyncio.sleep(_LOOK_S)
            self.app.screen._on_timer_update()

    async def settle(self) -> None:
        """Wait until nothing in the event loop can go on, and draw."""
        loop: Any = asyncio.get_running_loop()
        for _ in range(_HOPS):
            if not loop._ready:
                break
            await asyncio.sleep(0)
        self.app.screen._on_timer_update()

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until each has been handled."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()
        await self.settle()

    async def send(self, text: str) -> None:
        self.app.prompt.insert(text)
        await self.press("enter")

    async def ask(self, text: str) -> None:
        turns = len(self.session.messages)
        await self.send(text)
        await self.until(lambda: len(self.session.messages) > turns and self.ready(), "an answer")
        await self.settle()

    def ready(self) -> bool:
        return self.app.turns.phase is EnginePhase.READY

    def timers(self) -> list[Timer]:
        """The running timers of the current screen and of the app."""
        screens = {self.app.screen, self.app.screen_stack[0]}
        nodes = [self.app, *screens, *(node for one in screens for node in one.walk_children())]
        return [timer for node in nodes for timer in node._timers if _runs(timer)]

    def transcript(self) -> str:
        return self.app.transcript.plain()

    def status(self) -> str:
        return str(self.app.query_one("#status").render())

    def screen(self) -> str:
        lines = self.app.screen._compositor.render_strips(self.app.screen.size)
        return "\n".join("".join(segment.text for segment in strip) for strip in lines)


@asynccontextmanager
async def chatting(
    size: tuple[int, int] = (100, 30),
    *,
    archive: Path | None = None,
    resume: str | None = None,
    typed: Set[str] = frozenset(),
    session: ScriptedSession | None = None,
    **script: Any,
) -> AsyncIterator[Chat]:
    session = session or ScriptedSession(**script)
    engine = inline(lambda progress, cancel: session)
    app = ChatApp(engine, archive=archive, resume=resume, typed=typed)
    async with app.run_test(size=size) as pilot:
        chat = Chat(app, pilot, session)
        await chat.until(lambda: app.session is not None, "loading")
        yield chat
        session.gate.open()
    app.engine.shut_down()
    assert app.engine.join(10)
    assert app.library.shut_down()
    assert session.closed


@asynccontextmanager
async def dying(
    *, archive: Path | None = None, **script: Any
) -> AsyncIterator[tuple[Chat, list[ScriptedSession], Callable[[], None]]]:
    """A chat, its sessions, and what loses the engine of the latest one."""
    sessions: list[ScriptedSession] = []

    def load(_pair: str, _progress: object, _cancel: object) -> ScriptedSession:
        sessions.append(ScriptedSession(gate=Gate(), **script))
        return sessions[-1]

    app = ChatApp(inline(load, lambda _: None), archive=archive)

    def die() -> None:
        transport: Any = app.engine._transport
        transport._hear = lambda _: None
        gone = m.Died(m.SentError.of(EngineDied("the engine is gone", "Load it again.")))
        app._events.hear(m.Envelope(0, gone))

    async with app.run_test(size=(100, 30)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.session is not None and app.library.restored, "loading")
        chat.session = sessions[0]
        yield chat, sessions, die
    app.engine.shut_down()
    assert app.engine.join(10)
    assert app.library.shut_down()


@asynccontextmanager
async def loading(
    session: ScriptedSession, *, archive: Path | None = None, resume: str | None = None
) -> AsyncIterator[tuple[Chat, threading.Event]]:
    """A chat whose models are being loaded until the event is set."""
    loaded = threading.Event()

    def load(progress: object, cancel: object) -> ScriptedSession:
        assert loaded.wait(30)
        return session

    app = ChatApp(inline(load), archive=archive, resume=resume)
    async with app.run_test() as pilot:
        yield Chat(app, pilot, session), loaded
    assert app.engine.join(10)
    assert app.library.shut_down()


def _runs(timer: Timer) -> bool:
    inside: Any = timer
    task = inside._task
    return bool(inside._active.is_set() and task is not None and not task.done())
