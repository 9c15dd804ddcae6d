"""`BlockHead`: the context of a head that guesses several tokens in one pass (block diffusion).

Three heads work like this: DFlash; DSpark, where each guess depends on the best guess at the place
before; and DFlash2, which scores pairs of candidates at neighbouring places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from localspec.drafter_names import DFLASH
from localspec.engine.cancel import Cancel
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.context import Context
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.llama.heads.head import Head, view
from localspec.engine.llama.heads.target_states import Rows
from localspec.engine.llama.library import lib
from localspec.engine.llama.model import Model
from localspec.errors import EngineError

RowsAfter: TypeAlias = Callable[[int, int], Rows]
"""(previous token, tokens drafted so far) -> logits (n_vocab,) of the next token."""


class BlockHead(Head):
    """A cache of the target's states, and passes over it that leave the cache as it was.

    Row i holds the target's state at token i. A pass reads the newest token and a number of places
    to fill. All places see each other, so their number changes every guess.

    Attributes:
        longest: the most tokens of one pass.
    """

    def __init__(
        self, model: Model, target: Context, options: ContextOptions, cancel: Cancel | None = None
    ) -> None:
        """Make the context as `Head` does, and read from the file how the head was trained."""
        known = {name.removeprefix(f"{DFLASH}."): said for name, said in model.metadata.items()}
        anchor, places = known.get("sample_from_anchor"), int(known["block_size"])
        self._chained = anchor is not None
        self._skipped = int(anchor != "true")  # the newest token's own row guesses nothing
        self._candidates = int(known.get("selector_top_k", 0))
        self._mask = int(lib.llama_vocab_mask(lib.llama_model_get_vocab(model.handle)))
        self._causal = known.get("attention.causal") == "true"
        options = replace(options, n_batch=min(places, options.n_batch))
        super().__init__(model, target, options, cancel)
        self.longest = self.n_batch - self._skipped

    def _probe(self) -> Rollback:
        lib.llama_set_causal_attn(self._handle, self._causal)
        return super()._probe()

    def _begin(self, token: int) -> int:  # noqa: ARG002 - a row has no token
        return int(lib.llama_batch_ext_add(self._rows, 0))

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        """Keep the states of `tokens`, which the target has just decoded from `start` on."""
        self.keep(start)
        self.states.put(start, self.shown(len(tokens)))

    def decode(self, tokens: Sequence[int], n_logits: int) -> Rows:
        """Append a pass over `tokens`; return the logits of the last `n_logits` of them.

        The result is a view as in `Context.decode`, or zeros for a head that outputs candidates.
        """
        n = len(tokens)
        if not 0 < n <= min(self.free, self.n_batch):
            raise EngineError(f"cannot decode {n} rows of {self.model.name}: {self.free} fit")
        lib.llama_batch_ext_clear(self._rows)
        wanted = n_logits > 0 and not self._candidates
        for at, token in enumerate(tokens):
            index = int(lib.llama_batch_ext_add_token(self._rows, 0, token))
            self._place(index, self._position(self.end + at), output=wanted)
        self._process()
        self.tokens.extend(tokens)
        if not wanted:
            return np.zeros((n_logits, self.model.n_vocab), np.float32)
        first = self._logits_address(self._handle, n - n_logits)
        return view(first, n_logits, self.model.n_vocab)

    def guess(self, token: int, n: int) -> RowsAfter:
        """Guess `n` tokens after `token`, whose state is not computed yet, in one pass.

        Args:
            token: the newest one.
            n: at most `longest`.

        Returns:
            The logits of each guess, valid until the next pass; all minus infinity if the head made
            no guess that follows this previous token.

        Raises:
            Cancelled: the watched flag was set; the cache is as before.
            EngineError: llama.cpp could not decode; the cache is as before.
        """
        end = self.end
        try:
            rows = self.decode([token, *[self._mask] * (n - 1 + self._skipped)], n)
            if self._candidates:
                return self._after_candidates(self._scored(n))
        finally:
            self.keep(end)
        best = rows.argmax(axis=1) if self._chained else None

        def rows_after(before: int, drafted: int) -> Rows:
            if best is not None and drafted and best[drafted - 1] != before:
                return np.full(self.model.n_vocab, -np.inf, np.float32)
            found: Rows = rows[drafted]
            return found

        return rows_after

    def _scored(self, n: int) -> Rows:
        """Read the output of DFlash2: for each of `n` places candidates and their pair scores."""
        return view(self._call.get_states(self._handle), n + 1, self._inner)[1:]

    def _after_candidates(self, scored: Rows) -> RowsAfter:
        """Turn candidates and their scores, given each candidate before, into logits."""
        n, k = len(scored), self._candidates
        ids = scored[:, :k].astype(np.int64)
        scores = scored[:, k : k + k * k].reshape(n, k, k).copy()

        def rows_after(before: int, drafted: int) -> Rows:
            found = np.full(self.model.n_vocab, -np.inf, np.float32)
            came = np.flatnonzero(ids[drafted - 1] == before) if drafted else np.zeros(1, int)
            if len(came):
                found[ids[drafted]] = scores[drafted, came[0]]
            return found

        return rows_after
