"""From options to a session over loaded models, in steps that fail early and say why."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from localspec.chat.advice import SamplingAdvice
from localspec.chat.dialects.learning.dialect_store import DIALECTS
from localspec.chat.prompt.renderer import TemplateRenderer
from localspec.chat.session.pair import LoadedPair
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings, check_bias
from localspec.chat.states.past_conversations import PAST
from localspec.chat.states.state_files import STATES
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.head_drafter import head_drafter
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.grammars import lark
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.length.ahead_policy import AheadPolicy
from localspec.engine.llama import Context, Head, default_threads, devices
from localspec.engine.record.stats import CROSS_VOCABULARY, DRAFT
from localspec.engine.round.generate import Engine
from localspec.engine.round.params import CHAIN, Accept, SamplingParams, check_lenience
from localspec.errors import LocalspecError, SamplingError, UsageError
from localspec.loading import former_starter, starter_form
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness
from localspec.loading.measurements.expected_speed import BEHIND, note
from localspec.loading.measurements.measured_costs import MeasuredPair, made_by, measured
from localspec.loading.model_loader import LoadedDrafts, ModelLoader, Progress
from localspec.loading.planning import (
    CheckedRequest,
    LoadPlan,
    ReadModel,
    checked_request,
    drafts_plan,
    load_plan,
)
from localspec.pairs.disk import folders, installed, starter
from localspec.pairs.disk.installed import lasting, lasting_drafts, recall_last, remember_last
from localspec.pairs.gguf.header import read_model
from localspec.pairs.names.reserved_names import STARTER


def chat_settings(options: LoadRequest) -> ChatSettings:
    """The settings that a conversation begins with, before any advice for the model.

    Raises:
        UsageError: sampling settings that give no distribution; an invalid grammar or schema.
    """
    given = {
        name: value
        for name, each in CHAIN.items()
        if (value := getattr(options, each.key)) is not None
    }
    try:
        sampling = SamplingParams(
            **given, logit_bias=_summed(options.logit_bias), seed=options.seed
        )
    except SamplingError as error:
        raise UsageError(error.message, error.remedy) from None
    if options.lossy is not None and options.accept is not None:
        raise UsageError("--lossy and --accept cannot be combined", "Leave one out.")
    settings = ChatSettings(
        system_prompt=options.system_prompt,
        sampling=sampling,
        chosen=frozenset(given),
        accept=Accept(options.accept) if options.accept else None,
        lenience=options.lossy,
        grammar=_grammar(options),
        gamma=options.gamma,
        n_predict=options.n_predict,
        reasoning=options.reasoning,
        reasoning_effort=options.reasoning_effort or "",
        reasoning_budget=options.reasoning_budget,
        reasoning_format=options.reasoning_format,
        stop=options.stop,
        repeat_stop=options.repeat_stop,
        repeatable=options.seed is not None,
    )
    return _settled(settings, SamplingAdvice())


def _settled(settings: ChatSettings, advice: SamplingAdvice) -> ChatSettings:
    """Complete `settings` with the advice for a model.

    Raises:
        UsageError: a lossy rule cannot be combined with them.
    """
    settled = advice.settled(settings)
    try:
        check_lenience(settled.sampling, settled.lenience)
    except SamplingError as error:
        raise UsageError(error.message, error.remedy) from None
    return settled


def _summed(biases: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The total bias of every token: several values for one token add up, as in llama.cpp."""
    total: dict[int, float] = {}
    for token, bias in biases:
        total[token] = total.get(token, 0.0) + bias
    return total


def _grammar(options: LoadRequest) -> str:
    """The requested grammar, checked before a screen starts; empty for none."""
    if options.json_schema is not None:
        grammar = lark.of_schema(options.json_schema)
    elif options.grammar is not None:
        grammar = options.grammar
    else:
        return ""
    require_grammar(grammar)
    return grammar


def check(
    request: LoadRequest,
    *,
    read: ReadModel | None = None,
    progress: Progress = lambda *_: None,
) -> CheckedRequest:
    """Check everything except the memory; another pair may be loaded meanwhile.

    Args:
        request: what to load, and how.
        read: reads headers, and keeps them for other requests; None to keep them for this one.
        progress: receives the step that reads files.

    Raises:
        LocalspecError: as `load_session`.
    """
    settings = chat_settings(request)
    progress("Reading the headers", None)
    return checked_request(
        exactness.settled(request), settings, read or functools.cache(read_model)
    )


def load_session(
    wanted: LoadRequest | CheckedRequest,
    *,
    progress: Progress,
    cancel: Cancel,
    notices: tuple[str, ...] = (),
    thorough: bool = False,
    later: Sequence[CheckedRequest] = (),
) -> Session:
    """Load what a request means; check it first if that was not done.

    Args:
        wanted: the request, checked or not.
        progress: receives every step.
        cancel: stops the loading.
        notices: further notices for the user.
        thorough: choose the attention again and take more time for it.
        later: requests for the same target that `load_another_draft` will load later.

    Raises:
        LocalspecError: a file is missing or not a usable model (`ModelError`), a draft has another
            vocabulary (`VocabularyMismatch`), there is too little memory (`OutOfMemory`), a name is
            unknown (`HubError`), or settings are impossible (`UsageError`).
        Cancelled: `cancel` was set.
    """
    checked = check(wanted, progress=progress) if isinstance(wanted, LoadRequest) else wanted
    checked, more = _with_starter_prepared(checked, progress)
    plan = load_plan(checked)
    settings = _settled(checked.settings, plan.advice)
    before = devices()
    with ExitStack() as undo:
        renderer = TemplateRenderer(cancel)  # its process starts while the models load
        undo.callback(renderer.close)
        loader = ModelLoader(
            plan.checked,
            progress,
            cancel,
            undo,
            not plan.memory.from_disk,
            thorough,
            plan.unflashed,
        )
        mtp = any(each.mtp for each in (checked, *later))
        target = loader.load_target(plan.memory.target, mtp=mtp)
        check_bias(settings, target.model.n_vocab)
        drafts = loader.load_drafts(plan.drafts, target)
        pair = _pair(loader, plan, target, drafts, (*notices, *more))
        pair = replace(pair, devices_before=before)
        session = _session(pair, loader.options, settings, progress, renderer)
        undo.pop_all()
    return session


def _with_starter_prepared(
    checked: CheckedRequest, progress: Progress
) -> tuple[CheckedRequest, list[str]]:
    """Prepare the starter's fastest form, which may be another file; return notices about it."""
    source = starter.source() if starter.is_meant(checked.request.pair) else None
    if source is None:
        return checked, []
    notices = [*former_starter.cleared()]
    if not starter_form.is_settled():
        progress("Converting the starter to a faster form", None)
        notices += filter(None, [starter_form.settle(source)])
        checked = check(checked.request)
    return checked, notices


def _pair(
    loader: ModelLoader,
    plan: LoadPlan,
    target: Context,
    drafts: LoadedDrafts,
    notices: tuple[str, ...],
) -> LoadedPair:
    options = loader.options
    draft = None if options.draft is None else lasting_drafts(options.draft)
    return LoadedPair(
        name=plan.checked.name,
        reference=(lasting(options.pair or STARTER), draft),
        target=target,
        chat_template=options.chat_template,
        advice=plan.advice,
        drafts=drafts.contexts,
        lookup=drafts.lookup,
        draft_note=drafts.note,
        notices=(*notices, *plan.notices, *drafts.notices, *loader.notices),
        loaded=loader.record(plan, target, drafts),
    )


def open_session(
    wanted: LoadRequest | CheckedRequest, progress: Progress, cancel: Cancel
) -> Session:
    """Load the wanted pair, and remember it if it was named. Its caches may be stored.

    Without a name, load the last used pair; if that fails, the starter with a notice; and if the
    starter is not on this disk, an installed pair.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    request = wanted if isinstance(wanted, LoadRequest) else wanted.request
    if request.pair is None:
        session = _opened_in_turn(request, progress, cancel)
    else:
        session = load_session(wanted, progress=progress, cancel=cancel)
        remember_last(request.pair, request.draft)
    session.keep_in(folders.data_folder() / STATES, made_by(session.pair))
    if request.past:
        session.remember_in(folders.data_folder() / PAST)
    return session


def _opened_in_turn(options: LoadRequest, progress: Progress, cancel: Cancel) -> Session:
    failed: dict[str, LocalspecError] = {}
    for pair, draft in _in_turn(options):
        again = replace(options, pair=pair, draft=draft)
        reasons = " nor ".join(f"{name} ({error.message})" for name, error in failed.items())
        told = (f"this is {pair}: cannot open {reasons}",) if failed else ()
        try:
            return load_session(again, progress=progress, cancel=cancel, notices=told)
        except UsageError:
            raise
        except LocalspecError as error:
            failed[pair] = error
    raise next(iter(failed.values()))


def _in_turn(options: LoadRequest) -> Iterator[tuple[str, str | None]]:
    """Pairs to try in turn if none is named, each with its draft; None leaves the draft open."""
    used = recall_last()
    if used is not None:
        yield used.pair, used.draft if options.draft is None else options.draft
    if used is None or used.pair != STARTER:
        yield STARTER, options.draft
    if starter.pair() is None:
        yield from (
            (pair.name, options.draft)
            for pair in installed.all_pairs()
            if pair.complete and (used is None or pair.name != used.pair)
        )


def load_another_draft(
    session: Session, wanted: LoadRequest | CheckedRequest, *, progress: Progress, cancel: Cancel
) -> Session:
    """Load the draft of a request for the target that `session` has loaded.

    The new session shares the target: close only its draft, and use one session at a time.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    target = session.pair.target
    checked = check(wanted) if isinstance(wanted, LoadRequest) else wanted
    settings = _settled(checked.settings, session.pair.advice)
    setups = drafts_plan(checked, target.n_ctx)
    with ExitStack() as undo:
        renderer = TemplateRenderer(cancel)
        undo.callback(renderer.close)
        loader = ModelLoader(
            checked, progress, cancel, undo, flash_attn=session.pair.loaded.flash_attn
        )
        drafts = loader.load_drafts(setups, target)
        pair = replace(
            session.pair,
            drafts=drafts.contexts,
            lookup=drafts.lookup,
            draft_note=drafts.note,
            loaded=replace(
                session.pair.loaded,
                draft_threads=drafts.threads,
                draft_n_gpu_layers=drafts.gpu_layers,
            ),
        )
        found = _session(pair, checked.request, settings, progress, renderer)
        undo.pop_all()
    return found


def _session(
    pair: LoadedPair,
    options: LoadRequest,
    settings: ChatSettings,
    progress: Progress,
    renderer: TemplateRenderer,
) -> Session:
    """Make a session over loaded models, with the automatic gamma for their costs."""
    target = pair.target
    costs = _costs(pair, settings, progress)
    if costs:
        note(pair, costs.auto.costs, doubtful=costs.doubtful)
    if costs and not costs.doubtful and settings.gamma == "auto" and not options.draft_anyway:
        dear = [name for name in _models(pair) if costs.auto.too_dear(name, BEHIND)]
        if dear:
            pair = pair.without(dear, _too_dear(pair, dear))
            costs = _costs(pair, settings, progress)

    def rest(cancel: Cancel) -> None:
        if costs and costs.again(cancel):
            _note_stored(pair)

    drafters = [_drafter(name, context, pair) for name, context in pair.drafts.items()]
    lookup = Lookup(target.n_ctx, target.model.is_end) if pair.lookup else None
    return Session(
        pair,
        Engine(target, *drafters, lookup=lookup, rows=exactness.rows(pair.loaded.exact)),
        settings,
        auto=costs.auto if costs else None,
        closing=costs.keep if costs else None,
        resting=rest,
        renderer=renderer,
        dialects=folders.cache_folder() / DIALECTS,
    )


def _costs(pair: LoadedPair, settings: ChatSettings, progress: Progress) -> MeasuredPair | None:
    return measured(
        pair,
        repeatable=settings.repeatable,
        measure=settings.gamma == "auto",
        announce=lambda: progress("Measuring this machine", None),
    )


def _models(pair: LoadedPair) -> list[str]:
    """The drafters that are separate models; a head costs little memory and is not timed alone."""
    return [name for name in pair.drafts if name.split()[0] in (DRAFT, CROSS_VOCABULARY)]


def _too_dear(pair: LoadedPair, names: Sequence[str]) -> str:
    files = " and ".join(pair.drafts[name].model.path.name for name in names)
    return f"{files}: too big to save time here, and not kept (--draft-anyway keeps it)"


def _note_stored(pair: LoadedPair) -> None:
    """Pass costs measured since the load on to the lists, whose values may be far off."""
    now = measured(pair, repeatable=False, measure=False, announce=lambda: None)
    if now:
        note(pair, now.auto.costs, doubtful=now.doubtful)


def _drafter(name: str, context: Context, pair: LoadedPair) -> Drafter:
    """Make the drafter of a loaded model or head."""
    target = pair.target
    if isinstance(context, Head):
        return head_drafter(context, name)
    if name.startswith(CROSS_VOCABULARY):
        return CrossVocabularyDrafter(context, VocabularyMap(target.model, context.model), name)
    ahead = AheadPolicy() if _apart(pair, context) else None
    return ModelDrafter(context, target.model.n_vocab, name, ahead=ahead)


def _apart(pair: LoadedPair, draft: Context) -> bool:
    """Whether draft and target share no compute, so that both can decode at once.

    On the same card, or with too few cores for both, they would only wait for each other. Where
    they share none, measurements while they run decide whether it pays.
    """
    target, how = pair.target, pair.loaded
    if target.model.remote and draft.model.remote:  # they may share one connection
        return False
    if not (target.model.offloaded or draft.model.offloaded):
        return target.threads.most + draft.threads.most <= default_threads()
    if not (target.model.offloaded and draft.model.offloaded) or target.model.remote:
        return True
    if how.device is None or how.draft_device is None:  # the default uses any device
        return False
    return not set(how.device) & set(how.draft_device)
