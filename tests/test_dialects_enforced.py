"""Calls held to a model's own notation: what its template writes is allowed, and no other call."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from localspec.chat.dialects import AnswerReading, Call, Dialect
from localspec.chat.dialects.enforcement.call_grammar import CallGrammar, call_grammar
from localspec.chat.dialects.enforcement.value_rules import CallableTool
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.dialects.shapes import AnswerMarks, CallShape
from localspec.chat.events import Origin, PromptMade, RoundText, Span, TurnEnd
from localspec.chat.prompt.call_notation import PLAIN
from localspec.chat.prompt.renderer import TemplateSource
from localspec.engine.grammars import lark
from localspec.engine.grammars.constraint import Constraint
from localspec.engine.grammars.grammar_reader import GrammarReader, require_grammar
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.errors import EngineError, SchemaError
from localspec.serve.core.replies import IncomingAnswer
from localspec.serve.protocols.chat_completions import ChatWriter
from tests import fakes
from tests.fakes import rounds_of
from tests.support.golden_answers import BOS, EOS, Golden, golden, rendered, turn_of
from tests.support.json_validity import valid
from tests.support.llama_source import LEARNT, VocabularyOnly, needed, templates, vocabularies
from tests.support.pairwise import usually
from tests.support.processor import worked

TEMPLATES = templates()
USUAL = (
    *("Qwen-Qwen3-0.6B", "Qwen3-Coder", "GLM-4.6", "deepseek-ai-DeepSeek-V3.1"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "meta-llama-Llama-3.1-8B-Instruct"),
)
NAMES = usually(sorted(TEMPLATES), *(name for name in USUAL if name in TEMPLATES))
VOCABULARY = "deepseek-coder"  # of 32,000 tokens: one of 150,000 takes five times as long to sort
MARK = re.compile(r"<[^\s<>\"'=]+>|\[[A-Z_/]+\]|\]<\]\w+\[>\[|<\|\"\|>|</?｜\w+｜(?=\w)")


@cache
def plain() -> VocabularyOnly:
    needed()
    return VocabularyOnly.of(vocabularies()[VOCABULARY])


class Marked(VocabularyOnly):
    """A vocabulary in which some marks are tokens, as in a model's own vocabulary."""

    marks: tuple[str, ...]

    @classmethod
    def with_marks(cls, marks: set[str]) -> Marked:
        found = cls.of(vocabularies()[VOCABULARY])
        found.marks = tuple(sorted(marks, key=len, reverse=True))
        found.n_vocab += len(marks)
        return found

    @property
    def own(self) -> int:
        return plain().n_vocab

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.marks = ()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < self.own:
            return super().piece(token, special=special)
        return self.marks[token - self.own].encode() if special else b""

    def is_mark(self, token: int) -> bool:
        return token >= self.own or super().is_mark(token)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        found: list[int] = []
        parts = (
            re.split(f"({'|'.join(map(re.escape, self.marks))})", text) if self.marks else [text]
        )
        for part in parts:
            if part in self.marks and parse_special:
                found.append(self.own + self.marks.index(part))
            elif part:
                found += super().tokenize(part, add_special=False, parse_special=parse_special)
        return found


def allowed(vocabulary: VocabularyOnly, state: Constraint, text: str) -> str:
    """The rest of `text` from the first token that the grammar refuses; empty if it takes all.

    ``no end`` if the grammar takes all of it but does not let the text end there.
    """
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    for i, token in enumerate(tokens):
        try:
            state = state.after(token)
        except EngineError:
            return b"".join(vocabulary.piece(one, special=True) for one in tokens[i:]).decode()
    may_end = state.allowed(np.array(sorted(vocabulary.end_tokens))).any()
    return "" if may_end else "no end"


def tools_of(tools: list[Any], *, strict: bool = False) -> list[CallableTool]:
    functions = [tool["function"] for tool in tools]
    return [CallableTool(one["name"], one["parameters"], "tools", strict) for one in functions]


def answered(case: Golden, dialect: Dialect) -> str:
    """A template's text for an answer, from where a grammar takes hold: after an open thought."""
    raw, marks = case.raw, dialect.marks
    if opened := dialect.opened(case.prompt):
        raw = raw.partition(dict(marks.thoughts)[opened])[2]
    elif not marks.content:
        for _, close in marks.thoughts:
            if raw.lstrip().startswith(close):  # the end of a thought that there is not
                raw = raw.partition(close)[2]
    wraps = len(marks.calls[0].before) > 1 and marks.calls[0].style != "gemma"
    for end in (*marks.calls[0].after[1 + wraps :], *marks.ends, "<|call|>"):  # the answer's end
        head, mark, _ = raw.rpartition(end)
        if mark:
            raw = head
    # A template may write a letter or its number, \u00e9; the grammar knows only the letter.
    return re.sub(r"(?<!\\)\\u00([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), raw)


@cache
def learnt_of(name: str) -> tuple[Dialect, tuple[Golden, ...]]:
    """A template's dialect, and what it writes for calls."""
    source = TemplateSource(TEMPLATES[name], BOS, EOS)
    dialect = learnt(fakes.renderer(), source, seconds=30, folder=LEARNT)
    cases = golden(fakes.renderer(), TEMPLATES[name], random.Random(3))
    return dialect, tuple(one for one in cases if one.want.calls and one.tools)


def grammars(*, marked: bool, name: str = "") -> GrammarReader:
    """The grammar reader of a vocabulary; with `marked`, templates' marks are tokens in it.

    The marks are those of the usual templates, or those of all if `name` is not among them.
    """
    if not marked:
        return _reader(())
    return _reader(USUAL if name in USUAL else tuple(TEMPLATES))


@cache
def _reader(names: tuple[str, ...]) -> GrammarReader:
    if not names:
        return GrammarReader(plain())
    learnt = [learnt_of(name) for name in names if name in TEMPLATES]
    found = {
        mark
        for dialect, cases in learnt
        for case in cases
        for mark in MARK.findall(case.raw)
        if dialect.speaks(mark)
    }
    return GrammarReader(Marked.with_marks(found))


def calls_of(dialect: Dialect, tools: list[Any], *, strict: bool = False) -> CallGrammar:
    marks, thinks = dialect.marks, dialect.thinking.budget
    return call_grammar(marks, tools_of(tools, strict=strict), several=marks.several, thinks=thinks)


@pytest.mark.parametrize("marked", usually([False, True], True))
@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_writes_is_allowed(name: str, marked: bool) -> None:
    dialect, cases = learnt_of(name)
    known = grammars(marked=marked, name=name)
    vocabulary: Any = known._model
    for case in cases:
        calls, raw = calls_of(dialect, case.tools or []), answered(case, dialect)
        state = known.begin(calls.required())
        assert allowed(vocabulary, state, raw) == "", case.kind
        assert allowed(vocabulary, state, raw.replace(case.want.calls[0].name, "another"))
        read = dialect.read(raw, case.tools)
        assert (read.calls, read.content) == (case.want.calls, None)
        if calls.begin and dialect.marks.speech == "marks":
            after = raw.partition(calls.begin)[2]
            assert allowed(vocabulary, known.begin(calls.awaited()), after) == "", case.kind


@pytest.mark.slow
@pytest.mark.drawn
def test_most_templates_write_calls() -> None:
    """The number of templates that the tests above cover; the others write no calls."""
    needed()
    assert sum(bool(learnt_of(name)[1]) for name in TEMPLATES) >= 54


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["one", "two words"]},
        "perhaps": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 3},
    },
    "required": ["text", "count"],
    "$defs": {
        "item": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "word": {"type": "string"}},
            "required": ["id"],
        }
    },
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("look_up", "store")
]
PYTHON = CallShape("python", ("<|call|>",))
ENDING = ('"', "'", "}", "]", ")", ",", ":", "0", "1", "e", "l", "\n", " ")


def written(known: GrammarReader, grammar: str, closers: list[str], rng: random.Random) -> str:
    """A random text that a grammar lets through, which soon closes what is open."""
    vocabulary: Any = known._model
    state, text = known.begin(grammar), b""
    ids, ends = np.arange(vocabulary.n_vocab), np.array(sorted(vocabulary.end_tokens))
    closing = [vocabulary.tokenize(one, add_special=False, parse_special=True) for one in closers]
    for step in range(1500):
        mask = state.allowed(ids)
        over = bool(mask[ends].any())
        mask[ends] = False
        if over and (step > 60 or not mask.any() or rng.random() < 0.7):
            return text.decode()
        some = closing if step > 60 or rng.random() < 0.4 else []
        chosen: list[int] = []
        for tokens in rng.sample(some, len(some)):
            if mask[tokens[0]]:
                chosen = tokens
                break
        left = ids[mask].tolist()
        if step > 60 and len(left) < 50:  # "><" would go on where ">" ends the last call
            left = [min(left, key=lambda one: len(vocabulary.piece(one, special=True)))]
        for token in chosen or [int(rng.choice(left))]:
            if not state.allowed(np.array([token]))[0]:
                break
            text, state = text + vocabulary.piece(token, special=True), state.after(token)
    raise AssertionError(text)


@pytest.mark.parametrize("marked", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_let_through_is_read_as_a_call(name: str, marked: bool) -> None:
    dialect, cases = learnt_of(name)
    if not cases:
        return
    known = grammars(marked=marked, name=name)
    shape, rng = (
        dialect.marks.calls[0] if dialect.marks.calls else PLAIN.calls[0],
        random.Random(name),
    )
    closers = [*shape.after, shape.value_close, shape.value_close.strip(), '<|"|>']
    if shape.style == "tags":  # what may follow a text with its mark
        closers += [shape.value_close + one for one in (shape.key_open, *shape.after[:1])]
    closers += [close for _, close in dialect.marks.thoughts]
    if shape.style == "nested":
        mark = shape.key_open.removesuffix("<")
        closers += [mark, *(f"</{one}>" for one in (*SCHEMA["properties"], "item", "id", "word"))]
    grammar = calls_of(dialect, TOOLS, strict=shape.style != "nested").required()
    closers += ["',", '",', "')", '")'] if shape.style == "python" else []
    closers = [*filter(None, closers), *ENDING]
    for _ in range(2):
        text = written(known, grammar, closers, rng)
        read = dialect.read(text, TOOLS)
        assert read.calls, text
        assert not (read.content or "").strip(), text
        for call in read.calls:
            assert valid(json.dumps(call.arguments), SCHEMA), text


LAID_OUT: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "a text"},
                    "flag": {"type": "boolean", "description": "a flag"},
                    "words": {
                        "type": "array",
                        "items": {"type": "string"},
                        "maxItems": 3,
                        "description": "words",
                    },
                },
                "required": ["text"],
            },
        },
    }
    for name in ("look_up", "look")
]


def written_back(name: str, dialect: Dialect, answer: AnswerReading) -> str:
    """What a template writes for an answer that has been read."""
    template, turn = TEMPLATES[name], turn_of(answer, as_text=dialect.marks.as_text)
    for more in ({"enable_thinking": True}, {}):
        variables = {**more, "tools": LAID_OUT}
        before, after = (
            rendered(fakes.renderer(), template, turns, {**variables, "add_generation_prompt": new})
            for turns, new in (([], True), ([turn], False))
        )
        if before and after and after.startswith(before):
            return after[len(before) :]
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_under_a_grammar_is_what_the_template_writes_back(name: str) -> None:
    """So the caches hold what an agent sends again."""
    dialect, cases = learnt_of(name)
    layout = dialect.marks.calls[0].layout if dialect.marks.calls else None
    if layout is None or not cases or dialect.marks.speech != "marks":
        return
    known, rng = grammars(marked=False), random.Random(name)
    closers = [*dialect.marks.calls[0].after, *(end for _, end in dialect.marks.thoughts), *ENDING]
    grammar = calls_of(dialect, LAID_OUT).required()
    for _ in range(3):
        text = written(known, grammar, closers, rng)
        calls = text[text.index(layout.before) :]
        back = written_back(name, dialect, dialect.read(text, LAID_OUT))
        assert back[back.index(layout.before) :].startswith(calls)
        if layout.lead is not None and not dialect.thinking.budget:
            assert back.startswith(text)


@pytest.mark.slow
@pytest.mark.drawn
def test_what_most_templates_with_json_write_is_known_to_the_letter() -> None:
    needed()
    shapes = [learnt_of(name)[0].marks.calls[:1] for name in TEMPLATES]
    kinds = [shape for (shape,) in filter(None, shapes) if shape.style in ("json", "named")]
    assert sum(shape.layout is not None for shape in kinds) >= 24


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_enforced_is_named(name: str) -> None:
    dialect, cases = learnt_of(name)
    if not cases:
        return
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "phone"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammars(marked=False).begin(calls_of(dialect, tools).required())
    with pytest.raises(SchemaError, match="'format'"):
        grammars(marked=False).begin(calls_of(dialect, tools, strict=True).required())


WAYS: list[Any] = [
    {
        "type": "object",
        "properties": {"kind": {"const": kind}, kind: {"type": "integer"}},
        "required": ["kind", kind],
    }
    for kind in ("near", "far")
]


@pytest.mark.parametrize(
    ("ways", "good", "bad"),
    [
        ([{"type": "integer"}, {"type": "boolean"}], "True", "None"),
        (WAYS, '{"kind": "far", "far": 1}', '{"kind": "far", "near": 1}'),
        ([{"type": "integer"}, {"type": "number"}], "", ""),
    ],
)
def test_one_of_several_schemas_is_enforced_where_none_overlap(
    ways: list[Any], good: str, bad: str
) -> None:
    """In Python's notation, which llguidance does not know as it knows JSON."""
    schema = {"type": "object", "properties": {"a": {"oneOf": ways}}, "required": ["a"]}
    dialect = Dialect(True, AnswerMarks(calls=(PYTHON,)))
    calls = [CallableTool("f", schema, "tools", True)]
    if not good:
        with pytest.raises(SchemaError, match="'oneOf'"):
            call_grammar(dialect.marks, calls, several=False)
        return
    grammar = call_grammar(dialect.marks, calls, several=False).required()
    for value, fits in ((good, True), (bad, False)):
        text = f"<|call|>[f(a={value})]".replace('"', "'")
        left = allowed(plain(), grammars(marked=False).begin(grammar), text)
        assert (left == "") is fits, text


@pytest.mark.parametrize("name", ["Qwen3-Coder", "GLM-4.6"])
@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_given_texts_among_several_schemas_are_enforced_between_tags(name: str, word: str) -> None:
    """As of an optional choice: any text was let through."""
    dialect, _ = learnt_of(name)
    form = {word: [{"type": "string", "enum": ["c", "f"]}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"a": form}, "required": ["a"]}
    grammar = call_grammar(
        dialect.marks, [CallableTool("f", schema, "tools", True)], several=False
    ).required()
    shape = dialect.marks.calls[0]
    for value, fits in (("c", True), ("null", True), ("x", False), ("12", False)):
        text = (
            f"{shape.before[0]}\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>"
            f"\n{shape.after[-1]}"
            if name == "Qwen3-Coder"
            else f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
        )
        left = allowed(plain(), grammars(marked=False).begin(grammar), text)
        assert (left == "") is fits, value
    odd = {word: [{"type": "string", "pattern": "^a$"}, {"type": "null"}]}
    tool = CallableTool("f", {**schema, "properties": {"a": odd}}, "tools", True)
    with pytest.raises(SchemaError, match="'pattern'"):
        call_grammar(dialect.marks, [tool], several=False)


def linked(*ways: int) -> dict[str, Any]:
    """The schema of an argument; the schema at each place refers to those at the places given."""
    names = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + by}"} for by in ways]} for i in range(300)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": names}


@pytest.mark.parametrize("schema", [linked(0, 0, 0), linked(1), linked(1, 0), linked(1, 2)])
def test_schemas_that_refer_to_each_other_take_little_time(schema: dict[str, Any]) -> None:
    """A type of any JSON value refers to itself; in three ways, it took minutes to follow."""
    dialect, _ = learnt_of("Qwen3-Coder")
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    raw = CALLS_OF_F["Qwen3-Coder"]
    begun = worked()
    assert call_grammar(dialect.marks, tools_of(tools), several=True).required()
    assert dialect.calls(raw, tools) == [Call("f", {"a": 1})]
    assert worked() - begun < 5  # a tenth of a second


TAGGED = {
    "Qwen3-Coder": (
        "<tool_call>\n<function=f>\n",
        "<parameter={}>\n{}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "MiniMax-M2": (
        '<minimax:tool_call>\n<invoke name="f">\n',
        '<parameter name="{}">{}</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
}


@pytest.mark.parametrize("name", TAGGED)
def test_a_text_between_tags_may_hold_its_closing_mark(name: str) -> None:
    """As for the reader, that counts only before another argument, or the call's end."""
    dialect, _ = learnt_of(name)
    begin, argument, end = TAGGED[name]
    text = {"type": "string"}
    schema = {"properties": {"old": text, "new": text}, "required": ["old", "new"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    state = grammars(marked=False).begin(calls_of(dialect, tools, strict=True).required())

    def call(*given: tuple[str, str]) -> str:
        return begin + "".join(argument.format(*one) for one in given) + end

    inner = "<a>\n  <parameter>1</parameter>\n</a>"
    first = inner if name == "Qwen3-Coder" else "<a><parameter>1</parameter></a>"
    for old, new in ((first, "x"), ("x", inner), (first, inner), ("", "")):
        raw = call(("old", old), ("new", new))
        assert allowed(plain(), state, raw) == ""
        assert dialect.calls(raw, tools) == [Call("f", {"old": old, "new": new})]
    both = ("old", "x"), ("new", "y")
    assert allowed(plain(), state, call(*both).replace("\n</parameter>", "</parameter>")) == ""
    for wrong in (both[:1], both[1:], (*both, ("new", "z")), (both[0], ("other", "y"))):
        for raw in (call(*wrong), call(*wrong).replace("\n</parameter>", "</parameter>")):
            assert allowed(plain(), state, raw)
    # A model that forgets an argument is led to it at once.
    assert allowed(plain(), state, call(both[0])) in (end, end.removeprefix("<"))


@pytest.mark.parametrize("strict", [False, True])
def test_a_text_that_escapes_nothing_may_hold_its_own_quote(strict: bool) -> None:
    """Code was cut at its first quote; only what follows tells whether one ends a text."""
    dialect, _ = learnt_of("LFM2.5-8B-A1B")
    assert dialect.marks.calls[0].raw
    schema = {
        "type": "object",
        "properties": {
            "content": {"type": "string"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "count": {"type": "integer"},
        },
        "required": ["content"],
    }
    tools = [{"type": "function", "function": {"name": "write", "parameters": schema}}]
    state = grammars(marked=False).begin(calls_of(dialect, tools, strict=strict).required())
    for given, more in (
        ("content='print('hi')'", {"content": "print('hi')"}),
        ("content='The dogs' bowl'", {"content": "The dogs' bowl"}),
        ("content='a', note='d['k'] = f('x')'", {"content": "a", "note": "d['k'] = f('x')"}),
        ('content="say "a"", count=3', {"content": 'say "a"', "count": 3}),
    ):
        raw = f"<|tool_call_start|>[write({given})]<|tool_call_end|>"
        assert dialect.calls(raw, tools) == [Call("write", more)]
        assert (allowed(plain(), state, raw) == "") is not strict, given
    for given, fits in (
        ("content='a', note='b', count=3", True),
        ('content="it\'s", note=None', True),
        ("content='a', count='b'", False),
        ("content='a', other='b'", False),
        ("content=3", False),
        ("note='a'", False),
        ("content='a', note='b')", False),
    ):
        raw = f"<|tool_call_start|>[write({given})]<|tool_call_end|>"
        assert (allowed(plain(), state, raw) == "") is fits, given


GEMMA = "google-gemma-4-31B-it"
WHOLE = {"type": "integer"}
PATTERN: dict[str, Any] = {"patternProperties": {"^x": {}}, "additionalProperties": False}


def call_of_f(name: str, given: dict[str, Any]) -> str:
    """A call of the tool `f` as a template's model writes it; its arguments have no texts."""
    if name == GEMMA:
        inside = json.dumps(given, separators=(",", ":")).replace('"', "")
        return f"<|tool_call>call:f{inside}<tool_call|>"
    if name == "LFM2-8B-A1B":
        inside = ", ".join(f"{key}={value!r}" for key, value in given.items())
        return f"<|tool_call_start|>[f({inside})]<|tool_call_end|>"
    inside = "".join(
        f"<parameter={key}>\n{json.dumps(value)}\n</parameter>\n" for key, value in given.items()
    )
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize("name", [GEMMA, "LFM2-8B-A1B", "Qwen3-Coder"])
@pytest.mark.parametrize(
    ("schema", "given", "fits"),
    [
        ({"properties": {"a": {"additionalProperties": {}}}}, {"a": {"x": 1}}, True),
        ({"properties": {"a": {"additionalProperties": {}}}}, {"a": {"x": {"y": [1, {}]}}}, True),
        ({"properties": {"a": PATTERN}}, {"a": {"x": 1}}, True),
        ({"properties": {"a": {"properties": {"b": WHOLE}}}}, {"a": {"x": 1}}, False),
        ({"properties": {"a": WHOLE}, "additionalProperties": {}}, {"a": 1, "x": 2}, True),
        ({"properties": {"a": WHOLE}, "additionalProperties": {}}, {"x": 2}, True),
        ({"properties": {"a": WHOLE}, "additionalProperties": {}}, {"a": True}, False),
        ({"properties": {"a": WHOLE}, **PATTERN}, {"a": 1, "x": 2}, True),
        ({"properties": {"a": WHOLE}}, {"a": 1, "x": 2}, False),
    ],
)
def test_an_object_may_have_what_its_schema_does_not_name(
    name: str, schema: dict[str, Any], given: dict[str, Any], fits: bool
) -> None:
    """Its values were forbidden, and free-form objects stayed empty."""
    dialect, _ = learnt_of(name)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    state = grammars(marked=False).begin(calls_of(dialect, tools).required())
    text = call_of_f(name, given)
    assert (allowed(plain(), state, text) == "") is fits
    ((_, arguments),) = ((call.name, call.arguments) for call in dialect.calls(text, tools))
    assert arguments == given or name == "Qwen3-Coder"  # a value without a schema is text there


@pytest.mark.parametrize("name", [GEMMA, "LFM2-8B-A1B", "Qwen3-Coder"])
def test_names_by_pattern_are_refused_if_all_must_be_enforced(name: str) -> None:
    dialect, _ = learnt_of(name)
    tool = CallableTool("f", {"type": "object", **PATTERN}, "tools", True)
    with pytest.raises(SchemaError, match="'patternProperties'"):
        call_grammar(dialect.marks, [tool], several=False)


@pytest.mark.parametrize("name", ["Qwen3-Coder", "LFM2-8B-A1B", "google-gemma-4-31B-it"])
@pytest.mark.parametrize("odd", [{"$ref": 5}, {"const": 1, "enum": -1}, {"anyOf": 1, "type": 2}])
def test_keywords_with_odd_values_say_nothing(name: str, odd: dict[str, Any]) -> None:
    dialect, _ = learnt_of(name)
    tool = CallableTool("f", {"type": "object", "properties": {"a": odd}}, "tools", False)
    assert call_grammar(dialect.marks, [tool], several=False).required()


CALLS_OF_F = {
    "Qwen3-Coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>",
    "LFM2-8B-A1B": "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
}
SPACED = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a%20b"}},
    "$defs": {"a b": {"type": "string"}},
}


@pytest.mark.parametrize("name", CALLS_OF_F)
@pytest.mark.parametrize("odd", [{"properties": 5}, {"properties": [[]]}, {"required": 5}])
def test_calls_are_read_whatever_a_schema_says(name: str, odd: dict[str, Any]) -> None:
    dialect, _ = learnt_of(name)
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    (found,) = dialect.calls(CALLS_OF_F[name], tools)
    assert (found.name, found.arguments["a"]) in (("f", 1), ("f", "1"))


@pytest.mark.parametrize(
    ("reference", "part"),
    [("#/$defs/a%20b", {"type": "string"}), ("#", SPACED), ("#a", None), ("a.json", None)],
)
def test_a_reference_names_the_part_that_a_json_pointer_does(reference: str, part: Any) -> None:
    assert lark.referred(SPACED, reference) == part


def test_a_text_is_one_also_where_a_reference_to_its_schema_has_an_escape() -> None:
    dialect, _ = learnt_of("Qwen3-Coder")
    tools = [{"type": "function", "function": {"name": "f", "parameters": SPACED}}]
    assert dialect.calls(CALLS_OF_F["Qwen3-Coder"], tools) == [Call("f", {"a": "1"})]


@pytest.mark.parametrize("strict", [False, True])
def test_a_reference_between_tags_leads_where_it_does_in_the_whole_schema(strict: bool) -> None:
    """A tree's branches are trees; in the schema of the one argument they were lists of lists."""
    dialect, _ = learnt_of("Qwen3-Coder")
    parts = {
        "n": {"type": "integer"},
        "of": {"type": "array", "items": {"$ref": "#"}},
        "m": {"$ref": "#/properties/n"},
    }
    schema = {"type": "object", "properties": parts, "required": ["n", "of"]}
    schema["additionalProperties"] = False
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    state = grammars(marked=False).begin(calls_of(dialect, tools, strict=strict).required())
    begin, argument, end = TAGGED["Qwen3-Coder"]
    for branches, m, fits in (
        ('[{"n": 2, "of": [{"n": 3, "of": []}]}]', "4", True),
        ("[[]]", "4", False),
        ('[{"n": 2, "of": [{"n": "3"}]}]', "4", False),
        ("[]", "x", False),
    ):
        given = (("n", "1"), ("of", branches), ("m", m))
        raw = begin + "".join(argument.format(*one) for one in given) + end
        assert (allowed(plain(), state, raw) == "") is fits, branches


def test_only_references_of_schemas_are_changed_where_a_part_stands_alone() -> None:
    data, rest = {"$ref": "#"}, f"#/$defs/{lark.REST}"
    kept = {"const": data, "enum": [data], "default": data, "examples": [data]}
    names = {"default": {"$ref": "#/properties/a"}, "$ref": {"$ref": "#/%24defs/b"}}
    part = {"anyOf": [kept, {"properties": names}], "items": [data]}
    whole = {"properties": {"a": part}, "$defs": {"b": {"type": "string"}}}
    found = lark.alone(part, whole)
    names = {**names, "default": {"$ref": f"{rest}/properties/a"}}
    moved = {"anyOf": [kept, {"properties": names}], "items": [{"$ref": rest}]}
    assert found == {**moved, "$defs": {**whole["$defs"], lark.REST: {"properties": {"a": moved}}}}


TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "contains": {}}]}


@pytest.mark.parametrize(
    ("reference", "words"),
    [("#/properties/m", "'[$]ref' cannot be"), ("#/properties/x", "Pointer '/properties/x'")],
)
def test_refusals_tell_the_schema_as_it_came(reference: str, words: str) -> None:
    dialect, _ = learnt_of("Qwen3-Coder")
    ways = {"anyOf": [{"type": "array", "items": {"$ref": reference}}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"of": ways, "m": TEXT_OR_LIST}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(SchemaError, match=words) as refused:
        require_grammar(calls_of(dialect, tools, strict=True).required())
    assert refused.value.place == "tools.properties.of"
    assert lark.REST not in str(refused.value)


@pytest.mark.parametrize("name", ["LFM2-8B-A1B", "google-gemma-4-31B-it"])
def test_alternatives_that_lead_back_to_themselves_are_not_told_apart(name: str) -> None:
    dialect, _ = learnt_of(name)
    way = {"type": "object", "required": ["n"]}
    ways = {one: {**way, "properties": {"n": {"$ref": f"#/$defs/{one}"}}} for one in "AB"}
    of = {"oneOf": [{"$ref": f"#/$defs/{one}"} for one in ways]}
    schema = {"type": "object", "properties": {"a": of}, "$defs": ways}
    with pytest.raises(SchemaError):
        call_grammar(dialect.marks, [CallableTool("f", schema, "tools", True)], several=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_told_as_it_is_written(name: str) -> None:
    dialect, cases = learnt_of(name)
    rng = random.Random(name)
    for case in cases:
        raw = case.raw
        whole = told(dialect, case, [raw])
        pieces = [raw[i : i + 3] for i in range(0, len(raw), 3)]
        assert [list(map(json.loads, one)) for one in joined_calls(whole)] == [
            [call.name, call.arguments] for call in case.want.calls
        ], case.kind
        streamed = told(dialect, case, pieces)
        assert joined_calls(streamed) == joined_calls(whole), case.kind
        # As the arguments grow, and each argument at once where it is not JSON.
        assert len(streamed) >= 2 * len(case.want.calls) + len(case.want.calls[0].arguments) - 1
        cut = rng.randrange(len(raw))
        half = told(dialect, case, [raw[:cut]], FinishReason.LENGTH)
        parts = [raw[i : min(i + 5, cut)] for i in range(0, cut, 5)]
        assert joined_calls(told(dialect, case, parts, FinishReason.LENGTH)) == joined_calls(half)


def told(
    dialect: Dialect, case: Golden, pieces: list[str], reason: FinishReason = FinishReason.STOP
) -> list[Any]:
    """The pieces of calls that a client gets, which a grammar holds."""
    answer = IncomingAnswer(dialect, tools=case.tools or (), held=True)
    writer = ChatWriter("x")
    writer.answer = answer
    chunks = list(writer.written(answer.take([PromptMade(1, 100, case.prompt)])))
    for piece in pieces:
        said = RoundText((Span(piece, Origin.TARGET),), rounds_of([0])[0])
        chunks += writer.written(answer.take([said]))
    chunks += writer.written(answer.take([TurnEnd("", reason, GenerationStats())]))
    deltas = [chunk["choices"][0]["delta"] for _, chunk in chunks]
    return [call for delta in deltas for call in delta.get("tool_calls", ())]


def joined_calls(pieces: list[Any]) -> list[list[str]]:
    calls: list[list[str]] = []
    for piece in pieces:
        if "id" in piece:
            calls.append([json.dumps(piece["function"]["name"]), ""])
        calls[piece["index"]][1] += piece["function"]["arguments"]
    return calls


def test_an_answer_may_be_a_call_or_conform_to_a_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    calls = call_grammar(PLAIN, [CallableTool("f", schema, "tools", True)], several=True)
    known = grammars(marked=False)
    both = known.begin(calls.or_else(lark.json_value(schema, "format")))
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert allowed(plain(), both, call) == ""
    assert allowed(plain(), both, '{"a": 1}') == ""
    assert allowed(plain(), both, '{"b": 1}')
    assert allowed(plain(), both, "Hello")


class Padded(VocabularyOnly):
    """The last tokens have no text, as where a vocabulary is padded to a round number."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"" if token >= self.n_vocab - 20 else super().piece(token, special=special)

    def is_mark(self, token: int) -> bool:
        return token >= self.n_vocab - 20 or super().is_mark(token)


@pytest.mark.slow
def test_tokens_without_text_are_never_allowed() -> None:
    needed()
    padded = Padded.of(vocabularies()[VOCABULARY])
    tool = CallableTool("f", {"type": "object", "properties": {}}, "tools", True)
    state = GrammarReader(padded).begin(call_grammar(PLAIN, [tool], several=True).required())
    ids = np.arange(padded.n_vocab - 20, padded.n_vocab)
    for token in padded.tokenize("<tool_call>\n{", add_special=False, parse_special=True):
        assert not state.allowed(ids).any()
        state = state.after(token)
