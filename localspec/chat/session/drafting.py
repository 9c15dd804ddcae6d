"""Whether drafts are made, what decides their length, and what that brings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from localspec.chat.settings import ChatSettings
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.record.stats import GammaNote, GammaReason, Round, Speedup


class Drafting:
    """The settings in force and what they mean for drafts: a policy that can be switched.

    Any thread may ask and switch.

    Args:
        settings: to begin with.
        auto: what gamma ``auto`` means; None for a fixed length.
        able: whether anything can be drafted.
    """

    def __init__(self, settings: ChatSettings, auto: AutoGamma | None, *, able: bool) -> None:
        self._settings = settings
        self._auto = auto
        self.able = able
        self._on = able and settings.draft_length > 0
        self._policy: GammaPolicy = FixedGamma(0)

    @property
    def settings(self) -> ChatSettings:
        """The settings. Others with another gamma switch drafting off (0) or on."""
        return self._settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        if settings.gamma != self._settings.gamma:
            self._on = self.able and settings.draft_length > 0
        self._settings = settings

    @property
    def on(self) -> bool:
        """Whether drafts are made. Switched on over a gamma of 0, they are as ``auto`` would."""
        return self._on

    @on.setter
    def on(self, on: bool) -> None:
        if on and self._settings.draft_length == 0:
            self._settings = replace(self._settings, gamma="auto")
        self._on = on and self.able

    def gamma(self) -> int:
        """The draft length now: a decision of `auto` counts as it came out lately."""
        chosen = self._chosen()
        return chosen.length if isinstance(chosen, AutoGamma) else chosen.gamma

    def note(self, kind: str) -> GammaNote:
        """Where gamma comes from, in a text of `kind`."""
        if not self._on:
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
        """Of the answer that is being written, as measured; None while nobody knows."""
        return None if self._auto is None else self._auto.speedup()

    # What the engine asks and tells: the policy in force, looked up anew before every round

    def begin(self, *, follow_clock: bool) -> None:
        """A generation starts."""
        if self._auto is not None:  # which may be switched to, and follows the costs in any case
            self._auto.begin(follow_clock=follow_clock)
        self._policy = self._chosen()

    def forget(self) -> None:
        """Another conversation is open: what was decided in the one before is not told of it."""
        if self._auto is not None:
            self._auto.forget()

    def aside(self) -> AbstractContextManager[None]:
        """Answers within leave what is decided, and told of it, what it was."""
        return nullcontext() if self._auto is None else self._auto.aside()

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """Whom the policy of this moment may ask; nobody while drafting is off."""
        self._policy = self._chosen()
        return self._policy.asks(drafters)

    def plan(self, situation: Situation) -> Plan:
        """The plan of the policy of this moment."""
        self._policy = self._chosen()
        return self._policy.plan(situation)

    def observe(self, done: Round) -> None:
        """Learn from a round: costs also from one that a fixed length has planned."""
        self._policy.observe(done)
        if self._auto is not None and self._policy is not self._auto:
            self._auto.follow(done)

    def _chosen(self) -> AutoGamma | FixedGamma:
        if self._on and self._settings.gamma == "auto" and self._auto:
            return self._auto
        return FixedGamma(self._settings.draft_length if self._on else 0)
