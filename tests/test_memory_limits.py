"""Under a real limit on memory a command answers or says why not; no process is killed."""

from __future__ import annotations

import errno
import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import cli, machine
from localspec.cli import memory_limit, subcommands
from localspec.cli.subcommands import LEAST, report, require_memory
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Model
from localspec.errors import OutOfMemory, lacks_memory
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.planning import load_plan
from localspec.pairs.memory.placement import PROGRAM

from .support import toy
from .support.limits import cgroup, limit_address_space

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits are Unix's")
MB = 1 << 20


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """The command said why and what helps, in one line each, and nothing else."""
        assert (self.code, self.out) == (1, "")
        assert self.err.startswith("error: ")
        assert len(self.err.splitlines()) == 2
        for word in words:
            assert word in self.err


def run(*arguments: str, before: tuple[str, ...] = (), limit: int | None = None) -> Done:
    """`localspec run` in a separate process, its address space limited if asked for."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "localspec", "run", "-p", "hi", "-n", "2", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=functools.partial(limit_address_space, limit) if limit else None,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 250 MB."""
    return toy.write_repeated(tmp_path_factory.mktemp("large") / "large.gguf", 250_000_000)


# --- ulimit -v --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_target_larger_than_the_address_space_is_refused(large: Path, toy_draft: Path) -> None:
    pair = ("--target", str(large), "--draft", str(toy_draft), "-t", "1")
    run(*pair, limit=400 * MB).refused("the models need about", "this process may take", "ulimit")


@pytest.mark.slow
def test_copied_weights_are_refused_as_well(large: Path) -> None:
    pair = ("--target", str(large), "--draft", "none", "-t", "1", "--no-mmap")
    run(*pair, limit=400 * MB).refused("the models need about", "ulimit")


@pytest.mark.slow
def test_a_smaller_cache_is_chosen_where_that_fits() -> None:
    run("toy", "-c", "900000", "-t", "1", limit=3 << 30).refused(
        "this process may take", "--ctx-size"
    )
    fitted = run("toy", "-c", "290000", "-t", "1", limit=3 << 30)
    assert fitted.code == 0
    assert "a cache in q8_0 instead of f16" in fitted.err


@pytest.mark.parametrize("megabytes", [40, 110])
def test_too_little_for_the_libraries_is_said_before_they_are_loaded(megabytes: int) -> None:
    run("toy", "-t", "1", limit=megabytes * MB).refused("localspec itself needs", "ulimit -v")


@pytest.mark.few(1)
@pytest.mark.parametrize("megabytes", [20, 26])
def test_too_little_for_python_is_said(megabytes: int) -> None:
    run("toy", "-t", "1", limit=megabytes * MB).refused("memory")


@pytest.mark.few(1)
@pytest.mark.parametrize("megabytes", [19, 22])
def test_too_little_for_modules_that_have_to_be_compiled_is_said(
    megabytes: int, tmp_path: Path
) -> None:
    uncompiled = ("env", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPYCACHEPREFIX={tmp_path}")
    run("toy", "-t", "1", before=uncompiled, limit=megabytes * MB).refused("memory")


@pytest.mark.parametrize("name", ["_socket.so", "_psutil_linux.abi3.so"])
def test_a_library_that_cannot_be_mapped_means_too_little_memory(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shortage = ImportError(f"/lib/{name}: failed to map segment from shared object")
    assert report(shortage) == 1
    assert capsys.readouterr().err.startswith("error: there is not enough memory\n")
    assert report(ImportError("No module named 'psutil'")) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: a package that localspec needs cannot be loaded: No module")


@pytest.mark.slow
def test_threads_that_would_not_start_are_counted() -> None:
    run("toy", "-t", "64", limit=500 * MB).refused("the models need about", "ulimit -v")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("megabytes", [60, 90, 130, 200, 230, 245, 260, 280, 320, 360, 400, 900])
def test_under_any_limit_there_is_an_answer_or_a_reason(megabytes: int, threads: int) -> None:
    done = run("toy", "-c", "4096", "-t", str(threads), limit=megabytes * MB)
    if done.code:
        done.refused("memory")
    else:
        assert done.out


def test_the_libraries_room_is_required_only_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "address_space_left", lambda: None)
    require_memory()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(machine, "address_space_left", lambda: LEAST)
    require_memory()
    monkeypatch.setattr(machine, "address_space_left", lambda: LEAST - 1)
    with pytest.raises(OutOfMemory, match="localspec itself"):
        require_memory()


# --- a control group --------------------------------------------------------------------------


@pytest.mark.slow
def test_in_a_small_control_group_a_large_target_is_read_from_disk(
    large: Path, toy_draft: Path
) -> None:
    pair = ("--target", str(large), "--draft", str(toy_draft), "-t", "1", "-c", "512")
    with cgroup(250 * MB) as command:
        done = run(*pair, "--gamma", "2", before=tuple(command))
    assert done.code == 0, done.err
    assert "read from disk again and again" in done.err


@pytest.mark.slow
def test_in_a_small_control_group_what_cannot_be_read_from_disk_is_refused(large: Path) -> None:
    pair = ("--target", str(large), "--draft", "none", "-t", "1", "-c", "512")
    with cgroup(250 * MB) as command:
        copied = run(*pair, "--no-mmap", before=tuple(command))
        cached = run(*pair[:-1], "1000000", before=tuple(command))
    copied.refused("the models need about", "--no-mmap")
    cached.refused("the models need about", "--ctx-size")


# --- a scripted machine -----------------------------------------------------------------------


def test_weights_that_stay_on_disk_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    real, copies = Model.load, []

    def load(path: Path, **how: Any) -> Model:
        copies.append(how["repack"])
        return real(path, **how)

    monkeypatch.setattr(Model, "load", load)
    for free in (PROGRAM + 11_000_000, 10**9):
        monkeypatch.setattr(machine, "available", lambda free=free: free)
        options = LoadRequest(pair="toy", ctx_size=32, threads=1, gamma=2)
        load_session(options, progress=lambda _step, _share: None, cancel=Cancel()).close()
    assert copies == [False, False, True, True]


@pytest.mark.parametrize("how", [{"mmap": False}, {"mlock": True}])
def test_what_may_not_stay_on_disk_is_refused(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    monkeypatch.setattr(machine, "available", lambda: PROGRAM + 11_000_000)
    with pytest.raises(OutOfMemory, match="the models need") as refused:
        load_session(
            LoadRequest(pair="toy", ctx_size=32, **how),  # type: ignore[arg-type]
            progress=lambda _step, _share: None,
            cancel=Cancel(),
        )
    assert refused.value.remedy.startswith("Without --no-mmap and --mlock")


@pytest.mark.parametrize(("limit", "told"), [(8 << 20, True), (1 << 30, False), (-1, False)])
def test_weights_that_cannot_all_be_locked_are_told(
    monkeypatch: pytest.MonkeyPatch, limit: int, *, told: bool
) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _which: (limit, -1))
    monkeypatch.setattr(machine, "address_space_left", lambda _threads=0: None)
    notices = load_plan(check(LoadRequest(pair="toy", mlock=True))).notices
    assert any("ulimit -l" in each for each in notices) == told
    assert not any(
        "ulimit -l" in each for each in load_plan(check(LoadRequest(pair="toy"))).notices
    )


@pytest.mark.parametrize("limited", [False, True])
def test_a_fault_of_python_is_a_lack_of_memory_only_under_a_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, limited: bool
) -> None:
    def fail() -> None:
        raise SystemError("initialization of _x raised unreported exception")

    ignored = SimpleNamespace(getsignal=lambda _: None, SIGINT=2, default_int_handler=len)
    monkeypatch.setattr(cli, "signal", ignored)
    monkeypatch.setattr(cli, "_run", fail)
    monkeypatch.setattr(cli, "limited", lambda: limited)
    with pytest.raises(SystemExit if limited else SystemError):
        cli.main()
    assert ("not enough memory" in capfd.readouterr().err) is limited


@pytest.mark.parametrize("limited", [False, True])
def test_a_limit_is_told_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, limited: bool
) -> None:
    def fail() -> None:
        raise MemoryError

    ignored = SimpleNamespace(getsignal=lambda _: None, SIGINT=2, default_int_handler=len)
    monkeypatch.setattr(cli, "signal", ignored)
    monkeypatch.setattr(cli, "_run", fail)
    for module in (cli, subcommands):
        monkeypatch.setattr(module, "limited", lambda: limited)
    with pytest.raises(SystemExit):
        cli.main()
    assert report(MemoryError()) == 1
    told = capfd.readouterr().err.splitlines()
    assert told[0] == told[2] == "error: there is not enough memory"
    assert ["ulimit -v" in way for way in told[1::2]] == [limited, limited]


def test_a_limit_that_keeps_its_module_out_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory_limit.limited()
    monkeypatch.setattr(sys, "platform", "win32")
    assert not memory_limit.limited()


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_what_torch_says_of_memory_is_understood(error: RuntimeError, *, lacks: bool) -> None:
    assert lacks_memory(error) is lacks


@pytest.mark.parametrize("lacks", [errno.ENOMEM, errno.EIO])
def test_a_search_for_modules_that_lacks_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, lacks: int
) -> None:
    """Below some 15 MB the folder of the modules cannot be listed."""

    def fail() -> None:
        raise OSError(lacks, "it fails", "localspec/cli")

    ignored = SimpleNamespace(getsignal=lambda _: None, SIGINT=2, default_int_handler=len)
    monkeypatch.setattr(cli, "signal", ignored)
    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(SystemExit if lacks == errno.ENOMEM else OSError):
        cli.main()
    assert ("not enough memory" in capfd.readouterr().err) is (lacks == errno.ENOMEM)
