"""Gaps in real files, filled by `localspec serve` and by llama-server: the same greedy text?

Thirty places in modules of Python's standard library, each cut out for one to three lines. Both
servers get the same `/infill` request at temperature 0. Prints for each place whether the prompts
have the same length and the texts are the same, how long the first token took against reading the
prompt, and what lookup proposed; then the sums. Some minutes with a model of half a billion.

    uv run python -m benchmarks.infill_vs_llama_server MODEL.gguf path/to/llama-server [MODULE...]
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.endpoint import Serving

MODULES = (
    *("abc", "bisect", "calendar", "code", "colorsys", "contextlib", "copy", "csv", "fnmatch"),
    *("fractions", "getopt", "getpass", "glob", "heapq", "keyword", "linecache", "numbers"),
    *("operator", "pprint", "queue", "random", "reprlib", "sched", "shelve", "shlex", "statistics"),
    *("string", "textwrap", "timeit", "types"),
)
TOKENS = 48
THREADS = ("-t", "1", "-tb", "2")  # `--exact` promises equal bits of single tokens for one thread
NEAR = 60  # lines before the gap, half as many after it


def places(seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """A place in each module: its name, the text before the gap, and the text after it."""
    rng = random.Random(seed)
    for name in MODULES:
        path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
        lines = path.read_text("utf-8").splitlines(keepends=True)
        at = rng.randrange(len(lines) // 4, 3 * len(lines) // 4)
        gap = rng.randrange(1, 4)
        indent = len(lines[at]) - len(lines[at].lstrip())
        before = "".join(lines[max(0, at - NEAR) : at]) + lines[at][:indent]
        yield name, before, "".join(lines[at + gap : at + gap + NEAR // 2])


@dataclass(frozen=True)
class Reply:
    """A stream: its text, seconds until the text began, and the figures of its end."""

    text: str
    first_s: float
    figures: dict[str, Any]


def ask(port: int, before: str, after: str) -> Reply:
    """Have a server fill a gap."""
    asked = {
        "input_prefix": before,
        "input_suffix": after,
        "n_predict": TOKENS,
        "temperature": 0,
        "samplers": ["temperature"],
        "stream": True,
    }
    url, kind = f"http://127.0.0.1:{port}/infill", {"content-type": "application/json"}
    text, first, last = "", 0.0, dict[str, Any]()
    begun = time.perf_counter()
    request = urllib.request.Request(url, json.dumps(asked).encode(), kind)
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                last = json.loads(line[6:])
                text += last.get("content", "")
                first = first or (time.perf_counter() - begun if text else 0.0)
    return Reply(text, first, last)


@contextmanager
def llama_server(program: str, model: str) -> Iterator[int]:
    """Run llama-server on a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    words = [program, "-m", model, "--port", str(port), "-c", "4096", "-np", "1", *THREADS]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                assert process.poll() is None, "llama-server has ended"
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield port
        finally:
            process.terminate()


@dataclass(frozen=True)
class Filled:
    """The replies of both servers for one place.

    Attributes:
        same_prompt: both prompts have the same number of tokens.
        same: both texts are the same.
        first: seconds until the first text came, over those that reading the prompt took.
        drafted, accepted: tokens that lookup proposed, and those of them that were accepted.
    """

    same_prompt: bool
    same: bool
    first: float
    drafted: int
    accepted: int


def compared(
    ours: int, theirs: int, before: str, after: str, alone: AbstractContextManager[object]
) -> Filled:
    """Have both servers fill one place, whose prompt `localspec serve` has not read before."""
    with alone:
        found = ask(ours, before, after)
    other = ask(theirs, before, after)
    timings = found.figures["timings"]
    return Filled(
        found.figures["tokens_evaluated"] == other.figures["tokens_evaluated"],
        found.text == other.text,
        1e3 * found.first_s / timings["prompt_ms"],
        timings["draft_n"],
        timings["draft_n_accepted"],
    )


def main() -> None:
    """Compare, and print."""
    model, program, *modules = sys.argv[1:]
    with (
        Serving(*THREADS, "-c", "4096", "--exact", pair=model) as one,
        llama_server(program, model) as theirs,
    ):
        report(one.port, theirs, nullcontext(), modules or MODULES)


def report(
    ours: int, theirs: int, alone: AbstractContextManager[object], modules: Sequence[str] = MODULES
) -> None:
    """Print every place in these modules, and the sums."""
    filled = []
    for name, before, after in (place for place in places() if place[0] in modules):
        filled.append(one := compared(ours, theirs, before, after, alone))
        print(f"{name:12} {one}", flush=True)
    print(f"{sum(one.same_prompt for one in filled)} of {len(filled)} prompts of the same length")
    print(f"{sum(one.same for one in filled)} of {len(filled)} texts the same")
    print(f"first token after {median(one.first for one in filled):.2f} of reading the prompt")
    drafted = sum(one.drafted for one in filled)
    print(f"lookup: {sum(one.accepted for one in filled)} of {drafted} accepted")


if __name__ == "__main__":
    main()
