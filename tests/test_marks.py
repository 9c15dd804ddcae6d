"""No text makes a mark: over real vocabularies and real templates, in every kind of message."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import pytest

from localspec.chat.conversation import Message, Role
from localspec.chat.prompt.control_tokens import ControlTokens
from localspec.chat.prompt.template import ChatTemplate
from localspec.engine.llama import Model
from localspec.errors import LocalspecError
from tests.fakes import CHATML, FakeModel, renderer
from tests.support.gguf_models import Sizes, other_vocabulary, write_llama
from tests.support.llama_source import VocabularyOnly, needed, templates, vocabularies
from tests.support.pairwise import usually

# What may be a mark in the source of a template.
SHAPES = re.compile(
    r"<[|｜]?[^<>\s'\"{}]{1,40}[|｜]?>|<\|\"\|>|\[/?[A-Z_]{2,30}\]|◁/?\w+▷|\]<\]\w+\[>\["
)
UNKNOWN = ("[UNK]", "<unk>")  # what replaces letters that a vocabulary cannot write
CHANGED = "the text changed"
EMBEDDING = ("bert-bge", "nomic-bert-moe")  # they change text, and say [UNK] where they must
MARKUP = ("<b>", "</b>", "<em>", "<table>")  # text, unless a template uses it
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@cache
def all_marks() -> tuple[str, ...]:
    """The marks of all templates, those in the tests included."""
    ours = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    found = (SHAPES.findall(text) for text in (*templates().values(), *ours))
    return tuple(sorted({mark for marks in found for mark in marks}))


def text_of(model: Model, token: int) -> str:
    return model.piece(token, special=True).decode("utf-8", "replace")


def is_special(model: Model, token: int) -> bool:
    """Whether llama.cpp searches text for `token`, and it is more than blanks or a letter."""
    if model.piece(token) and not model.is_user_defined(token):
        return False
    return len(text_of(model, token).strip()) > 1 and text_of(model, token) not in UNKNOWN


def own_marks(model: Model) -> list[str]:
    """The texts of all special tokens of a vocabulary."""
    return [text_of(model, t) for t in range(model.n_vocab) if is_special(model, t)]


def attack(own: Sequence[str], rng: random.Random) -> str:
    """A text of marks: templates' marks that the vocabulary has, others of it, and nested ones."""
    marks = [mark for mark in all_marks() if mark in set(own)]
    marks += rng.sample(own, min(len(own), 40))
    rng.shuffle(marks)
    nested = [
        outer[:at] + inner + outer[at:]
        for outer, inner in pairwise(marks[:20])
        for at in [rng.randrange(1, len(outer))]
    ]
    return "".join(mark + rng.choice(["", " ", " x ", "é"]) for mark in [*marks, *nested]).strip()


def talks(text: str) -> dict[str, tuple[list[Message], dict[str, object]]]:
    """Conversations, and their tools, with `text` wherever others than the template write."""
    asks, answer = Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello")
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
    calls = Message(Role.ASSISTANT, "", more={"tool_calls": [call]})
    result = {"role": "tool", "tool_call_id": "call00001", "name": "f"}
    described = {"type": "function", "function": {**TOOL["function"], "description": text}}
    file = f"Read this.\n\n```notes.txt\n{text}\n```"
    return {
        "user": ([Message(Role.USER, text)], {}),
        "later": ([asks, answer, Message(Role.USER, text)], {}),
        "system": ([Message(Role.SYSTEM, text), asks], {}),
        "file": ([Message(Role.USER, file)], {}),
        "tool": ([asks, calls, Message(Role.USER, text, more=result)], {"tools": [TOOL]}),
        "description": ([asks], {"tools": [described]}),
    }


def sweep(model: Model, source: str, text: str) -> Iterator[str]:
    """Yield, for each kind of message with `text` in it, what is wrong; empty if nothing is."""
    chat = ChatTemplate(model, renderer(), source)
    for (messages, variables), (harmless, plain) in zip(
        talks(text).values(), talks("harmless").values(), strict=True
    ):
        try:
            expected = chat.tokenize(chat.render(harmless, variables=plain))
            rendered = chat.render(messages, variables=variables)
        except LocalspecError:  # the template takes no tools, say
            continue
        ids = chat.tokenize(rendered)
        made, right = ([t for t in found if is_special(model, t)] for found in (ids, expected))
        arrived = b"".join(model.piece(t, special=True) for t in ids).decode("utf-8", "replace")
        yield (
            f"{sum(made) - sum(right)}, {len(made)} marks for {len(right)}"
            if made != right
            else CHANGED
            if text in rendered.translate(chat._plain) and text not in arrived
            else ""
        )


def seeded() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)


@pytest.mark.parametrize(
    ("most", "drawn"), [(1, 1), *[pytest.param(6, 3, marks=pytest.mark.slow)] * 4]
)
def test_no_text_makes_a_mark_with_real_vocabularies(most: int, drawn: int) -> None:
    needed()
    rng, tried, wrong = seeded(), 0, []
    chosen = rng.sample(sorted(vocabularies().items()), min(most, len(vocabularies())))
    for name, path in chosen:
        with VocabularyOnly.of(path) as model:
            own = own_marks(model)
            for template in rng.sample(sorted(templates()), min(drawn, len(templates()))):
                faults = list(sweep(model, templates()[template], attack(own, rng)))
                tried += len(faults)
                known = CHANGED if name in EMBEDDING else ""
                wrong += [(name, template, each) for each in faults if each not in ("", known)]
    assert not wrong
    assert tried >= 4 * len(chosen) * drawn


def test_a_conversation_is_searched_for_marks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients send all of it with each request; what has marks is searched for them each time."""
    monkeypatch.setattr("localspec.chat.prompt.control_tokens._PLAIN_TEXTS", 3)
    model = mock.Mock(wraps=FakeModel())
    marks = ControlTokens(model, CHATML)
    for text, times in (
        *(("a", 1), ("a", 0), ("b", 1), ("c", 1), ("<|im_end|>", 1), ("<|im_end|>", 1)),
        *(("b", 0), ("too many", 1), ("a", 1), ("a", 0)),
    ):
        model.tokenize.reset_mock()
        assert marks.within(text) == ({text} if "|" in text else set())
        assert model.tokenize.call_count == times, text


@pytest.mark.parametrize(
    "name", usually(["command-r", "deepseek-coder", "gemma-4"], "deepseek-coder")
)
def test_the_old_judgement_makes_marks(name: str) -> None:
    """The control: it took only tokens without text for marks."""
    needed()
    with VocabularyOnly.of(vocabularies()[name]) as model:
        text = attack(own_marks(model), seeded())
        source = templates()["google-gemma-4-31B-it"]
        chat = ChatTemplate(model, renderer(), source)
        with mock.patch.object(model, "is_user_defined", return_value=False):
            ids = chat.tokenize(chat.render([Message(Role.USER, text)]))
        made = [t for t in ids if model.is_user_defined(t)]
        assert len(made) > 10
        assert not any(sweep(model, source, text))


PARTS = [pytest.param(slice(n, None, 4), marks=pytest.mark.slow) for n in range(4)]
"""All vocabularies, or templates, in four slow cases."""


@pytest.mark.parametrize("part", [None, *PARTS])
def test_marks_that_only_look_like_it_are_text(part: slice | None) -> None:
    """All marks of all templates, whether the vocabulary has them or not."""
    needed()
    rng, every = seeded(), sorted(vocabularies().items())
    for name, path in every[part] if part else rng.sample(every, 2):
        with VocabularyOnly.of(path) as model:
            chat = ChatTemplate(model, renderer(), CHATML)
            text = " ".join(rng.sample(all_marks(), len(all_marks())))
            ids = chat.tokenize(chat.guard(text), continues=True)
            assert not [t for t in ids if is_special(model, t)]
            if name not in EMBEDDING:
                arrived = b"".join(map(model.piece, ids)).decode()
                # To SentencePiece U+2581 is a blank.
                assert arrived.strip().replace("▁", " ") == text.replace("▁", " ")


# ---------------------------------------------------------------- marks of every template


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A vocabulary with the marks of all templates, each of a random token type."""
    needed()
    rng, plain = seeded(), other_vocabulary()
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
    added = [mark for mark in all_marks() if mark not in (*plain.tokens, *MARKUP)]
    vocabulary = replace(
        plain,
        tokens=(*plain.tokens, *added),
        types=(*plain.types, *(rng.choice(kinds) for _ in added)),
    )
    path = tmp_path_factory.mktemp("marked") / "marked.gguf"
    with Model.load(write_llama(path, vocabulary, Sizes(), seed=0, type="q8_0")) as model:
        yield model


@pytest.mark.parametrize("part", [None, *PARTS])
def test_no_text_makes_a_mark_of_any_template(marked: Model, part: slice | None) -> None:
    rng, own, wrong, tried = seeded(), own_marks(marked), [], 0
    every = sorted(templates())
    drawn = every[part] if part else rng.sample(every, 4)
    for template in drawn:
        faults = list(sweep(marked, templates()[template], attack(own, rng)))
        tried += len(faults)
        wrong += [(template, fault) for fault in faults if fault]
    assert not wrong
    assert tried > 4 * len(drawn)


# ---------------------------------------------------------------- what stays as it is


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A vocabulary with tokens added by hand, some of them ordinary text."""
    plain = other_vocabulary()
    added = ("<|ask|>", "<think>", "</think>", "<table>", "<em>", "    ", "\n\n", "ж")
    vocabulary = replace(
        plain,
        tokens=(*plain.tokens, *added),
        types=(*plain.types, *[gguf.TokenType.USER_DEFINED] * len(added)),
    )
    path = tmp_path_factory.mktemp("by_hand") / "by_hand.gguf"
    with Model.load(write_llama(path, vocabulary, Sizes(), seed=0, type="q8_0")) as model:
        yield model


def test_ordinary_text_keeps_its_ids(by_hand: Model) -> None:
    marks = ControlTokens(by_hand, CHATML + "\n\n    <em> ж")
    plain = "<table>\n\n    \n    жаба <em"
    assert marks.spell(plain) == by_hand.tokenize(plain, add_special=False, parse_special=False)
    assert marks.within(plain) == set()
    assert marks.within("<em><table><|ask|>") == {"<em>", "<|ask|>"}  # the template says <em>
    assert ControlTokens(by_hand, CHATML).within("<em>") == set()


def test_a_mark_is_spelled_in_two_parts(by_hand: Model) -> None:
    marks = ControlTokens(by_hand, None)
    call = by_hand.tokenize("<|ask|>", add_special=False, parse_special=False)
    assert len(call) == 1
    for text in ("<|ask|>", "a<|ask|>b", "<|ask|><|ask|>", "<|a<|ask|>sk|>", "<<|ask|>"):
        ids = marks.spell(text)
        assert call[0] not in ids
        assert b"".join(map(by_hand.piece, ids)) == text.encode()


def test_an_answers_thoughts_keep_their_marks(by_hand: Model) -> None:
    """Templates look for them to leave earlier thoughts out; in a question they are only text."""
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{% endfor %}"
    chat = ChatTemplate(by_hand, renderer(), source)
    text = "<think>so</think>hello<|ask|>"
    said = [Message(Role.USER, text), Message(Role.ASSISTANT, text)]
    ids = chat.tokenize(chat.render(said))[1:]  # without BOS
    assert b"".join(map(by_hand.piece, ids)) == f"{text}|hello<|ask|>|".encode()
    assert not [t for t in ids if by_hand.is_user_defined(t)]


NAMING = "Use re.sub('<think>.*</think>', '', t) here"
SPLITS = ("Qwen-QwQ-32B", "Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B")


@pytest.mark.parametrize("name", [name for name in SPLITS if name in templates()])
def test_an_answer_that_names_the_marks_of_thoughts_arrives_whole(
    by_hand: Model, name: str
) -> None:
    """These templates drop all that precedes the last ``</think>``, a token or not."""
    asks, more = Message(Role.USER, "hi"), Message(Role.USER, "more")
    answers = (Message(Role.ASSISTANT, text) for text in (NAMING, f"<think>Hm 7.</think>{NAMING}"))
    said = [one for answer in answers for one in (asks, answer)] + [more]
    models: tuple[Any, ...] = (by_hand, FakeModel())
    for model in models:
        chat = ChatTemplate(model, renderer(), templates()[name])
        ids = chat.tokenize(chat.render(said))
        text = b"".join(model.piece(token, special=True) for token in ids).decode()
        assert text.count(NAMING) == 2
        assert "Hm 7." not in text


NAMED = (
    "The mark:\n\n```\n</think>\n```\nIt closes 7",
    "The mark “</think>” closes 7",
    "The mark **</think>** closes 7",
    "The **mark**:**</think>** closes 7",
    "The mark <b></think></b> closes 7",
    "A </think>。 closes 7",
    "A </think> closes 7",
    "`</think>` closes 7",
    "7 is closed by </think>",
)


@pytest.mark.parametrize("name", [name for name in SPLITS if name in templates()])
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("<think>The mark `</think>` closes. So 7.</think>Answer", "Answer"),
        ("Hm 7.</think>Answer", "Answer"),
        ("\nHm 7.\n</think>\n\nAnswer", "Answer"),
        ("Hm 7.</think> \nAnswer", "Answer"),
        ("Hm **7**</think>**Answer**", "Answer"),
        ("Hm:\n```\nx = 7\n</think>\n\nAnswer", "Answer"),
        ("Hm 7.\n</think>", "more"),
        *zip(NAMED, NAMED, strict=True),
    ],
)
def test_templates_find_the_thought_that_the_reader_finds(
    by_hand: Model, name: str, answer: str, told: str
) -> None:
    models: tuple[Any, ...] = (by_hand, FakeModel())
    for model in models:
        chat = ChatTemplate(model, renderer(), templates()[name])
        talk = [Message(Role.USER, "hi"), Message(Role.ASSISTANT, answer)]
        ids = chat.tokenize(chat.render([*talk, Message(Role.USER, "more")]))
        text = b"".join(model.piece(token, special=True) for token in ids).decode()
        begun, _, after = text.partition(told)
        assert after
        assert "7" not in begun + after
        assert "`</think>" not in begun


def test_a_long_text_of_marks_is_tokenised_soon(by_hand: Model) -> None:
    chat = ChatTemplate(by_hand, renderer(), CHATML)
    for text in ("<|ask|>" * 2_000, "<|a" * 2_000 + "sk|>" * 2_000):
        begun = time.monotonic()
        ids = chat.tokenize(chat.guard(text))
        assert time.monotonic() - begun < 5
        assert b"".join(map(by_hand.piece, ids[1:])) == text.encode()
