"""A conversation as clients tell it, before a chat template sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from localspec.chat.conversation import Message, Role
from localspec.serve.core.request_tools import RequestTools


@dataclass(frozen=True, slots=True)
class ToldCall:
    """A call that the model made earlier.

    Attributes:
        id: None if the client left it out.
        arguments: JSON text, or an object.
    """

    id: str | None
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ToldMessage:
    """One message.

    Attributes:
        thoughts: of the model, before its text.
        calls: those that an answer of the model ended with.
        call_id: of the call that a tool's result answers; None if it is not known.
        name: of the tool that a result comes from; None if it is not known.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    thoughts: str = ""
    calls: tuple[ToldCall, ...] = ()
    call_id: str | None = None
    name: str | None = None

    @property
    def begins_answer(self) -> bool:
        """Whether the model may go on with this text."""
        return self.role == "assistant" and bool(self.text.strip()) and not self.calls


def in_turns(messages: Sequence[ToldMessage]) -> list[ToldMessage]:
    """One system message first, then turns of different roles; results of tools stay apart.

    Turns of the model without anything, such as an answer that was stopped, are left out.

    A system message in mid-conversation becomes the user's and stays at its place: templates refuse
    it, and at the top it would change the beginning of a prompt that the caches hold.
    """
    turns: list[list[ToldMessage]] = []
    for said in messages:
        if said.role == "assistant" and not (said.text or said.thoughts or said.calls):
            continue
        late = said.role == "system" and bool(turns) and turns[-1][0].role != "system"
        one = replace(said, role="user") if late else said
        if turns and one.role == turns[-1][0].role != "tool":
            turns[-1].append(one)
        else:
            turns.append([one])
    return [_joined(turn) for turn in turns]


def _joined(turn: Sequence[ToldMessage]) -> ToldMessage:
    """Neighbours of one role as one message."""
    return replace(
        turn[0],
        text="\n\n".join(one.text for one in turn if one.text),
        thoughts="\n\n".join(one.thoughts for one in turn if one.thoughts),
        calls=tuple(call for one in turn for call in one.calls),
    )


def one_at_a_time(messages: Sequence[ToldMessage]) -> list[ToldMessage]:
    """Messages changed so that every turn has at most one call.

    A turn with several calls becomes one turn per call, each followed by its result, which is found
    by the call's id, or else by the order.
    """
    found: list[ToldMessage] = []
    rest = deque(messages)
    while rest:
        said = rest.popleft()
        if len(said.calls) < 2:
            found.append(said)
            continue
        results: list[ToldMessage] = []
        while rest and rest[0].role == "tool":
            results.append(rest.popleft())
        ids = {call.id for call in said.calls if call.id}
        others = [one for one in results if one.call_id not in ids]
        for call in said.calls:
            found.append(replace(said, calls=(call,)))
            said = replace(said, text="", thoughts="")
            own = [one for one in results if call.id and one.call_id == call.id]
            found += own or others[:1]
            others = others if own else others[1:]
        found += others
    return found


def for_template(messages: Sequence[ToldMessage], toolbox: RequestTools) -> list[Message]:
    """Messages as the chat template needs them; results are matched with their calls."""
    named = _CallNames()
    return [*toolbox.numbered(_message(one, i, toolbox, named) for i, one in enumerate(messages))]


def _message(said: ToldMessage, i: int, toolbox: RequestTools, named: _CallNames) -> Message:
    match said.role:
        case "system":
            return Message(Role.SYSTEM, said.text)
        case "user":
            return Message(Role.USER, said.text)
        case "assistant":
            return toolbox.called(said.text, said.thoughts, named.calls(said.calls, i))
        case _:
            return toolbox.returned(said.text, *named.result(said.call_id, said.name))


class _CallNames:
    """The calls of a conversation so far, to match the results of tools with them."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}  # ids and names of calls without a result
        self._names: dict[str, str] = {}

    def calls(self, calls: Sequence[ToldCall], place: int) -> list[tuple[str, str, Any]]:
        """Calls as (id, name, arguments); missing ids are added."""
        made = []
        for i, one in enumerate(calls):
            of = one.id or f"{place} {i}"
            self._names[of] = one.name
            self._open[of] = one.name
            made.append((of, one.name, one.arguments))
        return made

    def result(self, of: str | None, name: str | None) -> tuple[str, str]:
        """The id and the name of the call that a result belongs to: by its id, else in order."""
        if of not in self._names and self._open:
            of = next(
                (i for i, known in self._open.items() if known == name), next(iter(self._open))
            )
            name = name or self._open[of]
        self._open.pop(of or "", None)
        return of or "", name or self._names.get(of or "", "")
