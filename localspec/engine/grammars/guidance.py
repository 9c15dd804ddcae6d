"""llguidance: grammars in its form of Lark (`engine.grammars.lark`) as constraints.

The only module that imports the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from localspec.engine.exact_ids import Vocabulary
from localspec.engine.grammars import lark
from localspec.errors import EngineError, SchemaError, UsageError

# At most one blank between the parts of a document, as more would only cost time. No \u escapes:
# with them a property's name could be written in two ways, and so occur twice.
_STRICT: Schema = {"whitespace_pattern": "[ ]?", "json_allowed_escapes": '"\\bfnrt'}
_LENIENT: Schema = {**_STRICT, "lenient": True, "coerce_one_of": True}
# Comparing each alternative with all others takes three seconds for this many.
_MOST_COMPARED = 200
# Keywords whose schemas apply to the same value.
_IN_PLACE = ("anyOf", "oneOf", "allOf")
# Prefix for the names of definitions in their original form.
_CAME = "as it came "
_TEXT = r'"(?:\\.|[^"\\])*"'
# `%mark`, `%until` and `%json`; texts, expressions and comments are matched to skip them.
_WORDS = re.compile(
    rf"%mark\s+(?P<mark>{_TEXT})"
    rf"|%until\s+(?P<until>{_TEXT})(?:\s*&\s*(?P<then>{_TEXT}))?"
    rf"(?:\s*~\s*(?P<no>{_TEXT})\s*&\s*\((?P<more>(?:\s*{_TEXT})+)\s*\))?"
    r"|(?P<json>%json)\s*(?=\{)"
    rf"|{_TEXT}|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/"
)
_CAUSE = re.compile(r"^(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?")
Schema = Mapping[str, Any]
Part: TypeAlias = str | int | None
"""Of a mark: text, a token, or None for white space that may be missing."""


class GuidedVocabulary(Vocabulary, Protocol):
    """What a grammar needs to know about a model's tokens."""

    n_vocab: int

    @property
    def end_tokens(self) -> frozenset[int]:
        """The ids that end generation."""

    def is_mark(self, token: int) -> bool:
        """Whether a token means more than its text."""


class Guidance:
    """Reads grammars for one model.

    Tokens that are marks match only ``%mark``, not the texts and expressions of a grammar.
    """

    def __init__(self, vocabulary: GuidedVocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The tree of all tokens; llguidance takes about a second for a large vocabulary."""
        ends = sorted(self._vocabulary.end_tokens)
        tokens = TokenizerWrapper(_Tokens(self._vocabulary, ends))
        return LLTokenizer(tokens, eos_token=ends or None)

    def begin(self, grammar: str) -> Guided:
        """The state of a Lark grammar before any text.

        Raises:
            UsageError: it is not a grammar, or a schema in it cannot be enforced.
        """
        text = _resolved(grammar, self._divided)
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        state = Guided(matcher, self._vocabulary)
        if not state.mask.any():
            raise _refusal("no text conforms to it")
        return state

    def _divided(self, text: str) -> list[str | int]:
        """Split a text into the marks that are tokens, by id, and the texts between them."""
        ids = self._vocabulary.tokenize(text, add_special=False, parse_special=True)
        found: list[str | int] = []
        for token in ids:
            if not self._vocabulary.is_mark(token):
                continue
            before, mark, after = text.partition(
                self._vocabulary.piece(token, special=True).decode("utf-8", "replace")
            )
            if mark:
                found += [before, token] if before else [token]
                text = after
        return [*found, text] if text or not found else found


class _Tokens:
    """A vocabulary in the form that llguidance's `TokenizerWrapper` takes."""

    def __init__(self, vocabulary: GuidedVocabulary, ends: list[int]) -> None:
        ids = range(vocabulary.n_vocab)
        # Vocabularies are padded with empty tokens, which would be a prefix of every mark.
        self.tokens = [
            vocabulary.piece(token, special=True) or b"<unused %d>" % token for token in ids
        ]
        self.special_token_ids = [*ends, *(token for token in ids if vocabulary.is_mark(token))]
        self.eos_token_id, self.bos_token_id = ends[0] if ends else None, None

    def __call__(self, _text: bytes) -> list[int]:
        """Tokenize; only called for grammars that force tokens, which ours do not."""
        return []


class Guided:
    """One state of a grammar over one model's vocabulary."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: GuidedVocabulary, *, over: bool = False
    ) -> None:
        self._matcher, self._vocabulary, self._over = matcher, vocabulary, over

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: (n,). No token may if the grammar is at a dead end.

        Raises:
            EngineError: the grammar exceeds llguidance's limits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if "NoExtensionBias" in self._matcher.get_error():
            return np.zeros(self._vocabulary.n_vocab, np.bool_)
        self._check()
        found = np.unpackbits(bits, count=self._vocabulary.n_vocab, bitorder="little")
        return found.view(np.bool_)

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `ids` (k,) may come next: (k,). After the end all may: the text is complete.

        Raises:
            EngineError: the grammar exceeds llguidance's limits.
        """
        if self._over:
            return np.ones(len(ids), np.bool_)
        if len(ids) == 1:  # checking one token is faster than computing the mask
            return np.array([self._may(int(ids[0]))])
        known = ids < self._vocabulary.n_vocab
        if known.all():
            return self.mask[ids]
        known[known] = self.mask[ids[known]]
        return known

    def _may(self, token: int) -> bool:
        if not 0 <= token < self._vocabulary.n_vocab:
            return False
        if self._matcher.is_stopped():
            self._check()
            return token in self._vocabulary.end_tokens
        found = self._matcher.validate_tokens([token]) == 1
        self._check()
        return found

    def after(self, token: int) -> Guided:
        """The state after `token`.

        Raises:
            EngineError: the grammar does not allow it, or exceeds llguidance's limits.
        """
        if self._over:
            return self
        if not self._may(token):
            raise EngineError(f"token {token} breaks the grammar")
        if token in self._vocabulary.end_tokens:
            return Guided(self._matcher, self._vocabulary, over=True)
        state = Guided(self._matcher.deep_copy(), self._vocabulary)
        state._matcher.consume_token(token)
        state._check()
        return state

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the grammar failed: {_reason(self._matcher.get_error())}")


def check(grammar: str) -> None:
    """Check without a model that `grammar` is a grammar.

    Raises:
        UsageError: it is not, or a schema in it cannot be enforced.
    """
    if wrong := LLMatcher.validate_grammar(_resolved(grammar, lambda text: [text])):
        raise _refusal(wrong)


def _resolved(grammar: str, divided: Callable[[str], list[str | int]]) -> str:
    """Replace `%mark`, `%until` and `%json`, so that llguidance can read the grammar.

    Marks become the tokens that `divided` finds in them, and schemas are made enforceable. A token
    is allowed if its text is, even if the tokenizer would cut that text differently; otherwise the
    mask would depend on more than the text so far.
    """

    def marks(text: str | None) -> list[str | int]:
        return divided(_decoded(text, 0)[0]) if text else []

    at = len(grammar) - len(grammar.lstrip()) + len(lark.HEAD)
    options: dict[str, Any] = {}
    if (after := grammar[at:].lstrip()).startswith("{"):
        options, at = _decoded(grammar, len(grammar) - len(after))
    written = f"{lark.HEAD} {json.dumps({**options, 'no_forcing': True})}"
    texts = _Texts()
    while found := _WORDS.search(grammar, at):
        written, at = written + grammar[at : found.start()], found.end()
        if found["mark"]:
            written += _sequence(marks(found["mark"]))
        elif found["until"]:
            end = _joined(marks(found["until"]), marks(found["then"]))
            more = [marks(one) for one in re.findall(_TEXT, found["more"] or "")]
            written += texts.until(end, marks(found["no"]), more)
        elif found["json"]:
            schema, at = _decoded(grammar, at)
            written += f"%json {json.dumps(_enforceable(schema))}"
        else:
            written += found[0]
    return "\n".join([written + grammar[at:], *texts.rules])


def _joined(parts: Sequence[Part], then: Sequence[Part]) -> list[Part]:
    """The parts of two marks, with white space between them; those of one if there is one."""
    return [*parts, None, *then] if then else [*parts]


def _sequence(parts: Sequence[Part]) -> str:
    """What matches `parts` in a rule. White space is short, as more would only cost time."""
    return " ".join(map(_symbol, parts))


def _symbol(part: Part) -> str:
    if part is None:
        return r"/[ \n]{1,2}/?"
    return f"<[{part}]>" if isinstance(part, int) else lark.literal(part)


def _expression(parts: Sequence[Part]) -> str:
    """The expression of `parts`, none of which is a token."""
    return "".join(
        r"\s*" if one is None else "".join(f"\\x{{{ord(char):x}}}" for char in str(one))
        for one in parts
    )


class _Texts:
    """The rules and terminals for texts that end with a mark."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by definition

    @property
    def rules(self) -> list[str]:
        """All of them. `lazy` is an attribute of a rule: its text ends as soon as it can."""
        return [
            f"{name.upper()}: {text}\n{name}[lazy]: {name.upper()}"
            for text, name in self._names.items()
        ]

    def until(self, end: Sequence[Part], no: Sequence[Part], more: Iterable[Sequence[Part]]) -> str:
        """Any text up to and including the mark `end`; within it, none of `more` follows `no`."""
        # Expressions do not match tokens that are marks, so the text ends at the first one.
        token = next((i for i, one in enumerate(end) if isinstance(one, int)), len(end))
        text = f"/(?s:.*){_expression(end[:token])}/"
        follow = [_expression(one) for one in more if _is_plain([*no, *one])]
        if follow:
            text += f" & ~/(?s:.*){_expression([*no, None])}(?:{'|'.join(follow)})(?s:.*)/"
        name = self._names.setdefault(text, f"localspec_text_{len(self._names)}")
        return f"{name.upper()} {_sequence(end[token:])}" if token < len(end) else name


def _is_plain(parts: Iterable[Part]) -> bool:
    return not any(isinstance(one, int) for one in parts)


def _decoded(grammar: str, at: int) -> tuple[Any, int]:
    try:
        found: tuple[Any, int] = json.JSONDecoder().raw_decode(grammar, at)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"a schema or a mark is not JSON: {error}") from None
    return found


class _AboutSchema(msgspec.Struct, frozen=True):
    """What `lark.json_value` writes into a schema."""

    place: str = ""
    strict: bool = True
    as_came: dict[str, Any] = {}
    separators: tuple[str, str] | None = None


def _enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in a form that llguidance enforces.

    Raises:
        SchemaError: it is strict and cannot be enforced.
    """
    try:
        about = msgspec.convert(schema.pop(lark.PLACE, {}), _AboutSchema)
    except msgspec.ValidationError as error:
        raise _refusal(f"{lark.PLACE}: {error}") from None
    form = _form(about.separators)
    shared = {name: schema[name] for name in lark.SHARED if isinstance(schema.get(name), dict)}
    if not about.strict:
        # References to a definition that is wrong as it came would be dropped. So each is loosened
        # alone at first, then among the others.
        known = {name: dict.fromkeys(parts, True) for name, parts in shared.items()}
        for _ in range(2):
            known = {
                name: {key: _loosened(part, known) for key, part in parts.items()}
                for name, parts in shared.items()
            }
        shared, options = known, {**_LENIENT, **form}
        return {**_loosened({**schema, **shared}, shared), "x-guidance": options}
    if wrong := _wrong(schema, _STRICT):
        path, part = _innermost(schema, shared)
        words = sorted(part, key=lambda word: word == "type")
        words = [word for word in words if not _wrong({**shared, **_without(part, word)}, _STRICT)]
        raise _not_taken(next(iter(words), ""), _reason(wrong), about.place, path)
    every = _definitions(shared, about.as_came)
    for path, ways, others in _alternatives(schema, about.as_came):
        if reason := _overlap(ways, others, every):
            raise _not_taken("oneOf", reason, about.place, path)
    return {**schema, "x-guidance": {**_STRICT, **form}}


def _form(separators: tuple[str, str] | None) -> Schema:
    """The options for exactly these separators; none without any."""
    if separators is None:
        return {}
    item, key = separators
    return {
        "whitespace_pattern": None,
        "whitespace_flexible": False,
        "item_separator": item,
        "key_separator": key,
    }


def _not_taken(word: str, reason: str, place: str, path: list[str]) -> SchemaError:
    named = f"{word!r} cannot be enforced: " if word else ""
    reason = reason.replace(f"/$defs/{lark.REST}", "")
    steps = [] if lark.REST in path else path  # a reference led out of the part at `place`
    place = ".".join([each for each in (place, *steps) if each])
    where = f" (at {place})" if place else ""
    return SchemaError(
        f"the JSON schema is refused: {named}{reason}{where}",
        "Leave it out, or write it in another way.",
        place,
    )


def _alternatives(
    schema: Schema, as_came: Schema
) -> Iterator[tuple[list[str], list[Any], list[Any]]]:
    """The path of every `oneOf`, and its alternatives: as enforced, and as they came."""
    ways, others = schema.get("oneOf"), as_came.get("oneOf")
    if isinstance(ways, list) and isinstance(others, list) and len(others) > 1:
        yield [], ways, [_as_came(other) for other in others]
    came = {tuple(path): part for path, part in lark.inner(as_came)}
    for path, part in lark.inner(schema):
        for further, enforced, original in _alternatives(part, came.get(tuple(path), {})):
            yield [*path, *further], enforced, original


def _overlap(ways: Sequence[Any], others: Sequence[Any], definitions: Schema) -> str:
    """Why text of one alternative, as enforced, may conform to another as it came; empty if none.

    The enforced form is narrower, with objects closed. So nothing more is to prove where the
    originals exclude each other, and that takes one look at them all.
    """

    def exclude(*alternatives: Any) -> bool:
        return not _wrong({"oneOf": alternatives, **definitions}, _STRICT)

    if exclude(*others):
        return ""
    if len(others) > _MOST_COMPARED:
        return f"some of more than {_MOST_COMPARED} alternatives may overlap; say anyOf"
    if all(exclude(way, {"anyOf": [*others[:i], *others[i + 1 :]]}) for i, way in enumerate(ways)):
        return ""
    return "a value of one alternative may also conform to another"


def _definitions(shared: Schema, as_came: Schema) -> dict[str, Any]:
    """The definitions as enforced, and those of `as_came` in their original form."""
    found: dict[str, Any] = dict(shared)
    for name in lark.SHARED:
        if isinstance(came := as_came.get(name), dict):
            originals = {_CAME + key: _as_came(part) for key, part in came.items()}
            found[name] = {**shared.get(name, {}), **originals}
    return found


def _as_came(value: Any) -> Any:
    """A part of a schema, its references changed to the original definitions."""
    if isinstance(value, list):
        return [_as_came(part) for part in value]
    if not isinstance(value, dict):
        return value
    found = {key: lark.whole_number(key, _as_came(part)) for key, part in value.items()}
    if isinstance(reference := found.get("$ref"), str):
        start, _, name = reference.rpartition("/")
        known = start.removeprefix("#/") in lark.SHARED
        # Other references cannot be compared.
        found["$ref"] = f"{start}/{_CAME}{name}" if known else "#/nowhere"
    return found


def _wrong(schema: Schema, options: Schema) -> str:
    """Why a schema cannot be enforced; empty if it can."""
    if _circular(schema):
        return "'$ref' leads to nothing but itself"
    return _told(json.dumps({**schema, "x-guidance": options}))


def _circular(schema: Schema) -> bool:
    """Whether a reference in use leads back to itself, perhaps through others."""
    known: dict[str, bool] = {}  # reference -> whether its target is still being examined
    parts: list[Any] = [{key: part for key, part in schema.items() if key not in lark.SHARED}]

    def circle(part: Any) -> bool:
        if not isinstance(part, Mapping):
            return False
        parts.extend(inside for path, inside in lark.inner(part) if path[0] not in _IN_PLACE)
        reference = part.get("$ref")
        if isinstance(reference, str):
            if reference in known:
                return known[reference]
            known[reference] = True
            if circle(lark.referred(schema, reference)):
                return True
            known[reference] = False
        return any(
            circle(one)
            for name in _IN_PLACE
            if isinstance(listed := part.get(name), list)
            for one in listed
        )

    while parts:
        if circle(parts.pop()):
            return True
    return False


@lru_cache(maxsize=256)
def _told(schema: str) -> str:
    """The objection of llguidance to a schema; cached, as clients repeat their schemas."""
    return LLMatcher.validate_grammar(lark.grammar(f"%json {schema}"))


def _innermost(schema: Schema, shared: Schema) -> tuple[list[str], Schema]:
    """The innermost part of a schema that is wrong by itself, with its path."""
    for path, part in lark.inner(schema):
        if _wrong({**part, **shared}, _STRICT):
            further, innermost = _innermost(part, shared)
            return [*path, *further], innermost
    return [], schema


def _loosened(schema: Any, shared: Schema) -> Any:
    """The schema without the parts that cannot be enforced, so it allows more."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else True
    found: dict[str, Any] = dict(schema)
    if not _wrong({**found, **shared}, _LENIENT):
        return found
    for path, part in lark.inner(found):
        found = lark.replaced(found, path, _loosened(part, shared))
    while wrong := [word for word in found if word not in lark.SHARED]:
        if not _wrong({**found, **shared}, _LENIENT):
            break
        right = (w for w in wrong if not _wrong({**_without(found, w), **shared}, _LENIENT))
        del found[next(right, wrong[-1])]
    return found


def _without(schema: Schema, word: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != word}


def _reason(told: str) -> str:
    """The cause alone from one of llguidance's long error messages."""
    lines = told.partition("\n<state>")[0].splitlines()
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    first = _CAUSE.sub("", lines[0] if lines else "")
    return " ".join([first, *causes])


def _refusal(told: str) -> UsageError:
    return UsageError(
        f"the grammar is not valid: {_reason(told)}",
        "Write llguidance's Lark with a rule named start.",
    )
