"""This machine's cores and accelerators, and other machines' devices, as llama.cpp sees them."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psutil

from localspec.engine.llama.library import ggml_library, lib, library_folder, llama_cpp
from localspec.engine.llama.log import start_backend
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import UsageError
from localspec.machine import cpuinfo, physical, processor_name, processors, text_of

_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2  # enum ggml_backend_dev_type
RPC = "RPC"
"""llama.cpp's backend for other machines' devices, and the prefix of their names."""

GPU_FLAGS: Final = {
    "CUDA": "-DGGML_CUDA=on",
    "MTL": "-DGGML_METAL=on",
    "Metal": "-DGGML_METAL=on",
    "Vulkan": "-DGGML_VULKAN=on",
    "ROCm": "-DGGML_HIP=on",
    "HIP": "-DGGML_HIP=on",
    "SYCL": "-DGGML_SYCL=on",
}
"""llama.cpp's backends for graphics cards, and the flags for CMake that build them."""

CLANG: Final = ("-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++")
"""The flags for CMake with which Clang compiles."""

AMX: Final = "amx_int8"
"""Linux's name, and llama.cpp's in capitals, of the matrix unit of Xeon processors."""

# What every processor with AMX has besides: measured on a Xeon (docs/measurements/README.md).
_WITHOUT_AMX: Final = (
    "-DGGML_NATIVE=off",
    *(f"-DGGML_{name}=on" for name in ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")),
)

_HANDLE, _NUMBER, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_NUMBER_P = ctypes.POINTER(_NUMBER)


class _Properties(ctypes.Structure):
    """`ggml_backend_dev_props`, whose last field is made of a few booleans."""

    _fields_ = (
        ("name", _TEXT),
        ("description", _TEXT),
        ("free", _NUMBER),
        ("total", _NUMBER),
        ("type", ctypes.c_int),
        ("device_id", _TEXT),
        ("capabilities", ctypes.c_bool * 8),
    )


_FUNCTIONS: dict[str, dict[str, Any]] = {  # by library: argument types and result types
    "ggml": {
        "ggml_backend_dev_count": ((), _NUMBER),
        "ggml_backend_dev_get": ((_NUMBER,), _HANDLE),
        "ggml_backend_reg_count": ((), _NUMBER),
        "ggml_backend_reg_get": ((_NUMBER,), _HANDLE),
        "ggml_backend_reg_by_name": ((_TEXT,), _HANDLE),
        "ggml_backend_register": ((_HANDLE,), None),
        "ggml_backend_unload": ((_HANDLE,), None),
    },
    "ggml-base": {
        "ggml_backend_reg_get_proc_address": ((_HANDLE, _TEXT), _HANDLE),
        "ggml_backend_reg_name": ((_HANDLE,), _TEXT),
        "ggml_backend_cpu_buffer_type": ((), _HANDLE),
        "ggml_backend_dev_backend_reg": ((_HANDLE,), _HANDLE),
        "ggml_backend_dev_get_props": ((_HANDLE, ctypes.POINTER(_Properties)), None),
        "ggml_backend_dev_type": ((_HANDLE,), ctypes.c_int),
        "ggml_backend_dev_name": ((_HANDLE,), _TEXT),
        "ggml_backend_dev_description": ((_HANDLE,), _TEXT),
        "ggml_backend_dev_memory": ((_HANDLE, _NUMBER_P, _NUMBER_P), None),
        "ggml_set_abort_callback": ((_HANDLE,), _HANDLE),
        "ggml_get_type_traits": ((ctypes.c_int,), _HANDLE),
    },
}
_CORE: Final = 0  # RelationProcessorCore
_RECORD: Final = struct.Struct("<IIBB")  # SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX
_LITTLE: Final = 0.75  # of the fastest core's capacity
_CARDS: Final = Path("/sys/class/drm")
_LEAST_OWN: Final = 1 / 16  # of the machine's memory; drivers may count what the kernel keeps
_COMPILERS: Final = {  # by name: a mark, and what follows it up to the version
    "Clang": (b"clang version ", re.compile(rb"([\d.]+)")),
    "GCC": (b"GCC: (", re.compile(rb".*?\) ([\d.]+)")),
}
_VARIANT: Final = re.compile(r"loaded CPU backend from .*ggml-cpu-([\w.-]+)\.(?:so|dll)\n")


@cache
def ggml() -> SimpleNamespace:
    """The ggml registry, whose functions have their C names without ``ggml_backend_``."""
    start_backend()
    found = SimpleNamespace()
    for name, functions in _FUNCTIONS.items():
        library = ggml_library(name)
        for function, (takes, returns) in functions.items():
            entry = library[function]
            entry.argtypes, entry.restype = takes, returns
            setattr(found, function.removeprefix("ggml_backend_"), entry)
    return found


def _said(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _known(*kinds: int) -> dict[str, int]:
    """Names and handles of the devices of these kinds; GPUs by default."""
    library, wanted = ggml(), kinds or (_GPU, _INTEGRATED_GPU)
    handles = [library.dev_get(i) for i in range(library.dev_count())]
    found = [each for each in handles if library.dev_type(each) in wanted]
    return {_said(library.dev_name(handle)): handle for handle in found}


def accelerators() -> tuple[str, ...]:
    """llama.cpp's names of every accelerator."""
    return tuple(_known())


def backends() -> tuple[str, ...]:
    """The backends of this build of llama.cpp, such as ``CPU`` and ``CUDA``."""
    library = ggml()
    handles = (library.reg_get(i) for i in range(library.reg_count()))
    return tuple(_said(library.reg_name(handle)) for handle in handles)


def kept_flags(names: Sequence[str], *, clang: bool, amx: bool) -> list[str]:
    """The flags for CMake with which a new build has the present one's backends and compiler.

    AMX is left out (see `repacking_works`), also where the present build leaves it out already.

    Args:
        names: the present build's backends.
        clang: whether Clang compiled it, and is installed.
        amx: whether the processor has AMX.
    """
    flags = GPU_FLAGS | {RPC: "-DGGML_RPC=on"}
    kept = [flag for key, flag in flags.items() if any(name.startswith(key) for name in names)]
    return [*kept, *(CLANG if clang else ()), *(_WITHOUT_AMX if amx else ())]


def has_amx() -> bool:
    """Whether the processor has AMX; where the system does not tell, whether llama.cpp uses it."""
    return AMX in cpuinfo("flags").split() or not repacking_works()


def repacking_works() -> bool:
    """Whether llama.cpp may rearrange weights for the CPU's matrix units.

    It may not where it would use AMX (Xeon processors). Its AMX kernels crash in some builds, since
    the compiler may drop the tile configuration before it is loaded (GCC 12 does;
    ggml-org/llama.cpp, pull request 26954).
    """
    start_backend()  # otherwise messages about devices reach the terminal
    return f"{AMX.upper()} = 1".encode() not in lib.llama_print_system_info()


def devices() -> tuple[DeviceMemory, ...]:
    """Every accelerator with its free and total memory now, in bytes."""
    library, found, known = ggml(), [], _known()
    left_out = _left_out(known)
    for name, handle in known.items():
        free, total = _NUMBER(), _NUMBER()
        library.dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        integrated = library.dev_type(handle) == _INTEGRATED_GPU
        shares = (integrated or sys.platform == "darwin") and not name.startswith(RPC)
        own = _set_apart(total.value) if shares else 0
        description = _said(library.dev_description(handle))
        sizes = unwrapped(free.value), total.value
        found.append(DeviceMemory(description, *sizes, shares, name, name in left_out, own))
    return tuple(found)


def _set_apart(total: int) -> int:
    """Bytes of an integrated GPU's `total` that the machine's memory does not count.

    A driver counts what the BIOS sets apart for the GPU, and main memory that it may take as well:
    what it counts beyond all of that is set apart. Linux lets it count more main memory than there
    is (`amdgpu.gttsize`), but tells what is set apart.
    """
    main = physical()
    own = total - main
    if sys.platform == "linux":
        told = (text_of(path) for path in _CARDS.glob("card*/device/mem_info_vram_total"))
        own = min(own, max((int(each) for each in told if each.isdecimal()), default=0))
    return own if own > _LEAST_OWN * main else 0


def unwrapped(free: int) -> int:
    """Free bytes of a device: none where it reports a negative number, taken for a huge one.

    Vulkan subtracts what is in use from what a program may use, which may be less. (With CUDA's
    unified memory more may truly be free than the card has: main memory counts, too.)
    """
    return 0 if free >> 63 else free


def _left_out(known: Mapping[str, int]) -> set[str]:
    """The names of the devices that llama.cpp uses only if they are named.

    On a chip, layers would slow a card's down. Where several backends see one card, as CUDA and
    Vulkan do, only the first uses it; chips have no id, so one backend alone uses any.
    """
    library = ggml()
    own = {name: handle for name, handle in known.items() if not name.startswith(RPC)}
    cards = {name: _id(each) for name, each in own.items() if library.dev_type(each) == _GPU}
    chips = {name: library.dev_backend_reg(own[name]) for name in own if name not in cards}
    first = {identity: name for name, identity in reversed(cards.items()) if identity}
    twice = {name for name, identity in cards.items() if first.get(identity, name) != name}
    backend = next(iter(chips.values()), None)
    return twice | {name for name, its in chips.items() if cards or its != backend}


def _id(handle: int) -> bytes:
    """What a device has in common in all backends, such as its address; empty if not told."""
    told = _Properties()
    ggml().dev_get_props(handle, ctypes.byref(told))
    return told.device_id or b""


def device_list(names: Sequence[str], *, cpu: bool = False) -> Any:
    """llama.cpp's null-terminated list of the devices with these names.

    Args:
        names: of accelerators.
        cpu: without names, list the CPU.

    Raises:
        UsageError: a device does not exist.
    """
    known = _known() if names or not cpu else _known(_CPU)
    names = names or (list(known) if cpu else [])
    unknown = [name for name in names if name not in known]
    if unknown:
        there = ", ".join(known) or "none"
        raise UsageError(
            f"this build of llama.cpp sees no device {unknown[0]}; it sees: {there}",
            "Run `localspec doctor`, or leave --device out.",
        )
    return (_HANDLE * (len(names) + 1))(*(known[name] for name in names), None)


def build() -> str:
    """The library's version, its backends and what they were compiled for."""
    start_backend()
    return f"{llama_cpp.__version__} {_said(lib.llama_print_system_info())}"


def kernels() -> str:
    """What times and bits depend on besides the machine: `build`, and the compiler of it."""
    return " ".join(filter(None, (build(), compiler())))


@cache
def compiler() -> str:
    """The compiler of the CPU kernels, such as ``GCC 12.2.0``; empty if unknown."""
    return compiler_in(library_folder())


def compiler_in(folder: Path) -> str:
    """The compiler of the CPU kernels in this folder.

    GCC and Clang write their names into a library's ``.comment`` section. Clang's libraries may
    also name GCC, from the start-up files they are linked with.
    """
    library = next(folder.glob("libggml-cpu*.so"), None)
    held = library.read_bytes() if library else b""
    for name, (mark, version) in _COMPILERS.items():
        at = held.rfind(mark)  # every start asks, and a pattern would search for longer
        if at >= 0 and (found := version.match(held, at + len(mark))):
            return f"{name} {found[1].decode()}"
    return ""


def variant() -> str:
    """The kernels that were chosen for this processor when llama.cpp started, such as ``haswell``.

    Empty if this build has only one kind. llama.cpp says in its log alone which file it chose.
    """
    said = "".join(text for _, text in start_backend().since(0))
    found = _VARIANT.search(said)
    return found[1] if found else ""


def machine() -> str:
    """Processor, cores, memory in whole GB, accelerators: what stays the same between starts.

    Other machines' devices are left out.
    """
    memory = round(psutil.virtual_memory().total / 1e9)
    own = [each.name for each in devices() if not each.label.startswith(RPC)]
    accelerators = ", ".join(own) or "no accelerator"
    return f"{processor_name()}, {os.cpu_count()} threads, {memory} GB, {accelerators}"


def default_threads() -> int:
    """Fast physical cores that this process may use, at least 1.

    A second thread per core adds nothing to a decode that waits for memory, and costs time when the
    operating system parks it. All threads wait for the slowest, so efficiency cores are left out
    where there are performance cores.
    """
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return min(physical, _fast(_allowed()) or physical, most_threads())


def most_threads() -> int:
    """Threads that this process may run at the same time, at least 1.

    A container's CPU limit also counts: threads above it would be suspended in the middle of a
    step.
    """
    allowed = len(_allowed() or ()) or os.cpu_count() or 1
    return max(1, int(min(allowed, processors() or allowed)))


def _allowed() -> set[int] | None:
    """The logical processors that this process may use; None where that is not told."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _fast(allowed: set[int] | None) -> int | None:
    """Number of fast cores that this process may use; None if that is not told."""
    if sys.platform == "darwin":
        return _fast_on_macos()
    if sys.platform == "win32":
        return _fastest(_cores_on_windows())
    return _fast_on_linux(Path("/sys/devices"), allowed)


def _fast_on_linux(devices: Path, allowed: set[int] | None) -> int | None:
    """Number of fast cores among those allowed; None if neither is told.

    Fast are those of Intel's list, or by Arm's capacities. Where none of these is allowed, or no
    core is faster than others, all that are allowed count.
    """
    fast = _listed(devices / "cpu_core" / "cpus") or _capable(devices / "system" / "cpu")
    if allowed is not None:
        fast = fast & allowed or allowed
    if not fast:
        return None
    topology = "system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {text_of(devices / topology.format(cpu)) or str(cpu) for cpu in fast}
    return len(cores)


def _capable(folder: Path) -> set[int]:
    capacities = {
        int(path.parent.name.removeprefix("cpu")): int(text)
        for path in folder.glob("cpu[0-9]*/cpu_capacity")
        if (text := text_of(path)).isdecimal()
    }
    most = max(capacities.values(), default=0)
    fast = {cpu for cpu, capacity in capacities.items() if capacity >= _LITTLE * most}
    return fast if len(fast) < len(capacities) else set()


def _listed(path: Path) -> set[int]:
    """Read a list such as ``0-7,16`` as numbers; empty if the file is missing."""
    found: set[int] = set()
    for part in text_of(path).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _fast_on_macos() -> int | None:
    count, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    runtime = ctypes.CDLL(None)
    name = b"hw.perflevel0.physicalcpu"
    failed = runtime.sysctlbyname(name, ctypes.byref(count), ctypes.byref(size), None, 0)
    return None if failed else count.value


def _cores_on_windows() -> bytes:
    """Raw core records of GetLogicalProcessorInformationEx; empty if the call fails."""
    records = b""
    if sys.platform == "win32":
        ask = ctypes.WinDLL("kernel32").GetLogicalProcessorInformationEx
        size = ctypes.c_ulong()
        ask(_CORE, None, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if ask(_CORE, buffer, ctypes.byref(size)):
            records = buffer.raw[: size.value]
    return records


def _fastest(records: bytes) -> int | None:
    """How many cores are of the highest class; None if all are.

    Each record begins with its kind and size; a core's flags and class follow.
    """
    classes = []
    while len(records) >= _RECORD.size:
        kind, size, _, efficiency = _RECORD.unpack_from(records)
        if size < _RECORD.size:
            break
        classes += [efficiency] if kind == _CORE else []
        records = records[size:]
    fast = classes.count(max(classes, default=0))
    return fast if fast < len(classes) else None
