"""`GenerateSettings`: how one generation runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.grammars.constraint import Constraint
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.params import Accept, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """How one generation runs.

    Attributes:
        n_predict: the largest number of tokens to generate; -1 for as many as the context holds.
        constraint: what the output must conform to, in its state before the first token.
        lenience: makes the rule lossy; None for lossless.
        repeatable: whether the user gave the seed. Under rules where the draft length changes the
            text of a seed (token, block), the length must then not follow the clock.
        top_logprobs: how many alternatives of each token a round has; None for no probabilities.
        drafters: the drafters that may draft, by name; None for all.
        goes_on: whether the prompt's last message follows a question, as the result of a call.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    accept: Accept = Accept.TOKEN
    n_predict: int = -1
    constraint: Constraint | None = None
    lenience: float | None = None
    trace: TraceWriter | None = None
    repeatable: bool = False
    top_logprobs: int | None = None
    drafters: frozenset[str] | None = None
    goes_on: bool = False
