"""Calls held to a model's own notation: what its template writes is allowed, and no other call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from localspec.chat.dialects.enforcing import CallableTool, call_grammar, enforceable
from localspec.chat.dialects.learning import learnt
from localspec.chat.renderer import Renderer, TemplateSource
from localspec.engine import lark
from localspec.engine.constraints import Grammars
from localspec.errors import EngineError
from localspec.serve.tools import HERMES
from tests.support.golden_answers import BOS, EOS, golden
from tests.support.llama_source import VocabularyOnly, needed, templates, vocabularies

NAMES = (
    *("Qwen-Qwen3-0.6B", "Qwen3-Coder", "GLM-4.6", "deepseek-ai-DeepSeek-V3.1"),
    *("deepseek-ai-DeepSeek-V3.2", "moonshotai-Kimi-K2", "Apertus-8B-Instruct"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "meta-llama-Llama-3.1-8B-Instruct"),
    *("poolside-Laguna-S-2.1", "ibm-granite-granite-4.0"),
)


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def vocabulary() -> VocabularyOnly:
    needed()
    return VocabularyOnly.of(vocabularies()["qwen2"])


@pytest.fixture(scope="module")
def grammars(vocabulary: VocabularyOnly) -> Grammars:
    """Of that vocabulary, made once: that takes a second."""
    return Grammars(vocabulary)


def allowed(grammars: Grammars, grammar: str, vocabulary: VocabularyOnly, text: str) -> bool:
    state = grammars.begin(grammar)
    try:
        for token in vocabulary.tokenize(text, add_special=False, parse_special=True):
            state = state.after(token)
    except EngineError:
        return False
    return True


def tools_of(tools: list[Any]) -> list[CallableTool]:
    functions = [tool["function"] for tool in tools]
    return [CallableTool(one["name"], one["parameters"], "tools", False) for one in functions]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_writes_is_allowed(
    name: str, renderer: Renderer, vocabulary: VocabularyOnly, grammars: Grammars
) -> None:
    template = templates()[name]
    marks = learnt(renderer, TemplateSource(template, BOS, EOS), seconds=30).marks
    assert enforceable(marks)
    seen = 0
    for case in golden(renderer, template, random.Random(3)):
        # Python's True, which some templates write for a flag, is JSON's true under a grammar.
        raw = case.raw.replace("\nTrue\n", "\ntrue\n")
        if not case.want.calls or case.tools is None:
            continue
        calls = call_grammar(marks, tools_of(case.tools), several=marks.several)
        raw = raw[raw.find(calls.begin) :]
        for end in marks.ends:
            raw = raw.partition(end)[0]
        assert allowed(grammars, calls.required(), vocabulary, raw), case.kind
        other = raw.replace(case.want.calls[0].name, "another")
        assert not allowed(grammars, calls.required(), vocabulary, other)
        rest = raw[len(calls.begin) :]
        assert allowed(grammars, calls.awaited(), vocabulary, rest) or not calls.begin
        seen += 1
    assert seen >= 2


def test_an_answer_may_be_a_call_or_conform_to_a_format(
    vocabulary: VocabularyOnly, grammars: Grammars
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    calls = call_grammar(HERMES, [CallableTool("f", schema, "tools", True)], several=True)
    both = calls.or_else(lark.json_value(schema, "format"))
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert allowed(grammars, both, vocabulary, call)
    assert allowed(grammars, both, vocabulary, '{"a": 1}')
    assert not allowed(grammars, both, vocabulary, '{"b": 1}')
    assert not allowed(grammars, both, vocabulary, "Hello")


class Padded(VocabularyOnly):
    """The last tokens have no text, as where a vocabulary is padded to a round number."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token >= self.n_vocab - 20 else super().piece(token, special=special)

    def is_mark(self, token: int) -> bool:
        return token >= self.n_vocab - 20 or super().is_mark(token)


def test_tokens_without_text_are_never_allowed() -> None:
    needed()
    padded = Padded.of(vocabularies()["qwen2"])
    tool = CallableTool("f", {"type": "object", "properties": {}}, "tools", True)
    state = Grammars(padded).begin(call_grammar(HERMES, [tool], several=True).required())
    ids = np.arange(padded.n_vocab - 20, padded.n_vocab)
    for token in padded.tokenize("<tool_call>\n{", add_special=False, parse_special=True):
        assert not state.allowed(ids).any()
        state = state.after(token)
