# ruff: noqa: E501 - what models write is longer than a line
"""Dialects read back what templates write, and read real models' answers as they were meant."""

from __future__ import annotations

import inspect
import itertools
import json
import random
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import AnswerReading, Call, ContentPiece, Dialect, ThoughtPiece
from localspec.chat.dialects.learning import dialect_store, learner
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.dialects.marks import trimmed_end, trimmed_start
from localspec.chat.dialects.notations import harmony, muse
from localspec.chat.dialects.notations.values import balanced, literal
from localspec.chat.dialects.reading.headers import MessageHeader
from localspec.chat.dialects.shapes import HERMES as SHAPE
from localspec.chat.dialects.shapes import AnswerMarks, told_thought
from localspec.chat.prompt.call_notation import call_object
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRenderer,
    TemplateSource,
    TemplateStarved,
)
from localspec.chat.prompt.template import ChatTemplate
from tests.fakes import END, FakeModel
from tests.fakes import EOS as EOS_ID
from tests.support.golden_answers import BOS, EOS, golden, in_pieces
from tests.support.llama_source import LEARNT, templates, usual_templates
from tests.support.pairwise import usually
from tests.support.processor import worked

REAL = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "dialects_real.jsonl").read_text().splitlines()
]
TEMPLATES = templates()
needs_templates = pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not here")

# What templates write but cannot be read back, and why.
UNREADABLE = {
    ("NVIDIA-Nemotron-Nano-v2", "content"): "it writes an answer after the mark of a thought",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["command"],
        },
    },
}


@cache
def process() -> TemplateRenderer:
    return TemplateRenderer()


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    yield process()
    process().close()


@cache
def dialect_of(name: str) -> Dialect:
    """The dialect learnt from a template, with more time than any machine needs."""
    return learnt(process(), TemplateSource(TEMPLATES[name], BOS, EOS), seconds=30, folder=LEARNT)


@needs_templates
@pytest.mark.parametrize("name", usual_templates())
def test_what_a_real_template_writes_is_read_back(name: str, renderer: TemplateRenderer) -> None:
    rng = random.Random(f"{name} 7")
    dialect = dialect_of(name)
    for case in golden(renderer, TEMPLATES[name], rng):
        if (name, case.kind) in UNREADABLE:
            continue
        assert dialect.read(case.raw, case.tools, prompt=case.prompt) == case.want, case.kind
        for _ in range(3):
            read = in_pieces(dialect, case.raw, case.tools, case.prompt, rng)
            assert read == case.want, case.kind


@pytest.mark.slow
@pytest.mark.drawn
@needs_templates
def test_most_templates_can_teach(renderer: TemplateRenderer) -> None:
    """The test above covers at least 240 answers of 70 templates, and leaves out at most 3 %."""
    found = [
        (name, case.kind)
        for name, text in TEMPLATES.items()
        for case in golden(renderer, text, random.Random(1))
    ]
    assert len(TEMPLATES) == 70
    assert len(found) >= 240
    assert set(UNREADABLE) <= set(found)
    assert len(UNREADABLE) <= 0.03 * len(found)


REPLACED = {
    "Qwen3-Coder": r"</?tool_call>|</parameter>|</function>",
    "Qwen-Qwen3-0.6B": r"</?tool_call>|</?think>",
    "Qwen3.5-4B": r"</?tool_call>|</?think>|</parameter>|</function>",
    "GLM-4.7-Flash": r"</?(?:tool_call|think|arg_key|arg_value)>",
    "ByteDance-Seed-OSS": r"</?seed:(?:think|tool_call)>|</parameter>|</function>",
    "MiniMax-M2": r"</?minimax:tool_call>|</?think>|</parameter>|</invoke>",
    "deepseek-ai-DeepSeek-V3.1": r"</?think>|<｜tool▁\w+▁?\w*▁?\w*｜>",
    "moonshotai-Kimi-K2": r"<\|tool_call\w+\|>",
    "mistralai-Ministral-3-14B-Reasoning-2512": r"\[TOOL_CALLS\]|\[ARGS\]|\[/?THINK\]",
    "upstage-Solar-Open-100B": r"<\|tool_call:\w+\|>|<\|think\|>",
    "Apertus-8B-Instruct": r"<\|tools_\w+\|>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": r"<\|(?:START|END)_(?:THINKING|ACTION)\|>",
}


SHAPES = ("<{}>", "[{}]", "<|{}|>", "◁{}▷")


@needs_templates
@pytest.mark.parametrize(
    ("name", "shape"),
    usually(
        itertools.product(sorted(REPLACED), SHAPES),
        *zip(sorted(REPLACED), itertools.cycle(SHAPES), strict=False),
    ),
)
def test_a_template_with_other_marks_is_read_as_well(
    name: str, shape: str, renderer: TemplateRenderer
) -> None:
    rng = random.Random(name + shape)
    marks: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        word = "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(rng.randint(4, 8)))
        return marks.setdefault(found[0], shape.format(word))

    template = re.sub(REPLACED[name], other, TEMPLATES[name])
    assert marks
    dialect = learnt(renderer, TemplateSource(template, BOS, EOS), seconds=30, folder=LEARNT)
    for case in golden(renderer, template, rng):
        assert dialect.read(case.raw, case.tools, prompt=case.prompt) == case.want, case.kind


@needs_templates
@pytest.mark.parametrize("case", REAL, ids=lambda case: case["id"])
def test_what_models_wrote_is_read_as_it_was_meant(case: dict[str, Any]) -> None:
    """All cases that are not ``soft``; soft ones that are read right must stay so."""
    if case["id"] in ("gemma-begin-arg", "gemma-orphan-header"):
        assert case["soft"]
        return
    dialect = dialect_of(case["template"])
    want = AnswerReading(
        case["want"]["thought"],
        case["want"]["content"],
        [Call(one["name"], one["arguments"]) for one in case["want"]["calls"]],
    )
    prompt, cut = case.get("prefill", ""), case.get("finish") == "length"
    assert dialect.read(case["raw"], case["tools"], prompt=prompt, cut=cut) == want
    rng = random.Random(case["id"])
    for _ in range(5):
        assert in_pieces(dialect, case["raw"], case["tools"], prompt, rng, cut=cut) == want


QWEN = (
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
HERMES = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n'
    '<｜DSML｜parameter name="command">ls</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="count">7</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
LS = Call("bash", {"command": "ls"})
LS_7 = Call("bash", {"command": "ls", "count": 7})
GEMMA = '<|tool_call>{}bash{}command:<|"|>ls<|"|>{}<tool_call|>'
OSS = "openai-gpt-oss-120b"


@needs_templates
@pytest.mark.parametrize(
    ("name", "prompt", "raw", "want"),
    [
        # A call within a thought is only a draft, unless the thought ends with it.
        ("Qwen3.5-4B", "<think>", f"Hm {QWEN} no.</think>Done.", AnswerReading(f"Hm {QWEN} no.", "Done.")),
        ("Qwen3.5-4B", "<think>", f"Hm {QWEN}\n</think>", AnswerReading("Hm", None, [LS])),
        # The end of a thought.
        ("Qwen3.5-4B", "<think>", "A `</think>` b</think>c", AnswerReading("A `</think>` b", "c")),
        ("Qwen3.5-4B", "<think>", "A <think>x</think> b</think>c", AnswerReading("A <think>x</think> b", "c")),
        ("Qwen3.5-4B", "<think>", "A <think> b</think>c", AnswerReading("A <think> b", "c")),
        ("Qwen3.5-4B", "<think>", "<think>a</think>b", AnswerReading("a", "b")),
        ("Qwen3-0.6B", "", "Answer </think> here", AnswerReading(None, "Answer </think> here")),
        # Calls that lack something.
        ("Qwen3-Coder", "", "Use <function=bash> so.", AnswerReading(None, "Use <function=bash> so.")),
        ("Qwen3-Coder", "", "<function=bash>\n</function>", AnswerReading(None, "<function=bash>\n</function>")),
        ("Qwen3-Coder", "", QWEN.removesuffix("\n</function>\n</tool_call>"), AnswerReading(None, None, [LS])),
        ("Qwen3-0.6B", "", HERMES.removesuffix("\n</tool_call>"), AnswerReading(None, None, [LS])),
        ("Qwen3-0.6B", "", HERMES.replace("}}", "}"), AnswerReading(None, None, [LS])),
        ("Qwen3-0.6B", "", HERMES.replace("}}", "}}}"), AnswerReading(None, None, [LS])),
        ("Qwen3-0.6B", "", f"a\n{HERMES}\n{HERMES}\nb", AnswerReading(None, "a\n\nb", [LS, LS])),
        # A code fence or double braces around JSON.
        ("Qwen3-0.6B", "", HERMES.replace("{\"name", "```json\n{\"name").replace("}}", "}}\n```"), AnswerReading(None, None, [LS])),
        ("Qwen2.5-7B", "", HERMES.replace("{\"name", "{{\"name").replace("}}", "}}}"), AnswerReading(None, None, [LS])),
        # Closing marks of values that are missing.
        ("Qwen3-Coder", "", QWEN.replace("\n</parameter>", ""), AnswerReading(None, None, [LS])),
        ("Qwen3-Coder", "", QWEN.replace("</parameter>", "<parameter=count>\n7\n</parameter>"), AnswerReading(None, None, [LS_7])),
        ("GLM-4.6", "", "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls\n</tool_call>", AnswerReading(None, None, [LS])),
        ("GLM-4.6", "", "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls\n<arg_key>count</arg_key>\n<arg_value>7</arg_value>\n</tool_call>", AnswerReading(None, None, [LS_7])),
        # No arguments, and JSON where Python is usual.
        ("Qwen3-0.6B", "", HERMES.replace('{"command": "ls"}', "[]"), AnswerReading(None, None, [Call("bash", {})])),
        ("LFM2-8B", "", '<|tool_call_start|>[ {"name": "bash", "arguments": {"command": "ls"}}]<|tool_call_end|>', AnswerReading(None, None, [LS])),
        # A tag without the type of its value.
        ("DeepSeek-V3.2", "", DSML, AnswerReading(None, None, [LS_7])),
        # Types are the schema's.
        (
            "Qwen3-Coder",
            "",
            QWEN.replace("ls", "00123").replace("</fun", "<parameter=count>\nmany\n</parameter>\n</fun"),
            AnswerReading(None, None, [Call("bash", {"command": "00123", "count": "many"})]),
        ),
        # JSON alone.
        ("Qwen2.5-7B", "", '{"name": "bash", "arguments": {"command": "ls"}}', AnswerReading(None, None, [LS])),
        ("Qwen2.5-7B", "", '{"name": "other", "arguments": {}}', AnswerReading(None, '{"name": "other", "arguments": {}}')),
        ("Qwen2.5-7B", "", '{"name": "bash", "version": 3}', AnswerReading(None, '{"name": "bash", "version": 3}')),
        # A code fence around a call's JSON, and one that is none of its.
        ("Ministral-3", "", '[TOOL_CALLS]bash[ARGS]```json\n{"command": "ls"}\n```', AnswerReading(None, None, [LS])),
        ("Ministral-3", "", '[TOOL_CALLS]bash[ARGS]{"command": "ls"}```', AnswerReading(None, "```", [LS])),
        # Gemma.
        ("gemma-4-31B-it", "", GEMMA.format("call:", "{", "}"), AnswerReading(None, None, [LS])),
        ("gemma-4-31B-it", "", GEMMA.format("call:", "(", ")"), AnswerReading(None, None, [LS])),
        ("gemma-4-31B-it", "", GEMMA.format("-", "{", "}"), AnswerReading(None, None, [LS])),
        ("gemma-4-31B-it", "", GEMMA.format("", "{", "}"), AnswerReading(None, None, [LS])),
        # Harmony.
        (OSS, "", '<|channel|>analysis to=functions.bash<|message|>{"command":"ls"}<|call|>', AnswerReading(None, None, [LS])),
        (OSS, "", ' to=functions.bash<|channel|>commentary<|message|>{"command":"ls"}', AnswerReading(None, None, [LS])),
        (OSS, "", '<|channel|>commentary to=functions.bash<|channel|>commentary<|message|>{"command":"ls"}<|call|>', AnswerReading(None, None, [LS])),
        (OSS, "", '<|channel|>commentary to=functions.bash <|constrain|>functions.bash<|message|>{"command":"ls"}<|call|>', AnswerReading(None, None, [LS])),
        (OSS, "", "<|channel|>commentary to=functions.bash<|message|><|call|>", AnswerReading(None, None, [Call("bash", {})])),
        (OSS, "", "<|channel|>analysis<|message|>a<|end|>b", AnswerReading("a", "b")),
        (OSS, "", "analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", AnswerReading("a", "b")),
    ],
)  # fmt: skip
def test_deviations_of_the_same_kinds(
    name: str, prompt: str, raw: str, want: AnswerReading
) -> None:
    full = min((one for one in TEMPLATES if name in one), key=len)
    dialect = dialect_of(full)
    assert dialect.read(raw, [TOOL], prompt=prompt) == want
    for seed in range(5):
        assert in_pieces(dialect, raw, [TOOL], prompt, random.Random(seed)) == want


@needs_templates
def test_a_name_may_begin_or_end_like_the_mark_that_follows_it() -> None:
    """Of Kimi K3's ``" index="1"``: such names were cut, and their calls shown as text."""
    raw = (
        '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="i_wifi" index="1"<|sep|>'
        '<|open|>argument key="i" type="string"<|sep|>i<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    )
    tools = [{"type": "function", "function": {"name": "i_wifi"}}]
    want = AnswerReading(None, None, [Call("i_wifi", {"i": "i"})])
    dialect, prompt = dialect_of("Kimi-K3"), "<|open|>think<|sep|>"
    assert dialect.read(raw, tools, prompt=prompt) == want
    for seed in range(20):
        assert in_pieces(dialect, raw, tools, prompt, random.Random(seed)) == want


ALL = ("low", "medium", "high")


@needs_templates
@pytest.mark.parametrize(
    ("name", "can", "opens"),
    [
        ("Qwen-Qwen3-0.6B", (True, (), True), {}),
        ("Qwen3.5-4B", (True, (), True), {"auto": "<think>", "on": "<think>", "off": ""}),
        ("Qwen3-Coder", (False, (), False), {}),
        ("openai-gpt-oss-120b", (False, ALL, True), {}),
        ("muse-glimmer", (False, ALL, True), {}),
        ("upstage-Solar-Open-100B", (False, ALL, True), {}),
        ("ibm-granite-granite-3.3-2B-Instruct", (True, (), True), {}),
        ("deepseek-ai-DeepSeek-V3.1", (True, (), True), {"auto": "", "on": "<think>"}),
        ("deepseek-ai-DeepSeek-V4-Flash-0731", (True, ALL, True), {"auto": "", "on": "<think>"}),
        ("Kimi-K3", (True, ("low", "high"), True), {"auto": "<|open|>think<|sep|>", "off": ""}),
        ("MiniMax-M3", (True, (), True), {"auto": "", "on": "<mm:think>", "off": ""}),
        ("Cohere2MoE", (True, (), True), {"auto": "<|START_THINKING|>", "off": ""}),
        ("tencent-Hy3", (True, ("low", "high"), True), {"auto": "", "on": "<think:opensource>"}),
        ("google-gemma-2-2b-it", (False, (), False), {}),
    ],
)
def test_what_can_be_asked_of_thoughts_is_learnt(
    name: str,
    can: tuple[bool, tuple[str, ...], bool],
    opens: dict[str, str],
    renderer: TemplateRenderer,
) -> None:
    dialect = dialect_of(name)
    thinking = dialect.thinking
    assert (thinking.switch, thinking.efforts, thinking.budget) == can
    switch, efforts, _ = can
    for reasoning, mark in opens.items():
        assert dialect.asked(reasoning).opening == mark, reasoning

    def prompt(reasoning: str, effort: str = "") -> str:
        source, talk = TemplateSource(TEMPLATES[name], BOS, EOS), [Message(Role.USER, "Q?")]
        return renderer.render(
            source, talk, RenderBudget(20), None, thinking.variables(reasoning, effort)
        )

    assert (prompt("on") != prompt("off")) is switch
    assert len({prompt("auto", effort) for effort in efforts}) >= min(2, len(efforts))
    for effort in efforts:
        ends = prompt("auto", effort).rstrip()
        assert ends.endswith(dialect.asked("auto", effort).opening)


@needs_templates
def test_without_tools_nothing_is_a_call() -> None:
    dialect = dialect_of("Qwen3-Coder")
    assert dialect.read(QWEN, []) == AnswerReading(None, QWEN)
    assert dialect.read(QWEN) == AnswerReading(None, None, [LS])


@needs_templates
@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("Qwen-Qwen3-0.6B", "\n\n"),
        ("Bielik-11B-v3.0-Instruct", "\n"),
        ("google-gemma-4-31B-it", ""),
        ("Kimi-K3", ""),
        (OSS, ""),
    ],
)
def test_a_thought_that_is_closed_is_followed_by_the_templates_own_blanks(
    name: str, gap: str
) -> None:
    assert dialect_of(name).marks.gap == gap


@needs_templates
def test_raw_answers_keep_their_thoughts_and_calls_are_still_read() -> None:
    dialect = dialect_of("Qwen3-Coder").raw()
    raw = f"<think>hm</think>Well.\n{QWEN}"
    assert dialect.read(raw, [TOOL]) == AnswerReading(None, "<think>hm</think>Well.", [LS])
    assert dialect.said(raw) == AnswerReading(None, raw)
    assert dialect.thinking == dialect_of("Qwen3-Coder").thinking
    harmony = "<|channel|>analysis<|message|>a<|end|>b"
    assert dialect_of(OSS).raw().read(harmony) == AnswerReading(None, harmony)


@pytest.mark.parametrize(
    ("prompt", "raw", "calls"),
    [
        ("<think>", f"Hm {HERMES} no.</think>Done.", []),
        ("", f"<think>\n Hm {HERMES} no.\n</think>\n\nDone.", []),
        ("<think>", "<think>A <think> b</think>c</think>d", []),
        ("", "</think>a", []),
        ("<think>", f"Hm</think>\n\n{HERMES}", [LS]),
        ("<think>", f"Hm {HERMES}</think>", [LS]),
        ("<think>", f"Hm\n{HERMES}", [LS]),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_raw_thought_keeps_the_calls_that_it_only_tries_out(
    prompt: str, raw: str, calls: list[Call], seed: int
) -> None:
    dialect = Dialect().raw()
    content = raw.replace(HERMES, "") if calls else raw
    want = AnswerReading(None, content.strip(), calls)
    assert in_pieces(dialect, raw, [TOOL], prompt, random.Random(seed)) == want
    assert dialect.said(f" {raw} ") == AnswerReading(None, f" {raw} ")


@pytest.mark.parametrize("raw", ["a `b </think> c", "of <think> tags.</think>\n\nd"])
@pytest.mark.parametrize("prompt", ["", "<think>"])
def test_a_raw_answer_without_tools_is_told_at_once(prompt: str, raw: str) -> None:
    reader = Dialect().raw().reader([], prompt=prompt)
    assert "".join(piece.text for piece in reader.feed(raw)) == raw  # type: ignore[union-attr]
    assert not [*reader.end()]


RAW_TALKS = (
    ("harmony", "<|channel|>analysis<|message|>hm<|end|>",
     '<|start|>assistant<|channel|>commentary to=functions.bash<|message|>{"command": "ls"}<|call|>'),
    ("functionary", "all\nhm>>>", 'bash\n{"command": "ls"}'),
    ("muse", " to=self<|message|>hm<|eom|>",
     "<|start|>assistant to=bash<|message|><atem:function_calls>\n"
     '<atem:invoke name="bash">\n<atem:parameter name="command">ls</atem:parameter>\n'
     "</atem:invoke>\n</atem:function_calls><|eom|>"),
)  # fmt: skip


@pytest.mark.parametrize(("speech", "thought", "called"), RAW_TALKS)
@pytest.mark.parametrize("seed", range(3))
def test_raw_answers_of_messages_with_headers_keep_all_but_their_calls(
    speech: Any, thought: str, called: str, seed: int
) -> None:
    calls = (muse.CALLS,) if speech == "muse" else (SHAPE,)
    marks = AnswerMarks(speech=speech, calls=calls, explained=True, several=True)
    dialect = Dialect(True, marks).raw()
    assert (dialect.marks.explained, dialect.marks.several) == (True, True)
    want = AnswerReading(None, thought.strip(), [LS])
    assert in_pieces(dialect, thought + called, [TOOL], "", random.Random(seed)) == want
    assert dialect.said(thought + called) == AnswerReading(None, thought + called)
    cut = thought + re.split('"ls"|>ls<', called)[0]
    read = in_pieces(dialect, cut, [TOOL], "", random.Random(seed), cut=True)
    assert read == AnswerReading(None, thought.strip())
    no_call = thought + called.partition("{")[0].partition("<atem:invoke")[0] + "well"
    read = in_pieces(dialect, no_call, [TOOL], "", random.Random(seed))
    assert read == AnswerReading(None, no_call.strip())


@needs_templates
def test_what_is_no_mark_is_told_at_once() -> None:
    reader = dialect_of("Qwen3-Coder").reader([TOOL])
    told = ["".join(piece.text for piece in reader.feed(part)) for part in ("a < b", " <to", "p>")]  # type: ignore[union-attr]
    assert told == ["a < b", "", " <top>"]


@needs_templates
def test_a_long_value_without_its_closing_tag_is_read_in_little_time() -> None:
    raw = QWEN.replace("ls\n</parameter>", "ls" + "\n" * 200_000 + "x")
    begun = time.monotonic()
    (call,) = dialect_of("Qwen3-Coder").read(raw, [TOOL]).calls
    assert time.monotonic() - begun < 10  # milliseconds; minutes if each line break is tried
    assert call.arguments["command"].endswith("\nx")


BEGUN = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls\n'


@needs_templates
@pytest.mark.parametrize("begun", ["<tool_call>", "<tool_call>\n", "<think><tool_call>\n", BEGUN])
def test_calls_that_are_begun_again_and_again_are_read_in_little_time(begun: str) -> None:
    raw = begun * (10_000 // len(begun))
    dialect, began = dialect_of("GLM-4.6"), worked()
    for end, calls in (("", []), ("x", []), (HERMES, [LS])):
        assert dialect.read(raw + end, [TOOL]).calls == calls
    assert not dialect.read(raw, [TOOL], cut=True).calls
    assert worked() - began < 6  # two seconds; twenty if the rest is read again for each


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("LFM2-8B-A1B", "<|tool_call_start|>[bash(command='a', count={})]<|tool_call_end|>"),
        ("google-gemma-4-31B-it", "<|tool_call>call:bash{{count:{}}}<tool_call|>"),
        (
            "Qwen-Qwen3-0.6B",
            '<tool_call>{{"name": "bash", "arguments": {{"count": {}}}}}</tool_call>',
        ),
    ],
)
@needs_templates
def test_a_number_of_more_digits_than_can_be_written_is_none(
    name: str, raw: str, sign: str
) -> None:
    for digits, fits in ((3000, True), (4000, False)):
        number = f"{sign}0x{digits * 'f'}"
        calls = dialect_of(name).read(raw.format(number), [TOOL]).calls
        counts = [json.loads(call.texts()[1])["count"] for call in calls]
        assert counts in ([[int(number, 16)]] if fits else [[], [number]])


@pytest.mark.parametrize(
    ("opening", "inner", "closing"),
    [("[", "", "]"), ('{"name":', '"bash"', "}"), ('{"function":', "{}", "}")],
)
@pytest.mark.parametrize("levels", [65, 480, 900])
def test_a_call_of_too_many_levels_is_text(
    opening: str, inner: str, closing: str, levels: int
) -> None:
    raw = f"<tool_call>{opening * levels}{inner}{closing * levels}</tool_call>"
    assert Dialect().read(raw, [TOOL]) == AnswerReading(None, raw)


def test_quoted_code_is_passed_over_in_little_time() -> None:
    """A call in JSON is searched for its end whenever text has come."""
    call = json.dumps({"command": 1200 * 'value = compute("a", other)\n'})
    begun = worked()
    assert [balanced(call[:-1], 0) for _ in range(400)] == [-1] * 400
    assert balanced(call, 0) == len(call)
    assert worked() - begun < 1  # a tenth of a second; two if each letter is a step


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('{"a": "' + 200_000 * " " + 'x"}', {"a": 200_000 * " " + "x"}),
        ('{"a": "' + 20_000 * '\\"' + 'x"}', {"a": 20_000 * '"' + "x"}),
        ('{"a": 1, "b": [2' + 200_000 * " " + ', "', {"a": 1, "b": [2, ""]}),
        ('{"a": 1, "b": [2, 3', {"a": 1, "b": [2, 3]}),
        ('{"a": "one, two', {"a": "one, two"}),
        ('{"a": 1, "b', {}),
        *((f'{{"a": 1{end}', {"a": 1}) for end in (",", ' , "b"', ', "b" :', ', "b":  ')),
    ],
)
def test_arguments_that_were_cut_off_are_closed_in_little_time(
    text: str, known: dict[str, Any]
) -> None:
    begun = worked()
    assert call_object(text) == known
    assert worked() - begun < 2  # milliseconds; minutes if each blank begins a search


def test_a_template_that_writes_thousands_of_signs_before_its_tags_is_learnt_in_time(
    renderer: TemplateRenderer,
) -> None:
    calls = "{% for c in m.tool_calls %}CALL{{ c.function.name }}" + 2000 * "!"
    calls += "{{ c.function.arguments|tojson }}{% endfor %}"
    turn = f"[{{{{ m.role }}}}]{calls}{{{{ m.content }}}}"
    begun = worked()
    learnt(renderer, TemplateSource(f"{{% for m in messages %}}{turn}{{% endfor %}}", "", ""))
    assert worked() - begun < 5  # a fifth of a second; minutes if all ways to divide them are tried


def test_a_template_that_writes_thousands_of_brackets_is_learnt(
    renderer: TemplateRenderer,
) -> None:
    """Each may begin a mark."""
    turn = f"{2000 * '<'}{{{{ m.content }}}}[/{{{{ m.role }}}}]"
    opening = f"{{% if add_generation_prompt %}}{2000 * '<'}{{% endif %}}"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}{opening}"
    learnt(renderer, TemplateSource(template, "", ""))
    assert trimmed_end("<a>" + 2000 * "<b") == "<a>"
    assert trimmed_start(2000 * "b>" + "<a>") == "<a>"


@needs_templates
def test_unknown_escapes_are_text_without_a_warning() -> None:
    """As of Windows' paths; a warning is an error in these tests."""
    path = r"C:\dir\.a"
    want = AnswerReading(None, None, [Call("bash", {"command": path})])
    raw = f"<|tool_call_start|>[bash(command='{path}')]<|tool_call_end|>"
    assert dialect_of("LFM2-8B-A1B").read(raw, [TOOL]) == want
    assert literal(f"{{'a': ['{path}']}}") == {"a": [path]}


def test_a_thought_may_name_the_mark_that_began_it() -> None:
    dialect = Dialect(True, AnswerMarks(thoughts=(("<think>", "</think>"),)))
    reader = dialect.reader([])
    list(reader.feed("<think>\nThe mark <think> opens one.\nSo be it.\n"))
    assert "".join(one.text for one in reader.feed("</think>\n\nIt is 42, ")) == "It is 42,"  # type: ignore[union-attr]
    inner = "<think>The marks are <think> and </think>.\nWell.\n</think>\nYes."
    thought = "The marks are <think> and </think>.\nWell."
    assert dialect.read(inner, []) == AnswerReading(thought, "Yes.")
    balanced_lines = "<think>A prompt:\n<think>\nfoo\n</think>\nand so on.\n</think>\nYes."
    read = dialect.read(balanced_lines, [])
    assert read == AnswerReading("A prompt:\n<think>\nfoo\n</think>\nand so on.", "Yes.")


STRUCK = "Use `<s>`:\n\n```html\n<p><s>$10</s> $5</p>\n```\n\nHere it is: <s>$10</s>.\nAll show it."


def dialect_with(model: FakeModel) -> Dialect:
    """The dialect of a chat with `model`, learnt with more time than any machine needs."""
    source = TemplateSource(model.chat_template or "", "<s>", "</s>")
    learnt(process(), source, seconds=30, folder=LEARNT)
    real: Any = model
    return ChatTemplate(real, process()).dialect


@needs_templates
def test_a_tag_of_html_that_an_answer_shows_does_not_end_it() -> None:
    for text in (TEMPLATES["mistralai-Mistral-Nemo-Instruct-2407"], PLAIN):
        dialect = dialect_with(FakeModel(chat_template=text))
        assert dialect.known
        assert dialect.read(STRUCK) == AnswerReading(None, STRUCK)


@needs_templates
def test_an_end_that_no_token_can_have_written_is_text() -> None:
    """A token that ends generation never becomes text: its text in an answer was spelled."""
    raw = "<think>It asks of <|im_end|> here.</think>It ends a turn: <|im_end|>\nSo."
    whole = AnswerReading("It asks of <|im_end|> here.", "It ends a turn: <|im_end|>\nSo.")
    qwen = TEMPLATES["Qwen-Qwen3-0.6B"]
    for ends, want in (((EOS_ID, END), whole), ((EOS_ID,), AnswerReading("It asks of", None))):
        dialect = dialect_with(FakeModel(chat_template=qwen, ends=ends))
        assert dialect.known
        assert dialect.read(raw) == want
        for seed in range(5):
            assert in_pieces(dialect, raw, None, "", random.Random(seed)) == want
    assert dialect_of("google-gemma-2-2b-it").marks.ends == ("<end_of_turn>",)


TICKED = [
    ("So:\n```python\nsorted(x)\n```", "Use `sorted(x)`: it is new."),
    ("So:\n```python\nx\n```", "```python\ny\n```"),
    ("The key is the ` sign.", "The `x` is 5."),
    ("A `x` and ``text''", "The `x` is `y`."),
    ("A `</think>`, a ``</think>`` and `a </think> b`", "`x`"),
]


@pytest.mark.parametrize(("thought", "content"), TICKED)
def test_backticks_that_begin_no_code_leave_a_thought_its_end(thought: str, content: str) -> None:
    dialect = Dialect(True, AnswerMarks())
    raw, want = f"<think>{thought}</think>{content}", AnswerReading(thought, content)
    assert dialect.read(raw, []) == want
    for seed in range(20):
        assert in_pieces(dialect, raw, [], "", random.Random(seed)) == want


BLOCKS = [
    ("```", "```"),
    ("  ~~~ text", "  ~~~"),
    ("````md\n```", "```\n````"),
    ("``x``\n```", "```"),
]


@needs_templates
@pytest.mark.parametrize(("begun", "closed"), BLOCKS)
def test_a_block_of_code_may_show_the_end_of_an_answer(begun: str, closed: str) -> None:
    dialect = dialect_of("Qwen-Qwen3-0.6B")
    block = f"Two marks:\n\n{begun}\nHi<|im_end|>\nHello<|im_end|>\n{closed}"
    for raw, want in (
        (f"{block}<|im_end|>\nuser", AnswerReading(None, block)),
        (f"{block}\n\nSo.<|im_end|>", AnswerReading(None, f"{block}\n\nSo.")),
        (f"<think>{block}\nSo.</think>Yes.", AnswerReading(f"{block}\nSo.", "Yes.")),
        (f"<think>So:\n{begun}\nx</think>Yes.", AnswerReading(f"So:\n{begun}\nx", "Yes.")),
    ):
        assert dialect.read(raw) == want
        for seed in range(5):
            assert in_pieces(dialect, raw, None, "", random.Random(seed)) == want


@needs_templates
@pytest.mark.parametrize(
    "open_block",
    [
        "- ```\n  ls\n  ```\nDone.",
        "```python\nprint(1)```",
        "````markdown\n```python\nx\n```\nSo.",
        "``` and so on.",
        "```python\nx\nprint(1)",
    ],
)
def test_behind_a_block_that_is_never_closed_an_answer_ends_at_its_mark(open_block: str) -> None:
    dialect = dialect_of("Qwen-Qwen3-0.6B")
    raw = f"{open_block}<|im_end|>\nuser\nMore."
    assert dialect.read(raw) == AnswerReading(None, open_block)
    for seed in range(5):
        found = in_pieces(dialect, raw, None, "", random.Random(seed))
        assert found == AnswerReading(None, open_block)


@needs_templates
def test_marks_behind_a_backtick_take_little_time() -> None:
    """Fifty times as long, when the whole line was searched for code with each piece."""
    dialect = dialect_of("Qwen-Qwen3-0.6B")
    raw = "`" + "<|im_end|> " * 4000
    begun = worked()
    in_pieces(dialect, raw, None, "", random.Random(1))
    assert worked() - begun < 2


NAMES_MARKS = (
    "The <|end|> token closes.",
    "A <|channel|> has a name, after <|start|> and before <|message|>.",
    "All of them: <|start|>, <|channel|>, <|end|> <|start|> and <|return|>.",
    "Each turn ends with “<|end|>” and so on, or «<|return|>», or ‘<|call|>’.",
    "[<|end|>], {<|end|>}, |<|end|>|<|return|>/<|call|>… are marks, <|end|>— too, <|end|>，<|end|>。",
    "After <|end|> assistant messages follow.",
    "The code `<|end|><|start|>assistant<|channel|>final` ends it.",
    "So:\n```\n<|start|>user<|message|>Hi<|end|>\n<|start|>assistant<|channel|>final\n```\nDone.",
)


@needs_templates
@pytest.mark.parametrize("text", NAMES_MARKS)
def test_marks_of_channels_that_are_only_named_are_text(text: str) -> None:
    dialect = dialect_of(OSS)
    final = "<|end|><|start|>assistant<|channel|>final<|message|>"
    raw, want = f"<|channel|>analysis<|message|>{text}{final}{text}", AnswerReading(text, text)
    assert dialect.read(raw) == want
    each: Any = Mock(choice=Mock(return_value=1))
    for rng in (each, *map(random.Random, range(5))):
        assert in_pieces(dialect, raw, None, "", rng) == want
    for thought in ("So:\n```\nx", "A ` sign, and `x"):  # neither ends its code
        said = "Here:\n```python\ny\n```\nIt is `z`."
        want = AnswerReading(thought, said)
        raw = f"<|channel|>analysis<|message|>{thought}{final}{said}"
        assert in_pieces(dialect, raw, None, "", each) == dialect.read(raw) == want


@needs_templates
@pytest.mark.parametrize(
    "said", ["**Yes**", '{"a": 1}', "- one", "\nYes", " \nYes", "Yes", "(b)", "[1]", "é"]
)
@pytest.mark.parametrize(
    "header",
    [
        "",
        "<|message|>",
        "final\n<|message|>",
        "\nassistant<|channel|>final<|message|>",
        "assistant<|message|>",
    ],
)
def test_text_may_follow_the_end_of_a_thought_at_once(header: str, said: str) -> None:
    dialect, want = dialect_of(OSS), AnswerReading("a", said.strip())
    raw = f"<|channel|>analysis<|message|>a<|end|>{header}{said}"
    assert dialect.read(raw) == want
    each: Any = Mock(choice=Mock(return_value=1))
    for rng in (each, *map(random.Random, range(5))):
        assert in_pieces(dialect, raw, None, "", rng) == want


LEFT_OPEN = ("Let me write:\n```\nx = 1", "So I call `foo")
AFTER_CODE = ("Use:\n```\nx = 1\n```\nDone.", "`bar` is it.")
HEADERS = {
    OSS: ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "muse-glimmer": ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
}


@needs_templates
@pytest.mark.parametrize("thought", LEFT_OPEN)
@pytest.mark.parametrize("said", AFTER_CODE)
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_ends_code_that_a_thought_has_left_open(
    name: str, said: str, thought: str
) -> None:
    dialect, (begin, header) = dialect_of(name), HEADERS[name]
    want = AnswerReading(thought, said)
    each: Any = Mock(choice=Mock(return_value=1))
    for rng in (each, *map(random.Random, range(5))):
        assert in_pieces(dialect, begin + thought + header + said, None, "", rng) == want
    pieces = dialect.reader().feed(begin + thought + header + "So ")
    assert ContentPiece("So") in list(pieces)


@pytest.mark.parametrize("said", ["I call:\n```", "I call:\n```\nx"])
@pytest.mark.parametrize("end", ["", "\n```", "<|eot_id|>"])
def test_a_header_of_functionary_ends_code_that_a_message_has_left_open(
    end: str, said: str
) -> None:
    dialect = Dialect(True, AnswerMarks(speech="functionary", calls=(SHAPE,)))
    raw, want = f'all\n{said}\n>>>bash\n{{"command": "ls"}}{end}', AnswerReading(None, said, [LS])
    assert dialect.read(raw, [TOOL]) == want
    for seed in range(5):
        assert in_pieces(dialect, raw, [TOOL], "", random.Random(seed)) == want
    pieces = dialect.reader([TOOL]).feed(f"all\n{said}\n>>>all\nSo ")
    assert ContentPiece("\nSo") in list(pieces)


@pytest.mark.parametrize(
    ("speech", "header"),
    [("harmony", "<|channel|>commentary to=functions.bash<|message|>"), ("functionary", "bash\n")],
)
def test_arguments_in_a_block_of_code_may_come_in_any_pieces(speech: Any, header: str) -> None:
    dialect = Dialect(True, AnswerMarks(speech=speech, calls=(SHAPE,)))
    raw = header + '```json\n{"command": "ls"}\n```'
    each: Any = Mock(choice=Mock(return_value=1))
    assert dialect.read(raw, [TOOL]) == AnswerReading(None, None, [LS])
    assert in_pieces(dialect, raw, [TOOL], "", each) == AnswerReading(None, None, [LS])


@needs_templates
def test_a_header_that_was_cut_off_is_not_shown() -> None:
    raw = "<|channel|>analysis<|message|>a<|end|><|start|>assist"
    dialect = dialect_of(OSS)
    assert dialect.read(raw, [TOOL], cut=True) == AnswerReading("a")
    for seed in range(5):
        read = in_pieces(dialect, raw, [TOOL], "", random.Random(seed), cut=True)
        assert read == AnswerReading("a")
    assert dialect.read("assist", [TOOL], cut=True) == AnswerReading(None, "assist")


LOOP = "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% endfor %}"
A_TENTH = "{% for i in range(900) %}{% for j in range(900) %}{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
HOSTILE = {
    "loops": LOOP,
    "loops in a turn": PLAIN + "{% if messages|length > 1 %}" + LOOP + "{% endif %}",
    "loops in a thought": PLAIN + "{% if messages[-1].reasoning_content %}" + LOOP + "{% endif %}",
    "loops where there are tools": PLAIN + "{% if tools %}" + LOOP + "{% endif %}",
    "takes its time, again and again": A_TENTH * 3 + PLAIN,
    "a range without end": "{% for i in range(10 ** 12) %}{% endfor %}x",
    "grows": "{% for m in messages %}{{ m.content * 10000000 }}{% endfor %}",
    "empty marks": "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}",
    "a word as a mark": "{% for m in messages %}the{{ m.reasoning_content }}the{{ m.content }}{% endfor %}",
    "a letter as a mark": (
        "{% for m in messages %}{% if m.reasoning_content %}a{{ m.reasoning_content }}e{% endif %}{{ m.content }}{% endfor %}"
    ),
    "marks of the text": (
        "{% for m in messages %}<{{ m.content|length }}>{{ m.reasoning_content }}"
        "</{{ m.content|length }}>{{ m.content }}{% endfor %}"
    ),
    "marks of chance": (
        "{% for m in messages %}<{{ range(90000)|random }}>{{ m.reasoning_content }}"
        "</{{ range(90000)|random }}>{{ m.content }}{% endfor %}"
    ),
    "says it twice": "{% for m in messages %}<x>{{ m.content }}</x>{{ m.content }}{% endfor %}",
    "turns it around": "{% for m in messages %}{{ m.content|reverse }}{% endfor %}",
    "no template": "{% for",
    "nothing": "",
    "refuses": "{{ raise_exception('no') }}",
}  # fmt: skip


LIKE_LOOPS = ("loops in a turn", "loops in a thought", "loops where there are tools")


@pytest.mark.parametrize("kind", usually(HOSTILE, *(HOSTILE.keys() - LIKE_LOOPS)))
def test_a_hostile_template_teaches_nothing_and_ends_in_time(
    kind: str, renderer: TemplateRenderer
) -> None:
    begun = worked()
    dialect = learnt(renderer, TemplateSource(HOSTILE[kind], "", ""), seconds=0.4)
    assert worked() - begun < 2.4  # its time of rendering, and what new processes take to start
    assert not dialect.known
    for text in ("the cat and the dog", "<5>the</5> cat", "a"):
        assert dialect.read(text, [TOOL]) == AnswerReading(None, text)


def test_a_word_is_not_learnt_as_the_mark_of_calls(renderer: TemplateRenderer) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}the"
        "{{ m.tool_calls[0].function|tojson }}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}"
    )
    dialect = learnt(renderer, TemplateSource(template, "", ""))
    assert not any("the" in shape.before for shape in dialect.marks.calls)
    raw = 'the{"name": "bash", "arguments": {}}'
    assert dialect.read(raw, [TOOL]) == AnswerReading(None, raw)


def test_a_template_is_learnt_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TemplateSource(PLAIN + "{# kept #}", BOS, EOS)
    rendered: list[object] = []

    class Counting(TemplateRenderer):
        def render(self, *args: Any, **named: Any) -> str:
            rendered.append(args)
            return super().render(*args, **named)

    def learn_anew() -> Dialect:
        learner._known.cache_clear()
        return learnt(process, source, folder=tmp_path)

    process = Counting()
    try:
        first = learn_anew()
        assert first.known
        assert len(rendered) > 5
        rendered.clear()
        assert learn_anew() == first
        assert not rendered
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:40])  # a damaged file counts as missing
        assert learn_anew() == first
        assert rendered
        rendered.clear()
        monkeypatch.setattr(dialect_store, "_code", lambda: b"other code")
        learn_anew()
        assert rendered
        hostile = TemplateSource(LOOP, BOS, EOS)
        assert not learnt(process, hostile, seconds=0.2, folder=tmp_path).known
        assert len([*tmp_path.iterdir()]) == 2  # what took too long may have met a busy machine
        tmp_path.chmod(0o500)
        assert learnt(process, TemplateSource(PLAIN, BOS, EOS), folder=tmp_path).known
    finally:
        tmp_path.chmod(0o700)
        process.close()
        learner._known.cache_clear()


def test_learnt_dialects_are_forgotten_where_thoughts_are_told_otherwise() -> None:
    """The code that a stored dialect is bound to is that of its folder."""
    folder = Path(dialect_store.__file__).parents[1]
    assert Path(inspect.getfile(told_thought)).is_relative_to(folder)


PARTS = """{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.content is string %}{{ m.content }}</s>
{%- else %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}
{%- else %}[THINK]{{ part.thinking }}END{% endif %}{% endfor %}</s>{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("close", "pair"),
    [
        ("[/THINK]", ("[THINK]", "[/THINK]")),
        ("{{ '[/LONG]' if '\\n' in part.thinking else '[/THINK]' }}", ("<think>", "</think>")),
    ],
)
def test_marks_of_thoughts_as_parts_must_read_another_one_too(
    renderer: TemplateRenderer, close: str, pair: tuple[str, str]
) -> None:
    marks = learnt(renderer, TemplateSource(PARTS.replace("END", close), BOS, EOS), 30).marks
    assert marks.parts
    assert marks.thoughts == (pair,)


@pytest.mark.parametrize("role", ["assistant", "user"])
@pytest.mark.parametrize(("notation", "word"), [(harmony, "analysis"), (muse, "to=self")])
def test_a_prompt_begins_messages_of_the_model_alone(
    notation: ModuleType, word: str, role: str
) -> None:
    begun = notation.HEADERS.open(f"<|start|>{role} {word}<|message|>")
    assert begun == (MessageHeader("thought") if role == "assistant" else None)


@needs_templates
@pytest.mark.parametrize(
    ("name", "header", "end"),
    [
        (OSS, "<|channel|>analysis<|message|>", "<|end|>"),
        ("muse-glimmer", " to=self<|message|>", "<|eom|>"),
    ],
)
def test_a_thought_that_a_prompt_begins_with_its_header_is_read(
    name: str, header: str, end: str, renderer: TemplateRenderer
) -> None:
    before, asked, prompt = TEMPLATES[name].rpartition("add_generation_prompt")
    start = "<|start|>assistant"
    template = before + asked + prompt.replace(start, start + header)
    dialect = learnt(renderer, TemplateSource(template, BOS, EOS), seconds=30)
    opening = dialect.opened(f"...{start}{header}")
    assert opening == dialect.asked("auto").opening == header.strip()
    raw = f"Hm.{end}{start}{header.replace('analysis', 'final').replace('self', 'user')}Yes."
    reader = dialect.reader((), prompt=opening)
    assert [*reader.feed(raw), *reader.end()] == [ThoughtPiece("Hm."), ContentPiece("Yes.")]


def test_what_took_too_long_on_a_busy_machine_is_tried_again(renderer: TemplateRenderer) -> None:
    source = TemplateSource(PLAIN + "{# tried again #}", BOS, EOS)
    busy = Mock(render=Mock(side_effect=TemplateStarved("takes too long")))
    assert not learnt(busy, source).known
    assert learnt(renderer, source, seconds=30).known


@needs_templates
@pytest.mark.parametrize("name", usual_templates())
def test_what_is_learnt_survives_the_disk(name: str, tmp_path: Path) -> None:
    source = TemplateSource(TEMPLATES[name], BOS, EOS)
    dialect_store.keep(tmp_path, source, dialect_of(name))
    assert dialect_store.recall(tmp_path, source) == dialect_of(name)
