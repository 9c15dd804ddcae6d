"""A conversation with all versions of its messages, as a tree with one current path.

Also the stored header of a conversation: title, pair, settings, times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from uuid import uuid4

from localspec.chat.conversation import Message, Role
from localspec.engine.record.stats import FinishReason

_TITLE_LENGTH = 60
_PASTED = 20  # lines; longer texts were pasted
_ASKS = ("?", "？", "؟")
FOLDED = "▸ "
# A file as the chat attaches it. Without a closing fence it ends with the text, so that matching
# takes linear time.
_ATTACHED = re.compile(
    r"^(?P<path>[^\n`]{1,400}):\n(?P<fence>`{3,}+)(?P<suffix>[^\n`]*)\n"
    r"(?P<body>.*?)(?:^(?P<end>(?P=fence))$|\Z)",
    re.M | re.S,
)


@dataclass(slots=True)
class MessageNode:
    """A message and its place in the tree.

    Attributes:
        id: globally unique.
        parent: the id of the message before; None for a first one.
        figures: the stored figures of an answer, by name.
    """

    id: str
    parent: str | None
    message: Message
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_unsaid(self) -> bool:
        """Whether it is an answer that never began, or has yet to begin."""
        message = self.message
        return message.role is Role.ASSISTANT and not message.content and message.finish is None


def fresh_id() -> str:
    """Make a globally unique id for a node or a conversation."""
    return uuid4().hex


class MessageTree:
    """Nodes by id, and the last node of the current path.

    A node with an unknown parent counts as a first message, so that a damaged tree can be shown.
    """

    def __init__(self, nodes: Iterable[MessageNode] = (), leaf: str | None = None) -> None:
        """Add `nodes`.

        Args:
            nodes: oldest first.
            leaf: on the current path, which goes on with what was added to it last: another
                window may have gone on from here. None, or an unknown id, for the newest node. An
                answer that never began gives way to the version before it, or before its question.
        """
        self.nodes: dict[str, MessageNode] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._preferred: dict[str, str] = {}
        self.leaf: str | None = None
        for node in nodes:
            self.add(node)
        if leaf in self.nodes:
            self.choose(leaf)
        self._leave_unsaid()

    def _leave_unsaid(self) -> None:
        """Lead the current path away from an answer that never began, if there is another."""
        leaf = self.leaf
        for _ in range(len(self.nodes)):  # in a damaged tree this may go round in circles
            end = self.path()[-2:]
            if not end[-1].is_unsaid:
                return
            before = next(filter(None, map(self._before, reversed(end))), None)
            if before is None:
                break
            self.choose(before)
        self.end_at(leaf)

    def _before(self, node: MessageNode) -> str | None:
        """The id of the version before this one of its message; None for the first one."""
        versions = self.versions(node.id)
        at = versions.index(node.id)
        return versions[at - 1] if at else None

    def add(self, node: MessageNode) -> None:
        """Add `node`; the current path ends with it."""
        self.nodes[node.id] = node
        self._children.setdefault(node.id, [])
        self._siblings(node).append(node.id)
        self.leaf = node.id
        if node.parent is not None:
            self._preferred[node.parent] = node.id

    def remove(self, node_id: str) -> None:
        """Remove a childless node, at which the current path must not stay: see `end_at`."""
        node = self.nodes[node_id]
        self._siblings(node).remove(node_id)
        del self.nodes[node_id], self._children[node_id]
        if node.parent is not None and self._preferred.get(node.parent) == node_id:
            del self._preferred[node.parent]

    def path(self) -> list[MessageNode]:
        """The nodes of the current path, the first message first."""
        found: dict[str, MessageNode] = {}
        at = self.leaf
        while at in self.nodes and at not in found:
            found[at] = self.nodes[at]
            at = self.nodes[at].parent
        return list(reversed(found.values()))

    def versions(self, node_id: str) -> list[str]:
        """The ids of all versions of a message, oldest first."""
        return list(self._siblings(self.nodes[node_id]))

    def choose(self, node_id: str) -> None:
        """Lead the current path through a node, and from there along its last path."""
        seen = {node_id}
        while following := self._children[node_id]:
            node_id = self._preferred.get(node_id, following[-1])
            if node_id in seen:
                break
            seen.add(node_id)
        self.end_at(node_id)

    def end_at(self, leaf: str | None) -> None:
        """End the current path with a node, and lead later ones along it; None for no path."""
        self.leaf = leaf
        for node in self.path():
            if node.parent is not None:
                self._preferred[node.parent] = node.id

    def _siblings(self, node: MessageNode) -> list[str]:
        if node.parent is None:
            return self._children[None]
        return self._children.setdefault(node.parent, [])


@dataclass(frozen=True, slots=True)
class PairReference:
    """A pair's name, and what loads it again.

    Attributes:
        target: what names the target on the command line; empty if not known.
        draft: what names the draft; None for the pair's own.
    """

    name: str = ""
    target: str = ""
    draft: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationHeader:
    """A conversation without its messages.

    Attributes:
        id: globally unique.
        title: one line.
        pair: the pair that answered last.
        parameters: settings by name, as `fields.document_of` makes them.
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
        messages: number of messages, including all versions.
        found: the text around a search's match, a few words; empty without a search.
    """

    header: ConversationHeader
    messages: int
    found: str = ""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """An answer with its question.

    Attributes:
        conversation: the id of the conversation.
        time: when it was asked, in seconds since 1970.
        finish: why the answer ended; None if not known.
        figures: as in `MessageNode`.
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
    """`text` with one line in place of each attached file of more than `least` lines."""

    def fold(match: re.Match[str]) -> str:
        path, suffix, body, end = match.group("path", "suffix", "body", "end")
        lines = body.count("\n")
        if not end or lines <= least or PurePath(path).suffix[1:] != suffix:
            return match[0]
        return f"{FOLDED}{path}: {lines:,} lines"

    return _ATTACHED.sub(fold, text)


def title_of(message: Message) -> str:
    """A one-line title: the first words of the first question, without attached files.

    If the text has many lines, as pasted text has, the first or the last line is used if it reads
    like a question.
    """
    lines = folded(message.content, 0).splitlines()
    own = [line for line in lines if not line.startswith(FOLDED) and line.strip()] or lines
    if len(own) > _PASTED:
        own = [end for end in (own[-1], own[0]) if end.rstrip().endswith(_ASKS)][:1] or own
    line = " ".join(" ".join(own).split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"
