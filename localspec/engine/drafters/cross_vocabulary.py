"""Maps between two vocabularies, through the bytes of their tokens. Pure: it runs no model.

Tokens are compared as bytes, since files of different kinds spell a space or a byte differently.
Tokens that end a turn are mapped by that role. Compare 2502.05202: the intersection of two
vocabularies (TLI), and text that is tokenized again (SLEM).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.engine.common_prefix import common_prefix
from localspec.engine.exact_ids import Vocabulary, exact_ids
from localspec.engine.round.sampling import Logits

_WINDOW = 16  # tokens before a change that may be cut anew with it
_LEAST = 4


class Tokenizer(Vocabulary, Protocol):
    """What is asked about a model's tokens (see `Model`)."""

    n_vocab: int

    @property
    def bos(self) -> int | None:
        """The beginning-of-text token."""

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with it."""

    @property
    def end(self) -> int | None:
        """What ends a turn."""

    def is_end(self, token: int) -> bool:
        """Whether `token` ends generation."""

    def pieces(self) -> list[bytes]:
        """The bytes of all tokens, of control tokens none."""


class Speller:
    """Cuts bytes into tokens of one vocabulary that stand for exactly these bytes.

    Attributes:
        ids: by byte string, the ids of the tokens that stand for it, the usual one first.
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
        """How many bytes each of `tokens` has, at least 1."""
        return [max(1, len(self.vocabulary.piece(token))) for token in tokens]

    def cut(self, text: bytes) -> list[int] | None:
        """`text` as tokens; bytes that do not make whole characters become one token each.

        None if the vocabulary cannot say exactly this.
        """
        ids: list[int] = []
        while text:
            try:
                whole, broken, text = text.decode(), b"", b""
            except UnicodeDecodeError as error:
                whole, broken = text[: error.start].decode(), text[error.start : error.end]
                text = text[error.end :]
            single = [self.ids.get(bytes([byte])) for byte in broken]
            written = exact_ids(whole, self.vocabulary)
            if written is None or not all(single):
                return None
            ids += [*written, *(alike[0] for alike in single if alike)]
        return ids


class VocabularyMap:
    """Maps between the tokens of a target and those of a draft with another vocabulary."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = Speller(target), Speller(draft)
        self._special: dict[int, list[int] | None] = {}
        self._alone: dict[int, int] = {}
        shared = [
            (theirs[0], ours)
            for piece, ours in self.draft.ids.items()
            if (theirs := self.target.ids.get(piece))
        ]
        ends = sorted(draft.end_tokens)
        if target.end is not None and ends:
            shared.append((target.end, ends))
        # By target token, the index of its logit; the draft's n_vocab if it has none.
        self._first = np.full(target.n_vocab, draft.n_vocab)
        self._first[[theirs for theirs, _ in shared]] = [ours[0] for _, ours in shared]
        more = [(theirs, token) for theirs, ours in shared for token in ours[1:]]
        self._again, self._more = np.array(more, np.int64).reshape(-1, 2).T
        self._padded = np.full(draft.n_vocab + 1, -np.inf, np.float32)

    def row(self, logits: Logits) -> Logits:
        """The draft's logits (draft's n_vocab,) as logits of the target's tokens (n_vocab,).

        Tokens that only one of them has get minus infinity, so that a softmax is renormalised over
        the shared ones. The mass of tokens with the same bytes is added up.
        """
        self._padded[:-1] = logits
        row: Logits = self._padded[self._first]
        np.logaddexp.at(row, self._again, self._padded[self._more])
        return row

    def to_draft(self, token: int) -> list[int]:
        """The draft's tokens for a token of the target: a single one if `row` offers it."""
        same = int(self._first[token])
        if same < len(self._padded) - 1:
            return [same]
        special = self.special(token)
        if special is None:
            return self.draft.cut(self.target.vocabulary.piece(token)) or []
        return special

    def alone(self, token: int) -> int:
        """How many of the target's tokens a token of the draft is where no text surrounds it."""
        if token not in self._alone:
            self._alone[token] = len(self.target.cut(self.draft.vocabulary.piece(token)) or ())
        return self._alone[token]

    def special(self, token: int) -> list[int] | None:
        """The draft's tokens for a control token of the target; None if `token` is text.

        Tokens that end a turn are mapped by that role, others by their names, if need be as text.
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
        """The target's tokens for `text` after `tokens`.

        The last of `tokens` are tokenized again together with it, since tokens depend on the text
        around them.
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
    """A growing text of the target, in the tokens of a draft with another vocabulary.

    Attributes:
        ids: the draft's tokens.
        tokens: the target's tokens that they stand for.
        exact: whether the draft's vocabulary can say all of it.
    """

    def __init__(self, vocabularies: VocabularyMap) -> None:
        self._vocabularies = vocabularies
        self.begin()

    def begin(self) -> None:
        """Start with what every text begins with."""
        draft = self._vocabularies.draft.vocabulary
        self.ids: list[int] = [draft.bos] if draft.add_bos and draft.bos is not None else []
        self.tokens: list[int] = []
        self.exact = True
        self._run = len(self.ids)  # where text begins that no control token interrupts

    def follow(self, tokens: Sequence[int]) -> int:
        """Spell what is new in `tokens`; return how many of `ids` stay as they were."""
        text, kept = b"", len(self.ids)
        for token in tokens[len(self.tokens) :]:
            special = self._vocabularies.special(token)
            if special is None:
                text += self._vocabularies.target.vocabulary.piece(token)
                continue
            kept = min(kept, self._write(text))
            text = b""
            self.ids += special
            self._run = len(self.ids)
        kept = min(kept, self._write(text))
        self.tokens = list(tokens)
        return kept

    def _write(self, text: bytes) -> int:
        """Append `text`, cut together with the last word; return how many of `ids` stay."""
        if not text:
            return len(self.ids)
        draft, start = self._vocabularies.draft, self._word()
        ids = draft.cut(draft.text(self.ids[start:]) + text)
        if ids is None:
            self.exact = False
            return len(self.ids)
        old, self.ids[start:] = self.ids[start:], ids
        return start + common_prefix(old, ids)

    def _word(self) -> int:
        """The index of a token that begins a word, a few tokens before the end."""
        last = max(self._run, len(self.ids) - _LEAST)
        first = max(self._run, len(self.ids) - _WINDOW)
        piece = self._vocabularies.draft.vocabulary.piece
        for start in range(last, first, -1):
            if piece(self.ids[start])[:1].isspace():
                return start
        return first
