"""Distil the draft from a target's answers.

    python models/distill.py DRAFT.gguf WORK ANSWERS.npz ... --minutes 15

With the tokenizer of another vocabulary the draft's embeddings are carried over to that, in which
the answers are spelled then (`respell.py`).

The draft learns at every position that the target generated: half from the whole distribution
there (Kullback-Leibler divergence from target to draft over the likeliest ids, the others as one),
half from the likeliest id alone, which is what greedy verification compares with. The answers are
the target's own, so the draft learns where it will be asked (arXiv 2310.08461).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import export
import numpy as np
import torch
from generate import Answers
from model import Llama
from optim import optimisers, set_rate
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import HERE, bfloat16_pays
from training import CONTEXT, Training

if TYPE_CHECKING:
    from training import Part


class Lesson(NamedTuple):
    """One batch."""

    inputs: Tensor
    """`(rows, CONTEXT)` ids."""
    where: Tensor
    """Flat indices of the positions whose next token was generated."""
    top_ids: Tensor
    """`(positions, top)`"""
    top_p: Tensor
    """`(positions, top)`"""


def load_answers(paths: list[Path]) -> list[Answers]:
    """Load what `generate.py` wrote."""
    loaded = []
    for path in paths:
        with np.load(path) as stored:
            loaded.append(Answers(**{name: stored[name] for name in stored.files}))
    return loaded


class Lessons:
    """Rows of answers, drawn by chance; a row begins with a prompt and is filled by those after."""

    def __init__(self, answers: list[Answers], seed: int) -> None:
        self.answers = answers
        self.row_of = [np.cumsum(a.answered) - 1 for a in answers]
        self.random = np.random.default_rng(seed)
        self.weights = np.array([len(a.top_p) for a in answers], dtype=float)
        self.weights /= self.weights.sum()

    def state_dict(self) -> dict:
        """Return where chance stands."""
        return dict(self.random.bit_generator.state)

    def load_state_dict(self, state: dict) -> None:
        """Go on where another one was."""
        self.random.bit_generator.state = state

    def row(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw one row: inputs, generated positions, top ids and probabilities there."""
        which = int(self.random.choice(len(self.answers), p=self.weights))
        answers = self.answers[which]
        usable = np.searchsorted(answers.starts, len(answers.ids) - CONTEXT - 1)
        start = int(answers.starts[self.random.integers(usable)])
        inputs = answers.ids[start : start + CONTEXT].astype(np.int64)
        after = slice(start + 1, start + CONTEXT + 1)
        where = np.flatnonzero(answers.answered[after])
        rows = self.row_of[which][after][where]
        return inputs, where, answers.top_ids[rows], answers.top_p[rows]

    def batch(self, rows: int, device_: torch.device) -> Lesson:
        """Draw a batch."""
        drawn = [self.row() for _ in range(rows)]
        inputs = np.stack([row[0] for row in drawn])
        where = np.concatenate([row[1] + CONTEXT * i for i, row in enumerate(drawn)])
        top_ids = np.concatenate([row[2] for row in drawn]).astype(np.int64)
        top_p = np.concatenate([row[3] for row in drawn]).astype(np.float32)
        parts = (inputs, where, top_ids, top_p)
        return Lesson(*(torch.from_numpy(part).to(device_) for part in parts))


def loss_of(model: Llama, lesson: Lesson, hard: float) -> tuple[Tensor, Tensor]:
    """Return the mean loss, and the share of positions where both find the same id likeliest."""
    where = lesson.inputs.device
    with torch.autocast(where.type, torch.bfloat16, enabled=bfloat16_pays(where)):
        hidden = model.hidden(lesson.inputs).flatten(0, 1)[lesson.where]
        logits = model.logits(hidden)
    log_q = logits.float().log_softmax(-1)
    top_q = log_q.gather(1, lesson.top_ids)
    rest_p = (1 - lesson.top_p.sum(1)).clamp(min=0)
    rest_q = torch.log1p(-top_q.exp().sum(1).clamp(max=1 - 1e-5))
    soft = -(lesson.top_p * top_q).sum(1) - rest_p * rest_q
    first = lesson.top_ids[:, 0]
    same = (log_q.argmax(-1) == first).float().mean()
    return (
        (1 - hard) * soft + hard * functional.nll_loss(log_q, first, reduction="none")
    ).mean(), same


class Run(Training):
    """A distillation."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        tokenizer = Tokenizer.from_file(str(args.tokenizer))
        self.model = export.adopt(args.draft, tokenizer, {}).to(self.where)
        self.lessons = Lessons(load_answers(args.answers), args.seed)
        self.optimisers = optimisers(self.model, lr=args.lr, weight_decay=0.01)
        if args.compile:
            for block in self.model.blk:
                block.compile()

    def parts(self) -> list[Part]:
        """Return what is saved."""
        return [self.model, *self.optimisers, self.lessons]

    def rate(self) -> float:
        """Return the learning rate: a short rise, then a straight fall to zero."""
        return self.args.lr * self.left * min(1.0, (self.step + 1) / 30)

    def learn(self) -> dict[str, float]:
        """Do one step; return loss and agreement."""
        lesson = self.lessons.batch(self.args.rows, self.where)
        loss, same = loss_of(self.model, lesson, self.args.hard)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        set_rate(self.optimisers, self.rate())
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        return {"loss": float(loss.detach()), "same": float(same)}


def main() -> None:
    """Parse, train, write."""
    parser = argparse.ArgumentParser(description="Distil a draft from a target's answers.")
    parser.add_argument("draft", type=Path, help="GGUF file to start from")
    parser.add_argument("work", type=Path, help="folder for checkpoint and result")
    parser.add_argument("answers", type=Path, nargs="+", help="files of generate.py")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--rows", type=int, default=8, help=f"rows of {CONTEXT} tokens in a step")
    parser.add_argument("--hard", type=float, default=0.5, help="weight of the likeliest id alone")
    parser.add_argument("--name", default="localspec demo draft")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    args = parser.parse_args()
    run = Run(args)
    run.restore()
    run.train()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    export.save(run.model, tokenizer, args.work / "final.gguf", kind="f32", name=args.name)


if __name__ == "__main__":
    main()
