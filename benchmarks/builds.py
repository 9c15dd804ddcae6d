"""Compare the speed of two builds of llama.cpp, each installed in its own environment.

Both builds load the same model, each in a process of its Python, and take turns: passes of one
token, of four, and a prompt of 256. While one measures, the other waits for its standard input.
For each kind of pass the script prints the speed of the second build over the first one's: the
median of the turns with a bootstrap interval of 95 %.

    python benchmarks/builds.py MODEL.gguf NATIVE/bin/python WHEEL/bin/python --seconds 80

Both environments need localspec. `--keep FILE` adds the turns to those of earlier runs there, so
that a machine can rest in between. `--processor` counts the processor's time, with one thread,
which other programs disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter, process_time, sleep

import numpy as np

from localspec.engine.length.profile import scratch
from localspec.engine.llama import Context, ContextOptions, Model, build, variant

KINDS = {"T(1)": 1, "T(4)": 4, "prompt": 256}
LEAST_S = 0.3
REST_S = 0.25
"""A pool of OpenMP's threads spins for a while after its work, which the other must not feel."""


def measured(context: Context, n: int, clock: Callable[[], float]) -> float:
    """Seconds of a pass over n tokens, on average over at least `LEAST_S`."""
    rows = 1 if n == KINDS["prompt"] else n
    started = clock()
    for passes in count(1):
        context.decode(scratch(context, n), rows)
        context.wait()
        context.truncate(0)
        taken = clock() - started
        if taken >= LEAST_S:
            return taken / passes
    raise AssertionError


def serve(given: argparse.Namespace) -> None:
    """Load the model, then answer each number on standard input with the seconds of a pass."""
    clock, threads = (process_time, 1) if given.processor else (perf_counter, given.threads)
    with (
        Model.load(given.model, n_gpu_layers=0) as model,
        Context(model, ContextOptions(n_ctx=512, threads=threads)) as context,
    ):
        for n in KINDS.values():  # the first pass of a size reserves memory
            measured(context, n, clock)
        print(json.dumps([build(), variant()]), flush=True)
        for line in sys.stdin:
            print(measured(context, int(line), clock), flush=True)


class Build:
    """A process that measures with the llama.cpp of one environment."""

    def __init__(self, python: str, given: argparse.Namespace) -> None:
        command = [python, __file__, str(given.model), python, python, "--serve"]
        command += ["--threads", str(given.threads)] if given.threads else []
        command += ["--processor"] if given.processor else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name = " ".join(json.loads(self._line()))

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self, n: int) -> float:
        """Seconds of a pass over n tokens, now."""
        assert self.process.stdin is not None
        sleep(REST_S)
        print(n, file=self.process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def turns(given: argparse.Namespace) -> list[dict[str, tuple[float, float]]]:
    """Seconds of both builds for each kind of pass, turn by turn; the first build alternates."""
    found: list[dict[str, tuple[float, float]]] = []
    end = perf_counter() + given.seconds
    builds = [Build(python, given) for python in (given.first, given.second)]
    try:
        for each in builds:
            print(f"# {each.name}")
        while perf_counter() < end:
            order = builds if len(found) % 2 == 0 else builds[::-1]
            turn = {}
            for kind, n in KINDS.items():
                took = {each: each.seconds(n) for each in order}
                turn[kind] = (took[builds[0]], took[builds[1]])
            found.append(turn)
    finally:
        for each in builds:
            each.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("first", help="Python of the environment that is the yardstick")
    parser.add_argument("second", help="Python of the environment that is compared with it")
    parser.add_argument("--seconds", type=float, default=60.0, help="no turn begins after these")
    parser.add_argument("--threads", type=int, help="by default one for each core")
    parser.add_argument("--processor", action="store_true", help="by processor time, one thread")
    parser.add_argument("--keep", type=Path, help="file with earlier turns, to which these go")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return
    found = turns(given)
    if given.keep:
        with given.keep.open("a") as kept:
            kept.writelines(json.dumps(turn) + "\n" for turn in found)
        found = [json.loads(line) for line in given.keep.read_text().splitlines()]
    rng = np.random.default_rng(0)
    for kind in KINDS:
        ratios = np.array([turn[kind][0] / turn[kind][1] for turn in found])
        draws = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
        low, high = np.percentile(draws, (2.5, 97.5))
        first, second = (statistics.median(turn[kind][i] for turn in found) for i in (0, 1))
        print(
            f"{given.model.name}  {kind:7} {1000 * first:9.2f} {1000 * second:9.2f} ms"
            f"  speed {np.median(ratios):.3f} ({low:.3f} to {high:.3f}), {len(ratios)} turns"
        )


if __name__ == "__main__":
    main()
