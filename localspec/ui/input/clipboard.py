"""The clipboard of macOS, whose Terminal ignores what is copied through it (OSC 52)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress


def copy_on_macos(text: str) -> None:
    """Put `text` into the clipboard by `pbcopy`, in a thread; nothing where that is not."""
    if sys.platform == "darwin" and (program := shutil.which("pbcopy")):
        threading.Thread(target=_pipe, args=(program, text), daemon=True).start()


def _pipe(program: str, text: str) -> None:
    with suppress(OSError):
        subprocess.run(  # noqa: S603 - the system's program
            [program],
            input=text.encode(errors="replace"),
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "en_US.UTF-8"},  # else it takes the bytes for Mac Roman
        )
