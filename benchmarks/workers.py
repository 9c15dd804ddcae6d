"""Two workers on loopback: the same answers, kills, and what a network's delay makes of drafting.

    python -m benchmarks.workers same [--prompts 20]
    python -m benchmarks.workers kills [--kills 50] [--seed 1]
    python -m benchmarks.workers delay [--delays 0,5,20] [--answers 24]

llama.cpp has to be built with RPC. Each worker may take `--memory` GB (by default 1), one thread
each: with the pair that `models/enlarge.py demo --target-size 1G --draft-size 100M` writes, and
``--memory 0.75`` (of which 0.4 are left free), no worker holds the target alone.

`same`: greedy answers with the workers and without are compared token by token; where they part,
the first place is printed. They are the same bit for bit where both sides compute with the same
kernels: here with `--no-repack` in effect (weights on a worker are never rearranged), one thread,
and the same batches.
`kills`: one of the workers is killed at a random moment of an answer: the chat's process has to
hear of it in a sentence, to keep what was written, and to load again without it.
`delay`: a relay delays every byte by so many milliseconds in each direction. Answers take turns:
plain, fixed lengths, automatic. A third of them chooses the best fixed length, the others score it.
Takes a second an answer and a GB, and the delay for every pass.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from localspec.chat.events import RoundText
from localspec.chat.session import Session
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.request import LoadRequest
from localspec.process import messages as m
from localspec.process.client import EngineClient
from tests.support import ENDLESS
from tests.support.workers import relay, worker

PROMPT = "Tell me a story about a {}."
THINGS = ("dog", "cat", "bird", "boat", "tree", "king", "ball", "cake", "fish", "car")
FIXED = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("same", "kills", "delay"))
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft")
    parser.add_argument("--memory", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--delays", default="0,5,20")
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
          f" {arguments.target}")  # fmt: skip
    {"same": same, "kills": kills, "delay": delay}[arguments.what](arguments)


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


def same(arguments: argparse.Namespace) -> None:
    """Compare answers with the workers and without."""
    prompts = [PROMPT.format(THINGS[i % len(THINGS)]) + " Please." * (i // len(THINGS))
               for i in range(arguments.prompts)]  # fmt: skip
    alone = loaded(asked(arguments))
    here = [answered(alone, prompt)[0] for prompt in prompts]
    alone.close()
    with two(arguments) as workers:
        shared = loaded(asked(arguments, *(endpoint for endpoint, _ in workers)))
        there = [answered(shared, prompt)[0] for prompt in prompts]
        shared.close()
    alike = sum(one == other for one, other in zip(here, there, strict=True))
    print(f"{alike} of {len(prompts)} answers of {arguments.tokens} tokens are the same")
    for prompt, one, other in zip(prompts, here, there, strict=True):
        if one != other:
            pairs = enumerate(zip(one, other, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
            print(f"{prompt!r} parts at token {at}")


class Killing:
    """An engine in a process of its own, whose workers are killed."""

    def __init__(self, request: LoadRequest) -> None:
        self._said: queue.Queue[m.Letter[m.Event]] = queue.Queue()
        self.engine = EngineClient(request)
        self.engine.listen(self._said.put)

    def until(self, *kinds: type) -> Any:
        """The next event of these kinds."""
        while True:
            letter = self._said.get(timeout=120)
            self.engine.settle(letter)
            if isinstance(letter.body, kinds):
                return letter.body

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
        self.engine.configure(replace(self.engine.info.settings, **how))
        self.engine.reserve()
        self.engine.ask(PROMPT.format(thing))


def kills(arguments: argparse.Namespace) -> None:
    """Kill workers in the middle of answers."""
    rng = random.Random(arguments.seed)
    killing = Killing(replace(asked(arguments), ctx_size=8192))
    killing.until(m.Loaded)
    for number in range(arguments.kills):
        with two(arguments) as workers:
            endpoints = tuple(endpoint for endpoint, _ in workers)
            killing.reload(rpc=endpoints)
            killing.ask(rng.choice(THINGS), n_predict=-1, grammar=ENDLESS)
            killing.until(m.Turn)
            time.sleep(rng.uniform(0, 1))
            rng.choice(workers)[1].kill()
            message = killing.until(m.Died).error.message
            assert "a worker went away" in message, message
            notices = killing.reload().notices
            assert any("its devices are left out" in each for each in notices), notices
            killing.ask("dog", n_predict=8, grammar="")
            assert killing.until(m.TurnOver).error is None
        print(f"\r{number + 1} of {arguments.kills} kills", end="", flush=True)
    print(": each was told, and the pair answered without the worker")
    killing.engine.shut_down()
    killing.engine.join(20)


def delay(arguments: argparse.Namespace) -> None:
    """Compare plain decoding, fixed lengths and the automatic one behind delays."""
    print("| delay | best fixed | it over plain | automatic over it | 95 % interval |")
    print("|---|---|---|---|---|")
    arms: list[Any] = [0, "auto", *FIXED]
    for milliseconds in map(float, arguments.delays.split(",")):
        with two(arguments) as workers, ExitStack() as relays:
            far = [relays.enter_context(relay(endpoint, milliseconds / 1000))
                   for endpoint, _ in workers]  # fmt: skip
            session = loaded(replace(asked(arguments, *far), gamma="auto"))
            speeds: dict[Any, list[float]] = {arm: [] for arm in arms}
            for number in range(arguments.answers):
                for arm in arms if number % 2 else arms[::-1]:
                    session.settings = replace(session.settings, gamma=arm)
                    prompt = PROMPT.format(THINGS[number % len(THINGS)])
                    speeds[arm].append(answered(session, prompt)[1])
            session.close()
        third = arguments.answers // 3
        best = max(FIXED, key=lambda arm: median(speeds[arm][:third]))
        fixed, plain = np.array(speeds[best][third:]), np.array(speeds[0][third:])
        ratios = np.array(speeds["auto"][third:]) / fixed
        low, high = interval(ratios, arguments.seed)
        print(f"| {milliseconds:g} ms | {best} | {np.median(fixed / plain):.2f} |"
              f" {np.median(ratios):.3f} | {low:.3f} to {high:.3f} |", flush=True)  # fmt: skip


def interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Of the median, by drawing again."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    main()
