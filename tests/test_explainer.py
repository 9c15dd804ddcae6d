"""Explanations of a round have the numbers of a trace's replay, for every rule and drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from localspec.drafter_names import ASSISTANT, CROSS_VOCABULARY, DFLASH, DRAFT, EAGLE3, LOOKUP, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.head_drafter import head_drafter
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.steps import EXCERPT_TOKENS
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model, head_of
from localspec.engine.record.explain_again import explain_again
from localspec.engine.record.explanation import RoundExplanation, TokenVerdict
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import SamplingParams
from localspec.errors import EngineError, LocalspecError
from localspec.process.inspected_rounds import InspectedRounds
from tests.support import toy

from .support.gemma4 import write_assistant, write_gemma4
from .support.gguf_models import write_renumbered
from .support.heads import write_dflash
from .support.pairwise import usually
from .support.replay import Trace, TracedRound, read_trace
from .support.stub_context import StubContext, StubModel, near, random_script

VOCAB = 40
PROMPT = [1, 2, 3]
RULES = [*((accept, None) for accept in Accept), (Accept.TOKEN, 0.6)]


TARGET, DRAFTS = random_script(VOCAB, 5), near(random_script(VOCAB, 5), 0.8, 6)
ROWS = {script: cache(script) for script in (TARGET, DRAFTS)}


def stubs(*, lookup: bool = False) -> Engine:
    """An engine with a draft model, or, for `lookup`, a target that repeats itself."""
    window = 1 if lookup else 3
    script, drafts = (lambda tokens, of=of: ROWS[of](tokens[-window:]) for of in (TARGET, DRAFTS))
    target = StubContext(script, StubModel(VOCAB), n_ctx=2000)
    if lookup:
        return Engine(target, lookup=Lookup(2000, target.model.is_end))  # type: ignore[arg-type]
    draft = StubContext(drafts, StubModel(VOCAB), n_ctx=2000)
    return Engine(target, ModelDrafter(draft, VOCAB))  # type: ignore[arg-type]


def traced(
    engine: Engine,
    prompt: Sequence[int],
    n_predict: int,
    *,
    live: bool = False,
    rounds: int = 0,
    **how: Any,
) -> tuple[Trace, list[RoundExplanation]]:
    """A trace of a generation, and the explanations of its rounds.

    The generation ends after `rounds` rounds if given, else after `n_predict` tokens.
    """
    lines: list[str] = []
    seen: list[RoundExplanation] = []
    settings = GenerateSettings(
        n_predict=n_predict, trace=TraceWriter(lambda one: lines.append(json.dumps(one))), **how
    )
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    made = engine.generate(prompt, settings, FixedGamma(4), cancel)
    for _ in islice(made, rounds or None):
        engine.recorder.watch = seen.append if live else None
    made.close()
    engine.recorder.watch = None
    return read_trace(lines), seen


def check(engine: Engine, trace: Trace, found: RoundExplanation, *, within: float = 0.0) -> None:
    """Check that the explanation of a round agrees with its trace."""
    done = trace.rounds[found.number - 1]
    piece = engine.target.model.piece
    words = [piece(token, special=True).decode("utf-8", "replace") for token in done.emitted]
    assert found.same
    assert found.rounds >= found.number
    assert found.accepted == done.verdict.accepted
    assert [*(one.text for one in found.guesses[: found.accepted]), found.token] == words
    for i, (one, token) in enumerate(zip(found.guesses, done.draft.tokens, strict=True)):
        row = done.p.get(i)
        assert (one.target is None) == (row is None)
        if row is not None and one.target is not None and not found.greedy:
            assert one.target.guess == pytest.approx(row.prob(token), abs=within)
            assert one.target.best[0].share == pytest.approx(row.probs.max(), abs=within)
        if one.draft is not None and done.draft.q is not None:
            assert one.draft.guess == pytest.approx(done.draft.q[i].prob(token), abs=within)
    tests = [one.test for one in found.guesses if one.test is not None]
    assert [one.accepted for one in tests][: found.accepted] == [True] * found.accepted
    assert not any(one.accepted for one in tests[found.accepted :])
    if within:  # rows that differ a little give other numbers, above all p/q of small shares
        check_shown(trace, found)
    else:
        check_numbers(trace, done, tests)


def check_shown(trace: Trace, found: RoundExplanation) -> None:
    """Check that the token rule's chances follow from the shares drawn as bars next to them."""
    for one in found.guesses:
        if trace.rule in ("token", "lossy") and one.test and one.draft and one.target:
            below = (trace.lenience or 1.0) * one.draft.guess
            assert one.test.chance is None or one.test.chance == one.target.guess / below


def check_numbers(trace: Trace, done: TracedRound, tests: Sequence[TokenVerdict]) -> None:
    """Check that the tests' numbers are those that the rule's paper derives from the rows."""
    p, q, tokens = done.p, done.draft.q, done.draft.tokens
    draws = iter(done.draws)
    if trace.rule in ("token", "lossy") and (q is not None or trace.rule == "lossy"):
        for i, test in enumerate(tests):
            of_q = 1.0 if q is None else q[i].prob(tokens[i])
            chance = p[i].prob(tokens[i]) / (of_q * (trace.lenience or 1.0))
            assert test.chance == pytest.approx(chance, abs=0.0)
            assert test.drawn == next(draws)
            assert test.accepted == (test.drawn < chance)
    elif trace.rule == "block" and q is not None:
        weight, weights = 1.0, []
        for i, token in enumerate(tokens):
            weight = min(1.0, weight * p[i].prob(token) / q[i].prob(token)) if i in p else 0.0
            weights.append(weight)
        tried = [i for i in range(len(tokens)) if weights[i] > 0]
        for i in reversed(tried[max(0, done.verdict.accepted - 1) :]):
            assert tests[i].drawn == next(draws)
            left = weights[i]
            if i + 1 < len(tokens):
                rest = np.maximum(0, weights[i] * p[i + 1].probs - q[i + 1].on(p[i + 1].ids)).sum()
                left = rest / (rest + 1 - weights[i]) if rest + 1 > weights[i] else 1.0
            assert tests[i].chance == pytest.approx(left, abs=1e-12)
    else:
        for i, test in enumerate(tests):
            assert (test.said == tokens[i]) == test.accepted or trace.rule == "lossy greedy"
        if tests and not tests[-1].accepted:
            assert tests[-1].said == done.verdict.token


@pytest.mark.few(2)
@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("accept", "lenience"), RULES)
@pytest.mark.parametrize("rounds", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_rounds_are_told_as_a_replay_derives_them(
    accept: Accept, lenience: float | None, temperature: float, lookup: bool, rounds: int
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=8, repeat_penalty=1.1)
    how = {"accept": accept, "sampling": sampling, "lenience": lenience}
    engine = stubs(lookup=lookup)
    trace, live = traced(engine, PROMPT, 5 * rounds, live=True, **how)
    assert engine.recorder.generation is not None
    assert len(trace.rounds) >= rounds
    assert len(live) >= rounds // 4
    for found in live:
        check(engine, trace, found)
        assert not found.again
    by_number = {found.number: found for found in live}
    for number in range(1, rounds + 1, 7):
        again = explain_again(engine, engine.recorder.generation, number, Cancel())
        check(engine, trace, again)
        assert again.again
        if number in by_number:
            assert again.guesses == by_number[number].guesses
            assert again.last == by_number[number].last


def test_looking_inside_changes_nothing_of_the_answer() -> None:
    how = {"accept": Accept.BLOCK, "sampling": SamplingParams(temperature=0.9, seed=8)}
    looked, _ = traced(stubs(), PROMPT, 200, live=True, **how)
    alone, _ = traced(stubs(), PROMPT, 200, **how)
    assert [one.emitted for one in looked.rounds] == [one.emitted for one in alone.rounds]
    assert [one.draws for one in looked.rounds] == [one.draws for one in alone.rounds]


def test_after_a_look_the_next_answer_is_what_it_would_have_been() -> None:
    how = {"accept": Accept.TOKEN, "sampling": SamplingParams(temperature=0.9, seed=8)}
    engine, other = stubs(), stubs()
    for each in (engine, other):
        traced(each, PROMPT, 60, **how)
    assert engine.recorder.generation is not None
    explain_again(engine, engine.recorder.generation, 9, Cancel())
    prompt = [*engine.recorder.generation.tokens, 5]
    first, second = (traced(each, prompt, 60, **how)[0] for each in (engine, other))
    assert [one.emitted for one in first.rounds] == [one.emitted for one in second.rounds]


def test_at_temperature_0_the_bars_are_those_before_the_choice() -> None:
    engine = stubs()
    traced(engine, PROMPT, 40, accept=Accept.MATCH, sampling=SamplingParams(temperature=0.0))
    assert engine.recorder.generation is not None
    found = explain_again(
        engine, engine.recorder.generation, engine.recorder.generation.latest(), Cancel()
    )
    assert found.greedy
    for one in found.guesses:
        for side in filter(None, (one.draft, one.target)):
            assert len(side.best) == 5
            assert 0 < sum(bar.share for bar in side.best) < 1
    assert found.last is not None
    assert found.last.best[0].text == found.token


def test_what_has_no_distribution_says_so_by_having_none() -> None:
    engine = stubs(lookup=True)
    traced(engine, PROMPT, 300, accept=Accept.TOKEN, sampling=SamplingParams(seed=1))
    assert engine.recorder.generation is not None
    found = explain_again(
        engine, engine.recorder.generation, engine.recorder.generation.latest(), Cancel()
    )
    assert found.guesses
    assert {one.drafter for one in found.guesses} == {LOOKUP}
    assert all(one.draft is None for one in found.guesses)


def test_a_round_without_a_draft_has_a_last_token_alone() -> None:
    engine = stubs()
    traced(engine, PROMPT, 30, accept=Accept.TOKEN, sampling=SamplingParams(seed=1))
    assert engine.recorder.generation is not None
    found = explain_again(engine, engine.recorder.generation, 1, Cancel())
    assert found.guesses == ()
    assert found.last is not None
    assert (found.earlier, found.later) == (0, 2)
    assert found.baseline_s > 0


def test_what_a_draft_took_that_proposed_nothing_is_no_part_of_the_baseline() -> None:
    engine = stubs()
    traced(engine, PROMPT, 30, accept=Accept.TOKEN, sampling=SamplingParams(seed=1))
    assert engine.recorder.generation is not None
    figures = replace(
        engine.recorder.generation.rounds[0].figures, drafted=0, total_s=1.5, draft_s=0.5
    )
    asked = replace(engine.recorder.generation.rounds[0], figures=figures)
    assert not asked.drafted
    assert replace(engine.recorder.generation, rounds=[asked] * 3).baseline_s() == 1.0


def test_a_drafter_that_has_changed_is_told() -> None:
    engine = stubs()
    traced(engine, PROMPT, 60, accept=Accept.TOKEN, sampling=SamplingParams(seed=1))
    written, context = engine.recorder.generation, engine.drafters[DRAFT].context  # type: ignore[attr-defined]
    assert written is not None
    context.script = random_script(VOCAB, 77)
    with pytest.raises(EngineError, match="does not draft here any more"):
        explain_again(engine, written, written.latest(), Cancel())


# ---------------------------------------------------------------- the real models


DRAFTERS = (DRAFT, CROSS_VOCABULARY, EAGLE3, MTP, DFLASH, ASSISTANT)


@pytest.fixture
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The toy's target, one thread, with each of its drafters."""
    options = ContextOptions(n_ctx=1100, threads=1, flash_attention=True)
    path = toy.mtp() if request.param == MTP else toy.TARGET
    if request.param == ASSISTANT:
        path = write_gemma4(tmp_path / "target.gguf")
    with ExitStack() as stack:
        model = stack.enter_context(Model.load(path, mtp=request.param == MTP))
        target = stack.enter_context(Context(model, options))
        if request.param == DRAFT:
            small = stack.enter_context(Model.load(toy.DRAFT))
            draft = stack.enter_context(Context(small, options))
            yield Engine(target, ModelDrafter(draft, model.n_vocab))
            return
        if request.param == CROSS_VOCABULARY:  # it has fewer tokens, and other numbers for them
            path = write_renumbered(tmp_path / "other.gguf", fewer=1000)
            small = stack.enter_context(Model.load(path))
            draft = stack.enter_context(Context(small, options))
            yield Engine(target, CrossVocabularyDrafter(draft, VocabularyMap(model, small)))
            return
        held = model
        if request.param == EAGLE3:
            held = stack.enter_context(Model.load(toy.EAGLE3, head=True))
        if request.param == DFLASH:
            path = write_dflash(tmp_path / "head.gguf")
            held = stack.enter_context(Model.load(path, head=True))
        if request.param == ASSISTANT:
            path = write_assistant(tmp_path / "assistant.gguf")
            held = stack.enter_context(Model.load(path, head=True))
        head = stack.enter_context(head_of(held, target, options))
        yield Engine(target, head_drafter(head))


def cases() -> Iterator[tuple[str, Accept, float | None, float, int]]:
    """Each drafter under each rule."""
    for drafter, rule in product(DRAFTERS, RULES):
        yield from ((drafter, *rule, *how) for how in ((0.9, 12), (0.0, 60), (0.9, 200)))


def usual() -> Iterator[tuple[str, Accept, float | None, float, int]]:
    """Each drafter under one of the rules, and each rule."""
    yield from ((name, *rule, 0.9, 12) for name, rule in zip(DRAFTERS, RULES * 2))  # noqa: B905


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("real", "accept", "lenience", "temperature", "rounds"),
    usually(cases(), *usual()),
    indirect=["real"],
)
def test_real_rounds_are_told_as_a_replay_derives_them(
    real: Engine, accept: Accept, lenience: float | None, temperature: float, rounds: int
) -> None:
    model = real.target.model
    prompt = model.tokenize("The dog and the cat", add_special=True, parse_special=False)
    never = dict.fromkeys(model.end_tokens, float("-inf"))
    sampling = SamplingParams(temperature=temperature, seed=8, logit_bias=never)
    how = {"accept": accept, "sampling": sampling, "lenience": lenience}
    trace, live = traced(real, prompt, 1050, live=True, rounds=rounds, **how)
    assert real.recorder.generation is not None
    assert len(trace.rounds) == rounds
    assert live
    for found in live:
        check(real, trace, found)
    for found in live[:: max(4, rounds // 8)]:
        try:
            again = explain_again(real, real.recorder.generation, found.number, Cancel())
        except EngineError:  # an unlikely token drawn then may be filtered out now
            draft = trace.rounds[found.number - 1].draft
            drawn = zip(draft.q or (), draft.tokens, strict=True)
            assert min(q.prob(token) for q, token in drawn) < 0.05
            continue
        if again.same:  # batches of other sizes: the last bits may decide otherwise
            check(real, trace, again, within=0.05)
        assert [one.text for one in again.guesses] == [one.text for one in found.guesses]


@pytest.mark.slow
@pytest.mark.parametrize("real", [EAGLE3, DFLASH], indirect=True)
def test_what_a_head_read_long_ago_is_read_again(real: Engine) -> None:
    """The head began to read near the end of the text; an explanation begins at the same place."""
    text = "The dog and the cat went to the market. " * 40
    prompt = real.target.model.tokenize(text, add_special=True, parse_special=False)[:350]
    never = dict.fromkeys(real.target.model.end_tokens, float("-inf"))
    sampling = SamplingParams(temperature=0.0, logit_bias=never)
    how = {"accept": Accept.MATCH, "sampling": sampling}
    _, live = traced(real, prompt, 96, live=True, **how)
    assert real.recorder.generation is not None
    found = live[-1]
    made = real.recorder.generation.rounds[found.number - 1]
    assert 280 < made.begun < made.position - EXCERPT_TOKENS - 64
    again = explain_again(real, real.recorder.generation, found.number, Cancel())
    (drafter,) = real.drafters.values()
    assert drafter.head.first == made.begun  # type: ignore[attr-defined]
    for one, other in zip(again.guesses, found.guesses, strict=True):
        assert (one.text, one.draft is None) == (other.text, other.draft is None)
        if one.draft is not None and other.draft is not None:
            assert one.draft.guess == pytest.approx(other.draft.guess, abs=0.02)


def test_an_answer_whose_record_is_gone_says_which_can_be_looked_into() -> None:
    """F5 answers the last question only, whichever answer was meant."""
    with pytest.raises(LocalspecError, match="not known any more") as refused:
        InspectedRounds().explain(1, 0, Mock(), Mock(), Cancel())
    assert refused.value.remedy == "F5 answers the last question again: look then."
