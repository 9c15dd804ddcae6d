"""How a head learns: a training step on a lesson, and the acceptance of its drafts."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from localspec.train.head.head_files import Tensors
from localspec.train.head.network import HeadNetwork
from localspec.train.head.optim import optimisers, set_rate
from localspec.train.head.shape import STEPS, HeadShape
from localspec.train.texts.lessons import Lesson

SCORED: Final = 4
"""Tokens per draft that are scored."""

_NEXT_AFTER: Final = 0.15  # share of the training after which each further step joins
_HARD: Final = 0.5  # share of the likeliest token in the goal, as greedy verification wants
_WARM_UP: Final = 30  # steps
_FALLS_FROM: Final = 0.3  # share of the training from which on the learning rate falls
_RATE: Final = 3e-3
_TRAINED: Final = 0.6  # of the schedule: where a head that was trained before goes on
_TURNS: Final = 5
_TRIED: Final = 512  # rows and columns of the matrices in the speed test


@dataclass(slots=True)
class Acceptance:
    """How often the head's likeliest token was the target's.

    Attributes:
        accepted: how many of them had at least their first token accepted, their first two, ...
        common: how often the most common token would have been right as a first token.
    """

    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * SCORED)
    common: int = 0

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of drafts accepted up to each position."""
        return tuple(each / max(1, self.drafts) for each in self.accepted)

    @property
    def control(self) -> float:
        """The acceptance of the first token if it were always the most common token."""
        return self.common / max(1, self.drafts)


class HeadLearner:
    """A head in training.

    Attributes:
        drafted: the ids that it can draft, the most common first.
    """

    def __init__(
        self, network: HeadNetwork, drafted: Sequence[int], device: torch.device, *, trained: bool
    ) -> None:
        """Start from the network's present weights, on `device`.

        Args:
            network: the head.
            drafted: the ids that it can draft, the most common first.
            device: where it learns.
            trained: whether it was trained before: a high rate would undo what it has learnt.
        """
        self.device = device
        self._begins = _TRAINED if trained else 0.0
        self.network = network.to(device)
        self.drafted = torch.tensor(drafted, device=device)
        self._place = torch.full((network.shape.vocab,), -1, device=device)
        self._place[self.drafted] = torch.arange(len(drafted), device=device)
        self._optimisers = optimisers(self.network.parameters())
        self._halves = halves_pay(device)

    def learn(self, lesson: Lesson, done: float, step: int) -> tuple[float, float]:
        """Run one training step.

        Args:
            lesson: the texts to learn from.
            done: the share of the training that is done.
            step: the number of steps that are done.

        Returns:
            The loss, and how often the first token was the target's likeliest.
        """
        done = self._begins + (1 - self._begins) * done
        steps = min(STEPS, 1 + int(done / _NEXT_AFTER))
        with self._lower():
            total, first = self._loss(lesson, steps)
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        fall = min(1.0, (1 - done) / (1 - _FALLS_FROM))
        set_rate(self._optimisers, _RATE * fall * min(1.0, (step + 1) / _WARM_UP))
        for optimiser in self._optimisers:
            with self._lower():
                optimiser.step()
            optimiser.zero_grad()
        return float(total.detach()), first

    def _loss(self, lesson: Lesson, steps: int) -> tuple[Tensor, float]:
        """The loss per position, and how often the first token was the target's likeliest.

        A draft ends at its first rejected token. So each step learns at the positions whose draft
        was right so far: the others are never drafted.
        """
        wanted, likeliest = self._wanted(lesson)
        texts, places, _ = self._at(lesson)
        total, first = torch.zeros((), device=self.device), 0.0
        meant = torch.ones_like(places, dtype=torch.bool)
        for at, rows in enumerate(self._unroll(lesson, steps)):
            scores = self.network.scores(rows[texts[meant], places[meant] - 1]).float()
            total = total - (wanted[meant] * scores.log_softmax(-1)).sum() / len(places)
            right = self._right(scores, likeliest[meant])
            if at == 0:
                first = right.float().mean().item()
            reached = torch.zeros(lesson.states.shape[:2], dtype=torch.bool, device=self.device)
            reached[texts[meant], places[meant]] = right
            meant = reached[texts, places - 1]
        return total, first

    @torch.no_grad()
    def judge(self, lessons: Iterable[Lesson], common: int) -> Acceptance:
        """Measure the acceptance of drafts from every position of greedy answers.

        Args:
            lessons: texts that the target wrote greedily.
            common: the id that the control always guesses.
        """
        found = Acceptance()
        for lesson in lessons:
            texts, places, starts = self._at(lesson)
            likeliest = torch.from_numpy(lesson.logits.argmax(-1)).to(self.device)
            hits = self.hits(lesson, likeliest)
            table = torch.zeros(
                (SCORED, *lesson.states.shape[:2]), dtype=torch.bool, device=self.device
            )
            for at, right in enumerate(hits):
                table[at, texts, places] = right
            last = torch.zeros_like(starts).scatter_reduce(0, texts, places, "amax")
            whole = places + SCORED - 1 <= last[texts]
            texts, places, likeliest = texts[whole], places[whole], likeliest[whole]
            chain = torch.ones_like(places, dtype=torch.bool)
            for at in range(SCORED):
                chain &= table[at, texts, places + at]
                found.accepted[at] += int(chain.sum())
            found.drafts += len(places)
            found.common += int((likeliest == common).sum())
        return found

    @torch.no_grad()
    def hits(self, lesson: Lesson, likeliest: Tensor) -> list[Tensor]:
        """Whether each step's likeliest token is the target's, at each of the lesson's positions.

        Step j at a position belongs to the draft that began j positions before it.
        """
        texts, places, _ = self._at(lesson)
        drafts = self._unroll(lesson, SCORED)
        return [
            self._right(self.network.scores(rows[texts, places - 1]), likeliest) for rows in drafts
        ]

    def _unroll(self, lesson: Lesson, steps: int) -> list[Tensor]:
        states = torch.from_numpy(lesson.states).to(self.device)
        return self.network.unroll(states, torch.from_numpy(lesson.embedded).to(self.device), steps)

    def _at(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        """Text and position of each row of the target's logits, and the start of its answer."""
        texts = torch.from_numpy(lesson.texts).to(self.device)
        starts = torch.from_numpy(lesson.starts).to(self.device)
        return texts, torch.from_numpy(lesson.places).to(self.device), starts[texts]

    @torch.no_grad()
    def _wanted(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """The goal at each position, `(n, drafted)`, and the target's likeliest id, `(n,)`.

        The goal mixes the target's distribution with its likeliest id; tokens that the head cannot
        draft are left out.
        """
        logits = torch.from_numpy(lesson.logits).to(self.device).float()
        likeliest = logits.argmax(-1)
        odds = (logits[:, self.drafted] - logits.logsumexp(-1, keepdim=True)).exp()
        odds *= 1 - _HARD
        place = self._place[likeliest]
        inside = (place >= 0).nonzero().squeeze(-1)
        odds[inside, place[inside]] += _HARD
        return odds, likeliest

    def _right(self, scores: Tensor, likeliest: Tensor) -> Tensor:
        return self.drafted[scores.argmax(-1)] == likeliest

    def _lower(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._halves)

    def saved(self, more: dict[str, Any]) -> bytes:
        """The state needed to continue the training, together with `more`."""
        buffer = io.BytesIO()
        states = [each.state_dict() for each in self._optimisers]
        its = self.network.its.state_dict()
        torch.save({"head": its, "optimisers": states, "more": more}, buffer)
        return buffer.getvalue()

    def restore(self, saved: bytes) -> dict[str, Any]:
        """Continue from `saved`; return the `more` that was saved with it."""
        found = torch.load(io.BytesIO(saved), map_location=self.device, weights_only=True)
        self.network.its.load_state_dict(found["head"])
        for each, state in zip(self._optimisers, found["optimisers"], strict=True):
            each.load_state_dict(state)
        more: dict[str, Any] = found["more"]
        return more


def device(n_bytes: int = 0) -> torch.device:
    """The device to train on: a graphics card with `n_bytes` free, Apple's GPU, or the CPU."""
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] >= n_bytes:
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def has_own_memory(where: torch.device) -> bool:
    """Whether a device takes nothing of the main memory; an integrated card does, as Apple's."""
    return where.type == "cuda" and not torch.cuda.get_device_properties(where).is_integrated


def learner(
    shape: HeadShape,
    tensors: Tensors,
    drafted: Sequence[int],
    threads: int,
    *,
    trained: bool,
    n_bytes: int = 0,
) -> HeadLearner:
    """A head on this machine's fastest device with `n_bytes` free; on the CPU with `threads`."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return HeadLearner(HeadNetwork(shape, tensors), drafted, device(n_bytes), trained=trained)


def speed(threads: int) -> float:
    """Floating-point operations per second of a matrix product, in the training's format."""
    torch.set_num_threads(threads)
    where = device()
    kind = torch.bfloat16 if halves_pay(where) else torch.float32
    return 2 * _TRIED**3 / _seconds(where, kind)


def halves_pay(where: torch.device) -> bool:
    """Whether this machine multiplies matrices faster in bfloat16, as measured."""
    if where.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if where.type != "cpu":
        return False
    return 1.2 * _seconds(where, torch.bfloat16) < _seconds(where, torch.float32)


def _seconds(where: torch.device, kind: torch.dtype) -> float:
    """Seconds of a product of two matrices, the fastest of a few."""
    a, b = torch.randn(2, _TRIED, _TRIED, device=where).to(kind)
    times = []
    for _ in range(_TURNS):
        started = perf_counter()
        float(functional.linear(a, b)[0, 0])  # waits for the device
        times.append(perf_counter() - started)
    return min(times)
