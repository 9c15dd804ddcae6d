"""From loaded models to a gamma policy with their costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from localspec.chat.session.pair import LoadedPair, LoadRecord
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import LONGEST, AutoGamma
from localspec.engine.length.profile import (
    LONG_BUDGET,
    Profile,
    ProfileStore,
    acquaint,
    growth,
    identity,
    lacking,
    profile,
    timed_later,
)
from localspec.engine.llama import Context, Head, default_threads, devices, most_threads, too_busy
from localspec.pairs.disk import folders

ANY_THREADS = 0

_USUAL = {
    "threads_batch": None,
    "flash_attn": "auto",
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "from_disk": False,
}
UNUSUAL = {*_USUAL, "devices", "rpc", "split", "n_cpu_moe", "lora", "split_mode"}
"""Keys of a profile's identity that are left out at their usual values."""


def profile_store() -> ProfileStore:
    """The store of timings; ``LOCALSPEC_CACHE`` overrides the platform's cache folder."""
    return ProfileStore(folders.cache_folder() / "costs")


@dataclass(slots=True, eq=False)
class MeasuredPair:
    """A pair's profiles, and the policy that uses them.

    Attributes:
        target, drafts: the profiles; those of draft models by name.
        unkept: models whose measurement was disturbed, so that nothing reliable is stored, with the
            key to store it under.
        context: the target's context.
        tried: sizes of passes that `extend` has timed.
    """

    store: ProfileStore
    target: Profile
    drafts: Mapping[str, Profile]
    auto: AutoGamma
    unkept: dict[Context, dict[str, Any]]
    context: Context
    tried: set[int] = field(default_factory=set)

    @property
    def doubtful(self) -> bool:
        """Whether the measurement of a model was disturbed."""
        return bool(self.unkept) or not all(
            one.steady for one in (self.target, *self.drafts.values())
        )

    def again(self, cancel: Cancel) -> bool:
        """Measure the models in `unkept` again, for the next load; their caches stay the same.

        Returns:
            Whether a measurement was stored.

        Raises:
            Cancelled: `cancel` was set.
        """
        missing = len(self.unkept)
        for context, known in list(self.unkept.items()):
            if isinstance(context, Head) or too_busy(context.threads.widest):
                continue  # a head reads the cache of its target
            if context.readers and context.held:
                continue  # its heads would lose what they have read
            if not context.reaches(0, context.held):
                continue  # the next prompt could not cut what is restored
            held, state = tuple(context.tokens), context.state()
            try:
                with _measuring(context, cancel):
                    context.clear()
                    one = profile(context, known)
            finally:
                context.restore(held, state)
            if one.steady:
                self.store.save(one)
                del self.unkept[context]
        return len(self.unkept) < missing

    def extend(self, cancel: Cancel, *, clock: Callable[[], float] = perf_counter) -> None:
        """Time sizes that the target's profile lacks, for the next load, for ten seconds at most.

        Raises:
            Cancelled: `cancel` was set; what was timed before is stored.
        """
        context, known = self.context, self.store.load(self.target.identity)
        if known is None:
            return
        costs = _costs(context, known)
        takes = self._untimed(context, known, costs)
        if not (takes and costs.believed) or too_busy(context.threads.widest):
            return
        until = clock() + LONG_BUDGET
        with _measuring(context, cancel):
            for n, most in takes.items():
                cancel.check()
                if clock() + most > until:
                    break
                seconds = timed_later(context, n, known, costs, clock=clock)
                self.tried.add(n)
                now = self.store.load(known.identity)
                if now is None or now.measured != known.measured:
                    break  # another process has measured again
                if seconds is not None:
                    known = replace(now, added={**now.added, n: seconds})
                    self.store.save(known)

    def _untimed(self, context: Context, known: Profile, costs: ModelCosts) -> dict[int, float]:
        """The sizes that are left, with the seconds that each takes, if these are less than ten."""
        depth, passes = context.held, 3 if context.settles else 1
        alone = 3 * costs.expected(1, depth)
        sizes = (n for n in lacking(context, known) if n not in self.tried)
        takes = {n: passes * (2 * costs.expected(n, depth) + alone) for n in sizes}
        return {n: seconds for n, seconds in takes.items() if seconds < LONG_BUDGET}

    def keep(self) -> None:
        """Store what the rounds have shown about the costs."""
        costs = self.auto.costs
        if not self.auto.learnt:
            return
        drafts = ((known, costs.drafts[name]) for name, known in self.drafts.items())
        for known, model in ((self.target, costs.target), *drafts):
            now = self.store.load(known.identity)
            # The profile may have been too noisy to store, or another process may have measured
            # again.
            if now is not None and now.measured == known.measured:
                taught = {  # another process may know other sizes better
                    at: {**now.learned.get(at, {}), **points}
                    for at, points in model.learned().items()
                }
                self.store.save(replace(now, learned=taught or now.learned))


@contextmanager
def _measuring(context: Context, cancel: Cancel) -> Iterator[None]:
    """Measure with all threads in this block; `cancel` stops its decodes."""
    context.watch(cancel)
    context.threads.hold(True)
    try:
        yield
    finally:
        context.watch(None)


def chosen_threads(context: Context, asked: int | None, *, draft: bool, store: ProfileStore) -> int:
    """The number of threads for a model: as requested, else as `tune` found, else one per core."""
    if asked:
        return asked
    return tuned_threads(store.load(identity(context, threads=ANY_THREADS, draft=draft)))


def tuned_threads(found: Profile | None) -> int:
    """The number of threads that `tune` found, or as many of them as this process may use now.

    One per core where it found none. `tune` may have run outside a container, or on all cores.
    """
    tuned = None if found is None else found.threads
    return min(tuned, most_threads()) if tuned else default_threads()


def measured(
    pair: LoadedPair,
    *,
    repeatable: bool,
    measure: bool,
    announce: Callable[[], None],
    before: MeasuredPair | None = None,
) -> MeasuredPair | None:
    """The policy for this pair, from stored timings or a measurement of a few seconds.

    Args:
        pair: the loaded models.
        repeatable: store disturbed timings too, so that the next run decides alike.
        measure: whether to measure if nothing is stored.
        announce: called before measuring.
        before: what is known of the target, with fewer drafters.

    Returns:
        None if nothing drafts, or nothing is stored and `measure` is false.

    Raises:
        Cancelled: while measuring.
    """
    if not (pair.drafts or pair.lookup or pair.waiting):
        return None
    store = profile_store()
    if before is not None:
        before.keep()
    known = {
        context: identity_of(context, pair.loaded, draft=context is not pair.target)
        for context in pair.contexts
    }
    stored = {context: store.load(its) for context, its in known.items()}
    if before is not None and stored[pair.target] is None:  # it was not worth storing
        stored[pair.target] = before.target
    profiles = {context: its for context, its in stored.items() if its is not None}
    missing = {context: its for context, its in known.items() if context not in profiles}
    if missing and not measure:
        return None
    if missing:
        announce()
        profiles |= _measured(missing, store, profiles.get(pair.target), repeatable=repeatable)
    doubtful = {context for context, its in stored.items() if its is not None and not its.steady}
    missing |= before.unkept if before is not None else {}
    if not repeatable:  # otherwise the next run must decide alike
        missing |= {context: known[context] for context in doubtful}
    if measure:
        acquaint(pair.target, LONGEST + 1)
    if not all(each.measured and all(each.measured.values()) for each in profiles.values()):
        return None  # the context is too small to measure in
    target = profiles[pair.target]
    drafts = {name: profiles[context] for name, context in pair.drafts.items()}
    costs = Costs(
        _costs(pair.target, target),
        {name: _costs(pair.drafts[name], its) for name, its in drafts.items()},
        pair.target.max_rollback,
    )
    return MeasuredPair(store, target, drafts, AutoGamma(costs), missing, pair.target)


def _measured(
    missing: dict[Context, dict[str, Any]],
    store: ProfileStore,
    target: Profile | None,
    *,
    repeatable: bool,
) -> dict[Context, Profile]:
    """Measure the models in `missing`, each with the key of its profile.

    The target comes first if its profile is missing. A draft that costs far more was most likely
    measured while the program was suspended; it would never be used, so no round would correct
    that.
    """
    # While other programs run, decodes with all threads take many times as long and show nothing.
    threads = max(context.threads.widest for context in missing)
    busy = too_busy(threads)
    found = {}
    for context, known in list(missing.items()):
        context.threads.hold(repeatable or not busy)
        one = profile(context, known)
        target = target or one
        if not _plausible(one, target):
            one = profile(context, known)
        if (repeatable and busy) or not _plausible(one, target):  # stored, it stays doubtful
            one = replace(one, spread=1.0)
        found[context] = one
        if (one.steady and not busy) or repeatable:
            store.save(one)
            del missing[context]
    return found


def _plausible(one: Profile, target: Profile) -> bool:
    """Whether a token takes at most twice the target's time; true without a target profile.

    A draft that costs more is never probed, so no round would correct its profile.
    """
    its, most = (min(p.measured.items(), default=(0, {}))[1].get(1) for p in (one, target))
    return not its or not most or its <= 2 * most


def _costs(context: Context, found: Profile) -> ModelCosts:
    """The costs of a model from its profile."""
    on_device = bool(devices()) and context.model.gpu_layers != 0
    return ModelCosts(
        found.measured,
        found.learned,
        added=found.added,
        estimate=growth(context, on_device=on_device),
        copies=context.max_rollback is not None,
        spread=found.spread,
        warmup=found.onset,
    )


def identity_of(context: Context, loaded: LoadRecord, *, draft: bool) -> dict[str, Any]:
    """The key of a model's costs: everything that they depend on."""
    known = identity(context, threads=context.threads.most, draft=draft)
    return known | unusual(loaded, draft=draft)


def unusual(loaded: LoadRecord, *, draft: bool) -> dict[str, Any]:
    """The parts of the key that are only present for unusual setups."""
    split = loaded.tensor_split or {}
    found = {name: getattr(loaded, name) for name in _USUAL}
    found = {name: value for name, value in found.items() if value != _USUAL[name]}
    if draft:
        return found | where(loaded.draft_device, {}, "", loaded.rpc)
    found |= where(loaded.device, split, loaded.split_mode, loaded.rpc)
    if loaded.n_cpu_moe:
        found["n_cpu_moe"] = -(-loaded.n_cpu_moe // 4)  # roughly, as free memory varies
    if loaded.lora:
        found["lora"] = [[each.sha256, each.scale] for each in loaded.lora]
    return found


def where(
    devices: Sequence[str] | None, split: Mapping[str, int], split_mode: str, rpc: Sequence[str]
) -> dict[str, Any]:
    """The parts of a key that tell which devices compute, if these are unusual.

    Args:
        devices: names of the allowed devices, None for all.
        split: layers on each device; empty for fewer than two devices.
        split_mode: how the devices share the model.
        rpc: the workers.
    """
    found: dict[str, Any] = {} if devices is None else {"devices": list(devices)}
    if any(split.values()):
        found["split"] = _quarters(split)
        if split_mode != "layer":
            found["split_mode"] = split_mode
    lent = rpc and (not split or any(split.values()))
    return found | ({"rpc": list(rpc)} if lent else {})


def _quarters(split: Mapping[str, int]) -> list[int]:
    """Quarters of the offloaded layers on each device, at least one for a device with any.

    Free memory changes a little from load to load, and exact numbers of layers with it.
    """
    whole = sum(split.values())
    return [n and max(1, round(4 * n / whole)) for n in split.values()]


def made_by(pair: LoadedPair, models: Sequence[Context] | None = None) -> str:
    """The key of stored caches: the files of the models, adapters, how they run.

    Args:
        pair: the models.
        models: those whose caches are meant; None for all.
    """
    known = [
        identity_of(context, pair.loaded, draft=context is not pair.target)
        | {"changed": context.model.path.stat().st_mtime_ns, "n_ctx": context.n_ctx}
        for context in models or pair.contexts
    ]
    return json.dumps(known, sort_keys=True)
