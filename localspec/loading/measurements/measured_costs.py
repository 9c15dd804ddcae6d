"""From loaded models to a gamma policy that knows what they cost here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.session.pair import LoadedPair, LoadRecord
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import LONGEST, AutoGamma
from localspec.engine.length.profile import (
    Profile,
    ProfileStore,
    acquaint,
    growth,
    identity,
    profile,
)
from localspec.engine.llama import (
    LOOK_S,
    Context,
    Head,
    bearable,
    busy_cores,
    default_threads,
    devices,
)
from localspec.pairs.disk import folders

ANY_THREADS = 0

_USUAL = {
    "threads_batch": None,
    "flash_attn": "auto",
    "cache_type_k": "f16",
    "cache_type_v": "f16",
}
UNUSUAL = {*_USUAL, "devices", "rpc", "split"}
"""What a profile's identity names only where it is not as usual."""


def profile_store() -> ProfileStore:
    """Where timings are kept: ``LOCALSPEC_CACHE`` overrides the platform's cache folder."""
    return ProfileStore(folders.cache_folder() / "costs")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair's profiles, and the policy that decides by them.

    Attributes:
        store: where the profiles are kept.
        target, drafts: what was measured; of the draft models by their names.
        auto: the policy.
        unkept: the models of which nothing is stored that can be trusted, since something disturbed
            the measurement, with what it would hold for.
    """

    store: ProfileStore
    target: Profile
    drafts: Mapping[str, Profile]
    auto: AutoGamma
    unkept: dict[Context, dict[str, Any]]

    @property
    def doubtful(self) -> bool:
        """Whether something disturbed the measurement of a model."""
        return bool(self.unkept) or not all(
            one.steady for one in (self.target, *self.drafts.values())
        )

    def again(self, cancel: Cancel) -> bool:
        """Measure anew what could not be kept, for the next load; the caches stay what they were.

        Returns:
            Whether anything was kept now.

        Raises:
            Cancelled: `cancel` was set.
        """
        missing = len(self.unkept)
        for context, known in list(self.unkept.items()):
            if isinstance(context, Head) or busy_cores(LOOK_S) > bearable(context.threads.widest):
                continue  # a head reads the cache of its target
            held, state = tuple(context.tokens), context.state()
            context.watch(cancel)
            context.threads.hold(True)
            context.clear()
            try:
                one = profile(context, known)
            finally:
                context.watch(None)
                context.restore(held, state)
            if one.steady:
                self.store.save(one)
                del self.unkept[context]
        return len(self.unkept) < missing

    def keep(self) -> None:
        """Store what the rounds have taught."""
        costs = self.auto.costs
        if not self.auto.learnt:
            return
        drafts = ((known, costs.drafts[name]) for name, known in self.drafts.items())
        for known, model in ((self.target, costs.target), *drafts):
            now = self.store.load(known.identity)
            # It may have been too noisy to keep, or measured anew by another process.
            if now is not None and now.measured == known.measured:
                taught = {  # of other sizes another process may know better
                    at: {**now.learned.get(at, {}), **points}
                    for at, points in model.learned().items()
                }
                self.store.learn(now, taught or now.learned)


def chosen_threads(context: Context, asked: int | None, *, draft: bool, store: ProfileStore) -> int:
    """How many threads a model gets: as asked, else as `tune` found best, else one per core."""
    if asked:
        return asked
    known = store.load(identity(context, threads=ANY_THREADS, draft=draft))
    return (known and known.threads) or default_threads()


def measured(
    pair: LoadedPair,
    *,
    repeatable: bool,
    measure: bool,
    announce: Callable[[], None],
) -> MeasuredPair | None:
    """The policy for this pair, from stored timings or from a measurement of a few seconds.

    Args:
        pair: the loaded models.
        repeatable: keep even timings that are not steady: the next run has to decide by the same.
        measure: whether to take the time where nothing is stored.
        announce: called before measuring.

    Returns:
        None where nothing drafts, or nothing is stored and nothing may be measured.

    Raises:
        Cancelled: while measuring.
    """
    if not (pair.drafts or pair.lookup):
        return None
    store = profile_store()
    known = {
        context: identity_of(context, pair.loaded, draft=context is not pair.target)
        for context in (pair.target, *pair.drafts.values())
    }
    stored = {context: store.load(its) for context, its in known.items()}
    profiles = {context: its for context, its in stored.items() if its is not None}
    missing = {context: its for context, its in known.items() if context not in profiles}
    if missing and not measure:
        return None
    if missing:
        announce()
        profiles |= _measured(missing, store, profiles.get(pair.target), repeatable=repeatable)
    doubtful = {context for context, its in stored.items() if its is not None and not its.steady}
    if not repeatable:  # else the next run has to decide by the same
        missing |= {context: known[context] for context in doubtful}
    if measure:
        acquaint(pair.target, LONGEST + 1)
    if not all(each.measured and all(each.measured.values()) for each in profiles.values()):
        return None  # a context too small to measure in
    target = profiles[pair.target]
    drafts = {name: profiles[context] for name, context in pair.drafts.items()}
    costs = Costs(
        _costs(pair.target, target),
        {name: _costs(pair.drafts[name], its) for name, its in drafts.items()},
        pair.target.max_rollback,
    )
    return MeasuredPair(store, target, drafts, AutoGamma(costs), missing)


def _measured(
    missing: dict[Context, dict[str, Any]],
    store: ProfileStore,
    target: Profile | None,
    *,
    repeatable: bool,
) -> dict[Context, Profile]:
    """Measure models, by what it holds for; of those whose profile is stored none is missing.

    The target comes first, if it is not known: a draft far dearer than that was most likely
    measured while the program was stopped. It would never be asked, so that no round would show it.
    """
    # Beside other programs decodes with all threads take many times as long, and tell nothing.
    threads = max(context.threads.widest for context in missing)
    busy = not repeatable and busy_cores(LOOK_S) > bearable(threads)
    found = {}
    for context, known in list(missing.items()):
        context.threads.hold(not busy)
        one = profile(context, known)
        target = target or one
        if not _plausible(one, target):
            one = profile(context, known)
        if not _plausible(one, target):  # kept for a seed, it stays doubtful
            one = replace(one, spread=1.0)
        found[context] = one
        if (one.steady and not busy) or repeatable:
            store.save(one)
            del missing[context]
    return found


def _plausible(one: Profile, target: Profile) -> bool:
    """Whether a token takes this model at most twice as long as the target; true if nobody knows.

    A draft that is dearer is beyond the account of probes: no round would tell what it takes.
    """
    its, most = (min(p.measured.items(), default=(0, {}))[1].get(1) for p in (one, target))
    return not its or not most or its <= 2 * most


def _costs(context: Context, found: Profile) -> ModelCosts:
    """The costs of a model from its profile."""
    on_device = bool(devices()) and context.model.gpu_layers != 0
    return ModelCosts(
        found.measured,
        found.learned,
        estimate=growth(context, on_device=on_device),
        copies=context.max_rollback is not None,
        spread=found.spread,
        onset=found.onset,
    )


def identity_of(context: Context, loaded: LoadRecord, *, draft: bool) -> dict[str, Any]:
    """What the costs of a model hold for that was loaded like this."""
    known = identity(context, threads=context.threads.most, draft=draft)
    return known | unusual(loaded, draft=draft)


def unusual(loaded: LoadRecord, *, draft: bool) -> dict[str, Any]:
    """What costs hold for besides, where it is not as usual."""
    devices = loaded.draft_device if draft else loaded.device
    found = {name: getattr(loaded, name) for name in _USUAL}
    found = {name: value for name, value in found.items() if value != _USUAL[name]}
    if devices is not None:
        found["devices"] = list(devices)
    split = loaded.tensor_split
    if split and any(split.values()) and not draft:
        found["split"] = _quarters(split)
    lent = loaded.rpc and (split is None or any(split.values()))
    return found | ({"rpc": list(loaded.rpc)} if lent else {})


def _quarters(split: Mapping[str, int]) -> list[int]:
    """How many quarters of the layers that are on devices each has, with a few of them one.

    How many layers there is room for changes a little from one load to the next.
    """
    whole = sum(split.values())
    return [n and max(1, round(4 * n / whole)) for n in split.values()]


def made_by(pair: LoadedPair) -> str:
    """What the contents of a pair's caches hold for: the files of its models and how they run."""
    known = [
        identity_of(context, pair.loaded, draft=context is not pair.target)
        | {"changed": context.model.path.stat().st_mtime_ns, "n_ctx": context.n_ctx}
        for context in (pair.target, *pair.drafts.values())
    ]
    return json.dumps(known, sort_keys=True)
