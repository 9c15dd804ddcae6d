"""Workers: other machines whose devices llama.cpp uses by RPC, and this machine as a worker.

The protocol is neither encrypted nor authenticated, and a server accepts one client at a time.
llama.cpp ends the process if a server answers unexpectedly, so each worker is greeted first.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter, sleep
from typing import Any, Final

import psutil

from localspec.engine.llama.library import rebuild
from localspec.engine.llama.platform.hardware import (
    RPC,
    backends,
    build,
    compiler,
    device_list,
    devices,
    ggml,
    has_amx,
    kept_flags,
    unwrapped,
)
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import EngineError, UsageError
from localspec.machine import available, resident

_ANSWER_S: Final = 5.0
_LOOK_S: Final = 5.0
_GONE_S: Final = 1.0
_MOMENT_S: Final = 0.3
SLOW_ANSWER_S: Final = 0.05
# From ggml-rpc.h, as of llama-cpp-python 0.3.36: the protocol version, and the first command with
# its input and output. The whole version must match on both sides: llama.cpp ends the process if
# the worker's minor version is newer, and the patch version counts the operations.
_BUILD: Final = "0.3.36"
PROTOCOL: Final = (7, 0, 0)
HELLO: Final = struct.pack("<BQ24x", 14, 24)
_REPLY: Final = struct.Struct("<QBBBx24x")
# llama.cpp's last messages when a worker does not answer.
_LOST: Final = (b"Remote RPC server crashed", b"Failed to connect to", b"RPC handshake failed")
# Seconds (milliseconds for TCP_USER_TIMEOUT) after which a silent machine counts as gone.
_SILENCE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPALIVE": 10,  # the same on macOS
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 30_000,
}
_GET_MEMORY: Final = 2  # index among the functions of a ggml_backend_device_i
_SIZE_P = ctypes.POINTER(ctypes.c_size_t)
_MEMORY_OF = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _SIZE_P, _SIZE_P)
_ABORTS = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_START = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p
)


@dataclass(frozen=True, slots=True)
class Greeted:
    """A worker and its answer to the greeting.

    Attributes:
        endpoint: its address, HOST:PORT.
        answer_s: seconds until it answered.
        problem: why it cannot be reached; empty if it can.
    """

    endpoint: str
    answer_s: float = 0.0
    problem: str = ""

    @property
    def notice(self) -> str:
        """What the user should know about it; empty for nothing."""
        if self.problem:
            return f"{self.problem}: its devices are left out"
        if self.answer_s > SLOW_ANSWER_S:
            return (
                f"the worker at {self.endpoint} takes {self.answer_s:.2f} s to answer, and every"
                " pass of the target waits for it"
            )
        return ""


def add_workers(endpoints: Sequence[str]) -> tuple[Greeted, ...]:
    """Register the devices of the workers that answer, as ``RPC0`` and so on.

    Earlier workers are removed first, so no loaded model may use them.

    Raises:
        UsageError: an endpoint is not of the form ``HOST:PORT``, is named twice, or is outside of
            private networks.
        EngineError: this build has no RPC backend, or something other than a matching worker
            answers.
    """
    _forget()
    if not endpoints:
        return ()
    places = [_place(endpoint) for endpoint in endpoints]
    _require_different(endpoints, places)
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_function("add_server"))
    ggml().ggml_set_abort_callback(ctypes.cast(_last_words(), ctypes.c_void_p))
    found = []
    for endpoint, place in zip(endpoints, places, strict=True):
        greeted = _greet(endpoint, place)
        if not greeted.problem:
            added = add(endpoint.encode())
            if not added:
                raise EngineError(f"the worker at {endpoint} has no devices", "Restart it.")
            ggml().register(added)
        found.append(greeted)
    return tuple(found)


def notice_silence() -> None:
    """Let the system close connections to workers that are off, asleep or cut off.

    Otherwise llama.cpp would wait forever for their answers.
    """
    known = {_address(*_place(endpoint)) for endpoint in _known().values()}
    if known:
        _end_silent(lambda each: tuple(each.raddr) in known)


def _end_silent(wanted: Callable[[Any], bool]) -> None:
    """Set timeouts on this process's TCP connections for which `wanted` is true.

    llama.cpp has made them already; they are found among the process's open files, which Windows
    does not list.
    """
    options = [(getattr(socket, name, None), value) for name, value in _SILENCE.items()]
    with suppress(OSError, psutil.Error):
        for each in psutil.Process().net_connections("tcp"):
            if each.fd < 0 or not wanted(each):
                continue
            # A connection may close meanwhile; the others must still get their timeouts.
            with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in options:
                    if option is not None:
                        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _forget() -> None:
    """Remove all workers' devices from the registry.

    llama.cpp asks every registered device for its free memory, and ends the process if one is gone.
    """
    library, workers = ggml(), _known()
    if workers:
        own = library.reg_by_name(RPC.encode())  # the devices name it as their backend
        for each in (own, *workers):
            library.unload(each)
        library.register(own)


def _known() -> dict[int, str]:
    """The registered workers: llama.cpp's handle of each, and its address."""
    library = ggml()
    handles = [library.reg_get(i) for i in range(library.reg_count())]
    names = {each: library.reg_name(each).decode() for each in handles}
    return {each: name[4:-1] for each, name in names.items() if name.startswith("RPC[")}


@cache
def _last_words() -> Any:
    """The callback that llama.cpp runs before it ends the process; it names the lost worker.

    The parent process only gets to see the end of the log.
    """

    def say(message: bytes) -> None:
        lines = [message]
        if any(each in message for each in _LOST):
            sleep(_MOMENT_S)  # a dying process closes its connections before its port
            gone = [endpoint for endpoint in _known().values() if not _listens(endpoint)]
            lines += [f"the worker at {endpoint} went away".encode() for endpoint in gone]
            lines += [] if gone else [b"a worker went away"]
        os.write(2, b"\n".join((*lines, b"")))

    return _ABORTS(say)


def _listens(endpoint: str) -> bool:
    """Whether the worker's port accepts connections; it may be busy with another client."""
    try:
        socket.create_connection(_place(endpoint), timeout=_GONE_S).close()
    except OSError:
        return False
    return True


def _place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 9 else 0
    if not host or ":" in host or not 0 < number < 1 << 16:
        raise UsageError(f"{endpoint!r} is not a worker", "Write --workers HOST:PORT,HOST:PORT.")
    return host, number


def _address(host: str, port: int) -> tuple[str, int]:
    """The address by number, if the name can be resolved."""
    with suppress(OSError, UnicodeError):
        return socket.gethostbyname(host), port
    return host, port


def _require_different(endpoints: Sequence[str], places: Sequence[tuple[str, int]]) -> None:
    """Refuse two names of one worker: the second would wait forever for the first to release it.

    Raises:
        UsageError: two endpoints lead to one address.
    """
    seen: dict[tuple[str, int], str] = {}
    for endpoint, place in zip(endpoints, places, strict=True):
        address = _address(*place)
        if address in seen:
            raise UsageError(
                f"{seen[address]} and {endpoint} are one worker", "Name each worker once."
            )
        seen[address] = endpoint


def _function(name: str) -> int:
    """The address of one of the RPC backend's functions."""
    backend = ggml().reg_by_name(RPC.encode())
    address = backend and ggml().reg_get_proc_address(backend, f"ggml_backend_rpc_{name}".encode())
    if not address:
        clang = compiler().startswith("Clang") and shutil.which("clang") is not None
        kept = kept_flags(backends(), clang=clang, amx=has_amx())
        command = rebuild(*kept, "-DGGML_RPC=on")
        raise EngineError(
            "this build of llama.cpp has no RPC backend",
            f"Do without workers, or build it anew: {command}",
        )
    return int(address)


def _greet(endpoint: str, place: tuple[str, int]) -> Greeted:
    """Greet a worker as llama.cpp does.

    Raises:
        UsageError: the address is not in a private network.
        EngineError: something other than a matching worker answers.
    """
    try:
        remedy = "Reach it through a tunnel: ssh -N -L 50052:127.0.0.1:50052 HOST."
        address = _require_private(place[0], remedy)
        with (
            socket.create_connection((address, place[1]), timeout=_ANSWER_S) as connection,
            connection.makefile("rb") as answer,
        ):
            begun = perf_counter()
            connection.sendall(HELLO)
            reply = answer.read(_REPLY.size)
    except TimeoutError:
        said = f"the worker at {endpoint} does not answer, or serves another machine"
        return Greeted(endpoint, problem=said)
    except (OSError, UnicodeError) as error:
        said = f"no worker answers at {endpoint} ({getattr(error, 'strerror', None) or error})"
        return Greeted(endpoint, problem=said)
    _require_same_version(endpoint, reply)
    return Greeted(endpoint, perf_counter() - begun)


def _require_same_version(endpoint: str, reply: bytes) -> None:
    size, *version = _REPLY.unpack(reply) if len(reply) == _REPLY.size else (0,)
    if size != _REPLY.size - 8:
        raise EngineError(
            f"what answers at {endpoint} is not a worker, or is one of another version",
            "Start `localspec worker` there, of the same version as here.",
        )
    # `PROTOCOL` is exact for `_BUILD` only; for another build, only the major version is known.
    known = len(PROTOCOL) if build().split()[0].partition("+")[0] == _BUILD else 1
    if tuple(version[:known]) != PROTOCOL[:known]:
        its, ours = (".".join(map(str, each)) for each in (version, PROTOCOL))
        raise EngineError(
            f"the worker at {endpoint} speaks version {its} of llama.cpp's protocol, this"
            f" machine {ours}",
            "Install the same llama-cpp-python on both: `localspec doctor` names the version.",
        )


def _require_private(host: str, remedy: str) -> str:
    """The IP address of `host`, which must not be reachable from the internet.

    Raises:
        UsageError: it is reachable.
        OSError: `host` does not exist.
    """
    address = socket.gethostbyname(host)
    kind = ipaddress.ip_address(address)
    if kind.is_global or kind.is_unspecified:
        raise UsageError(
            f"{host} can be reached from other networks, and llama.cpp's protocol is neither"
            " encrypted nor signed",
            remedy,
        )
    return address


def lend(
    host: str,
    port: int,
    *,
    threads: int,
    device: Sequence[str] | None = None,
    memory: int | None = None,
    force: bool = False,
    ready: Callable[[str], None],
) -> None:
    """Serve other machines, one at a time, until the process ends.

    Args:
        host: address to listen at.
        port: 0 for any free one.
        threads: CPU threads that compute.
        device: names of the devices to lend; None for the accelerators that are used here, or the
            CPU without any; empty for the CPU.
        memory: bytes of each device that others may use; None for all that is free.
        force: also listen at an address that the internet can reach.
        ready: called with the address once it accepts connections.

    Raises:
        UsageError: the address or device does not exist here, or the address is not private.
        EngineError: this build has no RPC backend, or the server ended.
    """
    start = _START(_function("start_server"))
    usual = [each.label for each in devices() if not each.left_out]
    names = usual if device is None else device
    handles = device_list(names, cpu=True)
    count = len(handles) - 1
    address = _free_address(host, port, force=force)
    told = [_tell_memory(handle, memory) for handle in handles[:count]]  # must stay alive
    # The server blocks in C, where no signal is noticed, so it runs in a background thread.
    serving = threading.Thread(
        target=start, args=(address.encode(), None, threads, count, handles), daemon=True
    )
    serving.start()
    ready(address)
    port = int(address.rpartition(":")[2])
    looked = 0.0
    while serving.is_alive():
        serving.join(0.2)
        if perf_counter() - looked > _LOOK_S:  # drop clients that vanished
            looked = perf_counter()
            _end_silent(lambda each: each.laddr.port == port and bool(each.raddr))
    del told
    raise EngineError(f"llama.cpp's server at {address} ended", "Choose another --port.")


def _free_address(host: str, port: int, *, force: bool) -> str:
    """HOST:PORT for llama.cpp, which must not be in use yet."""
    try:
        at = socket.gethostbyname(host) if force else _require_private(host, "Give --force.")
        with closing(socket.create_server((at, port))) as probe:
            return f"{at}:{probe.getsockname()[1]}"
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"cannot listen at {host}:{port} ({getattr(error, 'strerror', None) or error})",
            "Choose another address of this machine with --host and --port.",
        ) from None


def _tell_memory(handle: int, most: int | None) -> Any:
    """Make a device report its free memory as at most `most` bytes.

    llama.cpp reports all memory of a CPU as free (except on Windows), and of a chip that shares the
    main memory what its driver allows it, and has no setting for either. So the device's own
    function is replaced; keep the returned callback alive.
    """
    functions = ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))
    own = _MEMORY_OF(functions[_GET_MEMORY] or 0)
    begun, of_cpu = resident(), ggml().dev_type(handle) == 0
    chips = {each.label.encode(): each for each in devices() if each.integrated}
    memory = DeviceMemory("", 0, 0, integrated=True)
    its = memory if of_cpu else chips.get(ggml().dev_name(handle))

    def tell(device: int, free: Any, whole: Any) -> None:
        own(device, free, whole)
        taken = resident() - begun if of_cpu else 0
        left = unwrapped(free[0])
        left = left if its is None else replace(its, free=left).usable(available())
        free[0] = left if most is None else max(0, min(left, most - taken))

    ours = _MEMORY_OF(tell)
    functions[_GET_MEMORY] = ctypes.cast(ours, ctypes.c_void_p).value
    return ours
