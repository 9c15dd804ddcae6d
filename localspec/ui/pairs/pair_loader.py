"""The pair that the engine answers with: loaded, changed and lent to jobs here."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import Struct

from localspec.errors import EngineError, NotFetched, in_words
from localspec.loading.load_request import LoadRequest
from localspec.process.messages import LoadFailed, SessionInfo
from localspec.safe_text import one_line, reason
from localspec.ui.conversation.conversation_library import ConversationLibrary
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.pairs.pair_events import PairMissing
from localspec.ui.status_lines import TitleLine

_END_S = 20.0  # much longer than a step of storing the caches takes
_AGAIN = "Close other programs, then press Enter."
_GO_ON = "Enter loads the models again, /pairs chooses others."
_NO_BIAS = "the logit bias is left out: it names tokens of the model before"


@dataclass(eq=False, repr=False)
class PairLoader:
    """Shows the loaded pair, or says why none is loaded; in the screen's thread.

    Attributes:
        load_error: why the last load failed; None if it did not, or was cancelled.
    """

    turns: TurnController
    library: ConversationLibrary
    title: TitleLine
    load_error: Exception | None = None
    _unsaid: list[tuple[str, str, bool]] = field(default_factory=list)  # see `tell`
    _first: bool = True
    _freed: bool = False  # whether the pair before had to make room
    _then: Callable[[], None] | None = None

    def loading(self) -> None:
        """Note that another pair is being loaded, and the one before is gone."""
        self._freed = True

    def loaded(self, info: SessionInfo) -> None:
        """Show a pair that the engine has loaded."""
        self.load_error, self._first = None, False
        self._show(info)
        then, self._then = self._then, None
        if then is not None:
            then()

    def drafts_changed(self, before: SessionInfo | None) -> None:
        """Show what has become of a draft model that was loaded after the target, if any was.

        Args:
            before: the pair as it was shown; None if none was loaded.
        """
        info = self.turns.engine.info
        if info is None or before is None or info.draft_state == before.draft_state:
            return
        if info.draft_state:
            self.tell(info.draft_state)
        self.turns.dashboard.seat(info)
        self.title.show(info)

    def failed(self, failed: LoadFailed) -> None:
        """Say that a load failed or was cancelled; the pair before is back, or none is loaded."""
        self._say_failed(failed)
        self.say_unsaid()

    def _say_failed(self, failed: LoadFailed) -> None:
        first, self._first, self._then = self._first, False, None
        error = None if failed.error is None else failed.error.exception()
        if isinstance(error, NotFetched):
            loaded = failed.info is not None
            self.turns.enter(EnginePhase.READY if loaded else EnginePhase.UNUSABLE)
            missing = PairMissing(self.turns.engine.wanted, error.message)
            self.turns.transcript.app.post_message(missing)
            return
        if error is not None and failed.info is not None and not self._freed:
            self.turns.enter(EnginePhase.READY)
            self.turns.transcript.say_error(error)
            return
        if failed.info is not None:
            self._show(failed.info)
        else:
            cancelled = error is None and failed.second is None
            self.turns.enter(EnginePhase.ASLEEP if cancelled else EnginePhase.UNUSABLE)
            self.turns.dashboard.leave()
        if not first:
            for text, remedy in switch_failure(failed):
                self.turns.transcript.say(text, remedy, error=error is not None)
        elif error is None:
            self.turns.transcript.say("loading was cancelled", _GO_ON)
        else:
            self.load_error = error
            self.turns.transcript.say_error(error)

    def died(self, error: Exception) -> None:
        """Say that the engine's process has ended by itself, and how to go on."""
        if self.turns.phase is EnginePhase.LOADING:
            self.load_error = error
        self._then = None
        self.turns.died(error)
        self.say_unsaid()

    def switch(self, name: str) -> None:
        """Load another pair in place of this one; the conversation stays."""
        info = self.turns.engine.info
        if info is not None and info.pair_name == name:
            self.turns.status.flash(f"{one_line(name, 40)} is in use")
        elif self.turns.close_for_loading():
            self._freed = False
            record, engine = self.turns.record, self.turns.engine
            if engine.has_bias:
                self._then = partial(self.tell, _NO_BIAS)
            self._begin(lambda: engine.load(name, record.messages(), record.stored_as))

    def reload(self, then: Callable[[], None] | None = None, **changes: Any) -> None:
        """Load the pair again; the conversation goes on with `then`.

        Args:
            then: called once it is loaded.
            changes: fields of the `LoadRequest` that change.
        """
        if self.turns.close_for_loading():
            self._freed, self._then = False, then
            record = self.turns.record
            self._begin(
                lambda: self.turns.engine.reload(record.messages(), record.stored_as, **changes)
            )

    def _begin(self, load: Callable[[], None]) -> None:
        """Begin to load, or say why no engine can be started."""
        try:
            load()
        except (OSError, subprocess.TimeoutExpired) as error:
            before = isinstance(error, subprocess.TimeoutExpired)
            why = "the one before has not ended" if before else reason(error)
            self.died(EngineError(f"no engine can be started: {why}", _AGAIN))

    def unload(self) -> None:
        """End the engine, which gives the memory back; Enter loads the pair again.

        The engine first stores the caches of a stored conversation, which then goes on from them.
        """
        if self.turns.free():
            self.turns.enter(EnginePhase.CHANGING)
            self.library.work(self._unloaded(self.turns.engine.unload()))

    async def _unloaded(self, ended: Callable[[float], bool]) -> None:
        try:
            await asyncio.to_thread(ended, _END_S)
        except Exception as error:  # such as a process that cannot be killed: another can be loaded
            self.turns.transcript.say_error(error)
        self.turns.enter(EnginePhase.ASLEEP)
        self.turns.dashboard.leave()
        self.say_unsaid()

    def perform(self, make: Callable[[LoadRequest], Struct]) -> None:
        """Run a job while the pair is unloaded, and load the pair again."""
        if self.turns.close_for_loading():
            self._freed = True
            record = self.turns.record
            self._begin(
                lambda: self.turns.engine.perform(make, record.messages(), record.stored_as)
            )

    def tell(self, text: str, remedy: str = "", *, error: bool = False) -> None:
        """Show a message from elsewhere, now or once the conversation has been drawn anew."""
        if self._redraws:
            self._unsaid.append((text, remedy, error))
        else:
            self.turns.transcript.tell(text, remedy, error=error)

    def trouble(self, error: Exception) -> None:
        """`tell` what went wrong."""
        self.tell(*in_words(error), error=True)

    def _show(self, info: SessionInfo) -> None:
        self.turns.enter(EnginePhase.READY)
        self.turns.dashboard.seat(info)
        self.turns.show_conversation()
        self.say_unsaid()
        self.title.show(info)
        self.library.loaded(info)

    def say_unsaid(self) -> None:
        """Show what was told since the conversation was about to be drawn anew."""
        if not self._redraws:
            for text, remedy, error in self._unsaid:
                self.turns.transcript.say(text, remedy, error=error)
            self._unsaid.clear()

    @property
    def _redraws(self) -> bool:
        """Whether the conversation is about to be drawn anew, without what was told."""
        phase = self.turns.phase
        if phase is EnginePhase.READY:  # the last run's conversation may be on its way
            return not self.library.restored
        return phase in (EnginePhase.LOADING, EnginePhase.CHANGING)


def switch_failure(failed: LoadFailed) -> list[tuple[str, str]]:
    """Why a switch to another pair failed, and what answers now."""
    cancelled = ("loading was cancelled", "")
    lines = [cancelled if failed.error is None else in_words(failed.error.exception())]
    if failed.info is not None:
        lines.append((f"{failed.info.pair_name} is in use again; the conversation is kept", ""))
    elif failed.second is not None:
        text, remedy = in_words(failed.second.exception())
        lines.append((f"the pair before could not be loaded again either: {text}", remedy))
    else:
        go_on = _GO_ON if failed.error is None else "/pairs chooses one."
        lines.append(("no model is loaded; the conversation is kept", go_on))
    return lines
