"""Run the app and see to it that the engine's thread has ended when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.ui.app import ChatApp

if TYPE_CHECKING:
    from localspec.ui.contract import Loader

# A round lasts milliseconds to a second; a load that cannot be interrupted may take longer.
_PATIENCE_S = 10.0


def run_app(load: Loader) -> None:
    """Run the chat app until the user leaves.

    Raises:
        LocalspecError: what kept the models from being loaded, if that is how it ended.
    """
    app = ChatApp(load)
    try:
        app.run()
    finally:
        app.engine.shut_down()
        app.engine.join(_PATIENCE_S)
    if app.load_error is not None:
        raise app.load_error
