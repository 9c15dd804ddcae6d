"""The standing attack: hostile and damaged input in large numbers, one suite after the other.

    uv run python -m benchmarks.attack all --cases 100 --seed 1
    uv run python -m benchmarks.attack models --cases 10000 --seed 2

What fails is printed so that it can be repeated. The tests run a sample of each suite; what its
cases are is in the module of `tests` that it runs. `docs/measurements/attacks.md` has the results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from localspec.formats import duration

_LONGEST_S = 0.25  # of a step on the screen's thread

# ruff: noqa: PLC0415 - some suites need a pseudo-terminal, which Windows lacks


def models(seed: int, cases: int, folder: Path) -> Iterable[str]:
    """Damaged GGUF files, loaded in a child with 1 GB at most and 20 s each."""
    from tests.support import damaged

    files = damaged.damaged_files(folder, seed, cases)
    bad = (one for one in damaged.load_all(files) if one.end in ("died", "hung", "fault"))
    return (f"{one.end} {one.detail}: {one.path.name}: {one.what}" for one in bad)


def templates(seed: int, cases: int, _folder: Path) -> Iterable[str]:
    """Chat templates that loop, grow, refuse or write nothing."""
    from tests.test_hostile_templates import attack

    return _each(seed, cases, attack)


def screen(seed: int, cases: int, _folder: Path) -> Iterable[str]:
    """Answers and imports on the screen: no step above 250 ms, no control character out."""
    from tests.support.hostile_texts import hostile, show

    for number in _numbers(seed, cases):
        shown = show(hostile(number), number)
        if shown.controls or shown.slowest[0] > _LONGEST_S:
            yield f"{number}: {shown.slowest}, controls {shown.controls[:20]!r}"


def stores(seed: int, cases: int, folder: Path) -> Iterable[str]:
    """Damaged conversation databases: what is undamaged is shown, nothing is deleted."""
    from tests.test_damaged_history import attack, written

    sound = written(folder / "sound")
    return _each(seed, cases, lambda number: attack(number, sound, folder))


def records(seed: int, cases: int, folder: Path) -> Iterable[str]:
    """Damaged records of pairs, the last pair, measured costs and settings."""
    from tests.support.hostile_records import attack

    return attack(seed, cases, folder)


def options(seed: int, cases: int, folder: Path) -> Iterable[str]:
    """Values of every option of every command."""
    from tests.support.hostile_options import attack

    return attack(seed, cases, folder)


def hub(_seed: int, cases: int, _folder: Path) -> Iterable[str]:
    """Faulty Hub servers and planted caches: the tests' cases, again and again."""
    return _pytest(cases, "tests/test_hub_hostile.py")


def pulls(_seed: int, cases: int, _folder: Path) -> Iterable[str]:
    """Killed pulls, ten seeded moments a time: the right hash at the end, little read twice."""
    return _pytest(cases, "tests/test_pull.py", "-k", "killed_pull")


def kills(seed: int, cases: int, _folder: Path) -> Iterable[str]:
    """Kills of the engine by two signals and of the chat: nothing that was seen is lost."""
    if os.name == "nt":
        return ["needs a pseudo-terminal"]
    command = ["benchmarks.kills", "--kills", str(max(1, cases // 3)), "--seed", str(seed)]
    return _run("-m", *command)


SUITES = {
    each.__name__: each
    for each in (models, templates, screen, stores, records, options, hub, pulls, kills)
}


def _numbers(seed: int, cases: int) -> range:
    return range(seed * 10**6, seed * 10**6 + cases)


def _each(seed: int, cases: int, attack: Callable[[int], object]) -> Iterable[str]:
    for number in _numbers(seed, cases):
        try:
            attack(number)
        except Exception as error:
            yield f"{number}: {type(error).__name__}: {str(error)[:300]}"


def _pytest(cases: int, *arguments: str) -> Iterable[str]:
    """Run tests, slow ones too, again and again until so many cases have been."""
    listed = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *arguments]
    found = subprocess.run(
        [sys.executable, *listed, "--collect-only"], capture_output=True, text=True, check=True
    )
    a_time = max(1, sum("::" in line for line in found.stdout.splitlines()))
    for _ in range(-(-cases // a_time)):
        yield from _run(*listed)


def _run(*arguments: str) -> Iterable[str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    return [(done.stdout + done.stderr)[-2000:]] if done.returncode else []


def main() -> int:
    """Run the suites that the command line names; 1 where anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=[*SUITES, "all"])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failures = 0
    for name in SUITES if given.suite == "all" else [given.suite]:
        begun, bad = time.monotonic(), 0
        with TemporaryDirectory() as folder:
            for line in SUITES[name](given.seed, given.cases, Path(folder)):
                bad += 1
                print(f"  {line}", flush=True)
        took = duration(time.monotonic() - begun)
        print(f"{name}: {given.cases} cases, seed {given.seed}, {bad} failures, {took}", flush=True)
        failures += bad
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
