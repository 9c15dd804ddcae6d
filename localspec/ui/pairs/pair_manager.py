"""Proposes pairs that suit this machine, and fetches one to change to it."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import (
    DownloadCorrupt,
    HubOffline,
    HubUnavailable,
    LocalspecError,
    NotEnoughDisk,
    UsageError,
)
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import RankedPair
from localspec.pairs.disk import installed
from localspec.pairs.hub import pair_pull
from localspec.pairs.hub.pair_pull import PullPlan, PullProgress, PullRequest
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import describe
from localspec.safe_text import one_line
from localspec.ui.conversation.engine_phase import ANSWER, LOADABLE, EnginePhase
from localspec.ui.pairs import pair_messages
from localspec.ui.pairs.pair_jobs import PairJobs
from localspec.ui.screens.pair_lines import PairWork

_PASSING = (DownloadCorrupt, HubOffline, HubUnavailable, NotEnoughDisk)


@dataclass(eq=False, repr=False)
class PairManager(PairJobs):
    """Offers pairs, and has the offered one checked, fetched and loaded when the user says so.

    Attributes:
        offered: what `get` fetches by default.
    """

    offered: PullRequest | None = None
    _getting: PullRequest | None = None  # the pair to change to once it is fetched
    _fetching: str = ""  # its name, once it was checked
    _remembered: PullRequest | None = None  # the pair that the next start offers
    _arrived: str = ""  # its name, once it is fetched
    _phase: EnginePhase = EnginePhase.LOADING  # the engine's latest phase
    _asks: bool = False  # whether a question was asked yet
    _reminds: bool = False  # whether the proposal still has to be shown
    _awaits_calm: bool = False  # whether the machine was too busy to propose anything

    def propose(self) -> None:
        """Propose pairs that suit this machine better than the starter, or an unfinished fetch."""
        wanted = pair_pull.recall_wanted()
        if self._getting is not None or self.offered is not None:
            pass  # the user was faster, or has asked for another
        elif wanted is not None and self._answers(wanted):
            pair_pull.forget_wanted(wanted)  # it was fetched and opened by other means
        elif wanted is not None:
            self.offered = wanted
            self.turns.transcript.tell(*pair_messages.interrupted(wanted))
        elif self._in_starter:
            self._reminds = True
            self._list_and(self._propose)

    @property
    def _in_starter(self) -> bool:
        return self.turns.engine.info is not None and self.turns.engine.info.pair_name == STARTER

    def _propose(self) -> None:
        """Propose pairs, or say that a calm measurement is missing."""
        speed, best = self.state.speed, ranking.proposed(self.state.ranked)
        if speed is None:
            return
        waited, self._awaits_calm = self._awaits_calm, speed.disturbed
        if speed.advice is not None and not waited:
            self.turns.transcript.tell(f"first of all: {speed.advice[0]}", speed.advice[1])
        if self._awaits_calm and not waited:
            self.turns.transcript.say(pair_messages.BUSY, unasked=True)
        if not best:
            return
        self.offered = PullRequest(best[0].row.name)
        if self.turns.phase in ANSWER:
            pass  # a user who asks at once gets the first of them after the answer
        elif self._asks:
            self._answered()
        else:
            self._reminds = False
            said = pair_messages.proposal(best, speed, self._what_get_does())
            self.turns.transcript.say(said, "/get NAME takes another, F12 shows all.", unasked=True)

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
        self._list_and(self._say_missing, missing)

    def _say_missing(self, missing: str) -> None:
        known = self._known(self.offered)
        more = f": {known.offer}" if known is not None else ""
        self.turns.transcript.say(f"{missing} yet{more}", self._what_get_does())

    def _known(self, wanted: PullRequest | None) -> RankedPair | None:
        """What to expect of the wanted pair, if it is a listed one."""
        name = str(wanted or "").lower()  # a pair with another draft is not the listed one
        return next((one for one in self.state.ranked if one.row.name == name), None)

    def _answered(self) -> None:
        """Show a proposal that could not be shown before the starter's first answer."""
        if self._awaits_calm and self._in_starter and self.offered is None:
            self._list_and(self._propose)
        known = self._known(self.offered)
        if self._reminds and self._in_starter and known is not None and self._getting is None:
            self._reminds = False
            said = f"for this machine: {known.row.name}, {known.offer}"
            self.turns.transcript.tell(said, self._what_get_does())

    def get(self, text: str = "") -> None:
        """Fetch a pair, by default the offered one, and change to it when it is here.

        The fetch goes on with the screen closed, and is offered again after a restart.

        Raises:
            UsageError: nothing is offered, or the text names nothing.
        """
        wanted = pair_pull.parse_request(text) if text else self.offered
        if wanted is None:
            why = pair_messages.BUSY if self._awaits_calm else "nothing is proposed"
            raise UsageError(why, "Say /get NAME; F12 shows the pairs.")
        if self._answers(wanted):
            pair_pull.forget_wanted(wanted)
            self.turns.status.flash(f"{one_line(str(wanted), 40)} is in use")
        elif (known := self._known(wanted)) is not None and known.row.state == "installed":
            self._arrived = known.row.name  # it was checked when it came: no network is needed
            self.phase_changed()
            self._news()
        elif self._begin(PairWork.CHECKING, wanted.pair, self._check, wanted):
            self._getting = wanted

    def _answers(self, wanted: PullRequest) -> bool:
        info = self.turns.engine.info
        return info is not None and wanted.means(info.pair_name, info.pair_reference)

    def doing(self) -> str:
        """The work that goes on, for the status line; empty if there is none."""
        waits = f"{self._arrived} waits for the answer's end" if self._arrived else ""
        return self.state.doing() or waits

    def phase_changed(self) -> None:
        """Take the engine's new phase; waiting work follows once the change is settled."""
        before, self._phase = self._phase, self.turns.phase
        self.redraw()
        self._asks |= self._phase in ANSWER
        if self._phase in (EnginePhase.READY, EnginePhase.UNUSABLE):
            if before in ANSWER:
                self._soon(self._answered)
            elif before is EnginePhase.LOADING:
                self._soon(self._loaded)
        if self._arrived:
            self._soon(self._change)

    def _change(self) -> None:
        if self._arrived and self.turns.phase in LOADABLE:
            name, self._arrived = self._arrived, ""
            self._use(name)

    def _loaded(self) -> None:
        """Forget the wanted pair once it answers or cannot be loaded."""
        self.refresh_in_use()
        gone = self.state.work is PairWork.NONE and not self._arrived
        offered = self.offered is not None and self._answers(self.offered)
        if gone and (wanted := self._getting) is not None and self._answers(wanted):
            self._list_and(self._say_answers, wanted)
        if (self._getting is not None and gone) or offered:
            self._forget()

    def _say_answers(self, wanted: PullRequest) -> None:
        self.turns.transcript.tell(pair_messages.answers_now(wanted, self._known(wanted)))

    def _forget(self) -> None:
        for one in filter(None, (self._getting, self.offered)):
            if one is self._getting or self._answers(one):
                pair_pull.forget_wanted(one)  # what another window fetches stays remembered
        self._getting = self.offered = self._remembered = None
        self._fetching = self._arrived = ""

    # The fetch of the wanted pair

    def cancel(self) -> None:
        """Stop the work; the downloaded part of a file stays, and is not offered again."""
        super().cancel()
        if self._getting is not None:
            pair_pull.forget_wanted(self._getting)

    def _checked(self, plan: PullPlan, wanted: PullRequest) -> None:
        if wanted is not self._getting:
            super()._checked(plan, wanted)
        elif plan.report.outlook.plan is None:
            self._forget()
            self._ended(plan.report.outlook.refusal, failed=True)
        else:
            if (offer := plan.report.offer) is not None:
                adds = f"/get {one_line(str(self._getting), 120)} --draft auto,{offer.kind}"
                said = f"a head next to it: {describe.offer_line(offer)}"
                self.turns.transcript.tell(said, f"{adds} has both.")
            self._fetching = plan.name
            self._pull(plan)

    def _move(self, progress: PullProgress) -> None:
        told, wanted = self._told, self._getting
        super()._move(progress)
        if not progress.done or wanted is None or self._retries.cancel.is_set():
            return
        # A part has come: a later start goes on with it. Another window may have written its own
        # pair over this one, and forgotten it since.
        again = self._told > told and pair_pull.recall_wanted() is None
        if again or self._remembered != wanted:
            self._remembered = wanted
            pair_pull.remember_wanted(wanted)

    def _fetched(self, name: str) -> None:
        if self._retries.cancel.is_set():  # its last byte was there already
            self._getting = self._remembered = None
        if self._getting is None or self.state.name != self._fetching:
            super()._fetched(name)
            return
        self._ended(f"{name} is installed")
        self._arrived = name
        self.phase_changed()

    def _failed(self, error: Exception) -> None:
        passes = isinstance(error, _PASSING) or not isinstance(error, LocalspecError)
        if self._getting is not None and not passes:
            pair_pull.forget_wanted(self._getting)
        self._getting = self._remembered = None
        super()._failed(error)
