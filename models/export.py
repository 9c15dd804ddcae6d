"""Models to and from GGUF, in F32, F16 or Q8_0, with tokenizer and chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from model import Llama, Shape
from tokenizer import BOS, SPECIALS, TEMPLATE, TURN_END, kind_of
from tokenizers import Tokenizer, models

KINDS = {
    "f32": (Kind.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (Kind.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
PERMUTED = ("attn_q.weight", "attn_k.weight")


def interleave(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rotary rows from (i, i + half) to (2i, 2i + 1), head by head."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, -1)


def separate(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Undo `interleave`."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, -1)


def vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the tokens in the order of their ids, and the merges."""
    spec = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in spec["merges"]]
    return sorted(spec["vocab"], key=spec["vocab"].get), merges


def write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write tokens, merges, special ids and the template."""
    tokens, pairs = vocabulary(tokenizer)
    merges = [" ".join(pair) for pair in pairs]
    kinds = [gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in tokens]
    bos, end = tokens.index(BOS), tokens.index(TURN_END)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind_of(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end)
    writer.add_pad_token_id(bos)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(TEMPLATE)


def write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the sizes of a Llama model."""
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_vocab_size(shape.vocab)


def save(model: Llama, tokenizer: Tokenizer, path: Path, *, kind: str, name: str) -> None:
    """Write a GGUF file; vectors stay F32."""
    quant, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license("apache-2.0")
    write_shape(writer, model.shape)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_vocabulary(writer, tokenizer)
    for key, value in model.state_dict().items():
        array = value.detach().cpu().float().numpy()
        if key.endswith(PERMUTED):
            array = interleave(array, model.shape.heads)
        stored = quant if array.ndim == 2 else Kind.F32
        writer.add_tensor(key, gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_shape(reader: gguf.GGUFReader) -> Shape:
    """Read the sizes of a Llama model."""

    def value(key: str) -> float:
        return reader.fields[f"llama.{key}"].contents()

    return Shape(
        vocab=len(reader.fields["tokenizer.ggml.tokens"].contents()),
        width=int(value("embedding_length")),
        layers=int(value("block_count")),
        heads=int(value("attention.head_count")),
        feed_forward=int(value("feed_forward_length")),
        context=int(value("context_length")),
        epsilon=round(value("attention.layer_norm_rms_epsilon"), 12),
        rope_base=value("rope.freq_base"),
    )


def load(path: Path) -> tuple[Llama, list[str], list[str]]:
    """Read a tied-embedding Llama GGUF: the model, its tokens and its merges."""
    reader = gguf.GGUFReader(path)
    model = Llama(read_shape(reader))
    state = {}
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith(PERMUTED):
            array = separate(array, model.shape.heads)
        state[tensor.name] = torch.from_numpy(np.array(array, dtype=np.float32))
    model.load_state_dict(state)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    return model, tokens, reader.fields["tokenizer.ggml.merges"].contents()


def plain_bpe(tokens: list[str], merges: list[str]) -> Tokenizer:
    """Rebuild the merges of a GGUF vocabulary as a tokenizer without a pre-tokenizer."""
    return Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )


def transplant(
    old: torch.Tensor,
    tokens: list[str],
    merges: list[str],
    new: Tokenizer,
    aliases: dict[str, list[str]],
) -> torch.Tensor:
    """Make embeddings for another vocabulary from the old ones.

    A token with the same bytes keeps its row; another one gets the mean of the rows of the tokens
    into which the old merges cut it. `aliases` names old tokens for new special ones.
    """
    pieces = plain_bpe(tokens, merges)
    rows = old.mean(0).repeat(new.get_vocab_size(), 1)
    for token, number in new.get_vocab().items():
        known = pieces.token_to_id(token)
        parts = [known] if known is not None else pieces.encode(token).ids
        if token in aliases:
            parts = [tokens.index(alias) for alias in aliases[token]]
        if parts:
            rows[number] = old[parts].mean(0)
    return rows


def adopt(path: Path, tokenizer: Tokenizer, aliases: dict[str, list[str]]) -> Llama:
    """Read a model for a tokenizer: where it had another one, its embeddings are carried over."""
    model, tokens, merges = load(path)
    if tokens == vocabulary(tokenizer)[0]:
        return model
    state = model.state_dict()
    rows = transplant(state["token_embd.weight"], tokens, merges, tokenizer, aliases)
    state["token_embd.weight"] = rows
    model = Llama(replace(model.shape, vocab=len(rows)))
    model.load_state_dict(state)
    return model
