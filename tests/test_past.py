"""Texts of other conversations are kept, found, copied by lookup, and deleted with them."""

from __future__ import annotations

import errno
import os
import random
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pytest

from localspec.chat.history.store import Store
from localspec.chat.session.session import Session
from localspec.chat.states import past_conversations
from localspec.chat.states.past_conversations import PAST, PastStore
from localspec.chat.states.state_files import forget
from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.lookup import NO_GUESS, Lookup
from localspec.engine.drafters.past_texts import Past
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.record.stats import GenerationStats
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.loading.load import load_session, open_session
from localspec.loading.load_request import LoadRequest
from tests.support import toy

from .support.chat_pilot import chatting
from .support.stub_context import StubContext, StubModel, random_script

END = 9


def past_of(*texts: Sequence[int]) -> Past:
    return Past([np.array(text, np.int32) for text in texts])


def copied(known: Past, tokens: Sequence[int], limit: int = 8) -> tuple[int, ...]:
    found = Lookup(1024, lambda token: token == END)
    found.begin(tokens, known)
    return found.guess(tokens, limit=limit).tokens


# ---------------------------------------------------------------- what it finds


def test_what_followed_in_another_text_is_copied_to_its_end() -> None:
    known = past_of([1, 2, 3, 4, 5, 6, 7, 8], [6, 5, 4, 3, 2, 1, 40, 41])
    assert copied(known, [50, 1, 2, 3, 4, 5, 6]) == (7, 8)
    assert copied(known, [50, 2, 3, 4, 5, 6], 8) == ()  # five tokens are too few
    assert copied(known, [50, 6, 5, 4, 3, 2, 1], 1) == (40,)
    assert copied(known, [3, 4, 5, 6, 7, 8]) == ()  # nothing follows, least of all the next text
    ending = past_of([1, 2, 3, 4, 5, 6, END, 8])
    assert copied(ending, [1, 2, 3, 4, 5, 6]) == (END,)
    assert past_of().find([1] * 30) == past_of([], [1]).find([1] * 30) == (0, 0)


def test_the_longer_match_is_copied_and_of_equals_the_own_text() -> None:
    own = [*range(10, 20), 70, 71, *range(10, 20)]
    assert copied(past_of([*range(10, 20), 80, 81]), own)[:2] == (70, 71)
    assert copied(past_of([71, *range(10, 20), 80]), own) == (80,)
    assert copied(past_of([71, *range(10, 20)]), own)[:2] == (70, 71)  # theirs ends there
    known = past_of([*range(10, 20), 1], [*range(10, 20), 2])
    assert copied(known, range(10, 20)) == (2,)  # the latest text


def test_as_a_plain_search_would_find_it() -> None:
    luck = random.Random(1)
    texts = [[luck.randrange(3) for _ in range(300)] for _ in range(4)]
    known, found = past_of(*texts), 0
    for _ in range(400):
        tail = [luck.randrange(3) for _ in range(luck.randrange(30))]
        match, at = known.find(tail)
        places = [
            text[i : i + 5]
            for text in texts
            for i in range(match, len(text) + 1)
            if match and text[i - match : i] == tail[-match:]
        ]
        found += bool(match)
        assert not match or known.copy(at, 5) in places
    assert found > 50


# ---------------------------------------------------------------- files


class Words:
    """A vocabulary of a hundred words, named after a letter."""

    n_vocab = 100

    def __init__(self, letter: bytes = b"a") -> None:
        self._letter = letter

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._letter + b"%d" % token


SAID = [*range(20, 40)]


def kept(folder: Path, *conversations: str) -> PastStore:
    store = PastStore(folder, Words())
    for name in conversations:
        store.enter(name)
        store.keep(SAID)
    store.enter("now")
    return store


def known(store: PastStore) -> bool:
    return store.recall().find(SAID[:10])[0] > 0


def test_other_conversations_are_known_and_no_longer_when_they_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / PAST
    store = kept(folder, "c1")
    assert known(store)
    assert known(PastStore(folder, Words()))
    assert not known(PastStore(folder, Words(b"b")))  # whose ids mean something else
    store.enter("c1")  # its own text does not count as another's
    assert not known(store)
    store.enter("now")
    assert known(store)
    history = Store(tmp_path / "conversations.db")
    history.delete("c1")
    history.close()
    assert [*folder.iterdir()] == []
    assert not known(store)
    store.enter("")
    store.keep(SAID)  # a conversation that is not stored
    assert [*folder.iterdir()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="rights are others there")
def test_the_files_are_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept(tmp_path / "localspec" / PAST, "c1")
    finally:
        os.umask(before)
    for path in (tmp_path / "localspec").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def shorter(data: bytes) -> bytes:
    return data[:-2]


def another_id(data: bytes) -> bytes:
    return data[:-4] + (21).to_bytes(4, "little")


def nothing_of_ours(data: bytes) -> bytes:
    return b"SQLite format 3"


@pytest.mark.parametrize("spoil", [shorter, another_id, nothing_of_ours])
def test_a_damaged_file_is_put_aside_and_said(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    kept(tmp_path, "c1", "c2")
    path = next(tmp_path.glob("c1.*"))
    path.write_bytes(spoil(path.read_bytes()))
    store = PastStore(tmp_path, Words())
    assert known(store)  # the other one
    assert len(store.problems) == 1
    assert str(tmp_path) in store.problems[0]
    assert {each.suffix for each in tmp_path.glob("c1.*")} == {".damaged"}
    assert not PastStore(tmp_path, Words()).problems
    forget(tmp_path, "c1")
    assert not [*tmp_path.glob("c1.*")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    kept(tmp_path, "c1", "c2")
    path = next(tmp_path.glob("c1.*"))
    path.unlink()
    os.mkfifo(path)
    assert known(PastStore(tmp_path, Words()))  # the other one


def test_ids_that_the_vocabulary_does_not_have_are_damage(tmp_path: Path) -> None:
    store = PastStore(tmp_path, Words())
    store.enter("c1")
    for wrong in (-1, 100):
        store.keep([*SAID, wrong])
        other = PastStore(tmp_path, Words())
        assert not known(other)
        assert other.problems


def test_the_oldest_make_room_and_all_can_be_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_conversations, "MOST", 70)
    largest = past_conversations._HEAD + 4 * 70
    monkeypatch.setattr(past_conversations, "_LARGEST", largest)
    for i, name in enumerate(("c1", "c2", "c3", "c4")):
        kept(tmp_path, name)
        for path in tmp_path.glob(f"{name}.*"):
            os.utime(path, (i, i))
    left = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert left == {"c3", "c4"}
    store = PastStore(tmp_path, Words())
    store.enter("long")
    store.keep(range(100))
    assert [path.name.split(".")[0] for path in tmp_path.iterdir()] == ["long"]  # its end
    past_conversations.clear(tmp_path)
    past_conversations.clear(tmp_path / "nowhere")
    assert [*tmp_path.iterdir()] == []


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / PAST).write_text("a file in its place")
    store = PastStore(tmp_path / PAST, Words())
    store.enter("c1")
    store.keep(SAID)
    assert not known(store)


@pytest.mark.timed
def test_a_million_tokens_open_in_a_moment_and_are_found_at_once(tmp_path: Path) -> None:
    words = Words()
    words.n_vocab = 50_000
    luck = np.random.default_rng(1)
    for i in range(100):
        store = PastStore(tmp_path, words)
        store.enter(f"c{i}")
        store.keep(luck.integers(0, 50_000, 10_000).tolist())
    opened = []
    for _ in range(5):
        started = process_time()
        found = PastStore(tmp_path, words).recall()
        opened.append(process_time() - started)
    assert min(opened) < 0.05  # of this program: others may keep the machine busy
    taken = found._tokens.nbytes + found._follows.nbytes
    assert 980_000 <= len(found._tokens) < taken / 4 < 4_000_000
    tail, times = found._tokens[5000:5030].tolist(), []
    lookup = Lookup(1024, lambda _: False)
    lookup.begin(tail, found)
    for _ in range(200):
        started = perf_counter()
        guess = lookup.guess(tail)
        times.append(perf_counter() - started)
    assert guess != NO_GUESS
    assert min(times) < 50e-6
    lookup.begin(nothing := [*range(20)], found)
    for _ in range(200):
        started = perf_counter()
        assert lookup.guess(nothing) == NO_GUESS
        times.append(perf_counter() - started)
    assert min(times[200:]) < 20e-6


# ---------------------------------------------------------------- with an engine


@pytest.mark.parametrize(
    ("accept", "seeded", "used"),
    [
        (Accept.BLOCK, False, True),
        (Accept.BLOCK, True, False),
        (Accept.TOKEN, True, False),
        (Accept.COUPLED, True, True),
    ],
)
def test_with_a_seed_a_draft_that_counts_does_not_come_from_elsewhere(
    accept: Accept, seeded: bool, used: bool
) -> None:
    context = StubContext(random_script(30, 3, sharpness=9.0), StubModel(30))
    engine = Engine(context, lookup=Lookup(256, lambda _: False))  # type: ignore[arg-type]
    settings = GenerateSettings(
        sampling=SamplingParams(seed=4), accept=accept, n_predict=24, repeatable=seeded
    )

    prompt = [1, 2, 3, 4, 5, 6]

    def written() -> tuple[list[int], int]:
        list(engine.prefill(prompt, Cancel()))
        rounds = list(engine.generate(prompt, settings, FixedGamma(4), Cancel()))
        return [t for done in rounds for t in done.tokens], sum(done.drafted for done in rounds)

    alone, drafted = written()
    engine.past = [past_of([*prompt, *alone])]
    again, more = written()
    assert (more > drafted) == used
    assert again == alone or not seeded


ALONE = LoadRequest(
    pair=str(toy.TARGET),
    draft="lookup",
    ctx_size=512,
    threads=1,
    gamma=8,
    temp=0,
    n_predict=24,
)


def loaded(folder: Path) -> Session:
    session = load_session(ALONE, progress=lambda *_: None, cancel=Cancel())
    session.remember_in(folder)
    return session


@pytest.mark.few(1)
@pytest.mark.parametrize("wanted", [True, False])
def test_one_setting_switches_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    request = replace(ALONE, past=wanted)
    session = open_session(request, progress=lambda *_: None, cancel=Cancel())
    answered(session, "c1")
    session.close()
    assert (tmp_path / PAST).exists() == wanted


async def test_one_command_in_the_app_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    folder = tmp_path / PAST
    session = loaded(folder)
    first = answered(session, "c1")
    async with chatting() as chat:
        with monkeypatch.context() as full:
            full.setattr(Path, "unlink", refused)
            await chat.send("/forget")
            await chat.until(lambda: "still there: Permission denied" in chat.status())
        assert len([*folder.iterdir()]) == 1
        await chat.send("/forget")
        await chat.until(lambda: "nothing of earlier conversations" in chat.status())
    assert not [*folder.iterdir()]
    assert answered(session, "c2").accepted_tokens == first.accepted_tokens
    session.close()


def refused(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def answered(session: Session, conversation: str) -> GenerationStats:
    session.enter(conversation)
    session.open(())
    *_, end = session.turn("Tell me a story of a dog.", Cancel())
    stats: GenerationStats = end.stats  # type: ignore[union-attr]
    return stats


def test_an_answer_is_copied_from_another_conversation_until_that_is_deleted(
    tmp_path: Path,
) -> None:
    session = loaded(tmp_path)
    first = answered(session, "c1")
    assert answered(session, "c1").accepted_tokens == first.accepted_tokens
    assert answered(session, "c2").accepted_tokens > first.accepted_tokens + 8
    session.close()
    session = loaded(tmp_path)  # another run
    with session.aside():
        assert answered(session, "c3").drafters.get(LOOKUP, None) is not None
    assert not [*tmp_path.glob("c3.*")]
    assert answered(session, "c3").accepted_tokens > first.accepted_tokens + 8
    for name in ("c1", "c2", "c3"):
        forget(tmp_path, name)
    assert answered(session, "c4").accepted_tokens == first.accepted_tokens
    session.close()
