"""A few of the environments and files that `python -m tests.support.sweep` tries in hundreds.

Each run draws others, and prints its seed. The options are in `tests/test_hostile_options.py`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from localspec.cli.subcommands import COMMANDS
from tests.support import hostile_files, hostile_options, hostile_surroundings, sweep
from tests.support.draws import in_parts
from tests.support.hostile_files import ENCODINGS, TEXTS, OddFile
from tests.support.hostile_surroundings import Surroundings

posix = pytest.mark.skipif(sys.platform == "win32", reason="these are made by POSIX's means")


def seeded() -> int:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    return seed


@pytest.mark.parametrize("count", in_parts(15, 300))
def test_files_of_odd_encodings_are_read_or_refused_in_words(count: int, tmp_path: Path) -> None:
    assert hostile_files.attack(seeded(), count, tmp_path) == []


@posix
@pytest.mark.parametrize("count", in_parts(3, 60))
@pytest.mark.usefixtures("starter_file")
def test_environments_of_every_kind_end_in_an_answer_or_a_sentence(
    count: int, tmp_path: Path
) -> None:
    assert hostile_surroundings.attack(seeded(), count, tmp_path) == []


@pytest.mark.parametrize("count", in_parts(6, 150))
def test_options_that_may_go_together_end_in_an_answer_or_a_sentence(
    count: int, tmp_path: Path
) -> None:
    assert hostile_options.attack_answers(seeded(), count, tmp_path) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_the_sweep_tries_all_commands_and_all_their_options(tmp_path: Path, seed: int) -> None:
    drawn = {name: set[str]() for name in ("", *COMMANDS)}
    with hostile_options.nowhere(tmp_path):
        for words in hostile_options.answers(seed, sweep.KINDS["options"][1] // 3):
            drawn[words[0] if words[0] in COMMANDS else ""].update(words)
    for name, option in hostile_options.options():
        assert not drawn[name].isdisjoint([*option.opts, *option.secondary_opts]), (name, option)
    assert {words[0] for words in hostile_surroundings.COMMANDS_TRIED} >= {*COMMANDS}


@posix
def test_the_sweeps_find_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault, a traceback and silence are told; a sentence is not."""
    for said, found in (
        ("print('localspec has a fault: X')", "has a fault"),
        ("raise ValueError('x')", "Traceback"),
        ("raise SystemExit(1)", "exit code 1"),
        ("sys.stderr.write('error: so it is'); raise SystemExit(1)", ""),
    ):
        place = f"import sys; {said}; "
        monkeypatch.setattr(hostile_surroundings, "PROGRAM", place)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        assert found in (wrong := hostile_surroundings.fault_of(Surroundings(("x",)), folder))
        assert bool(found) is bool(wrong)


@posix
def test_the_sweep_tells_what_does_not_end_when_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print('Ctrl+C ends it');"
    monkeypatch.setattr(hostile_surroundings, "PROGRAM", f"{deaf} time.sleep(60)")
    monkeypatch.setattr(hostile_surroundings, "PATIENCE_S", 0.7)
    surroundings = Surroundings(("serve",), given={"PYTHONUNBUFFERED": "1"})
    assert "does not end" in hostile_surroundings.fault_of(surroundings, tmp_path / "a")


def test_what_a_file_reads_as_depends_on_its_encoding() -> None:
    texts = {name: OddFile("grammar", name).content for name in ENCODINGS}
    assert texts["utf-8"].decode() == TEXTS["grammar"]
    assert len(set(texts.values())) > 35
