"""Files of heads, and the target's weights that a new head starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localspec.drafter_names import EAGLE3
from localspec.engine.llama.taps import unpacked
from localspec.errors import ModelFileError, UnsupportedModel
from localspec.pairs.gguf.gguf_writer import MetaValue, packed, write
from localspec.pairs.gguf.header import GGML_TYPES, TensorInfo, raw_metadata, read_header
from localspec.train.head.shape import HeadShape

Tensors: TypeAlias = "Mapping[str, NDArray[np.float32]]"
"""A head's weights by their names in a file, without `.weight`; matrices `(rows, reads)`."""

OUTPUT: Final = "output"
NORMS: Final = (
    "output_norm",
    "blk.0.attn_norm",
    "blk.0.attn_norm_2",
    "blk.0.ffn_norm",
)
_TYPE_IDS: Final = {name: number for number, (name, _, _) in GGML_TYPES.items()}
_Q8_0: Final = 7  # `general.file_type`
_VOCABULARY: Final = "tokenizer.ggml."
_FROM_LAST: Final = ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
_TURNED: Final = ("attn_q", "attn_k")  # rows in the target's order of rotary pairs
_NORM_ROPE: Final = ("llama",)  # architectures with the same order of these rows as a head


class ModelWeights:
    """The weights of a model file, dequantised on demand."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers of all parts of a model."""
        self._found: dict[str, tuple[Path, int, TensorInfo]] = {}
        for path in paths:
            header = read_header(path)
            for tensor in header.tensors:
                self._found[tensor.name] = path, header.data_offset, tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape `(rows, reads)` of a matrix or `(length,)` of a vector; empty if missing."""
        found = self._found.get(f"{name}.weight")
        return found[2].shape[::-1] if found else ()

    def whole(self, name: str) -> NDArray[np.float32]:
        """A whole tensor, by its name without `.weight`."""
        path, start, tensor = self._found[f"{name}.weight"]
        with path.open("rb") as file:
            file.seek(start + tensor.offset)
            data = file.read(tensor.n_bytes)
        n = int(np.prod(tensor.shape))
        return unpacked(data, _TYPE_IDS[tensor.type], n).reshape(tensor.shape[::-1])

    def rows(self, name: str, ids: Sequence[int]) -> NDArray[np.float32]:
        """Some rows of a matrix: `(len(ids), reads)`."""
        path, start, tensor = self._found[f"{name}.weight"]
        length, count = tensor.shape
        kept = np.memmap(path, np.uint8, "r", start + tensor.offset, tensor.n_bytes)
        data = kept.reshape(count, -1)[np.asarray(ids)].tobytes()
        return unpacked(data, _TYPE_IDS[tensor.type], length * len(ids)).reshape(-1, length)

    @property
    def output(self) -> str:
        """The name of the output matrix: the model's own, or the embeddings."""
        return OUTPUT if self.shape(OUTPUT) else "token_embd"


def beginning(
    shape: HeadShape, target: ModelWeights, architecture: str, drafted: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    """The initial weights for training: the target's last layer, as far as shapes allow.

    The target's output reads the result of that layer. A head that computes the same from the same
    input already predicts the target's next token, and only has to learn the one after.

    Args:
        shape: the head's.
        target: its weights.
        architecture: llama.cpp's name of it.
        drafted: the ids that the head can draft.

    Returns:
        All of the head's tensors; `output` has the target's rows.
    """
    random, width = np.random.default_rng(0), shape.width
    found: dict[str, NDArray[np.float32]] = {
        name: (random.standard_normal(size) * 0.02).astype(np.float32)
        for name, size in shape.matrices.items()
    }
    found |= {name: np.ones(width, np.float32) for name in NORMS}
    found["fc"] *= 0.1
    found["fc"][:, -width:] += np.eye(width, dtype=np.float32)
    found[OUTPUT] = target.rows(target.output, drafted)
    last = f"blk.{shape.taps[-1]}"
    norms = {"output_norm": "output_norm", "blk.0.ffn_norm": f"{last}.ffn_norm"}
    norms["blk.0.attn_norm_2"] = f"{last}.attn_norm"
    for own, its in norms.items():
        if target.shape(its) == (width,):
            found[own] = target.whole(its)
    for part in _FROM_LAST:
        if target.shape(f"{last}.{part}") == shape.matrices[f"blk.0.{part}"]:
            found[f"blk.0.{part}"] = target.whole(f"{last}.{part}")
    turned = _TURNED if architecture in _NORM_ROPE else ()
    for part in ("attn_v", *turned):
        rows, _ = shape.matrices[f"blk.0.{part}"]
        if target.shape(f"{last}.{part}") == (rows, width):
            found[f"blk.0.{part}"][:, width:] = target.whole(f"{last}.{part}")
    return found


def write_head(
    path: Path,
    shape: HeadShape,
    tensors: Tensors,
    *,
    drafted: Sequence[int],
    target: Path,
    about: Mapping[str, MetaValue],
) -> None:
    """Write a head in Q8_0, as llama.cpp loads it.

    Args:
        path: the file; it appears whole or not at all.
        shape: the head's sizes.
        tensors: its weights.
        drafted: the ids that it can draft, in the order of `output`'s rows.
        target: the first file of its target, whose vocabulary is copied.
        about: further metadata.

    Raises:
        OSError: it cannot be written.
    """
    with target.open("rb") as file:
        vocabulary = {k: v for k, v in raw_metadata(file).items() if k.startswith(_VOCABULARY)}
    metadata: dict[str, MetaValue] = {
        "general.architecture": EAGLE3,
        "general.file_type": _Q8_0,
        "general.quantization_version": 2,
        **_sizes(shape),
        **about,
        **vocabulary,
    }
    stored = [packed(f"{name}.weight", array) for name, array in tensors.items()]
    stored.append(packed("d2t", np.array(drafted, np.int64)))
    write(path, metadata, stored)


def _sizes(shape: HeadShape) -> dict[str, MetaValue]:
    sizes: dict[str, MetaValue] = {
        "block_count": 1,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "rope.freq_base": shape.rope_base,
        "rope.dimension_count": shape.head_width,
        "vocab_size": shape.vocab,
        "target_layers": list(shape.taps),
        "target_hidden_size": shape.width,
    }
    return {f"{EAGLE3}.{name}": value for name, value in sizes.items()}


def sizes_of(path: Path) -> tuple[int, int]:
    """A head's inner feed-forward width, and how many tokens it can draft.

    Raises:
        ModelFileError: the file does not exist or is damaged.
    """
    weights = ModelWeights([path])
    wide, output = weights.shape("blk.0.ffn_gate"), weights.shape(OUTPUT)
    return (wide[0], output[0]) if len(wide) == len(output) == 2 else (0, 0)


def refuse(path: Path) -> NoReturn:
    """Refuse a file as a head to start from.

    Raises:
        UnsupportedModel: always.
    """
    raise UnsupportedModel(
        f"{path.name} is not a head of the shape that is trained for this target",
        "Leave --init out, or name a head that `localspec train` made for this target.",
    )


def read_head(path: Path, shape: HeadShape) -> tuple[dict[str, NDArray[np.float32]], list[int]]:
    """Read a head's weights, and the ids that it can draft, to continue its training.

    Raises:
        ModelFileError: it is damaged.
        UnsupportedModel: it has another shape.
    """
    header, weights = read_header(path), ModelWeights([path])
    size = {name: weights.shape(name) for name in (*shape.matrices, *NORMS)}
    wanted = dict(shape.matrices) | dict.fromkeys(NORMS, (shape.width,))
    output = weights.shape(OUTPUT)
    table = next((each for each in header.tensors if each.name == "d2t"), None)
    same = tuple(header.settings("target_layers")) == shape.taps
    if header.architecture != EAGLE3 or size != wanted or table is None or not same:
        refuse(path)
    with path.open("rb") as file:
        file.seek(header.data_offset + table.offset)
        ids = np.frombuffer(file.read(table.n_bytes), np.int64).tolist()
    if len(ids) != output[0] or not all(0 <= each < shape.vocab for each in ids):
        raise ModelFileError(f"{path} is damaged: its table of tokens", "Choose another head.")
    return {name: weights.whole(name) for name in (*wanted, OUTPUT)}, ids
