"""A server of the Model Context Protocol by HTTP, for tests, that does some things as they say.

It speaks the handshake of 2025-11-25, and has one tool, `echo`, which repeats its `text`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, TypeAlias

Way: TypeAlias = Callable[["Talk", dict[str, Any]], None]

RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "by http", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {}}]},
}


class Talk(BaseHTTPRequestHandler):
    """A connection to the server.

    Attributes:
        ways: what is done at a method of the protocol, at an `answer` to the server, at a `GET` or
            a `DELETE`, if it is not the usual.
    """

    protocol_version = "HTTP/1.1"
    ways: ClassVar[Mapping[str, Way]] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.ways.get(asked.get("method", "answer"), Talk.usual)(self, asked)

    def do_GET(self) -> None:
        self.ways.get("GET", Talk.usual)(self, {})

    def do_DELETE(self) -> None:
        self.ways.get("DELETE", Talk.usual)(self, {})

    def usual(self, asked: dict[str, Any]) -> None:
        """Do what any server does."""
        method = asked.get("method")
        if self.command == "GET":
            self.answer(405)
        elif not {"id", "method"} <= asked.keys():
            self.answer(202)
        elif method == "tools/call":
            text = asked["params"]["arguments"].get("text", "")
            self.result(asked, {"content": [{"type": "text", "text": text}]})
        elif method in RESULTS:
            self.result(asked, RESULTS[method])
        else:
            self.answer(200, failure(asked["id"], "Method not found"))

    def result(self, asked: dict[str, Any], result: dict[str, Any]) -> None:
        """Answer a request."""
        self.answer(200, {"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def answer(self, status: int, document: object = None) -> None:
        """Answer anything."""
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "1")
        self.end_headers()
        self.wfile.write(body)

    def events(self, *documents: object) -> None:
        """Answer by a stream of events; it ends with the connection, after this."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for document in documents:
            self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Tell nothing."""


def hang(talk: Talk, _asked: dict[str, Any]) -> None:
    """A way: no answer comes, until the client goes."""
    talk.close_connection = True
    with suppress(OSError):
        talk.rfile.read(1)


def failure(number: object, message: str, code: int = -32601) -> dict[str, Any]:
    """The answer to a request that fails."""
    error = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": number, "error": error}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet where the client has gone: that is part of the tests."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def served(ways: Mapping[str, Way]) -> Iterator[str]:
    """A server that runs; yields its URL."""
    kind = type("Served", (Talk,), {"ways": ways})
    with _Server(("127.0.0.1", 0), kind) as server:
        how = {"poll_interval": 0.02}
        threading.Thread(target=server.serve_forever, kwargs=how, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
