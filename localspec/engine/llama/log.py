"""llama.cpp's log, kept off the terminal and read for what only the log says.

llama.cpp reports why a load failed, and how large its buffers are, in its log alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from llama_cpp import llama_cpp as lib

DEBUG_LEVEL = 1  # GGML_LOG_LEVEL_DEBUG
ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
CONTINUE_LEVEL = 5
MIB = 1024 * 1024

# A line holds what a model file says of itself, of any length: only its beginning is kept, and only
# a whole line of llama.cpp's own is one about a buffer.
_LONGEST = 2000
_BUFFER = re.compile(
    r"\S+: +(?P<device>\S+) +(?P<kind>model|KV|RS|compute|output)"
    r" buffer size = +(?P<mib>\d+(\.\d+)?) MiB"
)


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer that llama.cpp allocated: `kind` is model, KV, RS, compute or output."""

    device: str
    kind: str
    n_bytes: int


class Log:
    """The last lines that llama.cpp wrote, with their levels; of a long line its beginning.

    llama.cpp has one log callback for the whole process, hence one `Log` for it (`install`).

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

    def _write(self, level: int, text: bytes, _data: object) -> None:
        if self.echo is not None and level > DEBUG_LEVEL:
            with suppress(OSError):  # a full disk
                os.write(self.echo, text)
        line = text[:_LONGEST].decode("utf-8", "replace")
        with self._lock:
            if level == CONTINUE_LEVEL and self._lines:
                previous_level, previous = self._lines.pop()
                self._lines.append((previous_level, (previous + line)[:_LONGEST]))
            else:
                self._count += 1
                self._lines.append((level, line))

    def install(self) -> None:
        """Receive the log from now on."""
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))

    @contextmanager
    def section(self) -> Iterator[LogSection]:
        """What is written inside the ``with`` block, readable afterwards."""
        section = LogSection(self, self._count)
        yield section

    def since(self, start: int) -> list[tuple[int, str]]:
        """The lines written after the first `start` ones, as far as they are still kept."""
        with self._lock:
            n = min(self._count - start, len(self._lines))
            return list(self._lines)[len(self._lines) - n :] if n > 0 else []


@dataclass(frozen=True, slots=True)
class LogSection:
    """A stretch of the log that begins at line `start`."""

    log: Log
    start: int

    def buffers(self) -> list[Buffer]:
        """The buffers reported in this stretch."""
        found = []
        for _, text in self.log.since(self.start):
            if match := _BUFFER.match(text):
                size = round(float(match["mib"]) * MIB)
                found.append(Buffer(match["device"], match["kind"], size))
        return found

    def reason(self) -> str:
        """The errors of this stretch as one line, innermost cause first; empty if none."""
        lines = [
            re.sub(r"^\w+: ", "", text.strip())
            for level, text in self.log.since(self.start)
            if level == ERROR_LEVEL and text.strip()
        ]
        return lines[0] if lines else ""


_log: Log | None = None
_start = threading.Lock()


def start_backend() -> Log:
    """Initialise llama.cpp once in this process, its log caught; return the log."""
    global _log  # noqa: PLW0603 - llama.cpp itself is one per process
    with _start:
        if _log is None:
            log = Log()
            log.install()
            lib.llama_backend_init()
            _log = log
    return _log
