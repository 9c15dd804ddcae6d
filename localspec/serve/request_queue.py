"""Who is next: a bounded queue with fair turns before one engine, which is revived if it dies."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TypeAlias

from localspec.chat.events import TurnEnd, TurnEvent
from localspec.chat.settings import AnswerRequest
from localspec.errors import Cancelled, EngineDied
from localspec.process import messages as m
from localspec.process.engine_client import EngineClient
from localspec.serve.counters import EndpointCounters
from localspec.serve.refusals import Refusal, refusal_of, unavailable

Answers: TypeAlias = TurnEvent | Refusal

_PATIENCE_S = 30
_DEATHS = 3  # in a row, without an answer in between, before the next start has to wait
_USUAL_S = 5.0
_STOP_S = 20.0  # much longer than any decode takes to notice


class QueuedRequest:
    """One request and what comes of it.

    Args:
        asker: who asks; askers take turns.
        asked: what the engine is asked for.

    Attributes:
        said: events; the last one is a `TurnEnd` or a `Refusal`.
        ended: whether there has been a `TurnEnd`.
    """

    def __init__(self, asker: str, asked: AnswerRequest) -> None:
        self.asker = asker
        self.asked = asked
        self.said: asyncio.Queue[Answers] = asyncio.Queue()
        self.ended = False


class RequestQueue:
    """Gives the engine to one job after the other, in turns between their askers.

    All of it happens in the thread of the event loop in which it is made.

    Args:
        engine: has begun to load.
        counters: counts what happens.
        most: jobs that may wait.
        limit_s: seconds of the engine that one job may take.

    Attributes:
        engine: the client.
        ready: done once the models are loaded; fails as the first load does.
    """

    def __init__(
        self, engine: EngineClient, counters: EndpointCounters, *, most: int, limit_s: float
    ) -> None:
        self.engine = engine
        self._counters = counters
        self._most = most
        self._limit_s = limit_s
        self._waiting: OrderedDict[str, deque[QueuedRequest]] = OrderedDict()
        self._running: QueuedRequest | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._usual_s = _USUAL_S
        self._deaths = 0
        self._resting = False
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        engine.listen(self._from_thread)

    @property
    def loaded(self) -> bool:
        """Whether there are models to ask."""
        return self.engine.info is not None

    def submit(self, job: QueuedRequest) -> None:
        """Put a job in the queue.

        Raises:
            Refusal: the queue is full, or the engine does not live long enough.
        """
        if self._resting:
            raise unavailable("there is no engine; it is started again soon", _PATIENCE_S)
        if self._counters.waiting >= self._most and (self._running is not None or not self.loaded):
            self._make_room(job.asker)
        self._waiting.setdefault(job.asker, deque()).append(job)
        self._counters.waiting += 1
        self._next()

    def _make_room(self, asker: str) -> None:
        """Have the longest line give up its latest job for somebody who waits for nothing yet.

        Raises:
            Refusal: nobody has to.
        """
        wait = max(1, min(60, round(self._usual_s * (1 + self._counters.waiting))))
        full = unavailable(f"{self._counters.waiting} requests are waiting already", wait)
        longest = max(self._waiting.values(), key=len, default=deque())
        if asker in self._waiting or len(longest) < 2:
            raise full
        latest = longest[-1]
        self.withdraw(latest)
        latest.said.put_nowait(full)

    def withdraw(self, job: QueuedRequest) -> None:
        """Nobody wants a job any more: it is taken out of the queue, or stopped."""
        if job is self._running:
            if not job.ended:
                self.engine.stop()
                self._loop.call_later(_STOP_S, self._end_stuck, job)
        elif job in (line := self._waiting.get(job.asker, deque())):
            line.remove(job)
            self._counters.waiting -= 1
            if not line:
                del self._waiting[job.asker]

    def _end_stuck(self, job: QueuedRequest) -> None:
        """End an engine that does not stop (in a grammar without end, a driver); it is revived."""
        if job is self._running:
            self.engine.kill()

    def _next(self) -> None:
        """Begin the next job, if the engine is free: the first one of whose turn it is."""
        if self._running is not None or not self.loaded or not self._waiting:
            return
        asker, line = self._waiting.popitem(last=False)
        job = self._running = line.popleft()
        if line:
            self._waiting[asker] = line  # behind all others
        self._counters.waiting -= 1
        self._counters.running = 1
        self._began = self._loop.time()
        self._limit = self._loop.call_later(self._limit_s, self._late, job)
        self.engine.reserve()
        self.engine.begin(m.Complete(job.asked))

    def _late(self, job: QueuedRequest) -> None:
        job.said.put_nowait(
            Refusal(
                504,
                f"the answer took longer than {self._limit_s:g} seconds",
                kind="server_error",
                code="timeout",
            )
        )
        self.withdraw(job)

    def _over(self, last: Refusal | None = None) -> None:
        """The running job has ended, with `last` where it failed."""
        job, self._running = self._running, None
        if job is None:
            return
        if self._limit is not None:
            self._limit.cancel()
        self._counters.running = 0
        self._usual_s += 0.2 * (self._loop.time() - self._began - self._usual_s)
        if last is not None:
            job.said.put_nowait(last)
        self._next()

    # What the engine says

    def _from_thread(self, envelope: m.Envelope[m.Event]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._hear, envelope)

    def _hear(self, envelope: m.Envelope[m.Event]) -> None:
        self.engine.settle(envelope)
        match envelope.body:
            case m.TurnReported(event) if self._running is not None:
                if isinstance(event, TurnEnd):
                    self._running.ended = True
                    self._counters.answered(event.stats)
                self._running.said.put_nowait(event)
            case m.TurnOver(error):
                self._deaths = 0
                self._over(None if error is None else refusal_of(error.exception()))
            case m.EngineStatus(figures, memory):
                self._counters.figures, self._counters.memory = figures, memory
            case m.Loaded():
                if not self.ready.done():
                    self.ready.set_result(None)
                self._next()
            case m.LoadFailed(error):
                self._lost(error.exception() if error else Cancelled())
            case m.Died(error):
                self._lost(error.exception())

    def _lost(self, error: Exception) -> None:
        """There is no engine: whoever was being answered is told why, and it is started again."""
        if not self.ready.done():
            self.ready.set_exception(error)
            return
        # Of an engine that cannot be loaded the reason may name this machine's files.
        why = error.message if isinstance(error, EngineDied) else "the models cannot be loaded"
        self._over(unavailable(f"{why}; it is being started again", 1))
        self._deaths += 1
        if self._deaths < _DEATHS:
            self._revive()
        else:
            self._rest(f"the engine keeps dying: {why}")

    def _rest(self, why: str) -> None:
        """Send everybody away, and try again in a while."""
        self._resting = True
        for job in [job for line in self._waiting.values() for job in line]:
            self.withdraw(job)
            job.said.put_nowait(unavailable(why, _PATIENCE_S))
        self._loop.call_later(_PATIENCE_S, self._revive)

    def _revive(self) -> None:
        self._resting = False
        try:
            self.engine.reload(())
        except OSError as error:  # no memory for a process, or too many of them
            self._rest(f"the engine cannot be started ({error.strerror})")
        else:
            self._counters.restarted()
