"""Hostile answers and imports on the screen, in large numbers: the slowest step of each kind.

    python -m benchmarks.screen_attack --cases 5000 --seed 1

A text is shown in every way there is (see `tests/support/hostile_texts.py`); a step that takes more
than 250 ms of the processor, or a control character that comes out, is a failure.
"""

from __future__ import annotations

import argparse
import sys

from tests.support.hostile_texts import hostile, show

LONGEST_S = 0.25


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=5000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    failures, slowest = 0, (0.0, "", 0)
    for seed in range(given.seed * 10**6, given.seed * 10**6 + given.cases):
        shown = show(hostile(seed), seed)
        slowest = max(slowest, (*shown.slowest, seed))
        if shown.controls or shown.slowest[0] > LONGEST_S:
            failures += 1
            print(f"seed {seed}: {shown.slowest}, controls {shown.controls[:20]!r}", flush=True)
    print(f"{given.cases} texts, {failures} failures; slowest step: {slowest}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
