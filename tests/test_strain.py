"""A full disk, too few open files, endless input, unforeseen settings and values."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from localspec.cli.settings_file import FILE, SettingsFile, read, settings_of
from localspec.cli.subcommands import COMMANDS, cli
from localspec.errors import EXIT_USAGE
from tests.support.command import localspec

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such devices")
LIMITED = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4));"
    " os.execv(sys.argv[1], sys.argv[1:])"
)
# Values, in the notation of a settings file, that may stand in place of the right ones.
VALUES = (
    *("inf", "-inf", "nan", "5.7", "-1", "0", "1e400", "9" * 4000, "true", "[]", "[1, inf]", "{}"),
    *('""', '"x"', '"\\u001b[2J"', '"\\u0000"', "1979-05-27", "[[1], [2]]", '"' + "x" * 9999 + '"'),
    *('["a", 1, true]', "{a = 1}", '"inf"', '"5.7"', "0x7fffffffffffffff", "1e308"),
)


@pytest.mark.few(1)
@POSIX
@pytest.mark.parametrize("args", [["--help"], ["list"], ["run", "--help"]])
def test_a_full_output_is_told_in_words(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = localspec(*args, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n  Make room on the disk.\n"


@POSIX
def test_too_few_open_files_are_told_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, sys.executable, "-m", "localspec", "run", "-p", "hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Too many open files" in done.stderr
    assert "ulimit -n" in done.stderr
    assert "fault" not in done.stderr


@pytest.mark.slow
@POSIX
def test_input_without_end_is_refused() -> None:
    begun = time.monotonic()
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            [sys.executable, "-m", "localspec", "run"],
            stdin=endless,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "too large for a prompt: 64 MB" in done.stderr
    for option in ("--grammar-file", "--json-schema-file"):
        done = localspec("run", "-p", "hi", option, "/dev/zero")
        assert done.returncode == EXIT_USAGE
        assert "too large: 16 MB" in done.stderr
    assert time.monotonic() - begun < 20


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["run", "--n-predict", "x" * 100_000], EXIT_USAGE),
        (["run", "--" + "y" * 100_000], EXIT_USAGE),
        (["z" * 100_000], EXIT_USAGE),
        (["run", "--temp", "\x1b]0;owned\x07" * 99], EXIT_USAGE),
        (["run", "-p", "x", "/nowhere/" + "\x1b[2J" * 10_000 + ".gguf"], 1),
        (["show", "a" * 100_000], 1),
        (["list", "surplus" * 10_000], EXIT_USAGE),
    ],
)
def test_long_and_wild_values_are_shortened(args: list[str], code: int) -> None:
    done = localspec(*args)
    assert done.returncode in (code, EXIT_USAGE)
    assert 10 < len(done.stderr) <= 1000
    assert all(len(line) <= 500 for line in done.stderr.splitlines())
    assert all(char.isprintable() or char == "\n" for char in done.stderr)


def test_a_number_that_is_none_is_told_and_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    wild = '"\\u001b[2J' + "x" * 9999 + '"'
    (tmp_path / FILE).write_text(f"n-predict = inf\n[run]\nctx-size = 5.7\ngamma = {wild}\n")
    done = localspec("run", "--help")
    assert done.returncode == 0
    assert "line 1: n-predict cannot be inf" in done.stderr
    assert "line 3: ctx-size cannot be 5.7" in done.stderr
    assert "line 4: gamma cannot be" in done.stderr
    assert all(line.isprintable() and len(line) <= 500 for line in done.stderr.splitlines())


@POSIX
def test_settings_that_are_no_file_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert "it is not a file" in read(tmp_path / FILE).problems[0]


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def attack(number: int, path: Path) -> SettingsFile:
    """Read a file with random values for random settings of every command."""
    rng = random.Random(number)
    lines = []
    for name, command in commands().items():
        chosen = [setting for setting in settings_of(command) if rng.random() < 0.5]
        lines += [f"[{name}]", *(f"{setting} = {rng.choice(VALUES)}" for setting in chosen)]
    path.write_text("\n".join([*lines, f"[keys]\nregen = {rng.choice(VALUES)}"]))
    settings = read(path)
    for command in commands().values():
        defaults = settings.defaults(command, dict)
        context = click.Context(command, info_name=command.name, default_map=defaults)
        for parameter in command.params:
            if parameter.name in defaults:
                value, _ = parameter.consume_value(context, {})
                parameter.process_value(context, value)
    settings.keys({"regen": "f5"})
    return settings


@pytest.mark.parametrize("number", range(10))
def test_settings_of_every_kind_stop_no_command(number: int, tmp_path: Path) -> None:
    settings = attack(number, tmp_path / FILE)
    assert settings.problems
