"""What the app does with pairs: it lists, checks, pulls and removes them in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec import formats
from localspec.errors import Cancelled, UsageError, in_words
from localspec.pairs import catalogue, installed, pull, remove
from localspec.pairs.hub.patience import Patience
from localspec.pairs.pull import PullRequest
from localspec.ui.conversation.gate import Gate, Phase
from localspec.ui.screens.pairs import PairsScreen, PairsState, Work

if TYPE_CHECKING:
    from localspec.pairs.catalogue import ListedPair
    from localspec.pairs.pull import PullPlan
    from localspec.process.client import EngineClient

_STOP_WITHIN_S = 2.0


@dataclass(eq=False, repr=False)
class Pairs:
    """Knows what the pairs screen shows, whether it is open or not; lives in the screen's thread.

    Attributes:
        switch: loads another pair.
        tell: says in the conversation what became of a pull while the screen is closed.
        hints: keys of the app that work on the screen as well, and what they do.
        soon: has something called in the screen's thread.
        state: what the screen shows.
    """

    gate: Gate
    engine: EngineClient
    switch: Callable[[str], None]
    tell: Callable[..., None]
    hints: Sequence[tuple[str, str]]
    soon: Callable[[Callable[[], None]], None]
    state: PairsState = field(default_factory=PairsState)
    _patience: Patience = field(default_factory=Patience)
    _thread: threading.Thread | None = None
    _screen: PairsScreen | None = None
    _asked: dict[str, PullRequest] = field(default_factory=dict)  # by the pair's name to be

    # What the user asks for

    def screen(self) -> PairsScreen | None:
        """The screen to be opened, which closes itself; None while it is open."""
        if self._screen is not None:
            return None
        self._screen = PairsScreen(self)
        self.refresh()
        return self._screen

    def closed(self) -> None:
        """The screen has been closed; a pull goes on."""
        self._screen = None
        self.step_back()

    def act(self, row: ListedPair) -> None:
        """Do what Enter does on `row`: use it, check it, or pull what was checked."""
        state = self.state
        state.doomed = ""
        if row.name == state.in_use:
            self._say(f"{row.name} is in use", row.name)
        elif (plan := state.checked(row.name)) is not None:
            state.expect(plan)  # before the first progress can come
            self._begin(Work.PULLING, plan.name, lambda: self._fetch(plan))
        elif row.state == "installed":
            self._use(row.name)
        else:
            wanted = self._asked.get(row.name) or PullRequest(row.name)
            self._begin(Work.CHECKING, row.name, lambda: self._look(wanted))

    def ask(self, text: str) -> bool:
        """Check what was typed, as `localspec pull` would; whether it can be looked at."""
        self.state.doomed = ""
        try:
            wanted = pull.parse_request(text)
        except UsageError as error:
            self.state.say((f"✗ {error.message}", error.remedy))
            self.redraw()
            return False
        return self._begin(Work.CHECKING, text, lambda: self._look(wanted), typed=True)

    def remove(self, row: ListedPair) -> None:
        """Remove `row` when it is asked for the second time."""
        state = self.state
        if row.name == state.in_use:
            self._say(f"{row.name} is in use: change to another pair first", row.name)
        elif row.state == "available" or row.kind == "demo":
            stays = f"{row.name} is not installed" if row.kind != "demo" else "demo stays"
            self._say(stays, row.name)
        elif state.doomed != row.name:
            state.doomed = row.name
            state.say(())
        else:
            state.doomed = ""
            self._begin(Work.REMOVING, row.name, lambda: self._remove(row.name))
        self.redraw()

    def cancel(self) -> None:
        """Stop what is being done; what came of a download stays."""
        if self.state.work is not Work.NONE:
            self._patience.cancel.set()

    def step_back(self) -> bool:
        """Leave a question unanswered; whether there was one."""
        asked = self.state.doomed or self.state.plan is not None or self.state.guest is not None
        if self.state.work is not Work.PULLING:
            self.state.plan = self.state.guest = None
        self.state.doomed = ""
        self.redraw()
        return bool(asked) and self.state.work is not Work.PULLING

    def refresh(self) -> None:
        """Look at the disk and at the catalogue again."""
        session = self.engine.info
        self.state.in_use = session.pair_name if session is not None else ""
        threading.Thread(target=self._list_safely, name="pairs list", daemon=True).start()

    def redraw(self) -> None:
        """Show the state as it is now, if the screen is open."""
        if self._screen is not None:
            self._screen.redraw()

    def app_hints(self) -> list[tuple[str, str]]:
        """Keys of the app that work on the screen as well, and what they do."""
        stop = [("Ctrl+C", "stop the answer")] if self.gate.phase is Phase.ANSWERING else []
        return [*stop, *self.hints, ("Ctrl+P", "palette")]

    def shut_down(self) -> None:
        """The app ends: stop, and give the thread a moment to let go of its files."""
        self._patience.cancel.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    # The work itself, in its own thread

    def _list(self) -> None:
        rows = catalogue.rows()
        used = remove.used_bytes(installed.all_pairs())
        self._settle(lambda: self.state.list(rows, used))

    def _list_safely(self) -> None:
        try:
            self._list()
        except Exception as error:
            text, _ = in_words(error)
            self._settle(lambda: self._say(f"✗ {text}"))

    def _look(self, wanted: PullRequest) -> None:
        plan = pull.plan(wanted.pair, wanted.draft, wanted.name, self._patience)
        pull.require_room(plan)
        self._settle(lambda: self._looked(plan, wanted))

    def _note(self, text: str) -> None:
        self.state.note = text  # one word, read by the screen now and then

    def _fetch(self, plan: PullPlan) -> None:
        record = pull.execute(plan, self._patience, self.state.move)
        self._settle(lambda: self._ended(f"{record.name} is installed", "Enter uses it."))
        self._list()

    def _remove(self, name: str) -> None:
        removal = remove.remove(name, self._patience)
        kept = f"{len(removal.kept)} files are kept: others use them" if removal.kept else ""
        text = f"{name} is removed, {formats.size(removal.freed)} freed"
        self._settle(lambda: self._ended(text, kept))
        self._list()

    # Around it

    def _use(self, name: str) -> None:
        self.switch(name)
        if self.engine.info is None and self._screen is not None:
            self._screen.dismiss()
        else:
            self._say(self.gate.reason)

    def _begin(
        self, work: Work, name: str, job: Callable[[], None], *, typed: bool = False
    ) -> bool:
        """Start `job` unless something else is being done; whether it was started."""
        state = self.state
        if state.work is not Work.NONE:
            self._say(f"{state.name} is being {state.work.value}: C cancels that")
            return False
        self._patience = Patience(note=self._note)
        state.work, state.name, state.note, state.typed = work, name, "", typed
        state.say(())
        # A daemon: what cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._guarded, args=(job,), name="pairs", daemon=True
        )
        self._thread.start()
        self.redraw()
        return True

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Cancelled:
            self._settle(self._cancelled)
        except Exception as error:
            text, remedy = in_words(error)
            self._settle(lambda: self._ended(text, remedy, failed=True))

    def _settle(self, settle: Callable[[], None]) -> None:
        """Bring the state up to date, in the screen's thread."""
        self.soon(settle)
        self.soon(self.redraw)

    def _looked(self, plan: PullPlan, wanted: PullRequest) -> None:
        """Ask whether to go on; what was typed gets a line of its own if it is no known pair."""
        state = self.state
        typed, known = state.typed, state.row(plan.name)
        state.work, state.typed, state.name = Work.NONE, False, plan.name
        if known is not None and known.state == "installed" and not plan.report.missing:
            state.say((f"{plan.name} is installed already",), plan.name)
        else:
            state.plan = plan
        if known is None:
            state.guest = catalogue.examined(plan.report)
        self._asked[plan.name] = wanted
        if typed and self._screen is not None:
            self._screen.select(plan.name)

    def _cancelled(self) -> None:
        kept = self.state.work is Work.PULLING
        remedy = "What came so far is kept; pulling again continues there." if kept else ""
        self._ended("cancelled", remedy)

    def _ended(self, text: str, remedy: str = "", *, failed: bool = False) -> None:
        """Say how the work ended, where the user is now."""
        state = self.state
        if self._screen is None and state.work in (Work.PULLING, Work.REMOVING):
            self.tell(f"{state.name}: {text}", remedy, error=failed)
        state.end((f"{'✗ ' if failed else ''}{text}", remedy))
        if state.typed:
            if failed and self._screen is not None:
                self._screen.ask_again(state.name)
            state.typed, state.name = False, ""

    def _say(self, text: str, about: str = "") -> None:
        self.state.say((text,), about)
        self.redraw()
