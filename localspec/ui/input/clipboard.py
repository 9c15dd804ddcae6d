"""The desktop's clipboard, by its own program: some terminals ignore what is sent them (OSC 52).

Terminal of macOS does, and those of VTE, such as GNOME's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress


def copy_by_program(text: str) -> None:
    """Put `text` into the clipboard of the desktop, in a thread; nothing where there is none."""
    here = [command for command in _commands() if shutil.which(command[0])]
    if here:
        threading.Thread(target=_pipe, args=(here, text), daemon=True).start()


def _commands() -> Iterator[list[str]]:
    """What puts text into the clipboard of the desktop that the user sits at."""
    if os.environ.get("SSH_CONNECTION"):  # this machine's desktop is another one
        return
    if sys.platform == "darwin":
        yield ["pbcopy"]
    if os.environ.get("WAYLAND_DISPLAY"):
        yield ["wl-copy", "--type", "text/plain"]  # by itself it takes JSON for no text
    if os.environ.get("DISPLAY"):
        yield ["xclip", "-selection", "clipboard"]
        yield ["xsel", "--clipboard", "--input"]


def _pipe(commands: Iterable[Sequence[str]], text: str) -> None:
    """Give `text` to the first of these that takes it: a display may be gone."""
    for command in commands:
        with suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(  # noqa: S603 - the system's program
                command,
                input=text.encode(errors="replace"),
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"LC_ALL": "en_US.UTF-8"},  # else pbcopy takes it for Mac Roman
                start_new_session=True,  # those of X and Wayland stay to hand it out
            )
            return
