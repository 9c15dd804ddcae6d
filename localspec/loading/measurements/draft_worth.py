"""Whether a draft can save time, judged by its step before it is loaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import LONGEST, AutoGamma
from localspec.loading.measurements import head_promise
from localspec.loading.measurements.attention import key
from localspec.loading.measurements.attention import stored as attention_timing
from localspec.loading.measurements.expected_speed import BEHIND, stored_profile
from localspec.loading.measurements.head_promise import PAYS, REACHABLE
from localspec.loading.measurements.measured_costs import profile_store
from localspec.pairs.disk import trained_heads
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.header import ModelFiles
from localspec.pairs.memory.model_facts import ModelFacts, draft_facts, facts
from localspec.pairs.memory.need import ModelSetup
from localspec.pairs.memory.placement import MemoryPlan
from localspec.pairs.report.model_source import ModelSource

TOO_BIG = "too big to save time here"

_LEAST = 0.5
"""Least time of a draft's step, relative to the target's time per byte: weights of more bits per
weight are read faster per byte."""

Sized = tuple[ModelFacts, ModelSetup]


def least_step(
    path: Path, draft: Sized, target: Sized | None, baseline_s: float, flash_attn: str
) -> float:
    """The least seconds of a step: as measured before, else estimated from the weights it reads.

    Args:
        path: the draft model's file.
        draft: its sizes and setup.
        target: the same of the target; None where its bytes do not explain its time.
        baseline_s: seconds of the target's decode of one token.
        flash_attn: as in `LoadRecord`.

    Returns:
        0 where nothing is known: the models run in different places, or are mixtures of experts.
    """
    sizes, setup = draft
    known = None
    with suppress(OSError):  # a load tells what is wrong with a file
        known = stored_profile(profile_store(), path, setup, flash_attn, draft=True)
    if known is not None and known.steady:
        return ModelCosts(known.best).at(BEHIND).seconds(1)
    if target is None or any((*sizes.experts, *target[0].experts)):
        return 0.0
    layers = {setup.gpu_layers, target[1].gpu_layers}
    if layers not in ({0}, {-1}):
        return 0.0
    return _LEAST * baseline_s * sizes.read_bytes / max(1, target[0].read_bytes)


def too_dear(draft: ModelSource | ModelFiles, auto: AutoGamma, step_s: float) -> bool:
    """Whether a draft with steps of `step_s` seconds can save no time.

    For a draft model, nearly every token is assumed to be accepted. A head that localspec trained
    was measured at the end, and its file says how much was accepted; without that, it may have
    `REACHABLE`. Nothing is known of other heads, so they are never too dear.
    """
    if not head_checks.is_head(draft.header):
        return auto.too_dear(step_s, BEHIND)
    made = trained_heads.made_for(draft.header)
    if made is None:
        return False
    times = auto.costs.target.at(BEHIND).times(LONGEST + 1)
    acceptance = REACHABLE if made.accepted is None else made.accepted
    return head_promise.speedup(acceptance, times, step_s) < PAYS


def too_big(target: ModelSource, draft: ModelSource, plan: MemoryPlan) -> bool:
    """Whether stored measurements would keep a draft from being loaded for a target.

    Args:
        target: not loaded.
        draft: not loaded.
        plan: how both would be.
    """
    if plan.draft is None:
        return False
    path, store = target.paths[0], profile_store()
    attention = attention_timing(key(path, plan.target, None), store)
    flash_attn = attention.option if attention else "auto"
    own = stored_profile(store, path, plan.target, flash_attn, draft=False)
    if own is None or not own.steady:
        return False
    auto = AutoGamma(Costs(own.best, {}, own.identity.get("takes_back")))
    baseline_s = auto.costs.target.at(BEHIND).seconds(1)
    both = None if plan.from_disk else (facts(target.header), plan.target)
    sized = (draft_facts(draft.header), plan.draft)
    return too_dear(draft, auto, least_step(draft.paths[0], sized, both, baseline_s, flash_attn))
