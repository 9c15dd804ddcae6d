"""Run the app and see to it that the engine's thread has ended when it is over."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.errors import ConversationError
from localspec.ui.app import ChatApp
from localspec.ui.keyboard import reading_anything

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localspec.ui.contract import Loader, Opener
    from localspec.ui.looks import Looks

# A round lasts milliseconds to a second; a load that cannot be interrupted may take longer.
_PATIENCE_S = 10.0
# A thread that waits for Python's lock gets it after this time at the latest. The engine takes the
# lock a dozen times a round: at Python's own 5 ms, a frame that is being drawn would stop it.
_SWITCH_S = 1e-4


@contextmanager
def sharing_the_lock() -> Iterator[None]:
    """Let the engine's thread have Python's lock soon, whatever the screen is doing."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class _App(ChatApp):
    """Leaves it to the command line to tell of an unforeseen error, in one line."""

    fault: Exception | None = None

    def _handle_exception(self, error: Exception) -> None:
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()


def run_app(
    load: Loader,
    opener: Opener,
    *,
    archive: Path | None = None,
    resume: str | None = None,
    looks: Looks | None = None,
) -> None:
    """Run the chat app until the user leaves.

    Args:
        load: makes the first session.
        opener: finds the loaders of other pairs.
        archive: the file of the stored conversations; None to keep none.
        resume: the id of the stored conversation to begin with.
        looks: what the user has chosen about the screen.

    Raises:
        LocalspecError: what kept the models from being loaded, if that is how it ended.
        ConversationError: the conversation is not kept to its end.
        Exception: an unforeseen one that ended the app; the terminal is what it was.
    """
    app = _App(load, opener, archive=archive, resume=resume, looks=looks)
    try:
        with sharing_the_lock(), reading_anything():
            app.run()
    finally:
        app.pairs.shut_down()
        app.engine.shut_down()
        app.engine.join(_PATIENCE_S)
        kept = app.shelf.shut_down()
    if app.fault is not None:
        raise app.fault
    if app.in_use.load_error is not None:
        raise app.in_use.load_error
    if not kept:
        raise ConversationError(
            f"what was said last could not be written to {archive}",
            "Look for another program that holds the file, and for room on the disk.",
        )
