"""The engine on the real toy pair: greedy identity, seeds, cache reuse."""

from __future__ import annotations

import ctypes
import itertools

import pytest
from llama_cpp import llama_cpp as lib
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.length.profile import measure_by_context
from localspec.engine.llama import Context
from localspec.engine.record.stats import Round
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams

PROMPT = "Tell me a story about a dog."


@pytest.fixture
def engine(target_context: Context, draft_context: Context) -> Engine:
    return Engine(target_context, ModelDrafter(draft_context, target_context.model.n_vocab))


def state(context: Context) -> bytes:
    """All that llama.cpp holds of the sequence."""
    size = lib.llama_state_seq_get_size(context._handle, 0)
    held = (ctypes.c_uint8 * size)()
    assert lib.llama_state_seq_get_data(context._handle, held, size, 0) == size
    return bytes(held)


@pytest.mark.slow
def test_measuring_leaves_caches_and_answers_as_they_were(
    engine: Engine, draft_context: Context
) -> None:
    def answer() -> list[int]:
        for context in (engine.target, draft_context):
            context.clear()
        return run(engine, 4, SamplingParams(temperature=0.8, seed=5), Accept.COUPLED)[0]

    def measured(context: Context) -> list[int]:
        now = itertools.count(0, 1e-4)  # a clock on which there is time for all of it
        draft = context is draft_context
        found, _ = measure_by_context(context, draft=draft, budget=9, clock=lambda: next(now))
        return list(found)

    before = answer()
    for context in (engine.target, draft_context):
        held, cells = list(context.tokens), state(context)
        assert measured(context) == [len(held)]  # after an answer
        assert (context.tokens, state(context)) == (held, cells)
        context.clear()
        empty = state(context)
        assert measured(context) == [0, 512]
        assert (context.tokens, state(context)) == ([], empty)
    assert answer() == before


def run(
    engine: Engine,
    gamma: int,
    sampling: SamplingParams,
    accept: Accept = Accept.TOKEN,
    n_predict: int = 100,
) -> tuple[list[int], list[Round]]:
    model = engine.target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    text = render(messages=[{"role": "user", "content": PROMPT}]).prompt
    prompt = model.tokenize(text, add_special=True, parse_special=True)
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=n_predict)
    rounds = list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))
    return [token for done in rounds for token in done.tokens], rounds


@pytest.mark.slow
def test_greedy_tokens_are_the_same_for_every_gamma(engine: Engine) -> None:
    sampling = SamplingParams(temperature=0)
    baseline, _ = run(engine, 0, sampling)
    for gamma in (1, 2, 3, 4, 6, 8):
        tokens, rounds = run(engine, gamma, sampling)
        assert tokens == baseline
        assert sum(done.accepted for done in rounds) > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", list(Accept))
def test_a_seed_repeats_the_text(engine: Engine, accept: Accept) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7)
    first, _ = run(engine, 4, sampling, accept)
    engine.target.clear()
    assert run(engine, 4, sampling, accept)[0] == first


@pytest.mark.slow
def test_coupled_text_is_the_same_with_speculation_on_and_off(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11)
    texts = [run(engine, gamma, sampling, Accept.COUPLED)[0] for gamma in (0, 1, 4, 8)]
    assert all(text == texts[0] for text in texts)
