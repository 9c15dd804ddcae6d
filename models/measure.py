"""Measure the demo pair on the held-out part of the corpora, with localspec's own engine.

    python models/measure.py CORPORA TARGET.gguf --draft plain=PLAIN.gguf --draft distilled=D.gguf
        --head eagle=EAGLE3.gguf --mtp mtp=TARGET_WITH_MTP.gguf

Prints Markdown: perplexity of every model, acceptance of every draft at temperature 0 and 0.8, for
each kind of text, and what the target answers to fixed prompts. Nothing is chosen by its outcome:
the conversations are the first of each held-out file, the prompts stand below.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from arithmetic import sums
from corpora import Message, conversations

from localspec.engine.cancel import Cancel
from localspec.engine.drafter import ModelDrafter
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.heads import HeadDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Head, Model
from localspec.engine.params import Accept, SamplingParams
from localspec.engine.translated import TranslatedDrafter
from localspec.engine.translation import Translation
from localspec.limits import MAX_BATCH_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = {
    "stories": ("tinystories",),
    "maths": ("sums", "step_math", "gsm8k"),
    "Python": ("python_stdlib", "python_algorithms", "mbpp"),
    "talk": ("self_dialogue", "topical_chat", "chitchat", "chatterbot"),
    "facts": ("trivia", "facts", "wordset", "dolly_subset"),
    "bookings": ("sgd", "multiwoz", "taskmaster", "camrest"),
}
PROMPTS = {
    "A story": (
        "Tell me a story about a dog named Max.",
        "Tell me a story about a little girl who finds a key.",
        "Write a short story about a bird and a tree.",
    ),
    "A sum": (
        "What is 12 + 7?",
        "What is (4 + 6) * 3?",
        "Tom has 5 apples and buys 8 more. How many apples does Tom have?",
    ),
    "A Python function": (
        "Write a Python function that adds two numbers.",
        "Write a Python function to find the largest number in a list.",
        "Write a Python function `is_even` that checks if a number is even.",
    ),
    "A copy": (
        "Repeat this word for word:\n\nThe old miller sold seven sacks to a ferryman from Oslo.",
        "Rename `total` to `amount` in this code:\n\n```python\ndef add_all(numbers):\n"
        "    total = 0\n    for number in numbers:\n        total += number\n    return total\n```",
    ),
}
SAMPLES = {
    "Greedily": SamplingParams(temperature=0.0),
    "With the settings that localspec begins with, seed 1": SamplingParams(seed=1),
}
CONTEXT = 1024
GAMMA = 4


@dataclass
class Count:
    """Drafted and accepted tokens."""

    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    rounds: int = 0

    def add(self, other: Count) -> None:
        """Add another count."""
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.tokens += other.tokens
        self.rounds += other.rounds

    @property
    def share(self) -> str:
        """Accepted over drafted."""
        return f"{self.accepted / self.drafted:.3f}" if self.drafted else "-"


def held_out(folder: Path, kind: str, count: int) -> list[list[Message]]:
    """Return the first held-out conversations of a kind, its sources taking turns."""
    files: list[Iterator[list[Message]]] = [
        iter(sums(seed=1)) if name == "sums" else conversations(folder, name, held_out=True)
        for name in KINDS[kind]
    ]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*files))
    return list(itertools.islice((talk for talk in turns if talk), count))


def text_of(messages: list[Message], *, opened: bool) -> str:
    """Render the chat template of the demo pair."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if opened else "")


def encode(model: Model, text: str) -> list[int]:
    """Tokenise rendered text, BOS before it."""
    return model.tokenize(text, add_special=True, parse_special=True)


def options(threads: int) -> ContextOptions:
    """Say how a context of the trained length is made."""
    return ContextOptions(n_ctx=CONTEXT, threads=threads, flash_attention=True)


def open_context(model: Model, threads: int) -> Context:
    """Make a context of the trained length."""
    return Context(model, options(threads))


def assistant_marks(model: Model, messages: list[Message]) -> tuple[list[int], list[bool]]:
    """Tokenise a conversation; mark what the assistant says and its end of turn."""
    ids: list[int] = []
    marks: list[bool] = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            head = encode(model, text_of(messages[:index], opened=True))
            whole = encode(model, text_of(messages[: index + 1], opened=False))
            marks += [False] * (len(head) - len(marks))
            marks += [True] * (len(whole) - 1 - len(head)) + [False]
            ids = whole
    return ids[:CONTEXT], marks[:CONTEXT]


def log_probabilities(context: Context, ids: list[int]) -> np.ndarray:
    """Return the log probability of every id but the first."""
    context.clear()
    found = []
    for start in range(0, len(ids) - 1, MAX_BATCH_OUTPUTS):
        part = ids[start : min(start + MAX_BATCH_OUTPUTS, len(ids) - 1)]
        logits = np.asarray(context.decode(part, len(part)), dtype=np.float64)
        following = ids[start + 1 : start + 1 + len(part)]
        top = logits.max(axis=1)
        norm = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        found.append(logits[np.arange(len(part)), following] - norm)
    return np.concatenate(found)


def perplexity(context: Context, talks: list[list[Message]]) -> tuple[float, int, int]:
    """Return the summed loss in nats, the tokens and the bytes of what assistants say."""
    loss, tokens, size = 0.0, 0, 0
    for messages in talks:
        ids, marks = assistant_marks(context.model, messages)
        scores = log_probabilities(context, ids)
        said = np.array(marks[1:])
        loss -= float(scores[said].sum())
        tokens += int(said.sum())
        size += sum(len(context.model.piece(i)) for i, m in zip(ids, marks, strict=True) if m)
    return loss, tokens, size


def answer(
    engine: Engine,
    prompt: list[int],
    *,
    gamma: int,
    n_predict: int,
    sampling: SamplingParams,
    accept: Accept = Accept.TOKEN,
) -> tuple[list[int], Count]:
    """Answer a prompt; return the tokens, and what was drafted and accepted."""
    cancel = Cancel()
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=n_predict)
    for _ in engine.prefill(prompt, cancel):
        pass
    tokens: list[int] = []
    count = Count()
    for done in engine.generate(prompt, settings, FixedGamma(gamma), cancel):
        tokens += done.tokens
        count.add(Count(done.drafted, done.accepted, len(done.tokens), 1))
    return tokens, count


def prompts_of(model: Model, talks: list[list[Message]]) -> list[list[int]]:
    """Cut every conversation before its last assistant turn, and tokenise what is before."""
    cut = (encode(model, text_of(talk[:-1], opened=True)) for talk in talks)
    return [prompt for prompt in cut if len(prompt) < CONTEXT - 300]


def show_perplexity(models: dict[str, Context], talks: dict[str, list[list[Message]]]) -> None:
    """Print perplexity for every kind of text and model."""
    print("\n| perplexity |", " | ".join(models), "| tokens |\n|---|" + "---|" * (len(models) + 1))
    totals = dict.fromkeys(models, 0.0)
    all_tokens = all_bytes = 0
    for kind, some in talks.items():
        cells = []
        for name, context in models.items():
            loss, tokens, size = perplexity(context, some)
            totals[name] += loss
            cells.append(f"{math.exp(loss / tokens):.2f}")
        all_tokens, all_bytes = all_tokens + tokens, all_bytes + size
        print(f"| {kind} |", " | ".join(cells), f"| {tokens} |", flush=True)
    cells = [f"{math.exp(loss / all_tokens):.2f}" for loss in totals.values()]
    print("| **all** |", " | ".join(cells), f"| {all_tokens} |")
    cells = [f"{loss / all_bytes / math.log(2):.3f}" for loss in totals.values()]
    print("| bits per byte |", " | ".join(cells), f"| {all_bytes} bytes |")


def open_draft(target: Context, draft: Context) -> Engine:
    """Make an engine that drafts with a model, over the text if its tokens are others."""
    if draft.model.pieces() == target.model.pieces():
        return Engine(target, ModelDrafter(draft, target.model.n_vocab))
    return Engine(target, TranslatedDrafter(draft, Translation(target.model, draft.model)))


def open_head(target: Context, path: Path | None = None) -> Engine:
    """Make an engine that drafts with a head: its own file's, or the one inside the target."""
    model = target.model if path is None else Model.load(path, head=True)
    return Engine(target, HeadDrafter(Head(model, target, options(1))))


def show_acceptance(
    engines: dict[str, Engine], talks: dict[str, list[list[Message]]], gamma: int
) -> None:
    """Print accepted/drafted for every kind of text, draft and temperature."""
    columns = [(name, heat) for heat in (0.0, 0.8) for name in engines]
    head = " | ".join(f"{name}, {heat:g}" for name, heat in columns)
    print(f"\n| accepted/drafted | {head} |\n|---|" + "---|" * len(columns))
    totals = {column: Count() for column in columns}
    for kind, some in talks.items():
        cells = []
        for name, heat in columns:
            engine, total = engines[name], Count()
            engine.target.clear()  # a head sees only what is read from now on
            for prompt in prompts_of(engine.target.model, some):
                sampling = SamplingParams(temperature=heat, seed=1)
                total.add(answer(engine, prompt, gamma=gamma, n_predict=128, sampling=sampling)[1])
            totals[name, heat].add(total)
            cells.append(total.share)
        print(f"| {kind} |", " | ".join(cells), "|", flush=True)
    print("| **all** |", " | ".join(total.share for total in totals.values()), "|")
    rounds = (f"{total.tokens / total.rounds:.2f}" for total in totals.values())
    print("| tokens for each target pass |", " | ".join(rounds), "|")


def show_samples(target: Context) -> None:
    """Print answers to the fixed prompts: greedy, and with localspec's own defaults."""
    engine = Engine(target)
    for title, prompts in PROMPTS.items():
        print(f"\n### {title}")
        for text in prompts:
            asked = encode(target.model, text_of([{"role": "user", "content": text}], opened=True))
            print("\n" + "\n".join(f"> {line}".rstrip() for line in text.splitlines()))
            for how, sampling in SAMPLES.items():
                tokens, _ = answer(engine, asked, gamma=0, n_predict=220, sampling=sampling)
                said = b"".join(target.model.piece(token) for token in tokens)
                print(f"\n{how}:\n\n````text\n{said.decode(errors='replace')}\n````")


def named(text: str) -> tuple[str, Path]:
    """Read NAME=FILE."""
    name, found, path = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError("give a draft as NAME=FILE")
    return name, Path(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the demo pair on held-out text.")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=named, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--head", type=named, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--mtp", type=named, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--gamma", type=int, default=GAMMA, help="tokens drafted in a round")
    parser.add_argument("--count", type=int, default=12, help="conversations of each kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-samples", action="store_true")
    parser.add_argument("--no-perplexity", action="store_true")
    args = parser.parse_args()
    target = open_context(Model.load(args.target), args.threads)
    drafts = {name: open_context(Model.load(path), 1) for name, path in args.draft}
    talks = {kind: held_out(args.corpora, kind, args.count) for kind in KINDS}
    if not args.no_perplexity:
        more = {kind: held_out(args.corpora, kind, 4 * args.count) for kind in KINDS}
        show_perplexity({"target": target, **drafts}, more)
    engines = {name: open_draft(target, each) for name, each in drafts.items()}
    engines |= {name: open_head(target, path) for name, path in args.head}
    for name, path in args.mtp:
        engines[name] = open_head(open_context(Model.load(path, mtp=True), args.threads))
    if engines:
        show_acceptance(engines, talks, args.gamma)
    if not args.no_samples:
        show_samples(target)


if __name__ == "__main__":
    main()
