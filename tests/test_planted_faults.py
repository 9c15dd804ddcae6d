"""Each planted fault has a test that runs by default and finds it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.planted_faults import FAULTS, Fault, copied, exit_code, found

EVERY = [fault for faults in FAULTS.values() for fault in faults]


def decorators(test: str) -> str:
    """The decorators of a test ``file.py::function``, as source text."""
    file, _, name = test.partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    (node,) = (node for node in tree.body if isinstance(node, kinds) and node.name == name)
    return " ".join(map(ast.unparse, node.decorator_list))


def test_each_can_be_planted_and_its_test_runs_by_default() -> None:
    assert len(EVERY) == 30
    for fault in EVERY:
        fault.planted()
        assert "mark.slow" not in decorators(fault.test), fault.test
    assert "mark.slow" in decorators("test_planted_faults.py::test_each_is_found")


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with copied() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: fault.what)
def test_each_is_found(fault: Fault, copy: Path) -> None:
    assert found(fault, copy)


def suite(folder: Path, text: str) -> Path:
    """A folder whose only test file has this text."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_one.py").write_text(text, "utf-8")
    return folder


@pytest.mark.slow
def test_two_models_that_differ_are_not_compared_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI pytest explains an assertion in full, however long that takes."""
    monkeypatch.setenv("CI", "1")
    differ = (
        "data = random.Random(1).randbytes(800_000)\ndef test():\n    assert data == data[::-1]\n"
    )
    assert exit_code(suite(tmp_path, f"import random\n{differ}"), "test_one.py") == 1


@pytest.mark.slow
def test_a_run_that_does_not_end_shows_its_stacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even if its tests have ended: faulthandler's limit covers only these."""
    waits = "import atexit, time\natexit.register(time.sleep, 600)\ndef test():\n    pass\n"
    with pytest.raises(subprocess.TimeoutExpired):
        exit_code(suite(tmp_path, waits), "test_one.py", limit=3)
    assert "most recent call first" in capfd.readouterr().err
