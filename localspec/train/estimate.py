"""Estimates the cost of a training and the gain of its head, before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from localspec import formats
from localspec.engine.length.cost import Curve
from localspec.loading.measurements.head_promise import PAYS, REACHABLE, expected, speedup
from localspec.train.head.shape import STEPS, HeadShape
from localspec.train.texts.answers import LONGEST
from localspec.train.texts.lessons import ROWS

TEXTS: Final = 8
"""Answers written at a time."""

JUDGED: Final = 20
"""Times that the head is judged by the held-out answers while it learns."""

_HELD_OUT: Final = LONGEST // 2  # tokens of a held-out text, about
_VERDICT: Final = 5 * 64  # tokens written for each held-out prompt at the end, about
_LENGTHS: Final = 16  # tokens of a pass, up to which T(n) is needed
_ANSWER: Final = 0.6  # approximate share of a text that is the answer
_EFFICIENCY: Final = 0.5  # share of a large product's speed that whole steps reach
_COPIES: Final = 4  # of the trained weights: themselves, gradients, momentum, the update
_LIVE: Final = 5.5  # floats kept per row, inner width and step for the backward pass, about
_SAMPLE_BYTES: Final = 12  # per token on disk, about


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCosts:
    """The measured costs.

    Attributes:
        target: T(n).
        step_s: seconds per step of the head.
        read_s: seconds per token for the target to read a text and output all rows.
        flops: of matrix products in torch, per second.
        loaded_bytes: of the target, its contexts, and the program with torch.
        reading_bytes: of the context that outputs all rows.
    """

    target: Curve
    step_s: float
    read_s: float
    flops: float
    loaded_bytes: int
    reading_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The figures that are shown before a training begins.

    Attributes:
        tokens: of answers.
        judging_s: for the held-out prompts: their answers, and all judgements of the head.
        disk, memory: bytes.
        more: bytes of memory in addition to the loaded target.
        learning: those of them that a card takes if the head learns there.
        card: bytes that must be free on a card for that, when nothing but the target is loaded.
        acceptance: of each drafted token, given those before it.
        speedup: expected here with that acceptance; 1 if it is best not to draft.
        best: the speed-up here with a well trained head.
        share: time of one step of the head over T(1).
    """

    tokens: int
    answering_s: float
    learning_s: float
    judging_s: float
    disk: int
    memory: int
    more: int
    learning: int
    card: int
    acceptance: float
    speedup: float
    best: float
    share: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole training."""
        return self.answering_s + self.learning_s + self.judging_s

    @property
    def pays(self) -> bool:
        """Whether a head can make this target faster here."""
        return self.best >= PAYS

    def sentence(self) -> str:
        """The estimate in words."""
        return (
            f"about {formats.duration(self.seconds)}, {formats.size(self.disk)} of disk and"
            f" {formats.size(self.memory)} of memory, for {self.tokens:,} tokens of answers;"
            f" expected: {formats.percent(self.acceptance)} of each drafted token accepted,"
            f" {self.speedup:.2f} times the speed here (a step of the head takes"
            f" {formats.percent(self.share)} of one of the target)"
        )

    def doubt(self) -> str:
        """Why no head can pay, in words."""
        return (
            f"no head can make this target faster here: even with {formats.percent(REACHABLE)} of"
            f" each drafted token accepted the best is {self.best:.2f} times the speed, since"
            " the target takes nearly as long to check tokens as to write them"
        )


def answer_seconds(costs: TrainingCosts) -> float:
    """Seconds per token of an answer, with several written at a time."""
    return costs.target.seconds(TEXTS) / TEXTS + costs.read_s


def learn_seconds(shape: HeadShape, costs: TrainingCosts) -> float:
    """Seconds per answer token of one pass: reading it again, and learning from it.

    Every step updates the whole head, however few rows it has learnt from.
    """
    reached = sum(REACHABLE**at for at in range(STEPS))  # a draft ends at its first rejection
    work = 6 * shape.learnt * STEPS + 4 * shape.drafted * shape.width * reached
    work += shape.update_work / ROWS
    return (costs.read_s + work / (costs.flops * _EFFICIENCY)) / _ANSWER


def judge_seconds(costs: TrainingCosts, held: int) -> float:
    """Seconds that `held` held-out prompts take, whatever is learnt."""
    read = _HELD_OUT * (answer_seconds(costs) + JUDGED * costs.read_s)
    return held * (read + _VERDICT * costs.target.seconds(1))


def estimate(
    shape: HeadShape,
    costs: TrainingCosts,
    tokens: int,
    passes: int,
    *,
    held: int,
    given: int = 0,
    before: int = 0,
) -> Estimate:
    """Estimate a training.

    Args:
        shape: the head's.
        costs: as measured here.
        tokens: of answers.
        passes: over all of them.
        held: prompts that the head is judged by.
        given: how many of the tokens are written already.
        before: tokens that the head to start from had learnt from.
    """
    acceptance, times = expected(tokens + before), costs.target.times(_LENGTHS)
    learning = learning_bytes(shape)
    checkpoints = 2 * 8 * shape.learnt  # weights and momentum, of the last one and the next
    return Estimate(
        tokens=tokens,
        answering_s=(tokens - given) * answer_seconds(costs),
        learning_s=passes * tokens * learn_seconds(shape, costs),
        judging_s=judge_seconds(costs, held),
        disk=int(tokens / _ANSWER * _SAMPLE_BYTES) + checkpoints + 3 * shape.weights,
        memory=costs.loaded_bytes + learning + checkpoints,  # torch writes one in two copies
        more=costs.reading_bytes + learning + checkpoints,
        learning=learning,
        card=costs.reading_bytes + card_bytes(shape),
        acceptance=acceptance,
        speedup=speedup(acceptance, times, costs.step_s),
        best=speedup(REACHABLE, times, costs.step_s),
        share=costs.step_s / costs.target.seconds(1),
    )


def learning_bytes(shape: HeadShape) -> int:
    """The memory in which a head learns: weights, gradients, momentum and a step's rows."""
    inner = 6 * shape.width + 3 * shape.feed_forward + shape.drafted / 4
    weights = 4 * (_COPIES * shape.learnt + shape.drafted * shape.width)
    return weights + int(4 * ROWS * (_LIVE * STEPS * inner + 2 * shape.drafted))


def card_bytes(shape: HeadShape) -> int:
    """The memory of a card in which a head learns: the target's logits are copied to it as well."""
    return learning_bytes(shape) + 8 * ROWS * shape.vocab


def tokens_within(
    hours: float,
    shape: HeadShape,
    costs: TrainingCosts,
    passes: int,
    *,
    held: int,
    given: int = 0,
) -> int:
    """How many tokens of answers fit into `hours`; the arguments are those of `estimate`."""
    written, learnt = answer_seconds(costs), passes * learn_seconds(shape, costs)
    seconds = hours * 3600 - judge_seconds(costs, held)
    if given * learnt >= seconds:
        return max(LONGEST, int(seconds / learnt))
    return max(LONGEST, int((seconds + given * written) / (written + learnt)))
