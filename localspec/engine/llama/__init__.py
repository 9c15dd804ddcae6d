"""llama.cpp: models, contexts and devices. The only package that uses ctypes."""

from localspec.engine.llama.context import Context, Listener
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.llama.heads.block_head import BlockHead
from localspec.engine.llama.heads.head import Head
from localspec.engine.llama.heads.shared_head import SharedHead, head_of
from localspec.engine.llama.model import Model, shown_name
from localspec.engine.llama.platform.hardware import (
    AMX,
    CLANG,
    GPU_FLAGS,
    RPC,
    backends,
    build,
    compiler,
    default_threads,
    device_list,
    devices,
    kept_flags,
    kernels,
    machine,
    most_threads,
    repacking_works,
    variant,
)
from localspec.engine.llama.platform.rpc import add_workers
from localspec.engine.llama.requantise import write_q8_0
from localspec.engine.llama.thread_controller import BUSY, LOOK_S, busy_cores, too_busy

__all__ = [
    "AMX",
    "BUSY",
    "CLANG",
    "GPU_FLAGS",
    "LOOK_S",
    "RPC",
    "BlockHead",
    "Context",
    "ContextOptions",
    "Head",
    "Listener",
    "Model",
    "SharedHead",
    "add_workers",
    "backends",
    "build",
    "busy_cores",
    "compiler",
    "default_threads",
    "device_list",
    "devices",
    "head_of",
    "kept_flags",
    "kernels",
    "machine",
    "most_threads",
    "repacking_works",
    "shown_name",
    "too_busy",
    "variant",
    "write_q8_0",
]
