"""What a lookup costs that is sure of itself and always wrong, on a real pair, side by side.

In place of lookup stands one that finds forty tokens in every round, as sure as it can be, the
first of which the target never says: alone, and beside the draft model. They go side by side with
plain decoding and with the draft alone, a round at a time over the same text (temperature 0, and
0.8 with the coupled rule and one seed), each answer from nothing but the measured costs, so that
it has to be found out every time. Of each temperature the first third of the questions chooses
what is better without that lookup, plain decoding or the draft; the others score. A figure is the
geometric mean of the paired ratios with its 95 % interval (bootstrap). The aim is 0.98.

    uv run python benchmarks/wrong_lookup.py --target T.gguf --draft D.gguf

24 questions of 256 tokens take some six minutes at 150 tokens a second; the machine has to be idle.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from drafters_compare import COPYING, OTHERS, question
from gamma_compare import TEMPERATURES, Lane, costs_of, interval, race

from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model, machine
from localspec.engine.lookup import Guess, Lookup
from localspec.engine.stats import DRAFT, LOOKUP

PLAIN, WRONG, BESIDE = "plain", "wrong lookup", "draft and wrong lookup"
KINDS = (*OTHERS, *COPYING)
DIFFER = "texts differ"  # by near ties, where passes of several sizes do not give equal bits
SURE, COPIED = 0.99, 40
REPLACEMENT = "\ufffd"  # what stands for bytes that are no text: nobody says it


class Confident(Lookup):
    """Has always found something, and is sure of it."""

    def __init__(self, n_ctx: int, never: int) -> None:
        """Guess a token that is `never` right."""
        super().__init__(n_ctx, lambda _: False)
        self._never = never

    def guess(
        self,
        tokens: Sequence[int],
        drafted: Sequence[int] = (),
        limit: int = COPIED,
    ) -> Guess:
        """Forty tokens, as far as there is room; what goes before them costs what it costs."""
        super().guess(tokens, drafted, limit)
        length = max(0, min(COPIED, limit))
        return Guess((self._never,) * length, (SURE,) * length)


def lanes_of(
    models: Sequence[Model], options: ContextOptions, open_: ExitStack
) -> tuple[list[Lane], tuple[ModelCosts, ModelCosts]]:
    """Plain, the draft, the wrong lookup, and both of these; what the two models' passes cost."""

    def context(of: int) -> Context:
        return open_.enter_context(Context(models[of], options))

    never = models[0].tokenize(REPLACEMENT, add_special=False, parse_special=False)[-1]
    lanes = []
    for name in (PLAIN, DRAFT, WRONG, BESIDE):
        its = [context(1)] if DRAFT in name else []
        lane = Lane(name, context(0), its, FixedGamma(0), same_text=True)
        if LOOKUP in name:
            lane.engine.lookup = Confident(options.n_ctx, never)
        lanes.append(lane)
    costs = costs_of(lanes[0].engine.target, draft=False), costs_of(context(1), draft=True)
    return lanes, costs


def measure(
    lanes: Sequence[Lane], costs: tuple[ModelCosts, ModelCosts], temperature: float, at: int, n: int
) -> dict[str, float]:
    """Seconds of every lane for one answer, all of them from the beginning."""
    target, draft = costs
    for lane in lanes:
        drafts = {DRAFT: draft.as_measured()} if lane.engine.drafters else {}
        lane.policy = AutoGamma(Costs(target.as_measured(), drafts))
    random.Random(at).shuffle(order := list(lanes))
    prompt = question(KINDS[at % len(KINDS)], at)
    race(order, prompt, temperature=temperature, seed=at, tokens=n)
    first, *others = [[t for done in lane.stats.rounds for t in done.tokens] for lane in lanes]
    differ = any(text != first for text in others)
    rounds = lanes[2].stats.rounds
    tried, judged = sum(d.copied for d in rounds), sum(len(d.copy_chances) > 0 for d in rounds)
    said = ", ".join(f"{lane.name} {lane.seconds:.2f}" for lane in lanes)
    asked = f"{judged} guesses judged, {tried} tokens of them tried{' TEXTS DIFFER' * differ}"
    print(f"{at} {temperature}: {said} s, {asked}", file=sys.stderr, flush=True)
    return {lane.name: lane.seconds for lane in lanes} | {DIFFER: differ}


def table(runs: dict[float, list[dict[str, float]]]) -> str:
    """By temperature: the better choice, and what is left of it."""
    lines = [
        "| temperature | answers | texts differ | alone / plain | better without it"
        " | beside / the better | beside / the draft alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for temperature, found in runs.items():
        choosing, scoring = found[: len(found) // 3], found[len(found) // 3 :]
        better = min((PLAIN, DRAFT), key=lambda name: sum(run[name] for run in choosing))
        alone, beside, drafted = (
            interval([run[other] / run[ours] for run in scoring], geometric=True)
            for ours, other in ((WRONG, PLAIN), (BESIDE, better), (BESIDE, DRAFT))
        )
        head = f"| {temperature} | {len(scoring)} | {sum(run[DIFFER] for run in scoring):.0f}"
        lines.append(f"{head} | {alone} | {better} | {beside} | {drafted} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    options = ContextOptions(n_ctx=1024, threads=arguments.threads)
    with ExitStack() as weights, ExitStack() as open_:
        models = [weights.enter_context(Model.load(arguments.target))]
        models.append(weights.enter_context(Model.load(arguments.draft)))
        lanes, costs = lanes_of(models, options, open_)
        runs = {
            temperature: [
                measure(lanes, costs, temperature, at, arguments.tokens)
                for at in range(arguments.questions)
            ]
            for temperature in TEMPERATURES
        }
    print(f"{table(runs)}\n\n{machine()}")


if __name__ == "__main__":
    main()
