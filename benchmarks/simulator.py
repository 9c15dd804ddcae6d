"""Replays policies over recorded rounds and cost curves: what would another draft length have done?

A text is a sequence of positions, each with the draft's confidence there and the probability that
its token is accepted. A round that starts at a position drafts along the text until a token is
rejected; the next round starts after the token that took its place. Outcomes are drawn once per
position, so that every policy has the same luck. The simulator has no clock: with a `Weather` the
policy sees a round's time as the weather changes it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from localspec.drafter_names import DRAFT
from localspec.engine.length.cost import Curve, Points, SameSizeRun
from localspec.engine.length.gamma import LONGEST, GammaPolicy
from localspec.engine.length.stopping import BASELINE, Askable, Plan, Situation
from localspec.engine.record.stats import Round

RECORDED = Path(__file__).parents[1] / "tests/data/gamma_rounds.json"
CURVES: Mapping[str, Points] = {
    "CPU, 2 cores, 1.7B F16": {1: 1.0, 2: 1.35, 3: 1.30, 4: 1.43, 5: 1.72, 8: 2.23, 16: 3.24},
    "CPU, 2 cores, 1.7B Q4_0": {1: 1.0, 2: 1.56, 3: 2.31, 4: 1.90, 5: 2.70, 8: 3.34, 16: 5.50},
    "RTX 3090, 8B Q4_0": {1: 1.0, 2: 1.12, 3: 1.19, 4: 1.32, 5: 1.51, 8: 2.17},
    "M4 Pro, Q4_0": {1: 1.0, 2: 1.81, 4: 3.83, 5: 5.65, 8: 7.44},
    "235B MoE, experts on CPU": {1: 1.0, 2: 1.30, 3: 1.41, 4: 1.45, 5: 1.56, 8: 1.88},
}
"""T(n)/T(1) as measured on real machines; see docs/gamma.md for where."""


@dataclass(frozen=True, slots=True)
class Position:
    """One place in a text.

    Attributes:
        confidence: the probability of the draft's best guess.
        chance: probability that the token it proposes is accepted.
    """

    confidence: float
    chance: float


Text = Sequence[Position]


def positions(rounds: Iterable[Round]) -> list[Position]:
    """The tested positions of recorded rounds, in order (a `Plan` that `learns` records them)."""
    return [
        Position(confidence, chance)
        for done in rounds
        for confidence, chance in zip(done.confidences, done.chances, strict=False)
    ]


@cache
def recorded() -> list[Position]:
    """Positions of rounds recorded at temperature 0.8 (the toy pair, until November 2026)."""
    return [
        Position(confidence, chance)
        for text in json.loads(RECORDED.read_text("utf-8"))["texts"]
        if text["temperature"] > 0
        for confidence, chance in zip(text["confidences"], text["chances"], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class World:
    """The costs and the random outcomes of a replay.

    Attributes:
        target: T(n) in any unit.
        draft: seconds of one decode of n tokens by the draft, in the same unit.
        seed: of the outcomes.
        must_verify: whether the rule weighs q, so that all that was drafted must be submitted.
        weather: what disturbs the clock; None for a policy that does not follow one.
        beside: the cost of running both models at the same time; None if they take turns.
        warmup: extra seconds of the first passes of one size in a row.
    """

    target: Curve
    draft: Curve
    seed: int = 0
    must_verify: bool = False
    weather: Weather | None = None
    beside: Sharing | None = None
    warmup: tuple[float, ...] = ()

    @staticmethod
    def of(
        points: Points,
        step: float,
        *,
        seed: int = 0,
        must_verify: bool = False,
        weather: Weather | None = None,
    ) -> World:
        """A world whose draft has steps of `step` times T(1), on a curve of the same shape."""
        draft = {n: step * seconds for n, seconds in points.items()}
        return World(Curve(points), Curve(draft), seed, must_verify, weather)


@dataclass(frozen=True, slots=True)
class Sharing:
    """The time of a decode while the other model decodes, relative to taking turns.

    Attributes:
        target: of a target's pass; 1 if the models share neither compute nor memory.
        draft: of a draft's pass.
    """

    target: float = 1.0
    draft: float = 1.0


class Weather(Protocol):
    """Other programs' effect on decodes, by the clock."""

    def factor(self, now: float) -> float:
        """The factor on the time of a decode that begins now."""
        ...


SECOND = 1 / 0.03
"""A second in units of T(1), which is 30 ms, for what depends on the clock."""


@dataclass(slots=True)
class Calm:
    """Timings scatter; nothing else disturbs them."""

    luck: random.Random
    spread: float = 0.05

    def factor(self, now: float) -> float:  # noqa: ARG002 - a `Weather`
        """A new factor for each timing."""
        return math.exp(self.luck.gauss(0, self.spread))


@dataclass(slots=True)
class Halving(Calm):
    """The machine is half as fast in every other stretch of 20 seconds."""

    def factor(self, now: float) -> float:
        """The factor depends on the clock alone."""
        slow = now // (20 * SECOND) % 2
        return (1 + slow) * math.exp(self.luck.gauss(0, self.spread))


@dataclass(slots=True)
class Bursts(Calm):
    """Half to three seconds of 1.5 to 4 times the time, after pauses of half to six seconds."""

    until: float = 0.0
    times: float = 1.0

    def factor(self, now: float) -> float:
        """The factor inside or outside a burst."""
        while now >= self.until:
            busy = self.times == 1.0
            self.times = self.luck.uniform(1.5, 4.0) if busy else 1.0
            self.until += self.luck.uniform(0.5, 3.0 if busy else 6.0) * SECOND
        spread = self.spread if self.times == 1.0 else 0.3
        return self.times * math.exp(self.luck.gauss(0, spread))


@dataclass(frozen=True, slots=True)
class Pace:
    """One round: its undisturbed time, its time on the clock, and its tokens."""

    work: float
    clock: float
    emitted: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a policy on a text; `seconds` are undisturbed ones.

    `beside` counts the rounds in which draft and target ran at the same time.
    """

    tokens: int
    seconds: float
    rounds: int
    drafted: int
    accepted: int
    paces: tuple[Pace, ...] = ()
    beside: int = 0

    @property
    def speed(self) -> float:
        """Tokens per unit of time."""
        return self.tokens / self.seconds


def replay(policy: GammaPolicy, text: Text, world: World) -> Replayed:
    """Let `policy` write `text`; it follows the clock if there is any weather.

    If both models may run at the same time, the draft goes on during the target's pass. It assumes
    that all of the draft is accepted and that the bonus token is its own best guess; see `Ahead`.
    """
    outcomes = random.Random(world.seed)
    lucky = [outcomes.random() for _ in text]
    weather = world.weather
    policy.begin(follow_clock=weather is not None)
    at, read, seconds, now = 0, 0, 0.0, 0.0
    ahead = Ahead(world)
    paces: list[Pace] = []
    rounds = drafted = accepted = 0
    run = SameSizeRun()
    while at < len(text):
        room = len(text) - at - 1
        pending = max(1, at - read)
        drafters = {DRAFT: Askable(pending)}
        plan = policy.plan(Situation(room, 0, room + 1, drafters)) if at else BASELINE
        asked = _draft(
            plan,
            text[at : at + min(plan.limit, room)],
            must_verify=world.must_verify,
            ready=ahead.ready,
        )
        stay = 0
        while stay < asked.tokens and lucky[at + stay] < text[at + stay].chance:
            stay += 1
        paid = max(0, asked.passes - ahead.ready)
        draft_s = max(0.0, _draft_seconds(world, pending, paid) + (ahead.debt if paid else 0.0))
        run = run.then(asked.tokens + 1)
        verify_s = world.target.seconds(run.size) + run.extra_s(world.warmup)
        hit = at + stay + 1 < len(text) and lucky[at + stay] < text[at + stay].chance
        verify_s = ahead.verify(verify_s, asked, stay, hit=hit)
        tested = text[at : at + min(stay + 1, asked.passes)]
        work = draft_s + verify_s
        if weather is not None:
            draft_s *= weather.factor(now)
            verify_s *= weather.factor(now + draft_s)
        now += draft_s + verify_s
        paces.append(Pace(work, draft_s + verify_s, stay + 1))
        policy.observe(
            Round(
                tokens=(0,) * (stay + 1),
                gamma=plan.aim,
                drafted=asked.tokens,
                accepted=stay,
                draft_s=draft_s,
                verify_s=verify_s,
                total_s=draft_s + verify_s,
                draft_prefill=pending if asked.passes else 0,
                draft_passes=min(asked.passes, max(1, paid)),
                drafter=plan.drafter,
                confidences=tuple(place.confidence for place in text[at : at + asked.passes]),
                chances=tuple(place.chance for place in tested),
            )
        )
        if asked.passes:
            # The draft's cache ends with the last accepted token that it has decoded.
            read = at + min(stay, max(asked.passes, ahead.reached) - 1) + ahead.kept
        at += stay + 1
        seconds += work
        rounds += 1
        drafted += asked.tokens
        accepted += stay
    return Replayed(at, seconds, rounds, drafted, accepted, tuple(paces), ahead.rounds)


_LATELY = 0.05  # the weight of a round in the averages that decide


class Ahead:
    """The draft during the target's pass: what it writes, and whether that pays.

    With n the tokens that it has ready after a pass of V seconds if all were accepted, its guess of
    the bonus token among them, h the chance of that and c a draft pass, it goes on during it iff

        h min(n, usual draft) c > (s - 1) V + (1 - h) c / 2:

    the time saved, against the pass that takes s times as long, and the wait for the draft pass
    that is running when the guess proves wrong. If a share w of the last drafts of m tokens was
    accepted whole, h is estimated as w to the power (m + 1) / m, whether both run or not.

    Attributes:
        ready: tokens already drafted for the next round.
        reached: positions that the draft has read, in the last round and after it.
        kept: whether its guess was right.
        debt: seconds until the draft can begin a pass; negative if a part of one is already done.
        rounds: how often both ran at the same time.
    """

    def __init__(self, world: World) -> None:
        self.ready = self.reached = self.rounds = 0
        self.kept = False
        self.debt = 0.0
        self._beside, self._step = world.beside, world.draft.seconds(1)
        self._whole, self._usual = 0.5, 0.0

    def verify(self, seconds: float, asked: _Asked, stay: int, *, hit: bool) -> float:
        """Seconds of a verify pass while the draft goes on.

        Args:
            seconds: that it takes alone.
            asked: the draft.
            stay: how many of its tokens are accepted.
            hit: whether the token after these is the draft's best guess.
        """
        written = max(self.ready, asked.written)  # more than is verified if a plan has cut it
        self.ready, self.reached, self.kept, self.debt = 0, written, False, 0.0
        if not asked.tokens or self._beside is None:
            return seconds
        self._usual = self._usual or asked.tokens
        pays = self._pays(seconds, self._beside)
        self._whole += _LATELY * ((stay == asked.tokens) - self._whole)
        self._usual += _LATELY * (asked.tokens - self._usual)
        if not pays:
            return seconds
        self.rounds += 1
        seconds, step = seconds * self._beside.target, self._step * self._beside.draft
        passes = min(int(seconds / step), max(0, asked.tokens + LONGEST - written))
        self.reached = written + passes
        self.kept = hit and stay == asked.tokens and self.reached > asked.tokens
        begun = min(1.0, seconds / step - passes)
        if self.kept:
            self.ready = self.reached - asked.tokens - 1
            self.debt = -begun * self._step
        else:
            self.debt = (1 - begun) * self._step
        return seconds

    def _pays(self, seconds: float, beside: Sharing) -> bool:
        slower = (beside.target - 1) * seconds
        ready = (seconds + slower) / (self._step * beside.draft) - 1
        right: float = self._whole ** (1 + 1 / self._usual)
        saved = right * max(0.0, min(ready, self._usual)) * self._step
        return saved > slower + (1 - right) * self._step / 2


@dataclass(frozen=True, slots=True)
class _Asked:
    tokens: int
    passes: int
    written: int


def _draft(plan: Plan, ahead: Text, *, must_verify: bool, ready: int = 0) -> _Asked:
    """Let the plan decide along the text ahead, as a drafter does; `ready` passes are made."""
    tokens = passes = 0
    for place in ahead:
        if passes and passes >= ready and not plan.wants_pass():
            break
        passes += 1
        if not plan.wants_token(place.confidence, must_verify=must_verify):
            break
        tokens += 1
    return _Asked(tokens if must_verify else min(tokens, plan.keep()), passes, tokens)


def _draft_seconds(world: World, pending: int, passes: int) -> float:
    if passes == 0:
        return 0.0
    return world.draft.seconds(pending) + (passes - 1) * world.draft.seconds(1)


class Threshold:
    """Drafts until the draft's confidence falls below a bound, as others do (2405.19715)."""

    def __init__(self, bound: float, limit: int = LONGEST) -> None:
        self._bound = bound
        self._limit = limit

    def begin(self, *, follow_clock: bool) -> None:
        """Prepare nothing."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """All of them."""
        return drafters

    def plan(self, situation: Situation) -> Plan:
        """The same bound every time."""
        return _ThresholdPlan(
            max(0, min(self._limit, situation.room)), DRAFT, learns=True, bound=self._bound
        )

    def observe(self, done: Round) -> None:
        """A bound learns nothing."""


@dataclass(slots=True)
class _ThresholdPlan(Plan):
    bound: float = 0.0
    tokens: int = 0

    def wants_token(self, confidence: float, *, must_verify: bool) -> bool:  # noqa: ARG002 - a `Plan`
        if confidence < self.bound:
            return False
        self.tokens += 1
        return True

    def keep(self) -> int:
        return self.tokens


class Oracle:
    """Knows every position's acceptance probability in advance, but no outcome: a fair bound.

    Each round it drafts the length that maximises expected tokens less their time at `rate`; the
    rate that makes this optimal is found by `best_oracle`. It wastes no draft pass and has
    nothing to learn, so a policy that learns need not reach it.
    """

    def __init__(self, chances: Sequence[float], world: World, rate: float) -> None:
        self._chances = chances
        self._world = world
        self._rate = rate
        self._at = 0

    def begin(self, *, follow_clock: bool) -> None:  # noqa: ARG002 - it has none
        """Start at the first position."""
        self._at = 0

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """All of them."""
        return drafters

    def plan(self, situation: Situation) -> Plan:
        """The best length from here on."""
        world, rate = self._world, self._rate
        cost = world.draft.seconds(situation.drafters[DRAFT].pending)
        chain, gain = 1.0, 1.0
        best, length = 1.0 - rate * world.target.seconds(1), 0
        for m in range(1, min(situation.room, LONGEST) + 1):
            chain *= self._chances[self._at + m - 1]
            gain += chain
            value = gain - rate * (cost + world.target.seconds(m + 1))
            if value > best:
                best, length = value, m
            cost += world.draft.seconds(1)
        return Plan(length)

    def observe(self, done: Round) -> None:
        """Move on."""
        self._at += done.emitted


def best_oracle(
    text: Text, world: World, *, known: Sequence[float] | None = None, tries: int = 4
) -> Replayed:
    """The oracle at its own rate (Dinkelbach: the rate that a replay at that rate reaches).

    Args:
        text: what is written.
        world: costs and luck.
        known: the probabilities that it is told; None for those of `text`.
        tries: iterations at most.
    """
    told = [place.chance for place in text] if known is None else known
    best = replay(Oracle(told, world, 1 / world.target.seconds(1)), text, world)
    for _ in range(tries):
        found = replay(Oracle(told, world, best.speed), text, world)
        if found.speed <= best.speed * (1 + 1e-4):
            break
        best = found
    return best


def calibrated(text: Text, *, bins: int = 20) -> list[float]:
    """Every position's acceptance probability as far as its confidence tells it.

    That is the a_k of the stopping rule: the mean chance of the positions with about the same
    confidence, known in advance for this very text.
    """
    order = sorted(range(len(text)), key=lambda i: text[i].confidence)
    known = [0.0] * len(text)
    size = max(1, -(-len(text) // bins))
    for start in range(0, len(order), size):
        alike = order[start : start + size]
        mean = sum(text[i].chance for i in alike) / len(alike)
        for i in alike:
            known[i] = mean
    return known


def steady(pool: Text, acceptance: float, length: int, *, seed: int = 0, run: int = 6) -> Text:
    """A text of about this mean acceptance, cut together from recorded positions.

    Runs of `run` positions are drawn, each with a probability that grows with its own acceptance
    (exponential tilting), so that confidence and acceptance stay together as they were recorded,
    and so do neighbours.
    """
    starts = range(max(1, len(pool) - run + 1))
    means = [sum(place.chance for place in pool[i : i + run]) / run for i in starts]
    low, high = -200.0, 200.0
    for _ in range(60):
        tilt = (low + high) / 2
        weights = _tilted(means, tilt)
        mean = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
        low, high = (tilt, high) if mean < acceptance else (low, tilt)
    drawn = random.Random(seed).choices(starts, weights, k=-(-length // run))
    return [place for i in drawn for place in pool[i : i + run]][:length]


def _tilted(means: Sequence[float], tilt: float) -> list[float]:
    top = max(tilt * mean for mean in means)
    return [math.exp(tilt * mean - top) for mean in means]
