"""The prompts for the target: a set that ships with localspec, files, or own conversations."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from localspec import formats
from localspec.bench import prompt_sets as bench
from localspec.chat.conversation import Message, Role
from localspec.errors import UsageError

BUILT_IN: Final = Path(__file__).parent / "prompts.jsonl.gz"
_SEED: Final = 0
_HELD_OUT: Final = 24
_SHARE: Final = 20  # of few prompts, one in this many is held out
_LEAST: Final = 8  # the least number of prompts that is worth training on


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """Prompts for the target.

    Attributes:
        learnt: to be answered and trained on, in random order.
        held_out: never trained on; the head is judged by them.
        private: whether they include the user's own conversations.
    """

    learnt: tuple[tuple[Message, ...], ...]
    held_out: tuple[tuple[Message, ...], ...]
    private: bool


def gather(files: Sequence[Path], history: Sequence[Sequence[Message]]) -> TrainingPrompts:
    """Collect the prompts of these files and conversations, or the built-in ones without any.

    Args:
        files: JSON lines, in the format of `localspec bench --prompts`.
        history: conversations; each holds the messages before an answer.

    Raises:
        LocalspecError: a file does not contain prompts.
        UsageError: there are too few.
    """
    asked: list[tuple[Message, ...]] = [tuple(each) for each in history]
    for path in files:
        asked += [(Message(Role.USER, each.text),) for each in bench.read(path).prompts]
    if not files and not history:
        asked = [(Message(Role.USER, text),) for text in built_in()]
    asked = list(dict.fromkeys(asked))
    if len(asked) < _LEAST:
        raise UsageError(
            f"too few prompts to train on: {formats.counted(len(asked), 'different one')},"
            f" {_LEAST} are needed",
            "Name more with --prompts, or leave it out: localspec has a set of its own.",
        )
    random.Random(_SEED).shuffle(asked)  # noqa: S311 - an order, no secret
    held = min(_HELD_OUT, max(2, len(asked) // _SHARE))
    return TrainingPrompts(tuple(asked[held:]), tuple(asked[:held]), private=bool(history))


class _PromptLine(msgspec.Struct):
    prompt: str


def built_in() -> list[str]:
    """The prompts that ship with localspec; `docs/train.md` names their sources and licences."""
    with gzip.open(BUILT_IN) as file:
        return [msgspec.json.decode(line, type=_PromptLine).prompt for line in file]
