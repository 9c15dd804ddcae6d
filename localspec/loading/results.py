"""What requests return: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.chat.conversation import Message
from localspec.chat.events import Span, TurnEnd
from localspec.chat.figures.figures import Figures
from localspec.chat.settings import ChatSettings
from localspec.formats import percent, times

_WIDTH = 40  # characters of the longest bar
_NOISY = 0.3
_FREE = 0.03
_LOOKUP_ALONE = "No draft model: lookup alone drafts, and has no passes to measure."


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerResult:
    """An answer to a single prompt.

    Attributes:
        end: its text, why it ended, and sums over its rounds.
        said: the text for the user, without thoughts and marks.
        figures: the live figures at its end.
        speculation_note: why nothing can be drafted; empty if something can.
        peak_memory_bytes: of the engine's process and its accelerators.
        settings: all settings in force, by their names on the command line.
        chosen: the settings that a conversation keeps; without a seed that was drawn.
        pair_name, pair_reference: as in `SessionInfo`.
        spans: the answer's text by origin.
        notices: about the pair and its settings, for the user.
        steps: the answers that called tools before it, each followed by the results.
    """

    end: TurnEnd
    said: str
    thought: str | None
    figures: Figures
    speculation_note: str
    peak_memory_bytes: int
    settings: Mapping[str, Any]
    chosen: ChatSettings
    pair_name: str
    pair_reference: tuple[str, str | None]
    spans: tuple[Span, ...]
    notices: tuple[str, ...]
    steps: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """What was heard of an answer that broke off before its result, of all its steps.

    Its attributes are those of `AnswerResult`; `spans` have neither thoughts nor calls.
    """

    pair_name: str
    pair_reference: tuple[str, str | None]
    chosen: ChatSettings
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ExactnessCost:
    """What ``--exact`` costs.

    Attributes:
        baseline: the share of the speed without drafting that it takes.
        copying: the same where a text is copied by lookup.
        deeper: whether it takes more in long contexts, where flash attention, which it needs, is
            slower here; both shares are those of a short one.
    """

    baseline: float
    copying: float
    deeper: bool = False

    @property
    def free(self) -> bool:
        """Whether it takes too little to matter."""
        return max(self.baseline, self.copying) <= _FREE and not self.deeper

    def document(self) -> dict[str, float | bool]:
        """All of it, for `--json`."""
        return {"plain": self.baseline, "copying": self.copying, "deeper": self.deeper}


def exact_words(longest: int | None, cost: ExactnessCost | None, tune: str) -> str:
    """What is known of ``--exact`` for a model on this machine, in words.

    Args:
        longest: as in `LoadRecord.exact`.
        cost: None if it was not measured.
        tune: the command that measures it.
    """
    if longest is None:
        return f"not tried yet on this machine; {tune} says what it costs"
    if longest < 2:
        return (
            "is not possible with this device or these weights: a pass over two tokens gives other"
            " bits than one by one (Q8_0 on the processor gives equal ones)"
        )
    found = f"passes of up to {longest} tokens give equal bits"
    if cost is None:
        return f"{found}; {tune} says what that costs"
    if cost.free:
        most = f"it costs at most {percent(_FREE)} of the speed"
        return f"{found}; {most}, and is used unless other settings are asked for"
    baseline, copying = percent(cost.baseline), percent(cost.copying)
    more = ", and more in long contexts, as it needs flash attention" if cost.deeper else ""
    return (
        f"{found}; it costs {baseline} of the speed without drafting,"
        f" {copying} where text is copied{more}"
    )


@dataclass(frozen=True, slots=True)
class GammaChoice:
    """The automatic draft length at a steady acceptance.

    Attributes:
        acceptance: of every drafted token, given that those before it were accepted.
        gamma: draft length; 0 for no drafting.
        speedup: over the baseline.
    """

    acceptance: float
    gamma: int
    speedup: float


@dataclass(frozen=True, slots=True)
class TunedModel:
    """The measurements of one model.

    Attributes:
        name: the model's file.
        threads: used for the timing; used from now on if `by_threads` supports it.
        by_threads: seconds of one token and of four, for every thread count tried; empty if the
            measurement was disturbed.
        points: n to seconds of one decode of n tokens.
        curve: the same for every n from 1, interpolated.
        spread: relative spread of the timings.
        kept: whether an earlier, undisturbed measurement stays in place; the values are then that
            one's.
        busy: whether other programs kept cores busy at the end.
        noisy: whether those programs or the timings show a disturbance; it is then not stored.
    """

    name: str
    threads: int
    by_threads: Mapping[int, tuple[float, float]]
    points: Mapping[int, float]
    curve: tuple[float, ...]
    stored: bool
    spread: float
    kept: bool = False
    busy: bool = False
    noisy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPair:
    """The measurements of a pair.

    Attributes:
        machine: the processor and its accelerators, in words.
        build: the version of llama-cpp-python.
        draft_step_s: seconds per drafted token, or per block; None without a draft.
        draft_note: why nothing can be drafted; empty if something can.
        choices: the draft length for each acceptance; empty without a draft.
        exact, exact_cost: as for `exact_words`.
    """

    name: str
    machine: str
    build: str
    target: TunedModel
    draft: TunedModel | None
    draft_step_s: float | None
    draft_note: str
    choices: tuple[GammaChoice, ...]
    exact: int | None = None
    exact_cost: ExactnessCost | None = None


def tuned_text(found: TunedPair) -> str:
    """The measurements of a pair, for people."""
    target, draft, step = found.target, found.draft, found.draft_step_s
    lines = [found.machine, "", *_curve_lines(target)]
    if draft is None or step is None:
        why = f"No draft: {found.draft_note}." if found.draft_note else _LOOKUP_ALONE
        lines += ["", why]
    else:
        most = max(draft.points)
        lines += [
            "",
            f"Draft {draft.name}, {draft.threads} threads",
            f"  one step {1e3 * step:.2f} ms, {step / target.points[1]:.2f} of the target's",
            f"  reading {most} tokens {1e3 * draft.points[most]:.2f} ms",
            "",
            "accepted  draft  speed-up",
            *(
                f"{percent(choice.acceptance):>8} {choice.gamma or 'none':>6}"
                f" {times(choice.speedup):>9}"
                for choice in found.choices
            ),
        ]
    models = [target, draft] if draft else [target]
    for model in models:
        if model.by_threads:
            tried = (f"{n}: {1e3 * one:.2f} ms" for n, (one, _) in model.by_threads.items())
            lines += ["", f"Threads for {model.name}: {model.threads} ({', '.join(tried)} a token)"]
    if found.exact is not None:
        lines += ["", f"--exact: {exact_words(found.exact, found.exact_cost, 'tuning again')}"]
    spread = max(model.spread for model in models)
    if spread > _NOISY:
        lines += ["", f"Timings varied by {percent(spread)}: something else may be running."]
    if any(model.busy for model in models):
        lines += ["", "Other programs kept cores busy at the end."]
    if kept := ", ".join(model.name for model in models if model.kept):
        lines += ["", f"The earlier measurement is better: it is kept, and shown above. ({kept})"]
    if vague := ", ".join(one.name for one in models if one.noisy and not one.kept):
        lines += ["", f"This is too uncertain to keep: tune again in a calm moment. ({vague})"]
    if lost := ", ".join(one.name for one in models if not (one.stored or one.noisy)):
        lines += ["", f"The cache folder cannot be written: nothing was stored. ({lost})"]
    return "\n".join(lines)


def _curve_lines(target: TunedModel) -> list[str]:
    """T(n) as bars; points that were not measured are interpolated and marked."""
    longest, alone = max(target.curve), target.curve[0]
    lines = [f"Target {target.name}, {target.threads} threads", "   n        ms  of T(1)"]
    for n, seconds in enumerate(target.curve, 1):
        bar = "#" if n in target.points else "."
        length = max(1, round(_WIDTH * seconds / longest))
        lines.append(f"{n:>4}{1e3 * seconds:>10.2f}{seconds / alone:>9.2f}  {bar * length}")
    return lines
