"""Other machines' devices: asked for, missing, silent, wrong, and on a real server on loopback."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from localspec.engine.llama import add_servers, backends, hardware
from localspec.errors import EngineError, UsageError

GOOD = (28).to_bytes(8, "little") + bytes([hardware._PROTOCOL, 0, 0, 0]) + bytes(24)
OLD = (28).to_bytes(8, "little") + bytes([hardware._PROTOCOL - 1, 0, 0, 0]) + bytes(24)
ADD = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)

needs_no_backend = pytest.mark.skipif("RPC" in backends(), reason="this build has the RPC backend")


@contextmanager
def server(reply: bytes) -> Iterator[str]:
    """Something on loopback that takes a hello, says `reply` and hangs up; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                hello = b""
                while len(hello) < len(hardware._HELLO):
                    hello += connection.recv(64)
                assert hello == hardware._HELLO
                connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def scripted(monkeypatch: pytest.MonkeyPatch, registered: int | None) -> list[object]:
    """A build with the backend, whose servers are registered as `registered`; what was called."""
    called: list[object] = []

    def add(endpoint: bytes) -> int | None:
        called.append(endpoint)
        return registered

    function = ADD(add)
    called.append(function)  # it has to live
    library = SimpleNamespace(
        reg_by_name=lambda name: int(name == b"RPC"),
        reg_get_proc_address=lambda _backend, _name: ctypes.cast(function, ctypes.c_void_p).value,
        register=called.append,
    )
    monkeypatch.setattr(hardware, "ggml", lambda: library)
    return called


def test_without_servers_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "ggml", None)
    add_servers(())


@pytest.mark.parametrize("endpoint", ["host", "host:", ":50052", "host:port", "host:70000", "h:0",
                                      "h:" + "9" * 5000])  # fmt: skip
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(UsageError, match="no RPC server") as refused:
        add_servers([endpoint])
    assert "HOST:PORT" in refused.value.remedy


@needs_no_backend
def test_a_build_without_the_backend_says_how_to_get_it() -> None:
    command = [sys.executable, "-m", "localspec", "run", "-p", "hi", "--rpc", "127.0.0.1:50052"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first == "error: this build of llama.cpp has no RPC backend"
    assert "GGML_RPC=on" in second


def test_a_server_is_greeted_and_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    called = scripted(monkeypatch, registered=42)
    with server(GOOD) as endpoint:
        add_servers([endpoint])
    assert called[1:] == [endpoint.encode(), 42]


def test_a_server_without_devices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, registered=None)
    with server(GOOD) as endpoint, pytest.raises(EngineError, match="has no devices"):
        add_servers([endpoint])


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", GOOD[:20], OLD, b""])
def test_what_is_no_such_server_never_gets_to_llama_cpp(
    monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    called = scripted(monkeypatch, registered=42)
    with server(reply) as endpoint, pytest.raises(EngineError, match="no RPC server of this"):
        add_servers([endpoint])
    assert len(called) == 1


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    called = scripted(monkeypatch, registered=42)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match="no RPC server answers") as refused:
        add_servers([f"127.0.0.1:{port}"])
    assert "rpc-server" in refused.value.remedy
    assert len(called) == 1


def until_it_listens(place: tuple[str, int], serving: subprocess.Popen[bytes]) -> None:
    while serving.poll() is None:
        try:
            socket.create_connection(place, timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the server ended")


@pytest.mark.skipif(
    "RPC" not in backends() or shutil.which("rpc-server") is None,
    reason="needs a build with the RPC backend, and llama.cpp's rpc-server",
)
def test_a_target_on_a_server_says_what_it_says_here() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        place = ("127.0.0.1", taken.getsockname()[1])
    command = ["rpc-server", "-H", place[0], "-p", str(place[1]), "-t", "1"]
    run = [sys.executable, "-m", "localspec", "run", "-p", "Tell me a story.", "-n", "20"]
    run += ["-t", "1", "--temp", "0", "--gamma", "3"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as serving:
        try:
            until_it_listens(place, serving)
            endpoint = f"{place[0]}:{place[1]}"
            there, here = (
                subprocess.run(
                    [*run, *more], capture_output=True, text=True, check=True, timeout=120
                ).stdout
                for more in (["--rpc", endpoint], [])
            )
        finally:
            serving.kill()
    assert there == here != ""
