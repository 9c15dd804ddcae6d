"""Loads the draft models that a target did not wait for: when, and which answers wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled

if TYPE_CHECKING:
    from localspec.chat.session.session import Session
    from localspec.chat.settings import ChatSettings


class LateDrafts:
    """Loads missing draft models between two requests, or before an answer that needs them.

    One answer goes first; the next has to wait, or draft models would never be loaded while
    requests follow one another. All but `stop` runs in the engine's thread.

    Args:
        joined: tells of draft models that were loaded just now.
        idle: whether no request waits.
        stopped: whether a request that waits was stopped already.

    Attributes:
        answered: whether an answer went before the session's draft models.
    """

    def __init__(
        self,
        joined: Callable[[], None],
        idle: Callable[[], bool],
        stopped: Callable[[], bool],
    ) -> None:
        self._tell_joined, self._idle, self._stopped = joined, idle, stopped
        self._cancel: Cancel | None = None  # of a load that a request waits for
        self.answered = False

    def stop(self) -> None:
        """Interrupt a load of draft models: what waits for it was stopped, or needs no drafts."""
        if (joining := self._cancel) is not None:
            joining.set()

    def load(self, session: Session, resting: Cancel) -> None:
        """Load the missing draft models between two requests, unless one has come.

        Args:
            session: lacks them.
            resting: stops the load when a request comes, unless that one has to wait.
        """
        cancel = resting
        if self.answered:
            cancel = self._cancel = Cancel()
            if self._stopped():
                cancel.set()
        elif not self._idle():
            return
        try:
            self._join(session, cancel)
        finally:
            self._cancel = None

    def before_answer(
        self,
        session: Session | None,
        cancel: Cancel,
        settings: ChatSettings | None = None,
        drafters: Sequence[str] = (),
    ) -> None:
        """Load missing draft models before an answer that names them or has to be repeatable.

        Args:
            session: may lack some; None if none is loaded.
            cancel: stops the load.
            settings: of the answer; None for those of the conversation.
            drafters: that the answer names.
        """
        if session is None or not session.awaits_drafts:
            return
        named = any(name != LOOKUP for name in drafters)
        if named or (settings or session.settings).repeatable:
            self._join(session, cancel)

    def _join(self, session: Session, cancel: Cancel) -> None:
        """Load the missing draft models and tell of them; nothing happens if `cancel` is set."""
        try:
            session.load_drafts(cancel)
        except Cancelled:
            return
        self._tell_joined()
