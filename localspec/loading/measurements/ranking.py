"""Ranks pairs for this machine by expected speed, and proposes a few.

Expectations derive from pairs that were measured when loaded here. Decode time grows with the bytes
of the weights, plus a fixed overhead, which target and draft together reveal. Every further token
of a verification adds the time of its multiplications, in proportion to the number of weights; a
Q4_K_M file has three times as many weights per byte as F16. Acceptance is assumed as in `ACCEPTED`,
unless that of the head that drafts was measured.
This module loads neither llama.cpp nor numpy: lists and the screen use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from localspec import formats, machine, private
from localspec.drafter_names import DRAFT, MTP
from localspec.engine.length.stopping import best_draft, gamma_for
from localspec.pairs.disk import folders
from localspec.pairs.memory.free import Device, FreeMemory
from localspec.pairs.memory.outlook import ROOM
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.names.repository_files import weight_type
from localspec.safe_text import one_line

ACCEPTED: Final = {DRAFT: 0.7, MTP: 0.7}
"""Assumed acceptance of each drafter; copied text allows no assumption."""

HEAD_STEP: Final = (0.4e9 * 4.8 + 248_320 * 5_120 * 6.56) / (27e9 * 4.8)
"""Bytes that a step of a target's own head reads, over those that a token of the target reads.

Of Qwen3.8-27B: the MTP layer (0.4 of 27 billion weights) and the output matrix (248,320 x 5,120),
which has 6.56 bits a weight in files with some 4.8.
"""

LEAST: Final = {"chat": 6.0, "code": 6.0, "reasoning": 10.0}
"""Tokens per second from which on a kind of pair is fast enough: people read about six."""

_MOST_WEIGHTS: Final = 1 << 50  # bytes
_FEWEST_BITS, _MOST_BITS = 0.5, 64.0  # of a weight
_BRIEF, _LONG = 1e-7, 1e5  # limits for the seconds of a decode
_FAR: Final = 4  # a file of more times a measured model's bytes cannot be derived from it
_WORTH_A_WORD: Final = 1.05
_CARD: Final = " on a card"
_HERE: Final = ("installed", "found")  # states of pairs that need no download
_UNKNOWN: Final = {
    "fits": "its speed is not known yet",
    "tight": "it fits once other programs make room",
    "too large": "too large for this machine",
}
_ORDER: Final = ("fits", "slow", "tight", "too large")


@dataclass(frozen=True, slots=True)
class PairCosts:
    """The measured costs of a pair on this machine.

    Attributes:
        weights: bytes of the target's weights in its file.
        times: seconds of decodes of 0 (unused), 1, 2, ... tokens.
        overhead: seconds of a decode that do not depend on the weights.
        step: seconds per token of its own drafter, or per block; None if none was measured.
        read: seconds in which it reads what a round left, without guesses of a block; None if
            unknown.
        on_device: whether an accelerator computed.
        bits: per weight; 0 if other pairs cannot be derived from this one: a mixture of experts,
            which reads some of its weights per token, a model that is partly on a card or is read
            from disk, or a record of an earlier version.
        doubtful: whether something disturbed the measurement.
        weight_type: ggml's name of the type of most weights, such as ``Q4_K``; empty if unknown.
        draft_weights: bytes of the weights of the drafter with this step in its file.
        left_out: whether its own drafter was left out, as it saves no time.
        block: the most tokens that a step guesses; 0 for one.
    """

    weights: int
    times: tuple[float, ...]
    overhead: float = 0.0
    step: float | None = None
    on_device: bool = False
    bits: float = 0.0
    doubtful: bool = False
    weight_type: str = ""
    draft_weights: int = 0
    left_out: bool = False
    block: int = 0
    read: float | None = None

    @property
    def judges_draft(self) -> bool:
        """Whether it is known what the pair's own drafter is worth."""
        return self.step is not None or self.left_out

    def replaces(self, before: PairCosts) -> bool:
        """Whether to store it in place of the measurement `before` of the same pair.

        One from which others can be derived tells more, and so does one with a draft: it separates
        the overhead. Disturbances only make decodes longer. An unknown type counts as the same.
        """
        types = {self.weight_type, before.weight_type} - {""}
        bits = {self.bits, before.bits} - {0.0}
        if self.weights != before.weights or len(types) > 1 or len(bits) > 1:
            return True  # another pair
        if bool(self.bits) != bool(before.bits):
            return not before.bits
        if self.judges_draft != before.judges_draft:
            return self.judges_draft
        if self.doubtful != before.doubtful:
            return before.doubtful
        if self.draft_weights != before.draft_weights:
            return True  # another draft
        return self.times[1] < before.times[1]

    @property
    def per_byte(self) -> float:
        """Seconds per byte of weights."""
        return (self.times[1] - self.overhead) / self.weights

    @property
    def usable(self) -> bool:
        """Whether the values make sense; a damaged file may hold anything."""
        spans = [*self.times[1:], *(one for one in (self.step, self.read) if one is not None)]
        sound = len(self.times) > 1 and all(_BRIEF <= span <= _LONG for span in spans)
        sound &= not self.bits or _FEWEST_BITS <= self.bits <= _MOST_BITS
        return sound and 0 < self.weights < _MOST_WEIGHTS and 0 <= self.overhead < self.times[1]


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What is known about this machine's speed.

    Attributes:
        processor: its name; data of another machine is ignored.
        pairs: measurements by pair name, with `_CARD` appended for those on a card.
        room: bytes free on accelerators with their own memory; None without any.
        advice: about a card that llama.cpp was not built for, and the command that helps.
        measured_with: the machine with its cards, and the build of llama.cpp.
    """

    processor: str
    pairs: dict[str, PairCosts] = field(default_factory=dict)
    room: int | None = None
    advice: tuple[str, str] | None = None
    measured_with: str = ""

    def own(self, name: str) -> PairCosts | None:
        """The measured costs of the pair `name`; those from a card are preferred."""
        return self.pairs.get(f"{name}{_CARD}") or self.pairs.get(name)

    def largest(self, *, on_device: bool) -> tuple[str, PairCosts] | None:
        """The best pair to derive others from: the largest that ran there, mixtures left out.

        One that was measured in calm goes before larger ones that were not.
        """
        told = (item for item in self.pairs.items() if item[1].bits)
        there = [item for item in told if item[1].on_device == on_device]
        return max(there, key=lambda item: (not item[1].doubtful, item[1].weights), default=None)

    @property
    def disturbed(self) -> bool:
        """Whether something disturbed every measurement from which others can be derived."""
        found = self.largest(on_device=True) or self.largest(on_device=False)
        return found is not None and found[1].doubtful

    def basis(self, pairs: Sequence[RankedPair]) -> str:
        """Say where the speeds of `pairs` come from; empty if nothing was measured.

        The assumed acceptance is only mentioned for pairs that gain by it.
        """
        one = self.largest(on_device=True) or self.largest(on_device=False)
        told = [pair.measured for pair in pairs if pair.baseline]
        reckoned = [self.own(pair.row.name) for pair in pairs if pair.measured]
        if told and all(told):
            made, rough = "as measured", ", though on a busy machine"
        elif one is None:
            return ""
        else:
            name, rate = one_line(one[0], 40), formats.size(round(1 / one[1].per_byte))
            made = f"expected from {name}, which reads {rate} of weights a second here"
            rough = "; a rough estimate: the machine was busy"
            reckoned.append(one[1])
        accepted = f", if {formats.percent(ACCEPTED[DRAFT])} of drafted tokens are accepted"
        assumed = any(pair.gains and pair.row.accepted is None for pair in pairs)
        doubtful = any(costs is not None and costs.doubtful for costs in reckoned)
        return made + (accepted if assumed else "") + (rough if doubtful else "")


def overhead(weights: int, seconds: float, draft_weights: int, step: float) -> float:
    """The intercept of the line through two models: decode time that weights do not explain.

    Args:
        weights: bytes of the target's.
        seconds: of the target's decode of one token.
        draft_weights: bytes of its draft's, which ran at the same time.
        step: seconds per drafted token.

    Returns:
        0 if the smaller model is not faster: they ran in different places, or something disturbed
            one of them.
    """
    more = weights - draft_weights
    if more <= 0 or seconds <= step:
        return 0.0
    return max(0.0, seconds - (seconds - step) / more * weights)


def recall() -> MachineSpeed | None:
    """The stored measurements of this machine; None without any."""
    found = private.read_json(_path(), MachineSpeed)
    if found is None:
        return None
    pairs = {name: one for name, one in found.pairs.items() if one.usable}
    mine = found.processor == machine.processor_name()
    room = None if found.room is None else max(0, found.room)
    return replace(found, pairs=pairs, room=room) if mine else None


def remember(
    name: str,
    measured: PairCosts,
    room: int | None,
    advice: tuple[str, str] | None,
    measured_with: str = "",
) -> None:
    """Store the costs of the pair `name`; if the folder is read-only, nothing is stored.

    Costs on a card and on the processor are stored separately. Those of all pairs that were
    measured with other cards or another build are dropped: the best would be kept for ever.
    """
    known = recall()
    pairs = dict(known.pairs) if known and known.measured_with == measured_with else {}
    key = f"{name}{_CARD}" if measured.on_device else name
    before = pairs.get(key)
    if before is None or before.on_device != measured.on_device or measured.replaces(before):
        pairs[key] = measured
    else:
        pairs[key] = replace(before, weight_type=before.weight_type or measured.weight_type)
    speed = MachineSpeed(machine.processor_name(), pairs, room, advice, measured_with)
    with suppress(OSError):
        private.write_json(_path(), speed)


def forget(name: str) -> None:
    """Forget the costs of the pair `name`, also those on a card."""
    known = recall()
    if known is not None and known.own(name) is not None:
        pairs = {key: one for key, one in known.pairs.items() if key.removesuffix(_CARD) != name}
        with suppress(OSError):
            private.write_json(_path(), replace(known, pairs=pairs))


def free_as_measured() -> FreeMemory:
    """The free memory for a pair, with cards as they were when a model was last loaded.

    No driver is loaded to ask them.
    """
    room = (recall() or MachineSpeed("")).room
    cards = (Device(room),) if room else ()
    return FreeMemory(machine.available(), cards, machine.address_space_left(), machine.total())


def drafted_speed(quant: str, n_bytes: int) -> float | None:
    """Tokens per second to expect, with drafting, of a dense model's file: to compare files.

    It derives from the largest model with weights of the same type that was measured here. The
    acceptance is that of `ACCEPTED`, and drafting itself is taken to cost no time.

    Args:
        quant: of the file, such as ``Q4_K_M``.
        n_bytes: of its weights.

    Returns:
        None if no dense model with weights of this type was measured here in calm, or only models
            much smaller than the file.
    """
    known, kind = recall() or MachineSpeed(""), weight_type(quant)
    alike = {
        name: one
        for name, one in known.pairs.items()
        if one.weight_type == kind != "" and not one.doubtful and n_bytes <= _FAR * one.weights
    }
    on_device = known.largest(on_device=True) is not None
    found = replace(known, pairs=alike).largest(on_device=on_device)
    if found is None:
        return None
    times = _times(n_bytes, found[1].bits, found[1])
    return gamma_for(ACCEPTED[DRAFT], times, 0.0)[1] / times[1]


def _path() -> Path:
    return folders.cache_folder() / "speed.json"


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A pair and what to expect of it.

    Attributes:
        verdict: ``fits``, ``slow`` (fits, but writes slower than people read), ``tight`` or ``too
            large``.
        baseline: tokens per second without drafting; None if unknown.
        drafted: tokens per second with its drafters, at least `baseline`.
        measured: whether its costs were measured here; the acceptance may be assumed even then, and
            the step of a drafter that was never loaded.
        modest: whether it leaves other programs enough memory.
        doubtful: whether its speed rests on a measurement that something disturbed.
    """

    row: ListedPair
    verdict: str
    baseline: float | None = None
    drafted: float | None = None
    measured: bool = False
    modest: bool = False
    doubtful: bool = False

    @property
    def gains(self) -> bool:
        """Whether the expected gain of drafting is worth mentioning."""
        return (self.drafted or 0.0) > _WORTH_A_WORD * (self.baseline or 0.0)

    @property
    def speeds(self) -> str:
        """Tokens per second, without and with drafting: ``9.4, 14 with drafting``; or empty."""
        more = f", {_short(self.drafted)} with drafting" if self.gains else ""
        return f"{_short(self.baseline)}{more}" if self.baseline else ""

    @property
    def offer(self) -> str:
        """What to expect of it, in a line that can be read aloud."""
        row, licence = self.row, self.row.licence or "licence not stated"
        size = formats.size(row.n_bytes) + ("" if row.state in _HERE else " to fetch")
        return f"{self.speed}; {size}, {licence}"

    @property
    def speed(self) -> str:
        """Its expected speed, with a word on drafting, or why the speed is not known."""
        if not self.baseline:
            return _UNKNOWN[self.verdict]
        about = "" if self.measured else "about "
        drafted = f", {_short(self.drafted)} with drafting" if self.gains else ""
        slow = ": slower than reading speed" if self.verdict == "slow" else ""
        alone = "" if self.gains else f" ({self._alone()})"
        return f"{about}{_short(self.baseline)} tokens/s{drafted}{slow}{alone}"

    def _alone(self) -> str:
        """Why drafting is not expected to help."""
        if not self.row.drafter:
            return "no draft model: only repeated text is copied ahead"
        if self.row.active < 1:
            return "a mixture of experts: drafting may not help"
        return "its draft is not expected to pay here"

    @property
    def data(self) -> dict[str, float | bool | None]:
        """The speeds for programs, in tokens per second."""
        return {"plain": self.baseline, "drafted": self.drafted, "measured": self.measured}

    @property
    def line(self) -> str:
        """Its name, and what to expect of it."""
        return f"{one_line(self.row.name, 40)}: {self.offer}"

    @property
    def short(self) -> str:
        """The speeds, or why there are none, for a narrow column; ``~`` marks a rough estimate."""
        if self.verdict in ("tight", "too large") or not self.speeds:
            return self.verdict
        if self.verdict == "slow":
            return f"slow {_short(self.drafted)}"
        return "~" * self.doubtful + self.speeds.replace(" with drafting", " drafted")


def _short(speed: float | None) -> str:
    speed = speed or 0.0
    return f"{speed:.2f}" if speed < 1 else f"{speed:.1f}" if speed < 10 else f"{speed:,.0f}"


def ranked(rows: Iterable[ListedPair], speed: MachineSpeed | None) -> list[RankedPair]:
    """Sort pairs, the best for this machine first; without calm measurements by state alone.

    Among pairs that write as fast as people read, larger is better; among the others, faster is.
    The starter comes first, then the installed pairs, then the proposed ones.
    """
    found = [_expected(row, speed) for row in rows]
    if not any(one.baseline and not one.doubtful for one in found):
        return sorted(found, key=_place)
    found.sort(key=_key)
    firsts = [one.row.name for one in proposed(found)]
    return sorted(found, key=lambda one: (_place(one), one.row.name not in firsts))


def _place(one: RankedPair) -> int:
    return 0 if one.row.kind == "starter" else 1 if one.row.state != "available" else 2


def _key(one: RankedPair) -> tuple[float, ...]:
    row, fastest = one.row, one.drafted or 0.0
    size = row.memory_gb if one.verdict == "fits" else 0
    by_size = row.n_bytes if one.verdict in _ORDER[2:] else 0
    return (_ORDER.index(one.verdict), -size, by_size, -fastest)


def proposed(pairs: Sequence[RankedPair]) -> list[RankedPair]:
    """The best of `ranked` pairs for every purpose: at most one each, and only pairs that fit.

    Pairs that draft with gain go before others. Without a calm measurement the list is empty.
    """
    best = sorted(
        (one for one in pairs if one.modest and not one.doubtful and one.verdict in _ORDER[:2]),
        key=lambda one: (_ORDER.index(one.verdict), not one.gains, *_key(one)[1:]),
    )
    firsts = (next((one for one in best if one.row.kind == kind), None) for kind in LEAST)
    return [one for one in firsts if one is not None]


def proposal_lines(best: Sequence[RankedPair]) -> list[str]:
    """The proposed pairs, a line each: the same in the chat, in `list` and in `show`."""
    return formats.columns([(one.row.kind, one.line) for one in best]) if best else []


def _expected(row: ListedPair, speed: MachineSpeed | None) -> RankedPair:
    """What to expect of `row`, with the accelerators' own memory included."""
    room = speed.room or 0 if speed is not None else 0
    modest = row.fit.modest(room)
    if room:
        row = replace(row, fit=row.fit.with_room(room))
    known = None if speed is None else speed.own(row.name)
    own = known is not None and row.state in _HERE
    costs = known if own else None if speed is None else expected_costs(row, speed)
    if own and costs is not None and not costs.judges_draft:
        costs = replace(costs, step=_step(row, costs), block=row.block)
    if costs is None or row.fit.verdict == "too large":
        return RankedPair(row, row.fit.verdict)
    baseline = 1 / costs.times[1]
    drafted = baseline * _gain(row, costs)
    slow = row.fit.verdict == "fits" and drafted < LEAST.get(row.kind, 0.0)
    verdict = "slow" if slow and not costs.doubtful else row.fit.verdict
    return RankedPair(row, verdict, baseline, drafted, own, modest, costs.doubtful)


def expected_costs(row: ListedPair, speed: MachineSpeed) -> PairCosts | None:
    """The expected costs of `row`, derived from the largest pair that ran on the same hardware."""
    device, host = speed.largest(on_device=True), speed.largest(on_device=False)
    basis = device or host
    if basis is None or not row.target_bytes:
        return None
    like, read = basis[1], row.target_bytes * row.active
    times = _times(read, row.bits, like)
    if device is not None and speed.room is not None and row.target_bytes * ROOM > speed.room:
        if host is None:  # the processor's speed for the rest is unknown
            return None
        like, share = host[1], speed.room / (row.target_bytes * ROOM)
        both = zip(times, _times(read, row.bits, like), strict=False)
        times = [share * there + (1 - share) * here for there, here in both]
    return PairCosts(
        row.target_bytes,
        tuple(times),
        like.overhead,
        _step(row, like),
        like.on_device,
        doubtful=basis[1].doubtful or like.doubtful,
        block=row.block,
    )


def acceptance(row: ListedPair) -> float:
    """The acceptance of a pair that drafts: measured, else assumed."""
    return ACCEPTED[row.drafter] if row.accepted is None else row.accepted


def draft_reads(row: ListedPair) -> float | None:
    """Bytes of weights that a drafted token reads; None if no model drafts."""
    if row.drafter == DRAFT:
        return row.draft_bytes
    return HEAD_STEP * row.target_bytes * row.active if row.drafter == MTP else None


def _step(row: ListedPair, like: PairCosts) -> float | None:
    """Seconds of a step of the row's drafter, which runs as `like` does; None if none drafts."""
    reads = draft_reads(row)
    return None if reads is None else like.overhead + reads * like.per_byte


def _times(read: float, bits: float, like: PairCosts) -> list[float]:
    """Seconds of decodes of 0, 1, 2, ... tokens of a model that runs as `like` does.

    With B bytes and W weights: T(n) = a + B r + W c(n). The overhead a and the seconds per byte r
    are those of `like`; c(n) is the extra time of its further tokens, per weight.

    Args:
        read: bytes of weights that a token reads.
        bits: per weight; 0 if unknown.
        like: the measured costs.
    """
    one = like.overhead + read * like.per_byte
    more = read / like.weights * like.bits / (bits or like.bits)  # weights over those of `like`
    return [one + more * max(0.0, each - like.times[1]) for each in like.times]


def _gain(row: ListedPair, costs: PairCosts) -> float:
    """The expected speed-up of drafting.

    1 for a mixture of experts: every further token reads other experts.
    """
    if costs.step is None or row.drafter not in ACCEPTED or row.active < 1:
        return 1.0
    step = costs.step, costs.step if costs.read is None else costs.read
    return best_draft(acceptance(row), costs.times, step, costs.block)[1]
