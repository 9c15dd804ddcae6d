"""What a head could bring that is trained for a target: an estimate, before there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from localspec.engine.length.stopping import gamma_for
from localspec.loading.measurements import ranking
from localspec.pairs.gguf.head_checks import TAPPED

REACHABLE: Final = 0.65
"""What a well trained head has accepted of each drafted token, given those before it: between 0.5
and 0.7 in what is published of heads for models of 1 to 30 billion weights."""

PAYS: Final = 1.03
"""A speed-up below which a head is said not to pay."""

USUAL_TOKENS: Final = 1_000_000
"""Tokens of answers that a head learns from where nothing else is asked for."""

SHARE: Final = 0.1
"""Of T(1) that one step of a head may take."""

# Acceptance grows with the logarithm of what is learnt from (2505.07858). Where the line lies is
# taken from published heads: 0.34 after 5,000 foreign answers, 0.52 after 8 million tokens of own
# ones with a head that began with nothing.
_AT_MILLION: Final = 0.48
_A_TENFOLD: Final = 0.08
_LEAST: Final = 0.15


def expected(tokens: int) -> float:
    """The acceptance to expect of a head that learnt from so many tokens: an estimate."""
    if tokens < 1:
        return _LEAST
    grown = _AT_MILLION + _A_TENFOLD * math.log10(tokens / 1e6)
    return min(REACHABLE, max(_LEAST, grown))


def speedup(acceptance: float, times: Sequence[float], step_s: float) -> float:
    """The speed over the baseline, with the best steady length.

    Args:
        acceptance: of each drafted token, given those before it.
        times: T(n) at index n, in seconds.
        step_s: seconds of one step of the head.
    """
    return gamma_for(acceptance, times, step_s)[1]


def line(reference: str, name: str, architecture: str) -> str:
    """Say that a head can be trained for a target, and what to expect of it here.

    Args:
        reference: what names the target on a command line.
        name: the pair's name, under which its costs are known.
        architecture: llama.cpp's name of the target's.

    Returns:
        A line; empty where llama.cpp shows no layers of such a target.
    """
    if architecture not in TAPPED:
        return ""
    command = f"`localspec train {reference}` makes a head for this target"
    known = speed.own(name) if (speed := ranking.recall()) else None
    if known is None or not known.usable:
        return command
    times, step_s = known.times, SHARE * known.times[1]
    if speedup(REACHABLE, times, step_s) < PAYS:
        return f"{command}; on this machine it would not pay"
    gain = speedup(expected(USUAL_TOKENS), times, step_s)
    return f"{command}: an estimate for this machine is {gain:.2f} times the speed"
