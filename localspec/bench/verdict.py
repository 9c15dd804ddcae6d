"""What the figures mean, in words, with a recommendation."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.bench.result import INTERRUPTED, OUT_OF_TIME, ArmReport, Interval, Prediction, Report
from localspec.formats import percent, times

_SMALL = 0.03  # a difference up to this matters to nobody
_NARROW = 0.10  # an interval narrower than this has told what it can
_BUSY_PYTHON = 0.10
_COSTLY_DRAFT = 0.25  # of T(1)
_PAYS = 1.10
_RARELY = 0.35
_TIE = 0.5  # logits: what rounding in another batch size may turn over
_LOW_ROOF = 1.3


def verdict(report: Report) -> tuple[str, ...]:
    """A sentence each: the answer, what to do, and why it is so."""
    best = report.best
    if best is None or best.overall.speedup is None:
        return (_without(report), *_limits(report))
    said = [
        _answer(report, best, best.overall.speedup),
        *_choice(report, best),
        *_advice(best),
        *_forced(report, best),
    ]
    said += [*_costs(report, best), *_outputs(report), *_limits(report)]
    return tuple(said)


def _without(report: Report) -> str:
    """Nothing was drafted, or nothing could be timed."""
    speed = report.off.overall.tokens_per_second
    if speed is None:
        return "Nothing could be timed: the answers were too short, or too few."
    why = report.draft_note or "nothing was drafted"
    return f"Plain decoding gives {speed:.1f} tokens/s. Speculation was not measured: {why}."


def _answer(report: Report, best: ArmReport, found: Interval) -> str:
    which = f" with {best.name}" if len(report.on) > 1 else ""
    if found.low is None or found.high is None:
        return (
            f"Speculation{which} was {times(found.value)} as fast in a single question:"
            " too little to tell. Ask more."
        )
    if found.low > 1:
        return f"Speculation{which} helps: {found.sentence}."
    if found.high < 1:
        return f"Speculation{which} makes it slower: {found.sentence}. Leave it off."
    if found.width <= _NARROW or abs(found.value - 1) <= _SMALL < found.width <= 2 * _NARROW:
        return f"Speculation{which} makes no difference here: {found.sentence}."
    return (
        f"It cannot be told whether speculation{which} helps: {found.sentence}."
        " More prompts, more repeats or a quieter machine would tell."
    )


def _choice(report: Report, best: ArmReport) -> list[str]:
    """Which of several drafts."""
    others = [arm for arm in report.on if arm is not best and arm.overall.speedup]
    if not others:
        return []
    listed = ", ".join(
        f"{arm.name} {times(arm.overall.speedup.value)}" for arm in others if arm.overall.speedup
    )
    return [f"Of the drafts, {best.name} is the fastest; the others: {listed}."]


def _advice(best: ArmReport) -> list[str]:
    """For which kinds it is good."""
    known = [(row.kind, row.speedup) for row in best.kinds if row.speedup is not None]
    good = [kind for kind, found in known if found.above_one]
    bad = [kind for kind, found in known if found.below_one]
    if good and bad:
        return [f"Use it for {_and(good)}, not for {_and(bad)}."]
    if good and len(good) < len(known):
        rest = [kind for kind, _ in known if kind not in good]
        return [f"Use it for {_and(good)}; for {_and(rest)} it makes no difference that shows."]
    if bad and len(bad) < len(known):
        return [f"It is no use for {_and(bad)}."]
    return []


def _forced(report: Report, best: ArmReport) -> list[str]:
    """What a fixed draft length has to do with it."""
    if best.gamma == "auto" or best.overall.speedup is None:
        return []
    expected = max((p.predicted for p in report.sweep), key=_speed, default=None)
    if expected is None or str(expected.gamma) == best.gamma:
        return []
    gain = f"about {times(expected.speedup)}"
    if expected.gamma == 0:
        return [f"The draft length was fixed at {best.gamma}; no length is expected to pay."]
    if expected.speedup > 1.03 * best.overall.speedup.value:
        return [
            f"The draft length was fixed at {best.gamma}; {expected.gamma} is expected to give"
            f" {gain}, and `--gamma auto` looks for it by itself."
        ]
    return []


def _speed(prediction: Prediction) -> float:
    return prediction.speedup


def _costs(report: Report, best: ArmReport) -> list[str]:
    """Verification, drafting, acceptance, Python: what holds the speed back."""
    said = _verification(report)
    acceptance, step, alone = best.overall.acceptance, report.draft_step_s, report.step
    if step is not None and alone and step > _COSTLY_DRAFT * alone:
        said.append(
            f"A smaller draft would pay, if it is right as often: a step of this one costs"
            f" {percent(step / alone)} of the target's."
        )
    if acceptance is not None and acceptance < _RARELY:
        said.append(
            f"The draft is rarely right ({percent(acceptance)} accepted): one of the same family,"
            " or a larger one, would do better."
        )
    shares = best.overall.shares
    if shares is not None and shares.python > _BUSY_PYTHON:
        said.append(
            f"Python takes {percent(shares.python)} of the time: the models are that small."
        )
    return said


def _verification(report: Report) -> list[str]:
    """Whether checking several tokens at once is cheap enough here."""
    drafted = [point.predicted for point in report.sweep if point.predicted.gamma > 0]
    if not drafted:
        return []
    top = max(drafted, key=lambda p: p.roofline)
    if top.roofline < _LOW_ROOF:
        return [
            f"Your verify pass is too expensive: even a free draft that is always right would"
            f" give no more than {times(top.roofline)}."
        ]
    if top is not drafted[-1] and drafted[-1].roofline < 0.95 * top.roofline:
        return [
            f"Your verify pass is too expensive beyond {top.gamma} drafted tokens; perfect drafts"
            f" of that length would give {times(top.roofline)}."
        ]
    return []


def _outputs(report: Report) -> list[str]:
    """Whether speculation changed what was said."""
    found = report.agreement
    if not found.compared or not found.greedy:
        return []
    if not found.partings:
        if found.compared == 1:
            return ["Both answers are the same to the last token."]
        return [f"All {found.compared} pairs of answers are the same to the last token."]
    margins = [p.margin for p in found.partings if p.margin is not None]
    said = f"{len(found.partings)} of {found.compared} pairs of answers part somewhere"
    if margins and max(margins) > _TIE:
        return [
            f"{said}, one where the target's best token led by {max(margins):.2f}: that is more"
            " than rounding, please report it."
        ]
    return [f"{said}, where the target's two best tokens were all but tied: that is rounding."]


def _limits(report: Report) -> list[str]:
    said = []
    if report.too_long:
        said.append(f"{_count(report.too_long)} left out: longer than the context.")
    if report.too_short:
        said.append(f"{_count(report.too_short)} not timed: the answers were too short.")
    asked = len({run.prompt for run in report.runs}) + len(report.too_long)
    if report.ended == OUT_OF_TIME and asked < report.prompts:
        said.append(f"There was time for {asked} of {report.prompts} prompts.")
    if report.ended == INTERRUPTED:
        said.append("The run was interrupted: what was done by then is reported.")
    return said


def _count(names: Sequence[str]) -> str:
    return "One prompt was" if len(names) == 1 else f"{len(names)} prompts were"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
