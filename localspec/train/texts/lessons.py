"""The data of one training step: the target's states and logits for a few texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from localspec.engine.llama.heads.target_states import Rows
from localspec.engine.llama.taps import Taps, TextRow
from localspec.train.head.head_files import ModelWeights
from localspec.train.texts.answers import AnsweredText

ROWS: Final = 1024
"""Tokens that the target reads per step."""
_BLOCK: Final = 64  # rows: lengths of texts are multiples, so that few shapes of arrays occur
MOST_TEXTS: Final = ROWS // _BLOCK
"""Texts of a step at most."""

_POOL: Final = 64  # texts that are sorted by length together, to need less padding


@dataclass(frozen=True, slots=True)
class Lesson:
    """A few texts as the target sees them. Row r of a text belongs to its token r.

    Attributes:
        states: `(texts, rows, taps * width)`, the inputs of the tapped layers.
        embedded: `(texts, rows, width)`, the embedding of token r + 1.
        texts, places: `(n,)` each: text and row of every answer token, without the last prompt
            token.
        starts: `(texts,)`, where the answers begin.
        logits: `(n, n_vocab)`, the target's at these rows: a view that its next decode overwrites.
    """

    states: NDArray[np.float32]
    embedded: NDArray[np.float32]
    texts: NDArray[np.int64]
    places: NDArray[np.int64]
    starts: NDArray[np.int64]
    logits: Rows


def batches(samples: Sequence[AnsweredText], turn: int) -> list[list[AnsweredText]]:
    """Divide all samples into batches, at random but depending on `turn` alone.

    Texts of a batch have similar lengths.
    """
    chance = random.Random(turn)  # noqa: S311 - an order, no secret
    order = list(samples)
    chance.shuffle(order)
    found: list[list[AnsweredText]] = []
    for at in range(0, len(order), _POOL):
        found += _packed(sorted(order[at : at + _POOL], key=lambda one: len(one.ids)))
    chance.shuffle(found)
    return found


def _packed(samples: Sequence[AnsweredText]) -> Iterator[list[AnsweredText]]:
    """Fill batches with as many texts as fit, each padded to the same length."""
    batch: list[AnsweredText] = []
    for one in samples:
        if batch and (len(batch) + 1) * _padded(one) > ROWS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _padded(sample: AnsweredText) -> int:
    """Rows of a text with its padding.

    torch keeps a compiled product for each shape that it has seen, several megabytes of weights
    with it. If every length were allowed, they would fill gigabytes.
    """
    return -(-len(sample.ids) // _BLOCK) * _BLOCK


@dataclass(frozen=True, slots=True)
class Lessons:
    """Makes a lesson of each batch.

    Attributes:
        taps: a context of the target.
        weights: the target's.
    """

    taps: Taps
    weights: ModelWeights

    def of(self, batch: Sequence[AnsweredText]) -> Lesson:
        """Let the target read a batch.

        Raises:
            EngineError: llama.cpp could not decode.
        """
        self.taps.clear()
        rows = [
            TextRow(token, text, at, wanted=at >= sample.start)
            for text, sample in enumerate(batch)
            for at, token in enumerate(sample.ids)
        ]
        logits = self.taps.decode(rows)
        read = np.concatenate(self.taps.states(len(rows)), axis=1)
        length = max(map(_padded, batch))
        states = np.zeros((len(batch), length, read.shape[1]), np.float32)
        following = np.zeros((len(batch), length), np.int64)
        at = 0
        for text, sample in enumerate(batch):
            n = len(sample.ids)
            states[text, :n] = read[at : at + n]
            following[text, : n - 1] = sample.ids[1:]
            at += n
        ids, where = np.unique(following, return_inverse=True)
        embedded = self.weights.rows("token_embd", ids.tolist())[where.reshape(following.shape)]
        wanted = [row for row in rows if row.wanted]
        return Lesson(
            states,
            embedded,
            np.array([row.text for row in wanted], np.int64),
            np.array([row.position for row in wanted], np.int64),
            np.array([one.start for one in batch], np.int64),
            logits,
        )
