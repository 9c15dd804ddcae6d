"""Where two answers part, and how near the target's choice was to a tie there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from localspec.bench.runs import Run
from localspec.engine.llama import Context


@dataclass(frozen=True, slots=True)
class Parting:
    """Two answers to one question that are not the same.

    Attributes:
        prompt: the question.
        arm: the setting that drafts.
        at: tokens that both have in common.
        margin: what the target's best logit there is above its second; None where nobody looked
            (above temperature 0 the choice is not made by the best alone).
    """

    prompt: str
    arm: str
    at: int
    margin: float | None


def part(plain: Run, other: Run, target: Context, *, greedy: bool) -> Parting:
    """Compare two answers, of which `target` has just read the prompt."""
    pairs = zip(plain.tokens, other.tokens, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    margin = None
    if greedy:
        prompt = target.tokens[: plain.prompt_tokens]
        margin = _margin(target, [*prompt, *plain.tokens[:common]])
    return Parting(plain.prompt, other.arm, common, margin)


def _margin(target: Context, tokens: list[int]) -> float | None:
    """The best logit after `tokens` less the second best, read as plain decoding reads."""
    if len(tokens) > target.n_ctx:
        return None
    target.clear()
    for start in range(0, len(tokens) - 1, target.n_batch):
        target.decode(tokens[start : min(start + target.n_batch, len(tokens) - 1)], 0)
    logits = target.decode(tokens[-1:], 1)[0]
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)
