"""The end that owns the engine: one thread loads, answers, switches and closes; others ask."""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from localspec.chat.session import answer_twice
from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled, LocalspecError
from localspec.process.messages import (
    Ask,
    Changed,
    ChangeDone,
    Close,
    Compact,
    Compare,
    Configure,
    Event,
    Fault,
    Kept,
    Letter,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Open,
    Perform,
    Performed,
    Regenerate,
    Request,
    Reset,
    SessionInfo,
    Speculate,
    Status,
    Stop,
    Turn,
    TurnOver,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localspec.chat.conversation import Message
    from localspec.chat.events import TurnEvent
    from localspec.chat.session import Session
    from localspec.loading.request import LoadRequest

Tell: TypeAlias = "Callable[[Event], None]"
"""Takes what is to be said while a job is done."""

Progress: TypeAlias = "Callable[[str, float | None], None]"
"""Called with a loading step and its share of 1, if that is known."""

_FIGURES_S = 0.75
_log = logging.getLogger(__name__)


def _no_jobs(_job: bytes, _tell: Tell, _cancel: Cancel) -> bytes:
    raise AssertionError("this engine takes no jobs")


@dataclass(frozen=True, slots=True)
class Loader:
    """How sessions come to be, and jobs get done; all raise `LocalspecError`.

    Attributes:
        load: makes a session; gives up with `Cancelled` once cancelled.
        check: finds out what it can while other models are still there.
        perform: does a job, encoded as its result is; gives up with `Cancelled` once cancelled.
    """

    load: Callable[[LoadRequest, Progress, Cancel], Session]
    check: Callable[[LoadRequest], None] = lambda _request: None
    perform: Callable[[bytes, Tell, Cancel], bytes] = _no_jobs


class Server:
    """Does one request after the other on a session that nobody else touches, in a thread.

    A `Transport`: tests and debuggers use it in their own process.

    Args:
        loader: makes sessions, in the thread.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._hear: Callable[[Letter[Event]], object] = lambda _letter: None
        self._session: Session | None = None
        self._loaded: LoadRequest | None = None  # also once it is freed
        self._letters: queue.SimpleQueue[Letter[Request] | None] = queue.SimpleQueue()
        self._cancels: defaultdict[int, Cancel] = defaultdict(Cancel)
        self._done = 0  # number of the latest request that is over
        self._closing = threading.Event()
        self._in_use = threading.Lock()  # of the session, by whoever looks at its figures
        # A daemon: a load that cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def listen(self, hear: Callable[[Letter[Event]], object]) -> None:
        """Begin to work, and have `hear` called with every event, from several threads."""
        self._hear = hear
        self._thread.start()

    def send(self, letter: Letter[Request]) -> None:
        """Have a request done (one thread may send); returns at once."""
        match letter.body:
            case Stop(request):
                if request > self._done:
                    self._cancels[request].set()
            case Close():
                self.shut_down()
            case Configure(settings):
                self._change(letter, lambda session: setattr(session, "settings", settings))
            case Speculate(on):
                self._change(letter, lambda session: setattr(session, "speculation", on))
            case _:
                self._letters.put(letter)

    def shut_down(self) -> None:
        """Stop whatever runs, close the session, end the thread; returns at once."""
        self._closing.set()
        for cancel in list(self._cancels.values()):
            cancel.set()
        self._letters.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; whether it has ended."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def peak_beside(self) -> int:
        """Nothing: there is no other process."""
        return 0

    # In the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and (letter := self._letters.get()) is not None:
                cancel = self._cancels[letter.request]
                if not self._closing.is_set():
                    self._do(letter, cancel)
                self._done = letter.request
                self._cancels.pop(letter.request)
        finally:
            self._free()

    def _do(self, letter: Letter[Request], cancel: Cancel) -> None:
        match letter.body:
            case Load(request, kept):
                self._load(letter, request, kept, cancel)
            case Ask(text, earlier):
                self._turn(letter, lambda session: session.turn(text, cancel), earlier)
            case Regenerate():
                self._turn(letter, lambda session: session.regenerate(cancel))
            case Compact():
                self._turn(letter, lambda session: session.compact(cancel))
            case Open(messages, settings):
                self._report(letter, lambda session: _open(session, messages, settings))
            case Reset():
                self._report(letter, lambda session: session.reset())
            case Perform(job):
                self._perform(letter, job, cancel)
            case Compare(text, before):
                self._report(letter, lambda one: self._compare(letter, one, text, before, cancel))
            case _:
                raise AssertionError(f"nobody does {letter.body}")

    def _tell(self, letter: Letter[Any], event: Event) -> None:
        """Answer `letter`."""
        self._hear(Letter(letter.request, letter.conversation, event))

    def _tell_status(self, letter: Letter[Any]) -> None:
        with self._in_use:
            if self._session is not None:
                self._tell(letter, Status(self._session.figures(), self._session.memory()))

    # Loading

    def _load(
        self, letter: Letter[Any], request: LoadRequest, kept: Kept | None, cancel: Cancel
    ) -> None:
        try:
            if self._session is not None:
                self._loader.check(request)  # all that it can, while nothing is freed yet
                self._free()
            self._take(letter, request, kept, cancel)
        except Exception as error:
            self._tell(letter, self._go_back(letter, error, kept))
        else:
            self._tell(letter, Loaded(self._info()))

    def _go_back(self, letter: Letter[Any], error: Exception, kept: Kept | None) -> LoadFailed:
        """After a failed load: have the models before again, if there were any."""
        failure = _fault(error)
        if self._session is not None:
            return LoadFailed(failure, self._info())
        if self._loaded is None:
            return LoadFailed(failure)
        cancel = self._cancels[letter.request] = Cancel()
        if self._closing.is_set():  # asked after the flag was put up: nobody sets the new one
            cancel.set()
        try:
            self._take(letter, self._loaded, kept, cancel)
        except Exception as second:
            return LoadFailed(failure, None, _fault(second))
        return LoadFailed(failure, self._info())

    def _take(
        self, letter: Letter[Any], request: LoadRequest, kept: Kept | None, cancel: Cancel
    ) -> None:
        def progress(step: str, share: float | None) -> None:
            self._tell(letter, Loading(step, share))

        session = self._session = self._loader.load(request, progress, cancel)
        self._loaded = request
        if kept is not None:
            _open(session, kept.messages, kept.settings)
            if not kept.speculation:
                session.speculation = False
        self._tell_status(letter)

    def _free(self) -> None:
        with self._in_use:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _info(self) -> SessionInfo:
        session = self._in_force()
        return SessionInfo(
            pair_name=session.pair_name,
            pair_reference=session.pair_reference,
            target_name=session.target_name,
            draft_name=session.draft_name,
            speculation_note=session.speculation_note,
            notices=tuple(session.notices),
            thinking=session.thinking,
            settings=session.settings,
            speculation=session.speculation,
        )

    def _in_force(self) -> Session:
        if self._session is None:
            raise LocalspecError("no model is loaded", "Load one first.")
        return self._session

    # Jobs, turns and changes

    def _perform(self, letter: Letter[Any], job: bytes, cancel: Cancel) -> None:
        try:
            result = self._loader.perform(job, partial(self._tell, letter), cancel)
        except Exception as error:
            self._tell(letter, Performed(None, _fault(error)))
        else:
            self._tell(letter, Performed(result))

    def _turn(
        self,
        letter: Letter[Any],
        begin: Callable[[Session], Iterator[TurnEvent]],
        earlier: tuple[Message, ...] | None = None,
    ) -> None:
        error: Fault | None = None
        known: list[Message] = []
        try:
            session = self._in_force()
            if earlier is not None:
                session.open(earlier)
            known = list(session.messages)
            with self._telling_figures(letter):
                for event in begin(session):
                    self._tell(letter, Turn(event))
        except Exception as raised:
            error = _fault(raised)
        self._tell_status(letter)
        self._tell(letter, TurnOver(error, self._joined(known)))

    def _joined(self, known: list[Message]) -> tuple[Message, ...]:
        """The messages of the conversation that are not among those of before.

        The very same ones: others may say the same.
        """
        now = self._session.messages if self._session is not None else ()
        return tuple(one for one in now if all(one is not other for other in known))

    @contextmanager
    def _telling_figures(self, letter: Letter[Any]) -> Iterator[None]:
        """Tell the figures now and then, whether or not anything else happens."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_FIGURES_S):
                self._tell_status(letter)

        thread = threading.Thread(target=tell, name="figures", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _report(self, letter: Letter[Any], job: Callable[[Session], None]) -> None:
        error: Fault | None = None
        try:
            job(self._in_force())
        except Exception as raised:
            error = _fault(raised)
        else:
            self._tell(letter, Changed(self._info()))
        self._tell_status(letter)
        self._tell(letter, ChangeDone(error))

    def _compare(
        self,
        letter: Letter[Any],
        session: Session,
        text: str,
        before: tuple[Message, ...],
        cancel: Cancel,
    ) -> None:
        for speculation, event in answer_twice(session, text, before, cancel):
            self._tell(letter, Turn(event, speculation))

    def _change(self, letter: Letter[Any], job: Callable[[Session], None]) -> None:
        """Change what may be changed in the middle of an answer."""
        with self._in_use:
            if self._session is None:
                return
            job(self._session)
            info = self._info()
        self._tell(letter, Changed(info))
        self._tell_status(letter)


def _open(session: Session, messages: tuple[Message, ...], settings: Any) -> None:
    session.open(messages)
    if settings is not None:
        session.settings = settings


def _fault(error: Exception) -> Fault | None:
    """What is told of `error`: nothing where it was asked for."""
    if isinstance(error, Cancelled):
        return None
    if not isinstance(error, LocalspecError):
        _log.info("unforeseen", exc_info=error)
    return Fault.of(error)
