"""The client's end: it sends numbered requests and keeps a copy of the session's state."""

from __future__ import annotations

import os
import queue
import subprocess
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import Struct, msgpack, structs

from localspec.chat.settings import without_bias
from localspec.errors import Cancelled
from localspec.process import messages as m
from localspec.process.transport import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localspec.chat.conversation import Message
    from localspec.chat.settings import ChatSettings
    from localspec.loading.load_request import LoadRequest
    from localspec.process.server import EngineServer
    from localspec.process.transport import Hear

    Transport: TypeAlias = EngineProcess | EngineServer  # a running engine
    Connect: TypeAlias = Callable[[], Transport]

T = TypeVar("T")

_JOB = 1
_STEP_S = 0.1
_END_S = 6.0  # a little more than the process takes by itself at most


def connect() -> Transport:
    """Start an engine: a process, or with ``LOCALSPEC_ENGINE=inline`` a thread of this one."""
    if os.environ.get("LOCALSPEC_ENGINE") != "inline":
        return EngineProcess()
    from localspec.process.loader import loader  # noqa: PLC0415
    from localspec.process.server import EngineServer  # noqa: PLC0415 - needs numpy

    return EngineServer(loader)


class EngineClient:
    """An engine and one conversation with it, for one thread; no method blocks but `join`.

    Loading begins when the client is made. Methods that load again take the conversation's messages
    and the id under which it is stored, so that it goes on from its stored caches. Events arrive in
    another thread, which has to pass them to the thread that uses the client; that thread calls
    `settle`.

    Args:
        request: what to load first.
        connect: starts an engine, now and after one died.

    Attributes:
        info: the session, None while none is loaded.
        latest: the session that was loaded last, even after it is gone.
        wanted: the request that was sent last.
        loaded: the request of the pair that was loaded last.
        turn: the number of the reserved or running turn, or else of the last one.
    """

    def __init__(self, request: LoadRequest, connect: Connect = connect) -> None:
        self.info: m.SessionInfo | None = None
        self.latest: m.SessionInfo | None = None
        self.alive = True
        self._connect = connect
        self._transport = connect()
        self._hear: Hear | None = None
        self._first = self.wanted = self.loaded = request
        self._first_pair: tuple[str, str | None] | None = None  # its reference, once it is loaded
        self._number = 0
        self.turn = self._changed = 0  # numbers of requests
        self._load = self._send(m.Load(request))

    @property
    def has_bias(self) -> bool:
        """Whether a logit bias is in force, or will be once the first pair is loaded."""
        latest = self.latest
        return bool(latest.settings.sampling.logit_bias if latest else self.loaded.logit_bias)

    def listen(self, hear: Hear) -> None:
        """Call `hear` with every event from now on, in another thread."""
        self._hear = hear
        self._transport.listen(hear)

    def settle(self, envelope: m.Envelope[m.Event]) -> None:
        """Update the copy of the session's state with an event."""
        match envelope.body:
            case m.Loaded(info):
                self.info = self.latest = info
                self.loaded = self.wanted
                self._first_pair = self._first_pair or info.pair_reference
            case m.LoadFailed(_, info):
                self.info = info
            case m.SettingsChanged(info) if self.alive and envelope.request >= self._changed:
                self.info = self.latest = info
            case m.Died():
                self.alive, self.info = False, None

    # Loading

    def load(self, name: str, messages: Sequence[Message], stored_as: str = "") -> None:
        """Load the pair `name` instead of the present one; the conversation goes on.

        The draft, the template, the adapters and the logit bias given for the first pair are left
        out; what else was set since then stays.
        """
        first = replace(self._first, ctx_size=self.loaded.ctx_size, exact=self.loaded.exact)
        request = replace(first, pair=name, draft=None, lora=(), chat_template=None, logit_bias=())
        kept = self._kept(messages, stored_as)
        if kept is not None:
            kept = structs.replace(kept, settings=without_bias(kept.settings))
        self._begin_loading(request, kept)

    def load_first(self) -> None:
        """Load the pair that was loaded first, with its settings, instead of the present one."""
        pair, draft = self._first_pair or (self._first.pair, self._first.draft)
        self._begin_loading(replace(self._first, pair=pair, draft=draft), None)

    def reload(self, messages: Sequence[Message], stored_as: str = "", **changes: Any) -> None:
        """Load the present pair again with `changes` to its request; the conversation goes on."""
        kept = self._kept(messages, stored_as)
        self._begin_loading(replace(self._present(), **changes), kept)

    def perform(
        self,
        make: Callable[[LoadRequest], Struct],
        messages: Sequence[Message],
        stored_as: str = "",
    ) -> None:
        """Free the models, run the job that `make` builds of the request, then load them again."""
        request = self._present()
        kept = self._kept(messages, stored_as)
        self._begin_loading(request, kept, msgpack.encode(make(request)))

    def _present(self) -> LoadRequest:
        """The present request, with the pair's name: without, it means the pair used last."""
        if self.latest is None:
            return self.loaded
        pair, draft = self.latest.pair_reference
        return replace(self.loaded, pair=pair, draft=draft)

    def _begin_loading(
        self,
        request: LoadRequest,
        kept: m.CarriedConversation | None,
        job: bytes | None = None,
    ) -> None:
        if not self.alive:
            self._transport.join(0)
            self._transport = self._connect()
            if self._hear is not None:
                self._transport.listen(self._hear)
            self.alive = True
        self.info, self.wanted = None, request
        self._load = self._send(m.Load(request, kept, job))

    def _kept(self, messages: Sequence[Message], stored_as: str) -> m.CarriedConversation | None:
        latest = self.latest
        if latest is None:
            return None
        # Without a draft there was nothing to switch off, nor before it was loaded.
        nothing = latest.draft_name is None or bool(latest.speculation_note)
        speculation = latest.speculation or nothing
        return m.CarriedConversation(tuple(messages), latest.settings, speculation, stored_as)

    def unload(self) -> Callable[[float], bool]:
        """End the engine, which gives its memory back; `reload` starts another.

        Returns:
            A function that waits for the end. Its argument is the number of seconds, from the last
            sign that caches are being stored, after which it enforces the end.
        """
        ending = self._transport
        ending.shut_down()
        self.alive, self.info = False, None
        return ending.join

    def stop_loading(self) -> None:
        """Stop loading."""
        self._send(m.Stop(self._load))

    # Turns

    def reserve(self) -> None:
        """Reserve the next turn's number: `stop` then stops that turn, even before it begins."""
        self._number += 1
        self.turn = self._number

    def begin(self, body: m.Request) -> None:
        """Send a request under the reserved number, so that `stop` can stop it."""
        self._send(body, self.turn)

    def ask(
        self, text: str, earlier: Sequence[Message] | None = None, conversation: str = ""
    ) -> None:
        """Ask for an answer to `text`, after `reserve`.

        Args:
            text: the question.
            earlier: the messages before it, if they differ from the session's; else None.
            conversation: the id under which it is stored; empty for none.
        """
        self.begin(m.Ask(text, None if earlier is None else tuple(earlier), conversation))

    def offer(
        self, tools: Sequence[dict[str, Any]], instead: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Let the model call tools (`OfferTools`) from the next turn on."""
        self._send(m.OfferTools(tuple(tools), tuple(instead)))

    def explain_round(self, turn: int, number: int) -> int:
        """Ask what happened inside a round (`ExplainRound`); return the number of the request."""
        return self._send(m.ExplainRound(turn, number))

    def count(self, text: str) -> None:
        """Ask how many tokens `text` has."""
        self._send(m.CountTokens(text))

    def withdraw(self, request: int) -> None:
        """Stop a request."""
        self._send(m.Stop(request))

    def stop(self) -> None:
        """Stop the reserved or running turn."""
        self._send(m.Stop(self.turn))

    # Changes

    def change(self, body: m.Request) -> None:
        """Change the session between turns; `ChangeDone` follows."""
        self._send(body)

    def configure(self, settings: ChatSettings) -> None:
        """Use other settings from now on."""
        if self.info is not None:
            self.info = self.latest = structs.replace(self.info, settings=settings)
            self._changed = self._send(m.Configure(settings))

    def speculate(self, on: bool) -> None:
        """Switch drafting on or off."""
        if self.info is not None:
            self.info = self.latest = structs.replace(self.info, speculation=on)
            self._changed = self._send(m.Configure(speculation=on))

    # The end

    def shut_down(self) -> None:
        """Stop all work and end the engine; returns at once."""
        self._transport.shut_down()

    def kill(self) -> None:
        """Kill an engine's process that does not react; `Died` follows."""
        if isinstance(self._transport, EngineProcess):
            self._transport.kill()

    def join(self, timeout: float) -> bool:
        """Wait for the engine to end; return whether it has.

        Args:
            timeout: seconds, from the last sign that caches are being stored, after which a process
                is killed.
        """
        return self._transport.join(timeout)

    def _send(self, body: m.Request, number: int | None = None) -> int:
        if number is None:
            self._number += 1
            number = self._number
        self._transport.send(m.Envelope(number, body))
        return number


class JobClient:
    """An engine that does one job for one thread.

    Attributes:
        stopped: whether `stop` was called.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._transport = connect()
        # Of all queues only this one may be used in a signal handler.
        self._envelopes: queue.SimpleQueue[m.Envelope[m.Event] | None] = queue.SimpleQueue()

    def begin(self, job: Struct) -> None:
        """Start a job of `process/jobs.py`; to be called once."""
        self._transport.listen(self._envelopes.put)
        self._transport.send(m.Envelope(_JOB, m.PerformJob(msgpack.encode(job))))

    def give(self, results: Sequence[Message]) -> None:
        """Give a job the results of the tools that it has called."""
        self._transport.send(m.Envelope(_JOB + 2, m.ReturnResults(tuple(results))))

    def stop(self) -> None:
        """Stop the job; any thread or signal handler may call this."""
        self.stopped = True
        self._envelopes.put(None)

    def result(
        self,
        kind: type[T],
        hear: Callable[[m.Event], object],
        stopping: Callable[[], object] = lambda: None,
    ) -> T:
        """Wait for the job's result.

        Args:
            kind: the type of the result.
            hear: called with every event until then, in this thread.
            stopping: called when the job is asked to stop, in this thread too.

        Raises:
            LocalspecError: the job failed; `EngineDied` if the engine's process ended.
            Cancelled: the job was stopped before it had a result.
        """
        while True:
            envelope = self._next()
            if envelope is None:
                self._transport.send(m.Envelope(_JOB + 1, m.Stop(_JOB)))
                stopping()
                continue
            match envelope.body:
                case m.JobDone(result) if result is not None:
                    return msgpack.decode(result, type=kind)
                case m.JobDone(_, error):
                    raise Cancelled if error is None else error.exception()
                case m.Died(error):
                    raise error.exception()
                case event:
                    hear(event)

    def _next(self) -> m.Envelope[m.Event] | None:
        while True:  # in steps: Windows does not interrupt an endless wait
            with suppress(queue.Empty):
                return self._envelopes.get(timeout=_STEP_S)

    def peak_memory_bytes(self, engines: int) -> int:
        """The peak memory of all processes in bytes, if the engine's took `engines` bytes."""
        if not isinstance(self._transport, EngineProcess):
            return engines
        from localspec import machine  # noqa: PLC0415 - psutil can wait

        return engines + machine.peak_resident()

    def close(self) -> None:
        """End the engine and give up its work."""
        self._transport.shut_down()
        with suppress(subprocess.TimeoutExpired):  # a process that nothing can end, as yet
            self._transport.join(_END_S)
