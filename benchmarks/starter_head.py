"""A head for the starter: its acceptance by position, the expected and the measured speed.

    uv run python -m benchmarks.starter_head TARGET HEAD CORPORA

The questions are the first user turns of six conversations each of `chitchat`,
`python_algorithms`, `tinystories` and `facts`: `CORPORA/NAME.heldout.jsonl.zst`, chosen with
seed 0. Three parts are printed as Markdown:

1. Acceptance by position with drafts of four tokens, up to the first cycle of an answer: once
   greedily, three times at temperature 0.8 under the token rule. The control always guesses the
   commonest token of the greedy answers.
2. T(n) and a step of the head, as the engine measures them, the best speed that follows from these
   and from the acceptance, and the speed of automatic drafting over none, measured in turns. T(n)
   is measured before and after, and the lesser time counts.
3. The speed that the same acceptance brings on the published curves of `models/curves.toml`, where
   a step of the head takes the share of T(1) that its file is of the target's.

It takes some four minutes with 135 million weights on two calm cores, and needs the program `zstd`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

from localspec.bench.benchmark import bench
from localspec.bench.prompt_sets import BenchPrompt, BenchRequest, PromptSet
from localspec.bench.result import BenchReport
from localspec.chat.conversation import Message, Role
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve, Points
from localspec.engine.length.profile import TARGET_SIZES, measure
from localspec.formats import percent
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import published
from localspec.loading.measurements.tuning import wait_for_calm
from localspec.train.texts.token_ids import prompt_ids
from localspec.train.verdict.judging import GAMMA, TOKENS, AcceptedDrafts, judge

KINDS = ("chitchat", "python_algorithms", "tinystories", "facts")
EACH = 6
LEAST = {0.0: (0.50, 0.28), 0.8: (0.42, 0.20)}
GOAL = {0.0: (0.62, 0.40), 0.8: (0.52, 0.28)}
SHOWN = (1, 2, 3, 4, 5, 8)
BUDGET_S = 3.0
OF_BEST, OF_BASELINE = 0.95, 0.98


def questions(corpora: Path) -> list[BenchPrompt]:
    """Six of each kind, one kind after the other."""
    found = []
    for kind in KINDS:
        packed = corpora / f"{kind}.heldout.jsonl.zst"
        done = subprocess.run(["zstd", "-dc", packed], capture_output=True, check=True)
        chosen = random.Random(0).sample(done.stdout.splitlines(), EACH)
        texts = [json.loads(line)["messages"][0]["content"] for line in chosen]
        found += [BenchPrompt(f"{kind}-{n}", kind, text) for n, text in enumerate(texts)]
    return found


def accepted(
    session: Session, asked: Sequence[BenchPrompt], tokens: int
) -> dict[float, AcceptedDrafts]:
    """Acceptance by temperature; the control guesses the commonest token of a first greedy run."""
    turns = [(Message(Role.USER, each.text),) for each in asked]
    cancel = Cancel()
    ids = [each for each in prompt_ids(session.template, turns, cancel) if each]
    said: Counter[int] = Counter()
    judge(session, ids, temperature=0.0, common=-1, cancel=cancel, tokens=tokens, said=said)
    common = said.most_common(1)[0][0]
    return {
        temperature: judge(
            session, ids, temperature=temperature, common=common, cancel=cancel, tokens=tokens
        )
        for temperature in LEAST
    }


def points(session: Session) -> tuple[Points, float]:
    """T(n), and a step of the head, in seconds."""
    (head,) = session.pair.drafts.values()
    sizes = (*TARGET_SIZES, *TARGET_SIZES)
    target = measure(session.pair.target, sizes, budget=BUDGET_S, passes=len(sizes)).points
    step = measure(head, (1,) * 12, budget=BUDGET_S, passes=13, one_row=True).points[1]
    return target, step


def best(shares: Sequence[float], times: Sequence[float], step: float) -> tuple[int, float]:
    """The best draft length up to `GAMMA`, and its speed over no drafting.

    A draft of n tokens brings 1 + S_1 + ... + S_n tokens and takes T(n+1) + n steps.

    Args:
        shares: S_k, the share of drafts accepted up to token k, from k = 1 on.
        times: T(n) at index n.
        step: of the head, in the same unit.
    """
    emitted = [*accumulate(shares, initial=1.0)]
    speeds = [emitted[n] * times[1] / (times[n + 1] + n * step) for n in range(GAMMA + 1)]
    length = max(range(GAMMA + 1), key=speeds.__getitem__)
    return length, speeds[length]


def in_turns(
    session: Session, asked: Sequence[BenchPrompt], temperature: float, repeats: int
) -> BenchReport:
    """Answers with and without drafting, in turns; a seed gives both the same text."""
    request = BenchRequest(
        prompts=PromptSet("held-out", tuple(asked)),
        repeats=repeats,
        n_predict=TOKENS,
        temperature=temperature,
        seed=1,
        gamma="auto",
    )
    return bench([session], request, Cancel(), progress=quiet, asking=quiet)


def quiet(*_: object) -> None:
    """Show no progress."""


def acceptance_table(found: Mapping[float, AcceptedDrafts]) -> None:
    print("| temperature | first (least, goal) | all (same) | by position | control | drafts |")
    print("|-|-|-|-|-|-|")
    for temperature, its in found.items():
        least, goal = LEAST[temperature], GOAL[temperature]
        cells = (
            f"{temperature}",
            f"{its.first:.3f} ({least[0]:.2f}, {goal[0]:.2f})",
            f"{its.all:.3f} ({least[1]:.2f}, {goal[1]:.2f})",
            " ".join(f"{share:.3f}" for share in its.positions),
            f"{its.control:.3f}",
            f"{its.drafts}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def speed_table(
    found: Mapping[float, AcceptedDrafts],
    reports: Mapping[float, BenchReport],
    target: Points,
    step: float,
) -> None:
    curve = Curve(target)
    shown = " ".join(f"{n}:{curve.seconds(n) / target[1]:.2f}" for n in SHOWN)
    print(f"\nT(1) {1000 * target[1]:.2f} ms; T(n)/T(1) {shown}")
    print(f"a step of the head {1000 * step:.2f} ms, {percent(step / target[1])} of T(1)\n")
    print("| temperature | best by these | `auto`, measured (95 %) | of the best | drafted |")
    print("|-|-|-|-|-|")
    for temperature, report in reports.items():
        length, speed = best(found[temperature].positions, curve.times(GAMMA + 1), step)
        row = next(arm.overall for arm in report.arms if arm.gamma == "auto")
        if row.speedup is None:
            continue
        share = row.speedup.value / speed
        kept = share >= OF_BEST and row.speedup.value >= OF_BASELINE
        cells = (
            f"{temperature}",
            f"{speed:.3f}× at gamma {length}",
            f"{row.speedup}",
            f"{share:.3f} ({'holds' if kept else 'FALLS SHORT'})",
            f"in {percent(row.drafting)} of the rounds",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def published_table(found: Mapping[float, AcceptedDrafts], share: float) -> None:
    named = [f"temperature {each}" for each in found]
    print(f"\nOn published curves, a step of the head taken as {percent(share)} of T(1):\n")
    print(f"| machine | model | T(4)/T(1) | {' | '.join(named)} |")
    print(f"|-|-|-|{'-|' * len(named)}")
    for its in published.curves():
        curve = Curve(its.points)
        cells = []
        for each in found.values():
            length, speed = best(each.positions, curve.times(GAMMA + 1), share)
            cells.append(f"{speed:.2f}× at gamma {length}" if length else "1, no draft")
        print(f"| {its.machine} | {its.model} | {curve.seconds(4):.2f} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer that is judged")
    parser.add_argument("--repeats", type=int, default=2, help="of every question that is timed")
    parser.add_argument("--questions", type=int, help="of each kind, for a trial")
    args = parser.parse_args()
    asked = questions(args.corpora)
    if args.questions:
        asked = [each for each in asked if int(each.name.rpartition("-")[2]) < args.questions]
    request = LoadRequest(
        pair=str(args.target),
        draft=str(args.head),
        ctx_size=1024,
        gamma="auto",
        threads=args.threads,
        past=False,
        draft_anyway=True,
    )
    busy = wait_for_calm(quiet, Cancel())
    if busy:
        print(f"other programs keep {busy:.1f} cores busy: the times below are not those of calm\n")
    with closing(load_session(request, progress=quiet, cancel=Cancel())) as session:
        print(f"{len(asked)} questions, {args.tokens} tokens or fewer each\n")
        found = accepted(session, asked, args.tokens)
        acceptance_table(found)
        before, step = points(session)
        reports = {each: in_turns(session, asked, each, args.repeats) for each in found}
        after, again = points(session)
    target = {n: min(seconds, after.get(n, seconds)) for n, seconds in before.items()}
    speed_table(found, reports, target, min(step, again))
    published_table(found, args.head.stat().st_size / args.target.stat().st_size)


if __name__ == "__main__":
    main()
