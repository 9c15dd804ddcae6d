"""Damaged records: pairs, the last and the next, costs, speeds, settings, caches, earlier texts.

What is undamaged must be shown, and nothing be changed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from localspec.chat.states.past_conversations import PastStore
from localspec.chat.states.state_files import StateFiles
from localspec.cli.settings_file import FILE
from localspec.engine.cancel import Cancel
from localspec.engine.length.profile import Profile, ProfileStore
from localspec.loading.measurements import ranking
from localspec.pairs.disk import folders, installed
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.hub import pair_pull
from tests.support import hostile_options

KNOWN = {"machine": "here", "use": "target"}
_COSTS = ranking.PairCosts(10**9, (0.1, 0.1, 0.11, 0.12), 0.01, 0.02, bits=8.5)
_MODEL = InstalledModel(
    ("/nowhere/a.gguf",), "u/r:Q4", "u/r", "c" * 40, ("a.gguf",), ("0" * 64,), 9
)
_JUNK = (
    *("null", "true", "-1", "1e999", "NaN", "9" * 400, '""', '"\\u001b[2J"', '"\\ud800"', "{}"),
    *("[]", "[[]]", "[" * 100_000, '{"a":' * 50_000, '"' + "x" * 10**6 + '"', "1.5", "\x00", ""),
)


def _records(folder: Path) -> list[Path]:
    """Write one of each, and a second pair that nothing happens to; those to be damaged."""
    pair = InstalledPair("hurt", _MODEL, replace(_MODEL, licence="MIT"))
    installed.save(pair)
    installed.save(replace(pair, name="sound"))
    installed.remember_last("hurt", "none")
    costs = ProfileStore(folder / "CACHE" / "costs")
    costs.save(Profile(KNOWN, {0: {1: 0.1, 2: 0.2}}, {128: {1: 0.1}}, 2))
    settings = folder / "CONFIG" / FILE
    settings.parent.mkdir(exist_ok=True)
    settings.write_text('temp = 0.5\n[run]\nn-predict = 7\n[keys]\nregen = ["f5"]\n')
    ranking.remember("demo", _COSTS, 1 << 30, ("a card", "a command"))
    pair_pull.remember_wanted(pair_pull.PullRequest("user/repo", "other/repo", "hurt"))
    _states(folder).save("a", b"known", [[1, 2, 3]], [np.arange(9, dtype=np.uint8)])
    (measured,) = costs.folder.glob("*.json")
    (state,) = (folder / "states").iterdir()
    past = _past(folder)
    past.enter("a")
    past.keep(range(50))
    (said,) = (folder / "past").iterdir()
    data, speed = installed.folder().parent, folders.cache_folder() / "speed.json"
    records = [installed.folder() / "hurt.json", data / "last-pair.json", data / "wanted.json"]
    return [*records, measured, settings, speed, state, said]


def _states(folder: Path) -> StateFiles:
    return StateFiles(folder / "states", "the same models")


class _Vocabulary:
    n_vocab = 50

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token])


def _past(folder: Path) -> PastStore:
    return PastStore(folder / "past", _Vocabulary())


def _read_past(folder: Path) -> None:
    """What a file says was said was said, or it says nothing."""
    past = _past(folder).recall()
    match, at = past.find(range(20))
    if match and past.copy(at, 100) != list(range(20, 50)):
        raise ValueError("another text is believed")


def _read_state(folder: Path) -> None:
    """What a file of states says is all of it true, or nothing."""
    states = _states(folder)
    if (header := states.find("a")) is None:
        return
    if header.tokens != [[1, 2, 3]] or header.known != b"known":
        raise ValueError("another header is believed")
    for state in states.states("a", header, Cancel()):
        if bytes(state) != bytes(range(9)):
            raise ValueError("another state is believed")


def _damage(path: Path, rng: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    kind = rng.randrange(5)
    if kind == 0:
        del raw[rng.randrange(len(raw)) :]
    elif kind == 1:
        for _ in range(rng.choice((1, 3, 20))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 2:
        raw[:] = rng.choice(_JUNK).encode()
    elif kind == 3 and path.suffix == ".json":
        raw[:] = _one_field(json.loads(raw), rng).encode()
    else:
        at = rng.randrange(len(raw))
        raw[at : at + rng.randrange(9)] = rng.choice(_JUNK).encode()
    path.write_bytes(raw)


def _one_field(document: dict[str, Any], rng: random.Random) -> str:
    """The document with junk in place of a value, at any depth, or without that key."""
    inner: Any = document
    while True:
        key = rng.choice([*inner])
        if not isinstance(inner[key], dict) or not inner[key] or rng.random() < 0.3:
            break
        inner = inner[key]
    if rng.random() < 0.3:
        del inner[key]
        return json.dumps(document)
    inner[key] = "JUNK"
    return json.dumps(document).replace('"JUNK"', rng.choice(_JUNK))


def _faults(folder: Path, damaged: Path) -> list[str]:
    """What should not be, of everything that reads the records."""
    found = []
    before = damaged.read_bytes()
    for arguments in (["list"], ["list", "--json"], ["rm", "missing.gguf"]):
        done = hostile_options.run(arguments)
        wrong = replace(done, code=1).wrong if arguments[0] == "list" else done.wrong
        if wrong or (arguments == ["list"] and ("sound" not in done.out or done.code != 0)):
            found.append(f"{arguments}: {wrong or done.err[:200] or 'a pair is not shown'}")
    for read in _READERS:
        try:
            read(folder)
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error)[:200]}")
    aside = damaged if damaged.exists() else damaged.with_suffix(".damaged")
    return found if aside.read_bytes() == before else [*found, "it was changed"]


_READERS: tuple[Callable[[Path], object], ...] = (
    lambda _: installed.recall_last(),
    lambda _: pair_pull.recall_wanted(),
    _read_past,
    _read_state,
    lambda folder: ProfileStore(folder / "CACHE" / "costs").matching(KNOWN),
    lambda folder: ProfileStore(folder / "CACHE" / "costs").load(KNOWN),
)


def attack(numbers: range, folder: Path) -> list[str]:
    """Damage one record after the other in an empty folder; what went wrong, a line each."""
    failures = []
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        with hostile_options.nowhere(place):
            rng = random.Random(number)
            damaged = rng.choice(_records(place))
            _damage(damaged, rng)
            failures += [f"{number} {damaged.name}: {each}" for each in _faults(place, damaged)]
        shutil.rmtree(place)
    return failures
