"""Measures the costs of a target, and of heads of several sizes for it, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Final

from localspec import machine
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve
from localspec.engine.length.profile import TARGET_SIZES, measure
from localspec.engine.llama.taps import Taps, TextRow
from localspec.errors import UnsupportedModel
from localspec.loading.load import check, load_another_draft
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf.header import ModelFiles
from localspec.train.estimate import TrainingCosts
from localspec.train.head.head_files import ModelWeights, beginning, write_head
from localspec.train.head.shape import HeadShape

CONTEXT: Final = 1024
"""Context length in tokens for timing a target and judging its head."""

_BUDGET_S: Final = 3.0
_ONES: Final = (1,) * 4  # single-token passes of a turn; the fastest of all turns counts
_TURN_S: Final = 1.0
_READ: Final = 64  # rows to time reading with
_TURNS: Final = 3


def costs(session: Session, taps: Taps, threads: int) -> TrainingCosts:
    """Measure the target and torch here; the time of a head's step is still unknown.

    Raises:
        UnsupportedModel: the target cannot roll back tokens, so nothing can be drafted.
    """
    from localspec.train.head.learning import speed  # noqa: PLC0415 - torch

    target = session.pair.target
    if not target.can_truncate:
        raise UnsupportedModel(
            f"{target.model.name} cannot take back rejected tokens: nothing can be drafted for it",
            "Choose another target.",
        )
    points = measure(target, (*TARGET_SIZES, *TARGET_SIZES), budget=_BUDGET_S, passes=60).points
    read_s, flops = _reading(taps), speed(threads)
    models = target.model.weights_bytes + target.cache_bytes + target.buffer_bytes
    return TrainingCosts(
        target=Curve(points),
        step_s=0.0,
        read_s=read_s,
        flops=flops,
        # This process has the program and torch, too, but has touched few rows of the taps so far.
        loaded_bytes=max(models, machine.resident()) + taps.bytes,
        reading_bytes=taps.bytes,
    )


def _reading(taps: Taps) -> float:
    """Seconds per token to read many tokens and output all logits."""
    rows = [TextRow(token, 0, token) for token in range(_READ)]
    times = []
    for _ in range(_TURNS):
        taps.clear()
        started = perf_counter()
        taps.decode(rows)
        times.append(perf_counter() - started)
    taps.clear()
    return min(times) / _READ


def chosen_shape(
    session: Session,
    options: LoadRequest,
    target: ModelFiles,
    shapes: Sequence[HeadShape],
    *,
    probe: Path,
    most: float,
    cancel: Cancel,
) -> tuple[HeadShape, float]:
    """The largest head whose step takes at most a share `most` of T(1), and the share it takes.

    If even the smallest takes longer, it is chosen.

    Args:
        session: the loaded target.
        options: how it was loaded.
        target: its files.
        shapes: to choose from, the largest first; at least one.
        probe: a path for the heads that are timed; the file is deleted.
        most: share of T(1) that a step may take.
        cancel: stops it.
    """
    weights = ModelWeights(target.paths)
    for shape in shapes:
        _write_untrained(probe, shape, target, weights)
        try:
            share = _timed(session, replace(options, draft=str(probe)), cancel)
        finally:
            probe.unlink(missing_ok=True)
        if share <= most:
            break
    return shape, share


def _write_untrained(
    path: Path, shape: HeadShape, target: ModelFiles, weights: ModelWeights
) -> None:
    drafted = range(shape.drafted)
    tensors = beginning(shape, weights, target.header.architecture, drafted)
    write_head(path, shape, tensors, drafted=drafted, target=target.paths[0], about={})


def _timed(session: Session, options: LoadRequest, cancel: Cancel) -> float:
    """The time of a step of a head over that of a token of the target.

    Both are timed in turns, so that other programs slow both down.
    """
    other = load_another_draft(session, check(options), progress=lambda *_: None, cancel=cancel)
    try:
        both = (*other.pair.drafts.values(), session.pair.target)
        turns = [
            [measure(each, _ONES, budget=_TURN_S, one_row=True).points[1] for each in both]
            for _ in range(_TURNS)
        ]
        least: list[float] = [min(times) for times in zip(*turns, strict=True)]
        return least[0] / least[1]
    finally:
        other.engine.close()
        other.pair.close_drafts()
        other.template.close()
