"""What is built from this folder: a wheel that answers on its own, from a source that builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from localspec import __version__
from localspec.pairs.disk import starter
from tests.support import toy

ROOT = Path(__file__).parent.parent
WINDOWS = sys.platform == "win32"

pytestmark = pytest.mark.slow


def done(*command: str | Path, where: Path, **environment: str) -> str:
    """The output of a command that must succeed; its environment does not name this folder."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [*map(str, command)], cwd=where, env=known | environment, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


def built(kind: str, source: Path, out: Path) -> Path:
    """The file that the build backend makes with this environment's packages."""
    done(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, where=source)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the source distribution holds."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(built("sdist", ROOT, folder / "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"localspec-{__version__}"


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source distribution alone."""
    return built("wheel", source, tmp_path_factory.mktemp("built"))


def newer(source: Path, folder: Path) -> Path:
    """The wheel of a next version."""
    shutil.copytree(source, folder / "newer")
    for name in ("pyproject.toml", "localspec/__init__.py"):
        path = folder / "newer" / name
        text = path.read_text(encoding="utf-8").replace(f'"{__version__}"', '"99.0"')
        path.write_text(text, encoding="utf-8")
    return built("wheel", folder / "newer", folder / "next")


def without_requirements(wheel: Path, folder: Path) -> Path:
    """A file for uv's UV_OVERRIDE, by which it installs `wheel` alone and needs no network."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"localspec-{__version__}.dist-info/METADATA").decode()
    needed = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    lines = [f"{Requirement(each).name}; python_version < '3'\n" for each in needed]
    path = folder / "overrides.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says what belongs to it")
def test_the_source_holds_what_the_repository_holds(source: Path) -> None:
    known = done("git", "ls-files", where=ROOT).splitlines()
    assert [name for name in known if not (source / name).is_file()] == []


def test_a_wheel_from_the_source_holds_all_that_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {each.filename: each.file_size for each in archive.infolist()}
    package = {
        str(path.relative_to(ROOT)).replace(os.sep, "/"): path.stat().st_size
        for path in (ROOT / "localspec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {
        f"localspec/data/{name}": (ROOT / "models" / name).stat().st_size
        for name in ("catalogue.toml", "curves.toml", starter.HEAD)
    }
    licence = f"localspec-{__version__}.dist-info/licenses/LICENSE"
    assert package | shipped == {
        name: size for name, size in held.items() if name.startswith("localspec/")
    }
    assert held[licence] == (ROOT / "LICENSE").stat().st_size
    assert not [name for name in held if not name.startswith(("localspec/", "localspec-"))]


def test_a_wheel_answers_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """A .pth file adds this environment's packages, but not the .pth files among them."""
    done(sys.executable, "-m", "venv", tmp_path / "venv", where=tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if WINDOWS else "bin")
    done(scripts / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel,
         where=tmp_path)  # fmt: skip
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(done(scripts / "python", "-c", where, where=tmp_path).strip())
    (own / "needed.pth").write_text("\n".join(each for each in sys.path if "-packages" in each))
    folders = {name: str(tmp_path / name) for name in ("LOCALSPEC_CACHE", "LOCALSPEC_DATA")}

    def localspec(*arguments: str) -> str:
        return done(scripts / "localspec", *arguments, where=tmp_path, **folders)

    file = done(scripts / "python", "-c", "import localspec; print(localspec.__file__)",
                where=tmp_path)  # fmt: skip
    assert Path(file.strip()).is_relative_to(own)
    assert __version__ in localspec("--version")
    assert "qwen3-8b" in localspec("list")
    target = str(toy.TARGET)
    assert localspec("run", target, "-p", "Tell me a story.", "-n", "8", "--temp", "0").strip()


@pytest.mark.skipif(WINDOWS, reason="HOME does not say there where a program's folders are")
def test_uv_installs_runs_updates_and_removes_it_and_all_that_stays_is_told(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    """As docs/install.md says; this environment's packages stand in for those of an index."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    settings = {
        "UV_OVERRIDE": without_requirements(wheel, tmp_path),
        "UV_TOOL_DIR": tmp_path / "tools",
        "UV_TOOL_BIN_DIR": programs,
        "UV_CACHE_DIR": tmp_path / "cache",
        "UV_PYTHON": sys.executable,
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "HOME": home,
        **dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), ""),
        **dict.fromkeys(("LOCALSPEC_DATA", "LOCALSPEC_CONFIG", "LOCALSPEC_CACHE"), ""),
    }
    environment = {name: str(value) for name, value in settings.items()}

    def uv(*words: str | Path) -> str:
        return done(os.environ.get("UV", "uv"), "tool", *words, where=tmp_path, **environment)

    def localspec(*words: str) -> str:
        return done(programs / "localspec", *words, where=tmp_path, **environment)

    assert __version__ in uv("run", "--from", wheel, "localspec", "--version")
    assert not programs.exists()

    uv("install", wheel)
    assert localspec("--version").endswith(f" {__version__}\n")
    assert f"localspec {__version__}, llama-cpp-python" in localspec("doctor")
    assert localspec("run", str(toy.TARGET), "-p", "Tell me a story.", "-n", "8").strip()
    uv("install", newer(source, tmp_path), "--force")
    assert localspec("--version").endswith(" 99.0\n")

    told = localspec("rm", "--all")
    assert "Tell me a story." in localspec("logs")
    uv("uninstall", "localspec")
    assert not any(programs.iterdir())
    assert not (tmp_path / "tools" / "localspec").exists()
    stays = [line.split()[1] for line in told.splitlines() if line.startswith("stays: ")]
    for folder in stays:
        shutil.rmtree(folder)
    assert [path for path in home.rglob("*") if path.is_file()] == []
    assert len(stays) >= 2  # conversations, and measurements


def test_the_wheel_has_no_model_in_it_but_the_head(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {each.filename: each.compress_size for each in archive.infolist()}
    head = packed.pop(f"localspec/data/{starter.HEAD}")
    assert head < 20_000_000
    assert sum(packed.values()) < 3_000_000
    assert not [name for name in packed if name.endswith(".gguf")]
