"""How one generation draws: from the settings to a rule, its noise, and the draft's pick."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from localspec.engine.draft import Pick, SampledPick, argmax_pick
from localspec.engine.noise import CounterNoise, Noise, StreamNoise
from localspec.engine.sampling import Sampler, SamplingParams
from localspec.engine.verify import Rule, block_rule, match_rule, token_rule


class Accept(StrEnum):
    """The acceptance rules by name; all of them are lossless."""

    MATCH = "match"
    COUPLED = "coupled"
    TOKEN = "token"  # noqa: S105 - a rule, not a password
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Drawing:
    """One generation's rule, its randomness, and how the draft picks."""

    rule: Rule
    noise: Noise
    pick: Pick


def drawing(accept: Accept, sampling: SamplingParams, draft_sampler: Sampler) -> Drawing:
    """Put together what `accept` needs.

    At temperature 0 every rule comes down to a match with the draft's best guess.
    """
    if sampling.greedy or accept is Accept.MATCH:
        return Drawing(match_rule, StreamNoise(sampling.seed), argmax_pick)
    if accept is Accept.COUPLED:
        noise = CounterNoise(sampling.seed)
        return Drawing(match_rule, noise, SampledPick(draft_sampler, noise))
    stream = StreamNoise(sampling.seed)
    rule = token_rule if accept is Accept.TOKEN else block_rule
    return Drawing(rule, stream, SampledPick(draft_sampler, stream))
