"""Where answers with and without drafting part: the place, the margin and the words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from localspec.chat.events import TurnEvent
from localspec.chat.figures.benefit import why_parted
from localspec.chat.session.session import Session
from localspec.chat.session.side_by_side import answer_twice
from localspec.engine.cancel import Cancel
from localspec.engine.record.find_parting import find_parting
from localspec.engine.record.parting import NEAR_TIE, Parting
from localspec.engine.record.round_record import GenerationRecord
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.acceptance import verification
from localspec.engine.round.noise import CounterNoise
from localspec.engine.round.params import Accept
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from tests.support import toy
from tests.support.rounding import round_by

AT = 6


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    options = LoadRequest(pair="toy", threads=1, ctx_size=256, gamma=3, n_predict=24)
    found = load_session(options, progress=lambda *_: None, cancel=Cancel())
    yield found
    found.close()


def answered(session: Session, **sampling: float | int) -> GenerationRecord:
    """The record of an answer with these settings; all tokens are allowed by default."""
    chosen = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3} | sampling
    with session.aside():
        settings = session.settings
        changed = replace(settings.sampling, **chosen)  # type: ignore[arg-type]
        session.settings = replace(settings, sampling=changed, repeatable=True)
        session.open(())
        list(session.turn("Tell me a story about a dog.", Cancel()))
        record = session.written
    assert record is not None
    return record


def said_instead(record: GenerationRecord, token: int) -> GenerationRecord:
    """The same answer with another token in place of the one after the first `AT`."""
    end = record.begun + AT
    return replace(record, tokens=[*record.tokens[:end], token, *record.tokens[end + 1 :]])


def scores(session: Session, record: GenerationRecord) -> np.ndarray:
    """The scores of which the rule takes the largest, from logits decoded here."""
    text = record.tokens[: record.begun + AT]
    target = session.pair.target
    target.clear()
    target.decode(text[:-1], 0)
    logits = target.decode(text[-1:], 1)[0].astype(np.float64)
    temperature = record.settings.sampling.temperature
    if not temperature:
        return logits
    how = verification(record.settings)
    assert isinstance(how.noise, CounterNoise)
    gumbel = -np.log(how.noise.exponentials(np.arange(len(logits)), len(text)))
    return logits + temperature * gumbel


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_margin_is_that_of_what_the_rule_compares(session: Session, temperature: float) -> None:
    baseline = answered(session, temperature=temperature)
    expected = scores(session, baseline)
    order = np.argsort(expected)[::-1].tolist()
    assert order[0] == baseline.tokens[baseline.begun + AT]
    for rank in (1, 5):
        found = find_parting(
            session.engine, baseline, said_instead(baseline, order[rank]), Cancel()
        )
        assert found is not None
        assert found.at == AT
        assert found.margin == pytest.approx(expected[order[0]] - expected[order[rank]], abs=1e-3)


def test_an_end_is_a_token_like_any_other(session: Session) -> None:
    baseline = answered(session, temperature=0.0)
    expected = scores(session, baseline)
    ends = max(expected[token] for token in session.pair.target.model.end_tokens)
    last = baseline.rounds[-1]
    stopped = replace(last, figures=replace(last.figures, finish=FinishReason.STOP))
    ended = replace(baseline, tokens=baseline.tokens[: baseline.begun + AT], rounds=[stopped])
    found = find_parting(session.engine, baseline, ended, Cancel())
    assert found is not None
    assert found.at == AT
    assert found.margin == pytest.approx(expected.max() - ends, abs=1e-3)
    cut = replace(ended, rounds=[])  # stopped by the user, or by a length
    assert find_parting(session.engine, baseline, cut, Cancel()) is None
    assert find_parting(session.engine, baseline, baseline, Cancel()) is None


def test_no_margin_is_told_where_the_draws_were_not_the_same(session: Session) -> None:
    baseline = answered(session, temperature=1.2)
    n_vocab = session.pair.target.model.n_vocab
    token = (baseline.tokens[baseline.begun + AT] + 1) % n_vocab
    settings = replace(baseline.settings, accept=Accept.BLOCK)
    apart = replace(baseline, settings=settings), said_instead(baseline, token)
    assert find_parting(session.engine, *apart, Cancel()) == Parting(AT, None)
    narrow = answered(session, temperature=1.2, top_k=1)  # every other token is left out
    other = said_instead(narrow, (narrow.tokens[narrow.begun + AT] + 1) % n_vocab)
    assert find_parting(session.engine, narrow, other, Cancel()) == Parting(AT, None)


@pytest.mark.parametrize(("most", "said"), [(0.4, "by rounding"), (60.0, "more than rounding")])
def test_texts_that_part_say_whether_rounding_explains_it(
    session: Session, monkeypatch: pytest.MonkeyPatch, most: float, said: str
) -> None:
    round_by(monkeypatch, most)
    partings: list[Parting] = []
    with session.aside():
        sampling = replace(session.settings.sampling, temperature=1.2, seed=1, top_k=0, top_p=1.0)
        sampling = replace(sampling, min_p=0.0)
        session.settings = replace(session.settings, sampling=sampling)
        for prompt in toy.questions(4).prompts:
            events = list(answer_twice(session, prompt.text, [], Cancel()))
            partings += [event for _, event in events if isinstance(event, Parting)]
            assert len({speculation for speculation, _ in events}) == 2
    assert partings
    margins = [parting.margin for parting in partings]
    assert all(margin is not None and margin <= 2 * most + 1e-3 for margin in margins)
    worst = max(partings, key=lambda parting: parting.margin or 0.0)
    assert worst.near_tie == (most < NEAR_TIE)
    assert said in why_parted(worst)


def test_a_comparison_that_is_stopped_tells_nothing_of_partings(session: Session) -> None:
    cancel, events = Cancel(), list[TurnEvent]()
    for _, event in answer_twice(session, "Hello!", [], cancel):
        events.append(event)
        cancel.set()
    assert not any(isinstance(event, Parting) for event in events)


def test_words_are_said_only_of_what_was_measured() -> None:
    assert why_parted(None) == why_parted(Parting(3)) == ""
    assert why_parted(Parting(3, 0.041)) == (
        " by rounding: the two tokens were 0.04 apart, a near tie"
    )
    assert not Parting(3, math.nextafter(NEAR_TIE, 9)).near_tie
    assert why_parted(None, exact=True) == ""
    ruled_out = ", which --exact should rule out, please report it"
    assert why_parted(Parting(3), exact=True) == ruled_out
    assert why_parted(Parting(3, 0.041), exact=True) == (
        f"{ruled_out}: the two tokens were 0.04 apart"
    )
    assert "by more than rounding" in why_parted(Parting(3, 9.0), exact=True)
