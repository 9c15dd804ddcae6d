"""From runs to rows: speeds, speed-ups with their intervals, and shares, by kind and over all.

Ratios are averaged as logarithms: geometric means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from localspec.bench.result import ALL, OFF, CurvePoint, Interval, KindRow, Run, Shares

_DRAWS = 4000  # of the bootstrap
_LOW, _HIGH = 2.5, 97.5


def by_prompt(runs: Iterable[Run], arm: str) -> dict[str, list[Run]]:
    """The runs of one setting, repeat by repeat, for every question."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.arm == arm:
            found.setdefault(run.prompt, []).append(run)
    return found


def too_short(runs: Iterable[Run]) -> tuple[str, ...]:
    """Questions with an answer that has too few tokens to time."""
    return tuple(dict.fromkeys(run.prompt for run in runs if not run.timed))


def rows(runs: Sequence[Run], arm: str) -> tuple[tuple[KindRow, ...], KindRow]:
    """A row for every kind, and the one over all.

    What was too short to time counts for acceptance and shares, and not for speed.
    """
    mine = [run for run in runs if run.arm == arm]
    kinds = list(dict.fromkeys(run.kind for run in runs))
    ratios = speedups(runs, arm)
    found = [
        _row(
            kind,
            [run for run in mine if run.kind == kind],
            runs,
            _geometric(kind, mine, runs),
            interval({kind: ratios.get(kind, [])}) if arm != OFF else None,
        )
        for kind in kinds
    ]
    speeds = [row.tokens_per_second for row in found if row.tokens_per_second is not None]
    together = interval(ratios) if arm != OFF else None
    return tuple(found), _row(ALL, mine, runs, geometric_mean(speeds), together)


def speedups(runs: Sequence[Run], arm: str) -> dict[str, list[float]]:
    """Kind to the speed-up of every question: the median over repeats of the paired ratio."""
    plain, ours = by_prompt(runs, OFF), by_prompt(runs, arm)
    short = set(too_short(runs))
    found: dict[str, list[float]] = {}
    for prompt, answered in ours.items():
        if prompt in short or prompt not in plain:
            continue
        pairs = zip(answered, plain[prompt], strict=True)
        ratios = [_speed(on) / _speed(off) for on, off in pairs]
        found.setdefault(answered[0].kind, []).append(median(ratios))
    return found


def _speed(run: Run) -> float:
    """Tokens per second of a run that is long enough to be timed."""
    return run.stats.tokens_per_second or 0.0


def _geometric(kind: str, mine: Sequence[Run], runs: Sequence[Run]) -> float | None:
    """The mean speed over the questions of one kind, each the median of its repeats."""
    short = set(too_short(runs))
    speeds: dict[str, list[float]] = {}
    for run in mine:
        if run.kind == kind and run.prompt not in short:
            speeds.setdefault(run.prompt, []).append(_speed(run))
    return geometric_mean([median(each) for each in speeds.values()])


def _row(
    kind: str,
    mine: Sequence[Run],
    runs: Sequence[Run],
    speed: float | None,
    speedup: Interval | None,
) -> KindRow:
    short = set(too_short(runs))
    rounds = [done for run in mine for done in run.stats.rounds]
    drafting = [done.drafted for done in rounds if done.drafted]
    firsts = by_first_token(mine)
    return KindRow(
        kind=kind,
        prompts=len({run.prompt for run in mine} - short),
        tokens_per_second=speed,
        speedup=speedup,
        acceptance=ratio(sum(done.accepted for done in rounds), sum(drafting)),
        tokens_per_round=ratio(sum(done.emitted for done in rounds), len(rounds)),
        gamma=ratio(sum(drafting), len(drafting)),
        drafting=len(drafting) / len(rounds) if rounds else 0.0,
        time_to_first_token_s=middle(firsts),
        shares=shares(mine),
    )


def by_first_token(runs: Iterable[Run]) -> list[float | None]:
    """The time to the first token of every question: the median over its repeats."""
    times: dict[str, list[float | None]] = {}
    for run in runs:
        times.setdefault(run.prompt, []).append(run.stats.time_to_first_token_s)
    return [middle(each) for each in times.values()]


def speed_over_all(runs: Iterable[Run]) -> float | None:
    """All tokens over all time, those of the first rounds left out."""
    timed = [run.stats for run in runs if run.timed]
    later = sum(stats.generated_tokens - stats.tokens_in_first_round for stats in timed)
    seconds = sum(stats.after_first_s for stats in timed)
    return ratio(later, seconds)


def curve(measured: Mapping[int, float], runs: Iterable[Run]) -> tuple[CurvePoint, ...]:
    """T(n) as it was measured, and as the runs show it."""
    seen: dict[int, list[float]] = {}
    for run in runs:
        for done in run.stats.rounds:
            if done.tokens:
                seen.setdefault(done.drafted + 1, []).append(done.verify_s)
    return tuple(
        CurvePoint(n, measured.get(n), median(seen[n]) if n in seen else None)
        for n in sorted(measured.keys() | seen.keys())
    )


def shares(runs: Iterable[Run]) -> Shares | None:
    """The shares over all of these runs together; None where there is no time."""
    chosen = list(runs)
    draft = sum(run.draft_s for run in chosen)
    verify = sum(run.stats.verify_s for run in chosen)
    python = sum(run.python_s for run in chosen)
    whole = draft + verify + python
    return Shares(draft / whole, verify / whole, python / whole) if whole > 0 else None


def ratio(above: float, below: float) -> float | None:
    """A quotient, None where there is nothing to divide by."""
    return above / below if below else None


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """Of positive values; None of no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def interval(groups: Mapping[str, Sequence[float]], *, seed: int = 1) -> Interval | None:
    """The mean over kinds of the mean over each kind's prompts, with a bootstrap over prompts.

    Kinds are what they are: prompts are drawn anew within each kind. Where a kind has a single
    prompt nothing can be drawn within it, and prompts are drawn from all kinds together. What is
    drawn is stretched by sqrt(n / (n - 1)): a bootstrap of few values is too narrow by that
    (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 5.3).

    Args:
        groups: kind to the ratios of its prompts, all positive.
        seed: of the draws, so that the same figures give the same interval.

    Returns:
        None where there are no values at all.
    """
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in groups.values() if values]
    if not logs:
        return None
    mean = float(np.mean([group.mean() for group in logs]))
    if min(len(group) for group in logs) < 2:
        logs = [np.concatenate(logs)]
    if len(logs[0]) < 2:
        return Interval(math.exp(mean))
    random = np.random.default_rng(seed)
    drawn = np.mean([_draw(group, random) for group in logs], axis=0)
    low, high = np.percentile(drawn, (_LOW, _HIGH))
    return Interval(math.exp(mean), math.exp(mean + float(low)), math.exp(mean + float(high)))


def _draw(logs: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """How far the mean of a drawn sample lies from the mean; `_DRAWS` times."""
    n = len(logs)
    off = (logs - logs.mean()) * math.sqrt(n / (n - 1))
    means: NDArray[np.float64] = off[random.integers(0, n, (_DRAWS, n))].mean(axis=1)
    return means
