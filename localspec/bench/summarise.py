"""Rows from runs: speeds, speed-ups with intervals, and shares of the time, by kind and over all.

Means of ratios are geometric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean, median

import numpy as np
from numpy.typing import NDArray

from localspec.bench.result import ALL, OFF, BenchRun, CurvePoint, KindRow, MeanInterval, TimeShares

_DRAWS = 4000  # samples of the bootstrap
_SEED = 1  # of the resampling: the same figures give the same interval
_LOW, _HIGH = 2.5, 97.5


def _by_prompt(runs: Iterable[BenchRun]) -> dict[str, list[BenchRun]]:
    """Runs grouped by question."""
    found: dict[str, list[BenchRun]] = {}
    for run in runs:
        found.setdefault(run.prompt, []).append(run)
    return found


def too_short(runs: Iterable[BenchRun]) -> tuple[str, ...]:
    """Names of questions with an answer that is too short to time."""
    return tuple(dict.fromkeys(run.prompt for run in runs if not run.timed))


def rows(
    runs: Sequence[BenchRun], arm: str, *, steady: bool = False
) -> tuple[tuple[KindRow, ...], KindRow]:
    """A row for every kind, and one over all kinds.

    Answers that are too short to time count for acceptance and shares, but not for speed.

    Args:
        runs: those of all settings.
        arm: the setting.
        steady: whether speed-ups are those of a machine whose speed stays the same, as for
            `speedups`.
    """
    mine = [run for run in runs if run.arm == arm]
    short, ratios = set(too_short(runs)), {} if arm == OFF else speedups(runs, arm, steady=steady)
    errors = shared_errors(runs, arm) if steady and ratios else {}
    found = []
    for kind in dict.fromkeys(run.kind for run in runs):
        chosen = [run for run in mine if run.kind == kind]
        asked = _by_prompt(run for run in chosen if run.prompt not in short)
        speeds = [median(map(_speed, repeats)) for repeats in asked.values()]
        speedup = interval({kind: ratios.get(kind, [])}, errors.get(kind, 0.0))
        found.append(_row(kind, chosen, short, speeds, speedup))
    means = [row.tokens_per_second for row in found if row.tokens_per_second is not None]
    speedup = interval(ratios, fmean(errors.values()) if errors else 0.0)
    return tuple(found), _row(ALL, mine, short, means, speedup)


def speedups(runs: Sequence[BenchRun], arm: str, *, steady: bool = False) -> dict[str, list[float]]:
    """The questions' speed-ups by kind, each the median of its repeats' paired ratios.

    If `steady`, a pass of the target counts with the mean time of all passes over as many tokens,
    in whichever answer. A machine whose speed changed between two answers then adds no noise, and a
    few answers tell what many would; what only slows down the passes of drafting itself is shared
    with the others.
    """
    passes = _pass_times(runs) if steady else {}
    baseline = _by_prompt(run for run in runs if run.arm == OFF)
    short = set(too_short(runs))
    found: dict[str, list[float]] = {}
    for prompt, answered in _by_prompt(run for run in runs if run.arm == arm).items():
        if prompt in baseline and prompt not in short:
            pairs = zip(answered, baseline[prompt], strict=True)
            ratios = [_speed(on, passes) / _speed(off, passes) for on, off in pairs]
            found.setdefault(answered[0].kind, []).append(median(ratios))
    return found


def faster(runs: Sequence[BenchRun], arm: str, other: str) -> MeanInterval | None:
    """The speed of one setting over that of another, question by question, as for `speedups`."""
    mine, its = (speedups(runs, name) for name in (arm, other))
    return interval(
        {kind: [a / b for a, b in zip(mine[kind], its[kind], strict=True)] for kind in mine}
    )


def shared_errors(runs: Sequence[BenchRun], arm: str) -> dict[str, float]:
    """The standard error that the passes' mean times add to the log of each kind's speed-up.

    All answers share these times, so what they are off by does not show in how far the answers'
    speed-ups lie apart. The speed-up's derivative by the log of each pass time is the share of the
    time without drafting that these passes take, less that with drafting, in the mean over the
    questions. How far an answer's passes are off from their means counts as one observation, since
    they share the machine's speed of that moment: the variance is the sum of squares over answers
    (the sandwich estimator for clusters; Liang and Zeger, Biometrika 73, 1986). Over all kinds the
    error is at most the mean of these.
    """
    passes, short = _pass_times(runs), set(too_short(runs))
    counts = Counter(done.drafted for run in runs for done in run.stats.rounds[1:])
    made = [run for run in runs if run.arm in (OFF, arm) and run.prompt not in short]
    found = {}
    for kind in dict.fromkeys(run.kind for run in made):
        mine, weights = [run for run in made if run.kind == kind], dict.fromkeys(passes, 0.0)
        n = len(mine) / 2
        for run in mine:
            share = (1 if run.arm == OFF else -1) * _speed(run, passes) / _later(run)
            for done in run.stats.rounds[1:]:
                weights[done.drafted] += share * passes[done.drafted] / n
        found[kind] = math.hypot(*(_off(run, weights, passes, counts) for run in runs))
    return found


def _off(
    run: BenchRun,
    weights: Mapping[int, float],
    passes: Mapping[int, float],
    counts: Mapping[int, int],
) -> float:
    """How far the passes of one answer are off, as they bear on a kind's speed-up.

    The means hold these passes too. So each size's sum is divided by the share of the passes of
    that size that other answers made; what one answer alone made shows in that answer.
    """
    found, mine = 0.0, Counter(done.drafted for done in run.stats.rounds[1:])
    for done in run.stats.rounds[1:]:
        if others := counts[done.drafted] - mine[done.drafted]:
            found += weights[done.drafted] * (done.verify_s / passes[done.drafted] - 1) / others
    return found


def _later(run: BenchRun) -> int:
    """The tokens of a run after its first round."""
    return run.stats.generated_tokens - run.stats.tokens_in_first_round


def _pass_times(runs: Iterable[BenchRun]) -> dict[int, float]:
    """The mean seconds of a pass of the target, by how many tokens were drafted for it."""
    seen: dict[int, list[float]] = {}
    for done in (done for run in runs for done in run.stats.rounds[1:]):
        seen.setdefault(done.drafted, []).append(done.verify_s)
    return {drafted: fmean(seconds) for drafted, seconds in seen.items()}


def _speed(run: BenchRun, passes: Mapping[int, float] | None = None) -> float:
    """Tokens per second of a run that is long enough to time, with `passes` for its own times."""
    stats = run.stats
    if not passes or not stats.tokens_per_second:
        return stats.tokens_per_second or 0.0
    more = sum(passes[done.drafted] - done.verify_s for done in stats.rounds[1:])
    return stats.tokens_per_second * stats.after_first_s / (stats.after_first_s + more)


def _row(
    kind: str,
    runs: Sequence[BenchRun],
    short: set[str],
    speeds: Sequence[float],
    speedup: MeanInterval | None,
) -> KindRow:
    """Make a row of these runs, of the `speeds` of their questions and of their `speedup`."""
    rounds = [done for run in runs for done in run.stats.rounds]
    drafting = [done.drafted for done in rounds if done.drafted]
    prompts = _by_prompt(runs)
    firsts = [middle(r.stats.time_to_first_token_s for r in each) for each in prompts.values()]
    return KindRow(
        kind=kind,
        prompts=len(prompts.keys() - short),
        tokens_per_second=geometric_mean(speeds) if speeds else None,
        speedup=speedup,
        acceptance=ratio(sum(done.accepted for done in rounds), sum(drafting)),
        tokens_per_round=ratio(sum(done.emitted for done in rounds), len(rounds)),
        gamma=ratio(sum(drafting), len(drafting)),
        drafting=len(drafting) / len(rounds) if rounds else 0.0,
        time_to_first_token_s=middle(firsts),
        shares=shares(runs),
    )


def speed_over_all(runs: Iterable[BenchRun]) -> float | None:
    """All tokens per second over all runs, without their first rounds."""
    timed = [run for run in runs if run.timed]
    return ratio(sum(map(_later, timed)), sum(run.stats.after_first_s for run in timed))


def curve(measured: Mapping[int, float], runs: Iterable[BenchRun]) -> tuple[CurvePoint, ...]:
    """T(n) as measured before the runs, and as its median in the runs."""
    seen: dict[int, list[float]] = {}
    for run in runs:
        for done in run.stats.rounds:
            if done.tokens:
                seen.setdefault(done.drafted + 1, []).append(done.verify_s)
    return tuple(
        CurvePoint(n, measured.get(n), middle(seen.get(n, ())))
        for n in sorted(measured.keys() | seen.keys())
    )


def shares(runs: Sequence[BenchRun]) -> TimeShares | None:
    """Shares of the summed time of these runs; None without any time."""
    draft = sum(run.draft_s for run in runs)
    verify = sum(run.verify_s for run in runs)
    python = sum(run.python_s for run in runs)
    whole = draft + verify + python
    return TimeShares(draft / whole, verify / whole, python / whole) if whole > 0 else None


def ratio(above: float, below: float) -> float | None:
    """`above / below`; None if `below` is 0."""
    return above / below if below else None


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def interval(groups: Mapping[str, Sequence[float]], error: float = 0.0) -> MeanInterval | None:
    """The mean over kinds of the mean over each kind's prompts, with a bootstrap over prompts.

    Prompts are resampled within each kind, as the kinds are fixed; if a kind has a single prompt,
    from all kinds together, as many for each as it has. Deviations are multiplied by
    sqrt(n / (n - 1)), the factor by which a bootstrap of n values is too narrow (Efron and
    Tibshirani, An Introduction to the Bootstrap, chapter 5.3), and spread as Student's t: how far
    few prompts lie apart is itself uncertain, and 95 % of six would hold the truth 88 times in 100.

    Args:
        groups: the ratios of each kind's prompts, all positive, by kind.
        error: the standard error that all prompts share, of the mean's logarithm.

    Returns:
        None without any values.
    """
    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in groups.values() if values]
    if not logs:
        return None
    mean = float(np.mean([group.mean() for group in logs]))
    if sum(map(len, logs)) < 2:
        return MeanInterval(math.exp(mean))
    random = np.random.default_rng(_SEED)
    pools = [[group] for group in logs] if min(map(len, logs)) > 1 else [logs]
    draws = np.array([_draw(pool, random) for pool in pools])
    drawn = draws.mean(axis=0) * _student(draws, [sum(map(len, pool)) for pool in pools], random)
    drawn += error * random.standard_t(sum(map(len, logs)) - 1, _DRAWS)
    low, high = np.percentile(drawn, (_LOW, _HIGH))
    return MeanInterval(math.exp(mean), math.exp(mean + float(low)), math.exp(mean + float(high)))


def _draw(kinds: Sequence[NDArray[np.float64]], random: np.random.Generator) -> NDArray[np.float64]:
    """Deviations of `_DRAWS` means over kinds, resampled from all of these; shape (_DRAWS,)."""
    pool = np.concatenate(kinds)
    n = len(pool)
    off = (pool - pool.mean()) * math.sqrt(n / (n - 1))
    weights = np.concatenate([np.full(len(kind), 1 / len(kind)) for kind in kinds])
    means: NDArray[np.float64] = np.average(
        off[random.integers(0, n, (_DRAWS, n))], axis=1, weights=weights
    )
    return means


def _student(
    draws: NDArray[np.float64], sizes: Sequence[int], random: np.random.Generator
) -> NDArray[np.float64]:
    """Factors that spread the mean of `draws` as Student's t, where normal draws were as spread.

    The degrees of freedom are Welch's (Biometrika 34, 1947), as kinds may differ in their spread.
    """
    spread = draws.var(axis=1)
    free = spread.sum() ** 2 / (spread**2 / (np.array(sizes) - 1)).sum() if spread.any() else 1.0
    factors: NDArray[np.float64] = np.sqrt(free / random.chisquare(free, _DRAWS))
    return factors
