"""Plans what to load, and how, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import formats, machine
from localspec.chat.advice import SamplingAdvice, advise
from localspec.engine.llama import RPC, add_workers, default_threads, devices
from localspec.engine.record.stats import CROSS_VOCABULARY, DRAFT, MTP, DeviceMemory
from localspec.errors import OutOfMemory, UsageError
from localspec.loading.load_request import LoadRequest
from localspec.pairs.disk import trained_heads
from localspec.pairs.gguf import head_checks, usable
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf.header import GgufHeader, ModelFiles
from localspec.pairs.memory.free import Device, FreeMemory, read_speed
from localspec.pairs.memory.need import ModelFacts, ModelSetup, draft_facts, facts, mtp_facts, need
from localspec.pairs.memory.placement import (
    DEFAULT_CTX,
    PROGRAM,
    SNAPSHOTS,
    MemoryPlan,
    UserLimits,
    plan,
    usual_context,
)
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.names.resolver import ResolvedPair
from localspec.pairs.report import vocabulary

LEAST_CTX = 16
UNQUANTISED = ("f32", "f16", "bf16")  # types of cached values that work without flash attention


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """A draft model or a head, and its setup.

    Attributes:
        kind: the drafter's name.
        path: its first file; for a head inside the target, the target's.
    """

    kind: str
    path: Path
    setup: ModelSetup


@dataclass(frozen=True, slots=True)
class DraftingPlan:
    """The drafters to load.

    Attributes:
        models: draft models and heads.
        lookup: whether repeated text is copied.
        why_no_model: the reason if `models` is empty.
    """

    models: tuple[PlannedDraft, ...]
    lookup: bool
    why_no_model: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to load, from the headers alone.

    Attributes:
        name: the pair's name for display.
        path: the target's first file.
        memory: the setups of the target and of the first draft.
        total: bytes of all models.
        advice: sampling settings advised for the target.
        notices: what the user should know.
        unflashed: extra bytes without flash attention; None if there is no choice: a device
            computes, values are quantised, or memory is short.
        options: the request, without workers that do not answer.
    """

    name: str
    path: Path
    memory: MemoryPlan
    total: int
    drafts: DraftingPlan
    advice: SamplingAdvice
    notices: tuple[str, ...]
    unflashed: int | None
    options: LoadRequest


def load_plan(options: LoadRequest) -> LoadPlan:
    """Resolve and check everything that can be checked without loading.

    Workers that do not answer are left out, with a notice.

    Raises:
        LocalspecError: as `load_session`.
    """
    greeted = add_workers(options.rpc)
    told = tuple(filter(None, (each.notice for each in greeted)))
    workers = tuple(each.endpoint for each in greeted if not each.problem)
    try:
        found = _load_plan(_left_to(workers, options))
    except OutOfMemory as error:
        raise OutOfMemory("; ".join((error.message, *told)), error.remedy) from None
    return replace(found, notices=(*told, *found.notices))


def _left_to(workers: tuple[str, ...], options: LoadRequest) -> LoadRequest:
    """`options` reduced to these workers.

    If a worker is missing, proportions and device names that count workers are dropped: the
    remaining devices are numbered again.
    """
    if workers == tuple(options.rpc):
        return options

    def still(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if any(each.startswith(RPC) for each in names or ()) else names

    device, draft_device = still(options.device), still(options.draft_device)
    return replace(options, rpc=workers, tensor_split=(), device=device, draft_device=draft_device)


def _load_plan(options: LoadRequest) -> LoadPlan:
    found = _find(options)
    target = facts_of(found.target)
    limits = _user_limits(options, target)
    if not (found.drafts or options.drafters.lookup):
        limits = replace(limits, snapshots=0)
    free = free_memory(options.device, devices_of_draft(options), _threads(options))
    more, free = _placed_alone(
        found.drafts[1:], free, limits, limits.n_ctx or usual_context(target)
    )
    memory = plan(
        target,
        found.drafts[0].facts if found.drafts else None,
        free,
        limits,
        lambda: read_speed(found.target.paths[0]),
    )
    n_ctx = memory.target.n_ctx
    setups = [
        *([memory.draft] if memory.draft else []),
        *(replace(it.target, n_ctx=n_ctx) for it in more),
    ]
    notices = [
        *(line for model in found.models for line in _beyond_training(n_ctx, model)),
        *(line for head in found.heads for line in trained_heads.notices(head, found.target)),
        *(f"to fit the memory: {line}" for line in memory.gave_up),
        *memory.advice,
        *(_unlocked(memory) if options.mlock else []),
    ]
    name, path = found.resolved.name, found.resolved.target
    drafts = _drafts_plan(options, found, setups)
    unflashed = _unflashed(
        [target, *(each.facts for each in found.drafts)], [memory.target, *setups], memory
    )
    total = memory.total + sum(each.total for each in more)
    advice = advice_for(name, path.name, found.target.header)
    notices += advice.notices
    return LoadPlan(name, path, memory, total, drafts, advice, tuple(notices), unflashed, options)


def advice_for(name: str, file: str, header: GgufHeader) -> SamplingAdvice:
    """The sampling settings advised for a target.

    Args:
        name: of its pair.
        file: name of its first file.
        header: of its first file.
    """
    known = catalogue.sampling_for(name, file)
    return advise(header.name or Path(file).stem, header.metadata, known)


def _unflashed(
    models: Sequence[ModelFacts], setups: Sequence[ModelSetup], memory: MemoryPlan
) -> int | None:
    """Extra bytes without flash attention; None as in `LoadPlan`."""
    if (devices() and memory.target.gpu_layers) or memory.target.cache_v not in UNQUANTISED:
        return None
    more = sum(
        need(model, replace(setup, flash=False)).total - need(model, setup).total
        for model, setup in zip(models, setups, strict=True)
    )
    return more if PROGRAM + memory.host + more < memory.free.ram else None


def drafts_plan(options: LoadRequest, n_ctx: int) -> DraftingPlan:
    """Plan the drafters for a target that is loaded with a context of `n_ctx` tokens.

    Raises:
        LocalspecError: as `load_session`.
    """
    found = _find(options)
    free = free_memory(devices_of_draft(options), threads=_threads(options))
    limits = _user_limits(options, facts_of(found.target))
    placed, _ = _placed_alone(found.drafts, free, limits, n_ctx)
    return _drafts_plan(options, found, [each.target for each in placed])


def uses_mtp(options: LoadRequest) -> bool:
    """Whether the head inside the target drafts, so that it must be loaded with the target.

    Raises:
        LocalspecError: as `load_session`.
    """
    return any(each.kind == MTP for each in _find(options).drafts)


def _drafts_plan(
    options: LoadRequest, found: _FoundFiles, setups: Sequence[ModelSetup]
) -> DraftingPlan:
    models = tuple(
        PlannedDraft(draft.kind, draft.files.paths[0], setup)
        for draft, setup in zip(found.drafts, setups, strict=True)
    )
    return DraftingPlan(models, options.drafters.lookup, found.resolved.draft_reason)


def _placed_alone(
    drafts: Sequence[_FoundDraft], free: FreeMemory, limits: UserLimits, n_ctx: int
) -> tuple[list[MemoryPlan], FreeMemory]:
    """Place draft models beyond the first; return their plans and the memory left.

    Raises:
        OutOfMemory: one does not fit.
    """
    layers = limits.draft_gpu_layers  # the proportions are the target's
    alone = replace(limits, n_ctx=n_ctx, gpu_layers=layers, snapshots=0, split=())
    found = []
    for draft in drafts:
        theirs = tuple(replace(each, target=each.draft) for each in free.devices)
        try:
            placed = plan(draft.facts, None, replace(free, devices=theirs), alone)
        except OutOfMemory as error:
            name = draft.files.paths[0].name
            raise OutOfMemory(f"the draft {name}: {error.message}", "Name fewer drafts.") from None
        free = replace(free.less(placed.device, draft=True), ram=free.ram - placed.host)
        found.append(placed)
    return found, free


def check_files(options: LoadRequest) -> None:
    """Check everything that does not depend on free memory.

    Raises:
        LocalspecError: as `load_session`.
    """
    _user_limits(options, facts_of(_find(options).target))


@dataclass(frozen=True, slots=True)
class _FoundDraft:
    """A drafter, found and checked: the name of its kind, its files and its sizes."""

    kind: str
    files: ModelFiles
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class _FoundFiles:
    """The files of a request, with their headers read and checked."""

    resolved: ResolvedPair
    target: ModelFiles
    drafts: tuple[_FoundDraft, ...]

    @property
    def models(self) -> tuple[ModelFiles, ...]:
        """The files of the target and its drafters, without a head inside the target."""
        return (self.target, *(each.files for each in self.drafts if each.kind != MTP))

    @property
    def heads(self) -> tuple[ModelFiles, ...]:
        """The files of heads, without one inside the target."""
        return tuple(each.files for each in self.drafts if each.kind in head_checks.FILES)


def _find(options: LoadRequest) -> _FoundFiles:
    """Find the files, and check by their headers that they can chat and fit together."""
    asked = options.drafters
    first = None if asked.own else next(iter(asked.named), resolver.NO_DRAFT)
    resolved = resolver.resolve(options.pair, first, scan=options.scan)
    found = [*resolved.drafts]
    for name in asked.named if asked.own else asked.named[1:]:
        found += resolver.resolve(options.pair, name, scan=options.scan).drafts
    real = [path.resolve() for path in found]
    twice = next((path for i, path in enumerate(real) if path in real[:i]), None)
    if twice is not None:
        raise UsageError(f"--draft names {twice.name} twice", "Name each drafter once.")
    target = _read(resolved.target)
    drafts = [_draft(path, target) for path in found]
    if asked.mtp or (asked.own and head_checks.has_usable_mtp(target.header)):
        head_checks.require_mtp(target.header, str(target.paths[0]))
        drafts.append(_FoundDraft(MTP, target, mtp_facts(target.header)))
    return _FoundFiles(resolved, target, tuple(drafts))


def _draft(path: Path, target: ModelFiles) -> _FoundDraft:
    """Read the header of a draft model or head, and check that it fits the target."""
    files = gguf.read_model(path)
    if head_checks.is_head(files.header):
        head_checks.require_head(files, target.header)
        return _FoundDraft(files.header.architecture, files, draft_facts(files.header))
    draft = _read(path)
    compared = vocabulary.check(target.header, draft.header)
    kind = DRAFT if compared.compatible else CROSS_VOCABULARY
    return _FoundDraft(kind, draft, draft_facts(draft.header))


def _read(path: Path) -> ModelFiles:
    """Read a model's header, and check that llama.cpp can chat with the model."""
    model = gguf.read_model(path)
    usable.require_usable(model.header, str(path))
    return model


def facts_of(model: ModelFiles) -> ModelFacts:
    """The sizes of a model on disk."""
    return facts(model.header)


def free_memory(
    target: tuple[str, ...] | None = None,
    draft: tuple[str, ...] | None = (),
    threads: int = 0,
) -> FreeMemory:
    """The free memory of this machine.

    Args:
        target: names of the devices that the target may use, None for all.
        draft: the same for the draft.
        threads: threads that will be started.
    """
    return FreeMemory(
        ram=machine.available(),
        devices=tuple(
            Device(
                _usable(each),
                shared=each.integrated,
                target=target is None or each.label in target,
                draft=draft is None or each.label in draft,
                label=each.label,
                worker=each.name if each.label.startswith(RPC) else "",
            )
            for each in devices()
        ),
        address_space=machine.address_space_left(threads),
    )


def free_for(workers: Sequence[str]) -> FreeMemory:
    """The free memory for a pair, with these workers, which must have been greeted."""
    return free_memory(draft=devices_of_draft(LoadRequest(rpc=tuple(workers))))


def greet(workers: Sequence[str]) -> tuple[str, ...]:
    """Register the workers that answer; return a notice for each that needs one.

    Raises:
        UsageError, EngineError: as `add_workers`.
    """
    return tuple(filter(None, (each.notice for each in add_workers(workers))))


def _threads(options: LoadRequest) -> int:
    """How many threads will be started; all models share them."""
    asked = (options.threads_batch or 0, options.draft_threads or 0)
    return max(options.threads or default_threads(), *asked)


def devices_of_draft(options: LoadRequest) -> tuple[str, ...] | None:
    """The devices that the draft may use, empty for none, None for all.

    By default those of the target without workers: a draft would wait for the network at every
    token.
    """
    if options.draft_device is not None:
        return options.draft_device
    if not options.rpc:
        return options.device
    here = tuple(each.label for each in devices() if not each.label.startswith(RPC))
    return here if options.device is None else tuple(n for n in options.device if n in here)


def _usable(device: DeviceMemory) -> int:
    """Free bytes of a device; if it uses main memory, at most what is free there."""
    return min(device.free, machine.available()) if device.integrated else device.free


def _user_limits(options: LoadRequest, target: ModelFacts) -> UserLimits:
    kinds = (options.cache_type_k, options.cache_type_v)
    if options.flash_attn == "off" and kinds[1] not in (None, *UNQUANTISED):
        raise UsageError(
            f"values can be cached in {kinds[1]} only with flash attention",
            "Leave --flash-attn off out, or --cache-type-v.",
        )
    return UserLimits(
        n_ctx=_context_size(options, target),
        cache_k=kinds[0] or ("f16" if kinds[1] else None),
        cache_v=kinds[1] or ("f16" if kinds[0] else None),
        gpu_layers=options.n_gpu_layers,
        draft_gpu_layers=0 if devices_of_draft(options) == () else options.draft_n_gpu_layers,
        split=options.tensor_split,
        flash=None if options.flash_attn == "auto" else options.flash_attn == "on",
        snapshots=SNAPSHOTS,
        mapped=options.mmap and not options.mlock,
    )


def _context_size(options: LoadRequest, target: ModelFacts) -> int | None:
    if options.ctx_size is None:
        return None
    n_ctx = options.ctx_size or target.trained or DEFAULT_CTX
    if n_ctx < LEAST_CTX:
        raise UsageError(
            f"a context of {n_ctx} tokens holds no conversation",
            f"Give --ctx-size at least {LEAST_CTX}, or 0 for all that the model was trained for.",
        )
    return n_ctx


def _beyond_training(n_ctx: int, model: ModelFiles) -> list[str]:
    trained = model.header.setting("context_length")
    if not trained or n_ctx <= trained:
        return []
    return [
        f"the context of {n_ctx:,} tokens is beyond the {trained:,} that"
        f" {model.paths[0].name} was trained for: it gets worse from there on"
    ]


def _unlocked(memory: MemoryPlan) -> list[str]:
    """Notices if the system refuses to lock memory: llama.cpp goes on and only logs it."""
    weights, limit = sum(each.host_weights for each in memory.needs), machine.lockable()
    if limit is None or weights <= limit:
        return []
    return [
        f"--mlock can keep {formats.size(limit)} of {formats.size(weights)} of weights in memory:"
        " raise the limit on locked memory (ulimit -l), or leave it out"
    ]
