"""The chat's end of the process in which all MCP servers are talked to.

The SDK and whatever a server sends stay out of the process that draws the screen.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from uuid import uuid4

import msgspec

from localspec.errors import LocalspecError, installs_extra
from localspec.process import spawning
from localspec.safe_text import reason
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_messages import (
    CallDone,
    CallTool,
    CancelCall,
    ServerGone,
    StartServer,
    StopServer,
    ToolReply,
    ToolRequest,
)

_END_S = 5.0  # a little more than the process takes by itself
_SLACK_S = 10.0  # after a call's own limit, before the whole process counts as stuck
_ENDED = "the process of the tools ended"


def require_extra() -> None:
    """Check that the SDK is installed.

    Raises:
        LocalspecError: it is not.
    """
    if find_spec("mcp") is None:
        raise LocalspecError(
            "MCP servers need further packages",
            f"Install them: {installs_extra('mcp')}",
        )


class ToolProcess:
    """Starts servers and calls their tools; no method blocks but `join`.

    Args:
        hear: gets `ServerReady` and `ServerGone`, in another thread.

    Raises:
        LocalspecError: the SDK is not installed, or the process cannot be started.
    """

    def __init__(self, hear: Callable[[ToolReply], object]) -> None:
        require_extra()
        self._hear = hear
        self._mark = uuid4().hex
        try:
            self._process, self._log = spawning.engine(("-m", "localspec.tools", self._mark))
        except OSError as error:  # a full disk, too many processes
            raise LocalspecError(
                f"the process of the tools cannot be started: {reason(error)}",
                "Free memory or disk space, then try again.",
            ) from None
        self._lock = threading.Lock()
        self._calls: dict[int, Future[CallDone]] = {}
        self._number = 0
        self._servers: set[str] = set()
        self._closing = False
        self._ended = False  # whatever is sent from now on is answered by nothing
        self._reader = threading.Thread(target=self._read, name="tools", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None and not self._closing

    def start(self, name: str, settings: ServerSettings) -> None:
        """Start a server, by expanded settings; `ServerReady` or `ServerGone` follows."""
        self._servers.add(name)
        self._send(StartServer(name, settings))

    def stop(self, name: str) -> None:
        """End a server."""
        self._servers.discard(name)
        self._send(StopServer(name))

    def call(self, server: str, tool: str, arguments: str, within: float) -> Future[CallDone]:
        """Run a tool; cancelling the future stops it.

        Args:
            server: its name.
            tool: its name, as the server has it.
            arguments: a JSON object.
            within: seconds after which the server counts as stuck.
        """
        future: Future[CallDone] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            line = _line(CallTool(number, server, tool, arguments))
            if self._ended:
                future.set_result(CallDone(number, _ENDED, failed=True))
                return future
            self._calls[number] = future
        future.add_done_callback(lambda _: self._over(number, future))
        overdue = threading.Timer(within + _SLACK_S, self._process.kill)
        overdue.daemon = True
        overdue.start()
        future.add_done_callback(lambda _: overdue.cancel())
        self._write(line)
        return future

    def shut_down(self) -> None:
        """Have all servers end; returns at once."""
        self._closing = True
        with suppress(OSError, ValueError), self._lock:
            if self._process.stdin is not None:
                self._process.stdin.close()

    def join(self) -> None:
        """After `shut_down`: wait for the end, or enforce it."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:  # it was killed, here or by a server
            self._end_servers()
        self._reader.join()
        self._log.close()

    def _send(self, request: ToolRequest) -> None:
        self._write(_line(request))

    def _write(self, line: bytes) -> None:
        with suppress(OSError, ValueError), self._lock:  # the reader tells of the end
            if self._process.stdin is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _over(self, number: int, future: Future[CallDone]) -> None:
        with self._lock:
            self._calls.pop(number, None)
        if future.cancelled():
            self._send(CancelCall(number))

    def _read(self) -> None:
        decoder = msgspec.json.Decoder(ToolReply)
        if self._process.stdout is None:
            raise AssertionError("Popen made no pipe")
        with self._process.stdout as source:
            for line in source:
                match decoder.decode(line):
                    case CallDone() as done:
                        self._settle(done)
                    case reply:
                        self._hear(reply)
        with self._lock:
            self._ended = True
            open_calls = list(self._calls)
        for number in open_calls:
            self._settle(CallDone(number, _ENDED, failed=True))
        if not self._closing:
            self._end_servers()
            for name in sorted(self._servers):
                self._hear(ServerGone(name, _ENDED))

    def _settle(self, done: CallDone) -> None:
        future = self._calls.get(done.number)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(done)

    def _end_servers(self) -> None:
        """End the servers of a process that did not do it itself."""
        from localspec.tools.leftovers import end_leftovers  # noqa: PLC0415 - psutil can wait

        end_leftovers(self._mark)


def _line(request: ToolRequest) -> bytes:
    return msgspec.json.encode(request) + b"\n"
