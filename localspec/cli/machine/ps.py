"""`localspec ps`: the running commands of localspec, from the system's list of processes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import click
import psutil

from localspec import formats
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders, starter
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.names import catalogue
from localspec.safe_text import one_line

_LASTING = ("chat", "run", "serve", "tune", "bench", "train", "worker")
_HEADINGS = ("PID", "COMMAND", "PAIR", "SINCE", "MEMORY NOW", "ADDRESS")


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A command of localspec that runs.

    Attributes:
        pair: the loaded pair; empty while not known.
        since: when it began, in seconds since 1970.
        memory_bytes: main memory of the command and its engine, mapped weights included.
        address: where it listens; empty if it does not.
    """

    pid: int
    command: str
    pair: str
    since: float
    memory_bytes: int
    address: str


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show the chats, endpoints, workers, measurements and trainings that run, and their memory.

    It is that of the command and its engine together; a chat's panel shows the engine's.
    """
    found = running()
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    elif found:
        rows = [_HEADINGS, *map(_cells, found)]
        click.echo("\n".join(formats.columns(rows)))
    else:
        click.echo("nothing of localspec runs", err=True)


def running() -> list[RunningCommand]:
    """The running commands of this user, the oldest first.

    Raises:
        LocalspecError: the system shows no processes at all.
    """
    ours = dict[int, tuple[psutil.Process, str]]()
    for process in _processes():
        # The process has ended meanwhile, or belongs to another user.
        with suppress(psutil.Error, OSError):
            name = command_of(process.cmdline())
            if name and process.pid != os.getpid() and _is_ours(process):
                ours[process.pid] = process, name
    found = []
    for process, name in ours.values():
        with suppress(psutil.Error, OSError):
            launcher = ours.get(process.ppid())  # of Windows: it waits for the same command
            if launcher is None or launcher[1] != name:
                found.append(_described(process, name))
    return sorted(found, key=lambda one: one.since)


def _processes() -> list[psutil.Process]:
    try:
        return [*psutil.process_iter()]
    except (OSError, IndexError):  # psutil takes the first of none
        raise LocalspecError("the system shows no processes", "Mount /proc here.") from None


def command_of(words: list[str]) -> str:
    """Which command of localspec a command line runs; empty for other programs and short commands.

    Only Python counts: a shell or `uv run` with the same words is another program.
    """
    if not words or not Path(words[0]).stem.lower().startswith(("python", "localspec")):
        return ""
    for at, word in enumerate(words[:-1]):
        module = at > 0 and words[at - 1] == "-m" and word == "localspec"
        script = at < 2 and Path(word).stem == "localspec"
        if module or script:
            first = words[at + 1]
            asks = any(map(str.isspace, first))
            return first if first in _LASTING else "run" if asks else ""
    return ""


def _is_ours(process: psutil.Process) -> bool:
    return not hasattr(os, "getuid") or bool(process.uids().real == os.getuid())


def _described(process: psutil.Process, name: str) -> RunningCommand:
    family = [process, *process.children(recursive=True)]
    memory, models = 0, dict[str, int]()
    for one in family:
        with suppress(psutil.Error, OSError):
            memory += one.memory_info().rss
            models |= _models(one)
    target = max(models, key=models.__getitem__, default="")
    return RunningCommand(
        process.pid,
        name,
        _name_of(Path(target)) if target else "",
        process.create_time(),
        memory,
        _address(family),
    )


def _models(process: psutil.Process) -> dict[str, int]:
    """The sizes of the GGUF files that a process has mapped or open, by path."""
    paths = set[str]()
    with suppress(psutil.Error, OSError, AttributeError):  # macOS tells no maps
        paths |= {one.path for one in process.memory_maps()}
    with suppress(psutil.Error, OSError):
        paths |= {one.path for one in process.open_files()}
    sizes = {}
    for path in paths:
        with suppress(OSError):
            if holds_model(Path(path)):
                sizes[path] = Path(path).stat().st_size
    return sizes


def holds_model(path: PurePath) -> bool:
    """Whether a file holds a model, as far as its path tells: caches name some by a hash."""
    return path.suffix.lower() == ".gguf" or "blobs" in path.parts


def _name_of(target: Path) -> str:
    """The name of a target: that of a pair that has it, else its file's."""
    known = dict[Path, str]()
    with suppress(LocalspecError):
        known |= {pair.target.path: pair.name for pair in starter.pairs_here()}
    for entry in catalogue.pairs().values():
        if here := hub_cache.find(entry.target.reference):
            known.setdefault(here[0], entry.name)
    real = folders.real(target)
    return next((name for path, name in known.items() if folders.real(path) == real), target.stem)


def _address(family: list[psutil.Process]) -> str:
    for process in family:
        with suppress(psutil.Error, OSError):
            for one in process.net_connections(kind="tcp"):
                if one.status == psutil.CONN_LISTEN:
                    return f"{one.laddr.ip}:{one.laddr.port}"
    return ""


def _cells(one: RunningCommand) -> tuple[Any, ...]:
    began = datetime.fromtimestamp(one.since).astimezone()
    return (
        str(one.pid),
        one.command,
        one_line(one.pair, 40) or "-",
        f"{began:%Y-%m-%d %H:%M}",
        formats.size(one.memory_bytes),
        one.address or "-",
    )
