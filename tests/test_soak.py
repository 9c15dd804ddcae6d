"""Long runs stay flat, and a running decode stops at once."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from dataclasses import replace
from time import perf_counter

import pytest

from benchmarks.soak import BUCKET, FLAT, Sample, Speed, aged, assess, lines, soak
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import Cancelled
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from tests.fakes import tokens_of

AT_ONCE = 0.2
GREEDY = GenerateSettings(sampling=SamplingParams(temperature=0), n_predict=40)
LONG = [*range(300, 1280)]


def samples(growth: int, slowdown: float, machine_slowdown: float = 0.0) -> list[Sample]:
    """An hour whose memory grows by `growth` bytes and whose speed falls by `slowdown`."""
    found = []
    for i in range(100):
        steady = 1 - machine_slowdown * i / 99
        speed = (50 - 5 * (i % 4)) * (1 - slowdown * i / 99) * steady
        one = Sample(
            seconds=36.0 * i,
            context=BUCKET * (i % 4),
            resident=10**8 + growth * i // 99,
            speed=Speed(speed, speed) if i % 3 else None,
            first=0.5 / steady,
            yardstick=200 * steady,
        )
        found.append(one)
    return found


def test_a_steady_run_is_seen_to_be_steady() -> None:
    report = assess(samples(0, 0.0))
    assert report.growth == report.growth_per_hour == 0
    assert [report.wall, report.cpu, report.own, report.yardstick] == [pytest.approx(1.0)] * 4
    assert report.minutes == pytest.approx(59.4)
    assert report.verdict == "memory is flat; no slowdown beyond the context's"


def test_what_grows_and_slows_down_is_seen() -> None:
    report = assess(samples(50_000_000, 0.5))
    assert 35_000_000 < report.growth < 50_000_000
    assert report.growth_per_hour == pytest.approx(50_000_000 * 60 / 59.4, rel=0.01)
    assert report.own is not None
    assert 0.55 < report.own < 0.75
    assert report.verdict == "MEMORY GROWS; IT SLOWS DOWN"
    assert "50.51 MB an hour" in "\n".join(lines(report))


def test_a_conversation_that_is_kept_is_no_leak() -> None:
    grown = [
        replace(one, kept=one.resident - 10**8, resident=one.resident + 5)
        for one in samples(50_000_000, 0.0)
    ]
    report = assess(grown)
    assert report.growth == 0
    assert report.kept > 35_000_000
    assert report.verdict.startswith("memory is flat")
    assert "in addition +0.0 MB" in "\n".join(lines(report))


def test_a_machine_that_slows_down_is_not_the_program() -> None:
    report = assess(samples(0, 0.0, machine_slowdown=0.4))
    assert report.wall == report.cpu == pytest.approx(0.72, abs=0.03)
    assert report.yardstick == pytest.approx(0.72, abs=0.03)
    assert report.first is not None
    assert report.first > 1.3
    assert report.own == pytest.approx(1.0)
    assert report.verdict.endswith("no slowdown beyond the context's")


def test_a_process_that_has_aged_slows_down_though_its_yardstick_does_so_too() -> None:
    report = replace(assess(samples(0, 0.0)), aged=0.8)
    assert report.verdict.endswith("IT SLOWS DOWN")
    assert replace(report, aged=1.0).verdict.endswith("no slowdown beyond the context's")


@pytest.mark.slow
def test_fresh_processes_are_laid_beside_this_one() -> None:
    options = LoadRequest(pair="toy", threads=1, gamma=3)
    with closing(load_session(options, progress=lambda *_: None, cancel=Cancel())) as session:
        print_one = [sys.executable, "-c", "print(1.0)"]
        assert aged(session, print_one, pairs=1) > 1  # decodes a second, over 1


def test_one_answer_is_too_little_to_compare() -> None:
    report = assess([Sample(1.0, 10, 10**8)])
    assert report.verdict == "memory is flat; too short to compare speeds"
    assert "unknown" in "\n".join(lines(report))


@pytest.mark.slow
@pytest.mark.drawn
def test_half_a_minute_of_chat_leaves_memory_flat() -> None:
    options = LoadRequest(pair="toy", threads=1, gamma=3, n_predict=120)
    with closing(
        load_session(options, progress=lambda _step, _share: None, cancel=Cancel())
    ) as session:
        report = assess(list(soak(session, 30)))
    assert report.answers > 10
    assert report.growth < FLAT
    assert report.own is None or report.own > 0.7
    assert report.yardstick is None or report.yardstick > 0


def stopped_after(cancel: Cancel, seconds: float) -> list[float]:
    """Set `cancel` after `seconds`; the list then holds the moment."""
    moments: list[float] = []

    def stop() -> None:
        moments.append(perf_counter())
        cancel.set()

    threading.Timer(seconds, stop).start()
    return moments


def prefill_until_stopped(context: Context, cancel: Cancel) -> None:
    """Read a long prompt again and again until it is stopped."""
    while True:
        context.clear()
        list(Engine(context).prefill(LONG, cancel))


@pytest.mark.few(1)
@pytest.mark.timed
@pytest.mark.parametrize("after", [0.02, 0.1])
def test_a_prefill_stops_at_once_and_the_engine_goes_on(target_model: Model, after: float) -> None:
    options = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    few = replace(GREEDY, n_predict=8)
    with Context(target_model, options) as used, Context(target_model, options) as fresh:
        cancel = Cancel()
        moments = stopped_after(cancel, after)
        with pytest.raises(Cancelled):
            prefill_until_stopped(used, cancel)
        assert perf_counter() - moments[0] < AT_ONCE
        texts = []
        for context in (used, fresh):
            list(Engine(context).prefill(LONG[:300], Cancel()))
            rounds = Engine(context).generate(LONG[:300], few, FixedGamma(0), Cancel())
            texts.append(tokens_of(rounds))
        assert texts[0] == texts[1]


@pytest.mark.few(1)
@pytest.mark.timed
@pytest.mark.parametrize("after", [0.05, 0.3])
def test_decoding_stops_at_once_and_the_engine_goes_on(
    target_model: Model, draft_context: Context, after: float
) -> None:
    options = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    prompt = LONG[:40]
    with Context(target_model, options) as target:
        engine = Engine(target, ModelDrafter(draft_context, target_model.n_vocab))

        def text(cancel: Cancel) -> tuple[list[int], FinishReason | None]:
            try:
                list(engine.prefill(prompt, cancel))
            except Cancelled:
                return [], FinishReason.CANCELLED
            rounds = list(engine.generate(prompt, GREEDY, FixedGamma(4), cancel))
            return tokens_of(rounds), rounds[-1].finish

        want, _ = text(Cancel())
        cancel = Cancel()
        moments = stopped_after(cancel, after)
        finish: FinishReason | None = None
        while finish is not FinishReason.CANCELLED:
            got, finish = text(cancel)
            assert got == want[: len(got)]
        assert perf_counter() - moments[0] < AT_ONCE
        assert text(Cancel())[0] == want
