"""The texts of a conversation as JSON strings hold them, for lookup to copy from."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

from localspec.chat.conversation import Message
from localspec.engine.drafters.past_texts import NO_PAST, Past, TextIds
from localspec.engine.llama import Model


class QuotedTexts:
    """Knows the texts of a conversation in the form in which a call of a tool quotes them.

    JSON escapes line breaks, quotes and backslashes, and the escapes are other tokens. A copy of
    the text as the prompt has it ends at each of them, so that lookup loses every quoted line.

    Args:
        model: the target.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ids: dict[str, TextIds] = {}
        self._past = NO_PAST

    def past(self, messages: Iterable[Message]) -> Past:
        """The texts of `messages` that JSON has to escape; those of the last call are kept."""
        forms = ((one.content, _escaped(one.content)) for one in messages)
        quoted = dict.fromkeys(form for text, form in forms if form != text)
        if quoted.keys() != self._ids.keys():
            known = self._ids
            self._ids = {
                text: known[text] if text in known else self._read(text) for text in quoted
            }
            self._past = Past(list(self._ids.values()))
        return self._past

    def _read(self, text: str) -> TextIds:
        ids = self._model.tokenize(text, add_special=False, parse_special=False)
        return np.array(ids, np.int32)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
