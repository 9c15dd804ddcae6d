"""Lists, checks, pulls and removes pairs, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from localspec import formats
from localspec.errors import (
    Cancelled,
    DownloadCorrupt,
    HubOffline,
    HubUnavailable,
    LocalspecError,
    NotEnoughDisk,
    UsageError,
    in_words,
)
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import head_promise, ranking
from localspec.loading.measurements.ranking import RankedPair
from localspec.pairs.disk import installed, other_programs, remove
from localspec.pairs.hub import pair_pull
from localspec.pairs.hub.pair_pull import PullPlan, PullProgress, PullRequest
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import describe
from localspec.pairs.report.examine import examine
from localspec.process.engine_client import EngineClient
from localspec.safe_text import one_line
from localspec.ui.conversation.engine_state import ANSWER, LOADABLE, EnginePhase, EngineState
from localspec.ui.pairs import pair_messages
from localspec.ui.screens.pair_lines import PairsState, PairWork

_STOP_WITHIN_S = 2.0
_NEWS_S = 0.5
_PASSING = (DownloadCorrupt, HubOffline, HubUnavailable, NotEnoughDisk)


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
class PairManager:
    """Keeps the state of the pairs screen, open or not; lives in the screen's thread.

    Attributes:
        switch: loads another pair.
        tell: says in the conversation how a pull ended while the screen is closed.
        hints: keys of the app that work on the screen as well, and what they do.
        soon: calls a function in the screen's thread.
        news: called when `doing` changes.
        show: makes the screen.
        state: what the screen shows.
        offered: what `get` fetches by default.
    """

    engine_state: EngineState
    engine: EngineClient
    switch: Callable[[str], None]
    tell: Callable[..., None]
    hints: Sequence[tuple[str, str]]
    soon: Callable[[Callable[[], None]], None]
    news: Callable[[], None]
    show: Callable[[PairManager], PairsView]
    state: PairsState = field(default_factory=PairsState)
    offered: PullRequest | None = None
    _retries: RetryPolicy = field(default_factory=RetryPolicy)
    _thread: threading.Thread | None = None
    _screen: PairsView | None = None
    _asked: dict[str, PullRequest] = field(default_factory=dict)  # by the pair's name to be
    _getting: PullRequest | None = None  # the pair to change to once it is fetched
    _remembered: PullRequest | None = None  # the pair that the next start offers
    _arrived: str = ""  # its name, once it is fetched
    _told: float = 0.0  # when `news` was called last
    _phase: EnginePhase = EnginePhase.LOADING  # the engine's latest phase
    _asks: bool = False  # whether a question was asked yet
    _reminds: bool = False  # whether the proposal still has to follow the first answer
    _awaits_calm: bool = False  # whether the machine was too busy to propose anything

    # For this machine

    def propose(self) -> None:
        """Propose pairs that suit this machine better than the starter, or an unfinished fetch."""
        wanted = pair_pull.recall_wanted()
        if self._getting is not None or self.offered is not None:
            pass  # the user was faster, or has asked for another
        elif wanted is not None and self._answers(wanted):
            pair_pull.remember_wanted(None)  # it was fetched and opened by other means
        elif wanted is not None:
            self.offered = wanted
            self.tell(*pair_messages.interrupted(wanted))
        elif self._in_starter:
            self._reminds = True
            self._list_and(self._propose)

    @property
    def _in_starter(self) -> bool:
        return self.engine.info is not None and self.engine.info.pair_name == STARTER

    def _propose(self) -> None:
        """Propose pairs, or say that a calm measurement is missing."""
        speed, best = self.state.speed, ranking.proposed(self.state.ranked)
        if speed is None:
            return
        waited, self._awaits_calm = self._awaits_calm, speed.disturbed
        if speed.advice is not None and not waited:
            self.tell(f"first of all: {speed.advice[0]}", speed.advice[1])
        if self._awaits_calm and not waited:
            self.tell(pair_messages.BUSY, unasked=not self._asks)
        if not best:
            return
        self.offered = PullRequest(best[0].row.name)
        if self.engine_state.phase in ANSWER:
            pass  # a user who asks at once gets the first of them after the answer
        elif self._asks:
            self._answered()
        else:
            said = pair_messages.proposal(best, speed, self._what_get_does())
            self.tell(said, "/get NAME takes another, F12 shows all.", unasked=True)

    def _what_get_does(self) -> str:
        return pair_messages.what_get_does(self.offered, self._known(self.offered))

    def offer(self, asked: LoadRequest, missing: str) -> None:
        """Offer to fetch a requested pair that is not on this disk.

        Args:
            asked: the load request; a draft without a pair is for the pair used last.
            missing: which part is missing, the target or the draft.
        """
        last = installed.recall_last()
        pair = asked.pair or (last.pair if last is not None else STARTER)
        self.offered = PullRequest(installed.lasting(pair), asked.draft)

        def say() -> None:
            known = self._known(self.offered)
            more = f": {known.offer}" if known is not None else ""
            self.tell(f"{missing} yet{more}", self._what_get_does())

        self._list_and(say)

    def _known(self, wanted: PullRequest | None) -> RankedPair | None:
        """What to expect of the wanted pair, if it is a listed one."""
        name = str(wanted or "").lower()  # a pair with another draft is not the listed one
        return next((one for one in self.state.ranked if one.row.name == name), None)

    def _answered(self) -> None:
        """Show the proposal after the starter's first answer, or once the machine was calm."""
        if self._awaits_calm and self._in_starter and self.offered is None:
            self._list_and(self._propose)
        known = self._known(self.offered)
        if self._reminds and self._in_starter and known is not None and self._getting is None:
            self._reminds = False
            self.tell(f"for this machine: {known.row.name}, {known.offer}", self._what_get_does())

    def get(self, text: str = "") -> None:
        """Fetch a pair, by default the offered one, and change to it when it is here.

        The fetch goes on with the screen closed, and is offered again after a restart.

        Raises:
            UsageError: nothing is offered, or the text names nothing.
        """
        wanted = pair_pull.parse_request(text) if text else self.offered
        if wanted is None:
            raise UsageError("nothing is proposed", "Say /get NAME; F12 shows the pairs.")
        if self._answers(wanted):
            pair_pull.forget_wanted(wanted)
            self.engine_state.say(f"{one_line(str(wanted), 40)} is in use")
        elif (known := self._known(wanted)) is not None and known.row.state == "installed":
            self._arrived = known.row.name  # it was checked when it came: no network is needed
            self.phase_changed()
            self.news()
        elif self._begin(PairWork.CHECKING, wanted.pair, lambda: self._look(wanted)):
            self._getting = wanted

    def _answers(self, wanted: PullRequest) -> bool:
        info = self.engine.info
        return info is not None and wanted.means(info.pair_name, info.pair_reference)

    def doing(self) -> str:
        """The work that goes on, for the status line; empty if there is none."""
        waits = f"{self._arrived} waits for the answer's end" if self._arrived else ""
        return self.state.doing() or waits

    def phase_changed(self) -> None:
        """Take the engine's new phase; waiting work follows once the change is settled."""
        before, self._phase = self._phase, self.engine_state.phase
        self.redraw()
        self._asks |= self._phase in ANSWER
        if self._phase in (EnginePhase.READY, EnginePhase.UNUSABLE):
            if before in ANSWER:
                self.soon(self._answered)
            elif before is EnginePhase.LOADING:
                self.soon(self._loaded)
        if self._arrived:
            self.soon(self._change)

    def _change(self) -> None:
        if self._arrived and self.engine_state.phase in LOADABLE:
            name, self._arrived = self._arrived, ""
            self._use(name)

    def _loaded(self) -> None:
        """Forget the wanted pair once it answers or cannot be loaded."""
        self.refresh_in_use()
        gone = self.state.work is PairWork.NONE and not self._arrived
        offered = self.offered is not None and self._answers(self.offered)
        if gone and (wanted := self._getting) is not None and self._answers(wanted):
            self._list_and(
                lambda: self.tell(pair_messages.answers_now(wanted, self._known(wanted)))
            )
        if (self._getting is not None and gone) or offered:
            self._forget()

    def _forget(self) -> None:
        self._getting, self.offered, self._arrived = None, None, ""
        pair_pull.remember_wanted(None)

    # Called for the user

    def screen(self) -> PairsView | None:
        """Make the screen, which closes itself; None while it is open."""
        if self._screen is not None:
            return None
        self._screen = self.show(self)
        self.refresh()
        return self._screen

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
            self._begin(PairWork.CHECKING, row.name, lambda: self._look(wanted))

    def ask(self, text: str) -> bool:
        """Check the typed reference, as `localspec pull` would; return whether that is possible."""
        self.state.doomed = ""
        try:
            wanted = pair_pull.parse_request(text)
        except UsageError as error:
            self.state.say((f"✗ {error.message}", error.remedy))
            self.redraw()
            return False
        return self._begin(PairWork.CHECKING, text, lambda: self._look(wanted), typed=True)

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
            self._begin(PairWork.REMOVING, row.name, lambda: self._remove(row.name))
        self.redraw()

    def cancel(self) -> None:
        """Stop the work; the downloaded part of a file stays."""
        if self.state.work is not PairWork.NONE:
            self._retries.cancel.set()
        if self._getting is not None:
            pair_pull.remember_wanted(None)

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
        self._list_and(lambda: None)

    def refresh_in_use(self) -> None:
        """Take over the pair that answers now."""
        session = self.engine.info
        self.state.in_use = session.pair_name if session is not None else ""

    def _list_and(self, then: Callable[[], None]) -> None:
        """List the pairs, then call `then` with them."""

        def work() -> None:
            try:
                self._list()
            except Exception as error:
                text, _ = in_words(error)
                self._settle(lambda: self._say(f"✗ {text}"))
            else:
                self._settle(then)

        threading.Thread(target=work, name="pairs list", daemon=True).start()

    def redraw(self) -> None:
        """Show the state as it is now, if the screen is open."""
        if self._screen is not None:
            self._screen.redraw()

    def app_hints(self) -> list[tuple[str, str]]:
        """Keys of the app that work on the screen as well, and what they do."""
        stop = (
            [("Ctrl+C", "stop the answer")]
            if self.engine_state.phase is EnginePhase.ANSWERING
            else []
        )
        return [*stop, *self.hints, ("Ctrl+P", "palette")]

    def shut_down(self) -> None:
        """Stop at the end of the app, and give the thread a moment to close its files."""
        self._retries.cancel.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    # The work itself, in its own thread

    def _list(self) -> None:
        speed = ranking.recall()
        rows, used = catalogue.rows(), remove.used_bytes()
        ours = ranking.ranked(rows, speed)
        self._settle(lambda: self.state.list(ours, speed, used))
        if self._screen is not None and self.engine.wanted.scan:  # it may take a second
            all_of_them = ranking.ranked(
                [*rows, *other_programs.rows(other_programs.scan().models)], speed
            )
            self._settle(lambda: self.state.list(all_of_them, speed, used))

    def _look(self, wanted: PullRequest) -> None:
        scan = self.engine.wanted.scan
        plan = pair_pull.plan(wanted.pair, wanted.draft, wanted.name, self._retries, scan=scan)
        pair_pull.require_room(plan)
        self._settle(lambda: self._looked(plan, wanted))

    def _note(self, text: str) -> None:
        self.state.note = text  # one word, read by the screen now and then

    def _pull(self, plan: PullPlan) -> None:
        self.state.plan = None
        self._begin(PairWork.PULLING, plan.name, lambda: self._fetch(plan))

    def _fetch(self, plan: PullPlan) -> None:
        record = pair_pull.execute(plan, self._retries, self._move)
        self._settle(lambda: self._fetched(record.name))
        self._list()

    def _move(self, progress: PullProgress) -> None:
        self.state.progress = progress
        if progress.done and self._getting is not None and self._remembered != self._getting:
            self._remembered = self._getting
            pair_pull.remember_wanted(
                self._getting
            )  # a part has come: a later start goes on with it
        if (now := time.monotonic()) - self._told > _NEWS_S:
            self._told = now
            self.soon(self.news)

    def _fetched(self, name: str) -> None:
        getting = self._getting is not None
        self._ended(f"{name} is installed", "" if getting else "Enter uses it.")
        if getting:
            self._arrived = name
            self.phase_changed()

    def _remove(self, name: str) -> None:
        removal = remove.remove(name, self._retries)
        kept = f"{len(removal.kept)} files are kept: others use them" if removal.kept else ""
        text = f"{name} is removed, {formats.size(removal.freed)} freed"
        self._settle(lambda: self._ended(text, kept))
        self._list()

    def drafts(self) -> None:
        """Say what drafts for the target in use, and what else could."""
        session, scan = self.engine.info, self.engine.wanted.scan
        if session is None:
            raise UsageError("no model is loaded", "Load one first: /pairs NAME.")
        pair, draft = session.pair_reference

        def look() -> None:
            asked = draft if draft == "none" else None
            report = examine(pair, asked, self._retries, scan=scan, further=True)
            lines = describe.draft_lines(report, session.draft_name, lookup=session.lookup)
            if session.draft_name is None:
                architecture = report.target.header.architecture
                lines += filter(None, [head_promise.line(pair, session.pair_name, architecture)])
            self._settle(lambda: self._told_drafts(lines))

        self._begin(PairWork.CHECKING, session.pair_name, look)

    def beside_target(self) -> Sequence[Path]:
        """The other models in the folder of the target in use."""
        session = self.engine.info
        if session is None:
            return ()
        with suppress(LocalspecError):
            return other_programs.beside(resolver.resolve(session.pair_reference[0], "none").target)
        return ()

    def drafting(self) -> None:
        """Say what drafts after a change of the draft."""
        self.tell(pair_messages.drafting(self.engine.info))

    def _told_drafts(self, lines: Sequence[str]) -> None:
        self.state.end(())
        words = "a file, a reference, auto (all there is), lookup, mtp or none"
        self.tell("\n".join(lines), f"/draft NAME takes one of these, {words}.")

    # Around it

    def _use(self, name: str) -> None:
        self.switch(name)
        if self._screen is None:
            return  # if it was refused, the status line has said why
        if self.engine.info is None:
            self._screen.dismiss()
        else:
            self._say(self.engine_state.phase.reason)

    def _begin(
        self, work: PairWork, name: str, job: Callable[[], None], *, typed: bool = False
    ) -> bool:
        """Start `job` unless other work goes on; return whether it was started."""
        state = self.state
        if state.work is not PairWork.NONE:
            busy = f"{one_line(state.name, 40)} is being {state.work.value}"
            if self._screen is None:
                self.tell(busy, "F12, then C, cancels that.")
            else:
                self._say(f"{busy}: C cancels that")
            return False
        self._retries = RetryPolicy(note=self._note)
        state.work, state.name, state.note, state.typed = work, name, "", typed
        state.say(())
        # A daemon: work that cannot be interrupted must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._guarded, args=(job,), name="pairs", daemon=True
        )
        self._thread.start()
        self.redraw()
        self.news()
        return True

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Cancelled:
            self._settle(self._cancelled)
        except Exception as error:
            text, remedy = in_words(error)
            passes = isinstance(error, _PASSING) or not isinstance(error, LocalspecError)
            self._settle(lambda: self._ended(text, remedy, failed=True, for_good=not passes))

    def _settle(self, settle: Callable[[], None]) -> None:
        """Bring the state up to date, in the screen's thread."""
        self.soon(settle)
        self.soon(self.redraw)
        self.soon(self.news)

    def _looked(self, plan: PullPlan, wanted: PullRequest) -> None:
        """Ask whether to go on; a typed reference to an unknown pair gets a line of its own."""
        state = self.state
        theirs = state.row(wanted.pair)  # another program's model, whose name no pair can have
        name = wanted.pair if theirs is not None and theirs.state == "found" else plan.name
        typed, known = state.typed, state.row(name)
        state.work, state.typed, state.name = PairWork.NONE, False, name
        if wanted is self._getting:
            self._go_on(plan)
            return
        if known is not None and known.state == "installed" and not plan.report.missing:
            state.say((f"{plan.name} is installed already",), plan.name)
        else:
            state.plan = plan
        if known is None:
            state.guest = plan.report.listed
        self._asked[plan.name] = wanted
        if typed and self._screen is not None:
            self._screen.select(plan.name)

    def _go_on(self, plan: PullPlan) -> None:
        """Fetch the checked pair to change to, if it fits."""
        if plan.report.outlook.plan is None:
            self._forget()
            self._ended(plan.report.outlook.refusal, failed=True)
        else:
            self._pull(plan)

    def _cancelled(self) -> None:
        kept = self.state.work is PairWork.PULLING
        remedy = "What came so far is kept; pulling again continues there." if kept else ""
        self._ended("cancelled", remedy)
        self._getting = None

    def _ended(
        self, text: str, remedy: str = "", *, failed: bool = False, for_good: bool = False
    ) -> None:
        """Say how the work ended where the user is now; forget a pair that failed for good."""
        state = self.state
        told = failed or state.work is not PairWork.CHECKING or self._getting is not None
        if for_good and self._getting is not None:
            pair_pull.remember_wanted(None)
        self._getting = self._getting if state.work is PairWork.PULLING and not failed else None
        if self._screen is None and told:
            self.tell(f"{state.name}: {text}", remedy, error=failed)
        state.end((f"{'✗ ' if failed else ''}{text}", remedy))
        if state.typed:
            if failed and self._screen is not None:
                self._screen.ask_again(state.name)
            state.typed, state.name = False, ""

    def _say(self, text: str, about: str = "") -> None:
        self.state.say((text,), about)
        self.redraw()
