"""LoRA adapters: small files that change some of a target's matrices while it computes.

llama.cpp refuses most adapters that do not fit (src/llama-adapter.cpp), and ends the process over
the others when it first computes with them. So everything it assumes is checked by the headers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from localspec.errors import ModelFileError, UnsupportedModel
from localspec.pairs.gguf import usable
from localspec.pairs.gguf.header import GgufHeader, TensorInfo, raw_metadata, read_header

_A: Final = ".lora_a"
_B: Final = ".lora_b"
_ALPHA: Final = "adapter.lora.alpha"
_FLOAT32: Final = 6  # GGUF's number of the type
_SWITCHED_ON: Final = "adapter.alora.invocation_tokens"
_EMBEDDING: Final = "token_embd.weight"
_AGAIN: Final = "Convert or fetch the adapter again."
_CONVERT: Final = (
    "Convert one with llama.cpp's convert_lora_to_gguf.py, and name its file with --lora."
)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that fits its target.

    Attributes:
        scale: factor of what it adds.
        sha256: of the whole file.
        tensors: what llama.cpp loads of it, each named after the target's tensor that it changes.
    """

    path: Path
    scale: float
    sha256: str
    tensors: tuple[TensorInfo, ...]


def read_adapter(path: Path, scale: float, target: GgufHeader) -> Adapter:
    """Read an adapter, and check that it fits the target.

    Args:
        path: its GGUF file.
        scale: factor of what it adds.
        target: the target's header, with the tensors of all its parts.

    Raises:
        ModelFileError: the file is missing, damaged or not a LoRA adapter.
        UnsupportedModel: it was made for another model, or llama.cpp cannot apply it.
    """
    if path.suffix.lower() == ".safetensors":
        raise ModelFileError(f"{path} is not yet a GGUF file", _CONVERT)
    header = read_header(path)
    kind, form = header.text("general.type", "model"), header.text("adapter.type")
    if kind != "adapter" or form != "lora":
        what = f"an adapter of another kind ({form})" if kind == "adapter" else f"a {kind}"
        raise ModelFileError(
            f"{path} is not a LoRA adapter but {what}",
            _CONVERT,
        )
    pairs = _pairs(header, path)
    for problem in _problems(header, pairs, target):
        raise UnsupportedModel(
            f"the adapter {path.name} cannot be applied: {problem}",
            "Choose an adapter that was made for this model.",
        )
    with path.open("rb") as file:
        alpha = header.metadata.get(_ALPHA, 0.0)
        if _ALPHA in header.metadata and _type_of(_ALPHA, file) != _FLOAT32:
            raise ModelFileError(f"{path} is damaged: {_ALPHA} is not a 32-bit number", _AGAIN)
        if isinstance(alpha, float) and not math.isfinite(alpha):
            raise ModelFileError(f"{path} is damaged: {_ALPHA} is {alpha}", _AGAIN)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    tensors = tuple(each for pair in pairs.values() for each in pair)
    return Adapter(path, scale, digest, tensors)


def _type_of(key: str, file: BinaryIO) -> int:
    """GGUF's number of the type of a metadata value."""
    stored = raw_metadata(file)[key]  # the key with its length before it, the type, the value
    start = 8 + len(key.encode())
    return int.from_bytes(stored[start : start + 4], "little")


def _pairs(header: GgufHeader, path: Path) -> Mapping[str, tuple[TensorInfo, TensorInfo]]:
    """The two factors of each change, by the name of the target's tensor.

    Raises:
        ModelFileError: one of two is missing, or there are other tensors.
    """
    halves: dict[str, dict[str, TensorInfo]] = {_A: {}, _B: {}}
    for tensor in header.tensors:
        name, ending = tensor.name[: -len(_A)], tensor.name[-len(_A) :]
        if ending in halves:
            halves[ending][name] = tensor
        elif not tensor.name.endswith("_norm.weight"):  # llama.cpp leaves these out
            raise ModelFileError(f"{path} is damaged: it has a tensor {tensor.name!r}", _AGAIN)
    alone = sorted(halves[_A].keys() ^ halves[_B].keys())
    if alone:
        raise ModelFileError(f"{path} is damaged: it has half of a change to {alone[0]!r}", _AGAIN)
    if not halves[_A]:
        raise ModelFileError(f"{path} changes nothing: it has no tensors", _AGAIN)
    return {name: (a, halves[_B][name]) for name, a in halves[_A].items()}


def _problems(
    header: GgufHeader,
    pairs: Mapping[str, tuple[TensorInfo, TensorInfo]],
    target: GgufHeader,
) -> Iterator[str]:
    """Reasons why llama.cpp cannot add these changes to the target."""
    if header.architecture != target.architecture:
        made = header.architecture or "no"
        yield f"it is for {made} models, the target is a {target.architecture} model"
    if _SWITCHED_ON in header.metadata:
        yield "it is meant to be switched on within a text (aLoRA)"
    known = {tensor.name: tensor for tensor in target.tensors}
    tied = "output.weight" not in known
    for name, (a, b) in pairs.items():
        if name not in known:
            yield f"it changes a tensor {name!r}, which the target does not have"
            return
        if not _fits(a, b, known[name]):
            yield f"its change to {name!r} has other sizes than that tensor"
        if name == _EMBEDDING and tied:
            yield "it changes the embedding, which is also this target's output"
        if known[name].type == "NVFP4":
            yield f"the target's tensor {name!r} has the type NVFP4"
        for each in (a, b):
            if each.type in usable.NO_WEIGHTS:
                yield f"its tensor {each.name!r} has the type {each.type}"


def _fits(a: TensorInfo, b: TensorInfo, changed: TensorInfo) -> bool:
    """Whether the product of both factors has the shape of the tensor that it is added to.

    `a` maps the inputs to a few numbers, its rank, and `b` these to the outputs. For an embedding,
    `a` has a row for each token.
    """
    inputs, outputs, *others = _four(changed)
    rank = b.shape[0] if b.shape else 0
    wanted_a = (rank, outputs) if changed.name == _EMBEDDING else (inputs, rank)
    wanted_b = (rank, inputs) if changed.name == _EMBEDDING else (rank, outputs)
    return rank > 0 and _four(a) == (*wanted_a, *others) and _four(b) == (*wanted_b, *others)


def _four(tensor: TensorInfo) -> tuple[int, ...]:
    """A shape with four sizes, as ggml keeps it."""
    return (*tensor.shape, 1, 1, 1, 1)[:4]
