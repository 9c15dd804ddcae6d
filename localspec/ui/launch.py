"""Run the app and see to it that the engine has ended when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import ConversationError
from localspec.signals import leaving
from localspec.ui.app import ChatApp
from localspec.ui.keyboard import reading_anything

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.process.client import Engine
    from localspec.ui.looks import Looks

# A round lasts milliseconds to a second; a load that cannot be interrupted may take longer.
_PATIENCE_S = 10.0


class _App(ChatApp):
    """Leaves it to the command line to tell of an unforeseen error, in one line."""

    fault: Exception | None = None

    def _handle_exception(self, error: Exception) -> None:
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()


def run_app(
    engine: Engine,
    *,
    archive: Path | None = None,
    resume: str | None = None,
    looks: Looks | None = None,
) -> None:
    """Run the chat app until the user leaves.

    Args:
        engine: what answers; it has ended when this returns.
        archive: the file of the stored conversations; None to keep none.
        resume: the id of the stored conversation to begin with.
        looks: what the user has chosen about the screen.

    Raises:
        LocalspecError: what kept the models from being loaded, if that is how it ended.
        ConversationError: the conversation is not kept to its end.
        Ended: a signal asked for the end, or the terminal is gone; what was said is kept.
        Exception: an unforeseen one that ended the app; the terminal is what it was.
    """
    app = _App(engine, archive=archive, resume=resume, looks=looks)
    with leaving(app.exit):
        try:
            with reading_anything():
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
