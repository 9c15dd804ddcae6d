"""The target's own answers: how they are written, many at a time, and where they are kept."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from localspec.engine.cancel import Cancel
from localspec.engine.llama.taps import Taps, TextRow
from localspec.engine.round.params import SamplingParams
from localspec.engine.round.sampling import Logits, Sampler

LONGEST: Final = 512
"""Tokens of a text, prompt and answer together."""
LONGEST_PROMPT: Final = 320
TEMPERATURES: Final = (0.0, 0.8)

_LONGEST_LOOP: Final = 64  # tokens after which a loop begins anew, at most
_REPEATED: Final = 24  # tokens that said nothing new, from which on an answer is in a loop
_LOOK_EVERY: Final = 16
_LEAST: Final = 4  # tokens of an answer that is kept


class AnsweredText(msgspec.Struct, frozen=True):
    """A text that the target finished.

    Attributes:
        prompt: which prompt it answers.
        ids: prompt and answer; the token that ends the answer is among them.
        start: where the answer begins.
        temperature: at which it was written.
    """

    prompt: int
    ids: tuple[int, ...]
    start: int
    temperature: float = 0.0

    @property
    def written(self) -> int:
        """Tokens of the answer."""
        return len(self.ids) - self.start


@dataclass(frozen=True, slots=True)
class TargetPrompt:
    """A question to the target.

    Attributes:
        prompt: its number.
        ids: what the target reads.
        temperature: of the answer.
    """

    prompt: int
    ids: tuple[int, ...]
    temperature: float


def temperature_of(prompt: int, turn: int) -> float:
    """At which temperature a prompt is answered the first, second, ... time.

    Two of five answers are greedy; nothing is answered greedily twice.
    """
    greedy = (turn == 0 and prompt % 5 < 2) or (turn == 1 and 2 <= prompt % 5 < 4)
    return TEMPERATURES[not greedy]


@dataclass(slots=True)
class _TextInProgress:
    """A text that is being written: what is read of it, and where chance stands."""

    asked: TargetPrompt
    ids: list[int]
    random: np.random.Generator
    read: int = 0
    done: bool = field(default=False)


def write_answers(
    taps: Taps, texts: int, asked: Iterator[TargetPrompt], cancel: Cancel
) -> Iterator[AnsweredText]:
    """Have the target answer; give each answer as it is finished.

    Loops are cut out, and what is left of an answer of which nothing else is there. Each answer has
    a seed of its own, so that they do not depend on each other.

    Args:
        taps: a context of the target; its cache is emptied.
        texts: how many are written at a time.
        asked: what to answer.
        cancel: stops it, between two tokens.

    Raises:
        Cancelled: `cancel` was set.
        EngineError: llama.cpp could not decode.
    """
    taps.clear()
    samplers = {t: Sampler(SamplingParams(temperature=t)) for t in TEMPERATURES}
    running: dict[int, _TextInProgress] = {}
    while True:
        for slot in range(texts):
            if slot not in running and (one := next(asked, None)) is not None:
                seed = zlib.crc32(repr((one.prompt, one.temperature, one.ids)).encode())
                running[slot] = _TextInProgress(one, list(one.ids), np.random.default_rng(seed))
        if not running:
            return
        cancel.check()
        rows = _rows(running, taps.n_batch)
        logits = taps.decode(rows)
        told = [row.text for row in rows if row.wanted]
        for slot, row in zip(told, logits, strict=True):
            writing = running[slot]
            _go_on(writing, row, samplers[writing.asked.temperature], taps.model.is_end)
            if writing.done:
                taps.drop(slot)
                del running[slot]
                sample = finished(writing.asked, writing.ids)
                if sample.written >= _LEAST:
                    yield sample


def _rows(running: dict[int, _TextInProgress], room: int) -> list[TextRow]:
    """What is decoded next: of every text what is not read yet, as far as there is room."""
    rows: list[TextRow] = []
    for slot, writing in running.items():
        end = min(len(writing.ids), writing.read + room - len(rows))
        rows += [
            TextRow(writing.ids[at], slot, at, wanted=at + 1 == len(writing.ids))
            for at in range(writing.read, end)
        ]
        writing.read = max(writing.read, end)
    return rows


def _go_on(
    writing: _TextInProgress, row: Logits, sampler: Sampler, is_end: Callable[[int], bool]
) -> None:
    """Add a token; note whether the text is finished."""
    dist = sampler.row(row, writing.ids)
    token = int(writing.random.choice(dist.ids, p=dist.probs))
    writing.ids.append(token)
    written = len(writing.ids) - len(writing.asked.ids)
    looped = written % _LOOK_EVERY == 0 and loop(writing.ids[-written:]) > 0
    writing.done = is_end(token) or len(writing.ids) >= LONGEST or looped


def finished(asked: TargetPrompt, ids: Sequence[int]) -> AnsweredText:
    """A text whose answer has no loop at its end."""
    start = len(asked.ids)
    kept = len(ids) - loop(ids[start:])
    return AnsweredText(asked.prompt, tuple(ids[:kept]), start, asked.temperature)


def loop(ids: Sequence[int]) -> int:
    """How many tokens at the end only say again what stands before them; 0 where they do not."""
    best = 0
    for period in range(1, min(_LONGEST_LOOP, len(ids) // 2) + 1):
        same = 0
        while same + period < len(ids) and ids[-1 - same] == ids[-1 - same - period]:
            same += 1
        if same >= max(_REPEATED, 2 * period):
            best = max(best, same)
    return best


class AnswerFile:
    """Samples on disk, a line of JSON each; a line that a kill cut off counts for nothing."""

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Raises:
            OSError: it cannot be read.
        """
        self.path = path
        self.samples: list[AnsweredText] = []
        if path.exists():
            whole = path.read_bytes()
            end = whole.rfind(b"\n") + 1
            if end < len(whole):  # what is added must begin a line
                with path.open("rb+") as file:
                    file.truncate(end)
            decode = msgspec.json.Decoder(AnsweredText).decode
            self.samples = [decode(line) for line in whole[:end].splitlines()]

    def add(self, sample: AnsweredText) -> None:
        """Add one.

        Raises:
            OSError: it cannot be written.
        """
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")
        self.samples.append(sample)

    @property
    def written(self) -> int:
        """Tokens of all answers."""
        return sum(each.written for each in self.samples)
