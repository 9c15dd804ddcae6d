"""The time from `localspec chat` to its first frame, and until it is ready for a question.

    uv run python -m benchmarks.start_up [--runs 20] [--other /path/to/another/checkout]

A real pseudo-terminal; the pair that opens by itself, at first as on a new machine, then with its
costs measured. The other checkout's `localspec` takes turns with this one's and runs on the same
Python. Takes five seconds a run.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pyte

HERE = Path(__file__).parents[1]
PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--other", type=Path, help="another checkout, taking turns with this one")
    arguments = parser.parse_args()
    checkouts = {"this": HERE} | ({"other": arguments.other} if arguments.other else {})
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.runs + 1):
            for name, checkout in checkouts.items():
                found[name].append(start(checkout, Path(folder) / name))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"{arguments.runs} runs; seconds, median (least to most)\n")  # fmt: skip
    print("| checkout | first frame | ready | ready at the first start of all |")
    print("|---|---|---|---|")
    for name, ((_, new), *times) in found.items():
        first, ready = zip(*times, strict=True)
        print(f"| {name} | {spread(first)} | {spread(ready)} | {new:.2f} |")


def start(checkout: Path, folder: Path) -> tuple[float, float]:
    """Seconds from the start to the first frame, and to "ready"; the chat is left again."""
    folder.mkdir(exist_ok=True)
    screen = pyte.Screen(100, 30)
    stream = pyte.ByteStream(screen)
    variables = ("LOCALSPEC_DATA", "LOCALSPEC_CONFIG", "LOCALSPEC_CACHE")
    env = os.environ | dict.fromkeys(variables, str(folder))
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python compiles only once
    env |= {"TERM": "xterm-256color", "PYTHONPATH": str(checkout)}
    began = time.perf_counter()
    chat: pexpect.spawn[bytes] = pexpect.spawn(
        sys.executable, ["-m", "localspec", "chat"], dimensions=(30, 100), env=env
    )
    first = ready = 0.0
    while not ready:
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit("the chat does not get ready:\n" + "\n".join(screen.display))
        try:
            stream.feed(chat.read_nonblocking(65536, timeout=0.01))
        except pexpect.TIMEOUT:
            continue
        text = "\n".join(screen.display)
        first = first or (time.perf_counter() - began if "localspec" in text else 0.0)
        ready = time.perf_counter() - began if "ready" in text else 0.0
    chat.send("\x11")
    chat.expect(pexpect.EOF, timeout=PATIENCE_S)
    chat.close()
    return first, ready


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
