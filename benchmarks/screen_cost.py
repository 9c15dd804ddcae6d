"""What the chat screen costs: tokens per second with and without it, and the event loop's pauses.

    python benchmarks/screen_cost.py [--pair demo] [--pairs 12] [--tokens 700] [--size 160x50]

The real app runs in a pseudo-terminal of its own. One process, one loaded pair: answers are
generated in turn with the screen (as if somebody had pressed Enter) and without it (the same
session, the same thread, nothing drawn), greedy, after a reset of the conversation, in an order
that alternates. Reported: the ratio of the two speeds, pair by pair, as its median with a 95 %
interval from 10,000 resamples; then the pauses during answers of their own.

Where a machine's speed changes from answer to answer that interval is wide. So the same is told
from within the answers: how long a round takes on average, over how long it takes while the
screen's thread rests. Long rounds meet the screen's work more often than short ones, so this shows
rather too much.

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

from localspec.chat.events import RoundText
from localspec.cli.loading import load_session
from localspec.cli.options import Options
from localspec.engine.cancel import Cancel
from localspec.ui.app import ChatApp
from localspec.ui.launch import sharing_the_lock

if TYPE_CHECKING:
    from localspec.chat.events import TurnEvent
    from localspec.chat.session import Session
    from localspec.ui.contract import ChatSession, Loader

_BUSY_S = 0.0005
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


class Within:
    """The rounds of an answer, and when the screen's thread worked for half a millisecond or more.

    Args:
        app: whose outbox is listened to; that thread's callbacks are timed as asyncio runs them.
    """

    def __init__(self, app: ChatApp) -> None:
        self._rounds: list[tuple[float, float]] = []
        self._work: list[tuple[float, float]] = []
        self._last: float | None = None
        self._put = app.engine.outbox.put
        # asyncio has no hook for this.
        run = asyncio.Handle._run  # noqa: SLF001
        app.engine.outbox.put = self._heard  # type: ignore[method-assign]

        def timed(handle: asyncio.Handle) -> None:
            began = time.perf_counter()
            run(handle)
            ended = time.perf_counter()
            if ended - began > _BUSY_S:
                self._work.append((began, ended))

        asyncio.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001

    def _heard(self, event: TurnEvent) -> None:
        now = time.perf_counter()
        if isinstance(event, RoundText):
            if self._last is not None:
                self._rounds.append((self._last, now))
            self._last = now
        self._put(event)

    def begin(self) -> None:
        """Another answer."""
        self._rounds, self._work, self._last = [], [], None

    def ratio(self) -> float | None:
        """The speed with the screen over that while its thread rests."""
        rounds, work = np.array(self._rounds), np.array(self._work)
        if not len(rounds) or not len(work):
            return None
        # The last work that began before a round ended also ended before the round began.
        before = np.searchsorted(work[:, 0], rounds[:, 1]) - 1
        alone = (before < 0) | (work[before, 1] < rounds[:, 0])
        lengths = rounds[:, 1] - rounds[:, 0]
        return float(lengths[alone].mean() / lengths.mean()) if alone.any() else None


class Driven(ChatApp):
    """The app with a coroutine in place of a user."""

    probes = 3

    def __init__(self, load: Loader, pairs: int, found: Path) -> None:
        super().__init__(load)
        self._pairs = pairs
        self._path = found
        self._found: dict[str, list[float]] = {
            name: [] for name in ("with", "without", "within", "pauses", "cpu")
        }

    def on_ready(self) -> None:
        """Begin as soon as the screen stands."""
        self._within = Within(self)
        self.run_worker(self._drive())

    async def _drive(self) -> None:
        while self.session is None:
            await asyncio.sleep(0.05)
        self._forbid_ends()
        for number in range(self._pairs + 1):
            order = ("with", "without") if number % 2 else ("without", "with")
            speeds = {}
            for how in order:
                self._within.begin()
                speeds[how] = await self._measure(how)
                within = self._within.ratio()
                if number and how == "with" and within is not None:
                    self._found["within"].append(within)
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
    ratio, low, high = middle(drawn / silent)
    pauses = np.array(found["pauses"]) * 1000
    print(f"{what}, {arguments.size}, {arguments.tokens} tokens an answer, "
          f"{len(drawn)} pairs; {platform.machine()}, {os.cpu_count()} cores, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print()
    print("| | median |")
    print("|---|---|")
    print(f"| {unit} without the screen | {np.median(silent):.1f} |")
    print(f"| {unit} with the screen | {np.median(drawn):.1f} |")
    print(f"| ratio, 95 % interval | {ratio:.3f} ({low:.3f} to {high:.3f}) |")
    within, least, most = middle(np.array(found["within"]))
    print(f"| the same within the answers | {within:.3f} ({least:.3f} to {most:.3f}) |")
    print(f"| pauses of the event loop, 50th / 99th percentile | "
          f"{np.percentile(pauses, 50):.1f} / {np.percentile(pauses, 99):.1f} ms |")  # fmt: skip
    print(
        f"| screen's share of a core while probed | {100 * statistics.mean(found['cpu']):.0f} % |"
    )
    for name, lowest, highest in (("pairs", low, high), ("within", least, most)):
        if highest - lowest > 0.02 and lowest < 0.98 < highest:
            print(f"\n{name}: undecided, the interval is wider than the margin asked for")
        else:
            print(f"\n{name}: at most 2 % is {'met' if highest >= 0.98 else 'not met'}")


def middle(values: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % interval."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


if __name__ == "__main__":
    main()
