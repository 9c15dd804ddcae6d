"""The conclusions from the figures, with a recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.bench.result import INTERRUPTED, OUT_OF_TIME, ArmReport, BenchReport, MeanInterval
from localspec.chat.figures.benefit import compared
from localspec.engine.record.stats import LOOKUP
from localspec.formats import percent, times

_SMALL = 0.03  # a difference up to this does not matter
_NARROW = 0.10  # more measurements hardly narrow an interval below this
_BUSY_PYTHON = 0.10
_COSTLY_DRAFT = 0.25  # of T(1)
_RARELY = 0.35
_TIE = 0.5  # logits; rounding in another batch size may reverse a lead up to this
_LOW_ROOF = 1.3


def verdict(report: BenchReport) -> tuple[str, ...]:
    """The conclusions, one sentence each: the answer, what to do, and why."""
    best = report.best
    if best is None or best.overall.speedup is None:
        return (_without(report), *_limits(report))
    return (
        _answer(report, best, best.overall.speedup),
        *_choice(report, best),
        *_advice(best),
        *_forced(report, best, best.overall.speedup),
        *_verification(report),
        *_costs(report, best),
        *_outputs(report),
        *_limits(report),
    )


def _without(report: BenchReport) -> str:
    """The sentence for a report in which nothing was drafted, or nothing could be timed."""
    speed = report.off.overall.tokens_per_second
    if speed is None:
        return "Nothing could be timed: the answers were too short, or too few."
    why = report.draft_note or "nothing was drafted"
    return f"Without drafting: {speed:.1f} tokens/s. Drafting was not measured: {why}."


def _answer(report: BenchReport, best: ArmReport, found: MeanInterval) -> str:
    """What drafting brought over all kinds, in the words that the chat uses for an answer."""
    which = f"{best.name}: " if len(report.on) > 1 else ""
    value, low, high = found.value, found.low, found.high
    if low is None or high is None:
        return (
            f"{which}Can't tell what drafting brings: {compared(value, 2)} in a single question,"
            " which is too little. Ask more."
        )
    said = f"{compared(value, 2)}, over all (95 % interval {low:.2f} to {high:.2f})"
    if low > 1:
        return f"{which}{_capital(said)}."
    if high < 1:
        return f"{which}{_capital(said)}. Leave drafting off."
    width = (high - low) / value
    if width <= _NARROW or abs(value - 1) <= _SMALL < width <= 2 * _NARROW:
        return f"{which}No gain here: {said}."
    return (
        f"{which}Can't tell what drafting brings: {said}."
        " More prompts, more repeats or a quieter machine would tell."
    )


def _capital(said: str) -> str:
    return said[0].upper() + said[1:]


def _choice(report: BenchReport, best: ArmReport) -> Iterator[str]:
    """Which of several drafts is the fastest."""
    others = [
        f"{arm.name} {times(arm.overall.speedup.value)}"
        for arm in report.on
        if arm is not best and arm.overall.speedup
    ]
    if others:
        yield f"Of the drafts, {best.name} is the fastest; the others: {', '.join(others)}."


def _advice(best: ArmReport) -> Iterator[str]:
    """For which kinds of text drafting helps."""
    known = {row.kind: row.speedup for row in best.kinds if row.speedup is not None}
    good = [kind for kind, found in known.items() if found.above_one]
    bad = [kind for kind, found in known.items() if found.below_one]
    if good and bad:
        yield f"Use it for {_and(good)}, not for {_and(bad)}."
    elif good and len(good) < len(known):
        rest = [kind for kind in known if kind not in good]
        yield f"Use it for {_and(good)}; for {_and(rest)} it makes no difference that shows."
    elif bad and len(bad) < len(known):
        yield f"It is no use for {_and(bad)}."


def _forced(report: BenchReport, best: ArmReport, found: MeanInterval) -> Iterator[str]:
    """Whether another draft length than the fixed one is expected to be faster."""
    expected = max((p.predicted for p in report.sweep), key=lambda p: p.speedup, default=None)
    if expected is None or best is not report.on[0] or best.gamma in ("auto", str(expected.gamma)):
        return
    fixed = f"The draft length was fixed at {best.gamma}; "
    if expected.gamma == 0:
        yield f"{fixed}no length is expected to pay."
    elif expected.speedup > 1.03 * found.value:
        yield (
            f"{fixed}{expected.gamma} is expected to give about {times(expected.speedup)}, and"
            " `--gamma auto` looks for it by itself."
        )


def _verification(report: BenchReport) -> Iterator[str]:
    """Whether verifying several tokens at once is cheap enough here."""
    drafted = [point.predicted for point in report.sweep if point.predicted.gamma > 0]
    top = max(drafted, key=lambda p: p.roofline, default=None)
    if top is None:
        return
    if top.roofline < _LOW_ROOF:
        yield (
            "Your verify pass is too expensive: even a free draft that is always right would give"
            f" no more than {times(top.roofline)}."
        )
    elif drafted[-1].roofline < 0.95 * top.roofline:
        yield (
            f"Your verify pass is too expensive beyond {top.gamma} drafted tokens; perfect drafts"
            f" of that length would give {times(top.roofline)}."
        )


def _costs(report: BenchReport, best: ArmReport) -> Iterator[str]:
    """What else limits the speed: the draft's cost, acceptance, Python."""
    acceptance, step, alone = best.overall.acceptance, report.draft_step_s, report.step
    first = best is report.on[0]  # whose steps were timed
    if first and step is not None and alone and step > _COSTLY_DRAFT * alone:
        yield (
            "A smaller draft would pay, if it is right as often: a step of this one costs"
            f" {percent(step / alone)} of the target's."
        )
    if acceptance is not None and acceptance < _RARELY and best.draft != LOOKUP:
        yield (
            f"The draft is rarely right ({percent(acceptance)} accepted): one of the same family,"
            " or a larger one, would do better."
        )
    shares = best.overall.shares
    if shares is not None and shares.python > _BUSY_PYTHON:
        yield f"Python takes {percent(shares.python)} of the time: the models are so small."


def _outputs(report: BenchReport) -> Iterator[str]:
    """Whether speculation changed greedy answers."""
    found = report.agreement
    if not found.compared or not found.greedy:
        return
    if not found.partings:
        pairs = f"All {found.compared} pairs of" if found.compared > 1 else "Both"
        yield f"{pairs} answers are the same to the last token."
        return
    said = f"{len(found.partings)} of {found.compared} pairs of answers part somewhere"
    margin = max((p.margin for p in found.partings if p.margin is not None), default=0.0)
    if margin > _TIE:
        yield (
            f"{said}, one where the target's best token led by {margin:.2f}: that is more than"
            " rounding, please report it."
        )
    else:
        yield f"{said}, where the target's two best tokens were all but tied: that is rounding."


def _limits(report: BenchReport) -> Iterator[str]:
    if report.too_long:
        yield f"{_count(report.too_long)} left out: longer than the context."
    if report.too_short:
        yield f"{_count(report.too_short)} not timed: the answers were too short."
    asked = len({run.prompt for run in report.runs}) + len(report.too_long)
    if report.ended == OUT_OF_TIME and asked < report.prompts:
        yield f"There was time for {asked} of {report.prompts} prompts."
    if report.ended == INTERRUPTED:
        yield "The run was interrupted: what was done by then is reported."


def _count(names: Sequence[str]) -> str:
    return "One prompt was" if len(names) == 1 else f"{len(names)} prompts were"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
