"""Facts about this machine, without anything that identifies its user: no names, no paths."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil

from localspec import __version__, machine
from localspec.engine.llama import (
    AMX,
    BUSY,
    LOOK_S,
    RPC,
    add_workers,
    backends,
    build,
    busy_cores,
    compiler,
    default_threads,
    devices,
    repacking_works,
    variant,
)
from localspec.engine.record.stats import DeviceMemory
from localspec.errors import EngineError, in_clone

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DRM = Path("/sys/class/drm")
_DISPLAY_CLASS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
NVCC = Path("/usr/local/cuda/bin/nvcc")
"""Where NVIDIA's packages for Linux put CUDA's compiler; no shell looks there by itself."""
_MOST_CARDS = 16
_MOST_READ = 1 << 28
_LEAST_READ = 1 << 24
_WANTED = {"avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512", AMX: AMX}
"""Instruction sets that matter to llama.cpp: Linux's names to llama.cpp's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A worker, another machine that lends its devices.

    Attributes:
        endpoint: its address as the user gave it, HOST:PORT.
        problem: why it cannot be used; empty if it can.
        answer_s: seconds that it takes to answer.
        free, total: bytes on its devices.
    """

    endpoint: str
    problem: str = ""
    answer_s: float = 0.0
    free: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The machine at one moment; sizes in bytes.

    Attributes:
        system: ``linux``, ``darwin`` or ``win32``.
        architecture: the one that Python was built for.
        translated: whether Python runs under Rosetta.
        cores, logical: physical cores, and processors as the system counts them.
        allowed: how many of `logical` this process may use.
        share: how many processors' time a container gives this process; None without a limit.
        threads: what localspec uses by default.
        threads_asked: what the settings file asks for, 0 for nothing.
        others: cores that other programs keep busy, 0 if it was not measured.
        features, built_for: instruction sets that the processor has, and llama.cpp's build.
        variant: which of several kinds of kernels was chosen for the processor, empty if there is
            but one.
        compiler: what compiled llama.cpp's kernels for the processor, empty if unknown.
        amx_left_out: whether llama.cpp's kernels for AMX crash in this build.
        backends: those of llama.cpp's build.
        cards: makers of all graphics cards, even if llama.cpp cannot use them.
        compilers: which of ``clang`` and ``nvcc`` (CUDA) are here; `NVCC` if the shell finds none.
        project: whether localspec runs from its own folder, which uv builds; else pip does.
        memory_total, memory_free: within the machine's and the container's limit.
        address_space: what `ulimit -v` leaves, None without a limit.
        power_profile: ``low-power`` and the like, empty if unknown.
        clock, clock_most: MHz at work, and the highest; None if unknown.
        bandwidth, bandwidth_one: bytes per second that `threads` threads read, and one thread.
    """

    localspec: str
    python: str
    llama_cpp: str
    system: str
    architecture: str
    translated: bool
    processor: str
    cores: int
    logical: int
    allowed: int
    share: float | None
    threads: int
    threads_asked: int
    others: float
    features: tuple[str, ...]
    built_for: tuple[str, ...]
    variant: str
    compiler: str
    amx_left_out: bool
    backends: tuple[str, ...]
    devices: tuple[DeviceMemory, ...]
    cards: tuple[str, ...]
    compilers: tuple[str, ...]
    project: bool
    memory_total: int
    memory_free: int
    address_space: int | None
    swap_used: int
    on_battery: bool | None
    power_profile: str
    clock: float | None
    clock_most: float | None
    bandwidth: float
    bandwidth_one: float
    workers: tuple[WorkerFacts, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether other programs took threads that localspec needs, and disturbed the bandwidth."""
        return self.others > max(0, self.logical - self.threads) + BUSY


def machine_facts(
    threads_asked: int = 0, *, workers: tuple[str, ...] = (), measure: bool = True
) -> MachineFacts:
    """Gather facts about this machine; takes two seconds, most of them for the bandwidth.

    Args:
        threads_asked: the setting in the settings file.
        workers: other machines to ask, HOST:PORT.
        measure: whether to measure the bandwidth and the load of other programs; otherwise both are
            0.

    Raises:
        UsageError: a worker's address is malformed, or outside of private networks.
    """
    threads, free = default_threads(), machine.available()
    others = busy_cores(LOOK_S) if measure else 0.0
    logical, flags = psutil.cpu_count() or os.cpu_count() or 1, machine.cpuinfo("flags").split()
    one, many = (read_bandwidth(n, free) if measure else 0.0 for n in (1, threads))
    clock, clock_most = machine.clock()  # right after work, while the clock is high
    return MachineFacts(
        localspec=__version__,
        python=platform.python_version(),
        llama_cpp=build().partition(" ")[0],
        system=sys.platform,
        architecture=platform.machine(),
        translated=_answer("sysctl", "-n", "sysctl.proc_translated") == "1",
        processor=_answer("sysctl", "-n", "machdep.cpu.brand_string") or machine.processor_name(),
        cores=psutil.cpu_count(logical=False) or logical,
        logical=logical,
        allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical,
        share=machine.processors(),
        threads=threads,
        threads_asked=threads_asked,
        others=others,
        features=tuple(name for name in _WANTED if name in flags),
        built_for=_built_for(build()),
        variant=variant(),
        compiler=compiler(),
        amx_left_out=not repacking_works(),
        backends=backends(),
        devices=tuple(each for each in devices() if not each.label.startswith(RPC)),
        cards=_cards(),
        compilers=_compilers(),
        project=in_clone(),
        memory_total=machine.total(),
        memory_free=free,
        address_space=machine.address_space_left(),
        swap_used=machine.swapped_out(),
        on_battery=machine.on_battery(),
        power_profile=_power_profile(),
        clock=clock,
        clock_most=clock_most,
        bandwidth=many,
        bandwidth_one=one,
        workers=tuple(map(_worker, workers)),
    )


def _worker(endpoint: str) -> WorkerFacts:
    try:
        (greeted,) = add_workers((endpoint,))
    except EngineError as error:
        return WorkerFacts(endpoint=endpoint, problem=error.message)
    theirs = [each for each in devices() if each.name == endpoint]
    return WorkerFacts(
        endpoint=endpoint,
        problem=greeted.problem,
        answer_s=greeted.answer_s,
        free=sum(each.free for each in theirs),
        total=sum(each.total for each in theirs),
    )


def _answer(*command: str) -> str:
    """The output of a system command, empty if it is missing or fails."""
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands of the system
            [path, *command[1:]],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _built_for(system_info: str) -> tuple[str, ...]:
    found = {name.lower() for name in re.findall(r"(\w+) = 1\b", system_info)}
    return tuple(name for name, theirs in _WANTED.items() if theirs in found)


def _compilers() -> tuple[str, ...]:
    found = {name for name in ("clang", "nvcc") if shutil.which(name) is not None}
    if "nvcc" not in found and NVCC.is_file():
        found.add(str(NVCC))
    elif "CUDA_PATH" in os.environ:
        found.add("nvcc")
    return tuple(sorted(found))


def _cards() -> tuple[str, ...]:
    """Makers of the graphics cards, including cards that llama.cpp cannot use."""
    found = {
        _VENDORS.get(machine.text_of(path), "") for path in _DRM.glob("card[0-9]*/device/vendor")
    }
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        found.add("nvidia")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.add("apple")
    return tuple(sorted(found.union(makers(_drivers())) - {""}))


def makers(drivers: Iterable[str]) -> set[str]:
    """Makers of graphics cards by the names of their drivers."""
    names = {"nvidia": "nvidia", "amd": "amd", "radeon": "amd", "intel": "intel"}
    words = {word for each in drivers for word in re.findall("[a-z]+", each.lower())}
    return {maker for name, maker in names.items() if name in words}


def _drivers() -> list[str]:
    """Windows' names of its graphics cards."""
    found: list[str] = []
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415 - only Windows has it

        for number in range(_MOST_CARDS):
            name = rf"{_DISPLAY_CLASS}\{number:04}"
            with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, name) as key:
                found.append(str(winreg.QueryValueEx(key, "DriverDesc")[0]))
    return found


def read_bandwidth(
    threads: int,
    available: int,
    *,
    seconds: float = 0.7,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Bytes per second at which `threads` threads read an array; the best of several passes.

    This bounds the speed of decoding on a CPU.

    Args:
        threads: how many read at once.
        available: bytes of free memory, of which at most an eighth is used.
        seconds: no new pass begins after this time.
        clock: returns seconds.
    """
    size = max(_LEAST_READ, min(_MOST_READ, available // 8))
    data = np.ones(size // 8)
    parts = np.array_split(data, threads)
    best, started = float("inf"), clock()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            begun = clock()
            list(pool.map(np.max, parts))
            best = min(best, clock() - begun)
            if clock() - started > seconds:
                return data.nbytes / best if best > 0 else 0.0


def _power_profile() -> str:
    if sys.platform == "darwin":
        lines = _answer("pmset", "-g").splitlines()
        low = any(line.split()[:2] == ["lowpowermode", "1"] for line in lines)
        return "low-power" if low else ""
    return machine.text_of(Path("/sys/firmware/acpi/platform_profile"))
