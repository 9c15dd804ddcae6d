"""`localspec tune`, and how a loaded pair comes to its automatic gamma."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from localspec.chat.session.pair import LoadedPair, LoadRecord
from localspec.chat.session.session import Session
from localspec.cli.subcommands import cli
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.length import profile
from localspec.engine.length.profile import Timing
from localspec.engine.length.stopping import Situation, StoppingPlan
from localspec.engine.llama import Context, ContextOptions, Model, default_threads
from localspec.engine.llama.platform import hardware
from localspec.engine.llama.thread_controller import Threads
from localspec.engine.record.stats import Round
from localspec.errors import Cancelled, ModelFileError, OutOfMemory, UsageError
from localspec.loading import load
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import (
    attention,
    exactness,
    expected_speed,
    measured_costs,
    ranking,
    tuning,
)
from localspec.loading.measurements.expected_speed import stored_profiles
from localspec.loading.measurements.measured_costs import (
    MeasuredPair,
    chosen_threads,
    measured,
    profile_store,
)
from localspec.loading.planning import load_plan
from localspec.pairs.memory.need import ModelSetup

from .fakes import round_of
from .support import gguf_models

TARGET_POINTS = {1: 10e-3, 2: 11e-3, 4: 13e-3, 8: 20e-3}
DRAFT_POINTS = {1: 1e-3, 16: 4e-3}
MEASURE = profile.measure


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and timings that do not depend on the machine."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")

    def scripted(context: Context, sizes: Any, **how: Any) -> Timing:
        points = DRAFT_POINTS if how.get("one_row") else TARGET_POINTS
        return Timing({n: points.get(n, 5e-3) for n in dict.fromkeys(sizes) if n in points})

    for room in (profile, tuning):
        monkeypatch.setattr(room, "measure", scripted)
    for room in (measured_costs, tuning):
        monkeypatch.setattr(room, "too_busy", lambda _threads: False)
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: 0.0)
    return tmp_path / "costs"


def tune(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["tune", *arguments], catch_exceptions=False)


def test_it_prints_the_curve_the_draft_and_the_choices(cache: Path) -> None:
    text = tune("toy", "--threads", "1", "-c", "256").stdout
    assert "Target target-Q8_0.gguf, 1 threads" in text
    curve = [line.split() for line in text.splitlines() if line.endswith(("#", "."))]
    bars = [line for line in curve if len(line) == 4 and line[0].isdigit()]
    assert [int(line[0]) for line in bars] == list(range(1, 18))
    assert bars[3][:3] == ["4", "13.00", "1.30"]
    assert set(bars[3][3]) == {"#"}
    assert set(bars[2][3]) == {"."}  # interpolated
    assert "one step 1.00 ms, 0.10 of the target's" in text
    assert text.count("×\n") == 6
    assert len(list(cache.glob("*.json"))) == 2


def test_a_step_of_a_draft_that_guesses_blocks_is_a_whole_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoadedPair, "block", 14)  # read with the two tokens that are pending
    text = tune("toy", "--threads", "1", "-c", "256").stdout
    assert "one step 4.00 ms, 0.40 of the target's" in text


def test_json_has_it_all_and_nothing_else() -> None:
    document = json.loads(tune("toy", "--json", "-c", "256").stdout)
    assert document["pair"] == "toy"
    assert document["target"]["seconds"]["4"] == pytest.approx(13e-3)
    assert document["draft"]["seconds"]["1"] == pytest.approx(1e-3)
    assert document["target"]["stored"]
    assert str(document["target"]["threads"]) in document["target"]["by_threads"]
    choices = document["gamma"]
    assert [choice["acceptance"] for choice in choices] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    assert [c["gamma"] for c in choices] == sorted(c["gamma"] for c in choices)
    assert all(choice["speedup"] >= 1 for choice in choices)


def test_without_a_draft_there_is_the_curve_alone() -> None:
    done = tune("toy", "--draft", "none", "--threads", "1", "-c", "256", "--json")
    document = json.loads(done.stdout)
    assert document["draft"] is None
    assert document["gamma"] == []
    assert document["draft_note"]


def test_beside_lookup_alone_it_says_that_nothing_else_drafts() -> None:
    text = tune("toy", "--draft", "lookup", "--threads", "1", "-c", "256").stdout
    assert "No draft model: lookup alone drafts" in text
    assert "gamma" not in text


def test_notices_of_the_load_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "notices", property(lambda _: ["a worker was left out"]))
    done = tune("toy", "--draft", "none", "--threads", "1", "-c", "256", "--json")
    assert "warning: a worker was left out" in done.stderr
    assert json.loads(done.stdout)["pair"] == "toy"


def test_a_pair_named_twice_is_wrong_usage() -> None:
    with pytest.raises(UsageError):
        tune("toy", "--target", "toy")


@pytest.mark.parametrize(
    "how",
    [
        ["--flash-attn", "off", "--cache-type-k", "q8_0"],
        pytest.param([], marks=pytest.mark.slow),
        pytest.param(["--threads-batch", "2"], marks=pytest.mark.slow),
        pytest.param(["--device", "none", "--n-gpu-layers", "auto"], marks=pytest.mark.slow),
        pytest.param(["--n-gpu-layers", "all", "--draft-threads", "1"], marks=pytest.mark.slow),
    ],
)
def test_what_was_tuned_is_what_loading_in_the_same_way_finds(
    how: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune("toy", "-c", "256", "--threads", "1", *how)
    stored = {path.name for path in cache.glob("*.json")}
    assert len(stored) == 2
    monkeypatch.setattr(measured_costs, "profile", pytest.fail)  # it is not measured again
    asked = ["run", "toy", "-c", "256", "--threads", "1", "-n", "1", "-p", "Hi", *how]
    assert CliRunner().invoke(cli, asked, catch_exceptions=False).exit_code == 0
    assert {path.name for path in cache.glob("*.json")} == stored


@pytest.mark.slow
def test_what_was_tuned_for_exact_answers_is_what_they_find(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: 0.0)
    tune("toy", "-c", "256", "--exact")
    monkeypatch.setattr(measured_costs, "profile", pytest.fail)
    asked = ["run", "toy", "-c", "256", "--exact", "-n", "1", "-p", "Hi"]
    assert CliRunner().invoke(cli, asked, catch_exceptions=False).exit_code == 0
    assert list(cache.glob("*.json"))


def loaded(target: Context, draft: Context, name: str = "some pair") -> LoadedPair:
    how = LoadRecord(
        ctx_size=1024, threads=1, draft_threads=1, n_gpu_layers=-1, draft_n_gpu_layers=-1
    )
    return LoadedPair(
        name=name, target=target, drafts={} if draft is None else {DRAFT: draft}, loaded=how
    )


def test_a_pair_is_measured_once(target_context: Context, draft_context: Context) -> None:
    pair = loaded(target_context, draft_context)
    announced: list[int] = []

    def again(*, measure: bool = True) -> Any:
        return measured(
            pair, repeatable=False, measure=measure, announce=lambda: announced.append(1)
        )

    assert again(measure=False) is None
    first = again()
    assert first is not None
    assert first.auto.costs.target.at(0).seconds(4) == pytest.approx(13e-3)
    assert again() is not None
    assert announced == [1]


@pytest.mark.parametrize("filling", [0.0, 10.0])
def test_a_model_too_slow_to_read_a_context_is_expected_to_slow_down_in_it_all_the_same(
    target_context: Context,
    draft_context: Context,
    monkeypatch: pytest.MonkeyPatch,
    filling: float,
) -> None:
    monkeypatch.setattr(profile, "_FILLING", filling)
    monkeypatch.setattr(profile, "TARGET_BUDGET", 60.0)  # a busy machine has time for it, too
    costs = start(target_context, draft_context).auto.costs
    share = target_context.cache_bytes / target_context.n_ctx / target_context.model.weights_bytes
    for n, rows in ((1, 1.0), (8, 4.5)):  # the scripted timings are the same in every context
        slower = costs.target.at(4096).seconds(n) - costs.target.at(0).seconds(n)
        expected = 4096 * share * rows * TARGET_POINTS[1] if filling == 0.0 else 0.0
        assert slower == pytest.approx(expected)


def test_a_device_reads_the_cache_once_for_all_rows(target_context: Context) -> None:
    processor, device = (profile.growth(target_context, on_device=d) for d in (False, True))
    assert processor[1] == device[1] == device[16] > 0
    assert processor[16] == pytest.approx(8.5 * device[16])


@pytest.mark.slow
def test_how_a_target_goes_back_is_part_of_what_it_costs(
    tmp_path: Path, target_context: Context, draft_context: Context
) -> None:
    plain = measured(
        loaded(target_context, draft_context), repeatable=False, measure=True, announce=str
    )
    path = gguf_models.write_random_lfm2(tmp_path / "lfm2.gguf")
    identities, found = [], []
    with Model.load(path) as model:
        for snapshots in (0, 8):
            options = ContextOptions(n_ctx=512, threads=1, snapshots=snapshots)
            with Context(model, options) as context:
                pair = loaded(context, draft_context)
                one = measured(pair, repeatable=False, measure=True, announce=str)
                assert one is not None
                found.append(one.auto.costs.max_rollback)
                identities.append(one.target.identity)
    assert plain is not None
    assert plain.auto.costs.max_rollback is None
    assert "takes_back" not in plain.target.identity
    assert found == [0, 8]
    assert identities[0] != identities[1]


@pytest.mark.slow
def test_costs_of_another_way_to_run_are_kept_apart(
    target_context: Context, draft_context: Context
) -> None:
    pair = loaded(target_context, draft_context)
    seen = []
    others = ({"threads_batch": 4}, {"flash_attn": "off"}, {"cache_type_k": "q8_0"})
    named = ({"device": ("CUDA0",)}, {"device": ("CUDA1",)}, {"rpc": ("a:1",)})
    for where in ({}, *named, *others):
        how = replace(pair, loaded=replace(pair.loaded, **where))
        found = measured(how, repeatable=False, measure=True, announce=lambda: seen.append(1))
        assert found is not None
        assert profile_store().load(found.target.identity) is not None
        assert ("devices" in found.drafts[DRAFT].identity) is False
    assert len(seen) == 7
    usual = {"threads_batch": None, "flash_attn": "auto", "cache_type_k": "f16", "rpc": ()}
    how = replace(pair, loaded=replace(pair.loaded, **usual))
    assert measured(how, repeatable=False, measure=False, announce=str) is not None


@pytest.mark.few(1)
@pytest.mark.parametrize("repeatable", [False, True])
def test_noisy_timings_are_used_and_kept_only_for_the_next_run_to_repeat_this_one(
    target_context: Context,
    draft_context: Context,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    repeatable: bool,
) -> None:
    monkeypatch.setattr(profile, "measure", lambda *_, **__: Timing({1: 1e-3, 2: 1e-3}, spread=2.0))
    found = measured(
        loaded(target_context, draft_context),
        repeatable=repeatable,
        measure=True,
        announce=lambda: None,
    )
    assert found is not None
    assert len(list(cache.glob("*.json"))) == 2 * repeatable
    found.auto.learnt = True
    found.keep()
    assert len(list(cache.glob("*.json"))) == 2 * repeatable


def test_what_a_seeded_run_measures_beside_other_programs_is_measured_again_without_one(
    target_context: Context, draft_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timings may agree among themselves, and be far too high all the same."""
    pair, held = loaded(target_context, draft_context), list[bool]()
    monkeypatch.setattr(Threads, "hold", lambda _self, hold: held.append(hold))
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: True)
    seeded = measured(pair, repeatable=True, measure=True, announce=str)
    assert seeded is not None
    assert held == [True, True]
    assert seeded.doubtful
    again = measured(pair, repeatable=True, measure=True, announce=pytest.fail)
    assert again is not None
    assert again.doubtful  # it decides alike
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    found = measured(pair, repeatable=False, measure=True, announce=pytest.fail)
    assert found is not None
    assert found.again(Cancel())
    assert not start(target_context, draft_context).doubtful


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_draft_far_dearer_than_its_target_is_measured_again(
    target_context: Context,
    draft_context: Context,
    monkeypatch: pytest.MonkeyPatch,
    stopped: int,
) -> None:
    """The program was stopped in both timed passes; such a draft would never be used."""
    really, looks = measured_costs.profile, []

    def disturbed(context: Context, known: dict[str, Any]) -> profile.Profile:
        found = really(context, known)
        looks.append(context)
        if looks.count(draft_context) in range(1, stopped + 1):
            found = replace(found, measured={0: {1: 0.236, 2: 0.264}})
        return found

    monkeypatch.setattr(measured_costs, "profile", disturbed)
    found = start(target_context, draft_context)
    assert len(looks) == 3
    assert found.doubtful is (stopped == 2)
    stored = profile_store().load(found.drafts[DRAFT].identity)
    assert (stored is None) is (stopped == 2)
    assert stored is None or stored.measured[0][1] == 1e-3


def timed(drafted: int, seconds: float, context: int = 0) -> Round:
    """A round of `drafted` tokens, all accepted; verifying took `seconds`, drafting no time."""
    who = DRAFT if drafted else ""
    return round_of(drafted, drafted, seconds=seconds, passes=0, context=context, drafter=who)


def start(target: Context, draft: Context) -> MeasuredPair:
    found = measured(loaded(target, draft), repeatable=False, measure=True, announce=str)
    assert found is not None
    return found


def teach(one: MeasuredPair, drafted: int, seconds: float) -> None:
    """Three stretches of a baseline round and five drafting rounds of `seconds`."""
    for _ in range(3):
        one.auto.observe(timed(0, 20e-3))  # the machine is now half as fast as measured
        for _ in range(5):
            one.auto.observe(timed(drafted, 2 * seconds))


def test_what_rounds_teach_is_kept_but_a_repeatable_answer_goes_by_what_was_measured(
    target_context: Context, draft_context: Context
) -> None:
    found = start(target_context, draft_context)
    found.auto.begin(follow_clock=True)
    teach(found, 3, 20e-3)
    found.keep()
    back = start(target_context, draft_context)
    assert back.auto.costs.target.at(0).seconds(4) == pytest.approx(20e-3)
    assert back.auto.costs.target.at(0).seconds(1) == pytest.approx(10e-3)

    def plans(one: MeasuredPair) -> list[list[float]]:
        one.auto.begin(follow_clock=False)
        shapes = []
        for _ in range(3):
            plan = one.auto.plan(Situation(room=8))
            assert isinstance(plan, StoppingPlan)
            shapes.append([plan._rate, *plan._times])
            one.auto.observe(timed(3, 30e-3))
        return shapes

    # What was learnt in this process or another, before this answer or in it, does not count.
    assert plans(back) == plans(found)
    assert plans(back)[0][5] == pytest.approx(13e-3)


def test_processes_side_by_side_keep_what_each_has_learnt(
    target_context: Context, draft_context: Context
) -> None:
    one, other = (start(target_context, draft_context) for _ in range(2))
    for each, drafted, seconds in ((one, 3, 20e-3), (other, 4, 25e-3)):
        each.auto.begin(follow_clock=True)
        teach(each, drafted, seconds)
        each.keep()
    stored = profile_store().load(one.target.identity)
    assert stored is not None
    assert stored.learned == {0: {4: pytest.approx(20e-3), 5: pytest.approx(25e-3)}}


def test_what_is_measured_anew_meanwhile_stays(
    target_context: Context, draft_context: Context
) -> None:
    found = start(target_context, draft_context)
    found.auto.begin(follow_clock=True)
    found.auto.observe(timed(3, 20e-3))
    anew = profile.Profile(found.target.identity, {0: {1: 5e-3}})
    profile_store().save(anew)  # as `localspec tune` does while a chat runs
    found.keep()
    assert profile_store().load(found.target.identity) == anew


def test_tuned_threads_are_used_unless_others_are_asked_for_or_they_cannot_run_now(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = profile_store()
    known = profile.identity(target_context, threads=measured_costs.ANY_THREADS, draft=False)

    def chosen(asked: int | None) -> int:
        return chosen_threads(target_context, asked, draft=False, store=store)

    store.save(profile.Profile(known, threads=7))
    for processors, threads in ((8, 7), (2, 2)):  # once it runs by `taskset`, for example
        monkeypatch.setattr(
            hardware.os, "sched_getaffinity", lambda _, n=processors: set(range(n)), raising=False
        )
        monkeypatch.setattr(hardware, "processors", lambda: None)
        assert chosen(None) == threads
        assert chosen(3) == 3
    monkeypatch.setattr(hardware, "processors", lambda: 1.5)  # of a container's
    assert chosen(None) == 1


@pytest.mark.slow
def test_what_is_found_beside_other_programs_chooses_no_threads(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sooner(context: Context, sizes: Any, **_: Any) -> Timing:
        slow = 100.0 if context.threads.now > 1 else 1.0
        return Timing({n: slow * TARGET_POINTS[n] for n in dict.fromkeys(sizes)})

    monkeypatch.setattr(tuning, "measure", sooner)
    monkeypatch.setattr(tuning, "default_threads", lambda: 2)
    monkeypatch.setattr(measured_costs, "default_threads", lambda: 2)
    for busy in (itertools.repeat(True), itertools.cycle([False, True])):  # always; only afterwards
        monkeypatch.setattr(tuning, "too_busy", lambda _, busy=busy: next(busy))
        monkeypatch.setattr(tuning, "wait_for_calm", lambda *_: None)
        found = json.loads(tune("toy", "--json", "-c", "256", "--draft", "lookup").stdout)["target"]
        assert (found["threads"], found["by_threads"]) == (2, {})
        assert chosen_threads(target_context, None, draft=False, store=profile_store()) == 2
    monkeypatch.setattr(tuning, "too_busy", lambda _threads: False)
    calm = json.loads(tune("toy", "--json", "-c", "256", "--draft", "lookup").stdout)["target"]
    assert calm["threads"] == 1


def show(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["show", *arguments], catch_exceptions=False)


def test_what_was_measured_is_told_where_a_full_card_leaves_no_room_to_compare(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def full(*_: object, **__: object) -> int:
        asked.append(1)
        raise OutOfMemory("there is no memory for a context", "Lower --ctx-size.")

    monkeypatch.setattr(tuning, "too_busy", lambda _threads: False)
    monkeypatch.setattr(exactness, "longest", full)
    found = json.loads(tune("toy", "--json", "-c", "256", "--draft", "none").stdout)
    assert found["target"]["seconds"]
    assert asked


def test_costs_of_several_cards_are_found_by_their_shares(toy_target: Path, cache: Path) -> None:
    split = {"CUDA0": 4, "CUDA1": 4}
    loaded = LoadRecord(
        ctx_size=256, threads=default_threads(), flash_attn="on", tensor_split=split
    )
    known = {
        **profile.of_file(toy_target, draft=False),
        "threads": default_threads(),
        "n_gpu_layers": 8,
        **measured_costs.unusual(loaded, draft=False),
    }
    profile_store().save(profile.Profile(known, {0: {1: 1.0}}))
    setup = ModelSetup(n_ctx=256, gpu_layers=8, split=tuple(split.items()))
    how = LoadRecord(ctx_size=0, threads=0, flash_attn="on")
    found = partial(stored_profiles, profile_store(), toy_target, how=how, draft=False)
    assert found(setup)
    assert not found(replace(setup, split=()))


def test_a_block_is_expected_to_cost_one_pass_of_its_head() -> None:
    """A pass takes 0.3 T(1) whether it guesses one token or seven."""
    target, head = {0: {1: 1.0, 2: 1.02, 4: 1.08, 8: 1.2, 16: 1.5, 64: 4.0}}, {0: {1: 0.3, 16: 0.3}}
    singly, block = (expected_speed.choices(target, head, block=n) for n in (0, 7))
    assert [one.gamma for one in block] == [4, 5, 7, 7, 7, 7]
    sure = block[-1]
    assert sure.speedup == pytest.approx(sum(0.95**n for n in range(8)) / (0.3 + 1.2))
    assert sure.speedup > 1.5 * singly[-1].speedup
    pays = expected_speed.ExpectedSpeed(2, 2, target[0], 0.3, 1.0, block, None, draft_block=7)
    said, data = expected_speed.lines(pays, ""), expected_speed.data(pays, None, None)
    assert "up to 7 drafted tokens 300.00 ms" in " ".join(said)
    assert data is not None
    assert data["draft_block"] == 7


def test_a_short_draft_of_a_block_is_charged_for_no_more_than_it_guesses() -> None:
    """Where a head's pass grows with its rows, as on CPUs: 0.1 T(1), and 0.02 for each guess."""
    target = {0: {1: 1.0, 2: 1.2, 4: 1.9, 8: 3.3, 16: 6.1}}
    head = {0: {n: 0.06 + 0.02 * n for n in (1, 2, 4, 8, 16, 32)}}
    (half, *_) = expected_speed.choices(target, head, block=15)
    assert half.acceptance == 0.5
    assert half.gamma == 1
    assert half.speedup == pytest.approx(1.5 / (1.2 + 0.12))


def test_what_another_compiler_s_kernels_took_is_not_used(
    toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localspec doctor` advises to build with Clang, as its kernels check drafts faster."""
    keys: list[str] = []
    for named in ("GCC 12.2.0", "Clang 18.1.8", ""):
        monkeypatch.setattr(hardware, "compiler", lambda named=named: named)
        keys.append(json.dumps(profile.of_file(toy_target, draft=False)))
        assert attention.measured_here(profile_store()) == []
        known = attention.key(toy_target, ModelSetup(n_ctx=512), None)
        for way in ("on", "off"):
            profile_store().save(profile.Profile({**known, "attention": way}, {64: {1: 1.0}}))
        assert len(attention.measured_here(profile_store())) == 1
    assert len(set(keys)) == len(keys)


def test_costs_in_memory_and_from_disk_are_kept_apart(
    toy_target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are read from disk in every pass may take a hundred times as long."""
    request = LoadRequest(pair=str(toy_target), draft="lookup", ctx_size=512)
    store, known = profile_store(), attention.key(toy_target, ModelSetup(n_ctx=512), None)
    for way, seconds in (("on", 1.0), ("off", 2.0)):  # as it was chosen where there is room
        store.save(profile.Profile({**known, "attention": way}, {64: {1: seconds}}))
    roomy = load_plan(load.check(request))
    short = replace(roomy, memory=replace(roomy.memory, from_disk=1), unflashed=None)
    plans = [roomy, short]
    for one, seconds in zip(plans, (0.01, 1.0), strict=True):
        monkeypatch.setattr(load, "load_plan", lambda _, one=one: one)
        monkeypatch.setattr(
            measured_costs,
            "profile",
            lambda _, its, seconds=seconds: profile.Profile(its, {0: {1: seconds}}, spread=0.0),
        )
        load_session(request, progress=lambda *_: None, cancel=Cancel()).close()
    found = [expected_speed.expected(toy_target, None, each.memory) for each in plans]
    assert [one and one.tokens_per_second for one in found] == [100, 1]


@pytest.mark.slow
def test_show_says_how_to_measure_and_then_what_was_measured(toy_target: Path) -> None:
    assert "`localspec tune toy` measures the rest" in show("toy").stdout
    assert json.loads(show("toy", "--json").stdout)["profile"] is None
    tuned = json.loads(tune("toy", "--json", "-c", "256").stdout)
    document = json.loads(show("toy", "--json").stdout)["profile"]
    assert document["target_seconds"] == tuned["target"]["seconds"]
    assert document["threads"] == tuned["target"]["threads"]
    assert document["draft_step_s"] == pytest.approx(1e-3)
    assert document["plain_tokens_per_second"] == pytest.approx(100)
    for shown, chosen in zip(document["expected"], tuned["gamma"], strict=True):
        assert shown == chosen | {"tokens_per_second": pytest.approx(100 * chosen["speedup"])}
    text = show("toy").stdout
    assert "10.00 ms a token" in text
    assert "about 100 tokens/s" in text
    assert len([line for line in text.splitlines() if line.endswith("×")]) == 6
    alone = show(str(toy_target), "--draft", "none").stdout
    assert "10.00 ms a token" in alone
    assert "expected" not in alone


@pytest.mark.slow
def test_the_speed_that_is_shown_is_that_of_an_answer_of_usual_length(toy_target: Path) -> None:
    """The speed at an empty context would be higher than that measured over an answer."""
    tune("toy", "--json", "-c", "1024")
    for stored in profile_store().matching(profile.of_file(toy_target, draft=False)):
        deep = {0: {1: 0.01, 4: 0.02}, 512: {1: 0.02, 4: 0.04}}
        profile_store().save(replace(stored, measured=deep))
    assert "15.00 ms a token after 256 tokens" in show("toy").stdout
    assert json.loads(show("toy", "--json").stdout)["profile"]["plain_tokens_per_second"] == (
        pytest.approx(1 / 0.015)
    )


def test_show_quotes_what_must_be_quoted_and_survives_a_damaged_store(
    cache: Path, toy_target: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "my model.gguf"
    odd.symlink_to(toy_target)
    cache.mkdir()
    (cache / "spoilt.json").write_text("[1, 2")
    assert f"localspec tune '{odd}' --draft none" in show(str(odd), "--draft", "none").stdout


def test_what_was_measured_with_other_threads_is_not_what_loading_would_use() -> None:
    tune("toy", "--threads", str(default_threads() + 1), "-c", "256")
    assert "not in full yet: `localspec tune toy` measures the rest" in show("toy").stdout
    tune("toy", "--threads", str(default_threads()), "-c", "256")
    assert "not in full yet" not in show("toy").stdout


def test_tuning_waits_for_a_calm_moment_up_to_a_stated_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    now = iter(range(100))
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(now)))
    others = iter([1.7, 0.9, 0.1, 0.0])
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: next(others))
    tuning.wait_for_calm(lambda step, _share: told.append(step), Cancel())
    assert told == [
        "Other programs keep 1.7 cores busy: waiting 20 s at most",
        "Other programs keep 0.9 cores busy: waiting 20 s at most",
    ]
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: 2.0)
    tuning.wait_for_calm(lambda step, _share: told.append(step), Cancel())
    assert len(told) < 25
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        tuning.wait_for_calm(lambda *_: None, cancel)


def test_what_cannot_be_loaded_is_said_before_anybody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: 2.0)
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        tune("none.gguf")


def test_a_worse_measurement_does_not_replace_a_better_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_with(spread: float, seconds: float) -> str:
        def scripted(_context: Context, sizes: Any, **_how: Any) -> Timing:
            return Timing(dict.fromkeys(sorted(set(sizes)), seconds), spread)

        for room in (profile, tuning):
            monkeypatch.setattr(room, "measure", scripted)
        return str(tune("toy", "-c", "256", "--threads", "1").stdout)

    def stored() -> set[float]:
        found = [json.loads(path.read_text())["measured"]["0"]["1"] for path in cache.glob("*")]
        return set(found)

    said = measured_with(5.03, 5e-3)  # even if nothing better is stored
    assert "Timings varied by 503 %" in said
    assert "This is too uncertain to keep: tune again in a calm moment." in said
    assert "cache folder" not in said
    assert stored() == set()
    measured_with(0.1, 4e-3)
    assert stored() == {4e-3}
    assert "The earlier measurement is better: it is kept" in measured_with(1.0, 3e-3)
    assert stored() == {4e-3}
    measured_with(0.2, 2e-3)  # steady enough: the machine may have changed
    assert stored() == {2e-3}
    monkeypatch.setattr(tuning, "too_busy", lambda _threads: True)
    monkeypatch.setattr(tuning, "wait_for_calm", lambda *_: None)
    said = measured_with(0.1, 9e-3)
    assert stored() == {2e-3}
    assert "Other programs kept cores busy at the end." in said
    assert "      2.00" in said  # what is in force


def test_timings_that_vary_are_taken_once_more_and_the_steadier_count(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    spreads = iter([5.0, 0.1])

    def timed(_context: Context, **_how: Any) -> Any:
        spread = next(spreads)
        table = {0: {1: spread, 4: 2 * spread}}
        return table, Timing(table[0], spread)

    monkeypatch.setattr(tuning, "wait_for_calm", lambda *_: waited.append(1))
    monkeypatch.setattr(tuning, "measure_by_context", timed)
    found = json.loads(
        tune("toy", "--json", "-c", "256", "--draft", "none", "--threads", "1").stdout
    )
    assert (found["target"]["spread"], found["target"]["stored"]) == (0.1, True)
    assert found["target"]["seconds"]["1"] == 0.1
    assert len(waited) == 2  # before the first and before the second


@pytest.mark.slow
def test_a_vague_table_of_before_stands_in_nobodys_way_and_is_measured_again_when_idle(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = loaded(target_context, draft_context)
    store = profile_store()

    def known() -> profile.Profile:
        found = store.load(measured_costs.identity_of(target_context, pair.loaded, draft=False))
        assert found is not None
        return found

    assert measured(pair, repeatable=False, measure=True, announce=str) is not None
    store.save(replace(known(), measured={0: {1: 1.0, 4: 1.0}}, spread=5.03))
    seeded = measured(pair, repeatable=True, measure=True, announce=str)
    assert seeded is not None
    assert not seeded.again(Cancel())  # the next run has to decide by the same
    found = measured(pair, repeatable=False, measure=True, announce=pytest.fail)
    assert found is not None
    assert found.again(Cancel())
    assert known().spread == 0.0
    assert known().measured[0][1] == TARGET_POINTS[1]
    how = ("-c", "256", "--draft", "none", "--threads", "1")
    tune(*how)
    for path in cache.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"spread": 5.03}))
    vague = Timing({1: 3e-3, 4: 3e-3}, 2.0)
    monkeypatch.setattr(tuning, "measure_by_context", lambda *_, **__: ({0: vague.points}, vague))
    told = json.loads(tune("toy", "--json", *how).stdout)["target"]
    assert (told["stored"], told["kept"], told["noisy"]) == (False, False, True)
    assert told["seconds"]["1"] == 3e-3  # the new time: the stored one is no better


def test_what_is_measured_beside_other_programs_is_not_kept(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    monkeypatch.setattr(Threads, "hold", lambda _self, hold: held.append(hold))
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: True)
    pair = loaded(target_context, draft_context)
    assert measured(pair, repeatable=False, measure=True, announce=str) is not None
    assert held == [False, False]  # fewer threads meanwhile
    assert not list(cache.glob("*"))
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    assert measured(pair, repeatable=False, measure=True, announce=str) is not None
    assert held[2:] == [True, True]
    assert len(list(cache.glob("*"))) == 2


def test_what_is_measured_later_takes_the_place_of_what_lists_expect(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = 4.0

    def scripted(_context: Context, sizes: Any, **_how: Any) -> Timing:
        return Timing({n: took * TARGET_POINTS.get(n, 5e-3) for n in dict.fromkeys(sizes)})

    monkeypatch.setattr(profile, "measure", scripted)
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: True)
    options = LoadRequest(pair="toy", ctx_size=256, threads=1)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    with closing(session):
        disturbed = baseline_s()
        assert disturbed >= 4 * TARGET_POINTS[1]
        assert "a rough estimate: the machine was busy" in listed()
        took = 1.0
        session.rest(Cancel())
        assert baseline_s() == disturbed  # it is as busy as before
        monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
        session.rest(Cancel())
        assert baseline_s() == pytest.approx(disturbed / 4)
        assert "rough" not in listed()


def listed() -> str:
    """What `localspec list` says."""
    done = CliRunner().invoke(cli, ["list", "--no-scan"], catch_exceptions=False)
    return str(done.stdout)


def baseline_s() -> float:
    """Seconds per token that lists assume for the toy."""
    known = ranking.recall()
    assert known is not None
    return known.pairs["toy"].times[1]


def test_sizes_that_there_was_no_time_for_are_timed_in_idle_moments(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured_now(target_context, draft_context)
    stops = {12}

    def timed(_context: Context, asked: Sequence[int], **_how: Any) -> Timing:
        if stops & {*asked}:
            raise Cancelled
        return Timing({n: 1e-3 * (9 + n) for n in asked})

    monkeypatch.setattr(profile, "measure", timed)
    clock = itertools.count(0.0, 2.0)
    found.extend(Cancel(), clock=lambda: next(clock))
    first = stored(found).added
    assert 0 < len(first) < 6  # those of ten seconds
    with pytest.raises(Cancelled):
        found.extend(Cancel())
    second = stored(found).added
    assert first.items() < second.items()  # what was timed before is stored
    for _ in range(3):
        found.auto.costs.target.vote({4: 0.1})
    found.auto.learnt = True
    found.keep()
    stops.clear()
    found.extend(Cancel())
    now = stored(found)
    assert now.added.keys() == {*profile.TARGET_SIZES} - TARGET_POINTS.keys()
    assert now.learned[0].keys() == {4}  # what rounds have shown is still there
    assert now.measured == found.target.measured
    monkeypatch.setattr(profile, "measure", pytest.fail)
    found.extend(Cancel())  # once


def test_sizes_are_added_to_the_table_that_is_stored_now(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the load was disturbed: four times too slow, and not stored."""
    slow = 4.0

    def timed(_context: Context, asked: Sequence[int], **_how: Any) -> Timing:
        return Timing({n: slow * 1e-3 * (9 + n) for n in asked if n < 10 or len(asked) == 4})

    monkeypatch.setattr(profile, "measure", timed)
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: True)
    found = measured_now(target_context, draft_context)
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    slow = 1.0
    found.again(Cancel())
    slow = 2.0  # the machine's speed at another moment
    found.extend(Cancel())
    points = stored(found).best[0]
    assert points.keys() == {*profile.TARGET_SIZES}
    assert points == pytest.approx({n: 1e-3 * (9 + n) for n in points})


def test_sizes_of_another_process_stay_and_its_new_table_ends_the_timing(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured_now(target_context, draft_context)

    def timed(_context: Context, asked: Sequence[int], **_how: Any) -> Timing:
        now = stored(found)
        if 16 in asked:
            found.store.save(replace(now, added={**now.added, 63: 0.07}))
        if 12 in asked:
            found.store.save(replace(now, measured={0: {1: 1.0, 2: 1.1}}, added={}))
        return Timing({n: 1e-3 * (9 + n) for n in asked})

    monkeypatch.setattr(profile, "measure", timed)
    seen: list[dict[int, float]] = []
    save = found.store.save
    monkeypatch.setattr(
        profile.ProfileStore, "save", lambda _, one: seen.append(dict(one.added)) or save(one)
    )
    found.extend(Cancel())
    assert seen[1].keys() == {16, 63}
    assert stored(found).measured == {0: {1: 1.0, 2: 1.1}}
    assert not stored(found).added  # 12 and what follows belong to the table of before


def test_a_disturbed_size_is_timed_once_and_one_that_takes_too_long_never(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        profile, "measure", lambda _, asked, **_how: Timing({n: 0.1 * n for n in asked if n < 10})
    )
    found = measured_now(target_context, draft_context)
    asked_of: list[int] = []

    def timed(_context: Context, asked: Sequence[int], **_how: Any) -> Timing:
        asked_of.append(asked[1])
        return Timing({n: 0.1 * n for n in asked}, spread=9.0 if 12 in asked else 0.0)

    monkeypatch.setattr(profile, "measure", timed)
    for _ in range(2):
        found.extend(Cancel(), clock=lambda: 0.0)
    assert sorted(asked_of) == [10, 11, 12, 13, 14, 15, 16, 17, 32, 48]  # 63 take more than 10 s
    assert stored(found).added.keys() == {*asked_of} - {12}


@pytest.mark.parametrize("kind", ["gemma3", "mamba"])
@pytest.mark.parametrize("busy", [False, True])
def test_what_is_measured_in_an_idle_moment_is_cut_back_as_if_it_had_not_been(
    draft_context: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *,
    busy: bool,
) -> None:
    """A window's rows and a state's marks: the next prompt would have to read all again."""

    def timed(context: Context, asked: Sequence[int], **how: Any) -> Timing:
        MEASURE(context, asked, **how)
        return Timing({n: 1e-3 * (9 + n) for n in asked})

    path = gguf_models.GENERATORS[kind](tmp_path / "m.gguf")
    options = ContextOptions(n_ctx=512, threads=1, flash_attention=True)
    with Model.load(path) as model, Context(model, options) as target:
        monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: busy)
        found = measured_now(target, draft_context)
        monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
        target.decode([*range(300, 316)], 0)
        target.mark(lasting=1)
        target.decode([*range(316, 400)], 0)
        with monkeypatch.context() as patched:
            patched.setattr(profile, "measure", timed)
            found.again(Cancel())
            found.extend(Cancel())
        assert target.tokens == [*range(300, 400)]
        assert target.rewind(40) == (16 if kind == "mamba" else 40)
        if busy:
            assert target in found.unkept
            target.clear()
            found.again(Cancel())
            assert target not in found.unkept
        else:
            assert stored(found).added


def measured_now(target: Context, draft: Context) -> MeasuredPair:
    """A loaded pair with its costs, measured for the first time."""
    found = measured(loaded(target, draft), repeatable=False, measure=True, announce=str)
    assert found is not None
    return found


def stored(found: MeasuredPair) -> profile.Profile:
    """The profile of the target, as it is stored now."""
    known = found.store.load(found.target.identity)
    assert known is not None
    return known


def test_what_was_disturbed_is_measured_again_in_an_idle_moment(
    target_context: Context, draft_context: Context, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: True)
    found = measured_now(target_context, draft_context)
    target_context.clear()
    before = target_context.decode([1, 2, 3], 1).copy()
    assert not found.again(Cancel())
    assert not list(cache.glob("*"))  # it is as busy as before
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    cancel = Cancel()

    def interrupted(context: Context, _known: Any) -> Any:
        cancel.set()
        context.decode([5] * 200, 0)

    with monkeypatch.context() as patched:
        patched.setattr(measured_costs, "profile", interrupted)
        with pytest.raises(Cancelled):
            found.again(cancel)
    assert target_context.tokens == [1, 2, 3]
    assert found.again(Cancel())
    assert len(list(cache.glob("*"))) == 2
    assert target_context.tokens == [1, 2, 3]
    target_context.truncate(2)
    assert (target_context.decode([3], 1) == before).all()  # its cache is there again
    monkeypatch.setattr(measured_costs, "profile", pytest.fail)
    assert not found.again(Cancel())  # once
