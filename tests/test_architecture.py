"""The structure holds: imports go one way, and nothing heavy is imported to print a help text."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "localspec"

# What each room may import of localspec, besides itself. `errors` is open to all.
MAY_IMPORT = {
    "errors": set(),
    "machine": set(),
    "doctor": {"engine", "machine"},
    "engine": set(),
    "pairs": {"machine"},
    "chat": {"engine", "machine"},
    "bench": {"chat", "engine", "pairs"},
    "ui": {"chat", "engine", "pairs"},
    "cli": {"ui", "bench", "chat", "doctor", "engine", "machine", "pairs"},
    "__main__": {"cli"},
    "__init__": set(),
}

# Inside the engine: leaves know only other leaves.
LEAVES = {
    *(
        "stats",
        "cancel",
        "grammar",
        "json_schema",
        "json_text",
        "schema_pattern",
        "sampling",
        "noise",
        "verify",
    ),
    *("plan", "gamma", "cost", "calibration", "simulate"),
}

# Packages that only one room may import.
ONLY_IN = {
    "textual": ("ui",),
    "huggingface_hub": ("pairs/hub",),
    "llama_cpp": ("engine/llama", "chat/template"),
    "ctypes": ("engine/llama",),
}


def imports(path: Path) -> set[str]:
    """The absolute names of all modules that the file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_between_rooms_go_one_way() -> None:
    wrong = []
    for path in files():
        here = room(path)
        for name in imports(path):
            top, _, rest = name.partition(".")
            there = rest.partition(".")[0]
            if top == "localspec" and there not in {"", here, "errors", *MAY_IMPORT[here]}:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_leaves_of_the_engine_import_no_engine_room_but_leaves() -> None:
    wrong = []
    for leaf in LEAVES:
        for name in imports(PACKAGE / "engine" / f"{leaf}.py"):
            top, _, there = name.rpartition(".")
            if top == "localspec.engine" and there not in LEAVES:
                wrong.append(f"engine/{leaf}.py imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", list(ONLY_IN))
def test_each_library_stays_in_its_room(package: str) -> None:
    outside = [
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.partition(".")[0] == package for name in imports(path))
        and not path.relative_to(PACKAGE).as_posix().startswith(ONLY_IN[package])
    ]
    assert not outside


def test_help_imports_neither_llama_cpp_nor_textual_and_is_quick() -> None:
    program = (
        "import sys\n"
        "from localspec.cli import main\n"
        "sys.argv = ['localspec', '--help']\n"
        "try:\n    main()\n"
        "finally:\n"
        "    print([m for m in ('llama_cpp', 'textual', 'huggingface_hub', 'numpy')"
        " if m in sys.modules])\n"
    )
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        best = min(best, time.perf_counter() - started)
        assert "Usage: localspec" in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"
    assert best < 0.5
