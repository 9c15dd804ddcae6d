"""The machine as llama.cpp sees it: the build, accelerators and their memory."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import psutil
from llama_cpp import llama_cpp as lib
from llama_cpp._ctypes_extensions import load_shared_library

from localspec.engine.llama.log import start_backend
from localspec.engine.stats import DeviceMemory
from localspec.errors import UsageError

_GPU, _INTEGRATED_GPU = 1, 2  # enum ggml_backend_dev_type
RPC = "RPC"
"""The backend of other machines' devices, and what llama.cpp's names of these begin with."""


_HANDLE, _NUMBER, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_NUMBER_P = ctypes.POINTER(_NUMBER)
_REGISTRY = {  # of libggml: what a function takes, and what it returns
    "ggml_backend_dev_count": ((), _NUMBER),
    "ggml_backend_dev_get": ((_NUMBER,), _HANDLE),
    "ggml_backend_reg_count": ((), _NUMBER),
    "ggml_backend_reg_get": ((_NUMBER,), _HANDLE),
    "ggml_backend_reg_by_name": ((_TEXT,), _HANDLE),
    "ggml_backend_register": ((_HANDLE,), None),
}
_BASE = {  # of libggml-base
    "ggml_backend_reg_get_proc_address": ((_HANDLE, _TEXT), _HANDLE),
    "ggml_backend_reg_name": ((_HANDLE,), _TEXT),
    "ggml_backend_dev_type": ((_HANDLE,), ctypes.c_int),
    "ggml_backend_dev_name": ((_HANDLE,), _TEXT),
    "ggml_backend_dev_description": ((_HANDLE,), _TEXT),
    "ggml_backend_dev_memory": ((_HANDLE, _NUMBER_P, _NUMBER_P), None),
}


@cache
def ggml() -> SimpleNamespace:
    """The ggml registry, from the same folder as libllama (LLAMA_CPP_LIB_PATH is honoured).

    Its functions go by their C names without ``ggml_backend_``.
    """
    start_backend()
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(llama_cpp.__file__).parent / "lib")
    found = SimpleNamespace()
    for name, signatures in (("ggml", _REGISTRY), ("ggml-base", _BASE)):
        library = load_shared_library(name, folder)
        for function, (takes, returns) in signatures.items():
            entry = library[function]
            entry.argtypes, entry.restype = takes, returns
            setattr(found, function.removeprefix("ggml_backend_"), entry)
    return found


@cache
def _accelerators() -> tuple[tuple[int, str, str, bool], ...]:
    """(handle, name, description, integrated) of every GPU; a CPU-only build has none."""
    library = ggml()
    handles = [library.dev_get(i) for i in range(library.dev_count())]
    return tuple(
        (
            handle,
            library.dev_name(handle).decode("utf-8", "replace"),
            library.dev_description(handle).decode("utf-8", "replace"),
            _integrated(library, handle),
        )
        for handle in handles
        if library.dev_type(handle) in (_GPU, _INTEGRATED_GPU)
    )


def _integrated(library: SimpleNamespace, handle: int) -> bool:
    """Whether a device shares this machine's memory."""
    if library.dev_name(handle).startswith(RPC.encode()):
        return False
    return library.dev_type(handle) == _INTEGRATED_GPU or sys.platform == "darwin"


def forget_devices() -> None:
    """Look for accelerators again: some were added."""
    _accelerators.cache_clear()


def backends() -> tuple[str, ...]:
    """The backends compiled into this build of llama.cpp, such as ``CPU`` and ``CUDA``."""
    library = ggml()
    handles = (library.reg_get(i) for i in range(library.reg_count()))
    return tuple(library.reg_name(handle).decode("utf-8", "replace") for handle in handles)


def repacking_works() -> bool:
    """Whether llama.cpp may rearrange weights for the CPU's own matrix units.

    Not where it would use AMX (Xeon processors). Its kernels crash there on some builds: the
    compiler may drop the tile configuration before it is loaded (GCC 12 does; ggml-org/llama.cpp,
    pull request 26954).
    """
    return b"AMX_INT8 = 1" not in lib.llama_print_system_info()


def devices() -> tuple[DeviceMemory, ...]:
    """Every accelerator with its free and total memory now, in bytes."""
    found = []
    for handle, label, description, integrated in _accelerators():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml().dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        found.append(DeviceMemory(description, free.value, total.value, integrated, label))
    return tuple(found)


def device_list(names: Sequence[str]) -> Any:
    """llama.cpp's list of the devices with these names, ended by a null.

    Raises:
        UsageError: there is no such device.
    """
    known = {label: handle for handle, label, _, _ in _accelerators()}
    unknown = [name for name in names if name not in known]
    if unknown:
        there = ", ".join(known) or "none"
        raise UsageError(
            f"this build of llama.cpp sees no device {unknown[0]}; it sees: {there}",
            "Run `localspec doctor`, or leave --device out.",
        )
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def build() -> str:
    """The library's version, its backends and what they were compiled for."""
    start_backend()
    return f"{llama_cpp.__version__} {lib.llama_print_system_info().decode('utf-8', 'replace')}"


def machine() -> str:
    """Processor, cores, memory in whole GB, accelerators: what does not change between starts."""
    memory = round(psutil.virtual_memory().total / 1e9)
    accelerators = ", ".join(device.name for device in devices()) or "no accelerator"
    return f"{_processor()}, {os.cpu_count()} threads, {memory} GB, {accelerators}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
