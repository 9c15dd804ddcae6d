"""`packaging/build_wheel.py`: its changes to a source distribution, and what it refuses.

The workflow that publishes wheels shows that a wheel is built and answers.
"""

from __future__ import annotations

import importlib.util
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from localspec.engine.llama.platform import rpc
from tests.support.llama_source import source_file

ROOT = Path(__file__).parent.parent
TARGET = "x86_64-linux-gnu.2.17"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "packaging/build_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sdist(folder: Path, module: bytes) -> Path:
    path = folder / "llama_cpp_python-0.3.36.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("llama_cpp_python-0.3.36/llama_cpp/__init__.py")
        member.size = len(module)
        archive.addfile(member, io.BytesIO(module))
    return path


def wheel(folder: Path, *parts: str) -> Path:
    path = folder / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part in parts:
            archive.writestr(f"llama_cpp/lib/{part}", "")
    return path


def test_the_version_gets_a_local_part(script: ModuleType, tmp_path: Path) -> None:
    given = sdist(tmp_path, b'from .llama import *\n\n__version__ = "0.3.36"\n')
    source = script.unpacked(given, tmp_path / "source", "localspec.1")
    text = (source / "llama_cpp/__init__.py").read_text(encoding="utf-8")
    assert text == 'from .llama import *\n\n__version__ = "0.3.36+localspec.1"\n'


def test_a_source_without_its_version_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not name its version"):
        script.unpacked(sdist(tmp_path, b"version = 1\n"), tmp_path / "source", "localspec.1")


@pytest.mark.parametrize(
    ("target", "prefix", "ending"),
    [(TARGET, "lib", ".so"), ("x86_64-windows-gnu", "", ".dll"), ("metal", "lib", ".dylib")],
)
def test_a_wheel_needs_its_libraries_where_backends_are_looked_for(
    script: ModuleType, tmp_path: Path, target: str, prefix: str, ending: str
) -> None:
    parts = script.parts_of(target, "ggml-vulkan")
    whole = [f"{prefix}{part}{ending}" for part in parts]
    script.require_parts(wheel(tmp_path, *whole), parts)
    for i, part in enumerate(parts):
        with pytest.raises(SystemExit, match=rf"a\.whl lacks {re.escape(part)}$"):
            script.require_parts(wheel(tmp_path, *whole[:i], *whole[i + 1 :]), parts)


@pytest.mark.parametrize(
    ("target", "begins", "ends"),
    [
        (TARGET, 'ARCH STREQUAL "x86"', 'ARCH STREQUAL "ARM"'),
        ("aarch64-linux-gnu.2.17", 'ARCH STREQUAL "ARM"', 'MATCHES "Android"'),
        ("aarch64-macos", "(APPLE)", 'ARCH STREQUAL "PowerPC"'),
    ],
)
def test_the_levels_are_those_of_llama_cpp(
    script: ModuleType, target: str, begins: str, ends: str
) -> None:
    text = source_file("ggml/src/CMakeLists.txt").read_text(encoding="utf-8")
    every = text.partition("if (GGML_CPU_ALL_VARIANTS)")[2]
    section = every.partition(begins)[2].partition(ends)[0]
    built = re.findall(r"ggml_add_cpu_backend_variant\(([\w.]+)", section)
    assert list(script.LEVELS[script.PLATFORMS[target]]) == built


@pytest.mark.parametrize(
    ("target", "tag"),
    [
        ("aarch64-linux-gnu.2.17", "linux_aarch64"),
        ("x86_64-windows-gnu", "win_amd64"),
        ("aarch64-macos", "macosx_13_0_arm64"),
    ],
)
def test_a_wheel_for_another_system_is_built_as_this_one(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, tag: str
) -> None:
    """If a variable said so, uv would fetch tools for that system, and remember it as this one."""

    def run(command: list[str], **how: object) -> None:
        assert f"wheel.tags=py3-none-{tag}" in command
        assert "env" not in how
        (tmp_path / "a.whl").touch()

    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.build(tmp_path, target, tmp_path, {}) == tmp_path / "a.whl"


def auditwheel(tag: str) -> Callable[..., None]:
    """Stands for the program, which writes a copy of a wheel with the tag that it finds."""

    def run(command: list[str], **_: object) -> None:
        assert "--plat" not in command  # takes the tags of this machine's processor alone
        folder = Path(command[command.index("--wheel-dir") + 1])
        folder.mkdir()
        (folder / f"a-{tag}.whl").touch()

    return run


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_a_wheel_gets_the_tag_of_its_target(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: str
) -> None:
    tag = f"manylinux_2_17_{processor}"
    monkeypatch.setattr(script.subprocess, "run", auditwheel(tag))
    script.tagged(wheel(tmp_path), f"{processor}-linux-gnu.2.17", tmp_path / "wheels")
    assert [each.name for each in (tmp_path / "wheels").iterdir()] == [f"a-{tag}.whl"]


def test_a_wheel_that_needs_a_newer_system_than_its_target_is_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.subprocess, "run", auditwheel("manylinux_2_34_aarch64"))
    with pytest.raises(SystemExit, match="needs more than the tag manylinux_2_17_aarch64"):
        script.tagged(wheel(tmp_path), "aarch64-linux-gnu.2.17", tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for Vulkan's SDK, on a system that has no part of it."""
    for name in ("bin/glslc", "include/vulkan/vulkan_core.h", "include/spirv/unified1/spirv.hpp"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch(mode=0o700)
    (tmp_path / "include/vulkan/vulkan_core.h").write_text("} VkLayerSettingEXT;\n")
    monkeypatch.setenv("VULKAN_SDK", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    return tmp_path


def test_vulkan_is_built_with_the_headers_of_its_sdk(script: ModuleType, sdk: Path) -> None:
    defines = script.vulkan_defines()
    assert defines["VULKAN_HEADERS"] == str(sdk / "include")
    assert Path(defines["CMAKE_PROJECT_llama_cpp_INCLUDE"]).exists()


@pytest.mark.parametrize(
    ("part", "text", "name"),
    [
        ("bin/glslc", None, "glslc"),
        ("include/vulkan/vulkan_core.h", None, "Vulkan's headers of version 1.3.272"),
        ("include/vulkan/vulkan_core.h", "/* 1.3.239 */", "Vulkan's headers of version 1.3.272"),
        ("include/spirv/unified1/spirv.hpp", None, "SPIR-V's headers"),
    ],
)
def test_what_vulkan_lacks_here_is_said(
    script: ModuleType, sdk: Path, part: str, text: str | None, name: str
) -> None:
    (sdk / part).unlink()
    if text is not None:
        (sdk / part).write_text(text)
    with pytest.raises(SystemExit, match=f"needs {name}.* in {sdk}; Debian 13"):
        script.vulkan_defines()


def test_vulkan_is_for_linux(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["build_wheel.py", "no.tar.gz", "metal", "--vulkan"])
    with pytest.raises(SystemExit):
        script.main()
    assert "--vulkan is for Linux alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "local", "backends"),
    [
        (["metal"], "localspec.1.metal", {"ggml-metal"}),
        (["aarch64-macos"], "localspec.1", set()),
        ([TARGET], "localspec.1", set()),
        ([TARGET, "--vulkan"], "localspec.1.vulkan", {"ggml-vulkan"}),
    ],
)
def test_a_wheel_with_a_backend_for_cards_has_it_and_another_name(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    local: str,
    backends: set[str],
) -> None:
    seen: list[object] = []
    plain = {*script.parts_of(words[0])}
    monkeypatch.setattr("sys.argv", ["build_wheel.py", "no.tar.gz", *words])
    monkeypatch.setattr(script, "vulkan_defines", dict)
    monkeypatch.setattr(script, "unpacked", lambda *given: seen.append(given[2]))
    monkeypatch.setattr(script, "build", lambda *_: None)
    monkeypatch.setattr(script, "require_parts", lambda _, parts: seen.append({*parts} - plain))
    monkeypatch.setattr(script, "tagged", lambda *_: None)
    script.main()
    assert seen == [local, backends]


def test_the_workflow_and_the_page_build_what_the_script_knows(script: ModuleType) -> None:
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert {*re.findall(r"target: ([\w.-]+)", workflow)} <= {*script.PLATFORMS}
    assert all(f"`{target}`" in page or target == TARGET for target in script.PLATFORMS)
    assert f'LLAMA_CPP: "{rpc._BUILD}"' in workflow
    assert f"llama_cpp_python-{rpc._BUILD}.tar.gz {TARGET}" in page
