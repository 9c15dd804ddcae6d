"""The conversation that is going on and those that are stored: what the screen does with them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message

from localspec.chat.conversation import Role
from localspec.chat.history import exchange, parameters
from localspec.chat.history.keeper import Keeper
from localspec.chat.history.record import Place, Record
from localspec.chat.history.records import PairReference, Stored
from localspec.errors import ConversationError, LocalspecError
from localspec.process.messages import Open
from localspec.ui.wording import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from textual.timer import Timer

    from localspec.chat.conversation import Message as ChatMessage
    from localspec.chat.events import TurnEvent
    from localspec.chat.history.store import Store
    from localspec.chat.history.tree import Node
    from localspec.ui.app import ChatApp
    from localspec.ui.conversation.items import Figures
    from localspec.ui.conversation.transcript import Shown

Result = TypeVar("Result")
_PATIENCE_S = 5.0
_DRAFT_S = 1.0
_QUESTIONS = 200


@dataclass
class StoreTrouble(Message):
    """Conversations cannot be kept, or not now."""

    error: LocalspecError


class Shelf:
    """Keeps a record of the running conversation, opens others, writes and reads files.

    Args:
        app: whose conversation it is.
        path: the file of the store; None to keep nothing.
        resume: the id of the conversation to begin with.
    """

    def __init__(self, app: ChatApp, path: Path | None, resume: str | None = None) -> None:
        self._app = app
        self._keeper = (
            Keeper(path, lambda error: app.post_from_thread(StoreTrouble(error)))
            if path is not None
            else None
        )
        self.record = Record(self._keeper)
        self._resume = resume
        self._begun = False
        self._draft_timer: Timer | None = None
        self._draft: tuple[str, str] | None = None

    def start(self) -> None:
        """Open the store, in its own thread."""
        if self._keeper is not None:
            self._keeper.start()

    def shut_down(self) -> bool:
        """Write what is left; whether all of it was written in time."""
        self._save_draft()
        return self._keeper is None or self._keeper.close(_PATIENCE_S)

    def loaded(self) -> None:
        """A pair has been loaded: it answers from now on."""
        session = self._app.session
        if session is not None:
            self.record.pair = PairReference(session.pair_name, *session.pair_reference)
        if not self._begun:
            self._begun = True
            self._work(self._begin())

    # What is typed

    def draft(self, text: str) -> None:
        """The input holds `text` now: kept within a second, unless it edits an earlier message."""
        if self._keeper is None or self._app.turns.editing is not None:
            return
        self._draft = (self._draft_key(), text)
        if self._draft_timer is None:
            self._draft_timer = self._app.set_timer(_DRAFT_S, self._save_draft)

    def _save_draft(self) -> None:
        draft, self._draft, self._draft_timer = self._draft, None, None
        if draft is not None and self._keeper is not None:
            self._keeper.write(lambda store: store.save_draft(*draft))

    def _draft_key(self) -> str:
        return self.record.header.id if self.record.tree.nodes else ""

    async def _begin(self) -> None:
        """What earlier runs have left: a conversation, questions to walk through, a draft."""
        if self._keeper is None:
            return
        if self._resume is not None:
            await self._open(self._resume)
        try:
            self._app.prompt.sent.begin(await self.ask(lambda store: store.questions(_QUESTIONS)))
            if self._resume is None:
                await self._restore_draft()
        except ConversationError:
            return  # the keeper has told what is wrong

    async def _restore_draft(self) -> None:
        key = self._draft_key()
        text = await self.ask(lambda store: store.draft(key)) if self._keeper is not None else ""
        self._app.give_back(text)

    # A turn

    def hear(self, event: TurnEvent) -> None:
        """Note what the running answer says (the thread that hears the engine)."""
        self.record.hear(event)

    def begin(self, question: str | None, instead_of: str | None = None) -> list[Place]:
        """A turn begins; where its question (if there is one) and its answer stand."""
        session = self._app.session
        if session is None:
            raise AssertionError("a turn without a session")
        nodes = self.record.begin(question, session.settings, instead_of=instead_of)
        return [self.record.place(node) for node in nodes]

    def end(self, said: Sequence[ChatMessage], figures: Figures) -> bool:
        """The turn is over; whether an answer joined the conversation.

        Args:
            said: the messages that joined it.
            figures: how the answer was made.
        """
        answer = said[-1] if said and said[-1].role is Role.ASSISTANT else None
        self.record.end(answer, {**figures, "pair": self.record.pair.name})
        return answer is not None

    def graft(self, said: Sequence[ChatMessage]) -> None:
        """Let `said` be a new beginning."""
        session = self._app.session
        if session is not None:
            self.record.graft(list(said), session.settings)

    # Versions

    def shown(self) -> list[Shown]:
        """The messages in force, where they stand, and how they were made."""
        return [
            (node.message, self.record.place(node.id), node.figures) for node in self.record.nodes()
        ]

    def step(self, node: str, by: int) -> None:
        """Show an earlier (-1) or later (+1) version of a message, and what followed it."""
        if node not in self.record.tree.nodes or not self._app.turns.free():
            return
        if self.record.step(node, by):
            self.reopen()
        else:
            self._app.say_briefly("this is the latest version" if by > 0 else "the first version")

    def step_newest(self, by: int) -> None:
        """The same for the message that is picked, else for the newest that has versions."""
        picked = self._app.turns.editing
        nodes = [place for _, place, _ in self.shown() if place.versions > 1]
        if picked is not None:
            nodes = [place for place in nodes if place.node == picked]
        if nodes:
            self._app.turns.edit(None)
            self.step(nodes[-1].node, by)
        else:
            self._app.say_briefly("there is only one version")

    def question_before(self, node: str | None) -> Node | None:
        """The question before `node` (None for the end) in the path in force."""
        found = None
        for one in self.record.nodes():
            if one.id == node:
                break
            if one.message.role is Role.USER:
                found = one
        return found

    def reopen(self) -> None:
        """Let the session know the path in force, then show it."""
        if self._app.engine.alive:
            self._app.turns.change(Open(tuple(self.record.messages())), self._app.show_conversation)
        else:
            self._app.show_conversation()

    # Other conversations

    def ask(
        self, job: Callable[[Store], Result], *, changes: bool = False
    ) -> asyncio.Future[Result]:
        """What the store says.

        Args:
            job: asked of the store.
            changes: it is done whether or not somebody waits for it.

        Raises:
            ConversationError: conversations are not kept, or cannot be read.
        """
        if self._keeper is None:
            raise ConversationError("conversations are not kept")
        return asyncio.wrap_future(self._keeper.ask(job, changes=changes))

    def open(self, conversation: str) -> None:
        """Go on with a stored conversation."""
        self._work(self._open(conversation))

    def export(self, form: str, path: Path | None) -> None:
        """Write the conversation on screen to a file, and say where it is."""
        self._work(self._export(form, path))

    def import_file(self, path: Path) -> None:
        """Store the conversation in a file, and open it."""
        self._work(self._import(path))

    def _work(self, job: Coroutine[Any, Any, None]) -> None:
        self._app.run_worker(self._told(job), group="shelf")

    async def _told(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception as error:  # whatever it is, the conversation goes on
            self._app.transcript.say(*in_words(error), error=True)

    async def _open(self, conversation: str) -> None:
        self._save_draft()
        self._show(await self.ask(lambda store: store.load(conversation)))
        await self._restore_draft()

    async def _export(self, form: str, path: Path | None) -> None:
        written = await self.write_file(form, path)
        self._app.transcript.say(f"written to {written.absolute()}")

    async def write_file(
        self, form: str, path: Path | None = None, conversation: str | None = None
    ) -> Path:
        """Write a conversation to a file, without an id the one on screen; where to.

        Raises:
            ConversationError: there is nothing to write, or it cannot be written.
        """
        if conversation is None:
            stored = Stored(self.record.header, self.record.tree)
            if not stored.tree.nodes:
                raise ConversationError("there is nothing to export yet", "Ask something first.")
        else:
            wanted = conversation
            stored = await self.ask(lambda store: store.load(wanted))
        return await asyncio.to_thread(exchange.write_file, stored, form, path)

    async def _import(self, path: Path) -> None:
        stored = await asyncio.to_thread(exchange.read_file, path)
        if self._keeper is not None:
            nodes = list(stored.tree.nodes.values())
            await self.ask(
                lambda store: store.save(stored.header, nodes, stored.tree.leaf), changes=True
            )
        self._show(stored)

    def _show(self, stored: Stored) -> None:
        session = self._app.session
        if not self._app.turns.free() or session is None:
            return
        settings = parameters.from_document(stored.header.parameters, session.settings)
        self.record.open(stored)
        other = stored.header.pair.name
        if other and other != session.pair_name:
            self._app.turns.notice = f"so far {other} answered here, now {session.pair_name} does"
        opened = Open(tuple(self.record.messages()), settings)
        self._app.turns.change(opened, self._app.show_conversation)
