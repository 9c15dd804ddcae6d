"""A server that is a child process: its lines are bounded, and nothing that it starts stays.

The SDK's own transport reads lines of any length, and lets the children of a server live on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from localspec.errors import UsageError
from localspec.safe_text import encodable, one_line, reason
from localspec.tools.leftovers import MARK, end_leftovers
from localspec.tools.server_settings import ServerSettings

LONGEST_LINE = 8 << 20
MOST_UNASKED = 16 << 20
"""Bytes that a server may write between two messages to it."""

_LAST_WORDS = 2000  # bytes of its standard error that are kept
_PATIENCE_S = 1.0  # for each of: an end by itself, an end after SIGTERM
_POLL_S = 0.01


class ChildServer:
    """One run of a server.

    Args:
        settings: expanded; with a command.
        mark: the value of `MARK` by which all its processes are found.

    Attributes:
        gone: set once it writes no more.
    """

    def __init__(self, settings: ServerSettings, mark: str) -> None:
        self._settings = settings
        self._mark = mark
        self._fault = ""
        self._words = b""
        self._unasked = 0
        self.gone = asyncio.Event()

    @property
    def last_words(self) -> str:
        """Why the process ended, if known: how it exited, or the last line that it wrote."""
        words = self._words.decode("utf-8", "replace").strip().splitlines()
        return self._fault or (one_line(words[-1], 200) if words else "")

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """Start it, and end it with all that it has started.

        Raises:
            UsageError: the command cannot be run.
        """
        process = await self._started()
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, process, incoming)
                tasks.start_soon(self._write, process, outgoing)
                tasks.start_soon(self._listen, process)
                try:
                    yield read, write
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._end(process)
                    tasks.cancel_scope.cancel()
        finally:
            for stream in (incoming, read, write, outgoing):
                stream.close()

    async def _started(self) -> asyncio.subprocess.Process:
        settings = self._settings
        environment = get_default_environment() | settings.env
        path = environment.get("PATH")
        command = shutil.which(settings.command, path=path) or settings.command
        try:
            return await asyncio.create_subprocess_exec(
                command,
                *settings.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment | {MARK: self._mark},
                cwd=settings.cwd or None,
                start_new_session=sys.platform != "win32",
                limit=LONGEST_LINE,
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{settings.command} cannot be run: {reason(error)}", "Check the command."
            ) from None

    async def _read(
        self,
        process: asyncio.subprocess.Process,
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Forward its messages; other lines are dropped, but their bytes count."""
        if process.stdout is None:
            raise AssertionError("a child without a pipe")
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with incoming:
                while line := await self._line(process.stdout):
                    with suppress(ValueError, RecursionError):
                        await incoming.send(SessionMessage(_message(line)))
        self.gone.set()

    async def _line(self, source: asyncio.StreamReader) -> bytes:
        """Its next line; empty at the end, or if it writes too much."""
        try:
            line = await source.readline()
        except ValueError:
            self._fault = f"it wrote a line of more than {LONGEST_LINE >> 20} MB"
            return b""
        self._unasked += len(line)
        if self._unasked > MOST_UNASKED:
            self._fault = f"it wrote more than {MOST_UNASKED >> 20} MB without being asked"
            return b""
        return line

    async def _write(
        self,
        process: asyncio.subprocess.Process,
        outgoing: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        if process.stdin is None:
            raise AssertionError("a child without a pipe")
        try:
            async with outgoing:
                async for each in outgoing:
                    self._unasked = 0
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(f"{text}\n".encode())
                    async with asyncio.timeout(self._settings.timeout):
                        await process.stdin.drain()
        except TimeoutError:
            self._fault = "it does not read what it is asked"
            self.gone.set()
        except OSError:
            self.gone.set()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Read its standard error, which would block it when full, and keep the end."""
        if process.stderr is None:
            raise AssertionError("a child without a pipe")
        while data := await process.stderr.read(1 << 16):
            self._words = (self._words + data)[-_LAST_WORDS:]

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        if not await _ended(process):
            _signal(process, "SIGTERM")
            if not await _ended(process):
                _signal(process, "SIGKILL")
        await asyncio.to_thread(end_leftovers, self._mark)
        await _ended(process)
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - a survivor of its group may hold a pipe


def _message(line: bytes) -> mcp_types.JSONRPCMessage:
    """A message, with signs in place of bytes and halves of letters that are no text.

    Else the call that it belongs to would never be answered.

    Raises:
        ValueError: the line is not a message.
        RecursionError: it is nested too deeply to be one.
    """
    read = partial(mcp_types.jsonrpc_message_adapter.validate_json, by_name=False)
    try:
        return read(line)
    except ValueError:
        found = json.loads(line.decode("utf-8", "replace"))
        return read(encodable(json.dumps(found, ensure_ascii=False)))


async def _ended(process: asyncio.subprocess.Process) -> bool:
    """Whether it ends in time; `wait` would also wait for other processes that hold its pipes."""
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_POLL_S)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, name: str) -> None:
    """Send a signal to its process group; on Windows, where there is none, end it."""
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, getattr(signal, name))
