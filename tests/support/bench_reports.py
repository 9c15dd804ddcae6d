"""Made-up bench reports: figures chosen by the test, everything else ordinary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from localspec.bench import prompt_sets
from localspec.bench.prompt_sets import BenchRequest
from localspec.bench.result import (
    ALL,
    AnswersAgree,
    ArmReport,
    BenchReport,
    BenchRun,
    CurvePoint,
    KindRow,
    MeanInterval,
    Prediction,
    SweepPoint,
    TimeShares,
)
from localspec.engine.record.stats import GenerationStats, Round

CHEAP = {1: 10e-3, 2: 10.5e-3, 4: 11e-3, 8: 12e-3, 13: 14e-3}
ENVIRONMENT = {
    "machine": "Some CPU, 8 threads, 16 GB, no accelerator",
    "system": "Linux x86_64",
    "localspec": "0.1.0",
    "python": "3.11.7",
    "llama_cpp_python": "0.3.36 CPU : AVX2 = 1",
    "pair": "big",
    "target": {"name": "Big 8B", "file_bytes": 5_000_000_000, "sha256": "ab" * 32},
    "drafts": [{"name": "Small 1B", "file_bytes": 500_000_000, "sha256": "cd" * 32}],
    "loaded_with": {"ctx_size": 4096, "threads": 8, "draft_threads": 8, "n_gpu_layers": -1},
}


def done(tokens: int, drafted: int = 0, *, verify_s: float = 0.01, draft_s: float = 0.0) -> Round:
    """A round that emits `tokens`, all but the last of them drafted; a tenth of it is Python."""
    total = 1.1 * (verify_s + draft_s)
    return Round(
        tokens=tuple(range(tokens)),
        gamma=drafted,
        drafted=drafted,
        accepted=max(0, tokens - 1),
        draft_s=draft_s,
        verify_s=verify_s,
        total_s=total,
        draft_passes=drafted,
    )


def stats(rounds: Iterable[Round], speed: float | None) -> GenerationStats:
    """Sums over these rounds, at this speed after the first."""
    found = GenerationStats(prompt_tokens=20)
    for each in rounds:
        found.add(each)
    found.time_to_first_token_s = 0.1
    later = found.generated_tokens - found.tokens_in_first_round
    found.after_first_s = later / speed if speed else 0.0
    return found


def run(
    prompt: str, arm: str, speed: float | None, *, kind: str = "code", repeat: int = 0, n: int = 40
) -> BenchRun:
    """An answer of `n` tokens at this speed."""
    return BenchRun(
        prompt=prompt,
        kind=kind,
        arm=arm,
        repeat=repeat,
        stats=stats([done(1) for _ in range(n)], speed),
        prompt_s=0.09,
        after_s=0.0,
        wall_s=0.09 + 0.011 * n,
    )


def row(kind: str, speedup: MeanInterval | None, *, acceptance: float | None = 0.8) -> KindRow:
    """One kind at 20 tokens/s without drafting."""
    return KindRow(
        kind=kind,
        prompts=6,
        tokens_per_second=20 * (speedup.value if speedup else 1.0),
        speedup=speedup,
        acceptance=acceptance if speedup else None,
        tokens_per_round=3.2 if speedup else 1.0,
        gamma=4.0 if speedup else None,
        drafting=0.9 if speedup else 0.0,
        time_to_first_token_s=0.25,
        shares=TimeShares(0.2, 0.78, 0.02),
    )


def arm(
    name: str,
    overall: MeanInterval | None,
    kinds: Mapping[str, MeanInterval] | None = None,
    *,
    gamma: str = "auto",
    acceptance: float = 0.8,
    shares: TimeShares | None = None,
) -> ArmReport:
    """One setting; without `kinds` it has only code."""
    chosen: Mapping[str, MeanInterval | None] = kinds or {"code": overall}
    total = row(ALL, overall, acceptance=acceptance)
    if shares is not None:
        total = KindRow(**{n: getattr(total, n) for n in KindRow.__slots__} | {"shares": shares})
    return ArmReport(
        name=name,
        draft=None if overall is None else "Small 1B",
        gamma=gamma,
        swept=False,
        kinds=tuple(row(kind, found, acceptance=acceptance) for kind, found in chosen.items()),
        overall=total,
    )


def sweep(rooflines: Mapping[int, float], speedups: Mapping[int, float]) -> tuple[SweepPoint, ...]:
    """Predictions for each draft length."""
    return tuple(
        SweepPoint(
            Prediction(gamma, 1.0 + gamma, 20 * speedups[gamma], speedups[gamma], roof), None, None
        )
        for gamma, roof in rooflines.items()
    )


def report(*on: ArmReport, **changes: Any) -> BenchReport:
    """A report over these settings; every other field can be changed by name."""
    off_kinds = [each.kind for each in on[0].kinds] if on else ["code"]
    off = ArmReport(
        name="off",
        draft=None,
        gamma="0",
        swept=False,
        kinds=tuple(row(kind, None) for kind in off_kinds),
        overall=row(ALL, None),
    )
    values: dict[str, Any] = {
        "environment": ENVIRONMENT,
        "settings": {"prompts": "general", "repeats": 2, "temp": 0.0},
        "draft_note": "",
        "arms": (off, *on),
        "curve": tuple(CurvePoint(n, seconds, None) for n, seconds in CHEAP.items()),
        "draft_step_s": 1e-3 if on else None,
        "sweep": (),
        "agreement": AnswersAgree(12, 12, greedy=True, partings=()),
        "prompts": 54,
        "too_long": (),
        "too_short": (),
        "ended": "",
        "peak_memory_bytes": 6_000_000_000,
    }
    return BenchReport(**values | changes)


def request(**more: Any) -> BenchRequest:
    """A request for the quick bench, with some of its fields changed."""
    usual = BenchRequest(
        prompts=prompt_sets.quick(),
        repeats=1,
        n_predict=8,
        temperature=0.0,
        seed=1,
        gamma="auto",
    )
    return replace(usual, **more)
