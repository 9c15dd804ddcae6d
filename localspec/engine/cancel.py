"""`Cancel`: a request to stop that both Python and a running llama.cpp decode can see."""

from __future__ import annotations

import numpy as np

from localspec.errors import Cancelled


class Cancel:
    """Set from any thread; polled by the loop, and by llama.cpp through `address`.

    The flag is a C string: empty at first, one character long once a stop was requested.
    `Context` hands its address to llama.cpp together with the C function ``strlen`` as abort
    callback, so that a running decode notices without ever waiting for Python's lock.
    """

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = np.zeros(2, dtype=np.uint8)

    def set(self) -> None:
        """Ask everything that polls this flag to stop."""
        self._flag[0] = 1

    def clear(self) -> None:
        """Withdraw the request."""
        self._flag[0] = 0

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return bool(self._flag[0])

    def check(self) -> None:
        """Raise Cancelled if a stop was requested."""
        if self._flag[0]:
            raise Cancelled

    @property
    def address(self) -> int:
        """Address of the flag, valid as long as this object lives."""
        return int(self._flag.ctypes.data)
