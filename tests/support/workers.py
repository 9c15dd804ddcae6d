"""Workers on loopback, and a relay that passes bytes on later, as a network does."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def worker(
    *options: str, before: str = "", lie: str = "pass;"
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`localspec worker` on a free port of loopback: its address, and its process."""
    program = f"{lie} from localspec.cli import main; main()"
    arguments = " ".join(("worker", "--port", "0", "-t", "1", *options))
    command = f"{before} exec {sys.executable} -c '{program}' {arguments}"
    with subprocess.Popen(
        ["sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stderr is not None
            said = running.stderr.readline()
            assert "--workers 127.0.0.1:" in said, said
            endpoint = said.split()[4]
            until_it_listens(endpoint)
            yield endpoint, running
        finally:
            running.kill()


def until_it_listens(endpoint: str) -> None:
    host, port = endpoint.split(":")
    for _ in range(200):
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"no worker listens at {endpoint}")


@contextlib.contextmanager
def relay(there: str, delay_s: float) -> Iterator[str]:
    """Pass connections on to `there`, HOST:PORT, every byte `delay_s` late in each direction.

    Yields:
        The address to connect to instead.
    """
    host, port = there.rsplit(":", 1)
    opened: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listening socket is closed
            while True:
                near, _ = listening.accept()
                far = socket.create_connection((host, int(port)))
                opened.extend((near, far))
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink in ((near, far), (far, near)):
                    _pump(source, sink, delay_s)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
    for one in opened:
        one.close()


def _pump(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def read() -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 18)
            except OSError:
                data = b""
            late.put((time.monotonic() + delay_s, data))

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = late.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()
