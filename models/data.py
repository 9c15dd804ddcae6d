"""Tokenised conversations, and the endless seeded stream of training batches made from them.

Every turn becomes `<|im_start|>role`, its content and `<|im_end|>`, each ending a line. The stream
packs conversations without padding and lets attention cross their borders: most begin with BOS, the
others go on where the last one ended, as a talk does that changes its subject. So the whole context
length is really trained although single conversations are short.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import copying
import numpy as np
from arithmetic import sums
from corpora import Message, conversations, sources
from tokenizer import BOS, ROLES, TURN_END, TURN_START
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You are a friendly chat partner.",
    "Answer the user as well as you can.",
    "You are a small language model that runs on the user's own computer.",
)
SYSTEM_SHARE = 0.15
"""Share of the conversations that begin with one of SYSTEM_PROMPTS."""
JOIN_SHARE = 0.3
"""Share of the conversations that go on after the one before them, without BOS."""
GENERATED = ("sums", *copying.KINDS)
"""Sources that a program writes; they are in no corpus file."""


class Batch(NamedTuple):
    """Inputs and targets, `(rows, context)`, and the loss weight of every target."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclass
class Source:
    """Tokenised conversations of one source, one after another."""

    ids: np.ndarray
    """uint16 ids."""
    assistant: np.ndarray
    """bool: written by the assistant, its end of turn counted in."""
    starts: np.ndarray
    """Where each conversation begins in `ids`; one more entry marks the end."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def conversation(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and the assistant marks of one conversation."""
        part = slice(self.starts[index], self.starts[index + 1])
        return self.ids[part], self.assistant[part]


class Encoder:
    """Turns conversations into ids, message by message: exactly what the whole text would give."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        start, end = tokenizer.token_to_id(TURN_START), tokenizer.token_to_id(TURN_END)
        newline = tokenizer.encode("\n").ids
        self.bos = tokenizer.token_to_id(BOS)
        self.end = end
        self.close = [end, *newline]
        self.open = {r: [start, *tokenizer.encode(r).ids, *newline] for r in ROLES}

    def turns(self, messages: Iterable[Message]) -> tuple[list[int], list[bool]]:
        """Encode closed turns; mark what the assistant writes, up to its end of turn."""
        ids: list[int] = []
        marks: list[bool] = []
        for message in messages:
            content = self.tokenizer.encode(message["content"], add_special_tokens=False).ids
            head = self.open[message["role"]]
            said = message["role"] == "assistant"
            ids += [*head, *content, *self.close]
            marks += [False] * len(head) + [said] * (len(content) + 1)
            marks += [False] * (len(self.close) - 1)
        return ids, marks

    def prompt(self, messages: Iterable[Message]) -> list[int]:
        """Encode what the model is asked: BOS, the turns, and an opened assistant turn."""
        return [self.bos, *self.turns(messages)[0], *self.open["assistant"]]


def encode_source(encoder: Encoder, texts: Iterable[list[Message]]) -> Source:
    """Tokenise all conversations of a source."""
    ids: list[np.ndarray] = []
    marks: list[np.ndarray] = []
    starts = [0]
    for messages in texts:
        turn_ids, turn_marks = encoder.turns(messages)
        ids.append(np.array(turn_ids, dtype=np.uint16))
        marks.append(np.array(turn_marks, dtype=bool))
        starts.append(starts[-1] + len(turn_ids))
    return Source(np.concatenate(ids), np.concatenate(marks), np.array(starts))


def load_source(
    folder: Path, cache: Path, tokenizer_file: Path, name: str, *, held_out: bool = False
) -> Source:
    """Load a tokenised source from the cache, or tokenise it and fill the cache."""
    path = cache / f"{name}{'.heldout' if held_out else ''}.npz"
    if path.exists() and path.stat().st_mtime > tokenizer_file.stat().st_mtime:
        with np.load(path) as stored:
            return Source(stored["ids"], stored["assistant"], stored["starts"])
    encoder = Encoder(Tokenizer.from_file(str(tokenizer_file)))
    if name in copying.KINDS:
        source = encode_source(encoder, copying.copies(folder, name, held_out=held_out))
    elif name in GENERATED:
        source = encode_source(encoder, sums(seed=1 if held_out else 0))
    else:
        source = encode_source(encoder, conversations(folder, name, held_out=held_out))
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(path, ids=source.ids, assistant=source.assistant, starts=source.starts)
    return source


def load_sources(
    folder: Path, cache: Path, tokenizer_file: Path, *, held_out: bool = False
) -> dict[str, Source]:
    """Load every source, those written by a program too."""
    return {
        name: load_source(folder, cache, tokenizer_file, name, held_out=held_out)
        for name in [*sources(folder), *GENERATED]
    }


class Stream:
    """An endless stream of packed batches, the same for the same seed.

    `mixture` gives each source's share of the *tokens*. A source is run through in a shuffled order
    before any of its conversations comes again. `state()` and `restore()` carry it over a restart.
    """

    def __init__(
        self,
        all_sources: dict[str, Source],
        mixture: dict[str, float],
        encoder: Encoder,
        *,
        seed: int = 0,
        user_weight: float = 0.2,
    ) -> None:
        self.sources = {name: all_sources[name] for name in mixture if mixture[name] > 0}
        self.encoder = encoder
        self.user_weight = user_weight
        self.random = random.Random(seed)  # noqa: S311 (data order, not secrets)
        mean = {name: len(s.ids) / len(s) for name, s in self.sources.items()}
        self.names = list(self.sources)
        self.odds = [mixture[name] / mean[name] for name in self.names]
        self.queues: dict[str, list[int]] = {name: [] for name in self.names}
        self.systems = [
            encoder.turns([{"role": "system", "content": text}])[0] for text in SYSTEM_PROMPTS
        ]
        self.ids: list[int] = []
        self.marks: list[bool] = []
        self.last = ""

    def state(self) -> dict[str, object]:
        """Return what `restore` needs."""
        return {
            "random": self.random.getstate(),
            "queues": {name: list(queue) for name, queue in self.queues.items()},
            "ids": list(self.ids),
            "marks": list(self.marks),
            "last": self.last,
        }

    def restore(self, state: dict) -> None:
        """Go on where another stream over the same data was."""
        self.random.setstate(state["random"])
        self.queues = {name: list(state["queues"].get(name, [])) for name in self.names}
        self.ids, self.marks = list(state["ids"]), list(state["marks"])
        self.last = state["last"]

    def pick(self) -> tuple[np.ndarray, np.ndarray]:
        """Draw the next conversation."""
        self.last = name = self.random.choices(self.names, self.odds)[0]
        queue = self.queues[name]
        if not queue:
            queue.extend(range(len(self.sources[name])))
            self.random.shuffle(queue)
        return self.sources[name].conversation(queue.pop())

    def extend(self) -> None:
        """Append one conversation to the buffer."""
        ids, marks = self.pick()
        if not self.ids or self.random.random() >= JOIN_SHARE:
            head = [self.encoder.bos]
            if self.random.random() < SYSTEM_SHARE:
                head += self.random.choice(self.systems)
            self.ids += head
            self.marks += [False] * len(head)
        self.ids += ids.tolist()
        self.marks += marks.tolist()

    def row(self, context: int) -> tuple[list[int], list[bool]]:
        """Take `context + 1` ids; the last of them stays, to begin the next row.

        What is left of a copying task goes: without its question it would teach to guess.
        """
        while len(self.ids) <= context:
            self.extend()
        taken = self.ids[: context + 1], self.marks[: context + 1]
        done = len(self.ids) if self.last in copying.KINDS else context
        del self.ids[:done], self.marks[:done]
        return taken

    def batch(self, rows: int, context: int) -> Batch:
        """Return the next batch."""
        taken = [self.row(context) for _ in range(rows)]
        ids = np.array([row for row, _ in taken], dtype=np.int64)
        marks = np.array([row for _, row in taken], dtype=bool)
        weights = np.where(marks[:, 1:], 1.0, self.user_weight).astype(np.float32)
        return Batch(ids[:, :-1], ids[:, 1:], weights)
