"""One sentence about what drafting gained in an answer; every screen and command uses this one.

The sentence describes the answer as a whole. `figures.gamma_words` describes the policy's present
decision.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from localspec import formats
from localspec.chat.figures.figures import Figures, accepted_share, check_words
from localspec.drafter_names import LOOKUP
from localspec.engine.record.parting import Parting
from localspec.engine.record.stats import (
    LEAST_TOKENS,
    FinishReason,
    GammaReason,
    GenerationStats,
    Speedup,
)

_BUSIER: Final = 1.15  # ratio of the times of rounds without a draft

_NOTHING: Final = "nothing was drafted"
_SINCE = {
    GammaReason.TOO_LITTLE_REPEATS: "too little of this text repeats, and no model drafts",
    GammaReason.TOO_DEAR: "this draft costs more than it saves",
}


def summary(now: Figures, *, counted: bool = False) -> str:
    """What drafting brought to the answer, and why it is slow; `counted` as in `benefit`."""
    said = benefit(now, counted=counted)
    slow = "" if any(each and each in said for each in (now.busy, now.slow)) else now.slow
    return "; ".join(filter(None, (said, slow)))


def benefit(now: Figures, *, counted: bool = False) -> str:
    """What drafting gained in the running or the last answer; empty before its first token.

    Args:
        now: the figures.
        counted: whether `guessed` stands elsewhere on the screen, so that no count is told here.
    """
    if not now.generated:
        return ""
    if not now.drafted and now.recovered is not None:
        return _without(now)
    found = now.speedup
    if found is None:  # too short, or loaded from the store, which keeps no rounds
        return _counted(now, counted=counted)
    if why := _doubt(now.busy, repeats=now.repeats):
        return _unknown(why)
    if not found.low < 1 < found.high:
        return compared(found.estimate)
    return f"no clear gain: {found.low:.1f} to {found.high:.1f}× with drafting"


def ratio(now: Figures) -> Speedup | None:
    """The answer's speed-up over the baseline; None if it is not known or cannot be trusted."""
    return None if _doubt(now.busy, repeats=now.repeats) else now.speedup


def baseline_speed(now: Figures) -> float | None:
    """Estimated tokens per second of the answer without drafting; None if unknown."""
    found = ratio(now)
    return now.speed_average / found.estimate if found and now.speed_average else None


def _doubt(busy: str, *, repeats: bool) -> str:
    """Why a measured ratio of speeds says nothing about drafting; empty if it does.

    Args:
        busy: that other programs took threads that the answer needed, in a clause; else empty.
        repeats: whether the answer was stopped because it only repeated itself: all of that is
            easy to guess.
    """
    return "the answer only repeated itself" if repeats else busy


def _unknown(why: str) -> str:
    return f"can't tell what drafting brings: {why}"


def _counted(now: Figures, *, counted: bool) -> str:
    """How many drafted tokens were kept; if next to nothing was drafted, also why."""
    told = counted and now.drafted
    said = "" if told else kept(now.drafters, now.drafted, now.accepted, now.generated)
    few = accepted_share(now.drafted, now.accepted, now.generated) is None
    why = "" if now.busy or not few else _why(now)
    return ": ".join(filter(None, (said, why)))


def _without(now: Figures) -> str:
    """Why nothing was drafted in an answer, as far as that is known."""
    if now.off:
        return f"drafting {'was' if now.speculation else 'is'} off"
    reason = now.answer_note.reason if now.answer_note else None
    if now.busy and reason is not GammaReason.TOO_LITTLE_REPEATS:
        return f"not drafting: {now.busy}"
    why, since = _why(now), "not drafting, since " if reason is GammaReason.TOO_DEAR else ""
    return f"no gain here: {since}{why}" if why else _NOTHING


def _why(now: Figures) -> str:
    """Why the policy drafted nothing, or little, at the answer's end; empty if it did draft."""
    reason = now.answer_note.reason if now.answer_note else None
    if reason is GammaReason.TOO_DEAR and now.check is not None:
        return check_words(now.check)
    return _SINCE.get(reason, "") if reason else ""


def compared(ratio: float, digits: int = 1) -> str:
    """Describe a ratio of speeds: with drafting divided by without, to `digits` decimals."""
    if abs(ratio - 1) < 0.5 * 10**-digits:
        return "as fast as without drafting"
    if ratio > 1:
        return f"{ratio:.{digits}f}× faster than without drafting"
    return f"{formats.percent(1 - ratio)} slower than without drafting"


def of_two(without: GenerationStats, drafted: GenerationStats, busy: str = "") -> str:
    """What drafting gained if one prompt was answered twice, without drafting and with it.

    Both answers have rounds without a draft. If these took different times, the machine was busier
    during one of the answers, and the ratio of the speeds would not be due to drafting.

    Args:
        without: the figures of the answer without drafting.
        drafted: those of the other one.
        busy: that other programs took threads that an answer needed, in a clause; else empty.
    """
    if not drafted.drafted_tokens:
        return f"{_NOTHING}: {busy}" if busy else _NOTHING
    slow, fast = without.tokens_per_second, drafted.tokens_per_second
    if not (slow and fast and drafted.comparable and without.generated_tokens >= LEAST_TOKENS):
        counts = drafted.drafted_tokens, drafted.accepted_tokens, drafted.generated_tokens
        return f"{kept(drafted.drafted_by, *counts)}: too few to compare speeds"
    repeats = FinishReason.REPETITION in (without.finish_reason, drafted.finish_reason)
    if why := _doubt(busy, repeats=repeats):
        return _unknown(why)
    rounds = [_baseline_round_s(each) for each in (without, drafted)]
    if min(rounds) > 0 and max(rounds) > _BUSIER * min(rounds):
        return _unknown("the machine was busier during one of the answers")
    return f"{compared(fast / slow)}, this once"


def _baseline_round_s(stats: GenerationStats) -> float:
    """The median seconds of the rounds without a draft, except the first; 0 if there are none.

    A drafter may have been asked and proposed nothing; its time does not count.
    """
    times = [done.undrafted_s for done in stats.rounds[1:] if not done.drafted]
    return median(times) if times else 0.0


def why_parted(parting: Parting | None, *, exact: bool = False) -> str:
    """Why two texts of one prompt part, to follow "part"; empty if it was not measured.

    Args:
        parting: where they part.
        exact: whether they were written in passes that give equal bits.
    """
    if parting is None or (parting.margin is None and not exact):
        return ""
    apart = "" if parting.margin is None else f": the two tokens were {parting.margin:.2f} apart"
    if apart and not parting.near_tie:
        return f" by more than rounding, please report it{apart}"
    if exact:
        return f", which --exact should rule out, please report it{apart}"
    return f" by rounding{apart}, a near tie"


def kept(
    drafters: tuple[tuple[str, int, int], ...], drafted: int, accepted: int, generated: int
) -> str:
    """How many drafted tokens became part of the text, for answers without a ratio of speeds."""
    if not drafted:
        return _NOTHING
    if {name for name, *_ in drafters} == {LOOKUP}:
        copied = min(accepted, generated)  # what was accepted after the answer's end is not in it
        return f"copied {formats.count(copied)} of {formats.count(generated)} tokens"
    return guessed(drafted, accepted)


def guessed(drafted: int, accepted: int) -> str:
    """How many tokens were drafted, and how many of them were accepted, in everyday words."""
    if not drafted:
        return "nothing guessed"
    return f"guessed {formats.count(drafted)}, kept {formats.count(accepted)}"
