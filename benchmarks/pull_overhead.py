"""How fast `localspec pull` fetches a file from loopback, against curl.

    uv run python benchmarks/pull_overhead.py [--size BYTES] [--pairs N] [--folder FOLDER ...]

Serves one GGUF file of 1 GB from a process of its own and fetches it by turns with curl and
with localspec: redirect, transfer, sha256, fsync and the move into the cache included, the
start of Python left out. curl follows the same redirect, hashes nothing
and does not wait for the disk; what an fsync of its file takes besides is measured too, as the
file may be lost without. Ratios of speed, paired, without and with that fsync; the median with
its 95 % interval; and the processor time that each side takes, which other load disturbs less.
Takes about a minute for each folder, and twice the file's size there.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVE = """
import sys
from pathlib import Path
from tests.support.hub_server import HubServer

with HubServer() as server:
    repo = server.add("bench/Big-GGUF", {"big-Q8_0.gguf": Path(sys.argv[1])})
    name = "big-Q8_0.gguf"
    print(server.url, repo.commit, repo.size(name), repo.etag(name), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Served:
    """The file on the server."""

    url: str
    repo: str
    name: str
    commit: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the clock, of processor time, and on the clock until the bytes are on the disk."""

    wall: float
    cpu: float
    safe: float


def main() -> None:
    parser = argparse.ArgumentParser(description="localspec pull against curl on loopback.")
    parser.add_argument("--size", type=int, default=1_000_000_000, help="bytes of the file")
    parser.add_argument("--pairs", type=int, default=10, help="measured pairs")
    parser.add_argument("--folder", nargs="+", default=[None], help="where to write")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if len(options.folder) > 1:
        # The library reads the cache's place once, so each folder has a process of its own.
        same = ["--size", str(options.size), "--pairs", str(options.pairs)]
        for place in options.folder:
            print(place, flush=True)
            subprocess.run([sys.executable, __file__, *same, "--folder", place], check=True)
        return
    with tempfile.TemporaryDirectory(dir=options.folder[0]) as folder:
        run(Path(folder), options.size, options.pairs)


def run(folder: Path, size: int, pairs: int) -> None:
    """Serve, measure, report."""
    path = folder / "served.gguf"
    write_model(path, size)
    script = [sys.executable, "-c", SERVE, str(path)]
    with subprocess.Popen(
        script, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url, commit, length, etag = server.stdout.readline().split()
        os.environ |= {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf")}
        served = Served(url, "bench/Big-GGUF", "big-Q8_0.gguf", commit, int(length), etag)
        try:
            found = measure(folder, served, pairs)
        finally:
            server.kill()  # it would wait for connections that are kept open
    report(found)


def write_model(path: Path, size: int) -> None:
    """A GGUF file of about `size` bytes that no disk can compress."""
    from tests.support import ggufs  # noqa: PLC0415 - needs the path that main sets

    size = size // 32 * 32
    with path.open("wb") as file:
        file.write(ggufs.header([], [ggufs.tensor("w", [size // 4], 0, 0)]))
        for _ in range(0, size, 1 << 24):
            file.write(os.urandom(1 << 24))


def measure(folder: Path, served: Served, pairs: int) -> list[tuple[Cost, Cost]]:
    """Fetch by turns; the first pair only warms up."""
    out = folder / "curl.out"
    found = []
    for number in range(pairs + 1):
        if number % 2:
            one, two = curl(served, out), fetch(served, folder / "hf")
        else:
            two, one = fetch(served, folder / "hf"), curl(served, out)
        if number:
            found.append((one, two))
            speeds = [served.size / s / 1e6 for s in (one.wall, one.safe, two.wall)]
            print(
                "pair {}: curl {:.0f}, with fsync {:.0f}, localspec {:.0f} MB/s".format(
                    number, *speeds
                )
            )
    return found


def curl(served: Served, out: Path) -> Cost:
    """Fetch with curl, following the redirect."""
    url = f"{served.url}/{served.repo}/resolve/main/{served.name}"
    os.sync()  # what the one before has left to the disk must not slow this one
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(["curl", "-sSfL", "-o", str(out), url], check=True)
    wall, cpu = time.perf_counter() - begin, cpu_seconds(resource.RUSAGE_CHILDREN) - before
    with out.open("rb") as file:
        os.fsync(file.fileno())
    safe = time.perf_counter() - begin
    out.unlink()
    return Cost(wall, cpu, safe)


def fetch(served: Served, home: Path) -> Cost:
    """Fetch with localspec, into an empty cache."""
    # Loaded here: the library reads HF_ENDPOINT when it is loaded.
    from localspec.pairs.hub import download  # noqa: PLC0415
    from localspec.pairs.hub.client import RemoteFile  # noqa: PLC0415
    from localspec.pairs.hub.patience import Patience  # noqa: PLC0415

    file = RemoteFile(served.repo, served.commit, served.name, served.size, served.etag)
    os.sync()
    before = cpu_seconds(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    download.fetch(file, "main", Patience(), lambda _: None)
    wall, cpu = time.perf_counter() - begin, cpu_seconds(resource.RUSAGE_SELF) - before
    shutil.rmtree(home)
    return Cost(wall, cpu, wall)


def cpu_seconds(who: int) -> float:
    """User and system time of this process, or of its finished children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def report(found: list[tuple[Cost, Cost]]) -> None:
    """Print medians and the ratio with its interval."""
    for name, costs in zip(("curl", "localspec"), zip(*found, strict=True), strict=True):
        wall = statistics.median(cost.wall for cost in costs)
        cpu = statistics.median(cost.cpu for cost in costs)
        safe = statistics.median(cost.safe for cost in costs)
        print(f"{name:10} median {wall:.2f} s, on disk {safe:.2f} s, processor {cpu:.2f} s")
    report_ratio("against curl", [one.wall / two.wall for one, two in found])
    report_ratio("against curl and fsync", [one.safe / two.safe for one, two in found])


def report_ratio(what: str, ratios: list[float]) -> None:
    """Print a median ratio of speeds with its interval."""
    ratios = sorted(ratios)
    # The order statistics around the median that a binomial gives 95 %.
    rank = max(0, math.floor((len(ratios) - 1.96 * math.sqrt(len(ratios))) / 2))
    low, high = ratios[rank], ratios[-1 - rank]
    print(f"{what}: {statistics.median(ratios):.2f}, 95 % interval {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
