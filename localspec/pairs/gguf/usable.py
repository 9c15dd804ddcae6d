"""Finds models that llama.cpp cannot chat with or would crash on, by their headers.

llama.cpp reports most damage itself. Where it asserts instead (src/llama-model.cpp,
src/llama-vocab.cpp, ggml's operators) or reads out of bounds, this module checks the header against
llama.cpp's assumptions. Every file that llama.cpp can use passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from localspec.drafter_names import ASSISTANT, DFLASH, DSPARK, EAGLE3, MTP
from localspec.errors import ModelFileError, UnsupportedModel
from localspec.pairs.gguf.cursor import FETCH_AGAIN
from localspec.pairs.gguf.header import MAX_LAYERS, GgufHeader, TensorInfo
from localspec.pairs.report.vocabulary import printable, texts, vocabulary
from localspec.safe_text import one_line

_PARTS: Final = frozenset({"clip", "mmproj", "imatrix", "adapter"})
_HEADS: Final = frozenset({EAGLE3, DFLASH, DSPARK, MTP, ASSISTANT})
# Architectures that produce vectors or sound.
_ENCODERS: Final = ("bert", "t5encoder", "gemma-embedding", "wavtokenizer-dec")
_MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS
_LARGEST: Final = 2**30  # far above any real size; llama.cpp rounds up in 32 bits
_GATINGS: Final = 5  # LLAMA_EXPERT_GATING_FUNC_TYPE: none, and four ways to weigh experts
# Architectures that insist on experts with an assertion; others say why they cannot be loaded.
_ALWAYS_EXPERTS: Final = frozenset(
    {"bailingmoe2", "glm4moe", "grovemoe", "lfm2moe", "llada-moe", "smallthinker"}
)
_FREE_EXPERTS: Final = ("hunyuan-dense", "hunyuan_vl")  # for these, one expert counts as none
# Architectures that insist on a sliding window in some layer, always or where they state its size.
_SLIDING: Final = frozenset(
    {
        *("cohere2", "cohere2moe", "exaone-moe", "gemma2", "gemma3n", "gemma4", "gpt-oss"),
        *("granite_swa", "maple", "mimo2", "muse-glimmer", "spark2_5", "step35"),
    }
)
_MAY_SLIDE: Final = frozenset(
    {"afmoe", DFLASH, "gemma3", "laguna", "llama4", "mellum", "olmo2", "plamo3", "smallthinker"}
)
_SCALINGS: Final = ("none", "linear", "yarn", "longrope")  # LLAMA_ROPE_SCALING_TYPES
# Architectures that always use rotary positions.
_TURNING: Final = ("llama", "qwen", "gemma", "phi", "lfm2", "glm4", EAGLE3, DFLASH)
# Architectures known to insist that rotary positions cover the whole head.
_TURNED_WHOLE: Final = frozenset(
    {
        *("qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "llama4"),
        *("mistral3", "granite", "granitemoe", "smollm3", "olmo", "olmo2", "olmoe", "internlm2"),
        *("exaone", "exaone4", "seed_oss", "ernie4_5", "ernie4_5-moe", "cohere2moe", "arcee"),
    }
)
NO_WEIGHTS: Final = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})
"""Types without a matrix product."""

_TABLES: Final = ("tid2eid", "d2t")  # of integers, not weights
# Tensors that are added, multiplied or scanned element by element must be as exact as the
# activations.
_EXACT: Final = (
    "norm.weight",
    ".bias",
    ".ssm_a",
    ".ssm_d",
    ".ssm_conv1d.weight",
    ".shortconv.conv.weight",
    ".layer_output_scale.weight",
    "rope_freqs.weight",
)


def require_usable(header: GgufHeader, label: str) -> None:
    """Check that llama.cpp can chat with the model, or use it as a draft.

    Args:
        header: of the model, with the tensors of all its parts.
        label: its name in messages.

    Raises:
        UnsupportedModel: it is complete but writes no text: a part of a model, a head, an encoder.
        ModelFileError: llama.cpp would end the process over it.
    """
    _require_writer(header, label)
    require_whole(header, label)


def require_whole(header: GgufHeader, label: str) -> None:
    """Check that nothing in the header of a model or a head makes llama.cpp end the process.

    Raises:
        ModelFileError: something does.
    """
    for problems in (
        _layers,
        _experts,
        _numbers,
        _attention,
        _windows,
        _positions,
        _tensors,
        _vocabulary,
    ):
        for problem in problems(header):
            raise ModelFileError(f"{label} is damaged: {problem}", FETCH_AGAIN)


def may_write(architecture: str, kind: str) -> bool:
    """Whether a model may write text, judged by two keys of its header.

    Args:
        architecture: its ``general.architecture``, empty if unknown.
        kind: its ``general.type``, empty if unknown.
    """
    other = architecture in _PARTS or architecture in _HEADS or architecture.endswith(_ENCODERS)
    return kind in ("", "model") and not other


def holds_mtp_alone(header: GgufHeader) -> bool:
    """Whether a file holds multi-token prediction layers without the model before them.

    llama.cpp goes by the same tensors (src/models, `mtp_only`). Of a split model the first header
    does not list them all, so it is never taken for such a head.
    """
    last = header.setting("block_count") - 1
    names = {tensor.name for tensor in header.tensors}
    return (
        header.setting("nextn_predict_layers") > 0
        and header.integer("split.count", 1) <= 1
        and "blk.0.attn_norm.weight" not in names
        and f"blk.{last}.nextn.eh_proj.weight" in names
    )


def _require_writer(header: GgufHeader, label: str) -> None:
    architecture, kind = header.architecture, header.text("general.type", "model")
    if kind != "model" or architecture in _PARTS:
        part = architecture if kind == "model" else kind
        raise UnsupportedModel(
            f"{label} is a part of a model ({part}), not a model", "Name the model itself."
        )
    mtp = MTP if holds_mtp_alone(header) else ""
    if architecture in _HEADS or mtp:
        raise UnsupportedModel(
            f"{label} is a {mtp or architecture} head, which reads the target's hidden states",
            "Name the model that it was made for; a head in a file of its own goes with --draft.",
        )
    if not header.tensors and header.integer("split.count", 1) <= 1:
        raise UnsupportedModel(f"{label} is a vocabulary without a model", "Name the model itself.")
    if header.text("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        raise UnsupportedModel(
            f"{label} has no vocabulary ({architecture}): it writes no text", "Choose a chat model."
        )
    pooled = header.setting("pooling_type") > 0
    causal = header.metadata.get(header.arch_key("attention.causal"), True)
    if pooled or causal is False or architecture.endswith(_ENCODERS):
        raise UnsupportedModel(
            f"{label} is an embedding model ({architecture}): it writes no text",
            "Choose a chat model.",
        )


def _layers(header: GgufHeader) -> Iterator[str]:
    """Problems with the number of layers."""
    layers, more = header.setting("block_count", 1), header.setting("nextn_predict_layers")
    if not 1 <= layers <= MAX_LAYERS:
        yield f"it has {layers:,} layers, not 1 to {MAX_LAYERS}"
    if not 0 <= more <= layers:
        yield f"of its {layers} layers {more:,} predict more tokens"
    loops = header.setting("num_loops", 1)
    if loops < 1 or (layers - more) * loops > MAX_LAYERS:
        yield f"its {layers} layers are passed {loops:,} times"


def _experts(header: GgufHeader) -> Iterator[str]:
    """Problems with the numbers of experts, present and used."""
    count, groups = header.setting("expert_count"), header.setting("expert_group_count")
    if header.architecture in _FREE_EXPERTS and count <= 1:
        return
    if header.architecture in _ALWAYS_EXPERTS and not count:
        yield "it has no experts"
    if not 0 <= header.setting("expert_gating_func") < _GATINGS:
        yield f"its experts are chosen in an unknown way, {header.setting('expert_gating_func'):,}"
    each, names = _of_layers(header, "expert_used_count"), {one.name for one in header.tensors}
    used = max(each, default=0)
    if not 0 <= count <= _MAX_EXPERTS or not 0 <= used <= count or (count and not used):
        yield f"it uses {used:,} of {count:,} experts"
    varies = header.architecture.startswith("nemotron_h")  # others use as many as in the first
    for layer, its in enumerate(each):
        routes = count > 0 and f"blk.{layer}.ffn_gate_inp.weight" in names
        if its < 0 or (routes and (its < 1 or (its > each[0] and not varies))):
            yield f"its layer {layer} uses {its:,} of {count:,} experts, its first {each[0]:,}"
    if not 0 <= groups <= max(0, count - 1):
        yield f"its {count:,} experts are in {groups:,} groups"
    chosen = header.setting("expert_group_used_count")
    if groups > 1 and (count % groups or not 0 < chosen < groups):
        yield f"it uses {chosen:,} of {groups} groups of {count} experts"


def _of_layers(header: GgufHeader, name: str) -> list[int]:
    """A setting of every layer, which may be given once for all; empty without it."""
    found = header.settings(name)
    return found * header.setting("block_count", 1) if len(found) == 1 else found


def _numbers(header: GgufHeader) -> Iterator[str]:
    """Problems with the sizes that every layer computes with."""
    for name in ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"):
        value = header.metadata.get(header.arch_key(name), 0.0)
        if isinstance(value, float) and not 0 <= value < math.inf:
            yield f"its {name} is {value}"
    own = header.arch_key("")
    for name, value in header.metadata.items():
        if name.startswith(own) and isinstance(value, int) and value > _LARGEST:
            yield f"its {name} is {value:,}"
    if header.setting("full_attention_interval", 1) < 1:
        yield "it never has full attention, and does not say so"


def _attention(header: GgufHeader) -> Iterator[str]:
    """Problems with the heads of layers that attend; those with a state of their own may not."""
    widths = {header.setting(f"attention.{each}_length") for each in ("key", "value")}
    if header.architecture == "gemma4" and len(widths) > 1:
        yield "its keys and values differ in width"
    names = {tensor.name for tensor in header.tensors}
    stateful = {layer for layer, _, part in (name.partition(".ssm_") for name in names) if part}
    heads = _of_layers(header, "attention.head_count")
    keys = _of_layers(header, "attention.head_count_kv")
    for number, (queries, shared) in enumerate(zip(heads, keys, strict=False)):
        layer = f"blk.{number}"
        attends = not names.isdisjoint((f"{layer}.attn_q.weight", f"{layer}.attn_qkv.weight"))
        if attends and layer not in stateful and queries > 0 and (shared < 1 or queries % shared):
            yield f"in its layer {number} {queries} heads of attention share {shared}"


def _windows(header: GgufHeader) -> Iterator[str]:
    """Problems with which layers slide: they see no more than a window of the last tokens."""
    key = header.arch_key("attention.sliding_window_pattern")
    told = header.metadata.get(key)
    none = told == 1 if isinstance(told, int) else not any(header.integers(key))
    windowed = header.architecture in _MAY_SLIDE and header.setting("attention.sliding_window") > 0
    if told is not None and none and (windowed or header.architecture in _SLIDING):
        yield "none of its layers has the sliding window that it promises"
    if header.architecture == "gemma4":
        yield from _shared_caches(header, header.integers(key))


def _shared_caches(header: GgufHeader, pattern: list[int]) -> Iterator[str]:
    """Problems with the last layers, each of which reads the cache of an earlier one.

    A layer that slides reads the last but one of the layers with caches, others read the last.
    """
    layers, shared = header.setting("block_count", 1), header.setting("attention.shared_kv_layers")
    sliding = [layer < len(pattern) and bool(pattern[layer]) for layer in range(layers)]
    own = layers - shared
    if own <= 1:
        yield f"{shared:,} of its {layers} layers have no cache, and two must have one"
    elif any(sliding[own - 1 - slides] != slides for slides in sliding[own:]):
        yield f"of its layers after {own}, one reads the cache of a layer of another kind"


def _positions(header: GgufHeader) -> Iterator[str]:
    """Problems with how positions turn the elements of heads."""
    scaling = header.text(header.arch_key("rope.scaling.type"), "none")
    if scaling not in _SCALINGS:
        yield f"its positions are scaled in an unknown way, {one_line(scaling, 40)!r}"
    width = _head_width(header)
    turned = header.setting("rope.dimension_count", width)
    always = header.architecture.startswith(_TURNING)
    wide_sliding = header.setting("attention.key_length_swa", width)
    turned_sliding = header.setting("rope.dimension_count_swa", turned)
    for wide, part in ((width, turned), (wide_sliding, turned_sliding)):
        if wide and (part % 2 or not 2 * always <= part <= wide):
            yield f"of its heads' {wide} elements {part:,} are turned by their position"
    if header.architecture in _TURNED_WHOLE and turned != width:
        yield f"of its heads' {width} elements only {turned} are turned by their position"
    sections = header.settings("rope.dimension_sections")
    sections = sections * 4 if len(sections) == 1 else sections  # one number stands for all
    if sections and width and not (sum(sections) <= width and (any(sections[:3]) or not always)):
        yield f"its heads' {width} elements are turned in sections of {sections}"


def _head_width(header: GgufHeader) -> int:
    """Elements of a key head, 0 without one."""
    heads = next(iter(header.settings("attention.head_count")), 0)
    usual = header.setting("embedding_length") // heads if heads > 0 else 0
    return header.setting("attention.key_length", usual) if heads > 0 else 0


def _tensors(header: GgufHeader) -> Iterator[str]:
    """Problems with the types of weights, and with sizes that nothing else checks."""
    inner = header.metadata.get(header.arch_key("ssm.inner_size"))
    names = {tensor.name for tensor in header.tensors}
    for tensor in header.tensors:
        layer, _, part = tensor.name.rpartition(".ssm_out.")
        if _wrong_type(tensor):
            yield f"tensor {tensor.name!r} has the type {tensor.type}, which it cannot have"
        if not all(tensor.shape):
            yield f"tensor {tensor.name!r} is empty"
        if part == "weight" and inner is not None and tensor.shape[0] != inner:
            yield f"tensor {tensor.name!r} is not made for states of {inner}"
        if part == "weight" and f"{layer}.ssm_alpha.weight" in names:
            whole = {f"{layer}.attn_qkv.weight", f"{layer}.attn_gate.weight"} <= names
            if not whole and f"{layer}.ssm_in.weight" not in names:
                yield f"layer {layer!r} lacks what its state is made of"


def _vocabulary(header: GgufHeader) -> Iterator[str]:
    """Problems with the vocabulary: duplicate tokens, and tokens put around every text."""
    found = vocabulary(header)
    if found.tokens is None:
        return
    known = texts(found.tokens)
    if len(set(known)) < len(known):
        ordered = sorted(known)
        twice = next(text for text, after in pairwise(ordered) if text == after)
        yield f"the token {printable(twice)} is in its vocabulary twice"
    if found.kind in ("SPM", "BPE", "UGM"):
        for word, added, token in (
            ("begins", found.add_bos, found.bos),
            ("ends", found.add_eos, found.eos),
        ):
            if added and token is None:
                yield f"every text {word} with a token that it does not have"
    if found.kind == "SPM":
        there = set(known)
        lacking = (n for n in range(256) if not {b"<0x%02X>" % n, bytes([n])} & there)
        yield from (f"its vocabulary has no token for byte {n}" for n in lacking)


def _wrong_type(tensor: TensorInfo) -> bool:
    if tensor.name.endswith(_EXACT):
        return tensor.type != "F32"
    return tensor.type in NO_WEIGHTS and not any(part in tensor.name for part in _TABLES)
