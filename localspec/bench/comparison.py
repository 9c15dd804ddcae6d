"""The changes between two reports, and whether they exceed noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from localspec.bench.result import ALL, FORMAT, LEAST_TOKENS, OFF, MeanInterval
from localspec.bench.summarise import interval
from localspec.errors import LocalspecError
from localspec.safe_text import decoded

_MODEL = ("target", "drafts")
_SLOWEST, _FASTEST = 1e-6, 1e9  # tokens per second; the ratios of such speeds remain numbers


@dataclass(frozen=True, slots=True)
class ReportChange:
    """Ratios of new over old, paired by question.

    Attributes:
        kind: of text; `ALL` for all kinds.
        speed: of tokens per second.
        speedup: of the speed-ups over no drafting; None for the setting without drafting. If the
            whole machine was slower, only `speed` shows it.
    """

    arm: str
    kind: str
    speed: MeanInterval
    speedup: MeanInterval | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports compared.

    Attributes:
        different: other differences, as (name, old, new).
        verdict: conclusions, one sentence each.
    """

    changes: tuple[ReportChange, ...]
    different: tuple[tuple[str, str, str], ...]
    verdict: tuple[str, ...]


def load(path: Path) -> dict[str, Any]:
    """Read a report that was written as JSON.

    Raises:
        LocalspecError: it cannot be read, or is not a report of this version.
    """
    try:
        document = json.loads(decoded(path.read_bytes()))
    except OSError as error:
        raise LocalspecError(
            f"cannot read {path}: {error.strerror}", "Choose another file."
        ) from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise LocalspecError(
            f"{path} is not a report of this version", "Write one with `bench --output FILE.json`."
        )
    return document


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Compare two documents of `load`.

    Raises:
        LocalspecError: they have no question in common, or one is damaged.
    """
    try:
        before, after = _speeds(old), _speeds(new)
        different = _different(old, new)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise LocalspecError(
            "a report is damaged", "Write it again with `bench --output FILE.json`."
        ) from None
    arms = [arm for arm in before if arm in after]
    changes = [change for arm in arms for change in _changes(arm, before, after)]
    if not changes:
        raise LocalspecError(
            "the reports have no question in common", "Compare runs over the same prompts."
        )
    return Comparison(tuple(changes), different, _verdict(changes, different))


Speeds = dict[tuple[str, str], float]
"""(kind, prompt) to tokens per second: the median over repeats."""


def _speeds(document: Mapping[str, Any]) -> dict[str, Speeds]:
    """By setting."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for run in document["runs"]:
        speed = run["tokens_per_second"]
        if speed is not None and run["generated_tokens"] >= LEAST_TOKENS:
            at = str(run["kind"]), str(run["prompt"])
            found.setdefault(str(run["arm"]), {}).setdefault(at, []).append(_speed(speed))
    return {arm: {at: median(each) for at, each in cells.items()} for arm, cells in found.items()}


def _speed(value: Any) -> float:
    """`value` as a number; `ValueError` if no model writes so many tokens per second."""
    found = float(value)
    if not _SLOWEST < found < _FASTEST:
        raise ValueError(value)
    return found


def _changes(
    arm: str, before: dict[str, Speeds], after: dict[str, Speeds]
) -> Iterator[ReportChange]:
    speeds: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    for at in (at for at in before[arm] if at in after[arm]):
        ratio = after[arm][at] / before[arm][at]
        speeds.setdefault(at[0], []).append(ratio)
        old, new = (each.get(OFF, {}).get(at) for each in (before, after))
        if arm != OFF and old and new:
            gains.setdefault(at[0], []).append(ratio * old / new)
    rows = [(kind, {kind: values}, {kind: gains.get(kind, [])}) for kind, values in speeds.items()]
    if len(rows) > 1:
        rows.append((ALL, speeds, gains))
    for kind, speed_of, gain in rows:
        if speed := interval(speed_of):
            yield ReportChange(arm, kind, speed, interval(gain))


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Differences in machine, models, versions and settings."""
    before, after = _circumstances(old), _circumstances(new)
    return tuple(
        (name, _shown(name, before.get(name)), _shown(name, after.get(name)))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def _circumstances(document: Mapping[str, Any]) -> dict[str, Any]:
    where = document["environment"]
    models = {
        "target": _unnamed(where.get("target")),
        "drafts": [_unnamed(draft) for draft in where.get("drafts") or ()],
    }
    return {**where, **models, "loaded_with": None, **where["loaded_with"], **document["settings"]}


def _unnamed(model: Any) -> Any:
    """A model without the name in its file, which is for `--share` and which old reports lack."""
    if not isinstance(model, Mapping):
        return model
    return {name: value for name, value in model.items() if name != "own_name"}


def _shown(name: str, value: Any) -> str:
    """A value as text; a model as its name and the beginning of its hash."""
    if name not in _MODEL:
        return json.dumps(value, ensure_ascii=True)
    models = value if isinstance(value, list) else [value]
    return ", ".join(f"{m['name']} {_hash(m)}" for m in models if isinstance(m, dict)) or "none"


def _hash(model: Mapping[str, Any]) -> str:
    return next((str(text)[:12] for key, text in model.items() if key.startswith("sha")), "")


def _verdict(
    changes: Sequence[ReportChange], different: Sequence[tuple[str, str, str]]
) -> tuple[str, ...]:
    """One sentence for every setting."""
    last = {change.arm: change for change in changes}  # the row over all kinds comes last
    said = [_said(change) for change in last.values()]
    if different:
        names = ", ".join(name for name, _, _ in different)
        said.append(f"Not the same in both: {names}. The change may come from there.")
    return tuple(said)


def _said(change: ReportChange) -> str:
    what = "Without drafting" if change.arm == OFF else f"The speed-up of {change.arm}"
    found = change.speed if change.arm == OFF else change.speedup or change.speed
    shift = f"{100 * (found.value - 1):+.1f} %".replace("+0.0 %", "0.0 %")
    if found.low is None or found.high is None:
        return f"{what}: {shift} in a single question, too little to tell."
    span = f"95 % interval {100 * (found.low - 1):+.1f} to {100 * (found.high - 1):+.1f} %"
    if found.above_one:
        return f"{what} is better by more than noise: {shift} ({span})."
    if found.below_one:
        return f"{what} is worse by more than noise: {shift} ({span})."
    return f"{what}: no more than noise, {shift} ({span})."
