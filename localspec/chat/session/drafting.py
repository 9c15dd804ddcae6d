"""Whether to draft, which policy sets the draft length, and what drafting gains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

from localspec.chat.session.pair import LoadedPair
from localspec.chat.settings import ChatSettings
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.record.stats import GammaNote, GammaReason, Round, Speedup


class Joined(NamedTuple):
    """What drafts for a target, once its draft models have been loaded.

    Attributes:
        auto: the policy for gamma ``auto``; None for a fixed length.
        made_by: describes models that were loaded after the target; their caches are stored under
            it. Empty if there are none.
    """

    pair: LoadedPair
    drafters: Sequence[Drafter]
    auto: AutoGamma | None
    made_by: str = ""


class Drafting:
    """The policy that the settings imply; it can be switched while an answer is written.

    Any thread may read and switch it.

    Args:
        settings: the initial ones.
        auto: the policy for gamma ``auto``; None for a fixed length.
        able: whether anything can draft.
    """

    def __init__(self, settings: ChatSettings, auto: AutoGamma | None, *, able: bool) -> None:
        self._settings = settings
        self._auto = auto
        self.able = able
        self._wanted, self._wanted_for = settings.draft_length > 0, settings.gamma
        self._policy: GammaPolicy = FixedGamma(0)

    def join(self, auto: AutoGamma | None, *, able: bool) -> None:
        """Take the policy that knows drafters which were loaded just now; between answers."""
        self._auto, self.able = auto, able

    @property
    def settings(self) -> ChatSettings:
        """The settings. A different gamma, also in these, switches drafting off (0) or on."""
        return self._settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        self._settings = settings
        self._follow_gamma()

    def _follow_gamma(self) -> None:
        """Switch drafting off or on if gamma has changed."""
        if self._settings.gamma != self._wanted_for:
            self._wanted, self._wanted_for = self._settings.draft_length > 0, self._settings.gamma

    @property
    def on(self) -> bool:
        """Whether drafting is on. If gamma is 0, switching it on sets gamma to ``auto``.

        It is off as long as nothing can draft.
        """
        self._follow_gamma()
        return self.able and self._wanted

    @on.setter
    def on(self, on: bool) -> None:
        if on and self._settings.draft_length == 0:
            self._settings = replace(self._settings, gamma="auto")
        self._wanted, self._wanted_for = on, self._settings.gamma

    def note(self, kind: str) -> GammaNote:
        """Where gamma comes from, for text of this `kind` (code or prose)."""
        if not self.on:
            return GammaNote(GammaReason.OFF)
        settings = self._settings
        if settings.gamma != "auto":
            note = GammaNote(GammaReason.FIXED, settings.gamma)
        elif self._auto is None:
            note = GammaNote(GammaReason.NOT_MEASURED, settings.draft_length)
        else:
            note = replace(self._auto.note(), kind=kind)
        return replace(note, lenience=settings.lenience)

    def speedup(self) -> Speedup | None:
        """The measured speed-up of the running answer; None if it is not known yet."""
        return None if self._auto is None else self._auto.speedup()

    def cut(self, done: Round, kept: int) -> None:
        """Leave out of the speed-up what a round wrote after its first `kept` tokens."""
        if self._auto is not None:
            self._auto.neighbours.cut(done, kept)

    # Called by the engine. The policy is looked up before every round, since it may be switched.

    def begin(self, *, follow_clock: bool) -> None:
        """Prepare for a new generation."""
        if self._auto is not None:  # even if it is not in force: it may be later, and learns costs
            self._auto.begin(follow_clock=follow_clock)
        self._policy = self._chosen()

    def forget(self) -> None:
        """Forget the last decision, which belongs to another conversation."""
        if self._auto is not None:
            self._auto.forget()

    def aside(self) -> AbstractContextManager[None]:
        """Restore the policy's decisions and figures after the answers written inside."""
        return nullcontext() if self._auto is None else self._auto.aside()

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """Which of `drafters` the current policy may ask; empty while drafting is off."""
        self._policy = self._chosen()
        return self._policy.asks(drafters)

    def plan(self, situation: Situation) -> Plan:
        """The current policy's plan for the next round."""
        self._policy = self._chosen()
        return self._policy.plan(situation)

    def observe(self, done: Round) -> None:
        """Learn from a round; ``auto`` learns costs even while a fixed length is in force."""
        self._policy.observe(done)
        if self._auto is not None and self._policy is not self._auto:
            self._auto.follow(done)

    def _chosen(self) -> AutoGamma | FixedGamma:
        if self.on and self._settings.gamma == "auto" and self._auto:
            return self._auto
        return FixedGamma(self._settings.draft_length if self.on else 0)
