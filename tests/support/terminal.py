"""localspec in a real pseudo-terminal, on a screen that can be read."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pyte

from tests.support import toy

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def _caches() -> dict[str, str]:
    """The tests' own folders of measured costs and of compiled modules, if they have them."""
    names = ("LOCALSPEC_CACHE", "PYTHONPYCACHEPREFIX")
    return {name: os.environ[name] for name in names if name in os.environ}


class Terminal:
    """A program on a screen that can be read."""

    def __init__(
        self,
        arguments: list[str],
        data: Path,
        columns: int = 100,
        rows: int = 30,
        program: tuple[str, ...] = ("-m", "localspec"),
        *,
        environment: dict[str, str] | None = None,
    ) -> None:
        toy.install(data)
        self.pause_s = 0.0  # between two looks at the screen, which take time from the program
        self._data = data
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable,
            [*program, *arguments],
            dimensions=(rows, columns),
            env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8",
                 "HOME": str(Path.home()), "LOCALSPEC_DATA": str(data),
                 "LOCALSPEC_CONFIG": str(data),
                 "PYTHONPATH": str(ROOT), **_caches(), **(environment or {})},
            timeout=PATIENCE_S,
        )  # fmt: skip

    def read(self) -> None:
        """Read all output so far: half a frame may lack texts that both whole screens have."""
        try:
            data: Any = self.child.read_nonblocking(
                65536, timeout=0.05
            )  # bytes: no encoding is set
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += data
        self._stream.feed(data)

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.read()
            if condition():
                return
            time.sleep(self.pause_s)
        raise AssertionError(f"never happened: {what}\n{self.text()}")

    def sees(self, text: str) -> None:
        self.until(lambda: text in self.text(), text)

    def kept(self) -> int:
        """How many characters of answers are stored, of whole ones and of one being written."""
        count = "SELECT coalesce(sum(length(content)), 0) FROM "
        parts = [f"{count}messages WHERE role = 'assistant'", f"{count}pieces"]
        path = f"file:{self._data}/conversations.db?mode=ro"
        try:
            with closing(sqlite3.connect(path, uri=True)) as db:
                return sum(db.execute(part).fetchone()[0] for part in parts)
        except sqlite3.OperationalError:  # there is no store yet
            return 0

    def ends(self) -> int:
        self.until(lambda: not self.child.isalive(), "the end of the program")
        self.read()
        assert self.child.exitstatus is not None
        return self.child.exitstatus

    def restored(self) -> bool:
        """The alternate screen was left and the cursor is back."""
        last = self.raw.rfind(b"\x1b[?1049")
        shown = b"\x1b[?25h" in self.raw[max(0, last - 200) :]
        return shown and self.raw[last : last + 8] == b"\x1b[?1049l"
