"""The machine as llama.cpp sees it: accelerators and their memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as lib
from llama_cpp._ctypes_extensions import load_shared_library

from localspec.engine.llama.log import start_backend
from localspec.engine.stats import DeviceMemory
from localspec.errors import UsageError

_GPU, _INTEGRATED_GPU = 1, 2  # enum ggml_backend_dev_type
RPC = "RPC"
"""The backend of other machines' devices, and what llama.cpp's names of these begin with."""


@cache
def ggml() -> Any:
    """The ggml registry, from the same folder as libllama (LLAMA_CPP_LIB_PATH is honoured)."""
    start_backend()
    folder = os.environ.get("LLAMA_CPP_LIB_PATH") or Path(llama_cpp.__file__).parent / "lib"
    library = load_shared_library("ggml", Path(folder))
    base = load_shared_library("ggml-base", Path(folder))
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_reg_count.restype = ctypes.c_size_t
    library.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_reg_get.restype = ctypes.c_void_p
    library.backend_by_name = library.ggml_backend_reg_by_name
    library.backend_by_name.argtypes = [ctypes.c_char_p]
    library.backend_by_name.restype = ctypes.c_void_p
    library.register_backend = library.ggml_backend_register
    library.register_backend.argtypes = [ctypes.c_void_p]
    library.register_backend.restype = None
    library.backend_function = base.ggml_backend_reg_get_proc_address
    library.backend_function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.backend_function.restype = ctypes.c_void_p
    library.backend_name = base.ggml_backend_reg_name
    library.backend_name.argtypes = [ctypes.c_void_p]
    library.backend_name.restype = ctypes.c_char_p
    library.device_type = base.ggml_backend_dev_type
    library.device_type.argtypes = [ctypes.c_void_p]
    library.device_name = base.ggml_backend_dev_name
    library.device_name.argtypes = [ctypes.c_void_p]
    library.device_name.restype = ctypes.c_char_p
    library.device_description = base.ggml_backend_dev_description
    library.device_description.argtypes = [ctypes.c_void_p]
    library.device_description.restype = ctypes.c_char_p
    library.device_memory = base.ggml_backend_dev_memory
    size_p = ctypes.POINTER(ctypes.c_size_t)
    library.device_memory.argtypes = [ctypes.c_void_p, size_p, size_p]
    library.device_memory.restype = None
    return library


@cache
def _accelerators() -> tuple[tuple[int, str, str, bool], ...]:
    """(handle, name, description, integrated) of every GPU; a CPU-only build has none."""
    library = ggml()
    handles = [library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count())]
    return tuple(
        (
            handle,
            library.device_name(handle).decode("utf-8", "replace"),
            library.device_description(handle).decode("utf-8", "replace"),
            _integrated(library, handle),
        )
        for handle in handles
        if library.device_type(handle) in (_GPU, _INTEGRATED_GPU)
    )


def _integrated(library: Any, handle: int) -> bool:
    """Whether a device shares this machine's memory."""
    if library.device_name(handle).startswith(RPC.encode()):
        return False
    return library.device_type(handle) == _INTEGRATED_GPU or sys.platform == "darwin"


def forget_devices() -> None:
    """Look for accelerators again: some were added."""
    _accelerators.cache_clear()


def backends() -> tuple[str, ...]:
    """The backends compiled into this build of llama.cpp, such as ``CPU`` and ``CUDA``."""
    library = ggml()
    handles = (library.ggml_backend_reg_get(i) for i in range(library.ggml_backend_reg_count()))
    return tuple(library.backend_name(handle).decode("utf-8", "replace") for handle in handles)


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
        ggml().device_memory(handle, ctypes.byref(free), ctypes.byref(total))
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
