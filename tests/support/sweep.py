"""Thousands of options, environments and files: an answer or a sentence each, never a fault.

::

    python -m tests.support.sweep                      # 3,000 options, 500 environments, 300 files
    python -m tests.support.sweep --seed 7 files 300   # one kind, the same cases again

The tests draw a few of the same cases (`tests/test_hostile_options.py`, `tests/test_sweep.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest import mock

from localspec.pairs.disk import starter
from tests.support import costs, hostile_files, hostile_options, hostile_surroundings


def options(seed: int, count: int, folder: Path) -> list[str]:
    """Two thirds are refused whatever they are given, a third may be answered."""
    refused = count * 2 // 3
    nobody, toy = folder / "nobody", folder / "toy"
    nobody.mkdir()
    toy.mkdir()
    wrong = hostile_options.attack(range(seed, seed + refused), nobody)
    return wrong + hostile_options.attack_answers(seed, count - refused, toy)


def environments(seed: int, count: int, folder: Path) -> list[str]:
    """A process each."""
    return hostile_surroundings.attack(seed, count, folder)


KINDS: Final[dict[str, tuple[Callable[[int, int, Path], list[str]], int]]] = {
    "options": (options, 3000),
    "environments": (environments, 500),
    "files": (hostile_files.attack, 300),
}


def main() -> int:
    """Sweep; print the seed, and what went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", nargs="?", choices=[*KINDS])
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    wrong: list[str] = []
    for kind in [given.kind] if given.kind else KINDS:
        sweep, usual = KINDS[kind]
        with tempfile.TemporaryDirectory(prefix="sweep-") as name:
            folder, count, begun = Path(name), given.count or usual, time.monotonic()
            with mock.patch.dict(os.environ, {"LOCALSPEC_CACHE": str(folder / "cache")}):
                costs.keep_toy()
                if (path := starter.packaged()) is not None:
                    costs.keep_starter(path)
                found = sweep(given.seed, count, folder)
        wrong += found
        seconds = time.monotonic() - begun
        print(f"{kind}: {count:,} tried, {len(found)} wrong, {seconds:.0f} s", *found, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
