"""The process of the tools: requests come on standard input, replies go to standard output.

It ends all servers, with whatever they have started, when its input ends: so none outlives the
chat, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from typing import BinaryIO

import msgspec

from localspec.signals import ENDING
from localspec.tools.leftovers import end_leftovers
from localspec.tools.servers.server_connection import ServerConnection
from localspec.tools.tool_messages import (
    CallDone,
    CallTool,
    CancelCall,
    StartServer,
    StopServer,
    ToolReply,
    ToolRequest,
)

_GRACE_S = 4.0  # for the servers' end


class ToolServer:
    """Does the requests in an event loop.

    Args:
        mark: begins the mark of every server's processes.
        sink: where replies go.
    """

    def __init__(self, mark: str, sink: BinaryIO) -> None:
        self._mark, self._sink = mark, sink
        self._connections: dict[str, ServerConnection] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def take(self, request: ToolRequest) -> None:
        """Begin what is asked."""
        match request:
            case StartServer(name, settings):
                self._stop(name)
                self._connections[name] = ServerConnection(
                    name, settings, self._mark, self._tell, after=self._ending.get(name)
                )
            case StopServer(name):
                self._stop(name)
            case CallTool(number, server):
                if server in self._connections:
                    self._connections[server].call(request)
                else:
                    self._tell(CallDone(number, "the server is not connected", failed=True))
            case CancelCall(number):
                for connection in self._connections.values():
                    connection.cancel(number)

    async def close(self) -> None:
        """End all servers."""
        for name in list(self._connections):
            self._stop(name)
        if self._ending:
            await asyncio.wait(self._ending.values())

    def _stop(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            self._ending[name] = asyncio.create_task(connection.stop())

    def _tell(self, reply: ToolReply) -> None:
        self._sink.write(msgspec.json.encode(reply) + b"\n")
        self._sink.flush()


async def _serve(source: BinaryIO, sink: BinaryIO, mark: str) -> None:
    """Take requests until the input ends."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    server = ToolServer(mark, sink)

    def read() -> None:
        decoder = msgspec.json.Decoder(ToolRequest)
        try:
            for line in source:
                loop.call_soon_threadsafe(server.take, decoder.decode(line))
        finally:
            loop.call_soon_threadsafe(over.set)
            time.sleep(_GRACE_S)
            _leave(mark)  # a server keeps the loop from ending

    threading.Thread(target=read, name="requests", daemon=True).start()
    await over.wait()
    await server.close()


def main() -> None:
    """Serve until the pipe ends, for whatever reason."""
    # A signal to the whole group also ends the chat, whose end is noticed.
    for number in ENDING:
        signal.signal(number, lambda *_: None)  # children would inherit SIG_IGN
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs lines that are not messages
    (mark,) = sys.argv[1:]
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(source, sink, mark))
    finally:
        _leave(mark)


def _leave(mark: str) -> None:
    """End this process, and whatever is left of the servers."""
    end_leftovers(mark)
    os._exit(0)


if __name__ == "__main__":
    main()
