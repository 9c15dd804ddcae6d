"""llama.cpp's log: kept off the terminal, and read for facts that only the log has.

Why a load failed, and how large the buffers are, llama.cpp only says in its log.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from localspec.engine.llama.library import (
    ggml_library,
    lib,
    library_folder,
    load_shared_library,
    rebuild,
)
from localspec.errors import EngineError

# enum ggml_log_level
_DEBUG, _ERROR, _CONTINUE = 1, 4, 5
NO_REASON = "llama.cpp gives no reason"

# A line may contain text from the model file, of any length: only its beginning is kept, and only a
# complete line in llama.cpp's own format is read as a buffer size.
_LONGEST = 2000
_BUFFER = re.compile(
    r"\S+: +\S+ +(?P<kind>model|LoRA|KV|RS|compute|output) buffer size = +(?P<mib>\d+(\.\d+)?) MiB"
)
# Of memory that is too small for a kernel, Vulkan speaks too.
_LACK = r"alloc|out ?of ?(device|host)? ?memory|(insufficient|not enough) memory"


class Log:
    """The last lines that llama.cpp wrote, with their levels; long lines are cut.

    llama.cpp has one log callback per process, hence one `Log` (`start_backend`).

    Attributes:
        echo: file descriptor that also gets everything above debug level, or None. Lines in memory
            are lost if llama.cpp ends the process.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=4000)
        self._lock = threading.Lock()
        self._count = 0
        self.echo: int | None = None
        # The library keeps a pointer to the callback, so this reference must stay alive.
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
        """Start a section: the lines written from now on, to be read later."""
        return LogSection(self, self._count)

    def since(self, start: int) -> list[tuple[int, str]]:
        """The lines after the first `start` ones, as far as they are still kept."""
        with self._lock:
            n = min(self._count - start, len(self._lines))
            return list(self._lines)[len(self._lines) - n :] if n > 0 else []


@dataclass(frozen=True, slots=True)
class LogSection:
    """The log from line `start` on."""

    log: Log
    start: int

    def allocated(self, *kinds: str) -> int:
        """Bytes of the buffers of these kinds: model, LoRA, KV, RS, compute or output."""
        found = (_BUFFER.match(text) for _, text in self.log.since(self.start))
        return sum(round(float(m["mib"]) * 2**20) for m in found if m and m["kind"] in kinds)

    def reason(self) -> str:
        """The first error, which is the innermost cause."""
        errors = (t.strip() for level, t in self.log.since(self.start) if level == _ERROR)
        first = next(filter(None, errors), NO_REASON)
        return re.sub(r"^\w+: ", "", first)

    def lacked_memory(self) -> bool:
        """Whether the reason is that memory could not be allocated."""
        return re.search(_LACK, self.reason(), re.IGNORECASE) is not None

    def text(self) -> str:
        """The whole section on one line."""
        return " ".join(text.strip() for _, text in self.log.since(self.start))


_log: Log | None = None
_started = False
_start = threading.Lock()


def start_backend() -> Log:
    """Initialise llama.cpp once per process and capture its log; return the log.

    Raises:
        EngineError: this build keeps its backends in files, and none of them is for this processor.
    """
    global _log, _started  # noqa: PLW0603 - llama.cpp exists once per process
    with _start:
        if _log is None:
            _log = Log()
        if not _started:
            _load_backends()
            lib.llama_backend_init()
            _started = True
    return _log


def _load_backends() -> None:
    """Load the backends from the library's folder, where the build keeps them in files.

    Otherwise `llama_backend_init` would look for them in the interpreter's folder and the working
    folder, and run whatever library has the right name there.
    """
    ggml = ggml_library("ggml")
    if not ggml.ggml_backend_reg_count():
        ggml.ggml_backend_load_all_from_path(os.fsencode(library_folder()))
        if not ggml.ggml_backend_dev_count():
            raise EngineError(
                f"no backend of llama.cpp in {library_folder()} can run on this processor",
                f"Build llama-cpp-python again: {rebuild()}",
            )
        # Going on without a worker takes RPC out of the registry and puts it back, which must not
        # unmap its code.
        with suppress(FileNotFoundError, RuntimeError):
            load_shared_library("ggml-rpc", library_folder())
