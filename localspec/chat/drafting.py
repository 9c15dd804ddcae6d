"""Whether drafts are made, what decides their length, and what plain decoding would give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.chat.meter import PlainSpeed
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.stats import GammaNote, GammaReason

if TYPE_CHECKING:
    from localspec.chat.settings import ChatSettings
    from localspec.engine.stats import Round


class Drafting:
    """The settings in force and what they mean for drafts. Any thread may ask and switch.

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
        self._plain = PlainSpeed()

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

    def policy(self) -> GammaPolicy:
        """What decides in the next round."""
        if not self._on:
            return FixedGamma(0)
        if self._settings.gamma == "auto" and self._auto:
            return self._auto
        return FixedGamma(self._settings.draft_length)

    def gamma(self) -> int:
        """The draft length now: a decision of `auto` counts as it came out lately."""
        if not self._on:
            return 0
        if self._settings.gamma == "auto" and self._auto:
            return self._auto.length
        return self._settings.draft_length

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

    def add(self, done: Round) -> None:
        """Learn the plain speed: from rounds without a draft, and from the others' costs."""
        self._plain.add(done)
        if self._auto is not None and not isinstance(self.policy(), AutoGamma):
            self._auto.follow(done)  # else the table shows a machine as it was when measured

    def plain_seconds(self, done: Round) -> float | None:
        """What the tokens of `done` would have taken without a draft, None while nobody knows.

        At the speed that the machine had in that round: a turn's sum can be set against the
        turn's time, where the speed at its end alone would tell of a busy moment.
        """
        if done.drafted == 0:
            return done.undrafted_s + done.between_s
        speed = self.plain_speed(done.context)
        return None if speed is None else done.emitted / speed

    def plain_speed(self, context: int) -> float | None:
        """Tokens per second without a draft now, from the measured costs or from plain rounds."""
        if isinstance(self._auto, AutoGamma):
            return 1 / self._auto.costs.target.at(context).seconds(1)
        return self._plain.tokens_per_second
