"""Estimates what a head trained for a target would gain, before it is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from localspec.engine.length.stopping import gamma_for
from localspec.loading.measurements import ranking
from localspec.pairs.gguf.head_checks import TAPPED

REACHABLE: Final = 0.65
"""Acceptance of each drafted token, given those before it, with a well trained head. Published
heads for models of 1 to 30 billion weights reach 0.5 to 0.7.
"""

PAYS: Final = 1.03
"""A head whose speed-up is below this does not pay."""

USUAL_TOKENS: Final = 1_000_000
"""Tokens of answers to train a head on, by default."""

SHARE: Final = 0.1
"""The largest share of T(1) that a step of the head may take."""

# Acceptance grows with the logarithm of the training tokens (2505.07858). Published heads fix the
# line: 0.34 after 5,000 answers of other models, 0.52 after 8 million tokens of the target's own
# answers with a head trained from scratch.
_AT_MILLION: Final = 0.48
_A_TENFOLD: Final = 0.08
_LEAST: Final = 0.15


def expected(tokens: int) -> float:
    """Estimate the acceptance of a head trained on `tokens` tokens."""
    if tokens < 1:
        return _LEAST
    grown = _AT_MILLION + _A_TENFOLD * math.log10(tokens / 1e6)
    return min(REACHABLE, max(_LEAST, grown))


def speedup(acceptance: float, times: Sequence[float], step_s: float) -> float:
    """The speed-up over the baseline at the best fixed draft length.

    Args:
        acceptance: of each drafted token, given those before it.
        times: T(n) at index n, in seconds.
        step_s: seconds of one step of the head.
    """
    return gamma_for(acceptance, times, step_s)[1]


def line(reference: str, name: str, architecture: str) -> str:
    """Say that a head can be trained for a target, and what to expect of it here.

    Args:
        reference: names the target on a command line.
        name: the pair's name, under which its costs are stored.
        architecture: llama.cpp's name of the target's.

    Returns:
        A line; empty if llama.cpp does not output the layers of this architecture.
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
