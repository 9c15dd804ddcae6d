"""Whether a target gets flash attention: both ways are timed once, and the choice is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from localspec.cli.machine import doctor
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import Profile, ProfileStore, Timing, fill, measure
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.errors import Cancelled
from localspec.loading.load import check
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import attention
from localspec.loading.measurements.attention import (
    QUICK,
    THOROUGH,
    AttentionTiming,
    choose,
    key,
    measured_here,
    stored,
)
from localspec.loading.measurements.measured_costs import profile_store
from localspec.loading.planning import load_plan
from localspec.pairs.memory.need import ModelSetup
from localspec.pairs.memory.placement import PROGRAM
from tests.support.gguf_models import (
    write_random_gemma3,
    write_random_lfm2,
    write_random_qwen35,
)

SETUP = ModelSetup(n_ctx=1024)


@pytest.fixture(scope="module")
def model(toy_target: Path) -> Iterator[Model]:
    with Model.load(toy_target) as found:
        yield found


def scripted(monkeypatch: pytest.MonkeyPatch, on: float, off: float) -> list[tuple[int, ...]]:
    """Script the timings: a pass takes `on` seconds with flash attention and `off` without."""
    asked: list[tuple[int, ...]] = []

    def measure(_context: Any, sizes: tuple[int, ...], **_how: Any) -> Timing:
        asked.append(sizes)
        seconds = on if len(asked) % 2 else off  # turn by turn
        disturbed = 9.0 if len(asked) == 3 else 1.0
        return Timing(dict.fromkeys(sizes, disturbed * seconds))

    monkeypatch.setattr(attention, "measure", measure)
    monkeypatch.setattr(attention, "too_busy", lambda _threads: False)
    return asked


def choice(model: Model, store: ProfileStore, seconds: float = QUICK, **how: Any) -> Any:
    options = ContextOptions(n_ctx=SETUP.n_ctx, threads=1)
    known = key(model.path, SETUP, 1)
    how = {"store": store, "seconds": seconds, "cancel": Cancel(), "announce": str} | how
    how = {"repeatable": False} | how
    return choose(model, options, known, **how)


@pytest.mark.parametrize(("off", "flash"), [(0.5, False), (0.97, True), (2.0, True)])
def test_the_faster_way_is_chosen_and_the_default_where_both_are_alike(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, flash: bool
) -> None:
    store = ProfileStore(tmp_path)
    asked = scripted(monkeypatch, on=1.0, off=off)
    found = choice(model, store)
    assert found == AttentionTiming(flash, 992, pytest.approx(off if flash else 1 / off))
    assert len(asked) == 2 * 3
    assert choice(model, store) == stored(key(model.path, SETUP, 1), store) == found
    assert len(asked) == 6  # what is stored is not measured again
    scripted(monkeypatch, on=1.0, off=1 / off)
    assert choice(model, store, THOROUGH).flash == (off != 2.0)  # a thorough one is


@pytest.mark.parametrize("table", [{}, {64: {1: 1.0}, 992: {1: 1.0}}])
def test_a_damaged_measurement_counts_as_none(
    model: Model, tmp_path: Path, table: dict[int, dict[int, float]]
) -> None:
    store, known = ProfileStore(tmp_path), key(model.path, SETUP, 1)
    for way in ("on", "off"):
        store.save(Profile({**known, "attention": way}, table))
    assert stored(known, store) is None


def test_a_turn_in_which_the_program_was_stopped_counts_for_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, on=1.0, off=0.5)
    timed, calls = attention.measure, iter(range(100))

    def measure(*given: Any, **how: Any) -> Timing:
        found = timed(*given, **how)
        return found if next(calls) != 1 else Timing({1: found.points[1]})

    monkeypatch.setattr(attention, "measure", measure)
    found = choice(model, ProfileStore(tmp_path))
    assert found == AttentionTiming(False, 992, pytest.approx(2.0))
    assert next(calls) == 2 * 4


@pytest.mark.slow
def test_a_pass_behind_copies_takes_what_one_behind_a_text_takes(model: Model) -> None:
    """Copies fill as many cells as a text that was read, so the same passes follow."""
    options = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    with (
        Context(model, options) as empty,
        Context(model, options) as read,
        Context(model, replace(options, copies=True)) as copied,
    ):
        assert fill(read, 960)
        assert fill(copied, 32)
        assert copied.repeat(960)
        assert len(copied.tokens) == 32
        least = [math.inf] * 3
        for turn in range(200):  # while other programs run, few turns are undisturbed
            least = [
                min(pair) for pair in zip(least, map(seconds, (empty, read, copied)), strict=True)
            ]
            before, behind, behind_copies = least
            if turn >= 24 and behind > 2 * before and 0.7 < behind_copies / behind < 1.4:
                break
        assert behind > 2 * before  # the control: a longer text costs more
        assert 0.7 < behind_copies / behind < 1.4
        assert not read.repeat(1000)  # not made for that
        assert not read.tokens


def seconds(context: Context) -> float:
    return measure(context, (4,), budget=1.0).points.get(4, math.inf)


@pytest.mark.few(1)
@pytest.mark.parametrize("write", [write_random_gemma3, write_random_lfm2, write_random_qwen35])
def test_it_is_measured_with_a_window_or_a_recurrent_state_too(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "too_busy", lambda _threads: False)
    with Model.load(write(tmp_path / "model.gguf")) as model:
        assert choice(model, ProfileStore(tmp_path), THOROUGH) is not None


def test_on_a_busy_machine_it_ends_in_time_and_keeps_nothing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "fill", lambda *_, **__: False)
    scripted(monkeypatch, on=1.0, off=0.5)
    assert choice(model, ProfileStore(tmp_path)) is None
    assert not list(tmp_path.iterdir())


def test_beside_other_programs_nothing_is_measured_unless_somebody_waits(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, on=1.0, off=0.5)
    monkeypatch.setattr(attention, "too_busy", lambda _threads: True)
    assert choice(model, ProfileStore(tmp_path)) is None
    assert not asked
    found = choice(model, ProfileStore(tmp_path), THOROUGH)
    assert found is not None
    assert choice(model, ProfileStore(tmp_path)) == found  # what is known is known
    scripted(monkeypatch, on=0.5, off=1.0)
    monkeypatch.setattr(attention, "too_busy", lambda _threads: True)
    assert choice(model, ProfileStore(tmp_path), THOROUGH) == found  # and not made worse


def test_doctor_tells_what_was_found_of_the_models_that_were_loaded_here(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    store = profile_store()
    assert doctor._attention_lines() == []
    scripted(monkeypatch, on=1.0, off=0.5)
    assert choice(model, store) == measured_here(store)[0]
    said = "1 of 1 ways to run models that were measured do without flash attention"
    assert doctor._attention_lines() == [f"attention   {said}, up to 2.0× as fast"]


def test_with_a_seed_the_next_run_has_the_same_attention(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, on=1.0, off=0.5)
    monkeypatch.setattr(attention, "too_busy", lambda _threads: True)
    found = choice(model, ProfileStore(tmp_path), repeatable=True)
    assert found is not None
    scripted(monkeypatch, on=0.5, off=1.0)  # and calm
    assert choice(model, ProfileStore(tmp_path), repeatable=True) == found


def test_it_can_be_stopped(model: Model, tmp_path: Path) -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled):
        choice(model, ProfileStore(tmp_path), THOROUGH, cancel=cancel, announce=cancel.set)


def test_no_choice_where_values_are_quantised_or_memory_is_short(
    toy_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = LoadRequest(pair=str(toy_target), draft="none", ctx_size=1024)
    more = load_plan(check(request)).unflashed
    assert more is not None
    assert more > 0
    quantised = LoadRequest(pair=str(toy_target), draft="none", ctx_size=1024, cache_type_v="q8_0")
    assert load_plan(check(quantised)).unflashed is None
    taken = load_plan(check(request)).memory.host
    monkeypatch.setattr("localspec.machine.available", lambda: PROGRAM + taken + more // 2)
    assert load_plan(check(request)).unflashed is None


def run(*arguments: str) -> Any:
    asked = ["run", "-n", "4", "--threads", "1", "--seed", "1", "--json", "-p", "Hi", *arguments]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)["settings"]["flash_attn"]


@pytest.mark.slow
def test_the_choice_holds_for_both_models_and_is_told(
    toy_target: Path, toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    pair = ["--target", str(toy_target), "--draft", str(toy_draft)]
    scripted(monkeypatch, on=1.0, off=0.5)
    assert run(*pair, "--flash-attn", "on") == "on"
    assert not _attention(tmp_path)
    assert run(*pair) == "off"
    assert len(_attention(tmp_path)) == 2
    costs = [json.loads(each.read_text())["identity"] for each in tmp_path.glob("costs/*")]
    uses = {each["use"] for each in costs if each.get("flash_attn") == "off"}
    assert uses == {"target", "draft"}
    monkeypatch.setattr(attention, "measure", pytest.fail)
    assert run(*pair) == "off"


def _attention(cache: Path) -> list[Path]:
    return [each for each in cache.glob("costs/*") if '"attention"' in each.read_text()]
