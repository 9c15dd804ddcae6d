"""Train draft heads for a target, from its own answers and from corpus text.

    python models/train_heads.py TARGET.gguf CORPORA WORK ANSWERS.npz ... --minutes 70

All heads asked for learn from the same passes of the target, which stays as it is. The loss is
the one of `distill.py`, with the target's whole distribution, at each step of a draft; later steps
count less, and are added as time goes on (arXiv 2503.01840, section 3).
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import export
import heads
import numpy as np
import torch
from data import Encoder, Stream, load_sources
from distill import Lessons, load_answers
from heads import Head, save_eagle3, save_mtp, states_of, unroll
from optim import optimisers, set_rate
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import HERE, bfloat16_pays, read_config
from training import CONTEXT, Training

if TYPE_CHECKING:
    from training import Part

STEPS = {"eagle3": 3, "mtp": 1}
"""Steps of a draft that are trained, in the end: one more each LATER_FROM of the time."""
LATER_FROM = 0.3
LATER = 0.8
"""What each step counts of the one before."""


class Texts:
    """Batches of ids and marks: so many rows of answers, the rest of the corpora."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer) -> None:
        encoder = Encoder(tokenizer)
        known = load_sources(args.corpora, args.cache or args.work / "cache", args.tokenizer)
        mixture = read_config(args.config)["mixture"]
        self.stream = Stream(known, mixture, encoder, seed=args.seed)
        self.lessons = Lessons(load_answers(args.answers), args.seed)
        self.rows = args.rows
        self.answered = min(args.rows - 1, round(args.rows * args.answered))

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids, `(rows, CONTEXT)`, and which of them an assistant is to follow with its own."""
        read = self.stream.batch(self.rows - self.answered, CONTEXT)
        ids, marks = [read.inputs], [read.weights == 1.0]
        for _ in range(self.answered):
            row, where, _, _ = self.lessons.row()
            ids.append(row[None])
            marks.append(np.isin(np.arange(CONTEXT), where)[None])
        return np.concatenate(ids), np.concatenate(marks)

    def state_dict(self) -> dict:
        """Return where both stand."""
        return {"stream": self.stream.state(), "lessons": self.lessons.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Go on where another one was."""
        self.stream.restore(state["stream"])
        self.lessons.load_state_dict(state["lessons"])


def lesson_of(truth: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is to be learned from the target's logits, and the ids that it finds likeliest.

    Half is the whole distribution, half the likeliest id alone: what greedy verification compares.

    Args:
        truth: `(rows, width)`, the target's normed final states.
        output: `(vocab, width)`, the matrix that makes logits of them, and of the heads' states.
    """
    with torch.no_grad():
        odds = functional.linear(truth, output).float().softmax(-1)
        first = odds.argmax(-1)
        odds *= 0.5
        odds[torch.arange(len(first), device=first.device), first] += 0.5
    return odds, first


class Run(Training):
    """A training of heads."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.tokenizer = Tokenizer.from_file(str(args.tokenizer))
        self.texts = Texts(args, self.tokenizer)
        self.target = export.load(args.target)[0].to(self.where).requires_grad_(requires_grad=False)
        self.heads: list[Head] = [heads.KINDS[k](self.target).to(self.where) for k in args.kinds]
        if bfloat16_pays(self.where):
            self.target = self.target.bfloat16()
        self.optimisers = [optimisers(h, lr=args.lr, weight_decay=0.01) for h in self.heads]
        if args.compile:
            for head in self.heads:
                head.step = torch.compile(head.step)

    def parts(self) -> list[Part]:
        """Return what is saved."""
        return [*self.heads, *chain.from_iterable(self.optimisers), self.texts]

    def rate(self) -> float:
        """Return the learning rate: a short rise, a while at the top, then a fall to zero."""
        return self.args.lr * min(1.0, self.left / 0.7) * min(1.0, (self.step + 1) / 30)

    def steps(self, head: Head) -> int:
        """Return how many steps of a draft are trained now."""
        return min(STEPS[head.kind], 1 + int((1 - self.left) / LATER_FROM))

    def learn(self) -> dict[str, float]:
        """Do one step of every head; return the loss and, for each step, the agreement."""
        ids, marks = (torch.from_numpy(part).to(self.where) for part in self.texts.batch())
        output = self.target.token_embd.weight
        figures: dict[str, float] = {}
        with torch.autocast(self.where.type, torch.bfloat16, enabled=bfloat16_pays(self.where)):
            states = states_of(self.target, ids)
            # Row i: the state at token i with token i + 1, after which the target says i + 2.
            rows, embedded = [state[:, :-1] for state in states], self.target.token_embd(ids[:, 1:])
            meant = marks[:, 1:].clone()
            meant[:, : max(STEPS.values()) - 1] = (
                False  # there later steps have no draft to belong to
            )
            wanted, first = lesson_of(states[-1][:, 1:][meant], output)
            for head in self.heads:
                total = torch.zeros((), device=self.where)
                drafts = unroll(head, embedded, head.features(rows), self.steps(head))
                for step, scored in enumerate(drafts):
                    logits = functional.linear(scored[meant], output).float()
                    total = total + LATER**step * functional.cross_entropy(logits, wanted)
                    same = (logits.argmax(-1) == first).float().mean()
                    figures[f"{head.kind} {step + 1}"] = float(same)
                figures[head.kind] = float(total.detach())
                total.backward()
        self.apply()
        return figures

    def apply(self) -> None:
        """Change the weights by what was learned."""
        for head, both in zip(self.heads, self.optimisers, strict=True):
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            set_rate(both, self.rate())
            with torch.autocast(self.where.type, torch.bfloat16, enabled=bfloat16_pays(self.where)):
                for optimiser in both:
                    optimiser.step()
                    optimiser.zero_grad()

    def finish(self) -> None:
        """Write the heads as GGUF, Q8_0."""
        for head in self.heads:
            path = self.args.work / f"{head.kind}-Q8_0.gguf"
            if isinstance(head, heads.Eagle):
                save_eagle3(head, self.tokenizer, path)
            elif isinstance(head, heads.Mtp):
                save_mtp(head, self.args.target, self.tokenizer, path)


def main() -> None:
    """Parse, train, write."""
    parser = argparse.ArgumentParser(description="Train draft heads for a target.")
    parser.add_argument("target", type=Path, help="GGUF file")
    parser.add_argument("corpora", type=Path, help="folder with NAME.jsonl.zst")
    parser.add_argument("work", type=Path, help="folder for checkpoint and results")
    parser.add_argument("answers", type=Path, nargs="+", help="files of generate.py")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--kinds", nargs="+", choices=heads.KINDS, default=list(heads.KINDS))
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--rows", type=int, default=8, help=f"rows of {CONTEXT} tokens in a step")
    parser.add_argument("--answered", type=float, default=0.875, help="share of rows with answers")
    parser.add_argument("--config", type=Path, default=HERE / "configs" / "answers.toml")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--cache", type=Path, help="folder for tokenised corpora")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    run = Run(parser.parse_args())
    run.restore()
    run.train()
    run.finish()


if __name__ == "__main__":
    main()
