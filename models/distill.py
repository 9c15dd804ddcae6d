"""Distil the draft from a target's answers.

    python models/distill.py DRAFT.gguf WORK ANSWERS.npz ... --minutes 15

The draft learns at every position that the target generated: half from the whole distribution
there (Kullback-Leibler divergence from target to draft over the likeliest ids, the others as one),
half from the likeliest id alone, which is what greedy verification compares with. The answers are
the target's own, so the draft learns where it will be asked (arXiv 2310.08461).
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
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
from train import HERE, LOG_SECONDS, STEP_SECONDS, bfloat16_pays, device

if TYPE_CHECKING:
    from types import FrameType

CONTEXT = 512
SAVE_SECONDS = 180


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


class Run:
    """A distillation that can be stopped and taken up again."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.where = device()
        self.model = export.load(args.draft)[0].to(self.where)
        self.lessons = Lessons(load_answers(args.answers), args.seed)
        self.optimisers = optimisers(self.model, lr=args.lr, weight_decay=0.01)
        self.elapsed, self.step = 0.0, 0
        self.stopping = False
        args.work.mkdir(parents=True, exist_ok=True)
        if args.compile:
            for block in self.model.blk:
                block.compile()

    def save(self) -> None:
        """Save all that a restart needs."""
        path = self.args.work / "last.pt"
        state = {
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "random": self.lessons.random.bit_generator.state,
            "elapsed": self.elapsed,
            "step": self.step,
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def restore(self) -> None:
        """Take up the run in the work folder, if there is one."""
        path = self.args.work / "last.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.where, weights_only=False)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.lessons.random.bit_generator.state = state["random"]
        self.elapsed, self.step = state["elapsed"], state["step"]

    def rate(self) -> float:
        """Return the learning rate: a short rise, then a straight fall to zero."""
        left = max(0.0, 1 - self.elapsed / (60 * self.args.minutes))
        return self.args.lr * left * min(1.0, (self.step + 1) / 30)

    def advance(self) -> tuple[float, float]:
        """Do one step; return loss and agreement."""
        lesson = self.lessons.batch(self.args.rows, self.where)
        loss, same = loss_of(self.model, lesson, self.args.hard)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        set_rate(self.optimisers, self.rate())
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        return float(loss.detach()), float(same)

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask for an end after this step."""
        self.stopping = True

    def train(self) -> None:
        """Train until the time is up or the process is asked to stop."""
        signal.signal(signal.SIGTERM, self.stop)
        clock = time.monotonic()
        logged = saved = self.elapsed
        loss = same = math.nan
        while self.elapsed < 60 * self.args.minutes and not self.stopping:
            new_loss, new_same = self.advance()
            loss = new_loss if math.isnan(loss) else 0.98 * loss + 0.02 * new_loss
            same = new_same if math.isnan(same) else 0.98 * same + 0.02 * new_same
            now = time.monotonic()
            self.elapsed, clock = self.elapsed + min(now - clock, STEP_SECONDS), now
            if self.elapsed - logged > LOG_SECONDS:
                logged = self.elapsed
                tokens = self.step * self.args.rows * CONTEXT
                figures = {"step": self.step, "tokens": tokens, "minutes": self.elapsed / 60}
                print(json.dumps(figures | {"loss": loss, "same": same}), flush=True)
            if self.elapsed - saved > SAVE_SECONDS:
                saved = self.elapsed
                self.save()
        self.save()


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
