"""The verdict after a training: the acceptance of the head's drafts, and the speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from localspec.bench.benchmark import bench
from localspec.bench.prompt_sets import BenchPrompt, BenchRequest, PromptSet
from localspec.bench.result import MeanInterval
from localspec.chat.conversation import Message
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.formats import percent
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.model_loader import Progress
from localspec.train.texts import token_ids
from localspec.train.texts.prompts import gather
from localspec.train.verdict.judging import AcceptedDrafts, judge

BETTER: Final = 0.02
"""The share of accepted first tokens must exceed the control's by this much."""

_SAMPLED: Final = 0.8
_TOKENS: Final = 64
_PROMPTS: Final = 12  # prompts to time, twice each


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadVerdict:
    """The quality of a head.

    Attributes:
        greedy, sampled: acceptance on the held-out prompts at temperature 0 and 0.8.
        reference: acceptance at temperature 0 on localspec's own held-out prompts.
        speedup: over the baseline, in pairs; None if nothing could be timed.
    """

    greedy: AcceptedDrafts
    sampled: AcceptedDrafts
    reference: AcceptedDrafts
    speedup: MeanInterval | None

    @property
    def better(self) -> bool:
        """Whether it beats always guessing the most common token."""
        return self.greedy.first > self.greedy.control + BETTER

    def lines(self) -> list[str]:
        """The verdict for people."""
        lines = [
            f"accepted    temperature {name}: {percent(its.first)} of first tokens,"
            f" {percent(its.all)} of all"
            f" ({' '.join(f'{each:.2f}' for each in its.positions)} by position)"
            for name, its in (("0", self.greedy), ("0.8", self.sampled))
        ]
        control = percent(self.greedy.control)
        lines.append(f"control     {control}, the commonest token always guessed")
        if self.speedup is not None:
            lines.append(
                f"speed       {self.speedup} over decoding without drafting, greedily, here"
            )
        return lines


def measure(
    options: LoadRequest,
    held_out: Sequence[Sequence[Message]],
    common: int,
    progress: Progress,
    cancel: Cancel,
) -> HeadVerdict:
    """Judge a head on prompts that were never trained on.

    Args:
        options: the target, with the head as its draft.
        held_out: the prompts.
        common: the id that the control always guesses.
        progress: receives every step.
        cancel: stops it.

    Raises:
        LocalspecError: as `load_session`.
        Cancelled: it was stopped.
    """
    drafting = replace(options, gamma="auto", draft_anyway=True)
    with closing(load_session(drafting, progress=progress, cancel=cancel)) as session:
        progress("Judging the head", None)
        asked = [ids for ids in token_ids.prompt_ids(session.template, held_out, cancel) if ids]
        greedy = judge(session, asked, temperature=0.0, common=common, cancel=cancel)
        sampled = judge(session, asked, temperature=_SAMPLED, common=common, cancel=cancel)
        own = gather((), ()).held_out
        reference = greedy if list(held_out) == list(own) else accepted_of(session, common, cancel)
        speedup = _timed(session, held_out, progress, cancel)
    return HeadVerdict(greedy=greedy, sampled=sampled, reference=reference, speedup=speedup)


def accepted_of(session: Session, common: int, cancel: Cancel) -> AcceptedDrafts:
    """The greedy acceptance of a loaded head on localspec's own held-out prompts."""
    own = token_ids.prompt_ids(session.template, gather((), ()).held_out, cancel)
    asked = [ids for ids in own if ids]
    return judge(session, asked, temperature=0.0, common=common, cancel=cancel)


def _timed(
    session: Session, held_out: Sequence[Sequence[Message]], progress: Progress, cancel: Cancel
) -> MeanInterval | None:
    """The speed-up of automatic drafting over the baseline, asking each in turns."""
    texts = [each[0].content for each in held_out if len(each) == 1][:_PROMPTS]
    if not texts:
        return None
    prompts = tuple(BenchPrompt(f"held-out-{n}", "held-out", t) for n, t in enumerate(texts))
    request = BenchRequest(
        prompts=PromptSet("held-out", prompts),
        repeats=1,
        n_predict=_TOKENS,
        temperature=0.0,
        seed=1,
        gamma="auto",
    )
    report = bench([session], request, cancel, progress=progress, asking=lambda *_: None)
    cancel.check()  # it tells of what came before
    return next((arm.overall.speedup for arm in report.arms if arm.gamma == "auto"), None)
