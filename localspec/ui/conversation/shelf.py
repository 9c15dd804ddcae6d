"""The conversation that is going on and those that are stored: what the screen does with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.chat.history import exchange
from localspec.chat.history.fields import settings_of
from localspec.chat.history.tree import PairReference, Stored
from localspec.errors import ConversationError, in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from textual.timer import Timer

    from localspec.chat.history.keeper import Keeper
    from localspec.chat.history.record import Record
    from localspec.chat.history.store import Store
    from localspec.process.client import EngineClient
    from localspec.ui.conversation.gate import Gate
    from localspec.ui.conversation.prompt import PromptArea
    from localspec.ui.conversation.transcript import Transcript
    from localspec.ui.conversation.turns import Turns

Result = TypeVar("Result")
_PATIENCE_S = 5.0
_DRAFT_S = 1.0
_QUESTIONS = 200


class Shelf:
    """Opens conversations and other versions of messages, writes and reads files, keeps drafts.

    Args:
        keeper: writes and reads the store; None to keep nothing.
        record: of the conversation on screen.
        resume: the id of the conversation to begin with.
        gate: knows what the engine is doing, and says why not.
        engine: is told of another conversation.
        turns: puts it in force.
        transcript: says what was done.
        prompt: gets drafts and earlier questions back.
    """

    def __init__(
        self,
        *,
        keeper: Keeper | None,
        record: Record,
        resume: str | None,
        gate: Gate,
        engine: EngineClient,
        turns: Turns,
        transcript: Transcript,
        prompt: PromptArea,
    ) -> None:
        self._keeper = keeper
        self._resume = resume
        self._gate = gate
        self._engine = engine
        self._turns = turns
        self._transcript = transcript
        self._prompt = prompt
        self._begun = False
        self._draft_timer: Timer | None = None
        self._draft: tuple[str, str] | None = None
        self.record = record

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
        session = self._engine.info
        if session is not None:
            self.record.pair = PairReference(session.pair_name, *session.pair_reference)
        if not self._begun:
            self._begun = True
            self._work(self._begin())

    # What is typed

    def draft(self, text: str) -> None:
        """The input holds `text` now: kept within a second, unless it edits an earlier message."""
        if self._keeper is None or self._gate.editing is not None:
            return
        self._draft = (self._draft_key(), text)
        if self._draft_timer is None:
            self._draft_timer = self._prompt.set_timer(_DRAFT_S, self._save_draft)

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
            self._prompt.sent.begin(await self.ask(lambda store: store.questions(_QUESTIONS)))
            if self._resume is None:
                await self._restore_draft()
        except ConversationError:
            return  # the keeper has told what is wrong

    async def _restore_draft(self) -> None:
        key = self._draft_key()
        text = await self.ask(lambda store: store.draft(key)) if self._keeper is not None else ""
        self._prompt.give_back(text)

    # Versions

    def step(self, node: str, by: int) -> None:
        """Show an earlier (-1) or later (+1) version of a message, and what followed it."""
        if node not in self.record.tree.nodes or not self._gate.free():
            return
        if self.record.step(node, by):
            self._turns.reopen()
        else:
            self._gate.say("this is the latest version" if by > 0 else "the first version")

    def step_newest(self, by: int) -> None:
        """The same for the message that is picked, else for the newest that has versions."""
        picked = self._gate.editing
        nodes = [node.id for node in self.record.nodes() if picked in (None, node.id)]
        nodes = [node for node in nodes if self.record.place(node).versions > 1]
        if nodes:
            self._gate.edit(None)
            self.step(nodes[-1], by)
        else:
            self._gate.say("there is only one version")

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
        self._transcript.run_worker(self._told(job), group="shelf")

    async def _told(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception as error:  # whatever it is, the conversation goes on
            self._transcript.say(*in_words(error), error=True)

    async def _open(self, conversation: str) -> None:
        self._save_draft()
        self._show(await self.ask(lambda store: store.load(conversation)))
        await self._restore_draft()

    async def _export(self, form: str, path: Path | None) -> None:
        written = await self.write_file(form, path)
        self._transcript.say(f"written to {written.absolute()}")

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
        session = self._engine.info
        if not self._gate.free() or session is None:
            return
        settings = settings_of(stored.header.parameters, session.settings)
        self.record.open(stored)
        other, notice = stored.header.pair.name, ""
        if other and other != session.pair_name:
            notice = f"so far {other} answered here, now {session.pair_name} does"
        self._turns.reopen(settings, notice)
