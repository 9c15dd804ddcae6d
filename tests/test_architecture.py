"""The structure holds: imports go one way, and nothing heavy is imported to print a help text."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.processor import worked

PACKAGE = Path(__file__).parent.parent / "localspec"

# Inside the engine: what decides knows neither llama.cpp nor what runs it.
PURE = (
    *("engine/cancel", "engine/common_prefix", "engine/exact_ids"),
    *("engine/drafters/lookup", "engine/drafters/past_texts"),
    *("engine/round/params", "engine/round/sampling", "engine/round/noise"),
    "engine/round/prompt_steps",
    *("engine/round/verify", "engine/round/generate_settings", "engine/round/acceptance"),
    *("engine/drafters/proposer", "engine/drafters/cross_vocabulary"),
    *("engine/grammars/constraint", "engine/grammars/lark", "engine/grammars/guidance"),
    *("engine/record/stats", "engine/record/trace", "engine/record/round_record"),
    *("engine/record/verdict_explainer", "engine/record/explanation", "engine/record/parting"),
    *("engine/length/stopping", "engine/length/gamma", "engine/length/cost"),
    *("engine/length/calibration", "engine/length/copying", "engine/length/neighbours"),
    "engine/length/ahead_policy",
)

# Packages whose `__init__` does more than name what the room offers, and why.
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
def parsed(path: Path, source: str | None) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8") if source is None else source)


@functools.cache
def statements(path: Path, source: str | None) -> Sequence[ast.stmt]:
    """A file's statements, those inside others too. Most nodes are expressions, and left out."""
    return [*_within(parsed(path, source))]


def _within(block: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _within(node)


@functools.cache
def imports(path: Path, source: str | None) -> set[str]:
    """The absolute names of all that the file imports, inside functions too.

    ``from localspec import machine`` is an import of ``localspec.machine``; a name that is not a
    module of localspec counts as a part of its module: ``localspec.machine:free``.
    """
    found: set[str] = set()
    for node in statements(path, source):
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


def contracts(root: Path) -> tuple[int, str]:
    """The exit code of import-linter and what it says of the package in `root`."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo"],
        cwd=root,
        env=os.environ | {"COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_contracts_of_imports_are_kept() -> None:
    code, said = contracts(PACKAGE.parent)
    assert "0 broken" in said, said
    assert code == 0


WRONG = {  # one for each contract, by the module that it is written into
    "engine.llama.platform.hardware": "from localspec import pairs as p",
    "engine.round.verify": "import localspec.chat.session.session as s",
    "ui.chat_app": "from localspec.cli.subcommands import main",
    "cli.subcommands": "from localspec.api import load",
    "train.verdict.judging": "from localspec.process.server import EngineServer",
    "serve.counters": "from localspec.bench.result import BenchReport",
    "serve.core.replies": "from localspec.loading import load",
    "process.messages": "from localspec.pairs.hub import cache",
    "pairs.hub.pair_pull": "from localspec.engine.round import sampling",
    "bench.result": "from localspec.doctor import findings",
    "ui.launch": "from localspec import machine",
    "ui.panel.layout": "from localspec.ui.chat_app import ChatApp",
    "chat.figures.figures": "from textual import on",
    "pairs.disk.folders": "from huggingface_hub import HfApi",
    "engine.record.stats": "from ctypes import byref",
    "chat.session.session": "import llama_cpp.llama_cpp as c",
    "chat.prompt.template": "import jinja2",
    "engine.grammars.lark": "import llguidance",
    "chat.session.completions": "import starlette.requests",
    "train.estimate": "from torch import Tensor",
    "serve.access": "from localspec.tools.permissions import Permissions",
    "tools.permissions": "from localspec.chat.conversation import Message",
    "tools.tool_offer": "import mcp_types",
}


def test_control_a_wrong_import_breaks_its_contract(tmp_path: Path) -> None:
    """In a copy of the package, also within functions, for types, and in a room that is new."""
    shutil.copytree(PACKAGE, tmp_path / "localspec", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    places = cycle(["", "def later():\n    ", "if TYPE_CHECKING:\n    "])
    for (module, line), place in zip(WRONG.items(), places, strict=False):
        path = tmp_path.joinpath("localspec", *module.split(".")).with_suffix(".py")
        path.write_text(f"{path.read_text(encoding='utf-8')}\n{place}{line}\n", encoding="utf-8")
    (tmp_path / "localspec/attic.py").touch()
    code, said = contracts(tmp_path)
    assert code == 1
    assert " 0 kept" in said, said
    assert [module for module in WRONG if f"localspec.{module} -> " not in said] == []
    assert "localspec.attic" in said


def private_names(path: Path, source: str | None = None) -> list[str]:
    """The private names of other modules that a file imports."""
    return [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for name in imports(path, source)
        if name.startswith("localspec.")
        and any(re.match("_(?!_)", part) for part in re.split("[.:]", name))
    ]


def test_no_module_imports_the_private_names_of_another() -> None:
    assert [line for path in files() for line in private_names(path)] == []
    line = "from localspec.engine.round.verify import {}"
    assert private_names(PACKAGE / "chat/a.py", line.format("_split"))
    assert not private_names(PACKAGE / "chat/a.py", line.format("block, __doc__"))


def test_what_decides_imports_nothing_of_the_engine_that_runs() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files()
        if inside(path, *PURE)
        for name in imports(path, None)
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


def types(path: Path, source: str | None = None) -> list[str]:
    """The names of a file's classes and of its aliases of types, without underscores in front."""
    found = []
    for node in statements(path, source):
        match node:
            case ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_type(name) and (
                "TypeVar" not in ast.unparse(value)
            ):
                found.append(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                found.append(name)
    return [name.lstrip("_") for name in found if _is_type(name)]


def _is_type(name: str) -> bool:
    plain = name.lstrip("_")
    return plain[:1].isupper() and not plain.isupper()


def test_no_two_types_have_the_same_name() -> None:
    found = Counter(name for path in files() for name in types(path))
    assert found
    assert [name for name, times in found.items() if times > 1] == []
    source = "class An:\n    class Of: ...\n_An = dict[str, int]\nOf: TypeAlias = int\n"
    source += "LIMIT = 3\nTo = TypeVar('To')"
    assert sorted(types(PACKAGE / "a.py", source)) == ["An", "An", "Of", "Of"]


def names_twice(paths: Iterable[Path]) -> set[str]:
    """The file names that occur more than once; `__init__.py` and `__main__.py` are left out."""
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
    """Functions too long to be seen whole: more than `MOST_LINES` lines without the docstring."""
    found = []
    for node in statements(path, source):
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
        "serve/protocols/protocol_types.py",
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
    for _ in range(3):
        before = worked()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        best = min(best, worked() - before)
        assert "Usage: localspec" in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"
        if best < 0.5:
            break
    assert best < 0.5
