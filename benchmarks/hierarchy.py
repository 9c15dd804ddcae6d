"""When it pays that a dearer drafter reads what a cheaper one proposes, in the simulator.

Two tables. Lookup -> model -> target: the automatic policy over a text with stretches that lookup
knows, with and without the model reading its path; lookup is right in a share of the tokens of such
a stretch, the model in its own share of all, and both say the same where both are right. Small ->
middle -> target: the best fixed lengths of each way, over the best without a hierarchy; the small
model says what the middle one says in a share of the tokens. A few minutes, no models:

    uv run python benchmarks/hierarchy.py
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from simulator import CURVES

from localspec.engine.length.cost import Costs, Curve
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.stats import DRAFT, LOOKUP, Round

GPU, CPU = "RTX 3090, 8B Q4_0", "CPU, 2 cores, 1.7B F16"
STEPS = (0.05, 0.15, 0.35)
SLOPES = (0.05, 0.3, 0.8)
"""What one more token adds to a draft's decode, in shares of a decode of one."""
SURE = 0.6  # what lookup says of itself
SMALL = 0.02  # a pass of the small model, of T(1)
STRETCH, APART = 24, 24  # tokens that lookup knows, and between two such places


@dataclass(frozen=True, slots=True)
class Place:
    """One position: whether lookup knows it, and who is right there."""

    known: bool
    lookup: bool
    model: bool


def text(tokens: int, lookup: float, model: float, seed: int) -> list[Place]:
    """Positions by turns known to lookup and not."""
    luck = random.Random(seed)
    return [
        Place(at % (STRETCH + APART) >= APART, luck.random() < lookup, luck.random() < model)
        for at in range(tokens)
    ]


@dataclass(frozen=True, slots=True)
class World:
    """What decodes cost, and how often the model is right."""

    target: Curve
    draft: Curve
    model: float


def written(
    policy: AutoGamma, places: Sequence[Place], world: World, *, reads: bool
) -> tuple[float, int]:
    """What the text takes, in the unit of the curves, and in how many rounds a path was read."""
    policy.begin(follow_clock=False)
    at, read, taken, paths = 1, 0, 0.0, 0
    while at < len(places) - 1:
        copies = _known(places[at:])
        lag, room = max(1, at - read), len(places) - at - 1
        readers = (DRAFT,) if reads else ()
        plan = policy.plan(Situation(room, at, room + 1, {DRAFT: lag}, [SURE] * copies, readers))
        done = _round(plan, places[at:], copies, lag, world)
        taken += done.total_s
        paths += done.path > 0
        if done.draft_passes:
            read = at + min(done.accepted, done.drafted - done.copied)
        at += done.emitted
        policy.observe(done)
    return taken, paths


def _known(ahead: Sequence[Place]) -> int:
    """How many tokens lookup would copy: to the end of the stretch."""
    return next((i for i, place in enumerate(ahead[:24]) if not place.known), 24)


def _round(plan: Plan, ahead: Sequence[Place], copies: int, lag: int, world: World) -> Round:
    """One round as the engine makes it; drafted tokens that are rejected end it."""
    target, draft, model = world.target, world.draft, world.model
    own = views = passes = agreed = 0
    on_path = True
    path = min(plan.reads, copies) if plan.drafter == DRAFT else 0
    if plan.drafter == DRAFT and plan.limit:
        passes = views = 1
        while plan.wants_token(model, firm=False) and own + 1 < min(plan.limit, len(ahead)):
            same = ahead[own].lookup == ahead[own].model and own < copies
            on_path, own = on_path and same, own + 1
            if not (on_path and own <= path):
                if not plan.wants_pass():
                    break
                passes += 1
            views += 1
            agreed += on_path
        own = min(own, plan.keep())
    tail = plan.copies([SURE] * max(0, copies - own)) if own else 0
    copied = plan.limit if plan.drafter == LOOKUP else tail
    right = [place.model for place in ahead[:own]] + [p.lookup for p in ahead[own : own + copied]]
    accepted = next((i for i, each in enumerate(right) if not each), len(right))
    draft_s = draft.seconds(lag + path) + (passes - 1) * draft.seconds(1) if passes else 0.0
    verify_s = target.seconds(len(right) + 1)
    judged = [float(place.lookup) for place in ahead[: min(copies, accepted + 1)]]
    judged = judged[: judged.index(0.0) + 1] if 0.0 in judged else judged
    along = (1.0,) * agreed + (0.0,) if passes and copies else ()
    return Round(
        tokens=(0,) * (accepted + 1),
        gamma=plan.aim,
        drafted=len(right),
        accepted=accepted,
        draft_s=draft_s,
        verify_s=verify_s,
        total_s=draft_s + verify_s,
        draft_prefill=lag + path if passes else 0,
        draft_passes=passes,
        drafter=plan.drafter if right or passes else "",
        copied=copied,
        path=path,
        copy_confidences=(SURE,) * len(judged),
        copy_chances=tuple(judged),
        path_confidences=(SURE,) * len(along[:copies]),
        path_chances=along[:copies],
        confidences=(model,) * views,
        chances=tuple(float(p.model) for p in ahead[: min(views, accepted + 1)]),
    )


def lookup_table(name: str, tokens: int) -> None:
    """Speed with reading over without, by the draft's costs and how often lookup is right."""
    target = Curve(CURVES[name])
    rights = (0.5, 0.7, 0.85)
    print(f"\nLookup -> model -> target, {name}; with reading / without (reads a token):\n")
    print("| draft's pass / T(1) | one more token | " + " | ".join(map(str, rights)) + " |")
    print("|---|---|" + "---|" * len(rights))
    for step, slope in product(STEPS, SLOPES):
        points = {n: step * (1 + slope * (n - 1)) for n in (1, 2, 4, 8, 16, 32, 64)}
        cells = []
        for right in rights:
            world, times, paths = World(target, Curve(points), 0.75), [0.0, 0.0], 0
            for seed, reads in product(range(5), (False, True)):
                policy = AutoGamma(Costs({0: CURVES[name]}, {DRAFT: {0: points}}))
                places = text(tokens, right, world.model, seed)
                taken, read = written(policy, places, world, reads=reads)
                times[reads] += taken
                paths += read
            cells.append(f"{times[False] / times[True]:.3f} ({paths / tokens / 5:.0%})")
        print(f"| {step} | {slope} | {' | '.join(cells)} |", flush=True)


def cascade(world: World, agree: float, tokens: int) -> tuple[float, float, float]:
    """Tokens per T(1): the small model alone, the middle one alone, the small one read by it."""
    target, middle, accept = world.target, world.draft, world.model

    def alone(step: float, accept: float) -> float:
        return max(
            (1 - accept ** (m + 1)) / (1 - accept) / (m * step + target.seconds(m + 1))
            for m in range(25)
        )

    def through(ahead: int, length: int) -> float:
        luck, taken, made = random.Random(5), 0.0, 0
        while made < tokens:
            drafted = 0
            while drafted < length:
                same = next((i for i in range(ahead) if luck.random() > agree), ahead)
                drafted += same + 1  # and its own other token, or one more
                taken += ahead * SMALL + middle.seconds(1 + ahead)
            stay = next((i for i in range(drafted) if luck.random() > accept), drafted)
            made, taken = made + stay + 1, taken + target.seconds(drafted + 1)
        return made / taken

    both = max(through(ahead, length) for ahead in (1, 2, 3, 4, 6) for length in (1, 3, 5, 8, 12))
    return alone(SMALL, accept * agree), alone(middle.seconds(1), accept), both


def cascade_table(name: str, tokens: int) -> None:
    """Three models over the best of two, by the middle one's cost and how often both agree."""
    target = Curve(CURVES[name])
    agrees = (0.6, 0.75, 0.9)
    print(f"\nSmall ({SMALL} T(1)) -> middle -> target, {name}; over the better of both alone:\n")
    print("| middle's pass / T(1) | one more token | " + " | ".join(map(str, agrees)) + " |")
    print("|---|---|" + "---|" * len(agrees))
    for step, slope in product((0.1, 0.2, 0.35), SLOPES):
        middle = Curve({n: step * (1 + slope * (n - 1)) for n in (1, 2, 4, 8, 16)})
        cells = []
        for agree in agrees:
            *alone, both = cascade(World(target, middle, 0.85), agree, tokens)
            cells.append(f"{both / max(*alone, 1.0):.2f}")
        print(f"| {step} | {slope} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1000)
    arguments = parser.parse_args()
    for name in (CPU, GPU):
        lookup_table(name, arguments.tokens)
    for name in (CPU, GPU):
        cascade_table(name, arguments.tokens)


if __name__ == "__main__":
    main()
