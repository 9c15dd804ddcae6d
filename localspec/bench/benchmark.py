"""A whole bench: load, warm up, measure T(n), ask the questions, summarise."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Any

from localspec import __version__
from localspec.bench.predict import RoundCosts, overhead, predictions
from localspec.bench.prompt_sets import BenchRequest, drafters_of, for_drafters
from localspec.bench.result import (
    OFF,
    SETTLED,
    AnswersAgree,
    ArmReport,
    BenchReport,
    BenchRun,
    SweepPoint,
)
from localspec.bench.runner import Arm, BeforeAsking, BenchOutcome, Runner
from localspec.bench.sharing.shared_file import require_shareable
from localspec.bench.sharing.shared_report import without_arms
from localspec.bench.summarise import curve, middle, rows, speed_over_all, too_short
from localspec.bench.verdict import disturbance, settled, verdict
from localspec.chat.session.pair import LoadedPair
from localspec.chat.session.session import Session
from localspec.drafter_names import CROSS_VOCABULARY, LOOKUP, kind_of
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Curve, Points
from localspec.engine.length.profile import DRAFT_SIZES, TARGET_SIZES, measure
from localspec.engine.llama import Model, build, machine
from localspec.engine.record.stats import Round
from localspec.errors import Cancelled, LocalspecError
from localspec.loading.load import check, load_another_draft, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.tuning import wait_for_calm
from localspec.loading.model_loader import Progress
from localspec.pairs.gguf.header import model_parts, read_model
from localspec.safe_text import one_line

# Larger files are identified by their size and first mebibyte, as hashing all would take minutes.
_WHOLE, _FIRST = 4 << 30, 1 << 20
_TARGET_BUDGET, _DRAFT_BUDGET = 3.0, 0.7  # seconds
_BASELINE_TOKENS = 16  # of an answer without drafting in a quick bench
ON = "on"


def bench_pair(
    options: LoadRequest,
    request: BenchRequest,
    cancel: Cancel,
    *,
    progress: Progress,
    asking: BeforeAsking,
    warn: Callable[[str], None],
) -> BenchReport:
    """Load the models, measure, free them.

    Args:
        options: the target, and the first draft.
        request: what to measure.
        cancel: stops the bench; the measurements so far are reported.
        progress: called with every step that takes time.
        asking: called before every question.
        warn: called with notices about the models.

    Raises:
        LocalspecError: as `load_session`; the result is to be shared and the machine is busy, or
            what it measures cannot be true.
        Cancelled: it was stopped before there was anything to report.
    """
    others = [replace(options, draft=drafters_of(name)) for name in request.drafts[1:]]
    read = cache(read_model)
    target, *more = [check(each, read=read) for each in (options, *others)]  # before the wait
    began = perf_counter()
    busy = wait_for_calm(progress, cancel)
    if request.shared and busy:
        raise LocalspecError(
            f"--share needs an idle machine: other programs keep {busy:.1f} cores busy",
            "End them, or leave --share out.",
        )
    if request.deadline is not None:  # the wait takes nothing from the questions
        request = replace(request, deadline=request.deadline + perf_counter() - began)
    with ExitStack() as stack:
        first = load_session(target, progress=progress, cancel=cancel, later=more)
        stack.enter_context(closing(first))
        sessions = [first]
        for another in more:
            other = load_another_draft(first, another, progress=progress, cancel=cancel)
            stack.callback(other.pair.close_drafts)  # the target belongs to the first session
            stack.callback(other.engine.close)
            stack.callback(other.template.close)
            sessions.append(other)
        for notice in dict.fromkeys(each for session in sessions for each in session.notices):
            warn(notice)
        report = bench(sessions, request, cancel, progress=progress, asking=asking)
        return replace(report, busy_cores=busy, verdict=(*report.verdict, *disturbance(busy)))


def bench(
    sessions: Sequence[Session],
    request: BenchRequest,
    cancel: Cancel,
    *,
    progress: Progress,
    asking: BeforeAsking,
) -> BenchReport:
    """Measure on loaded models; an interrupted bench reports what it has.

    Args:
        sessions: over one target, each with another draft; the last may have none.
        request: what to measure.
        cancel: stops it.
        progress: called with every step that takes time.
        asking: called before every question.

    Raises:
        LocalspecError: the result is to be shared, and nothing drafts, or what decodes cost cannot
            be true.
        Cancelled: it was stopped before there was anything to report.
    """
    drafters = [name for session in sessions for name in session.drafters]
    request = replace(request, prompts=for_drafters(request.prompts, drafters))
    arms = arms_of(sessions, request)
    if request.shared and all(arm.swept for arm in arms[1:]):
        raise LocalspecError(
            "there is nothing to share: nothing drafts for this target", "Leave --share out."
        )
    where = _environment(sessions)
    common = request.settings(sessions[0].pair.target.model.end_tokens)
    runner = Runner(
        arms,
        common,
        cancel,
        deadline=request.deadline,
        asking=asking,
        settled=partial(_settled, arms) if request.quick else lambda _: (),
    )
    progress("Warming up", None)
    # The warm-up leaves a prompt of median length in the caches, as context for the costs.
    by_length = sorted(request.prompts.prompts, key=lambda prompt: len(prompt.text))
    runner.warm_up(by_length[len(by_length) // 2])
    progress("Measuring what decodes cost", None)
    points = _points(sessions[0], cancel)
    if request.shared:
        again = partial(_points, sessions[0], cancel)
        points = _shareable(points, again, where, request.document())
    outcome = runner.run(request.prompts.prompts, request.repeats)
    if not outcome.runs:
        cancel.check()
    if outcome.ended in ("", SETTLED):
        with suppress(Cancelled):  # the runs are complete
            later = _points(sessions[0], cancel)  # the machine may be faster now
            points = _lesser(points[0], later[0]), _lesser(points[1], later[1])
    report = _report(sessions, arms, request, outcome, points=points, where=where)
    return replace(report, verdict=verdict(report))


def _shareable(
    points: tuple[Points, Points],
    measure_again: Callable[[], tuple[Points, Points]],
    where: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Points, Points]:
    """The points, measured once more if they cannot be true.

    Raises:
        LocalspecError: they still cannot, or something else cannot be shared.
    """

    def require(found: tuple[Points, Points]) -> None:
        target, draft = found
        require_shareable(without_arms(where, settings, curve(target, ()), draft.get(1)))

    try:
        require(points)
    except LocalspecError:
        points = measure_again()
        require(points)
    return points


def arms_of(sessions: Sequence[Session], request: BenchRequest) -> list[Arm]:
    """The settings: no drafting, every draft, and the sweep with the first draft."""
    able = [session for session in sessions if not session.speculation_note]
    # In a quick bench passes count alike in all answers, and those over one token are soon known.
    most = _BASELINE_TOKENS if request.quick else None
    arms = [Arm(name=OFF, session=sessions[0], gamma=0, most=most)]
    if request.gamma != 0:
        names = _names([one_line("+".join(session.drafters), 40) for session in able])
        arms += [
            Arm(name=name if len(able) > 1 else ON, session=session, gamma=request.gamma)
            for name, session in zip(names, able, strict=True)
        ]
    if able:
        arms += [
            Arm(name=f"gamma {n}", session=able[0], gamma=n, swept=True)
            for n in request.sweep
            if n > 0
        ]
    return arms


def _names(names: Sequence[str]) -> list[str]:
    """Make names unique: repeated names get a number."""
    return [
        name if name not in (*names[:i], OFF) else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]


def _lesser(a: Points, b: Points) -> Points:
    """The lesser time for each size: disturbances only make a decode longer."""
    return {n: min(points[n] for points in (a, b) if n in points) for n in sorted({*a, *b})}


def _points(session: Session, cancel: Cancel) -> tuple[Points, Points]:
    """Seconds of decodes of target and draft by size; empty if they cannot be measured.

    Those of a draft that guesses a block or has other tokens are empty too: no length follows from
    a pass's time.
    """
    target, draft = session.pair.target, session.pair.draft
    if not target.can_truncate:
        return {}, {}
    target.watch(cancel)
    twice = (*TARGET_SIZES, *TARGET_SIZES)
    of_target = measure(target, twice, budget=_TARGET_BUDGET, passes=len(twice)).points
    translated = kind_of(next(iter(session.pair.drafts), "")) == CROSS_VOCABULARY
    if draft is None or session.pair.block or translated:
        return of_target, {}
    draft.watch(cancel)
    return of_target, measure(draft, DRAFT_SIZES, budget=_DRAFT_BUDGET, one_row=True).points


def _report(
    sessions: Sequence[Session],
    arms: Sequence[Arm],
    request: BenchRequest,
    outcome: BenchOutcome,
    *,
    points: tuple[Points, Points],
    where: Mapping[str, Any],
) -> BenchReport:
    runs = outcome.runs
    reports = [_arm(arm, runs, steady=request.quick) for arm in arms]
    return BenchReport(
        environment=where,
        settings=request.document(),
        draft_note=sessions[0].speculation_note or ("gamma is 0" if len(arms) == 1 else ""),
        arms=tuple(reports),
        curve=curve(points[0], runs),
        draft_step_s=points[1].get(1),
        sweep=_sweep(arms, reports, runs, *points),
        agreement=_agreement(outcome, request),
        prompts=len(request.prompts.prompts),
        too_long=tuple(outcome.too_long),
        too_short=too_short(runs),
        ended=outcome.ended,
        peak_memory_bytes=sessions[0].peak_memory_bytes(),
        runs=tuple(runs),
    )


def _agreement(outcome: BenchOutcome, request: BenchRequest) -> AnswersAgree:
    partings, tokens = outcome.partings, outcome.compared_tokens
    return AnswersAgree(
        outcome.compared,
        outcome.compared - len(partings),
        greedy=request.temperature <= 0,
        partings=tuple(partings),
        tokens=tokens,
        near_ties=sum(each.near_tie for each in partings),
        partings_per_1000=1000 * len(partings) / tokens if tokens else None,
    )


def _environment(sessions: Sequence[Session]) -> dict[str, Any]:
    """Machine, backend, versions and models, without paths, user or host name."""
    first, loaded = sessions[0].pair, sessions[0].pair.loaded.document()
    for adapter in loaded["lora"]:
        del adapter["path"]
    loaded["rpc"] = ["worker"] * len(loaded["rpc"])  # how many, without their addresses
    every = (draft.model for each in sessions for draft in each.pair.drafts.values())
    return {
        "machine": machine(),
        "system": f"{platform.system()} {platform.machine()}",
        "localspec": __version__,
        "python": platform.python_version(),
        "llama_cpp_python": build(),
        "pair": one_line(first.name, 80),
        "target": _model(first.target.model),
        "drafts": [_model(model) for model in {each.path: each for each in every}.values()],
        "loaded_with": loaded,
    }


def _model(model: Model) -> dict[str, Any]:
    """A model's name, and the size and hash of its file, or of all its parts as one file."""
    files = model_parts(model.path, int(model.metadata.get("split.count", 1)))
    size, digest = sum(file.stat().st_size for file in files), hashlib.sha256()
    whole = size <= _WHOLE
    for path in files if whole else files[:1]:
        with path.open("rb") as file:
            if whole:
                hashlib.file_digest(file, lambda: digest)
            else:
                digest.update(file.read(_FIRST))
    return {
        "name": one_line(model.name, 80),
        "own_name": _own_name(model),
        "type": one_line(model.description, 80),
        "file_bytes": size,
        "sha256" if whole else "sha256_of_first_mebibyte": digest.hexdigest(),
    }


def _own_name(model: Model) -> str:
    """The name in the file; empty if it has none, as the file's name may be private."""
    return one_line(model.metadata.get("general.name", ""), 80)


def _drafters(pair: LoadedPair) -> tuple[tuple[str, str], ...]:
    """Kind and own name of all that drafts."""
    found = tuple((kind_of(kind), _own_name(each.model)) for kind, each in pair.drafts.items())
    return (*found, (LOOKUP, LOOKUP)) if pair.lookup else found


def _settled(arms: Sequence[Arm], runs: Sequence[BenchRun]) -> frozenset[str]:
    """The kinds of text for which every setting that drafts has its answer."""
    return settled([row for arm in arms[1:] for row in rows(runs, arm.name, steady=True)[0]])


def _arm(arm: Arm, runs: Sequence[BenchRun], *, steady: bool) -> ArmReport:
    kinds, overall = rows(runs, arm.name, steady=steady)
    draft = "+".join(arm.session.drafters) if arm.gamma != 0 else None
    return ArmReport(
        name=arm.name,
        draft=one_line(draft, 80) if draft else None,
        gamma=str(arm.gamma),
        swept=arm.swept,
        kinds=kinds,
        overall=overall,
        drafters=_drafters(arm.session.pair) if draft else (),
    )


def _sweep(
    arms: Sequence[Arm],
    reports: Sequence[ArmReport],
    runs: Sequence[BenchRun],
    target: Points,
    draft: Points,
) -> tuple[SweepPoint, ...]:
    """Predictions from costs and acceptance, next to what was measured at each length."""
    if 1 not in target or 1 not in draft or not runs or len(arms) < 2:
        return ()
    first = [arm for arm in arms if arm.gamma != 0 and arm.session is arms[1].session]
    # Outcomes come from the longest fixed length: `auto` only drafts where it is easy, and a long
    # draft has the fewest bonus tokens, whose outcomes are unknown.
    fixed = {arm.gamma: arm.name for arm in first if arm.gamma != "auto"}
    drafting = _rounds(runs, set(fixed.values()) or {arm.name for arm in first})
    seen = _rounds(runs, {fixed[max(fixed)]}) if fixed else drafting
    baseline = _rounds(runs, {OFF})
    # The measured costs are those of the best moment; over minutes a machine is slower.
    usual = middle([done.verify_s for done in baseline])
    slower = usual / target[1] if usual else 1.0
    costs = RoundCosts(
        Curve({n: slower * seconds for n, seconds in target.items()}),
        Curve({n: slower * seconds for n, seconds in draft.items()}),
        overhead([*baseline, *drafting]),
    )
    ran = {0: reports[0]} | {
        arm.gamma: report for arm, report in zip(arms, reports, strict=True) if arm in first
    }
    points = []
    for expected in predictions(costs, seen):
        report = ran.get(expected.gamma)
        speed = speed_over_all(run for run in runs if report is not None and run.arm == report.name)
        points.append(SweepPoint(expected, speed, report.overall.speedup if report else None))
    return tuple(points)


def _rounds(runs: Sequence[BenchRun], names: set[str]) -> list[Round]:
    """The rounds of these settings without the first of each answer, which never drafts."""
    return [done for run in runs if run.arm in names for done in run.stats.rounds[1:]]
