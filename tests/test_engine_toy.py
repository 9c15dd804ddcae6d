"""The engine on the real toy pair: what a measurement leaves, and what a seed repeats."""

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
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from tests.fakes import tokens_of

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
    def answered() -> list[int]:
        for context in (engine.target, draft_context):
            context.clear()
        return answer(engine, SamplingParams(temperature=0.8, seed=5), Accept.COUPLED)

    def measured(context: Context) -> list[int]:
        now = itertools.count(0, 1e-4)  # a clock on which there is time for all of it
        draft = context is draft_context
        found, _ = measure_by_context(context, draft=draft, budget=9, clock=lambda: next(now))
        return list(found)

    before = answered()
    for context in (engine.target, draft_context):
        held, cells = list(context.tokens), state(context)
        assert measured(context) == [len(held)]  # after an answer
        assert (context.tokens, state(context)) == (held, cells)
        context.clear()
        empty = state(context)
        assert measured(context) == [0, 512]
        assert (context.tokens, state(context)) == ([], empty)
    assert answered() == before


def answer(engine: Engine, sampling: SamplingParams, accept: Accept) -> list[int]:
    model = engine.target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    text = render(messages=[{"role": "user", "content": PROMPT}]).prompt
    prompt = model.tokenize(text, add_special=True, parse_special=True)
    cancel = Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=100)
    rounds = engine.generate(prompt, settings, FixedGamma(4), cancel)
    return tokens_of(rounds)


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", list(Accept))
def test_a_seed_repeats_the_text(engine: Engine, accept: Accept) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7)
    first = answer(engine, sampling, accept)
    engine.target.clear()
    assert answer(engine, sampling, accept) == first
