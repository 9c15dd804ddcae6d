"""A new user's day in a real terminal: do the screen's figures agree with each other and the clock?

    uv run python -m benchmarks.first_day [PAIR] --whole DAY.jsonl       # 40 moments of a day
    uv run python -m benchmarks.first_day [PAIR] [--busy] [--size 200x50] [--parts words,tales]
    uv run python -m benchmarks.first_day [PAIR] --answers               # twelve short, twelve long

PAIR (by default the starter) answers questions in the chat, as if a person typed them. At every
moment the screen is read: the line below the answer, the sentence, the panel. Figures and
sentences are compared with each other (`tests/support/screen_figures.py`) and with a stopwatch:
speeds and waits by the time that an answer takes on the screen, ratios by the same question
answered with drafting switched off (F2, F5), the time left by how long the rest of a prompt took.
`--busy` keeps a core busy with another program all the time. Exit code 1 if something contradicts.

`--whole` reads 40 moments, of the starter and of PAIR, which may be a larger model: 30 of a quiet
day, 10 while a program is busy, some of each at 80x24. The file keeps each part of the day that is
over, with its seconds; a run that was stopped goes on after the last one.

All parts at one size take one and a half minutes with the starter, three with 1.5 billion
parameters on two cores; `--answers` takes as long again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import real_prompts
from localspec import formats
from tests.support import screen_figures
from tests.support.screen_figures import Figures
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

F2, F4, F5, CTRL_B, ESC = "\x1bOQ", "\x1bOS", "\x1b[15~", "\x02", "\x1b"
ROUNDS = 8  # that drafted; with fewer no ratio may be told
LONG, SHORT = 160, 40  # tokens of the answers
EDITS = ("edit", "fix", "convert")  # questions whose answers copy
LOOKS_S = 0.1  # between two looks: an observer that never rests keeps a core busy
SPEED_OFF = 0.12  # largest relative difference between a speed and the stopwatch's
FRAME_S = 0.6  # by which a time may differ in addition: two frames of 0.3 seconds
LEFT_OFF, LEFT_OFF_S = 0.35, 1.0  # the same for a time left; an error of a second is allowed
MOST_PAUSE_S = 1.2  # between two steps while a prompt is read: one second, and a frame
HEAD = """| moment | tokens | tokens/s | ratio | sentence | contradictions |
|---|---|---|---|---|---|"""
FOOT = re.compile(r"\d tokens? · [\d.,]+ tokens/s|an empty answer")
STATUS = re.compile(  # or the compact panel above it
    r"\s*(answering|stopping|reading [\d,]+ tokens|ready|one moment|[\d.,–]+ tokens/s )"
)
PROGRESS = re.compile(  # the time left is told after two seconds
    r"reading ([\d,]+) tokens\D+(\d+) %(?:\s+about (?:(\d+) min )?(\d+) s left)?"
)

TALES = (
    "Tell me a story about a dog and a boat.",
    "Describe a morning in a small harbour town.",
    "Explain how bread is made, step by step.",
    "Write a letter to a friend about a journey by train.",
    "What should one know before buying a bicycle?",
    "Tell me about the life of a bee.",
)
FUNCTION = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("width and height must not be negative")
    return width * height


def volume(width, height, depth):
    if width < 0 or height < 0 or depth < 0:
        raise ValueError("width, height and depth must not be negative")
    return width * height * depth
"""
COPIES = (
    f"Repeat this code without any change:\n\n{FUNCTION}",
    f"Add a docstring to each function, repeat the whole code:\n\n{FUNCTION}",
)
WORDS = (
    *("Say hello.", "What is 2 + 2?", "Name a colour.", "Is snow cold?", "Say yes."),
    *("Name a fruit.", "What is the opposite of hot?", "Name a city.", "Say goodbye."),
    *("How many legs has a dog?", "What is a quay?", "Name an animal."),
)


@dataclass
class Tally:
    """The rows of the table, the comparisons with the clock, and the contradictions."""

    rows: list[str] = field(default_factory=list)
    moments: int = 0
    timed: int = 0
    off: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def row(self, *cells: object) -> None:
        """Keep and print a row of the table."""
        self.rows.append(f"| {' | '.join(map(str, cells))} |")
        print(self.rows[-1], flush=True)

    def add(self, other: Tally) -> None:
        """Add another tally's findings."""
        self.rows += other.rows
        self.moments += other.moments
        self.timed += other.timed
        self.off += other.off
        self.wrong += other.wrong


@dataclass
class Timed:
    """An answer on the screen.

    Attributes:
        now: its figures.
        wait: the stopwatch's seconds from Enter to the first words.
        seconds: the stopwatch's from there to the end.
    """

    now: Figures
    wait: float
    seconds: float

    @property
    def speed(self) -> float:
        """The stopwatch's tokens per second, after the first one."""
        return (self.now.tokens - 1) / self.seconds if self.seconds > 0 else 0.0


class Day:
    """A chat in a terminal, and what its screen shows."""

    def __init__(self, chat: Terminal) -> None:
        self.chat, self.tally = chat, Tally()
        self._mark = ""  # how the last question begins on the screen

    def moment(self, name: str, now: Figures | None = None) -> Figures:
        """Read the screen, compare what it says, and print a line."""
        now = now or screen_figures.read(self.chat.text())
        found = screen_figures.contradictions(now)
        self.tally.moments += 1
        self.tally.wrong += [f"{name}: {each}" for each in found]
        ratio = "{}× ({}–{})".format(*now.ratio) if now.ratio else ""
        self.tally.row(name, now.tokens, now.speed, ratio, now.sentence, "; ".join(found))
        return now

    def answered(self, name: str, timed: Timed) -> Timed:
        """Read the screen after an answer, and compare its times with the stopwatch's."""
        now = self.moment(name, timed.now)
        if now.tokens > 1 and now.speed:
            self._within(f"{name}, seconds", (now.tokens - 1) / now.speed, timed.seconds)
        if now.wait is not None:
            self._within(f"{name}, wait", now.wait, timed.wait)
        return timed

    def _within(self, name: str, said: float, clock: float) -> None:
        """Count whether seconds on the screen are near the stopwatch's."""
        self.tally.timed += 1
        if abs(said - clock) > SPEED_OFF * clock + FRAME_S:
            self.tally.off.append(f"{name}: {said:.2f} on the screen, {clock:.2f} by the clock")

    def ask(self, question: str) -> Timed:
        """Type a question and wait for the answer's end."""
        paste = f"\x1b[200~{question}\x1b[201~" if "\n" in question else question
        self.chat.child.send(paste)
        self._settle()
        self.chat.child.send("\r")
        self._mark = f"▌ {question.splitlines()[0][:30]}"
        asked = time.monotonic()
        self.chat.until(lambda: self._mark in self.chat.text(), self._mark)
        return self._answer(asked)

    def again(self) -> Timed:
        """Answer the last question once more."""
        self.chat.child.send(F5)
        asked = time.monotonic()
        self.chat.until(lambda: not FOOT.search(self._written()), "a new answer")
        return self._answer(asked)

    def begin_anew(self) -> None:
        """Leave the conversation."""
        self.chat.child.send("/new\r")
        self.chat.until(lambda: self._mark not in self.chat.text(), "a new conversation")

    def switch(self, *, on: bool) -> None:
        """Press F2 until the status line or the panel shows the change."""
        self.chat.child.send(F2)
        self.chat.sees("drafting on" if on else "drafting off")

    def _answer(self, asked: float) -> Timed:
        self.chat.until(self._written, "the first words")
        begun = time.monotonic()
        patient(self.chat, lambda: FOOT.search(self._written()), "the end of the answer")
        seconds = time.monotonic() - begun
        patient(self.chat, lambda: "ready" in self.chat.text(), "rest")
        self._settle()
        return Timed(screen_figures.read(self.chat.text()), begun - asked, seconds)

    def _written(self) -> str:
        """The screen's text between the last question and the status line."""
        left = screen_figures.conversation(self.chat.text())
        below = left.rpartition(self._mark)[2].splitlines()[1:]
        answer = takewhile(lambda line: not STATUS.match(line), below)
        lines = (line.strip(" ▏│") for line in answer)
        return "\n".join(line for line in lines if line and not line.startswith("▌"))

    def _settle(self, seconds: float = 0.6) -> None:
        """Wait until the screen is drawn, and read it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.chat.read()


def words(day: Day, _lines: int) -> None:
    """The welcome, and two short answers."""
    day.moment("the welcome")
    for question in WORDS[:2]:
        day.answered("a short answer", day.ask(question))


def tales(day: Day, _lines: int) -> None:
    """Longer answers: a tale and two edits, and each once more without drafting."""
    say(day, f"/set n-predict {LONG}")
    for name, question in (("a tale", TALES[0]), ("a copy", COPIES[0]), ("an edit", COPIES[1])):
        compared(day, name, day.answered(name, day.ask(question)))
    day.chat.child.send("/stats\r")
    day.chat.sees("tokens in")
    day.moment("/stats")


def compared(day: Day, name: str, drafted: Timed) -> None:
    """Answer once more without drafting, and compare the stopwatch's ratio with the panel's."""
    day.switch(on=False)
    baseline = day.answered(f"{name}, drafting off", day.again())
    day.switch(on=True)
    if drafted.now.ratio is None or baseline.now.tokens != drafted.now.tokens:
        return  # or the texts part at a near tie: two texts cannot be compared by the clock
    _, low, high = drafted.now.ratio
    found = drafted.speed / baseline.speed
    day.tally.timed += 1
    if not low - 0.05 <= found <= high + 0.05:  # the panel rounds to a tenth
        day.tally.off.append(f"{name}: {low} to {high}× on the screen, {found:.2f} by the clock")


def twice(day: Day, _lines: int) -> None:
    """Ctrl+B: one question without and with drafting, side by side."""
    day.chat.child.send(TALES[1])
    day.chat.sees(TALES[1][:30])
    day.chat.child.send(CTRL_B)
    day.chat.sees("Esc closes")
    patient(day.chat, lambda: re.search(r"the[\s│]+texts", day.chat.text()), "both answers")
    text = " ".join(day.chat.text().split())
    speeds = re.findall(r"([\d,]+) tokens, ([\d.]+) tokens/s(?:, guessed ([\d,]+), kept)?", text)
    said = re.search(r"([\d.]+)× faster than|(\d+) % slower than|as fast as without", text)
    if said and len(speeds) == 2:
        ratio = float(speeds[1][1]) / float(speeds[0][1])
        told = float(said[1]) if said[1] else 1 - int(said[2]) / 100 if said[2] else 1.0
        if abs(told - ratio) > 0.07:
            day.tally.wrong.append(f"Ctrl+B: “{said[0]}” next to {speeds}")
    if said and int(speeds[1][2] or 0) == 0:
        day.tally.wrong.append("Ctrl+B: a ratio though nothing was guessed")
    day.tally.moments += 1
    day.tally.row("Ctrl+B", speeds, "", "", said[0] if said else "no ratio", "")
    day.chat.child.send(ESC)
    day.chat.until(lambda: "Esc closes" not in day.chat.text(), "the end")


def reading(day: Day, lines: int) -> None:
    """A long paste: how often the progress moves, and whether the time left is right."""
    times = (f"{n}. The ferry number {7 * n} leaves at {n % 24}:{n % 60:02}." for n in range(lines))
    text = "\n".join(times)
    day.chat.child.send(f"\x1b[200~{text}\x1b[201~ Which one is the last?")
    day.chat.until(lambda: "pasted" in day.chat.text(), "the paste")
    seen: list[tuple[float, int, int | None]] = []  # when, percent, seconds left

    def progress() -> bool:
        if found := PROGRESS.search(day.chat.text()):
            left = 60 * int(found[3] or 0) + int(found[4]) if found[4] else None
            if not seen or seen[-1][1:] != (int(found[2]), left):
                seen.append((time.monotonic(), int(found[2]), left))
        return bool(seen) and not PROGRESS.search(day.chat.text())

    asked = time.monotonic()
    day.chat.child.send("\r")
    patient(day.chat, progress, "the end of the reading")
    ended = time.monotonic()
    pauses = [after[0] - before[0] for before, after in pairwise(seen)]
    longest = max([seen[0][0] - asked, *pauses])
    day.tally.moments += 1
    if longest > MOST_PAUSE_S:
        day.tally.wrong.append(f"reading: nothing moved for {longest:.1f} s")
    told = [(at, percent, left) for at, percent, left in seen if left is not None]
    for at, percent, left in told[:: max(1, len(told) // 4)]:
        day.tally.timed += 1
        if abs(left - (ended - at)) > max(LEFT_OFF_S, LEFT_OFF * (ended - at)):
            day.tally.off.append(f"at {percent} %: {left} s left, it took {ended - at:.1f} s")
    steps = f"{len(seen)} steps, the longest {longest:.2f} s"
    day.tally.row("reading", steps, f"{ended - asked:.1f} s in all", "", "", "")
    patient(day.chat, lambda: "ready" in day.chat.text(), "the answer")
    day.moment("the answer to it")


def answers(day: Day) -> None:
    """Check that twelve short answers have no ×, then answer edits until twelve may have one.

    Those may that have at least 150 tokens and drafted in `ROUNDS` rounds. It prints how many of
    them have one, and the widths of their intervals.
    """
    for question in WORDS:
        now = day.answered("short", day.ask(question)).now
        if "×" in now.text:
            day.tally.wrong.append(f"a × after {now.tokens} tokens")
    say(day, f"/set n-predict {LONG}")
    widths, qualified = [], 0
    for question in edits():
        now = day.answered("long", day.ask(question)).now
        if now.tokens >= LONG - 10 and (now.rounds or 0) >= ROUNDS:
            qualified += 1
            if now.ratio is not None:
                estimate, low, high = now.ratio
                widths.append((high - low) / 2 / estimate)
        day.begin_anew()
        if qualified == 12:
            break
    median_width = median(widths) if widths else 0.0
    print(f"\n{len(widths)} of {qualified} long answers with a ×, half the interval"
          f" {median_width:.0%} of it in the median")  # fmt: skip


def edits() -> Iterator[str]:
    """Questions whose answers copy, the shorter ones first: these have long answers, too."""
    drawn = [each.turns[0] for each in real_prompts.questions(12) if each.kind in EDITS]
    return iter(sorted(drawn, key=len))


def say(day: Day, command: str) -> None:
    day.chat.child.send(f"{command}\r")
    day.chat.until(lambda: command.rsplit(maxsplit=1)[-1] in day.chat.text(), command)
    day.chat.until(lambda: command not in day.chat.text(), f"{command}, sent")


def patient(chat: Terminal, condition: Callable[[], object], what: str) -> None:
    """Wait up to five minutes."""
    for _ in range(5):
        try:
            chat.until(condition, what)
        except AssertionError:
            continue
        return
    raise SystemExit(f"never happened: {what}\n{chat.text()}")


@contextmanager
def busy(*, wanted: bool) -> Iterator[None]:
    """Another program that keeps a core busy."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


@contextmanager
def day_of(pair: str, size: tuple[int, int], draft: str = "auto") -> Iterator[Day]:
    """A chat with a pair in a terminal of the given size, with its own history."""
    how = ["--draft", draft, "--temp", "0", "--n-predict", str(SHORT)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as data:
        chat = Terminal(["chat", pair, *how], Path(data), *size)
        try:
            chat.pause_s = LOOKS_S
            patient(chat, lambda: "ready" in chat.text(), "the pair")
            yield Day(chat)
        finally:
            chat.child.close(force=True)


PARTS = {"words": words, "tales": tales, "twice": twice, "reading": reading}
MOMENTS = {"words": 3, "tales": 7, "twice": 1, "reading": 2}


class Part(NamedTuple):
    """A part of the whole day: its steps and its situation."""

    name: str
    larger: bool = False
    size: str = "200x50"
    busy: bool = False


WHOLE = (
    *(Part(name) for name in PARTS),
    *(Part(name, larger=True) for name in PARTS),
    *(Part(name, size="80x24") for name in ("words", "twice")),
    Part("tales", busy=True),
    Part("words", larger=True, size="80x24", busy=True),
)
"""40 moments: 30 of a quiet day, 10 while another program keeps the machine busy."""


def whole(kept: Path, read: Callable[[Part], Tally], parts: Sequence[Part] = WHOLE) -> Tally:
    """Read every part of the day that the file `kept` does not hold yet.

    Returns:
        What all of them found.
    """
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for at, part in enumerate(parts):
        if at >= len(done):
            print(f"\n{at + 1} of {len(parts)}: {part}\n\n{HEAD}", flush=True)
            begun = time.monotonic()
            found = {"part": part, "tally": asdict(read(part))}
            done.append({**found, "seconds": round(time.monotonic() - begun)})
            with kept.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    tally = Tally()
    for each in done:
        tally.add(Tally(**each["tally"]))
    print("", HEAD, *tally.rows, sep="\n")
    print(f"\n{formats.duration(sum(each['seconds'] for each in done))} in all")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("pair", nargs="?", default="starter")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS), help="of the day")
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--whole", type=Path, help="all 40 moments; what is done is kept there")
    parser.add_argument("--size", default="200x50")
    parser.add_argument("--lines", type=int, default=120, help="of the long prompt")
    asked = parser.parse_args()

    def read(pair: str, size: str, names: Sequence[str], *, beside: bool) -> Tally:
        columns, rows = map(int, size.split("x"))
        with busy(wanted=beside), day_of(pair, (columns, rows), asked.draft) as day:
            for name in names:
                PARTS[name](day, asked.lines) if name else answers(day)
        return day.tally

    def of_day(part: Part) -> Tally:
        pair = asked.pair if part.larger else "starter"
        return read(pair, part.size, [part.name], beside=part.busy)

    if asked.whole:
        tally = whole(asked.whole, of_day)
    else:
        print(HEAD)
        names = [""] if asked.answers else asked.parts.split(",")
        tally = read(asked.pair, asked.size, names, beside=asked.busy)
    print(f"\n{tally.moments} moments, {len(tally.wrong)} contradictions;"
          f" {len(tally.off)} of {tally.timed} figures off by the stopwatch")  # fmt: skip
    for line in (*tally.wrong, *tally.off):
        print(f"- {line}")
    return 1 if tally.wrong or len(tally.off) > 0.1 * tally.timed else 0


if __name__ == "__main__":
    sys.exit(main())
