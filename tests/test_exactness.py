"""`--exact`: settings under which passes of all sizes give the same bits, where possible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.length import profile
from localspec.engine.length.profile import Profile, ProfileStore, Timing
from localspec.engine.llama import Context
from localspec.engine.llama.thread_controller import ThreadController
from localspec.errors import UsageError
from localspec.loading import load
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import attention, exactness, exactness_cost, tuning
from localspec.loading.measurements.measured_costs import profile_store
from localspec.loading.planning import LoadPlan, load_plan
from localspec.loading.results import ExactnessCost, exact_words
from localspec.pairs.memory.free import FreeMemory
from localspec.pairs.memory.need import MemoryNeed, ModelSetup
from localspec.pairs.memory.placement import MemoryPlan

from .support.gguf_models import write_random_llama

DEPTH = 300  # more than 256 cells: several threads would share a single token's attention


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    for room in (exactness, exactness_cost):  # however busy the machine is
        monkeypatch.setattr(room, "_SECONDS", 1e6)
    return tmp_path


def loaded(target: Path, **how: Any) -> Iterator[tuple[Context, Any]]:
    request = LoadRequest(pair=str(target), draft="none", gamma=0, ctx_size=512, **how)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        yield session.pair.target, session
    finally:
        session.close()


def unequal(target: Context, most: int = 8) -> list[int]:
    """The sizes of passes whose logits differ in any bit from single tokens', on a greedy text."""
    text = target.model.tokenize(60 * "Once upon a time. ", add_special=True, parse_special=False)
    target.clear()
    target.decode(text[:DEPTH], 0)
    tokens, singles = [text[DEPTH]], []
    for _ in range(most):
        singles.append(target.decode(tokens[-1:], 1)[0].copy())
        tokens.append(int(singles[-1].argmax()))
    found = []
    for n in range(2, most + 1):
        target.truncate(DEPTH)
        if not np.array_equal(target.decode(tokens[:n], n), singles[:n]):
            found.append(n)
    return found


@pytest.mark.slow
def test_passes_of_every_size_give_the_same_bits_and_else_not(toy_target: Path) -> None:
    for target, session in loaded(toy_target, exact=True):
        assert unequal(target) == []
        assert session.pair.loaded.exact == 16
        assert not session.notices
    for target, session in loaded(toy_target, flash_attn="on", threads=2):
        assert unequal(target, 4) == [2, 3, 4]
        assert session.pair.loaded.exact is None


@pytest.mark.slow
def test_where_it_cannot_be_had_one_line_says_so(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "f16.gguf", type="f16")
    for target, session in loaded(path, exact=True):
        notices = [each for each in session.notices if "--exact" in each]
        if session.pair.loaded.exact == 1:
            assert unequal(target, 2) == [2]
            assert len(notices) == 1
            assert "is not possible" in notices[0]
        else:  # a processor whose kernels are alike
            assert not notices


def test_several_threads_are_tried_as_answers_use_them_later(
    toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other programs run a context uses fewer threads, whose single tokens are alike."""
    monkeypatch.setattr(ThreadController, "poll", lambda _controller: 1)
    for _, session in loaded(toy_target, exact=True, threads=2):
        assert session.pair.loaded.exact == 1
        assert "--threads 2 alone may cause that" in session.notices[0]


def test_a_device_that_gives_other_bits_every_time_ends_nothing(
    target_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, decode = np.random.default_rng(0), Context.decode
    monkeypatch.setattr(Context, "decode", lambda *asked: decode(*asked) + drawn.random())
    store, announced = ProfileStore(tmp_path), []
    for _ in range(2):
        found = exactness.longest(
            target_context, {"use": "exact"}, store=store, announce=lambda: announced.append(1)
        )
        assert found == 1
    assert announced == [1]
    store.save(Profile({"use": "exact"}, {}))  # damaged
    assert exactness.stored({"use": "exact"}, store) is None


@pytest.mark.parametrize(("busy", "kept"), [(True, False), (False, True)])
def test_what_a_busy_machine_had_no_time_for_is_not_kept(
    target_context: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    busy: bool,
    kept: bool,
) -> None:
    monkeypatch.setattr(exactness, "_SECONDS", -1.0)  # no size beyond the first is tried in time
    monkeypatch.setattr(exactness, "too_busy", lambda _threads: busy)
    store = ProfileStore(tmp_path)
    found = exactness.longest(target_context, {"use": "exact"}, store=store, announce=lambda: None)
    assert found == 1
    assert (exactness.stored({"use": "exact"}, store) == 1) is kept


def run(*arguments: str) -> Any:
    asked = ["run", "-n", "48", "--temp", "0", "--json", "-p", "Once upon a time", *arguments]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_drafts_keep_to_the_sizes_that_are_alike(cache: Path) -> None:
    baseline, drafted = (run("toy", "--exact", "--gamma", gamma) for gamma in ("0", "40"))
    assert drafted["tokens"] == baseline["tokens"]
    assert drafted["settings"]["exact"] == baseline["settings"]["exact"] == 16
    assert max(done["drafted"] for done in drafted["rounds"]) == 15
    (trial,) = (path for path in cache.rglob("*.json") if '"exact"' in path.read_text())
    trial.write_text(trial.read_text().replace('"16"', '"3"').replace('"15"', '"2"'))
    assert "--exact     passes of up to 14" in _shown()


def _shown() -> str:
    return CliRunner().invoke(cli, ["show", "toy", "--no-scan"], catch_exceptions=False).stdout


def test_show_says_what_is_known(toy_target: Path) -> None:
    assert "--exact     not tried yet on this machine; `localspec tune toy`" in _shown()


def planned(setup: ModelSetup) -> MemoryPlan:
    """A plan with this setup of the target."""
    nothing, free = MemoryNeed(0, 0, 0, 0, 0, 0), FreeMemory(0)
    return MemoryPlan(setup, (), nothing, (), free, free)


def from_disk(plan: LoadPlan) -> LoadPlan:
    """The same plan where memory is short."""
    return replace(plan, memory=replace(plan.memory, from_disk=1))


USUAL = {1: 0.010, 2: 0.011, 4: 0.013, 8: 0.018}
SETTLED = exactness.settled(LoadRequest(exact=True))


def keep(
    known: dict[str, Any],
    longest: int,
    exact: dict[int, float],
    usual: dict[int, float] = USUAL,
) -> ExactnessCost | None:
    """Store a trial as `tune` does; return the cost derived from it."""
    store = profile_store()
    store.save(Profile(known, {288: dict.fromkeys(range(1, longest + 1), 0.01)}))
    for manner, points in (("usual", usual), ("exact", exact)):
        store.save(Profile({**known, "manner": manner}, {288: points}))
    return exactness_cost.stored(known, store)


@pytest.mark.parametrize(
    ("longest", "slower", "free"),
    [(16, 1.0, True), (16, 1.02, True), (16, 1.05, False), (2, 1.0, False), (16, 0.9, True)],
)
def test_it_is_free_where_neither_single_tokens_nor_copies_are_slower(
    longest: int, slower: float, *, free: bool
) -> None:
    cost = keep({"use": "exact"}, longest, {n: slower * s for n, s in USUAL.items()})
    assert cost is not None
    assert cost.free is free
    shares = {"plain": cost.baseline, "copying": cost.copying}
    assert cost.document() == shares | {"deeper": cost.deeper}
    assert cost.baseline == pytest.approx(max(0.0, 1 - 1 / slower))
    assert (cost.copying > 0.3) is (longest == 2)  # a single token is drafted at a time
    said = exact_words(longest, cost, "tune")
    assert ("it costs at most 3 % of the speed, and is used" in said) is free
    assert ("of the speed without drafting" in said) is not free


@pytest.mark.parametrize(("off", "free"), [(2.0, True), (0.8, False)])
def test_it_is_not_free_where_the_usual_settings_do_without_flash_attention(
    toy_target: Path, off: float, *, free: bool
) -> None:
    """After few tokens, where its cost is timed, flash attention may be as fast all the same."""
    store, setup = profile_store(), ModelSetup(n_ctx=512)
    for n_ctx, factor in ((4096, off), (512, 1.0)):  # in a short context both are alike
        known = attention.key(toy_target, replace(setup, n_ctx=n_ctx), None)
        for way, seconds in (("on", 1.0), ("off", factor)):
            store.save(Profile({**known, "attention": way}, {known["depth"]: {1: seconds}}))
    cost = keep(exactness.key(toy_target, setup, SETTLED, from_disk=False), 16, USUAL)
    assert cost == ExactnessCost(0.0, 0.0, deeper=not free)
    assert cost.free is free
    assert ("in long contexts" in exact_words(16, cost, "tune")) is not free
    usual = LoadRequest()
    chosen = exactness_cost.chosen(usual, toy_target, planned(setup), store)
    assert chosen == (SETTLED if free else usual)


def test_what_it_costs_is_said_where_it_was_asked_for(toy_target: Path) -> None:
    asked = LoadRequest(pair=str(toy_target), draft="none", gamma=0, ctx_size=512, exact=True)
    known = exactness.key(toy_target, ModelSetup(n_ctx=512), SETTLED, from_disk=False)
    for slower, told in ((1.0, 0), (1.25, 1)):
        keep(known, 16, {n: slower * seconds for n, seconds in USUAL.items()})
        session = load_session(asked, progress=lambda *_: None, cancel=Cancel())
        with closing(session):
            costs = [each for each in session.notices if "it costs 20 % of the speed" in each]
            assert len(costs) == told
            assert session.equal_passes == 16


def test_short_passes_are_not_free_where_longer_ones_cost_nothing_more() -> None:
    flat = dict.fromkeys((1, 2, 4, 8), 0.01)
    cost = keep({"use": "exact"}, 8, flat, usual=flat)
    assert cost is not None
    assert (cost.baseline, cost.free) == (0, False)
    assert cost.copying == pytest.approx(1 - (1 - 0.9**8) / (1 - 0.9**64), abs=0.02)


def test_it_costs_nothing_that_is_known_before_it_was_timed() -> None:
    store = profile_store()
    assert exactness_cost.stored({"use": "exact"}, store) is None
    assert keep({"use": "exact"}, 1, USUAL) is None  # it is not possible
    assert "not tried yet" in exact_words(None, None, "tune")
    assert "is not possible" in exact_words(1, None, "tune")
    assert exact_words(16, None, "tune").endswith("tune says what that costs")


def test_the_plan_chooses_it_where_it_is_free_and_nobody_asked_for_other_settings(
    toy_target: Path,
) -> None:
    setup = ModelSetup(n_ctx=512)
    known = exactness.key(toy_target, setup, SETTLED, from_disk=False)

    def chosen(**how: Any) -> LoadRequest:
        request, store = LoadRequest(**how), profile_store()
        return exactness_cost.chosen(request, toy_target, planned(setup), store)

    assert chosen() == LoadRequest()
    keep(known, 16, {n: 1.3 * seconds for n, seconds in USUAL.items()})
    assert chosen() == LoadRequest()
    keep(known, 16, USUAL)
    assert chosen() == SETTLED
    others = ({"threads": 2}, {"threads_batch": 2}, {"flash_attn": "off"})
    for how in (*others, {"exact": True}, {"exact": False}):
        assert chosen(**how) == LoadRequest(**how)


def test_what_was_found_on_one_device_is_not_used_on_another(toy_target: Path) -> None:
    def known(split: tuple[tuple[str, int], ...] = (), **how: Any) -> str:
        setup = ModelSetup(n_ctx=512, gpu_layers=-1, split=split)
        options = exactness.settled(LoadRequest(exact=True, **how))
        return json.dumps(exactness.key(toy_target, setup, options, from_disk=False))

    both = (("CUDA0", 5), ("CUDA1", 4))
    ways = [
        known(),
        known(device=("CUDA0",)),
        known(device=("CUDA1",)),
        known(rpc=("10.0.0.2:50052",)),
        known(rpc=("10.0.0.3:50052",)),
        known(both),
        known(both, split_mode="row"),
    ]
    assert len(set(ways)) == len(ways)
    assert known(both) == known((("CUDA0", 6), ("CUDA1", 5)))  # free memory varies


def test_what_was_found_in_a_short_context_is_not_used_in_a_longer_one(toy_target: Path) -> None:
    def trial(n_ctx: int) -> dict[str, Any]:
        return exactness.key(toy_target, ModelSetup(n_ctx=n_ctx), SETTLED, from_disk=False)

    assert trial(64) != trial(128) != trial(512) == trial(4096)
    assert "depth" not in trial(512)  # earlier versions stored it so


def test_weights_that_stay_on_disk_are_tried_by_themselves(
    toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep the layout of the file, which other kernels multiply."""
    keep(exactness.key(toy_target, ModelSetup(n_ctx=512), SETTLED, from_disk=False), 5, USUAL)
    for _, session in loaded(toy_target, exact=True):
        assert session.pair.loaded.exact == 5
        assert not session.pair.loaded.from_disk
    monkeypatch.setattr(load, "load_plan", lambda checked: from_disk(load_plan(checked)))
    monkeypatch.setattr(exactness, "_alike", lambda _target: ({1: 0.1, 2: 0.1}, True))
    for _, session in loaded(toy_target, exact=True):
        assert session.pair.loaded.exact == 2
        assert session.pair.loaded.from_disk
        assert "passes of up to 2 tokens" in session.pair.exact_note
    keep(exactness.key(toy_target, ModelSetup(n_ctx=512), SETTLED, from_disk=False), 16, USUAL)
    for _, session in loaded(toy_target):  # what costs nothing in memory is not chosen here
        assert session.pair.loaded.exact is None


@pytest.mark.slow
def test_tune_says_what_it_costs_and_what_is_free_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Timing({1: 0.01, 2: 0.011, 4: 0.013, 8: 0.017})
    for room in (tuning, attention, profile):
        monkeypatch.setattr(room, "measure", lambda *_, **__: quiet)
    monkeypatch.setattr(tuning, "busy_cores", lambda _seconds: 0.0)
    monkeypatch.setattr(tuning, "too_busy", lambda _threads: False)
    tuned = CliRunner().invoke(cli, ["tune", "toy", "--no-scan"], catch_exceptions=False).stdout
    assert "--exact: passes of up to 16 tokens give equal bits; it costs at most 3 %" in tuned
    assert "--exact     passes of up to 16 tokens give equal bits; it costs at most 3 %" in _shown()
    asked = ["run", "toy", "-n", "24", "--temp", "0", "--json", "-p", "Once upon a time"]
    baseline, drafted = (
        json.loads(CliRunner().invoke(cli, [*asked, "--gamma", gamma]).stdout)
        for gamma in ("0", "40")
    )
    for found in (baseline, drafted):
        assert (found["settings"]["exact"], found["settings"]["exact_by_plan"]) == (16, True)
    assert drafted["tokens"] == baseline["tokens"]
    assert max(done["drafted"] for done in drafted["rounds"]) <= 15
    own = json.loads(CliRunner().invoke(cli, [*asked, "--threads", "1"]).stdout)
    assert own["settings"]["exact"] is None


def test_without_flash_attention_it_is_wrong_usage(toy_target: Path) -> None:
    with pytest.raises(UsageError, match="needs flash attention"):
        run("--target", str(toy_target), "--exact", "--flash-attn", "off")
