"""The request to load: which models, how they run, and how a conversation begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The request from the command line or a program, as plain values.

    Attributes:
        pair: a pair's name, a file or a reference; None for the starter, or for the pair used last
            where `chat` or `serve` asks.
        draft: what drafts, separated by commas: files of models or heads, references, pairs' names,
            and the words ``auto`` (everything available: the pair's own draft, the head inside the
            target, and lookup), ``lookup``, ``none``, and kinds of heads (``mtp``, ``dspark``,
            ``dflash``, ``eagle3``) inside the target or next to it; None means ``auto``.
        lora: LoRA adapters of the target: the file and the scale of each.
        past: whether lookup also copies from earlier stored conversations.
        scan: whether a name may mean another program's model on this disk.
        ctx_size: tokens; 0 for the trained context of the target, None to choose.
        threads: CPU threads, None to choose.
        threads_batch: the same for batches, None for `threads`.
        n_gpu_layers: layers on an accelerator, -1 for all, None for as many as fit.
        n_cpu_moe: layers, from the first, whose experts stay in main memory; None to choose.
        cpu_moe: keep the experts of all layers there.
        device: names of the devices to use, empty for none, None for all.
        split_mode: how devices share the target: ``layer`` (whole layers), ``row`` and ``tensor``
            (parts of every matrix, so that all compute at the same time), or ``none`` (it is on
            the first device alone).
        tensor_split: proportions in which the target's devices share its layers, in llama.cpp's
            order of devices; empty to choose.
        draft_device: names of the draft's allowed devices; None for the target's.
        rpc: workers, HOST:PORT, whose devices are used as well.
        flash_attn: ``on``, ``off`` or ``auto``.
        cache_type_k, cache_type_v: types of the cache, None to choose.
        mmap: map the weights, or copy them; None to map them where all devices support that, and
            where they find no room in memory.
        mlock: keep the weights from being swapped out.
        exact: make passes of all sizes give equal bits, so that drafting changes none; None where
            that costs next to nothing.
        temp, top_k, top_p, min_p: the sampler chain; None for the advice for the model.
        seed: of the random draws; None draws one.
        n_predict: the most tokens to generate, -1 for no limit.
        reasoning, reasoning_effort, reasoning_budget, reasoning_format: as in `ChatSettings`.
        draft_anyway: load a draft model even if its steps are too slow to save time here.
        system_prompt: empty for none.
        chat_template: replaces the target's own; None keeps that.
        stop: strings that end an answer.
        typical_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, logit_bias:
            the rest of the sampler chain.
        grammar: GBNF or Lark grammar of the answer; None for none.
        accept: name of the acceptance rule, None to choose.
        lossy: lenience of a lossy rule, None for lossless.
        repeat_stop: whether to stop an answer that only repeats itself.
    """

    pair: str | None = None
    draft: str | None = None
    lora: tuple[tuple[str, float], ...] = ()
    past: bool = True
    scan: bool = True
    ctx_size: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    cpu_moe: bool = False
    device: tuple[str, ...] | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    draft_threads: int | None = None
    draft_n_gpu_layers: int | None = None
    draft_device: tuple[str, ...] | None = None
    rpc: tuple[str, ...] = ()
    flash_attn: str = "auto"
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    mmap: bool | None = None
    mlock: bool = False
    exact: bool | None = None
    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n_predict: int = -1
    reasoning: Literal["on", "off", "auto"] = "auto"
    reasoning_effort: str | None = None
    reasoning_budget: int = -1
    reasoning_format: Literal["auto", "none"] = "auto"
    gamma: int | Literal["auto"] = "auto"
    draft_anyway: bool = False
    system_prompt: str = ""
    chat_template: str | None = None
    stop: tuple[str, ...] = ()
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    json_schema: str | None = None
    accept: str | None = None
    lossy: float | None = None
    repeat_stop: bool = False

    @property
    def keeps_draft(self) -> bool:
        """Whether a draft is loaded even if it is known to save no time."""
        return self.draft_anyway or self.gamma != "auto"

    def asked_threads(self, *, draft: bool) -> int | None:
        """The requested threads of a model, if any; `exact` implies one for the target alone."""
        if draft:
            return self.draft_threads or (None if self.exact else self.threads)
        return self.threads


class LoadOptions(TypedDict, total=False):
    """`LoadRequest` as keyword arguments of `localspec.load`; lists are accepted for tuples.

    It is for type checkers, which cannot take it from `LoadRequest`; tests hold both together.
    """

    draft: str | None
    lora: str | Sequence[str | tuple[str, float]]
    scan: bool
    past: bool
    ctx_size: int | None
    threads: int | None
    threads_batch: int | None
    n_gpu_layers: int | Literal["auto", "all"] | None
    n_cpu_moe: int | None
    cpu_moe: bool
    device: str | Sequence[str] | None
    split_mode: str
    tensor_split: str | Sequence[float]
    draft_threads: int | None
    draft_n_gpu_layers: int | Literal["auto", "all"] | None
    draft_device: str | Sequence[str] | None
    rpc: str | Sequence[str]
    flash_attn: str
    cache_type_k: str | None
    cache_type_v: str | None
    mmap: bool | None
    mlock: bool
    exact: bool | None
    temp: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    n_predict: int
    gamma: int | Literal["auto"]
    draft_anyway: bool
    system_prompt: str
    chat_template: str | None
    stop: str | Sequence[str]
    typical_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repeat_last_n: int | None
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    grammar: str | None
    json_schema: str | None
    reasoning: Literal["on", "off", "auto"]
    reasoning_effort: str | None
    reasoning_budget: int
    reasoning_format: Literal["auto", "none"]
    accept: str | None
    lossy: float | None
    repeat_stop: bool
