"""What the parts of automatic gamma are worth: one after the other is left out, in the simulator.

Prints Markdown: for every part what leaving it out changes in the speed (percent, the mean over
draws of the texts), in the scenarios of `gamma_constants` and in those of `conversations`; by how
much the draws differ; how many intervals hold the truth, and high over low. A part that changes no
column by more than another draw does is one to delete. Ten minutes of one core.

    uv run python -m benchmarks.gamma_parts [--draws N] [--only WORD]
"""

# ruff: noqa: SLF001 - it takes out what nobody else should know of
from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, pstdev
from typing import Any
from unittest.mock import patch

from benchmarks.conversations import STEP, WRONG, afterwards, answers, by_kind
from benchmarks.gamma_constants import found, scenarios
from benchmarks.several import COPYING, OTHERS, Prices, recorded, speed
from benchmarks.simulator import CURVES
from localspec.engine.length import calibration, copying, cost, gamma, neighbours
from localspec.engine.length.calibration import Calibration
from localspec.engine.length.copying import Copying
from localspec.engine.length.cost import Curve, ModelCosts
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.neighbours import Neighbours
from localspec.engine.length.stopping import Situation, StoppingPlan
from localspec.engine.stats import DRAFT, EAGLE3, LOOKUP, Round

Change = tuple[Any, str, Any]
"""An attribute, by its owner and name, and what stands in its place."""

USED = [name for name in CURVES if not name.startswith("M4")]


def _one_more(plan: StoppingPlan, n: int, chain: float, gain: float, chance: float) -> float:
    """V of a single further token, in place of the best of all lengths."""
    if n + 2 >= len(plan._times):
        return -1e9
    return gain + chain * chance - plan._rate * plan._times[n + 2]


def _prices(**others: Callable[[Copying], object]) -> Change:
    """A round's prices with some of them in place of others."""
    usual = AutoGamma._prices

    def prices(policy: AutoGamma, situation: Situation, room: int) -> Copying:
        its = usual(policy, situation, room)
        return its._replace(**{name: of(its) for name, of in others.items()})

    return AutoGamma, "_prices", prices


def _within(method: str, name: str, other: Callable[[AutoGamma], object]) -> Change:
    """The method, with another of the policy's attributes while it runs."""
    usual = getattr(AutoGamma, method)

    def changed(policy: AutoGamma, *args: object) -> Any:
        with patch.object(policy, name, other(policy)):
            return usual(policy, *args)

    return AutoGamma, method, changed


def _every(
    policy: AutoGamma, done: Round, observe: Callable[..., None] = AutoGamma.observe
) -> None:
    """Lambda of all rounds, those with copies too."""
    observe(policy, done)
    if done.copied:
        rounds = policy._table.plain_rounds(done, longer=policy.neighbours.longer)
        policy._usual.add(done.emitted, rounds)


def _at_once(_: AutoGamma, curve: Curve, lag: int, __: Situation) -> float:
    return max(0.0, curve.seconds(lag) - curve.seconds(2))


def _any_time(policy: AutoGamma) -> bool:
    ready = policy._spare >= 1.0
    policy._spare -= policy._spare * ready
    return ready


def _first(policy: AutoGamma, situation: Situation, prices: Copying) -> Any:
    """The plan of the first model."""
    for name in situation.lags:
        return policy._choice(name, situation, prices)
    return None, 0.0


def _others(policy: AutoGamma) -> Calibration:
    """How copies go on where no model stopped."""
    return policy._tracks[LOOKUP].calibration


def _own_alone(model: ModelCosts, n: int) -> float:
    return model._corrected.get(n, 0.0)


def _calm(of: Neighbours, judge: Callable[[Neighbours], None] = Neighbours._judge) -> None:
    judge(of)
    of._unrest = 0.0


PARTS: Mapping[str, Change] = {
    "a pass may show more or less than the mean": (Calibration, "spread", 0.0),
    "the next position is like the last": (calibration, "_PERSISTENCE", 0.0),
    "confidence": (Calibration, "acceptance", lambda its, _: min(0.99, max(0.005, its.mean))),
    "what a confidence is worth is learnt": (Calibration, "_fit", lambda *_: None),
    "looking ahead beyond one token": (StoppingPlan, "_ahead", _one_more),
    "probes": (AutoGamma, "_probe", lambda *_: False),
    "pauses between probes": (AutoGamma, "_waits", lambda _: False),
    "an account of probes": (gamma, "_CREDIT", 1e9),
    "no probe of what gains less than a tenth": (gamma, "_WORTH", 0.0),
    "plain rounds beside drafts": (AutoGamma, "_compares", lambda _: False),
    "more of them while unsure": (gamma, "_SHARE_UNSURE", gamma._SHARE),
    "in the middle of a stretch": (AutoGamma, "_compares", _any_time),
    "rounds correct the table": (ModelCosts, "vote", lambda *_: None),
    "sizes without votes are off as others": (ModelCosts, "correction", _own_alone),
    "no kernel does this": (cost, "credible", lambda *_, **__: True),
    "a table without faults is believed": (cost, "credible", lambda *_, **__: False),
    "doubt of a machine that is not calm": (Neighbours, "_judge", _calm),
    "no claim where half was not compared": (neighbours, "_COMPARED", 0.0),
    "lambda leaves copies out": (AutoGamma, "observe", _every),
    "a copy's length has its own lambda": _prices(going=lambda its: its.rate),
    "how copies begin": _prices(begins=lambda its: its.goes_on),
    "how they go on behind a model": _within("_choice", "_tail", _others),
    "copies behind a model": (StoppingPlan, "copies", lambda *_: 0),
    "copies as long as they were judged": (copying, "_TRUSTED", 1000),
    "of other answers few positions count": (gamma, "LENT", 10**9),
    "copies are forgotten by the round": (gamma, "COPIES_KEEP", 1.0),
    "reading is paid for by later rounds": (AutoGamma, "_shared_catch_up", _at_once),
    "the best model, not the first": (AutoGamma, "_best", _first),
}


@dataclass(frozen=True)
class Worth:
    """Speeds by scenario, one of each draw, and what became of claims."""

    speeds: Mapping[str, Sequence[float]]
    held: float
    width: float


def measured(draws: int) -> Worth:
    """All scenarios with the parts as they are now."""
    every = [found(scenarios(draw)) for draw in range(draws)]
    speeds = {name: [each.speeds[name] for each in every] for name in every[0].speeds}
    held, width = fmean(each.held for each in every), fmean(each.width for each in every)
    return Worth(speeds | _conversations(draws) | _two_models(), held, width)


def _conversations(draws: int) -> dict[str, Sequence[float]]:
    """Speeds with lookup and a draft, of eight conversations a draw."""
    texts, speeds = answers(), dict[str, list[float]]()
    for draw in range(draws):
        kinds, ends = dict[str, list[float]](), []
        for curve in USED:
            prices = Prices.of(CURVES[curve], {DRAFT: STEP})
            for kind, its in by_kind(prices, texts, range(8 * draw, 8 * draw + 8)).items():
                kinds.setdefault(kind, []).append(its)
            ends += afterwards(prices, texts, 0, range(2 * draw, 2 * draw + 2))
        for name, some in (("copying", COPYING), ("others", OTHERS), ("misled", (WRONG,))):
            its = geometric_mean([each for kind in some for each in kinds.get(kind, ())])
            speeds.setdefault(name, []).append(its)
        speeds.setdefault("ends", []).append(geometric_mean(ends))
    return dict(speeds)


def _two_models() -> dict[str, Sequence[float]]:
    """With a head beside the draft."""
    speeds = []
    for curve in USED:
        prices = Prices.of(CURVES[curve], {DRAFT: 0.1, EAGLE3: 0.06})
        for temperature in (0.0, 0.8):
            texts = recorded(COPYING + OTHERS, temperature)
            speeds.append(speed(AutoGamma(prices.costs()), texts, prices) * prices.target[1])
    return {"two": [geometric_mean(speeds)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--only", default="", help="parts with this in their names")
    arguments = parser.parse_args()
    usual = measured(arguments.draws)
    names = list(usual.speeds)
    print(f"| without | {' | '.join(names)} | held | width |\n{'|---' * (len(names) + 3)}|")
    print(f"| nothing | {'| ' * len(names)}{usual.held:.1%} | {usual.width:.2f} |", flush=True)
    for part, change in PARTS.items():
        if arguments.only not in part:
            continue
        with patch.object(*change):
            now = measured(arguments.draws)
        cells = " | ".join(_cell(usual.speeds[name], now.speeds[name]) for name in names)
        print(f"| {part} | {cells} | {now.held:.1%} | {now.width:.2f} |", flush=True)


def _cell(before: Sequence[float], after: Sequence[float]) -> str:
    """The change in percent, and its standard error over the draws."""
    changes = [100 * (b / a - 1) for a, b in zip(before, after, strict=True)]
    error = pstdev(changes) / max(1, len(changes) - 1) ** 0.5
    return f"{fmean(changes):+.1f}" + (f" ± {error:.1f}" if error >= 0.05 else "")


if __name__ == "__main__":
    main()
