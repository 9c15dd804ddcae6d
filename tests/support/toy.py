"""The toy: a pair of 17 and 1.6 million parameters, which tests load in milliseconds.

It knows short stories, sums, small Python functions, short talk and a few facts. Its files are in
`tests/data/toy`; commands that tests run name it ``toy``, for which `install` writes a record.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gguf import GGUFReader, GGUFWriter, ReaderField, ReaderTensor

if TYPE_CHECKING:
    from localspec.bench.prompt_sets import PromptSet

PAIR: Final = "toy"
FOLDER: Final = Path(__file__).parents[1] / "data" / "toy"
TARGET: Final = FOLDER / "target-Q8_0.gguf"
DRAFT: Final = FOLDER / "draft-Q8_0.gguf"
EAGLE3: Final = FOLDER / "eagle3-Q8_0.gguf"
MTP_LAYER: Final = FOLDER / "mtp-layer-Q8_0.gguf"
"""The layer's tensors, and the keys that differ where it is in the target."""

QUESTIONS: Final = FOLDER / "questions.jsonl"
"""Seven questions of each of five kinds that the toy knows, for the bench: no model learnt them."""


def install(data: Path) -> None:
    """Write the record of the pair ``toy`` into `data`, a folder for ``LOCALSPEC_DATA``."""
    from localspec.pairs.disk.installed import InstalledModel  # noqa: PLC0415 - children import this

    target, draft = (
        asdict(InstalledModel((str(path),), n_bytes=path.stat().st_size, licence="Apache-2.0"))
        for path in (TARGET, DRAFT)
    )
    folder = data / "pairs"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": 2, "name": PAIR, "target": target, "draft": draft, "besides": []}
    (folder / f"{PAIR}.json").write_text(json.dumps(record), "utf-8")


def questions(count: int | None = None) -> PromptSet:
    """The first `count` of `QUESTIONS`, the kinds in turn; answers go on past their end."""
    from localspec.bench import prompt_sets  # noqa: PLC0415 - children import this

    found = prompt_sets.read(QUESTIONS)
    return prompt_sets.PromptSet(PAIR, found.prompts[:count], ignore_end=True)


def mtp() -> Path:
    """The target with an MTP layer in it, written once in a process."""
    return Path(_scratch().name) / "mtp-Q8_0.gguf"


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="toy-")
    write_mtp(Path(folder.name) / "mtp-Q8_0.gguf")
    return folder


def write_mtp(path: Path) -> None:
    """Put `MTP_LAYER` into `TARGET`: a model of the architecture that the layer names.

    llama.cpp has a target with such a layer only in architectures that keep a head's rotary rows in
    halves, (i, i + half); Llama has them by twos, (2i, 2i + 1).
    """
    target, layer = GGUFReader(TARGET), GGUFReader(MTP_LAYER)
    architecture = layer.fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    shared = {name.replace("llama.", f"{architecture}."): it for name, it in target.fields.items()}
    for name, field in (shared | layer.fields).items():
        if not name.startswith(("GGUF.", "general.architecture")):
            _copy(writer, name, field)
    for tensor in target.tensors:
        data = tensor.data
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            half = target.fields["llama.rope.dimension_count"].contents() // 2
            by_head = data.reshape(-1, half, 2, data.shape[-1])
            data = by_head.swapaxes(1, 2).reshape(data.shape)
        name = tensor.name.replace("ffn_norm", "post_attention_norm")
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    _write(writer, layer.tensors)


def _write(writer: GGUFWriter, tensors: Iterable[ReaderTensor]) -> None:
    """Write the file, with these tensors after those that were added."""
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_infill(path: Path, marks: Sequence[int]) -> Path:
    """Write the target with marks of prefix, suffix, middle, repository and file: these tokens."""
    target = GGUFReader(TARGET)
    writer = GGUFWriter(path, "llama")
    for name, field in target.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            _copy(writer, name, field)
    for name, token in zip(("pre", "suf", "mid", "rep", "sep"), marks, strict=False):
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    _write(writer, target.tensors)
    return path


def write_repeated(path: Path, n_bytes: int) -> Path:
    """Write the target with its layers again and again, until it has about `n_bytes`.

    What it says makes no sense; it costs what a model of that size does.
    """
    target = GGUFReader(TARGET)
    layers = target.fields["llama.block_count"].contents()
    inside = [tensor for tensor in target.tensors if tensor.name.startswith("blk.")]
    around = [tensor for tensor in target.tensors if not tensor.name.startswith("blk.")]
    left = n_bytes - sum(tensor.n_bytes for tensor in around)
    count = left * layers // sum(tensor.n_bytes for tensor in inside)
    writer = GGUFWriter(path, "llama")
    for name, field in target.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "llama.block_count")):
            _copy(writer, name, field)
    writer.add_block_count(int(count))
    for tensor in around:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for number in range(count):
        for tensor in inside:
            _, which, name = tensor.name.split(".", 2)
            if int(which) == number % layers:
                writer.add_tensor(f"blk.{number}.{name}", tensor.data, raw_dtype=tensor.tensor_type)
    _write(writer, ())
    return path


def _copy(writer: GGUFWriter, name: str, field: ReaderField) -> None:
    element = field.types[-1] if len(field.types) > 1 else None
    writer.add_key_value(name, field.contents(), field.types[0], element)
