"""Stored conversations go on from their stored caches, and only from caches that fit."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from localspec import machine
from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.events import PromptMade, RoundText, TurnEnd
from localspec.chat.history.store import Store
from localspec.chat.prompt.call_notation import CallNotation, as_text
from localspec.chat.prompt.renderer import TemplateRenderer, TemplateUnusable
from localspec.chat.session.completions import Completions
from localspec.chat.session.session import Session
from localspec.chat.settings import AnswerRequest
from localspec.chat.states import cached_prefixes, state_files
from localspec.chat.states.cached_prefixes import CachedPrefixes
from localspec.chat.states.state_files import StateFiles, forget
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.llama import Context, Model
from localspec.engine.llama.context_options import ContextOptions
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.stats import GenerationStats
from localspec.engine.round import prompt_steps
from localspec.engine.round.generate import Engine
from localspec.errors import Cancelled
from localspec.loading import draft_models
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import made_by
from tests.support import toy
from tests.support.gguf_models import GENERATORS
from tests.support.llama_source import templates
from tests.test_serve_parts import read

STORY = "Tell me a story of a dog and a cat, and of a bird that they meet in the wood. " * 2
TOKENS = [[*range(100)], [*range(90)]]
BYTES = [np.arange(200, dtype=np.uint8), np.zeros(7, np.uint8)]


def loaded(folder: Path, target: str = "target", draft: str = "draft-Q8_0.gguf") -> Session:
    named = draft if draft == "mtp" else str(toy.FOLDER / draft)
    pair = str(toy.mtp() if target == "mtp" else toy.FOLDER / f"{target}-Q8_0.gguf")
    request = LoadRequest(
        pair=pair, draft=named, ctx_size=512, threads=1, gamma=2, temp=0.9, seed=5, n_predict=24
    )
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    session.keep_in(folder, made_by(session.pair))
    return session


def answered(session: Session, text: str, cancel: Cancel | None = None) -> GenerationStats:
    *_, end = session.turn(text, cancel or Cancel())
    stats: GenerationStats = end.stats  # type: ignore[union-attr]
    return stats


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Message], str]:
    """A folder with one conversation, its messages, and the next answer that it would get."""
    folder = tmp_path_factory.mktemp("states")
    session = loaded(folder)
    session.enter("c1")
    answered(session, STORY)
    said = list(session.messages)
    session.enter("c2")
    answered(session, "And then?")
    following = session.messages[-1].content
    session.close()
    forget(folder, "c2")
    return folder, said, following


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "draft"),
    [("target", "draft-Q8_0.gguf"), ("mtp", "mtp"), ("target", "eagle3-Q8_0.gguf")],
)
def test_it_goes_on_without_reading(tmp_path: Path, target: str, draft: str) -> None:
    first = loaded(tmp_path, target, draft)
    first.enter("c1")
    answered(first, STORY)
    said = list(first.messages)
    n_read = len(first.pair.target.tokens)
    first.enter("")  # the conversation is stored, and the caches stay as they were
    expected = answered(first, "And then?")
    text = first.messages[-1].content
    first.close()
    second = loaded(tmp_path, target, draft)
    answered(second, "Something else.")
    second.enter("c1")
    second.open(said)
    found = answered(second, "And then?")
    assert found.prefill_cached == n_read > 60
    assert found.prefill_decoded == expected.prefill_decoded < 20
    assert found.draft_prefill <= expected.draft_prefill + 1
    assert found.accepted_tokens == expected.accepted_tokens
    assert second.messages[-1].content == text
    second.close()


THINKING = (
    "{% for m in messages %}{{ m.role + ': ' + m.content.split('</think>')[-1] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


# It keeps the thoughts after the last question, if only as empty ones, as Qwen 3.5's does.
CALLING = (
    "{% set last = namespace(at=0) %}{% for m in messages %}"
    "{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.role + ': ' }}"
    "{% if m.role == 'assistant' and loop.index0 > last.at %}"
    "{{ '<think>' + m.reasoning_content | default('') + '</think>' }}{% endif %}"
    "{{ m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def thinking(
    folder: Path,
    kind: str,
    thought: str,
    template: str = THINKING,
    rest: str = "[a-z]{30}",
    *,
    gamma: int = 0,
) -> Session:
    """A session with a tiny random model whose answers begin with `thought`.

    It drafts for itself if `gamma` is not 0.
    """
    path = folder / f"{kind}.gguf"
    model = str(path if path.exists() else GENERATORS[kind](path))
    request = LoadRequest(
        pair=model, draft=model if gamma else "none", ctx_size=512,
        threads=1, flash_attn="on", temp=0.0, n_predict=99, gamma=gamma, chat_template=template,
        grammar=f'root ::= "{thought}" {rest}',
    )  # fmt: skip
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    session.keep_in(folder / "states", made_by(session.pair))
    return session


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Of a prompt, the tokens that are read again without the thought after it."""
    monkeypatch.setattr(prompt_steps, "_STEP_S", 0.0)  # pieces of 16 tokens
    return {"llama": 2, "gemma3": 2, "mamba": 18}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("thought", ["<think>why</think>", ""])
def test_it_goes_on_whether_a_last_thought_is_left_out_or_there_is_none(
    tmp_path: Path, kind: str, thought: str, lost: dict[str, int]
) -> None:
    """Of a window or a state only the whole could be restored, with the thought."""
    with closing(thinking(tmp_path, kind, thought)) as first:
        first.enter("c1")
        read = answered(first, 2 * STORY).prompt_tokens
        said, held = list(first.messages), first.pair.target.held
    with closing(thinking(tmp_path, kind, thought)) as second:
        second.enter("c1")
        second.open(said)
        cached = answered(second, "And then?").prefill_cached
    assert cached >= read - lost[kind] if thought else cached == held > read


@pytest.mark.usefixtures("lost")
def test_a_state_goes_back_to_before_an_opening_that_the_next_prompt_lacks(tmp_path: Path) -> None:
    """Whatever would be left of the prompt for its last pass."""
    opens = THINKING.replace("'assistant: ' }}{% endif", "'assistant: <t></t>' }}{% endif")
    with closing(thinking(tmp_path, "mamba", "", opens)) as session:
        model, prompts = session.pair.target.model, set()
        for i in range(16):
            session.open(())
            session.pair.target.clear()
            question = STORY + " !" * i
            read = answered(session, question).prompt_tokens
            told = f"user: {question}\nassistant: "
            same = len(model.tokenize(told, add_special=True, parse_special=False))
            assert same < read
            assert read - 17 <= answered(session, "And then?").prefill_cached <= same
            prompts.add(read % 16)
    assert len(prompts) == 16


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.usefixtures("lost")
def test_a_draft_goes_on_as_well_where_a_last_thought_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, stops: bool
) -> None:
    """Also where Esc came between its draft and the target's pass."""
    cancel, decode = Cancel(), Engine._decode

    def stopped(engine: Engine, generation: Any, proposal: Proposal) -> Any:
        if proposal.draft.tokens:
            cancel.set()
        return decode(engine, generation, proposal)

    with closing(thinking(tmp_path, kind, "<think>why</think>", gamma=3)) as first:
        first.enter("c1")
        answered(first, 2 * STORY)
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "_decode", stopped if stops else decode)
            read = answered(first, "And then?", cancel).prompt_tokens
        assert cancel.is_set() is stops
        said = list(first.messages)
    with closing(thinking(tmp_path, kind, "<think>why</think>", gamma=3)) as second:
        second.enter("c1")
        second.open(said)
        found = answered(second, "And then?")
        assert found.draft_cached >= read - 18


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("parts", [False, True])
def test_a_look_at_a_round_moves_no_mark_of_a_prompt(
    tmp_path: Path, kind: str, lost: dict[str, int], *, calls: bool, parts: bool
) -> None:
    """Nor does a look at where two answers part, or one at a round that is just made."""
    told = "<think>why and why and why and why and why</think>"
    with closing(thinking(tmp_path, kind, told, CALLING, gamma=3)) as session:
        seen: list[RoundExplanation] = []
        session.watch(seen.append)
        read = answered(session, 2 * STORY).prompt_tokens
        if calls:
            list(session.go_on([tool_result("It rains. " * 8, "weather", "{}")], Cancel()))
        written = session.written
        assert written is not None
        assert seen
        session.pair.target.n_batch = 16  # it reads the answer again in several passes
        if parts:
            other = replace(written, tokens=[*written.tokens[:-1], 5])
            assert session.part(written, other, Cancel()) is not None
        else:
            session.explain_round(written, 0, Cancel())
        found = answered(session, "And then?")
        assert found.prefill_cached >= read - lost[kind]
        assert found.draft_cached >= read - 18 or calls  # of a draft the last prompt's mark stays


def test_what_is_rendered_to_store_a_conversation_gives_up_no_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it may take too long."""
    with closing(thinking(tmp_path, "mamba", "<think>why</think>")) as session:
        session.enter("c1")
        answered(session, STORY)
        late = Mock(side_effect=TemplateUnusable("takes too long"))
        with monkeypatch.context() as patched:
            patched.setattr(TemplateRenderer, "render", late)
            session.enter("c2")
        assert late.called
        session.open(())
        answered(session, STORY)
        assert session.written is not None
        text = b"".join(map(session.pair.target.model.piece, session.written.tokens)).decode()
        assert text.strip().startswith(f"user: {STORY}")
        assert not session.template.notices


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@pytest.mark.parametrize("reopened", [False, True])
def test_the_question_after_a_call_goes_on_where_the_one_before_ended(
    tmp_path: Path, kind: str, lost: dict[str, int], *, reopened: bool
) -> None:
    """It lacks the thoughts before the call and after it."""
    parts = [thinking(tmp_path, kind, "<think>why</think>", CALLING) for _ in range(2)]
    with closing(parts[0]) as first, closing(parts[1]) as second:
        first.enter("c1")
        read = answered(first, 2 * STORY).prompt_tokens
        held = first.pair.target.held
        *_, end = first.go_on([tool_result("It rains. " * 8, "weather", "{}")], Cancel())
        assert end.stats.prefill_cached == held  # type: ignore[union-attr]
        if reopened:
            first.enter("")
            second.enter("c1")
            second.open(first.messages)
        cached = answered(second if reopened else first, "And then?").prefill_cached
    assert cached >= read - lost[kind]


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_an_agent_that_sends_no_thoughts_goes_on_from_its_last_step_and_its_question(
    tmp_path: Path, kind: str, lost: dict[str, int]
) -> None:
    thought = "<think>why</think>"
    with closing(thinking(tmp_path, kind, thought, CALLING)) as session:
        completions, talk = Completions(session), [Message(Role.USER, 2 * STORY)]

        def asked(following: Message, **how: bool) -> GenerationStats:
            asked = AnswerRequest(session.settings, tuple(talk), **how)  # type: ignore[arg-type]
            *_, end = completions.answer(asked, Cancel())
            said = end.text.removeprefix(thought)  # type: ignore[union-attr]
            talk.extend([Message(Role.ASSISTANT, said), following])
            return end.stats  # type: ignore[union-attr]

        question = asked(as_text("It rains. " * 4))
        step = asked(as_text("It snows. " * 4), goes_on=True)
        later = asked(Message(Role.USER, "And then?"), goes_on=True)
        following = asked(Message(Role.USER, "And then?"))
    assert step.prefill_cached >= question.prompt_tokens - lost[kind]
    assert later.prefill_cached >= step.prompt_tokens - lost[kind]
    assert following.prefill_cached >= question.prompt_tokens - lost[kind]


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("thought", ["<think>why</think>", ""])
def test_clients_that_alternate_go_on_where_they_were(
    tmp_path: Path, kind: str, thought: str, lost: dict[str, int]
) -> None:
    with closing(thinking(tmp_path, kind, thought)) as session:
        completions = Completions(session)
        talks = [[Message(Role.USER, text)] for text in (2 * STORY, 2 * STORY[::-1])]

        def asked(talk: list[Message]) -> tuple[GenerationStats, int]:
            end = answer_of(completions, session, talk)
            said = end.text.removeprefix(thought)
            talk += [Message(Role.ASSISTANT, said), Message(Role.USER, "And then?")]
            return end.stats, session.pair.target.held

        begun = [asked(talk) for talk in talks]
        for (stats, held), talk in zip(begun, talks, strict=True):
            cached = asked(talk)[0].prefill_cached
            read = stats.prompt_tokens
            assert cached >= read - lost[kind] if thought else cached == held > read


def answer_of(
    completions: Completions, session: Session, talk: Sequence[Message], *, continues: bool = False
) -> TurnEnd:
    asked = AnswerRequest(session.settings, tuple(talk), continues=continues)
    *_, end = completions.answer(asked, Cancel())
    assert isinstance(end, TurnEnd)
    return end


def test_a_prompt_that_is_refused_as_too_long_forgets_no_ids(tmp_path: Path) -> None:
    """The answer's ids are not those that its text would get."""
    with closing(thinking(tmp_path, "llama", "")) as session:
        completions, talk = Completions(session), [Message(Role.USER, STORY)]
        text = answer_of(completions, session, talk).text
        held = session.pair.target.held
        talk += [Message(Role.ASSISTANT, text), Message(Role.USER, 20 * STORY)]
        asked = AnswerRequest(session.settings, tuple(talk))
        made = list(completions.answer(asked, Cancel()))
        assert isinstance(made[-1], PromptMade)
        talk[-1] = Message(Role.USER, "And then?")
        assert answer_of(completions, session, talk).stats.prefill_cached == held


needs_templates = pytest.mark.skipif(not templates(), reason="llama.cpp's templates are not here")


def calling(folder: Path, kind: str) -> tuple[Session, CallNotation]:
    """A session whose answers are thoughts and calls, and how clients tell of these."""
    thought = r"<think>\nwhy and why and why\n</think>\n\n"
    call = r'"<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>"'
    session = thinking(folder, kind, thought, templates()["Qwen-Qwen3-0.6B"], call)
    return session, CallNotation(native=True, marks=session.template.dialect.marks)


@needs_templates
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba"])
def test_a_call_goes_on_with_its_thought_once_its_result_is_there(
    tmp_path: Path, kind: str
) -> None:
    session, told = calling(tmp_path, kind)
    with closing(session):
        completions, talk = Completions(session), [Message(Role.USER, 2 * STORY)]
        answer_of(completions, session, talk)
        held = session.pair.target.held
        answer_of(completions, session, [Message(Role.USER, STORY[::-1])])
        call = [("1", "look", {})]
        talk += [told.called("", "why and why and why", call), told.returned("it", "1", "look")]
        assert answer_of(completions, session, talk).stats.prefill_cached == held


@needs_templates
def test_calls_whose_thoughts_a_client_does_not_tell_are_copied_no_more_than_once(
    tmp_path: Path,
) -> None:
    session, told = calling(tmp_path, "llama")
    with closing(session):
        completions, talk, taken = Completions(session), [Message(Role.USER, "And then?")], []
        for _ in range(4):
            answer_of(completions, session, talk)
            taken.append(completions._prefixes.n_bytes)
            talk += [told.called("", None, [("1", "look", {})]), told.returned("it", "1", "look")]
        assert 0 == taken[0] < taken[1] == taken[2] == taken[3]


@needs_templates
def test_a_thought_that_no_client_tells_is_copied_no_more_than_once(tmp_path: Path) -> None:
    """Ministral's template writes whatever an answer has."""
    template = templates()["mistralai-Ministral-3-14B-Reasoning-2512"]
    thought = "[THINK]why and why and why[/THINK]"
    with closing(thinking(tmp_path, "llama", thought, template=template)) as session:
        completions = Completions(session)
        talk: list[Message] = []
        taken = []
        for _ in range(4):
            talk += [Message(Role.USER, "And then?")]
            text = answer_of(completions, session, talk).text.removeprefix(thought)
            talk += [Message(Role.ASSISTANT, text)]
            taken.append(completions._prefixes.n_bytes)
        assert 0 == taken[0] < taken[1] == taken[2] == taken[3]


@needs_templates
@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_thoughts_that_stay_in_the_answer_are_told_with_it(tmp_path: Path, kind: str) -> None:
    template = templates()["mistralai-Ministral-3-14B-Reasoning-2512"]
    thought = "[THINK]why and why and why[/THINK]"
    with closing(thinking(tmp_path, kind, thought, template=template)) as session:
        session.settings = replace(session.settings, reasoning_format="none")
        completions, talk = Completions(session), [Message(Role.USER, 2 * STORY)]
        for _ in range(2):
            text = answer_of(completions, session, talk).text
            assert text.startswith(thought)
            talk += [Message(Role.ASSISTANT, text), Message(Role.USER, "And then?")]
        held = session.pair.target.held
        answer_of(completions, session, [Message(Role.USER, STORY[::-1])])
        assert answer_of(completions, session, talk).stats.prefill_cached == held


@pytest.mark.parametrize("kind", ["gemma3", "mamba"])
def test_an_answer_that_was_begun_is_one_with_what_followed(tmp_path: Path, kind: str) -> None:
    with closing(thinking(tmp_path, kind, "")) as session:
        completions = Completions(session)
        asked, begun = Message(Role.USER, 2 * STORY), "so it was that "
        talk = [asked, Message(Role.ASSISTANT, begun)]
        text = answer_of(completions, session, talk, continues=True).text
        held = session.pair.target.held
        answer_of(completions, session, [Message(Role.USER, STORY[::-1])])
        talk = [asked, Message(Role.ASSISTANT, begun + text), Message(Role.USER, "And then?")]
        assert answer_of(completions, session, talk).stats.prefill_cached == held


def late(folder: Path) -> Session:
    """A session whose draft model is not loaded yet."""
    request = LoadRequest(
        pair=str(toy.TARGET), draft=str(toy.DRAFT), ctx_size=512, threads=1, gamma=2, temp=0.0,
        n_predict=24,
    )  # fmt: skip
    session = load_session(request, progress=lambda *_: None, cancel=Cancel(), may_wait=True)
    session.keep_in(folder, made_by(session.pair))
    assert session.awaits_drafts
    return session


def told_a_story(folder: Path) -> Session:
    """A session with its late draft, and a first answer in its conversation."""
    session = late(folder)
    session.load_drafts(Cancel())
    session.enter("c1")
    answered(session, STORY)
    return session


@pytest.mark.slow
@pytest.mark.parametrize("joins_first", [True, False])
def test_a_draft_model_that_was_loaded_late_does_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, joins_first: bool
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    first = told_a_story(tmp_path)
    said = list(first.messages)
    first.close()
    second = late(tmp_path)
    second.enter("c1")
    second.open(said)
    if joins_first:
        second.load_drafts(Cancel())
    found = answered(second, "And then?")
    assert found.prefill_cached > 60
    if not joins_first:
        assert found.draft_prefill == 0
        second.load_drafts(Cancel())
        found = answered(second, "And then?")
    assert found.draft_cached > 60
    second.close()


@pytest.mark.slow
def test_clients_that_alternate_keep_the_cache_of_a_draft_model_that_joined_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    session = late(tmp_path)
    completions = Completions(session)

    def cached(text: str) -> int:
        settings = replace(session.settings, n_predict=4)
        asked = AnswerRequest(settings, (Message(Role.USER, text),))
        *_, end = completions.answer(asked, Cancel())
        stats: GenerationStats = end.stats  # type: ignore[union-attr]
        return stats.draft_cached

    texts = STORY, STORY[::-1]  # the draft reads only the end of the second, longer one
    assert [cached(text) for text in texts] == [0, 0]  # copies without a draft model
    session.load_drafts(Cancel())
    assert [cached(text) for text in texts] == [0, 0]
    assert cached(STORY) > 50
    session.close()


def test_a_requests_settings_end_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    session = late(tmp_path)
    own = session.settings
    theirs = replace(own, n_predict=3, stop=("x",), grammar='root ::= "a"+', reasoning="off")
    asked = AnswerRequest(theirs, (Message(Role.USER, STORY),))
    completions = Completions(session)
    *_, end = completions.answer(asked, Cancel())
    assert set(end.text) == {"a"}  # type: ignore[union-attr]
    assert session.settings == own
    answer = completions.answer(asked, Cancel())
    while not isinstance(next(answer), RoundText):
        pass
    answer.close()  # as for a client that went away
    assert session.settings == own
    session.close()


def test_counts_push_out_no_conversation_whose_ids_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    session = late(tmp_path)
    completions = Completions(session)

    def made(text: str, *, count_only: bool) -> int:
        settings = replace(session.settings, n_predict=2)
        asked = AnswerRequest(settings, (Message(Role.USER, text),), count_only=count_only)
        first, *_ = completions.answer(asked, Cancel())
        assert isinstance(first, PromptMade)
        return first.prompt_tokens

    told = made(STORY, count_only=False)
    known = completions._known[:]
    counted = [made(f"{STORY}{i}", count_only=True) for i in range(40)]
    assert counted[0] == told + 1
    assert completions._known == known
    session.close()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Cancel:
    """A flag that is set once the first piece of a file's states has been read."""
    cancel, whole = Cancel(), state_files._pieces

    def pieces(*asked: Any) -> Iterator[memoryview]:
        for piece in whole(*asked):
            yield piece
            cancel.set()

    monkeypatch.setattr(state_files, "_PIECE", 150)
    monkeypatch.setattr(state_files, "_pieces", pieces)
    return cancel


def test_a_stop_ends_the_reading_of_states(tmp_path: Path, stopped: Cancel) -> None:
    store = StateFiles(tmp_path, "one")
    store.save("c1", b"", TOKENS, BYTES)
    header = store.find("c1")
    assert header is not None
    stopped.clear()
    with pytest.raises(Cancelled):
        store.states("c1", header, stopped)
    assert store.states("c1", header, Cancel())


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [False, True])
def test_a_stop_while_caches_are_read_costs_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Cancel, *, leaves: bool
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    first = told_a_story(tmp_path)
    said = list(first.messages)
    first.close()
    second = late(tmp_path)
    second.enter("c1")
    second.open(said)
    stopped.clear()
    assert answered(second, "And then?", stopped).prefill_cached == 0
    assert second.written is None
    second.open(said)
    assert answered(second, "And then?").prefill_cached > 60
    stopped.clear()
    second.load_drafts(stopped)
    assert stopped.is_set()
    assert not second.awaits_drafts
    assert [len(each.tokens) for each in second.pair.drafts.values()] == [0]
    if leaves:  # before the next prompt
        said = list(second.messages)
        second.close()
        second = late(tmp_path)
        second.enter("c1")
        second.open(said)
        second.load_drafts(Cancel())
    assert answered(second, "And then?").draft_cached > 60
    second.close()


@pytest.mark.slow
def test_the_target_goes_on_without_a_draft_model_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    first = told_a_story(tmp_path)
    said = list(first.messages)
    monkeypatch.setattr(state_files, "_LARGEST", first.pair.target.state().nbytes)
    first.close()  # only the target's cache has room
    second = late(tmp_path)
    second.enter("c1")
    second.open(said)
    second.load_drafts(Cancel())
    found = answered(second, "And then?")
    assert found.prefill_cached > 60
    assert found.draft_cached == 0
    second.close()


def no_state(path: Path) -> None:
    path.write_bytes(b"nonsense")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flipped(at: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return flip


def pipe(path: Path) -> None:
    path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)


@pytest.mark.few(1)
@pytest.mark.parametrize("damage", [no_state, pipe, cut, flipped(60), flipped(500), flipped(-1)])
def test_what_is_damaged_is_put_aside(
    left: tuple[Path, list[Message], str], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    sound, said, following = left
    folder = shutil.copytree(sound, tmp_path / "copy")
    (path,) = folder.glob("c1.*.state")
    damage(path)
    session = loaded(folder)
    session.enter("c1")
    session.open(said)
    stats = answered(session, "And then?")
    assert stats.prefill_cached == 0
    assert session.messages[-1].content == following
    assert [one.suffix for one in folder.iterdir()] == [".damaged"]
    session.close()


def test_what_cannot_be_read_for_now_stays(
    left: tuple[Path, list[Message], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_size: int) -> None:
        raise MemoryError

    sound, said, following = left
    folder = shutil.copytree(sound, tmp_path / "copy")
    monkeypatch.setattr(state_files, "machine", SimpleNamespace(block=full))
    session = loaded(folder)
    session.enter("c1")
    session.open(said)
    assert answered(session, "And then?").prefill_cached == 0
    assert session.messages[-1].content == following
    assert [one.suffix for one in folder.iterdir()] == [".state"]
    session.close()


def test_a_conversation_is_forgotten_and_none_whose_file_ends_alike(tmp_path: Path) -> None:
    gone = [tmp_path / name for name in ("c2.1f.state", "c2.1f.damaged", ".c2.1f.state.part")]
    others = [tmp_path / name for name in ("c1.0c2.state", "1c2.1f.state", ".1c2.1f.state.part")]
    for path in gone + others:
        path.touch()
    forget(tmp_path, "c2")
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_what_others_made_is_not_used(tmp_path: Path) -> None:
    StateFiles(tmp_path, "one").save("c1", b"", TOKENS, BYTES)
    assert StateFiles(tmp_path, "other").find("c1") is None
    (path,) = tmp_path.iterdir()
    other = StateFiles(tmp_path, "other")
    path.replace(other._path("c1"))
    assert other.find("c1") is None
    assert [one.suffix for one in tmp_path.iterdir()] == [".damaged"]


def test_models_that_were_changed_are_others(tmp_path: Path) -> None:
    session = loaded(tmp_path)
    before = made_by(session.pair)
    smaller = LoadRequest(pair=str(session.pair.target.model.path), ctx_size=256, threads=1)
    other = load_session(smaller, progress=lambda *_: None, cancel=Cancel())
    assert made_by(other.pair) != before == made_by(session.pair)
    other.close()
    session.close()


def test_there_is_a_most_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "_MOST", 3500)
    store = StateFiles(tmp_path, "one")
    for i in range(4):
        store.save(f"c{i}", b"x" * 300, TOKENS, [np.zeros(500, np.uint8)] * 2)
    assert [i for i in range(4) if store.find(f"c{i}")] == [2, 3]
    monkeypatch.setattr(state_files, "_LARGEST", 100)
    store.save("c5", b"", TOKENS, BYTES)
    assert store.find("c5") is None


def test_what_finds_no_room_takes_none_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateFiles(tmp_path, "one")
    store.save("c1", b"", TOKENS, BYTES)
    monkeypatch.setattr(state_files, "_MOST", 5000)
    store.save("c2", b"", TOKENS, [np.zeros(6000, np.uint8)])
    assert store.find("c2") is None
    assert store.find("c1") is not None


@pytest.mark.parametrize("draft", ["draft-Q8_0.gguf", "eagle3-Q8_0.gguf"])
def test_caches_that_no_file_may_hold_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: str
) -> None:
    session = loaded(tmp_path, draft=draft)
    session.enter("c1")
    answered(session, STORY)
    for context in session.pair.contexts:
        assert context.state_bytes() == context.state().nbytes
    monkeypatch.setattr(state_files, "_LARGEST", 1000)
    monkeypatch.setattr(Context, "state", lambda _: pytest.fail("it was copied"))
    session.close()
    assert not list(tmp_path.iterdir())


def test_without_memory_for_copies_the_models_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_size: int) -> None:
        raise MemoryError

    session = loaded(tmp_path)
    session.enter("c1")
    answered(session, STORY)
    monkeypatch.setattr(machine, "block", full)
    session.close()
    assert session.pair.target._handle is None
    assert not list(tmp_path.iterdir())


def test_a_header_that_tells_of_more_than_there_is_is_put_aside(tmp_path: Path) -> None:
    store = StateFiles(tmp_path, "one")
    monster = np.zeros(8, np.uint8)
    store.save("c1", b"", TOKENS[:1], [monster])
    path = store._path("c1")
    header = msgspec.structs.replace(store.find("c1"), sizes=[1 << 60])
    packed = msgspec.msgpack.encode(header)
    head = len(packed).to_bytes(4, "little") + hashlib.sha256(packed).digest() + packed
    path.write_bytes(b"localspec state 1\n" + head + monster.tobytes())
    assert store.find("c1") is None
    assert [one.suffix for one in tmp_path.iterdir()] == [".damaged"]


def test_what_is_stored_in_pieces_is_told_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "_PIECE", 150)
    store, shares = StateFiles(tmp_path, "one"), list[float]()
    assert store.save("c1", b"", TOKENS, BYTES, progress=shares.append)
    assert len(shares) == 6  # three pieces, which are hashed and then written
    assert shares == sorted(shares)
    assert shares[3] == 0.5
    header = store.find("c1")
    assert header is not None
    found = store.states("c1", header, Cancel())
    assert all(np.array_equal(*both) for both in zip(found, BYTES, strict=True))


def test_a_deleted_conversation_has_no_state(tmp_path: Path) -> None:
    store = StateFiles(tmp_path / "states", "one")
    for name in ("c1", "c2", "../c3", "*", ""):
        store.save(name, b"", TOKENS, BYTES)
    (tmp_path / "states" / ".c1.x.state.part").touch()  # left by a program that was killed
    if sys.platform != "win32":
        assert stat.S_IMODE(store._path("c1").stat().st_mode) == 0o600
    (first, second) = store.find("c1"), store.find("c2")
    assert first == second
    assert first is not None
    found = store.states("c1", first, Cancel())
    assert [one.tolist() for one in found] == [one.tolist() for one in BYTES]
    db = Store(tmp_path / "conversations.db")
    db.delete("c1")
    db.delete("../*")
    db.close()
    assert [one.name.split(".")[0] for one in (tmp_path / "states").iterdir()] == ["c2"]


def test_copies_without_room_in_memory_go_to_files_without_names(
    target_context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = CachedPrefixes(lambda: [target_context], tmp_path, room=lambda: 0)
    texts = [[10 * i + j for j in range(1, 60)] for i in range(3)]
    assert [read([target_context], kept, text) for text in texts] == [59] * 3
    assert [read([target_context], kept, [*text, 7]) for text in texts] == [1] * 3
    assert kept.n_bytes == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(cached_prefixes, "_DISK_SHARE", 0.0)
    assert read([target_context], kept, [5, 4, 3]) == 3
    assert [read([target_context], kept, [*text, 8]) for text in texts] == [60] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_dropped_copies_of_caches_are_no_longer_in_memory(tmp_path: Path) -> None:
    """Even those that glibc would keep, as it has seen a larger block."""
    options = ContextOptions(n_ctx=2048, threads=1, copies=True)
    with Model.load(toy.TARGET) as model, Context(model, options) as context:
        context.decode([*range(100, 200)], 0)
        assert context.repeat(1500)
        np.empty((32 << 20) - 9999, np.uint8)
        files, before = StateFiles(tmp_path, "these models"), machine.resident()
        for _ in range(2):
            state = context.state()
            assert 8 << 20 < state.nbytes < 31 << 20
            assert files.save("a", b"", [context.tokens], [state])
            found = files.find("a")
            assert found is not None
            (again,) = files.states("a", found, Cancel())
            assert again.data == state.data
            del state, again
        assert machine.resident() - before < 2 << 20
