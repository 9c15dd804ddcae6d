"""A conversation with all its versions: messages as a tree, one path through it in force.

Also what is stored beside the messages: title, pair, settings, times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from localspec.chat.conversation import Message
from localspec.engine.record.stats import FinishReason

_TITLE_LENGTH = 60
_PASTED = 20  # lines: nobody types more
_ASKS = ("?", "？", "؟")
FOLDED = "▸ "
# A file as the chat attaches it. Where no fence ends it, it ends with the text: nothing is looked
# at twice.
_ATTACHED = re.compile(
    r"^(?P<path>[^\n`]{1,400}):\n(?P<fence>`{3,}+)(?P<suffix>[^\n`]*)\n"
    r"(?P<body>.*?)(?:^(?P<end>(?P=fence))$|\Z)",
    re.M | re.S,
)


@dataclass(slots=True)
class MessageNode:
    """One message and where it hangs.

    Attributes:
        id: unlike any other, in any instance.
        parent: the id of the message before; None for a first one.
        message: what was said.
        figures: what is worth keeping about how an answer was made, by name.
    """

    id: str
    parent: str | None
    message: Message
    figures: Mapping[str, Any] = field(default_factory=dict)


def fresh_id() -> str:
    """An id for a node or a conversation."""
    return uuid4().hex


class MessageTree:
    """Nodes by id, and the last one of the path in force.

    A node whose parent is unknown counts as a first message: half a tree is better than none.
    """

    def __init__(self, nodes: Iterable[MessageNode] = (), leaf: str | None = None) -> None:
        """Take over `nodes`, the older of two versions first.

        Args:
            nodes: in the order in which they were said.
            leaf: where the path ends; None, or an unknown id, for the newest node.
        """
        self.nodes: dict[str, MessageNode] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._preferred: dict[str, str] = {}
        self.leaf: str | None = None
        for node in nodes:
            self.add(node)
        if leaf in self.nodes:
            self.leaf = leaf
            self._prefer_path()

    def add(self, node: MessageNode) -> None:
        """Hang `node` in; the path ends with it."""
        self.nodes[node.id] = node
        self._children.setdefault(node.id, [])
        self._siblings(node).append(node.id)
        self.leaf = node.id
        if node.parent is not None:
            self._preferred[node.parent] = node.id

    def remove(self, node_id: str) -> None:
        """Take a childless node out; a path that ended with it ends with its parent."""
        node = self.nodes[node_id]
        self._siblings(node).remove(node_id)
        del self.nodes[node_id], self._children[node_id]
        if node.parent is not None and self._preferred.get(node.parent) == node_id:
            del self._preferred[node.parent]
        if self.leaf == node_id:
            self.leaf = node.parent if node.parent in self.nodes else None

    def path(self) -> list[MessageNode]:
        """The nodes in force, the first message first."""
        found: dict[str, MessageNode] = {}
        at = self.leaf
        while at in self.nodes and at not in found:
            found[at] = self.nodes[at]
            at = self.nodes[at].parent
        return list(reversed(found.values()))

    def versions(self, node_id: str) -> list[str]:
        """The ids of all versions of a message, the oldest first."""
        return list(self._siblings(self.nodes[node_id]))

    def choose(self, node_id: str) -> None:
        """Lead the path through a node, and on from there as it last went."""
        seen = {node_id}
        while following := self._children[node_id]:
            node_id = self._preferred.get(node_id, following[-1])
            if node_id in seen:
                break
            seen.add(node_id)
        self.leaf = node_id
        self._prefer_path()

    def _siblings(self, node: MessageNode) -> list[str]:
        if node.parent is None:
            return self._children[None]
        return self._children.setdefault(node.parent, [])

    def _prefer_path(self) -> None:
        for node in self.path():
            if node.parent is not None:
                self._preferred[node.parent] = node.id


@dataclass(frozen=True, slots=True)
class PairReference:
    """How a pair is called, and what loads it again.

    Attributes:
        name: for people.
        target: what names the target on the command line; empty where that is not known.
        draft: the same for a draft that was named on its own; None for the pair's own.
    """

    name: str = ""
    target: str = ""
    draft: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationHeader:
    """A conversation without its messages.

    Attributes:
        id: unlike any other.
        title: one line.
        pair: what answered last.
        parameters: settings by name, see `parameters`.
        created, updated: seconds since 1970.
    """

    id: str
    title: str
    pair: PairReference
    parameters: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedConversation:
    """A conversation in a list.

    Attributes:
        header: what it is.
        messages: how many messages it has, all versions counted.
        found: where a search has hit, in a few words; empty without a search.
    """

    header: ConversationHeader
    messages: int
    found: str = ""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """An answer and what it answers.

    Attributes:
        conversation: the id of the conversation.
        title: of that.
        pair: what answered.
        time: when it was asked, in seconds since 1970.
        question, answer: the texts.
        finish: why the answer ended; None where that is not known.
        figures: as a `MessageNode` has them.
    """

    conversation: str
    title: str
    pair: str
    time: float
    question: str
    answer: str
    finish: FinishReason | None
    figures: Mapping[str, Any]


@dataclass(slots=True)
class StoredConversation:
    """A whole conversation."""

    header: ConversationHeader
    tree: MessageTree


def folded(text: str, least: int) -> str:
    """`text` with a line in place of each attached file that has more than `least` lines."""

    def fold(match: re.Match[str]) -> str:
        path, suffix, body, end = match.group("path", "suffix", "body", "end")
        lines = body.count("\n")
        if not end or lines <= least or PurePath(path).suffix[1:] != suffix:
            return match[0]
        return f"{FOLDED}{path}: {lines:,} lines"

    return _ATTACHED.sub(fold, text)


def title_of(message: Message) -> str:
    """A title made of the first question: its first words on one line, attached files aside.

    Of many lines, as a paste has, the first or the last is the question if it reads like one.
    """
    lines = folded(message.content, 0).splitlines()
    own = [line for line in lines if not line.startswith(FOLDED) and line.strip()] or lines
    if len(own) > _PASTED:
        own = [end for end in (own[-1], own[0]) if end.rstrip().endswith(_ASKS)][:1] or own
    line = " ".join(" ".join(own).split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"
