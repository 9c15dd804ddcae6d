"""Real limits on a child's memory: of the address space, and by a control group."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CGROUP = Path("/sys/fs/cgroup")


def limit_address_space(n_bytes: int) -> None:
    """In the child, before it becomes another program: ``ulimit -v``."""
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


@contextmanager
def cgroup(n_bytes: int) -> Iterator[list[str]]:
    """Yield the start of a command line; what follows it runs in a control group of `n_bytes`.

    The test is skipped where this machine does not allow such a group. The group is made below
    that of this process, of version 2 or 1.
    """
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
    scope += ["-p", f"MemoryMax={n_bytes}", "-p", "MemorySwapMax=0"]
    if shutil.which(scope[0]) and _works([*scope, "true"]):
        yield scope
        return
    group = _own_group() / f"localspec-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}, and systemd-run makes none")
    try:
        limits = [group / name for name in ("memory.max", "memory.limit_in_bytes")]
        limit = next((each for each in limits if each.is_file()), None)
        if limit is None:
            pytest.skip("control groups do not limit memory here")
        limit.write_text(str(n_bytes))
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        group.rmdir()


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0


def _own_group() -> Path:
    """The folder of this process's control group that memory is counted in."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        pytest.skip("this system has no control groups")
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers == "memory":
            return _CGROUP / "memory" / own.lstrip("/")
        if not controllers and (_CGROUP / "cgroup.controllers").is_file():
            return _CGROUP / own.lstrip("/")
    pytest.skip("control groups do not limit memory here")
