"""The simulator on the curve measured here against what is measured here, by drafter and kind.

`bench` answers the questions of the quick set (edit, conversion, chat, code) with and without
drafting, in turns, and measures T(n) before and after. The answers are then replayed as for
docs/hardware.md, over that curve: with the copies that lookup finds, and with what a draft model
says along them (its confidence, and whether it was right), at the step that was measured. Both
figures are geometric means over the questions of a kind. The aim: at most 7 % apart.

Without --draft lookup drafts, with it also the draft model alone, and both. Each drafter has its
own run, kept in the JSON next to --output: called again, those that are missing are run. On two
quiet cores a drafter takes some 6 minutes with the starter and 20 with 1.5B. Another program that
runs meanwhile makes the figures worthless.

    uv run python -m benchmarks.predicted TARGET.gguf [--draft D.gguf] --output predicted.md
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from benchmarks.quick_advice import silent
from benchmarks.real_draft import drafter_for, looked, said, with_looks
from benchmarks.real_lookup import places
from benchmarks.several import NOTHING, Answer, Prices, speed
from localspec.bench import prompt_sets
from localspec.bench.benchmark import bench
from localspec.bench.prompt_sets import BenchRequest
from localspec.bench.report_files import put
from localspec.bench.result import OFF, BenchReport, BenchRun
from localspec.chat.conversation import Message, Role
from localspec.chat.session.session import Session
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.proposer import argmax_proposer
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.llama import machine
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.tuning import wait_for_calm

AIM: Final = 0.07
PROMPTS: Final = replace(prompt_sets.quick(), name="four kinds")  # all of them for every drafter

Found = dict[str, list[float]]
"""By kind: the measured speed-up, its interval's ends, and the simulated one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    raw = given.output.with_suffix(".json")
    done: dict[str, Found] = json.loads(raw.read_text("utf-8")) if raw.exists() else {}
    drafters = {"lookup": "lookup"}
    if given.draft:
        drafters |= {"draft": str(given.draft), "draft, lookup": f"{given.draft},lookup"}
    for name, draft in drafters.items():
        if name not in done:
            options = LoadRequest(
                pair=str(given.target), draft=draft, temp=0.0, past=False, draft_anyway=True
            )
            done[name] = compared(options, given.tokens, given.repeats)
            put(json.dumps(done, indent=1).encode(), raw)
    text = f"{table(done)}\n\n{given.target.name}; {machine()}\n"
    given.output.write_text(text, "utf-8")
    print(text)


def compared(options: LoadRequest, tokens: int, repeats: int) -> Found:
    """Measured and simulated speed-ups of one choice of drafters."""
    request = BenchRequest(
        prompts=PROMPTS, repeats=repeats, n_predict=tokens, temperature=0.0, seed=1, gamma="auto"
    )
    busy = wait_for_calm(silent, Cancel())
    if busy:
        print(f"Other programs keep {busy:.1f} cores busy.")
    with closing(load_session(options, progress=silent, cancel=Cancel())) as session:
        report = bench([session], request, Cancel(), progress=silent, asking=silent)
        expected = simulated(session, report)
    return {
        row.kind: [its.value, its.low or its.value, its.high or its.value, expected[row.kind]]
        for row in report.on[0].kinds
        if (its := row.speedup) is not None
    }


def simulated(session: Session, report: BenchReport) -> dict[str, float]:
    """The speed-ups that follow from the answers and from the measured costs, by kind."""
    points = {each.n: each.seconds for each in report.curve if each.seconds is not None}
    step, found = report.draft_step_s, dict[str, list[float]]()
    prices = Prices.of(points, {} if step is None else {DRAFT: step / points[1]})
    for run in report.runs:
        if run.arm == OFF and run.repeat == 0 and run.timed:
            text = answer(session, run)
            seconds = len(text) / speed(AutoGamma(prices.costs()), [text], prices)
            later = (len(text) - 1) / (seconds - points[1])  # after the first token, as measured
            found.setdefault(run.kind, []).append(later * points[1])
    return {kind: geometric_mean(rates) for kind, rates in found.items()}


def answer(session: Session, run: BenchRun) -> Answer:
    """The places of an answer, with what these drafters say at each."""
    asked = next(prompt.text for prompt in PROMPTS.prompts if prompt.name == run.prompt)
    template = session.template
    ids = template.tokenize(template.render([Message(Role.USER, asked)]))
    text = places(ids, run.tokens)
    if not session.pair.lookup:
        text = [replace(place, copies=NOTHING) for place in text]
    if session.pair.draft is None:
        return text
    drafter = drafter_for(session.pair.target.model, session.pair.draft)
    both = (said(drafter, ids, run.tokens, argmax_proposer, whole=whole) for whole in (True, False))
    return with_looks(text, len(ids), *(looked(*its) for its in both))


def table(done: dict[str, Found]) -> str:
    """A row for every drafter and kind."""
    head = "drafter", "kind", "measured (95 %)", "simulated", "off by", ""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, found in done.items():
        for kind, (value, low, high, expected) in found.items():
            off = expected / value - 1
            holds = "" if abs(off) <= AIM else "FALLS SHORT"
            measured = f"{value:.3f} ({low:.3f} to {high:.3f})"
            cells = name, kind, measured, f"{expected:.3f}", f"{off:+.1%}", holds
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
