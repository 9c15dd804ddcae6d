"""Two vocabularies and the bytes between them. Pure: it asks models about tokens, runs none.

What both can say is compared as bytes, since one and the same text stands in files of different
kinds with different letters for a space or a byte. What ends a turn goes by its role. Compare
2502.05202: the intersection of vocabularies (TLI), and text cut anew (SLEM).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.engine.sampling import Logits

_WINDOW = 16  # tokens before a change that may be cut anew with it
_LEAST = 4


class Tokenizer(Protocol):
    """What is asked about a model's tokens (see `Model`)."""

    n_vocab: int

    @property
    def bos(self) -> int | None:
        """The beginning-of-text token."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with it."""
        ...

    @property
    def end(self) -> int | None:
        """What ends a turn."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """All that ends generation."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether `token` ends generation."""
        ...

    def pieces(self) -> list[bytes]:
        """The bytes of all tokens, of control tokens none."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of `token`; of a control token none, unless `special`."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """`text` as ids."""
        ...


class Speller:
    """Cuts bytes into one vocabulary's tokens, so that these give the very same bytes again.

    Attributes:
        vocabulary: whose tokens.
        ids: of every byte string that one token stands for the ids, the usual one first.
    """

    def __init__(self, vocabulary: Tokenizer) -> None:
        self.vocabulary = vocabulary
        self.ids: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, piece in enumerate(vocabulary.pieces()):
            if piece and token not in vocabulary.end_tokens:
                self.ids[piece].append(token)
        for piece, alike in self.ids.items():
            if len(alike) > 1:
                usual = self.cut(piece)
                alike.sort(key=lambda token, usual=usual: [token] != usual)  # type: ignore[misc]

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens`."""
        return b"".join(map(self.vocabulary.piece, tokens))

    def lengths(self, tokens: Sequence[int]) -> list[int]:
        """How many bytes each of `tokens` has; one that has none counts as one."""
        return [max(1, len(self.vocabulary.piece(token))) for token in tokens]

    def cut(self, text: bytes) -> list[int] | None:
        """`text` as tokens; bytes that are no whole character (yet) one by one.

        None where the vocabulary cannot say exactly this.
        """
        ids: list[int] = []
        while text:
            try:
                whole, broken, text = text.decode(), b"", b""
            except UnicodeDecodeError as error:
                whole, broken = text[: error.start].decode(), text[error.start : error.end]
                text = text[error.end :]
            single = [self.ids.get(bytes([byte])) for byte in broken]
            written = self._characters(whole)
            if written is None or not all(single):
                return None
            ids += [*written, *(alike[0] for alike in single if alike)]
        return ids

    def _characters(self, text: str) -> list[int] | None:
        """The same for whole characters, whatever a tokenizer puts in front of them."""
        wanted = text.encode()
        for given in (text, text.removeprefix(" "), f"\n{text}"):
            ids = self.vocabulary.tokenize(given, add_special=False, parse_special=False)
            excess = len(self.text(ids)) - len(wanted)
            while excess > 0:
                excess -= len(self.vocabulary.piece(ids.pop(0)))
            if self.text(ids) == wanted:
                return ids
        return None


class Translation:
    """Between a target's tokens and those of a draft that has others."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = Speller(target), Speller(draft)
        self._special: dict[int, list[int] | None] = {}
        shared = [
            (theirs[0], ours)
            for piece, ours in self.draft.ids.items()
            if (theirs := self.target.ids.get(piece))
        ]
        ends = sorted(draft.end_tokens)
        if target.end is not None and ends:
            shared.append((target.end, ends))
        # Where a target's token finds its logit; behind the draft's last one there is none.
        self._first = np.full(target.n_vocab, draft.n_vocab)
        self._first[[theirs for theirs, _ in shared]] = [ours[0] for _, ours in shared]
        more = [(theirs, token) for theirs, ours in shared for token in ours[1:]]
        self._again, self._more = np.array(more, np.int64).reshape(-1, 2).T
        self._padded = np.full(draft.n_vocab + 1, -np.inf, np.float32)

    def row(self, logits: Logits) -> Logits:
        """The draft's logits (draft's n_vocab,) as logits of the target's tokens (n_vocab,).

        What only one of both has is left out (minus infinity), so that a softmax is renormalised
        over what both have; the mass of tokens with the same bytes is added up.
        """
        self._padded[:-1] = logits
        row: Logits = self._padded[self._first]
        np.logaddexp.at(row, self._again, self._padded[self._more])
        return row

    def to_draft(self, token: int) -> list[int]:
        """How the draft says a token of the target's: as one of its own if `row` offers it."""
        same = int(self._first[token])
        if same < len(self._padded) - 1:
            return [same]
        special = self.special(token)
        if special is None:
            return self.draft.cut(self.target.vocabulary.piece(token)) or []
        return special

    def special(self, token: int) -> list[int] | None:
        """What stands for a control token of the target in the draft's text; None for text.

        What ends a turn goes by that role; others by their names, if need be in letters.
        """
        ours, theirs = self.target.vocabulary, self.draft.vocabulary
        if ours.piece(token) and not ours.is_end(token):
            return None
        if token not in self._special:
            self._special[token] = self._control(token, ours, theirs)
        return self._special[token]

    def _control(self, token: int, ours: Tokenizer, theirs: Tokenizer) -> list[int]:
        if token == ours.bos:
            return []
        if ours.is_end(token) and theirs.end is not None:
            return [theirs.end]
        name = ours.piece(token, special=True).decode("utf-8", "replace")
        return theirs.tokenize(name, add_special=False, parse_special=True)

    def followed(self, tokens: Sequence[int], text: bytes) -> list[int]:
        """What the target makes of `text` behind `tokens`: the tokens that follow them.

        The last ones of `tokens` are cut anew with it, since where a text is cut depends on what
        stands around the place.
        """
        before = b""
        for token in reversed(tokens[-_WINDOW:]):
            if self.special(token) is not None:
                break
            before = self.target.vocabulary.piece(token) + before
        at, ids = 0, self.target.cut(before + text) or []
        for i, token in enumerate(ids):
            if at == len(before):
                return ids[i:]
            at += len(self.target.vocabulary.piece(token))
        return self.target.cut(text) or []


class Spelling:
    """A target's text as a draft with other tokens reads it, growing at its end.

    Attributes:
        ids: the draft's tokens.
        tokens: the target's that they stand for.
        exact: whether the draft can say all of it.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.begin()

    def begin(self) -> None:
        """Nothing is there but what every text begins with."""
        draft = self._translation.draft.vocabulary
        self.ids: list[int] = [draft.bos] if draft.add_bos and draft.bos is not None else []
        self.tokens: list[int] = []
        self.exact = True
        self._run = len(self.ids)  # where text begins that no control token interrupts

    def follow(self, tokens: Sequence[int]) -> int:
        """Spell what is new in `tokens`; return how many of `ids` stay as they were."""
        text, kept = b"", len(self.ids)
        for token in tokens[len(self.tokens) :]:
            special = self._translation.special(token)
            if special is None:
                text += self._translation.target.vocabulary.piece(token)
                continue
            kept = min(kept, self._write(text))
            text = b""
            self.ids += special
            self._run = len(self.ids)
        kept = min(kept, self._write(text))
        self.tokens = list(tokens)
        return kept

    def _write(self, text: bytes) -> int:
        """Put `text` to the end, cut together with the last word; return what stays of `ids`."""
        if not text:
            return len(self.ids)
        draft, start = self._translation.draft, self._word()
        ids = draft.cut(draft.text(self.ids[start:]) + text)
        if ids is None:
            self.exact = False
            return len(self.ids)
        old, self.ids[start:] = self.ids[start:], ids
        same = (i for i, (a, b) in enumerate(zip(old, ids, strict=False)) if a != b)
        return start + next(same, min(len(old), len(ids)))

    def _word(self) -> int:
        """Where a word begins, a few tokens before the end."""
        last = max(self._run, len(self.ids) - _LEAST)
        first = max(self._run, len(self.ids) - _WINDOW)
        piece = self._translation.draft.vocabulary.piece
        for start in range(last, first, -1):
            if piece(self.ids[start])[:1].isspace():
                return start
        return first
