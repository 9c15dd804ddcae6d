"""What the engine's own process costs: the chat with it beside the chat without, in real terminals.

    uv run python -m benchmarks.process_cost [--answers 24] [--target T.gguf --draft D.gguf]

Two chats run side by side, one with the engine in a process of its own and one with it in the
screen's (``LOCALSPEC_ENGINE=inline``), and answer the same question by turns; while one answers the
other is idle. Compared pair by pair: tokens per second as the chat stores them, and the time from
Enter to the end of the answer by this script's own clock. Then, without a screen, the time to the
first piece of text for many short prompts, in both ways by turns. Takes about eight seconds a pair
of answers with the demo pair, and a minute for the first tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from localspec.loading.request import LoadRequest
from localspec.process.engine_client import EngineClient
from localspec.process.messages import Loaded, LoadFailed, Turn, TurnOver
from tests.support.terminal import Terminal

PROMPT = "Tell me a story about a dog."
WAYS = ("process", "inline")
_RUN = "import os; os.environ['LOCALSPEC_ENGINE'] = {way!r}\nfrom localspec.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--first-tokens", type=int, default=300)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"{arguments.threads} threads, {arguments.target}\n")  # fmt: skip
    print("| process over inline | median | 95 % interval |")
    print("|---|---|---|")
    if arguments.answers:
        stored, clocked = answers(arguments)
        print(f"| tokens/s as stored, {len(stored)} pairs | {spread(stored)} |")
        print(f"| speed by the clock, {len(clocked)} pairs | {spread(clocked)} |")
    if arguments.first_tokens:
        later = first_tokens(arguments)
        print(f"| first text, ms later, {len(later)} pairs | {spread(later)} |")


def answers(arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Ratios of speeds: as stored, and by the clock."""
    options = ["chat", arguments.target, "--temp", "0", "--gamma", "3"]
    options += ["--threads", str(arguments.threads), "--n-predict", str(arguments.tokens)]
    options += ["--draft", arguments.draft] if arguments.draft else []
    with tempfile.TemporaryDirectory() as folder:
        chats = {way: Chat(way, options, Path(folder) / way) for way in WAYS}
        pairs = []
        for number in range(arguments.answers + 1):
            order = WAYS if number % 2 else WAYS[::-1]
            found = {way: chats[way].answer() for way in order}
            if number:  # the first one warms up
                pairs.append(found)
        for chat in chats.values():
            chat.terminal.child.close(force=True)
    stored = [one["process"][0] / one["inline"][0] for one in pairs]
    return stored, [one["inline"][1] / one["process"][1] for one in pairs]


class Chat:
    """A chat in a terminal that answers one question again and again."""

    def __init__(self, way: str, options: list[str], data: Path) -> None:
        data.mkdir()
        self._store = data / "conversations.db"
        program = ("-c", _RUN.format(way=way))
        self.terminal = Terminal(options, data, 160, 50, program)
        self.terminal.sees("ready")

    def answer(self) -> tuple[float, float]:
        """Tokens per second as stored, and seconds from Enter to the end."""
        self.terminal.child.send("/clear\r")
        self.terminal.sees("ready")
        known = self._speeds()
        began = time.perf_counter()
        self.terminal.child.send(PROMPT + "\r")
        self.terminal.sees("answering")
        self.terminal.until(lambda: "answering" not in self.terminal.text(), "the answer's end")
        seconds = time.perf_counter() - began
        self.terminal.until(lambda: len(self._speeds()) > len(known), "the stored figures")
        return self._speeds()[-1], seconds

    def _speeds(self) -> list[float]:
        with closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)) as db:
            rows = db.execute(
                "SELECT figures FROM messages WHERE role = 'assistant' ORDER BY rowid"
            ).fetchall()
        found = [json.loads(row[0] or "{}").get("tokens_per_second") for row in rows]
        return [one for one in found if one]


def first_tokens(arguments: argparse.Namespace) -> list[float]:
    """Milliseconds that the first text comes later with a process than without, pair by pair."""
    request = LoadRequest(
        pair=arguments.target, draft=arguments.draft, temp=0, gamma=3, n_predict=8,
        threads=arguments.threads,
    )  # fmt: skip
    engines = {}
    for way in WAYS:
        os.environ["LOCALSPEC_ENGINE"] = way
        engines[way] = Asked(EngineClient(request))
    later = []
    for number in range(arguments.first_tokens + 2):
        order = WAYS if number % 2 else WAYS[::-1]
        found = {way: engines[way].first(f"What is {number} + 2?") for way in order}
        if number > 1:
            later.append(1e3 * (found["process"] - found["inline"]))
    for one in engines.values():
        one.engine.shut_down()
        one.engine.join(10)
    return later


class Asked:
    """An engine whose first text is waited for."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self._letters: queue.SimpleQueue = queue.SimpleQueue()
        engine.listen(lambda letter: self._letters.put((time.perf_counter(), letter)))
        self._until((Loaded, LoadFailed))

    def first(self, text: str) -> float:
        """Seconds from asking to the first text."""
        self.engine.reserve()
        began = time.perf_counter()
        self.engine.ask(text, ())
        at = None
        while True:
            when, letter = self._letters.get()
            self.engine.settle(letter)
            event = getattr(letter.body, "event", None)
            if at is None and isinstance(letter.body, Turn) and getattr(event, "spans", ()):
                at = when
            if isinstance(letter.body, TurnOver):
                return (at or when) - began

    def _until(self, kinds: tuple[type, ...]) -> None:
        while True:
            _, letter = self._letters.get()
            self.engine.settle(letter)
            if isinstance(letter.body, kinds):
                return


def spread(values: list[float]) -> str:
    rng = np.random.default_rng(0)
    found = np.array(values)
    medians = np.median(rng.choice(found, (10_000, len(found))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(found):.3f} | {low:.3f} to {high:.3f}"


if __name__ == "__main__":
    main()
