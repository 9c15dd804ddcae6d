"""The real program in a real pseudo-terminal, with the toy pair."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from localspec.cli.answers import chat as chat_command
from localspec.loading.load import check
from localspec.loading.load_request import LoadRequest
from localspec.loading.planning import load_plan
from localspec.pairs.memory.placement import PROGRAM
from tests.support import GOES_ON, screen_figures
from tests.support.kills import ENDS, Killing, kill_app
from tests.support.terminal import Terminal
from tests.support.toy import DRAFT, TARGET


@pytest.fixture
def terminal(
    toy_target: Path, toy_draft: Path, tmp_path: Path
) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, columns: int = 100, rows: int = 30) -> Terminal:
        opened.append(Terminal(["chat", *arguments], tmp_path, columns, rows))
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


@contextmanager
def pty_pair() -> Iterator[int]:
    """The end of a pseudo-terminal that a program takes for its own."""
    ours, theirs = os.openpty()
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def test_three_turns_speculation_toggled_and_quit(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("toy", "--temp", "0", "--n-predict", "24", "--gamma", "3", "--threads", "1")
    chat.sees("ready")
    for turn, text in enumerate(["Tell me a story.", "And then?", "What is 2+2?"]):
        chat.child.send(text)
        chat.sees(text)
        chat.child.send("\r")
        chat.sees(f"▌ {text}")
        chat.until(lambda: "ready" in chat.text() and "tokens/s" in chat.text(), f"turn {turn}")
        if turn == 0:
            assert "guessed" in chat.text()
            _takes_what_is_counted_for_the_program(chat)
            chat.child.send("\x1bOQ")  # F2
            chat.sees("drafting off")
    assert b"\x1b[>29u" in chat.raw  # asks for a key's place in a Latin layout, too
    chat.child.send("\x1b[1077::116;5u")  # Ctrl+T, where that key has the Russian е
    chat.sees("drafting on")
    chat.child.send("\x11")  # Ctrl+Q
    assert chat.ends() == 0
    assert chat.restored()
    assert "to go on with this conversation: localspec chat --continue" in chat.text()


@pytest.mark.slow
@pytest.mark.timed
def test_the_speed_and_the_wait_on_the_screen_agree_with_a_stopwatch(
    terminal: Callable[..., Terminal],
) -> None:
    """From the key that sends a question to the frame that shows the end of its answer."""
    chat = terminal("starter", "--temp", "0", "--n-predict", "320", columns=110, rows=40)
    chat.sees("ready")
    chat.child.send("Tell a long story about a dog who wanted to see the sea.")
    chat.sees("the sea.")
    begun = time.perf_counter()
    chat.child.send("\r")
    chat.until(lambda: screen_figures.read(chat.text()).tokens, "the line below the answer")
    took = time.perf_counter() - begun
    said = screen_figures.read(chat.text())
    assert said.wait is not None
    assert said.tokens > 100
    expected = said.wait + (said.tokens - 1) / said.speed
    # A frame comes some 0.1 s after its text, and later where other programs run.
    assert 0 <= took - expected <= 0.05 * expected + 0.25


def _takes_what_is_counted_for_the_program(chat: Terminal) -> None:
    """Private memory of all its processes, without the models', whose weights are mapped."""
    if sys.platform != "linux":
        return
    first = psutil.Process(chat.child.pid)
    taken = 0
    for one in (first, *first.children(recursive=True)):
        rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
        taken += 1024 * int(rollup.split("Anonymous:")[1].split()[0])
    toy = LoadRequest(pair=str(TARGET), draft=str(DRAFT), threads=1, gamma=3)
    models = load_plan(check(toy)).memory.needs
    taken -= sum(each.host_cache + each.host_buffers for each in models)
    assert taken == pytest.approx(PROGRAM, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "seen"),
    [("Tell me a story.\r", "▌ Tell me a story."), ("half of\ra paste", "│ a paste")],
)
def test_what_is_typed_before_the_first_frame_is_sent_by_its_enter(
    terminal: Callable[..., Terminal], typed: str, seen: str
) -> None:
    chat = terminal("toy", "--temp", "0", "--n-predict", "8", "--gamma", "3", "--threads", "1")
    chat.child.send(typed)
    chat.sees(seen)
    if typed.endswith("\r"):
        chat.sees("8 tokens")
    else:
        chat.sees("ready")
        assert "▌" not in chat.text()
    chat.child.send("\x11")
    assert chat.ends() == 0


@pytest.mark.slow
def test_another_pair_takes_over_the_conversation(
    terminal: Callable[..., Terminal], toy_target: Path
) -> None:
    chat = terminal("toy", "--temp", "0", "--n-predict", "8", "--gamma", "3", "--threads", "1")
    chat.sees("ready")
    chat.child.send("Tell me a story.\r")
    chat.until(lambda: "ready" in chat.text() and "8 tokens" in chat.text(), "an answer")
    chat.child.send("/pairs ./none.gguf\r")
    chat.sees("none.gguf does not exist")
    chat.child.send(f"/pairs {toy_target}\r")
    chat.until(lambda: f"localspec  {toy_target.stem}" in chat.text(), "the other pair")
    chat.sees("▌ Tell me a story.")
    chat.child.send("And then?\r")
    chat.sees("▌ And then?")
    chat.until(lambda: "ready" in chat.text() and "answering" not in chat.text(), "an answer")
    chat.child.send("\x1b[24~")  # F12
    chat.sees("available")
    chat.child.send("\x11")
    assert chat.ends() == 0
    assert chat.restored()
    again = terminal("--gamma", "0", "--threads", "1")
    again.sees(f"localspec  {toy_target.stem}")
    again.sees("ready")


@pytest.mark.slow
def test_quit_while_generating_restores_the_terminal(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("toy", "--threads", "1", *GOES_ON, columns=40, rows=10)
    chat.sees("ready")
    chat.child.send("Tell me a long story about a dog.\r")
    chat.sees("answering")
    chat.child.send("\x03")
    chat.child.send("\x03")
    assert chat.ends() == 0
    assert chat.restored()


@pytest.mark.slow
def test_a_missing_file_is_explained_on_the_screen_and_at_the_exit(
    terminal: Callable[..., Terminal],
) -> None:
    chat = terminal("./no-such-file.gguf")
    chat.until(lambda: "✗" in chat.text() or not chat.child.isalive(), "an error")
    chat.child.send("\x11")
    assert chat.ends() == 1
    assert b"Traceback" not in chat.raw
    assert b"no-such-file.gguf" in chat.raw.rpartition(b"\x1b[?1049l")[2]


def test_without_a_terminal_it_says_what_to_use_instead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "chat"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "localspec run" in done.stderr


@pytest.mark.parametrize(
    ("variables", "way"), [({"MSYSTEM": "MINGW64"}, "winpty localspec chat;"), ({}, "Without one")]
)
def test_on_windows_no_command_is_named_that_its_shells_refuse(
    variables: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PowerShell takes no ``<``, and the window of Git Bash is a pipe to other programs."""
    monkeypatch.setattr(chat_command, "os", SimpleNamespace(name="nt", environ=variables))
    told = chat_command._without_terminal()
    assert way in told
    assert told.endswith("localspec run -p TEXT")


def test_a_screen_that_nobody_could_see_is_not_opened() -> None:
    """The screen is drawn on standard error, which is a pipe here."""
    with pty_pair() as end:
        done = subprocess.run(
            [sys.executable, "-m", "localspec", "chat"],
            stdin=end, stdout=end, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


@pytest.mark.slow
def test_closed_streams_are_no_terminal() -> None:
    for closed in ("<&-", ">&-"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -m localspec chat {closed}', sys.executable],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2
        assert "needs a terminal" in done.stderr


@pytest.mark.slow
def test_a_conversation_survives_a_kill_and_is_resumed_edited_and_exported(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    chat = terminal("toy", "--temp", "0", "--gamma", "3", "--threads", "1", *GOES_ON)
    chat.sees("ready")
    chat.child.send("Tell me a story.\r")
    chat.until(chat.kept, "the answer's first words in the file")
    chat.child.send("\x1b")  # Esc, in the middle
    chat.sees("stopped")
    chat.child.send("/set n-predict 100\r")
    chat.child.send("\x1b[15~")  # F5: again
    chat.sees("‹ 2/2 ›")
    chat.child.send("Tell me a long story about a dog.\r")
    chat.sees("▌ Tell me a long story")
    database = tmp_path / "conversations.db"
    chat.until(lambda: _stored(database) >= 4, "the answer in the file")
    chat.child.kill(9)
    chat.until(lambda: not chat.child.isalive(), "the end")

    chat = terminal("--continue", "--threads", "1", "--n-predict", "24")
    chat.sees("▌ Tell me a long story")
    chat.sees("ready")
    chat.child.send("\x1b[19~")  # F8: edit
    chat.sees("editing an earlier message")
    chat.child.send(" Or a cat.\r")
    chat.sees("▌ Tell me a long story about a dog. Or a cat.")
    chat.until(lambda: "ready" in chat.text(), "the answer to the edited question")
    target = tmp_path / "out.md"
    chat.child.send(f"/export {target}\r")
    chat.until(lambda: target.exists() and target.read_text().endswith("-->\n"), "the export")
    text = target.read_text()
    assert "## You\n\nTell me a long story about a dog. Or a cat." in text
    chat.child.send("\x11")
    assert chat.ends() == 0
    assert chat.restored()


@pytest.mark.slow
def test_a_stored_conversation_is_not_read_again(terminal: Callable[..., Terminal]) -> None:
    # With a fixed length the draft is asked, whatever it costs here.
    options = ("--threads", "1", "--temp", "0", "--n-predict", "60", "--gamma", "2")
    wide = partial(terminal, *options, columns=140, rows=50)
    chat = wide("toy")
    chat.sees("ready")
    chat.child.send("Tell me a story about a dog, a cat, a bird and a fish.\r")
    chat.sees("length limit reached")
    chat.child.send("\x11")
    assert chat.ends() == 0

    chat = wide("--continue")
    chat.sees("ready")
    chat.child.send("And then?\r")
    found = r"target +(\d+) reused, (\d+) new\D+draft +(\d+) reused, (\d+) new"
    chat.until(lambda: re.search(found, chat.text()), "what was read")
    known, read, draft_known, draft_read = map(int, re.search(found, chat.text()).groups())
    assert known > 40, chat.text()
    assert read < 20, chat.text()
    assert (draft_known, draft_read) > (40, 0), chat.text()
    chat.child.send("\x11")
    assert chat.ends() == 0


def _stored(database: Path) -> int:
    """How many messages are in the file."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        count: int = db.execute("SELECT count(*) FROM messages").fetchone()[0]
        return count


@pytest.mark.slow
def test_what_cannot_be_resumed_is_explained(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("--resume", "nonsense")
    assert chat.ends() == 1
    assert b"there is no such conversation" in chat.raw


@pytest.mark.slow
@pytest.mark.parametrize("also", ["", "import numpy"])
def test_the_screens_process_imports_neither_llama_cpp_nor_numpy(
    also: str, toy_target: Path, tmp_path: Path
) -> None:
    """The chat runs as a real process; the second run imports numpy, as a control."""
    found = tmp_path / "found"
    program = f"""
import atexit, pathlib, sys
{also}
heavy = ("llama_cpp", "numpy", "ctypes", "jinja2")
atexit.register(lambda: pathlib.Path({str(found)!r}).write_text(
    str([name for name in heavy if name in sys.modules])))
from localspec.cli import main
main()
"""
    options = ["chat", "toy", "--threads", "1", "--n-predict", "8", "--gamma", "3", "--temp", "0"]
    chat = Terminal(options, tmp_path, program=("-c", program))
    chat.sees("ready")
    chat.child.send("Hello!\r")
    chat.until(lambda: "tokens ·" in chat.text() and "ready" in chat.text(), "an answer")
    chat.child.send("/pairs\r")
    chat.sees("available")
    chat.child.send("\x11")
    assert chat.ends() == 0
    assert ("numpy" in found.read_text()) == bool(also)
    assert also or found.read_text() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_the_engine_killed_at_random_moments_costs_nothing(
    how: signal.Signals, toy_target: Path, tmp_path: Path
) -> None:
    killing = Killing(tmp_path, seed=20)
    for _ in range(3):
        killing.kill(how)
    killing.leave()


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_killed_chat_leaves_no_process_behind_and_loses_a_round_at_most(
    how: signal.Signals | None, toy_target: Path, tmp_path: Path
) -> None:
    kill_app(tmp_path, 20, how)


@pytest.mark.slow
def test_a_locale_without_utf8_draws_the_same_screen(tmp_path: Path) -> None:
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    chat = Terminal(["chat", "toy", "--threads", "1"], tmp_path, environment=old)
    try:
        chat.sees("ready")
        chat.sees("╭──")
        assert "\\u2" not in chat.text()
        chat.child.send("\x11")
        assert chat.ends() == 0
    finally:
        chat.child.close(force=True)


@pytest.mark.slow
def test_a_chat_goes_on_where_its_working_folder_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    options = ("toy", "--temp", "0", "--n-predict", "8", "--gamma", "0", "--threads", "1")
    chat = Terminal(["chat", *options], tmp_path)
    try:
        chat.sees("ready")
        folder.rmdir()
        monkeypatch.chdir(tmp_path)
        chat.child.send("Tell @me a story.")
        chat.sees("Tell @me a story.")
        chat.child.send("\r")
        chat.until(lambda: chat.text().count("story") and "ready" in chat.text(), "the screen")
        chat.child.send("\r")  # sent as it is
        chat.sees("▌ Tell @me a story.")
        chat.until(lambda: "ready" in chat.text() and "tokens/s" in chat.text(), "an answer")
        chat.child.send("/export md\r")
        chat.sees("cannot write Tell-me-a-story.md")
        chat.child.send("\x11")
        assert chat.ends() == 0
    finally:
        chat.child.close(force=True)
