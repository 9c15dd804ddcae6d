"""llama.cpp's grammars as constraints: GBNF text, or a JSON schema turned into it."""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np
from llama_cpp import llama_cpp as lib
from llama_cpp import llama_grammar as schema_converter

from localspec.engine.llama.log import start_backend
from localspec.errors import EngineError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from localspec.engine.llama import Model

ROOT = b"root"
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaGrammar:
    """One state of a grammar over one model's vocabulary.

    Control tokens are never allowed, but for those that end generation: llama.cpp matches their
    names against the grammar as if they were text, though nobody gets to see that text.
    """

    def __init__(self, handle: int, hidden: NDArray[np.bool_], ends: frozenset[int]) -> None:
        self._handle = handle
        self._hidden = hidden
        self._ends = ends
        self._over = False

    @classmethod
    def parse(cls, model: Model, gbnf: str) -> LlamaGrammar:
        """The state of the grammar `gbnf`, whose start symbol is ``root``, before any text.

        Raises:
            UsageError: it is no grammar. Check with `check_grammar` first: llama.cpp writes what
                it dislikes to standard error.
        """
        with start_backend().section() as section:
            vocab = lib.llama_model_get_vocab(model.handle)
            handle = lib.llama_sampler_init_grammar(vocab, _encoded(gbnf), ROOT)
        if not handle:
            raise _refusal(section.reason())
        ends = model.end_tokens
        hidden = np.fromiter(
            (bool(lib.llama_vocab_is_control(vocab, i)) for i in range(model.n_vocab)),
            np.bool_,
            model.n_vocab,
        )
        hidden[list(ends)] = False
        return cls(handle, hidden, ends)

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,). After the end: all, since nobody reads on."""
        if self._over:
            return np.ones(len(ids), np.bool_)
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        data = candidates.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        array = lib.llama_token_data_array(data, len(ids), -1, False)
        lib.llama_sampler_apply(self._handle, ctypes.byref(array))
        possible: NDArray[np.bool_] = candidates["logit"] == 0
        possible &= ~self._hidden[ids]
        return possible

    def after(self, token: int) -> LlamaGrammar:
        """The state once `token` has come.

        Raises:
            EngineError: the grammar does not allow it (llama.cpp would end the process).
        """
        known = 0 <= token < len(self._hidden)
        if not (known and self.allowed(np.array([token]))[0]):
            raise EngineError(f"token {token} breaks the grammar")
        if self._over:
            return self
        state = LlamaGrammar(lib.llama_sampler_clone(self._handle), self._hidden, self._ends)
        state._over = token in self._ends
        if not state._over:
            lib.llama_sampler_accept(state._handle, token)
        return state

    def __del__(self) -> None:
        lib.llama_sampler_free(self._handle)


def check_grammar(gbnf: str) -> None:
    """Find out, without a model, whether `gbnf` is a grammar.

    llama.cpp's parser writes to standard error, past its own log: for the length of this call that
    is a file. Call it before a screen is up.

    Raises:
        UsageError: it is none; the message carries the parser's reason.
    """
    with start_backend().section() as section, tempfile.TemporaryFile() as caught:
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
    elif "no vocab to parse token" not in written:
        reason = written.partition("error parsing grammar: ")[2].partition("\n\n")[0]
        raise _refusal(" ".join(reason.split())[:200] or section.reason())


def schema_to_gbnf(schema: str) -> str:
    """The GBNF of a JSON schema, given as JSON text.

    Raises:
        UsageError: not JSON, no schema, or one that refers to the network.
    """
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise UsageError(f"the JSON schema is not JSON: {error}", "Check the schema.") from error
    if not isinstance(parsed, dict):
        raise UsageError("the JSON schema is not a JSON object", "Check the schema.")
    try:
        gbnf: str = schema_converter.json_schema_to_gbnf(schema)
    except Exception as error:  # the converter raises what it happens to meet
        raise UsageError(
            f"this JSON schema cannot become a grammar: {error}",
            "Use JSON Schema without remote references; see llama.cpp's grammars/README.md.",
        ) from error
    return gbnf


def _encoded(gbnf: str) -> bytes:
    raw = gbnf.encode("utf-8", "replace")
    if not raw.strip() or b"\0" in raw:
        raise _refusal("it is empty" if not raw.strip() else "it contains a zero byte")
    return raw


def _refusal(reason: str) -> UsageError:
    return UsageError(
        f"the grammar is not valid: {reason or 'llama.cpp gives no reason'}",
        "Write GBNF with a rule named root; see llama.cpp's grammars/README.md.",
    )
