"""What is kept of a generation and its rounds, so that any round can be decoded again."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from localspec.engine.record.stats import Round
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.verify import Verdict


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What is kept of a round.

    Attributes:
        position: length of the sequence before the round.
        own: leading drafted tokens that the drafter proposed; lookup added the rest.
        drawn: how many numbers the target had drawn before the round.
        begun: as in `Proposal`.
    """

    position: int
    drafted: tuple[int, ...]
    own: int
    verdict: Verdict
    drawn: int
    figures: Round
    begun: int = 0


@dataclass(slots=True)
class GenerationRecord:
    """A generation so far.

    Attributes:
        settings: how it runs, with the seed in force.
        tokens: the prompt and all emitted tokens; grows.
        begun: length of the prompt.
    """

    settings: GenerateSettings
    tokens: list[int]
    begun: int
    rounds: list[RoundRecord] = field(default_factory=list)

    @property
    def written(self) -> int:
        """How many tokens have been emitted."""
        return len(self.tokens) - self.begun

    def drafted(self, numbers: Iterable[int]) -> int:
        """The first of these rounds, counted from 1, that has a draft; 0 if none has."""
        return next((number for number in numbers if self.rounds[number - 1].drafted), 0)

    def latest(self) -> int:
        """The number of the last round with a draft, or else of the last round."""
        return self.drafted(range(len(self.rounds), 0, -1)) or len(self.rounds)

    def baseline_s(self) -> float:
        """Median seconds of the rounds without a draft; 0 if all had one."""
        # A drafter may have been asked and proposed nothing; its time does not count.
        baseline = [one.figures.undrafted_s for one in self.rounds if not one.drafted]
        return statistics.median(baseline[1:] or baseline or [0.0])  # the first one warms up
