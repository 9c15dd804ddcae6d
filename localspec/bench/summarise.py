"""From runs to rows: speeds, speed-ups and shares, by kind and over all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from localspec.bench.result import ALL, OFF, CurvePoint, Row
from localspec.bench.runs import Run, middle, ratio, shares
from localspec.bench.statistics import Interval, geometric_mean, interval

ByPrompt = Mapping[str, list[Run]]


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


def rows(runs: Sequence[Run], arm: str) -> tuple[tuple[Row, ...], Row]:
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
    return run.tokens_per_second or 0.0


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
) -> Row:
    short = set(too_short(runs))
    rounds = [done for run in mine for done in run.rounds]
    drafting = [done.drafted for done in rounds if done.drafted]
    firsts = by_first_token(mine)
    return Row(
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
        times.setdefault(run.prompt, []).append(run.time_to_first_token_s)
    return [middle(each) for each in times.values()]


def speed_over_all(runs: Iterable[Run]) -> float | None:
    """All tokens over all time, those of the first rounds left out."""
    timed = [run for run in runs if run.timed]
    later = sum(run.generated - run.rounds[0].emitted for run in timed)
    seconds = sum((run.generated - run.rounds[0].emitted) / _speed(run) for run in timed)
    return ratio(later, seconds)


def curve(measured: Mapping[int, float], runs: Iterable[Run]) -> tuple[CurvePoint, ...]:
    """T(n) as it was measured, and as the runs show it."""
    seen: dict[int, list[float]] = {}
    for run in runs:
        for done in run.rounds:
            if done.tokens:
                seen.setdefault(done.drafted + 1, []).append(done.verify_s)
    return tuple(
        CurvePoint(n, measured.get(n), median(seen[n]) if n in seen else None)
        for n in sorted(measured.keys() | seen.keys())
    )
