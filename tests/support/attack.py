"""The standing attack: hostile and damaged input in large numbers, one suite after the other.

    uv run python -m tests.support.attack all --cases 100 --seed 1
    uv run python -m tests.support.attack models --cases 10000 --seed 2
    uv run python -m tests.support.attack models --cases 10000 --seed 2 --first 4200

What fails is printed so that it can be repeated, with its number; after every hundred cases it is
said how far the run has come, and `--first` continues there. The tests run a sample of each suite;
what its cases are is in the module of `tests` that it runs. `docs/measurements/README.md` has the
results.
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

_LONGEST_S = 0.25  # processor time of a step on the screen's thread
_A_TIME = 100  # cases between two words of progress

# ruff: noqa: PLC0415 - some suites need a pseudo-terminal, which Windows lacks


def models(numbers: range, folder: Path) -> Iterable[str]:
    """Damaged GGUF files: targets, drafts, parts of split models; 1 GB at most and 20 s each."""
    from tests.support import damaged

    files = damaged.damaged_files(folder, numbers)
    bad = (one for one in damaged.load_all(files) if one.end in ("died", "hung", "fault"))
    return (f"{one.end} {one.detail}: {one.path.name}: {one.what}" for one in bad)


def templates(numbers: range, _folder: Path) -> Iterable[str]:
    """Chat templates that loop, grow, refuse or write nothing."""
    from tests.test_hostile_templates import attack

    return _each(numbers, attack)


def screen(numbers: range, _folder: Path) -> Iterable[str]:
    """Answers and imports on the screen: no step above 250 ms, no control character out."""
    from tests.support.hostile_texts import hostile, show

    for number in numbers:
        shown = show(hostile(number), number)
        if shown.controls or shown.slowest[0] > _LONGEST_S:
            yield f"{number}: {shown.slowest}, controls {shown.controls[:20]!r}"


def stores(numbers: range, folder: Path) -> Iterable[str]:
    """Damaged conversation databases: what is undamaged is shown, nothing is deleted."""
    from tests.test_damaged_history import attack, written

    with TemporaryDirectory(dir=folder) as sound_folder:
        sound = written(Path(sound_folder))
        yield from _each(numbers, lambda number: attack(number, sound, folder))


def records(numbers: range, folder: Path) -> Iterable[str]:
    """Damaged records of pairs, the last pair, measured costs and settings."""
    from tests.support.hostile_records import attack

    return attack(numbers, folder)


def options(numbers: range, folder: Path) -> Iterable[str]:
    """Values of every option of every command."""
    from tests.support.hostile_options import attack

    return attack(numbers, folder)


def hub(numbers: range, folder: Path) -> Iterable[str]:
    """Faulty Hub servers: the right file or a refusal, soon, and little read beyond it."""
    from tests.support.hostile_hub import attack_server

    return _each(numbers, lambda number: attack_server(number, folder))


def caches(numbers: range, folder: Path) -> Iterable[str]:
    """Planted caches: whatever is found there, the right file or a refusal."""
    from tests.support.hostile_hub import attack_cache

    return _each(numbers, lambda number: attack_cache(number, folder))


def pulls(numbers: range, folder: Path) -> Iterable[str]:
    """Pulls killed at random moments: the right hash at the end, one block read twice at most."""
    from tests.support.hostile_hub import attack_pull

    return _each(numbers, lambda number: attack_pull(number, folder))


def engines(numbers: range, _folder: Path) -> Iterable[str]:
    """Kills of the engine by two signals: nothing that was seen is lost."""
    if os.name == "nt":
        return ["needs a pseudo-terminal"]
    kills = max(1, len(numbers) // 2)
    command = ["tests.support.kills", "--kills", str(kills), "--seed", str(numbers[0])]
    return _run("-m", *command)


def chats(numbers: range, folder: Path) -> Iterable[str]:
    """The chat killed by three signals, and its files copied in the middle of an answer."""
    if os.name == "nt":
        return ["needs a pseudo-terminal"]
    from tests.support.kills import ENDS, kill_app

    def attack(number: int) -> None:
        with TemporaryDirectory(dir=folder) as data:
            kill_app(Path(data), number, ENDS[number % len(ENDS)])

    return _each(numbers, attack)


SUITES = {
    each.__name__: each
    for each in (
        *(models, templates, screen, stores, records, options),
        *(hub, caches, pulls, engines, chats),
    )
}


def _each(numbers: range, attack: Callable[[int], object]) -> Iterable[str]:
    for number in numbers:
        try:
            attack(number)
        except Exception as error:
            yield f"{number}: {type(error).__name__}: {str(error)[:300]}"


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
    parser.add_argument("--first", type=int, default=0, help="the case to go on with")
    given = parser.parse_args()
    failures = 0
    for name in SUITES if given.suite == "all" else [given.suite]:
        begun, bad = time.monotonic(), 0
        for start in range(given.first, given.cases, _A_TIME):
            end = min(start + _A_TIME, given.cases)
            base = given.seed * 10**6
            with TemporaryDirectory() as folder:
                for line in SUITES[name](range(base + start, base + end), Path(folder)):
                    bad += 1
                    print(f"  {line}", flush=True)
            print(f"  {name}: {end} of {given.cases}, {bad} failures", flush=True)
        took = duration(time.monotonic() - begun)
        print(f"{name}: {given.cases} cases, seed {given.seed}, {bad} failures, {took}", flush=True)
        failures += bad
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
