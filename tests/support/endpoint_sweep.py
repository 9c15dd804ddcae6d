"""Conversations and mixed requests by the hundred against `localspec serve`, with the toy.

::

    python -m tests.support.endpoint_sweep conversations        # 300, in all protocols
    python -m tests.support.endpoint_sweep requests             # 1,000, with kills and unloads
    python -m tests.support.endpoint_sweep requests 200 --seed 7

Some minutes each. The tests draw a few of the same conversations (`tests/test_protocols.py`), and
some thirty requests (`tests/test_serve_pairs.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from localspec.pairs.disk import installed
from tests.support import costs, toy
from tests.support.conformance import require_alike
from tests.support.endpoint import Serving
from tests.support.mixed_requests import CLIENTS, MixedRequests

ALONE = "toy-alone"
_BURST = 25  # requests of each client between two unloads


def install_alone() -> None:
    """Install the toy's target without its draft, as a further pair."""
    pair = installed.find(toy.PAIR)
    assert pair is not None
    installed.save(installed.InstalledPair(ALONE, pair.target, None))


def conversations(count: int, seed: int) -> int:
    """How many of the drawn conversations are answered differently in two protocols."""
    wrong = 0
    with Serving("--seed", "7", "--queue", "64") as served:
        for number in range(seed, seed + count):
            try:
                require_alike(served, number)
            except AssertionError as error:
                wrong += 1
                print(f"{number}: {error}")
    print(f"{count} conversations, {wrong} not alike in all protocols")
    return wrong


def requests(count: int, seed: int) -> int:
    """1 if a request is lost or answered wrongly, memory grows, or a process is left."""
    bursts = -(-count // (CLIENTS * _BURST))
    with Serving("--exact", "--idle-unload", "1", "--queue", "64") as served:
        mixed = MixedRequests(served, (toy.PAIR,) * 4 + (ALONE,), seed)
        mixed.run(-(-count // (CLIENTS * bursts)), bursts)
        restarts = served.metric("engine_restarts_total")
    left = mixed.left()
    megabytes = [round(taken / 1e6) for taken in mixed.resident]
    print(f"{mixed.answers} answered, {mixed.parted} otherwise than when asked alone, and of")
    print(f"{mixed.continued} that may continue a cached prompt {mixed.turned},")
    print(f"{mixed.others} counted, refused or given up,")
    print(f"{mixed.again} sent again; {mixed.kills} kills, {restarts:.0f} restarts,")
    print(f"{mixed.unloads} unloads; {megabytes} MB resident, {len(left)} processes left")
    return int(bool(left or mixed.parted))


KINDS = {"conversations": (conversations, 300), "requests": (requests, 1000)}


def main() -> int:
    """Sweep, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sweep, usual = KINDS[given.kind]
    with tempfile.TemporaryDirectory(prefix="sweep-") as name:
        names = ("cache", "data", "config")
        folders = {f"LOCALSPEC_{one.upper()}": str(Path(name) / one) for one in names}
        with mock.patch.dict(os.environ, folders):
            toy.install(Path(name) / "data")
            costs.keep_toy()
            install_alone()
            begun = time.monotonic()
            wrong = sweep(given.count or usual, given.seed)
            print(f"{time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
