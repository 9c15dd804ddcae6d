"""The catalogue: with each entry's real chat template, where one was seen, it can be talked to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import AnswerReading
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.prompt.renderer import TemplateSource
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.engine.cancel import Cancel
from localspec.pairs.names import catalogue
from tests.fakes import FakeModel, ended, fake_session, renderer, rounds_of
from tests.support.golden_answers import BOS, EOS, golden, in_pieces
from tests.support.llama_source import LEARNT, VocabularyOnly, templates
from tests.support.pairwise import usually

TEMPLATES = templates()
SEEN = sorted({entry.template for entry in catalogue.pairs().values() if entry.template})
STARTERS = "SmolLM2-135M-Instruct"
USUAL = (
    *(STARTERS, "GLM-4.7-Flash", "LFM2.5-8B-A1B", "Qwen-Qwen3-0.6B", "Qwen3.5-4B"),
    *("google-gemma-4-31B-it", "meta-llama-Llama-3.1-8B-Instruct", "muse-glimmer"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "openai-gpt-oss-120b"),
)
"""One of each way to write calls and thoughts; the others write as one of these does."""
# What a model writes that thinks first; where the template opens the thought, without its mark.
THINKS = {
    "GLM-4.7-Flash": "Hm.</think>Blue.",
    "LFM2.5-8B-A1B": "<think>\nHm.\n</think>\nBlue.",
    "Qwen-Qwen3-0.6B": "<think>\nHm.\n</think>\n\nBlue.",
    "Qwen3.5-4B": "Hm.\n</think>\n\nBlue.",
    "google-gemma-4-31B-it": "<|channel>thought\nHm.<channel|>Blue.",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]Hm.[/THINK]Blue.",
    "muse-glimmer": (
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Blue.<|eot|>"
    ),
    "openai-gpt-oss-120b": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Blue."
    ),
}
# The kinds of calls that a template writes; Llama's takes one at a time.
LLAMA = "meta-llama-Llama-3.1-8B-Instruct"
NO_CALLS = {STARTERS, "LFM2.5-Instruct"}
ONE_CALL = {LLAMA, "meta-llama-Llama-3.3-70B-Instruct", "openai-gpt-oss-120b"}


@pytest.fixture
def template(request: pytest.FixtureRequest) -> str:
    """The source of a template, by its name."""
    name = request.param
    if name == STARTERS:
        file: Path = request.getfixturevalue("starter_file")
        with VocabularyOnly.of(file) as model:
            assert model.chat_template
            return model.chat_template
    if not TEMPLATES:
        pytest.skip("llama.cpp's templates are not here")
    return TEMPLATES[name]


@pytest.mark.parametrize(
    ("name", "template"),
    usually([(name, name) for name in SEEN], *[(name, name) for name in USUAL]),
    indirect=["template"],
    ids=SEEN,
)
def test_a_conversation_goes_on_and_its_thoughts_are_known(name: str, template: str) -> None:
    raw = THINKS.get(name, "Blue.").encode()
    answer = [*rounds_of(raw), ended()]
    session, _ = fake_session(answer, answer, model=FakeModel(chat_template=template))
    session.settings.system_prompt = "Answer in one word."
    for _ in range(2):
        list(session.turn("Which colour?", Cancel()))
        said = session.messages[-1].content
        assert session.dialect.said(said) == AnswerReading(
            "Hm." if name in THINKS else None, "Blue."
        )
    assert session.notices == []
    assert session.template.dialect.known
    assert session.dialect.thinking.budget is (name in THINKS)
    before = ToolPrompt(session.dialect).told(session.messages)
    text = session.template.render([*before, Message(Role.USER, "And now?")])
    assert text.count("Blue.") == 2


@pytest.mark.parametrize(
    ("name", "template"),
    usually(
        [(name, name) for name in SEEN if name not in NO_CALLS],
        # Calls of the others' kinds are read in `test_dialects.py`.
        *[(name, name) for name in ("GLM-4.7-Flash", "LFM2.5-8B-A1B", LLAMA)],
    ),
    indirect=["template"],
    ids=[name for name in SEEN if name not in NO_CALLS],
)
def test_its_calls_are_read(name: str, template: str) -> None:
    rng = random.Random(name)
    dialect = learnt(renderer(), TemplateSource(template, BOS, EOS), seconds=30, folder=LEARNT)
    kinds = set()
    for case in golden(renderer(), template, rng):
        kinds.add(case.kind)
        if case.tools:
            assert in_pieces(dialect, case.raw, case.tools, case.prompt, rng) == case.want
    wanted = {"thought and call"} if name == "GLM-4.7-Flash" else {"call", "hard"}
    assert kinds >= wanted | (set() if name in ONE_CALL or "GLM" in name else {"two"})


def test_a_reader_finds_which_templates_were_not_seen() -> None:
    unseen = {name for name, entry in catalogue.pairs().items() if not entry.template}
    docs = (Path(__file__).parents[1] / "docs" / "pull.md").read_text("utf-8")
    listed = docs.split("which is so of")[1].split(". A test")[0]
    listed = " ".join(listed.split())
    assert set(listed.replace(" and ", ", ").split(", ")) == unseen
    assert all("was not seen" in catalogue.pairs()[name].dialect for name in unseen)
    if TEMPLATES:
        assert set(SEEN) <= {STARTERS, *TEMPLATES}
