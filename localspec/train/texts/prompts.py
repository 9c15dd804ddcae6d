"""What the target is asked: a set that comes with localspec, files, one's own conversations."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from localspec.bench import prompt_sets as bench
from localspec.chat.conversation import Message, Role
from localspec.errors import UsageError

BUILT_IN: Final = Path(__file__).parent / "prompts.jsonl.gz"
_SEED: Final = 0
_HELD_OUT: Final = 24
_SHARE: Final = 20  # of few prompts one in so many is held out
_LEAST: Final = 8  # prompts that are worth training on


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """Questions for the target.

    Attributes:
        learnt: to be answered and trained on, in an order that chance chose.
        held_out: never trained on: the head is judged by them.
        private: whether one's own conversations are among them.
    """

    learnt: tuple[tuple[Message, ...], ...]
    held_out: tuple[tuple[Message, ...], ...]
    private: bool


def gather(files: Sequence[Path], history: Sequence[Sequence[Message]]) -> TrainingPrompts:
    """Take the prompts of these files and conversations, or the built-in ones where none are named.

    Args:
        files: JSON lines, as `localspec bench --prompts` takes them.
        history: conversations, of each the messages before an answer.

    Raises:
        LocalspecError: a file is no file of prompts.
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
            f"{len(asked)} prompts are too few to train on",
            "Name more with --prompts, or leave it out: localspec has a set of its own.",
        )
    random.Random(_SEED).shuffle(asked)  # noqa: S311 - an order, no secret
    held = min(_HELD_OUT, max(2, len(asked) // _SHARE))
    return TrainingPrompts(tuple(asked[held:]), tuple(asked[:held]), private=bool(history))


class _PromptLine(msgspec.Struct):
    prompt: str


def built_in() -> list[str]:
    """The prompts that come with localspec; `docs/train.md` names their sources and licences."""
    with gzip.open(BUILT_IN) as file:
        return [msgspec.json.decode(line, type=_PromptLine).prompt for line in file]
