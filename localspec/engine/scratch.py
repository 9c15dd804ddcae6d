"""Unnamed temporary files."""

from __future__ import annotations

import os
import tempfile

TYPE_CHECKING = False  # the real one would cost an import before the engine's process is there
if TYPE_CHECKING:
    from typing import IO


def nameless_file() -> IO[bytes]:
    """Open a file that no other program can open, and that vanishes when it is closed.

    It is on the disk, or in memory if no folder for temporary files is writable, as on a read-only
    file system.

    Raises:
        OSError: neither is possible.
    """
    try:
        return tempfile.TemporaryFile()
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
        return os.fdopen(os.memfd_create("localspec"), "w+b")
