"""Marks are tokens that mean more than their text. No message may produce one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from localspec.engine.llama import Model

_PLAIN_TEXTS = 1 << 14  # digests of texts, a few megabytes in all


class ControlTokens:
    """The marks of a vocabulary and a template.

    A token of ordinary text that the vocabulary's makers added by hand is not a mark
    (`Model.is_mark`), unless the template uses it. llama.cpp finds such tokens in any text, even if
    it is told not to parse control tokens.
    """

    def __init__(self, model: Model, template: str | None) -> None:
        """Find the marks of `model` and its template.

        Args:
            model: tokenises.
            template: the chat template's source; None without one.
        """
        self._model = model
        self._template = template or ""
        self._texts: dict[int, str] = {}
        self._plain = set[bytes]()  # digests of texts without marks
        pieces = map(model.piece, model.tokenize("x", add_special=False, parse_special=False))
        self._prefix_space = b"".join(pieces) == b" x"

    def text(self, token: int) -> str:
        """The text of the mark `token`; empty for any other token."""
        known = self._texts.get(token)
        if known is None:
            known = self._texts[token] = self._text(token)
        return known

    def _text(self, token: int) -> str:
        text = self._model.piece(token, special=True).decode("utf-8", "replace")
        used = len(text.strip()) > 1 and text in self._template
        by_hand = used and self._model.is_user_defined(token)
        return text if by_hand or self._model.is_mark(token) else ""

    def within(self, text: str) -> set[str]:
        """The texts of the marks that tokenising `text` would produce.

        Texts that have none are remembered: clients send a whole conversation with each request.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if digest in self._plain:
            return set()
        ids = self._model.tokenize(text, add_special=False, parse_special=True)
        marks = {mark for mark in map(self.text, set(ids)) if mark and mark in text}
        if not marks:
            if len(self._plain) == _PLAIN_TEXTS:
                self._plain.clear()
            self._plain.add(digest)
        return marks

    def spell(self, text: str) -> list[int]:
        """The ids of `text` as plain text: none of them is a mark whose text occurs in it."""
        ids = self._model.tokenize(text, add_special=False, parse_special=False)
        if not any(map(self.text, set(ids))):
            return ids
        parts = list(self._cut(text, ids))
        if len(parts) == 1:
            return ids
        first, *others = parts
        spelled = self.spell(first)
        for part in others:
            spelled += self.continued(part, self.spell)
        return spelled

    def _cut(self, text: str, ids: list[int]) -> Iterator[str]:
        """Split `text` after the first character of every mark in `ids`."""
        begin = at = 0
        for mark in map(self.text, ids):
            start = text.find(mark, at) if len(mark) > 1 else -1
            if start >= 0:
                yield text[begin : start + 1]
                begin, at = start + 1, start + len(mark)
        yield text[begin:]

    def continued(self, text: str, ids_of: Callable[[str], list[int]]) -> list[int]:
        """Apply `ids_of`, without the space that some tokenisers put before a first word."""
        ids = ids_of(text)
        if not self._prefix_space or self.text(ids[0]):
            return ids
        anchor, anchored = ids_of("\n"), ids_of("\n" + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else ids
