"""Each planted fault has a test that runs by default and finds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.planted_faults import FAULTS, Fault, copied, found

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


@pytest.mark.slow
@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: fault.what)
def test_each_is_found(fault: Fault) -> None:
    with copied() as folder:
        assert found(fault, folder)
