"""Proposers: which token a draft's logits propose next, under each acceptance rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from localspec.engine.round.noise import Noise
from localspec.engine.round.sampling import Dist, Logits, Sampler, check_largest


class View(Protocol):
    """What a pass of the draft shows of the next token, before one is picked."""

    @property
    def must_verify(self) -> bool:
        """Whether the picked token must be submitted, whichever it is.

        If the rule uses q, dropping a token because of its value would bias the output. Such a
        token must be submitted, with all tokens before it.
        """

    def confidence(self) -> float:
        """The probability of the draft's best guess: 0 to 1."""

    def pick(self) -> tuple[int, Dist | None]:
        """A token, and the q that it was drawn from; None if it was not drawn."""

    def chance(self, p: Dist) -> float:
        """The probability that the rule accepts the picked token; `p` is the target's row."""


def likeliest(view: View) -> int:
    """The token that is most likely picked. No random number is drawn for it."""
    if isinstance(view, SampledView) and view.must_verify:
        return int(view.q.ids[0])
    return view.pick()[0]  # the best guess, or the draw that belongs to the position


Proposer: TypeAlias = Callable[[Logits, Sequence[int], Sequence[int]], View]
"""(logits of shape (n_vocab,), tokens so far, drafted so far) -> the view of the next token."""


Accepts: TypeAlias = Callable[[Dist, int], float]
"""(p, token) -> the probability that the rule accepts a token that was not drawn."""


@dataclass(frozen=True, slots=True)
class GuessView:
    """A guessed token: it has no q, and is accepted if the target picks it too."""

    must_verify: ClassVar[bool] = False
    token: int

    def pick(self) -> tuple[int, None]:
        """The guessed token."""
        return self.token, None

    def chance(self, p: Dist) -> float:
        """The target's probability of that very token."""
        return p.prob(self.token)


@dataclass(frozen=True, slots=True)
class ArgmaxView(GuessView):
    """Propose the most probable token: the best guess, for a rule that does not weigh q.

    Attributes:
        logits: the draft's, of shape (n_vocab,).
        maxima: the `_column_maxima` of the logits, if they are already known.
        accepts: the chance that the rule accepts such a token.
    """

    logits: Logits
    maxima: Logits | None = None
    accepts: Accepts = Dist.prob

    def confidence(self) -> float:
        """An estimate of the largest softmax value, never too low.

        It sums over the maxima of many short columns in place of all logits, so that the vocabulary
        is read only once. The few tokens that carry the mass are rarely in one column; the
        calibration corrects the error.
        """
        maxima = _column_maxima(self.logits) if self.maxima is None else self.maxima
        return 1.0 / max(1.0, float(np.add.reduce(np.exp(maxima - self.logits[self.token]))))

    def chance(self, p: Dist) -> float:
        """The probability that the rule accepts the token."""
        return self.accepts(p, self.token)


def _column_maxima(logits: Logits) -> Logits:
    """The column maxima of logits (n,), laid out in at most 64 full rows and a shorter one."""
    rows = max(1, min(64, len(logits) // 64))
    width = len(logits) // rows
    maxima: Logits = np.maximum.reduce(logits[: rows * width].reshape(rows, width))
    rest = logits[rows * width :]
    if rest.size:
        np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def argmax_proposer(logits: Logits, _tokens: Sequence[int], _drafted: Sequence[int]) -> ArgmaxView:
    """Propose the most probable token; one pass over the logits finds it and its confidence.

    Raises:
        EngineError, SamplingError: as `check_largest`.
    """
    maxima = _column_maxima(logits)
    column, width = int(maxima.argmax()), len(maxima)
    check_largest(float(maxima[column]))
    row = int(logits[column::width].argmax())
    return ArgmaxView(row * width + column, logits, maxima)


@dataclass(frozen=True, slots=True)
class BestProposer:
    """Propose the most probable token after logit bias and penalties, within the grammar.

    Attributes:
        best: a greedy sampler chain with the target's constraint.
    """

    best: Sampler

    def __call__(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> ArgmaxView:
        """See what may follow `tokens` and `drafted`."""
        return ArgmaxView(int(self.best.along(logits, tokens, drafted).ids[0]), logits)


def banned_ends(proposer: Proposer, ends: frozenset[int]) -> frozenset[int] | None:
    """Those of `ends` that it never proposes, if it always proposes the most probable other token.

    None if it may also propose a less probable one.
    """
    if proposer is argmax_proposer:
        return frozenset()
    found = proposer.best.banned if isinstance(proposer, BestProposer) else None
    return found if found is not None and found <= ends else None


Agreement: TypeAlias = Callable[[Dist, Dist], float]
"""(p, q) -> the probability that a token drawn from q is accepted."""


@dataclass(frozen=True, slots=True)
class SampledView:
    """Propose a token drawn from the draft's own distribution, which is part of the proposal."""

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
        """The rule's agreement of p and q."""
        return self.agreement(p, self.q)


@dataclass(frozen=True, slots=True)
class SamplingProposer:
    """Propose tokens drawn from the draft's distribution after the sampler chain.

    Tokens that the grammar forbids are masked before the draw: to cut a sampled draft afterwards
    would change the distribution of what is emitted.

    Attributes:
        sampler: the generation's sampler chain, with its constraint.
        noise: the drafts' randomness. Under the coupled rule the same object that verification
            draws from, so that draft and target tend to draw the same tokens.
        agreement: how likely the rule is to accept.
        must_verify: whether the rule weighs q, so that a drawn token must be submitted.
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
