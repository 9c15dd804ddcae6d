"""What a conversation may choose about the draws: plain values, checked where they are made."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from localspec.errors import SamplingError


class Accept(StrEnum):
    """The acceptance rules by name; all of them are lossless."""

    MATCH = "match"
    COUPLED = "coupled"
    TOKEN = "token"  # noqa: S105 - a rule, not a password
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """llama.cpp's sampling settings, under its names and with its defaults.

    Args:
        temperature: divides the logits; 0 is greedy: the most probable token that survives.
        top_k: keep the k largest logits; 0 or less keeps all.
        top_p: keep the most probable tokens up to and including the one that reaches this mass.
        min_p: keep tokens with at least this share of the largest probability; 0 keeps all.
        typical_p: keep the tokens closest to the entropy until their mass exceeds this.
        repeat_penalty: divides positive and multiplies negative logits of recent tokens.
        presence_penalty: subtracted from the logit of every recent token.
        frequency_penalty: subtracted once for every time that the token is among the recent ones.
        repeat_last_n: how many tokens are recent; 0 switches the penalties off.
        logit_bias: added to the logits of these ids; minus infinity forbids one.
        seed: of the random draws; None draws one.

    Raises:
        SamplingError: a value that makes no distribution. Nothing is clamped.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (holds, wanted) in _LIMITS.items():
            value = getattr(self, name)
            if not holds(value):
                raise _bad(name, value, wanted)
        for token, bias in self.logit_bias.items():
            if token < 0 or not (abs(bias) <= _MOST or bias == -math.inf):
                wanted = "token ids with -inf or a number up to 1000000 either way"
                raise _bad("logit_bias", f"{token}:{bias}", wanted)

    def seeded(self) -> SamplingParams:
        """These parameters with a seed: where none was given one is drawn, and can be told."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(32))

    @property
    def greedy(self) -> bool:
        """Whether every distribution has a single token."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on the tokens before."""
        return self.repeat_last_n > 0 and (
            self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        )


_MOST = 1e6  # settings end where 32-bit floats would turn them into something else

_LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (
        lambda x: x == 0 or 1e-6 <= x <= _MOST,
        "0 (greedy) or a number from 0.000001 to 1000000",
    ),
    "top_p": (lambda x: 0 < x <= 1, "a number above 0, up to 1 (off)"),
    "min_p": (lambda x: x == 0 or 1e-30 <= x <= 1, "0 (off) or a number from 1e-30 to 1"),
    "typical_p": (lambda x: 0 < x <= 1, "a number above 0, up to 1 (off)"),
    "repeat_penalty": (
        lambda x: 1e-6 <= x <= _MOST,
        "a number from 0.000001 to 1000000; 1 is off",
    ),
    "presence_penalty": (
        lambda x: abs(x) <= _MOST,
        "a number from -1000000 to 1000000; 0 is off",
    ),
    "frequency_penalty": (
        lambda x: abs(x) <= _MOST,
        "a number from -1000000 to 1000000; 0 is off",
    ),
    "repeat_last_n": (lambda x: x >= 0, "0 (off) or a number of tokens"),
    "seed": (lambda x: x is None or x >= 0, "0 or a positive whole number"),
}


def _bad(name: str, value: object, wanted: str) -> SamplingError:
    shown = name.replace("_", "-")
    return SamplingError(f"{shown} cannot be {value}", f"Give {shown} {wanted}.")


def default_accept(sampling: SamplingParams, *, seeded: bool) -> Accept:
    """The rule where none is chosen.

    With a seed that the user gave the coupled rule, so that the same seed gives the same text with
    speculation on or off. Otherwise the rule that was measured to be faster (docs/verification.md).
    """
    if sampling.greedy:
        return Accept.MATCH
    return Accept.COUPLED if seeded else Accept.BLOCK


_LEAST_LENIENCE = 1e-30  # what min-p can be at least, which it becomes at temperature 0


def check_lenience(sampling: SamplingParams, lenience: float | None) -> None:
    """Check that `lenience`, None for none, goes with the sampler chain.

    Raises:
        SamplingError: a lenience that is none, or one whose best token would not be the chain's.
    """
    if lenience is None:
        return
    if not _LEAST_LENIENCE <= lenience <= 1:
        raise SamplingError(
            f"lossy cannot be {lenience}", "Give a lenience from 1e-30 to 1 (not lossy)."
        )
    if sampling.greedy and sampling.typical_p < 1:
        raise SamplingError(
            "lossy at temperature 0 goes by the most probable token, which typical-p may leave out",
            "Leave one of the three out.",
        )
