"""Finds where two answers to one prompt part, and measures how near a tie the target was there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.record.parting import Parting
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.acceptance import Verification, verification
from localspec.engine.round.generate import Engine
from localspec.engine.round.noise import CounterNoise
from localspec.engine.round.sampling import Logits

_END = -1  # stands for every token that ends an answer


def find_parting(
    engine: Engine, one: GenerationRecord, other: GenerationRecord, cancel: Cancel
) -> Parting | None:
    """The place where two answers to one prompt part; None if they do not.

    The target decodes the last common token again, on its own as without drafting, and its logits
    tell how near a tie both tokens were. The caches are left at that place.

    Args:
        engine: the engine that wrote both, or another one of the same target.
        one: the record of one answer.
        other: that of the other.
        cancel: stops it.

    Raises:
        Cancelled: `cancel` was set.
    """
    at = common_prefix(one.tokens, other.tokens)
    first, second = _next(one, at), _next(other, at)
    if at < one.begun or first is None or second is None or first == second:
        return None
    scores = _scores(engine, one, at, cancel)
    margin = None
    if first in scores and second in scores:
        margin = max(scores.values()) - min(scores[first], scores[second])
    return Parting(at - one.begun, margin)


def _next(record: GenerationRecord, at: int) -> int | None:
    """The token at `at`; None if the answer was cut off before it."""
    if at < len(record.tokens):
        return record.tokens[at]
    ended = record.rounds and record.rounds[-1].figures.finish is FinishReason.STOP
    return _END if ended else None


def _scores(engine: Engine, record: GenerationRecord, at: int, cancel: Cancel) -> dict[int, float]:
    """By token its score, in logits: the rule takes the largest. Empty for rules without scores."""
    how = verification(record.settings)
    if how.name != "match" or not (how.greedy or how.coupled):
        return {}
    text = record.tokens[:at]
    how.sampler.accept(text[record.begun :])
    engine.read_again(record, at, cancel)
    scores = _scored(how, engine.target.decode(text[-1:], 1)[0], text)
    is_end = engine.target.model.is_end
    ends = [score for token, score in scores.items() if is_end(token)]
    return {**scores, **({_END: max(ends)} if ends else {})}


def _scored(how: Verification, logits: Logits, text: list[int]) -> dict[int, float]:
    """The scores of the tokens that the sampler chain leaves, up to a common summand.

    At temperature 0 these are the logits. Above it, the coupled rule takes the largest
    ``log p + G`` (2408.07978), which the temperature turns back into logits.
    """
    sampler, temperature = how.sampler, how.sampler.params.temperature
    if how.greedy:  # its own row has the best token alone
        temperature = 1.0
        every = replace(sampler.params, temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
        sampler = sampler.following(every)
    row = sampler.along(logits, text, ())
    scores = np.log(row.probs)
    if isinstance(how.noise, CounterNoise):
        scores -= np.log(how.noise.exponentials(row.ids, len(text)))
    return dict(zip(row.ids.tolist(), (temperature * scores).tolist(), strict=True))
