"""How a head learns: one step over a lesson, and how much of what it drafts would be accepted."""

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
from localspec.train.head.shape import HeadShape
from localspec.train.texts.lessons import Lesson

STEPS: Final = 3
"""Tokens of a draft that are trained in the end."""
SCORED: Final = 4
"""Tokens of a draft by which a head is judged."""

_LATER: Final = 0.8  # what each step counts of the one before
_NEXT_AFTER: Final = 0.15  # of the training, after which one step more is trained
_HARD: Final = 0.5  # the likeliest token's share of what is learnt, which greedy verification wants
_WARM_UP: Final = 30  # steps
_FALLS_FROM: Final = 0.3  # of the training, from where on the learning rate falls
_RATE: Final = 3e-3
_TURNS: Final = 5
_TRIED: Final = 512  # rows and columns of the matrices that tell which numbers are faster


@dataclass(slots=True)
class Acceptance:
    """How often the head's likeliest token was the target's.

    Attributes:
        drafts: how many drafts were looked at.
        accepted: of these, how many had their first token accepted, their first two, ...
        common: how often the commonest token would have been right as a first token.
    """

    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * SCORED)
    common: int = 0

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of drafts that were accepted up to each place."""
        return tuple(each / max(1, self.drafts) for each in self.accepted)

    @property
    def control(self) -> float:
        """What always guessing the commonest token would come to at the first place."""
        return self.common / max(1, self.drafts)


class HeadLearner:
    """A head that learns.

    Attributes:
        network: the head.
        drafted: the ids that it can draft, the commonest first.
    """

    def __init__(self, network: HeadNetwork, drafted: Sequence[int], device: torch.device) -> None:
        """Begin with what the network holds, on this device."""
        self.device = device
        self.network = network.to(device)
        self.drafted = torch.tensor(drafted, device=device)
        self._place = torch.full((network.shape.vocab,), -1, device=device)
        self._place[self.drafted] = torch.arange(len(drafted), device=device)
        self._optimisers = optimisers(self.network.parameters(), lr=_RATE)
        self._halves = halves_pay(device)

    def learn(self, lesson: Lesson, done: float, step: int) -> tuple[float, float]:
        """Change the weights a little.

        Args:
            lesson: what to learn from.
            done: the share of the training that is done.
            step: how many steps are.

        Returns:
            The loss, and how often the first token was the target's likeliest.
        """
        steps = min(STEPS, 1 + int(done / _NEXT_AFTER))
        total = torch.zeros((), device=self.device)
        first = 0.0
        with self._lower():
            wanted, likeliest = self._wanted(lesson)
            drafts = self._unroll(lesson, steps)
            texts, places, starts = self._at(lesson)
            for at, rows in enumerate(drafts):
                meant = places - at >= starts
                scores = self.network.scores(rows[texts[meant], places[meant] - 1]).float()
                loss = -(wanted[meant] * scores.log_softmax(-1)).sum(-1).mean()
                total = total + _LATER**at * loss
                if at == 0:
                    first = self._right(scores, likeliest[meant]).float().mean().item()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        fall = min(1.0, (1 - done) / (1 - _FALLS_FROM))
        set_rate(self._optimisers, _RATE * fall * min(1.0, (step + 1) / _WARM_UP))
        for optimiser in self._optimisers:
            with self._lower():
                optimiser.step()
            optimiser.zero_grad()
        return float(total.detach()), first

    @torch.no_grad()
    def judge(self, lessons: Iterable[Lesson], common: int) -> Acceptance:
        """Draft from every place of greedy answers, without learning.

        Args:
            lessons: texts that the target wrote greedily.
            common: the id that a control always guesses.
        """
        found = Acceptance()
        for lesson in lessons:
            hits = self.hits(lesson, SCORED)
            texts, places, starts = self._at(lesson)
            likeliest = torch.from_numpy(lesson.logits.argmax(-1)).to(self.device)
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
    def hits(self, lesson: Lesson, steps: int) -> list[Tensor]:
        """Whether each step's likeliest token is the target's, at each of the lesson's places.

        Step j at a place belongs to the draft that began j places before it.
        """
        texts, places, _ = self._at(lesson)
        likeliest = torch.from_numpy(lesson.logits.argmax(-1)).to(self.device)
        drafts = self._unroll(lesson, steps)
        return [
            self._right(self.network.scores(rows[texts, places - 1]), likeliest) for rows in drafts
        ]

    def _unroll(self, lesson: Lesson, steps: int) -> list[Tensor]:
        states = torch.from_numpy(lesson.states).to(self.device)
        return self.network.unroll(states, torch.from_numpy(lesson.embedded).to(self.device), steps)

    def _at(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        """Texts and places where the target's logits are, and where the answer there begins."""
        texts = torch.from_numpy(lesson.texts).to(self.device)
        starts = torch.from_numpy(lesson.starts).to(self.device)
        return texts, torch.from_numpy(lesson.places).to(self.device), starts[texts]

    @torch.no_grad()
    def _wanted(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """What is learnt at each place, `(n, drafted)`, and the target's likeliest id, `(n,)`.

        In part the target's whole distribution, in part its likeliest id; of what the head cannot
        draft nothing is learnt.
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
        """All that is needed to go on, with `more` beside it."""
        buffer = io.BytesIO()
        states = [each.state_dict() for each in self._optimisers]
        its = self.network.its.state_dict()
        torch.save({"head": its, "optimisers": states, "more": more}, buffer)
        return buffer.getvalue()

    def restore(self, saved: bytes) -> dict[str, Any]:
        """Go on where another one was saved; return what was saved beside it."""
        found = torch.load(io.BytesIO(saved), map_location=self.device, weights_only=True)
        self.network.its.load_state_dict(found["head"])
        for each, state in zip(self._optimisers, found["optimisers"], strict=True):
            each.load_state_dict(state)
        more: dict[str, Any] = found["more"]
        return more


def device() -> torch.device:
    """Where to learn: a card, Apple's graphics, or the processor."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def learner(
    shape: HeadShape, tensors: Tensors, drafted: Sequence[int], threads: int
) -> HeadLearner:
    """A head that learns where this machine is quickest, with so many threads on the processor."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return HeadLearner(HeadNetwork(shape, tensors), drafted, device())


def speed(threads: int) -> float:
    """Operations a second in a matrix product, in the numbers in which a head learns here."""
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
    """Seconds of a product of two matrices, the quickest of a few."""
    a, b = torch.randn(2, _TRIED, _TRIED, device=where).to(kind)
    times = []
    for _ in range(_TURNS):
        started = perf_counter()
        float(functional.linear(a, b)[0, 0])  # waits for a card
        times.append(perf_counter() - started)
    return min(times)
