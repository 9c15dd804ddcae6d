"""What the chat screen costs: tokens per second with and without it, and the event loop's pauses.

    python benchmarks/screen_cost.py [--pair demo] [--pairs 12] [--tokens 700] [--size 160x50]

The real app runs in a pseudo-terminal of its own. One process, one loaded pair: answers are
generated in turn with the screen (as if somebody had pressed Enter) and without it (the same
session, the same thread, nothing drawn), greedy, after a reset of the conversation, in an order
that alternates. Reported: the ratio of the two speeds, pair by pair, as its median with a 95 %
interval from 10,000 resamples; then the pauses during answers of their own.

Takes about one minute with the demo pair on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pexpect

from localspec.cli.loading import load_session
from localspec.cli.options import Options
from localspec.engine.cancel import Cancel
from localspec.ui.app import ChatApp
from localspec.ui.launch import sharing_the_lock

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.ui.contract import ChatSession, Loader

PROMPT = "Tell me a long story about a dog and a girl who travel around the world."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default="demo")
    parser.add_argument("--draft", help="another draft than the pair's")
    parser.add_argument("--pairs", type=int, default=12, help="measured pairs, 10 at least")
    parser.add_argument("--tokens", type=int, default=700, help="tokens of each answer")
    parser.add_argument("--gamma", default="3")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--size", default="160x50", help="columns x rows")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments)
    else:
        about = f"pair {arguments.pair}, gamma {arguments.gamma}"
        report(arguments, run_parent(arguments), about)


def run_parent(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Start this script again inside a pseudo-terminal, and read what it found."""
    columns, rows = map(int, arguments.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        child = pexpect.spawn(
            sys.executable,
            [*sys.argv, "--child", str(found)],
            dimensions=(rows, columns),
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            timeout=None,
        )
        tail = b""
        while child.isalive():
            try:
                tail = (tail + child.read_nonblocking(1 << 16, timeout=0.2))[-3000:]
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
        child.close()
        if not found.exists():
            raise SystemExit(f"the app ended without a result:\n{tail.decode(errors='replace')}")
        result: dict[str, list[float]] = json.loads(found.read_text(encoding="utf-8"))
    return result


class Driven(ChatApp):
    """The app with a coroutine in place of a user."""

    probes = 3

    def __init__(self, load: Loader, pairs: int, found: Path) -> None:
        super().__init__(load)
        self._pairs = pairs
        self._path = found
        self._found: dict[str, list[float]] = {"with": [], "without": [], "pauses": [], "cpu": []}

    def on_ready(self) -> None:
        """Begin as soon as the screen stands."""
        self.run_worker(self._drive())

    async def _drive(self) -> None:
        while self.session is None:
            await asyncio.sleep(0.05)
        self._forbid_ends()
        for number in range(self._pairs + 1):
            order = ("with", "without") if number % 2 else ("without", "with")
            speeds = {how: await self._measure(how) for how in order}
            if number:  # the first pair warms up
                for how, speed in speeds.items():
                    self._found[how].append(speed)
        for _ in range(self.probes):
            await self._probe()
        self._path.write_text(json.dumps(self._found), encoding="utf-8")
        self.leave()

    def _forbid_ends(self) -> None:
        """Every answer has its full length: what begins and ends it is a small part then."""
        session = self._session()
        ends = dict.fromkeys(session.pair.target.model.end_tokens, -math.inf)
        sampling = replace(session.settings.sampling, logit_bias=ends)
        session.settings = replace(session.settings, sampling=sampling)

    async def _measure(self, how: str) -> float:
        if how == "with":
            self._begin()
            while self.turns.busy:
                await asyncio.sleep(0.05)
        else:
            await self._silently()
        await asyncio.sleep(0.3)  # let the last frames pass
        speed = self._session().figures().speed_average
        assert speed is not None
        return speed

    def _session(self) -> Session:
        return cast("Session", self.session)

    def _begin(self) -> None:
        self._session().reset()
        assert self.turns.reserve()
        self.turns.ask(PROMPT)

    async def _silently(self) -> None:
        """An answer in the same thread of which the screen learns nothing."""
        self._session().reset()
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def job(session: ChatSession) -> None:
            for _event in session.turn(PROMPT, Cancel()):
                pass
            loop.call_soon_threadsafe(done.set)

        self.engine.submit(job)
        await done.wait()

    async def _probe(self) -> None:
        self._begin()
        started, cpu = time.perf_counter(), time.thread_time()
        while self.turns.busy:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self._found["pauses"].append(time.perf_counter() - before - 0.005)
        passed = time.perf_counter() - started
        self._found["cpu"].append((time.thread_time() - cpu) / passed)


def run_child(arguments: argparse.Namespace) -> None:
    options = Options(
        pair=arguments.pair,
        draft=arguments.draft,
        temp=0.0,
        n_predict=arguments.tokens,
        gamma=int(arguments.gamma) if arguments.gamma.isdigit() else arguments.gamma,
        threads=arguments.threads,
    )
    drive(
        Driven(
            lambda progress, cancel: load_session(options, progress=progress, cancel=cancel),
            arguments.pairs,
            arguments.child,
        )
    )


def drive(app: ChatApp) -> None:
    """Run the app until it leaves by itself."""
    with sharing_the_lock():
        app.run()
    app.engine.shut_down()
    app.engine.join(10)


def report(
    arguments: argparse.Namespace,
    found: dict[str, list[float]],
    what: str,
    unit: str = "tokens/s",
) -> None:
    drawn, silent = np.array(found["with"]), np.array(found["without"])
    ratios = drawn / silent
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (10_000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    pauses = np.array(found["pauses"]) * 1000
    print(f"{what}, {arguments.size}, {arguments.tokens} tokens an answer, "
          f"{len(ratios)} pairs; {platform.machine()}, {os.cpu_count()} cores, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print()
    print("| | median |")
    print("|---|---|")
    print(f"| {unit} without the screen | {np.median(silent):.1f} |")
    print(f"| {unit} with the screen | {np.median(drawn):.1f} |")
    print(f"| ratio, 95 % interval | {np.median(ratios):.3f} ({low:.3f} to {high:.3f}) |")
    print(f"| pauses of the event loop, 50th / 99th percentile | "
          f"{np.percentile(pauses, 50):.1f} / {np.percentile(pauses, 99):.1f} ms |")  # fmt: skip
    print(
        f"| screen's share of a core while probed | {100 * statistics.mean(found['cpu']):.0f} % |"
    )
    if high - low > 0.02 and low < 0.98 < high:
        print("\nundecided: the interval is wider than the margin asked for")
    else:
        print(f"\nat most 2 %: {'met' if high >= 0.98 else 'not met'}")


if __name__ == "__main__":
    main()
