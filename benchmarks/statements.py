"""How many statements each room has, now and at an earlier commit.

    uv run python -m benchmarks.statements [--since COMMIT] [ROOM ...]

A room is a folder or a file of `localspec/`; without any, the rooms are those of the first level.
Statements are what `ast` counts: every simple or compound one, docstrings left out, so that
neither layout nor comments count. Lines are those of the files.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def statements(source: str) -> int:
    """Statements of a file, docstrings left out."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docstrings = sum(
        isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None
        for node in nodes
    )
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def now(room: str) -> Iterator[str]:
    """The sources of a room in the working tree."""
    place = ROOT / "localspec" / room
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        if path.exists():
            yield path.read_text(encoding="utf-8")


def then(room: str, commit: str) -> Iterator[str]:
    """The sources of a room at a commit; empty if it did not exist."""
    listed = git("ls-tree", "-r", "--name-only", commit, f"localspec/{room}")
    for path in listed.splitlines():
        if path.endswith(".py"):
            yield git("show", f"{commit}:{path}")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def row(sources: Iterator[str]) -> tuple[int, int]:
    """Statements and lines of some sources."""
    found = [(statements(source), len(source.splitlines())) for source in sources]
    return sum(one for one, _ in found), sum(lines for _, lines in found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Statements of rooms, now and then.")
    parser.add_argument("--since", default="29833e8", help="the commit to compare with")
    parser.add_argument("rooms", nargs="*", help="folders or files of localspec/")
    options = parser.parse_args()
    first_level = (path for path in (ROOT / "localspec").iterdir() if path.name != "__pycache__")
    rooms = options.rooms or sorted(path.name for path in first_level)
    total = [0, 0, 0, 0]
    print(f"{'room':24} {'statements':>18} {'ratio':>6} {'lines':>16}")
    for room in rooms:
        found = (*row(then(room, options.since)), *row(now(room)))
        total = [one + other for one, other in zip(total, found, strict=True)]
        tell(room, *found)
    tell("in all", *total)


def tell(room: str, before: int, lines_before: int, after: int, lines_after: int) -> None:
    """Print a row."""
    ratio = f"{after / before:.3f}" if before else "new"
    lines = f"{lines_before:,} -> {lines_after:,}"
    print(f"{room:24} {f'{before:,} -> {after:,}':>18} {ratio:>6} {lines:>16}")


if __name__ == "__main__":
    main()
