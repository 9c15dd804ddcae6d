"""What is going to be loaded, and how: everything that the headers can tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from localspec import formats, machine
from localspec.engine.llama import RPC, add_servers, default_threads, devices
from localspec.engine.stats import DeviceMemory
from localspec.errors import UsageError
from localspec.loading.request import LoadRequest
from localspec.pairs import resolver, vocabulary
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf import strict
from localspec.pairs.gguf.header import ModelFiles
from localspec.pairs.memory.free import Device, Free, read_speed
from localspec.pairs.memory.need import ModelFacts, Setup, facts
from localspec.pairs.memory.placement import DEFAULT_CTX, MemoryPlan, Wishes, plan
from localspec.pairs.resolver import ResolvedPair

LEAST_CTX = 16
# Rejected tokens that a target with recurrent layers takes back without reading again what stays;
# each costs a copy of its state. A round that drafts more reads again.
SNAPSHOTS = 8


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is going to be loaded, from the headers alone."""

    resolved: ResolvedPair
    memory: MemoryPlan
    notices: tuple[str, ...]


def load_plan(options: LoadRequest) -> LoadPlan:
    """Resolve and check everything that can be checked without loading.

    Raises:
        LocalspecError: as `load_session`.
    """
    resolved, target, draft = _find(options)
    add_servers(options.rpc)
    models = [facts_of(target), *([facts_of(draft)] if draft else [])]
    wishes = _wishes(options, models[0])
    memory = plan(
        models[0],
        models[1] if draft else None,
        free_memory(options.device, devices_of_draft(options), _threads(options)),
        wishes,
        lambda: read_speed(target.paths[0]),
    )
    n_ctx = memory.target.n_ctx
    notices = [
        *_beyond_training(n_ctx, target),
        *(_beyond_training(n_ctx, draft) if draft else []),
        *(f"to fit the memory: {line}" for line in memory.gave_up),
        *memory.advice,
        *(_unlocked(memory) if options.mlock else []),
    ]
    return LoadPlan(resolved, memory, tuple(notices))


def draft_plan(options: LoadRequest, n_ctx: int) -> tuple[ResolvedPair, Setup | None]:
    """The draft's setup beside a target that is loaded with a context of `n_ctx`.

    Raises:
        LocalspecError: as `load_session`.
    """
    resolved, target, draft = _find(options)
    if draft is None:
        return resolved, None
    wishes = replace(_wishes(options, facts_of(target)), n_ctx=n_ctx)
    alone = replace(wishes, gpu_layers=wishes.draft_gpu_layers, snapshots=0)
    free = free_memory(devices_of_draft(options), threads=_threads(options))
    return resolved, plan(facts_of(draft), None, free, alone).target


def check_files(options: LoadRequest) -> None:
    """Check all that does not depend on what is free.

    Raises:
        LocalspecError: as `load_session`.
    """
    _wishes(options, facts_of(_find(options)[1]))


def _find(options: LoadRequest) -> tuple[ResolvedPair, ModelFiles, ModelFiles | None]:
    """Find the files, and check by their headers that they can chat and belong together."""
    resolved = resolver.resolve(options.pair, options.draft)
    target = _read(resolved.target)
    draft = _read(resolved.draft) if resolved.draft else None
    if draft is not None:
        vocabulary.check(target.header, draft.header)
    return resolved, target, draft


def _read(path: Path) -> ModelFiles:
    """Read a model's header, and make sure that llama.cpp can be given the file to chat with."""
    model = gguf.read_model(path)
    strict.require_usable(model.header, str(path))
    return model


def facts_of(model: ModelFiles) -> ModelFacts:
    """The sizes of a model on disk."""
    return facts(model.header)


def free_memory(
    target: tuple[str, ...] | None = None,
    draft: tuple[str, ...] | None = (),
    threads: int = 0,
) -> Free:
    """What this machine has free now.

    Args:
        target: names of the devices that the target may use, None for all.
        draft: the same for the draft.
        threads: that will be started.
    """
    return Free(
        ram=machine.available(),
        devices=tuple(
            Device(
                _usable(each),
                shared=each.integrated,
                target=target is None or each.label in target,
                draft=draft is None or each.label in draft,
            )
            for each in devices()
        ),
        address_space=machine.address_space_left(threads),
    )


def _threads(options: LoadRequest) -> int:
    """The threads that will be started: both models are served by the same ones."""
    asked = (options.threads_batch or 0, options.draft_threads or 0)
    return max(options.threads or default_threads(), *asked)


def devices_of_draft(options: LoadRequest) -> tuple[str, ...] | None:
    """The devices that the draft may use, empty for none, None for all.

    Without a choice those of the target, but none over the network: a draft waits for every token.
    """
    if options.draft_device is not None:
        return options.draft_device
    if not options.rpc:
        return options.device
    here = tuple(each.label for each in devices() if not each.label.startswith(RPC))
    return here if options.device is None else tuple(n for n in options.device if n in here)


def _usable(device: DeviceMemory) -> int:
    """What is free there; of the main memory, no more than is free in it."""
    return min(device.free, machine.available()) if device.integrated else device.free


def _wishes(options: LoadRequest, target: ModelFacts) -> Wishes:
    kinds = (options.cache_type_k, options.cache_type_v)
    if options.flash_attn == "off" and kinds[1] not in (None, "f32", "f16", "bf16"):
        raise UsageError(
            f"values can be cached in {kinds[1]} only with flash attention",
            "Leave --flash-attn off out, or --cache-type-v.",
        )
    return Wishes(
        n_ctx=_context_size(options, target),
        cache_k=kinds[0] or ("f16" if kinds[1] else None),
        cache_v=kinds[1] or ("f16" if kinds[0] else None),
        gpu_layers=options.n_gpu_layers,
        draft_gpu_layers=0 if devices_of_draft(options) == () else options.draft_n_gpu_layers,
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
    """What the system does not let llama.cpp lock: it goes on without, and tells its log alone."""
    weights, limit = sum(each.host_weights for each in memory.needs), machine.lockable()
    if limit is None or weights <= limit:
        return []
    return [
        f"--mlock can keep {formats.size(limit)} of {formats.size(weights)} of weights in memory:"
        " raise the limit on locked memory (ulimit -l), or leave it out"
    ]
