"""A busy machine gets fewer threads while that lasts, unless an answer must be repeatable."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localspec.engine.llama import LOOK_S, Context, busy_cores, thread_controller, too_busy
from localspec.engine.llama.thread_controller import ThreadController, busy_seconds


class Machine:
    """Four cores, some of which other programs keep busy; this program decodes all the time."""

    def __init__(self) -> None:
        self.now = self.busy = self.own = 0.0

    def controller(self, most: int = 4) -> ThreadController:
        return ThreadController(
            most,
            cores=4,
            clock=lambda: self.now,
            busy=lambda: self.busy,
            own=lambda: self.own,
        )

    def run(
        self, controller: ThreadController, others: float, seconds: float, *, step: float = 0.05
    ) -> list[int]:
        """The number of threads after each decode."""
        found = []
        for _ in range(round(seconds / step)):
            mine = min(controller.threads, 4 - others)
            self.now += step
            self.busy += (mine + others) * step
            self.own += mine * step
            found.append(controller.poll())
        return found


def test_a_busy_core_is_left_alone_within_a_second_and_taken_again() -> None:
    machine = Machine()
    controller = machine.controller()
    assert set(machine.run(controller, 0.1, 3)) == {4}
    busy = machine.run(controller, 1.0, 3)
    assert busy[:6] != [3] * 6
    assert set(busy[10:]) == {3}
    assert set(machine.run(controller, 2.6, 3)[10:]) == {1}
    free = machine.run(controller, 0.0, 3)
    assert set(free[:5]) == {1}  # a pause does not end it
    assert set(free[20:]) == {4}


def test_one_thread_is_left_however_busy_it_is_and_no_more_than_asked_for() -> None:
    machine = Machine()
    assert set(machine.run(machine.controller(), 4.0, 3)[10:]) == {1}
    few = Machine()
    assert set(few.run(few.controller(2), 1.2, 3)) == {2}  # they find a core each


def test_what_takes_no_core_that_a_thread_needs_is_no_reason_for_anything() -> None:
    machine = Machine()
    controller = machine.controller(2)
    machine.run(controller, 1.9, 3)
    assert controller.taken == 0
    controller.watch()
    machine.run(controller, 2.8, 3)
    assert controller.taken == pytest.approx(2.8)
    assert controller.threads == 1
    alone = Machine()
    single = alone.controller(1)
    alone.run(single, 4.0, 3)
    assert (single.taken, single.threads) == (pytest.approx(4.0), 1)


@pytest.mark.parametrize(("busy_s", "taken"), [(0.5, 0.0), (2.0, 0.75)])
def test_what_others_took_of_an_answer_is_told_of_the_whole_answer(
    busy_s: float, taken: float
) -> None:
    """It is not what they take at its end: others may have begun, or ended, just then."""
    for parts in (((1.5, busy_s), (0.0, 4.0 - busy_s)), ((0.0, 4.0 - busy_s), (1.5, busy_s))):
        machine = Machine()
        controller = machine.controller()
        machine.run(controller, 4.0, 3)  # before the answer
        controller.begin()
        for others, seconds in parts:
            machine.run(controller, others, seconds)
        assert controller.taken == pytest.approx(taken, abs=0.1)


def test_what_ran_in_a_pause_takes_no_thread_and_what_ended_in_it_gives_its_own_back() -> None:
    machine = Machine()
    controller = machine.controller()
    machine.run(controller, 0.0, 3)
    machine.now, machine.busy = machine.now + 60, machine.busy + 90.0
    controller.begin()
    assert (controller.threads, controller.taken) == (4, 0)
    assert set(machine.run(controller, 1.0, 3)[10:]) == {3}  # it goes on
    machine.now += 60
    controller.begin()
    assert (controller.threads, controller.taken) == (4, 0)


def test_what_just_about_takes_a_core_is_no_reason_to_change_all_the_time() -> None:
    machine = Machine()
    controller = machine.controller()
    machine.run(controller, 1.0, 2)
    for others in (0.4, 0.6, 0.3, 0.5, 0.4):
        assert set(machine.run(controller, others, 0.6)) == {3}


def test_the_system_counts_what_this_program_does() -> None:
    before = busy_seconds()
    assert before > 0
    assert busy_seconds() >= before


def test_what_another_process_takes_is_seen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert max(busy_cores(LOOK_S) for _ in range(5)) > 0.3
    finally:
        process.kill()
        process.wait()


def test_fewer_threads_are_timed_next_to_more_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_controller, "default_threads", lambda: 4)
    monkeypatch.setattr(thread_controller, "busy_cores", lambda _seconds: 1.2)
    assert [too_busy(threads) for threads in (2, 3, 4, 8)] == [False, False, True, True]


def test_a_context_follows_unless_its_threads_are_held(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = 4
    monkeypatch.setattr(
        ThreadController, "poll", lambda self: setattr(self, "threads", wanted) or wanted
    )

    def threads() -> int:
        target_context.decode([1], 0)
        return target_context.threads.now

    target_context.threads.use(4, 6, at_most=True)
    wanted = 2
    assert threads() == 4  # held until they are released
    target_context.threads.hold(False)
    assert threads() == 2
    wanted = 3
    assert threads() == 3
    target_context.threads.hold(True)
    assert target_context.threads.now == 4
    assert threads() == 4
    target_context.threads.hold(False)
    target_context.threads.use(4)  # four were asked for
    wanted = 1
    assert threads() == 4
