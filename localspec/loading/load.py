"""From options to a loaded session, in steps that fail early and say why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from localspec.chat.pair import LoadedPair, LoadRecord
from localspec.chat.renderer import Renderer
from localspec.chat.session import Session
from localspec.chat.settings import ChatSettings, check_bias
from localspec.chat.states import STATES
from localspec.engine.cancel import Cancel
from localspec.engine.drafter import Drafter, ModelDrafter
from localspec.engine.generate import Engine
from localspec.engine.heads import HeadDrafter
from localspec.engine.llama import Context, ContextOptions, Head, Model, devices
from localspec.engine.llama.grammar import check_grammar
from localspec.engine.lookup import Lookup
from localspec.engine.params import Accept, SamplingParams, check_lenience
from localspec.engine.schema.json_schema import schema_to_gbnf
from localspec.engine.stats import EAGLE3, MTP, TRANSLATED
from localspec.engine.translated import TranslatedDrafter
from localspec.engine.translation import Translation
from localspec.errors import LocalspecError, ModelLoadError, SamplingError, UsageError
from localspec.loading import exactness
from localspec.loading.attention import QUICK, THOROUGH, choose, key
from localspec.loading.expected import note
from localspec.loading.measuring import chosen_threads, made_by, measured, profile_store
from localspec.loading.planning import (
    DraftsPlan,
    LoadPlan,
    PlannedDraft,
    check_files,
    devices_of_draft,
    drafts_plan,
    load_plan,
    uses_mtp,
)
from localspec.loading.request import LoadRequest
from localspec.pairs import demo, folders
from localspec.pairs.found import remedy
from localspec.pairs.installed import DEMO, lasting, lasting_drafts, recall_last, remember_last
from localspec.pairs.memory.need import Setup

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with a step in words and its share done (0 to 1), None where that is not known."""


def chat_settings(options: LoadRequest) -> ChatSettings:
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
            logit_bias=_summed(options.logit_bias),
            seed=options.seed,
        )
        check_lenience(sampling, options.lossy)
    except SamplingError as error:
        raise UsageError(error.message, error.remedy) from None
    if options.lossy is not None and options.accept is not None:
        raise UsageError("--lossy is a rule of its own: --accept has no say", "Leave one out.")
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


def _summed(biases: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The bias of every token: several for one add up, as in llama.cpp."""
    total: dict[int, float] = {}
    for token, bias in biases:
        total[token] = total.get(token, 0.0) + bias
    return total


def _grammar(options: LoadRequest) -> str:
    """The GBNF that is asked for, checked before a screen is up; empty for none."""
    if options.json_schema is not None:
        gbnf = schema_to_gbnf(options.json_schema)
    elif options.grammar is not None:
        gbnf = options.grammar
    else:
        return ""
    check_grammar(gbnf)
    return gbnf


def load_session(
    options: LoadRequest,
    *,
    progress: Progress,
    cancel: Cancel,
    notices: tuple[str, ...] = (),
    thorough: bool = False,
    beside: Sequence[LoadRequest] = (),
) -> Session:
    """Find, check and load what `options` ask for.

    Args:
        options: what is asked for.
        progress: is told about every step.
        cancel: stops the loading.
        notices: what the user should know besides what is found out here.
        thorough: choose the attention anew, and take the time.
        beside: what is loaded for the same target later (`load_beside`).

    Raises:
        LocalspecError: a file that is missing or is no usable model (`ModelError`), a draft with
            another vocabulary (`VocabularyMismatch`), too little memory (`OutOfMemory`), a name
            that stands for nothing (`HubError`), impossible settings (`UsageError`).
        Cancelled: `cancel` was set.
    """
    options = exactness.settled(options)
    settings = chat_settings(options)
    progress("Reading the headers", None)
    if demo.is_meant(options.pair) and demo.to_be_padded():
        progress("Padding the demo's models", None)
        notices = (*notices, demo.pad())
    plan = load_plan(options)
    before = devices()
    with ExitStack() as undo:
        renderer = Renderer(cancel)  # its process is there by the time the models are
        undo.callback(renderer.close)
        loader = _ModelLoader(
            options, progress, cancel, undo, not plan.memory.from_disk, thorough, plan.unflashed
        )
        mtp = any(map(uses_mtp, (options, *beside)))
        target = loader.load(plan.path, plan.memory.target, mtp=mtp)
        check_bias(settings, target.model.n_vocab)
        drafting = _load_drafts(plan.drafts, target, loader)
        pair = _pair(loader, plan, target, drafting, notices)
        session = _session(replace(pair, devices_before=before), settings, progress, renderer)
        undo.pop_all()
    return session


def _devices_of_target(options: LoadRequest) -> Sequence[str] | None:
    """Those that were allowed; None for llama.cpp's own choice.

    That leaves out a worker that lends its CPU, which is no graphics card.
    """
    if options.device is None and options.rpc:
        return [each.label for each in devices()] or None
    return options.device


def _pair(
    loader: _ModelLoader,
    plan: LoadPlan,
    target: Context,
    drafting: _LoadedDrafts,
    notices: tuple[str, ...],
) -> LoadedPair:
    options = loader.options
    draft = None if options.draft is None else lasting_drafts(options.draft)
    return LoadedPair(
        name=plan.name,
        reference=(lasting(options.pair or DEMO), draft),
        target=target,
        chat_template=options.chat_template,
        drafts=drafting.contexts,
        lookup=drafting.lookup,
        draft_note=drafting.note,
        notices=(*notices, *plan.notices, *drafting.notices, *loader.notices),
        loaded=_record(loader, plan, target, drafting),
    )


def open_session(options: LoadRequest, progress: Progress, cancel: Cancel) -> Session:
    """Load the pair of `options`, and remember it if it was named; its caches may be kept.

    Without a name the last used pair is loaded; where it cannot be, the demo pair with a notice.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    session = _opened(options, progress, cancel)
    session.keep_in(folders.data_folder() / STATES, made_by(session.pair))
    return session


def _opened(options: LoadRequest, progress: Progress, cancel: Cancel) -> Session:
    if options.pair is not None:
        session = load_session(options, progress=progress, cancel=cancel)
        remember_last(options.pair, options.draft)
        return session
    used = recall_last()
    if used is None:
        return load_session(options, progress=progress, cancel=cancel)
    draft = used.draft if options.draft is None else options.draft
    try:
        again = replace(options, pair=used.pair, draft=draft)
        return load_session(again, progress=progress, cancel=cancel)
    except UsageError:
        raise
    except LocalspecError as error:
        notice = f"{used.pair}, used last, cannot be opened ({error.message}): this is {DEMO}"
        return load_session(options, progress=progress, cancel=cancel, notices=(notice,))


def load_beside(
    session: Session, options: LoadRequest, *, progress: Progress, cancel: Cancel
) -> Session:
    """Load the draft that `options` name for the target that `session` has loaded.

    The new session shares the target: close its draft, not the session, and use one at a time.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    target, settings = session.pair.target, chat_settings(options)
    plan = drafts_plan(options, target.n_ctx)
    with ExitStack() as undo:
        renderer = Renderer(cancel)
        undo.callback(renderer.close)
        loader = _ModelLoader(
            options, progress, cancel, undo, flash_attn=session.pair.loaded.flash_attn
        )
        drafting = _load_drafts(plan, target, loader)
        pair = replace(
            session.pair,
            drafts=drafting.contexts,
            lookup=drafting.lookup,
            draft_note=drafting.note,
            loaded=replace(
                session.pair.loaded,
                draft_threads=drafting.threads,
                draft_n_gpu_layers=drafting.gpu_layers,
            ),
        )
        beside = _session(pair, settings, progress, renderer)
        undo.pop_all()
    return beside


def _session(
    pair: LoadedPair, settings: ChatSettings, progress: Progress, renderer: Renderer
) -> Session:
    """A session over loaded models, with the automatic gamma that their costs give."""
    target = pair.target
    costs = measured(
        pair,
        repeatable=settings.repeatable,
        measure=settings.gamma == "auto",
        announce=lambda: progress("Measuring this machine", None),
    )
    if costs:
        note(pair, costs.auto.costs)
    drafters = [_drafter(name, context, target) for name, context in pair.drafts.items()]
    lookup = Lookup(target.n_ctx, target.model.is_end) if pair.lookup else None
    return Session(
        pair,
        Engine(target, *drafters, lookup=lookup, rows=exactness.rows(pair.loaded.exact)),
        settings,
        auto=costs.auto if costs else None,
        closing=costs.keep if costs else None,
        resting=costs.again if costs else None,
        renderer=renderer,
    )


def _drafter(name: str, context: Context, target: Context) -> Drafter:
    """What drafts with a loaded model or head."""
    if isinstance(context, Head):
        return HeadDrafter(context, name)
    if name.startswith(TRANSLATED):
        return TranslatedDrafter(context, Translation(target.model, context.model), name)
    return ModelDrafter(context, target.model.n_vocab, name)


def check(options: LoadRequest) -> None:
    """Check of `options` what can be checked while another pair is loaded: all but the memory.

    Raises:
        LocalspecError: as `load_session`.
    """
    chat_settings(options)
    check_files(exactness.settled(options))


@dataclass(slots=True)
class _ModelLoader:
    """How a target and what drafts for it are loaded; `undo` frees them if anything later fails.

    Attributes:
        repack: not where weights are to stay on disk.
        thorough: choose the attention anew, and take the time.
        unflashed: bytes more that go without flash attention; None where that is no choice.
        flash_attn: the attention as asked for or, once the target is there, as chosen.
        exact: what `LoadRecord` has, once the target is there.
    """

    options: LoadRequest
    progress: Progress
    cancel: Cancel
    undo: ExitStack
    repack: bool = True
    thorough: bool = False
    unflashed: int | None = None
    flash_attn: str = ""
    exact: int | None = None

    def __post_init__(self) -> None:
        self.flash_attn = self.flash_attn or self.options.flash_attn

    def load(self, path: Path, setup: Setup, *, mtp: bool = False) -> Context:
        """Load a target as `setup` says, with the head inside it if wanted; make its context.

        What attention is chosen for it holds for what drafts as well.
        """
        model = self.model(path, setup, draft=False, mtp=mtp)
        self._choose_attention(model, self.how(setup, draft=False), setup)
        target = self._kept(Context(model, self.how(setup, draft=False), self.cancel))
        if self.options.exact:
            self.threads(target, draft=False)
            self.exact = exactness.longest(
                target,
                exactness.key(path, setup, self.options),
                store=profile_store(),
                announce=lambda: self.progress("Comparing passes bit by bit", None),
            )
        return target

    def load_draft(self, planned: PlannedDraft, target: Context) -> Context:
        """Load a draft model or a head, and make its context."""
        how = self.how(planned.setup, draft=True)
        if planned.kind == MTP:
            return self._kept(Head(target.model, target, how, self.cancel))
        model = self.model(planned.path, planned.setup, draft=True, head=planned.kind == EAGLE3)
        if planned.kind == EAGLE3:
            return self._kept(Head(model, target, how, self.cancel))
        return self._kept(Context(model, how, self.cancel))

    def model(
        self, path: Path, setup: Setup, *, draft: bool, mtp: bool = False, head: bool = False
    ) -> Model:
        """Load a file's weights."""
        step, options = f"Loading {path.name}", self.options
        try:
            model = Model.load(
                path,
                n_gpu_layers=setup.gpu_layers,
                devices=devices_of_draft(options) if draft else _devices_of_target(options),
                mmap=options.mmap,
                mlock=options.mlock,
                repack=self.repack,
                mtp=mtp,
                head=head,
                progress=lambda share: self.progress(step, share),
                cancel=self.cancel,
            )
        except ModelLoadError as error:
            raise ModelLoadError(error.message, remedy(path) or error.remedy) from None
        self.undo.callback(model.close)
        return model

    def how(self, setup: Setup, *, draft: bool) -> ContextOptions:
        """How a context is made."""
        options = self.options
        return ContextOptions(
            n_ctx=setup.n_ctx,
            threads=self._asked(draft=draft),
            threads_batch=options.threads_batch,
            flash_attention=None if self.flash_attn == "auto" else self.flash_attn == "on",
            snapshots=setup.snapshots,
            cache_k=setup.cache_k,
            cache_v=setup.cache_v,
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know of the target's passes."""
        if self.exact is None or self.exact > 1:
            return ()
        return (f"--exact: {exactness.words(self.exact)}",)

    def _kept(self, context: Context) -> Context:
        """A context that is closed if anything later fails."""
        self.undo.callback(context.close)
        return context

    def _choose_attention(self, model: Model, how: ContextOptions, setup: Setup) -> None:
        if self.flash_attn != "auto" or self.unflashed is None:
            return
        found = choose(
            model,
            how,
            key(model.path, setup, self.options.threads),
            store=profile_store(),
            seconds=THOROUGH if self.thorough else QUICK,
            cancel=self.cancel,
            announce=lambda: self.progress("Measuring attention", None),
        )
        if found is not None:
            self.flash_attn = found.option

    def _asked(self, *, draft: bool) -> int | None:
        """The threads that were asked for."""
        return (self.options.draft_threads if draft else None) or self.options.threads

    def threads(self, context: Context, *, draft: bool) -> int:
        """Give `context` its CPU threads; return how many."""
        threads = chosen_threads(
            context,
            self._asked(draft=draft),
            draft=draft,
            store=profile_store(),
        )
        fixed = self._asked(draft=draft) is not None and not self.options.exact
        context.use_threads(threads, self.options.threads_batch, at_most=not fixed)
        return threads


@dataclass(frozen=True, slots=True)
class _LoadedDrafts:
    """What drafts, loaded.

    Attributes:
        contexts: of draft models, by the drafters' names.
        lookup: whether what repeats is copied.
        note: why nothing can be drafted; empty where something can.
        notices: what else the user should know.
        threads, gpu_layers: of the first model; 0 without any.
    """

    contexts: Mapping[str, Context] = field(default_factory=dict)
    lookup: bool = False
    note: str = ""
    notices: tuple[str, ...] = ()
    threads: int = 0
    gpu_layers: int = 0


def _record(
    loader: _ModelLoader, plan: LoadPlan, target: Context, drafting: _LoadedDrafts
) -> LoadRecord:
    """How the models run, with their threads."""
    options, setup = loader.options, plan.memory.target
    chosen_off = loader.flash_attn == "off" != options.flash_attn
    more = (loader.unflashed or 0) if chosen_off else 0
    return LoadRecord(
        ctx_size=setup.n_ctx,
        threads=loader.threads(target, draft=False),
        draft_threads=drafting.threads,
        threads_batch=options.threads_batch,
        n_gpu_layers=setup.gpu_layers,
        draft_n_gpu_layers=drafting.gpu_layers,
        device=options.device,
        draft_device=devices_of_draft(options),
        rpc=plan.workers,
        flash_attn=loader.flash_attn,
        cache_type_k=setup.cache_k,
        cache_type_v=setup.cache_v,
        mmap=options.mmap,
        mlock=options.mlock,
        exact=loader.exact,
        memory_plan_bytes=plan.total + more,
    )


def _load_drafts(plan: DraftsPlan, target: Context, loader: _ModelLoader) -> _LoadedDrafts:
    """Load what drafts; a draft model that cannot take back its tokens is left out."""
    if not target.can_truncate:
        return _LoadedDrafts(note=_cannot_go_back(target.model))
    found: dict[str, Context] = {}
    refused, threads = [], []
    for planned in plan.models:
        draft = loader.load_draft(planned, target)
        if not draft.can_truncate:
            draft.close()
            if draft.model is not target.model:
                draft.model.close()
            refused.append(_cannot_go_back(draft.model))
            continue
        alike = sum(name.split()[0] == planned.kind for name in found)
        found[f"{planned.kind} {alike + 1}" if alike else planned.kind] = draft
        threads.append(loader.threads(draft, draft=True))
    if not found and not plan.lookup:
        return _LoadedDrafts(note=next(iter(refused), f"there is no draft: {plan.why_no_model}"))
    return _LoadedDrafts(
        found,
        plan.lookup,
        notices=tuple(refused),
        threads=next(iter(threads), 0),
        gpu_layers=next((each.model.gpu_layers for each in found.values()), 0),
    )


def _cannot_go_back(model: Model) -> str:
    architecture = model.metadata.get("general.architecture", "?")
    return (
        f"{model.name} cannot take back rejected tokens: llama.cpp restores no earlier state"
        f" of this architecture ({architecture})"
    )
