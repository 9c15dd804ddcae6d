"""What people type into a shell out of habit, with the toy pair."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.cli import shell_completion
from localspec.cli.machine import ps
from localspec.cli.machine.ps import command_of
from localspec.cli.questions import is_question
from tests.support import GOES_ON, toy
from tests.support.command import Result, run

FOLDERS = ("LOCALSPEC_DATA", "LOCALSPEC_CONFIG")
SHORT = ("--target", "toy", "-n", "8", "--temp", "0", "--gamma", "3", "--threads", "1")


def shell(data: Path, *words: str, more: Mapping[str, str] | None = None) -> Result:
    toy.install(data)
    return run(*words, **{**dict.fromkeys(FOLDERS, str(data)), **(more or {})})


def real_shell(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same in a separate process."""
    toy.install(data)
    return subprocess.run(
        [sys.executable, "-m", "localspec", *words],
        env={**os.environ, **dict.fromkeys(FOLDERS, str(data))},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def logged(data: Path, *words: str) -> list[dict[str, Any]]:
    done = shell(data, "logs", "--json", *words)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def test_a_question_is_asked_kept_continued_and_shown(tmp_path: Path) -> None:
    assert logged(tmp_path) == []
    alone = shell(tmp_path, "Tell me a story.", *SHORT)
    assert (alone.code, alone.err) == (0, "")
    assert alone.out.strip()
    after_run = shell(tmp_path, "run", "What is a quay?", "--json", *SHORT)
    first = json.loads(after_run.out)["prompt_tokens"]
    going_on = shell(tmp_path, "run", "And then?", "--continue", "--json", *SHORT[2:])
    assert json.loads(going_on.out)["prompt_tokens"] > first + 8  # what was said comes before
    assert shell(tmp_path, "run", "A secret?", "--no-log", *SHORT).code == 0

    found = logged(tmp_path, "-n", "9")
    assert [one["question"] for one in found] == [
        "Tell me a story.", "What is a quay?", "And then?",
    ]  # fmt: skip
    assert [one["pair"] for one in found] == ["toy"] * 3
    assert found[0]["answer"] == alone.out.rstrip("\n")
    assert found[0]["finish"] == "length"
    assert found[1]["conversation"] == found[2]["conversation"] != found[0]["conversation"]
    shown = shell(tmp_path, "logs", "-n", "2").out
    assert "Tell me a story." not in shown
    assert shown.index("> What is a quay?") < shown.index("> And then?")


@pytest.mark.slow
def test_every_form_is_understood_in_a_process_of_its_own(tmp_path: Path) -> None:
    def done(*words: str, code: int = 0) -> str:
        found = real_shell(tmp_path, *words)
        assert found.returncode == code, found.stderr
        return found.stderr if code else found.stdout

    assert done("Tell me a story.", *SHORT).strip()
    assert done("run", "What is a quay?", *SHORT).strip()
    assert done("run", "And then?", "--continue", *SHORT[2:]).strip()
    logged = json.loads(done("logs", "-n", "3", "--json"))
    questions = ["Tell me a story.", "What is a quay?", "And then?"]
    assert [one["question"] for one in logged] == questions
    assert "> And then?" in done("logs", "-n", "1")
    for name in ("list", "ls", "models"):
        assert "toy" in done(name, "--no-scan")
    assert isinstance(json.loads(done("ps", "--json")), list)
    assert "Did you mean chat?" in done("cht", code=2)
    assert "Did you mean toy?" in done("run", "toyy", "-p", "hi", code=1)


def test_going_on_with_nothing_is_explained(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "And then?", "--continue", *SHORT)
    assert done.code == 1
    assert "there is no conversation yet\n  `localspec chat` begins one." in done.err
    done = shell(tmp_path, "logs")
    assert (done.code, done.out, done.err) == (0, "", "nothing was asked yet\n")
    done = shell(tmp_path, "logs", "-n", "1" + "0" * 19)
    assert done.code == 2
    assert "is not in the range" in done.err


@pytest.mark.slow
def test_what_a_model_said_cannot_steer_the_terminal_that_shows_it(tmp_path: Path) -> None:
    asked = shell(tmp_path, "run", "Say \x1b[31m this.", *SHORT)
    assert asked.code == 0
    from tests.support.terminal import Terminal  # noqa: PLC0415 - Windows lacks it

    shown = Terminal(["logs"], tmp_path)
    assert shown.ends() == 0
    assert b"\x1b[31m" not in shown.raw
    assert "␛[31m this." in shown.text()


@pytest.mark.parametrize("name", ["ls", "models"])
def test_other_names_of_list(tmp_path: Path, name: str) -> None:
    done = shell(tmp_path, name, "--no-scan", "--json")
    assert done.code == 0
    assert "toy" in [pair["name"] for pair in json.loads(done.out)["pairs"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cht",), "Did you mean chat?"),
        (("--temp", "9", "hello there"), "--temp follows a command: localspec run --temp ..."),
        (("stop",), "Ctrl+C or `kill PID` for serve; localspec ps lists what runs."),
        (("why", "is", "that"), "A question stands in quotes"),
        (("run", "toyy", "-p", "hi"), "Did you mean toy?"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("serv", "toy"), "Did you mean serve?"),
                (("qwen3-8b",), "To open a pair: localspec chat qwen3-8b"),
                (("hi",), 'To ask: localspec run -p "hi"'),
                (("run", "./my models/none.gguf", "-p", "hi"), "none.gguf does not exist"),
            )
        ),
    ],
)
def test_what_is_mistyped_gets_a_suggestion(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = shell(tmp_path, *words)
    assert done.code in (1, 2)
    assert said in done.err


def test_a_file_with_a_space_in_its_name_is_no_question(tmp_path: Path) -> None:
    file = tmp_path / "my model"
    file.write_bytes(b"GGUF")
    assert not is_question(str(file))
    assert not is_question("./my models/none.gguf")
    assert not is_question("--temp 0")
    assert not is_question("qwen3-8b")
    assert is_question("hello there")
    assert is_question("What is in /etc/fstab?")


@pytest.mark.slow
def test_what_runs_is_shown_with_its_memory(tmp_path: Path) -> None:
    toy.install(tmp_path)
    endless = ("run", "toy", "-p", "Tell me a story.", "--threads", "1", *GOES_ON)
    runs = subprocess.Popen(
        [sys.executable, "-m", "localspec", *endless],
        env=os.environ | {"LOCALSPEC_DATA": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        pipesize=4096,
    )  # fmt: skip
    try:
        assert runs.stdout is not None
        runs.stdout.read(1)  # it answers
        found = json.loads(shell(tmp_path, "ps", "--json").out)
        (ours,) = [one for one in found if one["pid"] == runs.pid]
        assert (ours["command"], ours["pair"]) == ("run", "toy")
        assert ours["memory_bytes"] > 50_000_000
        assert abs(time.time() - ours["since"]) < 120
        line = next(
            line for line in shell(tmp_path, "ps").out.splitlines() if str(runs.pid) in line
        )
        assert line.split()[1:3] == ["run", "toy"]
    finally:
        runs.kill()
        runs.communicate()
    assert str(runs.pid) not in shell(tmp_path, "ps").out


@pytest.mark.slow
def test_where_a_worker_listens_is_shown(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "localspec", "worker", "--port", "0"],
        env=os.environ | {"LOCALSPEC_DATA": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        end = time.monotonic() + 60
        ours: dict[str, Any] = {}
        while time.monotonic() < end and not ours.get("address"):
            found = json.loads(shell(tmp_path, "ps", "--json").out)
            ours = next((one for one in found if one["pid"] == worker.pid), {})
        assert ours["command"] == "worker"
        assert ours["address"].startswith("127.0.0.1:")
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/v/bin/python3", "/v/bin/localspec", "chat", "demo"], "chat"),
        (["/v/bin/python", "-m", "localspec", "serve"], "serve"),
        (["python", "-P", "-m", "localspec", "Why is that?"], "run"),
        (["C:\\v\\localspec.exe", "chat"], ""),
        (["localspec", "worker"], "worker"),
        (["localspec", "train", "demo"], "train"),
        (["uv", "run", "localspec", "chat"], ""),
        (["bash", "-c", "localspec chat"], ""),
        (["python", "-m", "localspec.process"], ""),
        (["python", "-m", "localspec", "list"], ""),
        (["vim", "localspec", "chat"], ""),
        ([], ""),
    ],
)
def test_command_lines_that_run_localspec(words: list[str], command: str) -> None:
    if words[:1] == ["C:\\v\\localspec.exe"] and os.name == "nt":
        command = "chat"
    assert command_of(words) == command


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ("/cache/blobs/4ac1", True),
        ("/models/Tiny.GGUF", True),
        ("/models/blobs.txt", False),
        ("C:\\cache\\blobs\\4ac1", True),
    ],
)
def test_files_that_hold_models(path: str, holds: bool) -> None:
    kind = PureWindowsPath if "\\" in path else PurePosixPath
    assert ps.holds_model(kind(path)) is holds


def test_a_launcher_and_the_python_that_it_starts_are_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Windows, where localspec.exe starts Python with the same words and waits for it."""

    def process(pid: int, parent: int, *words: str) -> Any:
        return SimpleNamespace(pid=pid, ppid=lambda: parent, cmdline=lambda: [*words])

    chat, python = ("chat", "demo"), ("python", "localspec")
    processes = [
        process(7, 9, *python, *chat),
        process(8, 1, *python, "serve"),
        process(9, 1, "localspec", *chat),
        process(5, 8, *python, "worker"),
    ]
    monkeypatch.setattr(ps, "_processes", lambda: processes)
    monkeypatch.setattr(ps, "_is_ours", lambda _: True)
    monkeypatch.setattr(
        ps, "_described", lambda one, name: ps.RunningCommand(one.pid, name, "", one.pid, 0, "")
    )
    assert [(one.pid, one.command) for one in ps.running()] == [
        (5, "worker"),
        (8, "serve"),
        (9, "chat"),
    ]


POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows' home folder is not in HOME")


@POSIX
@pytest.mark.skipif(sys.platform == "darwin", reason="bash 3.2, and another file of its start")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_once_it_was_told_to(tmp_path: Path) -> None:
    import pexpect  # noqa: PLC0415 - Windows lacks it

    home = {"HOME": str(tmp_path), "SHELL": "/bin/bash"}
    (tmp_path / ".bashrc").write_text("PS1='ready$ '\nalias x=y")  # no line end
    for _ in range(2):
        done = shell(tmp_path, "--install-completion", more=home)
        assert done.code == 0, done.err
        assert "bash completes localspec" in done.out
    assert (tmp_path / ".bashrc").read_text().count("completion.bash") == 2  # in one line
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "localspec"
    call = "import localspec.cli, sys; sys.argv[0] = 'localspec'; localspec.cli.main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{call}" "$@"\n')
    program.chmod(0o755)
    bash = pexpect.spawn(
        "bash", ["-i"], encoding="utf-8", timeout=60,
        env=os.environ | home | {"PATH": f"{programs}:{os.environ['PATH']}", "TERM": "dumb"},
    )  # fmt: skip
    bash.expect_exact("ready$ ")
    bash.send("localspec doc\t")
    bash.expect_exact("localspec doctor")
    bash.close(force=True)


@POSIX
@pytest.mark.parametrize(
    ("named", "file"),
    [("zsh", ".zshrc"), ("fish", ".config/fish/completions/localspec.fish"), ("tcsh", None)],
)
def test_other_shells_are_told_in_their_own_files(
    tmp_path: Path, named: str, file: str | None
) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "ZDOTDIR": ""}
    done = shell(tmp_path, "--install-completion", named, more=home)
    if file is None:
        assert done.code == 2
        assert "there is no completion for tcsh" in done.err
    else:
        assert done.code == 0, done.err
        assert (tmp_path / file).is_file()


@POSIX
@pytest.mark.parametrize(
    ("version", "variable"), [("3.2.57(1)-release", "SHELL"), ("4.3.48(1)-release", "PATH")]
)
def test_a_bash_that_knows_no_such_completion_is_left_as_it_is(
    tmp_path: Path, version: str, variable: str
) -> None:
    (tmp_path / "bash").write_text(f"#!/bin/sh\necho '{version}'\n")
    (tmp_path / "bash").chmod(0o755)
    (tmp_path / ".bashrc").write_text("alias x=y\n")
    paths = {"SHELL": str(tmp_path / "bash"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    home = {"HOME": str(tmp_path), "SHELL": "/bin/zsh", variable: paths[variable]}
    done = shell(tmp_path, "--install-completion", "bash", more=home)
    assert (done.code, done.out) == (1, "")
    assert f"bash {version[:3]} cannot complete" in done.err
    assert (tmp_path / ".bashrc").read_text() == "alias x=y\n"


@POSIX
@pytest.mark.parametrize(("there", "told"), [(None, ".bash_profile"), (".profile", ".profile")])
def test_bash_on_macos_reads_a_file_of_its_login(
    there: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new .bash_profile would take the place of a .profile that is there."""
    if there:
        (tmp_path / there).write_text("alias x=y\n")
    monkeypatch.setattr(shell_completion.sys, "platform", "darwin")
    monkeypatch.setattr(shell_completion, "_require_newer", lambda: None)
    home = {"HOME": str(tmp_path), "PATH": str(tmp_path)}  # with no bash for click to judge
    done = shell(tmp_path, "--install-completion", "bash", more=home)
    assert (done.code, done.err) == (0, "")
    assert "completion.bash" in (tmp_path / told).read_text()
    assert not (tmp_path / ".bashrc").exists()


@POSIX
@pytest.mark.parametrize("uv", [True, False])
def test_a_program_that_the_shell_does_not_find_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, uv: bool
) -> None:
    """`uv run` adds the folder of its environment to the path, for the command alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "localspec").touch(0o755)
    monkeypatch.setattr(shell_completion.sys, "executable", str(folder / "python"))
    monkeypatch.delenv("UV", raising=False)
    if uv:
        monkeypatch.setenv("UV", "uv")
    home = {"HOME": str(tmp_path), "PATH": str(folder), "ZDOTDIR": ""}
    done = shell(tmp_path, "--install-completion", "zsh", more=home)
    assert done.code == 0, done.err
    assert ("once localspec is on its PATH" in done.out) is uv


@POSIX
def test_zsh_reads_its_files_in_a_folder_of_choice(tmp_path: Path) -> None:
    folder = tmp_path / "zsh"
    folder.mkdir()
    home = {"HOME": str(tmp_path), "ZDOTDIR": str(folder)}
    assert shell(tmp_path, "--install-completion", "zsh", more=home).code == 0
    assert "completion.zsh" in (folder / ".zshrc").read_text()
    assert not (tmp_path / ".zshrc").exists()
