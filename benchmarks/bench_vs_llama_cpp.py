"""The figures of `localspec bench` beside those of llama.cpp's own tools.

The off figure against `llama-bench` (token generation behind a prompt of the same length), the on
figure at a fixed gamma against `llama-speculative-simple`, both at temperature 0. Build the tools
from llama-cpp-python's own vendored source, with the same flags, so that all run the same kernels:

    cmake -B build vendor/llama.cpp && cmake --build build -t llama-bench llama-speculative-simple
    uv run python models/enlarge.py demo --target-size 1.5G --draft-size 150M --type f16 big
    uv run python benchmarks/bench_vs_llama_cpp.py --tools build/bin --target big/target-F16.gguf
        --draft big/draft-F16.gguf --output table.md

Processes alternate: for every prompt and repeat one run of each of the three, in a random order;
each loads its models anew. Same model files, threads, context, prompt and number of tokens. With
the usual 4 prompts x 10 repeats and 128 tokens at 10 tokens a second about an hour and a half;
`--quick` (2 prompts, 3 repeats) a quarter of an hour. The aims: medians of the ratios of at least
0.98 (off) and 0.97 (on).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from gamma_compare import KINDS, interval
from gamma_vs_llama_cpp import rendered
from gamma_vs_llama_cpp import theirs as speculative_simple

from localspec.engine.llama import Model, default_threads, machine, repacking_works

OURS, LLAMA_BENCH, SPECULATIVE = "localspec bench", "llama-bench", "llama-speculative-simple"
AIMS = {"off": 0.98, "on": 0.97}

Cells = dict[tuple[str, str], list[float]]
"""(prompt, figure) to tokens per second, one entry a repeat."""


def main() -> None:
    arguments = _arguments()
    prompts = rendered(arguments.target)
    kinds = list(KINDS)[: arguments.prompts]
    with Model.load(arguments.target) as model:
        lengths = {
            kind: len(model.tokenize(prompts[kind], add_special=True, parse_special=True))
            for kind in kinds
        }
    luck, found = random.Random(0), Cells()
    for repeat in range(arguments.repeats):
        for kind in kinds:
            order = [OURS, LLAMA_BENCH, SPECULATIVE]
            luck.shuffle(order)
            for name in order:
                if name == OURS:
                    off, on = ours(arguments, KINDS[kind][0])
                    found.setdefault((kind, "off"), []).append(off)
                    found.setdefault((kind, "on"), []).append(on)
                elif name == LLAMA_BENCH:
                    speed = llama_bench(arguments, lengths[kind])
                    found.setdefault((kind, name), []).append(speed)
                else:
                    speed = speculative(arguments, prompts[kind], repeat)
                    found.setdefault((kind, name), []).append(speed)
                print(f"{repeat} {kind} {name}", file=sys.stderr, flush=True)
    said = table(found, kinds, arguments)
    print(said)
    if arguments.output:
        arguments.output.write_text(said, "utf-8")
        raw = {" ".join(key): values for key, values in found.items()}
        arguments.output.with_suffix(".json").write_text(json.dumps(raw, indent=1), "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, required=True, help="folder of the two binaries")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=4, choices=range(1, 5))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--ctx-size", type=int, default=512)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, help="the table; .json beside it has every run")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.prompts, arguments.repeats = 2, 3
    arguments.binary = arguments.tools / SPECULATIVE
    return arguments


def ours(arguments: argparse.Namespace, prompt: str) -> tuple[float, float]:
    """Tokens per second off and on, of one `localspec bench` over one prompt."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompt.jsonl"
        path.write_text(json.dumps({"prompt": prompt}) + "\n", "utf-8")
        command = [
            *(sys.executable, "-m", "localspec", "bench", str(arguments.target)),
            *("--draft", str(arguments.draft), "--gamma", str(arguments.gamma)),
            *("--prompts", str(path), "--repeat", "1", "-n", str(arguments.tokens)),
            *("-t", str(arguments.threads), "-c", str(arguments.ctx_size)),
            *("--temp", "0", "--ignore-eos", "--json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    speeds = {run["arm"]: run["tokens_per_second"] for run in json.loads(done.stdout)["runs"]}
    return speeds["off"], speeds["on"]


def llama_bench(arguments: argparse.Namespace, prompt_tokens: int) -> float:
    """Tokens per second of one run of `llama-bench`, behind as many tokens as our prompt has."""
    command = [
        *(str(arguments.tools / LLAMA_BENCH), "-m", str(arguments.target), "-p", "0"),
        *("-n", str(arguments.tokens), "-d", str(prompt_tokens), "-r", "1"),
        *("-t", str(arguments.threads), "-o", "json", "--repack", str(int(repacking_works()))),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def speculative(arguments: argparse.Namespace, prompt: str, seed: int) -> float:
    """Tokens per second of one run of `llama-speculative-simple`, greedy."""
    return speculative_simple(
        arguments,
        {"prompt": prompt, "temperature": 0.0, "seed": seed, "length": str(arguments.gamma)},
    )


def table(found: Cells, kinds: list[str], arguments: argparse.Namespace) -> str:
    lines = [
        f"Target {arguments.target.name}, draft {arguments.draft.name}, gamma {arguments.gamma},"
        f" {arguments.tokens} tokens, {arguments.repeats} repeats, {arguments.threads} threads."
        f" {machine()}.",
        "",
        "| prompt | off / llama-bench | on / llama-speculative-simple |",
        "|---|---|---|",
    ]
    together: dict[str, list[float]] = {"off": [], "on": []}
    for kind in kinds:
        cells = []
        for figure, other in (("off", LLAMA_BENCH), ("on", SPECULATIVE)):
            pairs = zip(found[kind, figure], found[kind, other], strict=True)
            ratios = [mine / yours for mine, yours in pairs]
            together[figure] += ratios
            cells.append(interval(ratios))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines.append(f"| all | {' | '.join(interval(each) for each in together.values())} |")
    lines.append(f"| aim | {' | '.join(f'at least {aim}' for aim in AIMS.values())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
