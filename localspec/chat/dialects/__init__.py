"""Dialects: how models mark thoughts, content and calls, learnt from their chat templates."""

from localspec.chat.dialects.dialect import AnswerReader, Dialect
from localspec.chat.dialects.reading import AnswerReading, Call, ContentPiece, ThoughtPiece
from localspec.chat.dialects.templates import learn

__all__ = [
    "AnswerReader",
    "AnswerReading",
    "Call",
    "ContentPiece",
    "Dialect",
    "ThoughtPiece",
    "learn",
]
