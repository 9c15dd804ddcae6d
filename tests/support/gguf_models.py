"""Tiny GGUF models with random weights, written where a test needs them.

Every function writes one file, gives back its path, and writes the same bytes for the same
arguments. Widths are small multiples of 32, so that everything can be Q8_0. The vocabulary comes
from another GGUF file (`like`, the toy target unless told otherwise), so that such a model can be
paired with the toy's.

    write_random_llama         a draft that guesses badly
    write_advised              a Llama whose file says how to sample
    write_other_vocabulary     a Llama whose tokens are not the toy's
    write_renumbered           the toy's draft with other ids, some tokens left out
    write_embedding_model      BERT: has no next token to give
    write_random_qwen3         grouped-query attention with normed queries and keys
    write_random_moe           the same with experts
    write_random_gemma3        sliding-window attention
    write_random_mamba         recurrent: its state can't be rolled back
    write_random_lfm2          hybrid: short convolutions and attention
    write_random_qwen35        hybrid: gated delta net and attention, rolled back by snapshots
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from tests.support import toy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROUNDED = "q8_0 as f32"  # what Q8_0 has kept of the weights, in F32
KINDS = {"f32": Kind.F32, "f16": Kind.F16, "q8_0": Kind.Q8_0, "q4_0": Kind.Q4_0}
KINDS[ROUNDED] = Kind.F32
_VALUE_TYPES = {
    float: gguf.GGUFValueType.FLOAT32,
    int: gguf.GGUFValueType.INT32,
    str: gguf.GGUFValueType.STRING,
    bool: gguf.GGUFValueType.BOOL,
    list: gguf.GGUFValueType.ARRAY,
}
BLOCK = 32
EPSILON = 1e-5
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF file says about its tokens."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    pre: str
    bos: int
    eos: int
    add_bos: bool = True
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shape of a tiny model."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 2
    n_head_kv: int = 2
    n_ff: int = 128
    n_ctx: int = 2048

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


@lru_cache(maxsize=4)
def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a byte-level BPE model."""
    fields = gguf.GGUFReader(path).fields

    def value(key: str, default: object = None) -> Any:
        return fields[key].contents() if key in fields else default

    return Vocabulary(
        tokens=tuple(value("tokenizer.ggml.tokens")),
        types=tuple(value("tokenizer.ggml.token_type")),
        merges=tuple(value("tokenizer.ggml.merges")),
        pre=value("tokenizer.ggml.pre"),
        bos=value("tokenizer.ggml.bos_token_id"),
        eos=value("tokenizer.ggml.eos_token_id"),
        add_bos=value("tokenizer.ggml.add_bos_token", default=True),
        template=value("tokenizer.chat_template"),
    )


def byte_alphabet() -> list[str]:
    """List the 256 characters that stand for the bytes in byte-level BPE (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def other_vocabulary(merged: int = 64) -> Vocabulary:
    """Make a byte vocabulary with a few merges; ids and special tokens are not the toy's."""
    letters = byte_alphabet()
    lower = [chr(number) for number in range(ord("a"), ord("z") + 1)]
    pairs = [(a, b) for a in lower for b in lower][:merged]
    words = [a + b for a, b in pairs]
    specials = ["<s>", "</s>"]
    count = len(letters) + len(words)
    return Vocabulary(
        tokens=(*letters, *words, *specials),
        types=(gguf.TokenType.NORMAL,) * count + (gguf.TokenType.CONTROL,) * len(specials),
        merges=tuple(f"{a} {b}" for a, b in pairs),
        pre="gpt-2",
        bos=count,
        eos=count + 1,
        template=TEMPLATE,
    )


def vocabulary_of(n_vocab: int) -> Vocabulary:
    """One of `n_vocab` tokens that differ from the toy's, most of them special."""
    known = other_vocabulary()
    more = n_vocab - len(known.tokens)
    tokens = (*known.tokens, *(f"<|{n}|>" for n in range(more)))
    return replace(known, tokens=tokens, types=known.types + (known.types[-1],) * more)


def add_vocabulary(writer: gguf.GGUFWriter, known: Vocabulary) -> None:
    """Add tokens, merges and special ids."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(known.pre)
    writer.add_token_list(list(known.tokens))
    writer.add_token_types(list(known.types))
    writer.add_token_merges(list(known.merges))
    writer.add_bos_token_id(known.bos)
    writer.add_eos_token_id(known.eos)
    writer.add_add_bos_token(known.add_bos)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file with all that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Weights:
    """Random tensors by name, and the file that they go to."""

    def __init__(
        self,
        path: Path,
        arch: str,
        vocabulary: Vocabulary,
        seed: int,
        kind: str,
        *,
        name: str | None = None,
    ) -> None:
        self.path = path
        self.vocabulary = vocabulary
        self.random = np.random.default_rng(seed)
        self.kind, self.rounded = KINDS[kind], kind == ROUNDED
        self.architecture = arch
        self.writer = gguf.GGUFWriter(path, arch)
        self.writer.add_name(f"random {arch}" if name is None else name)

    def sizes(self, sizes: Sizes, *, head_count_kv: int | Sequence[int] | None = None) -> None:
        """Write the keys that most architectures share."""
        writer = self.writer
        writer.add_context_length(sizes.n_ctx)
        writer.add_embedding_length(sizes.n_embd)
        writer.add_block_count(sizes.n_layer)
        writer.add_feed_forward_length(sizes.n_ff)
        writer.add_head_count(sizes.n_head)
        writer.add_head_count_kv(sizes.n_head_kv if head_count_kv is None else head_count_kv)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_vocab_size(len(self.vocabulary.tokens))

    def matrix(self, name: str, *shape: int, std: float | None = None) -> None:
        """Add a random matrix, quantised where its rows allow it; `shape` as in NumPy."""
        std = shape[-1] ** -0.5 if std is None else std
        array = self.random.normal(0, std, shape).astype(np.float32)
        kind = Kind.F32 if shape[-1] % BLOCK else self.kind
        if self.rounded and not shape[-1] % BLOCK:
            array = gguf.dequantize(gguf.quantize(array, Kind.Q8_0), Kind.Q8_0)
        self.writer.add_tensor(f"{name}.weight", gguf.quantize(array, kind), raw_dtype=kind)

    def vector(self, name: str, *shape: int, value: float = 1.0) -> None:
        """Add a constant in F32: a norm, a bias or a state matrix, under its whole name."""
        self.writer.add_tensor(name, np.full(shape, value, dtype=np.float32))

    def ends(self, n_embd: int) -> None:
        """Add what comes before and after the layers.

        The output is not the embedding: a random model with tied ones repeats its last token.
        """
        count = len(self.vocabulary.tokens)
        self.matrix("token_embd", count, n_embd, std=1.0)
        self.matrix("output", count, n_embd, std=2 * n_embd**-0.5)
        self.vector("output_norm.weight", n_embd)

    def feed_forward(self, layer: str, sizes: Sizes) -> None:
        """Add a gated feed-forward part with its norm."""
        self.vector(f"{layer}.ffn_norm.weight", sizes.n_embd)
        self.matrix(f"{layer}.ffn_gate", sizes.n_ff, sizes.n_embd)
        self.matrix(f"{layer}.ffn_up", sizes.n_ff, sizes.n_embd)
        self.matrix(f"{layer}.ffn_down", sizes.n_embd, sizes.n_ff)

    def attention(self, layer: str, sizes: Sizes, *, normed: bool, gated: bool = False) -> None:
        """Add the four attention matrices, and norms of queries and keys where `normed`."""
        inner, inner_kv = sizes.n_head * sizes.head, sizes.n_head_kv * sizes.head
        self.matrix(f"{layer}.attn_q", inner * (2 if gated else 1), sizes.n_embd)
        self.matrix(f"{layer}.attn_k", inner_kv, sizes.n_embd)
        self.matrix(f"{layer}.attn_v", inner_kv, sizes.n_embd)
        self.matrix(f"{layer}.attn_output", sizes.n_embd, inner)
        if normed:
            self.vector(f"{layer}.attn_q_norm.weight", sizes.head)
            self.vector(f"{layer}.attn_k_norm.weight", sizes.head)

    def predicts(self, layer: str, n_embd: int) -> None:
        """Add what makes a layer one that predicts more tokens (MTP)."""
        self.matrix(f"{layer}.nextn.eh_proj", n_embd, 2 * n_embd)
        self.vector(f"{layer}.nextn.enorm.weight", n_embd)
        self.vector(f"{layer}.nextn.hnorm.weight", n_embd)

    def save(self) -> Path:
        """Write the file."""
        add_vocabulary(self.writer, self.vocabulary)
        if self.vocabulary.template is not None:
            self.writer.add_chat_template(self.vocabulary.template)
        finish(self.writer)
        return self.path


def write_llama(
    path: Path,
    vocabulary: Vocabulary,
    sizes: Sizes,
    *,
    seed: int,
    type: str,  # noqa: A002 (the word of GGUF and llama.cpp)
    name: str | None = None,
    more: Mapping[str, object] | None = None,
) -> Path:
    """Write a Llama model with random weights and the vocabulary given; `more` is metadata."""
    weights = Weights(path, "llama", vocabulary, seed, type, name=name)
    for key, value in (more or {}).items():
        weights.writer.add_key_value(key, value, _VALUE_TYPES[value.__class__])
    weights.sizes(sizes)
    weights.writer.add_rope_dimension_count(sizes.head)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        weights.attention(layer, sizes, normed=False)
        weights.feed_forward(layer, sizes)
    return weights.save()


def write_random_llama(
    path: Path,
    *,
    like: Path = toy.TARGET,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ctx: int = 2048,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002 (the word of GGUF and llama.cpp)
) -> Path:
    """Write a Llama draft with random weights and another model's vocabulary."""
    sizes = Sizes(n_layer=n_layer, n_embd=n_embd, n_ff=2 * n_embd, n_ctx=n_ctx)
    return write_llama(path, read_vocabulary(like), sizes, seed=seed, type=type)


def write_longer_vocabulary(
    path: Path, *, like: Path = toy.TARGET, extra: int = 8, seed: int = 0
) -> Path:
    """Write a Llama whose vocabulary is another model's with further ids after the last one."""
    known = read_vocabulary(like)
    vocabulary = replace(
        known,
        tokens=(*known.tokens, *(f"<|extra_{number}|>" for number in range(extra))),
        types=known.types + (gguf.TokenType.USER_DEFINED,) * extra,
    )
    return write_llama(path, vocabulary, Sizes(), seed=seed, type="q8_0")


def write_advised(path: Path, *, name: str = "advised", **said: object) -> Path:
    """Write a Llama whose file advises how to sample, under the keys of llama.cpp."""
    more = {f"general.sampling.{key}": value for key, value in said.items()}
    return write_llama(path, other_vocabulary(), Sizes(), seed=0, type="q8_0", name=name, more=more)


def write_other_vocabulary(
    path: Path, *, seed: int = 0, template: bool = True, name: str | None = None
) -> Path:
    """Write a Llama with another vocabulary: 322 tokens, byte-level BPE, a template or none."""
    vocabulary = other_vocabulary()
    if not template:
        vocabulary = replace(vocabulary, template=None)
    return write_llama(path, vocabulary, Sizes(), seed=seed, type="q8_0", name=name)


def write_renumbered(path: Path, *, like: Path = toy.DRAFT, fewer: int = 0) -> Path:
    """Write a model again: its first three tokens go last, its `fewer` latest merges are left out.

    It computes the same function, except for the tokens that it lacks.
    """
    known, reader = read_vocabulary(like), gguf.GGUFReader(like)
    count = len(known.tokens) - fewer
    order = np.roll(np.arange(count), -3)
    place = np.argsort(order)
    vocabulary = replace(
        known,
        tokens=tuple(known.tokens[token] for token in order),
        types=tuple(known.types[token] for token in order),
        merges=known.merges[: len(known.merges) - fewer],
        bos=int(place[known.bos]),
        eos=int(place[known.eos]),
    )
    weights = Weights(path, "llama", vocabulary, 0, "q8_0", name="renumbered")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        weights.writer.add_uint32(f"llama.{key}", int(fields[f"llama.{key}"]))
    for key in ("attention.head_count", "attention.head_count_kv", "rope.dimension_count"):
        weights.writer.add_uint32(f"llama.{key}", int(fields[f"llama.{key}"]))
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        weights.writer.add_float32(f"llama.{key}", float(fields[f"llama.{key}"]))
    weights.writer.add_vocab_size(count)
    for tensor in reader.tensors:
        rows = tensor.data[order] if tensor.name == "token_embd.weight" else tensor.data
        weights.writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    return weights.save()


def write_embedding_model(path: Path, *, like: Path = toy.TARGET, seed: int = 0) -> Path:
    """Write a BERT encoder with mean pooling: it loads, and can't generate."""
    sizes = Sizes(n_ctx=512)
    weights = Weights(path, "bert", read_vocabulary(like), seed, "f32")
    weights.sizes(sizes)
    writer = weights.writer
    writer.add_layer_norm_eps(EPSILON)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(1)
    weights.matrix("token_embd", len(weights.vocabulary.tokens), sizes.n_embd, std=1.0)
    weights.vector("token_types.weight", 1, sizes.n_embd, value=0.0)
    weights.vector("position_embd.weight", sizes.n_ctx, sizes.n_embd, value=0.0)
    for name in ("token_embd_norm", "blk.{}.attn_output_norm", "blk.{}.layer_output_norm"):
        for full in dict.fromkeys(name.format(number) for number in range(sizes.n_layer)):
            weights.vector(f"{full}.weight", sizes.n_embd)
            weights.vector(f"{full}.bias", sizes.n_embd, value=0.0)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.attention(layer, sizes, normed=False)
        weights.matrix(f"{layer}.ffn_up", sizes.n_ff, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_down", sizes.n_embd, sizes.n_ff)
    return weights.save()


def write_random_qwen3(
    path: Path,
    *,
    like: Path = toy.TARGET,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write a Qwen3: two query heads share one key and value head."""
    sizes = Sizes(n_head_kv=1)
    weights = Weights(path, "qwen3", read_vocabulary(like), seed, type)
    weights.sizes(sizes)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        weights.attention(layer, sizes, normed=True)
        weights.feed_forward(layer, sizes)
    return weights.save()


def write_random_moe(
    path: Path,
    *,
    like: Path = toy.TARGET,
    n_expert: int = 4,
    n_used: int = 2,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write a Qwen3 mixture of experts."""
    sizes = Sizes(n_head_kv=1)
    weights = Weights(path, "qwen3moe", read_vocabulary(like), seed, type)
    weights.sizes(sizes)
    weights.writer.add_expert_count(n_expert)
    weights.writer.add_expert_used_count(n_used)
    weights.writer.add_expert_feed_forward_length(sizes.n_ff)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        weights.attention(layer, sizes, normed=True)
        weights.vector(f"{layer}.ffn_norm.weight", sizes.n_embd)
        weights.matrix(f"{layer}.ffn_gate_inp", n_expert, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_gate_exps", n_expert, sizes.n_ff, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_up_exps", n_expert, sizes.n_ff, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_down_exps", n_expert, sizes.n_embd, sizes.n_ff)
    return weights.save()


def write_random_gemma3(
    path: Path,
    *,
    like: Path = toy.TARGET,
    window: int = 32,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write a Gemma 3 whose layers, all but the sixth, see the last `window` positions only."""
    sizes = Sizes(n_layer=6, n_head_kv=1)
    weights = Weights(path, "gemma3", read_vocabulary(like), seed, type)
    weights.sizes(sizes)
    weights.writer.add_sliding_window(window)
    weights.writer.add_key_length(sizes.head)
    weights.writer.add_value_length(sizes.head)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        weights.attention(layer, sizes, normed=True)
        weights.vector(f"{layer}.post_attention_norm.weight", sizes.n_embd)
        weights.feed_forward(layer, sizes)
        weights.vector(f"{layer}.post_ffw_norm.weight", sizes.n_embd)
    return weights.save()


def write_random_mamba(
    path: Path,
    *,
    like: Path = toy.TARGET,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write a Mamba: purely recurrent."""
    width, inner, state, kernel, rank, layers = 64, 128, 16, 4, 32, 2
    weights = Weights(path, "mamba", read_vocabulary(like), seed, type)
    weights.sizes(
        Sizes(n_layer=layers, n_embd=width, n_head=0, n_head_kv=0, n_ff=0), head_count_kv=0
    )
    writer = weights.writer
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    weights.ends(width)
    for number in range(layers):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", width)
        weights.matrix(f"{layer}.ssm_in", 2 * inner, width)
        weights.matrix(f"{layer}.ssm_conv1d", inner, kernel)
        weights.vector(f"{layer}.ssm_conv1d.bias", inner, value=0.0)
        weights.matrix(f"{layer}.ssm_x", rank + 2 * state, inner)
        weights.matrix(f"{layer}.ssm_dt", inner, rank)
        weights.vector(f"{layer}.ssm_dt.bias", inner, value=0.0)
        weights.vector(f"{layer}.ssm_a", inner, state, value=-1.0)
        weights.vector(f"{layer}.ssm_d", inner)
        weights.matrix(f"{layer}.ssm_out", width, inner)
    return weights.save()


def write_random_lfm2(
    path: Path,
    *,
    like: Path = toy.TARGET,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write an LFM2: two layers with short convolutions, then one with attention."""
    kernel, kv = 3, (0, 0, 1)
    sizes = Sizes(n_layer=len(kv))
    weights = Weights(path, "lfm2", read_vocabulary(like), seed, type)
    weights.sizes(sizes, head_count_kv=kv)
    weights.writer.add_shortconv_l_cache(kernel)
    count = len(weights.vocabulary.tokens)
    weights.matrix("token_embd", count, sizes.n_embd, std=1.0)
    weights.matrix("output", count, sizes.n_embd, std=2 * sizes.n_embd**-0.5)
    weights.vector("token_embd_norm.weight", sizes.n_embd)
    for number, heads in enumerate(kv):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        if heads:
            weights.attention(layer, replace(sizes, n_head_kv=heads), normed=True)
        else:
            weights.matrix(f"{layer}.shortconv.conv", sizes.n_embd, kernel)
            weights.matrix(f"{layer}.shortconv.in_proj", 3 * sizes.n_embd, sizes.n_embd)
            weights.matrix(f"{layer}.shortconv.out_proj", sizes.n_embd, sizes.n_embd)
        weights.feed_forward(layer, sizes)
    return weights.save()


def write_random_qwen35(
    path: Path,
    *,
    like: Path = toy.TARGET,
    nextn: int = 0,
    seed: int = 0,
    type: str = "q8_0",  # noqa: A002
) -> Path:
    """Write a Qwen3.5: three layers of gated delta net, then one with gated attention.

    Then come `nextn` more layers with attention, each of which predicts a further token (MTP).
    """
    state, groups, values, kernel, trunk = 32, 2, 2, 4, 4
    key_width, value_width = state * groups, state * values
    sizes = Sizes(n_layer=trunk + nextn, n_head_kv=1)
    weights = Weights(path, "qwen35", read_vocabulary(like), seed, type)
    weights.sizes(sizes)
    writer = weights.writer
    writer.add_key_length(sizes.head)
    writer.add_value_length(sizes.head)
    writer.add_rope_dimension_count(sizes.head)
    writer.add_rope_dimension_sections([4, 4, 4, 4])
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(value_width)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_group_count(groups)
    writer.add_full_attention_interval(trunk)
    if nextn:
        writer.add_uint32("qwen35.nextn_predict_layers", nextn)
    weights.ends(sizes.n_embd)
    for number in range(sizes.n_layer):
        layer = f"blk.{number}"
        weights.vector(f"{layer}.attn_norm.weight", sizes.n_embd)
        weights.vector(f"{layer}.post_attention_norm.weight", sizes.n_embd)
        if number >= trunk - 1:
            weights.attention(layer, sizes, normed=True, gated=True)
        else:
            weights.matrix(f"{layer}.attn_qkv", 2 * key_width + value_width, sizes.n_embd)
            weights.matrix(f"{layer}.attn_gate", value_width, sizes.n_embd)
            weights.matrix(f"{layer}.ssm_conv1d", 2 * key_width + value_width, kernel)
            weights.vector(f"{layer}.ssm_dt.bias", values, value=0.0)
            weights.vector(f"{layer}.ssm_a", values, value=-1.0)
            weights.matrix(f"{layer}.ssm_beta", values, sizes.n_embd)
            weights.matrix(f"{layer}.ssm_alpha", values, sizes.n_embd)
            weights.vector(f"{layer}.ssm_norm.weight", state)
            weights.matrix(f"{layer}.ssm_out", sizes.n_embd, value_width)
        weights.matrix(f"{layer}.ffn_gate", sizes.n_ff, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_up", sizes.n_ff, sizes.n_embd)
        weights.matrix(f"{layer}.ffn_down", sizes.n_embd, sizes.n_ff)
        if number >= trunk:
            weights.predicts(layer, sizes.n_embd)
    return weights.save()


GENERATORS: Mapping[str, Callable[..., Path]] = {
    "llama": write_random_llama,
    "longer_vocabulary": write_longer_vocabulary,
    "other_vocabulary": write_other_vocabulary,
    "qwen3": write_random_qwen3,
    "moe": write_random_moe,
    "gemma3": write_random_gemma3,
    "mamba": write_random_mamba,
    "lfm2": write_random_lfm2,
    "qwen35": write_random_qwen35,
}
"""Every kind of model here that can generate."""

ARCHITECTURES = ("llama", "qwen3", "moe", "gemma3", "mamba", "lfm2", "qwen35")
"""Of these one of every sort of memory, all with the toy's vocabulary."""
