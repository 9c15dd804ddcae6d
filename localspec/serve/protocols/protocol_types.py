"""The two parts of a protocol: a request that can be read, and a writer of replies."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from localspec.serve.core.replies import AnswerPiece, IncomingAnswer
from localspec.serve.core.requests import AnswerOptions, CoreRequest
from localspec.serve.refusals import Refusal

Document: TypeAlias = dict[str, Any]
StreamEvent: TypeAlias = tuple[str, Document]
"""An event of a stream: its name, empty for none, and its data."""
RESULTS = ("tool", "function")
"""The roles of a tool's result."""


class ReplyWriter(ABC):
    """Writes the reply to one request, as a stream or as one document.

    A stream is `opening`, then `written` for each batch of pieces, with `alive` during silences,
    and `closing` or `failed` at the end. A document is `written` for all pieces, then `document`.

    Args:
        model: the name of the pair that answers.

    Attributes:
        answer: the answer whose pieces are written.
        created: when it was made, as a Unix time.
        enough: whether the rest of the answer is not wanted.
    """

    prompt_field: ClassVar[str] = "messages"  # the field of a request that becomes the prompt
    farewell: ClassVar[bytes] = b""  # after the last event of a stream that did not fail
    told_in_stream: ClassVar[tuple[str, ...]] = ()  # codes of errors that come with status 200

    def __init__(self, model: str) -> None:
        self.model = model
        self.answer = IncomingAnswer(None)  # until the request is prepared
        self.created = int(time.time())
        self.enough = False

    def opening(self) -> Sequence[StreamEvent]:
        """The first events, before any piece of the answer."""
        return ()

    @abstractmethod
    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """The events for the answer's next pieces."""

    @abstractmethod
    def alive(self) -> StreamEvent:
        """An event without content, so that a waiting client does not give up."""

    @abstractmethod
    def closing(self) -> Sequence[StreamEvent]:
        """The last events of a complete answer."""

    def failed(self, refusal: Refusal) -> Sequence[StreamEvent]:
        """The last events of an answer that failed."""
        return [("", refusal.document)]

    @abstractmethod
    def document(self) -> Document:
        """The whole answer."""


class ProtocolRequest(AnswerOptions):
    """The body of a request, in the form of one protocol."""

    def core(self) -> CoreRequest:
        """What is asked, in the form that all protocols share.

        Raises:
            Refusal: the request is invalid.
        """
        raise NotImplementedError

    def writer(self, model: str) -> ReplyWriter:
        """Make the writer of the reply.

        Args:
            model: the name of the pair that answers.
        """
        raise NotImplementedError


def typed(name: str, /, **data: Any) -> StreamEvent:
    """An event whose data repeats its name as ``type``."""
    return name, {"type": name, **data}


def encoded(events: Iterable[StreamEvent]) -> bytes:
    """Events as the bytes of a stream of server-sent events."""
    return b"".join(
        (b"event: " + name.encode() + b"\n" if name else b"")
        + b"data: " + msgspec.json.encode(data) + b"\n\n"
        for name, data in events
    )  # fmt: skip


def last_question(roles: Iterable[Any]) -> int:
    """The place of the user's last question: pictures in other messages are not refused.

    Clients repeat these in every request, so that a refusal would end their session. What the user
    says right after a tool's result asks nothing: agents put the tool's picture there.

    Args:
        roles: of the messages, or anything else where a place has none; of a result ``tool``.
    """
    asked = (
        i
        for i, (before, role) in enumerate(pairwise((None, *roles)))
        if role == "user" and before not in RESULTS
    )
    return max(asked, default=0)


_FILES = ("image", "audio", "video", "file", "document")


def unread(kind: str) -> str:
    """What the model reads in place of a part of the type `kind`, which is not text."""
    what = "an image" if "image" in kind else "a document" if kind == "document" else "a file"
    return f"[{what}, which this model cannot read]"


class ThoughtPart(Struct):
    """A part of an earlier thought."""

    text: str | None = None


class ContentPart(Struct):
    """A part of a message in OpenAI's protocols; only text is read, and a refusal is text.

    Mistral's form of an earlier answer has its thought as a part, too.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | list[ThoughtPart] | None = None

    @property
    def thought(self) -> str:
        """The text of a thought."""
        told = self.thinking or ""
        return told if isinstance(told, str) else "".join(one.text or "" for one in told)

    @property
    def is_file(self) -> bool:
        """Whether it is an image or another file, as far as its type tells."""
        return any(word in self.type for word in _FILES)


TextOrParts: TypeAlias = str | list[ContentPart] | None


def only_text(
    parts: TextOrParts, place: str, kinds: Sequence[str], *, lenient: bool = False
) -> str:
    """The text of content that is a text, or a list of parts.

    Args:
        parts: the content; None for none.
        place: where the content stands in the request.
        kinds: the types of parts that are text.
        lenient: name other parts in the text instead of refusing them. Results of tools need this,
            as messages other than the `last_question` do.

    Raises:
        Refusal: a part is something else, such as an image, unless `lenient`.
    """
    if parts is None or isinstance(parts, str):
        return parts or ""
    texts = []
    for i, part in enumerate(parts):
        if part.type in kinds:
            texts.append(part.text or part.refusal)
        elif lenient:
            texts.append(unread(part.type))
        else:
            said = f"this model reads text, not {part.type[:40]!r}"
            raise Refusal(400, said, param=f"{place}[{i}]")
    return "\n".join(filter(None, texts))
