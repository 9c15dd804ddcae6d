"""llama.cpp's grammars (GBNF) as constraints."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from localspec.engine.llama import Model
from localspec.engine.llama.library import lib
from localspec.engine.llama.log import NO_REASON, start_backend
from localspec.engine.scratch import nameless_file
from localspec.errors import EngineError, UsageError

ROOT = b"root"
_MANY = 512  # from this many ids on, filtering by first byte is faster
# llama.cpp recurses for every bracket and for every rule that begins with another: too deep a
# grammar would end the process. A repetition with a maximum below its minimum would fill the
# memory.
_DEEPEST = 1000
_MOST_RULES = 10_000
_WRITTEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)
_REPEATED = re.compile(r"\{\s*([0-9]{1,99})\s*,\s*([0-9]{1,99})\s*\}")
# llama.cpp's grammars accept these bytes as characters, but no valid text has them (RFC 3629).
_NO_TEXT = re.compile(
    rb"[\xC0\xC1\xF5-\xFF]|\xE0[\x80-\x9F]|\xED[\xA0-\xBF]|\xF0[\x80-\x8F]|\xF4[\x90-\xBF]"
)
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaGrammar:
    """One state of a grammar over a model's vocabulary.

    Two kinds of tokens are never allowed: control tokens that do not end generation, since
    llama.cpp matches their names as if they were text although the user never sees that text; and
    bytes that cannot be part of valid text.
    """

    def __init__(
        self, handle: int, vocabulary: LlamaVocabulary, *, before: int = 0, over: bool = False
    ) -> None:
        self._handle = handle
        self._vocabulary = vocabulary
        self._before = before  # the last byte of the text so far
        self._over = over
        self._first: NDArray[np.bool_] | None = None

    @classmethod
    def parse(
        cls, model: Model, gbnf: str, vocabulary: LlamaVocabulary | None = None
    ) -> LlamaGrammar:
        """Parse `gbnf`, whose start symbol is ``root``; return the state before any text.

        Args:
            model: whose tokens the grammar is about.
            gbnf: the grammar.
            vocabulary: the model's; None to read it, which takes long where it is large.

        Raises:
            UsageError: `gbnf` is not a grammar. Call `check_grammar` first: llama.cpp writes its
                complaints to standard error.
        """
        section, vocab = start_backend().section(), lib.llama_model_get_vocab(model.handle)
        handle = lib.llama_sampler_init_grammar(vocab, _encoded(gbnf), ROOT)
        if not handle:
            raise _refusal(section.text())
        return cls(handle, vocabulary or LlamaVocabulary.of(model))

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,). After the end all may: the text is complete."""
        if self._over:
            return np.ones(len(ids), np.bool_)
        if len(ids) <= _MANY:
            return self._ask(ids)
        possible = self._begins()[self._vocabulary.first[ids]]
        possible[possible] = self._ask(ids[possible])
        return possible

    def _begins(self) -> NDArray[np.bool_]:
        """Which first bytes need to be asked about (256,): a grammar reads byte by byte.

        If a token of one ASCII character is not allowed, no longer token that begins with it is.
        """
        if self._first is None:
            known = self._vocabulary.single
            worth = np.ones(256, np.bool_)
            bytes_ = np.flatnonzero(known >= 0)
            worth[bytes_] = self._ask(known[bytes_])
            self._first = worth
        return self._first

    def _ask(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ask llama.cpp which of `ids` (k,) may come next: (k,)."""
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        data = candidates.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data, len(ids), -1, False)
        lib.llama_sampler_apply(self._handle, ctypes.byref(array))
        possible: NDArray[np.bool_] = candidates["logit"] == 0
        possible &= ~self._vocabulary.hidden[ids]
        if self._before >= 0xE0:
            possible &= _text_after(self._before)[self._vocabulary.first[ids]]
        return possible

    def after(self, token: int) -> LlamaGrammar:
        """The state after `token`.

        Raises:
            EngineError: the grammar does not allow it (llama.cpp would end the process).
        """
        known = 0 <= token < len(self._vocabulary.hidden)
        if not (known and self.allowed(np.array([token]))[0]):
            raise EngineError(f"token {token} breaks the grammar")
        if self._over:
            return self
        over = token in self._vocabulary.ends
        state = LlamaGrammar(
            lib.llama_sampler_clone(self._handle),
            self._vocabulary,
            before=int(self._vocabulary.last[token]),
            over=over,
        )
        if not over:
            lib.llama_sampler_accept(state._handle, token)
        return state

    def __del__(self) -> None:
        lib.llama_sampler_free(self._handle)


@dataclass(frozen=True, slots=True)
class LlamaVocabulary:
    """What a grammar needs to know about a vocabulary of n tokens.

    Attributes:
        hidden: (n,) control tokens that do not end generation, and bytes of invalid text.
        first: (n,) the first byte of each token's text, 255 for an empty one.
        last: (n,) the last byte, 0 for an empty one.
        single: (256,) the token that is exactly this ASCII character, or -1.
        ends: the ids that end generation.
    """

    hidden: NDArray[np.bool_]
    first: NDArray[np.uint8]
    last: NDArray[np.uint8]
    single: NDArray[np.int64]
    ends: frozenset[int]

    @staticmethod
    def of(model: Model) -> LlamaVocabulary:
        """Read it from `model`."""
        vocab = lib.llama_model_get_vocab(model.handle)
        n, ends = model.n_vocab, model.end_tokens
        hidden = np.array([lib.llama_vocab_is_control(vocab, i) for i in range(n)], np.bool_)
        hidden[list(ends)] = False
        first, last = np.full(n, 255, np.uint8), np.zeros(n, np.uint8)
        single = np.full(256, -1, np.int64)
        for token in range(n):
            text = model.piece(token)
            if text and token not in ends:
                first[token], last[token] = text[0], text[-1]
                hidden[token] |= _NO_TEXT.search(text) is not None
                if len(text) == 1 and text[0] < 128:
                    single[text[0]] = token
        return LlamaVocabulary(hidden, first, last, single, ends)


@cache
def _text_after(before: int) -> NDArray[np.bool_]:
    """Which bytes may follow the byte `before` (256,)."""
    return np.array([_NO_TEXT.match(bytes([before, byte])) is None for byte in range(256)])


def check_grammar(gbnf: str) -> None:
    """Check without a model that `gbnf` is a grammar.

    llama.cpp's parser bypasses its own log and writes to standard error, which this call redirects
    to a file. Call it before the screen starts.

    Raises:
        UsageError: it is not; the message has the parser's reason.
    """
    section = start_backend().section()
    with nameless_file() as caught:
        kept = os.dup(2)
        try:
            os.dup2(caught.fileno(), 2)
            handle = lib.llama_sampler_init_grammar(None, _encoded(gbnf), ROOT)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        caught.seek(0)
        written = caught.read().decode("utf-8", "replace")
    if handle:
        lib.llama_sampler_free(handle)
    else:
        reason = written.partition("error parsing grammar: ")[2].partition("\n\n")[0]
        raise _refusal(" ".join(reason.split())[:200] or section.text())


def _encoded(gbnf: str) -> bytes:
    raw = gbnf.encode("utf-8", "replace")
    if not raw.strip() or b"\0" in raw:
        raise _refusal("it is empty" if not raw.strip() else "it contains a zero byte")
    bare = _WRITTEN.sub("", gbnf)
    if "<" in bare:  # llama.cpp lets a token come that it then ends the process for
        raise UsageError(
            "localspec takes no names of tokens in GBNF",
            "Write the grammar in llguidance's Lark, where %mark names a mark.",
        )
    if max(accumulate(((char == "(") - (char == ")") for char in bare), initial=0)) > _DEEPEST:
        raise _refusal(f"its brackets are more than {_DEEPEST} deep")
    if bare.count("::=") > _MOST_RULES:
        raise _refusal(f"it has more than {_MOST_RULES:,} rules")
    for least, most in _REPEATED.findall(bare):
        if int(least) > int(most):
            raise _refusal(f"the repetition {{{least},{most}}} ends below where it begins")
    return raw


def _refusal(reason: str) -> UsageError:
    return UsageError(
        f"the grammar is not valid: {reason or NO_REASON}",
        "Write GBNF with a rule named root; see llama.cpp's grammars/README.md.",
    )
