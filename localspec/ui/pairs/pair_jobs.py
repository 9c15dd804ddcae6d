"""Lists, checks, pulls and removes pairs for their screen, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from localspec import formats
from localspec.drafter_names import NONE
from localspec.errors import Cancelled, UsageError, in_words
from localspec.loading.measurements import head_promise, ranking
from localspec.pairs.disk import other_programs, remove
from localspec.pairs.hub import pair_pull
from localspec.pairs.hub.pair_pull import PullPlan, PullProgress, PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.report import describe, nearby_heads
from localspec.pairs.report.examine import examine
from localspec.safe_text import one_line, unbroken
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.pairs import pair_messages
from localspec.ui.pairs.pair_events import PairWorkChanged
from localspec.ui.pairs.pair_loader import PairLoader
from localspec.ui.screens.pair_lines import PairsState, PairWork

_STOP_WITHIN_S = 2.0
_NEWS_S = 0.5


class PairsView(Protocol):
    """The screen of pairs, as the manager needs it."""

    def redraw(self) -> None:
        """Show the state as it is now."""

    def select(self, name: str) -> None:
        """Choose the line of a pair."""

    def ask_again(self, text: str) -> None:
        """Let the user change the typed text."""

    def dismiss(self) -> object:
        """Close."""


@dataclass(eq=False, repr=False)
class PairJobs:
    """Works on pairs, one after the other, whether their screen is open or not.

    Lives in the screen's thread. How a pull ended is said in the conversation while the screen of
    pairs is closed.

    Attributes:
        hints: keys of the app that work on the screen as well, and what they do.
    """

    turns: TurnController
    pair_loader: PairLoader
    hints: Sequence[tuple[str, str]]
    state: PairsState = field(default_factory=PairsState)
    _retries: RetryPolicy = field(default_factory=RetryPolicy)
    _thread: threading.Thread | None = None
    _listing: threading.Lock = field(default_factory=threading.Lock)
    _screen: PairsView | None = None
    _asked: dict[str, PullRequest] = field(default_factory=dict)  # by the pair's name to be
    _told: float = 0.0  # when a pull's progress was told last

    # Called for the user

    @property
    def is_open(self) -> bool:
        """Whether the screen is open."""
        return self._screen is not None

    def opened(self, screen: PairsView) -> None:
        """Note that the screen has been opened; it closes itself."""
        self._screen = screen
        self.refresh()

    def names(self) -> list[str]:
        """The pairs that were listed since the start."""
        return [row.name for row in self.state.shown()]

    def closed(self) -> None:
        """Note that the screen has been closed; a pull goes on."""
        self._screen = None
        self.step_back()

    def act(self, row: ListedPair) -> None:
        """Do what Enter does on `row`: use it, check it, or pull what was checked."""
        state = self.state
        state.doomed = ""
        if row.name == state.in_use:
            self._say(f"{row.name} is in use", row.name)
        elif (plan := state.checked(row.name)) is not None:
            if row.state == "found":
                self._use(row.name)
                return
            self._pull(plan)
        elif row.state == "installed":
            self._use(row.name)
        else:
            wanted = self._asked.get(row.name) or PullRequest(row.name)
            self._begin(PairWork.CHECKING, row.name, self._check, wanted)

    def ask(self, text: str) -> bool:
        """Check the typed reference, as `localspec pull` would; return whether that is possible."""
        self.state.doomed = ""
        try:
            wanted = pair_pull.parse_request(text)
        except UsageError as error:
            self.state.say((f"✗ {error.message}", error.remedy))
            self.redraw()
            return False
        return self._begin(PairWork.CHECKING, text, self._check, wanted, typed=True)

    def remove(self, row: ListedPair) -> None:
        """Remove `row` when asked for the second time."""
        state = self.state
        if row.name == state.in_use:
            self._say(f"{row.name} is in use: change to another pair first", row.name)
        elif row.state in ("available", "found"):
            self._say(f"{row.name} is not installed", row.name)
        elif state.doomed != row.name:
            state.doomed = row.name
            state.say(())
        else:
            state.doomed = ""
            self._begin(PairWork.REMOVING, row.name, self._remove, row.name)
        self.redraw()

    def cancel(self) -> None:
        """Stop the work; the downloaded part of a file stays."""
        if self.state.work is not PairWork.NONE:
            self._retries.cancel.set()

    def step_back(self) -> bool:
        """Leave a question unanswered; return whether there was one."""
        asked = self.state.doomed or self.state.plan is not None or self.state.guest is not None
        if self.state.work is not PairWork.PULLING:
            self.state.plan = self.state.guest = None
        self.state.doomed = ""
        self.redraw()
        return bool(asked) and self.state.work is not PairWork.PULLING

    def refresh(self) -> None:
        """Look at the disk and at the catalogue again."""
        self.refresh_in_use()
        self._list_and(self.redraw)

    def refresh_in_use(self) -> None:
        """Take over the pair that answers now."""
        session = self.turns.engine.info
        self.state.in_use = session.pair_name if session is not None else ""

    def _list_and(self, then: Callable[..., None], *arguments: object) -> None:
        """List the pairs, then call `then`."""

        def work() -> None:
            try:
                self._list()
            except Exception as error:
                text, _ = in_words(error)
                self._settle(self._say, f"✗ {text}")
            else:
                self._settle(then, *arguments)

        threading.Thread(target=work, name="pairs list", daemon=True).start()

    def redraw(self) -> None:
        """Show the state as it is now, if the screen is open."""
        if self._screen is not None:
            self._screen.redraw()

    def app_hints(self) -> list[tuple[str, str]]:
        """Keys of the app that work on the screen as well, and what they do."""
        answering = self.turns.phase is EnginePhase.ANSWERING
        stop = [("Ctrl+C", "stop the answer")] if answering else []
        return [*stop, *self.hints, ("Ctrl+P", "palette")]

    def shut_down(self) -> None:
        """Stop at the end of the app, and give the thread a moment to close its files."""
        self._retries.cancel.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    # The work itself, in its own thread

    def _list(self) -> None:
        """List the pairs; of two lists at once, the one that was read last is shown last."""
        with self._listing:
            self._read_and_show()

    def _read_and_show(self) -> None:
        speed = ranking.recall()
        rows, used = catalogue.rows(), remove.used_bytes()
        ours, heads = ranking.ranked(rows, speed), nearby_heads.of_installed()
        self._settle(self.state.list, ours, speed, used, heads)
        if self._screen is not None and self.turns.engine.wanted.scan:  # it may take a second
            all_of_them = ranking.ranked(
                [*rows, *other_programs.rows(other_programs.scan().models)], speed
            )
            self._settle(self.state.list, all_of_them, speed, used, heads)

    def _check(self, wanted: PullRequest) -> None:
        scan = self.turns.engine.wanted.scan
        plan = pair_pull.plan(
            wanted,
            self._retries,
            scan=scan,
            free=ranking.free_as_measured,
            speed_of=ranking.drafted_speed,
        )
        pair_pull.require_room(plan)
        self._settle(self._take_report, plan, wanted)

    def _note(self, text: str) -> None:
        self.state.note = text  # one object, read by the screen now and then

    def _pull(self, plan: PullPlan) -> None:
        self.state.plan = None
        self._begin(PairWork.PULLING, plan.name, self._fetch, plan)

    def _fetch(self, plan: PullPlan) -> None:
        record = pair_pull.execute(plan, self._retries, self._move)
        self._settle(self._fetched, record.name)
        self._list_and(self.redraw)

    def _move(self, progress: PullProgress) -> None:
        self.state.progress = progress
        if (now := time.monotonic()) - self._told > _NEWS_S:
            self._told = now
            self._news()

    def _fetched(self, name: str) -> None:
        self._ended(f"{name} is installed", "Enter uses it.")

    def _remove(self, name: str) -> None:
        removal = remove.remove(name, self._retries)
        kept = "\n".join(f"kept {unbroken(line)}" for line in removal.kept)
        text = f"{name} is removed, {formats.size(removal.freed)} freed"
        self._settle(self._ended, text, kept)
        self._list_and(self.redraw)

    def drafts(self) -> None:
        """Say what drafts for the target in use, and what else could."""
        session, scan = self.turns.engine.info, self.turns.engine.wanted.scan
        if session is None:
            raise UsageError("no model is loaded", "Load one first: /pairs NAME.")
        pair, draft = session.pair_reference

        def examine_pair() -> None:
            asked = draft if draft == NONE else None
            report = examine(pair, asked, self._retries, scan=scan, further=True)
            lines = describe.draft_lines(report, session.draft_name, lookup=session.lookup)
            lines[1:1] = filter(None, [session.draft_state])
            if session.draft_name is None:
                architecture = report.target.header.architecture
                lines += filter(None, [head_promise.line(pair, session.pair_name, architecture)])
            self._settle(self._told_drafts, lines)

        self._begin(PairWork.CHECKING, session.pair_name, examine_pair)

    def next_to_target(self) -> Sequence[Path]:
        """The other models in the folder of the target in use."""
        session = self.turns.engine.info
        return () if session is None else other_programs.next_to(Path(session.target_file))

    def drafting(self) -> None:
        """Say what drafts after a change of the draft."""
        self.turns.transcript.say(pair_messages.drafting(self.turns.engine.info))

    def _told_drafts(self, lines: Sequence[str]) -> None:
        self.state.end(())
        words = "a file, a reference, auto (all there is), lookup, a kind of head (mtp) or none"
        self.turns.transcript.say(
            "\n".join(lines), f"/draft NAME takes a draft named here, {words}."
        )

    # Around it

    def _use(self, name: str) -> None:
        self.pair_loader.switch(name)
        if self._screen is None:
            return  # if it was refused, the status line has said why
        if self.turns.engine.info is None:
            self._screen.dismiss()
        else:
            self._say(self.turns.phase.reason.replace("Esc", "Ctrl+C"))  # Esc closes the list

    def _begin(
        self,
        work: PairWork,
        name: str,
        job: Callable[..., None],
        *arguments: object,
        typed: bool = False,
    ) -> bool:
        """Start `job` unless other work goes on; return whether it was started."""
        state = self.state
        if state.work is not PairWork.NONE:
            busy = f"{one_line(state.name, 40)} is being {state.work.value}"
            if self._screen is None:
                self.turns.transcript.say(busy, "F12, then C, cancels that.")
            else:
                self._say(f"{busy}: C cancels that")
            return False
        self._retries = RetryPolicy(note=self._note)
        state.work, state.name, state.note, state.typed = work, name, "", typed
        state.say(())
        # A daemon: work that cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._guarded, args=(job, *arguments), name="pairs", daemon=True
        )
        self._thread.start()
        self.redraw()
        self._news()
        return True

    def _guarded(self, job: Callable[..., None], *arguments: object) -> None:
        try:
            job(*arguments)
        except Exception as error:
            self._settle(self._failed, error)

    def _settle(self, settle: Callable[..., None], *arguments: object) -> None:
        """Bring the state up to date, in the screen's thread."""
        self._soon(settle, *arguments)
        self._soon(self.redraw)
        self._news()

    def _soon(self, call: Callable[..., None], *arguments: object) -> None:
        """Call a function in the screen's thread."""
        with suppress(RuntimeError):  # the app has just ended: no screen is left
            self.turns.transcript.app.call_later(call, *arguments)

    def _news(self) -> None:
        with suppress(RuntimeError):
            self.turns.transcript.app.post_message(PairWorkChanged())

    def _take_report(self, plan: PullPlan, wanted: PullRequest) -> None:
        """Take the report about the checked pair."""
        if self._retries.cancel.is_set():  # all of it was read already
            self._failed(Cancelled())
            return
        state = self.state
        theirs = state.row(wanted.pair)  # another program's model, whose name no pair can have
        found = theirs is not None and theirs.state == "found"
        state.work, state.name = PairWork.NONE, wanted.pair if found else plan.name
        self._checked(plan, wanted)

    def _checked(self, plan: PullPlan, wanted: PullRequest) -> None:
        """Ask whether to go on; a typed reference to an unknown pair gets a line of its own."""
        state = self.state
        typed, state.typed = state.typed, False
        known = state.row(state.name)
        if known is not None and known.state == "installed" and not plan.report.missing:
            state.say((f"{plan.name} is installed already",), plan.name)
        else:
            state.plan = plan
        if known is None:
            state.guest = plan.report.listed
        self._asked[plan.name] = wanted
        if typed and self._screen is not None:
            self._screen.select(plan.name)

    def _failed(self, error: Exception) -> None:
        """End work that was cancelled, or that failed with `error`."""
        if not isinstance(error, Cancelled):
            self._ended(*in_words(error), failed=True)
        elif self.state.work is PairWork.PULLING:
            self._ended("cancelled", "What came so far is kept; pulling again continues there.")
        else:
            self._ended("cancelled")

    def _ended(self, text: str, remedy: str = "", *, failed: bool = False) -> None:
        """Say how the work ended where the user is now."""
        state = self.state
        if self._screen is None:
            self.turns.transcript.tell(f"{state.name}: {text}", remedy, error=failed)
        state.end((f"{'✗ ' if failed else ''}{text}", *remedy.splitlines()))
        if state.typed:
            if failed and self._screen is not None:
                self._screen.ask_again(state.name)
            state.typed, state.name = False, ""

    def _say(self, text: str, about: str = "") -> None:
        self.state.say((text,), about)
        self.redraw()
