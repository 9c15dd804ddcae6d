"""Which models draft, and when they are loaded: after the target, if they can save time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from localspec.chat.session.drafting import Joined
from localspec.chat.session.pair import LoadedPair
from localspec.chat.settings import ChatSettings
from localspec.drafter_names import CROSS_VOCABULARY, kind_of
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.head_drafter import head_drafter
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.length.ahead_policy import AheadPolicy
from localspec.engine.llama import Context, Head, default_threads
from localspec.errors import Cancelled, in_words
from localspec.loading.measurements import draft_worth
from localspec.loading.measurements.expected_speed import BEHIND, note
from localspec.loading.measurements.measured_costs import MeasuredPair, made_by, measured
from localspec.loading.model_loader import ModelLoader, cannot_go_back
from localspec.loading.planning import CheckedDraft
from localspec.pairs.disk import starter
from localspec.pairs.gguf.header import ModelFiles
from localspec.pairs.memory.need import ModelSetup

_ANYWAY = "chat, run and serve load it with --draft-anyway"
_AT_ONCE = 50_000_000  # bytes of weights that are loaded before anyone would notice a wait

_Planned = tuple[CheckedDraft, ModelSetup]


class DraftModels:
    """Loads what drafts for a target, and knows what passes cost.

    Heads are loaded first: they must see the target read the prompt. Draft models may follow while
    the target already answers. A draft that can save no time (`draft_worth.too_dear`) is not
    loaded, or freed after it was measured, unless the request keeps it: with ``draft_anyway`` or a
    fixed gamma.

    Attributes:
        pair: the target with all that has been loaded so far.
        costs: of their passes; None if they are not measured.
    """

    def __init__(
        self,
        pair: LoadedPair,
        loader: ModelLoader,
        setups: Sequence[ModelSetup],
        settings: ChatSettings,
        dear: Sequence[ModelFiles] = (),
    ) -> None:
        """Load the heads.

        Args:
            pair: the target alone.
            loader: has loaded it.
            setups: of all drafters, in the order of the loader's request.
            settings: of the conversation.
            dear: drafts that save no time, for which there is no room in the setups.

        Raises:
            LocalspecError, Cancelled: as `load_session`.
        """
        self.drafters: dict[str, Drafter] = {}
        self._loader, self._settings = loader, settings
        drafts = [*zip(loader.checked.drafts, setups, strict=True)]
        if not pair.target.can_truncate:
            why, drafts = cannot_go_back(pair.target.model), []
            pair = replace(pair, lookup=False, draft_note=why)
        self._waiting = [each for each in drafts if each[0].is_model]
        pair = replace(pair, waiting=self._names)
        if dear:
            pair = self._leaving_out(pair, dear)
        heads = [each for each in drafts if not each[0].is_model]
        self.costs: MeasuredPair | None = None
        self.pair = pair
        target = loader.checked.target.paths
        if any(draft_worth.acceptance(draft.files, target) is not None for draft, _ in heads):
            self.costs = self._measured(pair)  # of the target alone, to judge the heads
            heads = self._worth_loading(heads)
        loaded = self._joined(self.pair, loader, heads)
        self.pair, self.costs = self._freed(loaded, self._measured(loaded))
        self._waiting = self._worth_loading(self._waiting)
        self._take(self.pair, self.costs)

    @property
    def may_wait(self) -> bool:
        """Whether draft models that take a moment to load are missing and may come later.

        With a seed they may not, as the first answer must be drafted like all others.
        """
        size = sum(draft.facts.weights for draft, _ in self._waiting)
        return size > _AT_ONCE and not self._settings.repeatable

    def join(self, cancel: Cancel, undo: ExitStack) -> Joined:
        """Load the missing draft models; free those that were measured to take too long.

        Args:
            cancel: stops it.
            undo: frees them if a later step fails.

        Raises:
            LocalspecError, Cancelled: as `load_session`; nothing is changed then.
        """
        if not self._waiting:
            return self._all
        loader = replace(self._loader, cancel=cancel, undo=undo)
        self.pair.target.watch(cancel)
        pair = self._joined(self.pair, loader, self._waiting)
        joined = self._freed(pair, self._measured(pair))
        self._waiting = []
        self._take(*joined)
        return self._all

    def join_later(self, cancel: Cancel) -> Joined:
        """`join` for a session in use: if it fails, the session goes on without, with a notice.

        Raises:
            Cancelled: `cancel` was set; the next call tries again.
        """
        self._loader = replace(self._loader, progress=lambda *_: None)
        names = self._names
        with ExitStack() as undo:
            try:
                self.join(cancel, undo)
            except Cancelled:
                raise
            except Exception as error:  # whatever it is, the target answers without drafts
                self._waiting = []
                why = f"{' and '.join(names)} cannot draft: {in_words(error)[0]}"
                self._take(self.pair.without((), why), self.costs)
            else:
                undo.pop_all()
        models = [self.pair.drafts[name] for name in self.pair.models]
        try:
            made = made_by(self.pair, models) if models else ""
        except OSError:  # a file is gone since: stored caches cannot be told apart
            made = ""
        return self._all._replace(made_by=made)

    def keep(self) -> None:
        """Store what rounds have shown about costs."""
        if self.costs:
            self.costs.keep()

    def rest(self, cancel: Cancel) -> None:
        """Measure in idle time what was disturbed, then the sizes that the load did not time.

        Raises:
            Cancelled: `cancel` was set.
        """
        if self.costs is None:
            return
        if self.costs.again(cancel):
            now = measured(self.pair, repeatable=False, measure=False, announce=lambda: None)
            if now:  # the lists may have values that are far off
                note(self.pair, now.auto.costs, doubtful=now.doubtful)
        self.costs.extend(cancel)

    @property
    def _names(self) -> tuple[str, ...]:
        """The draft models that are missing, as they are shown."""
        return tuple(draft.shown_name for draft, _ in self._waiting)

    @property
    def _all(self) -> Joined:
        auto = self.costs.auto if self.costs else None
        return Joined(self.pair, tuple(self.drafters.values()), auto)

    def _take(self, pair: LoadedPair, costs: MeasuredPair | None) -> None:
        """Make drafters of the loaded models, in the order of the request.

        If that fails, nothing here refers to the models, which are about to be freed.
        """
        drafters = {
            name: self.drafters.get(name) or _drafter(name, context, pair)
            for name, context in pair.drafts.items()
        }
        if costs:
            note(pair, costs.auto.costs, doubtful=costs.doubtful)
        self.pair, self.drafters = replace(pair, waiting=self._names), drafters
        self.costs = costs

    def _joined(
        self, pair: LoadedPair, loader: ModelLoader, drafts: Sequence[_Planned]
    ) -> LoadedPair:
        """Load drafters of one kind: all heads, or all draft models."""
        contexts, refused = loader.load_drafts(drafts, pair.target)
        kinds = [each.kind for each in loader.checked.drafts]
        both = {**pair.drafts, **contexts}
        ordered = sorted(both, key=lambda name: kinds.index(kind_of(name)))
        found = pair.having({name: both[name] for name in ordered})
        for why in refused:
            found = found.without((), why)
        return found

    def _measured(self, pair: LoadedPair) -> MeasuredPair | None:
        return measured(
            pair,
            repeatable=self._settings.repeatable,
            measure=self._settings.gamma == "auto",
            announce=lambda: self._loader.progress("Measuring this machine", None),
            before=self.costs,
        )

    def _may_leave_out(self, costs: MeasuredPair) -> bool:
        return not (self._loader.options.keeps_draft or costs.doubtful)

    def _freed(
        self, pair: LoadedPair, costs: MeasuredPair | None
    ) -> tuple[LoadedPair, MeasuredPair | None]:
        """Free drafts that were just loaded and measured to take too long.

        Those of `self.pair` stay: a session that is in use, and its stored caches, refer to them.
        """
        if costs is None or not self._may_leave_out(costs):
            return pair, costs
        known = self._loader.checked.drafts
        files = {draft.files.paths[0]: draft.files for draft in known if not draft.in_target}
        dear = [
            name
            for name, context in pair.drafts.items()
            if name not in self.pair.drafts
            and context.model.path in files
            and draft_worth.too_dear(
                files[context.model.path],
                self._loader.checked.target.paths,
                costs.auto,
                costs.auto.costs.drafts[name].at(BEHIND).seconds(1),
            )
        ]
        if not dear:
            return pair, costs
        pair = self._leaving_out(pair, [files[pair.drafts[name].model.path] for name in dear], dear)
        return pair, self._measured(pair)

    def _worth_loading(self, drafts: list[_Planned]) -> list[_Planned]:
        """Leave out drafts that are known to take too long before they are loaded."""
        costs, checked = self.costs, self._loader.checked
        if costs is None or not drafts or not self._may_leave_out(costs):
            return drafts
        model = self.pair.target.model
        target = ModelSetup(n_ctx=self.pair.target.n_ctx, gpu_layers=model.gpu_layers)
        baseline_s = costs.auto.costs.target.at(BEHIND).seconds(1)
        alone = model.remote or self._loader.from_disk  # its time is not that of its bytes
        threads = self._loader.options.asked_threads(draft=True) or 0
        how = replace(self.pair.loaded, draft_threads=threads)
        dear = []
        for draft, setup in drafts:
            step = draft_worth.least_step(
                draft.files.paths[0],
                (draft.facts, setup),
                None if alone else (checked.sizes, target),
                baseline_s,
                how,
                head="" if draft.is_model else draft.kind,
            )
            of = draft.files, checked.target.paths
            if not draft.in_target and draft_worth.too_dear(*of, costs.auto, step):
                dear.append(draft)
        if dear:
            self.pair = self._leaving_out(self.pair, [each.files for each in dear])
        return [each for each in drafts if each[0] not in dear]

    def _leaving_out(
        self, pair: LoadedPair, drafts: Sequence[ModelFiles], names: Sequence[str] = ()
    ) -> LoadedPair:
        """The pair without drafts that save no time; those with `names` were loaded, and are freed.

        The head that ships for the starter goes without a notice: the user did not ask for it.
        """
        pair, target = replace(pair, saves_nothing=True), self._loader.checked.target.paths
        if [each.paths[0] for each in drafts] == [starter.head(target[0])]:
            why = "the head that comes with localspec is left out: it would save no time here"
            return replace(pair.without(names, f"{why} ({_ANYWAY})"), notices=pair.notices)
        why = "; ".join(
            f"{each.paths[0].name}: {draft_worth.why_too_dear(each, target)}" for each in drafts
        )
        return pair.without(names, f"{why}, and not loaded ({_ANYWAY})")


def _drafter(name: str, context: Context, pair: LoadedPair) -> Drafter:
    """Make the drafter of a loaded model or head."""
    target = pair.target
    if isinstance(context, Head):
        return head_drafter(context, name)
    if kind_of(name) == CROSS_VOCABULARY:
        return CrossVocabularyDrafter(context, VocabularyMap(target.model, context.model), name)
    ahead = AheadPolicy() if apart(pair, context) else None
    return ModelDrafter(context, target.model.n_vocab, name, ahead=ahead)


def apart(pair: LoadedPair, draft: Context) -> bool:
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
