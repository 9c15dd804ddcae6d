"""A budget ends a thought, and nothing else changes."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.chat.events import RoundText, TurnEnd
from localspec.chat.session.session import Session
from localspec.chat.session.turn_prompt import THOUGHT_ENDS
from localspec.engine.cancel import Cancel
from localspec.engine.grammars.constraint import Anything, Awaited, Budgeted, Constraint
from localspec.engine.round.params import Accept
from localspec.errors import EngineError
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.tools.tool_definitions import ToolDefinition
from localspec.tools.tool_offer import ToolOffer
from tests.fakes import CHATML, FakeModel

WORDS = b"a thought with words</think>said"


def budget(left: int, begin: bytes = b"") -> Budgeted:
    closing = tuple(b"!</think>")
    return Budgeted(Anything(), FakeModel(), begin, b"</think>", left, closing)


def write(state: Constraint, wish: bytes) -> bytes:
    """The text of a model that wants to write `wish`, with every byte that the budget forces."""
    ids = np.arange(256)
    written = b""
    for _ in range(len(wish) + 20):
        allowed = np.flatnonzero(state.allowed(ids))
        if len(allowed) == 1:
            token = int(allowed[0])
        elif not wish:
            break
        else:
            token, wish = wish[0], wish[1:]
        written += bytes([token])
        state = state.after(token)
    return written


@pytest.mark.parametrize("left", [0, 1, 9])
def test_a_thought_ends_with_its_budget(left: int) -> None:
    assert write(budget(left), b"thought thought") == (
        b"thought thought"[:left] + b"!</think>" + b"thought thought"[left:]
    )


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    assert write(budget(40), WORDS) == WORDS


def test_only_a_thought_has_a_budget() -> None:
    assert write(budget(3, b"<think>"), b"no thought at all") == b"no thought at all"
    assert write(budget(3, b"<think>"), b"\n<think>abcdef") == b"\n<think>abc!</think>def"


def test_other_tokens_are_refused_while_it_is_closed() -> None:
    with pytest.raises(EngineError):
        budget(0).after(ord("x"))


@dataclass
class Exactly:
    """A grammar of one text, in bytes."""

    text: bytes

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(ids, self.text[0] if self.text else -1)

    def after(self, token: int) -> Constraint:
        if not self.text or token != self.text[0]:
            raise EngineError("it breaks the grammar")
        return Exactly(self.text[1:])


@pytest.mark.parametrize("answer", [b"{}", b"\n{}", b"\n\n{}"])
def test_a_grammar_may_begin_within_what_closes_a_thought(answer: bytes) -> None:
    then = Awaited(b"</think>", Exactly(answer), FakeModel())
    state = Budgeted(then, FakeModel(), b"", b"</think>", 3, tuple(b"!</think>\n\n"))
    assert write(state, b"abc") == b"abc!</think>" + answer


@pytest.mark.parametrize("text", [b"thought", b"tho!ght"])
def test_a_grammar_goes_before_a_budget(text: bytes) -> None:
    state = Budgeted(Exactly(text), FakeModel(), b"", b"</think>", 3, tuple(b"!</think>"))
    assert write(state, b"") == text


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
PROMPT = "Write a long story about a dog and a boat, with many chapters."
BUDGET = 50
# <|endoftext|> and <|im_end|> are ruled out, so that the thought is long on every machine.
NO_END = ((0, -math.inf), (2, -math.inf))


def loaded(path: Path, **more: Any) -> Session:
    """A session whose template opens a thought; the coupled rule and `exact` make it repeatable."""
    request = LoadRequest(
        pair=str(path), draft="lookup", threads=1, ctx_size=2048, temp=0.7, seed=1, gamma=4,
        exact=True, **{"chat_template": TEMPLATE, "logit_bias": NO_END, **more},
    )  # fmt: skip
    return load_session(request, progress=lambda _step, _share: None, cancel=Cancel())


def written(session: Session, *, speculation: bool = True) -> tuple[list[int], TurnEnd]:
    """The tokens of an answer, and its end."""
    session.reset()
    session.speculation = speculation
    events = list(session.turn(PROMPT, Cancel()))
    tokens = [token for one in events if isinstance(one, RoundText) for token in one.round.tokens]
    end = events[-1]
    assert isinstance(end, TurnEnd)
    return tokens, end


def test_an_answer_by_a_schema_follows_the_thought(toy_target: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    more: Any = {"json_schema": json.dumps(schema), "reasoning_budget": 4, "n_predict": 60}
    with contextlib.closing(loaded(toy_target, **more, logit_bias=())) as session:
        said = session.template.dialect.said(written(session)[1].text)
    assert said.thought
    assert json.loads(said.content or "") == {"a": 1}


@pytest.mark.parametrize(
    ("thought", "over"),
    [("", True), ("\n<think>I may <tool_call> there.</think>\n", True), ("<think>", False)],
)
def test_a_call_that_is_named_in_a_thought_of_the_models_own_is_none(
    toy_target: Path, thought: str, over: bool
) -> None:
    """Where no prompt opened the thought, it was held to the grammar of calls."""
    with contextlib.closing(loaded(toy_target, chat_template=CHATML)) as session:
        tools = ToolOffer([ToolDefinition("files", "read", description="Reads a file.")])
        session.offer(tools.described, tools.search)
        settings, after = session._prompt.calling(session.settings, "")
        state = session._writer.how(settings, after, None, 0.0).constraint
        assert state is not None
        model = session.pair.target.model
        ids = np.arange(model.n_vocab)
        for text, free in ((f"{thought}I do. ", True), ("<tool_call>", not over)):
            for token in model.tokenize(text, add_special=False, parse_special=False):
                assert state.allowed(ids).all()
                state = state.after(token)
            assert state.allowed(ids).all() == free


@pytest.mark.slow
def test_a_real_model_answers_after_its_budget(starter_file: Path) -> None:
    with contextlib.closing(loaded(starter_file, n_predict=90, reasoning_budget=BUDGET)) as session:
        assert session.settings.rule is Accept.COUPLED
        closing_text = f"{THOUGHT_ENDS}</think>\n\n"
        model = session.pair.target.model
        forced = model.tokenize(closing_text, add_special=False, parse_special=True)
        tokens, end = written(session)
        assert end.stats.drafted_tokens
        assert tokens[BUDGET : BUDGET + len(forced)] == forced
        assert written(session, speculation=False)[0] == tokens
    before, found, said = end.text.partition(closing_text)
    assert found
    assert before.startswith("<think>")
    assert "</think>" not in before
    assert len(said.split()) > 10


@pytest.mark.slow
@pytest.mark.drawn
def test_without_a_budget_it_would_think_for_long(starter_file: Path) -> None:
    with contextlib.closing(loaded(starter_file, n_predict=500)) as session:
        tokens, end = written(session)
        assert len(tokens) == 500
        assert "</think>" not in end.text
