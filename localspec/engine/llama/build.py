"""What this build of llama.cpp runs on: part of what a timing is good for."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import llama_cpp
import psutil
from llama_cpp import llama_cpp as lib

from localspec.engine.llama.devices import devices
from localspec.engine.llama.log import start_backend


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
