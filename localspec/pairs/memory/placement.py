"""The memory plan: context size, cache types, layers on accelerators, and what was given up.

The plan gives up, in this order: layers of the target on the accelerator, a large context, the
cache's precision, a small context. If only the weights are too large for main memory, they are read
from disk in every pass. If nothing helps, the pair is refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from localspec import formats
from localspec.errors import OutOfMemory, UsageError
from localspec.pairs.memory import division
from localspec.pairs.memory.free import DEVICE_RESERVE, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts
from localspec.pairs.memory.need import MemoryNeed, ModelSetup, block_of, need

DEFAULT_CTX: Final = 8192  # the context shrinks to this before anything else is given up
LARGEST_CTX: Final = 32_768  # chosen where it costs nothing else: files and tools fit into it
USUAL_CTX: Final = 4096  # the context shrinks to this before the cache loses precision
LEAST_CTX: Final = 512
SMALLER_CACHE: Final = "q8_0"
FULL_CACHE: Final = "f16"
PROGRAM: Final = 100_000_000
"""Bytes that the processes of a chat take besides. Measured: 91 MB with the toy pair, and 110 MB
with the starter, whose vocabulary is larger. Some 40 MB of libraries are not counted: their pages
are shared, and dropped where memory is short."""
COSTLY_DRAFT: Final = 0.4  # of the target's weights
SNAPSHOTS: Final = 8
"""How many rejected tokens a recurrent target can roll back; each costs a copy of its state."""
USUAL_DISK: Final = 2e9  # bytes per second of an SSD, if the disk's own speed is not known

DiskSpeed = Callable[[], float | None]
"""Measures the bytes per second at which the target is read from its disk; None if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What the user has chosen; None leaves it to the plan.

    Attributes:
        n_ctx: tokens of context.
        gpu_layers, draft_gpu_layers: layers on accelerators, -1 for all.
        split: the proportions in which the target's devices share its layers.
        cpu_moe: the target's first layers whose experts stay in main memory, -1 for all.
        flash: whether flash attention is on. A quantised cache needs it.
        snapshots: of a recurrent target's state; 0 if nothing drafts.
        mapped: whether weights may be left on disk: mapped, and not locked in memory.
    """

    n_ctx: int | None = None
    cache_k: str | None = None
    cache_v: str | None = None
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    split: tuple[float, ...] = ()
    cpu_moe: int | None = None
    flash: bool | None = None
    snapshots: int = 0
    mapped: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How to load a target and its drafters.

    Attributes:
        target, drafts: their setups.
        free, left: free memory before and after.
        gave_up: what is smaller than usual, for people.
        advice: what the user could do about it.
        from_disk: bytes of weights that do not fit and are read again in every pass.
        too_large: a model whose layers do not fit, the place, the bytes needed and available there.
        doubled: bytes that twice the context would take in addition; 0 where the target was not
            trained for it.
    """

    target: ModelSetup
    drafts: tuple[ModelSetup, ...]
    target_need: MemoryNeed
    draft_needs: tuple[MemoryNeed, ...]
    free: FreeMemory
    left: FreeMemory
    gave_up: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    from_disk: int = 0
    too_large: tuple[str, str, int, int] | None = None
    doubled: int = 0

    @property
    def draft(self) -> ModelSetup | None:
        """The first drafter's setup; None without one."""
        return next(iter(self.drafts), None)

    @property
    def needs(self) -> tuple[MemoryNeed, ...]:
        """The memory that each model takes."""
        return (self.target_need, *self.draft_needs)

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
    def shared(self) -> int:
        """Bytes on accelerators that use the main memory."""
        return self.free.shared - self.left.shared

    @property
    def fits(self) -> bool:
        """Whether there is room for everything."""
        limit = self.free.address_space
        if limit is not None and self.host + PROGRAM > limit:
            return False
        return self.host + self.shared + PROGRAM <= self.free.ram and self.too_large is None

    @property
    def caches_fit(self) -> bool:
        """Whether caches and buffers fit, with a tenth more for weights to pass through."""
        must = sum(each.host_cache + each.host_buffers for each in self.needs)
        must += must // 10 + self.shared + PROGRAM
        return must <= self.free.ram and self.too_large is None


def plan(
    target: ModelFacts,
    drafts: Sequence[ModelFacts],
    free: FreeMemory,
    limits: UserLimits,
    disk: DiskSpeed = lambda: None,
) -> MemoryPlan:
    """Choose what fits, without changing what the user has chosen.

    Args:
        target: the target's sizes.
        drafts: those of all that drafts, in the order in which they get room.
        free: the memory that they may take.
        limits: what the user has chosen.
        disk: called only if weights have to be read from disk for every pass.

    Raises:
        OutOfMemory: nothing fits; the message says what would.
        UsageError: llama.cpp does not take a cache type for these models.
    """
    for name, model in (("target", target), *(("draft", each) for each in drafts)):
        _require_cache_types(name, model, limits)
    planner = _Planner(target, tuple(drafts), free, limits, disk)
    found = planner.plan()
    return replace(found, doubled=planner.doubled(found))


def usual_context(target: ModelFacts) -> int:
    """The context size in tokens for which layers and experts are moved, if there is room."""
    return min(target.trained or DEFAULT_CTX, DEFAULT_CTX)


def largest_context(target: ModelFacts, free: FreeMemory) -> int:
    """The largest context size in tokens that is chosen without being asked for."""
    most = min(target.trained, LARGEST_CTX) if free.total is not None else 0
    return max(most, usual_context(target))


@dataclass(frozen=True, slots=True)
class _Planner:
    """The inputs of a plan, and the ways to try."""

    target: ModelFacts
    drafts: tuple[ModelFacts, ...]
    free: FreeMemory
    limits: UserLimits
    disk: DiskSpeed

    def plan(self) -> MemoryPlan:
        if (roomy := self.roomy()) is not None:
            return replace(roomy, advice=tuple(self.advice(roomy, reduced=False)))
        tried = [self.placed(candidate) for candidate in self.candidates()]
        if self.limits.snapshots and not tried[0].fits:
            # Without snapshots, a rejection only costs decoding again.
            bare = replace(self, limits=replace(self.limits, snapshots=0))
            tried = [tried[0], *(bare.placed(candidate) for candidate in self.candidates())]
        chosen = next((each for each in tried if each.fits), None)
        if chosen is None and self.limits.mapped:
            chosen = self.from_disk(tried)
        if chosen is None:
            raise self.refusal(tried[-1])
        return replace(
            chosen,
            gave_up=tuple(self.given_up(chosen, tried[0])),
            advice=tuple(self.advice(chosen, reduced=chosen is not tried[0])),
        )

    def roomy(self) -> MemoryPlan | None:
        """The plan with the largest context beyond the usual one that costs nothing else.

        Everything fits, in a modest share of main memory, and nothing leaves an accelerator for it.
        """
        if self.limits.n_ctx is not None:
            return None
        best, usual = next(self.candidates()), usual_context(self.target)
        there = self.placed(best)
        # Beyond what it was trained for, a draft model guesses worse. Many heads were trained for
        # 2,048 tokens, and read the last ones of a long prompt alone.
        trained = (each.trained for each in self.drafts if each.trained and not each.shown)
        most = min([largest_context(self.target, self.free), *trained])
        for n_ctx in _halvings(most):
            if n_ctx <= usual:
                break
            tried = self.placed(replace(best, n_ctx=n_ctx))
            host = tried.host + tried.shared + PROGRAM
            if tried.fits and self.free.modest(host) and _placed_alike(tried, there):
                return tried
        return None

    def doubled(self, chosen: MemoryPlan) -> int:
        """Bytes that twice the context would take beyond this plan, if the target allows it."""
        n_ctx = 2 * chosen.target.n_ctx
        if n_ctx > self.target.trained:
            return 0
        models, setups = (self.target, *self.drafts), (chosen.target, *chosen.drafts)
        taken = (
            need(model, replace(setup, n_ctx=n_ctx)).total
            for model, setup in zip(models, setups, strict=True)
        )
        return sum(taken) - chosen.total

    def from_disk(self, tried: list[MemoryPlan]) -> MemoryPlan | None:
        """The best plan whose caches have room, if its weights may stay on disk.

        Layers on an accelerator that uses the main memory cannot stay there, so plans without any
        on accelerators are tried too.
        """
        if self.free.address_space is not None:
            return None
        if self.limits.gpu_layers is None and any(each.shared for each in tried):
            draft = self.limits.draft_gpu_layers or 0
            limits = replace(self.limits, gpu_layers=0, draft_gpu_layers=draft)
            bare = replace(self, limits=limits)
            tried = [*tried, *(bare.placed(each) for each in self.candidates())]
        able = (each for each in tried if each.caches_fit)
        found = max(able, key=_context_and_precision, default=None)
        if found is None:
            return None
        return replace(found, from_disk=found.host + found.shared + PROGRAM - self.free.ram)

    def candidates(self) -> Iterator[ModelSetup]:
        """Setups with other contexts and cache types, from the best to the least."""
        limits = self.limits
        best = ModelSetup(
            n_ctx=limits.n_ctx or usual_context(self.target),
            cache_k=limits.cache_k or FULL_CACHE,
            cache_v=limits.cache_v or FULL_CACHE,
            flash=limits.flash is not False,
        )
        sizes = (_halvings(best.n_ctx) if limits.n_ctx is None else []) or [best.n_ctx]
        kinds = [best]
        models = (self.target, *self.drafts)
        widths = [width for each in models for width in each.head_widths]
        whole = best.flash and all(each.flashes for each in models)
        whole = whole and not any(width % block_of(SMALLER_CACHE) for width in widths)
        if limits.cache_k is None and limits.cache_v is None and whole:
            kinds.append(replace(best, cache_k=SMALLER_CACHE, cache_v=SMALLER_CACHE))
        large = [n for n in sizes if n >= USUAL_CTX] or sizes[:1]
        yield from (replace(best, n_ctx=n) for n in large)
        yield from (replace(kind, n_ctx=large[-1]) for kind in kinds[1:])
        yield from (replace(kind, n_ctx=n) for n in sizes[len(large) :] for kind in kinds)

    def placed(self, setup: ModelSetup) -> MemoryPlan:
        """The plan for this setup, with as many layers on accelerators as fit.

        Drafts come first: they are small, and read all their weights for every drafted token. The
        experts that they displace are read once in a round at most (tests/test_moe_shapes.py).
        """
        limits, left, lacks = self.limits, self.free, None
        setups, needs = list[ModelSetup](), list[MemoryNeed]()
        for draft in self.drafts:
            there, own = places(draft, left, limits)
            its = _draft_on_device(draft, setup, there, own.draft_gpu_layers)
            taken = need(draft, its)
            lacks = lacks or _lacks("draft", draft, its, taken, there)
            left = left.less(taken.device, draft=not draft.inside, split=dict(its.split))
            setups.append(its)
            needs.append(taken)
        setup = replace(setup, snapshots=limits.snapshots)
        setup = _target_on_device(self.target, setup, left, limits)
        if limits.split:
            setup = division.by_shares(
                setup, self.target, left, limits.split, asked=limits.gpu_layers
            )
        else:
            setup = division.by_memory(setup, self.target, left, asked=limits.gpu_layers)
        taken = need(self.target, setup)
        lacks = lacks or _lacks("target", self.target, setup, taken, left)
        left = left.less(taken.device, draft=False, split=dict(setup.split))
        given = (setup, tuple(setups), taken, tuple(needs))
        return MemoryPlan(*given, self.free, left, too_large=lacks)

    def refusal(self, least: MemoryPlan) -> OutOfMemory:
        """The error that says why even the smallest setup does not fit, and what would."""
        if least.too_large is not None:
            name, where, needed, there = least.too_large
            option = "--draft-n-gpu-layers" if name == "draft" else "--n-gpu-layers"
            return OutOfMemory(
                f"the {name}'s layers asked for need {formats.size(needed)} on {where},"
                f" {formats.size(max(0, there))} are free there",
                f"Leave {option} out, or lower it.",
            )
        free = self.free
        limit = free.address_space
        limited = limit is not None and limit <= free.ram
        whose = "this process may take" if limited else "free are"
        room = free.ram if limit is None else min(free.ram, limit)
        needed = least.host + least.shared + PROGRAM
        return OutOfMemory(
            f"the models need about {formats.size(needed)} of memory with"
            f" {least.target.n_ctx:,} tokens of context, {whose} {formats.size(room)}",
            self.what_would_fit(least, limited=limited),
        )

    def what_would_fit(self, least: MemoryPlan, *, limited: bool) -> str:
        """A remedy that is known to fit."""
        n = self.largest() if self.limits.n_ctx is not None else 0
        alone = replace(self, drafts=()).largest() if self.drafts else 0
        fitting = [f"with --ctx-size {n} they would fit"] if n else []
        if alone > n:
            fitting.append(f"with --draft none and --ctx-size {alone} the target would")
        if fitting:
            return "; ".join(fitting).capitalize() + "."
        if not self.limits.mapped and self.from_disk([least]) is not None:
            return "Without --no-mmap and --mlock they would be read from disk again and again."
        raised = ", or raise the limit (ulimit -v)" if limited else ""
        return f"Lower --ctx-size, choose a smaller pair, or close other programs{raised}."

    def largest(self) -> int:
        """The largest context that fits, of the requested one and its halvings; else 0."""
        for n in _halvings(self.limits.n_ctx or usual_context(self.target)):
            tried = replace(self, limits=replace(self.limits, n_ctx=n))
            if any(each.fits for each in map(tried.placed, tried.candidates())):
                return n
        return 0

    def given_up(self, chosen: MemoryPlan, best: MemoryPlan) -> Iterator[str]:
        """Sentences on what is smaller than usual."""
        free, limits, target = self.free, self.limits, chosen.target
        if target.n_ctx < best.target.n_ctx:
            yield f"{target.n_ctx:,} instead of {best.target.n_ctx:,} tokens of context"
        if target.cache_k != best.target.cache_k:
            yield f"a cache in {target.cache_k} instead of {best.target.cache_k}"
        if self.target.state[1] and target.snapshots < best.target.snapshots:
            yield "snapshots of the recurrent state: after a rejection more is read again"
        if target.cpu_moe and limits.cpu_moe is None:
            n, whole = target.cpu_moe, self.target.layers
            yield f"the experts of {n} of {formats.counted(whole, 'layer')} in main memory"
        if free.on_devices(draft=False) and limits.gpu_layers is None:
            whole = self.target.layers + 1  # with the output, as llama.cpp counts
            if 0 <= target.gpu_layers < whole:
                how = ", shared by --tensor-split" if limits.split else ""
                yield f"{target.gpu_layers} of {whole} layers of the target on the accelerator{how}"
        for draft, its in zip(self.drafts, chosen.drafts, strict=True):
            there, own = places(draft, free, limits)
            if not its.gpu_layers and there.on_devices(draft=True) and own.draft_gpu_layers is None:
                yield "the draft on the CPU"
                break

    def advice(self, chosen: MemoryPlan, *, reduced: bool) -> Iterator[str]:
        """Sentences on what the user could do, or should expect."""
        taken, whole = chosen.host + chosen.shared + PROGRAM, self.free.total
        if chosen.from_disk > 0:
            yield self.streaming(chosen)
        elif whole is not None and not self.free.modest(taken):
            part = formats.percent(taken / whole)
            yield f"the models take {part} of main memory: other programs may run short of it"
        if self.drafts and reduced:
            n = replace(self, drafts=()).largest()
            if n > chosen.target.n_ctx:
                yield f"without the draft {n:,} tokens of context would fit (--draft none)"
        most = max((draft.weights for draft in self.drafts), default=0)
        share = most / self.target.weights if self.target.weights else 0.0
        if share > COSTLY_DRAFT:
            yield (
                f"the draft has {formats.percent(share)} of the target's size, which is too"
                " big to save time"
            )

    def streaming(self, chosen: MemoryPlan) -> str:
        """The sentence about a pair whose weights are read from disk in every pass.

        The system drops the least recently used pages, which are needed next, so every pass reads
        all of the target, or, of a mixture, the experts that it uses. A draft is used all the time
        and stays in memory.
        """
        measured = self.disk()
        speed = measured or USUAL_DISK
        seconds = chosen.target_need.host_weights / speed
        known = "as measured now" if measured else "assumed: an SSD, not measured"
        mixture = any(self.target.experts)
        bound, pays = ("at most", "") if mixture else ("some", ", which pays most here")
        least = "at least " if mixture else ""
        return (
            f"{formats.size(chosen.from_disk)} of weights find no room and are read from disk again"
            f" and again: {bound} {seconds:.2g} s for every pass at {formats.size(round(speed))}/s"
            f" ({known}), {least}{1 / seconds:.2g} tokens/s without drafting{pays}"
        )


def _context_and_precision(plan: MemoryPlan) -> tuple[int, bool]:
    """What a plan gives up after layers on accelerators: the larger, the better."""
    return plan.target.n_ctx, plan.target.cache_k != SMALLER_CACHE


def _placed_alike(one: MemoryPlan, other: MemoryPlan) -> bool:
    """Whether two plans put the same layers and experts in the same places."""
    found = [
        (plan.target.cpu_moe, *(each.gpu_layers for each in (plan.target, *plan.drafts)))
        for plan in (one, other)
    ]
    return found[0] == found[1]


def _halvings(n_ctx: int) -> list[int]:
    """`n_ctx`, half of it and so on, down to `LEAST_CTX`; empty below that."""
    return [n for n in (n_ctx >> half for half in range(n_ctx.bit_length())) if n >= LEAST_CTX]


def _require_cache_types(name: str, model: ModelFacts, limits: UserLimits) -> None:
    kinds = (limits.cache_k, limits.cache_v)
    if not model.flashes and kinds[1] is not None and block_of(kinds[1]) > 1:
        raise UsageError(
            f"values can be cached in {kinds[1]} only with flash attention, which llama.cpp does"
            f" not have for the {name}'s architecture, {model.architecture}",
            "Leave --cache-type-v out, or say f16.",
        )
    if limits.flash is not False and model.flashes:
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


def _lacks(
    name: str, model: ModelFacts, setup: ModelSetup, taken: MemoryNeed, free: FreeMemory
) -> tuple[str, str, int, int] | None:
    """What `MemoryPlan.too_large` says of this model; None if its layers fit."""
    there = free.on_devices(draft=name == "draft")
    if taken.device > there:
        return name, "the accelerator", taken.device, there
    found = division.crowded(setup, model, free)
    return found and (name, *found)


def places(
    draft: ModelFacts, free: FreeMemory, limits: UserLimits
) -> tuple[FreeMemory, UserLimits]:
    """Memory and limits for a drafter: a head inside the target computes where its layers are."""
    if not draft.inside:
        return free, limits
    there = tuple(replace(each, draft=each.target) for each in free.devices)
    return replace(free, devices=there), replace(limits, draft_gpu_layers=limits.gpu_layers)


def _target_on_device(
    model: ModelFacts, setup: ModelSetup, free: FreeMemory, limits: UserLimits
) -> ModelSetup:
    """`setup` with as much on accelerators as all of these together have room for.

    Experts stay in main memory before whole layers do: a token reads a few of them, and all of the
    attention. Those of the first layers stay, as with llama.cpp's ``--n-cpu-moe``.
    """
    room, asked, whole = free.room(draft=False), limits.gpu_layers, model.layers
    if not any(each.target for each in free.devices):
        return setup
    every = whole if any(model.experts) else 0
    given = limits.cpu_moe
    fixed = None if given is None else every if given < 0 else min(given, every)
    experts = range(every + 1) if fixed is None else (fixed,)
    layers = [asked] if asked is not None else [-1, *range(whole, 0, -1)]
    tried = [(layers[0], moved) for moved in experts]
    tried += [(n, experts[-1]) for n in layers[1:]]
    for n, moved in tried:
        found = replace(setup, gpu_layers=n, cpu_moe=moved)
        if need(model, found).device <= room:
            return found
    return setup if asked is None else replace(setup, gpu_layers=asked, cpu_moe=fixed or 0)


def _draft_on_device(
    model: ModelFacts, setup: ModelSetup, free: FreeMemory, asked: int | None
) -> ModelSetup:
    """`setup` with all layers on accelerators if these have room, or with the requested ones."""
    room, layers = free.room(draft=True), -1 if asked is None else asked
    there = any(each.draft for each in free.devices)
    tried = replace(setup, gpu_layers=layers if there else 0)
    tried = division.by_memory(tried, model, free, asked=layers, draft=True)
    if asked is not None:
        return tried
    devices = tuple(replace(each, free=each.free - DEVICE_RESERVE) for each in free.devices)
    roomy = replace(free, devices=devices)  # each driver takes its reserve
    held = need(model, tried).device <= room and not division.crowded(tried, model, roomy)
    return tried if held else setup
