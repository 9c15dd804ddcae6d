"""From options to a loaded session, in steps that fail early and say why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from localspec.chat import machine
from localspec.chat.pair import LoadedPair
from localspec.chat.session import Session
from localspec.chat.settings import ChatSettings
from localspec.cli.measuring import chosen_threads, measured, profile_store
from localspec.cli.options import Options
from localspec.engine.acceptance import Accept
from localspec.engine.cancel import Cancel
from localspec.engine.draft import ModelDrafter
from localspec.engine.generate import Engine
from localspec.engine.llama import Context, ContextOptions, Model, devices
from localspec.engine.llama_grammar import check_grammar, schema_to_gbnf
from localspec.engine.sampling import SamplingParams
from localspec.errors import OutOfMemory, SamplingError, UnsupportedModel, UsageError
from localspec.pairs import catalogue, gguf, units, vocabulary
from localspec.pairs.catalogue import ResolvedPair
from localspec.pairs.gguf import GgufHeader, ModelFiles
from localspec.pairs.installed import DEMO
from localspec.pairs.last_used import lasting

# Chosen where nobody asks for more: a cache of the whole trained context can take more memory
# than the weights.
DEFAULT_CTX = 8192
LEAST_CTX = 16
# Rejected tokens that a target with recurrent layers takes back without reading again what stays;
# each costs a copy of its state. A round that drafts more reads again.
SNAPSHOTS = 8

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with a step in words and its share done (0 to 1), None where that is not known."""


def chat_settings(options: Options) -> ChatSettings:
    """The settings that a conversation begins with.

    Raises:
        UsageError: sampling settings that make no distribution; no grammar, or no schema.
    """
    try:
        sampling = SamplingParams(
            temperature=options.temp,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            typical_p=options.typical_p,
            repeat_penalty=options.repeat_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            repeat_last_n=options.repeat_last_n,
            logit_bias=dict(options.logit_bias),
            seed=options.seed,
        )
    except SamplingError as error:
        raise UsageError(error.message, error.remedy) from None
    return ChatSettings(
        system_prompt=options.system_prompt,
        sampling=sampling,
        accept=Accept(options.accept) if options.accept else None,
        lenience=options.lossy,
        grammar=_grammar(options),
        gamma=options.gamma,
        n_predict=options.n_predict,
        stop=options.stop,
        repeatable=options.seed is not None,
    )


def _grammar(options: Options) -> str:
    """The GBNF that is asked for, checked before a screen is up; empty for none."""
    if options.json_schema is not None:
        gbnf = schema_to_gbnf(options.json_schema)
    elif options.grammar is not None:
        gbnf = options.grammar
    else:
        return ""
    check_grammar(gbnf)
    return gbnf


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is going to be loaded, from the headers alone."""

    resolved: ResolvedPair
    target: ModelFiles
    draft: ModelFiles | None
    n_ctx: int
    notices: tuple[str, ...]


def load_session(
    options: Options, *, progress: Progress, cancel: Cancel, notices: tuple[str, ...] = ()
) -> Session:
    """Find, check and load what `options` ask for.

    Args:
        options: what is asked for.
        progress: is told about every step.
        cancel: stops the loading.
        notices: what the user should know besides what is found out here.

    Raises:
        LocalspecError: a file that is missing or is no usable model (`ModelError`), a draft with
            another vocabulary (`VocabularyMismatch`), too little memory (`OutOfMemory`), a name
            that stands for nothing (`HubError`), impossible settings (`UsageError`).
        Cancelled: `cancel` was set.
    """
    settings = chat_settings(options)
    progress("Reading the headers", None)
    plan = _plan(options)
    before = devices()
    with ExitStack() as undo:
        loader = _Loader(options, plan.n_ctx, progress, cancel, undo)
        target = loader.load(plan.resolved.target, snapshots=0 if plan.draft is None else SNAPSHOTS)
        _require_known_tokens(settings, target.model.n_vocab)
        draft, note = _load_draft(plan.resolved, target, loader)
        pair = LoadedPair(
            name=plan.resolved.name,
            reference=(
                lasting(options.pair or DEMO),
                None if options.draft is None else lasting(options.draft),
            ),
            target=target,
            draft=draft,
            draft_note=note,
            notices=(*notices, *plan.notices),
            load_settings={
                "ctx_size": plan.n_ctx,
                "threads": loader.threads(target, draft=False),
                "draft_threads": loader.threads(draft, draft=True) if draft else 0,
                "n_gpu_layers": options.n_gpu_layers,
            },
            devices_before=before,
        )
        session = _session(pair, settings, progress)
        undo.pop_all()
    return session


def load_beside(
    session: Session, options: Options, *, progress: Progress, cancel: Cancel
) -> Session:
    """Load the draft that `options` name for the target that `session` has loaded.

    The new session shares the target: close its draft, not the session, and use one at a time.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    target, settings = session.pair.target, chat_settings(options)
    resolved = catalogue.resolve(options.pair, options.draft)
    if resolved.draft is not None:
        model = gguf.read_model(resolved.draft)
        _require_chat_model(model)
        vocabulary.check(gguf.read_model(resolved.target).header, model.header)
        _check_memory([model], target.n_ctx, on_accelerator=options.n_gpu_layers != 0)
    with ExitStack() as undo:
        loader = _Loader(options, target.n_ctx, progress, cancel, undo)
        draft, note = _load_draft(resolved, target, loader)
        threads = loader.threads(draft, draft=True) if draft else 0
        pair = replace(
            session.pair,
            draft=draft,
            draft_note=note,
            load_settings={**session.pair.load_settings, "draft_threads": threads},
        )
        beside = _session(pair, settings, progress)
        undo.pop_all()
    return beside


def _session(pair: LoadedPair, settings: ChatSettings, progress: Progress) -> Session:
    """A session over loaded models, with the automatic gamma that their costs give."""
    target, draft = pair.target, pair.draft
    costs = measured(
        pair,
        repeatable=settings.repeatable,
        measure=settings.gamma == "auto",
        announce=lambda: progress("Measuring this machine", None),
    )
    return Session(
        pair,
        Engine(target, ModelDrafter(draft, target.model.n_vocab) if draft else None),
        settings,
        auto=costs.auto if costs else None,
        closing=costs.keep if costs else None,
    )


def _require_known_tokens(settings: ChatSettings, n_vocab: int) -> None:
    unknown = [token for token in settings.sampling.logit_bias if token >= n_vocab]
    if unknown:
        raise UsageError(
            f"logit-bias names token {unknown[0]}, the target has {n_vocab:,}",
            "Give ids of the target's vocabulary.",
        )


def check(options: Options) -> None:
    """Check of `options` what can be checked while another pair is loaded: all but the memory.

    Raises:
        LocalspecError: as `load_session`.
    """
    chat_settings(options)
    _context_size(options, _find(options)[1].header)


def _find(options: Options) -> tuple[ResolvedPair, ModelFiles, ModelFiles | None]:
    """Find the files, and check by their headers that they can chat and belong together."""
    resolved = catalogue.resolve(options.pair, options.draft)
    target = gguf.read_model(resolved.target)
    _require_chat_model(target)
    draft = gguf.read_model(resolved.draft) if resolved.draft else None
    if draft is not None:
        _require_chat_model(draft)
        vocabulary.check(target.header, draft.header)
    return resolved, target, draft


def _plan(options: Options) -> _Plan:
    """Resolve and check everything that can be checked without loading."""
    resolved, target, draft = _find(options)
    n_ctx = _context_size(options, target.header)
    notices = [*_beyond_training(n_ctx, target), *(_beyond_training(n_ctx, draft) if draft else [])]
    models = [target] if draft is None else [target, draft]
    notices += _check_memory(models, n_ctx, on_accelerator=options.n_gpu_layers != 0)
    return _Plan(resolved, target, draft, n_ctx, tuple(notices))


def _context_size(options: Options, target: GgufHeader) -> int:
    trained = _trained(target)
    if options.ctx_size is None:
        return min(trained or DEFAULT_CTX, DEFAULT_CTX)
    n_ctx = options.ctx_size or trained or DEFAULT_CTX
    if n_ctx < LEAST_CTX:
        raise UsageError(
            f"a context of {n_ctx} tokens holds no conversation",
            f"Give --ctx-size at least {LEAST_CTX}, or 0 for all that the model was trained for.",
        )
    return n_ctx


def _trained(header: GgufHeader) -> int:
    return header.integer(header.arch_key("context_length"))


def _beyond_training(n_ctx: int, model: ModelFiles) -> list[str]:
    trained = _trained(model.header)
    if not trained or n_ctx <= trained:
        return []
    return [
        f"the context of {n_ctx:,} tokens is beyond the {trained:,} that"
        f" {model.paths[0].name} was trained for: it gets worse from there on"
    ]


CHOOSE = "Choose a chat model."

# Architectures that turn text into vectors, or images into embeddings.
_NO_WRITERS = ("bert", "t5encoder", "clip", "gemma-embedding", "wavtokenizer-dec")


def _require_chat_model(model: ModelFiles) -> None:
    """Refuse by the header alone what loads but writes no text.

    Raises:
        UnsupportedModel: an embedding model, an adapter, a projector.
    """
    header, name = model.header, model.paths[0].name
    architecture = header.architecture
    kind = header.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{name} is no model of its own but of type {kind}", CHOOSE)
    pooled = header.integer(header.arch_key("pooling_type")) > 0
    causal = header.metadata.get(header.arch_key("attention.causal"), True)
    if pooled or causal is False or architecture.endswith(_NO_WRITERS):
        raise UnsupportedModel(
            f"{name} is an embedding model ({architecture}): it writes no text", CHOOSE
        )


def _check_memory(models: list[ModelFiles], n_ctx: int, *, on_accelerator: bool) -> list[str]:
    """Refuse what cannot fit, warn of what will be slow.

    Weights are mapped: where they do not fit they are read from disk again and again, which is
    slow but works. Caches must fit. A limit on the address space counts both.

    Raises:
        OutOfMemory: too little memory.
    """
    weights = sum(model.tensor_bytes for model in models)
    caches = sum(_cache_bytes(model.header, n_ctx) for model in models)
    free = machine.available()
    if on_accelerator:
        free += sum(device.free for device in devices())
    room = machine.address_space_left()
    if room is not None and _with_reserve(weights + caches) > room:
        raise OutOfMemory(
            f"the models need about {units.size(_with_reserve(weights + caches))} of memory,"
            f" this process may take {units.size(room)} more",
            "Lower --ctx-size, choose a smaller pair, or raise the limit (ulimit -v).",
        )
    if _with_reserve(caches) > free:
        raise OutOfMemory(
            f"a context of {n_ctx:,} tokens needs about {units.size(caches)} of memory,"
            f" {units.size(free)} are free",
            "Lower --ctx-size, or close other programs.",
        )
    if _with_reserve(weights + caches) > free:
        return [
            f"the models need about {units.size(_with_reserve(weights + caches))} of memory,"
            f" {units.size(free)} are free: weights will be read from disk again and again"
        ]
    return []


def _with_reserve(n_bytes: int) -> int:
    """A tenth more, for compute buffers and for the rest of the process."""
    return n_bytes + n_bytes // 10


def _cache_bytes(header: GgufHeader, n_ctx: int) -> int:
    """The key and value cache in F16, as if every layer attended to everything."""
    heads = max(header.integers(header.arch_key("attention.head_count")), default=0) or 1
    width = header.integer(header.arch_key("embedding_length")) // heads
    key = header.integer(header.arch_key("attention.key_length"), width)
    value = header.integer(header.arch_key("attention.value_length"), width)
    layers = header.integer(header.arch_key("block_count"))
    kv_heads = header.integers(header.arch_key("attention.head_count_kv")) or [heads]
    total_heads = sum(kv_heads) if len(kv_heads) > 1 else layers * kv_heads[0]
    return 2 * n_ctx * total_heads * (key + value)


@dataclass(frozen=True, slots=True)
class _Loader:
    """How both models are loaded; `undo` frees them if anything later fails."""

    options: Options
    n_ctx: int
    progress: Progress
    cancel: Cancel
    undo: ExitStack

    def load(self, path: Path, *, snapshots: int = 0) -> Context:
        """Load one model and make its context, with so many snapshots of a recurrent state."""
        step = f"Loading {path.name}"
        model = Model.load(
            path,
            n_gpu_layers=self.options.n_gpu_layers,
            progress=lambda share: self.progress(step, share),
            cancel=self.cancel,
        )
        self.undo.callback(model.close)
        how = ContextOptions(n_ctx=self.n_ctx, threads=self.options.threads, snapshots=snapshots)
        context = Context(model, how, self.cancel)
        self.undo.callback(context.close)
        return context

    def threads(self, context: Context, *, draft: bool) -> int:
        """Give `context` its CPU threads; return how many."""
        threads = chosen_threads(
            context,
            self.options.threads,
            n_gpu_layers=self.options.n_gpu_layers,
            draft=draft,
            store=profile_store(),
        )
        context.use_threads(threads)
        return threads


def _load_draft(
    resolved: ResolvedPair, target: Context, loader: _Loader
) -> tuple[Context | None, str]:
    """The draft's context, or why there is none."""
    if resolved.draft is None:
        return None, f"there is no draft: {resolved.draft_reason}"
    if not target.can_truncate:
        return None, _cannot_go_back(target.model)
    draft = loader.load(resolved.draft)
    if draft.can_truncate:
        return draft, ""
    draft.close()
    draft.model.close()
    return None, _cannot_go_back(draft.model)


def _cannot_go_back(model: Model) -> str:
    architecture = model.metadata.get("general.architecture", "?")
    return (
        f"{model.name} cannot take back rejected tokens: llama.cpp restores no earlier state"
        f" of this architecture ({architecture})"
    )
