"""The target's own answers: written several at a time, and stored."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
"""The most tokens of a text, prompt and answer together."""
LONGEST_PROMPT: Final = 320
TEMPERATURES: Final = (0.0, 0.8)

_LONGEST_LOOP: Final = 64  # the longest period of a loop, in tokens
_REPEATED: Final = 24  # repeated tokens that count as a loop
_LOOK_EVERY: Final = 16
_LEAST: Final = 4  # tokens of the shortest answer that is kept


class AnsweredText(msgspec.Struct, frozen=True):
    """A text completed by the target.

    Attributes:
        prompt: number of the prompt.
        ids: prompt and answer, including the token that ends the answer.
        start: index of the answer in `ids`.
        turn: how often the prompt was asked before.
    """

    prompt: int
    ids: tuple[int, ...]
    start: int
    temperature: float = 0.0
    turn: int = 0

    @property
    def written(self) -> int:
        """Tokens of the answer."""
        return len(self.ids) - self.start


@dataclass(frozen=True, slots=True)
class TargetPrompt:
    """A prompt for the target.

    Attributes:
        prompt: its number.
        turn: how often it was asked before.
    """

    prompt: int
    ids: tuple[int, ...]
    temperature: float
    turn: int = 0


def temperature_of(prompt: int, turn: int) -> float:
    """The temperature of the first, second, ... answer to a prompt.

    Two of five answers are greedy; no prompt is answered greedily twice.
    """
    greedy = (turn == 0 and prompt % 5 < 2) or (turn == 1 and 2 <= prompt % 5 < 4)
    return TEMPERATURES[not greedy]


@dataclass(slots=True)
class _TextInProgress:
    """A text being written: how much of it was read, and its random state."""

    asked: TargetPrompt
    ids: list[int]
    random: np.random.Generator
    read: int = 0
    done: bool = field(default=False)


def write_answers(
    taps: Taps, texts: int, asked: Iterator[TargetPrompt], cancel: Cancel
) -> Iterator[AnsweredText]:
    """Let the target answer; yield each answer when it is finished.

    Loops are cut off, and answers with hardly anything else are dropped. Each answer has its own
    seed, so they do not depend on each other.

    Args:
        taps: a context of the target; its cache is emptied.
        texts: how many are written at a time.
        asked: the prompts.
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
                seed = zlib.crc32(repr(one).encode())
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
    """The next rows to decode: the unread tokens of every text, as far as they fit."""
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
    """Sample the next token, and set whether the text is finished."""
    dist = sampler.row(row, writing.ids)
    token = int(writing.random.choice(dist.ids, p=dist.probs))
    writing.ids.append(token)
    written = len(writing.ids) - len(writing.asked.ids)
    looped = written % _LOOK_EVERY == 0 and loop(writing.ids[-written:]) > 0
    writing.done = is_end(token) or len(writing.ids) >= LONGEST or looped


def finished(asked: TargetPrompt, ids: Sequence[int]) -> AnsweredText:
    """A finished text, without a loop at its end."""
    start = len(asked.ids)
    kept = len(ids) - loop(ids[start:])
    return AnsweredText(asked.prompt, tuple(ids[:kept]), start, asked.temperature, asked.turn)


def loop(ids: Sequence[int]) -> int:
    """How many tokens at the end only repeat the tokens before them; 0 without a loop."""
    best = 0
    for period in range(1, min(_LONGEST_LOOP, len(ids) // 2) + 1):
        same = 0
        while same + period < len(ids) and ids[-1 - same] == ids[-1 - same - period]:
            same += 1
        if same >= max(_REPEATED, 2 * period):
            best = max(best, same)
    return best


class AnswerFile:
    """Samples on disk, one JSON document per line; what a crash left of others is passed over."""

    def __init__(self, path: Path) -> None:
        """Read the stored samples.

        Raises:
            OSError: the file cannot be read.
        """
        self.path = path
        self.samples: list[AnsweredText] = []
        if path.exists():
            whole = path.read_bytes()
            end = whole.rfind(b"\n") + 1
            if end < len(whole):  # new samples must start on a new line
                with path.open("rb+") as file:
                    file.truncate(end)
            decode = msgspec.json.Decoder(AnsweredText).decode
            for line in whole[:end].splitlines():
                with suppress(ValueError):
                    self.samples.append(decode(line))

    def add(self, sample: AnsweredText) -> None:
        """Append a sample.

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
