"""Probabilities of tokens, as OpenAI's completions have them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any


def chat_scores(scored: Sequence[Any]) -> dict[str, Any]:
    """The probabilities of tokens in chat completions."""
    return {"content": [_chat_score(*one) for one in scored], "refusal": None}


class TextScores:
    """The probabilities of tokens in plain completions, which have offsets in the text."""

    def __init__(self) -> None:
        # Characters sent so far; the decoder holds the bytes of an incomplete one.
        self._offset, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")

    def told(self, scored: Sequence[Any]) -> dict[str, Any]:
        """Those of the next tokens."""
        offsets = []
        for piece, _, _ in scored:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(piece))
        return {
            "tokens": [_name(piece) for piece, _, _ in scored],
            "token_logprobs": [logprob for _, logprob, _ in scored],
            "top_logprobs": [_by_name(best) for _, _, best in scored],
            "text_offset": offsets,
        }


def _chat_score(
    piece: bytes, logprob: float, best: Iterable[tuple[bytes, float]] = ()
) -> dict[str, Any]:
    return {
        "token": _text(piece),
        "logprob": logprob,
        "bytes": list(piece),
        "top_logprobs": [
            {"token": _text(one), "logprob": p, "bytes": list(one)} for one, p in best
        ],
    }


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _name(piece: bytes) -> str:
    """A token's name in OpenAI's completions: its text, or its bytes if they are not UTF-8."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _by_name(best: Iterable[tuple[bytes, float]]) -> dict[str, float]:
    """Log probabilities by name, the largest first; for equal names, the largest counts."""
    found: dict[str, float] = {}
    for piece, logprob in best:
        found.setdefault(_name(piece), logprob)
    return found
