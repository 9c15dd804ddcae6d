"""From facts to findings: what is wrong or slow, and the command that helps on this platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from localspec.doctor.facts import MachineFacts

SWAP_WORTH_MENTIONING = 200_000_000
BUSY_SHARE = 0.5
SLOW_CLOCK = 0.6
_VULKAN = "Vulkan"
_GPU_BACKENDS = ("CUDA", "MTL", "Metal", _VULKAN, "ROCm", "HIP", "SYCL")


class Level(Enum):
    """How much a finding matters."""

    SLOW = "slow"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or slow.

    Attributes:
        what: what is so, in one sentence.
        remedy: the command, or what to do; empty where nothing can be done.
    """

    level: Level
    what: str
    remedy: str = ""


def findings(facts: MachineFacts) -> list[Finding]:
    """Everything worth saying, what matters most first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.level is not Level.SLOW)


def rebuild(facts: MachineFacts, flag: str) -> str:
    """The command that compiles llama.cpp anew with a CMake flag, for this platform's shell."""
    build = "uv sync --no-cache --reinstall-package llama-cpp-python"
    if not facts.project:
        build = (
            "python -m pip install --force-reinstall --no-deps --no-cache-dir"
            f' --no-binary llama-cpp-python "llama-cpp-python=={facts.llama_cpp}"'
        )
    if facts.system == "win32":
        return f'$env:CMAKE_ARGS="{flag}"; {build}'
    return f'CMAKE_ARGS="{flag}" {build}'


def _graphics(facts: MachineFacts) -> Iterator[Finding]:
    used = [name for name in facts.backends if name.startswith(_GPU_BACKENDS)]
    if facts.devices:
        return
    if used:
        yield Finding(
            Level.SLOW,
            f"llama.cpp was built with {', '.join(used)}, but sees no such device",
            "Update the graphics driver, then run: localspec doctor",
        )
    elif "nvidia" in facts.cards:
        compiler = "" if facts.cuda_compiler else " (install NVIDIA's CUDA toolkit first)"
        yield Finding(
            Level.SLOW,
            f"there is an NVIDIA card, but llama.cpp was built for the CPU alone{compiler}",
            rebuild(facts, "-DGGML_CUDA=on"),
        )
    elif "apple" in facts.cards:
        yield Finding(
            Level.SLOW,
            "this is Apple silicon, but llama.cpp was built without Metal",
            rebuild(facts, "-DGGML_METAL=on"),
        )
    elif others := [card for card in facts.cards if card in ("amd", "intel")]:
        maker = " and ".join({"amd": "AMD", "intel": "Intel"}[card] for card in others)
        yield Finding(
            Level.NOTE,
            f"graphics by {maker} could be used through Vulkan (install its SDK first; on Debian:"
            " libvulkan-dev, glslc and spirv-headers)"
            if facts.system == "linux"
            else f"graphics by {maker} could be used through Vulkan (install its SDK first)",
            rebuild(facts, "-DGGML_VULKAN=on"),
        )


def _translated(facts: MachineFacts) -> Iterator[Finding]:
    if facts.translated:
        yield Finding(
            Level.SLOW,
            "Python is an Intel build that runs under Rosetta, without Metal",
            "uv sync --python cpython-3.12-macos-aarch64 --reinstall"
            if facts.project
            else "Install Python for Apple silicon, and localspec with it.",
        )


def _instructions(facts: MachineFacts) -> Iterator[Finding]:
    unused = [name for name in facts.features if name not in facts.built_for]
    if unused:
        yield Finding(
            Level.SLOW,
            f"the processor has {', '.join(unused)}, llama.cpp was built without",
            rebuild(facts, "-DGGML_NATIVE=on"),
        )
    if facts.amx_left_out:
        yield Finding(
            Level.NOTE,
            "the processor's matrix unit (AMX) is left out: llama.cpp's kernels for it crash in"
            " some builds",
        )


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    if facts.swap_used > SWAP_WORTH_MENTIONING and facts.memory_free < facts.memory_total // 4:
        yield Finding(
            Level.SLOW,
            f"{facts.swap_used / 1e9:.1f} GB are swapped out: what is swapped in again stops"
            " everything",
            "Close other programs, or choose a smaller pair (localspec list).",
        )
    if facts.address_space is not None:
        yield Finding(
            Level.NOTE,
            f"a limit on the address space leaves {facts.address_space / 1e9:.1f} GB, and mapped"
            " weights count",
            "ulimit -v unlimited (where the system allows it; else its administrator)",
        )


def _busy(facts: MachineFacts) -> Iterator[Finding]:
    if facts.load is not None and facts.load > BUSY_SHARE * facts.logical:
        yield Finding(
            Level.SLOW,
            f"other programs keep {facts.load:.1f} of {facts.logical} threads busy",
            "Close them while you chat.",
        )
    if facts.allowed < facts.logical:
        yield Finding(
            Level.NOTE,
            f"this process may use {facts.allowed} of {facts.logical} processors",
        )
    if facts.share is not None and facts.share < min(facts.cores, facts.allowed):
        yield Finding(
            Level.NOTE,
            f"a container gives this process the time of {facts.share:.3g} processors",
            "Raise its limit (docker: --cpus).",
        )
    if facts.threads_asked > facts.cores:
        yield Finding(
            Level.SLOW,
            f"the settings file asks for {facts.threads_asked} threads, the processor has"
            f" {facts.cores} cores: every step waits for the slowest thread",
            "Leave `threads` out of the settings file, or run: localspec tune",
        )


def _power(facts: MachineFacts) -> Iterator[Finding]:
    if facts.power_profile in ("low-power", "quiet"):
        yield Finding(
            Level.SLOW,
            f"the power profile is {facts.power_profile}",
            "sudo pmset -a lowpowermode 0"
            if facts.system == "darwin"
            else "powerprofilesctl set performance",
        )
    elif facts.on_battery:
        windows = "powercfg /setactive SCHEME_MIN, or plug it in"
        yield Finding(
            Level.SLOW,
            "the machine runs on its battery, most are slower then",
            windows if facts.system == "win32" else "Plug it in.",
        )
    if facts.clock and facts.clock_most and facts.clock < SLOW_CLOCK * facts.clock_most:
        yield Finding(
            Level.NOTE,
            f"the processor works at {facts.clock:,.0f} of {facts.clock_most:,.0f} MHz: hot, or"
            " saving power",
            "Let it cool down, or choose another power profile.",
        )


_CHECKS: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    _translated,
    _graphics,
    _instructions,
    _memory,
    _busy,
    _power,
)
