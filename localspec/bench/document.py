"""The report as a JSON document: times in seconds, sizes in bytes, names as in `Report`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from localspec.bench.report import FORMAT, Report
from localspec.bench.runs import Run


def document(report: Report) -> dict[str, Any]:
    """Everything, every run included; what was said stays out, as do the prompts' texts."""
    found = {name: _plain(value) for name, value in _items(report) if name != "runs"}
    return {"format": FORMAT, **found, "runs": [_run(run) for run in report.runs]}


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in fields(value)]


def _plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists."""
    if is_dataclass(value):
        return {name: _plain(each) for name, each in _items(value)}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _run(run: Run) -> dict[str, Any]:
    """One run's sums: drafted = accepted + rejected, and the parts make up the wall time."""
    return {
        "prompt": run.prompt,
        "kind": run.kind,
        "arm": run.arm,
        "repeat": run.repeat,
        "prompt_tokens": run.prompt_tokens,
        "generated_tokens": run.generated,
        "rounds": len(run.rounds),
        "drafted": run.drafted,
        "accepted": run.accepted,
        "rejected": run.drafted - run.accepted,
        "tokens_per_second": run.tokens_per_second,
        "time_to_first_token_s": run.time_to_first_token_s,
        "prompt_s": run.prompt_s,
        "draft_s": run.draft_s,
        "verify_s": run.verify_s,
        "python_s": run.python_s,
        "wall_s": run.wall_s,
    }
