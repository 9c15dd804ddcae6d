"""From prompts and answers as text to the ids that the target reads and writes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from localspec.chat.conversation import Message, Role
from localspec.chat.history.store import Store
from localspec.chat.history.store_thread import store_error
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Model
from localspec.errors import LocalspecError
from localspec.safe_text import decoded, reason
from localspec.train.texts.answers import (
    LONGEST,
    LONGEST_PROMPT,
    AnsweredText,
    TargetPrompt,
    loop,
    temperature_of,
)

_TURNS: Final = 20  # the most times that all prompts are asked
_GIVEN: Final = -1  # prompt number of an answer from a file


class _SaidMessage(msgspec.Struct):
    role: Role
    content: str


class _Conversation(msgspec.Struct):
    """A line of a file of answers."""

    messages: Annotated[list[_SaidMessage], msgspec.Meta(min_length=1)]
    finish: str = "stop"
    temperature: float = 0.0
    loop: bool = False


class AskedIds(NamedTuple):
    """The ids of prompts, none for one that is too long.

    Attributes:
        learnt, held_out: as in `TrainingPrompts`.
    """

    learnt: Sequence[tuple[int, ...]]
    held_out: Sequence[tuple[int, ...]]

    @property
    def most(self) -> int:
        """The most tokens of answers to learn from."""
        return _TURNS * sum(LONGEST - len(ids) for ids in self.learnt if ids)


def prompt_ids(
    template: ChatTemplate, prompts: Sequence[Sequence[Message]], cancel: Cancel
) -> list[tuple[int, ...]]:
    """The ids of prompts as the target reads them in the chat.

    None for a prompt that is empty or too long, and for a conversation that its template refuses,
    as some refuse the results of tools.

    Raises:
        LocalspecError: the template refuses a prompt of one message.
        Cancelled: it was stopped.
    """
    found: list[tuple[int, ...]] = [()] * len(prompts)
    tools = ToolPrompt(template.dialect)
    long: Sequence[Message] = ()
    # In this order all that goes on from a prompt follows it, and is too long where it is.
    for number in sorted(range(len(prompts)), key=lambda n: [one.content for one in prompts[n]]):
        cancel.check()
        messages = prompts[number]
        if not messages or (long and messages[: len(long)] == long):
            continue
        try:
            ids = template.tokenize(template.render(tools.told(messages), cancel))
        except LocalspecError:
            if len(messages) == 1:
                raise
            continue
        if len(ids) <= LONGEST_PROMPT:
            found[number] = tuple(ids)
        else:
            long = messages
    return found


def questions(
    prompts: Sequence[tuple[int, ...]], done: Sequence[AnsweredText]
) -> Iterator[TargetPrompt]:
    """All prompts in turn, again and again, without those already answered."""
    answered = {(each.prompt, each.turn) for each in done}
    for turn in range(_TURNS):
        for number, ids in enumerate(prompts):
            if ids and (number, turn) not in answered:
                yield TargetPrompt(number, ids, temperature_of(number, turn), turn)


def greedy(prompts: Sequence[tuple[int, ...]]) -> Iterator[TargetPrompt]:
    """Each prompt once, for greedy answers."""
    for number, ids in enumerate(prompts):
        if ids:
            yield TargetPrompt(number, ids, 0.0)


def given(path: Path, template: ChatTemplate, model: Model) -> list[AnsweredText]:
    """Read answers that the target wrote before.

    Args:
        path: JSON lines, ``{"messages": [{"role": ..., "content": ...}, ...]}``, the last message
            by the target; with ``"finish": "length"`` if it was cut off, ``"temperature"``, and
            ``"loop": true`` for one to leave out.
        template: the target's.
        model: the target.

    Raises:
        LocalspecError: the file cannot be read, has no answers, or a line is not a conversation.
    """
    decode = msgspec.json.Decoder(_Conversation).decode
    remedy = 'A line is {"messages": [{"role": "user", ...}, {"role": "assistant", ...}]}.'
    found, number = list[AnsweredText](), 0
    try:
        for line in decoded(path.read_bytes()).split("\n"):
            number += 1
            if line.strip():
                found += _sample(decode(line), template, model)
    except (OSError, ValueError, RecursionError) as error:
        where = f"line {number} of {path}" if number else str(path)
        raise LocalspecError(f"{where} cannot be read: {reason(error)}", remedy) from None
    if not found:
        raise LocalspecError(f"there are no answers to learn from in {path}", remedy)
    return found


def _sample(one: _Conversation, template: ChatTemplate, model: Model) -> Iterator[AnsweredText]:
    """The last answer of a conversation, if it fits."""
    *before, answer = [Message(each.role, each.content) for each in one.messages]
    if one.loop or answer.role is not Role.ASSISTANT or not before:
        return
    start = template.tokenize(template.render(before))
    text = template.tokenize(template.guard(answer.content), continues=True)
    text = text[: len(text) - loop(text)]
    if one.finish != "length" and model.end is not None:
        text.append(model.end)
    if text and len(start) <= LONGEST_PROMPT:
        yield AnsweredText(_GIVEN, tuple([*start, *text][:LONGEST]), len(start), one.temperature)


def conversations(path: Path, cancel: Cancel) -> list[list[Message]]:
    """The messages up to each user message, for every stored conversation.

    Args:
        path: of the store; a missing one has no conversations.
        cancel: stops it.

    Raises:
        ConversationError: the store cannot be read.
        Cancelled: it was stopped.
    """
    found = list[list[Message]]()
    if not path.exists():
        return found
    try:
        with closing(Store(path)) as store:
            for conversation in store.ids():
                cancel.check()
                said = [node.message for node in store.load(conversation).tree.path()]
                found += [said[: at + 1] for at, one in enumerate(said) if one.role is Role.USER]
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, path) from None
    return found


def by_frequency(samples: Sequence[AnsweredText], vocab: int, drafted: int) -> list[int]:
    """The ids that a head can draft: the most common in answers, then others in order of id.

    Args:
        samples: the answers.
        vocab: the number of ids.
        drafted: how many are needed.
    """
    seen = _counted(samples)
    known = [token for token, _ in sorted(seen.items(), key=lambda it: (-it[1], it[0]))]
    rest = (token for token in range(vocab) if token not in seen)
    return [*known, *rest][:drafted]


def commonest(samples: Sequence[AnsweredText]) -> int:
    """The most common id in the answers, which the control always guesses."""
    return _counted(samples).most_common(1)[0][0]


def _counted(samples: Sequence[AnsweredText]) -> Counter[int]:
    return Counter(token for one in samples for token in one.ids[one.start :])
