"""The kind of text while it is written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.session.answer import TextKind

TEXT = "So:\n\n```python\nx = 1\n```\nThat is ``` all\n~~~~\n```\n~~~\n~~~~ \nend"


def kinds_after_lines(text: str) -> list[str]:
    kind, names = TextKind(), []
    for line in text.splitlines(keepends=True):
        kind.feed(line)
        names.append(kind.name)
    return names


def test_code_is_what_stands_between_fences() -> None:
    assert kinds_after_lines(TEXT) == [
        *("prose", "prose", "code", "code", "prose", "prose"),
        *("code", "code", "code", "prose", "prose"),
    ]


@pytest.mark.parametrize("line", ["    ```", "a ```", "``", "`` `"])
def test_what_only_looks_like_a_fence(line: str) -> None:
    assert kinds_after_lines(f"{line}\ntext\n") == ["prose", "prose"]


@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_pieces_of_any_size_say_the_same(cuts: list[int]) -> None:
    kind = TextKind()
    edges = [0, *sorted(cuts), len(TEXT)]
    for start, stop in pairwise(edges):
        kind.feed(TEXT[start:stop])
        whole = TextKind()
        whole.feed(TEXT[:stop])
        assert kind.name == whole.name


def test_a_line_without_end_is_not_kept() -> None:
    kind = TextKind()
    for _ in range(1000):
        kind.feed("word " * 100)
    assert kind.name == "prose"
    kind.feed("\n```\n")
    assert kind.name == "code"
