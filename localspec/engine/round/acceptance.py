"""From the settings of a generation to its sampler chain, rule, randomness and proposer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from localspec.engine.drafters.proposer import (
    Accepts,
    Agreement,
    ArgmaxView,
    BestProposer,
    Proposer,
    SamplingProposer,
    argmax_proposer,
)
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.noise import CounterNoise, StreamNoise
from localspec.engine.round.params import Accept, SamplingParams, check_lenience
from localspec.engine.round.sampling import FEW_IDS, Dist, Logits, Sampler
from localspec.engine.round.verify import Rule, rule_named

_Best: TypeAlias = Callable[[Logits, Sequence[int], Sequence[int]], ArgmaxView]


@dataclass(frozen=True, slots=True)
class Verification:
    """One generation's sampler chain, acceptance rule, randomness and proposer of drafts.

    Attributes:
        name, lenience: the rule, as in a trace.
        greedy: whether the target takes its most probable token.
        accepts: the chance that a token is accepted which was copied, and not drawn.
    """

    name: str
    lenience: float | None
    greedy: bool
    sampler: Sampler
    rule: Rule
    noise: StreamNoise
    proposer: Proposer
    accepts: Accepts

    @property
    def coupled(self) -> bool:
        """Whether drafts are drawn with the same random numbers as the target."""
        return isinstance(self.noise, CounterNoise)

    @property
    def invariant(self) -> bool:
        """Whether a seed gives the same text whatever is drafted (2408.07978)."""
        return self.name == "match"


def verification(settings: GenerateSettings) -> Verification:
    """Make everything that the settings' rule needs; with lenience, a lossy rule replaces it.

    At temperature 0 every rule amounts to a match with the draft's best guess.

    Raises:
        SamplingError: as `check_lenience`.
    """
    sampling, lenience = settings.sampling, settings.lenience
    check_lenience(sampling, lenience)
    if sampling.greedy and lenience == 1:  # only the best token is kept, as without lenience
        lenience = None
    name = _rule_name(settings.accept, sampling, lenience)
    coupled = settings.accept is Accept.COUPLED and name == "match" and not sampling.greedy
    noise = CounterNoise(sampling.seed) if coupled else StreamNoise(sampling.seed)
    drafts = noise.for_drafts()
    if settings.trace is not None:
        settings.trace.listen(noise, drafts, name, lenience)
    sampler = Sampler(_lenient(sampling, lenience), settings.constraint)
    accepts = Dist.prob if lenience is None else _keeps if sampling.greedy else _leniently(lenience)
    proposer: Proposer
    if coupled or name not in ("match", "lossy greedy"):
        agreement = coupling if coupled else overlap if lenience is None else lenient(lenience)
        proposer = SamplingProposer(sampler, drafts, agreement, must_verify=not coupled)
    else:
        best = _best(sampler)
        proposer = best if name == "match" else _kept(best)
    rule = rule_named(name, lenience)
    return Verification(name, lenience, sampling.greedy, sampler, rule, noise, proposer, accepts)


def _rule_name(accept: Accept, sampling: SamplingParams, lenience: float | None) -> str:
    if lenience is not None:
        return "lossy greedy" if sampling.greedy else "lossy"
    lossless = Accept.MATCH if sampling.greedy or accept is Accept.COUPLED else accept
    return lossless.value


def _lenient(sampling: SamplingParams, lenience: float | None) -> SamplingParams:
    """At temperature 0, keep every token whose probability is that share of the best one's."""
    if lenience is None or not sampling.greedy:
        return sampling
    return replace(sampling, temperature=1.0, top_k=0, top_p=1.0, typical_p=1.0, min_p=lenience)


def _best(sampler: Sampler) -> _Best:
    """Propose the draft's best guess; a plain argmax unless grammar, bias or penalties matter."""
    params = sampler.params
    if sampler.constraint(()) is None and not (params.penalised or params.logit_bias):
        return argmax_proposer
    return BestProposer(sampler.following(replace(params, temperature=0.0, typical_p=1.0)))


def _kept(best: _Best) -> _Best:
    """The best guess under lenience at temperature 0, where a match is not needed."""

    def proposer(logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> ArgmaxView:
        return replace(best(logits, tokens, drafted), accepts=_keeps)

    return proposer


def _keeps(p: Dist, token: int) -> float:
    return float(p.prob(token) > 0)


def _leniently(lenience: float) -> Accepts:
    def copied(p: Dist, token: int) -> float:
        return min(1.0, p.prob(token) / lenience)

    return copied


def lenient(lenience: float) -> Agreement:
    """The chance that the token rule with lenience accepts: sum(min(p / l, q))."""

    def agreement(p: Dist, q: Dist) -> float:
        return overlap(Dist(p.ids, p.probs / lenience), q)

    return agreement


def overlap(p: Dist, q: Dist) -> float:
    """sum(min(p, q)): the token rule's chance to accept (2211.17192, corollary 3.6)."""
    if max(len(p.ids), len(q.ids)) <= FEW_IDS:
        return sum(min(pair) for pair in _pairs(p, q))
    return float(np.minimum(p.probs, q.on(p.ids)).sum())


def coupling(p: Dist, q: Dist) -> float:
    """The chance that draws from p and q with the same Gumbel variables give the same token.

    It is sum_i 1 / sum_k max(p_k / p_i, q_k / q_i) over the ids i that both have (2408.07978): the
    chance that i wins the race of exponentials on both sides. In the order of q / p, the maximum is
    p's ratio up to i and q's after it, so not every pair of ids has to be compared.
    """
    if max(len(p.ids), len(q.ids)) <= FEW_IDS:
        return _coupling_of_few(_pairs(p, q))
    a, b = p.probs, q.on(p.ids)
    order = np.argsort(b / a)
    a, b = a[order], b[order]
    return float((b / (a.cumsum() * b / a + 1 - b.cumsum())).sum())


def _coupling_of_few(pairs: list[tuple[float, float]]) -> float:
    pairs.sort(key=lambda pair: pair[1] / pair[0])
    before, after, total = 0.0, 1.0, 0.0
    for a, b in pairs:
        before, after = before + a, after - b
        if b:
            total += 1 / (before / a + after / b)
    return total


def _pairs(p: Dist, q: Dist) -> list[tuple[float, float]]:
    """Both probabilities of every id that p has."""
    known = dict(zip(q.ids.tolist(), q.probs.tolist(), strict=True))
    ids, probs = p.ids.tolist(), p.probs.tolist()
    return [(prob, known.get(token, 0.0)) for token, prob in zip(ids, probs, strict=True)]
