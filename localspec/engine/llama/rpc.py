"""Other machines' devices, over llama.cpp's RPC servers."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from localspec.engine.llama.devices import RPC, forget_devices, ggml
from localspec.errors import EngineError, UsageError

_ANSWER_S: Final = 5.0
# ggml-rpc.h, as of llama-cpp-python 0.3.36: the protocol's major version, which must be the same on
# both sides; and the first command, its input and its output.
_PROTOCOL: Final = 7
_HELLO: Final = struct.pack("<BQ24x", 14, 24)
_REPLY: Final = struct.Struct("<QBBBx24x")


def add_servers(endpoints: Sequence[str]) -> None:
    """Make the devices of these servers known, as ``RPC0`` and so on.

    Raises:
        UsageError: not of the form ``HOST:PORT``.
        EngineError: this build has no RPC backend, or no such server answers.
    """
    if not endpoints:
        return
    places = [_place(endpoint) for endpoint in endpoints]
    register = _registration()
    for endpoint, place in zip(endpoints, places, strict=True):
        # llama.cpp ends the process where it cannot connect.
        _require_server(endpoint, place)
        register(endpoint)
    forget_devices()


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 9 else 0
    if not host or not 0 < number < 1 << 16:
        raise UsageError(f"{endpoint!r} is no RPC server", "Write --rpc HOST:PORT,HOST:PORT.")
    return host, number


def _registration() -> Any:
    """A function that registers an endpoint's devices with llama.cpp."""
    library = ggml()
    backend = library.reg_by_name(RPC.encode())
    address = backend and library.reg_get_proc_address(backend, b"ggml_backend_rpc_add_server")
    if not address:
        raise EngineError(
            "this build of llama.cpp has no RPC backend",
            'Build it with CMAKE_ARGS="-DGGML_RPC=on" uv sync --no-cache'
            " --reinstall-package llama-cpp-python, or leave --rpc out.",
        )
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)

    def register(endpoint: str) -> None:
        added = add(endpoint.encode())
        if not added:
            raise EngineError(f"the RPC server {endpoint} has no devices", "Look at its output.")
        library.register(added)

    return register


def _require_server(endpoint: str, place: tuple[str, int]) -> None:
    """Say hello as llama.cpp does.

    Raises:
        EngineError: nobody answers there, or somebody else.
    """
    try:
        with socket.create_connection(place, timeout=_ANSWER_S) as connection:
            connection.sendall(_HELLO)
            reply = bytearray()
            while len(reply) < _REPLY.size:
                part = connection.recv(_REPLY.size - len(reply))
                if not part:
                    break
                reply += part
    except OSError as error:
        raise EngineError(
            f"no RPC server answers at {endpoint} ({error.strerror or error})",
            "Start llama.cpp's rpc-server there, and see that it listens on that address.",
        ) from None
    size, major = _REPLY.unpack(reply)[:2] if len(reply) == _REPLY.size else (0, 0)
    if size != _REPLY.size - 8 or major != _PROTOCOL:
        raise EngineError(
            f"what answers at {endpoint} is no RPC server of this llama.cpp's version",
            "Build rpc-server from the llama.cpp that llama-cpp-python brings.",
        )
