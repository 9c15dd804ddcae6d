"""What replies of OpenAI's two kinds of completions share: chunks and documents of one choice."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from localspec.engine.record.stats import FinishReason
from localspec.serve.core.replies import timings
from localspec.serve.protocols.protocol_types import Document, ReplyWriter, StreamEvent


class CompletionWriter(ReplyWriter):
    """Writes chunks, or a document.

    Args:
        usage: whether a stream ends with the token counts.

    Attributes:
        prefix: what ids begin with.
        chunk, whole: the type of a chunk and of the document, and the field of their content.
        nothing: the content of a chunk without any.
    """

    farewell = b"data: [DONE]\n\n"
    prefix: ClassVar[str]
    chunk: ClassVar[tuple[str, str]]
    whole: ClassVar[tuple[str, str]]
    nothing: ClassVar[str | Document]

    def __init__(self, model: str, *, usage: bool = False) -> None:
        super().__init__(model)
        self._usage = usage
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": self.created,
            "model": model,
            "system_fingerprint": "localspec",
        }
        self._scored: list[Any] = []

    def closing(self) -> list[StreamEvent]:
        """The chunk with the reason for the end, and the token counts if they are wanted."""
        name, last = self._chunk(self.nothing, self._finish())
        counted = {**last, "choices": [], "usage": self._counts()}
        last["timings"] = timings(self.answer.stats)
        return [(name, last), (name, counted)] if self._usage else [(name, last)]

    @abstractmethod
    def _scores(self, scored: Sequence[Any]) -> Document:
        """The probabilities of the next tokens."""

    def _chunk(
        self, content: str | Document, finish: str | None = None, scored: Sequence[Any] = ()
    ) -> StreamEvent:
        return "", self._told(self.chunk, content, finish, scored)

    def _whole(self, content: str | Document) -> Document:
        told = self._told(self.whole, content, self._finish(), self._scored)
        return {**told, "usage": self._counts(), "timings": timings(self.answer.stats)}

    def _told(
        self,
        kind: tuple[str, str],
        content: str | Document,
        finish: str | None,
        scored: Sequence[Any],
    ) -> Document:
        choice = {
            "index": 0,
            "finish_reason": finish,
            kind[1]: content,
            "logprobs": self._scores(scored) if scored else None,
        }
        return {**self._head, "object": kind[0], "choices": [choice]}

    def _finish(self) -> str:
        end = self.answer.end
        return "stop" if end is not None and end.reason is FinishReason.STOP else "length"

    def _counts(self) -> Document:
        """The token counts of the prompt and the answer."""
        prompt, generated = self.answer.prompt_tokens, self.answer.stats.generated_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self.answer.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.answer.thought_tokens},
        }
