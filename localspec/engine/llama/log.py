"""llama.cpp's log, kept off the terminal and read for what only the log says.

llama.cpp reports why a load failed, and how large its buffers are, in its log alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from localspec.engine.llama.library import lib

# enum ggml_log_level
_DEBUG, _ERROR, _CONTINUE = 1, 4, 5
NO_REASON = "llama.cpp gives no reason"

# A line holds what a model file says of itself, of any length: only its beginning is kept, and only
# a whole line of llama.cpp's own is one about a buffer.
_LONGEST = 2000
_BUFFER = re.compile(
    r"\S+: +\S+ +(?P<kind>model|KV|RS|compute|output) buffer size = +(?P<mib>\d+(\.\d+)?) MiB"
)


class Log:
    """The last lines that llama.cpp wrote, with their levels; of a long line its beginning.

    llama.cpp has one log callback for the whole process, hence one `Log` (`start_backend`).

    Attributes:
        echo: file descriptor that all but debugging goes to as well, None for none: what is in
            memory is lost when llama.cpp ends the process.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=4000)
        self._lock = threading.Lock()
        self._count = 0
        self.echo: int | None = None
        # The object must outlive the library's use of it.
        self._callback = lib.llama_log_callback(self._write)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _write(self, level: int, text: bytes, _data: object) -> None:
        if self.echo is not None and level > _DEBUG:
            with suppress(OSError):  # a full disk
                os.write(self.echo, text)
        line = text[:_LONGEST].decode("utf-8", "replace")
        with self._lock:
            if level == _CONTINUE and self._lines:
                previous_level, previous = self._lines.pop()
                self._lines.append((previous_level, (previous + line)[:_LONGEST]))
            else:
                self._count += 1
                self._lines.append((level, line))

    def section(self) -> LogSection:
        """What is written from now on, to be read later."""
        return LogSection(self, self._count)

    def since(self, start: int) -> list[tuple[int, str]]:
        """The lines written after the first `start` ones, as far as they are still kept."""
        with self._lock:
            n = min(self._count - start, len(self._lines))
            return list(self._lines)[len(self._lines) - n :] if n > 0 else []


@dataclass(frozen=True, slots=True)
class LogSection:
    """The log from line `start` on."""

    log: Log
    start: int

    def allocated(self, *kinds: str) -> int:
        """Bytes of the buffers of these kinds: model, KV, RS, compute or output."""
        found = (_BUFFER.match(text) for _, text in self.log.since(self.start))
        return sum(round(float(m["mib"]) * 2**20) for m in found if m and m["kind"] in kinds)

    def reason(self) -> str:
        """The first error, which is the innermost cause."""
        errors = (t.strip() for level, t in self.log.since(self.start) if level == _ERROR)
        first = next(filter(None, errors), NO_REASON)
        return re.sub(r"^\w+: ", "", first)

    def text(self) -> str:
        """All of it on one line."""
        return " ".join(text.strip() for _, text in self.log.since(self.start))


_log: Log | None = None
_start = threading.Lock()


def start_backend() -> Log:
    """Initialise llama.cpp once in this process, its log caught; return the log."""
    global _log  # noqa: PLW0603 - llama.cpp itself is one per process
    with _start:
        if _log is None:
            _log = Log()
            lib.llama_backend_init()
    return _log
