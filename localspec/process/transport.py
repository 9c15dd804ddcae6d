"""The parent's end of an engine in a process of its own."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import IO, TypeAlias

from localspec.chat.events import RoundText
from localspec.errors import EngineDied, LocalspecError, of_import
from localspec.process import messages as m
from localspec.process import spawning
from localspec.process.channel import Channel

Hear: TypeAlias = "Callable[[m.Envelope[m.Event]], object]"

# The reader sleeps this long between looks while text streams. Meanwhile events wait in the pipe,
# which outlives the engine.
_WAKE_S = 0.02
_LOG_LINES = 3
_LOG_TAIL = 4000  # bytes at the log's end that are read
_KILL_WITHIN_S = 2.0
_LOST = " went away"  # ends the log's line that names a lost worker (rpc.py)
_FAULT = 0xC0000000  # Windows's exit codes from here on are faults, such as access violations
_NOT_LOADED = re.compile(r"^(?:ModuleNotFound|Import)Error: (.+)", re.MULTILINE)


class EngineProcess:
    """An engine in a process of its own, which imports while this process does the same.

    The process ends when its pipe does, however this process ends. What it and llama.cpp print goes
    to an unnamed file. A thread writes the requests: a pipe holds little, and a process that is
    stopped or swapped out reads nothing.
    """

    def __init__(self, command: tuple[str, ...] = spawning.ENGINE) -> None:
        self._process, self._log = spawning.engine(command)
        self._streams = _open(self._process.stdout), _open(self._process.stdin)
        self._channel: Channel[m.Event] = Channel(*self._streams, incoming=m.Envelope[m.Event])
        self._closing = False
        self._steps = 0  # of a load, or of storing caches, that were heard of
        self._reader: threading.Thread | None = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="requests", daemon=True)
        self._writer.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def listen(self, hear: Hear) -> None:
        """Start to read events; `hear` is called with each in another thread."""
        self._reader = threading.Thread(target=self._read, args=(hear,), name="events", daemon=True)
        self._reader.start()

    def send(self, envelope: m.Envelope[m.Request]) -> None:
        """Queue a request; it is encoded at once, so that later changes to it have no effect."""
        self._requests.put(self._channel.encoded(envelope))

    def shut_down(self) -> None:
        """Close the pipe after what is queued: the process stops its work and ends."""
        self._closing = True
        self._requests.put(None)

    def kill(self) -> None:
        """End the process at once; the listener gets `Died`."""
        self._process.kill()

    def join(self, timeout: float) -> bool:
        """Wait for the process to end; kill it `timeout` seconds after its last sign of a step.

        Returns:
            True: it has ended.
        """
        steps = -1
        while steps != self._steps:
            steps = self._steps
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
                break
        else:
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
            self._channel.write(data)
        self._channel.close()

    def _read(self, hear: Hear) -> None:
        try:
            for envelopes in self._channel.envelopes():
                for envelope in envelopes:
                    self._steps += isinstance(envelope.body, m.Loading)
                    hear(_with_ours(envelope))
                if _goes_on(envelopes[-1]):
                    time.sleep(_WAKE_S)
            error: LocalspecError = self._reason()
        except LocalspecError as raised:
            error = raised
            self._process.kill()
        if not self._closing:
            self._requests.put(None)
            hear(m.Envelope(0, m.Died(m.SentError.of(error))))

    def _reason(self) -> EngineDied:
        """Describe how the process ended, with the last lines of its log."""
        code = self._process.wait()
        how = f"ended by itself (exit code {code})"
        if code < 0:
            name = signal.Signals(-code).name
            killed = "was killed, perhaps because memory ran out"
            how = f"{killed if name == 'SIGKILL' else 'crashed'} ({name})"
        elif code >= _FAULT:
            how = f"crashed (0x{code:X})"
        log = self._log_tail()
        if code == 1 and (error := _NOT_LOADED.search(log)):
            return EngineDied(*of_import(ImportError(error[1])))
        lines = [line.strip() for line in log.splitlines() if line.strip()][-_LOG_LINES:]
        lost = [line for line in lines if line.endswith(_LOST)]
        lines = [line for line in lines if line not in lost]
        said = f"its log ends with: {' · '.join(lines)}" if lines else ""
        return EngineDied(": ".join((*lost, f"the process that runs the models {how}")), said)

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        return self._log.read().decode("utf-8", "replace")


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("Popen made no pipe")
    return stream


def _goes_on(envelope: m.Envelope[m.Event]) -> bool:
    """Whether it is text of an answer that goes on."""
    match envelope.body:
        case m.TurnReported(RoundText(_, done)):
            return done.finish is None
    return False


def _with_ours(envelope: m.Envelope[m.Event]) -> m.Envelope[m.Event]:
    """Add this process's memory to an `EngineStatus`."""
    if not isinstance(envelope.body, m.EngineStatus):
        return envelope
    from localspec import machine  # noqa: PLC0415 - psutil can wait until there is a screen

    figures, memory = envelope.body.figures, envelope.body.memory
    both = replace(
        memory,
        process=memory.process + machine.resident(),
        peak_process=memory.peak_process + machine.peak_resident(),
    )
    return m.Envelope(envelope.request, m.EngineStatus(figures, both))
