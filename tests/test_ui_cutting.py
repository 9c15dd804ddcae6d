"""A text that is cut while it grows shows what it shows uncut, for random nested Markdown."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from localspec.chat.events import Origin, Span
from localspec.ui.transcript import cutting, growing
from localspec.ui.transcript.blocks import Block, lay_out
from localspec.ui.transcript.cutting import Cut
from localspec.ui.transcript.growing import GrowingMarkdown

LONGEST = 400
"""The longest tail here, so that every text is cut often."""
WORDS = ("alpha", "beta", "gamma", "**bold**", "`code`", "delta")
MARKS = {"bullets": "- ", "stars": "*   ", "numbers": "{}. ", "ones": "1. ", "brackets": "{}) "}


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 14)))


def details(rng: random.Random, depth: int) -> list[str]:
    """What an item has below its first line."""
    count = rng.randint(1, 9)
    match rng.choice(["text", "text", "quote", "code", "code", "table", "list", "list", "list"]):
        case "text":
            return ["", words(rng), words(rng)]
        case "quote":
            return ["", f"> {words(rng)}", f"> {words(rng)}", ""]
        case "code":
            return ["", "```py", *(f"x{n} = {n}" for n in range(count)), "```"]
        case "table":
            return ["", "| a | b |", "|---|---|", *(f"| {n} | y |" for n in range(count)), ""]
        case _:
            return nested_list(rng, depth + 1) if depth < 3 else []


def nested_list(rng: random.Random, depth: int = 0) -> list[str]:
    kind, wide, loose = rng.choice([*MARKS]), rng.random() < 0.3, rng.random() < 0.2
    rows: list[str] = []
    for number in range(1, rng.randint(2, 9) if depth else rng.randint(8, 14)):
        mark = MARKS[kind].format(number)
        inner = [row for _ in range(rng.choice([0, 0, 0, 1, 2])) for row in details(rng, depth)]
        # Many models indent by four, whatever the mark.
        indented = " " * (4 if wide else len(mark))
        rows += [f"{mark}{words(rng)}", *(f"{indented}{row}" if row else "" for row in inner)]
        rows += [""] * loose
    return rows


def document(seed: int) -> str:
    rng = random.Random(seed)
    quoted = rng.choice(["", "", "", "> ", "> "])
    return "".join(f"{quoted}{row}\n" for row in nested_list(rng)) + "\nend\n"


def shown(text: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a text that grows; without empty ones, and without the heads of tables.

    Whether items of a list have empty lines between them depends on all of them, and the columns
    of a table are as wide as the cells of one part, which begins with the head once more.
    """
    for module in (cutting, growing):
        monkeypatch.setattr(module, "LONGEST_TAIL", longest)
    growing_text, blocks = GrowingMarkdown(), list[Block]()
    for start in range(0, len(text), 150):
        final, live = growing_text.add([Span(text[start : start + 150], Origin.TARGET)])
        blocks += final
    lines = [line.plain.rstrip() for line in lay_out([*blocks, *live], 76)]
    lines = [re.sub(r" +", " ", line) if "│" in line else line for line in lines]
    return [line for line in lines if line.strip(" ▌") and not re.search("┼|a │ b", line)]


def differing(seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return [
        seed
        for seed in seeds
        if shown(document(seed), LONGEST, monkeypatch) != shown(document(seed), 10**9, monkeypatch)
    ]


@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_text_shows_the_same_cut_and_uncut(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differing(range(count), monkeypatch)


def test_a_cut_that_opens_nothing_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(text: str, _numbers: Sequence[int]) -> Cut:
        at = text.rfind("\n", LONGEST // 2, LONGEST) + 1 or LONGEST
        return Cut(text[:at], text[at:], joined=True)

    monkeypatch.setattr(growing, "cut", bare)
    assert differing(range(3), monkeypatch)
