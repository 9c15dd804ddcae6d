"""What a generation reports: one `Round` per verify pass, figures summed over rounds.

A leaf: plain values, no models and no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from localspec.drafter_names import LOOKUP
from localspec.limits import MAX_BATCH_OUTPUTS

LEAST_TOKENS = 50
"""The least tokens of an answer for which a speed-up is reported."""

_LEAST_ROUNDS = 8  # that drafted


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"
    REPETITION = "repetition"  # the answer only repeated itself


class GammaReason(StrEnum):
    """The reason for the present draft length."""

    OFF = "off"  # drafting is switched off
    FIXED = "fixed"  # the user chose the length
    NOT_MEASURED = "not measured"  # automatic, but without a cost table, so the length is fixed
    UNDECIDED = "undecided"  # automatic, before the first round
    TOO_DEAR = "too dear"  # the baseline is faster
    TOO_LITTLE_REPEATS = "nothing repeats"  # lookup finds too little, and no model drafts
    UNKNOWN = "unknown"  # willing to draft, but nothing was drafted so far
    PAYS = "pays"


@dataclass(frozen=True, slots=True)
class GammaNote:
    """Why gamma is what it is, for messages to people.

    Attributes:
        length: recent tokens per draft; 0 if `reason` says enough.
        acceptance: recent share of drafted tokens that were accepted; None if unknown.
        kind: of the text being written; empty if unknown.
        lenience: of a lossy rule; None for a lossless one.
    """

    reason: GammaReason
    length: int = 0
    acceptance: float | None = None
    kind: str = ""
    lenience: float | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """The measured speed-up over the baseline, with its 95 % confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How probable the model itself found a token: before the sampler chain, at temperature 1.

    Attributes:
        logprob: natural logarithm of its probability.
        best: the most probable ids with theirs, descending.
    """

    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round: gamma tokens proposed, one target pass, some tokens emitted.

    Attributes:
        tokens: emitted ids in order, without an end-of-generation token. Fewer than
            ``accepted + 1`` when the text ended inside the round.
        gamma: draft length asked for.
        drafted: draft length proposed and submitted, at most `gamma`.
        accepted: drafted tokens that verification accepted, also those cut off after an end.
        draft_s: seconds spent proposing, with what the drafter had to read first.
        verify_s: seconds in the target's decode.
        total_s: seconds from the start of the round to its end.
        rollback_s: the part of them in which the target rolled back rejected tokens.
        between_s: seconds since the end of the round before, which its consumer took.
        drafter: the name of the drafter that was asked; empty if none was.
        draft_prefill: tokens that this drafter had to decode before it could propose.
        draft_cached: tokens that its cache held already.
        draft_passes: its decodes that the round waited for. If its last pass ended the draft
            without adding a token, `draft_passes + kept` is one more than the tokens it wrote.
        copied: the last tokens of the draft, if lookup added them; all of them if it drafted alone.
        copying_s: the part of `draft_s` in which lookup searched for a match.
        copy_confidences, copy_chances: like `confidences` and `chances`, for the tokens that lookup
            would have copied: they are tested in every round in which it found some.
        path: tokens of `draft_prefill` that lookup had proposed. Where the model drafted them too,
            their passes were already done.
        block: tokens of `draft_prefill` that the drafter guessed in that pass.
        path_confidences, path_chances: lookup's confidences, and for each whether the model drafted
            the same token and went on; also for tokens that the model did not read first.
        ahead: the drafter's decodes that began while the target decoded, for the next round.
        kept: decodes begun `ahead` in the round before and used by this one, not in `draft_passes`.
        context: tokens of the sequence when the round began.
        left_out: the part of `context` that the drafter has not read.
        confidences: the drafter's confidence after each of its passes, in order; empty unless the
            policy learns.
        chances: acceptance probabilities of the tested positions, up to and including the first
            rejection; empty unless the policy learns.
        logprobs: of each of `tokens`; empty unless they were requested.
        finish: set on the last round alone.
    """

    tokens: tuple[int, ...]
    gamma: int
    drafted: int
    accepted: int
    draft_s: float
    verify_s: float
    total_s: float
    rollback_s: float = 0.0
    between_s: float = 0.0
    draft_prefill: int = 0
    draft_cached: int = 0
    draft_passes: int = 0
    drafter: str = ""
    copied: int = 0
    copying_s: float = 0.0
    copy_confidences: tuple[float, ...] = ()
    copy_chances: tuple[float, ...] = ()
    path: int = 0
    block: int = 0
    path_confidences: tuple[float, ...] = ()
    path_chances: tuple[float, ...] = ()
    ahead: int = 0
    kept: int = 0
    context: int = 0
    left_out: int = 0
    confidences: tuple[float, ...] = ()
    chances: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None

    @property
    def emitted(self) -> int:
        """Tokens emitted."""
        return len(self.tokens)

    @property
    def undrafted_s(self) -> float:
        """Seconds of the round except drafting, which takes time in a probe, too."""
        return self.total_s - self.draft_s

    @property
    def reads_text(self) -> bool:
        """Whether its drafter had more to read than any draft has tokens, as of a prompt."""
        return self.draft_prefill > MAX_BATCH_OUTPUTS

    @property
    def from_draft(self) -> int:
        """How many of `tokens`, counted from the first, the draft proposed."""
        return min(self.accepted, len(self.tokens))

    @property
    def shares(self) -> tuple[tuple[str, int, int], ...]:
        """The drafters in the draft's order: (name, tokens drafted, tokens accepted)."""
        if self.drafter == LOOKUP or not (self.drafter or self.drafted):
            return ((LOOKUP, self.drafted, self.accepted),) if self.drafted else ()
        own = self.drafted - self.copied
        first = (self.drafter, own, min(self.accepted, own))
        return (first, (LOOKUP, self.copied, self.accepted - first[2])) if self.copied else (first,)

    @property
    def proposed_by(self) -> str:
        """The names of all drafters that took part, such as ``draft+lookup``; empty for none."""
        return "+".join(name for name, *_ in self.shares)

    @property
    def drafting_s(self) -> dict[str, float]:
        """Seconds of drafting by drafter; a search without a match counts as the model's."""
        copying_s = self.copying_s if self.copied else 0.0
        if self.drafter in ("", LOOKUP):
            return {self.drafter: self.draft_s} if self.drafter and self.drafted else {}
        own = {self.drafter: self.draft_s - copying_s}
        return own | {LOOKUP: copying_s} if self.copied else own

    @property
    def recovered(self) -> int:
        """1 if the last emitted token replaces a rejected one."""
        return int(len(self.tokens) > self.accepted and self.accepted < self.drafted)

    @property
    def bonus(self) -> int:
        """1 if the last emitted token came on top of a draft accepted whole."""
        return int(len(self.tokens) > self.accepted and self.accepted == self.drafted > 0)


@dataclass(frozen=True, slots=True)
class Prefill:
    """What it took the target to read a prompt.

    Attributes:
        cached: prompt tokens that were already in the target's cache.
        decoded: prompt tokens decoded now (the last prompt token belongs to the first round).
    """

    prompt_tokens: int
    cached: int
    decoded: int
    seconds: float


@dataclass(slots=True)
class DrafterStats:
    """One drafter's share of a generation: tokens drafted and accepted, seconds of drafting."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class GenerationStats:
    """Sums over the rounds of one generation. Times in seconds.

    `prepared_s` is the time before the prefill, in which a prompt is made of a conversation, and a
    grammar is read. `time_to_first_token_s` includes it and the prefill, and ends with the first
    round that emitted something; loading is left out. `draft_prefill` and `draft_cached` are those
    of the first round that asked a drafter, which reads the prompt, and the few tokens after it.
    `drafters` has the sums of every drafter that was asked, by name.
    `lenience` is that of a lossy rule, None for a lossless one.
    """

    lenience: float | None = None
    prepared_s: float = 0.0
    prompt_tokens: int = 0
    prefill_cached: int = 0
    prefill_decoded: int = 0
    prefill_s: float = 0.0
    draft_prefill: int = 0
    draft_cached: int = 0
    draft_passes: int = 0
    rounds: list[Round] = field(default_factory=list)
    drafters: dict[str, DrafterStats] = field(default_factory=dict)
    generated_tokens: int = 0
    drafted_tokens: int = 0
    drafted_rounds: int = 0
    accepted_tokens: int = 0
    recovered_tokens: int = 0
    bonus_tokens: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float | None = None
    after_first_s: float = 0.0
    tokens_in_first_round: int = 0
    finish_reason: FinishReason | None = None

    @property
    def drafted_by(self) -> tuple[tuple[str, int, int], ...]:
        """Of each drafter that drafted: its name, drafted tokens and accepted tokens."""
        each = self.drafters.items()
        return tuple((name, its.drafted, its.accepted) for name, its in each if its.drafted)

    def add_prefill(self, prefill: Prefill) -> None:
        """Count the prompt pass."""
        self.prompt_tokens = prefill.prompt_tokens
        self.prefill_cached = prefill.cached
        self.prefill_decoded = prefill.decoded
        self.prefill_s = prefill.seconds

    def add(self, done: Round) -> None:
        """Count one round."""
        if done.tokens or done.verify_s > 0:  # a round that ended before its pass does not count
            self.rounds.append(done)
        self.generated_tokens += done.emitted
        self.drafted_tokens += done.drafted
        self.drafted_rounds += done.drafted > 0
        self.accepted_tokens += done.accepted
        self.recovered_tokens += done.recovered
        self.bonus_tokens += done.bonus
        self.draft_s += done.draft_s
        self.verify_s += done.verify_s
        self.decode_s += done.total_s
        if done.draft_passes and not self.draft_passes:
            self.draft_prefill = done.draft_prefill - done.path - done.block
            self.draft_cached = done.draft_cached
        self.draft_passes += done.draft_passes
        for name, drafted, accepted in done.shares if done.drafter else ():
            its = self.drafters.setdefault(name, DrafterStats())
            its.drafted += drafted
            its.accepted += accepted
        for name, seconds in done.drafting_s.items():
            self.drafters[name].seconds += seconds
        self.finish_reason = done.finish
        if self.time_to_first_token_s is not None:
            self.after_first_s += done.between_s + done.total_s
        elif done.emitted:
            self.time_to_first_token_s = self.prepared_s + self.prefill_s + self.decode_s
            self.tokens_in_first_round = done.emitted

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all rounds but the first, over the time of these rounds; None if unknown.

        The first round is a baseline round (see `generate`), so this is "after the first token".
        """
        later = self.generated_tokens - self.tokens_in_first_round
        return later / self.after_first_s if later > 0 and self.after_first_s > 0 else None

    @property
    def comparable(self) -> bool:
        """Whether it is long enough, and drafted often enough, to tell what drafting brought."""
        return self.generated_tokens >= LEAST_TOKENS and self.drafted_rounds >= _LEAST_ROUNDS

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None when nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def mean_tokens_per_round(self) -> float | None:
        """Emitted tokens per round; None before the first round."""
        return self.generated_tokens / len(self.rounds) if self.rounds else None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One accelerator's memory in bytes.

    Attributes:
        integrated: whether it uses the main memory.
        label: llama.cpp's name of it, such as ``CUDA0``.
        left_out: whether it is only used if it is named: an integrated GPU next to a card, or a
            device that another backend lists as well.
        own: bytes of an integrated one's `total` that a BIOS sets apart from main memory.
    """

    name: str
    free: int
    total: int
    integrated: bool = False
    label: str = ""
    left_out: bool = False
    own: int = 0

    @property
    def has_own(self) -> bool:
        """Whether it has memory that neither the machine nor another listed device counts."""
        return not self.left_out and (not self.integrated or self.own > 0)

    @property
    def own_free(self) -> int:
        """Free bytes that are certainly not main memory."""
        if not self.integrated:
            return self.free
        return max(0, min(self.own, self.free - (self.total - self.own)))

    def usable(self, available: int) -> int:
        """Free bytes, of main memory at most these `available` ones."""
        return self.own_free + min(self.free - self.own_free, available)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Where the memory goes, in bytes.

    `*_weights`, `*_cache` and `*_buffers` are what llama.cpp allocated on all devices together;
    `process` is the resident size, which counts only the touched pages of mapped weights;
    `on_devices` is the memory that accelerators with memory of their own have lost since before the
    load, which includes what other programs took meanwhile.
    """

    target_weights: int
    draft_weights: int
    target_cache: int
    draft_cache: int
    buffers: int
    process: int
    peak_process: int
    machine_total: int
    machine_available: int
    devices: tuple[DeviceMemory, ...] = ()
    on_devices: int = 0

    @property
    def taken(self) -> int:
        """All that localspec takes now."""
        return self.process + self.on_devices
