"""The engine's end: one thread loads models, answers requests, changes settings and closes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msgspec import convert, structs

from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled, LocalspecError
from localspec.process import messages as m
from localspec.process.inspected_rounds import InspectedRounds
from localspec.process.late_drafts import LateDrafts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localspec.chat.conversation import Message
    from localspec.chat.events import TurnEvent
    from localspec.chat.session.completions import Completions
    from localspec.chat.session.session import Session
    from localspec.chat.settings import ChatSettings
    from localspec.loading.load_request import LoadRequest
    from localspec.loading.planning import CheckedRequest
    from localspec.process.loader import Loader
    from localspec.process.messages import SendEvent

THREAD = "engine"
_FIGURES_S = 0.75
_STEP_S = 0.05
_IDLE_S = 2.0  # without a request, after which the session rests
_log = logging.getLogger(__name__)


class EngineServer:
    """Does one request after the other in a thread, which alone uses the session.

    It has the methods of `EngineProcess`: tests and debuggers can run it in their own process.
    `loader` is called in the thread, when the first request needs it.
    """

    def __init__(self, loader: Callable[[], Loader]) -> None:
        self._make_loader = loader
        self._hear: Callable[[m.Envelope[m.Event]], object] = lambda _envelope: None
        self._session: Session | None = None
        self._completions: Completions | None = None  # of the session, made at the first `Complete`
        self._loaded: LoadRequest | None = None  # even after it was freed
        self._envelopes: queue.SimpleQueue[m.Envelope[m.Request] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Message, ...]] = queue.SimpleQueue()
        self._cancels: dict[int, Cancel] = {}  # of the running request and those that wait
        self._stopped: set[int] = set()  # stopped without a flag: not here yet, or over
        self._rounds = InspectedRounds()
        self._resting = Cancel()  # stops what is done between requests
        self._late_drafts = LateDrafts(
            self._drafts_joined, self._envelopes.empty, self._any_stopped
        )
        self._received = 0  # number of the latest request
        self._closing = threading.Event()
        self._storing = threading.Event()  # a sign that caches are being stored
        self._in_use = threading.Lock()  # held by threads that read the session's figures
        # A daemon: a load that cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    def listen(self, hear: Callable[[m.Envelope[m.Event]], object]) -> None:
        """Start the thread; `hear` is called with every event, from several threads."""
        self._hear = hear
        self._thread.start()

    def send(self, envelope: m.Envelope[m.Request]) -> None:
        """Queue a request; returns at once. Only one thread may call this."""
        self._received = max(self._received, envelope.request)
        match envelope.body:
            case m.Stop(request):
                if (cancel := self._cancels.get(request)) is not None:
                    cancel.set()
                    self._late_drafts.stop()
                else:
                    self._stopped.add(request)
            case m.Configure(settings, on):
                self._change(self._teller(envelope), settings, on)
            case m.CountTokens(text):
                self._count(self._teller(envelope), text)
            case m.ReturnResults(results):
                self._results.put(results)
            case m.ExplainRound(turn, 0):
                with self._in_use:
                    asked = envelope.request, turn
                    self._rounds.watch(*asked, self._session, self._teller(envelope))
                self._queue(envelope)
            case _:
                self._queue(envelope)
                if isinstance(envelope.body, m.Load | m.PerformJob):
                    self._late_drafts.stop()

    def _queue(self, envelope: m.Envelope[m.Request]) -> None:
        cancel = self._cancels[envelope.request] = Cancel()
        if envelope.request in self._stopped:
            self._stopped.remove(envelope.request)
            cancel.set()
            self._late_drafts.stop()
        self._envelopes.put(envelope)
        self._resting.set()

    def shut_down(self) -> None:
        """Stop all work, close the session and end the thread; returns at once."""
        self._closing.set()
        for cancel in list(self._cancels.values()):
            cancel.set()
        self._late_drafts.stop()
        self._envelopes.put(None)
        self._resting.set()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; return whether it has.

        Args:
            timeout: seconds, from the last sign that caches are being stored.
        """
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout)
            while self._thread.is_alive() and self._storing.is_set():
                self._storing.clear()
                self._thread.join(timeout)
        return not self._thread.is_alive()

    # In the thread

    @cached_property
    def _loader(self) -> Loader:
        return self._make_loader()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and (envelope := self._next()) is not None:
                cancel = self._cancels[envelope.request]
                if not self._closing.is_set():
                    self._do(envelope, cancel)
                self._cancels.pop(envelope.request)
        finally:
            self._free()

    def _next(self) -> m.Envelope[m.Request] | None:
        """Wait for the next request; after `_IDLE_S` the session does its idle work once."""
        if self._session is not None and self._session.awaits_drafts:
            self._resting = Cancel()
            self._late_drafts.load(self._session, self._resting)
        try:
            return self._envelopes.get(timeout=_IDLE_S)
        except queue.Empty:
            self._resting = Cancel()
        if self._session is not None and self._envelopes.empty():
            try:
                self._session.rest(self._resting)
            except Cancelled:
                pass  # a request has come
            except Exception as error:
                _log.info("while resting", exc_info=error)
        return self._envelopes.get()

    def _drafts_joined(self) -> None:
        """Tell of draft models that were loaded after the target."""

        def tell(event: m.Event) -> None:
            self._hear(m.Envelope(self._received, event))

        with self._in_use:  # or a change of settings could be told before it
            tell(m.SettingsChanged(self._info()))
        self._tell_status(tell)

    def _any_stopped(self) -> bool:
        """Whether a request that waits was stopped, or the server."""
        waiting = list(self._cancels.values())
        return self._closing.is_set() or any(each.is_set() for each in waiting)

    def _do(self, envelope: m.Envelope[m.Request], cancel: Cancel) -> None:
        tell = self._teller(envelope)
        match envelope.body:
            case m.Load() as load:
                self._load(envelope.request, tell, load, cancel)
            case m.Ask() | m.GoOn() | m.Regenerate() as asked:
                earlier = asked.earlier if isinstance(asked, m.Ask) else None
                self._late_drafts.before_answer(self._session, cancel)
                self._answer(envelope, partial(_begin, asked=asked, cancel=cancel), earlier)
            case m.Complete(asked):
                drafters = asked.drafters or ()
                self._late_drafts.before_answer(self._session, cancel, asked.settings, drafters)
                self._turn(tell, lambda one: self._completions_of(one).answer(asked, cancel))
            case m.OfferTools():
                self._offer(tell, envelope.body)
            case m.Compact():
                self._turn(tell, lambda session: session.compact(cancel))
            case m.OpenConversation(messages, settings, conversation):
                self._report(tell, lambda one: _open(one, messages, settings, conversation))
            case m.ExplainRound(turn, number):
                self._explain(envelope.request, tell, turn, number, cancel)
            case m.PerformJob(job):
                self._perform(tell, job, cancel)
            case m.CompareAnswers(text, before):
                self._report(tell, lambda one: _compare(tell, one, text, before, cancel))
            case _:
                raise AssertionError(f"unknown request {envelope.body}")

    def _teller(self, envelope: m.Envelope[m.Request]) -> SendEvent:
        """Make the function that sends events in answer to `envelope`."""

        def tell(event: m.Event) -> None:
            self._hear(m.Envelope(envelope.request, event))

        return tell

    def _tell_status(self, tell: SendEvent) -> None:
        with self._in_use:
            if self._session is not None:
                tell(m.EngineStatus(self._session.figures(), self._session.memory()))

    # Loading

    def _load(self, number: int, tell: SendEvent, load: m.Load, cancel: Cancel) -> None:
        request, kept = load.request, load.kept
        back = kept  # what the models before keep if they come back
        checked: CheckedRequest | None = None
        try:
            if self._session is not None:
                checked = self._loader.check(request)  # before anything is freed
                if kept is not None:  # for another pair it has no logit bias
                    back = structs.replace(kept, settings=self._session.settings)
                self._free()
            if load.job is not None:
                self._perform(tell, load.job, cancel)
                cancel = self._new_cancel(number)
                checked = None  # a job takes long: files may have changed
            info = self._take(tell, request, kept, cancel, checked)
        except Exception as error:
            tell(self._go_back(number, tell, error, back))
        else:
            tell(m.Loaded(info))

    def _go_back(
        self, number: int, tell: SendEvent, error: Exception, kept: m.CarriedConversation | None
    ) -> m.LoadFailed:
        """After a failed load, load the previous models again, if there were any."""
        failure = _fault(error)
        if self._session is not None:
            return m.LoadFailed(failure, self._info())
        if self._loaded is None:
            return m.LoadFailed(failure)
        cancel = self._new_cancel(number)
        try:
            return m.LoadFailed(failure, self._take(tell, self._loaded, kept, cancel))
        except Exception as second:
            return m.LoadFailed(failure, None, _fault(second))

    def _new_cancel(self, number: int) -> Cancel:
        """A new flag for work that goes on although its request was stopped."""
        cancel = self._cancels[number] = Cancel()
        if self._closing.is_set():  # `shut_down` may have missed the new flag
            cancel.set()
        return cancel

    def _take(
        self,
        tell: SendEvent,
        request: LoadRequest,
        kept: m.CarriedConversation | None,
        cancel: Cancel,
        checked: CheckedRequest | None = None,
    ) -> m.SessionInfo:
        session = self._session = self._loader.load(
            checked or request, lambda *at: tell(m.Loading(*at)), cancel
        )
        try:
            if kept is not None:
                settings = session.advice.settled(kept.settings)
                _open(session, kept.messages, settings, kept.stored_as)
                if not kept.speculation:
                    session.speculation = False
            info = self._info()
        except Exception:
            self._free()  # or it would count as the session that was there before
            raise
        self._loaded, self._late_drafts.answered = request, False
        self._tell_status(tell)
        return info

    def _free(self) -> None:
        with self._in_use:
            session, self._session = self._session, None
            completions, self._completions = self._completions, None
            self._rounds.clear()
        if completions is not None:
            completions.close()
        if session is not None:
            session.close(self._stored)

    def _stored(self, share: float) -> None:
        """Tell what share of the caches is stored: a sign for those who wait for the end."""
        self._storing.set()
        self._hear(m.Envelope(self._received, m.Loading("Storing the conversation", share)))

    def _info(self) -> m.SessionInfo:
        return convert(self._in_force(), m.SessionInfo, from_attributes=True)

    def _in_force(self) -> Session:
        if self._session is None:
            raise LocalspecError("no model is loaded", "Load one first.")
        return self._session

    # Jobs, turns and changes

    def _perform(self, tell: SendEvent, job: bytes, cancel: Cancel) -> None:
        try:
            result = self._loader.perform(job, tell, cancel, lambda: self._returned(cancel))
        except Exception as error:
            tell(m.JobDone(None, _fault(error)))
        else:
            tell(m.JobDone(result))

    def _returned(self, cancel: Cancel) -> tuple[Message, ...]:
        """Wait for the results of the tools that a job has called."""
        while not cancel.is_set():
            with suppress(queue.Empty):
                return self._results.get(timeout=_STEP_S)
        raise Cancelled

    def _turn(
        self,
        tell: SendEvent,
        begin: Callable[[Session], Iterator[TurnEvent]],
        earlier: tuple[Message, ...] | None = None,
    ) -> None:
        known: list[Message] = []

        def turn(session: Session) -> None:
            if earlier is not None:
                session.open(earlier)
            known[:] = session.messages
            with self._telling_figures(tell):
                for event in begin(session):
                    tell(m.TurnReported(event))

        error = self._attempt(turn)
        self._late_drafts.answered = True
        self._tell_status(tell)
        tell(m.TurnOver(error, self._joined(known)))

    def _answer(
        self,
        envelope: m.Envelope[m.Request],
        begin: Callable[[Session], Iterator[TurnEvent]],
        earlier: tuple[Message, ...] | None = None,
    ) -> None:
        """Write an answer whose rounds can be inspected, now and later."""
        with self._rounds.answering(envelope.request):
            self._turn(self._teller(envelope), begin, earlier)
        self._rounds.keep(envelope.request, self._session)

    def _explain(
        self, request: int, tell: SendEvent, turn: int, number: int, cancel: Cancel
    ) -> None:
        """Explain a round of a finished answer, unless that was done while the answer ran."""
        if self._rounds.settled(request):
            return
        error = self._attempt(lambda one: self._rounds.explain(turn, number, one, tell, cancel))
        if error is not None or cancel.is_set():
            tell(m.RoundExplained(None, error))

    def _offer(self, tell: SendEvent, asked: m.OfferTools) -> None:
        costs = []
        error = self._attempt(lambda one: costs.append(one.offer(asked.tools, asked.instead)))
        tell(m.ToolsOffered(costs[0] if costs else None, error))

    def _completions_of(self, session: Session) -> Completions:
        from localspec.chat.session.completions import Completions  # noqa: PLC0415 - only `serve` needs it

        self._completions = self._completions or Completions(session)
        return self._completions

    def _joined(self, known: list[Message]) -> tuple[Message, ...]:
        """The messages of the conversation that were not in `known`, compared by identity."""
        now = self._session.messages if self._session is not None else ()
        return tuple(one for one in now if all(one is not other for other in known))

    @contextmanager
    def _telling_figures(self, tell: SendEvent) -> Iterator[None]:
        """Send the figures every `_FIGURES_S`, whether or not anything else happens."""
        over = threading.Event()

        def now_and_then() -> None:
            while not over.wait(_FIGURES_S):
                self._tell_status(tell)

        thread = threading.Thread(target=now_and_then, name="figures", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _report(self, tell: SendEvent, job: Callable[[Session], None]) -> None:
        error = self._attempt(job)
        if error is None and self._session is not None:
            tell(m.SettingsChanged(self._info()))
        self._tell_status(tell)
        tell(m.ChangeDone(error))

    def _attempt(self, job: Callable[[Session], None]) -> m.SentError | None:
        """Run `job` on the session; returns why it failed, or None."""
        try:
            job(self._in_force())
        except Exception as error:
            return _fault(error)
        return None

    def _count(self, tell: SendEvent, text: str) -> None:
        with self._in_use:
            if self._session is not None:
                tell(m.TokensCounted(self._session.count(text)))

    def _change(
        self, tell: SendEvent, settings: ChatSettings | None, speculation: bool | None
    ) -> None:
        """Change what can change in the middle of an answer."""
        with self._in_use:
            if self._session is None:
                return
            if settings is not None:
                self._session.settings = settings
            if speculation is not None:
                self._session.speculation = speculation
            info = self._info()
        tell(m.SettingsChanged(info))
        self._tell_status(tell)


def _compare(
    tell: SendEvent, session: Session, text: str, before: tuple[Message, ...], cancel: Cancel
) -> None:
    from localspec.chat.session.side_by_side import answer_twice  # noqa: PLC0415 - after the pipes are safe

    for speculation, event in answer_twice(session, text, before, cancel):
        tell(m.TurnReported(event, speculation))


def _begin(
    session: Session, asked: m.Ask | m.GoOn | m.Regenerate, cancel: Cancel
) -> Iterator[TurnEvent]:
    """Begin an answer of the conversation."""
    match asked:
        case m.Ask(text, _, conversation):
            session.enter(conversation)
            return session.turn(text, cancel)
        case m.GoOn(results):
            return session.go_on(results, cancel)
    return session.regenerate(cancel)


def _open(
    session: Session, messages: tuple[Message, ...], settings: Any, conversation: str
) -> None:
    session.enter(conversation)
    session.open(messages)
    if settings is not None:
        session.settings = settings


def _fault(error: Exception) -> m.SentError | None:
    """Describe `error`; None for a cancellation."""
    if isinstance(error, Cancelled):
        return None
    if not isinstance(error, LocalspecError):
        _log.info("unexpected", exc_info=error)
    return m.SentError.of(error)
