"""What is said between the engine's process and its user's: plain data, nothing else.

A request goes one way, events come the other, each in a `Letter` that names both the request and
the conversation it belongs to. A `Wire` carries them.
"""

from __future__ import annotations

import builtins
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from localspec import errors
from localspec.chat.advice import Advice
from localspec.chat.conversation import Message
from localspec.chat.events import TurnEvent
from localspec.chat.figures import Figures
from localspec.chat.settings import Asked, ChatSettings
from localspec.chat.thinking import Thinking
from localspec.engine.inside import Inside
from localspec.engine.stats import MemoryUse
from localspec.loading.request import LoadRequest

PROTOCOL = 5
"""Both ends must speak the same version: the first frame each way says which."""

_SIZE = 4
_CHUNK = 1 << 16

Body = TypeVar("Body")


class Letter(Struct, Generic[Body], frozen=True, array_like=True):
    """A message with its address.

    Attributes:
        request: number of the request, or of the one that an event answers; 0 for none.
        conversation: number of the conversation.
        body: the message itself.
    """

    request: int
    conversation: int
    body: Body


class Hello(Struct, frozen=True, tag=True):
    """The first message each way."""

    protocol: int = PROTOCOL


class Fault(Struct, frozen=True):
    """An error on its way: the name of its class, and what it says.

    Attributes:
        kind: the name of its class.
        message, remedy: what it says.
        errno: the system's number, where it is an OSError; else 0.
        traceback: where it came from; empty for one of localspec's.
    """

    kind: str
    message: str
    remedy: str = ""
    errno: int = 0
    traceback: str = ""

    @staticmethod
    def of(error: Exception) -> Fault:
        """What is told of `error`; of one that nobody foresaw also where it came from."""
        kind = type(error).__name__
        if isinstance(error, errors.LocalspecError):
            return Fault(kind, error.message, error.remedy)
        where = "".join(traceback.format_exception(error))
        if isinstance(error, OSError) and error.errno and error.strerror:
            return Fault(kind, error.strerror, errno=error.errno, traceback=where)
        return Fault(kind, str(error), traceback=where)

    def exception(self) -> Exception:
        """The error again, of its own class where that is one of localspec's or of Python's."""
        ours = getattr(errors, self.kind, None)
        if isinstance(ours, type) and issubclass(ours, errors.LocalspecError):
            return ours(self.message, self.remedy)
        theirs = getattr(builtins, self.kind, None)
        if isinstance(theirs, type) and issubclass(theirs, Exception):
            again = theirs(self.errno, self.message) if self.errno else theirs(self.message)
        else:
            again = RuntimeError(f"{self.kind}: {self.message}")
        if self.traceback:
            again.add_note(f"In the engine's process:\n{self.traceback}")
        return again


class SessionInfo(Struct, frozen=True):
    """What a loaded `Session` says of itself by the same names; a new one comes with every change.

    Attributes:
        pair_name: short name of the pair.
        pair_reference: what names it on a command line: PAIR, and a draft that was named besides.
        target_name, draft_name: the models; None where there is no draft.
        speculation_note: why nothing can be drafted; empty where something can.
        notices: what the user should know about the pair and its settings.
        thinking: how the model marks its thoughts.
        shows_tools: whether its chat template shows tools, and their calls in Hermes's form.
        settings: those in force.
        speculation: whether drafting is on.
        advice: sampling settings that are advised for the target.
    """

    pair_name: str
    pair_reference: tuple[str, str | None]
    target_name: str
    draft_name: str | None
    speculation_note: str
    notices: tuple[str, ...]
    thinking: Thinking
    shows_tools: bool
    settings: ChatSettings
    speculation: bool
    advice: Advice = Advice()


class Kept(Struct, frozen=True):
    """What a conversation keeps when other models, or the same ones anew, go on with it."""

    messages: tuple[Message, ...]
    settings: ChatSettings
    speculation: bool


# Requests


class Load(Struct, frozen=True, tag=True):
    """Load models, in place of those that are there; `Loaded` or `LoadFailed` answers.

    What is there is freed first, and loaded again if the new ones fail.

    Attributes:
        job: one of `process/jobs.py`, encoded, to be done while nothing is loaded; `Performed`
            answers it. Stopping ends the job alone.
    """

    request: LoadRequest
    kept: Kept | None = None
    job: bytes | None = None


class Ask(Struct, frozen=True, tag=True):
    """Answer `text`; `Turn` for every event, `TurnOver` at the end.

    Attributes:
        text: what is asked.
        earlier: what was said before, where that is another path than the session's.
        conversation: the id under which it is stored; empty for none.
    """

    text: str
    earlier: tuple[Message, ...] | None = None
    conversation: str = ""


class Complete(Struct, frozen=True, tag=True):
    """Answer an asker who keeps the conversation, reported like `Ask`."""

    asked: Asked


class Regenerate(Struct, frozen=True, tag=True):
    """Answer the last question again, reported like `Ask`."""


class Compact(Struct, frozen=True, tag=True):
    """Sum the conversation up, reported like `Ask`."""


class Open(Struct, frozen=True, tag=True):
    """Go on from other messages, perhaps with other settings; `ChangeDone` answers.

    Attributes:
        messages: what was said.
        settings: None for those in force.
        conversation: the id under which it is stored; empty for none.
    """

    messages: tuple[Message, ...]
    settings: ChatSettings | None = None
    conversation: str = ""


class Compare(Struct, frozen=True, tag=True):
    """Answer `text` after `before` twice, without and with speculation, and leave all as it was.

    `Turn` for every event, `ChangeDone` at the end.
    """

    text: str
    before: tuple[Message, ...]


class Configure(Struct, frozen=True, tag=True):
    """Put other settings in force, or switch drafting, at any time; `Changed` answers."""

    settings: ChatSettings | None = None
    speculation: bool | None = None


class Perform(Struct, frozen=True, tag=True):
    """Do a job of `process/jobs.py`; `Performed` answers.

    Until then come `Loading`, `Turn` and `Asking`. The job is encoded by itself: only who asks
    for jobs has to import what they are made of.
    """

    job: bytes


class Look(Struct, frozen=True, tag=True):
    """Tell what happened inside a round; `Looked` answers.

    Attributes:
        turn: the request of the answer.
        number: of the round, from 1; 0 for the next one with a draft that is made, or the last.
    """

    turn: int
    number: int


class CountTokens(Struct, frozen=True, tag=True):
    """Say how many tokens `text` has; `Counted` answers, nothing where no model is loaded."""

    text: str


class Stop(Struct, frozen=True, tag=True):
    """End what a request began, also where that request has not come yet."""

    request: int


Request: TypeAlias = (
    Hello | Load | Ask | Complete | Regenerate | Compact | Open | Compare
    | Configure | Perform | Look | CountTokens | Stop
)  # fmt: skip


# Events


class Loading(Struct, frozen=True, tag=True):
    """A loading step; `share` of 1 when it is known."""

    step: str
    share: float | None


class Loaded(Struct, frozen=True, tag=True):
    """The models are in memory."""

    info: SessionInfo


class LoadFailed(Struct, frozen=True, tag=True):
    """The models could not be loaded.

    Attributes:
        error: why; None where it was cancelled.
        info: the session in force again; None where there is none.
        second: why the models before could not be loaded again either.
    """

    error: Fault | None
    info: SessionInfo | None = None
    second: Fault | None = None


class Turn(Struct, frozen=True, tag=True):
    """An event of a running turn; in a comparison, of which side."""

    event: TurnEvent
    speculation: bool | None = None


class TurnOver(Struct, frozen=True, tag=True):
    """The engine is free again: the turn ended, failed or was stopped.

    Attributes:
        error: why it failed; None where it did not.
        said: the messages that joined the conversation.
    """

    error: Fault | None
    said: tuple[Message, ...] = ()


class ChangeDone(Struct, frozen=True, tag=True):
    """A change of the session has been made, or refused."""

    error: Fault | None


class Changed(Struct, frozen=True, tag=True):
    """Other settings are in force."""

    info: SessionInfo


class Status(Struct, frozen=True, tag=True):
    """The figures and where the memory goes: now and then in a turn, and after every change."""

    figures: Figures
    memory: MemoryUse


class Asking(Struct, frozen=True, tag=True):
    """How far a bench is.

    Attributes:
        prompt: the name of the question that is asked now.
        done, total: questions times repeats.
        left_s: seconds that are left, as far as can be told; None at the very beginning.
    """

    prompt: str
    done: int
    total: int
    left_s: float | None


class Performed(Struct, frozen=True, tag=True):
    """A job is over.

    Attributes:
        result: what came of it, encoded; None where it failed or was stopped.
        error: why it failed; None where it did not.
    """

    result: bytes | None
    error: Fault | None = None


class Looked(Struct, frozen=True, tag=True):
    """What happened inside a round.

    Attributes:
        inside: that; None where it cannot be told.
        error: why it cannot; None where that was asked for.
    """

    inside: Inside | None
    error: Fault | None = None


class Counted(Struct, frozen=True, tag=True):
    """How many tokens a text has."""

    tokens: int


class Died(Struct, frozen=True, tag=True):
    """The engine's process has ended by itself; nothing comes after this."""

    error: Fault


Event: TypeAlias = (
    Hello | Loading | Loaded | LoadFailed | Turn | TurnOver | ChangeDone | Changed | Status
    | Asking | Performed | Looked | Counted | Died
)  # fmt: skip
Tell: TypeAlias = Callable[[Event], None]
"""Sends what happens while a request is done."""


class Wire(Generic[Body]):
    """One end of a line: two byte streams; a length in four bytes, then MessagePack.

    Any thread may send, one receives.

    Args:
        source: where letters come from.
        sink: where they go to.
        incoming: the type of what comes, a `Letter` of something.
    """

    def __init__(self, source: IO[bytes], sink: IO[bytes], incoming: type[Letter[Body]]) -> None:
        self._source = source
        self._sink = sink
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self.send(Letter(0, 0, Hello()))

    def send(self, letter: Letter[Any]) -> None:
        """Send a letter; waits while the other end does not read what has come before."""
        self.write(self.encoded(letter))

    def encoded(self, letter: Letter[Any]) -> bytes:
        """A letter as `write` takes it."""
        data = self._encoder.encode(letter)
        return len(data).to_bytes(_SIZE, "little") + data

    def write(self, data: bytes) -> None:
        """Send an encoded letter; where nobody is left to read it, nothing happens."""
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (OSError, ValueError):
            return  # whoever receives sees the end, and knows more

    def close(self) -> None:
        """Send nothing more: the other end sees the end."""
        try:
            with self._lock:
                self._sink.close()
        except OSError:
            return

    def _decoded(self, data: bytearray) -> Letter[Body]:
        try:
            letter = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise errors.EngineError(
                f"what came from another process is no message: {error}"
            ) from None
        if isinstance(letter.body, Hello) and letter.body.protocol != PROTOCOL:
            raise errors.EngineError(
                f"the engine's process speaks version {letter.body.protocol}, this one {PROTOCOL}",
                "Start localspec anew: it was changed while it ran.",
            )
        return letter

    def letters(self) -> Iterator[list[Letter[Body]]]:
        """All that has come at each look, until the line ends.

        Raises:
            EngineError: the other end speaks another version, or nonsense.
        """
        held = bytearray()
        while data := os.read(self._source.fileno(), _CHUNK):
            held += data
            found = []
            while len(held) >= _SIZE:
                end = _SIZE + int.from_bytes(held[:_SIZE], "little")
                if len(held) < end:
                    break
                letter = self._decoded(held[_SIZE:end])
                del held[:end]
                if not isinstance(letter.body, Hello):
                    found.append(letter)
            if found:
                yield found
