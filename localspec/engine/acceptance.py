"""How one generation draws: from the settings to a sampler, a rule, its noise, the draft's pick."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from localspec.engine.draft import BestPick, Pick, SampledPick, argmax_pick
from localspec.engine.grammar import Constraint
from localspec.engine.noise import CounterNoise, Noise, StreamNoise
from localspec.engine.replay import Recorder
from localspec.engine.sampling import Sampler, SamplingParams
from localspec.engine.verify import Rule, rule_named
from localspec.errors import SamplingError


class Accept(StrEnum):
    """The acceptance rules by name; all of them are lossless."""

    MATCH = "match"
    COUPLED = "coupled"
    TOKEN = "token"  # noqa: S105 - a rule, not a password
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Drawing:
    """One generation's sampler chain, its rule, its randomness, and how the draft picks."""

    sampler: Sampler
    rule: Rule
    noise: Noise
    pick: Pick


def default_accept(sampling: SamplingParams, *, seeded: bool) -> Accept:
    """The rule where none is chosen.

    With a seed that the user gave the coupled rule, so that the same seed gives the same text with
    speculation on or off. Otherwise the rule that was measured to be faster (docs/verification.md).
    """
    if sampling.greedy:
        return Accept.MATCH
    return Accept.COUPLED if seeded else Accept.BLOCK


def drawing(
    accept: Accept,
    sampling: SamplingParams,
    *,
    constraint: Constraint | None = None,
    lenience: float | None = None,
    recorder: Recorder | None = None,
) -> Drawing:
    """Put together what `accept` needs; with `lenience` a lossy rule takes its place.

    At temperature 0 every rule comes down to a match with the draft's best guess.

    Raises:
        SamplingError: a lenience that is none.
    """
    name = _rule_name(accept, sampling, lenience)
    coupled = accept is Accept.COUPLED and name == "match" and not sampling.greedy
    noise: Noise = CounterNoise(sampling.seed) if coupled else StreamNoise(sampling.seed)
    if recorder is not None:
        noise = recorder.listen(noise, name, lenience)
    sampler = Sampler(_lenient(sampling, lenience), constraint)
    rule = rule_named(name, lenience)
    if name in ("match", "lossy greedy") and not coupled:
        return Drawing(sampler, rule, noise, _best(sampler))
    return Drawing(sampler, rule, noise, SampledPick(sampler, noise))


def _rule_name(accept: Accept, sampling: SamplingParams, lenience: float | None) -> str:
    if lenience is not None:
        if not 0 < lenience <= 1:
            raise SamplingError(
                f"lossy cannot be {lenience}", "Give a lenience above 0, up to 1 (not lossy)."
            )
        return "lossy greedy" if sampling.greedy else "lossy"
    lossless = Accept.MATCH if sampling.greedy or accept is Accept.COUPLED else accept
    return lossless.value


def _lenient(sampling: SamplingParams, lenience: float | None) -> SamplingParams:
    """At temperature 0 lenience keeps every token with that share of the best probability."""
    if lenience is None or not sampling.greedy:
        return sampling
    return replace(sampling, temperature=1.0, top_k=0, top_p=1.0, typical_p=1.0, min_p=lenience)


def _best(sampler: Sampler) -> Pick:
    """The draft's best guess: a plain argmax where nothing else bears on it."""
    params = sampler.params
    if sampler.constraint(()) is None and not (params.penalised or params.logit_bias):
        return argmax_pick
    return BestPick(sampler.following(replace(params, temperature=0.0, typical_p=1.0)))
