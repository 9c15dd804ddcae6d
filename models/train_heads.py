"""Train draft heads for a target, from its own answers and from corpus text.

    python models/train_heads.py TARGET.gguf CORPORA WORK ANSWERS.npz ... --minutes 70

All heads asked for learn from the same passes of the target, which stays as it is. The loss is
the one of `distill.py`, with the target's whole distribution, at each step of a draft; later steps
count less, and are added as time goes on (arXiv 2503.01840, section 3).
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import export
import heads
import numpy as np
import torch
from data import Encoder, Stream, load_sources
from distill import CONTEXT, SAVE_SECONDS, Lessons, load_answers
from heads import Head, save_eagle3, save_mtp, states_of, unroll
from optim import optimisers, set_rate
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import HERE, LOG_SECONDS, STEP_SECONDS, bfloat16_pays, device, read_config

if TYPE_CHECKING:
    from types import FrameType

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

    def state(self) -> dict:
        """Return what `restore` needs."""
        return {"stream": self.stream.state(), "random": self.lessons.random.bit_generator.state}

    def restore(self, state: dict) -> None:
        """Go on where another one was."""
        self.stream.restore(state["stream"])
        self.lessons.random.bit_generator.state = state["random"]


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


class Run:
    """A training of heads that can be stopped and taken up again."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.where = device()
        self.tokenizer = Tokenizer.from_file(str(args.tokenizer))
        self.texts = Texts(args, self.tokenizer)
        self.target = export.load(args.target)[0].to(self.where).requires_grad_(requires_grad=False)
        self.heads: list[Head] = [heads.KINDS[k](self.target).to(self.where) for k in args.kinds]
        if bfloat16_pays(self.where):
            self.target = self.target.bfloat16()
        self.optimisers = [optimisers(h, lr=args.lr, weight_decay=0.01) for h in self.heads]
        self.elapsed, self.step = 0.0, 0
        self.stopping = False
        args.work.mkdir(parents=True, exist_ok=True)
        if args.compile:
            for head in self.heads:
                head.step = torch.compile(head.step)

    def save(self) -> None:
        """Save all that a restart needs."""
        path = self.args.work / "last.pt"
        state = {
            "heads": [head.state_dict() for head in self.heads],
            "optimisers": [[o.state_dict() for o in both] for both in self.optimisers],
            "texts": self.texts.state(),
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
        for head, saved in zip(self.heads, state["heads"], strict=True):
            head.load_state_dict(saved)
        for both, saved in zip(self.optimisers, state["optimisers"], strict=True):
            for optimiser, one in zip(both, saved, strict=True):
                optimiser.load_state_dict(one)
        self.texts.restore(state["texts"])
        self.elapsed, self.step = state["elapsed"], state["step"]

    def rate(self) -> float:
        """Return the learning rate: a short rise, a while at the top, then a fall to zero."""
        left = max(0.0, 1 - self.elapsed / (60 * self.args.minutes))
        return self.args.lr * min(1.0, left / 0.7) * min(1.0, (self.step + 1) / 30)

    def steps(self, head: Head) -> int:
        """Return how many steps of a draft are trained now."""
        share = self.elapsed / (60 * self.args.minutes)
        return min(STEPS[head.kind], 1 + int(share / LATER_FROM))

    def advance(self) -> dict[str, float]:
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
        self.step += 1
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

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask for an end after this step."""
        self.stopping = True

    def train(self) -> None:
        """Train until the time is up or the process is asked to stop."""
        signal.signal(signal.SIGTERM, self.stop)
        clock = time.monotonic()
        logged = saved = self.elapsed
        smooth: dict[str, float] = {}
        while self.elapsed < 60 * self.args.minutes and not self.stopping:
            for name, value in self.advance().items():
                smooth[name] = smooth.get(name, value) * 0.95 + 0.05 * value
            now = time.monotonic()
            self.elapsed, clock = self.elapsed + min(now - clock, STEP_SECONDS), now
            if self.elapsed - logged > LOG_SECONDS:
                logged = self.elapsed
                self.log(smooth)
            if self.elapsed - saved > SAVE_SECONDS:
                saved = self.elapsed
                self.save()
        self.save()

    def log(self, figures: dict[str, float]) -> None:
        """Print figures."""
        tokens = self.step * self.args.rows * CONTEXT
        line = {"step": self.step, "tokens": tokens, "minutes": self.elapsed / 60} | figures
        print(json.dumps({k: round(v, 4) for k, v in line.items()}), flush=True)

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
