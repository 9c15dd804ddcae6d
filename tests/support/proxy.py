"""A proxy on loopback that forwards TLS connections; it can be reached over TLS itself."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.hub_server import CERTIFICATE


class Proxy(socketserver.ThreadingTCPServer):
    """Takes CONNECT and nothing else; `asked` has the addresses in order."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, tls: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._context is not None:
            self._context.load_cert_chain(CERTIFICATE)

    def get_request(self) -> tuple[Any, Any]:
        raw, address = super().get_request()
        if self._context is None:
            return raw, address
        # The handshake is left to the handler's thread.
        wrapped = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet: clients that go away are part of the tests."""


class _Handler(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        self.request.settimeout(30)
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.request.recv(1 << 16)
            if not data:
                return
            head += data
        method, address, _ = head.decode().split(" ", 2)
        assert method == "CONNECT"
        self.server.asked.append(address)
        self.server.heads.append(head.decode())
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as there:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(there, self.request))
            back.start()
            _pump(self.request, there)
            back.join()


def _pump(source: Any, sink: Any) -> None:
    """Pass bytes on, and at last their end.

    The other direction goes on: to shut it down as well would reset the connection, and the other
    side would lose what it has not read yet.
    """
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sink, socket.SHUT_WR)


@contextlib.contextmanager
def proxy(tls: bool) -> Iterator[Proxy]:
    """Run a proxy."""
    with Proxy(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
