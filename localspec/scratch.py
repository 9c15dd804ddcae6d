"""Files without a name, for what a process says or needs for a moment."""

from __future__ import annotations

import os
import tempfile

TYPE_CHECKING = False  # the real one would cost an import before the engine's process is there
if TYPE_CHECKING:
    from typing import IO


def nameless_file() -> IO[bytes]:
    """A file that nobody else can open, gone when it is closed.

    On the disk; in memory where no folder for temporary files can be written, as on a file system
    that is read-only.

    Raises:
        OSError: neither is to be had.
    """
    try:
        return tempfile.TemporaryFile()
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
        return os.fdopen(os.memfd_create("localspec"), "w+b")
