"""Lookup also copies a conversation's texts in the form in which tool calls quote them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.prompt import quoted_texts
from localspec.chat.prompt.quoted_texts import QuotedTexts
from localspec.chat.session.completions import Completions
from localspec.chat.settings import AnswerRequest
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.past_texts import Past
from localspec.engine.llama import Model
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from tests.support import toy

CODE = 'def greet(name):\n    """Say hello."""\n    print(f"Hello, {name}!")\n    return name\n'
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def ids(model: Model, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def known(model: Model, texts: Past) -> bool:
    """Whether `CODE` is among these texts as JSON writes it."""
    written = ids(model, json.dumps(CODE)[1:-1])
    match, there = texts.find(written[:12])
    return match == 12 and texts.copy(there, 20) == written[12:32]


def test_a_text_is_known_as_json_writes_it(target_model: Model) -> None:
    quoted = QuotedTexts(target_model)
    said = [Message(Role.USER, "Read it."), tool_result(CODE, "read", "{}")]
    found = quoted.past(said)
    assert known(target_model, found)
    assert quoted.past([*said, Message(Role.ASSISTANT, "Done.")]) is found
    assert not known(target_model, quoted.past(said[:1]))


def test_the_texts_of_several_conversations_are_kept(
    target_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When two agents take turns, their files are not tokenized anew each time."""
    quoted = QuotedTexts(target_model)
    one, other = ([Message(Role.USER, f"{name}\n{CODE}")] for name in ("one", "other"))
    for said in (one, other):
        quoted.past(said)
    tokenize, read = target_model.tokenize, list[str]()

    def counted(text: str, **how: bool) -> list[int]:
        read.append(text)
        return tokenize(text, **how)

    monkeypatch.setattr(target_model, "tokenize", counted)
    found = quoted.past(one)
    assert found.find(ids(target_model, json.dumps(CODE)[1:-1])[:12])[0] == 12
    del read[:]
    quoted.past(other)
    quoted.past(one)
    assert not read
    monkeypatch.setattr(quoted_texts, "_MOST", 0)
    quoted.past(other)
    quoted.past(one)
    assert len(read) == 1
    quoted.past([*one, *other])  # one long conversation, whose next turn reads the new text alone
    del read[:]
    quoted.past([*one, *other, Message(Role.USER, "a\nb")])
    assert read == ["a\\nb"]


def test_a_quoted_file_is_copied_in_a_quarter_of_the_rounds(target_model: Model) -> None:
    def rounds(*others: Past) -> int:
        prompt, lookup = ids(target_model, CODE), Lookup(2048, lambda _: False)
        text = [*prompt, *ids(target_model, json.dumps({"text": CODE}))]
        lookup.begin(prompt, *others)
        at, count = len(prompt) + 1, 0
        while at < len(text):
            guess = lookup.guess(text[:at]).tokens
            at += common_prefix(guess, text[at:]) + 1
            count += 1
        return count

    quoted = QuotedTexts(target_model).past([Message(Role.USER, CODE)])
    assert 4 * rounds(quoted) < rounds()


def test_answers_that_may_call_copy_quoted_texts_and_others_do_not() -> None:
    request = LoadRequest(pair=str(toy.TARGET), draft="lookup", ctx_size=1024, threads=1, temp=0)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    model, usual = session.pair.target.model, replace(session.settings, n_predict=2)
    try:
        completions, said = Completions(session), (Message(Role.USER, CODE),)
        held = replace(usual, grammar='root ::= "{" [a-z]+ "}"')
        without_lookup = AnswerRequest(held, said, drafters=())
        answers = AnswerRequest(held, said), AnswerRequest(usual, said), without_lookup
        for asked, copied in zip(answers, (True, False, False), strict=True):
            [*completions.answer(asked, Cancel())]
            assert [known(model, texts) for texts in session.engine.past] == [True] * copied
        session.settings = usual
        [*session.turn(CODE, Cancel())]
        assert not session.engine.past
        session.offer([TOOL], [TOOL])
        [*session.turn("Write it down.", Cancel())]
        assert [known(model, texts) for texts in session.engine.past] == [True]
        session._writer.pair = replace(session.pair, lookup=False)
        [*session.turn("Write it down again.", Cancel())]
        assert not session.engine.past
    finally:
        session.close()
