"""What the engine's process needs from a session, and how a session comes to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from localspec.chat.conversation import Message
    from localspec.chat.events import TurnEvent
    from localspec.chat.figures import Figures
    from localspec.chat.thinking import Thinking
    from localspec.engine.cancel import Cancel
    from localspec.engine.stats import MemoryUse
    from localspec.loading.request import LoadRequest
    from localspec.process.messages import Event


class ChatSession(Protocol):
    """A conversation with a loaded pair; one thread calls it, figures are for anyone."""

    speculation: bool
    settings: Any

    @property
    def pair_name(self) -> str:
        """Short name of the pair."""

    @property
    def pair_reference(self) -> tuple[str, str | None]:
        """What names the pair on a command line."""

    @property
    def target_name(self) -> str:
        """Name of the target model."""

    @property
    def draft_name(self) -> str | None:
        """Name of the draft model, if there is one."""

    @property
    def speculation_note(self) -> str:
        """Why speculation is not available, or nothing."""

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know about this pair and its settings."""

    @property
    def thinking(self) -> Thinking:
        """How the model marks its thoughts."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""

    def turn(self, text: str, cancel: Cancel) -> Iterator[TurnEvent]:
        """Answer `text`."""

    def regenerate(self, cancel: Cancel) -> Iterator[TurnEvent]:
        """Answer the last question again."""

    def compact(self, cancel: Cancel) -> Iterator[TurnEvent]:
        """Put a summary in the conversation's place."""

    def figures(self) -> Figures:
        """The live figures."""

    def memory(self) -> MemoryUse:
        """Where the memory goes."""

    def reset(self) -> None:
        """Forget the conversation."""

    def open(self, messages: Sequence[Message]) -> None:
        """Go on from other messages."""

    def aside(self) -> AbstractContextManager[None]:
        """Answers within leave the conversation, the settings and the figures what they were."""

    def close(self) -> None:
        """Free the models."""


Tell: TypeAlias = "Callable[[Event], None]"
"""Takes what is to be said while a job is done."""

Progress: TypeAlias = "Callable[[str, float | None], None]"
"""Called with a loading step and its share of 1, if that is known."""


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

    load: Callable[[LoadRequest, Progress, Cancel], ChatSession]
    check: Callable[[LoadRequest], None] = lambda _request: None
    perform: Callable[[bytes, Tell, Cancel], bytes] = _no_jobs
