"""Which of the files of a repository suits this machine: the same model at several quants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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

_ENOUGH_BITS: Final = 8.5  # Q8_0: above it, files grow and answers stay the same
_FINE_BITS: Final = 6.5  # Q6_K: from here on, answers are hardly better (docs/pull.md)
_WORTH_A_CHANGE: Final = 1.05  # times as fast

FileSpeed = Callable[[str, int], float | None]
"""Tokens per second with drafting, from a file's quant and its bytes; None if unknown."""


def unmeasured(_quant: str, _n_bytes: int) -> float | None:
    """The `FileSpeed` of a machine where nothing was measured."""
    return None


@dataclass(frozen=True, slots=True)
class SuitedFile:
    """The file that suits this machine.

    Attributes:
        name: its path in the repository; of a split model, of the first part.
        quant: such as ``Q5_K_M``.
        n_bytes: of all its parts.
        n_ctx: tokens of context that fit with it.
        of: how many files of this model the repository has.
        rather_than: the quant of the largest file that fits, where this one is faster by what was
            measured here and of similar quality; else empty.
        times_as_fast: as that file, with drafting; 1 without one.
    """

    name: str
    quant: str
    n_bytes: int
    n_ctx: int
    of: int
    rather_than: str = ""
    times_as_fast: float = 1.0


class _File(NamedTuple):
    """A file of the target's model; a better one compares greater."""

    small_enough: bool
    rank: int
    name: str
    quant: str
    n_bytes: int
    bits: float


def suited(
    target: ModelSource,
    models: Sequence[ModelFacts],
    fit: MemoryFit,
    speed_of: FileSpeed = unmeasured,
) -> SuitedFile | None:
    """The best file of the target's model that leaves this machine enough memory.

    That is the largest up to `_ENOUGH_BITS` and not below `LEAST_BITS` that fits with its cache,
    buffers and drafters, by the same rule as proposals (`MemoryFit.modest`). Of a dense model's
    files from `_FINE_BITS` on it is the fastest with drafting, as far as their speeds are known;
    below, none is preferred for its speed, as quality falls with every step.

    Args:
        target: a model on the Hub.
        models: the sizes in its header, and those of its drafters.
        fit: whose `total` is the memory of this machine.
        speed_of: what is known of the speeds of files.

    Returns:
        None if there is no choice, or nothing fits.
    """
    sizes = models[0]
    n_ctx = min(ROOM_CTX, sizes.trained or ROOM_CTX)
    needed = sum(need(each, ModelSetup(n_ctx=n_ctx)).total for each in models)
    rest = needed - sizes.weights + PROGRAM
    there = list(of_same_model(target))
    fitting = [
        _File(enough, n_bytes if enough else -n_bytes, name, quant, n_bytes, bits)
        for name, quant, n_bytes in there
        if (bits := repository_files.quant_bits(quant)) >= repository_files.LEAST_BITS
        and MemoryFit(n_bytes + rest, 0, fit.total, "").modest()
        for enough in (bits <= _ENOUGH_BITS,)
    ]
    if len(there) < 2 or not fitting:
        return None
    best = max(fitting)
    dense = not any(sizes.experts)
    alike = [file for file in fitting if file.small_enough and file.bits >= _FINE_BITS]
    speeds = {
        file: (dense and speed_of(file.quant, file.n_bytes)) or 0.0 for file in [best, *alike]
    }
    fast = max(speeds, key=lambda file: speeds[file])
    gain = speeds[fast] / speeds[best] if speeds[best] else 0.0
    if gain < _WORTH_A_CHANGE:
        return SuitedFile(best.name, best.quant, best.n_bytes, n_ctx, len(there))
    return SuitedFile(fast.name, fast.quant, fast.n_bytes, n_ctx, len(there), best.quant, gain)


def of_same_model(target: ModelSource) -> Iterator[tuple[str, str, int]]:
    """Name, quant and bytes of each whole file of the target's model in its repository."""
    sizes = {file.name: file.size for file in target.listing}
    model = target.files[0].name if target.files else ""
    for name in repository_files.of_model(sizes, model):
        if repository_files.is_model(name):
            parts = split_names(name)
            if set(parts) <= set(sizes):
                quant = repository_files.quant_of(name)
                yield name, quant, sum(sizes[part] for part in parts)
