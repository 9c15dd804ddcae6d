"""Whether a limit on the address space leaves room for localspec itself."""

from __future__ import annotations

import os
from typing import Final

from localspec import formats, machine
from localspec.errors import OutOfMemory

# numpy and llama.cpp's libraries, one thread, and what it takes to say what is wrong.
LEAST: Final = 200_000_000


def require_room() -> None:
    """Refuse to go on where numpy or llama.cpp could only abort while they are imported.

    Raises:
        OutOfMemory: the limit leaves too little.
    """
    left = machine.address_space_left()
    if left is None:
        return
    # Its threads take address space, and nothing here uses linear algebra.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if left < LEAST:
        raise OutOfMemory(
            f"localspec itself needs {formats.size(LEAST)} of memory, this process may take"
            f" {formats.size(left)}",
            "Raise the limit (ulimit -v).",
        )
