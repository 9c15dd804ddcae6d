"""Seconds of a processor that a test takes, which do not grow while the machine does other work."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil


def worked() -> float:
    """Seconds that this thread, and all children of this process, have computed so far."""
    ended = os.times()  # of children that have ended and were waited for
    found = time.thread_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # one that ends meanwhile
            its = child.cpu_times()
            found += its.user + its.system
    return found
