"""The texts of a conversation as JSON strings hold them, for lookup to copy from."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

from localspec.chat.conversation import Message
from localspec.engine.drafters.past_texts import NO_PAST, Past, TextIds
from localspec.engine.llama import Model

_MOST = 1_000_000  # ids that are kept


class QuotedTexts:
    """Knows the texts of a conversation in the form in which a call of a tool quotes them.

    JSON escapes line breaks, quotes and backslashes, and the escapes are other tokens. A copy of
    the text as the prompt has it ends at each of them, so that lookup loses every quoted line.

    The ids of the texts that were asked for last are kept, whichever conversation they are from;
    those of the present conversation always.

    Args:
        model: the target.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ids: dict[str, TextIds] = {}  # the latest last
        self._indexed: list[str] = []
        self._past = NO_PAST

    def past(self, messages: Iterable[Message]) -> Past:
        """The texts of `messages` that JSON has to escape."""
        forms = ((one.content, _escaped(one.content)) for one in messages)
        quoted = list(dict.fromkeys(form for text, form in forms if form != text))
        if quoted != self._indexed:
            for text in quoted:
                self._ids[text] = self._ids.pop(text) if text in self._ids else self._read(text)
            self._past = Past([self._ids[text] for text in quoted])
            self._indexed = quoted
            self._forget(len(self._ids) - len(quoted))
        return self._past

    def _forget(self, most: int) -> None:
        """Drop the ids of the oldest texts that are too many, at most of `most` texts."""
        left = sum(map(len, self._ids.values())) - _MOST
        for text in list(self._ids)[:most]:
            if left <= 0:
                break
            left -= len(self._ids.pop(text))

    def _read(self, text: str) -> TextIds:
        ids = self._model.tokenize(text, add_special=False, parse_special=False)
        return np.array(ids, np.int32)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
