"""Plans what to load, and how, from headers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from localspec import formats, machine
from localspec.chat.advice import SamplingAdvice, advise
from localspec.chat.settings import ChatSettings
from localspec.drafter_names import CROSS_VOCABULARY, DRAFT, MODELS, MTP
from localspec.engine.llama import RPC, add_workers, default_threads, devices, shown_name
from localspec.errors import OutOfMemory, UsageError
from localspec.limits import FLASH_ATTENTION, UNQUANTISED
from localspec.loading.load_request import LoadRequest
from localspec.pairs.disk import folders, trained_heads
from localspec.pairs.gguf import head_checks, usable
from localspec.pairs.gguf.adapter import Adapter, read_adapter
from localspec.pairs.gguf.header import GgufHeader, ModelFiles
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.free import Device, FreeMemory, read_speed
from localspec.pairs.memory.model_facts import ModelFacts, draft_facts, facts, own_head
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.placement import (
    DEFAULT_CTX,
    PROGRAM,
    SNAPSHOTS,
    MemoryPlan,
    UserLimits,
    places,
    plan,
)
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.report import nearby_heads, vocabulary
from localspec.pairs.report.model_source import ModelSource

LEAST_CTX = 16

ReadModel: TypeAlias = Callable[[Path], ModelFiles]
"""Reads a model's header; one function for several requests reads each file once."""


@dataclass(frozen=True, slots=True)
class CheckedDraft:
    """A drafter whose header was read and checked.

    Attributes:
        kind: the drafter's name.
        files: its files; for a head inside the target, the target's.
        facts: its sizes, of a head inside the target those of its buffers.
        in_target: whether it is a head inside the target.
    """

    kind: str
    files: ModelFiles
    facts: ModelFacts
    in_target: bool = False

    @property
    def is_model(self) -> bool:
        """Whether it is a model that needs nothing of the target, unlike a head."""
        return self.kind in MODELS

    @property
    def shown_name(self) -> str:
        """What it is called on the screen."""
        path = self.files.paths[0]
        return shown_name(path, self.files.header.name or path.stem)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A load request, checked as far as possible before anything is loaded.

    Its names are resolved and its headers read; the load needs no other look at them.

    Attributes:
        settings: what the conversation begins with, before any advice for the model.
        name: the pair's name for display.
        sizes: the target's with its adapters, each where the tensor is that it changes, and with
            the layers of a head inside it that drafts.
        adapters: LoRA adapters of the target.
    """

    request: LoadRequest
    settings: ChatSettings
    name: str
    target: ModelFiles
    sizes: ModelFacts
    drafts: tuple[CheckedDraft, ...]
    lookup: bool
    why_no_draft: str
    adapters: tuple[Adapter, ...] = ()

    @property
    def mtp(self) -> bool:
        """Whether the head inside the target drafts, so that it is loaded with the target."""
        return any(each.in_target for each in self.drafts)

    @property
    def models(self) -> tuple[ModelFiles, ...]:
        """The files of the target and its drafters, without a head inside the target."""
        return (self.target, *(each.files for each in self.drafts if not each.in_target))

    @property
    def heads(self) -> tuple[ModelFiles, ...]:
        """The files of heads, without one inside the target."""
        return tuple(each.files for each in self.drafts if each.kind in head_checks.FILES)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to load, and how.

    Attributes:
        checked: the request, without workers that do not answer.
        memory: the setups of the target, and of all drafters in the order of `checked`.
        notices: what the user should know.
        unflashed: extra bytes without flash attention; None if there is no choice: a device
            computes, values are quantised, or memory is short.
        exact_by_plan: whether the settings of `--exact` were chosen, as they cost next to nothing.
    """

    checked: CheckedRequest
    memory: MemoryPlan
    advice: SamplingAdvice
    notices: tuple[str, ...]
    unflashed: int | None
    exact_by_plan: bool = False


def load_plan(checked: CheckedRequest) -> LoadPlan:
    """Plan how to load what a request means, from the headers and the free memory.

    Workers that do not answer are left out, with a notice.

    Raises:
        OutOfMemory: the models do not fit.
        UsageError: a cache type does not suit the models, or the context is too small.
    """
    request = checked.request
    greeted = add_workers(request.rpc)
    told = tuple(filter(None, (each.notice for each in greeted)))
    workers = tuple(each.endpoint for each in greeted if not each.problem)
    try:
        found = _load_plan(replace(checked, request=_left_to(workers, request)))
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


def _on_one_device(options: LoadRequest) -> LoadRequest:
    """`options` with the first device alone if the target is not to be shared."""
    if options.split_mode != "none":
        return options
    names = usual_devices() if options.device is None else options.device
    return replace(options, device=tuple(names[:1]), tensor_split=())


def _load_plan(checked: CheckedRequest) -> LoadPlan:
    checked = replace(checked, request=_on_one_device(checked.request))
    options, drafts, target = checked.request, checked.drafts, checked.sizes
    limits = _user_limits(checked)
    if not (drafts or checked.lookup):
        limits = replace(limits, snapshots=0)
    free = free_memory(options, _threads(options))
    memory = plan(
        target,
        [each.facts for each in drafts],
        free,
        limits,
        lambda: read_speed(checked.target.paths[0]),
    )
    n_ctx = memory.target.n_ctx
    advice = advice_for(checked.name, checked.target.paths[0].name, checked.target.header)
    notices = (
        *(line for model in checked.models for line in _beyond_training(n_ctx, model)),
        *(line for head in checked.heads for line in trained_heads.notices(head, checked.target)),
        *(f"to fit the memory: {line}" for line in memory.gave_up),
        *memory.advice,
        *(_unlocked(memory) if options.mlock else []),
        *advice.notices,
    )
    unflashed = _unflashed([target, *(each.facts for each in drafts)], memory)
    return LoadPlan(checked, memory, advice, notices, unflashed)


def advice_for(name: str, file: str, header: GgufHeader) -> SamplingAdvice:
    """The sampling settings advised for a target.

    Args:
        name: of its pair.
        file: name of its first file.
        header: of its first file.
    """
    known = catalogue.sampling_for(name, file)
    return advise(header.name or Path(file).stem, header.metadata, known)


def _unflashed(models: Sequence[ModelFacts], memory: MemoryPlan) -> int | None:
    """Extra bytes without flash attention; None as in `LoadPlan`."""
    if (devices() and memory.target.gpu_layers) or memory.target.cache_v not in UNQUANTISED:
        return None
    more = sum(
        need(model, replace(setup, flash=False)).total - need(model, setup).total
        for model, setup in zip(models, (memory.target, *memory.drafts), strict=True)
    )
    return more if PROGRAM + memory.host + more < memory.free.ram else None


def drafts_plan(checked: CheckedRequest, n_ctx: int) -> tuple[ModelSetup, ...]:
    """The setups of all drafters for a target that is loaded with a context of `n_ctx` tokens.

    Raises:
        LocalspecError: as `load_plan`.
    """
    options = checked.request
    free = free_memory(options, _threads(options))
    limits = _user_limits(checked)
    placed, _ = _placed_alone(checked.drafts, free, limits, n_ctx)
    return tuple(each.target for each in placed)


def _placed_alone(
    drafts: Sequence[CheckedDraft], free: FreeMemory, limits: UserLimits, n_ctx: int
) -> tuple[list[MemoryPlan], FreeMemory]:
    """Place drafters next to a target that is there; return their plans and the memory left.

    Raises:
        OutOfMemory: one does not fit.
    """
    # Shares, experts and snapshots are the target's. A draft that is read from disk saves no time.
    limits = replace(limits, n_ctx=n_ctx, snapshots=0, split=(), cpu_moe=0, mapped=False)
    found = []
    for draft in drafts:
        there, own = places(draft.facts, free, limits)
        theirs = tuple(replace(each, target=each.draft) for each in there.devices)
        alone = replace(own, gpu_layers=own.draft_gpu_layers)
        try:
            placed = plan(draft.facts, (), replace(free, devices=theirs), alone)
        except OutOfMemory as error:
            name = draft.files.paths[0].name
            raise OutOfMemory(f"the draft {name}: {error.message}", "Name fewer drafts.") from None
        ram = free.ram - placed.host - placed.shared
        free = replace(free.less(placed.device, draft=not draft.in_target), ram=ram)
        found.append(placed)
    return found, free


def checked_request(
    request: LoadRequest, settings: ChatSettings, read: ReadModel
) -> CheckedRequest:
    """Find a request's files, and check everything that does not depend on free memory.

    Args:
        request: what to load.
        settings: what the conversation begins with.
        read: reads a model's header; a model that drafts for itself is asked for twice.

    Raises:
        LocalspecError: as `load_session`, but for `OutOfMemory`.
    """
    found = resolver.resolve(request.pair, request.draft, scan=request.scan)
    target = _chat_model(read(found.target))
    drafts = [_checked_draft(read(path), target) for path in found.drafts]
    asked, inside = found.asked, own_head(target.header)
    within = inside if asked.own or MTP in asked.heads else []
    drafts += [CheckedDraft(MTP, target, each, in_target=True) for each in within]
    drafts += _heads_next_to(target, asked.heads, [draft.files.header for draft in drafts])
    adapters = [
        read_adapter(folders.user_path(file), scale, target.header) for file, scale in request.lora
    ]
    tensors = (*target.header.tensors, *chain.from_iterable(each.tensors for each in adapters))
    checked = CheckedRequest(
        request,
        settings,
        found.name,
        target,
        facts(replace(target.header, tensors=tensors), mtp=bool(within)),
        tuple(drafts),
        asked.lookup,
        found.draft_reason,
        tuple(adapters),
    )
    _user_limits(checked)
    return checked


def _heads_next_to(
    target: ModelFiles, kinds: Sequence[str], known: Sequence[GgufHeader]
) -> list[CheckedDraft]:
    """The heads of these kinds in files next to the target, but for kinds `known` to draft."""
    whole = ModelSource(target.header, target.file_bytes, target.paths)
    found = nearby_heads.further(whole, kinds, known, RetryPolicy())
    files = [ModelFiles(each.header, each.paths, each.n_bytes) for each in found]
    return [_checked_draft(each, target) for each in files]


def _checked_draft(draft: ModelFiles, target: ModelFiles) -> CheckedDraft:
    """Check that a draft model or a head fits the target."""
    header = draft.header
    if head_checks.is_head(header):
        head_checks.require_head(draft, target.header)
        return CheckedDraft(head_checks.head_kind(header), draft, draft_facts(header))
    compared = vocabulary.check(target.header, _chat_model(draft).header)
    kind = DRAFT if compared.compatible else CROSS_VOCABULARY
    return CheckedDraft(kind, draft, draft_facts(header))


def _chat_model(model: ModelFiles) -> ModelFiles:
    """The model, if llama.cpp can chat with it."""
    usable.require_usable(model.header, str(model.paths[0]))
    return model


def free_memory(options: LoadRequest, threads: int = 0) -> FreeMemory:
    """The free memory of this machine.

    Args:
        options: name the devices that may be used, and workers, which must have been greeted.
        threads: threads that will be started.
    """
    target, draft = options.device, devices_of_draft(options)
    available = machine.available()
    return FreeMemory(
        ram=available,
        total=machine.total(),
        devices=tuple(
            Device(
                each.usable(available),
                shared=each.usable(available) - each.own_free,
                target=not each.left_out if target is None else each.label in target,
                draft=not each.left_out if draft is None else each.label in draft,
                label=each.label,
                worker=each.name if each.label.startswith(RPC) else "",
            )
            for each in devices()
        ),
        address_space=machine.address_space_left(threads),
    )


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


def usual_devices() -> list[str]:
    """The names of the devices that are used where none is named."""
    return [each.label for each in devices() if not each.left_out]


def devices_of_draft(options: LoadRequest) -> tuple[str, ...] | None:
    """The devices that the draft may use, empty for none, None for all.

    By default those of the target without workers: a draft would wait for the network at every
    token.
    """
    if options.draft_device is not None:
        return options.draft_device
    if not options.rpc:
        return options.device
    here = tuple(each for each in usual_devices() if not each.startswith(RPC))
    if options.device is None:
        return here
    return tuple(each for each in options.device if not each.startswith(RPC))


def _user_limits(checked: CheckedRequest) -> UserLimits:
    """What the request allows; its devices may have changed since it was checked.

    Raises:
        UsageError: settings exclude each other, or the context is too small.
    """
    options = checked.request
    kinds = (options.cache_type_k, options.cache_type_v)
    if options.flash_attn == "off" and kinds[1] not in (None, *UNQUANTISED):
        raise UsageError(
            f"values can be cached in {kinds[1]} only with flash attention",
            "Leave --flash-attn off out, or --cache-type-v.",
        )
    if options.flash_attn == "off" and options.split_mode == "tensor":
        raise UsageError("--split-mode tensor needs flash attention", "Leave --flash-attn off out.")
    if options.cpu_moe and options.n_cpu_moe is not None:
        raise UsageError("--cpu-moe and --n-cpu-moe cannot be combined", "Leave one out.")
    return UserLimits(
        n_ctx=_context_size(options, checked.sizes),
        cache_k=kinds[0] or ("f16" if kinds[1] else None),
        cache_v=kinds[1] or ("f16" if kinds[0] else None),
        gpu_layers=options.n_gpu_layers,
        draft_gpu_layers=0 if devices_of_draft(options) == () else options.draft_n_gpu_layers,
        split=options.tensor_split,
        cpu_moe=-1 if options.cpu_moe else options.n_cpu_moe,
        flash=FLASH_ATTENTION[options.flash_attn],
        snapshots=SNAPSHOTS,
        mapped=options.mmap is not False and not options.mlock,
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
