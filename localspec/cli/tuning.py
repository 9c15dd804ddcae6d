"""The work behind `localspec tune`: measure both models, find thread counts, report, store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import click

from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve
from localspec.engine.length.profile import Profile, identity, measure, measure_by_context
from localspec.engine.llama import Context, build, default_threads, machine
from localspec.errors import Cancelled, LocalspecError
from localspec.loading.expected import choices
from localspec.loading.load import load_session
from localspec.loading.measuring import ANY_THREADS, chosen, profile_store
from localspec.loading.request import LoadRequest

BUDGET = 12.0  # seconds for a model's curve
PASSES = 72
THREAD_BUDGET = 1.5  # seconds for one thread count
THREAD_SIZES = (1, 4, 1, 4, 1, 4, 1, 4)
SHOWN = 17
_WIDTH = 40  # characters of the longest bar
NOISY = 0.3
_GAIN = 0.97  # another thread count has to be faster by 3 %, or the usual one stays


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found out about one model.

    Attributes:
        name: the model's file.
        threads: in use from now on.
        by_threads: seconds of one token and of four, for every thread count tried.
        points: n to seconds of one decode of n tokens.
        stored: whether it could be kept.
        spread: how far timings lay apart, in shares.
        takes_back: tokens that it takes back at once, None for any number.
    """

    name: str
    threads: int
    by_threads: Mapping[int, tuple[float, float]]
    points: Mapping[int, float]
    stored: bool
    spread: float
    takes_back: int | None


def tune(options: LoadRequest, cancel: Cancel, *, as_json: bool) -> bool:
    """Measure, store and print; whether the user stopped it."""
    said: set[str] = set()

    def progress(step: str, _share: float | None) -> None:
        if not as_json and step not in said:
            said.add(step)
            click.echo(f"{step} ...", err=True)

    try:
        with closing(load_session(options, progress=progress, cancel=cancel)) as session:
            pair = session.pair
            pair.target.watch(cancel)
            progress(f"Measuring {pair.target.model.path.name}", None)
            settings = pair.load_settings
            target = _tuned(pair.target, options, settings, draft=False)
            draft = None
            if pair.draft is not None:
                pair.draft.watch(cancel)
                progress(f"Measuring {pair.draft.model.path.name}", None)
                draft = _tuned(pair.draft, options, settings, draft=True)
            note = session.speculation_note
    except Cancelled:
        return True
    document = _document(pair.name, target, draft, note)
    click.echo(json.dumps(document, indent=2) if as_json else _text(document))
    return False


def _tuned(
    context: Context, options: LoadRequest, settings: Mapping[str, Any], *, draft: bool
) -> Tuned:
    """Measure one model, loaded by `settings`, with its best number of threads; store that.

    Raises:
        LocalspecError: the model cannot be measured.
    """
    if not context.can_truncate:
        raise LocalspecError(
            f"{context.model.path.name} cannot take back decoded tokens: nothing to tune",
            "Models of this architecture run without speculation.",
        )
    store = profile_store()
    layers = settings["draft_n_gpu_layers" if draft else "n_gpu_layers"]
    asked = (options.draft_threads if draft else None) or options.threads
    tried = {} if asked else _by_threads(context, options.threads_batch)
    threads = asked or _best_threads(tried, draft=draft)
    context.use_threads(threads, options.threads_batch)
    found, timing = measure_by_context(
        context, draft=draft, budget=BUDGET, passes=PASSES, repeats=2
    )
    points = found[min(found)]
    if not points:
        raise LocalspecError("the context is too small to measure in", "Raise --ctx-size.")
    known = identity(context, threads=threads, n_gpu_layers=layers, draft=draft)
    known |= chosen(settings, draft=draft)
    stored = store.save(Profile(known, found))
    if tried:
        anyhow = identity(context, threads=ANY_THREADS, n_gpu_layers=layers, draft=draft)
        store.save(Profile(anyhow, threads=threads))
    return Tuned(
        context.model.path.name,
        threads,
        tried,
        points,
        stored,
        timing.spread,
        context.takes_back,
    )


def _by_threads(context: Context, for_batches: int | None) -> dict[int, tuple[float, float]]:
    """Seconds of one token and of four by the number of threads."""
    most = os.cpu_count() or 1
    usual = default_threads()
    counts = sorted({n for n in (1, 2, 4, usual // 2, usual - 1, usual, most) if 1 <= n <= most})
    found = {}
    for threads in counts:
        context.use_threads(threads, for_batches)
        points = measure(context, THREAD_SIZES, budget=THREAD_BUDGET).points
        if points:
            found[threads] = points[1], points.get(4, 4 * points[1])
    return found


def _best_threads(tried: Mapping[int, tuple[float, float]], *, draft: bool) -> int:
    """The fastest count: a draft reads one token at a time, a target one or a few."""
    usual = default_threads()
    cost = {n: one if draft else one + few for n, (one, few) in tried.items()}
    if not cost:
        return usual
    best = min(cost, key=lambda n: cost[n])
    return usual if usual in cost and cost[best] > _GAIN * cost[usual] else best


def _document(pair: str, target: Tuned, draft: Tuned | None, note: str) -> dict[str, Any]:
    """All that was found, for `--json`; times in seconds."""
    return {
        "pair": pair,
        "machine": machine(),
        "build": build(),
        "target": _model(target),
        "draft": _model(draft) if draft else None,
        "draft_note": note,
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
