"""Dialects: how models mark thoughts, content and calls, learnt from their chat templates."""

from localspec.chat.dialects.dialect import AnswerReader, Dialect
from localspec.chat.dialects.reading import Call, Reading, Says, Thinks
from localspec.chat.dialects.templates import learn

__all__ = ["AnswerReader", "Call", "Dialect", "Reading", "Says", "Thinks", "learn"]
