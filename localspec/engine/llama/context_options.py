"""The options of a context: `ContextOptions`, and their llama.cpp struct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec.engine.llama.library import lib
from localspec.engine.llama.platform.hardware import default_threads
from localspec.limits import MAX_BATCH_OUTPUTS, N_BATCH

# enum ggml_type
_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3}
_TYPES |= {"iq4_nl": 20, "q5_0": 6, "q5_1": 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How to make a context.

    Attributes:
        n_ctx: capacity in tokens.
        n_batch: tokens per decode of a prompt.
        threads: CPU threads; None for one per physical core.
        threads_batch: the same for decodes of several tokens; None for `threads`.
        flash_attention: None lets llama.cpp decide.
        snapshots: for recurrent layers, how many tokens of the last batch can be removed without
            decoding the rest again. Each costs a copy of the state; other architectures ignore it.
        cache_k, cache_v: types of the cache, by llama.cpp's names.
        copies: whether the cache can be filled with copies, to measure at longer contexts.
    """

    n_ctx: int
    n_batch: int = N_BATCH
    threads: int | None = None
    threads_batch: int | None = None
    flash_attention: bool | None = None
    snapshots: int = 0
    cache_k: str = "f16"
    cache_v: str = "f16"
    copies: bool = False

    def params(self) -> Any:
        """llama.cpp's struct with these options."""
        params = lib.llama_context_default_params()
        threads = self.threads or default_threads()
        params.n_ctx = self.n_ctx
        params.n_batch = params.n_ubatch = min(self.n_batch, self.n_ctx)
        params.n_seq_max, params.kv_unified = (2, True) if self.copies else (1, params.kv_unified)
        params.n_rs_seq = self.snapshots
        params.n_outputs_max = min(MAX_BATCH_OUTPUTS, params.n_batch)
        params.n_threads, params.n_threads_batch = threads, self.threads_batch or threads
        params.type_k, params.type_v = _TYPES[self.cache_k], _TYPES[self.cache_v]
        params.no_perf = True
        if self.flash_attention is not None:
            params.flash_attn_type = int(self.flash_attention)
        return params
