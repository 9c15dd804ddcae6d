"""What a conversation may choose about the draws: plain values, checked where they are made."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from localspec.errors import SamplingError


class Accept(StrEnum):
    """The acceptance rules by name; all of them are lossless."""

    MATCH = "match"
    COUPLED = "coupled"
    TOKEN = "token"  # noqa: S105 - a rule, not a password
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOption:
    """One setting of the sampler chain, as users choose it.

    The command line, the settings file, ``/set``, requests to ``serve`` and the advice in a model's
    file all come from it.

    Attributes:
        usual: llama.cpp's default.
        flags: its names on the command line, the usual one first.
        meaning: a sentence for ``--help``.
        holds: whether a value is allowed.
        wanted: the allowed values in words.
        least: the least value that the command line takes for a whole number.
        file_key: its name after ``general.sampling.`` in a model's file; empty if it has none.
        also: other programs' names for it in requests.
        meant: maps a value that other programs take, and this one does not, to what it means here.
    """

    usual: int | float
    flags: tuple[str, ...]
    meaning: str
    holds: Callable[[Any], bool] = lambda _: True
    wanted: str = ""
    least: int = 0
    file_key: str = ""
    also: tuple[str, ...] = ()
    meant: Callable[[Any], Any] = lambda value: value

    @property
    def kind(self) -> type[int] | type[float]:
        """The type of its values."""
        return type(self.usual)

    @property
    def name(self) -> str:
        """Its name for users, such as ``top-k``."""
        return self.flags[0].lstrip("-")

    @property
    def key(self) -> str:
        """The same as an identifier, such as ``top_k``: the field of a load request."""
        return self.name.replace("-", "_")


def _option(usual: float, *flags: str, **how: Any) -> Any:
    """A field of `SamplingParams` that users choose by an option."""
    made = SamplingOption(usual=usual, flags=flags, **how)
    return field(default=usual, metadata={_OPTION: made})


MOST_WHOLE: Final = 2**63 - 1
"""The largest whole number that a setting takes: 64 bits hold it, also below 0."""

_OPTION = "option"
_LEAST_SHARE = 1e-30  # any token's share reaches it
_MOST = 1e6  # settings end where 32-bit floats would turn them into something else
_SHARE = {"holds": lambda x: 0 < x <= 1, "wanted": "a number above 0, up to 1 (off)"}
_SUBTRACTED = {
    "holds": lambda x: abs(x) <= _MOST,
    "wanted": "a number from -1000000 to 1000000; 0 is off",
}


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

    temperature: float = _option(
        0.8,
        "--temp",
        meaning="Temperature; 0 is greedy. `localspec show` tells what a model's makers advise.",
        holds=lambda x: x == 0 or 1e-6 <= x <= _MOST,
        wanted="0 (greedy) or a number from 0.000001 to 1000000",
        file_key="temp",
        meant=lambda x: 0.0 if 0 < x < 1e-6 else x,
    )
    top_k: int = _option(
        40,
        "--top-k",
        meaning="Keep the N most probable tokens; 0 keeps all.",
        holds=lambda x: abs(x) <= MOST_WHOLE,
        wanted="a number of tokens; 0 keeps all",
        least=-1,
        file_key="top_k",
    )
    top_p: float = _option(
        0.95,
        "--top-p",
        meaning="Keep the most probable tokens up to this share; 1 keeps all.",
        file_key="top_p",
        meant=lambda x: x or _LEAST_SHARE,  # 0 keeps the best token
        **_SHARE,
    )
    min_p: float = _option(
        0.05,
        "--min-p",
        meaning="Keep tokens with at least this share of the best one's probability; 0 keeps all.",
        holds=lambda x: x == 0 or 1e-30 <= x <= 1,
        wanted="0 (off) or a number from 1e-30 to 1",
        file_key="min_p",
    )
    typical_p: float = _option(
        1.0,
        "--typical-p",
        "--typical",
        meaning="Keep the tokens nearest to the entropy up to this share; 1 keeps all.",
        **_SHARE,
    )
    repeat_penalty: float = _option(
        1.0,
        "--repeat-penalty",
        meaning="Divide the logits of recent tokens by this; 1 is off.",
        holds=lambda x: 1e-6 <= x <= _MOST,
        wanted="a number from 0.000001 to 1000000; 1 is off",
        file_key="penalty_repeat",
        also=("repetition_penalty",),
    )
    presence_penalty: float = _option(
        0.0,
        "--presence-penalty",
        meaning="Subtract this from the logits of recent tokens.",
        **_SUBTRACTED,
    )
    frequency_penalty: float = _option(
        0.0,
        "--frequency-penalty",
        meaning="Subtract this for every recent occurrence.",
        **_SUBTRACTED,
    )
    repeat_last_n: int = _option(
        64,
        "--repeat-last-n",
        meaning="How many tokens are recent, the prompt's included; 0 switches penalties off.",
        holds=lambda x: 0 <= x <= MOST_WHOLE,
        wanted="0 (off) or a number of tokens",
        file_key="penalty_last_n",
        meant=lambda x: MOST_WHOLE if x == -1 else x,  # llama.cpp's word for all
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, option in CHAIN.items():
            if not option.holds(value := getattr(self, name)):
                raise _bad(name, value, option.wanted)
        if self.seed is not None and not 0 <= self.seed <= MOST_WHOLE:
            raise _bad("seed", self.seed, f"a whole number from 0 to {MOST_WHOLE}")
        for token, bias in self.logit_bias.items():
            if not 0 <= token <= MOST_WHOLE or not (abs(bias) <= _MOST or bias == -math.inf):
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


CHAIN: Final[Mapping[str, SamplingOption]] = {
    each.name: each.metadata[_OPTION] for each in fields(SamplingParams) if each.metadata
}
"""The settings of the sampler chain by the fields of `SamplingParams`: all but bias and seed."""


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
