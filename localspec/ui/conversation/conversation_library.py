"""The current conversation and the stored ones, as the screen uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from textual.timer import Timer

from localspec import formats
from localspec.chat.history import import_export
from localspec.chat.history.conversation_record import ConversationRecord, MessageVersion
from localspec.chat.history.fields import settings_of
from localspec.chat.history.store import Store
from localspec.chat.history.store_thread import StoreThread
from localspec.chat.history.tree import PairReference, StoredConversation
from localspec.chat.history.unsent_texts import replaced
from localspec.chat.settings import without_bias
from localspec.errors import ConversationError
from localspec.process.messages import SessionInfo
from localspec.safe_text import one_line
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.turn_controller import TurnController

Result = TypeVar("Result")
_PATIENCE_S = 5.0
_DRAFT_S = 1.0
_QUESTIONS = 200


@dataclass(eq=False, repr=False)
class ConversationLibrary:
    """Opens conversations and other versions of messages, writes and reads files, keeps drafts.

    Attributes:
        store_thread: writes and reads the store; None to keep nothing.
        record: of the conversation on screen.
        resume: the id of the conversation to begin with, or to go on with once a model is there.
        typed: by the id of a conversation, fields of the settings that the command line gives:
            when it first opens, they come before what is stored.
        begun: called once what earlier runs have left was looked for, and once a chosen
            conversation was, with whether the conversation is there.
    """

    store_thread: StoreThread | None
    record: ConversationRecord
    resume: str | None
    turns: TurnController
    begun: Callable[[bool], None]
    typed: dict[str, Set[str]] = field(default_factory=dict)
    _due: bool = True  # what is to be restored waits for a model
    _opening: bool = False  # a conversation was chosen, and is not there yet
    _coming: str = ""  # its id: what is typed meanwhile is a draft of it
    _knows_sent: bool = False  # what earlier runs sent has been read
    _unread: bool = True  # the stored draft has not been read
    _draft_timer: Timer | None = None
    _draft: tuple[str, str] = ("", "")  # a conversation, and what the input holds for it
    _stored: tuple[str, str] = ("", "")  # a conversation, and what of its stored draft is ours

    def start(self) -> None:
        """Open the store, in its own thread."""
        if self.store_thread is not None:
            self.store_thread.start()

    def shut_down(self) -> bool:
        """Write what is left; return whether all of it was written in time.

        So is the draft, again: since it was stored, another window may have sent it.
        """
        self.keep_draft()
        return self.store_thread is None or self.store_thread.close(_PATIENCE_S)

    def loaded(self, session: SessionInfo) -> None:
        """Record that a newly loaded pair answers from now on."""
        self.record.pair = PairReference(session.pair_name, *session.pair_reference)
        if self._due:
            self._due, self._opening = False, True
            self.work(self._begin())

    @property
    def restored(self) -> bool:
        """Whether the conversation is there that was left or chosen: before, nothing is sent."""
        return self.store_thread is None or not (self._due or self._opening)

    # The draft in the input

    def draft(self, text: str) -> None:
        """Keep `text` as the draft within a second, unless it edits an earlier message."""
        if self.store_thread is None or self.turns.editing is not None:
            return
        key = self._coming or self._draft_key()
        if key != self._draft[0]:  # as once a first question has failed: it is a new one again
            self._draft = (self._draft[0], "")
            self._save_draft()
        self._draft = (key, text)
        if self._draft_timer is None:
            self._draft_timer = self.turns.prompt.set_timer(_DRAFT_S, self._save_draft)

    def keep_draft(self) -> None:
        """Store the draft now, not within a second."""
        if self._draft_timer is not None or self._draft[1]:
            self._save_draft()

    def sent(self) -> None:
        """Forget the draft, which is about to be sent: a new conversation takes none along."""
        if self.store_thread is not None and not self.record.tree.nodes:
            self._draft = ("", "")
            self._save_draft()

    def _leave(self, conversation: str) -> None:
        """Store the input as the draft of the conversation on screen, and empty it for another.

        An edited message is left first: it does not belong to the other conversation.
        """
        prompt = self.turns.prompt
        self.turns.leave_edit()
        if self.store_thread is None:
            return
        self.draft(prompt.text)
        self._save_draft()
        self._coming, self._unread = conversation, True
        self._draft = self._stored = (conversation, "")
        if prompt.text.strip():
            prompt.sent.add(prompt.text)  # Up finds it in the other conversation
        prompt.clear()

    def _save_draft(self) -> None:
        (key, text), timer, self._draft_timer = self._draft, self._draft_timer, None
        if timer is not None:
            timer.stop()
        if self.store_thread is not None:
            before = self._stored[1] if self._stored[0] == key else ""
            self._stored = (key, text)
            self.store_thread.write(lambda store: store.save_draft(key, text, before))

    def _move_draft(self, left: str, text: str) -> None:
        """Store `text` as the draft of the conversation on screen, and empty that of `left`."""
        for draft in ((left, ""), (self._draft_key(), text)):
            self._draft = draft
            self._save_draft()

    def _draft_key(self) -> str:
        return self.record.header.id if self.record.tree.nodes else ""

    async def _begin(self) -> None:
        """Restore what earlier runs have left; a start that is broken off sends nothing."""
        if self.store_thread is None:
            return
        await self._told(self._restore())
        self._opening = False
        self.begun(self.resume in (None, self.record.header.id))

    async def _restore(self) -> None:
        """Restore a conversation, sent questions, a draft."""
        if self.resume is not None:
            await self._told(self._open(self.resume))
        if self._knows_sent:
            return
        with suppress(ConversationError):  # the store thread has reported it
            questions = await self.ask(lambda store: store.questions(_QUESTIONS))
            prompt = self.turns.prompt
            prompt.sent.begin([*map(prompt.as_typed, questions)])
            self._knows_sent = True
            await self._restore_draft()

    async def _restore_draft(self) -> None:
        """Show the stored draft of the conversation on screen, unless it was shown already."""
        key, self._coming = self._draft_key(), ""
        if not self._unread:
            return
        if self._stored[0] != key:  # where what was typed meanwhile was kept
            self._move_draft(self._stored[0], self._draft[1])
        typed, prompt = self._stored[1], self.turns.prompt
        stored = await self.ask(lambda store: store.draft(key))
        text = replaced(stored, typed, "")
        if text and prompt.text:
            prompt.sent.add(text)  # the input holds something else already: Up finds this
        prompt.give_back(text)
        self._unread = False
        self._stored = (key, replaced(stored, typed, self._stored[1]))
        self.draft(prompt.text)

    # Versions

    def step(self, node: str, by: int) -> None:
        """Show an earlier (-1) or later (+1) version of a message, and what followed it."""
        if node not in self.record.tree.nodes or not self.turns.free():
            return
        if self.record.step(node, by):
            self.turns.leave_edit()
            self.turns.reopen()
        else:
            self.turns.status.flash("this is the latest version" if by > 0 else "the first version")

    def step_newest(self, by: int) -> None:
        """`step` for the picked message, else for the newest one that has versions."""
        place = self.newest()
        if place is not None:
            self.step(place.node, by)
        else:
            self.turns.status.flash("there is only one version")

    def newest(self) -> MessageVersion | None:
        """The picked message if it has versions, else the newest one that has; may be None."""
        picked = self.turns.editing
        nodes = [node.id for node in self.record.nodes() if picked in (None, node.id)]
        places = (self.record.place(node) for node in reversed(nodes))
        return next((place for place in places if place.versions > 1), None)

    # Other conversations

    def begin_new(self) -> None:
        """Begin a new conversation, with what is typed."""
        if self.turns.free():
            self.turns.leave_edit()
            left = self._draft_key()
            self.turns.clear(lambda: self._move_draft(left, self.turns.prompt.text))

    def ask(
        self, job: Callable[[Store], Result], *, changes: bool = False
    ) -> asyncio.Future[Result]:
        """Have the store thread run `job`, and return its result.

        Args:
            job: what to do with the store.
            changes: the job writes, so it runs even if its result is no longer awaited.

        Raises:
            ConversationError: conversations are not kept, or cannot be read.
        """
        if self.store_thread is None:
            raise ConversationError("conversations are not kept")
        return asyncio.wrap_future(self.store_thread.ask(job, changes=changes))

    def work(self, job: Coroutine[Any, Any, None]) -> None:
        """Run one of the following in the background, and report its errors."""
        self.turns.transcript.run_worker(self._told(job), group="library")

    async def _told(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception as error:  # whatever it is, the conversation goes on
            self.turns.transcript.say_error(error)

    def open(self, conversation: str) -> None:
        """Go on with a stored conversation; what is entered meanwhile waits for it."""
        if self._due:
            self.resume = conversation
        if self.turns.phase is EnginePhase.UNUSABLE or self.turns.free():
            self._opening = True
            self._leave(conversation)
            self.work(self._go_to(conversation))

    def open_once_loaded(self, conversation: str) -> None:
        """`open` once a model is there; what is typed from now on belongs to the conversation."""
        self._leave(conversation)
        self.resume, self._due = conversation, True

    async def _go_to(self, conversation: str, *, named: bool = False) -> None:
        self._opening = True
        await self._told(self._open(conversation, named=named))
        self._opening = False
        self.begun(self.record.header.id == conversation)

    async def _open(self, conversation: str, *, named: bool = False) -> None:
        try:
            self._show(await self.ask(lambda store: store.load(conversation)), named=named)
        except Exception:  # not where the app ends: what is typed stays with the conversation
            await self._restore_draft()
            raise
        await self._restore_draft()

    async def open_with(self, words: str) -> None:
        """Go on with the latest stored conversation that contains these words.

        Raises:
            ConversationError: there is none.
        """
        found = await self.ask(lambda store: store.listed(words))
        if not found:
            raise ConversationError(
                f"no file and no stored conversation is called “{one_line(words, 60)}”",
                "F7 lists the conversations.",
            )
        self._leave(found[0].header.id)
        await self._go_to(found[0].header.id, named=True)

    async def export(self, form: str, path: Path | None) -> None:
        """Write the conversation on screen to a file, and say where it is."""
        written = await self.write_file(form, path)
        self.turns.transcript.say(f"written to {written.absolute()}")

    async def write_file(
        self, form: str, path: Path | None = None, conversation: str | None = None
    ) -> Path:
        """Write a conversation to a file (the one on screen without an id), and return the path.

        Raises:
            ConversationError: there is nothing to write, or it cannot be written.
        """
        if conversation is None:
            stored = self.record.snapshot()
            if not stored.tree.nodes:
                raise ConversationError("there is nothing to export yet", "Ask something first.")
        else:
            wanted = conversation
            stored = await self.ask(lambda store: store.load(wanted))
        return await asyncio.to_thread(import_export.write_file, stored, form, path)

    async def import_file(self, path: Path, words: str = "") -> None:
        """Store the conversation in a file, and open it.

        If the file is not an export, go on with the stored conversation that contains `words`.

        Raises:
            ConversationError: the file is not an export, and nothing was found.
        """
        try:
            stored = await asyncio.to_thread(import_export.read_file, path)
        except ConversationError:
            with suppress(ConversationError):
                if words:
                    await self.open_with(words)
                    return
            raise
        if self.store_thread is None:
            self._show(stored, named=True)
            return
        header, tree = stored.header, stored.tree
        nodes = list(tree.nodes.values())
        await self.ask(lambda store: store.save(header, nodes, tree.leaf), changes=True)
        self._leave(header.id)
        await self._go_to(header.id, named=True)

    def _show(self, stored: StoredConversation, *, named: bool = False) -> None:
        """Go on with a conversation if the engine is free.

        Without a model the conversation is shown, and opened again once a model is loaded.

        Args:
            stored: the conversation.
            named: say its title: it was found by words, or by the name of a file.
        """
        self.turns.leave_edit()
        if self.turns.phase is EnginePhase.UNUSABLE:
            self.record.open(stored)
            self.turns.show_conversation()
            self.resume, self._due = stored.header.id, True
            return
        session = self.turns.engine.info
        if not self.turns.free() or session is None:
            return
        typed = self.typed.pop(stored.header.id, frozenset())
        settings = settings_of(stored.header.parameters, session.settings, typed)
        other, notices = stored.header.pair.name, []
        if named:
            size = formats.counted(len(stored.tree.path()), "message")
            notices.append(f"opened “{one_line(stored.header.title, 60)}”, {size}")
        if other and other != session.pair_name:
            notices.append(f"so far {other} answered here, now {session.pair_name} does")
        bias = settings.sampling.logit_bias
        if other != session.pair_name and bias not in ({}, session.settings.sampling.logit_bias):
            settings = without_bias(settings)
            notices.append("its logit bias is left out: it names tokens of another model")
        settings = session.advice.settled(settings)
        self.record.open(stored)
        self.turns.reopen(settings, "; ".join(notices))
