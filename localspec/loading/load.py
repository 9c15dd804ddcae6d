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
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.grammars import lark
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.llama import Context, devices
from localspec.engine.round.generate import Engine
from localspec.engine.round.params import CHAIN, Accept, SamplingParams, check_lenience
from localspec.errors import LocalspecError, SamplingError, UsageError
from localspec.loading import former_starter, starter_form
from localspec.loading.draft_models import DraftModels
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import draft_worth, exactness, exactness_cost
from localspec.loading.measurements.measured_costs import made_by, profile_store
from localspec.loading.model_loader import ModelLoader, Progress
from localspec.loading.planning import (
    CheckedRequest,
    LoadPlan,
    ReadModel,
    checked_request,
    drafts_plan,
    load_plan,
)
from localspec.loading.results import exact_words
from localspec.pairs.disk import folders, installed, starter
from localspec.pairs.disk.installed import lasting, lasting_drafts, recall_last, remember_last
from localspec.pairs.gguf.header import ModelFiles, read_model
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
    may_wait: bool = False,
) -> Session:
    """Load what a request means; check it first if that was not done.

    Args:
        wanted: the request, checked or not.
        progress: receives every step.
        cancel: stops the loading.
        notices: further notices for the user.
        thorough: choose the attention again and take more time for it.
        later: requests for the same target that `load_another_draft` will load later.
        may_wait: whether the session may answer before large draft models are loaded, which
            `Session.load_drafts` does.

    Raises:
        LocalspecError: a file is missing or not a usable model (`ModelError`), a draft has another
            vocabulary (`VocabularyMismatch`), there is too little memory (`OutOfMemory`), a name is
            unknown (`HubError`), or settings are impossible (`UsageError`).
        Cancelled: `cancel` was set.
    """
    checked = check(wanted, progress=progress) if isinstance(wanted, LoadRequest) else wanted
    checked, more = _with_starter_prepared(checked, progress)
    plan = load_plan(checked)
    plan, dear = (plan, ()) if thorough else _without_dear(plan)
    if not thorough:
        plan = _exact_where_free(plan)
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
            bool(plan.memory.from_disk),
            thorough,
            plan.unflashed,
        )
        mtp = any(each.mtp for each in (checked, *later))
        target = loader.load_target(plan.memory.target, mtp=mtp)
        check_bias(settings, target.model.n_vocab)
        pair = _pair(loader, plan, target, (*notices, *more))
        pair = replace(pair, devices_before=before)
        models = DraftModels(pair, loader, plan.memory.drafts, settings, dear)
        waits = may_wait and models.may_wait
        if not waits:
            models.join(cancel, undo)
        session = _session(models, settings, renderer, waits=waits)
        _ = session.dialect  # learnt while a cancellation still frees everything
        undo.pop_all()
    return session


def _with_starter_prepared(
    checked: CheckedRequest, progress: Progress
) -> tuple[CheckedRequest, list[str]]:
    """Prepare the form in which the starter answers, and return notices about it."""
    source = starter.source() if starter.is_meant(checked.request.pair) else None
    if source is None:
        return checked, []
    notices = [*former_starter.cleared()]
    if not starter_form.is_settled():
        known = starter.recall()
        copied = known is not None and known.copy_bytes
        progress(
            "Timing both forms of the starter" if copied else "Converting the starter to Q8_0",
            None,
        )
        notices += filter(None, [starter_form.settle(source)])
        checked = check(checked.request)
    return checked, notices


def _without_dear(plan: LoadPlan) -> tuple[LoadPlan, tuple[ModelFiles, ...]]:
    """A plan without room for the draft if that is known to save no time; and the draft's files.

    The stored costs of the first plan decide, also once those of the new one are known, in which
    the draft would have no place. They are those of the usual settings.
    """
    checked = plan.checked
    request, drafts = checked.request, checked.drafts
    where = request.device or request.draft_device or request.draft_threads or request.rpc
    if request.keeps_draft or where or not exactness_cost.comparable(request) or len(drafts) != 1:
        return plan, ()
    draft = drafts[0].files
    if drafts[0].in_target or not draft_worth.why_left_out(checked.target, draft, plan.memory):
        return plan, ()
    return load_plan(replace(checked, drafts=())), (draft,)


def _exact_where_free(plan: LoadPlan) -> LoadPlan:
    """`plan` with the settings of `--exact` if `tune` found them to cost next to nothing."""
    request, path = plan.checked.request, plan.checked.target.paths[0]
    chosen = exactness_cost.chosen(request, path, plan.memory, profile_store())
    if chosen is request:
        return plan
    return replace(plan, checked=replace(plan.checked, request=chosen), exact_by_plan=True)


def _exact_note(loader: ModelLoader, plan: LoadPlan) -> tuple[str, tuple[str, ...]]:
    """What is known of `--exact` for the target; empty if other settings were asked for.

    Returns:
        That, and the same as a notice where it was asked for and costs something.
    """
    options = loader.options
    if options.lora or not (options.exact or exactness_cost.comparable(options)):
        return "", ()
    known = exactness.key(
        plan.checked.target.paths[0],
        plan.memory.target,
        exactness.settled(replace(options, exact=True)),
        from_disk=bool(plan.memory.from_disk),
    )
    longest = loader.exact or exactness.stored(known, profile_store())
    cost = exactness_cost.stored(known, profile_store())
    note = exact_words(longest, cost, "/tune")
    costs = options.exact and cost is not None and not cost.free
    return note, (f"--exact: {note}",) if costs else ()


def _pair(
    loader: ModelLoader,
    plan: LoadPlan,
    target: Context,
    notices: tuple[str, ...],
) -> LoadedPair:
    """The target, before anything that drafts is loaded."""
    options = loader.options
    draft = _lasting_draft(options)
    exact_note, costs = _exact_note(loader, plan)
    return LoadedPair(
        name=plan.checked.name,
        reference=(lasting(options.pair or STARTER), draft),
        target=target,
        chat_template=options.chat_template,
        advice=plan.advice,
        lookup=plan.checked.lookup,
        draft_note=_no_draft(plan.checked),
        exact_note=exact_note,
        notices=(*notices, *plan.notices, *loader.notices, *costs),
        loaded=loader.record(plan, target),
    )


def _no_draft(checked: CheckedRequest) -> str:
    return f"there is no draft: {checked.why_no_draft}"


def open_session(
    wanted: LoadRequest | CheckedRequest, progress: Progress, cancel: Cancel
) -> Session:
    """Load the wanted pair, and remember it if it was named. Its caches may be stored.

    Large draft models are left to `Session.load_drafts`.

    Without a name, load the last used pair; if that fails, the starter with a notice; and if the
    starter is not on this disk, an installed pair.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    request = wanted if isinstance(wanted, LoadRequest) else wanted.request
    if request.pair is None:
        session = _opened_in_turn(request, progress, cancel)
    else:
        session = load_session(wanted, progress=progress, cancel=cancel, may_wait=True)
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
            return load_session(
                again, progress=progress, cancel=cancel, notices=told, may_wait=True
            )
        except UsageError:
            raise
        except LocalspecError as error:
            failed[pair] = error
    raise next(iter(failed.values()))


def _lasting_draft(options: LoadRequest) -> str | None:
    """What was asked to draft, as it is understood in any folder; None if that was left open."""
    return None if options.draft is None else lasting_drafts(options.draft)


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
    session: Session, checked: CheckedRequest, *, progress: Progress, cancel: Cancel
) -> Session:
    """Load the draft of a request for the target that `session` has loaded.

    The new session shares the target: close only its draft, and use one session at a time.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    target = session.pair.target
    settings = _settled(checked.settings, session.pair.advice)
    setups = drafts_plan(checked, target.n_ctx)
    with ExitStack() as undo:
        renderer = TemplateRenderer(cancel)
        undo.callback(renderer.close)
        loaded = session.pair.loaded
        loader = ModelLoader(
            checked,
            progress,
            cancel,
            undo,
            from_disk=loaded.from_disk,
            flash_attn=loaded.flash_attn,
        )
        bare = replace(
            session.pair.having({}),
            reference=(session.pair.reference[0], _lasting_draft(checked.request)),
            lookup=checked.lookup,
            draft_note=_no_draft(checked),
            waiting=(),
            left_out="",
            saves_nothing=False,
        )
        models = DraftModels(bare, loader, setups, settings)
        models.join(cancel, undo)
        found = _session(models, settings, renderer)
        undo.pop_all()
    return found


def _session(
    models: DraftModels, settings: ChatSettings, renderer: TemplateRenderer, *, waits: bool = False
) -> Session:
    """Make a session over loaded models, with the automatic gamma for their costs.

    Args:
        models: what drafts.
        settings: of the conversation.
        renderer: of the target's template.
        waits: whether draft models are still to be loaded.
    """
    pair, costs = models.pair, models.costs
    lookup = Lookup(pair.target.n_ctx, pair.target.model.is_end) if pair.lookup else None
    rows = exactness.rows(pair.loaded.exact)
    return Session(
        pair,
        Engine(pair.target, *models.drafters.values(), lookup=lookup, rows=rows),
        settings,
        auto=costs.auto if costs else None,
        closing=models.keep,
        resting=models.rest,
        joining=models.join_later if waits else None,
        renderer=renderer,
        dialects=folders.cache_folder() / DIALECTS,
    )
