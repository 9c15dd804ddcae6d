"""Hours of chat in one process: memory stays flat, and speed falls with the context alone.

    python benchmarks/soak.py                    # 30 minutes
    python benchmarks/soak.py --minutes 1 --json soak.json

One conversation goes on and on, its oldest turns left out where the context is full; every third
answer is stopped in the middle, and every fifth is written again. After each answer the resident
size and the speed are noted. A first question that fills the context is left out, and so is the
first tenth of the time: caches and buffers grow to their size there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

from localspec import machine
from localspec.chat.events import RoundText, TurnEnd
from localspec.chat.session import Session
from localspec.cli.loading import load_session
from localspec.cli.options import Options
from localspec.engine.cancel import Cancel
from localspec.errors import PromptTooLong

QUESTIONS = (
    "Tell me a story about a boat.",
    "What is 12 + 7?",
    "And then?",
    "Write a Python function that adds two numbers.",
    "Say it in other words, please.",
)
WARM_UP = 0.1
BUCKET = 256


@dataclass(frozen=True)
class Sample:
    """One answer: when it ended, where the context stood, bytes resident, tokens per second."""

    seconds: float
    context: int
    resident: int
    speed: float | None


@dataclass(frozen=True)
class Report:
    """What a soak run shows.

    Attributes:
        minutes, answers: how long, and how many answers.
        resident_first, resident_last: bytes after the warm-up and at the end, medians of a tenth.
        speed_ratio: speed in the last third over that in the first, at the same context; the median
            over context sizes. None where nothing can be compared.
    """

    minutes: float
    answers: int
    resident_first: int
    resident_last: int
    speed_ratio: float | None

    @property
    def growth(self) -> int:
        """Bytes that were added after the warm-up."""
        return self.resident_last - self.resident_first


def assess(samples: list[Sample]) -> Report:
    """Compare the beginning with the end."""
    last = samples[-1].seconds
    warm = [sample for sample in samples if sample.seconds >= WARM_UP * last] or samples
    tenth = max(1, len(warm) // 10)
    return Report(
        minutes=last / 60,
        answers=len(samples),
        resident_first=round(median(sample.resident for sample in warm[:tenth])),
        resident_last=round(median(sample.resident for sample in warm[-tenth:])),
        speed_ratio=_speed_ratio(warm),
    )


def _speed_ratio(samples: list[Sample]) -> float | None:
    third = len(samples) // 3
    early, late = _by_context(samples[:third]), _by_context(samples[len(samples) - third :])
    ratios = [late[bucket] / early[bucket] for bucket in early.keys() & late.keys()]
    return median(ratios) if ratios else None


def _by_context(samples: list[Sample]) -> dict[int, float]:
    speeds: dict[int, list[float]] = {}
    for sample in samples:
        if sample.speed is not None:
            speeds.setdefault(sample.context // BUCKET, []).append(sample.speed)
    return {bucket: median(each) for bucket, each in speeds.items()}


def soak(session: Session, seconds: float) -> Iterator[Sample]:
    """Chat for so many seconds."""
    _fill(session)
    started = perf_counter()
    for number in count():
        if perf_counter() - started > seconds:
            return
        speed = _answer(session, number)
        context = len(session.pair.target.tokens)
        yield Sample(perf_counter() - started, context, machine.resident(), speed)


def _fill(session: Session) -> None:
    """Touch every buffer once: a prompt as long as the context takes, then a clean slate."""
    words = session.pair.target.n_ctx // 4
    for _ in session.turn("one two " * words, Cancel()):
        pass
    session.reset()


def _answer(session: Session, number: int) -> float | None:
    """Ask once more; the tokens per second of an answer that was written to its end."""
    cancel, speed = Cancel(), None
    stops = number % 3 == 2
    again = number % 5 == 4 and session.messages
    turn = (
        session.regenerate(cancel)
        if again
        else session.turn(QUESTIONS[number % len(QUESTIONS)], cancel)
    )
    try:
        with closing(turn):
            for i, event in enumerate(turn):
                if isinstance(event, RoundText) and stops and i > 8:
                    cancel.set()
                if isinstance(event, TurnEnd) and not stops:
                    speed = event.stats.tokens_per_second
    except PromptTooLong:
        session.reset()
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pair", default="demo")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the report and all samples to this file")
    given = parser.parse_args()
    options = Options(pair=given.pair, threads=given.threads, gamma=3, n_predict=120)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    samples = []
    with closing(session):
        for sample in soak(session, 60 * given.minutes):
            samples.append(sample)
            if len(samples) % 100 == 0:
                print(
                    f"{sample.seconds / 60:5.1f} min  {sample.resident / 1e6:7.1f} MB", flush=True
                )
    report = assess(samples)
    print(
        f"{report.minutes:.1f} min, {report.answers} answers: {report.resident_first / 1e6:.1f} MB,"
        f" then {report.resident_last / 1e6:.1f} MB; speed at the same context"
        f" x {report.speed_ratio or float('nan'):.3f}"
    )
    if given.json:
        data = {"report": asdict(report), "samples": [asdict(sample) for sample in samples]}
        given.json.write_text(json.dumps(data, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
