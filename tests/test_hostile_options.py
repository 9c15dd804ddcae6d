"""Whatever an option is given, the output is harmless and short, and the exit code 1 or 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hostile_options

ESCAPES = 'root ::= "a\\x1B]0;owned\\x07\\u009b31mb"'


@pytest.mark.parametrize(
    "numbers", [range(40), pytest.param(range(1000, 1150), marks=pytest.mark.slow)]
)
def test_values_that_nobody_foresaw_are_refused_in_a_few_harmless_words(
    numbers: range, tmp_path: Path
) -> None:
    assert hostile_options.attack(numbers, tmp_path) == []


def test_bytes_that_are_no_text_are_refused_by_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile_options, "value", lambda _rng: "caf\udce9")
    assert hostile_options.attack(range(1, 121), tmp_path) == []


@pytest.mark.parametrize(
    "asked",
    [
        *(["worker", f"--memory={wild}"] for wild in ("nan", "inf", "1e300")),
        ["serve", "missing.gguf", "--timeout=nan"],
        *(
            ["run", "-p", "x", f"--tensor-split={wild}"]
            for wild in ("nan", "inf,1", "0", "", "2,-1")
        ),
    ],
)
def test_numbers_that_are_none_are_wrong_usage(asked: list[str], tmp_path: Path) -> None:
    with hostile_options.nowhere(tmp_path):
        assert hostile_options.run(asked).code == 2


@pytest.mark.parametrize("wild", ["x" * 5000, "\x07", "a b", "../x", "Q4@main"])
def test_a_quant_is_checked_before_anything_is_looked_up(wild: str, tmp_path: Path) -> None:
    with hostile_options.nowhere(tmp_path):
        done = hostile_options.run(["pull", "a/b", "--quant", wild])
    assert (done.code, done.wrong) == (1, "")
    assert "is not a quant" in done.err
    assert "looking at" not in done.err


def test_a_long_reference_is_told_without_its_middle(tmp_path: Path) -> None:
    with hostile_options.nowhere(tmp_path):
        done = hostile_options.run(["pull", f"a/b:{'x/' * 5000}m.gguf"])
    assert (done.code, done.wrong) == (1, "")
    assert done.err.startswith("looking at a/b:x/x/")
    assert "x/m.gguf\n" in done.err


def test_a_file_name_forges_no_line_of_its_own(tmp_path: Path) -> None:
    with hostile_options.nowhere(tmp_path):
        done = hostile_options.run(["run", "-p", "x", "--grammar-file", "x\nError: disk is lost"])
    assert done.code == 2
    assert "cannot read x Error: disk is lost" in done.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_what_a_model_says_steers_no_terminal_and_a_pipe_gets_it_as_it_is(
    toy_target: Path, toy_draft: Path, tmp_path: Path
) -> None:
    from tests.support.terminal import Terminal  # noqa: PLC0415 - Windows has none

    options = ["run", "toy", "-p", "hi", "--grammar", ESCAPES]
    for more in ([], ["--json"]):
        terminal = Terminal([*options, *more], tmp_path)
        assert terminal.ends() == 0
        assert "a␛]0;owned␇\ufffd31mb" in terminal.raw.decode() or more
        assert not any(wild in terminal.raw.decode() for wild in ("\x1b", "\x07", "\x9b"))
    piped = subprocess.run(
        [sys.executable, "-m", "localspec", *options], capture_output=True, check=True
    )
    assert piped.stdout.decode() == json.loads('"a\\u001b]0;owned\\u0007\\u009b31mb\\n"')
