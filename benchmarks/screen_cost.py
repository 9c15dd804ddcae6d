"""What the chat screen costs: rounds per second with and without it, and the event loop's pauses.

    uv run python -m benchmarks.screen_cost [--pair starter] [--answers 12] [--size 160x50]

The real app runs in a new pseudo-terminal and asks its model, greedily, again and again, each time
after a reset of the conversation. While an answer is written, two kinds of stretches alternate,
each as long as the screen waits from frame to frame: one begins with a frame, as in use, and during
the next the screen gets no events. The rounds of neighbouring stretches are compared, so that a
machine that slows down for some seconds slows both. An answer gives one figure, the mean of its
neighbours' ratios; the result is the median of the answers with a 95 % interval from 10,000
resamples. Two things differ from use: a frame has the text of two stretches and shows the figures
more often, for which the pace makes up by waiting longer, as it would in use; and the timer that
wakes the screen for a frame is missing. Further answers, drawn as in use, then give the pauses of
the event loop and the frames a second: with a core to spare (`--threads` one less than there are)
at least 20.

With `--inside` the screen draws all the time, and every few seconds the view inside a round begins
or ceases to play a round. Such an answer is stopped once it has had its stretches, after some 16
seconds whatever the pair, and pauses and frames are left out.

It takes about three minutes with a small pair on two cores, with `--inside` about four. Some ten
seconds an answer are enough, so a slow pair needs fewer tokens.
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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pexpect

from localspec.chat.events import RoundText
from localspec.engine.llama import Model
from localspec.loading.load_request import LoadRequest
from localspec.pairs.names import resolver
from localspec.process.engine_client import EngineClient
from localspec.ui.chat_app import ChatApp
from localspec.ui.conversation.stream import EventInbox, FramePacer
from localspec.ui.screens.rounds import RoundScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from localspec.chat.events import TurnEvent

PLAYS_S = 2.5  # two pictures
NEIGHBOURS = 6  # pairs of stretches of an answer that are compared
FRAMES = 20
PROMPT = "Tell me a long story about a dog and a girl who travel around the world."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default="starter")
    parser.add_argument("--draft", help="another draft than the pair's")
    parser.add_argument("--answers", type=int, default=12, help="measured answers, 10 at least")
    parser.add_argument("--tokens", type=int, default=1800, help="tokens of each answer")
    parser.add_argument("--gamma", default="3")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--size", default="160x50", help="columns x rows")
    parser.add_argument("--inside", action="store_true", help="what a round costs that plays")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=int, nargs="*", help=argparse.SUPPRESS)
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
        child: pexpect.spawn[bytes] = pexpect.spawn(
            sys.executable,
            [*sys.argv, "--child", str(found), "--ends", *map(str, end_tokens(arguments))],
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


@dataclass
class Stretch:
    """Consecutive rounds of an answer; the screen goes along with them or is still."""

    along: bool
    began: float
    ended: float = math.nan
    rounds: int = 0

    @property
    def round_s(self) -> float:
        """How long a round took."""
        return (self.ended - self.began) / self.rounds


class Alternating(EventInbox):
    """Turn events on their way to a screen that gets them in every other stretch.

    Args:
        announce: makes the screen collect what there is, and draw.
        interval: seconds from frame to frame at present.
    """

    def __init__(self, announce: Callable[[], object], interval: Callable[[], float]) -> None:
        super().__init__(lambda: None)
        self._tell = announce
        self._interval = interval
        self.stretches: list[Stretch] = []
        self._now = 0.0  # seconds of rounds

    def put(self, event: TurnEvent) -> None:
        """Add `event` from another thread. Rounds arrive in bundles: each says how long it took."""
        super().put(event)
        if isinstance(event, RoundText):
            self._now += event.round.between_s + event.round.total_s
            self._round(self._now)
        else:
            self._tell()

    def _round(self, now: float) -> None:
        """Add a round to the stretch, and begin the next stretch if this one is long enough."""
        along = True
        if self.stretches:
            last = self.stretches[-1]
            last.ended, last.rounds = now, last.rounds + 1
            if now - last.began < self._interval():
                return
            along = not last.along
        self.stretches.append(Stretch(along, now))
        if along:
            self._tell()

    def along_over_still(self) -> float | None:
        """The speed while the screen goes along, over that while it is still; None if too short."""
        # The last stretch was cut off. Rounds take longer as the context grows, which cancels out
        # if both orders of neighbours are equally frequent.
        whole = self.stretches[: (len(self.stretches) - 2) // 2 * 2 + 1]
        logs = [
            math.log(one.round_s / other.round_s) * (-1 if one.along else 1)
            for one, other in pairwise(whole)
        ]
        return math.exp(statistics.fmean(logs)) if logs else None

    def still_s(self) -> float:
        """How long a round takes while the screen is still."""
        still = [one for one in self.stretches[:-1] if not one.along]
        return sum(one.ended - one.began for one in still) / sum(one.rounds for one in still)


class Played(Alternating):
    """Turn events on their way to a screen that gets all of them, while a round plays or not."""

    def __init__(
        self,
        announce: Callable[[], object],
        play: Callable[[bool], object],
        stop: Callable[[], object],
    ) -> None:
        super().__init__(lambda: None, lambda: PLAYS_S)
        self._announce = announce
        self._play = play
        self._stop = stop

    def put(self, event: TurnEvent) -> None:
        """Add `event` from another thread."""
        before = self.stretches[-1].along if self.stretches else None
        super().put(event)
        if self.stretches and self.stretches[-1].along != before:
            self._play(self.stretches[-1].along)
            if len(self.stretches) > NEIGHBOURS + 1:  # the last one is cut off
                self._stop()


class Counted(FramePacer):
    """Counts frames."""

    frames = 0

    def drawn(self) -> None:
        """A frame is being drawn."""
        self.frames += 1
        super().drawn()


class Driven(ChatApp):
    """The app with a coroutine in place of a user."""

    probes = 3

    def __init__(
        self, engine: EngineClient, answers: int, found: Path, *, inside: bool = False
    ) -> None:
        super().__init__(engine)
        self._answers = answers
        self._path = found
        self._over = asyncio.Event()
        self._inbox = self.turns.stream.inbox = Alternating(
            lambda: self.soon(self.turns.stream.news), lambda: self.turns.stream.pace.interval
        )
        self._inside = inside
        if inside:
            self._inbox = self.turns.stream.inbox = Played(
                lambda: self.soon(self.turns.stream.news),
                lambda on: self.soon(self._play, on),
                lambda: self.soon(self.turns.stop),
            )
            self.probes = 0
        self._pace = self.turns.stream.pace = Counted()
        self._found: dict[str, list[float]] = {
            name: [] for name in ("ratio", "still", "pauses", "cpu", "frames")
        }

    def _play(self, on: bool) -> None:
        """Let the view inside a round play, or stop it."""
        if isinstance(self.screen, RoundScreen):
            self.screen.player.playing = on

    def on_ready(self) -> None:
        """Begin as soon as the screen is drawn."""
        self.run_worker(self._drive())

    async def _drive(self) -> None:
        while self.session is None:
            await asyncio.sleep(0.05)
        for number in range(self._answers + 1):
            await self._measure(number > 0)  # the first warms up
        self.turns.stream.inbox = EventInbox(lambda: self.soon(self.turns.stream.news))
        for _ in range(self.probes):
            await self._probe()
        self._path.write_text(json.dumps(self._found), encoding="utf-8")
        self.leave()

    def _phase_changed(self) -> None:
        super()._phase_changed()
        if not self.turns.busy:
            self._over.set()

    async def _measure(self, counts: bool) -> None:
        self._inbox.stretches.clear()
        await self._begin()
        self._over.clear()
        if self._inside:
            self.action_command("round")
        # Frames are twice as far apart as in use, so the panel would take the text for stopped and
        # draw its figures while the screen has to be still.
        self.dashboard.run(self._inside)
        await self._over.wait()
        ratio = self._inbox.along_over_still()
        if self._inside:
            view = self.screen
            if not (isinstance(view, RoundScreen) and view.player.kept):
                ratio = None  # nothing has played
            self.pop_screen()
        if counts and ratio is not None:
            self._found["ratio"].append(ratio)
            self._found["still"].append(1 / self._inbox.still_s())
        await asyncio.sleep(0.3)  # let the last frames pass

    async def _begin(self) -> None:
        self.turns.clear()
        while not self.turns.reserve():
            await asyncio.sleep(0.01)
        self.turns.ask(PROMPT)

    async def _probe(self) -> None:
        await self._begin()
        started, cpu, frames = time.perf_counter(), time.thread_time(), self._pace.frames
        while self.turns.busy:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self._found["pauses"].append(time.perf_counter() - before - 0.005)
        passed = time.perf_counter() - started
        self._found["cpu"].append((time.thread_time() - cpu) / passed)
        self._found["frames"].append((self._pace.frames - frames) / passed)


def run_child(arguments: argparse.Namespace) -> None:
    options = LoadRequest(
        pair=arguments.pair,
        draft=arguments.draft,
        temp=0.0,
        n_predict=-1 if arguments.inside else arguments.tokens,
        gamma=int(arguments.gamma) if arguments.gamma.isdigit() else arguments.gamma,
        threads=arguments.threads,
        # Every answer has its full length: what begins and ends it is a small part then.
        logit_bias=tuple((token, -math.inf) for token in arguments.ends),
    )
    engine, inside = EngineClient(options), arguments.inside
    drive(Driven(engine, arguments.answers, arguments.child, inside=inside))


def end_tokens(arguments: argparse.Namespace) -> list[int]:
    """The tokens that would end an answer."""
    with Model.load(resolver.resolve(arguments.pair, arguments.draft).target) as model:
        return list(model.end_tokens)


def drive(app: ChatApp) -> None:
    """Run the app until it leaves by itself."""
    app.run()
    app.engine.shut_down()
    app.engine.join(10)


def report(arguments: argparse.Namespace, found: dict[str, list[float]], what: str) -> None:
    if not found["ratio"]:
        raise SystemExit("the answers were over before there was anything to compare: --tokens")
    ratio, low, high = middle(np.array(found["ratio"]))
    inside, answers = arguments.inside, len(found["ratio"])
    each = "stopped in time" if inside else f"{arguments.tokens} tokens each"
    print(f"{what}, {arguments.size}, {answers} answers, {each}; {platform.machine()}, "
          f"{os.cpu_count()} cores, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print()
    print("| | median |")
    print("|---|---|")
    shown = "a playing round" if inside else "the screen"
    print(f"| rounds/s while {shown} is still | {np.median(found['still']):.1f} |")
    print(f"| speed with {shown} over without, 95 % interval "
          f"| {ratio:.3f} ({low:.3f} to {high:.3f}) |")  # fmt: skip
    if found["pauses"]:
        probed(found)
    margin = 1 if inside else 2
    least = 1 - margin / 100
    if high - low > margin / 100 and low < least < high:
        print("\nundecided, the interval is wider than the margin asked for")
    else:
        print(f"\nat most {margin} % is {'met' if high >= least else 'not met'}")


def probed(found: dict[str, list[float]]) -> None:
    """Print what the further answers have shown, which were drawn as in use."""
    pauses = np.array(found["pauses"]) * 1000
    print(f"| pauses of the event loop, 50th / 99th percentile | "
          f"{np.percentile(pauses, 50):.1f} / {np.percentile(pauses, 99):.1f} ms |")  # fmt: skip
    print(
        f"| screen's share of a core while probed | {100 * statistics.mean(found['cpu']):.0f} % |"
    )
    frames = statistics.median(found["frames"])
    print(f"| frames a second while probed, {FRAMES} with a core to spare | {frames:.1f} |")


def middle(values: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % interval."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


if __name__ == "__main__":
    main()
