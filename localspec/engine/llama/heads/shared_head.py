"""`SharedHead`: the context of a head without a cache, which reads the cells of its target.

This is Gemma 4's assistant. It reads the keys and values of the target's last two layers, one with
a sliding window and one without, and adds none. Never empty or cut the cache of such a context:
llama.cpp would apply some of that to the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafter_names import ASSISTANT, DFLASH
from localspec.engine.cancel import Cancel
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.context import Context
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.llama.heads.block_head import BlockHead
from localspec.engine.llama.heads.head import Head, view
from localspec.engine.llama.heads.target_states import Rows
from localspec.engine.llama.library import lib
from localspec.engine.llama.model import Model
from localspec.errors import EngineError


class SharedHead(Head):
    """The target's states, and passes after them that add nothing to the cache.

    A pass reads a token with the state of the token before; its logits predict the token after.
    llama.cpp accepts one position only, the one after the target's last token, for every token of a
    draft.

    As a `Context` it is always empty, and can follow every rollback of the target.
    """

    holds = False

    def __init__(
        self, model: Model, target: Context, options: ContextOptions, cancel: Cancel | None = None
    ) -> None:
        """Make the context as `Head` does; the target's contents are saved and restored.

        Making it silently clears what llama.cpp knows of the target's cells.
        """
        # The cells are the target's, and their layout depends on flash attention and on the cache
        # types.
        same = target.options
        options = replace(
            options,
            n_ctx=target.n_ctx,
            flash_attention=same.flash_attention,
            cache_k=same.cache_k,
            cache_v=same.cache_v,
            copies=same.copies,
        )
        held, state = tuple(target.tokens), target.state() if target.tokens else None
        try:
            super().__init__(model, target, options, cancel)
        finally:
            if state is not None:
                target.restore(held, state)

    def _params(self, options: ContextOptions) -> Any:
        params = super()._params(options)
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        params.n_batch = params.n_ubatch = params.n_outputs_max = 1
        return params

    def _probe(self) -> Rollback:
        """Warm up."""
        self._rows = lib.llama_batch_ext_init(self._handle)
        self._call.set_states(self._handle, True, False)
        self.decode([0], min(1, self.free))
        return Rollback.REMOVAL

    @property
    def held(self) -> int:
        """Tokens that the target holds."""
        return len(self.target.tokens)

    @property
    def end(self) -> int:
        """The position of the next pass, after the target's tokens."""
        return self.held

    @property
    def token_bytes(self) -> float:
        """Bytes that a pass reads per token of the target, as if all of its layers were alike."""
        own = int(lib.llama_model_n_layer_nextn(self.model.handle))
        return (
            self.target.token_bytes * own / int(lib.llama_model_n_layer(self.target.model.handle))
        )

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        """Keep the states of `tokens`, which the target has just decoded from `start` on."""
        self.states.put(start, self.shown(len(tokens)))

    def read(
        self,
        tokens: Sequence[int],
        states: Rows,
        *,
        output: bool,
        layer: int | None = None,  # noqa: ARG002 - one pass runs all layers
    ) -> tuple[Rows, Rows]:
        """Run one pass over the last row; the target has already read the earlier rows.

        Args, results and errors are those of `Head.read`.
        """
        if not output:
            return np.empty(0, np.float32), np.empty((0, self.width), np.float32)
        if not self.free:
            raise EngineError(f"cannot draft with {self.model.name}: the context is full")
        lib.llama_batch_ext_clear(self._rows)
        self._add(self._begin(tokens[-1]), states[-1], self.end, output=True)
        self._process()
        logits = view(self._logits_address(self._handle, 0), 1, self.model.n_vocab)
        return logits[0].copy(), view(self._call.get_states(self._handle), 1, self.width).copy()

    def start(self, first: int) -> None:
        """Do nothing: the head has no cache to empty."""

    def state_bytes(self) -> int:
        """As `Context.state_bytes`."""
        return self._known_bytes()

    def state(self) -> NDArray[np.uint8]:
        """Copy the target's states."""
        return self._known()

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> None:  # noqa: ARG002
        """Restore the target's states from `state`; the target restores its tokens itself."""
        self.clear()
        self._recall(state)


def head_of(
    model: Model, target: Context, options: ContextOptions, cancel: Cancel | None = None
) -> Head:
    """Make the context of a head of any kind. Arguments and errors: see `Head`."""
    kinds = {DFLASH: BlockHead, ASSISTANT: SharedHead}
    return kinds.get(model.metadata["general.architecture"], Head)(model, target, options, cancel)
