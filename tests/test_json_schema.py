"""JSON schemas: what their grammars let through is valid, and the rest is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from llguidance import LLMatcher

from localspec.engine.grammars import guidance, lark
from localspec.engine.grammars.guidance import Guidance, Guided
from localspec.engine.llama import Model
from localspec.errors import SchemaError, UsageError

from .support.json_validity import valid

CLOSING = [b'"', b"}", b"]", b":", b",", b"0", b"-", b"e", b"l"]


@cache
def reader(model: Model) -> Guidance:
    return Guidance(model)


def grammar(model: Model, schema: Any) -> Guided:
    return reader(model).begin(lark.of_schema(json.dumps(schema)))


def check(schema: str) -> None:
    guidance.check(lark.of_schema(schema))


def conforms(model: Model, state: Guided, text: str) -> bool:
    """Whether a grammar lets through the whole of `text`."""
    for token in model.tokenize(text, add_special=False, parse_special=False):
        if not state.allowed(np.array([token]))[0]:
            return False
        state = state.after(token)
    return bool(state.allowed(np.array(sorted(model.end_tokens))).any())


def written(model: Model, state: Guided, rng: np.random.Generator, length: int) -> str:
    """A random text of the grammar, which from `length` tokens on closes what is open."""
    ids, ends = np.arange(model.n_vocab), np.array(sorted(model.end_tokens))
    pieces, text = {model.piece(int(i)): int(i) for i in ids[::-1]}, b""
    closing = [pieces[piece] for piece in CLOSING]
    for step in range(100 + 10 * length):
        allowed = state.allowed(ids)
        may_end = allowed[ends].any()
        allowed[ends] = False
        if may_end and (step >= length or not allowed.any() or rng.random() < 0.3):
            return text.decode()
        possible = [i for i in closing if allowed[i]]
        if possible and step >= length:
            token = possible[0]
        elif possible and rng.random() < 0.5:
            token = int(rng.choice(possible))
        else:
            token = int(rng.choice(ids[allowed]))
        text, state = text + model.piece(token), state.after(token)
    assume(False)
    return ""


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "too deep"),
        ('{"type": "frobnicate"}', "frobnicate"),
        ('{"type": "char"}', "char"),
        ('{"type": []}', "type"),
        ('{"type": null}', "type"),
        ('{"type": {}}', "type"),
        ('{"properties": [1]}', "properties"),
        ('{"properties": {"a": 1}}', "properties"),
        ('{"$ref": "https://example.com/a.json"}', "example.com"),
        ('{"$ref": "#/nowhere"}', "nowhere"),
        ('{"type": "integer", "minimum": "0"}', "minimum"),
        ('{"type": "integer", "minimum": 1, "exclusiveMaximum": 1}', "exclusiveMaximum"),
        ('{"type": "number", "maximum": 1e999}', "maximum"),
        ('{"type": "object", "properties": {"a": {"not": {}}}}', "not"),
        ('{"type": "string", "pattern": "^a$", "format": "date"}', "pattern"),
        ('{"type": "string", "format": "phone"}', "format"),
        ('{"anyOf": []}', "anyOf"),
        ('{"enum": []}', "enum"),
        ('{"type": "integer", "enum": ["a", 1.5]}', "enum"),
        ('{"type": "array", "items": {}, "minItems": 3, "maxItems": 2}', "maxItems"),
        ('{"type": "array", "items": {}, "minItems": -1}', "minItems"),
        ('{"type": "array", "items": {}, "maxItems": true}', "maxItems"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "maxLength"),
        ('{"const": 1e999}', "const"),
        ('{"const": "\\ud800"}', "const"),
        ('{"properties": {"\\ud800": {}}}', "properties"),
        ('{"$defs": {"x": {"uniqueItems": true}}, "$ref": "#/$defs/x"}', "uniqueItems"),
        ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
        ('{"oneOf": [{"enum": [1, 2]}, {"const": 1.0}]}', "oneOf"),
        ('{"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}', "oneOf"),
        # Closed, they do not overlap, but what the first writes fits the second as it was sent.
        (
            '{"oneOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]},'
            ' {"type": "object", "properties": {"b": {}}}]}',
            "oneOf",
        ),
        ('{"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"type": "string"}]}', "oneOf"),
        ('{"oneOf": [{"type": "number", "minimum": 2e15}, {"type": "integer"}]}', "oneOf"),
        (
            '{"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"type":'
            ' "object", "properties": {"a": {}}, "required": ["a"]}, "b": {"type": "object"}}}',
            "oneOf",
        ),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', r"\$ref"),
        (
            '{"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/b"},'
            ' "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}',
            r"\$ref",
        ),
    ],
)
def test_a_bad_schema_is_refused_with_its_reason(schema: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check(schema)


@pytest.mark.parametrize(
    "pattern",
    ["a$b", "^*$", "(a", "a)", "[a", "[]", "a{3,2}", "[b-a]", r"\1", r"\b", "(?=a)", "{,3}", "a^b"],
)
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="'pattern' cannot be enforced: "):
        check(json.dumps({"type": "string", "pattern": pattern}))


def test_a_schema_of_the_wrong_shape_is_never_a_crash() -> None:
    odd: Sequence[Any] = (None, True, 1, "a", [], {}, [1], [{}], ["a"], {"a": 1}, {"a": {}})
    keywords = ("properties", "required", "additionalProperties", "items", "prefixItems", "enum")
    keywords += ("minItems", "maxLength", "pattern", "format", "type", "$ref", "allOf", "oneOf")
    refused = 0
    for keyword in keywords:
        for value in odd:
            try:
                check(json.dumps({keyword: value}))
            except UsageError:
                refused += 1
    assert len(keywords) * len(odd) / 2 < refused < len(keywords) * len(odd)
    check('{"$defs": [1], "oneOf": [{"type": "string"}, {"type": "null"}]}')


# ---------------------------------------------------------------- let through


@pytest.mark.parametrize(
    ("schema", "fits", "others"),
    [
        ({"type": ["string", "null"], "enum": ["a", None]}, ['"a"', "null"], ['"b"']),
        ({"type": "integer", "enum": ["a", 1]}, ["1"], ['"a"']),
        ({"allOf": [{"enum": ["a"]}]}, ['"a"'], ["{}"]),
        ({"enum": ["é한", "🐶", 'a"\n\\']}, ['"é한"', '"🐶"', r'"a\"\n\\"'], ['"🐶']),
        ({"const": {"a": [1, None]}}, ['{"a": [1, null]}'], []),
        (
            {
                "properties": {"color": {"enum": ["red"]}, "back": {"$ref": "#/$defs/color"}},
                "$defs": {"color": {"enum": ["blue"]}},
            },
            ['{"color":"red","back":"blue"}', "{}", '{"back":"blue"}'],
            ['{"back":"red"}', '{"back":"blue","color":"red"}', '{"x":1}', '{"color":"red",}'],
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/string"}, "s": {"type": "string"}}}
            | {"$defs": {"string": {"type": "integer"}}, "required": ["s"]},
            ['{"a":1,"s":""}', '{"s":""}'],
            ['{"a":"1","s":""}', '{"a":1}'],
        ),
        (
            {"properties": {"decimal_part": {"enum": ["x"]}, "n": {"type": "number"}}},
            ['{"n":1.5e-7}', '{"n":-0}'],
            ['{"n":1."x"}', '{"n":01}'],
        ),
        (
            {"properties": {"": {"type": "integer"}, "*": {"type": "null"}}, "required": ["", "*"]}
            | {"additionalProperties": {"type": "boolean"}},
            ['{"":1,"*":null}', '{"":1,"*":null,"x":true,"y":false}'],
            ["1", '{"":1,"*":null,"":true}', '{"":1,"*":true}', '{"":1}'],
        ),
        (
            {"$ref": "#/$defs/my_node"}
            | {"$defs": {"my_node": {"properties": {"next": {"$ref": "#/$defs/my_node"}}}}},
            ["{}", '{"next":{"next":{}}}'],
            ['{"next":1}'],
        ),
        (
            {"allOf": [{"$ref": "#/$defs/a"}]}
            | {"$defs": {"a": {"properties": {"b": {"allOf": [{"$ref": "#/$defs/a"}]}}}}},
            ["{}", '{"b":{"b":{}}}'],
            ['{"b":1}'],
        ),
        ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, ["null"], ["{}"]),
        ({}, ["{}", '{"a": [1, true]}'], ["1"]),
        (
            {"properties": {"n": {"type": "integer"}}},
            ['{"n": 1764533610123456}', '{"n": -4556737586899855}'],
            ['{"n": 1.5}'],
        ),
        ({"items": {}, "maxItems": 1}, ["[]", '[{"a":1}]'], ["[1,2]"]),
        ({"type": "array", "minItems": 2, "maxItems": 3}, ["[1,2]", "[1, 2, null]"], ["[1]"]),
        ({"type": "array", "minItems": 2.0, "maxItems": 3.0}, ["[1,2]", "[1, 2, 3]"], ["[1]"]),
        ({"type": "string", "maxLength": 2.0}, ['""', '"ab"'], ['"abc"']),
        ({"minProperties": 1.0, "maxProperties": 1e0}, ['{"a":1}'], ["{}", '{"a":1,"b":1}']),
        (
            {"oneOf": [{"type": "string", "maxLength": 1.0}, {"type": "null"}]},
            ['"a"', "null"],
            ['"ab"'],
        ),
        ({"properties": {"maxLength": {"type": "integer"}}}, ['{"maxLength":3}'], ["{1}"]),
        ({"items": True, "maxItems": 0}, ["[]"], ["[1]"]),
        (
            {"prefixItems": [{"type": "null"}, {"type": "integer"}], "minItems": 2, "maxItems": 2},
            ["[null, 3]"],
            ["[null]", "[3,null]", "[null,3,3]"],
        ),
        ({"type": ["object", "null"], "properties": {"a": True}}, ['{"a":[1]}', "null"], ["1"]),
        ({"type": "integer", "minimum": 0}, ["0", "7", "12345"], ["-1", "01"]),
        (
            {"type": "integer", "exclusiveMinimum": -120, "maximum": 1005.5},
            ["-119", "-20", "0", "999", "1005"],
            ["-120", "-1000", "1006", "2000", "1e3"],
        ),
        (
            {"type": ["integer", "null"], "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
            ["null", "9007199254740991", "-9007199254740991"],
            ["9007199254740992"],
        ),
        (
            {"type": "number", "minimum": 0, "maximum": 1},
            ["0", "0.5", "1", "1.00"],
            ["-0.5", "1.01", "2"],
        ),
        ({"type": "number", "minimum": -2, "maximum": -1}, ["-1.5", "-2"], ["-0.5", "-2.1", "1"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"a🐶c"'], ['"a"', '"abcd"']),
        ({"type": "string", "minLength": 2}, ['"éé"'], [r'"\ud83d\ude00"', r'"\ud800a"']),
        ({"type": "string", "maxLength": 1999}, ['""', '"a"'], ['"a']),
        ({"format": "date"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-30"', '"1900-13-29"']),
        ({"format": "date"}, ['"2023-04-30"', '"2023-12-31"'], ['"2023-04-31"', '"2023-00-01"']),
        ({"format": "date-time"}, ['"2023-04-30T23:59:59.123+02:00"'], ['"2023-04-30 23:59:59Z"']),
        (
            {"format": "uuid"},
            ['"12345678-1234-4321-8765-123456789abc"'],
            ['"12345678-1234-1321-8765-123456789ab"'],
        ),
        ({"properties": {"a": False, "b": {}}}, ["{}", '{"b":1}'], ['{"a":1}']),
        ({"type": "number", "minimum": 0.5}, ["0.5", "3"], ["0.25", "-1"]),
        ({"items": {"type": "integer", "multipleOf": 3}}, ["[3,9]"], ["[4]"]),
        ({"type": "object", "required": ["a"]}, ['{"a":1}'], ["{}"]),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"a": {}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {}}, "required": ["b"]},
                ]
            },
            ['{"a":1}', '{"b":1}'],
            ['{"a":1,"b":1}', "{}"],
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": [1]}}},
            ["1"],
            ["{}"],
        ),
        ({"type": "string", "pattern": "^a*$", "maxLength": 3}, ['"aaa"'], ['"aaaa"', '"b"']),
        ({"prefixItems": [{}, {}], "minItems": 3}, ["[1,2,3]"], ["[1,2]"]),
        ({"type": "string", "allOf": [{"enum": ["a", 1]}]}, ['"a"'], ["1", '"b"']),
        ({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": False}]}, ["{}"], ["1"]),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1, "a"]}}, "type": "string"},
            ['"a"'],
            ["1"],
        ),
        (
            {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}, "required": ["b"]}]}
            | {"$defs": {"a": {"type": "object", "properties": {"a": {"type": "null"}}}}},
            ['{"a":null,"b":1}', '{"b":1}'],
            ['{"a":null}', "{}"],
        ),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}}
                    | {"required": ["kind"]},
                    {"type": "object", "properties": {"kind": {"const": "b"}}}
                    | {"required": ["kind"]},
                    {"type": ["string", "null"]},
                ],
            },
            ['{"kind":"a","x":1}', '{"kind":"b"}', "null"],
            ['{"kind":"b","x":1}', "{}", "1"],
        ),
    ],
)
def test_what_a_schema_lets_through(
    target_model: Model, schema: dict[str, Any], fits: list[str], others: list[str]
) -> None:
    start = grammar(target_model, schema)
    assert [text for text in fits if not conforms(target_model, start, text)] == []
    assert [text for text in fits if not valid(text, schema)] == []
    assert [text for text in others if conforms(target_model, start, text)] == []


@pytest.mark.parametrize(
    "kind", ["integer", ["integer"], ["integer", "null"], ["string", "integer"]]
)
def test_a_whole_number_ends(target_model: Model, kind: str | list[str]) -> None:
    """A model that repeats a digit would otherwise never end one."""
    start = grammar(target_model, {"type": kind})
    for digits, fits in ((19, True), (20, False)):
        assert conforms(target_model, start, "7" * digits) is fits
        assert conforms(target_model, start, "-" + "7" * digits) is fits


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("^.{2}$", ['"ab"', '" é"', r'"\"\\"'], ['"a"', '"""', '"\\a"', '"a\t"', r'"a\n"']),
        ("^[a-c_.,]+x?$", ['"a_.x"'], ['"ax"x', '"d"', '""']),
        (r"^\(a\|b\)$", ['"(a|b)"'], ['"a"']),
        ("^(ab|c)[0-9]*$", ['"ab12"', '"c"'], ['"ab|c"', '"b1"']),
        (r"^tel:\+?[0-9]+$", ['"tel:+12"', '"tel:3"'], ['"12"', '"+12"']),
        (r"^\d+\.\d{2,3}$", ['"10.25"'], ['"10x25"', '"10.2"', '"10.2555"']),
        (r"^(?:\(\))*?$", ['""', '"()()"'], ['"(()"']),
        ("^[^a-z]$", ['"A"', r'"\\"', r'"\n"', '"é"'], ['"a"', '"\\"']),
        ("^[ -~]$", ['"a"', r'"\""', r'"\\"', '"-"'], ['"é"', '"""']),
        (r"^[\]\-^]+$", ['"]-^"'], ['"\\"']),
        (r"^[^\s]\S\W\w$", ['"é!-a"'], ['"é!- "', '" !-a"', '"é\u2003-a"']),
        (r"^\s$", ['" "', r'"\n"'], ['"a"', '"\n"']),
        ("^a", ['"a"', '"abc"'], ['"ba"']),
        ("b|c", ['"abc"', '"c"'], ['"a"', '""']),
        ("", ['""', '"x"'], ["x"]),
        (r"^\t\\$", [r'"\t\\"'], ['"\t\\"']),
    ],
)
def test_what_a_pattern_lets_through(
    target_model: Model, pattern: str, fits: list[str], others: list[str]
) -> None:
    schema = {"type": "string", "pattern": pattern}
    start = grammar(target_model, schema)
    assert [text for text in fits if not conforms(target_model, start, text)] == []
    assert [text for text in fits if not valid(text, schema)] == []
    assert [text for text in others if conforms(target_model, start, text)] == []


@pytest.mark.parametrize(
    ("schema", "fits", "others"),
    [
        ({"type": "integer", "minimum": 1, "not": {}}, ["3"], ["0", '"a"']),
        ({"type": "string", "format": "phone", "maxLength": 3}, ['"abc"'], ['"abcd"', "1"]),
        ({"type": "string", "pattern": "(?=a)", "minLength": 1}, ['"b"'], ['""']),
        ({"type": "string", "pattern": 5}, ['"b"'], ["5"]),
        ({"oneOf": [{"type": "string"}, {}]}, ['"a"', "1"], []),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}, "c": {"type": "null"}}},
            ['{"a":1,"c":null}'],
            ['{"c":1}'],
        ),
        (
            {"properties": {"a": {"$ref": "https://example.com/b"}, "c": {"type": "null"}}},
            ['{"a":1}'],
            ['{"c":1}'],
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}, "c": {"type": "null"}}}
            | {"$defs": {"b": {"type": "string", "pattern": "("}}},
            ['{"a":"1"}'],
            ['{"a":1}', '{"c":1}'],
        ),
        (
            {"$ref": "#/$defs/a"}
            | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string", "pattern": "("}}},
            ['"1"'],
            ["1"],
        ),
        ({"type": "object", "not": {}, "title": "x"}, ["{}"], ["1"]),
        ({"type": "frobnicate"}, ["1", "{}"], []),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}, "c": {"type": "null"}}}
            | {"$defs": {"b": {"$ref": "#/$defs/b"}}},
            ['{"a":1,"c":null}'],
            ['{"c":1}'],
        ),
    ],
)
def test_what_can_be_enforced_of_a_schema(
    target_model: Model, schema: dict[str, Any], fits: list[str], others: list[str]
) -> None:
    start = reader(target_model).begin(lark.grammar(lark.json_value(schema, strict=False)))
    assert [text for text in fits if not conforms(target_model, start, text)] == []
    assert [text for text in others if conforms(target_model, start, text)] == []
    with pytest.raises(SchemaError):
        check(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "x"}, "here"),
        ({"properties": {"a": {"items": {"pattern": "("}}}}, "here.properties.a.items"),
        ({"anyOf": [{}, {"not": {}}]}, "here.anyOf.1"),
        ({"$defs": {"b": {"not": {}}}, "$ref": "#/$defs/b"}, "here.$defs.b"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(SchemaError) as caught:
        guidance.check(lark.grammar(lark.json_value(schema, "here")))
    assert caught.value.place == place
    assert place in caught.value.message


def alternatives(number: int, **more: Any) -> str:
    """A `oneOf` of objects, each with another required property."""
    each = [{"properties": {f"p{i}": {}}, "required": [f"p{i}"], **more} for i in range(number)]
    return json.dumps({"oneOf": [{"type": "object", **one} for one in each]})


@pytest.mark.parametrize(
    ("more", "most"), [({"additionalProperties": False}, 4), ({}, 64)], ids=["closed", "open"]
)
def test_many_alternatives_are_not_compared_in_pairs(more: dict[str, Any], most: int) -> None:
    guidance._told.cache_clear()
    with mock.patch.object(guidance, "LLMatcher", wraps=LLMatcher) as matcher:
        for _ in range(2):
            check(alternatives(60, **more))
    assert matcher.validate_grammar.call_count <= most


def test_too_many_alternatives_that_may_overlap_are_refused_at_once() -> None:
    check(alternatives(201, additionalProperties=False))
    with pytest.raises(SchemaError, match="say anyOf"):
        check(alternatives(201))


def test_property_names_that_look_like_keywords_are_names() -> None:
    schema = {"type": "object", "properties": {"minimum": {"type": "integer"}, "not": {}}}
    check(json.dumps(schema))


def test_strings_hold_no_control_characters(target_model: Model) -> None:
    state = grammar(target_model, {"type": "string"})
    quote = target_model.tokenize('"', add_special=False, parse_special=False)[-1]
    state, ids = state.after(quote), np.arange(target_model.n_vocab)
    inside = [target_model.piece(int(i), special=True) for i in ids[state.allowed(ids)]]
    assert len(inside) > 100
    # A token may hold a line break after the closing quote.
    assert not any(byte < 32 for piece in inside for byte in piece.partition(b'"')[0])


# ---------------------------------------------------------------- named and other properties

LETTERS = st.text(st.sampled_from('ab"\\é🐶\n*-]^'), max_size=3)


@given(st.sets(LETTERS, min_size=1, max_size=5), LETTERS)
@example({"a"}, "a")
@example({""}, "")
@example({"ab", "abc"}, "abcd")
def test_other_properties_have_none_of_the_names(
    target_model: Model, names: set[str], other: str
) -> None:
    schema = {
        "properties": {name: {"type": "integer"} for name in sorted(names)},
        "additionalProperties": {"type": "boolean"},
    }
    start = grammar(target_model, schema)
    text = json.dumps({other: True}, ensure_ascii=False)
    assert conforms(target_model, start, text) == (other not in names)
    for name in names:
        twice = f"{{{json.dumps(name, ensure_ascii=False)}:1,{text[1:]}"
        assert conforms(target_model, start, twice) == (other not in names)
        units = name.encode("utf-16-be").hex(" ", 2).split()
        escaped = "".join(f"\\u{unit}" for unit in units)
        assert not conforms(target_model, start, f'{{"{escaped}":true}}')
        assert conforms(target_model, start, f"{{{json.dumps(name, ensure_ascii=False)}:1}}")


# ---------------------------------------------------------------- any schema

NAMES = st.sampled_from(["", "*", "a", "ab", 'a"b', "é", "decimal_part", "root", "string", "x\ny"])
VALUES = st.sampled_from([None, True, 0, 1, 1.5, "a", 'b"\\', "🐶", [], [1], {}, {"a": None}])
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
SIZES = st.integers(0, 2)
PATTERNS = st.sampled_from([r"^tel:\+?\d+$", "^(a|bc)*$", r"[^x]\.", "^.$", r"^[!-~]{2}$"])
PLAIN = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"type": TYPES | st.lists(TYPES, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"const": VALUES}, optional={"type": TYPES}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": SIZES, "maxLength": SIZES}
    ),
    st.fixed_dictionaries({"pattern": PATTERNS}),
    st.just({"format": "date"}),
    st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from(["a", "string"])),
)


@st.composite
def objects(draw: st.DrawFn, inside: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inside, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.booleans() | inside)
    return schema


def larger(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inside, min_size=1, max_size=2)
    bounds: Any = {"minItems": SIZES, "maxItems": SIZES}
    return st.one_of(
        objects(inside),
        st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inside} | bounds),
        st.fixed_dictionaries({"prefixItems": some}, optional={"items": st.just(False)}),
        *(st.fixed_dictionaries({name: some}) for name in ("anyOf", "oneOf", "allOf")),
    )


@given(st.recursive(PLAIN, larger, max_leaves=6), PLAIN, PLAIN, st.integers(0, 99))
def test_whatever_is_let_through_is_valid(
    target_model: Model, schema: dict[str, Any], a: object, string: object, seed: int
) -> None:
    schema = {**schema, "$defs": {"a": a, "string": string}}
    try:
        start = grammar(target_model, schema)
    except UsageError:
        assume(False)
    rng = np.random.default_rng(seed)
    for length in (0, 8, 30):
        text = written(target_model, start, rng, length)
        assert valid(text, schema), text
