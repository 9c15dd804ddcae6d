"""From files to models in memory: a target and its drafters, with their contexts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from localspec.chat.session.pair import LoadedAdapter, LoadRecord
from localspec.drafter_names import MTP, kind_of
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context, ContextOptions, Head, Model, device_list, head_of
from localspec.errors import ModelLoadError
from localspec.limits import FLASH_ATTENTION
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness
from localspec.loading.measurements.attention import QUICK, THOROUGH, choose, key
from localspec.loading.measurements.measured_costs import chosen_threads, profile_store
from localspec.loading.planning import (
    CheckedDraft,
    CheckedRequest,
    LoadPlan,
    devices_of_draft,
    usual_devices,
)
from localspec.loading.results import exact_words
from localspec.pairs.disk.other_programs import remedy
from localspec.pairs.gguf import head_checks
from localspec.pairs.memory.need import ModelSetup

Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with a step in words and its share done (0 to 1), or None if that is unknown."""


@dataclass(slots=True)
class ModelLoader:
    """Loads a target and its drafters; `undo` frees them if a later step fails.

    Attributes:
        undo: owns everything loaded so far.
        from_disk: whether weights find no room in memory, and are read from disk again and again.
        thorough: choose the attention again and take more time for it.
        unflashed: extra bytes without flash attention; None if there is no choice.
        flash_attn: the attention as requested or, once the target is loaded, as chosen.
        exact: as in `LoadRecord`, once the target is loaded.
    """

    checked: CheckedRequest
    progress: Progress
    cancel: Cancel
    undo: ExitStack
    from_disk: bool = False
    thorough: bool = False
    unflashed: int | None = None
    flash_attn: str = ""
    exact: int | None = None

    def __post_init__(self) -> None:
        self.flash_attn = self.flash_attn or self.options.flash_attn

    @property
    def options(self) -> LoadRequest:
        """The request."""
        return self.checked.request

    def load_target(self, setup: ModelSetup, *, mtp: bool) -> Context:
        """Load the target as in `setup`, with its inner head if `mtp`; return its context.

        The attention that is chosen for it also applies to the drafters.
        """
        path = self.checked.target.paths[0]
        model = self._model(path, setup, draft=False, mtp=mtp)
        self._choose_attention(model, self._how(setup, draft=False), setup)
        target = self._kept(Context(model, self._how(setup, draft=False), self.cancel))
        if self.options.exact:
            self._threads(target, draft=False)
            self.exact = exactness.longest(
                target,
                exactness.key(
                    path, setup, self.options, self._adapters(), from_disk=self.from_disk
                ),
                store=profile_store(),
                announce=lambda: self.progress("Comparing passes bit by bit", None),
            )
        return target

    def load_drafts(
        self, drafts: Sequence[tuple[CheckedDraft, ModelSetup]], target: Context
    ) -> tuple[dict[str, Context], list[str]]:
        """Load drafters; leave out a draft model that cannot roll back tokens.

        Args:
            drafts: with their setups.
            target: the loaded target.

        Returns:
            The contexts by drafter name, and why others were left out.
        """
        found: dict[str, Context] = {}
        refused = []
        for checked, setup in drafts:
            draft = self._draft(checked, setup, target)
            if not draft.can_truncate:
                draft.close()
                if draft.model is not target.model:
                    draft.model.close()
                refused.append(cannot_go_back(draft.model))
                continue
            alike = sum(kind_of(name) == checked.kind for name in found)
            found[f"{checked.kind} {alike + 1}" if alike else checked.kind] = draft
            self._threads(draft, draft=True)
        return found, refused

    def record(self, plan: LoadPlan, target: Context) -> LoadRecord:
        """Record how the target runs; set its threads."""
        options, setup = self.options, plan.memory.target
        chosen_off = self.flash_attn == "off" != options.flash_attn
        more = (self.unflashed or 0) if chosen_off else 0
        return LoadRecord(
            ctx_size=setup.n_ctx,
            threads=self._threads(target, draft=False),
            threads_batch=options.threads_batch,
            n_gpu_layers=setup.gpu_layers,
            n_cpu_moe=setup.cpu_moe,
            lora=self._adapters(),
            device=options.device,
            draft_device=devices_of_draft(options),
            rpc=options.rpc,
            split_mode=self._split_mode(setup),
            tensor_split=dict(setup.split) or None,
            flash_attn=self.flash_attn,
            cache_type_k=setup.cache_k,
            cache_type_v=setup.cache_v,
            mmap=target.model.mapped,
            mlock=options.mlock,
            from_disk=self.from_disk,
            exact=self.exact,
            exact_by_plan=plan.exact_by_plan,
            memory_plan_bytes=plan.memory.total + more,
        )

    def _adapters(self) -> tuple[LoadedAdapter, ...]:
        """The target's adapters for the record."""
        return tuple(
            LoadedAdapter(str(each.path), each.scale, each.sha256) for each in self.checked.adapters
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about the target's passes."""
        if self.exact is None or self.exact > 1:
            return ()
        threads = self.options.threads or 1
        shared = f"; --threads {threads} alone may cause that: leave it out" if threads > 1 else ""
        return (f"--exact: {exact_words(self.exact, None, '')}{shared}",)

    def _model(
        self,
        path: Path,
        setup: ModelSetup,
        *,
        draft: bool,
        mtp: bool = False,
        reads: Model | None = None,
    ) -> Model:
        """Load the weights of a file; `reads` is the target whose tensors a head reads."""
        step, options = f"Loading {path.name}", self.options
        where = self._where(setup, draft=draft)
        try:
            model = Model.load(
                path,
                n_gpu_layers=setup.gpu_layers,
                cpu_moe=setup.cpu_moe,
                devices=where,
                split_mode=self._split_mode(setup) if not draft else "layer",
                split=[dict(setup.split)[each] for each in where or ()] if setup.split else (),
                target_devices=_devices_with(reads, options) if reads else (),
                mmap=options.mmap,
                mlock=options.mlock,
                repack=not self.from_disk,
                mtp=mtp,
                head=reads is not None,
                adapters=[] if draft else [(e.path, e.scale) for e in self.checked.adapters],
                progress=lambda share: self.progress(step, share),
                cancel=self.cancel,
            )
        except ModelLoadError as error:
            mode = self._split_mode(setup)
            other = f"Leave --split-mode {mode} out." if mode in ("row", "tensor") else ""
            raise ModelLoadError(error.message, other or remedy(path) or error.remedy) from None
        self.undo.callback(model.close)
        return model

    def _where(self, setup: ModelSetup, *, draft: bool) -> Sequence[str] | None:
        """The devices that a model uses: none without layers there; None for llama.cpp's choice.

        A context takes memory on every device that it may use, for prompts, even if no layer is
        there.

        Raises:
            UsageError: a device that was named does not exist.
        """
        named = (devices_of_draft if draft else _devices_of_target)(self.options)
        if not setup.gpu_layers:
            device_list(named or ())  # also where it is not needed it has to exist
            return ()
        return [label for label, layers in setup.split if layers] if setup.split else named

    def _split_mode(self, setup: ModelSetup) -> str:
        """How the devices share the target; ``layer`` also where there are not several."""
        return self.options.split_mode if setup.split else "layer"

    def _draft(self, checked: CheckedDraft, setup: ModelSetup, target: Context) -> Context:
        """Load a draft model or a head, and make its context."""
        how = self._how(setup, draft=True)
        if checked.in_target:
            return self._kept(Head(target.model, target, how, self.cancel))
        reads = target.model if checked.kind in head_checks.FILES else None
        mtp = checked.kind == MTP
        model = self._model(checked.files.paths[0], setup, draft=True, mtp=mtp, reads=reads)
        if reads or mtp:
            return self._kept(head_of(model, target, how, self.cancel))
        return self._kept(Context(model, how, self.cancel))

    def _how(self, setup: ModelSetup, *, draft: bool) -> ContextOptions:
        """The options of a context."""
        return ContextOptions(
            n_ctx=setup.n_ctx,
            threads=self.options.asked_threads(draft=draft),
            threads_batch=self.options.threads_batch,
            flash_attention=FLASH_ATTENTION[self.flash_attn],
            snapshots=setup.snapshots,
            cache_k=setup.cache_k,
            cache_v=setup.cache_v,
        )

    def _kept(self, context: Context) -> Context:
        """Register `context` to be closed if a later step fails."""
        self.undo.callback(context.close)
        return context

    def _choose_attention(self, model: Model, how: ContextOptions, setup: ModelSetup) -> None:
        if self.flash_attn != "auto" or self.unflashed is None:
            return
        found = choose(
            model,
            how,
            key(model.path, setup, self.options.threads),
            store=profile_store(),
            seconds=THOROUGH if self.thorough else QUICK,
            repeatable=self.options.seed is not None,
            cancel=self.cancel,
            announce=lambda: self.progress("Measuring attention", None),
        )
        if found is not None:
            self.flash_attn = found.option

    def _threads(self, context: Context, *, draft: bool) -> int:
        """Give `context` its CPU threads; return how many."""
        asked = self.options.asked_threads(draft=draft)
        threads = chosen_threads(context, asked, draft=draft, store=profile_store())
        fixed = asked is not None and not self.options.exact
        context.threads.use(threads, self.options.threads_batch, at_most=not fixed)
        return threads


def _devices_with(target: Model, options: LoadRequest) -> Sequence[str]:
    """Devices that may hold tensors of the target.

    A head reads the target's embeddings and output; llama.cpp ends the process if it cannot.
    """
    allowed = _devices_of_target(options)
    if not target.gpu_layers:
        return ()
    return usual_devices() if allowed is None else allowed


def _devices_of_target(options: LoadRequest) -> Sequence[str] | None:
    """The devices that the target may use; None for llama.cpp's own choice.

    llama.cpp's own choice leaves out a worker that lends its CPU, as it is not a graphics card.
    """
    if options.device is None and options.rpc:
        return usual_devices() or None
    return options.device


def cannot_go_back(model: Model) -> str:
    """Why a model neither drafts nor is drafted for."""
    architecture = model.metadata.get("general.architecture", "?")
    return (
        f"{model.name} cannot take back rejected tokens: llama.cpp restores no earlier state"
        f" of this architecture ({architecture})"
    )
