"""Let a model answer prompts of the corpora, and keep its answers with their distributions.

    python models/generate.py TARGET.gguf CORPORA OUT.npz --tokens 600000

The prompts are beginnings of training conversations, up to an assistant turn. A part is answered
greedily, the rest by sampling at the temperatures asked for. For every generated position the TOP
largest probabilities (at temperature 1) are kept. This is what `distill.py` learns from.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import export
import numpy as np
import torch
from data import Encoder, Source, load_sources
from model import Llama, Memory
from tokenizers import Tokenizer
from train import HERE, device, read_config

TOP = 32
PROMPT, ANSWER = 256, 192
"""Longest prompt and longest answer, in tokens."""
ROWS = 96


@dataclass
class Answers:
    """Prompts and answers one after another, and the distributions of the answers."""

    ids: np.ndarray
    """uint16, every prompt followed by its answer."""
    starts: np.ndarray
    """Where each prompt begins."""
    answered: np.ndarray
    """bool: generated."""
    top_ids: np.ndarray
    """uint16 `(generated, TOP)`: the likeliest ids at each generated position."""
    top_p: np.ndarray
    """float16 `(generated, TOP)`: their probabilities."""

    def save(self, path: Path) -> None:
        """Write all arrays."""
        np.savez(path, **vars(self))


def prompts(source: Source, encoder: Encoder, rng: random.Random) -> list[int] | None:
    """Cut a conversation before one of its assistant turns; None if that is too long."""
    ids, assistant = source.conversation(rng.randrange(len(source)))
    edges = np.flatnonzero(assistant[1:] & ~assistant[:-1]) + 1
    at = int(rng.choice(edges[edges < PROMPT].tolist() or [0]))
    return [encoder.bos, *ids[:at].tolist()] if at else None


def draw(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Choose the next id of every row; temperature 0 takes the likeliest."""
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)))
    return (logits + noise * temperatures[:, None]).argmax(-1)


@torch.no_grad()
def answer(
    model: Llama, batch: list[list[int]], temperatures: list[float], end: int, where: torch.device
) -> list[tuple[list[int], np.ndarray, np.ndarray]]:
    """Answer a batch of prompts: for each the ids, and the top ids and probabilities."""
    lengths = torch.tensor([len(prompt) for prompt in batch], device=where)
    widest = int(lengths.max())
    memory = Memory(model.shape, lengths, widest + ANSWER, where)
    ids = torch.zeros(len(batch), widest, dtype=torch.long)
    for row, prompt in enumerate(batch):
        ids[row, widest - len(prompt) :] = torch.tensor(prompt)
    heat = torch.tensor(temperatures, device=where)
    logits = model.step(ids.to(where), memory)
    chosen, top_ids, top_p = [], [], []
    for _ in range(ANSWER):
        p, likely = logits.softmax(-1).topk(TOP)
        following = draw(logits, heat)
        chosen.append(following)
        top_ids.append(likely)
        top_p.append(p)
        if bool((torch.stack(chosen) == end).any(0).all()):
            break
        logits = model.step(following[:, None], memory)
    said = torch.stack(chosen, 1).cpu().numpy()
    likely, p = torch.stack(top_ids, 1).cpu().numpy(), torch.stack(top_p, 1).cpu().numpy()
    answers = []
    for row in range(len(batch)):
        stops = np.flatnonzero(said[row] == end)
        length = int(stops[0]) + 1 if len(stops) else said.shape[1]
        answers.append((said[row, :length].tolist(), likely[row, :length], p[row, :length]))
    return answers


def ask(
    model: Llama,
    known: dict[str, Source],
    mixture: dict[str, float],
    encoder: Encoder,
    *,
    tokens: int,
    temperatures: list[float],
    seed: int,
) -> Answers:
    """Generate about `tokens` tokens."""
    rng, where = random.Random(seed), next(model.parameters()).device  # noqa: S311
    torch.manual_seed(seed)
    names = [name for name in mixture if mixture[name] > 0]
    ids: list[int] = []
    marks: list[bool] = []
    starts: list[int] = []
    tops: list[np.ndarray] = []
    odds: list[np.ndarray] = []
    began = time.monotonic()
    while sum(map(len, tops)) < tokens:
        batch: list[list[int]] = []
        while len(batch) < ROWS:
            name = rng.choices(names, [mixture[name] for name in names])[0]
            prompt = prompts(known[name], encoder, rng)
            batch += [prompt] if prompt else []
        heats = [rng.choice(temperatures) for _ in batch]
        for prompt, (said, likely, p) in zip(
            batch, answer(model, batch, heats, encoder.end, where), strict=True
        ):
            starts.append(len(ids))
            ids += prompt + said
            marks += [False] * len(prompt) + [True] * len(said)
            tops.append(likely.astype(np.uint16))
            odds.append(p.astype(np.float16))
        done = sum(map(len, tops))
        print(f"{done} tokens, {done / (time.monotonic() - began):.0f} a second", flush=True)
    return Answers(
        np.array(ids, dtype=np.uint16),
        np.array(starts),
        np.array(marks),
        np.concatenate(tops),
        np.concatenate(odds),
    )


def main() -> None:
    """Parse, generate, save."""
    parser = argparse.ArgumentParser(description="Generate a model's answers for distillation.")
    parser.add_argument("target", type=Path, help="GGUF file")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("out", type=Path, help="file.npz")
    parser.add_argument("--tokens", type=int, default=600_000)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0, 0.8, 1.0])
    parser.add_argument("--config", type=Path, default=HERE / "configs" / "target.toml")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--cache", type=Path, required=True, help="folder for tokenised corpora")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    encoder = Encoder(Tokenizer.from_file(str(args.tokenizer)))
    known = load_sources(args.corpora, args.cache, args.tokenizer)
    model = export.load(args.target)[0].to(device()).eval()
    ask(
        model,
        known,
        read_config(args.config)["mixture"],
        encoder,
        tokens=args.tokens,
        temperatures=args.temperatures,
        seed=args.seed,
    ).save(args.out)


if __name__ == "__main__":
    main()
