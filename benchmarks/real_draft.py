"""Record what a draft model says along the recorded answers of a target.

For every token of an answer the file has how sure the draft was of its best guess (in percent), and
whether the guess was right, that is, accepted at temperature 0. The draft has read all tokens
before it. The answers are those of `benchmarks/real_record.py`; the draft must have
the same vocabulary. A run that was stopped goes on where it ended. On two quiet cores a draft of
half a billion parameters takes some minutes:

    uv run python -m benchmarks.real_draft DRAFT.gguf NAME.jsonl.gz --output OTHER.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.real_record import lines
from benchmarks.several import Look
from localspec.engine.llama import Context, ContextOptions, Model

_ROWS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draft", type=Path)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    options = ContextOptions(n_ctx=4096, threads=arguments.threads, flash_attention=True)
    done = len(lines(arguments.output))
    with Model.load(arguments.draft) as model, Context(model, options) as context:
        for at, line in enumerate(lines(arguments.recorded)[done:], done):
            turns = [said(context, turn["prompt"], turn["answer"]) for turn in line["turns"]]
            with gzip.open(arguments.output, "at", encoding="utf-8") as file:
                file.write(json.dumps(turns, separators=(",", ":")) + "\n")
            shares = (f"{right.count('1') / len(right):.2f}" for _, right in turns)
            print(at, line["kind"], *shares, flush=True)


def said(context: Context, prompt: Sequence[int], answer: Sequence[int]) -> tuple[list[int], str]:
    """Confidences and whether the guesses were right, along one answer after its first token."""
    context.clear()
    for start in range(0, len(prompt), context.n_batch):
        context.decode(prompt[start : start + context.n_batch], 0)
    confidences, right = [], ""
    for start in range(0, len(answer) - 1, _ROWS):
        part = answer[start : min(start + _ROWS, len(answer) - 1)]
        logits = context.decode(part, len(part))
        best = logits.argmax(axis=1)
        shares = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        confidences += [round(100 * float(share)) for share in shares]
        right += "".join(
            str(int(guess == came)) for guess, came in zip(best, answer[start + 1 :], strict=False)
        )
    return confidences, right


def looks(path: Path) -> Iterator[list[Look]]:
    """What a recorded draft said along every turn, from the second token of its answer on."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            for confidences, right in json.loads(line):
                yield [
                    Look(sure / 100, float(came == "1"), came == "1")
                    for sure, came in zip(confidences, right, strict=True)
                ]


if __name__ == "__main__":
    main()
