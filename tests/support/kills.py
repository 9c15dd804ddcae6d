"""Kill the engine, or the whole chat, at random moments of an answer in a real terminal.

    python -m tests.support.kills [--kills 50] [--seed 1]

A greedy answer is asked for, and the engine's process is ended in the middle of it. The chat has to
say so, the terminal has to work, what is stored has to be a beginning of the right answer with all
that was on the screen, and the answer after it has to be the right one. Then the app itself is
ended in four manners: no process of it may be left, the store has to be whole, and to lack at most
one round of what was on the screen. Takes a few seconds a kill.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from localspec.chat.history.store import Store
from tests.support import toy
from tests.support.terminal import Terminal

QUESTION = "Tell me a story about a dog."
# One manner of attention, or what was measured last would decide which of two near ties is said.
OPTIONS = ("toy", "--flash-attn", "on", "--temp", "0", "--gamma", "3", "--threads", "1",
           "--n-predict", "150")  # fmt: skip
F5 = "\x1b[15~"
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, None)
_GONE_WITHIN_S = 10.0
_ROUND = 4  # words at most: three drafted tokens and the target's own


@dataclass(frozen=True)
class Answer:
    """The newest answer in the store."""

    node: str
    text: str
    finish: str | None


class Killing:
    """A chat whose engine is killed again and again.

    Args:
        data: an empty folder.
        seed: of the moments.
    """

    def __init__(self, data: Path, seed: int) -> None:
        self._database = data / "conversations.db"
        self._random = random.Random(seed)
        self.chat = Terminal(["chat", *OPTIONS], data)
        self.chat.sees("ready")
        self.chat.child.send("/panel off\r")
        started = time.monotonic()
        self._ask()
        self._until_whole(None)
        self._takes = time.monotonic() - started
        self._right = self.newest().text
        assert len(self._right) > 200

    def engine(self) -> psutil.Process:
        """The engine's process."""
        (child,) = psutil.Process(self.chat.child.pid).children()
        return child

    def newest(self) -> Answer:
        """What the store says."""
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as db:
            node, text, finish = db.execute(
                "SELECT id, content, finish FROM messages WHERE role = 'assistant'"
                " ORDER BY number DESC"
            ).fetchone() or ("", "", None)
            pieces = db.execute("SELECT content FROM pieces WHERE message = ?", (node,))
            return Answer(node, text or "".join(row[0] for row in pieces), finish)

    def kill(self, how: signal.Signals) -> None:
        """Kill the engine once, and see to it that everything is as it should be."""
        self._clear()
        self._ask()
        self._wait()
        shown = self._words()
        self.engine().send_signal(how)
        said = "was killed" if how is signal.SIGKILL else "crashed (SIGSEGV)"
        self.chat.until(lambda: said in self.chat.text().replace("\n", " "), said)
        self.chat.sees("the models are gone")
        # The store's thread may still be writing.
        self.chat.until(lambda: len(self.newest().text.split()) >= shown, f"{shown} words kept")
        kept = self.newest()
        assert self._right.startswith(kept.text), kept
        self._go_on(whole=kept)

    def sleep(self, seconds: float) -> None:
        """Stop all processes in the middle of an answer; woken, they finish the right one."""
        self._clear()
        before = self.newest()
        self._ask()
        self._wait()
        app = psutil.Process(self.chat.child.pid)
        whole = [app, *app.children(recursive=True)]
        for one in whole:
            one.suspend()
        time.sleep(seconds)
        for one in whole:
            one.resume()
        self._until_whole(before)
        assert self.newest().text == self._right

    def _go_on(self, whole: Answer) -> None:
        """Load again, with one key or the other, and have the answer after all."""
        if whole.text and self._random.random() < 0.5:
            self.chat.child.send("\r")
            self.chat.sees("ready")
        self.chat.child.send(F5)
        self._until_whole(whole)
        assert self.newest().text == self._right

    def _ask(self) -> None:
        self.chat.child.send(QUESTION + "\r")
        self.chat.sees(f"▌ {QUESTION}")

    def _clear(self) -> None:
        self.chat.child.send("/clear\r")
        self.chat.until(lambda: "▌" not in self.chat.text(), "a new conversation")

    def _wait(self) -> None:
        end = time.monotonic() + self._takes * self._random.random()
        while time.monotonic() < end:
            self.chat.read()

    def _words(self) -> int:
        """Words of the answer that can be seen."""
        return _words(self._right.split(), self.chat.text())

    def _until_whole(self, before: Answer | None) -> None:
        """Wait for an answer newer than `before` that has ended by itself."""
        self.chat.until(
            lambda: (now := self.newest()) != before and now.finish in ("stop", "length"),
            "a whole answer",
        )
        self.chat.sees("ready")

    def leave(self) -> None:
        """Quit the way a user does."""
        engine = self.engine()
        self.chat.child.send("\x11")
        assert self.chat.ends() == 0
        assert self.chat.restored()
        assert gone([engine])


def kill_app(data: Path, seed: int, how: signal.Signals | None) -> None:
    """End the app in the middle of an answer: no process is left, at most one round is lost.

    Args:
        data: an empty folder.
        seed: of the moment.
        how: None copies the store's files as they are in one moment, then ends the app; what is
            in the copy counts.
    """
    # So tall that its first words stay on the screen.
    chat = Terminal(["chat", *OPTIONS[:-1], "2000"], data, rows=120)
    wait = random.Random(seed).random()
    if asks := wait > 0.2:
        chat.sees("ready")
        chat.child.send("/panel off\r")
        chat.until(lambda: "context" not in chat.text(), "a screen without a panel")
        chat.child.send(QUESTION + "\r")
        chat.sees(f"▌ {QUESTION}")
    else:
        chat.sees("localspec")
    if wait > 0.3:
        chat.sees(" ".join(right_answer().split()[:2]))
    end = time.monotonic() + wait
    while time.monotonic() < end:
        chat.read()
    processes = [psutil.Process(chat.child.pid), *psutil.Process(chat.child.pid).children()]
    assert len(processes) > 1
    seen = chat.text()
    if how is None:
        data = _copied(processes[0], data)
    processes[0].send_signal(how or signal.SIGTERM)
    chat.until(lambda: not chat.child.isalive(), "the app's end")
    assert gone(processes[1:])
    if asks:
        require_kept(data / "conversations.db", seen)


def _copied(app: psutil.Process, data: Path) -> Path:
    """The store's files as they are in this moment, somewhere else."""
    copies = data / "copy"
    copies.mkdir()
    app.suspend()
    for path in data.glob("conversations.db*"):
        if not path.name.endswith("-shm"):  # memory: a power cut leaves none of it
            shutil.copyfile(path, copies / path.name)
    app.resume()
    return copies


def require_kept(database: Path, seen: str) -> None:
    """See that a store is whole, and holds all of a screen's answer but a round at most."""
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with closing(Store(database)) as store:
        (listed,) = store.listed()
        question, *answer = store.load(listed.header.id).tree.path()
        assert not store.spoilt, store.spoilt
    assert question.message.content == QUESTION
    kept = answer[0].message.content if answer else ""
    assert right_answer().startswith(kept), kept
    shown = _words(right_answer().split(), seen)
    assert len(kept.split()) >= shown - _ROUND, (shown, kept)


@functools.cache
def right_answer() -> str:
    """The answer of a chat that is not disturbed."""
    with tempfile.TemporaryDirectory() as folder:
        toy.install(Path(folder))
        command = ["run", *OPTIONS[:-1], "2000", "-p", QUESTION, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "localspec", *command],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LOCALSPEC_DATA": folder},
            capture_output=True,
            check=True,
        )
    return str(json.loads(done.stdout)["text"])


def _words(right: list[str], screen: str) -> int:
    """How many words of an answer can be seen, from its first on."""
    seen = " ".join(screen.split())
    return max(n for n in range(len(right) + 1) if " ".join(right[:n]) in seen)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end soon."""
    end = time.monotonic() + _GONE_WITHIN_S
    while time.monotonic() < end:
        if not any(map(_lives, processes)):
            return True
        time.sleep(0.02)
    return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    """Kill as often as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for how in (signal.SIGKILL, signal.SIGSEGV):
        with tempfile.TemporaryDirectory() as folder:
            killing = Killing(Path(folder), arguments.seed)
            for _ in range(arguments.kills):
                killing.kill(how)
            killing.leave()
        print(f"{arguments.kills} engines ended by {how.name}: all as it should be", flush=True)
    for number in range(arguments.kills):
        with tempfile.TemporaryDirectory() as folder:
            kill_app(Path(folder), arguments.seed + number, ENDS[number % len(ENDS)])
    print(f"{arguments.kills} apps killed: no process was left, nothing was lost")


if __name__ == "__main__":
    main()
