"""Grammars: the tokens allowed in each state; constrained output conforms and is lossless."""

from __future__ import annotations

import ctypes
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.grammars import lark
from localspec.engine.grammars.constraint import Course
from localspec.engine.grammars.grammar_reader import GrammarReader, require_grammar
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, Model
from localspec.engine.llama.grammar import LlamaGrammar, LlamaVocabulary, check_grammar
from localspec.engine.record.stats import FinishReason, Round
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import Sampler, SamplingParams
from localspec.errors import EngineError, SamplingError, UsageError
from tests.support.pairwise import usually

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "mood": {"enum": ["happy", "sad", "sleepy"]},
            "age": {"type": "integer", "maximum": 30},
            "tame": {"type": "boolean"},
        },
        "required": ["mood", "age", "tame"],
    }
)
LARK = lark.of_schema(SCHEMA)
ANIMAL = r"""root ::= "{\"mood\": " mood ", \"age\": " age ", \"tame\": " ("true" | "false") "}"
mood ::= "\"happy\"" | "\"sad\"" | "\"sleepy\""
age ::= [0-9] [0-9]?"""
LETTERS = 'root ::= "yes" | "no" | [a-c]+ "!"'


# ---------------------------------------------------------------- states, without a model


class Multiples:
    """Allows ids that are not divisible by the last one; counts how often it was asked."""

    def __init__(self, last: int = 7, log: list[tuple[int, int]] | None = None) -> None:
        self.last = last
        self.log = [] if log is None else log

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        return ids % self.last != 0

    def after(self, token: int) -> Multiples:
        self.log.append((self.last, token))
        return Multiples(max(2, token), self.log)


def test_states_along_a_draft_are_made_once() -> None:
    log: list[tuple[int, int]] = []
    course = Course(Multiples(7, log))
    assert course.after([]) is course.state
    third = course.after([3, 4, 5])
    assert course.after([3, 4, 5]) is third
    assert log == [(7, 3), (3, 4), (4, 5)]
    assert course.after([3, 4, 9]) is not third
    assert len(log) == 4
    course.commit([3, 4])
    assert len(log) == 4
    assert isinstance(course.state, Multiples)
    assert course.state.last == 4
    course.commit([])
    assert course.after([5]) is not None


def test_of_a_long_text_no_states_are_kept_on_the_way() -> None:
    """A state of llguidance may be as large as the text before it."""
    alive, most = 0, 0

    class Counted(Multiples):
        def __init__(self, last: int = 7) -> None:
            nonlocal alive, most
            super().__init__(last)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

        def after(self, token: int) -> Counted:
            return Counted(token)

    course = Course(Counted())
    course.after([2, 3])
    course.commit(range(2, 1000))
    assert cast(Counted, course.state).last == 999
    assert most <= 5


@given(st.integers(1, 3000), st.integers(2, 9), st.integers(0, 999), st.sampled_from([0, 1, 5, 40]))
def test_asking_about_the_most_probable_first_changes_nothing(
    n: int, last: int, seed: int, top_k: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    masked = np.where(np.arange(n) % last != 0, logits, np.float32(-np.inf))
    for temperature in (0.0, 0.9):
        sampler = Sampler(SamplingParams(temperature=temperature, top_k=top_k))
        if n == 1:
            with pytest.raises(SamplingError, match="no token"):
                sampler.row(logits, [], Multiples(last))
            continue
        a = sampler.row(logits, [], Multiples(last))
        b = sampler.row(masked.astype(np.float32), [])
        assert a.ids.tolist() == b.ids.tolist()
        assert a.probs.tolist() == b.probs.tolist()


def test_logits_that_a_mask_would_hide_are_refused_all_the_same() -> None:
    logits = np.zeros(50, np.float32)
    logits[7] = np.nan
    with pytest.raises(EngineError, match="nan"):
        Sampler(SamplingParams()).row(logits, [], Multiples(7))


# ---------------------------------------------------------------- llama.cpp's grammars


def walk(state: LlamaGrammar, tokens: Sequence[int]) -> LlamaGrammar:
    for token in tokens:
        state = state.after(token)
    return state


def allowed_text(model: Model, state: LlamaGrammar) -> set[bytes]:
    ids = np.arange(model.n_vocab)
    return {model.piece(int(i), special=True) for i in ids[state.allowed(ids)]}


def test_what_may_come_next(target_model: Model) -> None:
    start = LlamaGrammar.parse(target_model, LETTERS)
    pieces = allowed_text(target_model, start)
    assert {b"y", b"n", b"a", b"b", b"c"} <= pieces
    assert all(re.fullmatch(rb"y(es?)?|no?|[abc]+!?", piece) for piece in pieces)
    y = target_model.tokenize("y", add_special=False, parse_special=False)[-1]
    assert all(piece in (b"e", b"es") for piece in allowed_text(target_model, start.after(y)))
    assert allowed_text(target_model, start) == pieces


def test_a_readers_grammars_share_the_vocabulary_that_it_has_read(
    target_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = LlamaVocabulary.of(target_model)
    reading = Mock(return_value=known)
    monkeypatch.setattr(LlamaVocabulary, "of", reading)
    reader = GrammarReader(target_model)
    for gbnf in (LETTERS, 'root ::= "x"', LETTERS):
        reader.begin(gbnf)
    reading.assert_called_once_with(target_model)


def test_only_an_end_may_follow_a_finished_grammar(target_model: Model) -> None:
    end = LlamaGrammar.parse(target_model, 'root ::= ""')
    ids = np.arange(target_model.n_vocab)
    assert set(ids[end.allowed(ids)].tolist()) == set(target_model.end_tokens)
    over = end.after(min(target_model.end_tokens))
    assert over.allowed(ids).all()
    assert over.after(5) is over


def test_control_tokens_are_no_text(target_model: Model) -> None:
    """llama.cpp would take the name of a control token for text that the grammar allows."""
    anything = LlamaGrammar.parse(target_model, r"root ::= [^\n]*")
    ids = np.arange(target_model.n_vocab)
    allowed = set(ids[anything.allowed(ids)].tolist())
    vocab = lib.llama_model_get_vocab(target_model.handle)
    control = {int(i) for i in ids if lib.llama_vocab_is_control(vocab, i)}
    assert control
    assert allowed & control == set(target_model.end_tokens) & control


@pytest.mark.parametrize("token", [-1, 10_000_000])
def test_unknown_ids_break_a_grammar(target_model: Model, token: int) -> None:
    with pytest.raises(EngineError, match="breaks the grammar"):
        LlamaGrammar.parse(target_model, LETTERS).after(token)


def test_a_forbidden_token_is_an_error_and_not_the_end_of_the_process(target_model: Model) -> None:
    state = LlamaGrammar.parse(target_model, LETTERS)
    z = target_model.tokenize("z", add_special=False, parse_special=False)[-1]
    with pytest.raises(EngineError, match="breaks the grammar"):
        state.after(z)
    with pytest.raises(EngineError, match="breaks the grammar"):
        state.after(min(target_model.end_tokens))


def test_characters_across_tokens(target_model: Model) -> None:
    """A character of several bytes may be split over several tokens."""
    state = LlamaGrammar.parse(target_model, 'root ::= "été" | "über"')
    tokens = target_model.tokenize("été", add_special=False, parse_special=False)
    final = walk(state, tokens)
    assert final.allowed(np.array(sorted(target_model.end_tokens))).all()


def test_the_chain_is_llama_cpps_with_the_grammar_first(target_model: Model) -> None:
    rng = np.random.default_rng(8)
    n = target_model.n_vocab
    vocab = lib.llama_model_get_vocab(target_model.handle)
    visible = np.array([not lib.llama_vocab_is_control(vocab, i) for i in range(n)])
    for seed, gbnf in enumerate([LETTERS, ANIMAL, "root ::= [a-z ]+"] * 5):
        logits = rng.normal(0, 3, n).astype(np.float32)
        logits[~visible] = -50
        params = SamplingParams(temperature=0.9, top_k=(40, 0, 3)[seed % 3])
        ours = Sampler(params).row(logits, [], LlamaGrammar.parse(target_model, gbnf))
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in (
            lib.llama_sampler_init_grammar(vocab, gbnf.encode(), b"root"),
            lib.llama_sampler_init_top_k(params.top_k),
            lib.llama_sampler_init_top_p(params.top_p, 0),
            lib.llama_sampler_init_min_p(params.min_p, 0),
            lib.llama_sampler_init_temp(params.temperature),
            lib.llama_sampler_init_dist(1),
        ):
            lib.llama_sampler_chain_add(chain, sampler)
        data = (lib.llama_token_data * n)()
        view = np.frombuffer(data, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
        view["id"], view["logit"] = np.arange(n), logits
        array = lib.llama_token_data_array(data, n, -1, False)
        lib.llama_sampler_apply(chain, ctypes.byref(array))
        theirs = np.zeros(n)
        theirs[view["id"][: array.size]] = view["p"][: array.size]
        lib.llama_sampler_free(chain)
        assert np.abs(theirs - ours.on(np.arange(n))).max() < 1e-5


@pytest.mark.parametrize(
    ("gbnf", "reason"),
    [
        ("", "empty"),
        ("root ::= (", "expecting"),
        ("root ::= bar", "bar"),
        ('foo ::= "a"', "root"),
        ('root ::= root "a"', "recursion"),
        ('root ::= "a\0"', "zero byte"),
        ('root ::= "a"{100000}', "repetitions"),
        ("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, "deep"),
        ('root ::= "a"{3,2}', "{3,2}"),
        ('root ::= "a" ( "b" ){ 30 , 2 }', "{30,2}"),
        ("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(200_000)), "rules"),
    ],
)
def test_a_bad_grammar_is_refused_with_its_reason(
    gbnf: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        check_grammar(gbnf)
    assert "grammar is not valid" in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "rule",
    [
        r'%mark "\d"',
        '%json {"x-localspec": 3, "type": "object"}',
        '%json {"x-localspec": {"separators": 5}, "type": "object"}',
        '%json {"x-localspec": {"as_came": 5}, "oneOf": [{"type": "null"}]}',
        '%json {"type": ',
    ],
)
def test_what_cannot_be_read_inside_a_grammar_is_a_wrong_use(rule: str) -> None:
    with pytest.raises(UsageError, match="the grammar is not valid"):
        require_grammar(f"%llguidance {{}}\nstart: {rule}")


@pytest.mark.parametrize("gbnf", ['root ::= "a" !<[5]>*', "root ::= <think> [a-z]+"])
def test_a_grammar_that_names_tokens_is_refused(gbnf: str) -> None:
    """llama.cpp ends the process at a token that goes on from characters into a named one."""
    with pytest.raises(UsageError, match="no names of tokens in GBNF"):
        check_grammar(gbnf)
    check_grammar('root ::= "<" [<] # <')


def test_good_grammars_pass_the_check() -> None:
    check_grammar(LETTERS)
    check_grammar(ANIMAL)
    check_grammar('root ::= "{3,2}" [{3,2}(] "\\"(" # (((( {3,2}' + "(" * 2000)


def test_bytes_that_make_no_text_are_never_allowed(target_model: Model) -> None:
    """llama.cpp lets any byte from 0xC0 on begin a character, and takes overlong encodings."""
    anything = LlamaGrammar.parse(target_model, r"root ::= [^\n]*")
    ids = np.arange(target_model.n_vocab)
    bytes_ = {piece: int(i) for i in ids if len(piece := target_model.piece(int(i))) == 1}
    assert len(bytes_) == 256
    for first in range(0x80, 256):
        byte, allowed = bytes([first]), anything.allowed(ids)
        assert allowed[bytes_[byte]] == (0xC2 <= first <= 0xF4)
        if allowed[bytes_[byte]]:
            inside = anything.after(bytes_[byte])
            for second in (0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF):
                start = bytes([first, second])
                whole = [start + b"\x80" * n for n in range(3)]
                fits = any(_is_text(text) for text in whole)
                assert inside.allowed(np.array([bytes_[start[1:]]]))[0] == fits


def _is_text(raw: bytes) -> bool:
    try:
        return bool(raw.decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("gbnf", [LETTERS, ANIMAL, r"root ::= [^\n]*", 'root ::= "é" [a-z]'])
def test_asking_by_first_bytes_changes_nothing(target_model: Model, gbnf: str) -> None:
    state = LlamaGrammar.parse(target_model, gbnf)
    ids, rng = np.arange(target_model.n_vocab), np.random.default_rng(0)
    for _ in range(12):
        allowed = state.allowed(ids)
        alone = np.concatenate([state.allowed(part) for part in np.array_split(ids, 64)])
        assert np.array_equal(allowed, alone)
        state = state.after(int(rng.choice(ids[allowed])))


# ---------------------------------------------------------------- through the engine


@pytest.fixture
def engine(target_context: Context, draft_context: Context) -> Engine:
    return Engine(target_context, ModelDrafter(draft_context, target_context.model.n_vocab))


def run(
    engine: Engine,
    gamma: int,
    accept: Accept,
    sampling: SamplingParams,
    grammar: str,
    *,
    trace: TraceWriter | None = None,
) -> tuple[str, list[Round]]:
    model = engine.target.model
    prompt = model.tokenize("The dog was happy. ", add_special=True, parse_special=False)
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(
        sampling=sampling,
        accept=accept,
        n_predict=60,
        constraint=GrammarReader(model).begin(grammar),
        trace=trace,
    )
    rounds = list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))
    text = b"".join(model.piece(token) for done in rounds for token in done.tokens)
    return text.decode(), rounds


EACH_RULE = usually(
    itertools.product((ANIMAL, LARK), Accept), *zip((ANIMAL, LARK) * 2, Accept, strict=True)
)
"""By default each rule with one of the two notations."""


@pytest.mark.few(2)
@pytest.mark.parametrize(("grammar", "accept"), EACH_RULE)
def test_output_conforms_under_every_rule(engine: Engine, accept: Accept, grammar: str) -> None:
    for seed in range(3):
        sampling = SamplingParams(temperature=1.2 if seed else 0.0, seed=seed)
        text, rounds = run(engine, 4, accept, sampling, grammar)
        assert rounds[-1].finish is FinishReason.STOP
        answer = json.loads(text)
        assert answer["mood"] in ("happy", "sad", "sleepy")
        assert isinstance(answer["age"], int)
        assert isinstance(answer["tame"], bool)
        assert sum(done.drafted for done in rounds) > 0


@pytest.mark.few(2)
@pytest.mark.parametrize(("grammar", "accept"), EACH_RULE)
def test_masked_drafts_never_break_the_grammar(
    engine: Engine, accept: Accept, grammar: str
) -> None:
    documents: list[dict[str, object]] = []
    run(engine, 8, accept, SamplingParams(seed=4), grammar, trace=TraceWriter(documents.append))
    state = GrammarReader(engine.target.model).begin(grammar)
    for done in documents[1:]:
        drafted = cast("list[int]", done["drafted"])
        walk(state, drafted)
        state = walk(state, [*drafted[: cast("int", done["accepted"])], cast("int", done["token"])])
    assert sum(len(cast("list[int]", done["drafted"])) for done in documents[1:]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("grammar", usually([ANIMAL, LARK], LARK))
def test_the_same_text_with_speculation_on_and_off(engine: Engine, grammar: str) -> None:
    for sampling in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5)):
        texts = {run(engine, gamma, Accept.COUPLED, sampling, grammar)[0] for gamma in (0, 1, 4, 8)}
        assert len(texts) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK, Accept.COUPLED])
def test_an_unmasked_draft_keeps_its_place_with_no_probability(
    engine: Engine, accept: Accept, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ModelDrafter.begin

    def unmasked(
        self: ModelDrafter, tokens: Sequence[int], how: Any, cancel: Cancel, **more: bool
    ) -> None:
        how = replace(how, sampler=Sampler(how.sampler.params))
        begin(self, tokens, how, cancel, **more)

    monkeypatch.setattr(ModelDrafter, "begin", unmasked)
    sampling = SamplingParams(temperature=1.0, seed=3)
    text, rounds = run(engine, 4, accept, sampling, LARK)
    assert set(json.loads(text)) == {"mood", "age", "tame"}
    assert any(done.accepted < done.drafted for done in rounds)
