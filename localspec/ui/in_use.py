"""The pair that answers: the first one is loaded, another takes its place, or none is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.safe_text import one_line
from localspec.ui.conversation.turns import REASONS, Phase
from localspec.ui.wording import in_words, switch_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from localspec.process.messages import LoadFailed
    from localspec.ui.app import ChatApp


class InUse:
    """Puts what is loaded on the screen, or says why there is nothing; in the screen's thread.

    Args:
        app: the app.
        troubles: what to tell once the first pair is there.

    Attributes:
        load_error: why the last load failed; None where it did not, or was cancelled.
    """

    def __init__(self, app: ChatApp, troubles: Iterable[Exception] = ()) -> None:
        self._app = app
        self._troubles = list(troubles)
        self._first = True
        self._then: Callable[[], None] | None = None
        self.load_error: Exception | None = None

    def loaded(self) -> None:
        """A pair has been loaded: the engine knows it."""
        self.load_error, self._first = None, False
        self._seat()
        then, self._then = self._then, None
        if then is not None:
            then()

    def failed(self, failed: LoadFailed) -> None:
        """A pair could not be loaded, or the user cancelled it: the one before is back, or none."""
        first, self._first, self._then = self._first, False, None
        error = None if failed.error is None else failed.error.exception()
        if failed.info is not None:
            self._seat()
        else:
            self._unusable(Phase.UNUSABLE)
        say = self._app.transcript.say
        if not first:
            for text, remedy in switch_failure(failed):
                say(text, remedy, error=error is not None)
        elif error is None:
            say("loading was cancelled", "/pairs chooses one.")
        else:
            self.load_error = error
            say(*in_words(error), error=True)

    def died(self, error: Exception) -> None:
        """The engine's process has ended by itself: say so, and how it goes on."""
        if self._app.turns.phase is Phase.LOADING:
            self.load_error = error
        self._then = None
        self._app.turns.died(error)
        self._unusable(Phase.DEAD)

    def switch(self, name: str) -> None:
        """Load another pair in place of this one; the conversation stays."""
        app = self._app
        if app.session is not None and app.session.pair_name == name:
            app.say_briefly(f"{one_line(name, 40)} is in use")
        elif app.turns.reserve_loading():
            app.engine.load(name, app.shelf.record.messages())
            app.show_phase()
        else:
            app.say_briefly(REASONS[app.turns.phase])

    def reload(self, then: Callable[[], None]) -> None:
        """Load the pair again after the engine died; the conversation goes on with `then`."""
        app = self._app
        if app.turns.reserve_loading():
            self._then = then
            app.engine.reload(app.shelf.record.messages())
            app.show_phase()

    def trouble(self, error: Exception) -> None:
        """Tell what went wrong elsewhere, now or when loading has ended."""
        if self._app.session is None:  # the end of loading shows everything anew
            self._troubles.append(error)
        else:
            self._app.transcript.say(*in_words(error), error=True)

    def _seat(self) -> None:
        app = self._app
        if app.session is None:
            raise AssertionError("nothing is loaded")
        app.turns.phase = Phase.READY
        app.dashboard.state.note = app.session.speculation_note
        app.show_conversation()
        for trouble in self._troubles:
            app.transcript.say(*in_words(trouble), error=True)
        self._troubles.clear()
        app.title_line.show(app.session)
        app.show_phase()
        app.shelf.loaded()

    def _unusable(self, phase: Phase) -> None:
        self._app.turns.phase = phase
        self._app.show_phase()
