"""The next prompt begins with the ids that the caches hold, whatever the template does."""

from __future__ import annotations

import pytest

from localspec.chat.conversation import Message, Role
from localspec.chat.prompt.prompt_ids import KnownIds
from localspec.chat.prompt.template import ChatTemplate
from tests.fakes import BOS, CHATML, END, EOS, FakeModel, renderer

# "hello" as the tokens he-llo, which the tokenizer would not choose for the text.
ODD_HELLO = [303, 304]
TRIMMING = CHATML.replace("m['content']", "m['content'] | trim")
FORGETTING = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")


class Talk:
    """A conversation as the session leads it, on the text level."""

    def __init__(self, template: str | None = CHATML, **model: object) -> None:
        self.model = FakeModel(chat_template=template, **model)  # type: ignore[arg-type]
        self.template = ChatTemplate(self.model, renderer())
        self.known = KnownIds(self.template)
        self.messages: list[Message] = []

    def ask(self, text: str) -> list[int]:
        self.messages.append(Message(Role.USER, text))
        return self.prompt()

    def prompt(self) -> list[int]:
        return self.known.prompt(self.template.render(self.messages))

    def answer(self, ids: list[int], released: str | None = None) -> None:
        text = b"".join(map(self.model.piece, ids)).decode() if released is None else released
        self.known.answered(ids, self.model.piece, text)
        self.messages.append(Message(Role.ASSISTANT, text))

    def fresh(self) -> list[int]:
        return self.template.tokenize(self.template.render(self.messages))


def test_generated_ids_are_kept_as_they_were_generated() -> None:
    talk = Talk()
    first = talk.ask("hi")
    talk.answer(ODD_HELLO)
    second = talk.ask("more")
    assert second[: len(first) + 2] == first + ODD_HELLO
    assert second[len(first) + 2] == END
    assert talk.model.text(second) == talk.template.render(talk.messages)


@pytest.mark.parametrize("template", [CHATML, "{{ bos_token }}" + CHATML, None])
@pytest.mark.parametrize("space", [False, True])
def test_many_turns_extend_each_other(template: str | None, *, space: bool) -> None:
    talk = Talk(template, space=space, add_bos=True)
    known = talk.ask("the first")
    for question in ("hello", "the <|im_end|> end", "last"):
        talk.answer([*ODD_HELLO, *b" you"])
        longer = talk.ask(question)
        assert longer[: len(known) + 6] == [*known, *ODD_HELLO, *b" you"]
        known = longer


def test_an_answer_that_is_trimmed_keeps_the_ids_before_the_white_space() -> None:
    talk = Talk(TRIMMING)
    first = talk.ask("hi")
    talk.answer([*ODD_HELLO, *b"\n\n"])
    second = talk.ask("more")
    assert second[: len(first) + 3] == [*first, *ODD_HELLO, END]


def test_rewritten_history_is_tokenised_again_from_the_last_prompt_on() -> None:
    talk = Talk(FORGETTING)
    first = talk.ask("hi")
    talk.answer([*b"hm</think>", *ODD_HELLO])
    second = talk.ask("more")
    assert second[: len(first)] == first
    assert second == talk.fresh()


def test_the_same_prompt_again_gives_the_same_ids() -> None:
    talk = Talk()
    first = talk.ask("hi")
    talk.answer(ODD_HELLO)
    talk.messages.pop()
    assert talk.prompt() == first


def test_editing_an_early_message_forgets_what_came_after() -> None:
    talk = Talk()
    talk.ask("hi")
    talk.answer(ODD_HELLO)
    talk.messages[0] = Message(Role.USER, "other")
    assert talk.ask("more") == talk.fresh()


def test_ids_behind_a_stop_string_are_left_out() -> None:
    talk = Talk()
    first = talk.ask("hi")
    talk.answer([*ODD_HELLO, *b" STOP"], released="hello")
    second = talk.ask("more")
    assert second[: len(first) + 3] == [*first, *ODD_HELLO, END]


def test_half_a_character_is_left_out() -> None:
    talk = Talk()
    first = talk.ask("hi")
    talk.answer([*ODD_HELLO, 0xE2, 0x82], released="hello\ufffd")
    second = talk.ask("more")
    assert second[: len(first) + 2] == first + ODD_HELLO
    assert talk.model.text(second) == talk.template.render(talk.messages)


def test_a_stop_inside_a_character_of_one_token_cuts_before_it() -> None:
    talk = Talk()
    talk.ask("hi")
    talk.answer([*"a€".encode()], released="a")
    assert talk.ask("more") == talk.fresh()


def test_an_answer_that_looks_like_a_control_token_stays_plain_text() -> None:
    talk = Talk()
    first = talk.ask("hi")
    ids = [*b"use <|im_end|> to end"]
    talk.answer(ids)
    second = talk.ask("more")
    assert second[: len(first) + len(ids)] == first + ids


def test_a_call_keeps_the_ids_of_the_marks_that_it_was_written_with() -> None:
    writes = "{{ m['content'] }}{% if m['tool_calls'] %}<s>call</s>{% endif %}"
    talk = Talk(CHATML.replace("+ '\n' + m['content'] }}", "+ '\n' }}" + writes))
    first = talk.ask("hi")
    call = [*ODD_HELLO, BOS, *b"call", EOS]
    text = talk.model.text(call)
    talk.known.answered(call, lambda token: talk.model.piece(token, special=True), text)
    talk.messages.append(Message(Role.ASSISTANT, "hello", more={"tool_calls": [{"name": "call"}]}))
    second = talk.ask("more")
    assert second[: len(first) + len(call)] == first + call
    talk.messages[1] = Message(Role.ASSISTANT, text)  # the same as text makes no mark
    assert BOS not in talk.prompt()


OPENING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")


@pytest.mark.parametrize(("template", "opening"), [(CHATML, ""), (OPENING, "<think>")])
def test_an_answer_keeps_the_ids_of_its_thought_and_of_marks_that_it_names(
    template: str, opening: str
) -> None:
    """These marks are no tokens, and the prompt may have opened the thought."""
    talk = Talk(template)
    first = talk.ask("hi")
    said = "<think>Hm.</think>Use re.sub('<think>.*</think>', '', t)."
    ids = [*said.removeprefix(opening).encode()]
    talk.answer(ids)
    talk.messages[-1] = Message(Role.ASSISTANT, said)
    assert talk.ask("more")[: len(first) + len(ids)] == first + ids


def test_clear_forgets() -> None:
    talk = Talk()
    talk.ask("hi")
    talk.answer(ODD_HELLO)
    talk.known.clear()
    assert talk.prompt() == talk.fresh()
