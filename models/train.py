"""Train a model of the demo pair on the corpora.

    python models/train.py models/configs/target.toml CORPORA WORK --minutes 90
    python models/train.py models/configs/target.toml CORPORA WORK --minutes 90 --from OLD.gguf

The learning rate warms up, stays, and falls to zero over the last part of the time. `WORK/last.pt`
is saved every few minutes and picked up again when the same command is given; `WORK/stable.pt`
is the state before the fall, from which a later run can go on; `WORK/final.gguf` is the result in
F32. `--from` starts from the weights of a GGUF file, if need be with another vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import export
import torch
from data import Batch, Encoder, Stream, load_sources
from model import Llama, Shape, loss_sum
from optim import optimisers, set_rate
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from types import FrameType

HERE = Path(__file__).parent
SAVE_SECONDS = 180
LOG_SECONDS = 30
STEP_SECONDS = 60
"""A step that took longer counts as this long: the process was paused."""
EVALUATE_SECONDS = 600


@dataclass
class Settings:
    """The `[train]` table of a config."""

    lr: float
    weight_decay: float
    tokens_per_step: int
    micro_rows: int
    """Rows of the short context in one forward pass; fewer of the long one."""
    context: int
    long_context: int
    long_share: float
    """Share of the steps at the long context."""
    decay_share: float
    """Share of the time over which the learning rate falls to zero."""
    user_weight: float
    warmup_steps: int = 50
    seed: int = 0


def device() -> torch.device:
    """Return the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@cache
def bfloat16_pays(where: torch.device) -> bool:
    """Tell whether bfloat16 products take two thirds of the time or less: a GPU, a CPU with AMX."""
    if where.type == "cuda":
        return True

    def seconds(kind: torch.dtype) -> float:
        x = torch.ones(512, 512, dtype=kind)
        best = math.inf
        for _ in range(5):
            began = time.perf_counter()
            x @ x
            best = min(best, time.perf_counter() - began)
        return best

    return seconds(torch.float32) > 1.5 * seconds(torch.bfloat16)


def read_config(path: Path) -> dict:
    """Read a TOML config."""
    return tomllib.loads(path.read_text("utf-8"))


def initial(config: dict, tokenizer: Tokenizer, start: Path | None) -> Llama:
    """Make the model: random, or with the weights of a GGUF file."""
    shape = Shape(vocab=tokenizer.get_vocab_size(), **config["model"])
    model = Llama(shape)
    if start is not None:
        adopted = export.adopt(start, tokenizer, config.get("aliases", {}))
        model.load_state_dict(adopted.state_dict())
    return model


def loss_of(model: Llama, batch: Batch, where: torch.device) -> tuple[torch.Tensor, float]:
    """Return the summed loss of a batch and the sum of its weights."""
    inputs, targets, weights = (torch.from_numpy(part).to(where) for part in batch)
    with torch.autocast(where.type, torch.bfloat16, enabled=bfloat16_pays(where)):
        hidden = model.hidden(inputs)
        return loss_sum(model, hidden, targets, weights), float(weights.sum())


@torch.no_grad()
def evaluate(model: Llama, batches: list[Batch], where: torch.device) -> float:
    """Return the mean loss of what the assistant says, in nats for each token."""
    total = weight = 0.0
    for batch in batches:
        only = batch._replace(weights=(batch.weights == 1.0).astype("float32"))
        loss, count = loss_of(model, only, where)
        total += float(loss)
        weight += count
    return total / weight


class Run:
    """One training run that can be stopped and taken up again."""

    def __init__(self, args: argparse.Namespace) -> None:
        config = read_config(args.config)
        self.settings = Settings(**config["train"])
        self.minutes = args.minutes
        self.work = args.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.name = config["name"]
        torch.manual_seed(self.settings.seed)
        self.where = device()
        self.tokenizer = Tokenizer.from_file(str(args.tokenizer))
        encoder = Encoder(self.tokenizer)
        self.stream, self.held_out = self.streams(args, config["mixture"], encoder)
        self.model = initial(config, self.tokenizer, args.start).to(self.where)
        self.optimisers = optimisers(
            self.model, lr=self.settings.lr, weight_decay=self.settings.weight_decay
        )
        self.elapsed, self.step, self.seen = 0.0, 0, 0
        self.stopping = False
        if args.compile:
            for block in self.model.blk:
                block.compile()

    def streams(
        self, args: argparse.Namespace, mixture: dict, encoder: Encoder
    ) -> tuple[Stream, list[Batch]]:
        """Make the training stream, and batches of the held-out part in the same mixture."""
        cache, weight = args.cache or self.work / "cache", self.settings.user_weight
        known = load_sources(args.corpora, cache, args.tokenizer)
        stream = Stream(known, mixture, encoder, seed=self.settings.seed, user_weight=weight)
        unseen = load_sources(args.corpora, cache, args.tokenizer, held_out=True)
        other = Stream(unseen, mixture, encoder, seed=1, user_weight=weight)
        return stream, [other.batch(8, self.settings.context) for _ in range(5)]

    def save(self, name: str) -> None:
        """Save all that a restart needs."""
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "stream": self.stream.state(),
            "elapsed": self.elapsed,
            "step": self.step,
            "seen": self.seen,
        }
        torch.save(state, self.work / f"{name}.part")
        (self.work / f"{name}.part").replace(self.work / name)

    def restore(self) -> None:
        """Take up the run in the work folder, if there is one."""
        path = self.work / "last.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.where, weights_only=False)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.stream.restore(state["stream"])
        self.elapsed, self.step, self.seen = state["elapsed"], state["step"], state["seen"]

    def rate(self) -> float:
        """Return the learning rate of this step."""
        left = 1 - self.elapsed / (60 * self.minutes)
        warm = min(1.0, (self.step + 1) / self.settings.warmup_steps)
        return self.settings.lr * warm * min(1.0, max(0.0, left) / self.settings.decay_share)

    def batches(self) -> list[Batch]:
        """Draw the micro batches of one step, all at one context length."""
        s = self.settings
        long = self.stream.random.random() < s.long_share
        context = s.long_context if long else s.context
        rows = max(1, s.micro_rows * s.context // context)
        count = max(1, s.tokens_per_step // (rows * context))
        return [self.stream.batch(rows, context) for _ in range(count)]

    def advance(self) -> float:
        """Do one step; return its mean weighted loss."""
        batches = self.batches()
        weight = float(sum(batch.weights.sum() for batch in batches))
        total = 0.0
        for batch in batches:
            loss, _ = loss_of(self.model, batch, self.where)
            (loss / weight).backward()
            total += float(loss.detach())
            self.seen += batch.inputs.size
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        set_rate(self.optimisers, self.rate())
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        return total / weight

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """Ask for an end after this step."""
        self.stopping = True

    def log(self, **figures: float) -> None:
        """Print and keep figures."""
        line = json.dumps({"step": self.step, "tokens": self.seen} | figures)
        print(line, flush=True)
        with (self.work / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def train(self) -> None:
        """Train until the time is up or the process is asked to stop."""
        signal.signal(signal.SIGTERM, self.stop)
        clock = time.monotonic()
        saved = logged = evaluated = self.elapsed
        smooth, mark = math.nan, self.seen
        while self.elapsed < 60 * self.minutes and not self.stopping:
            before = self.rate()
            loss = self.advance()
            smooth = loss if math.isnan(smooth) else 0.95 * smooth + 0.05 * loss
            now = time.monotonic()
            self.elapsed, clock = self.elapsed + min(now - clock, STEP_SECONDS), now
            if self.elapsed - logged > LOG_SECONDS:
                speed = (self.seen - mark) / (self.elapsed - logged)
                self.log(minutes=self.elapsed / 60, loss=smooth, rate=self.rate(), speed=speed)
                logged, mark = self.elapsed, self.seen
            if self.elapsed - evaluated > EVALUATE_SECONDS:
                evaluated = self.elapsed
                self.log(held_out=evaluate(self.model, self.held_out, self.where))
            if before >= self.settings.lr > self.rate():
                self.save("stable.pt")
            if self.elapsed - saved > SAVE_SECONDS:
                saved = self.elapsed
                self.save("last.pt")
        self.save("last.pt")

    def finish(self) -> None:
        """Write the trained model."""
        self.log(held_out=evaluate(self.model, self.held_out, self.where))
        export.save(
            self.model, self.tokenizer, self.work / "final.gguf", kind="f32", name=self.name
        )


def main() -> None:
    """Parse, restore, train, write."""
    parser = argparse.ArgumentParser(description="Train a model of the demo pair.")
    parser.add_argument("config", type=Path, help="a file of models/configs")
    parser.add_argument("corpora", type=Path, help="folder with NAME.jsonl.zst")
    parser.add_argument("work", type=Path, help="folder for checkpoints, log and result")
    parser.add_argument("--minutes", type=float, required=True, help="time for the whole run")
    parser.add_argument("--from", dest="start", type=Path, help="GGUF file to start from")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--cache", type=Path, help="folder for tokenised corpora")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    run = Run(args := parser.parse_args())
    run.restore()
    run.train()
    if run.elapsed >= 60 * args.minutes:
        run.finish()


if __name__ == "__main__":
    main()
