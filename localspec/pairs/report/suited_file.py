"""Which of the files of a repository suits this machine: the same model at several quants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from localspec.pairs.gguf.header import split_names
from localspec.pairs.memory.model_facts import ModelFacts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.outlook import MemoryFit
from localspec.pairs.memory.placement import PROGRAM
from localspec.pairs.names import repository_files
from localspec.pairs.report.model_source import ModelSource

BEST: Final = "best"
"""The value of ``--quant`` that takes the file which suits this machine."""

ROOM_CTX: Final = 16_384
"""Tokens of context for which a file must leave room."""

_LEAST_BITS: Final = 4.0  # below this, quality falls fast
_ENOUGH_BITS: Final = 8.5  # Q8_0: above it, files grow and answers stay the same


@dataclass(frozen=True, slots=True)
class SuitedFile:
    """The file that suits this machine.

    Attributes:
        name: its path in the repository; of a split model, of the first part.
        quant: such as ``Q5_K_M``.
        n_bytes: of all its parts.
        n_ctx: tokens of context that fit with it.
        of: how many files of this model the repository has.
    """

    name: str
    quant: str
    n_bytes: int
    n_ctx: int
    of: int


def suited(target: ModelSource, sizes: ModelFacts, fit: MemoryFit) -> SuitedFile | None:
    """The best file of the target's model that leaves this machine enough memory.

    That is the largest up to `_ENOUGH_BITS` and not below `_LEAST_BITS` that fits with its cache
    and buffers, by the same rule as proposals (`MemoryFit.modest`).

    Args:
        target: a model on the Hub.
        sizes: in its header.
        fit: whose `total` is the memory of this machine.

    Returns:
        None if there is no choice, or nothing fits.
    """
    n_ctx = min(ROOM_CTX, sizes.trained or ROOM_CTX)
    rest = need(sizes, ModelSetup(n_ctx=n_ctx)).total - sizes.weights + PROGRAM
    there = list(of_same_model(target))
    fitting = [
        (bits <= _ENOUGH_BITS, n_bytes if bits <= _ENOUGH_BITS else -n_bytes, name, quant)
        for name, quant, n_bytes in there
        if (bits := repository_files.quant_bits(quant)) >= _LEAST_BITS
        and MemoryFit(n_bytes + rest, 0, fit.total, "").modest()
    ]
    if len(there) < 2 or not fitting:
        return None
    _, n_bytes, name, quant = max(fitting)
    return SuitedFile(name, quant, abs(n_bytes), n_ctx, len(there))


def of_same_model(target: ModelSource) -> Iterator[tuple[str, str, int]]:
    """Name, quant and bytes of each whole file of the target's model in its repository."""
    sizes = {file.name: file.size for file in target.listing}
    model = _without_quant(target.files[0].name) if target.files else ""
    for name in sizes:
        if repository_files.is_model(name) and _without_quant(name) == model:
            parts = split_names(name)
            if set(parts) <= set(sizes):
                quant = repository_files.quant_of(name)
                yield name, quant, sum(sizes[part] for part in parts)


def _without_quant(path: str) -> str:
    """A file's name without its quant and the number of its part."""
    name = split_names(path)[0].rpartition("/")[2].lower()
    name = re.sub(r"-00001-of-\d{5}", "", name)
    quant = repository_files.quant_of(name).lower()
    return name.replace(quant, "") if quant else name
