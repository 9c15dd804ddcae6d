"""What coding agents send: over llama.cpp's real templates, no request of theirs ends a session."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from localspec.chat.dialects import ContentPiece, Dialect
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.prompt.renderer import TemplateSource
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.settings import ChatSettings
from localspec.serve.core.requests import parsed
from localspec.serve.protocols.anthropic_messages import MessagesRequest
from localspec.serve.protocols.chat_completions import ChatRequest
from localspec.serve.protocols.protocol_types import ProtocolRequest
from tests.fakes import FakeModel, renderer
from tests.support.golden_answers import BOS, EOS
from tests.support.golden_answers import rendered as written
from tests.support.llama_source import LEARNT, templates
from tests.support.pairwise import usually

TEMPLATES = templates()
# They refuse a conversation whose roles do not alternate; a tool's result is of neither role.
MISTRALS = (
    *("Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512"),
    "mistralai-Mistral-Nemo-Instruct-2407",
)
# They ask for a tool's schema, or for its properties.
WITH_SCHEMA = (
    *("ByteDance-Seed-OSS", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Cohere2MoE"),
    *("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "muse-glimmer"),
)
READ = {"name": "Read", "description": "reads a file"}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ASKED = {"role": "user", "content": "Read a.txt and b.txt"}


def called(*files: str) -> dict[str, Any]:
    """The model's turn that calls the tool once for each file."""
    calls = [
        {"type": "tool_use", "id": f"toolu_{file}", "name": "Read", "input": {"path": file}}
        for file in files
    ]
    return {"role": "assistant", "content": [{"type": "text", "text": "I do."}, *calls]}


def result(file: str) -> dict[str, Any]:
    content = f"The contents of {file}"
    return {"type": "tool_result", "tool_use_id": f"toolu_{file}", "content": content}


def rendered(name: str, kind: type[ProtocolRequest], **body: Any) -> str:
    """The prompt that this template makes of a request."""
    model: Any = FakeModel(chat_template=TEMPLATES[name])
    chat = ChatTemplate(model, renderer(), dialects=LEARNT)
    core = parsed(json.dumps(body).encode(), kind).core()
    asked, _ = core.prepared(ChatSettings(), chat.dialect)
    return chat.render(
        asked.messages, variables=asked.variables, give_up=False, continues=asked.continues
    )


def of_claude_code(name: str, *messages: Any) -> str:
    tools = [{**READ, "input_schema": PATH}]
    return rendered(name, MessagesRequest, messages=messages, tools=tools, max_tokens=4)


@pytest.mark.parametrize("name", usually(sorted(TEMPLATES), *(MISTRALS if TEMPLATES else ())))
def test_what_stands_beside_a_tools_result_reaches_the_model(name: str) -> None:
    """Claude Code puts reminders there, and what the user types while a tool runs."""
    reminder = {"type": "text", "text": "<system-reminder>Mind the gap</system-reminder>"}
    late = {"role": "system", "content": "Mind the step"}
    for files in (("a.txt",), ("a.txt", "b.txt")):
        back = {"role": "user", "content": [*map(result, files), reminder]}
        answer, then = {"role": "assistant", "content": "Done."}, {"role": "user", "content": "So?"}
        for rest in ((back,), (back, late), (back, answer, then)):
            text = of_claude_code(name, ASKED, called(*files), *rest)
            places = [text.find(f"The contents of {file}") for file in files]
            assert min(places) >= 0, (name, files)
            assert max(places) < text.find("Mind the gap"), (name, files)
            assert ("Mind the step" in text) is (late in rest)


THOUGHT = {"type": "thinking", "thinking": "Hm 7.", "signature": "x"}
# After a quote it stands in a value that the template wrote as it is.
THINKS = re.compile(r"""(?<!['"])Hm 7\.""")
FORMS: tuple[dict[str, Any], ...] = (
    *({name: "Hm 7.", "content": ""} for name in ("reasoning_content", "reasoning", "thinking")),
    {"content": [{"type": "thinking", "thinking": "Hm 7."}]},
)
# They read a thought by one of these forms alone, or do not take a text with it.
THINKERS = (
    *("LFM2.5-8B-A1B", "Qwen-Qwen3-0.6B", "mistralai-Ministral-3-14B-Reasoning-2512"),
    *("openai-gpt-oss-120b", "upstage-Solar-Open-100B"),
)


def reads_thoughts(name: str) -> bool:
    """Whether a template writes the thought before a call, in whatever form it is told."""
    call = {"name": "Read", "arguments": {"path": "a.txt"}}
    calls = [{"id": "abcdefghi", "type": "function", "function": call}]
    back = {"role": "tool", "tool_call_id": "abcdefghi", "name": "Read", "content": "It."}
    tools = [{"type": "function", "function": {**READ, "parameters": PATH}}]
    talks = [[{"role": "assistant", "tool_calls": calls, **form}, back] for form in FORMS]
    texts = [written(renderer(), TEMPLATES[name], one, {"tools": tools}) for one in talks]
    return any(text and THINKS.search(text) for text in texts)


@pytest.mark.parametrize("name", usually(sorted(TEMPLATES), *(THINKERS if TEMPLATES else ())))
def test_the_thought_before_a_call_reaches_the_model(name: str) -> None:
    """Without it the model thinks anew after each result, and the cache is read from there on."""
    assert reads_thoughts(name) or name not in THINKERS
    for said in ("I do.", ""):
        turn = called("a.txt")
        turn["content"] = [THOUGHT, {"type": "text", "text": said}, turn["content"][-1]]
        text = of_claude_code(name, ASKED, turn, {"role": "user", "content": [result("a.txt")]})
        assert THINKS.search(text) or not reads_thoughts(name)
        assert "The contents of a.txt" in text


def test_an_answer_whose_thought_is_a_part_of_it_goes_on_where_it_ends() -> None:
    begun = {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "It says"}]}
    name = "mistralai-Ministral-3-14B-Reasoning-2512"
    if name not in TEMPLATES:
        pytest.skip("llama.cpp's templates are not here")
    assert of_claude_code(name, ASKED, begun).endswith("[THINK]Hm 7.[/THINK]It says")


def test_each_result_stays_the_answer_to_its_call() -> None:
    name = MISTRALS[0]
    if name not in TEMPLATES:
        pytest.skip("llama.cpp's templates are not here")
    reminder = {"type": "text", "text": "Mind the gap"}
    back = {"role": "user", "content": [result("a.txt"), result("b.txt"), reminder]}
    text = of_claude_code(name, ASKED, called("a.txt", "b.txt"), back)
    *_, first, second = text.split("[TOOL_RESULTS]")
    assert "a.txt" in first
    assert "b.txt" in second
    assert second.rstrip("]").endswith("Mind the gap[/TOOL_RESULTS")


@pytest.mark.parametrize("schema", [{}, {"parameters": {}}, {"parameters": {"type": "object"}}])
@pytest.mark.parametrize("name", usually(sorted(TEMPLATES), *(WITH_SCHEMA if TEMPLATES else ())))
def test_a_tool_without_arguments_needs_no_schema(name: str, schema: Any) -> None:
    tools = [{"type": "function", "function": {**READ, **schema}}]
    text = rendered(name, ChatRequest, messages=[ASKED], tools=tools)
    assert READ["description"] in text


@pytest.mark.parametrize(
    "name", usually(sorted(TEMPLATES), *(("openai-gpt-oss-120b", *MISTRALS) if TEMPLATES else ()))
)
def test_an_answer_that_the_client_began_goes_on_where_it_ends(name: str) -> None:
    """Mistral's templates would open no other turn after it."""
    begun = {"role": "assistant", "content": "It says <|im_end|> here, "}
    text = of_claude_code(name, ASKED, begun)
    assert re.search(r"b\.txt.*It says .* here, $", text, re.DOTALL)
    assert text.count("It says") == 1
    dialect = learnt(renderer(), TemplateSource(TEMPLATES[name], BOS, EOS), folder=LEARNT)
    reader = dialect.reader([], exact=True)
    pieces = [*reader.feed(" all is well."), *reader.end(cut=False)]
    assert pieces == [ContentPiece(" all is well.")]  # the client puts both together


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "DeepSeek-R1" in name][:1])
def test_a_thought_that_the_client_began_goes_on_as_one(name: str) -> None:
    dialect = learnt(renderer(), TemplateSource(TEMPLATES[name], BOS, EOS), folder=LEARNT)
    (begin, close), *_ = dialect.marks.thoughts
    for said, opening in (
        (f"{begin}\nIt may", begin),
        (f"{begin}\nIt may.\n{close}\n\nIt is", ""),
        ("It is", ""),
    ):
        assert dialect.opened(f"A prompt. {said}", said) == opening
    assert dialect.opened(f"A prompt. {begin}\n") == begin


@pytest.mark.parametrize(
    ("begun", "form", "goes_on"),
    [("{", "text", True), (" \n", "text", False), ("{", "json_object", False)],
)
def test_an_answer_goes_on_unless_it_is_blank_or_a_format_would_begin_anew(
    begun: str, form: str, *, goes_on: bool
) -> None:
    body = {
        "messages": [ASKED, {"role": "assistant", "content": begun}],
        "response_format": {"type": form},
    }
    core = parsed(json.dumps(body).encode(), ChatRequest).core()
    asked, _ = core.prepared(ChatSettings(), Dialect())
    assert asked.continues is goes_on


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        (ASKED, False),
        ({"role": "tool", "content": "Nothing."}, True),
        ({"role": "assistant", "content": "It says"}, True),
    ],
)
def test_what_follows_a_question_is_no_question(last: dict[str, str], *, goes_on: bool) -> None:
    core = parsed(json.dumps({"messages": [ASKED, last]}).encode(), ChatRequest).core()
    asked, _ = core.prepared(ChatSettings(), Dialect())
    assert asked.goes_on is goes_on


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "MiniMax-M2" in name][:1])
def test_a_result_whose_call_was_cut_off_is_told_as_text(name: str) -> None:
    """Agents drop the oldest messages of a long conversation."""
    told = {"role": "tool", "tool_call_id": "c1", "content": "The contents of a.txt"}
    text = rendered(name, ChatRequest, messages=[told, ASKED])
    assert "The contents of a.txt" in text
    assert "Read a.txt and b.txt" in text
