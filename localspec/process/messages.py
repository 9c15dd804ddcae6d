"""The messages between the engine's process and the one that uses it: plain data only.

Requests go one way and events the other. Each travels in an `Envelope` that names the request that
it belongs to.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

from localspec import errors
from localspec.chat.advice import SamplingAdvice
from localspec.chat.conversation import Message
from localspec.chat.dialects import Dialect
from localspec.chat.events import TurnEvent
from localspec.chat.figures.figures import Figures
from localspec.chat.settings import AnswerRequest, ChatSettings
from localspec.chat.tool_costs import ToolCosts
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.stats import MemoryUse
from localspec.loading.load_request import LoadRequest
from localspec.safe_text import encodable

PROTOCOL = 10
"""Both ends must use the same version, which the first message each way tells."""

Body = TypeVar("Body")


class Envelope(Struct, Generic[Body], frozen=True, array_like=True):
    """A message with its address.

    Attributes:
        request: number of the request, or of the one that an event answers; 0 for none.
    """

    request: int
    body: Body


class Hello(Struct, frozen=True, tag=True):
    """The first message each way."""

    protocol: int = PROTOCOL


class SentError(Struct, frozen=True):
    """An error as it is sent.

    Attributes:
        kind: the name of its class.
        place: the keyword or path a `SchemaError` is about.
        errno: the system's number of an OSError; else 0.
        path: what an OSError is about; empty if nothing tells.
        traceback: as Python prints it; empty for an error of localspec's own.
    """

    kind: str
    message: str
    remedy: str = ""
    place: str = ""
    errno: int = 0
    path: str = ""
    traceback: str = ""

    @staticmethod
    def of(error: Exception) -> SentError:
        """Describe `error`, with a traceback if it is none of localspec's own."""
        kind = type(error).__name__
        if isinstance(error, errors.LocalspecError):
            return SentError(kind, error.message, error.remedy, getattr(error, "place", ""))
        where = "".join(traceback.format_exception(error))
        if isinstance(error, OSError) and error.errno and error.strerror:
            named = error.filename if isinstance(error.filename, str) else ""
            path = encodable(named)
            return SentError(kind, error.strerror, errno=error.errno, path=path, traceback=where)
        return SentError(kind, str(error), traceback=where)

    def exception(self) -> Exception:
        """Make the error again, of its own class if that is localspec's or Python's."""
        if self.kind == errors.SchemaError.__name__:
            return errors.SchemaError(self.message, self.remedy, self.place)
        ours = getattr(errors, self.kind, None)
        if isinstance(ours, type) and issubclass(ours, errors.LocalspecError):
            return ours(self.message, self.remedy)
        again: Exception = RuntimeError(f"{self.kind}: {self.message}")
        theirs = getattr(builtins, self.kind, None)
        if isinstance(theirs, type) and issubclass(theirs, Exception):
            path = (self.path,) if self.path else ()
            said = (self.errno, self.message, *path) if self.errno else (self.message,)
            with suppress(TypeError):  # a UnicodeError is made of more than a message
                again = theirs(*said)
        if self.traceback:
            again.add_note(f"In the engine's process:\n{self.traceback}")
        return again


class SessionInfo(Struct, frozen=True):
    """The attributes of a loaded `Session` that have these names; sent anew with every change.

    Attributes:
        pair_reference: what names the pair on a command line: PAIR, and the draft if one was named.
        speculation_note: why nothing can be drafted; empty if something can.
        draft_state: why a draft model does not draft, or not yet; empty if all do.
        notices: what the user should know about the pair and its settings.
        about: the target's family and size, in words.
        exact: what is known of ``--exact`` for the target, in words.
        equal_passes: up to how many tokens all passes give equal bits; 1 unless that was tested.
        target_file: the path of the target's first file.
    """

    pair_name: str
    pair_reference: tuple[str, str | None]
    target_name: str
    draft_name: str | None
    lookup: bool
    speculation_note: str
    draft_state: str
    notices: tuple[str, ...]
    dialect: Dialect
    settings: ChatSettings
    speculation: bool
    advice: SamplingAdvice = SamplingAdvice()
    about: str = ""
    exact: str = ""
    equal_passes: int = 1
    target_file: str = ""


class CarriedConversation(Struct, frozen=True):
    """What a conversation keeps when models are loaded in the middle of it.

    Attributes:
        stored_as: the id under which it is stored; empty for none.
    """

    messages: tuple[Message, ...]
    settings: ChatSettings
    speculation: bool
    stored_as: str = ""


# Requests


class Load(Struct, frozen=True, tag=True):
    """Load models, in place of those that are loaded; `Loaded` or `LoadFailed` answers.

    The loaded models are freed first, and loaded again if the new ones fail.

    Attributes:
        job: an encoded job of `process/jobs.py`, to be done while nothing is loaded; `JobDone`
            answers it. `Stop` ends the job, and the load goes on.
    """

    request: LoadRequest
    kept: CarriedConversation | None = None
    job: bytes | None = None


class Ask(Struct, frozen=True, tag=True):
    """Answer `text`; `TurnReported` for every event, `TurnOver` at the end.

    Attributes:
        earlier: the messages before it, if they differ from the session's; else None.
        conversation: the id under which it is stored; empty for none.
    """

    text: str
    earlier: tuple[Message, ...] | None = None
    conversation: str = ""


class Complete(Struct, frozen=True, tag=True):
    """Answer a client that keeps the conversation itself; reported like `Ask`."""

    asked: AnswerRequest


class OfferTools(Struct, frozen=True, tag=True):
    """Let the model call tools from the next turn on; `ToolsOffered` answers.

    Attributes:
        tools: in the form of OpenAI's requests.
        instead: offered in their place if these would take too much of the context.
    """

    tools: tuple[dict[str, Any], ...]
    instead: tuple[dict[str, Any], ...] = ()


class GoOn(Struct, frozen=True, tag=True):
    """Answer on after the results of the last answer's calls; reported like `Ask`."""

    results: tuple[Message, ...]


class ReturnResults(Struct, frozen=True, tag=True):
    """The results of the calls that a job told by `ToolsCalled`, in their order."""

    results: tuple[Message, ...]


class Regenerate(Struct, frozen=True, tag=True):
    """Answer the last question again; reported like `Ask`."""


class Compact(Struct, frozen=True, tag=True):
    """Summarise the conversation; reported like `Ask`."""


class OpenConversation(Struct, frozen=True, tag=True):
    """Go on from other messages, perhaps with other settings; `ChangeDone` answers.

    Attributes:
        settings: None for the present ones.
        conversation: the id under which it is stored; empty for none.
    """

    messages: tuple[Message, ...]
    settings: ChatSettings | None = None
    conversation: str = ""


class CompareAnswers(Struct, frozen=True, tag=True):
    """Answer `text` after `before` twice, without and with speculation; the session is unchanged.

    `TurnReported` for every event, `ChangeDone` at the end.
    """

    text: str
    before: tuple[Message, ...]


class Configure(Struct, frozen=True, tag=True):
    """Change the settings, or switch drafting, at any time; `SettingsChanged` answers."""

    settings: ChatSettings | None = None
    speculation: bool | None = None


class PerformJob(Struct, frozen=True, tag=True):
    """Do a job of `process/jobs.py`; `JobDone` answers.

    Before it come `Loading`, `Loaded`, `TurnReported` and `BenchProgress`. The job is encoded
    apart, so that only commands with jobs import what jobs are made of.
    """

    job: bytes


class ExplainRound(Struct, frozen=True, tag=True):
    """Tell what happened inside a round; `RoundExplained` answers.

    Attributes:
        turn: the number of the request that the answer belongs to.
        number: of the round, from 1; 0 for the next round that has a draft, or else the last one.
    """

    turn: int
    number: int


class CountTokens(Struct, frozen=True, tag=True):
    """Count the tokens of `text`; `TokensCounted` answers if a model is loaded."""

    text: str


class Stop(Struct, frozen=True, tag=True):
    """Stop the work for a request, even if that request has not arrived yet."""

    request: int


Request: TypeAlias = (
    Hello | Load | Ask | OfferTools | GoOn | Complete | Regenerate | Compact | OpenConversation
    | CompareAnswers | Configure | PerformJob | ReturnResults | ExplainRound | CountTokens | Stop
)  # fmt: skip


# Events


class Loading(Struct, frozen=True, tag=True):
    """A step of loading, or of storing what is freed; `share` is None if it is not known."""

    step: str
    share: float | None


class Loaded(Struct, frozen=True, tag=True):
    """The models are in memory."""

    info: SessionInfo


class LoadFailed(Struct, frozen=True, tag=True):
    """The models could not be loaded.

    Attributes:
        error: None if the load was cancelled.
        info: the session with the previous models; None if there is none.
        second: why the previous models could not be loaded again; else None.
    """

    error: SentError | None
    info: SessionInfo | None = None
    second: SentError | None = None


class TurnReported(Struct, frozen=True, tag=True):
    """An event of a running turn; `speculation` tells the side of a comparison."""

    event: TurnEvent
    speculation: bool | None = None


class TurnOver(Struct, frozen=True, tag=True):
    """The engine is free again: the turn ended, failed or was stopped.

    Attributes:
        said: the messages that joined the conversation.
    """

    error: SentError | None
    said: tuple[Message, ...] = ()


class ChangeDone(Struct, frozen=True, tag=True):
    """A change of the session is done, or refused with `error`."""

    error: SentError | None


class SettingsChanged(Struct, frozen=True, tag=True):
    """The settings have changed."""

    info: SessionInfo


class EngineStatus(Struct, frozen=True, tag=True):
    """Figures and memory use: every `_FIGURES_S` in a turn, and after every change."""

    figures: Figures
    memory: MemoryUse


class BenchProgress(Struct, frozen=True, tag=True):
    """How far a bench is.

    Attributes:
        prompt: the name of the present prompt.
        done, total: prompts times repeats.
        left_s: estimated seconds to the end; None before the first estimate.
    """

    prompt: str
    done: int
    total: int
    left_s: float | None


class JobDone(Struct, frozen=True, tag=True):
    """A job is over.

    Attributes:
        result: encoded; None if the job failed or was stopped.
    """

    result: bytes | None
    error: SentError | None = None


class RoundExplained(Struct, frozen=True, tag=True):
    """What happened inside a round.

    Attributes:
        explanation: None if it is not known.
        error: why it is not known; None if the request was stopped.
    """

    explanation: RoundExplanation | None
    error: SentError | None = None


class TokensCounted(Struct, frozen=True, tag=True):
    """How many tokens a text has."""

    tokens: int


class ToolsOffered(Struct, frozen=True, tag=True):
    """What tools cost.

    Attributes:
        costs: None if they cannot be offered.
        error: why they cannot; None if nothing is loaded.
    """

    costs: ToolCosts | None
    error: SentError | None = None


class ToolsCalled(Struct, frozen=True, tag=True):
    """A job waits for `ReturnResults`.

    Attributes:
        calls: each tool's name, and its arguments as JSON.
    """

    calls: tuple[tuple[str, str], ...]


class Died(Struct, frozen=True, tag=True):
    """The engine's process has ended by itself. This is the last event."""

    error: SentError


Event: TypeAlias = (
    Hello | Loading | Loaded | LoadFailed | TurnReported | TurnOver | ChangeDone | SettingsChanged
    | EngineStatus | BenchProgress | JobDone | RoundExplained | TokensCounted | ToolsOffered
    | ToolsCalled | Died
)  # fmt: skip
SendEvent: TypeAlias = Callable[[Event], None]
"""Sends what happens while a request is done."""
