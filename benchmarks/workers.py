"""Two workers on loopback: the same answers, kills, and what a network's delay makes of drafting.

    python -m benchmarks.workers same --record same.jsonl [--prompts 20]
    python -m benchmarks.workers kills --record kills.jsonl [--kills 50] [--seed 1]
    python -m benchmarks.workers delay --record delay.jsonl [--delays 5,20] [--answers 24]
    python -m benchmarks.workers passes --record passes.jsonl [--delays 20,5,0]

llama.cpp has to be built with RPC. Each worker may take `--memory` GB (by default 1), one thread
each: with the pair that `models/enlarge.py demo --target-size 1G --draft-size 100M --type q8_0`
writes, and ``--memory 0.75`` (of which 0.4 are left free), no worker holds the target alone.

A run ends after `--minutes`; the next one goes on where the record ends.

`same`: greedy answers with the workers and without are compared token by token; where they part,
the first place is printed. They are the same bit for bit where both sides compute with the same
kernels: here with weights that llama.cpp does not rearrange for this processor, one thread, no
flash attention, and the same batches.
`kills`: one of the workers is killed at a random moment of an answer: the chat's process has to
hear which in a sentence, to keep what was written, and to load again without it. Told is how long
before the kill the last round was heard, in rounds: more than two would mean that one was lost.
`delay`: a relay delays every byte by so many milliseconds in each direction. Answers take turns:
fixed lengths, automatic, and every third time plain. A third of them chooses the best fixed length,
the others score it. An answer of 60 tokens takes 5 to 20 seconds with that pair.
`passes`: what passes of the target take behind such a relay, and what the first of a size takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from localspec.chat.events import RoundText
from localspec.chat.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import scratch
from localspec.engine.llama import Context
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest
from localspec.process import messages as m
from localspec.process.engine_client import EngineClient
from tests.support import ENDLESS
from tests.support.workers import relay, worker

PROMPT = "Tell me a story about a {}."
THINGS = ("dog", "cat", "bird", "boat", "tree", "king", "ball", "cake", "fish", "car")
FIXED = (2, 4, 8, 12)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=tuple(DOES))
    parser.add_argument("--record", type=Path, required=True, help="JSON lines, added to")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--memory", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--delays", default="5,20")
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
          f" {arguments.target}")  # fmt: skip
    record = Record(arguments.record, arguments.minutes)
    DOES[arguments.what](arguments, record)
    if record.ended:
        print("The time is up: run it again for the rest.")


class Record:
    """What was found so far, a JSON line each: a run goes on where the last one ended."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] \
            if path.exists() else []  # fmt: skip
        self.ended = False
        self._path, self._until = path, time.monotonic() + 60 * minutes

    def missing(self, **what: Any) -> bool:
        """Whether there is no row with these values, and time to find them."""
        if any(what.items() <= row.items() for row in self.rows):
            return False
        self.ended = time.monotonic() > self._until
        return not self.ended

    def add(self, **row: Any) -> None:
        """Write down what was found."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def asked(arguments: argparse.Namespace, *workers: str) -> LoadRequest:
    """What is loaded: one thread here, too."""
    return LoadRequest(
        pair=arguments.target,
        draft=arguments.draft,
        rpc=workers,
        threads=1,
        ctx_size=1024,
        temp=0.0,
        gamma=4,
        n_predict=arguments.tokens,
        flash_attn="off",
        n_gpu_layers=-1,  # this machine would hold some, or all
        tensor_split=(1.0, 1.0)[: len(workers)],
    )


@contextmanager
def two(arguments: argparse.Namespace) -> Iterator[list[tuple[str, Any]]]:
    """Two workers: their addresses and processes."""
    with ExitStack() as running:
        memory = ("--memory", str(arguments.memory))
        yield [running.enter_context(worker(*memory)) for _ in range(2)]


def answered(session: Session, prompt: str) -> tuple[list[int], float]:
    """The tokens of an answer, and how many of them a second after the first round."""
    tokens: list[int] = []
    begun, first = 0.0, 0
    session.reset()
    for event in session.turn(prompt, Cancel()):
        if isinstance(event, RoundText):
            tokens += event.round.tokens
            if not begun:
                begun, first = time.perf_counter(), len(tokens)
    return tokens, (len(tokens) - first) / (time.perf_counter() - begun)


def loaded(request: LoadRequest) -> Session:
    return load_session(request, progress=lambda _step, _share: None, cancel=Cancel())


def same(arguments: argparse.Namespace, record: Record) -> None:
    """Compare answers with the workers and without."""
    prompts = [PROMPT.format(THINGS[i % len(THINGS)]) + " Please." * (i // len(THINGS))
               for i in range(arguments.prompts)]  # fmt: skip
    alone = loaded(asked(arguments))
    with two(arguments) as workers, closing(alone):
        shared = loaded(asked(arguments, *(endpoint for endpoint, _ in workers)))
        with closing(shared):
            for prompt in prompts:
                if record.missing(prompt=prompt):
                    here, there = (answered(each, prompt)[0] for each in (alone, shared))
                    alike = [one == other for one, other in zip(here, there, strict=False)]
                    parts = None if here == there else (*alike, False).index(False)
                    record.add(prompt=prompt, tokens=len(here), parts=parts)
    alike = sum(row["parts"] is None for row in record.rows)
    print(f"{alike} of {len(record.rows)} answers of {arguments.tokens} tokens are the same")
    for row in record.rows:
        if row["parts"] is not None:
            print(f"{row['prompt']!r} parts at token {row['parts']}")


class Killing:
    """An engine in a process of its own, whose workers are killed."""

    def __init__(self, request: LoadRequest) -> None:
        self._said: queue.Queue[tuple[float, m.Letter[m.Event]]] = queue.Queue()
        self.heard: list[float] = []  # when rounds of the answer were
        self.engine = EngineClient(request)
        self.engine.listen(lambda letter: self._said.put((time.monotonic(), letter)))

    def until(self, *kinds: type) -> Any:
        """The next event of these kinds."""
        while True:
            at, letter = self._said.get(timeout=120)
            self.engine.settle(letter)
            if isinstance(letter.body, m.Turn) and isinstance(letter.body.event, RoundText):
                self.heard.append(at)
            if isinstance(letter.body, kinds):
                return letter.body
            if isinstance(letter.body, m.LoadFailed):
                raise SystemExit(letter.body.error and letter.body.error.message)

    def reload(self, **changes: Any) -> m.SessionInfo:
        """Load again; once more where the engine still held a worker that is gone."""
        self.engine.reload((), **changes)
        event = self.until(m.Loaded, m.Died)
        if isinstance(event, m.Loaded):
            return event.info
        self.engine.reload((), **changes)
        info: m.SessionInfo = self.until(m.Loaded).info
        return info

    def ask(self, thing: str, **how: Any) -> None:
        """Have a story begun."""
        assert self.engine.info is not None
        self.heard.clear()
        self.engine.configure(replace(self.engine.info.settings, **how))
        self.engine.reserve()
        self.engine.ask(PROMPT.format(thing))


def kills(arguments: argparse.Namespace, record: Record) -> None:
    """Kill workers in the middle of answers."""
    # Of the layers each worker takes what it has room for; without one, memory decides.
    request = replace(asked(arguments), ctx_size=2048, n_gpu_layers=None, tensor_split=(1.0, 1.0))
    killing = Killing(request)
    killing.until(m.Loaded)
    for number in range(arguments.kills):
        if record.missing(kill=number):
            rng = random.Random(f"{arguments.seed} {number}")
            with two(arguments) as workers:
                record.add(kill=number, rounds_ago=killed(killing, workers, rng))
    killing.engine.shut_down()
    killing.engine.join(20)
    ago = [row["rounds_ago"] for row in record.rows]
    print(f"{len(ago)} of {arguments.kills} kills: each was told, and the pair answered without"
          f" the worker; the last round was at most {max(ago):.1f} rounds before it")  # fmt: skip


def killed(killing: Killing, workers: list[tuple[str, Any]], rng: random.Random) -> float:
    """Kill one of `workers` in an answer; how long before the last round was heard, in rounds."""
    killing.reload(rpc=tuple(endpoint for endpoint, _ in workers))
    killing.ask(rng.choice(THINGS), n_predict=-1, grammar=ENDLESS)
    for _ in range(rng.randrange(3, 20)):
        killing.until(m.Turn)
    time.sleep(rng.uniform(0, 1))
    endpoint, process = rng.choice(workers)
    at = time.monotonic()
    process.kill()
    message = killing.until(m.Died).error.message
    assert message.startswith(f"the worker at {endpoint} went away"), message
    before = [when for when in killing.heard if when < at]
    usual = max(later - when for when, later in pairwise(before))
    notices = killing.reload().notices
    assert any("its devices are left out" in each for each in notices), notices
    killing.ask("dog", n_predict=8, grammar="")
    assert killing.until(m.TurnOver).error is None
    return (at - before[-1]) / usual


def delay(arguments: argparse.Namespace, record: Record) -> None:
    """Compare plain decoding, fixed lengths and the automatic one behind delays."""
    for milliseconds in map(float, arguments.delays.split(",")):
        _measure(arguments, record, milliseconds)
    print("| delay | best fixed | it over plain | automatic over it | 95 % interval |")
    print("|---|---|---|---|---|")
    for milliseconds in map(float, arguments.delays.split(",")):
        speeds: dict[Any, dict[int, float]] = {arm: {} for arm in ("auto", 0, *FIXED)}
        for row in record.rows:
            if row["delay"] == milliseconds:
                speeds[row["arm"]][row["answer"]] = row["speed"]
        whole = sorted(set.intersection(*(set(speeds[arm]) for arm in ("auto", *FIXED))))
        chosen, scored = whole[: len(whole) // 3], whole[len(whole) // 3 :]
        if not chosen:
            continue
        best = max(FIXED, key=lambda arm: median(speeds[arm][each] for each in chosen))
        plain = speeds[0].items()
        gains = [speeds[best][each] / speed for each, speed in plain if each in whole]
        ratios = np.array([speeds["auto"][each] / speeds[best][each] for each in scored])
        low, high = interval(ratios, arguments.seed)
        print(f"| {milliseconds:g} ms | {best} | {median(gains):.2f} | {np.median(ratios):.3f} |"
              f" {low:.3f} to {high:.3f} ({len(scored)}) |")  # fmt: skip


def _measure(arguments: argparse.Namespace, record: Record, milliseconds: float) -> None:
    """Have what is missing of one delay answered."""
    wanted = [
        (number, arm)
        for number in range(arguments.answers)
        for arm in ("auto", *FIXED, 0)[:: 1 - 2 * (number % 2)]
        if arm != 0 or number % 3 == 0
    ]
    if not any(record.missing(delay=milliseconds, answer=n, arm=arm) for n, arm in wanted):
        return
    with far(arguments, milliseconds, "auto") as session:
        for number, arm in wanted:
            if record.missing(delay=milliseconds, answer=number, arm=arm):
                session.settings = replace(session.settings, gamma=arm)
                speed = answered(session, PROMPT.format(THINGS[number % len(THINGS)]))[1]
                record.add(delay=milliseconds, answer=number, arm=arm, speed=speed)


@contextmanager
def far(
    arguments: argparse.Namespace, milliseconds: float, gamma: int | Literal["auto"]
) -> Iterator[Session]:
    """The pair over two workers behind a delay."""
    with two(arguments) as workers, ExitStack() as relays:
        behind = [relays.enter_context(relay(endpoint, milliseconds / 1000))
                  for endpoint, _ in workers]  # fmt: skip
        with closing(loaded(replace(asked(arguments, *behind), gamma=gamma))) as session:
            yield session


def passes(arguments: argparse.Namespace, record: Record) -> None:
    """Time passes of the target, each size's first one apart."""
    for milliseconds in map(float, arguments.delays.split(",")):
        if record.missing(delay=milliseconds, n=SIZES[-1]):
            with far(arguments, milliseconds, 4) as session:
                target = session.pair.target
                for n in SIZES:
                    first, *later = (_seconds(target, n) for _ in range(6))
                    record.add(delay=milliseconds, n=n, first=first, later=median(later))
    for row in record.rows:
        print(f"{row['delay']:g} ms, {row['n']} tokens: {1000 * row['later']:.0f} ms, the first"
              f" {1000 * row['first']:.0f} ms")  # fmt: skip


def _seconds(target: Context, n: int) -> float:
    kept, tokens = len(target.tokens), scratch(target, n)
    begun = time.perf_counter()
    target.decode(tokens, n)
    seconds = time.perf_counter() - begun
    target.truncate(kept)
    return seconds


def interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Of the median, by drawing again."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


DOES = {"same": same, "kills": kills, "delay": delay, "passes": passes}

if __name__ == "__main__":
    main()
