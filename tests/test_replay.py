"""A trace holds what it takes to derive every token and to decode the same batches again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context
from localspec.engine.llama.grammar import LlamaGrammar
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import LocalspecError

from .fakes import tokens_of
from .support.replay import read_trace, redecode, rederive
from .support.stub_context import StubContext, StubModel, near, random_script

VOCAB = 40
PROMPT = [1, 2, 3]


def stubs(ends: frozenset[int] = frozenset()) -> Engine:
    script = random_script(VOCAB, 5)
    target = StubContext(script, StubModel(VOCAB, ends))
    draft = StubContext(near(script, 0.8, 6), StubModel(VOCAB, ends))
    return Engine(target, ModelDrafter(draft, VOCAB))  # type: ignore[arg-type]


def record(
    engine: Engine, prompt: list[int], gamma: int = 4, n_predict: int = 40, **how: Any
) -> tuple[list[int], list[str]]:
    """Generate; return the tokens and the trace's lines."""
    lines: list[str] = []
    recorder = TraceWriter(lambda document: lines.append(json.dumps(document, allow_nan=False)))
    settings = GenerateSettings(n_predict=n_predict, trace=recorder, **how)
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    rounds = list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))
    return tokens_of(rounds), lines


@pytest.mark.parametrize("accept", list(Accept))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("lenience", [None, 0.5])
def test_every_token_is_derived_again(
    accept: Accept, temperature: float, lenience: float | None
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=8)
    tokens, lines = record(stubs(), PROMPT, accept=accept, sampling=sampling, lenience=lenience)
    assert rederive(read_trace(lines)) == tokens
    assert len(tokens) == 40


def test_a_run_without_a_seed_can_be_replayed_too() -> None:
    for accept in Accept:
        tokens, lines = record(stubs(), PROMPT, accept=accept, sampling=SamplingParams())
        assert rederive(read_trace(lines)) == tokens


def test_an_end_of_generation_inside_a_round() -> None:
    engine, sampling = stubs(frozenset({7, 11, 13, 17})), SamplingParams(seed=8)
    tokens, lines = record(engine, PROMPT, accept=Accept.BLOCK, sampling=sampling)
    derived = rederive(read_trace(lines))
    assert derived[: len(tokens)] == tokens
    assert len(tokens) < 40


@pytest.mark.parametrize("accept", list(Accept))
def test_the_same_batches_give_the_same_rows(accept: Accept) -> None:
    sampling = SamplingParams(
        temperature=1.1, repeat_penalty=1.2, logit_bias={3: -np.inf, 4: 0.5}, seed=1
    )
    _, lines = record(stubs(), PROMPT, accept=accept, sampling=sampling)
    found = redecode(read_trace(lines), stubs_target())
    assert found.same_tokens
    assert found.max_difference == 0
    assert found.rounds == len(lines) - 1


def test_a_trace_of_the_first_version_is_still_read() -> None:
    """Draft and target drew from one stream then; recorded by the version before."""
    lines = (Path(__file__).parent / "data" / "trace_version_1.jsonl").read_text("utf-8")
    trace = read_trace(lines.splitlines())
    assert trace.version == 1
    assert rederive(trace) == [24, 20, 23, 5, 18, 27, 17, 26, 2, 17, 18, 37, 21, 10]
    found = redecode(trace, stubs_target())
    assert found.same_tokens
    assert found.max_difference < 1e-15  # recorded on another processor
    damaged = lines.replace('"version": 1', '"version": 2')
    with pytest.raises(LocalspecError, match="cannot be replayed"):
        read_trace(damaged.splitlines())


@pytest.mark.parametrize("accept", [Accept.MATCH, Accept.TOKEN, Accept.BLOCK])
def test_what_the_target_draws_does_not_depend_on_how_much_was_drafted(accept: Accept) -> None:
    sampling = SamplingParams(temperature=1.0, seed=4)
    drawn: dict[str, set[tuple[float, ...]]] = {"draws": set(), "draft_draws": set()}
    for gamma in (0, 1, 3, 8):
        _, lines = record(stubs(), PROMPT, gamma, accept=accept, sampling=sampling)
        for name, each in drawn.items():
            numbers = [u for line in lines[1:] for u in json.loads(line)[name]]
            each.add(tuple(numbers[:40]))
    assert len(drawn["draws"]) == 1
    longest = max(drawn["draft_draws"], key=len)
    assert all(longest[: len(numbers)] == numbers for numbers in drawn["draft_draws"])
    assert (len(longest) > 0) == (accept is not Accept.MATCH)
    assert not set(longest) & {u for numbers in drawn["draws"] for u in numbers}


class _Clearable(StubContext):
    def clear(self) -> None:
        self.tokens.clear()


def stubs_target(seed: int = 5) -> _Clearable:
    context = _Clearable(random_script(VOCAB, seed), StubModel(VOCAB))
    context.watch(None)
    return context


def test_another_model_is_told_apart() -> None:
    _, lines = record(stubs(), PROMPT, accept=Accept.TOKEN)
    found = redecode(read_trace(lines), stubs_target(seed=50))
    assert not found.same_tokens
    assert found.max_difference > 0.01


def _edit(change: Callable[[dict[str, Any]], None], line: int) -> Callable[[list[str]], None]:
    def edit(lines: list[str]) -> None:
        document = json.loads(lines[line])
        change(document)
        lines[line] = json.dumps(document)

    return edit


@pytest.mark.few(12)
@pytest.mark.parametrize(
    "damage",
    [
        _edit(lambda d: d.update(token=(d["token"] + 1) % VOCAB), 3),
        _edit(lambda d: d.update(accepted=d["accepted"] - 1), 3),
        _edit(lambda d: d.update(position=d["position"] + 1), 3),
        _edit(lambda d: d.update(draws=[1 - u for u in d["draws"]]), 3),
        _edit(lambda d: d.update(draws=[]), 3),
        _edit(lambda d: d.update(draft_draws=[1 - u for u in d["draft_draws"]]), 3),
        _edit(lambda d: d.pop("draft_draws"), 3),
        _edit(lambda d: d.update(drafted=[(t + 1) % VOCAB for t in d["drafted"]]), 3),
        _edit(lambda d: d["p"].pop("0"), 3),
        _edit(lambda d: d.pop("q"), 3),
        _edit(lambda d: d["p"]["0"][0].pop(), 3),
        _edit(lambda d: d["p"]["0"][1].__setitem__(0, 0.5), 3),
        _edit(lambda d: d.update(p=[]), 3),
        _edit(lambda d: d["q"].pop(), 3),
        _edit(lambda d: d["q"][0][0].__setitem__(0, 10**30), 3),
        _edit(lambda d: d.update(draws=[str(u) for u in d["draws"]]), 3),
        _edit(lambda d: d.update(position=str(d["position"])), 3),
        _edit(lambda d: d.update(version=99), 0),
        _edit(lambda d: d.update(rule="tokem"), 0),
        _edit(lambda d: d.update(rule="lossy"), 0),
        _edit(lambda d: d.update(prompt=[]), 0),
        _edit(lambda d: d.update(seed="8"), 0),
        _edit(lambda d: d.update(sampling=[]), 0),
        _edit(lambda d: d["sampling"].update(top_q=1), 0),
        _edit(lambda d: d.update(format="something else"), 0),
        lambda lines: lines.pop(2),
        lambda lines: lines.clear(),
        lambda lines: lines.__setitem__(1, lines[1][:20]),
        lambda lines: lines.__setitem__(0, "[]"),
    ],
)
def test_a_damaged_trace_is_told(damage: Callable[[list[str]], None]) -> None:
    _, lines = record(
        stubs(), PROMPT, accept=Accept.TOKEN, sampling=SamplingParams(temperature=1.0, seed=7)
    )
    assert json.loads(lines[3])["accepted"] > 0
    damage(lines)
    with pytest.raises(LocalspecError, match="cannot be replayed"):
        rederive(read_trace(lines))


def test_a_trace_with_one_character_changed_is_derived_or_refused() -> None:
    """Whatever the change, no other exception is raised and no other tokens go unnoticed."""
    tokens, lines = record(
        stubs(), PROMPT, n_predict=8, accept=Accept.BLOCK, sampling=SamplingParams(seed=2)
    )
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        number = int(rng.integers(len(lines)))
        line, at = lines[number], int(rng.integers(len(lines[number])))
        changed = line[:at] + str(rng.choice([*'0179.-e,:[]{}"a ', ""])) + line[at + 1 :]
        try:
            trace = read_trace([*lines[:number], changed, *lines[number + 1 :]])
            derived = rederive(trace)
        except LocalspecError:
            refused += 1
        else:
            assert derived == tokens
    assert 300 < refused < 600


def test_recording_changes_nothing() -> None:
    sampling = SamplingParams(temperature=0.9, seed=8)
    engine = stubs()
    cancel = Cancel()
    list(engine.prefill(PROMPT, cancel))
    settings = GenerateSettings(n_predict=40, sampling=sampling, accept=Accept.BLOCK)
    rounds = list(engine.generate(PROMPT, settings, FixedGamma(4), cancel))
    plain = tokens_of(rounds)
    assert record(stubs(), PROMPT, sampling=sampling, accept=Accept.BLOCK)[0] == plain


# ---------------------------------------------------------------- the real pair


@pytest.fixture
def engine(target_context: Context, draft_context: Context) -> Engine:
    return Engine(target_context, ModelDrafter(draft_context, target_context.model.n_vocab))


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", list(Accept))
def test_the_real_batches_give_the_same_bits(engine: Engine, accept: Accept) -> None:
    """The same batches use the same kernels, so they are exact whatever flash attention does."""
    model = engine.target.model
    prompt = model.tokenize("The dog and the cat went", add_special=True, parse_special=False)
    sampling = SamplingParams(temperature=1.0, seed=3)
    tokens, lines = record(engine, prompt, sampling=sampling, accept=accept)
    trace = read_trace(lines)
    assert rederive(trace)[: len(tokens)] == tokens
    found = redecode(trace, engine.target)
    assert found.same_tokens
    assert found.max_difference == 0


def test_a_grammar_is_replayed_too(engine: Engine) -> None:
    model = engine.target.model
    prompt = model.tokenize("The dog", add_special=True, parse_special=False)
    grammar = LlamaGrammar.parse(model, 'root ::= (" " [a-z]{2,5}){6}')
    tokens, lines = record(
        engine, prompt, sampling=SamplingParams(seed=3), accept=Accept.BLOCK, constraint=grammar
    )
    trace = read_trace(lines)
    assert rederive(trace)[: len(tokens)] == tokens
    assert redecode(trace, engine.target, grammar).max_difference == 0
    assert redecode(trace, engine.target).max_difference > 0
