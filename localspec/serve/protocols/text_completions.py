"""OpenAI's ``/v1/completions``: text that is continued as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from localspec.chat.dialects import ContentPiece
from localspec.chat.settings import Infill
from localspec.serve.core.replies import AnswerPiece
from localspec.serve.core.requests import ContinuationRequest, Top, as_whole
from localspec.serve.protocols.completion_writer import CompletionWriter
from localspec.serve.protocols.protocol_types import Document, ProtocolRequest, StreamEvent
from localspec.serve.protocols.scores import TextScores
from localspec.serve.refusals import Refusal


class CompletionRequest(ProtocolRequest):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    logprobs: Top | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None

    def core(self) -> ContinuationRequest:
        """What is asked, in the form that all protocols share.

        Raises:
            Refusal: the request is invalid.
        """
        for name, usual in (("echo", (False, None)), ("best_of", (1, None))):
            if getattr(self, name) not in usual:
                raise Refusal(400, f"{name} is not supported", param=name)
        prompt: str | tuple[int, ...] | Infill = _prompt(self.prompt)
        if self.suffix:
            if not isinstance(prompt, str):
                raise Refusal(400, "with a suffix the prompt must be text", param="prompt")
            prompt = Infill(prompt, self.suffix)
        return ContinuationRequest(self, prompt, self.logprobs)

    def writer(self, model: str) -> TextWriter:
        """Make the writer of the reply."""
        return TextWriter(model, usage=self.ends_with_counts)


def _prompt(given: str | list[Any]) -> str | tuple[int, ...]:
    """The prompt as text or ids; a list of one prompt is accepted."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return given
    ids = [as_whole(token) for token in given]
    if all(type(token) is int and 0 <= token < 1 << 31 for token in ids):
        return tuple(ids)
    raise Refusal(400, "one prompt at a time: text, or a list of token ids", param="prompt")


class TextWriter(CompletionWriter):
    """Writes chunks, or a document; probabilities of tokens come with their places in the text."""

    prompt_field = "prompt"
    prefix = "cmpl"
    chunk = whole = ("text_completion", "text")
    nothing = ""

    def __init__(self, model: str, *, usage: bool = False) -> None:
        super().__init__(model, usage=usage)
        self._text = ""
        self._places = TextScores()

    def written(self, pieces: Iterable[AnswerPiece]) -> Iterator[StreamEvent]:
        """A chunk with the text of these pieces, and with their probabilities."""
        text = "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece))
        scored = self.answer.scored()
        self._text += text
        self._scored += scored
        if text or scored:
            yield self._chunk(text, scored=scored)

    def alive(self) -> StreamEvent:
        """A chunk without text."""
        return self._chunk("")

    def document(self) -> Document:
        """The whole answer."""
        self._places = TextScores()
        return self._whole(self._text)

    def _scores(self, scored: Sequence[Any]) -> Document:
        return self._places.told(scored)
