"""The measured costs of a pair on this machine, and the speed that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from localspec.chat.session.pair import LoadedPair, LoadRecord
from localspec.doctor.findings import unused_card
from localspec.drafter_names import AUTO, DRAFT
from localspec.engine.length.cost import ByContext, Costs, Curve, ModelCosts, Points
from localspec.engine.length.gamma import LONGEST, USUAL_PENDING
from localspec.engine.length.profile import Profile, ProfileStore, of_file
from localspec.engine.length.stopping import best_draft
from localspec.engine.llama import devices, kernels, machine
from localspec.formats import percent, speed, times
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import exactness, exactness_cost, ranking
from localspec.loading.measurements.attention import AttentionTiming, key, stored
from localspec.loading.measurements.measured_costs import (
    ANY_THREADS,
    UNUSUAL,
    profile_store,
    tuned_threads,
    unusual,
)
from localspec.loading.results import ExactnessCost, GammaChoice, exact_words
from localspec.pairs.gguf import head_checks
from localspec.pairs.memory.need import ModelSetup
from localspec.pairs.memory.placement import MemoryPlan
from localspec.pairs.names.repository_files import weight_type
from localspec.pairs.report.model_source import ModelSource

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
BEHIND = 256
"""Tokens of context at which a speed is stated. An empty context would promise a tenth more than an
answer of usual length gets from a small model, where attention is a large part of the time.
"""


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """A pair's measured costs.

    Attributes:
        threads, draft_threads: used while measuring; None without a draft.
        target: seconds of one decode by its number of tokens.
        draft_step_s: seconds per drafted token, or per block; None without a draft.
        draft_block: the most tokens of a block; 0 for a draft that guesses one by one.
        tokens_per_second: of the baseline, after `BEHIND` tokens of context.
        choices: the draft length for each acceptance; empty without a draft.
        attention: the faster kind; None if it was not measured.
    """

    threads: int
    draft_threads: int | None
    target: Points
    draft_step_s: float | None
    tokens_per_second: float
    choices: tuple[GammaChoice, ...]
    attention: AttentionTiming | None
    draft_block: int = 0


def choices(
    target: ByContext, draft: ByContext, max_rollback: int | None = None, *, block: int = 0
) -> tuple[GammaChoice, ...]:
    """The draft length for each acceptance, at `BEHIND` tokens of context if measured there.

    Args:
        target: seconds by number of tokens.
        draft: seconds by number of tokens.
        max_rollback: drafted tokens that the target can roll back at once (see `Costs`).
        block: the most tokens that the draft guesses in one pass; 0 if each takes a pass.
    """
    costs = Costs(target, {DRAFT: draft}, max_rollback)
    times = costs.target.at(BEHIND).times(costs.longest(LONGEST) + 1)
    curve = costs.drafts[DRAFT].at(BEHIND)
    step = draft_step(curve, block), curve.seconds(USUAL_PENDING)
    best = partial(best_draft, times=times, step=step, block=block, rereads=costs.rereads)
    return tuple(GammaChoice(each, *best(each)) for each in ACCEPTANCES)


def draft_step(draft: Curve, block: int) -> float:
    """Seconds of a pass of a draft: over a token, or what it has to read and a block of guesses.

    Args:
        draft: seconds of its decodes.
        block: the most tokens that it guesses in one pass; 0 if each takes a pass.
    """
    return draft.seconds(USUAL_PENDING + block if block else 1)


def expected(target: Path, draft: ModelSource | None, plan: MemoryPlan) -> ExpectedSpeed | None:
    """The stored costs of a pair on this machine, loaded as in `plan`.

    None if a model was not measured yet.
    """
    store = profile_store()
    how, attention = usual(target, plan, store)
    own = next(iter(stored_profiles(store, target, plan.target, how, draft=False)), None)
    if own is None:
        return None
    found = None
    if draft is not None and plan.draft is not None:
        path, head = draft.paths[0], head_checks.head_kind(draft.header)
        profiles = stored_profiles(store, path, plan.draft, how, draft=True, head=head)
        found = next(iter(profiles), None)
    if draft is not None and found is None:
        return None
    max_rollback = own.identity.get("takes_back")
    block = 0 if draft is None else head_checks.block(draft.header)
    return ExpectedSpeed(
        threads=own.identity["threads"],
        draft_threads=None if found is None else found.identity["threads"],
        target=_shortest(own),
        draft_step_s=None if found is None else draft_step(Curve(_shortest(found)), block),
        tokens_per_second=1 / ModelCosts(own.best).at(BEHIND).seconds(1),
        choices=() if found is None else choices(own.best, found.best, max_rollback, block=block),
        attention=attention,
        draft_block=block,
    )


def exact(
    target: Path, plan: MemoryPlan, rpc: Sequence[str] = ()
) -> tuple[int | None, ExactnessCost | None]:
    """What is stored of ``--exact``, with the workers `rpc`.

    Returns:
        `LoadRecord.exact` and the cost; None where it is unknown.
    """
    options = exactness.settled(LoadRequest(exact=True, rpc=tuple(rpc)))
    known = exactness.key(target, plan.target, options, from_disk=bool(plan.from_disk))
    store = profile_store()
    return exactness.stored(known, store), exactness_cost.stored(known, store)


def usual(
    target: Path, plan: MemoryPlan, store: ProfileStore
) -> tuple[LoadRecord, AttentionTiming | None]:
    """How a pair runs where nothing else is asked for, and what was measured of its attention.

    The threads are those that suit each model. Where the weights find no room, and are read from
    disk again and again, a load leaves llama.cpp's own attention.
    """
    attention = stored(key(target, plan.target, None), store)
    flash_attn = attention.option if attention and not plan.from_disk else "auto"
    how = LoadRecord(ctx_size=0, threads=0, flash_attn=flash_attn, from_disk=bool(plan.from_disk))
    return how, attention


def stored_profiles(
    store: ProfileStore,
    path: Path,
    setup: ModelSetup,
    how: LoadRecord,
    *,
    draft: bool,
    head: str = "",
) -> list[Profile]:
    """The stored profiles for loading `path`, with the threads that it would get.

    There may be several: whether a model's weights are repacked, for example, is not known yet.

    Args:
        store: what was measured.
        path: the model's first file.
        setup: of the model.
        how: the other settings; its threads are those asked for, 0 for none.
        draft: whether the model drafts.
        head: the kind of head that drafts; the same file may also hold a whole model.
    """
    known = {**of_file(path, draft=draft), "n_gpu_layers": setup.gpu_layers}
    every = [one for one in store.matching(known) if one.identity.get("head", "") == head]
    tuned = next((one for one in every if one.identity["threads"] == ANY_THREADS), None)
    asked = how.draft_threads if draft else how.threads
    threads = asked or tuned_threads(tuned)
    loaded = replace(
        how,
        n_cpu_moe=setup.cpu_moe,
        cache_type_k=setup.cache_k,
        cache_type_v=setup.cache_v,
        tensor_split=dict(setup.split) or None,
    )
    choices = unusual(loaded, draft=draft)
    return [
        one
        for one in every
        if one.identity["threads"] == threads
        and one.best
        and {name: each for name, each in one.identity.items() if name in UNUSUAL} == choices
    ]


def _shortest(profile: Profile) -> Points:
    """The times measured at the shortest context."""
    return profile.best[min(profile.best)]


def note(pair: LoadedPair, costs: Costs, *, doubtful: bool = False) -> None:
    """Store the costs of `pair` for lists and the screen (see `ranking`).

    The weights count as in the file: llama.cpp may keep an unused second copy of repacked ones.
    With adapters or workers nothing is stored: lists mean the model without them, on this machine.
    Of drafters that a request named the steps are not stored: lists mean those of the pair.
    """
    if pair.loaded.lora or pair.loaded.rpc:
        return
    target, on_device = pair.target.model, bool(devices()) and pair.loaded.n_gpu_layers != 0
    times = tuple(costs.target.at(BEHIND).times(LONGEST + 1))
    overhead = 0.0
    if (model := pair.drafts.get(DRAFT)) is not None:
        step = costs.drafts[DRAFT].at(BEHIND).seconds(1)
        overhead = ranking.overhead(target.file_weights, times[1], model.model.file_weights, step)
    alone = target.is_mixture or target.partly_offloaded or pair.loaded.from_disk
    bits = 0.0 if alone else 8 * target.file_weights / target.n_params
    kind = next(filter(None, map(weight_type, target.description.split())), "")
    room = [each.own_free for each in pair.devices_before if each.has_own]
    found = ranking.PairCosts(
        target.file_weights, times, overhead, None, on_device, bits, doubtful, kind
    )
    if pair.reference[1] in (None, AUTO):
        found = _with_draft(found, pair, costs)
    ranking.remember(
        pair.name,
        found,
        sum(room) if room else None,
        None if devices() else unused_card(),
        f"{machine()}; {kernels()}",
    )


def _with_draft(found: ranking.PairCosts, pair: LoadedPair, costs: Costs) -> ranking.PairCosts:
    """`found` with what is known of the pair's own drafter, the first."""
    found = replace(found, left_out=pair.saves_nothing)
    if pair.draft is None:
        return found
    curve = costs.drafts[next(iter(pair.drafts))].at(BEHIND)
    return replace(
        found,
        step=draft_step(curve, pair.block),
        read=curve.seconds(USUAL_PENDING),
        draft_weights=pair.draft.model.file_weights,
        block=pair.block,
    )


def data(
    known: ExpectedSpeed | None, exact: int | None, cost: ExactnessCost | None
) -> dict[str, Any] | None:
    """A pair's speed for programs; times in seconds.

    Args:
        known: result of `expected`.
        exact: the first result of `exact`.
        cost: the second one.
    """
    if known is None:
        return None
    expected_speeds = [
        asdict(one) | {"tokens_per_second": one.speedup * known.tokens_per_second}
        for one in known.choices
    ]
    return {
        "threads": known.threads,
        "draft_threads": known.draft_threads,
        "target_seconds": {str(n): seconds for n, seconds in known.target.items()},
        "draft_step_s": known.draft_step_s,
        "draft_block": known.draft_block,
        "plain_tokens_per_second": known.tokens_per_second,
        "attention": known.attention and asdict(known.attention),
        "exact": exact,
        "exact_cost": cost and cost.document(),
        "expected": expected_speeds,
    }


def exact_line(exact: int | None, cost: ExactnessCost | None, tune: str) -> str:
    """What is known of ``--exact``, for people; the arguments as for `data` and `lines`."""
    return f"--exact     {exact_words(exact, cost, f'`{tune}`')}"


def lines(known: ExpectedSpeed | None, tune: str) -> list[str]:
    """A pair's speed for people; `tune` is the command that measures it."""
    if known is None:
        return [f"measured    not in full yet: `{tune}` measures the rest"]
    found = [
        f"measured    {1e3 / known.tokens_per_second:.2f} ms a token after {BEHIND} tokens with"
        f" {known.threads} threads, undrafted: about {speed(known.tokens_per_second)} tokens/s"
    ]
    if known.attention is not None:
        found.append(f"            {known.attention}")
    if known.draft_step_s is not None:
        step = (
            f"up to {known.draft_block} drafted tokens"
            if known.draft_block
            else "one drafted token"
        )
        found.append(f"            {step} {1e3 * known.draft_step_s:.2f} ms")
        found.append("expected    accepted   draft  tokens/s  speed-up")
    found += [_line(one, known.tokens_per_second) for one in known.choices]
    return found


def _line(one: GammaChoice, baseline: float) -> str:
    length = one.gamma or "none"
    written, speedup = speed(one.speedup * baseline), times(one.speedup)
    return f"            {percent(one.acceptance):>8} {length:>7} {written:>9} {speedup:>9}"
