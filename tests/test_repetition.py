"""An answer that only repeats itself is stopped, and nothing before that changes."""

from __future__ import annotations

import json
import random
from itertools import cycle, islice

import pytest

from localspec.chat.session.answer import AnswerText
from localspec.chat.session.repetition import Repetition
from localspec.engine.record.stats import FinishReason, Round
from tests.support.command import run


def stopped_after(tokens: list[int]) -> int | None:
    """The number of tokens taken when repetition was noticed, or None if it never was."""
    watched = Repetition()
    return next((n for n, token in enumerate(tokens, 1) if watched.add(token)), None)


@pytest.mark.parametrize("period", [1, 2, 3, 17, 63, 64, 65, 200, 1024])
def test_a_cycle_is_told_once_it_came_four_more_times_and_for_256_tokens(period: int) -> None:
    before = random.Random(period).sample(range(10_000, 90_000), 300)
    tokens = [*before, *islice(cycle(range(period)), 6 * period + 300)]
    enough = 300 + period + max(256, 4 * period)
    assert stopped_after(tokens) == enough
    assert stopped_after(tokens[: enough - 1]) is None


def test_other_texts_are_left_alone() -> None:
    chance = random.Random(0)
    assert stopped_after([chance.randrange(4) for _ in range(20_000)]) is None
    assert stopped_after([*islice(cycle(range(1025)), 8000)]) is None
    table = [cell for row in range(300) for cell in (*range(90), 1000 + row)]  # rows that differ
    assert stopped_after(table) is None
    almost = [*islice(cycle(range(8)), 5000)]
    almost[250::250] = [99] * len(almost[250::250])
    assert stopped_after(almost) is None


@pytest.mark.parametrize("accepted", [0, 3, 7])
def test_a_round_is_cut_where_the_answer_repeated_itself(accepted: int) -> None:
    answer = AnswerText(lambda token: b"ab"[token : token + 1], (), repetition=Repetition())
    left = [0, 1] * 300
    while left:
        now, left = left[: accepted + 1], left[accepted + 1 :]
        told = answer.add(Round(tuple(now), accepted, accepted, accepted, 0.0, 0.1, 0.1))
        if told.round.finish is not None:
            break
    assert told.round.finish is FinishReason.REPETITION
    assert answer.tokens == ([0, 1] * 300)[: 2 + 256]
    assert answer.text == "ab" * 129


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("more", "reason"), [((), "repetition"), (("--no-repeat-stop",), "length")]
)
def test_run_stops_and_says_so(more: tuple[str, ...], reason: str) -> None:
    """The grammar allows only one letter, so that any model repeats itself."""
    words = ("toy", "-p", "hi", "--grammar", 'root ::= "a" root', "-n", "400", "-t", "1", "--json")
    done = run("run", *words, "--temp", "0", *more)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["finish_reason"] == reason
    assert document["generated_tokens"] in (range(257, 321) if reason == "repetition" else (400,))
    assert ("--no-repeat-stop" in done.err) is (reason == "repetition")
