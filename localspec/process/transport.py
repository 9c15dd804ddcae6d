"""How an engine is reached: mostly in a process of its own, which is started here."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import IO, TypeAlias

from localspec.chat.events import RoundText
from localspec.errors import EngineDied, LocalspecError
from localspec.process import messages as m
from localspec.process import spawning

Hear: TypeAlias = "Callable[[m.Letter[m.Event]], object]"

# While text streams its reader wakes no more often; what comes meanwhile waits in the pipe, which
# outlives the engine.
_WAKE_S = 0.02
_LOG_LINES = 3
_LOG_TAIL = 4000  # bytes of the log that are looked at
_KILL_WITHIN_S = 2.0
_LOST = " went away"  # how the lines end in which the engine says of which worker (rpc.py)


class Child:
    """An engine in a process of its own, which begins to import while its user still does.

    It ends when its pipe does, however this process ends. What it and llama.cpp write to standard
    output and error goes to a file without a name. Requests are written in a thread of their own:
    a pipe holds little, and a process that is stopped or swapped out reads nothing.
    """

    def __init__(self, command: tuple[str, ...] = spawning.ENGINE) -> None:
        self._process, self._log = spawning.engine(command)
        self._streams = _open(self._process.stdout), _open(self._process.stdin)
        self._wire: m.Wire[m.Event] = m.Wire(*self._streams, incoming=m.Letter[m.Event])
        self._closing = False
        self._reader: threading.Thread | None = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="requests", daemon=True)
        self._writer.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def listen(self, hear: Hear) -> None:
        """Read in a thread."""
        self._reader = threading.Thread(target=self._read, args=(hear,), name="events", daemon=True)
        self._reader.start()

    def send(self, letter: m.Letter[m.Request]) -> None:
        """Have it written, as it is now."""
        self._requests.put(self._wire.encoded(letter))

    def shut_down(self) -> None:
        """Have the pipe closed: the process stops whatever it does, and ends."""
        self._closing = True
        self._requests.put(None)

    def kill(self) -> None:
        """End the process at once: its pipe ends, and whoever listens hears that it died."""
        self._process.kill()

    def join(self, timeout: float) -> bool:
        """Wait for the process; one that does not end by itself is killed."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_KILL_WITHIN_S)
        self._requests.put(None)
        self._writer.join(_KILL_WITHIN_S)
        if self._reader is not None:
            self._reader.join(_KILL_WITHIN_S)
        self._streams[0].close()
        self._log.close()
        return True

    def _write(self) -> None:
        while (data := self._requests.get()) is not None:
            self._wire.write(data)
        self._wire.close()

    def _read(self, hear: Hear) -> None:
        try:
            for letters in self._wire.letters():
                for letter in letters:
                    hear(_with_ours(letter))
                if _goes_on(letters[-1]):
                    time.sleep(_WAKE_S)
            error: LocalspecError = self._reason()
        except LocalspecError as raised:
            error = raised
            self._process.kill()
        if not self._closing:
            self._requests.put(None)
            hear(m.Letter(0, 0, m.Died(m.Fault.of(error))))

    def _reason(self) -> EngineDied:
        """How the process ended, and what its log says last."""
        code = self._process.wait()
        how = f"ended by itself (exit code {code})"
        if code < 0:
            name = signal.Signals(-code).name
            killed = "was killed, perhaps for want of memory"
            how = f"{killed if name == 'SIGKILL' else 'crashed'} ({name})"
        lines = self._last_lines()
        lost = [line for line in lines if line.endswith(_LOST)]
        lines = [line for line in lines if line not in lost]
        said = f"its log ends with: {' · '.join(lines)}" if lines else ""
        return EngineDied(": ".join((*lost, f"the process that runs the models {how}")), said)

    def _last_lines(self) -> list[str]:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        text = self._log.read().decode("utf-8", "replace")
        return [line.strip() for line in text.splitlines() if line.strip()][-_LOG_LINES:]


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("a pipe that was asked for is there")
    return stream


def _goes_on(letter: m.Letter[m.Event]) -> bool:
    """Whether it is text, and more of it will follow."""
    match letter.body:
        case m.Turn(RoundText(_, done)):
            return done.finish is None
    return False


def _with_ours(letter: m.Letter[m.Event]) -> m.Letter[m.Event]:
    """Count this process's memory as well."""
    if not isinstance(letter.body, m.Status):
        return letter
    from localspec import machine  # noqa: PLC0415 - psutil can wait until there is a screen

    figures, memory = letter.body.figures, letter.body.memory
    both = replace(
        memory,
        process=memory.process + machine.resident(),
        peak_process=memory.peak_process + machine.peak_resident(),
    )
    return m.Letter(letter.request, letter.conversation, m.Status(figures, both))
