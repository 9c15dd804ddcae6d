"""llama-server's ``/infill``, which editors ask as one types."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from localspec.chat.dialects import ContentPiece
from localspec.chat.settings import Infill
from localspec.engine.record.stats import FinishReason
from localspec.serve.core.replies import AnswerPiece, timings
from localspec.serve.core.requests import ContinuationRequest, Count
from localspec.serve.protocols.protocol_types import (
    Document,
    ProtocolRequest,
    ReplyWriter,
    StreamEvent,
)

_LINE = re.compile(r"\n([ \t]*)(?=[^ \t\n])")  # a line that has begun after another one


class OtherFile(Struct):
    """A part of another file."""

    text: str = ""
    filename: str = "tmp"


class InfillRequest(ProtocolRequest):
    """``POST /infill``.

    Attributes:
        prompt: how what fills the gap begins.
        n_indent: a line that is indented less ends the answer.
        t_max_predict_ms: after that time the next line ends the answer; 0 for never.
        response_fields: those that the reply has, with slashes for fields of fields; None for all.
        n_cmpl: with more than one, the reply is a list (of one).
    """

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    input_extra: Annotated[list[OtherFile], Meta(max_length=1024)] | None = None
    n_indent: Count = 0
    t_max_predict_ms: float = 0
    response_fields: Annotated[list[str], Meta(max_length=64)] | None = None
    n_cmpl: int = 1

    def core(self) -> ContinuationRequest:
        """What is asked, in the form that all protocols share."""
        others = tuple((one.filename, one.text) for one in self.input_extra or ())
        gap = Infill(self.input_prefix, self.input_suffix, self.prompt, others, in_repository=True)
        return ContinuationRequest(self, gap)

    def writer(self, model: str) -> InfillWriter:
        """Make the writer of the reply."""
        return InfillWriter(model, self)


class InfillWriter(ReplyWriter):
    """Writes what fills the gap, and ends it by its indentation or by the clock.

    Args:
        asked: the request.
    """

    prompt_field = "prompt"  # the others are cut to what the context holds

    def __init__(self, model: str, asked: InfillRequest) -> None:
        super().__init__(model)
        self._asked = asked
        self._text = ""
        self._since: float | None = None  # the first text

    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """The next piece of the text, up to where it ends."""
        if self.enough:
            return
        before = len(self._text)
        self._text += "".join(one.text for one in pieces if isinstance(one, ContentPiece))
        if self._since is None and self._text:
            self._since = time.monotonic()
        end = self._end(before)
        if end is not None:
            self.enough, self._text = True, self._text[:end]
        if piece := self._text[before:]:
            yield _event(piece)

    def _end(self, before: int) -> int | None:
        """Where the text ends; None if it goes on. What came first stays."""
        asked, since = self._asked, self._since or 0.0
        for line in _LINE.finditer(self._text) if asked.n_indent > 0 else ():
            if len(line[1]) < asked.n_indent:
                return max(before, line.start())
        late = 0 < asked.t_max_predict_ms < 1e3 * (time.monotonic() - since)
        at = self._text.find("\n", before)
        return at if late and at >= 0 else None

    def alive(self) -> StreamEvent:
        """An event without text."""
        return _event("")

    def closing(self) -> list[StreamEvent]:
        """The figures."""
        return [("", {**self._whole(), "content": ""})]

    def document(self) -> Any:
        """The whole reply; with several completions asked for, a list of one."""
        fields = self._asked.response_fields
        found = _chosen(self._whole(), fields) if fields else self._whole()
        return [found] if self._asked.n_cmpl > 1 else found

    def _whole(self) -> Document:
        end, stats = self.answer.end, self.answer.stats
        kinds = {FinishReason.LENGTH: "limit", FinishReason.CONTEXT: "limit"}
        word = end.stopped_by if end is not None else ""
        kind = kinds.get(end.reason if end else FinishReason.STOP, "word" if word else "eos")
        return {
            "index": 0,
            "content": self._text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self.model,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": self.answer.prompt_tokens,
            "tokens_cached": self.answer.prompt_tokens + stats.generated_tokens,
            "has_new_line": "\n" in self._text,
            "truncated": False,
            "stop_type": "limit" if self.enough else kind,
            "stopping_word": word,
            "timings": timings(stats),
        }


def _chosen(document: Document, fields: Sequence[str]) -> Document:
    """Some fields of a document; those within others keep their path as their name."""
    found: Document = {}
    for field in fields:
        value: Any = document
        for name in field.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[field] = value
    return found


def _event(content: str) -> StreamEvent:
    return "", {"content": content, "tokens": [], "stop": False, "id_slot": 0, "index": 0}
