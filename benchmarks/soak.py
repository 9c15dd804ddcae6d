"""Hours of chat in one process: memory stays flat, and speed falls with the context alone.

    uv run python -m benchmarks.soak                    # 30 minutes
    uv run python -m benchmarks.soak --minutes 1 --json soak.json

One conversation goes on to the end; when the context is full, its oldest turns are left out. Every
third answer is stopped in the middle, and every fifth is written again. Resident size and speed are
recorded after each answer. All contexts are filled once at the start, and the first tenth of the
time is left out, since caches and buffers grow to their size there.

The speed is that of rounds (three tokens drafted, four verified), since tokens per second depend on
the text. The last third is compared with the first at the same context, in three ways, as a machine
may slow down by itself: by the clock; by processor time, which leaves out other programs (with
--threads 1); and by processor time relative to a yardstick, a few decodes of a context that never
grows, which also leaves out heat and other programs' use of memory. A yardstick in the same process
would not show that the whole process has aged, so at the end it is compared with that of fresh
processes, in turns. The verdict is the product of both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from statistics import linear_regression, median
from sys import getsizeof
from time import perf_counter, process_time

from localspec import machine
from localspec.chat.events import RoundText, TurnEnd
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context, ContextOptions
from localspec.errors import PromptTooLong
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

QUESTIONS = (
    "Tell me a story about a boat.",
    "What is 12 + 7?",
    "And then?",
    "Write a Python function that adds two numbers.",
    "Say it in other words, please.",
)
GAMMA = 3
WARM_UP = 0.1
BUCKET = 128
LEAST_ROUNDS = 8


FLAT = 2_000_000  # bytes, in addition to the conversation
STEADY = 0.95
_YARD = 24  # decodes
_READINGS = 9  # of the yardstick, about a second


@dataclass(frozen=True)
class Speed:
    """Rounds per second of one answer after its first, by the clock and by the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Sample:
    """After one answer.

    Attributes:
        seconds: when it ended.
        context: tokens in the target's cache.
        resident: bytes.
        first: seconds to the first token, None where none came.
        speed: None for an answer that was stopped, or too short to tell.
        yardstick: decodes per second of processor time in a context that never grows.
        kept: bytes of the conversation.
    """

    seconds: float
    context: int
    resident: int
    speed: Speed | None = None
    first: float | None = None
    yardstick: float | None = None
    kept: int = 0


@dataclass(frozen=True)
class Report:
    """What a soak run shows.

    Attributes:
        minutes, answers: how long, and how many answers.
        resident_first, resident_last: bytes after the warm-up and at the end, medians of a tenth.
        resident_most: the most after the warm-up.
        kept: bytes by which the conversation grew from the first of these to the last.
        growth_per_hour: bytes, by a line through all sizes of the second half.
        wall, cpu, own: speed in the last third over that in the first, at the same context, the
            median over context sizes: by the clock, by the processor's time, and by that over the
            yardstick's. None where nothing can be compared.
        first: time to the first token likewise, the last third over the first; below 1 is faster.
        yardstick: the machine's own speed, the last third over the first.
        aged: the yardstick at the end over that in fresh processes; None where that was not tried.
    """

    minutes: float
    answers: int
    resident_first: int
    resident_last: int
    resident_most: int
    kept: int
    growth_per_hour: float
    wall: float | None
    cpu: float | None
    own: float | None
    first: float | None
    yardstick: float | None
    aged: float | None = None

    @property
    def growth(self) -> int:
        """Bytes by which memory grew after the warm-up, without those of the conversation."""
        return self.resident_last - self.resident_first - self.kept

    @property
    def verdict(self) -> str:
        """The report in a sentence."""
        flat = self.growth <= FLAT
        memory = "memory is flat" if flat else "MEMORY GROWS"
        if self.own is None:
            return f"{memory}; too short to compare speeds"
        kept = self.own * (self.aged or 1.0)
        slower = "no slowdown beyond the context's" if kept >= STEADY else "IT SLOWS DOWN"
        return f"{memory}; {slower}"


def assess(samples: list[Sample]) -> Report:
    """Compare the beginning with the end."""
    last = samples[-1].seconds
    warm = [sample for sample in samples if sample.seconds >= WARM_UP * last] or samples
    tenth, third = max(1, len(warm) // 10), len(warm) // 3
    parts = warm[:third], warm[len(warm) - third :]

    def ratio(value: Callable[[Sample], float | None]) -> float | None:
        early, late = (_by_context(part, value) for part in parts)
        ratios = [late[bucket] / early[bucket] for bucket in early.keys() & late.keys()]
        return median(ratios) if ratios else None

    kept_first, kept_last = (
        round(median(sample.kept for sample in part)) for part in (warm[:tenth], warm[-tenth:])
    )
    return Report(
        minutes=last / 60,
        answers=len(samples),
        resident_first=round(median(sample.resident for sample in warm[:tenth])),
        resident_last=round(median(sample.resident for sample in warm[-tenth:])),
        kept=kept_last - kept_first,
        resident_most=max(sample.resident for sample in warm),
        growth_per_hour=_slope(warm[len(warm) // 2 :]) * 3600,
        wall=ratio(lambda sample: sample.speed.wall if sample.speed else None),
        cpu=ratio(lambda sample: sample.speed.cpu if sample.speed else None),
        own=ratio(_beside_the_yardstick),
        first=ratio(lambda sample: sample.first),
        yardstick=ratio(lambda sample: sample.yardstick),
    )


def _slope(samples: list[Sample]) -> float:
    """Bytes a second."""
    if len({sample.seconds for sample in samples}) < 2:
        return 0.0
    times, sizes = zip(*((sample.seconds, sample.resident) for sample in samples), strict=True)
    return linear_regression(times, sizes).slope


def _beside_the_yardstick(sample: Sample) -> float | None:
    if sample.speed is None or not sample.yardstick:
        return None
    return sample.speed.cpu / sample.yardstick


def _by_context(samples: list[Sample], value: Callable[[Sample], float | None]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for sample in samples:
        if number := value(sample):
            found.setdefault(sample.context // BUCKET, []).append(number)
    return {bucket: median(each) for bucket, each in found.items()}


def soak(session: Session, seconds: float) -> Iterator[Sample]:
    """Chat for `seconds`, and measure every answer."""
    _fill(session)
    with _Yardstick(session) as yardstick:
        started = perf_counter()
        for number in count():
            if perf_counter() - started > seconds:
                return
            first, speed = _answer(session, number)
            context = len(session.pair.target.tokens)
            measured = yardstick.measure()
            elapsed = perf_counter() - started
            resident = machine.resident()
            yield Sample(elapsed, context, resident, speed, first, measured, kept(session))


def kept(session: Session) -> int:
    """Bytes of the messages: their text, and the same in pieces by who proposed them."""
    return sum(
        getsizeof(message)
        + getsizeof(message.content)
        + getsizeof(message.spans)
        + sum(getsizeof(span) + getsizeof(span.text) for span in message.spans)
        for message in session.messages
    )


class _Yardstick:
    """The same work again and again: batches of a round's size at the same position."""

    def __init__(self, session: Session) -> None:
        threads = session.pair.loaded.threads
        options = ContextOptions(n_ctx=256, n_batch=64, threads=threads)
        self._context = Context(session.pair.target.model, options)
        self._context.decode([1] * 64, 1)

    def measure(self) -> float:
        """Decodes per second of processor time."""
        begun = process_time()
        for _ in range(_YARD):
            self._context.decode([1] * (1 + GAMMA), 1)
        taken = process_time() - begun
        self._context.truncate(64)
        return _YARD / taken if taken > 0 else 0.0

    def steady(self) -> float:
        """The median of these over about a second."""
        return median(self.measure() for _ in range(_READINGS))

    def __enter__(self) -> _Yardstick:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()


def aged(session: Session, command: Sequence[str], pairs: int = 5) -> float:
    """The yardstick's speed here over that in a fresh process, measured in turns.

    Args:
        session: the one that has run for long.
        command: runs this script with ``--yardstick``, which prints a fresh process's speed.
        pairs: how many ratios are measured; their median counts.
    """
    ratios = []
    with _Yardstick(session) as yardstick:
        for _ in range(pairs):
            here = [yardstick.steady()]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            here.append(yardstick.steady())
            ratios.append(sum(here) / 2 / float(done.stdout))
    return median(ratios)


def _fill(session: Session) -> None:
    """Fill every context once; in an answer a draft reads a long text only where that pays."""
    for context in (session.pair.target, *session.pair.drafts.values()):
        context.clear()
        while context.free:
            context.decode([1] * min(context.free, context.n_batch), 1)
        context.clear()


def _answer(session: Session, number: int) -> tuple[float | None, Speed | None]:
    """Ask once more; the seconds to the first token, and the speed if the answer is whole."""
    cancel = Cancel()
    stops = number % 3 == 2
    again = number % 5 == 4 and session.messages
    turn = (
        session.regenerate(cancel)
        if again
        else session.turn(QUESTIONS[number % len(QUESTIONS)], cancel)
    )
    asked = perf_counter()
    first: tuple[float, float] | None = None
    rounds = 0
    whole = False
    try:
        with closing(turn):
            for i, event in enumerate(turn):
                if isinstance(event, RoundText):
                    if first is None:
                        first = perf_counter(), process_time()
                    else:
                        rounds += 1
                    if stops and i > 8:
                        cancel.set()
                if isinstance(event, TurnEnd):
                    whole = not stops
    except PromptTooLong:
        session.reset()
    if first is None:
        return None, None
    wall, cpu = perf_counter() - first[0], process_time() - first[1]
    told = whole and rounds >= LEAST_ROUNDS and cpu > 0
    return first[0] - asked, Speed(rounds / wall, rounds / cpu) if told else None


def lines(report: Report) -> list[str]:
    """The report for people."""

    def times(ratio: float | None) -> str:
        return "unknown" if ratio is None else f"x {ratio:.3f}"

    megabytes = [report.resident_first, report.resident_last, report.resident_most]
    first, last, most = (f"{n_bytes / 1e6:.1f} MB" for n_bytes in megabytes)
    return [
        f"{report.minutes:.1f} min, {report.answers} answers: {report.verdict}",
        f"resident        {first} after the warm-up, {last} at the end, {most} at most;"
        f" {report.growth_per_hour / 1e6:+.2f} MB an hour in the second half",
        f"the conversation's part of that: {report.kept / 1e6:+.1f} MB; in addition"
        f" {report.growth / 1e6:+.1f} MB",
        "the last third over the first, at the same context:",
        f"  speed         {times(report.wall)} by the clock, {times(report.cpu)} by the processor's"
        f" time, {times(report.own)} over the yardstick",
        f"  yardstick     {times(report.yardstick)} (the machine itself)",
        f"  first token   {times(report.first)} (seconds: below 1 is faster)",
        f"over fresh processes at the end: {times(report.aged)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pair", default="starter")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the report and all samples to this file")
    parser.add_argument("--yardstick", action="store_true", help="print a fresh process's speed")
    given = parser.parse_args()
    options = LoadRequest(pair=given.pair, threads=given.threads, gamma=GAMMA, n_predict=120)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    samples: list[Sample] = []
    command = [sys.executable, __file__, "--yardstick", "--pair", given.pair]
    command += ["--threads", str(given.threads)] if given.threads else []
    with closing(session):
        if given.yardstick:
            with _Yardstick(session) as yardstick:
                print(yardstick.steady())
            return
        for sample in soak(session, 60 * given.minutes):
            samples.append(sample)
            if len(samples) % 100 == 0:
                print(
                    f"{sample.seconds / 60:5.1f} min  {sample.resident / 1e6:7.1f} MB", flush=True
                )
        report = replace(assess(samples), aged=aged(session, command))
    print("\n".join(lines(report)))
    if given.json:
        data = {"report": asdict(report), "samples": [asdict(sample) for sample in samples]}
        given.json.write_text(json.dumps(data, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
