"""Checks of draft heads by their headers, before llama.cpp crashes or gives wrong results.

An EAGLE-3 or DFlash head or a Gemma 4 assistant is a separate file; MTP is a layer after the
target's last one, in the target's file or in one of its own. llama.cpp assumes without a check that
a head was made for its target (src/models/eagle3.cpp, dflash.cpp, gemma4-assistant.cpp, those with
a `graph_mtp`, src/llama-graph.cpp, src/llama-kv-cache.cpp).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from localspec.drafter_names import ASSISTANT, DFLASH, EAGLE3, MTP
from localspec.errors import ModelFileError, UnsupportedModel
from localspec.pairs.gguf import usable
from localspec.pairs.gguf.header import GgufHeader, ModelFiles, TensorInfo
from localspec.pairs.report import vocabulary

FILES: Final = (EAGLE3, DFLASH, ASSISTANT)
"""Architectures of heads that are separate files; an MTP file has that of its target."""

_TAPS: Final = 3  # of EAGLE-3
_LEAST_PLACES: Final = 2  # the newest token, and one to guess
_SHARED: Final = "gemma4"  # the target whose cache an assistant reads
_LAST_TWO: Final = 2  # of the target's layers: one with a sliding window, then one without
_MASK: Final = "tokenizer.ggml.mask_token_id"
_READ: Final = 1 << 22  # bytes of a table of token ids: half a million

TAPPED: Final = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4"),
        *("gpt-oss", "lfm2", "lfm2moe", "mimo2", "minimax-01", "minimax-m2", "nemotron_h"),
        *("nemotron_h_moe", "deepseek4", "bailingmoe3", "hunyuan_vl", "hunyuan-dense"),
        *("muse-glimmer", "nanbeige"),
    }
)
"""Architectures whose graphs expose the inputs of layers (`t_layer_inp`), which heads read.

They are written down, because llama.cpp has no function that tells: it ends the process that tries
another architecture (`set_outputs`), or qwen4exp, whose inputs are several rows wide
(`extract_layer_inputs`). A test holds the list to the source.
"""

# Architectures with a graph for one MTP layer, and the further tensors that it asserts
# (`graph_mtp`).
_TEMPERED: Final = "attention.temperature_scale"
_NEXTN: Final = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_EXPERTS: Final = "ffn_gate_inp"
_MTP: Final = {
    "glm4moe": (_EXPERTS,),
    "glm-dsa": (_EXPERTS,),
    "deepseek32": (_EXPERTS,),
    "qwen35": (),
    "qwen35moe": (_EXPERTS,),
    "qwen3next": (_EXPERTS,),
    "cohere2moe": (_EXPERTS,),
    "step35": (),
    "hy_v3": (),
    "deepseek2": (_EXPERTS, "attn_q_a", "attn_k_b"),
    "deepseek4": (_EXPERTS,),
    "bailingmoe3": (_EXPERTS, "layer_output_norm"),
    "nemotron_h_moe": (_EXPERTS, "nextn.shared_head_norm"),
    "mimo2": ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down"),
}

# llama.cpp uses several MTP layers of these, one per token.
_CHAINS: Final = ("step35", "hy_v3", "mimo2")


def head_kind(header: GgufHeader) -> str:
    """What drafts in the file: one of `FILES`, or `MTP`; empty if it is not a head."""
    if header.architecture in FILES:
        return header.architecture
    return MTP if usable.holds_mtp_alone(header) else ""


def block(header: GgufHeader) -> int:
    """The most tokens that the head in the file guesses in one pass; 0 if each takes a pass."""
    if head_kind(header) != DFLASH:
        return 0
    anchored = header.metadata.get(header.arch_key("sample_from_anchor")) is True
    return max(0, header.setting("block_size") - (not anchored))


def is_head(header: GgufHeader) -> bool:
    """Whether the file is a draft head."""
    return bool(head_kind(header))


def has_usable_mtp(target: GgufHeader) -> bool:
    """Whether a target has a multi-token prediction layer that llama.cpp can draft with."""
    return next(_mtp_problems(target), None) is None


def require_mtp(target: GgufHeader, label: str) -> None:
    """Check that llama.cpp can draft with the target's multi-token prediction layer.

    Raises:
        UnsupportedModel: it has none, or one that would make llama.cpp end the process.
    """
    _refuse(_mtp_problems(target), f"{label} cannot draft for itself (mtp)")


def _mtp_problems(target: GgufHeader) -> Iterator[str]:
    layers = target.setting("nextn_predict_layers")
    architecture = target.architecture
    if not layers:
        yield "no layer of it predicts more than one token"
    if architecture not in _MTP:
        yield f"that is not known to work for {architecture} models"
        return
    if layers != 1 and architecture not in _CHAINS:
        yield f"{layers} layers of it predict more tokens, llama.cpp takes one of {architecture}"
    end, names = target.setting("block_count"), {tensor.name for tensor in target.tensors}
    for at in range(end - layers, end):
        for part in (*_NEXTN, *_MTP[architecture]):
            if f"blk.{at}.{part}.weight" not in names:
                yield f"it lacks the tensor blk.{at}.{part}.weight"
    if target.setting("hash_layer_count") > end - layers:
        yield "its last layer chooses experts by the token"
    sizes = [target.setting(f"attention.{each}key_length") for each in ("", "indexer.")]
    if architecture == "deepseek4" and sizes[0] == sizes[1]:
        yield "its keys are as wide as those of its indexer"  # llama.cpp divides by zero
    if architecture == "deepseek2" and target.metadata.get(target.arch_key(_TEMPERED)):
        yield "its attention is scaled with the position"


def require_fit(head: GgufHeader, target: GgufHeader, label: str) -> None:
    """Check by the headers that llama.cpp can use the head's file with this target.

    Raises:
        ModelFileError: the file is damaged.
        UnsupportedModel: it was made for another target.
        VocabularyMismatch: its tokens differ.
    """
    usable.require_whole(head, label)
    _refuse(_own_problems(head), f"the head {label} cannot be used")
    _refuse(_fit_problems(head, target), f"the head {label} does not fit this target")
    vocabulary.check(target, head, same=True)


def require_head(head: ModelFiles, target: GgufHeader) -> None:
    """Check that llama.cpp can use the head's file with this target.

    Raises:
        LocalspecError: as `require_fit`; its table of tokens is damaged.
    """
    require_fit(head.header, target, str(head.paths[0]))
    _require_table(head, vocabulary.vocabulary(target).size)


def _refuse(problems: Iterator[str], what: str) -> None:
    for problem in problems:
        raise UnsupportedModel(
            f"{what}: {problem}",
            "Choose a head that was made for this model, or go without one (`--draft none`).",
        )


def _own_problems(head: GgufHeader) -> Iterator[str]:
    if head_kind(head) == MTP:
        yield from _mtp_problems(head)
        names = {tensor.name for tensor in head.tensors}
        lacking = {"token_embd.weight", "output_norm.weight"} - names
        yield from (f"it lacks the tensor {name}" for name in sorted(lacking))
        return
    if head.setting("attention.key_length") != head.setting("attention.value_length"):
        yield "its keys and values differ in width"
    if head.architecture == ASSISTANT:
        yield from _assistant_problems(head)
        return
    yield from (_eagle3_problems if head.architecture == EAGLE3 else _dflash_problems)(head)
    heads, shared = head.setting("attention.head_count"), head.setting("attention.head_count_kv")
    if heads < 1 or (shared := shared or heads) < 1 or heads % shared:
        yield f"its {heads} heads of attention share {shared}"
    width = head.setting("embedding_length")
    if head.setting("embedding_length_out", width) not in (0, width):
        yield f"its states are {width:,} wide, and it promises others"
    for tensor in head.tensors:
        if tensor.name.endswith("norm_2.weight") and tensor.type != "F32":
            yield f"tensor {tensor.name} has the type {tensor.type}"


def _eagle3_problems(head: GgufHeader) -> Iterator[str]:
    layers, taps = head.setting("block_count"), len(head.settings("target_layers"))
    if layers != 1:
        yield f"it has {layers} layers, not one"
    if taps != _TAPS:
        yield f"it names {taps} layers to read, not {_TAPS}"


def _dflash_problems(head: GgufHeader) -> Iterator[str]:
    """Check that tensors and metadata of a block head agree where both state the same fact."""
    names, places = {tensor.name for tensor in head.tensors}, head.setting("block_size")
    if not head.settings("target_layers"):
        yield "it names no layers to read"
    if head.setting("hyper_connection.count"):
        yield "its layers are those of deepseek4, which are not known to work"
    if places < _LEAST_PLACES:
        yield f"it guesses blocks of {places} places"
    size, mask = vocabulary.vocabulary(head).size, head.metadata.get(_MASK)
    if not isinstance(mask, int) or not 0 <= mask < size:
        yield "it names no token that stands for a place to fill"
    says = head.arch_key("sample_from_anchor") in head.metadata
    if says != ("markov_w1.weight" in names):
        yield "it does not say whether its places depend on each other (sample_from_anchor)"
    if (head.setting("selector_top_k") > 0) != ("selector_hidden.weight" in names):
        yield "it does not say how many candidates it chooses from (selector_top_k)"
    for tensor in head.tensors:
        if tensor.name.endswith("_conv_base") and tensor.type != "F32":
            yield f"tensor {tensor.name} has the type {tensor.type}"


def _assistant_problems(head: GgufHeader) -> Iterator[str]:
    layers, more = head.setting("block_count"), head.setting("nextn_predict_layers")
    if more != layers:
        yield f"{more} of its {layers} layers predict more tokens, not all"
    sliding = [_slides(head, layer) for layer in range(layers)]
    if not any(sliding) or all(sliding):
        yield "its layers do not have a sliding window in part (sliding_window_pattern)"
    for layer in range(layers):
        heads, shared, _ = _attention(head, layer)
        if heads < 1 or shared < 1 or heads % shared:
            yield f"in layer {layer} its {heads} heads of attention share {shared}"


def _slides(header: GgufHeader, layer: int) -> bool:
    """Whether a layer has a sliding window."""
    pattern = header.settings("attention.sliding_window_pattern")
    return layer < len(pattern) and bool(pattern[layer])


def _attention(header: GgufHeader, layer: int) -> tuple[int, int, int]:
    """Query heads and key heads of a layer, and the width of each."""
    heads = header.settings("attention.head_count")
    shared = header.settings("attention.head_count_kv") or heads
    usual = header.setting("embedding_length") // max(1, *heads[:1], 1)
    width = header.setting("attention.key_length", usual)
    short = header.setting("attention.key_length_swa", width)
    return _of(heads, layer), _of(shared, layer), short if _slides(header, layer) else width


def _of(found: list[int], layer: int) -> int:
    """The value for a layer, from one value for all layers or one for each."""
    at = 0 if len(found) == 1 else layer
    return found[at] if at < len(found) else 0


def _fit_problems(head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    problems = {ASSISTANT: _sharing, MTP: _predicting}.get(head_kind(head), _tapping)
    yield from problems(head, target)
    sizes = vocabulary.vocabulary(target).size, vocabulary.vocabulary(head).size
    if sizes[0] != sizes[1]:
        yield f"it knows {sizes[1]:,} tokens, the target {sizes[0]:,}"
    embedded = next((each for each in head.tensors if each.name == "token_embd.weight"), None)
    if embedded is not None and embedded.shape[-1] < sizes[0]:
        yield f"it embeds {embedded.shape[-1]:,} tokens, the target has {sizes[0]:,}"


def _tapping(head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    """Problems of a head that reads the inputs of some of the target's layers."""
    layers = target.setting("block_count") - target.setting("nextn_predict_layers")
    if target.architecture not in TAPPED:
        yield f"llama.cpp shows no layers of {target.architecture} models"
    if not all(0 <= tap < layers for tap in head.settings("target_layers")):
        yield f"it reads layers {head.settings('target_layers')} of {layers}"
    width, own = target.setting("embedding_length"), head.setting("embedding_length")
    wanted = head.setting("target_hidden_size") if head.architecture == EAGLE3 else own
    if wanted != width:
        yield f"it reads states of {wanted:,} numbers, the target has {width:,}"
    tensors = {each.name: each for each in head.tensors}
    borrowed = [name for name in ("token_embd", "output") if f"{name}.weight" not in tensors]
    if borrowed and own != width:
        yield f"it is {own:,} wide and takes the target's {borrowed[0]}, which has {width:,}"
    table = tensors.get("d2t")
    if table is not None and (table.type != "I64" or "output" in borrowed):
        yield "its table of tokens (d2t) has no output of its own, or another type"


def _predicting(head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    """Problems of a head that continues the target's layers (MTP)."""
    if head.architecture != target.architecture:
        yield f"it continues a {head.architecture} model, the target is a {target.architecture}"
    width, wanted = target.setting("embedding_length"), head.setting("embedding_length")
    if wanted != width:
        yield f"it reads states of {wanted:,} numbers, the target has {width:,}"


def _sharing(head: GgufHeader, target: GgufHeader) -> Iterator[str]:
    """Problems of a head that reads the cache of the target's last two layers."""
    if target.architecture != _SHARED:
        yield f"it reads what a {_SHARED} model caches, the target is a {target.architecture}"
        return
    width, wanted = target.setting("embedding_length"), head.setting("embedding_length_out")
    if wanted != width:
        yield f"it reads states of {wanted:,} numbers, the target has {width:,}"
    layers = target.setting("block_count")
    if layers < _LAST_TWO or not _slides(target, layers - 2) or _slides(target, layers - 1):
        yield "the target's last two layers are not one with a sliding window and one without"
        return
    for layer in range(head.setting("block_count")):
        slides = _slides(head, layer)
        _, *reads = _attention(head, layer)
        _, *there = _attention(target, _cached(target, slides=slides))
        if reads != there:
            yield (
                f"its layer {layer} reads {reads[0]:,} keys of {reads[1]:,} numbers for each token,"
                f" the target has {there[0]:,} of {there[1]:,}"
            )


def _cached(target: GgufHeader, *, slides: bool) -> int:
    """The layer whose cache the last layer of its kind reads: its own, or an earlier one's."""
    step, own = 1 + slides, target.setting("attention.shared_kv_layers")
    last = target.setting("block_count")
    return last - step if own < step else last - own - step


def _require_table(head: ModelFiles, n_vocab: int) -> None:
    """Check that the ids of a reduced vocabulary exist in the target."""
    table = next((each for each in head.header.tensors if each.name == "d2t"), None)
    if table is None:
        return
    ids = _numbers(head, table)
    if not all(0 <= token < n_vocab for token in ids) or len(set(ids)) < len(ids):
        raise ModelFileError(
            f"{head.paths[0]} is damaged: its table of tokens (d2t) names other ids than the"
            f" target's {n_vocab:,}, or one twice",
            "Choose a head that was made for this model.",
        )


def _numbers(head: ModelFiles, table: TensorInfo) -> tuple[int, ...]:
    with head.paths[0].open("rb") as file:
        file.seek(head.header.data_offset + table.offset)
        data = file.read(min(table.n_bytes, _READ))
    return struct.unpack(f"<{len(data) // 8}q", data[: len(data) // 8 * 8])
