"""Making a pair fit: context size, cache types and layers on accelerators, and what was given up.

What is given up, in this order: layers of the target on the accelerator, a large context, the
cache's precision, a small context. Where only the weights are too large for main memory, they are
read from disk again and again. Where nothing helps, the pair is refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from localspec import formats
from localspec.errors import OutOfMemory, UsageError
from localspec.pairs.memory.facts import ModelFacts
from localspec.pairs.memory.free import Free
from localspec.pairs.memory.need import Need, Setup, block_of, need

DEFAULT_CTX: Final = 8192  # a cache of all that was trained for can take more than the weights
USUAL_CTX: Final = 4096  # down to here a full cache is preferred to a long context
LEAST_CTX: Final = 512
SMALLER_CACHE: Final = "q8_0"
FULL_CACHE: Final = "f16"
PROGRAM: Final = 64_000_000  # what Python and llama.cpp take while loading and answering
COSTLY_DRAFT: Final = 0.4
USUAL_DISK: Final = 2e9  # bytes per second of an SSD, where the disk's own speed is not known

DiskSpeed = Callable[[], float | None]
"""Measures how fast the target is read from its disk, in bytes per second; None if it can't."""


def unmeasured() -> None:
    """Know nothing of the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user has decided; None is left to the plan.

    Attributes:
        n_ctx: tokens of context.
        cache_k, cache_v: cache types.
        gpu_layers, draft_gpu_layers: layers on an accelerator, -1 for all.
        flash: whether flash attention is on. A quantised cache needs it.
        snapshots: of a recurrent target's state; none where nothing drafts.
        mapped: whether weights may be left on disk: mapped, and not locked in memory.
    """

    n_ctx: int | None = None
    cache_k: str | None = None
    cache_v: str | None = None
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    flash: bool | None = None
    snapshots: int = 0
    mapped: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How both models are going to be loaded.

    Attributes:
        target, draft: their setups; the draft's is None without one.
        target_need, draft_need: what they take.
        gave_up: what was chosen smaller than usual, for people.
        advice: what one could do about it.
        from_disk: bytes of weights that find no room and are read again and again.
    """

    target: Setup
    draft: Setup | None
    target_need: Need
    draft_need: Need | None
    free: Free
    gave_up: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    from_disk: int = 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """What each model takes."""
        return tuple(need for need in (self.target_need, self.draft_need) if need is not None)

    @property
    def host(self) -> int:
        """Bytes of main memory."""
        return sum(each.host for each in self.needs)

    @property
    def device(self) -> int:
        """Bytes on accelerators."""
        return sum(each.device for each in self.needs)

    @property
    def total(self) -> int:
        """Bytes everywhere."""
        return self.host + self.device

    @property
    def draft_device(self) -> int:
        """Bytes of the draft on accelerators."""
        return self.draft_need.device if self.draft_need is not None else 0

    @property
    def beside_draft(self) -> Free:
        """What the draft leaves free."""
        return self.free.less(self.draft_device, draft=True)

    @property
    def draft_on_devices(self) -> bool:
        """Whether the draft's accelerators hold its layers."""
        return self.draft_device <= self.free.on_devices(draft=True)

    @property
    def target_on_devices(self) -> bool:
        """Whether the target's accelerators hold its layers, with the draft's on them."""
        return self.target_need.device <= self.beside_draft.on_devices(draft=False)

    @property
    def on_devices(self) -> bool:
        """Whether the accelerators hold the layers of both."""
        return self.draft_on_devices and self.target_on_devices

    @property
    def shared(self) -> int:
        """Bytes on accelerators that use the main memory."""
        left = self.beside_draft.less(self.target_need.device, draft=False)
        return self.free.shared - left.shared


def plan(
    target: ModelFacts,
    draft: ModelFacts | None,
    free: Free,
    wishes: Wishes,
    disk: DiskSpeed = unmeasured,
) -> MemoryPlan:
    """Choose what fits; what the user has decided stays as it is.

    Args:
        target: the target's sizes.
        draft: the draft's, None without one.
        free: what may be taken.
        wishes: what the user has decided.
        disk: called only where weights have to be read from disk again and again.

    Raises:
        OutOfMemory: nothing fits; the message says what would.
        UsageError: a cache type that llama.cpp does not take for these models.
    """
    for name, model in (("target", target), ("draft", draft)):
        if model is not None:
            _require_cache_types(name, model, wishes)
    return _Planner(target, draft, free, wishes, disk).plan()


def usual_context(target: ModelFacts) -> int:
    """The context that is chosen where there is room."""
    return min(target.trained or DEFAULT_CTX, DEFAULT_CTX)


@dataclass(frozen=True, slots=True)
class _ContextChoice:
    """A context size and cache types to try."""

    n_ctx: int
    k: str
    v: str


@dataclass(frozen=True, slots=True)
class _Planner:
    """Two models, what is free, and what the user has decided."""

    target: ModelFacts
    draft: ModelFacts | None
    free: Free
    wishes: Wishes
    disk: DiskSpeed = unmeasured

    def plan(self) -> MemoryPlan:
        tried = [self.placed(candidate) for candidate in self.candidates()]
        if self.wishes.snapshots and not _fits(tried[0]):
            # Without snapshots a rejection costs reading again, and nothing else.
            bare = replace(self, wishes=replace(self.wishes, snapshots=0))
            tried = [tried[0], *(bare.placed(candidate) for candidate in self.candidates())]
        chosen = next((each for each in tried if _fits(each)), None)
        if chosen is None and self.wishes.mapped:
            chosen = self.from_disk(tried)
        if chosen is None:
            raise self.refusal(tried[-1])
        return replace(
            chosen,
            gave_up=tuple(self.given_up(chosen, tried[0])),
            advice=tuple(self.advice(chosen, reduced=chosen is not tried[0])),
        )

    def from_disk(self, tried: list[MemoryPlan]) -> MemoryPlan | None:
        """The best that needs no more than room for its caches, where weights may stay on disk."""
        if self.free.address_space is not None:
            return None
        found = next((each for each in tried if _caches_fit(each)), None)
        if found is None:
            return None
        return replace(found, from_disk=found.host + PROGRAM - self.free.ram)

    def candidates(self) -> Iterator[_ContextChoice]:
        """From the best to the least."""
        wishes = self.wishes
        sizes, n = [], wishes.n_ctx or usual_context(self.target)
        while True:
            sizes.append(n)
            if wishes.n_ctx is not None or n // 2 < LEAST_CTX:
                break
            n //= 2
        kinds = [(wishes.cache_k or FULL_CACHE, wishes.cache_v or FULL_CACHE)]
        models = [self.target, *([self.draft] if self.draft else [])]
        smaller = wishes.flash is not False and all(holds(SMALLER_CACHE, each) for each in models)
        if wishes.cache_k is None and wishes.cache_v is None and smaller:
            kinds.append((SMALLER_CACHE, SMALLER_CACHE))
        large = [n for n in sizes if n >= USUAL_CTX] or sizes[:1]
        small = sizes[len(large) :]
        yield from (_ContextChoice(n, *kinds[0]) for n in large)
        yield from (_ContextChoice(large[-1], *kind) for kind in kinds[1:])
        yield from (_ContextChoice(n, *kind) for n in small for kind in kinds)

    def placed(self, what: _ContextChoice) -> MemoryPlan:
        """Both models with this context, as many layers on accelerators as these hold.

        The draft comes first: it reads all its weights for every token that it guesses, and is
        small.
        """
        wishes, free = self.wishes, self.free
        setup = Setup(
            n_ctx=what.n_ctx, cache_k=what.k, cache_v=what.v, flash=wishes.flash is not False
        )
        draft_setup = draft_need = None
        if self.draft is not None:
            room, asked = free.room(draft=True), wishes.draft_gpu_layers
            draft_setup = _on_device(self.draft, setup, room, asked, whole=True)
            draft_need = need(self.draft, draft_setup)
            free = free.less(draft_need.device, draft=True)
        setup = replace(setup, snapshots=wishes.snapshots)
        room = free.room(draft=False)
        target_setup = _on_device(self.target, setup, room, wishes.gpu_layers, whole=False)
        target_need = need(self.target, target_setup)
        return MemoryPlan(target_setup, draft_setup, target_need, draft_need, self.free)

    def refusal(self, least: MemoryPlan) -> OutOfMemory:
        """Why even the least does not fit, and what would."""
        free = self.free
        if not least.draft_on_devices:
            return _too_many_layers("draft", least.draft_device, free.on_devices(draft=True))
        if not least.target_on_devices:
            left = least.beside_draft.on_devices(draft=False)
            return _too_many_layers("target", least.target_need.device, left)
        limit = free.address_space
        limited = limit is not None and limit <= free.ram
        there = "this process may take" if limited else "free are"
        room = free.ram if limit is None else min(free.ram, limit)
        return OutOfMemory(
            f"the models need about {formats.size(least.host + PROGRAM)} of memory with"
            f" {least.target.n_ctx:,} tokens of context, {there} {formats.size(room)}",
            self.what_would_fit(least, limited=limited),
        )

    def what_would_fit(self, least: MemoryPlan, *, limited: bool) -> str:
        """A remedy that has been tried."""
        n = self.largest() if self.wishes.n_ctx is not None else 0
        alone = replace(self, draft=None).largest() if self.draft is not None else 0
        fitting = [f"with --ctx-size {n} they would fit"] if n else []
        if alone > n:
            fitting.append(f"with --draft none and --ctx-size {alone} the target would")
        if fitting:
            return "; ".join(fitting).capitalize() + "."
        if not self.wishes.mapped and self.from_disk([least]) is not None:
            return "Without --no-mmap and --mlock they would be read from disk again and again."
        raised = ", or raise the limit (ulimit -v)" if limited else ""
        return f"Lower --ctx-size, choose a smaller pair, or close other programs{raised}."

    def largest(self) -> int:
        """The largest of the halvings of the context wished for that fits, else 0."""
        n = self.wishes.n_ctx or usual_context(self.target)
        while n >= LEAST_CTX:
            tried = replace(self, wishes=replace(self.wishes, n_ctx=n))
            if any(_fits(self.placed(candidate)) for candidate in tried.candidates()):
                return n
            n //= 2
        return 0

    def given_up(self, chosen: MemoryPlan, best: MemoryPlan) -> Iterator[str]:
        """What is smaller than usual."""
        if chosen.target.n_ctx < best.target.n_ctx:
            yield f"{chosen.target.n_ctx:,} instead of {best.target.n_ctx:,} tokens of context"
        if chosen.target.cache_k != best.target.cache_k:
            yield f"a cache in {chosen.target.cache_k} instead of {best.target.cache_k}"
        if self.target.state[1] and chosen.target.snapshots < best.target.snapshots:
            yield "snapshots of the recurrent state: after a rejection more is read again"
        layers = chosen.target.gpu_layers
        if (
            self.free.on_devices(draft=False)
            and self.wishes.gpu_layers is None
            and 0 <= layers <= self.target.layers
        ):
            whole = self.target.layers + 1  # with the output, as llama.cpp counts
            yield f"{layers} of {whole} layers of the target on the accelerator"
        if (
            self.free.on_devices(draft=True)
            and chosen.draft is not None
            and self.wishes.draft_gpu_layers is None
            and chosen.draft.gpu_layers == 0
        ):
            yield "the draft on the CPU"

    def advice(self, chosen: MemoryPlan, *, reduced: bool) -> Iterator[str]:
        """What one could do, or should expect."""
        if chosen.from_disk > 0:
            yield self.streaming(chosen)
        if self.draft is None:
            return
        if reduced:
            n = replace(self, draft=None).largest()
            if n > chosen.target.n_ctx:
                yield f"without the draft {n:,} tokens of context would fit (--draft none)"
        share = self.draft.weights / self.target.weights if self.target.weights else 0.0
        if share > COSTLY_DRAFT:
            yield (
                f"the draft has {formats.percent(share)} of the target's size: it will hardly bring"
                " what it costs"
            )

    def streaming(self, chosen: MemoryPlan) -> str:
        """What reading weights from disk for every pass means.

        The pages that are needed next are those that were dropped first, so every pass reads all
        of the target. A draft that is used all the time stays in memory.
        """
        measured = self.disk()
        speed = measured or USUAL_DISK
        seconds = chosen.target_need.host_weights / speed
        known = "as measured now" if measured else "assumed: an SSD, not measured"
        return (
            f"{formats.size(chosen.from_disk)} of weights find no room and are read from disk again"
            f" and again: some {seconds:.2g} s for every pass at {formats.size(round(speed))}/s"
            f" ({known}), {1 / seconds:.2g} tokens/s without drafting, which pays most here"
        )


def holds(kind: str, model: ModelFacts) -> bool:
    """Whether `model` can cache both keys and values in `kind`: its heads are whole blocks."""
    return not any(width % block_of(kind) for width in model.head_widths)


def _require_cache_types(name: str, model: ModelFacts, wishes: Wishes) -> None:
    kinds = (wishes.cache_k, wishes.cache_v)
    if wishes.flash is not False:
        for letter, kind, width in zip("kv", kinds, model.head_widths, strict=True):
            if kind is not None and width % block_of(kind):
                raise UsageError(
                    f"the {name}'s heads are {width} wide: {kind} holds blocks of"
                    f" {block_of(kind)} only",
                    f"Leave --cache-type-{letter} out, or say f16.",
                )
    latent = any(key and not value for key, value in model.kv_widths)
    if latent and kinds[0] != kinds[1]:
        raise UsageError(
            f"the {name} makes keys and values from one row: both are cached in the same type",
            "Give --cache-type-k and --cache-type-v the same type.",
        )


def _too_many_layers(model: str, needed: int, there: int) -> OutOfMemory:
    option = "--draft-n-gpu-layers" if model == "draft" else "--n-gpu-layers"
    return OutOfMemory(
        f"the {model}'s layers asked for need {formats.size(needed)} on the accelerator,"
        f" {formats.size(max(0, there))} are free there",
        f"Leave {option} out, or lower it.",
    )


def _on_device(
    model: ModelFacts, setup: Setup, room: int, asked: int | None, *, whole: bool
) -> Setup:
    """`setup` with the layers that `room` holds; all or none where it must stay `whole`."""
    if asked is not None:
        return replace(setup, gpu_layers=asked if room else 0)
    if not room:
        return setup
    for layers in (-1,) if whole else (-1, *range(model.layers, 0, -1)):
        tried = replace(setup, gpu_layers=layers)
        if need(model, tried).device <= room:
            return tried
    return setup


def _fits(tried: MemoryPlan) -> bool:
    free = tried.free
    if free.address_space is not None and tried.host + PROGRAM > free.address_space:
        return False
    return tried.host + tried.shared + PROGRAM <= free.ram and tried.on_devices


def _caches_fit(tried: MemoryPlan) -> bool:
    """Whether all but the weights has room, and a little for the weights to pass through."""
    must = sum(each.unmapped for each in tried.needs)
    return must + must // 10 + PROGRAM <= tried.free.ram and tried.on_devices
