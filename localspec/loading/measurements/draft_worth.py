"""Whether a draft can save time, judged by its step before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from localspec import formats
from localspec.chat.session.pair import LoadRecord
from localspec.drafter_names import DFLASH
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.profile import Profile
from localspec.loading.measurements.expected_speed import BEHIND, stored_profiles, usual
from localspec.loading.measurements.head_promise import PAYS, REACHABLE
from localspec.loading.measurements.measured_costs import profile_store
from localspec.pairs.disk import trained_heads
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.header import ModelFiles
from localspec.pairs.memory.model_facts import ModelFacts, draft_facts, facts
from localspec.pairs.memory.need import ModelSetup
from localspec.pairs.memory.placement import MemoryPlan
from localspec.pairs.report.model_source import ModelSource

_LEAST = 0.5
"""Least time of a draft's step, relative to the target's time per byte: weights of more bits per
weight are read faster per byte."""

Sized = tuple[ModelFacts, ModelSetup]


def least_step(
    path: Path,
    draft: Sized,
    target: Sized | None,
    baseline_s: float,
    how: LoadRecord,
    *,
    head: str,
) -> float:
    """The least seconds of a step: as measured before, else estimated from the weights it reads.

    Args:
        path: the drafter's file.
        draft: its sizes and setup.
        target: the same of the target; None where its bytes do not explain its time.
        baseline_s: seconds of the target's decode of one token.
        how: as for `stored_profiles`.
        head: as there.

    Returns:
        0 where nothing is known: the models run in different places, or are mixtures of experts.
    """
    sizes, setup = draft
    known: list[Profile] = []
    with suppress(OSError):  # a load tells what is wrong with a file
        known = stored_profiles(profile_store(), path, setup, how, draft=True, head=head)
    if known and all(one.steady for one in known):
        return min(ModelCosts(one.best).at(BEHIND).seconds(1) for one in known)
    if target is None or any((*sizes.experts, *target[0].experts)):
        return 0.0
    layers = {setup.gpu_layers, target[1].gpu_layers}
    if layers not in ({0}, {-1}):
        return 0.0
    return _LEAST * baseline_s * sizes.read_bytes / max(1, target[0].read_bytes)


def acceptance(draft: ModelSource | ModelFiles, target: Sequence[Path]) -> float | None:
    """The acceptance by which a head is judged for the target in these files.

    It was measured with this target, or at the end of its training; without that, a head that
    localspec trained may have `REACHABLE`.

    Returns:
        None for other heads, of which nothing is known, and for draft models.
    """
    accepted = trained_heads.accepted(draft.header, draft.paths, target)
    if accepted is None and trained_heads.made_for(draft.header):
        return REACHABLE
    return accepted


def too_dear(
    draft: ModelSource | ModelFiles, target: Sequence[Path], auto: AutoGamma, step_s: float
) -> bool:
    """Whether a draft with steps of `step_s` seconds can save no time.

    For a draft model, nearly every token is assumed to be accepted. A head of which nothing is
    known (`acceptance`) is never too dear.
    """
    if not head_checks.is_head(draft.header):
        return auto.too_dear(step_s, BEHIND)
    if (accepted := acceptance(draft, target)) is None:
        return False
    if head_checks.head_kind(draft.header) == DFLASH:  # one pass guesses all tokens
        return auto.best_gain(accepted, BEHIND, 0.0, first=step_s) < PAYS
    return auto.best_gain(accepted, BEHIND, step_s) < PAYS


def why_too_dear(draft: ModelSource | ModelFiles, target: Sequence[Path]) -> str:
    """Why a draft can save no time, in words that follow its name."""
    accepted = acceptance(draft, target)
    if accepted is None:
        return "too big to save time here"
    return f"saves no time here with {formats.percent(accepted)} of its first tokens accepted"


def why_left_out(
    target: ModelSource | ModelFiles, draft: ModelSource | ModelFiles, plan: MemoryPlan
) -> str:
    """Why stored measurements would keep a draft from being loaded; empty if they would not.

    Args:
        target: not loaded.
        draft: not loaded.
        plan: how both would be.
    """
    if plan.draft is None:
        return ""
    path, store = target.paths[0], profile_store()
    how, _ = usual(path, plan, store)
    both = None if plan.from_disk else (facts(target.header), plan.target)
    sized = (draft_facts(draft.header), plan.draft)
    head = head_checks.head_kind(draft.header)

    def dear(own: Profile) -> bool:
        auto = AutoGamma(Costs(own.best, {}, own.identity.get("takes_back")))
        baseline_s = auto.costs.target.at(BEHIND).seconds(1)
        step_s = least_step(draft.paths[0], sized, both, baseline_s, how, head=head)
        return own.steady and too_dear(draft, target.paths, auto, step_s)

    owns = stored_profiles(store, path, plan.target, how, draft=False)
    agreed = owns and all(map(dear, owns))
    return why_too_dear(draft, target.paths) if agreed else ""
