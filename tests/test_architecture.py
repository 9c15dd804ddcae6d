"""The structure holds: imports go one way, and nothing heavy is imported to print a help text."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "localspec"

# What each room may import of localspec, besides itself and the leaves, which are open to all.
LEAVES = {"errors", "formats", "limits", "private", "safe_text", "scratch", "signals"}

MAY_IMPORT = {
    **{leaf: set[str]() for leaf in LEAVES},
    "machine": set(),
    "doctor": {"engine", "machine"},
    "engine": {"machine"},
    "pairs": {"machine"},
    "chat": {"engine", "machine"},
    "bench": {"chat", "engine", "loading", "pairs"},
    "process": {"bench", "chat", "engine", "loading", "machine"},
    "train": {"bench", "chat", "engine", "loading", "machine", "pairs"},
    "ui": {"bench", "chat", "engine", "loading", "pairs", "process"},
    "loading": {"chat", "doctor", "engine", "machine", "pairs"},
    "serve": {"chat", "engine", "process"},
    "cli": {
        "ui",
        "serve",
        "bench",
        "chat",
        "doctor",
        "engine",
        "loading",
        "machine",
        "pairs",
        "process",
        "train",
    },
    "__main__": {"cli"},
    "api": {"chat", "engine", "loading", "pairs"},
    "__init__": {"api"},
}

# Inside the engine: what decides knows neither llama.cpp nor what runs it.
PURE = (
    *("engine/cancel", "engine/lookup", "engine/past_texts"),
    *("engine/round/params", "engine/round/sampling", "engine/round/noise"),
    *("engine/round/verify", "engine/round/acceptance"),
    *("engine/drafters/proposer", "engine/drafters/cross_vocabulary"),
    *("engine/grammars/constraint", "engine/grammars/lark", "engine/grammars/guidance"),
    *("engine/record/stats", "engine/record/trace"),
    *("engine/record/verdict_explainer", "engine/record/explanation"),
    *("engine/length/stopping", "engine/length/gamma", "engine/length/cost"),
    *("engine/length/calibration", "engine/length/copying", "engine/length/neighbours"),
    "engine/length/beside",
)

# Packages that only some rooms may import.
ONLY_IN = {
    "textual": ("ui",),
    "huggingface_hub": ("pairs/hub",),
    "llama_cpp": ("engine/llama",),
    "jinja2": ("chat/prompt/renderer_child",),
    "ctypes": ("engine/llama",),
    "llguidance": ("engine/grammars/guidance",),
    "starlette": ("serve", "cli/answers/serve"),
    "uvicorn": ("serve", "cli/answers/serve"),
    "torch": ("train/head/learning", "train/head/network", "train/head/optim"),
}


# Whose `__init__` does more than name what the room offers, and why.
MAY_ACT = {
    "__init__.py": "the Python interface is imported when it is first used",
    "cli/__init__.py": "Ctrl+C is looked after before anything else is imported",
}


def inside(path: Path, *rooms: str) -> bool:
    """Whether a file of the package is one of `rooms`, or lies in one."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return any(parts[: len(Path(room).parts)] == Path(room).parts for room in rooms)


@functools.cache
def is_module(name: str) -> bool:
    where = PACKAGE.parent.joinpath(*name.split("."))
    return where.with_suffix(".py").is_file() or where.is_dir()


@functools.cache
def parsed(path: Path, source: str | None = None) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8") if source is None else source)


@functools.cache
def imports(path: Path, source: str | None = None) -> set[str]:
    """The absolute names of all that the file imports, inside functions too.

    ``from localspec import machine`` is an import of ``localspec.machine``; a name that is no
    module of localspec counts as a part of its module: ``localspec.machine:free``.
    """
    found: set[str] = set()
    for node in ast.walk(parsed(path, source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            for name in (alias.name for alias in node.names):
                one = f"{module}.{name}"
                found.add(one if is_module(one) else f"{module}:{name}")
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def wrong_ways(path: Path, source: str | None = None) -> list[str]:
    """What a file imports against the direction, or of another room's private names."""
    here = room(path)
    open_to_all = {"", here, *LEAVES, *MAY_IMPORT[here]}
    wrong = []
    for name in imports(path, source):
        module, _, attribute = name.partition(":")
        top, *rest = module.split(".")
        if top != "localspec":
            continue
        there = rest[0] if rest else ""
        private = any(part.startswith("_") and not part.startswith("__") for part in rest)
        if there not in open_to_all or private or _is_private(attribute):
            wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    return wrong


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def strays(package: str, path: Path, source: str | None = None) -> list[str]:
    """The file, if it imports a package that is not for its room."""
    used = any(name.replace(":", ".").split(".")[0] == package for name in imports(path, source))
    return [str(path)] if used and not inside(path, *ONLY_IN[package]) else []


def test_imports_between_rooms_go_one_way() -> None:
    assert [line for path in files() for line in wrong_ways(path)] == []


def test_what_decides_imports_nothing_of_the_engine_that_runs() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files()
        if inside(path, *PURE)
        for name in imports(path)
        if name.startswith("localspec.engine.")
        and not inside(PACKAGE.parent.joinpath(*name.partition(":")[0].split(".")), *PURE)
    ]
    assert wrong == []


def circles(sources: Mapping[Path, str | None]) -> set[frozenset[str]]:
    """The groups of files that import each other, directly or through others of the group.

    Imports inside functions and for types count. `localspec/__init__.py` is left out: every import
    of the package passes through it.
    """
    paths = [path for path in sources if path != PACKAGE / "__init__.py"]
    reached = {path: imported_files(path, sources[path]) & {*paths} for path in paths}
    for between in paths:  # Warshall: what each file reaches through the files up to `between`
        for path in paths:
            if between in reached[path]:
                reached[path] |= reached[between]
    groups = ({each for each in reached[path] if path in reached[each]} for path in paths)
    return {
        frozenset(p.relative_to(PACKAGE).as_posix() for p in group) for group in groups if group
    }


def imported_files(path: Path, source: str | None = None) -> set[Path]:
    """The files of the package that a file imports, itself left out."""
    found = set()
    for name in imports(path, source):
        place = PACKAGE.parent.joinpath(*name.partition(":")[0].split("."))
        found |= {place.with_suffix(".py"), place / "__init__.py"}
    return found - {path}


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(dict.fromkeys(files())) == set()


@pytest.mark.parametrize("indent", ["", "def later():\n    ", "if TYPE_CHECKING:\n    "])
def test_control_a_circle_is_seen(indent: str) -> None:
    line = "from localspec.pairs.{} import f"
    one, two, three = (PACKAGE / "pairs" / f"{name}.py" for name in ("one", "two", "three"))
    chain = {one: line.format("two"), two: line.format("three"), three: ""}
    assert circles(chain) == set()
    closed = chain | {three: indent + line.format("one")}
    assert circles(closed) == {frozenset({"pairs/one.py", "pairs/two.py", "pairs/three.py"})}


def knows_the_app(path: Path, source: str | None = None) -> bool:
    """Whether a part of the screen imports the app, which is made of it, also for its types."""
    folders = ("commands", "conversation", "input", "pairs", "panel", "screens", "transcript")
    parts = inside(path, *(f"ui/{folder}" for folder in folders))
    found = {name.partition(":")[0] for name in imports(path, source)}
    return parts and not found.isdisjoint({"localspec.ui.chat_app", "localspec.ui.launch"})


def test_no_part_of_the_screen_knows_the_app() -> None:
    assert [path for path in files() if knows_the_app(path)] == []


@pytest.mark.parametrize(
    "file", ["ui/conversation/turn_controller.py", "ui/panel/a.py", "ui/screens/b.py"]
)
@pytest.mark.parametrize(
    "line", ["from localspec.ui.chat_app import ChatApp", "from localspec.ui import chat_app"]
)
def test_control_a_part_that_knows_the_app_is_seen(file: str, line: str) -> None:
    assert knows_the_app(PACKAGE / file, f"if TYPE_CHECKING:\n    {line}")
    assert not knows_the_app(PACKAGE / "ui/launch.py", line)


def types(path: Path, source: str | None = None) -> list[str]:
    """The names of a file's classes and of its aliases of types, without underscores in front."""
    found = []
    for node in ast.walk(parsed(path, source)):
        match node:
            case ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if "TypeVar" not in (
                ast.unparse(value)
            ):
                found.append(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                found.append(name)
    plain = (name.lstrip("_") for name in found)
    return [name for name in plain if name[:1].isupper() and not name.isupper()]


def test_no_two_types_have_the_same_name() -> None:
    found = Counter(name for path in files() for name in types(path))
    assert found
    assert [name for name, times in found.items() if times > 1] == []
    source = "class An:\n    class Of: ...\n_An = dict[str, int]\nOf: TypeAlias = int\n"
    source += "LIMIT = 3\nTo = TypeVar('To')"
    assert sorted(types(PACKAGE / "a.py", source)) == ["An", "An", "Of", "Of"]


def names_twice(paths: Iterable[Path]) -> set[str]:
    """The file names that stand more than once, `__init__.py` and `__main__.py` left out."""
    found = Counter(path.name for path in paths)
    return {name for name, times in found.items() if times > 1 and not name.startswith("__")}


def test_no_two_files_have_the_same_name() -> None:
    assert names_twice(files()) == set()


def test_control_a_file_name_that_stands_twice_is_seen() -> None:
    names = ("pairs/__init__.py", "chat/__init__.py", "pairs/past.py", "chat/session/past.py")
    assert names_twice(PACKAGE / name for name in names) == {"past.py"}
    assert names_twice(PACKAGE / name for name in names[:3]) == set()


MOST_FILES = 12


def large_folders(paths: Iterable[Path]) -> set[str]:
    """The folders of the package that have more than a dozen files."""
    found = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in paths)
    return {folder for folder, number in found.items() if number > MOST_FILES}


def test_every_folder_can_be_seen_whole() -> None:
    assert large_folders(files()) == set()


def test_control_a_folder_that_is_too_large_is_seen() -> None:
    paths = [PACKAGE / f"chat/{number}.py" for number in range(MOST_FILES + 1)]
    assert large_folders(paths) == {"chat"}
    assert large_folders([PACKAGE / "ui/a.py", *paths[1:]]) == set()


MOST_LINES = 45


def long_functions(path: Path, source: str | None = None) -> list[str]:
    """Functions that nobody sees whole: their lines from `def` to the last one, docstring aside."""
    found = []
    for node in ast.walk(parsed(path, source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                lines -= (first.end_lineno or 0) - first.lineno + 1
            if lines > MOST_LINES:
                found.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    return found


def test_every_function_can_be_seen_whole() -> None:
    assert [line for path in files() for line in long_functions(path)] == []


@pytest.mark.parametrize("said", ["", "    '''It\n    does.\n    '''\n"])
def test_control_a_function_that_is_too_long_is_seen(said: str) -> None:
    for kind in ("def", "async def"):
        source = f"class A:\n {kind} f():\n{said}" + "    a = 1\n" * (MOST_LINES - 1)
        assert long_functions(PACKAGE / "a.py", source) == []
        (found,) = long_functions(PACKAGE / "a.py", f"{source}    a = 2\n")
        assert found == f"a.py: f has {MOST_LINES + 1} lines"


def uses_the_command_line(path: Path, source: str | None = None) -> bool:
    found = (f"{name.partition(':')[0]}." for name in imports(path, source))
    return any(name.startswith("localspec.cli.") for name in found)


@pytest.mark.parametrize("folder", ["benchmarks", "models"])
def test_no_script_goes_through_the_command_line(folder: str) -> None:
    scripts = sorted((PACKAGE.parent / folder).rglob("*.py"))
    assert scripts
    assert [path for path in scripts if uses_the_command_line(path)] == []
    for line in ("from localspec import cli", "from localspec.cli import main"):
        assert uses_the_command_line(scripts[0], f"def later():\n    {line}")


@pytest.mark.parametrize("package", list(ONLY_IN))
def test_each_library_stays_in_its_room(package: str) -> None:
    assert [line for path in files() for line in strays(package, path)] == []


def acts(path: Path, source: str | None = None) -> bool:
    """Whether a file has more than a docstring, imports and dunder names such as `__all__`."""
    return not all(
        isinstance(node, ast.ImportFrom | ast.Import)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (
            isinstance(node, ast.Assign)
            and all(
                isinstance(name, ast.Name) and name.id.startswith("__") for name in node.targets
            )
        )
        for node in parsed(path, source).body
    )


def test_nothing_that_waits_goes_by_a_clock_that_jumps() -> None:
    by_the_wall = ("time.time(", "datetime.now(", "from time import time", ".utcnow(")
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text() for word in by_the_wall)
    }
    assert found == {  # what is dated for people to read, and when a deleted conversation goes
        "chat/history/import_export.py",
        "chat/history/conversation_record.py",
        "chat/history/store.py",
        "chat/prompt/renderer_child.py",
        "serve/replies.py",
        "ui/screens/history.py",
    }


def test_a_rooms_init_names_what_it_offers_and_does_nothing() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py") if acts(path)
    }
    assert found <= set(MAY_ACT)


@pytest.mark.parametrize(
    "source",
    ["def f(): ...", "LIMIT = 3", "class A: ...", "import os\nos.environ['A'] = 'b'", "f()"],
)
def test_control_an_init_that_acts_is_seen(source: str) -> None:
    assert acts(PACKAGE / "ui/__init__.py", source)
    assert not acts(
        PACKAGE / "ui/__init__.py", '"""Doc."""\nfrom os import path\n__all__ = ["path"]'
    )


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/llama/platform/hardware.py", "from localspec import pairs as p"),
        ("engine/round/verify.py", "import localspec.chat.session.session as s"),
        ("pairs/hub/pair_pull.py", "from localspec.engine import sampling"),
        ("chat/session/session.py", "from localspec.engine.verify import _split"),
        ("ui/chat_app.py", "from localspec.cli.subcommands import main"),
    ],
)
def test_control_a_wrong_import_is_seen(file: str, line: str) -> None:
    assert wrong_ways(PACKAGE / file, line)
    assert wrong_ways(PACKAGE / file, f"def later():\n    {line}")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/llama_grammar.py", "import ctypes"),
        ("engine/llama_grammar.py", "from ctypes import byref"),
        ("chat/session/session.py", "import llama_cpp.llama_cpp as c"),
        ("chat/figures/figures.py", "from textual import on"),
        ("uikit/app.py", "from textual.app import App"),
        ("pairs/hubs.py", "from huggingface_hub import HfApi"),
    ],
)
def test_control_a_library_outside_its_room_is_seen(file: str, line: str) -> None:
    package = line.split()[1].split(".", maxsplit=1)[0]
    assert strays(package, PACKAGE / file, line)
    assert not strays(package, PACKAGE / ONLY_IN[package][0] / "some.py", line)


def test_the_first_frame_waits_for_no_import_that_it_does_without() -> None:
    program = (
        "import sys, localspec.cli.answers.chat, localspec.process.engine_client\n"
        "import localspec.ui.launch\n"
        "print([m for m in ('markdown_it', 'pygments', 'psutil', 'tomllib', 'huggingface_hub',"
        " 'httpx', 'localspec.pairs.names.catalogue', 'localspec.pairs.gguf')"
        " if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.timed
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
