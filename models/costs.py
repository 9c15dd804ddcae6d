"""Measure what decoding costs: T(n) of every GGUF file given, in milliseconds.

    python models/costs.py TARGET.gguf DRAFT.gguf ...

A decode of n tokens is timed on top of 128 tokens already in the cache, all logits asked for, as a
verification pass does. The files and the values of n take turns, five decodes at a time of which
the first is not counted. The median is shown. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import llama_cpp

from localspec.engine.llama import repacking_works

PAST = 128
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)


class Decoder:
    """A context with PAST tokens in its cache."""

    def __init__(self, path: Path, threads: int) -> None:
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        options.use_extra_bufts = repacking_works()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 512, 512, 512
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.decode(PAST, 0)

    def decode(self, count: int, at: int) -> float:
        """Decode `count` tokens from position `at`; return the seconds it took."""
        batch = self.batch
        batch.n_tokens = count
        for i in range(count):
            batch.token[i] = 100 + i
            batch.pos[i] = at + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        start = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        if code:
            raise SystemExit(f"llama_decode gave {code}")
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_seq_rm(memory, 0, PAST, -1)
        return seconds


def measure(paths: list[Path], threads: int, repeats: int) -> dict[Path, dict[int, float]]:
    """Return the median milliseconds of every count for every file."""
    decoders = {path: Decoder(path, threads) for path in paths}
    times: dict[Path, dict[int, list[float]]] = {p: {n: [] for n in COUNTS} for p in paths}
    for turn in range(repeats + 3):
        for path, decoder in decoders.items():
            for count in COUNTS:
                decoder.decode(count, PAST)  # the first one builds the graph, the next reuse it
                if turn >= 3:
                    times[path][count] += [1000 * decoder.decode(count, PAST) for _ in range(4)]
    return {p: {n: statistics.median(v) for n, v in t.items()} for p, t in times.items()}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description="Measure T(n) of GGUF files.")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()
    print("| file | T(1) ms |", " | ".join(f"T({n})/T(1)" for n in COUNTS[1:]), "|")
    print("|---|---|" + "---|" * (len(COUNTS) - 1))
    for path, costs in measure(args.files, args.threads, args.repeats).items():
        ratios = " | ".join(f"{costs[n] / costs[1]:.2f}" for n in COUNTS[1:])
        print(f"| {path.stem} | {costs[1]:.2f} | {ratios} |")


if __name__ == "__main__":
    main()
