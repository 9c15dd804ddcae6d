"""Proposers: what a draft's logits offer as the next token, under each acceptance rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from localspec.engine.round.noise import Noise
from localspec.engine.round.sampling import Dist, Logits, Sampler, check_largest


class View(Protocol):
    """What the draft's pass shows of the next token, before any is picked."""

    @property
    def must_verify(self) -> bool:
        """Whether what is picked here must be submitted, whatever it turns out to be.

        Where the rule weighs a token's own q, leaving the token out for what it is would bias the
        output. All that came before it must then be submitted, too.
        """

    def confidence(self) -> float:
        """The probability of the draft's best guess: 0 to 1."""

    def pick(self) -> tuple[int, Dist | None]:
        """A token, and the q that it was drawn from, or None for one that was not drawn."""

    def chance(self, p: Dist) -> float:
        """The probability that the rule accepts what is picked here, with `p` the target's."""


def likeliest(view: View) -> int:
    """The token that is most likely picked. No stream moves: a drawn one is left undrawn."""
    if isinstance(view, SampledView) and view.must_verify:
        return int(view.q.ids[0])
    return view.pick()[0]  # the best guess, or the draw that belongs to the position


Proposer: TypeAlias = Callable[[Logits, Sequence[int], Sequence[int]], View]
"""(logits of shape (n_vocab,), tokens so far, drafted so far) -> the view of the next token."""


@dataclass(frozen=True, slots=True)
class ArgmaxView:
    """Propose the most probable token: the best guess where the rule asks for a match.

    Attributes:
        token: the best guess.
        logits: the draft's, of shape (n_vocab,).
        maxima: those of `_column_maxima`, if they were wanted for the guess already.
    """

    must_verify: ClassVar[bool] = False
    token: int
    logits: Logits
    maxima: Logits | None = None

    def confidence(self) -> float:
        """An estimate from above of the softmax at its largest value.

        The sum runs over the maxima of many short columns in place of all logits: the few tokens
        that carry the mass are rarely in one column, and nothing passes over the vocabulary more
        than once. What it gets wrong the calibration takes out again.
        """
        maxima = _column_maxima(self.logits) if self.maxima is None else self.maxima
        return 1.0 / max(1.0, float(np.add.reduce(np.exp(maxima - self.logits[self.token]))))

    def pick(self) -> tuple[int, None]:
        """The most probable token."""
        return self.token, None

    def chance(self, p: Dist) -> float:
        """The target's probability of that very token."""
        return p.prob(self.token)


def _column_maxima(logits: Logits) -> Logits:
    """The largest of every column of logits (n,) that are laid out in 64 rows and perhaps a bit."""
    rows = max(1, min(64, len(logits) // 64))
    width = len(logits) // rows
    maxima: Logits = np.maximum.reduce(logits[: rows * width].reshape(rows, width))
    rest = logits[rows * width :]
    if rest.size:
        np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def argmax_proposer(logits: Logits, _tokens: Sequence[int], _drafted: Sequence[int]) -> ArgmaxView:
    """See the most probable token; it is found in the pass that tells how sure the draft is.

    Raises:
        SamplingError: the logits are no distribution.
    """
    maxima = _column_maxima(logits)
    column, width = int(maxima.argmax()), len(maxima)
    check_largest(float(maxima[column]))
    row = int(logits[column::width].argmax())
    return ArgmaxView(row * width + column, logits, maxima)


@dataclass(frozen=True, slots=True)
class BestProposer:
    """See the most probable token after logit bias and penalties, within the grammar.

    Attributes:
        best: a greedy chain, with the target's constraint.
    """

    best: Sampler

    def __call__(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> ArgmaxView:
        """See what may follow `tokens` and `drafted`."""
        return ArgmaxView(int(self.best.along(logits, tokens, drafted).ids[0]), logits)


@dataclass(frozen=True, slots=True)
class KeptView:
    """A best guess where the rule accepts whatever the target's row keeps.

    Attributes:
        guess: the same where the rule asks for a match.
    """

    must_verify: ClassVar[bool] = False
    guess: View

    def confidence(self) -> float:
        """How sure the draft is of its guess: 0 to 1."""
        return self.guess.confidence()

    def pick(self) -> tuple[int, Dist | None]:
        """The guess."""
        return self.guess.pick()

    def chance(self, p: Dist) -> float:
        """Nothing is left to chance: the row has the guess or it has not."""
        return float(p.prob(self.guess.pick()[0]) > 0)


Agreement: TypeAlias = Callable[[Dist, Dist], float]
"""(p, q) -> the probability that a token drawn from q is accepted."""


@dataclass(frozen=True, slots=True)
class SampledView:
    """Draw the proposal from the draft's own distribution, and hand that distribution over."""

    must_verify: bool
    q: Dist
    noise: Noise
    position: int
    agreement: Agreement

    def confidence(self) -> float:
        """The largest probability in q."""
        return float(self.q.probs[0])

    def pick(self) -> tuple[int, Dist]:
        """A token drawn from q."""
        return self.noise.pick(self.q, self.position), self.q

    def chance(self, p: Dist) -> float:
        """What the rule makes of p and q."""
        return self.agreement(p, self.q)


@dataclass(frozen=True, slots=True)
class SamplingProposer:
    """See the draft's distribution after the sampler chain.

    What breaks a grammar is masked before the draw: to cut a sampled draft for it afterwards would
    change the distribution of what is emitted.

    Attributes:
        sampler: the generation's sampler chain, with its constraint.
        noise: the drafts' randomness. Under the coupled rule the same object that verification
            draws from, which is what makes draft and target tend to say the same.
        agreement: how likely the rule is to accept.
        must_verify: whether the rule weighs q, so that what was drawn must be submitted.
    """

    sampler: Sampler
    noise: Noise
    agreement: Agreement
    must_verify: bool

    def __call__(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]
    ) -> SampledView:
        """See what may follow `tokens` and `drafted`."""
        q = self.sampler.along(logits, tokens, drafted)
        position = len(tokens) + len(drafted)
        return SampledView(self.must_verify, q, self.noise, position, self.agreement)
