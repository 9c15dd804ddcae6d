"""Dialects: how models mark thoughts, content and calls, learnt from their chat templates."""

from localspec.chat.dialects.dialect import AnswerReader, Dialect
from localspec.chat.dialects.reading.answer_parts import (
    AnswerReading,
    Call,
    ContentPiece,
    ThoughtPiece,
)

__all__ = [
    "AnswerReader",
    "AnswerReading",
    "Call",
    "ContentPiece",
    "Dialect",
    "ThoughtPiece",
]
