"""The present conversation: a tree in memory, whose changes are written to the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.events import RoundText, TurnEvent
from localspec.chat.history.fields import call_of, document_of
from localspec.chat.history.store_thread import StoreThread
from localspec.chat.history.tree import (
    ConversationHeader,
    MessageNode,
    MessageTree,
    PairReference,
    StoredConversation,
    fresh_id,
    title_of,
)
from localspec.chat.settings import ChatSettings


@dataclass(frozen=True, slots=True)
class MessageVersion:
    """A shown message: its node, which version it is, and how many versions there are."""

    node: str
    version: int
    versions: int


class ConversationRecord:
    """Records one conversation at a time; a new one is empty.

    Only the screen's thread uses it, except for `hear`. Without a store thread it keeps branches,
    but nothing outlives the program.

    Args:
        store_thread: writes the changes; None to store nothing.
        pair: the pair that answers.
    """

    def __init__(
        self, store_thread: StoreThread | None = None, pair: PairReference | None = None
    ) -> None:
        self._write = _forget if store_thread is None else store_thread.write
        self._stream = None if store_thread is None else store_thread.stream
        self.pair = pair or PairReference()
        self._settings: Mapping[str, Any] = {}
        self._begun: list[MessageNode] = []
        self._answer: str | None = None
        self._leaf_before: str | None = None
        self.fresh()

    @property
    def header(self) -> ConversationHeader:
        """The header of the present conversation."""
        return self._header

    @property
    def stored_as(self) -> str:
        """The id under which it is stored; empty if nothing is stored."""
        return self._header.id if self._stream is not None else ""

    def fresh(self) -> None:
        """Begin a new conversation; it is stored with its first question."""
        now = time.time()
        self._header = ConversationHeader(fresh_id(), "", self.pair, created=now, updated=now)
        self.tree = MessageTree()

    def open(self, stored: StoredConversation) -> None:
        """Continue a stored conversation."""
        self._header, self.tree = stored.header, stored.tree

    def snapshot(self) -> StoredConversation:
        """The conversation as it is now, for another thread: what follows does not change it."""
        tree = MessageTree(replace(node) for node in self.tree.nodes.values())
        tree.end_at(self.tree.leaf)
        return StoredConversation(self._header, tree)

    def messages(self) -> list[Message]:
        """The messages that the session needs."""
        return [node.message for node in self.tree.path()]

    def nodes(self) -> list[MessageNode]:
        """The current path."""
        return self.tree.path()

    def place(self, node: str) -> MessageVersion:
        """Which version of its message a node is."""
        versions = self.tree.versions(node)
        return MessageVersion(node, versions.index(node) + 1, len(versions))

    # A turn

    def begin(
        self, question: str | None, settings: ChatSettings, *, instead_of: str | None = None
    ) -> tuple[str, ...]:
        """Begin a turn, and store the question and an empty answer.

        Args:
            question: None to answer the last question again.
            settings: those in force.
            instead_of: the node that the question is another version of; None to continue.

        Returns:
            The ids of the new nodes: question and answer, or the answer alone.
        """
        self._settings = document_of(settings)
        self._leaf_before = self.tree.leaf
        self._begun = []
        if question is None:
            users = [node.id for node in self.tree.path() if node.message.role is Role.USER]
            parent = users[-1] if users else None
        else:
            before = self.tree.leaf if instead_of is None else self.tree.nodes[instead_of].parent
            parent = self._hang(Message(Role.USER, question), before)
        self._answer = self._hang(Message(Role.ASSISTANT, ""), parent)
        self._save(self._begun, begins=self._answer)
        return tuple(node.id for node in self._begun)

    def go_on(self, results: Sequence[Message], settings: ChatSettings) -> tuple[str, ...]:
        """Begin an answer after the results of the last one's calls, and store both.

        Returns:
            The ids of the new nodes: the results, then the answer.
        """
        self._settings = document_of(settings)
        self._leaf_before = parent = self.tree.leaf
        self._begun = []
        for result in results:
            parent = self._hang(result, parent, call_of(result))
        self._answer = self._hang(Message(Role.ASSISTANT, ""), parent)
        self._save(self._begun, begins=self._answer)
        return tuple(node.id for node in self._begun)

    def before(self, node: str) -> list[Message]:
        """The messages before one on the current path."""
        path = self.tree.path()
        return [one.message for one in path[: [one.id for one in path].index(node)]]

    def question_before(self, node: str | None) -> MessageNode | None:
        """The question before `node` on the current path; None stands for the path's end."""
        found = None
        for one in self.tree.path():
            if one.id == node:
                break
            if one.message.role is Role.USER:
                found = one
        return found

    def hear(self, event: TurnEvent) -> None:
        """Add text of the running answer; called in another thread, and cheap."""
        # A round without spans has only completed part of a character.
        if self._stream and self._answer and isinstance(event, RoundText) and event.spans:
            self._stream(self._answer, event.spans)

    def end(
        self,
        answer: Message | None,
        figures: Mapping[str, Any],
        results: Sequence[Message] = (),
    ) -> None:
        """End the turn.

        Args:
            answer: what joined the conversation; None for nothing.
            figures: the figures to store with it.
            results: those that it began with, as the model has read them.
        """
        begun, self._begun, self._answer = self._begun, [], None
        if answer is None:
            for node in reversed(begun):
                self.tree.remove(node.id)
            self.tree.end_at(self._leaf_before)
            if not self.tree.nodes and self._header.title == title_of(begun[0].message):
                self._header = replace(self._header, title="")  # the next question sets it
            ids, conversation, leaf = [n.id for n in begun], self._header.id, self.tree.leaf
            self._write(lambda store: store.drop(conversation, ids, leaf), ends=ids[-1])
            return
        for node, result in zip(begun, results, strict=False):
            node.message = result
        node = begun[-1]
        node.message, node.figures = answer, dict(figures)
        self._save(begun, ends=node.id)
        self._retitle(begun[0])

    def _retitle(self, first: MessageNode) -> None:
        """Update the title after the first question was changed, unless the user set the title.

        It may have been set in another window, which only the store knows.
        """
        if first.parent is not None or first.message.role is not Role.USER:
            return
        others = (self.tree.nodes[one] for one in self.tree.versions(first.id) if one != first.id)
        before = self._header.title
        if before in [title_of(other.message) for other in others]:
            self.rename(title_of(first.message), before)

    # Versions

    def step(self, node: str, by: int) -> bool:
        """Switch to the previous (-1) or next (+1) version; return whether there is one."""
        versions = self.tree.versions(node)
        index = versions.index(node) + by
        if not 0 <= index < len(versions):
            return False
        self.tree.choose(versions[index])
        conversation, leaf = self._header.id, self.tree.leaf
        self._write(lambda store: store.set_leaf(conversation, leaf))
        return True

    def graft(self, messages: list[Message], settings: ChatSettings) -> None:
        """Continue from `messages` as a new beginning; the old path stays as another version."""
        self._settings = document_of(settings)
        self._begun, parent = [], None
        for message in messages:
            parent = self._hang(message, parent)
        self._save(self._begun)

    def rename(self, title: str, before: str | None = None) -> None:
        """Give the conversation another title; with `before`, only if that is the stored one."""
        self._header = replace(self._header, title=title)
        conversation = self._header.id
        self._write(lambda store: store.rename(conversation, title, before))

    def _hang(
        self, message: Message, parent: str | None, figures: Mapping[str, Any] | None = None
    ) -> str:
        node = MessageNode(fresh_id(), parent, message, figures or {})
        self.tree.add(node)
        self._begun.append(node)
        return node.id

    def _save(
        self, nodes: list[MessageNode], *, begins: str | None = None, ends: str | None = None
    ) -> None:
        path = self.tree.path()
        self._header = replace(
            self._header,
            title=self._header.title or title_of(path[0].message),
            pair=self.pair,
            parameters=self._settings,
            updated=time.time(),
        )
        header, leaf = self._header, self.tree.leaf
        # Copy the nodes, since the answer's node changes while the store thread reads.
        frozen = [replace(node) for node in nodes]
        saved = {node.id for node in nodes}
        earlier = [node for node in self.tree.nodes.values() if node.id not in saved]
        self._write(
            lambda store: store.save(header, frozen, leaf, earlier), begins=begins, ends=ends
        )


def _forget(_job: object, **_: object) -> None:
    """Stands in for the store thread if nothing is stored."""
