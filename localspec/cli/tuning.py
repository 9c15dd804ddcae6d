"""What `localspec tune` prints: the measured curves and the draft lengths that follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve
from localspec.engine.llama import build, machine
from localspec.errors import Cancelled
from localspec.loading.expected import choices
from localspec.loading.request import LoadRequest
from localspec.loading.tuning import Tuned, TunedPair, tune

SHOWN = 17
_WIDTH = 40  # characters of the longest bar
NOISY = 0.3


def print_tuned(options: LoadRequest, cancel: Cancel, *, as_json: bool) -> bool:
    """Measure, store and print; whether the user stopped it."""
    said: set[str] = set()

    def progress(step: str, _share: float | None) -> None:
        if not as_json and step not in said:
            said.add(step)
            click.echo(f"{step} ...", err=True)

    try:
        document = _document(tune(options, progress=progress, cancel=cancel))
    except Cancelled:
        return True
    click.echo(json.dumps(document, indent=2) if as_json else _text(document))
    return False


def _document(found: TunedPair) -> dict[str, Any]:
    """All that was found, for `--json`; times in seconds."""
    target, draft = found.target, found.draft
    return {
        "pair": found.name,
        "machine": machine(),
        "build": build(),
        "target": _model(target),
        "draft": _model(draft) if draft else None,
        "draft_note": found.draft_note,
        "gamma": (
            [asdict(one) for one in choices(target.points, draft.points, target.takes_back)]
            if draft
            else []
        ),
    }


def _model(found: Tuned) -> dict[str, Any]:
    return {
        "file": found.name,
        "threads": found.threads,
        "by_threads": {
            str(n): {"one_token_s": one, "four_tokens_s": few}
            for n, (one, few) in found.by_threads.items()
        },
        "seconds": {str(n): seconds for n, seconds in found.points.items()},
        "stored": found.stored,
        "spread": found.spread,
    }


def _text(document: Mapping[str, Any]) -> str:
    """The same for a person."""
    target, draft = document["target"], document["draft"]
    lines = [document["machine"], "", *_curve_lines(target)]
    if draft is None:
        lines += ["", f"No draft: {document['draft_note'] or 'gamma is 0'}."]
    else:
        lines += ["", *_draft_lines(draft, target), "", *_gamma_lines(document["gamma"])]
    for model in (target, draft) if draft else (target,):
        lines += _thread_lines(model)
    spread = max(model["spread"] for model in (target, draft) if model)
    if spread > NOISY:
        lines += ["", f"Timings varied by {spread:.0%}: something else may be running."]
    if not target["stored"]:
        lines += ["", "The cache folder cannot be written: nothing was stored."]
    return "\n".join(lines)


def _curve_lines(target: Mapping[str, Any]) -> list[str]:
    """T(n) as bars; points that were not measured are interpolated and marked."""
    measured = {int(n): seconds for n, seconds in target["seconds"].items()}
    times = Curve(measured).times(SHOWN)
    longest = max(times[1:])
    lines = [f"Target {target['file']}, {target['threads']} threads", "   n        ms  of T(1)"]
    for n in range(1, SHOWN + 1):
        bar = "#" if n in measured else "."
        length = max(1, round(_WIDTH * times[n] / longest))
        lines.append(f"{n:>4}{1e3 * times[n]:>10.2f}{times[n] / times[1]:>9.2f}  {bar * length}")
    return lines


def _draft_lines(draft: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    one, alone = draft["seconds"]["1"], target["seconds"]["1"]
    most = max(map(int, draft["seconds"]))
    reading = 1e3 * draft["seconds"][str(most)]
    return [
        f"Draft {draft['file']}, {draft['threads']} threads",
        f"  one step {1e3 * one:.2f} ms, {one / alone:.2f} of the target's",
        f"  reading {most} tokens {reading:.2f} ms",
    ]


def _gamma_lines(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["accepted  draft  speed-up"]
    for choice in choices:
        gamma = choice["gamma"] or "none"
        lines.append(f"{choice['acceptance']:>7.0%} {gamma:>7} {choice['speedup']:>8.2f}x")
    return lines


def _thread_lines(model: Mapping[str, Any]) -> list[str]:
    if not model["by_threads"]:
        return []
    tried = ", ".join(
        f"{n}: {1e3 * found['one_token_s']:.2f} ms" for n, found in model["by_threads"].items()
    )
    return ["", f"Threads for {model['file']}: {model['threads']} ({tried} a token)"]
