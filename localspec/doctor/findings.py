"""What is wrong or slow on this machine, and the command that helps on this platform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from localspec import formats
from localspec.doctor.facts import NVCC, MachineFacts, machine_facts
from localspec.engine.llama import AMX, CLANG, GPU_FLAGS, RPC, kept_flags
from localspec.engine.llama.platform.rpc import SLOW_ANSWER_S
from localspec.errors import rebuilds


class Level(Enum):
    """How much a finding matters."""

    SLOW = "slow"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or slow.

    Attributes:
        what: the fact, in one sentence.
        remedy: the command, or what to do; empty if nothing helps.
    """

    level: Level
    what: str
    remedy: str = ""


Remarks: TypeAlias = Iterator[tuple[str, str]]
"""Facts, each with what to do about it."""


def findings(facts: MachineFacts) -> list[Finding]:
    """All findings, the most important first."""
    slow = [*_translated(facts), *_graphics(facts), *_instructions(facts), *_busy(facts)]
    slow += [*_power(facts), *_workers(facts)]
    return [
        *(Finding(Level.SLOW, *each) for each in slow),
        *(Finding(Level.NOTE, *each) for each in _notes(facts)),
    ]


def rebuild(facts: MachineFacts, *flags: str) -> str:
    """The command that recompiles llama.cpp with flags for CMake, in this platform's shell.

    It keeps the present build's cards, and Clang where it is installed, and leaves out AMX:
    otherwise the command of one finding would undo that of another.
    """
    # In a clone uv asks for RPC by itself.
    names = [name for name in facts.backends if name != RPC or not facts.project]
    clang = facts.compiler.startswith("Clang") and _has_clang(facts)
    kept = kept_flags(names, clang=clang, amx=_has_amx(facts))
    every = dict.fromkeys((*kept, *flags))
    if GPU_FLAGS["CUDA"] in every and str(NVCC) in facts.compilers:
        every[f"-DCMAKE_CUDA_COMPILER={NVCC}"] = None
    return rebuilds(facts.llama_cpp, *every, clone=facts.project, windows=facts.system == "win32")


def unused_card() -> tuple[str, str] | None:
    """A graphics card that llama.cpp was not built for, in a sentence, and the command; or None.

    This measures nothing and takes a few milliseconds.
    """
    facts = machine_facts(measure=False)
    return next((said for said in (*_graphics(facts), *_of_makers(facts))), None)


def _translated(facts: MachineFacts) -> Remarks:
    if facts.translated:
        yield (
            "Python is an Intel build that runs under Rosetta, without Metal",
            "uv sync --python cpython-3.12-macos-aarch64 --reinstall"
            if facts.project
            else "Install Python for Apple silicon, and localspec with it.",
        )


def _graphics(facts: MachineFacts) -> Remarks:
    if facts.devices or (facts.variant and not facts.cards):  # a wheel for every machine
        return
    if used := _used(facts):
        yield (
            f"llama.cpp was built with {', '.join(used)}, but sees no such device",
            "Update the graphics driver, then run: localspec doctor",
        )
    elif "nvidia" in facts.cards:
        here = {"nvcc", str(NVCC)} & {*facts.compilers}
        first = "" if here else " (install NVIDIA's CUDA toolkit, then run localspec doctor again)"
        yield (
            f"there is an NVIDIA card, but llama.cpp was built for the CPU alone{first}",
            rebuild(facts, "-DGGML_CUDA=on"),
        )
    elif "apple" in facts.cards:
        yield (
            "this is Apple silicon, but llama.cpp was built without Metal",
            rebuild(facts, "-DGGML_METAL=on"),
        )


def _used(facts: MachineFacts) -> list[str]:
    """The backends for graphics cards that llama.cpp was built with."""
    return [name for name in facts.backends if name.startswith(tuple(GPU_FLAGS))]


def _instructions(facts: MachineFacts) -> Remarks:
    unused = [name for name in facts.features if name not in (*facts.built_for, AMX)]
    if unused:
        yield (
            f"the processor has {', '.join(unused)}, llama.cpp was built without",
            rebuild(facts, *(() if _has_amx(facts) else ("-DGGML_NATIVE=on",))),
        )


def _has_amx(facts: MachineFacts) -> bool:
    """Whether the processor has AMX, also where the present build leaves it out already."""
    return facts.amx_left_out or AMX in facts.features


def _slow_compiler(facts: MachineFacts) -> bool:
    """Whether Clang's kernels verify drafts faster: measured with GCC 12, Clang 16 and 22."""
    return facts.compiler.startswith("GCC") and not facts.devices


def _has_clang(facts: MachineFacts) -> bool:
    return "clang" in facts.compilers


def _compiled(facts: MachineFacts) -> Remarks:
    if _slow_compiler(facts):
        first = "" if _has_clang(facts) else " (install clang first)"
        yield (
            f"llama.cpp was compiled by {facts.compiler}: compiled by Clang it checks four tokens"
            f" in about five sixths of the time{first}",
            rebuild(facts, *CLANG),
        )


def _busy(facts: MachineFacts) -> Remarks:
    for said in formats.swapped(facts.swap_used, facts.memory_free, facts.memory_total):
        yield said, "Close other programs, or choose a smaller pair (localspec list)."
    if facts.busy:
        yield formats.busy(facts.others, facts.logical), "Close them while you chat."
    if facts.threads_asked > facts.cores:
        yield (
            f"the settings file asks for {facts.threads_asked} threads, the processor has"
            f" {facts.cores} cores: every step waits for the slowest thread",
            "Leave `threads` out of the settings file, then run: localspec tune",
        )


def _power(facts: MachineFacts) -> Remarks:
    if facts.power_profile in ("low-power", "quiet"):
        yield (
            f"the power profile is {facts.power_profile}",
            "sudo pmset -a lowpowermode 0"
            if facts.system == "darwin"
            else "powerprofilesctl set performance",
        )
    elif facts.on_battery:
        windows = "powercfg /setactive SCHEME_MIN, or plug it in"
        yield (
            formats.ON_BATTERY,
            windows if facts.system == "win32" else "Plug it in.",
        )


def _workers(facts: MachineFacts) -> Remarks:
    for worker in facts.workers:
        if worker.problem:
            yield (
                worker.problem,
                "Start `localspec worker` there, of the same version as here, or wait until the"
                " other machine has left it.",
            )
        elif worker.answer_s > SLOW_ANSWER_S:
            yield (
                f"the worker at {worker.endpoint} takes {worker.answer_s:.2f} s to answer, and"
                " every pass of the target waits for it",
                "Use a cable, or leave this worker out.",
            )


def _of_makers(facts: MachineFacts) -> Remarks:
    makers = [card for card in facts.cards if card in ("amd", "intel")]
    better = facts.devices or _used(facts) or {"nvidia", "apple"} & {*facts.cards}
    if makers and not better:
        debian = "; on Debian: libvulkan-dev, glslc and spirv-headers"
        yield (
            f"graphics by {' and '.join({'amd': 'AMD', 'intel': 'Intel'}[each] for each in makers)}"
            " could be used through Vulkan (install its SDK first"
            f"{debian if facts.system == 'linux' else ''})",
            rebuild(facts, "-DGGML_VULKAN=on"),
        )


def _notes(facts: MachineFacts) -> Remarks:
    yield from _of_makers(facts)
    yield from _compiled(facts)
    if facts.amx_left_out:
        yield (
            "the processor's matrix unit (AMX) is left out, as llama.cpp's kernels for it crash in"
            " some builds, and with it the rearranging of weights: a build without AMX writes a"
            " token in about three quarters of the time, and reads prompts a fifth more slowly",
            rebuild(facts, *(CLANG if _slow_compiler(facts) and _has_clang(facts) else ())),
        )
    if facts.address_space is not None:
        yield (
            f"a limit on the address space leaves {facts.address_space / 1e9:.1f} GB, and mapped"
            " weights count towards it",
            "ulimit -v unlimited (where the system allows it; else its administrator)",
        )
    if facts.allowed < facts.logical:
        yield f"this process may use {facts.allowed} of {facts.logical} processors", ""
    if facts.share is not None and facts.share < min(facts.cores, facts.allowed):
        yield (
            f"a container gives this process the time of {facts.share:.3g} processors",
            "Raise its limit (docker: --cpus).",
        )
    for said in formats.throttled(facts.clock, facts.clock_most):
        yield said, "Let it cool down, or choose another power profile."
