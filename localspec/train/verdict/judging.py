"""Judges a head through the engine: acceptance by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.record.stats import Round
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.train.texts.answers import loop

GAMMA: Final = 4
TOKENS: Final = 64  # per answer
REPEATS: Final = 3  # answers per prompt above temperature 0


@dataclass(slots=True)
class AcceptedDrafts:
    """The acceptance of drafts of `GAMMA` tokens.

    Attributes:
        firsts: by position, the number of drafts accepted up to there.
        common: how often the most common token would have been right at the first position.
    """

    drafts: int = 0
    firsts: list[int] = field(default_factory=lambda: [0] * GAMMA)
    drafted: int = 0
    common: int = 0

    def add(self, done: Round, common: int) -> None:
        """Count a round; a round without a draft is ignored."""
        if not done.drafted:
            return
        self.drafts += 1
        self.drafted += done.drafted
        self.common += bool(done.tokens) and done.tokens[0] == common
        for place in range(min(done.accepted, GAMMA)):
            self.firsts[place] += 1

    @property
    def first(self) -> float:
        """The share of accepted first tokens."""
        return self.firsts[0] / max(1, self.drafts)

    @property
    def all(self) -> float:
        """The share of accepted tokens."""
        return sum(self.firsts) / max(1, self.drafted)

    @property
    def positions(self) -> tuple[float, ...]:
        """The share of drafts accepted up to each position."""
        return tuple(each / max(1, self.drafts) for each in self.firsts)

    @property
    def control(self) -> float:
        """The share of accepted first tokens if they were always the most common token."""
        return self.common / max(1, self.drafts)


def judge(
    session: Session,
    prompts: Iterable[Sequence[int]],
    *,
    temperature: float,
    common: int,
    cancel: Cancel,
    tokens: int = TOKENS,
    said: Counter[int] | None = None,
) -> AcceptedDrafts:
    """Let a loaded pair answer with drafts of a fixed length, and count what is accepted.

    An answer counts until it begins to repeat itself. Above temperature 0 each prompt is answered
    several times, with the seeds 0, 1, ..., under the token rule.

    Args:
        session: a target with one head.
        prompts: their ids.
        temperature: of the answers.
        common: the id that the control always guesses.
        cancel: stops it.
        tokens: the most tokens of an answer.
        said: counts the ids of the answers.

    Raises:
        Cancelled: `cancel` was set.
        LocalspecError: as `Engine.generate`.
    """
    found = AcceptedDrafts()
    for prompt in prompts:
        for seed in range(REPEATS if temperature > 0 else 1):
            settings = GenerateSettings(
                sampling=SamplingParams(temperature=temperature, seed=seed),
                accept=Accept.TOKEN,
                n_predict=tokens,
            )
            rounds = _answered(session, prompt, settings, cancel)
            written = [token for done in rounds for token in done.tokens]
            if said is not None:
                said.update(written)
            whole, so_far = len(written) - loop(written), 0
            for done in rounds:
                so_far += len(done.tokens)
                if so_far > whole:
                    break
                found.add(done, common)
    return found


def _answered(
    session: Session, prompt: Sequence[int], settings: GenerateSettings, cancel: Cancel
) -> list[Round]:
    """All rounds of an answer that starts with empty caches."""
    for context in session.pair.contexts:
        context.clear()
    policy = FixedGamma(GAMMA)
    for _ in session.engine.prefill(prompt, cancel, policy, follow_clock=False):
        pass
    return list(session.engine.generate(prompt, settings, policy, cancel))
