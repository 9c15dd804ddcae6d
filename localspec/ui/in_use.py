"""The pair that answers: the first one is loaded, another takes its place, or none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.safe_text import one_line
from localspec.ui.conversation.turns import REASONS, Phase
from localspec.ui.wording import in_words, switch_failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localspec.ui.app import ChatApp
    from localspec.ui.contract import ChatSession, Opener
    from localspec.ui.messages import SwitchFailed


class InUse:
    """Puts a loaded session into the app, or says why there is none; in the screen's thread.

    Args:
        app: the app.
        opener: finds the loaders of other pairs; without it there is only the first one.
        troubles: what to tell once the first pair is there.

    Attributes:
        load_error: why the last load failed; None where it did not, or was cancelled.
    """

    def __init__(
        self, app: ChatApp, opener: Opener | None, troubles: Iterable[Exception] = ()
    ) -> None:
        self._app = app
        self._opener = opener
        self._troubles = list(troubles)
        self.load_error: Exception | None = None

    def loaded(self, session: ChatSession) -> None:
        """A pair has been loaded."""
        self.load_error = None
        self._seat(session)

    def failed(self, error: Exception | None) -> None:
        """The first pair could not be loaded, or the user cancelled it (None)."""
        self.load_error = error
        self._unusable()
        if error is None:
            self._app.transcript.say("loading was cancelled", "/pairs chooses one.")
        else:
            self._app.transcript.say(*in_words(error), error=True)

    def switch(self, name: str) -> None:
        """Load another pair in place of this one; the conversation stays."""
        app = self._app
        if app.session is not None and app.session.pair_name == name:
            app.say_briefly(f"{one_line(name, 40)} is in use")
            return
        if self._opener is None or not app.turns.reserve_loading():
            app.say_briefly(REASONS[app.turns.phase] or "there is no other pair here")
            return
        app.session = None
        app.show_phase()
        app.engine.switch(self._opener, name)

    def switch_failed(self, message: SwitchFailed) -> None:
        """The other pair could not be loaded: the one before is back, or none."""
        if message.session is not None:
            self._seat(message.session)
        else:
            self._unusable()
        for text, remedy in switch_failure(message):
            self._app.transcript.say(text, remedy, error=message.error is not None)

    def trouble(self, error: Exception) -> None:
        """Tell what went wrong elsewhere, now or when loading has ended."""
        if self._app.session is None:  # the end of loading shows everything anew
            self._troubles.append(error)
        else:
            self._app.transcript.say(*in_words(error), error=True)

    def _seat(self, session: ChatSession) -> None:
        app = self._app
        app.session = session
        app.turns.phase = Phase.READY
        app.dashboard.state.note = session.speculation_note
        app.dashboard.state.begin({})
        app.transcript.open(session, app.shelf.nodes())
        for trouble in self._troubles:
            app.transcript.say(*in_words(trouble), error=True)
        self._troubles.clear()
        app.title_line.show(session)
        app.show_phase()
        app.dashboard.refresh_everything()
        app.shelf.loaded()

    def _unusable(self) -> None:
        self._app.turns.phase = Phase.UNUSABLE
        self._app.show_phase()
