"""One answer under one setting, and what can be summed over many. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from localspec.engine.stats import Round

LEAST_TOKENS = 8
"""Answers shorter than this are too short to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed answer.

    Attributes:
        prompt, kind: which question.
        arm: under which setting.
        repeat: counted from 0.
        prompt_tokens: length of the prompt.
        rounds: every round, in order.
        time_to_first_token_s: from the start of the prefill to the first token.
        tokens_per_second: tokens after the first over the time after it; None where there is one
            token or none.
        prompt_s: from the question to the end of its reading, templating included.
        around_s: Python's work before the first round and after the last.
        wall_s: from the question to the end of the answer, by a clock of its own.
    """

    prompt: str
    kind: str
    arm: str
    repeat: int
    prompt_tokens: int
    rounds: tuple[Round, ...]
    time_to_first_token_s: float | None
    tokens_per_second: float | None
    prompt_s: float
    around_s: float
    wall_s: float

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the answer."""
        return tuple(token for done in self.rounds for token in done.tokens)

    @property
    def generated(self) -> int:
        """Tokens of the answer."""
        return sum(done.emitted for done in self.rounds)

    @property
    def drafted(self) -> int:
        """Tokens that the draft proposed."""
        return sum(done.drafted for done in self.rounds)

    @property
    def accepted(self) -> int:
        """Tokens of those that verification accepted."""
        return sum(done.accepted for done in self.rounds)

    @property
    def draft_s(self) -> float:
        """Time in the draft."""
        return sum(done.draft_s for done in self.rounds if done.draft_passes)

    @property
    def verify_s(self) -> float:
        """Time in the target's decodes, the prompt's left out."""
        return sum(done.verify_s for done in self.rounds)

    @property
    def python_s(self) -> float:
        """Time in neither: sampling, the rule, text, and what happens between two rounds."""
        whole = sum(done.total_s + done.between_s for done in self.rounds)
        return whole - self.draft_s - self.verify_s + self.around_s

    @property
    def parts_s(self) -> float:
        """The sum of the parts; `wall_s` but for the clock's own doings."""
        return self.prompt_s + self.draft_s + self.verify_s + self.python_s

    @property
    def timed(self) -> bool:
        """Whether there is enough of it to give a speed."""
        return self.tokens_per_second is not None and self.generated >= LEAST_TOKENS


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of the time goes where; they add up to 1. The prompt is left out."""

    draft: float
    verify: float
    python: float


def shares(runs: Iterable[Run]) -> Shares | None:
    """The shares over all of these runs together; None where there is no time."""
    chosen = list(runs)
    draft = sum(run.draft_s for run in chosen)
    verify = sum(run.verify_s for run in chosen)
    python = sum(run.python_s for run in chosen)
    whole = draft + verify + python
    return Shares(draft / whole, verify / whole, python / whole) if whole > 0 else None


def ratio(above: float, below: float) -> float | None:
    """A quotient, None where there is nothing to divide by."""
    return above / below if below else None


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
