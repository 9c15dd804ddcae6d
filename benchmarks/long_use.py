"""Two hours of a chat in a real terminal and of an endpoint, at four times a person's rate.

    uv run python -m benchmarks.long_use [--minutes 120] [--pair starter] [--json FILE]

A question is typed into the chat and one is sent to the endpoint every 15 seconds (a person asks
once a minute). Some answers are stopped, some requests are cut, some conversations begin anew, all
three protocols take turns. Once a minute the resident size, the open files and the children of
both programs are noted. At the end: by how much the resident size grew after minute 20 (aim: at
most 2 %), whether files or children are left, and how much of the store is not text.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.first_day import COPIES, TALES, WORDS
from tests.support.endpoint import SAID
from tests.support.terminal import Terminal

EVERY_S = 15.0
WARM_MIN = 20.0
GROWTH = 0.02
TOKENS = 80
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@dataclass(frozen=True)
class Reading:
    """What a program holds at one moment.

    Attributes:
        minute: since the start.
        resident: bytes of the program and its children together.
        files: open files and sockets of both.
        children: how many.
    """

    minute: float
    resident: int
    files: int
    children: int


def reading(program: psutil.Process, minute: float) -> Reading:
    """Look at a program and its children."""
    children = program.children(recursive=True)
    every = [program, *children]
    resident = sum(each.memory_info().rss for each in every)
    return Reading(minute, resident, sum(each.num_fds() for each in every), len(children))


def growth(readings: Sequence[Reading]) -> float:
    """Growth of the resident size, as a share of that after the warm-up; medians of ten."""
    warm = [each.resident for each in readings if each.minute >= WARM_MIN]
    part = max(1, min(10, len(warm) // 2))
    return median(warm[-part:]) / median(warm[:part]) - 1 if warm else 0.0


class ChatUser:
    """A user who types into a chat."""

    def __init__(self, chat: Terminal, draws: random.Random) -> None:
        self._chat, self._draws = chat, draws
        self.asked = 0

    def act(self) -> None:
        """Stop what is written, now and then begin anew, and ask."""
        send = self._chat.child.send
        if self._draws.random() < 0.2:
            send("\x1b")
            self._pause(1.0)
        if self._draws.random() < 0.1:
            send("/new\r")
            self._pause(1.0)
        question = self._draws.choice((*WORDS, *TALES, *COPIES))
        send(f"\x1b[200~{question}\x1b[201~" if "\n" in question else question)
        self._pause(0.6)
        send("\r")
        self.asked += 1

    def look(self) -> None:
        """Draw what has come: a program whose output is not read waits."""
        self._chat.read()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._chat.read()


class Client:
    """A program that uses the endpoint."""

    def __init__(self, address: str, draws: random.Random) -> None:
        self._address, self._draws = address, draws
        self.asked, self.failed = 0, 0

    def act(self) -> None:
        """Send a request of the next protocol; every fifth is cut after its first bytes."""
        path = PATHS[self.asked % len(PATHS)]
        question = self._draws.choice((*WORDS, *TALES, *COPIES))
        talk = [{"role": "user", "content": question}]
        body: dict[str, object] = {"model": "any", "stream": True, "max_tokens": TOKENS}
        body |= {"messages": talk} if "responses" not in path else {"input": question}
        if "responses" in path:
            body["max_output_tokens"] = body.pop("max_tokens")
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        self.asked += 1
        try:
            with urllib.request.urlopen(request, timeout=EVERY_S * 4) as answer:
                answer.read(200 if self._draws.random() < 0.2 else -1)
        except OSError as error:
            self.failed += 1
            print(f"{path}: {error}", file=sys.stderr, flush=True)


@contextmanager
def endpoint(pair: str, data: Path) -> Iterator[tuple[psutil.Process, str]]:
    """`localspec serve` in a separate process, and its address."""
    words = [sys.executable, "-m", "localspec", "serve", pair, "--port", "0"]
    log = data / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        while not (found := SAID.search(log.read_bytes())):
            if process.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8"))
            time.sleep(0.1)
        yield psutil.Process(process.pid), f"http://{found[1].decode()}:{found[2].decode()}"
    finally:
        process.terminate()
        process.wait(30)


def use(
    pair: str, minutes: float, seed: int, data: Path, every_s: float = EVERY_S
) -> dict[str, object]:
    """Use both programs for some minutes; return the figures."""
    chat = Terminal(["chat", pair, "-n", str(TOKENS)], data, 100, 30)
    with endpoint(pair, data) as (server, address):
        chat.sees("ready")
        user, client = ChatUser(chat, random.Random(seed)), Client(address, random.Random(seed + 1))
        program = psutil.Process(chat.child.pid)
        found: dict[str, list[Reading]] = {"chat": [], "serve": []}
        begun = time.monotonic()
        turns = int(minutes * 60 / every_s)
        for turn in range(turns):
            user.act()
            client.act()
            while time.monotonic() < begun + (turn + 1) * every_s:
                user.look()
            if turn % 4 == 3:
                minute = (time.monotonic() - begun) / 60
                found["chat"].append(reading(program, minute))
                found["serve"].append(reading(server, minute))
                print(round(minute), found["chat"][-1], found["serve"][-1], flush=True)
        left = [*program.children(recursive=True), *server.children(recursive=True)]
        chat.child.send("\x11")
        status = chat.ends()
    gone = psutil.wait_procs(left, timeout=20)[1]
    text, store = store_sizes(data / "conversations.db")
    return {
        "pair": pair,
        "questions": user.asked,
        "requests": client.asked,
        "failed": client.failed,
        "chat_ended": status,
        "children_left": len(gone),
        "text_bytes": text,
        "store_bytes": store,
        "growth": {name: growth(each) for name, each in found.items()},
        "files": {name: (each[0].files, each[-1].files) for name, each in found.items()},
        "readings": {name: [asdict(one) for one in each] for name, each in found.items()},
    }


def store_sizes(path: Path) -> tuple[int, int]:
    """Bytes of the messages' text in a store, and of its files."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (text,) = db.execute("SELECT coalesce(sum(length(content)), 0) FROM messages").fetchone()
    files = path.parent.glob(f"{path.name}*")
    return int(text), sum(each.stat().st_size for each in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--pair", default="starter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = use(arguments.pair, arguments.minutes, arguments.seed, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures), encoding="utf-8")
    figures.pop("readings")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
