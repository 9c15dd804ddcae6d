"""What can be found out about this machine. Nothing that says whose it is: no names, no paths."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from localspec import __version__, machine
from localspec.doctor.bandwidth import read_bandwidth
from localspec.engine.llama import backends, build, default_threads, devices, repacking_works
from localspec.engine.stats import DeviceMemory

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DRM = Path("/sys/class/drm")
_WANTED_FEATURES = ("avx2", "fma", "f16c", "avx512f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One look at the machine; sizes in bytes.

    Attributes:
        system: ``linux``, ``darwin`` or ``win32``.
        architecture: of the processor, as Python was built for it.
        translated: whether Python runs under Rosetta.
        processor: its name.
        cores, logical: physical cores, and what the system runs at once.
        allowed: of these, what this process may use.
        threads: what localspec uses unless told otherwise.
        load: how many programs want a core, None where the system does not say.
        features: instruction sets that the processor has; those that llama.cpp was built for.
        backends: compiled into llama.cpp.
        cards: makers of graphics cards seen, also of those that llama.cpp cannot use.
        cuda_compiler: whether CUDA can be built here.
        memory_total, memory_free: by the machine's and the container's limit.
        address_space: what `ulimit -v` leaves, None without a limit.
        swap_used: 0 where there is none.
        on_battery: None where there is no battery.
        power_profile: ``low-power`` and the like, empty where unknown.
        clock, clock_most: MHz while working, and at most; None where unknown.
        bandwidth: bytes per second read with `threads` threads, and with one.
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
    threads: int
    load: float | None
    features: tuple[str, ...]
    built_for: tuple[str, ...]
    amx_left_out: bool
    backends: tuple[str, ...]
    devices: tuple[DeviceMemory, ...]
    cards: tuple[str, ...]
    cuda_compiler: bool
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


def look() -> Facts:
    """Look at this machine; takes two seconds, most of them for the bandwidth."""
    load = _load()  # before we make some ourselves
    threads, free = default_threads(), machine.available()
    one, many = read_bandwidth(1, free), read_bandwidth(threads, free)
    clock, clock_most = _clock()
    version, _, system_info = build().partition(" ")
    battery = _battery()
    return Facts(
        localspec=__version__,
        python=platform.python_version(),
        llama_cpp=version,
        system=sys.platform,
        architecture=platform.machine(),
        translated=_answer("sysctl", "-n", "sysctl.proc_translated") == "1",
        processor=_processor(),
        cores=psutil.cpu_count(logical=False) or 1,
        logical=psutil.cpu_count() or 1,
        allowed=_allowed(),
        threads=threads,
        load=load,
        features=_features(),
        built_for=_built_for(system_info),
        amx_left_out=not repacking_works(),
        backends=backends(),
        devices=devices(),
        cards=_cards(),
        cuda_compiler=shutil.which("nvcc") is not None or "CUDA_PATH" in os.environ,
        memory_total=machine.total(),
        memory_free=machine.available(),
        address_space=machine.address_space_left(),
        swap_used=int(psutil.swap_memory().used),
        on_battery=battery,
        power_profile=_power_profile(),
        clock=clock,
        clock_most=clock_most,
        bandwidth=many,
        bandwidth_one=one,
    )


def _answer(*command: str) -> str:
    """What a system command says, empty where there is none."""
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands of the system
            [path, *command[1:]],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _processor() -> str:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    apple = _answer("sysctl", "-n", "machdep.cpu.brand_string") if sys.platform == "darwin" else ""
    return next(named, "") or apple or platform.processor() or platform.machine()


def _features() -> tuple[str, ...]:
    """Instruction sets that matter to llama.cpp, as far as the system says."""
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return tuple(name for name in _WANTED_FEATURES if name in flags)


def _built_for(system_info: str) -> tuple[str, ...]:
    parts = (part.rpartition(":")[2].split("=") for part in system_info.split("|"))
    found = {part[0].strip().lower() for part in parts if len(part) == 2 and part[1].strip() == "1"}
    names = {"avx512f": "avx512"}
    return tuple(name for name in _WANTED_FEATURES if names.get(name, name) in found)


def _cards() -> tuple[str, ...]:
    """Makers of graphics cards, whether or not llama.cpp can use them."""
    found = {_VENDORS.get(_text(path), "") for path in _DRM.glob("card[0-9]*/device/vendor")}
    if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
        found.add("nvidia")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.add("apple")
    return tuple(sorted(found - {""}))


def _allowed() -> int:
    """Logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _load() -> float | None:
    try:
        return float(psutil.getloadavg()[0])
    except (AttributeError, OSError):
        return None


def _battery() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError):
        return None
    return None if battery is None else not battery.power_plugged


def _power_profile() -> str:
    if sys.platform == "darwin":
        lines = _answer("pmset", "-g").splitlines()
        low = any(line.split()[:2] == ["lowpowermode", "1"] for line in lines)
        return "low-power" if low else ""
    return _text(Path("/sys/firmware/acpi/platform_profile"))


def _clock() -> tuple[float | None, float | None]:
    """MHz now and at most, straight after the bandwidth was measured."""
    try:
        found = psutil.cpu_freq()
    except (AttributeError, OSError, RuntimeError, NotImplementedError):
        return None, None
    return (found.current, found.max) if found and found.max else (None, None)
