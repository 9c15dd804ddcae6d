"""A bounded queue with fair turns for one engine, which is restarted when it dies."""

from __future__ import annotations

import asyncio
import subprocess
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TypeAlias

from localspec.chat.events import Noticed, TurnEnd, TurnEvent
from localspec.chat.settings import AnswerRequest
from localspec.errors import Cancelled, EngineDied
from localspec.process import messages as m
from localspec.process.engine_client import EngineClient
from localspec.serve.counters import EndpointCounters
from localspec.serve.refusals import Refusal, refusal_of, unavailable

Answers: TypeAlias = TurnEvent | Refusal

_COUNTS = ""  # the line of requests for a prompt's length, which take little time
_PATIENCE_S = 30
_DEATHS = 3  # deaths in a row without an answer, after which the next start waits
_USUAL_S = 5.0
_STOP_S = 20.0  # much longer than a decode needs to notice
_KEPT_S = 10.0  # a turn, while the request is made; much longer than that needs


class QueuedRequest:
    """A request in the queue, and its events.

    Args:
        asker: the client; clients take turns.
        asked: the request to the engine; None until its pair was loaded once.
        prompt_field: where the client's request has what the prompt is made of.
        pair: the name of the pair that answers; empty for the one that is loaded.

    Attributes:
        said: the events; the last one is a `TurnEnd` or a `Refusal`.
        ended: whether there has been a `TurnEnd`.
        sufficed: its client wanted no more, so that it was stopped.
    """

    def __init__(
        self, asker: str, asked: AnswerRequest | None, prompt_field: str = "prompt", pair: str = ""
    ) -> None:
        self.asker = asker
        self.asked = asked
        self.prompt_field = prompt_field
        self.pair = pair
        self.said: asyncio.Queue[Answers] = asyncio.Queue()
        self.ended = False
        self.sufficed = False

    @property
    def line(self) -> str:
        """The line that it waits in: its client's, or that of all counts."""
        counts = self.asked is not None and self.asked.count_only
        return _COUNTS if counts else self.asker


class RequestQueue:
    """Gives the engine to one job at a time; clients take turns, and counts come first.

    An agent counts dozens of parts at once, so that counts may always wait.

    All methods run in the thread of the event loop in which the queue was made.

    Args:
        engine: has begun to load.
        counters: count what happens.
        most: how many jobs may wait.
        limit_s: seconds of the engine's time that one job may take.
        idle_s: seconds without a job after which the engine is ended, until the next one; 0 for
            never.

    Attributes:
        ready: done once the models are loaded; fails if the first load does.
        known: the pairs that were loaded so far, by name, the first one first.
    """

    def __init__(
        self,
        engine: EngineClient,
        counters: EndpointCounters,
        *,
        most: int,
        limit_s: float,
        idle_s: float = 0.0,
    ) -> None:
        self.engine = engine
        self._counters = counters
        self._most = most
        self._limit_s = limit_s
        self._idle_s = idle_s
        self._idle: asyncio.TimerHandle | None = None
        self._unloaded: asyncio.Future[bool] | None = None  # done once an idle engine has ended
        self.known: dict[str, m.SessionInfo] = {}
        self._switching = ""  # the name of the pair that is being loaded in place of another
        self._waiting: OrderedDict[str, deque[QueuedRequest]] = OrderedDict()
        self._running: QueuedRequest | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._usual_s = _USUAL_S
        self._ahead = 0  # how many counts come before the next answer
        self._deaths = 0
        self._resting = False
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        engine.listen(self._from_thread)

    @property
    def loaded(self) -> bool:
        """Whether models are loaded."""
        return self.engine.info is not None

    @property
    def asleep(self) -> bool:
        """Whether the engine was ended because there was nothing to do."""
        return self._counters.asleep

    def submit(self, job: QueuedRequest) -> None:
        """Put a job in the queue.

        Raises:
            Refusal: the queue is full, or the engine keeps dying.
        """
        if job is self._running:  # it has kept its turn
            self._begin(job)
            return
        if self._resting:
            raise unavailable("there is no engine; it is started again soon", _PATIENCE_S)
        busy = self._running is not None or not (self.loaded or self.asleep)
        if busy and job.line != _COUNTS and sum(map(len, self._clients())) >= self._most:
            self._make_room(job.asker)
        self._waiting.setdefault(job.line, deque()).append(job)
        self._counters.waiting += 1
        if self.asleep:
            self._wake()
        self._next()

    async def with_pair(self, job: QueuedRequest) -> m.SessionInfo:
        """Wait until the pair of a job was loaded once.

        If it had to be loaded, the job keeps its turn for a while, so that no other job has another
        pair loaded before this one is submitted with its request, or withdrawn.

        Raises:
            Refusal: the queue is full, or the pair cannot be loaded.
        """
        if job.pair not in self.known:
            self.submit(job)
            said = await job.said.get()
            if isinstance(said, Refusal):
                raise said
        return self.known[job.pair]

    def _clients(self) -> list[deque[QueuedRequest]]:
        """The lines of the clients."""
        return [line for of, line in self._waiting.items() if of != _COUNTS]

    @property
    def _queued(self) -> list[QueuedRequest]:
        """All jobs that wait now."""
        return [job for line in self._waiting.values() for job in line]

    @property
    def _first(self) -> str:
        """The line whose turn it is; there is one.

        Counts that waited when the last answer ended come before the next one, unless their pair
        has to be loaded first.
        """
        counts, others = self._waiting.get(_COUNTS), (of for of in self._waiting if of != _COUNTS)
        ready = counts and self._ahead > 0 and not self._lacks(counts[0].pair)
        return _COUNTS if ready else next(others, _COUNTS)

    def _lacks(self, pair: str) -> bool:
        """Whether another pair is loaded; an empty name is that of the one that is loaded."""
        loaded = self.engine.info
        return bool(pair) and loaded is not None and loaded.pair_name != pair

    def _make_room(self, asker: str) -> None:
        """Drop the latest job of the client with the most jobs, for a client that has none waiting.

        Raises:
            Refusal: the client has a job waiting, or no other client has two.
        """
        lines = self._clients()
        waiting = sum(map(len, lines))
        wait = max(1, min(60, round(self._usual_s * (1 + waiting))))
        full = unavailable(f"{waiting} requests are waiting already", wait)
        longest = max(lines, key=len, default=deque())
        if asker in self._waiting or len(longest) < 2:
            raise full
        self._refuse(longest[-1], full)

    def withdraw(self, job: QueuedRequest) -> None:
        """Remove a job from the queue, or stop it: its client has gone, or it took too long."""
        if job is self._running:
            if job.asked is None:
                self._over()
            elif not job.ended:
                self.engine.stop()
                self._loop.call_later(_STOP_S, self._end_stuck, job)
        elif job in (line := self._waiting.get(job.line, deque())):
            line.remove(job)
            self._counters.waiting -= 1
            if not line:
                del self._waiting[job.line]

    def _refuse(self, job: QueuedRequest, refusal: Refusal) -> None:
        """End a job with `refusal`."""
        self.withdraw(job)
        job.said.put_nowait(refusal)

    def _end_stuck(self, job: QueuedRequest) -> None:
        """Kill an engine that does not stop (an endless grammar, a driver); it restarts then."""
        if job is self._running:
            self.engine.kill()

    def _next(self) -> None:
        """If the engine is free, begin the first job of the client whose turn it is."""
        if self._idle is not None:
            self._idle.cancel()
        if self._running is not None or not self.loaded:
            return
        if not self._waiting:
            self._idle = self._loop.call_later(self._idle_s, self._sleep) if self._idle_s else None
            return
        first = self._first
        line = self._waiting[first]
        pair = line[0].pair
        if self._lacks(pair):
            self._load(pair)
            return
        del self._waiting[first]
        job = line.popleft()
        if line:
            self._waiting[first] = line  # moves to the end
        self._counters.waiting -= 1
        self._begin(job)

    def _begin(self, job: QueuedRequest) -> None:
        """Give a job its turn, which it only keeps while it has no request to the engine."""
        self._running = job
        self._counters.running = 1
        self._began = self._loop.time()
        if self._limit is not None:
            self._limit.cancel()
        if job.asked is None:
            job.said.put_nowait(Noticed(f"{job.pair} is loaded"))
            self._limit = self._loop.call_later(_KEPT_S, self._over)
            return
        self._ahead -= 1
        self._limit = self._loop.call_later(self._limit_s, self._late, job)
        self.engine.reserve()
        self.engine.begin(m.Complete(job.asked))

    def _load(self, pair: str) -> None:
        """Load the pair of this name; empty for the one that was loaded last."""
        latest = self.engine.latest
        self._switching = "" if latest is not None and latest.pair_name == pair else pair
        if not self._switching:
            self.engine.reload(())
        elif pair == next(iter(self.known), ""):
            self.engine.load_first()
        else:
            self.engine.load(pair, ())

    def _not_switched(self) -> None:
        """Refuse the jobs of the pair that was being loaded and cannot be."""
        pair, self._switching = self._switching, ""
        for job in self._queued:
            if job.pair == pair:
                self._refuse(job, unavailable(f"the pair {pair} cannot be loaded", _PATIENCE_S))

    def _sleep(self) -> None:
        """End the engine, which has nothing to do."""
        self._counters.asleep = True
        self._unloaded = self._loop.run_in_executor(None, self.engine.unload(), _STOP_S)

    def _wake(self) -> None:
        """Start an engine, but only once the one before has ended: to wait here would block."""
        self._counters.asleep = False
        if self._unloaded is None or self._unloaded.done():
            self._start()
        else:
            self._unloaded.add_done_callback(lambda _: self._start())

    def _late(self, job: QueuedRequest) -> None:
        said = f"the answer took longer than {self._limit_s:g} seconds"
        self._refuse(job, Refusal(504, said, kind="server_error", code="timeout"))

    def _over(self, last: Refusal | None = None) -> None:
        """The running job has ended; `last` is its error."""
        job, self._running = self._running, None
        if job is None:
            return
        if self._limit is not None:
            self._limit.cancel()
        self._counters.running = 0
        if job.asked is not None and job.line != _COUNTS:  # it was an answer
            self._usual_s += 0.2 * (self._loop.time() - self._began - self._usual_s)
            self._ahead = len(self._waiting.get(_COUNTS, ()))
        if last is not None:
            job.said.put_nowait(last)
        self._next()

    # Events of the engine

    def _from_thread(self, envelope: m.Envelope[m.Event]) -> None:
        with suppress(RuntimeError):  # the loop is closed
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
            case m.Loaded(info):
                self.known[info.pair_name], self._switching = info, ""
                if not self.ready.done():
                    self.ready.set_result(None)
                self._next()
            case m.LoadFailed(_, info) if info is not None and self._switching:
                self._not_switched()
                self._next()
            case m.LoadFailed(error):
                self._lost(error.exception() if error else Cancelled())
            case m.Died(error):
                self._lost(error.exception())

    def _lost(self, error: Exception) -> None:
        """The engine is gone: tell the running job why, and start another engine."""
        if self._idle is not None:
            self._idle.cancel()
        if not self.ready.done():
            self.ready.set_exception(error)
            return
        if self._switching:  # the new pair's fault: the former one is loaded again
            self._not_switched()
            self._revive()
            return
        # Clients must not see why a load failed: the reason may name this machine's files.
        why = error.message if isinstance(error, EngineDied) else "the models cannot be loaded"
        self._over(unavailable(f"{why}; it is being started again", 1))
        self._deaths += 1
        if self._deaths < _DEATHS:
            self._revive()
        else:
            self._rest(f"the engine keeps dying: {why}")

    def _rest(self, why: str) -> None:
        """Refuse all waiting jobs, and start the engine again after a while."""
        self._resting = True
        for job in self._queued:
            self._refuse(job, unavailable(why, _PATIENCE_S))
        self._loop.call_later(_PATIENCE_S, self._revive)

    def _revive(self) -> None:
        self._resting = False
        if self._start():
            self._counters.restarted()

    def _start(self) -> bool:
        """Start an engine with the pair that is asked for next; returns whether it was started.

        If it cannot be started, this is tried again later.
        """
        self._counters.asleep = False
        try:
            self._load(self._waiting[self._first][0].pair if self._waiting else "")
        except OSError as error:  # no memory for a process, or too many processes
            why = error.strerror
        except subprocess.TimeoutExpired:
            why = "the one before it has not ended"
        else:
            return True
        self._rest(f"the engine cannot be started ({why})")
        return False
