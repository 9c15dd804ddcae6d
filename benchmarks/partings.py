"""How often drafting changes a greedy answer by rounding, and how near a tie it was there.

Passes over several tokens round differently from passes over one. For every question the answer is
written without drafting, then with every copy that lookup finds (passes of up to 8 tokens). Where
the two part, the target's logits there are recorded, and the drafted answer goes on from the one
without drafting, so that every token counts. Along the same answers the logits of passes over 2 to
16 tokens are compared with those of single ones. Nothing depends on speed, so other programs may
run; with --threads 1 they slow it down less, but that changes what is measured. Several threads
share the attention of a single token beyond 256 tokens of context, which rounds differently: with
one, some types have no parting even without --exact. And --exact alone gives passes over several
tokens all threads, with --threads 1 one.

Called once for every model and way to run it; --type has llama.cpp's quantiser make that type of
MODEL first. Every answer is kept in --folder: called again, it goes on where it was stopped, and
--minutes ends it between two answers. --table prints what the folder has, with the hours that it
took and the margin of every parting: a hundred answers on two cores take about 0.3 for the starter,
1.5 for 1.5B in Q4_K_M, and half as much again with --exact.

    uv run python -m benchmarks.partings MODEL.gguf --folder DIR [--type f16] [--exact]
    uv run python -m benchmarks.partings --table --folder DIR
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.real_prompts import Question, questions
from localspec.bench.report_files import put
from localspec.chat.conversation import Message, Role
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import build, machine
from localspec.engine.llama.library import lib
from localspec.engine.llama.log import start_backend
from localspec.engine.record.find_parting import find_parting
from localspec.engine.record.parting import NEAR_TIE
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

TYPES: Final = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "f16": 1, "bf16": 32, "q4_k_m": 15, "q5_k_m": 17}
"""Values of ``enum llama_ftype``."""
GAMMA: Final = 7
SIZES: Final = (2, 3, 4, 5, 8, 16)
LONGEST: Final = 16
SHOWN: Final = (2, 4, 8, 16)
DRAWN: Final = 60  # questions of each kind, of which the short ones are asked
SHORT: Final = 900  # characters of a question
EVERY: Final = 4  # answers, of which one has its logits compared

Run = dict[str, Any]
"""What is kept of one model run in one way; `answers` grows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--type", choices=TYPES)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, help="for everything; by default as a chat has them")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table or given.model is None:
        runs = [json.loads(path.read_text("utf-8")) for path in sorted(given.folder.glob("*.json"))]
        print("\n\n".join((table(runs), margins(runs), *{run["machine"] for run in runs})))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    model = typed(given.model, given.type, given.folder) if given.type else given.model
    path = given.folder / f"{model.stem}{'.exact' if given.exact else ''}.json"
    until = time.monotonic() + 60 * given.minutes
    for run in answered(model, path, given):
        put(json.dumps(run, indent=1).encode(), path)
        print(f"{path.stem}: {len(run['answers'])} of {given.answers}", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            break


def typed(source: Path, name: str, folder: Path) -> Path:
    """`source` converted to this type by llama.cpp's quantiser, unless the file exists."""
    out = folder / f"{source.stem}.{name.upper()}.gguf"
    if not out.exists():
        start_backend()
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = TYPES[name], True
        aside = out.with_suffix(".part")
        if lib.llama_model_quantize(bytes(source), bytes(aside), ctypes.byref(params)):
            raise SystemExit(f"{source} cannot be converted to {name}")
        aside.replace(out)
    return out


def answered(model: Path, path: Path, given: argparse.Namespace) -> Iterator[Run]:
    """Yield the run after every further answer."""
    exact = given.exact
    request = LoadRequest(
        pair=str(model),
        draft="lookup",
        gamma=GAMMA,
        temp=0.0,
        ctx_size=4096,
        exact=exact,
        threads=given.threads,
    )
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
        loaded = session.pair.loaded.document()
        session.pair.hold_threads(True)  # another number of threads also changes the rounding
        run: Run = {"model": model.name, "exact": exact, "machine": machine(), "build": build()}
        run |= {"loaded": loaded, "gamma": GAMMA, "answers": [], "logits": {}}
        if path.exists():
            run = json.loads(path.read_text("utf-8"))
        if exact and loaded["exact"] == 1:
            yield run  # passes over two tokens already give other bits: `--exact` is impossible
            return
        for at, question in enumerate(short(given.answers)):
            if at >= len(run["answers"]):
                run["answers"].append(one(session, question, given.tokens, run, at))
                yield run


def short(n: int) -> list[Question]:
    """The first `n` short questions, the kinds in turn; they are the same every time."""
    return [each for each in questions(DRAWN, seed=7) if len(each.turns[0]) < SHORT][:n]


def one(session: Session, question: Question, tokens: int, run: Run, at: int) -> dict[str, Any]:
    """One answer without drafting and with it."""
    started, engine = time.monotonic(), session.engine
    template = session.template
    ids = template.tokenize(template.render([Message(Role.USER, question.turns[0])]))
    baseline = written(engine, ids, tokens, 0)
    begun, partings, drafts = len(ids), [], []
    end = len(baseline.tokens)
    while begun < end:
        drafted = written(engine, baseline.tokens[:begun], end - begun + 1, GAMMA)
        found = find_parting(engine, baseline, drafted, Cancel())
        parted = end if found is None else len(ids) + found.at
        drafts += [each for each in drafted.rounds if each.drafted and each.position <= parted]
        begun = parted + 1
        if found is not None:
            partings.append([found.at, found.margin])
    if at % EVERY == 0:
        for size, sums in differences(engine, baseline).items():
            before = run["logits"].get(str(size), [0, 0.0, 0.0])
            more = before[0] + sums[0], before[1] + sums[1], max(before[2], sums[2])
            run["logits"][str(size)] = list(more)
    return {
        "kind": question.kind,
        "prompt": len(ids),
        "tokens": baseline.written,
        "drafted": sum(len(each.drafted) for each in drafts),
        "accepted": sum(each.verdict.accepted for each in drafts),
        "in_drafts": sum(each.figures.emitted for each in drafts),
        "partings": partings,
        "seconds": time.monotonic() - started,
    }


def written(engine: Engine, ids: Sequence[int], tokens: int, gamma: int) -> GenerationRecord:
    """The record of a greedy continuation with drafts of `gamma` tokens."""
    for _ in engine.prefill(ids, Cancel(), follow_clock=False):
        pass
    how = GenerateSettings(
        sampling=SamplingParams(temperature=0.0), accept=Accept.MATCH, n_predict=tokens
    )
    for _ in engine.generate(ids, how, FixedGamma(gamma), Cancel()):
        pass
    record = engine.recorder.generation
    if record is None:
        raise AssertionError("nothing was generated")
    return record


def differences(engine: Engine, baseline: GenerationRecord) -> dict[int, tuple[int, float, float]]:
    """By size of a pass: the number of logits, and their differences from those of single passes.

    The differences are the sum of their squares and the largest one.
    """
    target, depth = engine.target, len(baseline.tokens) - LONGEST
    if depth < baseline.begun:
        return {}
    for _ in engine.prefill(baseline.tokens[: depth + 1], Cancel(), follow_clock=False):
        pass
    rest, found = baseline.tokens[depth:], {}
    singles = np.stack([target.decode([token], 1)[0].copy() for token in rest])
    for size in SIZES:
        target.truncate(depth)
        off = np.abs(target.decode(rest[:size], size) - singles[:size])
        squares = float(np.square(off, dtype=np.float64).sum())
        found[size] = (off.size, squares, float(off.max()))
    return found


def table(runs: Sequence[Run]) -> str:
    """A row for every model: partings and logits by default, and partings with ``--exact``."""
    head = "weights", "answers", "tokens", "partings per 1,000 tokens (margins: median, largest)"
    sizes = [f"{size} tokens" for size in SHOWN]
    lines = [f"| {' | '.join((*head, *sizes, '`--exact`'))} |", f"|{'---|' * (5 + len(SHOWN))}"]
    exact = {run["model"]: run for run in runs if run["exact"]}
    for run in runs:
        if not run["exact"]:
            answers, tokens, partings = sums(run)
            rate = f"{1000 * len(partings) / tokens:.1f}{spread(partings)}"
            cells = run["model"].removesuffix(".gguf"), answers, f"{tokens:,}", rate
            other = exact_cell(exact.get(run["model"]))
            row = map(str, (*cells, *map(logits(run), SHOWN), other))
            lines.append(f"| {' | '.join(row)} |")
    hours = sum(each["seconds"] for run in runs for each in run["answers"]) / 3600
    return "\n".join([*lines, f"\n{hours:.1f} hours"])


def sums(run: Run) -> tuple[int, int, list[float]]:
    """The numbers of answers and of their tokens, and the margins of the partings, rising."""
    answers = run["answers"]
    found = sorted(margin for each in answers for _, margin in each["partings"])
    return len(answers), sum(each["tokens"] for each in answers), found


def spread(found: Sequence[float]) -> str:
    """The median and the largest of these margins."""
    return f" ({median(found):.2f}, {max(found):.2f})" if found else ""


def margins(runs: Sequence[Run]) -> str:
    """How far the two best tokens were apart at every parting, in logits: a line for every run."""
    lines = []
    for run in runs:
        _, _, found = sums(run)
        if found:
            said = " ".join(f"{margin:.3f}" for margin in found)
            far = "" if found[-1] <= NEAR_TIE else " (NOT ALL NEAR TIES)"
            lines.append(f"{run['model']}{' --exact' if run['exact'] else ''}: {said}{far}")
    return "\n".join(lines)


def logits(run: Run) -> Callable[[int], str]:
    """A function of the size of a pass: its logits' differences from single ones, rms (largest)."""

    def cell(size: int) -> str:
        n, squares, most = run["logits"].get(str(size), (0, 0.0, 0.0))
        return f"{(squares / n) ** 0.5:.2g} ({most:.2g})" if n else ""

    return cell


def exact_cell(run: Run | None) -> str:
    """The cell of the results with ``--exact``."""
    if run is None or run["loaded"]["exact"] == 1:
        return "cannot be had" if run else ""
    answers, tokens, partings = sums(run)
    return f"{len(partings)} in {tokens:,} tokens ({answers} answers)"


if __name__ == "__main__":
    main()
