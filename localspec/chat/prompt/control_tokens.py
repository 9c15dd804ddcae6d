"""Marks: tokens that mean more than their text. No message may make one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localspec.engine.llama import Model


class ControlTokens:
    """The marks of a vocabulary and a template.

    Ordinary text that a vocabulary's makers added by hand, and which is none of its marks
    (`Model.is_mark`), is one where the template uses it. llama.cpp reads what was added by hand out
    of any text, also where it is told to read no control tokens.
    """

    def __init__(self, model: Model, template: str | None) -> None:
        """Look at the vocabulary of `model`.

        Args:
            model: makes ids.
            template: the chat template's source, if there is one.
        """
        self._model = model
        self._template = template or ""
        self._texts: dict[int, str] = {}
        pieces = map(model.piece, model.tokenize("x", add_special=False, parse_special=False))
        self._prefix_space = b"".join(pieces) == b" x"

    def text(self, token: int) -> str:
        """The text of the mark that `token` is, empty for every other token."""
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
        """The texts of the marks that would be read out of `text`."""
        ids = self._model.tokenize(text, add_special=False, parse_special=True)
        return {mark for mark in map(self.text, set(ids)) if mark and mark in text}

    def spell(self, text: str) -> list[int]:
        """The ids of `text` as plain text: none of them is a mark whose text is there."""
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
        """`text` in parts that end after the first character of every mark in `ids`."""
        begin = at = 0
        for mark in map(self.text, ids):
            start = text.find(mark, at) if len(mark) > 1 else -1
            if start >= 0:
                yield text[begin : start + 1]
                begin, at = start + 1, start + len(mark)
        yield text[begin:]

    def continued(self, text: str, ids_of: Callable[[str], list[int]]) -> list[int]:
        """`ids_of` a text, without the space that some tokenisers put before a first word."""
        ids = ids_of(text)
        if not self._prefix_space or self.text(ids[0]):
            return ids
        anchor, anchored = ids_of("\n"), ids_of("\n" + text)
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else ids
