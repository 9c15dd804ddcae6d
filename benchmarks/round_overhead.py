"""Python's share of a round: what the engine does outside ``llama_decode``, vocabulary 152,000.

Two tiny random models with a real-size vocabulary are written to a temporary folder and run
through the real engine; only the time inside ``llama_decode`` is taken off. Not in it is what a
chat does with a round, text and figures: about 0.13 ms, whatever the vocabulary. Takes about half
a minute. Prints a Markdown table.

    uv run python benchmarks/round_overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_cpp import llama_cpp as lib

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams

N_EMBD, N_HEAD, N_FF = 64, 2, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=152_000)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # The same seed: the draft agrees with the target now and then, so that every branch of
        # the verification runs. The distributions are flatter than a chat model's, some 30 tokens
        # pass the filters: more work, not less.
        paths = [Path(folder) / name for name in ("target.gguf", "draft.gguf")]
        write_model(paths[0], arguments.vocab, layers=2)
        write_model(paths[1], arguments.vocab, layers=1)
        with Model.load(paths[0]) as target, Model.load(paths[1]) as draft:
            report(target, draft, arguments)


def report(target: Model, draft: Model, arguments: argparse.Namespace) -> None:
    clock = DecodeClock()
    options = ContextOptions(n_ctx=1024, threads=1)
    print(f"vocabulary {target.n_vocab}, gamma {arguments.gamma}; milliseconds a round\n")
    print("| sampling | rule | rounds | accepted | median | 99th percentile |")
    print("|---|---|---|---|---|---|")
    with Context(target, options) as t, Context(draft, options) as d:
        engine = Engine(t, ModelDrafter(d, target.n_vocab))
        for sampling, rules in (
            (SamplingParams(temperature=0), [Accept.MATCH]),
            (SamplingParams(temperature=0.8, seed=1), list(Accept)),
        ):
            for accept in rules:
                outside, accepted = measure(engine, clock, sampling, accept, arguments)
                label = "greedy" if sampling.greedy else "0.8, top-k 40, top-p 0.95, min-p 0.05"
                print(
                    f"| {label} | {accept} | {len(outside)} | {accepted:.0%} "
                    f"| {statistics.median(outside):.2f} | {np.percentile(outside, 99):.2f} |"
                )


class DecodeClock:
    """Adds up the time spent inside ``llama_decode``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        decode = lib.llama_decode

        def timed(*arguments: Any) -> int:
            started = time.perf_counter()
            code: int = decode(*arguments)
            self.seconds += time.perf_counter() - started
            return code

        lib.llama_decode = timed


def measure(
    engine: Engine,
    clock: DecodeClock,
    sampling: SamplingParams,
    accept: Accept,
    arguments: argparse.Namespace,
) -> tuple[list[float], float]:
    prompt = list(range(10, 40))
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=arguments.tokens)
    outside, drafted, accepted = [], 0, 0
    rounds = engine.generate(prompt, settings, FixedGamma(arguments.gamma), cancel)
    while True:
        clock.seconds = 0.0
        started = time.perf_counter()
        done = next(rounds, None)
        if done is None:
            return outside, accepted / max(1, drafted)
        if done.drafted == arguments.gamma:
            outside.append(1e3 * (time.perf_counter() - started - clock.seconds))
        drafted += done.drafted
        accepted += done.accepted


def write_model(path: Path, n_vocab: int, *, layers: int) -> None:
    """Write a random llama whose vocabulary has `n_vocab` made-up words."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"w{i}" for i in range(n_vocab)])
    writer.add_token_types([gguf.TokenType.NORMAL] * n_vocab)
    writer.add_token_merges(["w 0"])
    writer.add_add_bos_token(False)

    def tensor(name: str, *shape: int, scale: float = 1.0) -> None:
        data = random.normal(0, scale / np.sqrt(shape[-1]), shape)
        writer.add_tensor(name, data.astype(np.float32))

    tensor("token_embd.weight", n_vocab, N_EMBD, scale=3.0)
    tensor("output.weight", n_vocab, N_EMBD, scale=3.0)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{i}.{name}.weight", N_EMBD, N_EMBD, scale=0.3)
        tensor(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD, scale=0.3)
        tensor(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD, scale=0.3)
        tensor(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF, scale=0.3)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
