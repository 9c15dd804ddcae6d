"""The conclusions from the figures, with a recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from localspec.bench.result import (
    INTERRUPTED,
    OUT_OF_TIME,
    SETTLED,
    ArmReport,
    BenchReport,
    KindRow,
    MeanInterval,
)
from localspec.bench.summarise import faster
from localspec.chat.figures.benefit import compared
from localspec.drafter_names import LOOKUP
from localspec.formats import percent, speed, times

_NOTHING = "Nothing was drafted in these answers: they tell nothing about drafting."
_UNSURE = "can't tell"
_MORE = "More prompts, more repeats or a quieter machine would tell."
_SMALL = 0.05  # a difference up to this does not matter
_LEAST = 8  # prompts of a kind: of fewer, some kinds of text repeat nothing by chance
_BUSY_PYTHON = 0.10
_COSTLY_DRAFT = 0.25  # of T(1)
_RARELY = 0.35
_LOW_ROOF = 1.3


def verdict(report: BenchReport) -> tuple[str, ...]:
    """The conclusions, one sentence each: the answer, what to do, and why."""
    if report.best is None:
        return (_without(report), *_limits(report))
    best, found = report.best
    quick = bool(report.settings.get("quick"))
    return (
        *(_by_kind(report, best) if quick else _answer(report, best, found)),
        *_choice(report, best),
        *(() if quick else _advice(best)),
        *_forced(report, best, found),
        *_verification(report),
        *_costs(report, best),
        *_outputs(report),
        *_limits(report),
    )


def _without(report: BenchReport) -> str:
    """The words for a report in which only a sweep drafted, nothing did, or nothing was timed."""
    baseline = report.off.overall.tokens_per_second
    if baseline is None:
        return "Nothing could be timed: the answers were too short, or too few."
    said = f"Without drafting: {speed(baseline)} tokens/s."
    swept = [
        (found.value, arm.name, found) for arm in report.arms if (found := arm.overall.speedup)
    ]
    if swept:
        _, name, found = max(swept, key=itemgetter(0))
        return f"{said} The fastest measured draft length is {name}: {found}."
    why = report.draft_note or "nothing was drafted"
    return f"{said} Drafting was not measured: {why}."


def _answer(report: BenchReport, best: ArmReport, found: MeanInterval) -> Iterator[str]:
    """What drafting brought over all kinds, in the words that the chat uses for an answer."""
    which = f"{best.name}: " if len(report.on) > 1 else ""
    value, low, high = found.value, found.low, found.high
    if not best.overall.drafting:
        yield f"{which}{_NOTHING}"
        return
    if low is None or high is None:
        yield (
            f"{which}Can't tell what drafting brings: {compared(value, 2)} in a single question,"
            " which is too little. Ask more."
        )
        return
    said = f"{compared(value, 2)}, over all (95 % interval {low:.2f} to {high:.2f})"
    if low > 1:
        yield f"{which}{_capital(said)}."
    elif high < 1:
        yield f"{which}{_capital(said)}.{_off(best)}"
    elif _level(found):
        yield f"{which}No gain here: {said}."
    else:
        yield f"{which}Can't tell what drafting brings: {said}. {_MORE}"


def _level(found: MeanInterval) -> bool:
    """Whether all of the interval is so near 1 that nothing that matters is gained or lost."""
    if found.low is None or found.high is None:
        return False
    return found.low >= 1 - _SMALL and found.high <= 1 + _SMALL


def _better(found: MeanInterval) -> bool:
    return found.above_one and not _level(found)


def _worse(found: MeanInterval) -> bool:
    return found.below_one and not _level(found)


def settled(rows: Sequence[KindRow]) -> frozenset[str]:
    """The kinds of text for which a quick bench has its answer, by the rows of all settings.

    It looks after every question, and ends a kind for a gain or a loss only if an interval twice as
    wide as that of 95 % would lie beyond 1: else one kind in eight of 16 prompts, and one in five
    of 32, would gain or lose by chance.
    """
    unsure = [row.kind for row in rows if row.prompts < _LEAST or not _decided(row)]
    return frozenset(row.kind for row in rows) - frozenset(unsure)


def _decided(row: KindRow) -> bool:
    found = row.speedup
    if found is None or not row.drafting or _level(found):
        return True
    if found.low is None or found.high is None:
        return False
    return found.low**2 > found.value or found.high**2 < found.value


def _by_kind(report: BenchReport, best: ArmReport) -> Iterator[str]:
    """What drafting brought for each kind of text, and the advice that follows."""
    which = f"{best.name}: " if len(report.on) > 1 else ""
    yield f"{which}{_capital('; '.join(f'{row.kind}: {brought(row)}' for row in best.kinds))}."
    drafted = [row.speedup for row in best.kinds if row.drafting and row.speedup]
    if not best.overall.drafting:
        yield _NOTHING
    elif any(map(_better, drafted)):
        if any(map(_worse, drafted)):
            yield from _advice(best)
        elif best.gamma == "auto":
            yield "Leave drafting on: it drafts where that pays, and nothing elsewhere."
    elif off := _off(best):
        yield off.strip()
    elif not all(map(_level, drafted)):
        yield _MORE


def brought(row: KindRow) -> str:
    """What drafting brought for one kind of text, in a few words."""
    found = row.speedup
    if found is None:
        return "not timed"
    if not row.drafting:
        return "nothing was drafted"
    if found.low is None or found.high is None:
        return f"{_UNSURE} from one question ({times(found.value)})"
    if _level(found):
        return "no gain"
    sure = found.above_one or found.below_one
    return str(found) if sure else f"{_UNSURE} ({found.low:.2f} to {found.high:.2f}×)"


def _off(best: ArmReport) -> str:
    """The advice to draft nothing, if that only made some kind slower; empty if not.

    Kinds without drafts are ignored, and so is a total that includes one.
    """
    drafted = [row.speedup for row in best.kinds if row.drafting and row.speedup]
    if len(drafted) == len(best.kinds) and best.overall.speedup:
        drafted.append(best.overall.speedup)
    gone = any(map(_worse, drafted)) and not any(map(_better, drafted))
    return " Leave drafting off." if gone else ""


def _capital(said: str) -> str:
    return said[0].upper() + said[1:]


def _choice(report: BenchReport, best: ArmReport) -> Iterator[str]:
    """Which is the fastest of several settings that drafted, if questions asked of both tell it."""
    said = {
        arm.name: f"{arm.name} {times(found.value)}"
        for arm in report.on
        if (found := arm.overall.speedup) and arm.overall.drafting
    }
    first = said.pop(best.name, "")
    over = [faster(report.runs, best.name, name) for name in said]
    every = ", ".join((first, *said.values()))
    if over and report.settings.get("quick"):  # what all answers share may be off for both
        yield f"Only a whole bench tells which draft is the fastest: {every}."
    elif over and all(found is not None and found.above_one for found in over):
        yield f"Of the drafts, {best.name} is the fastest; the others: {', '.join(said.values())}."
    elif over:
        yield f"Which draft is the fastest cannot be told: {every}."


def _advice(best: ArmReport) -> Iterator[str]:
    """For which kinds of text drafting helps."""
    known = {row.kind: row.speedup for row in best.kinds if row.speedup and row.drafting}
    good = [kind for kind, found in known.items() if _better(found)]
    bad = [kind for kind, found in known.items() if _worse(found)]
    if good and bad:
        yield f"Use it for {_and(good)}, not for {_and(bad)}."
    elif good and len(good) < len(known):
        rest = [kind for kind in known if kind not in good]
        yield f"Use it for {_and(good)}; for {_and(rest)} no gain was found."
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
        yield f"Python takes {percent(shares.python)} of the time, since the models are so small."


def _outputs(report: BenchReport) -> Iterator[str]:
    """Whether speculation changed answers, and why."""
    found = report.agreement
    if not found.compared:
        return
    if not found.partings:
        pairs = f"All {found.compared} pairs of" if found.compared > 1 else "Both"
        quick = report.settings.get("quick")  # without drafting, answers are cut short in it
        where = f"in the {found.tokens} tokens compared" if quick else "to the last token"
        yield f"{pairs} answers are the same {where}."
        return
    said = f"{len(found.partings)} of {found.compared} pairs of answers part somewhere"
    if found.partings_per_1000 is not None:
        said += f" ({found.partings_per_1000:.1f} partings per 1,000 tokens)"
    margins = [each.margin for each in found.partings if each.margin is not None]
    beyond = [each for each in found.partings if each.margin is not None and not each.near_tie]
    exact = report.environment["loaded_with"].get("exact")
    if beyond:
        yield (
            f"{said}, one where both tokens were {max(margins):.2f} apart: that is more than"
            " rounding, please report it."
        )
    elif exact is not None and exact > 1:
        yield f"{said}, which `--exact` should rule out: please report it."
    elif margins:
        yield (
            f"{said}, where both tokens were all but tied ({max(margins):.2f} apart at most): that"
            " is rounding, as passes of other sizes round differently."
        )
    else:
        yield f"{said}."


def disturbance(busy: float) -> tuple[str, ...]:
    """What to know about a bench that began while other programs kept `busy` cores busy."""
    if not busy:
        return ()
    return (f"Other programs kept {busy:.1f} cores busy: an idle machine may give other results.",)


def _limits(report: BenchReport) -> Iterator[str]:
    if report.too_long:
        yield f"{_count(report.too_long)} left out: longer than the context."
    if report.too_short:
        yield f"{_count(report.too_short)} not timed: the answers were too short."
    asked = len({run.prompt for run in report.runs}) + len(report.too_long)
    if report.ended == OUT_OF_TIME and asked < report.prompts:
        yield f"There was time for {asked} of {report.prompts} prompts."
    if report.ended == SETTLED and asked < report.prompts:
        yield (
            f"{asked} of {report.prompts} prompts were asked; the others are of kinds for which"
            " more would not change the answer."
        )
    if report.ended == INTERRUPTED:
        yield "The run was interrupted: this reports what was measured until then."


def _count(names: Sequence[str]) -> str:
    return "One prompt was" if len(names) == 1 else f"{len(names)} prompts were"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
