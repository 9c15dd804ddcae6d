"""Which pairs suit this machine: the speed to expect of each, their order, and a short proposal.

An expectation is made of what was measured when a pair was loaded here. One token takes the time in
which its weights are read: as much longer as they are more bytes, but for what target and draft
together show to be none of theirs. Every further token of a check takes the time in which they are
multiplied: as much longer as they are more weights, and those of a Q4_K_M file are three times as
many to a byte as those of F16. What drafts is taken to be accepted as `ACCEPTED` says. No
llama.cpp, no numpy: lists and the screen ask this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from localspec import formats, machine, private
from localspec.engine.length.stopping import gamma_for
from localspec.engine.record.stats import DRAFT, MTP
from localspec.pairs.disk import folders
from localspec.pairs.names.catalogue import ListedPair
from localspec.safe_text import one_line

ACCEPTED: Final = {DRAFT: 0.7, MTP: 0.7}
"""Share of a drafter's tokens that is taken to be accepted; of copies nothing can be expected."""

LEAST: Final = {"chat": 6.0, "code": 6.0, "reasoning": 10.0}
"""Tokens per second from which on a kind of pair is no pain: people read about six."""

_MOST_WEIGHTS: Final = 1 << 50  # bytes
_FEWEST_BITS, _MOST_BITS = 0.5, 64.0  # of a weight
_BRIEF, _LONG = 1e-7, 1e5  # seconds that a decode takes, at least and at most
_HEAD: Final = 0.05  # of a target's bytes: what a head inside it reads
_ROOM: Final = 1.225  # bytes that a model takes, for every byte of its files
_WORTH_A_WORD: Final = 1.05
_CARD: Final = " on a card"
_DOUBTFUL: Final = (
    " (doubtful: something disturbed that; it is measured again in an idle moment of the chat)"
)
_HERE: Final = ("installed", "found")  # states of pairs that need no download
_ORDER: Final = ("fits", "slow", "tight", "too large")


@dataclass(frozen=True, slots=True)
class PairCosts:
    """What a pair was measured to cost here.

    Attributes:
        weights: bytes of the target's weights, as its file holds them.
        times: seconds of its decodes of 0 (no matter), 1, 2, ... tokens.
        overhead: seconds of a decode that no weights explain.
        step: seconds of a drafted token; None where no model drafts.
        on_device: whether an accelerator computed.
        bits: of one of these weights; 0 where nothing follows for other pairs: of a mixture of
            experts, whose tokens read some of them, and of what earlier versions kept.
        doubtful: whether something disturbed the measurement.
    """

    weights: int
    times: tuple[float, ...]
    overhead: float = 0.0
    step: float | None = None
    on_device: bool = False
    bits: float = 0.0
    doubtful: bool = False

    def replaces(self, before: PairCosts) -> bool:
        """Whether it is to be kept in place of what was measured of the pair there before.

        A draft tells more than none: what a decode takes that no weights explain. Whatever
        disturbs a measurement makes it longer.
        """
        if (self.weights, self.bits) != (before.weights, before.bits):  # that name is another's now
            return True
        if (self.step is None) != (before.step is None):
            return before.step is None
        if self.doubtful != before.doubtful:
            return before.doubtful
        return self.times[1] < before.times[1]

    @property
    def per_byte(self) -> float:
        """Seconds that a byte of weights takes."""
        return (self.times[1] - self.overhead) / self.weights

    @property
    def usable(self) -> bool:
        """Whether it can be reckoned with; a damaged file says anything."""
        spans = [*self.times[1:], *([] if self.step is None else [self.step])]
        sound = len(self.times) > 1 and all(_BRIEF <= span <= _LONG for span in spans)
        sound &= not self.bits or _FEWEST_BITS <= self.bits <= _MOST_BITS
        return sound and 0 < self.weights < _MOST_WEIGHTS and 0 <= self.overhead < self.times[1]


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What is known of this machine.

    Attributes:
        processor: whose; of another machine nothing is believed.
        pairs: what was measured, by the pairs' names, those on a card with `_CARD` behind them.
        room: bytes free on accelerators with memory of their own; None without any.
        advice: about a card that llama.cpp was not built for, and the command that helps.
    """

    processor: str
    pairs: dict[str, PairCosts] = field(default_factory=dict)
    room: int | None = None
    advice: tuple[str, str] | None = None

    def own(self, name: str) -> PairCosts | None:
        """What the pair `name` itself was measured to cost, on a card where it ran on one."""
        return self.pairs.get(f"{name}{_CARD}") or self.pairs.get(name)

    def largest(self, *, on_device: bool) -> tuple[str, PairCosts] | None:
        """The pair that tells most of others: the largest that ran there, mixtures left out."""
        told = (item for item in self.pairs.items() if item[1].bits)
        there = [item for item in told if item[1].on_device == on_device]
        return max(there, key=lambda item: item[1].weights, default=None)

    def basis(self, pairs: Sequence[RankedPair]) -> str:
        """Where the speeds of `pairs` come from, in words; empty where nothing was measured.

        What is taken to be accepted is told of those alone that draft, and gain by it.
        """
        one = self.largest(on_device=True) or self.largest(on_device=False)
        told = [pair.measured for pair in pairs if pair.baseline]
        if told and all(told):
            made = "as measured"
        elif one is None:
            return ""
        else:
            name, rate = one_line(one[0], 40), formats.size(round(1 / one[1].per_byte))
            made = f"expected from {name}, which reads {rate} of weights a second here"
        reckoned = [self.own(pair.row.name) for pair in pairs if pair.measured]
        reckoned += [one[1]] if one and not all(told) else []
        if any(costs is not None and costs.doubtful for costs in reckoned):
            made += _DOUBTFUL
        accepted = f", if {formats.percent(ACCEPTED[DRAFT])} of drafted tokens are accepted"
        return made + (accepted if any(pair.gains for pair in pairs) else "")


def overhead(weights: int, seconds: float, draft_weights: int, step: float) -> float:
    """Seconds of a decode that no weights explain: where the line through two models begins.

    Args:
        weights: bytes of the target's.
        seconds: of its decode of one token.
        draft_weights: bytes of its draft's, which ran beside it.
        step: seconds of a drafted token.

    Returns:
        0 where the smaller model is not the faster one: they ran in different places, or something
        disturbed one of them
    """
    more = weights - draft_weights
    if more <= 0 or seconds <= step:
        return 0.0
    return max(0.0, seconds - (seconds - step) / more * weights)


def recall() -> MachineSpeed | None:
    """What was measured on this machine; None where nothing was."""
    found = private.read_json(_path(), MachineSpeed)
    if found is None:
        return None
    pairs = {name: one for name, one in found.pairs.items() if one.usable}
    mine = found.processor == machine.processor_name()
    room = None if found.room is None else max(0, found.room)
    return replace(found, pairs=pairs, room=room) if mine else None


def remember(
    name: str, measured: PairCosts, room: int | None, advice: tuple[str, str] | None
) -> None:
    """Keep what the pair `name` costs; a folder that cannot be written costs the memory alone.

    What it costs on a card and on the processor is kept side by side.
    """
    pairs = dict(known.pairs) if (known := recall()) else {}
    key = f"{name}{_CARD}" if measured.on_device else name
    before = pairs.get(key)
    if before is None or before.on_device != measured.on_device or measured.replaces(before):
        pairs[key] = measured
    speed = MachineSpeed(machine.processor_name(), pairs, room, advice)
    with suppress(OSError):
        private.write_json(_path(), speed)


def forget(name: str) -> None:
    """Let go of what the pair `name` costs, on a card too."""
    known = recall()
    if known is not None and known.own(name) is not None:
        pairs = {key: one for key, one in known.pairs.items() if key.removesuffix(_CARD) != name}
        with suppress(OSError):
            private.write_json(_path(), replace(known, pairs=pairs))


def _path() -> Path:
    return folders.cache_folder() / "speed.json"


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A pair and what to expect of it.

    Attributes:
        row: the pair.
        verdict: ``fits``, ``slow`` (fits, and writes slower than one reads), ``tight`` or
            ``too large``.
        baseline: tokens per second without drafting; None where nothing tells.
        drafted: the same with what drafts for it, at least `baseline`.
        measured: whether its costs were measured; what is accepted is expected all the same.
    """

    row: ListedPair
    verdict: str
    baseline: float | None = None
    drafted: float | None = None
    measured: bool = False

    @property
    def gains(self) -> bool:
        """Whether drafting is expected to be worth a word."""
        return (self.drafted or 0.0) > _WORTH_A_WORD * (self.baseline or 0.0)

    @property
    def speeds(self) -> str:
        """Tokens per second, without drafting and with it: ``9.4 › 14``; empty where unknown."""
        more = f" › {_short(self.drafted)}" if self.gains else ""
        return f"{_short(self.baseline)}{more}" if self.baseline else ""

    @property
    def offer(self) -> str:
        """What it takes and what to expect, in one line."""
        row = self.row
        size = formats.size(row.n_bytes) + ("" if row.state in _HERE else " to fetch")
        with_it = "the head inside it" if row.drafter == MTP else "its draft"
        more = f", {_short(self.drafted)} with {with_it}" if self.gains else ""
        how = "measured" if self.measured else "expected"
        slow = ", slower than one reads" if self.verdict == "slow" else ""
        speed = (
            f"{how} {_short(self.baseline)} tokens/s{more}{slow}" if self.baseline else self.verdict
        )
        return f"{size}, {speed}, {row.licence or 'licence not stated'}"

    @property
    def short(self) -> str:
        """The speeds, or why there are none: what a narrow column has room for."""
        if self.verdict in ("tight", "too large") or not self.speeds:
            return self.verdict
        return f"slow {_short(self.drafted)}" if self.verdict == "slow" else self.speeds


def _short(speed: float | None) -> str:
    speed = speed or 0.0
    return f"{speed:.1f}" if speed < 10 else f"{speed:,.0f}"


def ranked(rows: Iterable[ListedPair], speed: MachineSpeed | None) -> list[RankedPair]:
    """The pairs, the best for this machine first; in their own order where nothing was measured.

    Of those that write as fast as one reads the largest is the best, of the others the fastest.
    The starter comes first, then what is installed.
    """
    found = [_expected(row, speed) for row in rows]
    return sorted(found, key=_key) if any(one.baseline for one in found) else found


def _key(one: RankedPair) -> tuple[float, ...]:
    row, fastest = one.row, one.drafted or 0.0
    place = 0 if row.kind == "starter" else 1 if row.state != "available" else 2
    size = row.memory_gb if one.verdict == "fits" else 0
    by_size = row.n_bytes if one.verdict in _ORDER[2:] else 0
    return (place, _ORDER.index(one.verdict), -size, by_size, -fastest)


def proposed(pairs: Sequence[RankedPair]) -> list[RankedPair]:
    """The best for every purpose, of `ranked` pairs: at most one each, none that does not fit."""
    best = sorted((one for one in pairs if one.baseline), key=lambda one: _key(one)[1:])
    found = []
    for kind in LEAST:
        of_kind = [one for one in best if one.row.kind == kind and one.verdict in _ORDER[:2]]
        found += of_kind[:1]
    return found


def _expected(row: ListedPair, speed: MachineSpeed | None) -> RankedPair:
    """What to expect of `row`, its memory counted with the accelerators' own."""
    if speed is not None and speed.room:
        row = replace(row, fit=row.fit.beside(speed.room))
    known = None if speed is None else speed.own(row.name)
    own = known is not None and row.state in _HERE
    costs = known if own else None if speed is None else expected_costs(row, speed)
    if costs is None or row.fit.verdict == "too large":
        return RankedPair(row, row.fit.verdict)
    baseline = 1 / costs.times[1]
    drafted = baseline * _gain(row, costs)
    slow = row.fit.verdict == "fits" and drafted < LEAST.get(row.kind, 0.0)
    return RankedPair(row, "slow" if slow else row.fit.verdict, baseline, drafted, own)


def expected_costs(row: ListedPair, speed: MachineSpeed) -> PairCosts | None:
    """What `row` would cost, by the largest pair that ran where it would run."""
    device, host = speed.largest(on_device=True), speed.largest(on_device=False)
    basis = device or host
    if basis is None or not row.target_bytes:
        return None
    like = basis[1]
    times = _times(row, like)
    if device is not None and speed.room is not None and row.target_bytes * _ROOM > speed.room:
        if host is None:  # nobody knows how fast the processor does the rest
            return None
        like, share = host[1], speed.room / (row.target_bytes * _ROOM)
        both = zip(times, _times(row, like), strict=False)
        times = [share * there + (1 - share) * here for there, here in both]
    step = None
    if row.drafter == DRAFT:
        step = like.overhead + row.draft_bytes * like.per_byte
    elif row.drafter == MTP:
        step = like.overhead + _HEAD * row.target_bytes * row.active * like.per_byte
    return PairCosts(row.target_bytes, tuple(times), like.overhead, step, like.on_device)


def _times(row: ListedPair, like: PairCosts) -> list[float]:
    """Seconds of decodes of 0, 1, 2, ... tokens where all of `row` runs as `like` does.

    With B bytes and W weights: T(n) = a + B r + W c(n), of which a and r are those of `like`, and
    c(n) is what its further tokens took, over its weights.
    """
    read = row.target_bytes * row.active
    one = like.overhead + read * like.per_byte
    more = read / like.weights * like.bits / (row.bits or like.bits)  # weights, over those of like
    return [one + more * max(0.0, each - like.times[1]) for each in like.times]


def _gain(row: ListedPair, costs: PairCosts) -> float:
    """What drafting is expected to bring, over none.

    Nothing for a mixture of experts: every further token reads other experts.
    """
    if costs.step is None or row.drafter not in ACCEPTED or row.active < 1:
        return 1.0
    return gamma_for(ACCEPTED[row.drafter], costs.times, costs.step)[1]
