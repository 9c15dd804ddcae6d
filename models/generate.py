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
from data import Encoder, Source, Stream, load_sources
from model import Llama, Memory
from tokenizers import Tokenizer
from train import HERE, bfloat16_pays, device, read_config

TOP = 32
PROMPT, ANSWER = 160, 192
"""Longest prompt and longest answer, in tokens."""
ROWS = 128
"""Prompts answered together."""
ROW = 512
"""Tokens in a row of corpus text."""
SORTED = 6
"""Batches drawn together and sorted by length, so that little is padded."""
FULL = 0.75
"""A batch is packed anew when fewer of its rows than this are still being answered."""


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


def cut_prompt(source: Source, encoder: Encoder, rng: random.Random) -> list[int] | None:
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
    memory = Memory(model, lengths, widest + ANSWER)
    ids = torch.zeros(len(batch), widest, dtype=torch.long)
    for row, prompt in enumerate(batch):
        ids[row, widest - len(prompt) :] = torch.tensor(prompt)
    heat = torch.tensor(temperatures, device=where)
    said = np.full((len(batch), ANSWER), end)
    top_ids = np.zeros((len(batch), ANSWER, TOP), dtype=np.uint16)
    top_p = np.zeros((len(batch), ANSWER, TOP), dtype=np.float16)
    rows = np.arange(len(batch))
    following = ids.to(where)
    for at in range(ANSWER):
        logits = model.step(following, memory).float()
        p, likely = logits.softmax(-1).topk(TOP)
        chosen = draw(logits, heat)
        said[rows, at] = chosen.cpu().numpy()
        top_ids[rows, at], top_p[rows, at] = likely.cpu().numpy(), p.cpu().numpy()
        going = (said[rows, : at + 1] != end).all(1)
        if not going.any():
            break
        if going.mean() < FULL:
            keep = torch.from_numpy(np.flatnonzero(going)).to(where)
            memory.select(keep)
            rows, heat, chosen = rows[going], heat[keep], chosen[keep]
        following = chosen[:, None]
    answers = []
    for row in range(len(batch)):
        length = min(int((said[row] != end).argmin()) + 1 if end in said[row] else ANSWER, ANSWER)
        answers.append((said[row, :length].tolist(), top_ids[row, :length], top_p[row, :length]))
    return answers


def draw_prompts(
    known: dict[str, Source], mixture: dict[str, float], encoder: Encoder, rng: random.Random
) -> list[list[list[int]]]:
    """Draw some batches of prompts by the mixture, alike in length within a batch."""
    names = [name for name in mixture if mixture[name] > 0]
    shares = [mixture[name] for name in names]
    drawn: list[list[int]] = []
    while len(drawn) < ROWS * SORTED:
        prompt = cut_prompt(known[rng.choices(names, shares)[0]], encoder, rng)
        drawn += [prompt] if prompt else []
    drawn.sort(key=len)
    return [drawn[start : start + ROWS] for start in range(0, len(drawn), ROWS)]


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
    ids: list[int] = []
    marks: list[bool] = []
    starts: list[int] = []
    tops: list[np.ndarray] = []
    odds: list[np.ndarray] = []
    waiting: list[list[list[int]]] = []
    done, began = 0, time.monotonic()
    while done < tokens:
        waiting = waiting or draw_prompts(known, mixture, encoder, rng)
        batch = waiting.pop(rng.randrange(len(waiting)))
        heats = [rng.choice(temperatures) for _ in batch]
        answers = answer(model, batch, heats, encoder.end, where)
        for prompt, (said, likely, p) in zip(batch, answers, strict=True):
            starts.append(len(ids))
            ids += prompt + said
            marks += [False] * len(prompt) + [True] * len(said)
            tops.append(likely)
            odds.append(p)
            done += len(said)
        print(f"{done} tokens, {done / (time.monotonic() - began):.0f} a second", flush=True)
    return Answers(
        np.array(ids, dtype=np.uint16),
        np.array(starts),
        np.array(marks),
        np.concatenate(tops),
        np.concatenate(odds),
    )


@torch.no_grad()
def read(model: Llama, stream: Stream, tokens: int, where: torch.device) -> Answers:
    """Keep the model's distributions over what the corpora's assistants say, not over its own."""
    ids: list[np.ndarray] = []
    marks: list[np.ndarray] = []
    tops: list[np.ndarray] = []
    odds: list[np.ndarray] = []
    while sum(map(len, tops)) < tokens:
        batch = stream.batch(2, ROW)
        said = batch.weights == 1.0
        logits = model(torch.from_numpy(batch.inputs).to(where)).float()
        p, likely = logits[torch.from_numpy(said).to(where)].softmax(-1).topk(TOP)
        for inputs, targets, mark in zip(batch.inputs, batch.targets, said, strict=True):
            ids.append(np.append(inputs[:1], targets))
            marks.append(np.append([False], mark))
        tops.append(likely.cpu().numpy().astype(np.uint16))
        odds.append(p.cpu().numpy().astype(np.float16))
    return Answers(
        np.concatenate(ids).astype(np.uint16),
        np.arange(len(ids)) * (ROW + 1),
        np.concatenate(marks),
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
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0, 0, 0, 0.8])
    parser.add_argument("--config", type=Path, default=HERE / "configs" / "answers.toml")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    parser.add_argument("--cache", type=Path, required=True, help="folder for tokenised corpora")
    parser.add_argument("--read", action="store_true", help="read the corpora, answer nothing")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    encoder = Encoder(Tokenizer.from_file(str(args.tokenizer)))
    known = load_sources(args.corpora, args.cache, args.tokenizer)
    model = export.load(args.target)[0].to(device()).eval()
    if bfloat16_pays(device()):
        model = model.bfloat16()
    mixture = read_config(args.config)["mixture"]
    if args.read:
        stream = Stream(known, mixture, encoder, seed=args.seed)
        read(model, stream, args.tokens, device()).save(args.out)
        return
    ask(
        model,
        known,
        mixture,
        encoder,
        tokens=args.tokens,
        temperatures=args.temperatures,
        seed=args.seed,
    ).save(args.out)


if __name__ == "__main__":
    main()
