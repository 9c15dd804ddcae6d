"""Benching the toy pair: real models, real clocks."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from localspec.bench import benchmark
from localspec.bench.benchmark import arms_of, bench
from localspec.bench.picture import draw
from localspec.bench.prompt_sets import QUICK, BenchPrompt, BenchRequest, PromptSet
from localspec.bench.report_files import document
from localspec.bench.result import INTERRUPTED, OFF, OUT_OF_TIME, SETTLED, BenchReport
from localspec.bench.runner import Arm, BeforeAsking, Runner
from localspec.bench.tables import text
from localspec.chat.events import PromptProgress, RoundText, TurnEnd, TurnEvent
from localspec.chat.session.pair import LoadedAdapter
from localspec.chat.session.session import Session
from localspec.drafter_names import CROSS_VOCABULARY
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import Timing
from localspec.engine.record.stats import FinishReason
from localspec.errors import Cancelled
from localspec.loading.load import check, load_another_draft, load_session
from localspec.loading.load_request import LoadRequest
from tests.support import bench_reports, ggufs, toy
from tests.support.gguf_models import write_random_llama
from tests.support.rounding import round_by

OPTIONS = LoadRequest(pair="toy", threads=1, ctx_size=256, gamma=3)
THREE = PromptSet("three", toy.questions(3).prompts, ignore_end=True)


def ignore(*_: object) -> None:
    """Nothing to tell."""


@pytest.fixture(autouse=True, scope="module")
def _few_sizes() -> Iterator[None]:
    """Have each bench time decodes of a few sizes only."""
    sizes = {"TARGET_SIZES": (1, 2, 4, 8, 16), "DRAFT_SIZES": (1, 2, 16)}
    with mock.patch.multiple(benchmark, **sizes):
        yield


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    found = load_session(OPTIONS, progress=ignore, cancel=Cancel())
    yield found
    found.close()


def request(prompts: PromptSet = THREE, **changes: Any) -> BenchRequest:
    values: dict[str, Any] = {
        "prompts": prompts,
        "repeats": 2,
        "n_predict": 24,
        "temperature": 0.0,
        "seed": 1,
        "gamma": 3,
    }
    return BenchRequest(**values | changes)


def run(
    session: Session,
    wanted: BenchRequest,
    *,
    cancel: Cancel | None = None,
    asking: BeforeAsking = ignore,
) -> BenchReport:
    return bench([session], wanted, cancel or Cancel(), asking=asking, progress=ignore)


Asked = list[tuple[str, int, int, float | None]]


@pytest.fixture(scope="module")
def usual(session: Session) -> tuple[BenchReport, Asked]:
    """The report of a bench with the usual settings, and the questions asked in it."""
    asked: Asked = []
    return run(session, request(), asking=lambda *at: asked.append(at)), asked


def test_every_question_is_answered_off_and_on_in_turns(usual: tuple[BenchReport, Asked]) -> None:
    report, asked = usual
    order = [(each.prompt, each.arm) for each in report.runs]
    names = [prompt.name for prompt in THREE.prompts]
    assert len(order) == 12
    assert [name for name, _ in order[::2]] == names * 2
    assert " ".join(arm for _, arm in order) == "off on on off on off on off on off off on"
    assert [name for name, *_ in asked] == names * 2
    assert [done for _, done, _, _ in asked] == list(range(6))
    assert {total for _, _, total, _ in asked} == {6}
    assert asked[0][-1] is None
    assert all(left_s is not None and left_s > 0 for *_, left_s in asked[1:])
    assert all(each.stats.generated_tokens == 24 for each in report.runs)
    assert report.agreement.compared == report.agreement.same == 3


@pytest.mark.parametrize("block", [0, 7])
def test_nothing_is_predicted_from_one_pass_for_a_whole_block(
    session: Session, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(type(session.pair), "block", block)
    report = run(session, request())
    assert bool(report.sweep) is (report.draft_step_s is not None) is (not block)
    assert report.curve


def test_nothing_is_predicted_from_passes_over_other_tokens(session: Session) -> None:
    """One may bring several of the target's."""
    assert session.pair.draft is not None
    pair = replace(session.pair, drafts={CROSS_VOCABULARY: session.pair.draft})
    of_target, of_draft = benchmark._points(SimpleNamespace(pair=pair), Cancel())  # type: ignore[arg-type]
    assert of_target
    assert not of_draft


def test_every_setting_comes_first_equally_often_in_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With four kinds the order would always be the same in each if all questions counted."""
    first: dict[str, list[str]] = {kind: [] for kind in "abcd"}

    def ask(_: Runner, prompt: BenchPrompt, _repeat: int, order: list[str], *__: object) -> None:
        first[prompt.kind].append(order[0])

    monkeypatch.setattr(Runner, "_ask", ask)
    arms: Any = ["off", "on"]
    prompts = [BenchPrompt(f"{kind}-{n}", kind, "") for n in range(2) for kind in first]
    Runner(arms, request().settings(frozenset()), Cancel()).run(prompts, 2)
    assert [its.count("off") for its in first.values()] == [2, 2, 2, 2]
    assert [its[0] for its in first.values()] == ["off", "on", "on", "off"]


def test_the_parts_of_the_time_are_the_wall_time(usual: tuple[BenchReport, Asked]) -> None:
    runs = document(usual[0])["runs"]
    parts = ("prompt_s", "draft_s", "verify_s", "python_s")
    wall = sum(each["wall_s"] for each in runs)
    assert sum(each[part] for each in runs for part in parts) == pytest.approx(wall, rel=0.02)
    assert all(each["draft_s"] == 0 for each in runs if each["arm"] == OFF)
    assert all(each["prompt_s"] > 0 for each in runs)


def test_what_a_device_reads_after_the_last_progress_is_the_prompt_too() -> None:
    """Its passes are queued: progress is told when one was handed over, not when it is done."""
    now = 0.0

    def turn(*_: object) -> Iterator[TurnEvent]:
        nonlocal now
        for seconds, event in (
            (0.5, PromptProgress(512, 512, 0)),
            (4.0 + first.total_s, RoundText((), first)),
            (0.25, TurnEnd("", FinishReason.LENGTH, bench_reports.stats([first], None))),
        ):
            now += seconds
            yield event

    first, pair = bench_reports.done(1), SimpleNamespace(contexts=())
    session: Any = SimpleNamespace(pair=pair, turn=turn, reset=ignore, written=None)
    common = request().settings(frozenset())
    runner = Runner([Arm(name=OFF, session=session, gamma=0)], common, Cancel(), clock=lambda: now)
    (found,) = runner.run([BenchPrompt("long", "chat", "")], 1).runs
    assert found.prompt_s == pytest.approx(4.5)
    assert found.python_s == pytest.approx(first.total_s - first.verify_s + 0.25)


def test_both_sides_read_the_whole_prompt_every_time(usual: tuple[BenchReport, Asked]) -> None:
    for each in usual[0].runs:
        rest = each.stats.rounds[1:]
        asked = [done for done in rest if done.draft_passes]
        assert bool(asked) == (each.arm != OFF)
        if asked:
            assert asked[0].draft_cached == 0
            assert asked[0].draft_prefill > each.stats.prompt_tokens


@pytest.mark.slow
def test_a_sweep_stands_beside_what_was_predicted(session: Session) -> None:
    report = run(session, request(repeats=1, sweep=(0, 1, 2)))
    assert [arm.name for arm in report.arms] == ["off", "on", "gamma 1", "gamma 2"]
    measured = {p.predicted.gamma: p.tokens_per_second for p in report.sweep}
    assert len(measured) == 13
    assert [gamma for gamma, speed in measured.items() if speed] == [0, 1, 2, 3]
    assert report.sweep[0].predicted.speedup == report.sweep[0].predicted.roofline == 1
    assert {point.n for point in report.curve} >= {1, 2, 4, 8}


@pytest.mark.slow
def test_with_a_temperature_both_sides_draw_the_same(session: Session) -> None:
    report = run(session, request(repeats=1, temperature=0.9, n_predict=16))
    assert report.agreement.same == report.agreement.compared == 3
    assert not report.agreement.greedy


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_is_left_out_and_said(session: Session) -> None:
    long = BenchPrompt("long-1", "sums", "one and two and three " * 200)
    report = run(session, request(PromptSet("own", (*THREE.prompts[:1], long), ignore_end=True)))
    assert report.too_long == ("long-1",)
    assert {each.prompt for each in report.runs} == {"line-1"}
    assert any("longer than the context" in line for line in report.verdict)


def test_a_quick_bench_asks_what_its_drafters_are_for(session: Session) -> None:
    kinds = ("edit", "conversion", "chat")
    asked = tuple(BenchPrompt(f"{kind}-1", kind, "one and two") for kind in kinds)
    prompts = PromptSet(QUICK, asked, ignore_end=True)
    report = run(session, request(prompts, repeats=1, n_predict=8))
    assert {each.kind for each in report.runs} == {"edit", "chat"}  # a model drafts
    assert report.settings["kinds"] == ["edit", "chat"]
    assert report.prompts == 2


def test_a_quick_bench_asks_no_more_than_it_needs(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the clock, and next to other tests, nothing might be settled.
    monkeypatch.setattr(
        benchmark, "settled", lambda rows: {row.kind for row in rows if row.prompts >= 2}
    )
    asked = tuple(BenchPrompt(f"sums-{n}", "sums", f"{n} and two") for n in range(9))
    wanted = request(PromptSet("own", asked, ignore_end=True), repeats=1, n_predict=40)
    report = run(session, replace(wanted, gamma=0, deadline=time.perf_counter() + 600))
    assert report.ended == ""  # nothing that drafts, nothing to settle
    report = run(session, replace(wanted, gamma=8, deadline=time.perf_counter() + 600))
    lengths = {each.arm: len(each.tokens) for each in report.runs}
    assert lengths == {"off": 16, "on": 40}
    assert report.ended == SETTLED
    assert len(report.runs) / 2 == 2
    assert "more would not change the answer" in report.verdict[-1]


def test_stopping_keeps_what_is_done(session: Session) -> None:
    cancel = Cancel()

    def stop(_name: str, done: int, *_: object) -> None:
        if done == 2:
            cancel.set()

    report = run(session, request(), cancel=cancel, asking=stop)
    assert report.ended == INTERRUPTED
    assert len(report.runs) == 4
    assert report.off.overall.tokens_per_second is not None
    assert any("interrupted" in line for line in report.verdict)


def test_where_no_prompt_fits_that_is_all_there_is_to_report(session: Session) -> None:
    long = BenchPrompt("long-1", "sums", "one and two and three " * 200)
    report = run(session, request(PromptSet("own", (long,))))
    assert report.runs == ()
    assert report.verdict[0].startswith("Nothing could be timed")
    assert "Verdict" in text(report, colour=False)
    assert b"</text>" in draw(report).svg()


@pytest.mark.slow
def test_stopping_while_costs_are_measured_at_the_end_loses_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()
    measured = benchmark.measure

    def stopped(*arguments: Any, **how: Any) -> Timing:
        if next(calls) >= 2:
            raise Cancelled
        return measured(*arguments, **how)

    monkeypatch.setattr(benchmark, "measure", stopped)
    report = run(session, request(repeats=1))
    assert len(report.runs) == 6
    assert report.curve[0].seconds is not None


def test_stopping_at_once_leaves_nothing_to_report(session: Session) -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled):
        run(session, request(), cancel=cancel, asking=lambda *_: cancel.set())


def test_a_deadline_ends_the_run_with_whole_questions(session: Session) -> None:
    ticks = itertools.count()
    wanted = request()
    runner = Runner(
        arms_of([session], wanted),
        wanted.settings(session.pair.target.model.end_tokens),
        Cancel(),
        deadline=200.0,
        clock=lambda: float(next(ticks)),
    )
    outcome = runner.run(THREE.prompts, 50)
    assert outcome.ended == OUT_OF_TIME
    assert len(outcome.runs) % 2 == 0
    assert 0 < len(outcome.runs) < 12


def test_without_a_draft_the_baseline_is_measured() -> None:
    options = replace(OPTIONS, draft="none")
    alone = load_session(options, progress=ignore, cancel=Cancel())
    try:
        report = run(alone, request(repeats=1))
    finally:
        alone.close()
    assert [arm.name for arm in report.arms] == ["off"]
    assert report.off.overall.tokens_per_second is not None
    assert report.sweep == ()
    assert "Drafting was not measured: there is no draft" in report.verdict[0]


@pytest.mark.slow
def test_several_drafts_share_a_target(session: Session, toy_draft: Path) -> None:
    wanted = check(replace(OPTIONS, draft=f"{toy_draft},lookup"))
    beside = load_another_draft(session, wanted, progress=ignore, cancel=Cancel())
    try:
        report = bench(
            [session, beside], request(repeats=1), Cancel(), asking=ignore, progress=ignore
        )
    finally:
        assert beside.pair.draft is not None
        beside.pair.draft.close()
        beside.pair.draft.model.close()
    assert beside.pair.target is session.pair.target
    assert beside.pair.reference[1] == f"{toy_draft},lookup"
    names = [arm.name for arm in report.on]
    assert len(set(names)) == 2
    assert names[1] == f"{names[0]} (2)"
    assert report.agreement.same == report.agreement.compared == 6


@pytest.mark.slow
def test_partings_are_counted_with_their_margins(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_by(monkeypatch, 0.4)
    report = run(session, request(repeats=1, temperature=1.5, n_predict=48))
    found = report.agreement
    assert found.compared - found.same == len(found.partings) > 0
    margins = [each.margin for each in found.partings if each.margin is not None]
    assert margins
    assert max(margins) <= 0.8 + 1e-3  # either token's logit was off by 0.4 at most
    assert found.near_ties == len(margins)
    assert sum(each.at + 1 for each in found.partings) <= found.tokens <= 3 * 48
    assert found.partings_per_1000 == 1000 * len(found.partings) / found.tokens
    assert any("that is rounding" in line for line in report.verdict)


def test_nothing_private_stands_in_a_report(
    session: Session, usual: tuple[BenchReport, Asked], tmp_path: Path
) -> None:
    adapter = LoadedAdapter(str(tmp_path / "adapter.gguf"), 0.5, "ef" * 32)
    workers = ("cellar.example:50052", "192.168.1.9:50052")
    loaded = replace(session.pair.loaded, lora=(adapter,), rpc=workers)
    pair = replace(session.pair, loaded=loaded)
    where = benchmark._environment([SimpleNamespace(pair=pair)])  # type: ignore[list-item]
    assert where["loaded_with"]["lora"] == ({"scale": 0.5, "sha256": "ef" * 32},)
    assert len(where["loaded_with"]["rpc"]) == len(workers)
    said = json.dumps(document(replace(usual[0], environment=where)))
    model = session.pair.target.model.path
    private = [str(model), str(model.parent), str(Path.home()), str(tmp_path), model.name, *workers]
    assert not [each for each in private if each in said]
    assert THREE.prompts[0].text not in said
    for told in ("sha256", "machine", "llama_cpp_python", "localspec demo target"):
        assert told in said


def test_every_drafter_is_named_once_with_all_of_its_files(
    session: Session, tmp_path: Path
) -> None:
    parts = ggufs.split_model("big", 3)
    for name, data in parts.items():
        (tmp_path / name).write_bytes(data)
    whole = {"general.name": "Big", "split.count": "3"}
    big = SimpleNamespace(path=tmp_path / min(parts), name="b", description="b", metadata=whole)
    several = {"draft": session.pair.draft, "draft-2": SimpleNamespace(model=big)}
    pair = replace(session.pair, drafts=several)
    sessions: Any = [SimpleNamespace(pair=each) for each in (pair, session.pair, pair)]
    small, found = benchmark._environment(sessions)["drafts"]
    assert small == benchmark._environment([session])["drafts"][0]
    assert found["file_bytes"] == sum(map(len, parts.values()))
    assert found["sha256"] == hashlib.sha256(b"".join(parts.values())).hexdigest()


def test_what_has_no_name_of_its_own_is_shared_without_one(
    session: Session, usual: tuple[BenchReport, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = session.pair
    assert pair.draft is not None
    copies = ("lookup", "lookup")
    named = ("draft", pair.draft.model.metadata["general.name"])
    assert usual[0].on[0].drafters == (named, copies)
    for model in (pair.target.model, pair.draft.model):
        monkeypatch.delitem(model.metadata, "general.name")
    report = run(session, request(repeats=1))
    assert report.environment["target"]["name"] == pair.target.model.path.stem
    assert report.environment["target"]["own_name"] == ""
    assert report.on[0].drafters == (("draft", ""), copies)


def forced(draft: Path) -> BenchReport:
    """Gamma 4 with this draft, over a part of the toy's questions."""
    options = LoadRequest(pair="toy", draft=str(draft), threads=1, gamma=4)
    session = load_session(options, progress=ignore, cancel=Cancel())
    try:
        prompts = toy.questions(15)
        return run(session, request(prompts, gamma=4, repeats=3, n_predict=32))
    finally:
        session.close()


@pytest.mark.slow
@pytest.mark.drawn
def test_the_target_as_its_own_draft_is_slower_and_that_is_said(toy_target: Path) -> None:
    report = forced(toy_target)
    assert report.best is not None
    best, found = report.best
    assert found.below_one
    assert best.overall.acceptance == pytest.approx(1, abs=0.02)
    assert "slower than without drafting" in report.verdict[0]
    assert any("smaller draft would pay" in line for line in report.verdict)


@pytest.mark.slow
@pytest.mark.drawn
def test_a_random_draft_is_slower_and_that_is_said(tmp_path: Path) -> None:
    report = forced(write_random_llama(tmp_path / "random.gguf"))
    assert report.best is not None
    _, found = report.best
    assert found.below_one
    assert "slower than without drafting" in report.verdict[0]
    assert any("rarely right" in line for line in report.verdict)
