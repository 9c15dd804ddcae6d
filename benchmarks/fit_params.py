"""Where the plan and llama.cpp's own `llama-fit-params` put published mixtures of experts.

    uv run python -m benchmarks.fit_params --build FOLDER      # half an hour on two cores, once
    uv run python -m benchmarks.fit_params FOLDER/bin/llama-fit-params

The tool is built from the source of the installed llama-cpp-python. The models are files with holes
for weights, whose headers are those of `tests/support/moe_shapes.py`. Nothing is loaded: llama.cpp
plans for a worker on loopback that claims a card's memory and, by a patched line, takes experts in
main memory for long batches, as a card does. Both keep `DEVICE_RESERVE` free on it, and both have
`N_CTX` tokens of context, whole caches for sliding windows, and 512 rows of logits.

Prints a table in Markdown, a line for each mixture and card: the layers whose experts are on the
card, the MiB that each takes there, and what llama.cpp counts for the plan's own placement, which
checks the plan's count. llama.cpp may leave a part of one more layer's experts there ("+").
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from localspec.engine.llama.platform import rpc
from localspec.pairs.gguf.header import read_header
from localspec.pairs.memory.free import DEVICE_RESERVE, Device, FreeMemory
from localspec.pairs.memory.model_facts import ModelFacts, facts
from localspec.pairs.memory.placement import MemoryPlan, UserLimits, plan
from tests.support.moe_shapes import SHAPES, Shape

GB, MIB = 10**9, 1 << 20
CARDS = (8, 12, 16, 24)  # GB
RAM = 128 * GB  # both only move experts off the card, and llama.cpp does not look at this memory
N_CTX = 8192
FLAGS = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_RPC=ON", "-DGGML_NATIVE=OFF"),
    *("-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"),
    *("-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF"),
)
LISTENS = re.compile(r"endpoint +: (\S+)\n(?:.*\n)*.*transport")
NO_OFFLOAD = "/* .offload_op           = */ NULL,"
OFFLOAD = """[](ggml_backend_dev_t, const ggml_tensor * op) {
    return op->op != GGML_OP_GET_ROWS && op->ne[op->op == GGML_OP_MUL_MAT_ID ? 2 : 1] >= 32;
},"""
WHOLE = re.compile(r"blk\\\.(\d+)\\\.ffn_\(up\|down\|gate_up\|gate\)_\(ch\|\)exps=")
PART = re.compile(r"blk\\\.(\d+)\\\.ffn_(?!\(up\|down\|gate_up\|gate\)_\(ch)")
USED = re.compile(r"projected to use +(\d+) MiB|layers(?: \(.*?\))?, +(\d+) MiB used")


def build(folder: Path) -> Path:
    """Download the source of the installed llama-cpp-python, and build the tool in `folder`."""
    package = "llama-cpp-python"
    with tempfile.TemporaryDirectory() as work:
        fetch = ("uv", "tool", "run", "pip", "download", "--no-deps", "--no-binary", package)
        subprocess.run([*fetch, "-d", work, f"{package}=={version(package)}"], check=True)
        (archive,) = Path(work).glob("*.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "-C", work, "--strip-components", "1"], check=True)
        source = f"{work}/vendor/llama.cpp"
        backend = Path(source) / "ggml/src/ggml-rpc/ggml-rpc.cpp"
        text = backend.read_text(encoding="utf-8")
        assert NO_OFFLOAD in text
        backend.write_text(text.replace(NO_OFFLOAD, OFFLOAD), encoding="utf-8")
        subprocess.run(["cmake", "-S", source, "-B", folder, *FLAGS], check=True)
        subprocess.run(["cmake", "--build", folder, "--target", "llama-fit-params"], check=True)
    return folder / "bin" / "llama-fit-params"


def lend(n_bytes: int) -> None:
    """Be a worker whose device claims `n_bytes` of memory, whatever this machine has."""
    rpc.available = lambda: n_bytes  # type: ignore[attr-defined]
    rpc.resident = lambda process=None: 0  # type: ignore[attr-defined] # noqa: ARG005
    rpc.lend("127.0.0.1", 0, threads=1, device=(), memory=n_bytes, ready=lambda _: None)


@contextmanager
def card(n_bytes: int) -> Iterator[str]:
    """Yield the address of a worker in a separate process, once it listens."""
    command = [sys.executable, "-m", "benchmarks.fit_params", "--lend", str(n_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            said = ""
            while not (found := LISTENS.search(said)):
                said += (line := worker.stdout.readline())
                assert line, "the worker ended"
            yield found[1]
        finally:
            worker.kill()


@dataclass(frozen=True, slots=True)
class Placement:
    """What stays on a card.

    Attributes:
        layers: how many layers have their experts on the card.
        part: whether a part of one more layer's experts is on it.
        mib: MiB of weights, cache and buffers on it.
    """

    layers: int
    part: bool
    mib: int

    def __str__(self) -> str:
        return f"{self.layers}{'+' * self.part} | {self.mib:,}"


def loaded(shape: Shape) -> int:
    """How many layers are loaded: all but those that predict further tokens (MTP)."""
    return shape.layers - int(str(shape.keys.get("nextn_predict_layers", 0)))


def told(tool: Path, address: str, model: Path, *options: str) -> tuple[str, str]:
    """The tool's answer for a model, and its log."""
    usual = ("-c", str(N_CTX), "--swa-full", "--no-repack")
    command = [str(tool), "--rpc", address, "-m", str(model), *usual, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def fitted(tool: Path, address: str, model: Path, shape: Shape) -> Placement:
    """The placement that llama.cpp decides on."""
    out, log = told(tool, address, model, "-v", "-fitt", str(DEVICE_RESERVE // MIB))
    mib = [int(whole or used) for whole, used in USED.findall(log)][-1]
    layers = re.search(r"-ngl (-?\d+)", out)
    assert layers is not None, out
    last = loaded(shape)
    on_card = int(layers[1]) if int(layers[1]) >= 0 else last + 1
    there = set(range(max(shape.dense[0], last + 1 - on_card), last))
    part = {int(at) for at in PART.findall(out)} & there
    return Placement(len(there - {int(at) for at in WHOLE.findall(out)} - part), bool(part), mib)


def counted(tool: Path, address: str, model: Path, made: MemoryPlan) -> int:
    """The MiB on the card that llama.cpp counts for a plan."""
    setup = made.target
    layers = str(999 if setup.gpu_layers < 0 else setup.gpu_layers)
    options = ("-fitp", "on", "-ngl", layers, "-ncmoe", str(setup.cpu_moe))
    out, _ = told(tool, address, model, *options)
    return sum(map(int, out.splitlines()[0].split()[1:]))


def planned(sizes: ModelFacts, gb: int, shape: Shape) -> tuple[MemoryPlan, Placement]:
    """The plan and placement that localspec decides on for a card of `gb` GB."""
    free = FreeMemory(RAM, (Device(gb * GB),), total=RAM)
    made = plan(replace(sizes, outputs=512), [], free, UserLimits(n_ctx=N_CTX))
    last = loaded(shape)
    kept = last if made.target.gpu_layers < 0 else made.target.gpu_layers - 1
    first = max(shape.dense[0], made.target.cpu_moe, last - kept)
    return made, Placement(max(0, last - first), False, made.target_need.device // MIB)


def compared(tool: Path, gb: int, address: str, name: str, folder: Path) -> tuple[str, float]:
    """A line of the table, and the share of llama.cpp's MiB by which the plan's differ."""
    shape = SHAPES[name]
    model = shape.write(folder / f"{name}.gguf")
    made, ours = planned(facts(read_header(model)), gb, shape)
    theirs = fitted(tool, address, model, shape)
    own = counted(tool, address, model, made)
    off = own / theirs.mib - 1
    checked = f"{own:,} ({100 * (ours.mib / own - 1):+.1f} %)"
    return f"| {name} | {gb} | {theirs} | {ours} | {checked} | {100 * off:+.1f} % |", off


def main() -> None:
    """Build the tool, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tool", type=Path, nargs="?", help="llama-fit-params")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build it there first")
    parser.add_argument("--only", choices=[*SHAPES], action="append", help="some mixtures")
    parser.add_argument("--lend", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.lend:
        lend(given.lend)
    tool = build(given.build) if given.build else given.tool
    if tool is None:
        parser.error("name the tool, or --build it")
    print("| mixture | card, GB | llama.cpp: layers | MiB | plan: layers | MiB | counted | off |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for gb in CARDS:
            with card(gb * GB) as address:
                for name in given.only or SHAPES:
                    line, off = compared(tool, gb, address, name, Path(folder))
                    found.append(abs(off))
                    print(line, flush=True)
    within = sum(each <= 0.1 for each in found)
    print(f"\n{within} of {len(found)} plans take within 10 % of what llama.cpp takes there.")


if __name__ == "__main__":
    main()
