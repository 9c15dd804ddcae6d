"""Replays policies over recorded answers with several drafters, and compares them to an oracle.

The answers were written under the coupled rule with one seed (the toy pair and its head), so that
they are the same whichever drafter runs. Each place of an answer holds every model's confidence in
the next token, the tokens that lookup would copy, and whether these were right. So a replayed round
accepts what the real one would have accepted, and its time follows from cost curves. A policy
that follows a clock may be shown disturbed times.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from localspec.drafter_names import LOOKUP
from localspec.engine.drafters.steps import Excerpt
from localspec.engine.length.cost import Costs, Curve, Points
from localspec.engine.length.gamma import LONGEST, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import BASELINE, Askable, Plan, Situation
from localspec.engine.record.stats import Round

RECORDED = Path(__file__).parents[1] / "tests/data/drafters_rounds.json"
COPYING = ("edit", "fix", "quote", "repeat")
OTHERS = ("story", "talk", "facts", "mathematics")
MOST = 64  # rows of a pass
CUT = 320  # tokens after which answers of real models were cut: a policy expects no other end
BEGINS = "begins"  # the name of the calibration of a copy's first token


@dataclass(frozen=True, slots=True)
class Look:
    """A model's pass at one place.

    Attributes:
        confidence: how sure it is of its best guess.
        chance: that its token is accepted.
        right: whether it is the text's next token.
    """

    confidence: float
    chance: float
    right: bool


@dataclass(frozen=True, slots=True)
class Copies:
    """What lookup would copy from one place on.

    Attributes:
        confidences: of each token.
        chances: of the tokens up to and including the first that differs from the text.
        right: how many leading tokens agree with the text.
    """

    confidences: Sequence[float] = ()
    chances: Sequence[float] = ()
    right: int = 0


NOTHING = Copies()


@dataclass(frozen=True, slots=True)
class Place:
    """One token of an answer.

    Attributes:
        looks: each model's pass there.
        copies: what lookup would copy.
        ends: passes of models that have left out all of the prompt but its end, if recorded.
        prompt: tokens before the answer, at its first place.
    """

    looks: Mapping[str, Look]
    copies: Copies = NOTHING
    ends: Mapping[str, Look] = field(default_factory=dict)
    prompt: int = 0


Answer = Sequence[Place]


@cache
def recorded(kinds: tuple[str, ...], temperature: float) -> Sequence[Answer]:
    """All answers of these kinds at this temperature, kind by kind."""
    return [[place for each in answers(kind, temperature) for place in each] for kind in kinds]


@cache
def answers(kind: str, temperature: float) -> Sequence[Answer]:
    """The recorded answers of one kind at one temperature."""
    texts = json.loads(RECORDED.read_text("utf-8"))["texts"]
    wanted = (kind, temperature)
    return [places_of(text) for text in texts if (text["kind"], text["temperature"]) == wanted]


def places_of(text: Mapping[str, Any]) -> Answer:
    """The places of one recorded answer."""
    by_model = {
        name: [
            Look(confidence, chance, right == "1")
            for confidence, chance, right in zip(*(its[key] for key in KEYS), strict=True)
        ]
        for name, its in text["models"].items()
    }
    return [
        Place({name: looks[at] for name, looks in by_model.items()}, _copies(*copies))
        for at, copies in enumerate(text["copies"])
    ]


def _copies(confidences: Sequence[int], chances: Sequence[int], right: int) -> Copies:
    """Read what lookup would copy; stored files hold percentages."""
    return Copies([sure / 100 for sure in confidences], [each / 100 for each in chances], right)


KEYS = ("confidences", "chances", "right")


@dataclass(frozen=True, slots=True)
class Prices:
    """Times of decodes, all in one unit: T(n) of the target, and of each model by name."""

    target: Points
    drafts: Mapping[str, Points] = field(default_factory=dict)

    @staticmethod
    def of(points: Points, steps: Mapping[str, float]) -> Prices:
        """Prices of models whose steps cost these shares of T(1), on curves of the same shape."""
        return Prices(
            points,
            {name: {n: step * s for n, s in points.items()} for name, step in steps.items()},
        )

    def costs(self) -> Costs:
        """The cost table that an automatic policy gets."""
        return Costs({0: self.target}, {name: {0: its} for name, its in self.drafts.items()})


@dataclass(slots=True)
class Clock:
    """What a policy sees of the seconds that decodes take.

    Attributes:
        weather: the factor on the time of a decode, by the moment at which it begins.
        now: the moment.
    """

    weather: Callable[[float], float]
    now: float = 0.0

    def shown(self, done: Round) -> Round:
        """The round with the times that the clock shows."""
        draft_s = done.draft_s * self.weather(self.now)
        self.now += draft_s
        verify_s = done.verify_s * self.weather(self.now)
        self.now += verify_s
        return replace(done, draft_s=draft_s, verify_s=verify_s, total_s=draft_s + verify_s)


def speed(
    policy: GammaPolicy, answers: Sequence[Answer], prices: Prices, *, goes_on: bool = False
) -> float:
    """Tokens per unit of time with which `policy` writes the answers, one after the other.

    The answers form one text, or with `goes_on` one conversation.
    """
    policy.begin(follow_clock=goes_on)
    answer = [place for each in answers for place in each]
    return len(answer) / sum(done.total_s for done in rounds(policy, answer, prices))


def rounds(
    policy: GammaPolicy, answer: Answer, prices: Prices, clock: Clock | None = None
) -> Iterator[Round]:
    """The rounds in which `policy`, which has begun, writes an answer.

    Their seconds are undisturbed; the policy sees those of the clock, if there is one.
    """
    target, at, before = Curve(prices.target), 0, answer[0].prompt if answer else 0
    caches = {name: _Cache(Curve(points), before) for name, points in prices.drafts.items()}
    while at < len(answer):
        room, length = len(answer) - at - 1, before + at
        copies = answer[at].copies.confidences[:room]
        drafters = {name: cache.state(length) for name, cache in caches.items()}
        situation = Situation(room, length, max(room + 1, CUT - at), drafters, copies)
        plan = policy.plan(situation) if at else BASELINE
        cache = caches.get(plan.drafter) if plan.limit else None
        pending = cache.reads(length, whole=plan.whole) if cache else 0
        done = _round(plan, answer[at : at + MOST], target, cache, pending)
        done = replace(done, context=length)
        policy.observe(done if clock is None else clock.shown(done))
        if cache and done.draft_passes:
            stay = min(done.accepted, done.drafted - done.copied)
            cache.read = length + min(stay, done.draft_passes - 1)
        at += done.emitted
        yield done


@dataclass(slots=True)
class _Cache:
    """A model, and what its cache holds of a text.

    Attributes:
        model: the times of its decodes.
        prompt: tokens of the text before the answer.
        excerpt: what it leaves out.
        read: tokens that it holds or leaves out.
    """

    model: Curve
    prompt: int
    excerpt: Excerpt = field(default_factory=Excerpt)
    read: int = 0

    def state(self, length: int) -> Askable:
        """What it would read of a text of this length."""
        return self.excerpt.state(length, max(1, length - self.read))

    def reads(self, length: int, *, whole: bool) -> int:
        """The tokens that its next pass reads, as the plan wants."""
        state = self.state(length)
        self.excerpt.cuts(length, max(1, length - self.read), whole=whole)
        return state.whole if whole else state.pending

    def looks(self, name: str, places: Answer) -> list[Look]:
        """Its passes at these places."""
        if self.excerpt.left_out and self.excerpt.first < self.prompt:
            return [place.ends.get(name) or place.looks[name] for place in places]
        return [place.looks[name] for place in places]


def _round(plan: Plan, ahead: Answer, target: Curve, cache: _Cache | None, pending: int) -> Round:
    """One round as the engine makes it, if no model reads lookup's tokens."""
    room = len(ahead) - 1
    looks = cache.looks(plan.drafter, ahead[: min(plan.limit, room)]) if cache else []
    own, passes = _written(plan, looks)
    right = _right(looks[:own])
    # After a token that differs from the text lookup finds nothing: it compares two tokens.
    behind = ahead[own].copies if right == own else NOTHING
    sure = behind.confidences[: room - own]
    copied = (
        plan.copies(sure, own) if passes else min(plan.limit, len(sure)) * (plan.drafter == LOOKUP)
    )
    accepted = right + min(behind.right, copied)
    model = cache.model if cache else None
    draft_s = model.seconds(pending) + (passes - 1) * model.seconds(1) if model else 0.0
    verify_s = target.seconds(own + copied + 1)
    copies = ahead[0].copies
    return Round(
        tokens=(0,) * (accepted + 1),
        gamma=plan.aim,
        drafted=own + copied,
        accepted=accepted,
        draft_s=draft_s,
        verify_s=verify_s,
        total_s=draft_s + verify_s,
        draft_prefill=pending,
        left_out=cache.excerpt.left_out if cache else 0,
        draft_passes=passes,
        drafter=plan.drafter if passes or copied else "",
        copied=copied,
        confidences=tuple(look.confidence for look in looks[:passes]),
        chances=tuple(look.chance for look in looks[: min(passes, right + 1)]),
        copy_confidences=tuple(copies.confidences[: len(copies.chances)][: accepted + 1]),
        copy_chances=tuple(copies.chances[: accepted + 1]),
    )


def _written(plan: Plan, looks: Sequence[Look]) -> tuple[int, int]:
    """Follow the plan along a model's passes; return the kept tokens and the passes."""
    tokens = passes = 0
    for look in looks:
        if passes and not plan.wants_pass():
            break
        passes += 1
        if not plan.wants_token(look.confidence, must_verify=False):
            break
        tokens += 1
    return min(tokens, plan.keep()), passes


def _right(looks: Sequence[Look]) -> int:
    return sum(1 for _ in takewhile(lambda look: look.right, looks))


@dataclass(slots=True)
class Chosen(Plan):
    """A plan of one model's tokens, and of a number of copied ones after them."""

    tail: int = 0

    def copies(self, confidences: Sequence[float], drafted: int) -> int:  # noqa: ARG002 - all
        """The wanted number, or all if there are fewer."""
        return min(self.tail, len(confidences))


class Always(FixedGamma):
    """One drafter in every round, with a fixed length; after a model's, up to 8 copied tokens."""

    def __init__(self, name: str, length: int) -> None:
        """Use the drafter `name`; a length of 0 decodes without drafting."""
        super().__init__(length)
        self._name = name

    def plan(self, situation: Situation) -> Plan:
        """Plan as many tokens as there is room for, or as there are to copy."""
        room = len(situation.copies) if self._name == LOOKUP else situation.room
        length = min(self.gamma, room)
        return Chosen(length, self._name, whole=True, tail=8) if length else BASELINE


# ---------------------------------------------------------------- the oracle

Told = Callable[[float], float]
"""Maps a confidence to the mean chance of the tokens with about that confidence."""


def told(answer: Answer) -> dict[str, Told]:
    """The acceptance at each confidence of each drafter, computed from this answer."""
    pairs: dict[str, list[tuple[float, float]]] = {LOOKUP: [], BEGINS: []}
    for place in answer:
        for name, look in place.looks.items():
            pairs.setdefault(name, []).append((look.confidence, look.chance))
        copies = [*zip(place.copies.confidences, place.copies.chances, strict=False)]
        pairs[BEGINS] += copies[:1]
        pairs[LOOKUP] += copies[1:]
    return {name: _told(sorted(found)) for name, found in pairs.items()}


_BINS, _ALIKE = 20, 50  # groups of tokens with about one confidence, and how many are in one


def _told(pairs: Sequence[tuple[float, float]]) -> Told:
    size = max(_ALIKE, -(-len(pairs) // _BINS))
    groups = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    highest = [group[-1][0] for group in groups]
    shares = [fmean(chance for _, chance in group) for group in groups]

    def share(confidence: float) -> float:
        return shares[min(bisect_left(highest, confidence), len(shares) - 1)] if shares else 0.0

    return share


class Oracle:
    """Knows the confidences at all places of the answer beforehand, which makes a fair bound.

    At each place it makes the choice with the least expected time until the end: a number of a
    model's tokens, with copied ones after them, copied ones alone, or none. It wastes no pass, and
    has nothing to find out. Let S_k be the chance that the first k tokens of a choice are right,
    R(at) the time from a place to the end, and t the time of the round. Then

        R(at) = min t + sum_{k<m} (S_k - S_{k+1}) R(at + k + 1) + S_m R(at + m + 1).
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        prices: Prices,
        names: Collection[str],
        owed: float,
        copies: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Choose among `names`.

        `owed` is the share of a model's catching up that counts as this round's cost; the rest
        belongs to later rounds. `copies` are the chances of the copied tokens at all places; None
        for what their confidences are worth in these answers.
        """
        needed = copies is None or prices.drafts
        known = [
            (place, its)
            for each in answers
            for its in [told(each) if needed else {}]
            for place in each
        ]
        self._chances = {
            name: [its[name](place.looks[name].confidence) for place, its in known]
            for name in prices.drafts
            if name in names
        }
        self._copies = copies or [
            [
                its[LOOKUP if i else BEGINS](sure)
                for i, sure in enumerate(place.copies.confidences)
                if LOOKUP in names
            ]
            for place, its in known
        ]
        self._times = Curve(prices.target).times(MOST + 1)
        self._drafts = {name: Curve(points) for name, points in prices.drafts.items()}
        self._owed, self._at = owed, 0
        self._rest = [0.0] * (len(known) + 1)  # R
        for at in reversed(range(len(known))):
            usual = dict.fromkeys(self._chances, 2)
            self._rest[at] = self._best(at, usual, len(known) - at - 1)[1]

    def begin(self, *, follow_clock: bool) -> None:  # noqa: ARG002 - it has none
        """Start at the first place."""
        self._at = 0

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """All of them."""
        return drafters

    def plan(self, situation: Situation) -> Plan:
        """The best choice from here on."""
        pending = {name: each.pending for name, each in situation.drafters.items()}
        return self._best(self._at, pending, situation.room)[0]

    def observe(self, done: Round) -> None:
        """Move on."""
        self._at += done.emitted

    def _best(self, at: int, pending: Mapping[str, int], room: int) -> tuple[Plan, float]:
        """The best choice at a place, and the time from there to the end."""
        tail, best = self._ended(at, 0, 1.0, room)
        plan: Plan = Plan(tail, LOOKUP) if tail else BASELINE
        for name, chances in self._chances.items():
            model = self._drafts[name]
            usual = model.seconds(min(pending[name], 2))
            spent = usual + self._owed * (model.seconds(pending[name]) - usual)
            chain = 1.0
            for m in range(1, min(room, LONGEST) + 1):
                right = chain * chances[at + m - 1]
                spent += (chain - right) * self._rest[at + m]
                chain = right
                if chain < _HOPELESS:
                    break
                tail, ending = self._ended(at, m, chain, room - m)
                if spent + ending < best:
                    best, plan = spent + ending, Chosen(m, name, tail=tail)
                spent += model.seconds(1)
        return plan, best

    def _ended(self, at: int, drafted: int, chain: float, room: int) -> tuple[int, float]:
        """The best number of copied tokens after `drafted` ones, and the time of the rest."""
        rest, times, spent = self._rest, self._times, 0.0
        length, best = 0, times[drafted + 1] + chain * rest[at + drafted + 1]
        most = min(room, MOST - 1 - drafted)
        for m, chance in enumerate(self._copies[at + drafted][:most], 1):
            right = chain * chance
            spent += (chain - right) * rest[at + drafted + m]
            chain = right
            taken = times[drafted + m + 1] + spent + chain * rest[at + drafted + m + 1]
            if taken < best:
                length, best = m, taken
            if chain < _HOPELESS:
                break
        return length, best


_HOPELESS = 0.01


def best_oracle(answers: Sequence[Answer], prices: Prices) -> float:
    """The highest speed of any oracle, and of any fixed drafter and length chosen in hindsight.

    The oracles may ask all drafters or lookup alone, and count more or less of a model's catching
    up as this round's cost.
    """
    every = (*prices.drafts, LOOKUP)
    policies: list[GammaPolicy] = [Oracle(answers, prices, every, owed) for owed in (1.0, 0.3, 0.0)]
    policies.append(Oracle(answers, prices, (LOOKUP,), 0.0))
    policies += [Always(name, length) for name in prices.drafts for length in (0, 1, 2, 3, 4, 6, 8)]
    return max(speed(policy, answers, prices) for policy in policies)
