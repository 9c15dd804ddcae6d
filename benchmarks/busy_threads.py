"""Threads beside a program that keeps a core busy: what localspec makes of the cores left.

In turn, REPEATS times, the same answer of the padded demo pair is written: with one thread on the
idle machine; beside a busy process with as many threads as localspec chooses, and with one for
every core. Prints tokens per second, medians and the ratios to the first. The machine has to be
idle otherwise. Takes about five minutes.

    uv run python benchmarks/busy_threads.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median

from localspec.chat.events import TurnEnd
from localspec.chat.session import Session
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest

PROMPT = "Tell me a long story about a boat."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    arms = {
        "one thread, idle": (1, False),
        "as chosen, beside a busy process": (None, True),
        "one for every core, beside it": (os.cpu_count(), True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(arguments.repeats):
        for name, (threads, busy) in arms.items():
            with closing(loaded(threads, arguments.tokens)) as session, neighbour(busy=busy):
                answer(session)  # warms up, and sees the neighbour
                speeds[name].append(answer(session))
    first = median(speeds["one thread, idle"])
    print("| threads | tokens/s | over one thread, idle |")
    print("|---|---|---|")
    for name, found in speeds.items():
        print(f"| {name} | {median(found):.1f} | {median(found) / first:.2f} |")


def loaded(threads: int | None, tokens: int) -> Session:
    request = LoadRequest(threads=threads, temp=0.0, n_predict=tokens)
    return load_session(request, progress=lambda _step, _share: None, cancel=Cancel())


def answer(session: Session) -> float:
    session.reset()
    *_, end = session.turn(PROMPT, Cancel())
    assert isinstance(end, TurnEnd)
    return end.stats.tokens_per_second or 0.0


@contextmanager
def neighbour(*, busy: bool) -> Iterator[None]:
    """A process that keeps one core busy."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
