"""Compare the greedy tokens of two models that should compute the same function.

    python models/check_enlarged.py SMALL.gguf LARGE.gguf CORPORA

For each of the first held-out prompts of every kind of text both models answer greedily. Where they
part, the gap between the small model's two best logits at that place is shown: by how little the
choice was made. Both must do their arithmetic alike for equality: Q8_0 weights make llama.cpp round
the activations to 8 bits, F16 ones do not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from measure import KINDS, answer, held_out, open_context, prompts_of

from localspec.engine.generate import Engine
from localspec.engine.llama import Context, Model
from localspec.engine.params import SamplingParams


def gap(context: Context, tokens: list[int]) -> float:
    """Return the difference of the two best logits after `tokens`."""
    context.clear()
    for start in range(0, len(tokens) - 1, 256):
        context.decode(tokens[start : min(start + 256, len(tokens) - 1)], 0)
    best = np.sort(context.decode(tokens[-1:], 1)[0])[-2:]
    return float(best[1] - best[0])


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="Compare greedy tokens of two models.")
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    small = open_context(Model.load(args.small), args.threads)
    large = open_context(Model.load(args.large), args.threads)
    talks = [talk for kind in KINDS for talk in held_out(args.corpora, kind, 4)]
    greedy = SamplingParams(temperature=0.0)
    parted: list[float] = []
    seconds = [0.0, 0.0]
    total = 0
    for prompt in prompts_of(small.model, talks)[: args.prompts]:
        texts = []
        for which, context in enumerate((small, large)):
            start = time.perf_counter()
            engine = Engine(context)
            tokens, _ = answer(engine, prompt, gamma=0, n_predict=args.tokens, sampling=greedy)
            seconds[which] += time.perf_counter() - start
            texts.append(tokens)
        total += len(texts[0])
        if texts[0] != texts[1]:
            pairs = enumerate(zip(*texts, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(map(len, texts)))
            parted.append(gap(small, prompt + texts[0][:at]))
            print(f"parted after {at} tokens, two best logits {parted[-1]:.4f} apart", flush=True)
    print(f"{args.prompts - len(parted)} of {args.prompts} prompts alike, {total} tokens")
    print(f"seconds: small {seconds[0]:.1f}, large {seconds[1]:.1f}")


if __name__ == "__main__":
    main()
