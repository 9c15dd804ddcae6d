"""llama.cpp's backends come from the package's folder, where a build keeps them in files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.engine.llama import log, variant
from localspec.engine.llama.library import lib, library_folder
from localspec.engine.llama.log import start_backend
from localspec.errors import EngineError

LOADED = """
from pathlib import Path
from localspec.engine.llama.log import start_backend
print(*(text for _, text in start_backend().since(0)))
maps = Path("/proc/self/maps")
print(maps.read_text() if maps.exists() else "")
"""
EXTENSION = ".dll" if sys.platform == "win32" else ".so"


class Registry:
    """Stands for ggml's registry in a build that keeps its backends in files.

    Args:
        devices: how many there are once backends were loaded.
        steps: receives what happens, in order.
    """

    def __init__(self, devices: int, steps: list[Any]) -> None:
        self.devices, self.steps = devices, steps

    def ggml_backend_reg_count(self) -> int:
        return len(self.steps)

    def ggml_backend_dev_count(self) -> int:
        return self.devices if self.steps else 0

    def ggml_backend_load_all_from_path(self, folder: bytes) -> None:
        self.steps.append(folder)


def started_anew(monkeypatch: pytest.MonkeyPatch, devices: int) -> list[Any]:
    """Have the next `start_backend` find such a registry; return what happens then."""
    start_backend()
    steps: list[Any] = []
    registry = Registry(devices, steps)
    monkeypatch.setattr(log, "ggml_library", lambda _name: registry)
    monkeypatch.setattr(log, "load_shared_library", lambda name, _folder: steps.append(name))
    monkeypatch.setattr(lib, "llama_backend_init", lambda: steps.append("init"))
    monkeypatch.setattr(log, "_started", False)
    return steps


def test_backends_are_loaded_from_the_package_before_llama_cpp_looks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = started_anew(monkeypatch, devices=1)
    start_backend()
    start_backend()
    assert steps == [os.fsencode(library_folder()), "ggml-rpc", "init"]


def test_without_one_for_this_processor_llama_cpp_does_not_look_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = started_anew(monkeypatch, devices=0)
    for _ in range(2):
        with pytest.raises(EngineError, match="can run on this processor"):
            start_backend()
        assert "init" not in steps
        steps.clear()


def test_a_library_in_the_working_folder_is_not_loaded(tmp_path: Path) -> None:
    """The workflow that builds wheels runs this with each of them."""
    for path in library_folder().glob("*ggml-cpu*"):
        prefix, _, _ = path.name.partition("ggml-")
        for kind in ("cpu", "rpc", "vulkan"):
            shutil.copy(path, tmp_path / f"{prefix}ggml-{kind}-planted{EXTENSION}")
    assert [*tmp_path.iterdir()]
    shown = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "planted" not in shown.stdout + shown.stderr
    assert str(tmp_path) not in shown.stdout


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("load_backend: loaded CPU backend from /x y/libggml-cpu-haswell.so\n", "haswell"),
        ("load_backend: loaded CPU backend from C:\\x\\ggml-cpu-zen4.dll\n", "zen4"),
        ("load_backend: loaded CPU backend from /x/libggml-cpu-armv8.2_2.so\n", "armv8.2_2"),
        ("load_backend: loaded RPC backend from /x/libggml-rpc.so\n", ""),
        ("", ""),
    ],
)
def test_the_chosen_kernels_are_named(
    monkeypatch: pytest.MonkeyPatch, said: str, name: str
) -> None:
    real = start_backend()
    monkeypatch.setattr(real, "_lines", type(real._lines)([(2, said)] if said else []))
    monkeypatch.setattr(real, "_count", 1 if said else 0)
    assert variant() == name


@pytest.mark.parametrize(
    ("said", "lacked"),
    [
        ("failed to allocate CPU buffer of size 1280000", True),
        ("mmap failed: Cannot allocate memory", True),
        ("ggml_vulkan: Device memory allocation of size 9 failed.", True),
        ("No suitable memory type found: ErrorOutOfDeviceMemory", True),
        ("CUDA error: out of memory", True),
        ("read error: Not enough memory resources are available to process this command.", True),
        ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", True),
        ("Shared memory size too small for matrix multiplication.", False),
        ("failed to initialize memory module", False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_words_of_memory(
    monkeypatch: pytest.MonkeyPatch, said: str, *, lacked: bool
) -> None:
    real = start_backend()
    section = real.section()
    monkeypatch.setattr(real, "_lines", type(real._lines)([(4, f"llama_load: {said}\n")]))
    monkeypatch.setattr(real, "_count", section.start + 1)
    assert section.lacked_memory() is lacked
