"""Speed over the last second, and what is free of the machine's memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from localspec import machine
from localspec.chat.figures.benefit import baseline_speed
from localspec.chat.figures.figures import Meter
from localspec.chat.session.drafting import Drafting
from localspec.chat.settings import ChatSettings, Gamma
from localspec.drafter_names import DRAFT
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.stopping import Situation
from localspec.engine.record.stats import GammaNote, GammaReason, Prefill, Speedup
from tests.fakes import round_of, rounds_of


def measured(times_s: list[float], tokens: int = 2, later: float = 0.0) -> float | None:
    """The speed shown after a prompt at the first of `times_s` and rounds at the others."""
    clock = iter([*times_s, times_s[-1] + later])
    meter = Meter(100, lambda: next(clock))
    meter.prefilled(Prefill(5, 0, 4, 0.1))
    for _ in times_s[1:]:
        meter.add(rounds_of(b"x" * tokens, size=tokens)[0])
    return meter.figures(generating=True, speculation=True, note="").speed_now


def test_speed_now_counts_from_the_prompt_on_at_first() -> None:
    assert measured([10.0]) is None
    assert measured([10.0, 10.5]) == pytest.approx(4)
    assert measured([10.0, 10.25, 10.5]) == pytest.approx(8)


def test_the_figures_show_the_speed_up_that_was_measured_and_what_follows() -> None:
    meter = Meter(100)
    now = {"generating": True, "speculation": True, "note": GammaNote(GammaReason.OFF)}
    for found in (None, Speedup(1.25, 1.0, 1.5)):
        for _ in range(15):
            done = replace(rounds_of(b"x" * 4, size=4)[0], total_s=1.0, drafted=3)
            meter.add(done, lambda found=found: found)
        assert meter.figures(**now).speedup == found
    figures = meter.figures(**now)
    assert figures.speed_average == pytest.approx(4.0)
    assert baseline_speed(figures) == pytest.approx(4.0 / 1.25)


def test_a_speed_up_is_of_the_whole_answer_where_drafting_was_switched_on_within() -> None:
    """It covered only the rounds since the switch, while the average next to it covered all."""
    auto = AutoGamma(Costs({0: {1: 0.1, 4: 0.14}}, {DRAFT: {0: {1: 0.01}}}))
    drafting = Drafting(ChatSettings(gamma="auto"), auto, able=True)
    drafting.begin(follow_clock=True)
    rounds = [0] * 30 + [0, 3, 3, 3, 3, 3] * 5
    for at, n in enumerate(rounds):
        drafting.on = at >= 30
        drafting.plan(Situation(room=9))
        done = round_of(n, n, seconds=0.14 if n else 0.1)
        drafting.observe(replace(done, draft_s=0.01 * n, total_s=done.total_s + 0.01 * n))
    found = drafting.speedup()
    assert found is not None
    assert found.estimate == pytest.approx((34 + 25 * 4) * 0.1 / (34 * 0.1 + 25 * 0.17), rel=0.02)


def test_of_another_conversation_s_decisions_nothing_is_told() -> None:
    auto = AutoGamma(Costs({0: {1: 0.1, 4: 0.14}}, {DRAFT: {0: {1: 0.01}}}))
    drafting = Drafting(ChatSettings(gamma="auto"), auto, able=True)
    drafting.begin(follow_clock=True)
    for _ in range(20):
        drafting.plan(Situation(room=9))
        drafting.observe(round_of(3, 3))
    assert drafting.note("code").reason is GammaReason.PAYS
    drafting.forget()
    assert drafting.note("code").reason is GammaReason.UNDECIDED


@pytest.mark.parametrize("gamma", [3, "auto"])
def test_the_speed_up_is_measured_over_answers_whatever_decides_the_length(gamma: Gamma) -> None:
    """The machine is twice as slow as measured; each answer begins with a baseline round."""
    auto = AutoGamma(Costs({0: {1: 0.1, 4: 0.14}}, {DRAFT: {0: {1: 0.01}}}))
    drafting = Drafting(ChatSettings(gamma=gamma), auto, able=True)
    for _ in range(3):
        assert drafting.speedup() is None
        drafting.begin(follow_clock=True)
        for n in (0, 3, 3, 3, 3, 3):
            done = round_of(n, n, seconds=0.28 if n else 0.2, context=100)
            done = replace(done, draft_s=0.02 * n, total_s=done.total_s + 0.02 * n)
            drafting.observe(done)
    found = drafting.speedup()
    assert found is not None
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(4 * 0.2 / (0.28 + 3 * 0.02), rel=0.01)
    drafting.begin(follow_clock=True)
    assert drafting.speedup() is None  # nothing stale


def test_without_a_measurement_nothing_is_claimed() -> None:
    drafting = Drafting(ChatSettings(gamma=3), None, able=True)
    drafting.begin(follow_clock=True)
    drafting.observe(round_of(3, 3, seconds=0.1))
    assert drafting.speedup() is None


def test_speed_now_forgets_what_is_older_than_a_second() -> None:
    slow_then_fast = [0.0, 5.0, *(5 + i / 10 for i in range(1, 31))]
    assert measured(slow_then_fast) == pytest.approx(20)


def test_a_round_slower_than_the_window_still_counts() -> None:
    assert measured([0.0, 3.0, 6.0]) == pytest.approx(2 / 3)


def test_while_nothing_comes_the_speed_falls() -> None:
    assert measured([0.0, 0.5, 1.0], later=0.9) == pytest.approx(4)
    assert measured([0.0, 0.5, 1.0], later=19.0) == pytest.approx(4 / 20)


def test_answers_aside_leave_what_is_decided_what_it_was() -> None:
    auto = AutoGamma(Costs({0: {1: 0.1, 4: 0.14}}, {DRAFT: {0: {1: 0.01}}}))
    drafting = Drafting(ChatSettings(gamma="auto"), auto, able=True)

    def answer(accepted: int) -> None:
        drafting.begin(follow_clock=True)
        for _ in range(20):
            drafting.plan(Situation(room=9))
            drafting.observe(round_of(3, accepted))

    answer(3)
    note = drafting.note("code")
    assert note.reason is GammaReason.PAYS
    with drafting.aside():
        drafting.forget()
        answer(0)
        assert drafting.note("code") != note
    assert drafting.note("code") == note


@pytest.mark.parametrize(
    ("cores", "found"),
    [([(800, 4800), (3000, 3000), (4700, 4800)], (4700, 4800)), ([], (None, None))],
)
def test_a_processor_is_as_fast_as_its_fastest_core(
    cores: list[tuple[int, int]], found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [SimpleNamespace(current=now, max=most) for now, most in cores]
    monkeypatch.setattr(psutil, "cpu_freq", lambda *, percpu: told if percpu else None)
    assert machine.clock() == found


def test_a_container_limit_bounds_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 60000\nactive_file 40000\n\n")
    monkeypatch.setattr(machine, "_folders", lambda: (tmp_path,))
    assert machine.total() == 1_000_000
    assert machine.available() == 700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.total() > 1_000_000
    assert machine.available() > 1_000_000


def test_the_strictest_of_nested_containers_of_both_versions_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, above = tmp_path / "own", tmp_path / "above"
    for folder, limit, used in ((own, 3_000_000, 100_000), (above, 2_000_000, 1_500_000)):
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(
            "active_file 7\ntotal_inactive_file 30000\ntotal_active_file 20000\n"
        )
    monkeypatch.setattr(machine, "_folders", lambda: (own, above))
    assert machine.total() == 2_000_000
    assert machine.available() == 550_000
    (above / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert machine.total() == 3_000_000


def test_a_limit_on_the_address_space_bounds_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    vms = psutil.Process().memory_info().vms
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _which: (vms + 4096, -1))
    room = machine.address_space_left()
    assert room is not None
    assert room <= 4096
    assert machine.available() <= 4096


def test_without_limits_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "resource", None)
    assert machine.address_space_left() is None
    assert machine.peak_resident() > 0


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    inner = "from localspec import machine; print(machine.peak_resident())"
    outer = f"import subprocess, sys\nheld = b'x' * {200 << 20}\n"
    outer += f"subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, check=True)
    assert 5_000_000 < int(done.stdout) < 100_000_000
