"""The acceptance rules: which of the drafted tokens stay, and which token follows them.

Every rule takes the draft, the target's distributions along it and the noise. All but the two with
lenience are lossless: what they emit has the target's distribution, whatever the draft was. A round
emits the *accepted* drafted tokens and one more: *recovered* after a rejection, *bonus* after a
draft that was accepted whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.round.noise import Noise
from localspec.engine.round.sampling import Dist
from localspec.errors import EngineError


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes.

    Args:
        tokens: the drafted ids.
        q: the distributions that they were really drawn from, one each; None for a proposal
            without probabilities.
        must_verify: how many leading tokens must be submitted, or the output's distribution would
            change. If the rule weighs q, these are all up to the last one that was drawn from its
            q; tokens after them may be left out.

    Raises:
        EngineError: the numbers do not fit together.
    """

    tokens: tuple[int, ...]
    q: tuple[Dist, ...] | None = None
    must_verify: int = 0

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if self.q is not None and len(self.q) != n:
            raise EngineError(f"{n} drafted tokens came with {len(self.q)} rows of q")
        if not 0 <= self.must_verify <= n:
            raise EngineError(
                f"{self.must_verify} of {n} drafted tokens cannot have to be verified"
            )

    def cut(self, length: int) -> Draft:
        """The first `length` tokens, or more where more must be verified."""
        kept = max(length, self.must_verify)
        return Draft(self.tokens[:kept], self.q and self.q[:kept], self.must_verify)

    def followed_by(self, copied: tuple[int, ...]) -> Draft:
        """This and then `copied` tokens, which were not drawn: each stands for a point mass."""
        if not self.tokens:
            return Draft(copied)
        points = tuple(Dist.point(token) for token in copied)
        return Draft((*self.tokens, *copied), self.q and (*self.q, *points), self.must_verify)


EMPTY = Draft(())
"""Nothing is proposed: the round decodes without drafting."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round emits: ``draft.tokens[:accepted] + (token,)``.

    Args:
        accepted: how many drafted tokens stay.
        token: recovered, or bonus when all were accepted.
    """

    accepted: int
    token: int


Rule = Callable[[Draft, Sequence[Dist], Noise, int], Verdict]
"""(draft, target rows p (gamma + 1), noise, absolute position of the first row) -> verdict."""


def match_rule(draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:
    """Draw from the target at every position; go on while the draft says the same.

    Lossless for any proposal, however it came about. With `CounterNoise` shared by the drafter this
    is the coupled rule (2408.07978): what is emitted depends on `p` and the seed alone.
    """
    for i, drafted in enumerate(draft.tokens):
        token = noise.pick(p[i], position + i)
        if token != drafted:
            return Verdict(i, token)
    n = len(draft.tokens)
    return Verdict(n, noise.pick(p[n], position + n))


def token_rule(draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:
    """Speculative sampling (2211.17192, 2302.01318): accept x with probability min(1, p(x)/q(x)).

    A draft without probabilities is a point mass, for which the match rule is the same.
    """
    if draft.q is None:
        return match_rule(draft, p, noise, position)
    return _weighed(draft.tokens, draft.q, p, noise, position, lenience=1.0)


def block_rule(draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:
    """Block Verification (2403.10444): accept the longest prefix of which any test succeeds.

    A draft without probabilities is a point mass, for which the match rule is the same.
    """
    if draft.q is None:
        return match_rule(draft, p, noise, position)
    weights = _block_weights(draft.tokens, draft.q, p)
    i = len(weights) - 1
    while i > 0 and not noise.chance(_block_chance(i, weights[i], draft.q, p)):
        i -= 1
    last = p[i] if i == len(draft.q) else _residual(p[i], draft.q[i], weights[i])
    return Verdict(i, noise.pick(last, position + i))


@dataclass(frozen=True, slots=True)
class LossyRule:
    """The token rule with lenience (2211.17192, appendix A.5). NOT lossless: for speed alone.

    Accept x with probability min(1, p(x) / (l q(x))), else draw from norm(max(0, p - l q)). No
    token becomes more than 1/l times as probable as the target makes it.

    Args:
        lenience: l, above 0; at 1 this is the token rule.
    """

    lenience: float

    def __call__(self, draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:
        """A verdict as of every `Rule`. A draft without probabilities is a point mass."""
        q = draft.q or tuple(Dist.point(token) for token in draft.tokens)
        return _weighed(draft.tokens, q, p, noise, position, lenience=self.lenience)


def lossy_greedy_rule(draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:  # noqa: ARG001 - a `Rule`
    """Lenience at temperature 0 (2211.17192, appendix A.5). NOT lossless: for speed alone.

    The rows hold the tokens that have at least the lenience's share of the best one's probability:
    any of them is accepted, and the best one is emitted otherwise.
    """
    for i, drafted in enumerate(draft.tokens):
        if p[i].prob(drafted) == 0:
            return Verdict(i, int(p[i].ids[0]))
    n = len(draft.tokens)
    return Verdict(n, int(p[n].ids[0]))


def rule_named(name: str, lenience: float | None = None) -> Rule:
    """The rule that a trace names."""
    if name == "lossy" and lenience is not None:
        return LossyRule(lenience)
    return _RULES[name]


def _weighed(
    tokens: Sequence[int],
    q: Sequence[Dist],
    p: Sequence[Dist],
    noise: Noise,
    position: int,
    *,
    lenience: float,
) -> Verdict:
    """Weigh p against q, token by token, where q counts `lenience` of itself."""
    for i, (drafted, row) in enumerate(zip(tokens, q, strict=True)):
        if not noise.chance(p[i].prob(drafted) / (lenience * _drawn(row, drafted))):
            return Verdict(i, noise.pick(_residual(p[i], row, 1 / lenience), position + i))
    n = len(tokens)
    return Verdict(n, noise.pick(p[n], position + n))


def _block_weights(tokens: Sequence[int], q: Sequence[Dist], p: Sequence[Dist]) -> list[float]:
    """P_0 = 1, P_i = min(1, P_{i-1} p(x_i) / q(x_i)), up to the first 0 (2403.10444, algorithm 2).

    Once it is 0 no longer prefix can be accepted, so the rows after it are never asked for.
    """
    weights = [1.0]
    for i, token in enumerate(tokens):
        weight = min(1.0, weights[i] * p[i].prob(token) / _drawn(q[i], token))
        if weight == 0:
            break
        weights.append(weight)
    return weights


def _block_chance(i: int, weight: float, q: Sequence[Dist], p: Sequence[Dist]) -> float:
    """h_i: the chance that the test of the first `i` tokens succeeds, given their weight P_i."""
    if i == len(q):
        return weight
    left = float(np.maximum(0.0, weight * p[i].probs - q[i].on(p[i].ids)).sum())
    rest = left + 1.0 - weight
    return left / rest if rest > 0 else 1.0


def _residual(p: Dist, q: Dist, weight: float = 1.0) -> Dist:
    """``norm(max(0, weight * p - q))``; p itself where that is 0 everywhere by rounding."""
    left = np.maximum(0.0, weight * p.probs - q.on(p.ids))
    total = float(left.sum())
    if total <= 0:
        return p
    alive = left > 0
    return Dist(p.ids[alive], left[alive] / total)


def _drawn(q: Dist, token: int) -> float:
    """The probability in `q` of a token that was drawn from it: above 0."""
    probability = q.prob(token)
    if probability <= 0:
        raise EngineError(f"the drafted token {token} has no probability in its own distribution")
    return probability


_RULES: dict[str, Rule] = {
    "match": match_rule,
    "token": token_rule,
    "block": block_rule,
    "lossy greedy": lossy_greedy_rule,
}
