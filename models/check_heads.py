"""Compare what a target says with a head and without: it must be the same, token by token.

    python models/check_heads.py CORPORA TARGET.gguf --head EAGLE3.gguf
    python models/check_heads.py CORPORA TARGET_WITH_MTP.gguf

For the first held-out prompts of every kind of text, greedily and with the coupled rule, in which
the text depends on the seed alone. One thread and flash attention: batches of every size give the
same bits (Q8_0, on a processor).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from measure import KINDS, answer, held_out, open_context, open_head, prompts_of

from localspec.engine.generate import Engine
from localspec.engine.llama import Model
from localspec.engine.params import Accept, SamplingParams

HOW = {
    "greedy": (SamplingParams(temperature=0.0), Accept.TOKEN),
    "coupled, 0.8": (SamplingParams(temperature=0.8, seed=1), Accept.COUPLED),
}


def main() -> None:
    """Compare and print; end with code 1 where a text differs."""
    parser = argparse.ArgumentParser(description="Compare texts with a head and without.")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head; without, the target's own")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    model = Model.load(args.target, mtp=args.head is None)
    alone, drafted = Engine(open_context(model, 1)), open_head(open_context(model, 1), args.head)
    talks = [talk for kind in KINDS for talk in held_out(args.corpora, kind, 4)]
    apart = 0
    for name, (sampling, accept) in HOW.items():
        for gamma in (1, 4):
            same = total = accepted = 0
            for prompt in prompts_of(model, talks)[: args.prompts]:
                how = {"n_predict": args.tokens, "sampling": sampling, "accept": accept}
                plain, _ = answer(alone, prompt, gamma=0, **how)
                tokens, count = answer(drafted, prompt, gamma=gamma, **how)
                same, total = same + (tokens == plain), total + len(plain)
                accepted += count.accepted
            apart += args.prompts - same
            print(
                f"{name}, gamma {gamma}: {same} of {args.prompts} texts alike,"
                f" {total} tokens, {accepted} of them drafted",
                flush=True,
            )
    sys.exit(bool(apart))


if __name__ == "__main__":
    main()
