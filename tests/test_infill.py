"""Gaps in texts: the prompt for them, and what editors ask of `/infill`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import ContentPiece
from localspec.chat.events import TurnEnd
from localspec.chat.prompt.infill_prompt import InfillPrompt
from localspec.chat.session.completions import Completions
from localspec.chat.settings import AnswerRequest, Infill
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Model
from localspec.engine.record.stats import GenerationStats
from localspec.errors import UsageError
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.serve.core.requests import parsed
from localspec.serve.protocols.infill import InfillRequest, InfillWriter
from localspec.serve.protocols.text_completions import CompletionRequest
from localspec.serve.refusals import Refusal
from tests.support import costs, toy
from tests.support.endpoint import Serving, chunks

PRE, SUF, MID, REP, SEP = MARKS = (260, 261, 262, 263, 264)
CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
COSTS = {1: 2e-3, 4: 2.7e-3, 16: 7e-3, 64: 25e-3}


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_infill(tmp_path_factory.mktemp("infill") / "fim.gguf", MARKS)


@pytest.fixture(scope="module")
def model(filler: Path) -> Iterator[Model]:
    with Model.load(filler) as one:
        yield one


def ids(model: Model, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def bos(model: Model) -> list[int]:
    return [model.bos] if model.add_bos and model.bos is not None else []


def test_a_gap_stands_between_the_models_own_marks(model: Model) -> None:
    made = InfillPrompt(model, Infill("ab", "yz", "c"), 8192, 32)
    expected = [*bos(model), PRE, *ids(model, "ab"), *ids(model, "c"), SUF, *ids(model, "yz"), MID]
    assert made.ids == expected


def test_other_files_come_first_as_llama_server_has_them(model: Model) -> None:
    gap = Infill("ab", "yz", "", (("one.py", "x = 1"), ("two.py", "y = 2")), in_repository=True)
    made = InfillPrompt(model, gap, 8192, 32)
    assert made.ids == [
        REP, *ids(model, "myproject\n"),
        SEP, *ids(model, "one.py\n"), *ids(model, "x = 1"),
        SEP, *ids(model, "two.py\n"), *ids(model, "y = 2"),
        SEP, *ids(model, "filename\n"),
        *bos(model), PRE, *ids(model, "ab"), SUF, *ids(model, "yz"), MID,
    ]  # fmt: skip


def test_without_a_mark_of_files_they_are_snippets(tmp_path: Path) -> None:
    with Model.load(toy.write_infill(tmp_path / "fim.gguf", MARKS[:3])) as model:
        gap = Infill("ab", "yz", "", (("one.py", "x = 1"),), in_repository=True)
        assert InfillPrompt(model, gap, 8192, 32).ids == [
            *ids(model, "\n\n--- snippet ---\n\n"), *ids(model, "x = 1"),
            *bos(model), PRE, *ids(model, "ab"), SUF, *ids(model, "yz"), MID,
        ]  # fmt: skip


def test_what_does_not_fit_is_left_out_from_afar(model: Model) -> None:
    """The text nearest to the gap is kept on both sides, and of other files the last ones."""
    text = "".join(f"line {i}\n" for i in range(4000))
    gap = Infill(text, text, "", (("a", text), ("b", text)), in_repository=True)
    made = InfillPrompt(model, gap, 8192, 128).ids
    assert len(made) <= 8192 - 128
    at, then = made.index(PRE), made.index(SUF)
    assert made[at + 1 : then] == ids(model, text)[-1536:]
    assert made[then + 1 : -1] == ids(model, text)[: 512 - 2]
    assert at - len(bos(model)) == 8192 - 2048 - 2 * 128
    small = InfillPrompt(model, gap, 512, 64).ids
    assert len(small) <= 512 - 64


@pytest.mark.parametrize(("n_predict", "left"), [(-1, 500), (0, 1), (1, 2)])
def test_room_for_the_answer_is_left(model: Model, n_predict: int, left: int) -> None:
    text = "".join(f"line {i}\n" for i in range(4000))
    gap = Infill(text, text, "", (("a", text),), in_repository=True)
    assert len(InfillPrompt(model, gap, 8192, n_predict).ids) <= 8192 - left


def test_marks_in_the_text_are_text(model: Model) -> None:
    mark = model.piece(PRE, special=True).decode() or "<|im_end|>"
    made = InfillPrompt(model, Infill(f"a{mark}<|im_start|>b", "c"), 8192, 32)
    assert made.ids == [*bos(model), PRE, *ids(model, f"a{mark}<|im_start|>b"), SUF,
                        *ids(model, "c"), MID]  # fmt: skip


def test_lookup_copies_from_the_whole_file(model: Model) -> None:
    text = "".join(f"line {i} of this file\n" for i in range(4000))
    made = InfillPrompt(model, Infill(text, ""), 8192, 32)
    far = ids(model, "line 7 of this file\nline 8 of")
    assert len(ids(model, text)) > 4 * len(made.ids)
    match, start = made.past.find(far)
    assert match >= 6
    found, known = [*far[-match:], *made.past.copy(start, 8)], ids(model, text)
    assert any(known[at : at + len(found)] == found for at in range(len(known)))


def test_a_model_without_marks_says_so(target_model: Model) -> None:
    with pytest.raises(UsageError, match="prefix token is missing"):
        InfillPrompt(target_model, Infill("a", "b"), 1024, 8)


# --- what is asked ----------------------------------------------------------------------------


def asked(**fields: Any) -> InfillRequest:
    given = {"input_prefix": "a", "input_suffix": "b", **fields}
    return parsed(json.dumps(given).encode(), InfillRequest)


def test_what_llama_vim_sends_is_understood() -> None:
    found = asked(
        id_slot=0,
        input_extra=[{"text": "x", "filename": "a.py", "time": [1, 2]}, {"text": "y"}],
        prompt="c",
        n_predict=128,
        stop=["\n\n"],
        n_indent=4,
        top_k=40,
        top_p=0.99,
        samplers=["top_k", "top_p", "infill"],
        stream=False,
        cache_prompt=True,
        t_max_prompt_ms=500,
        t_max_predict_ms=250,
        response_fields=["content", "timings/prompt_n"],
    ).core()
    assert found.prompt == Infill("a", "b", "c", (("a.py", "x"), ("tmp", "y")), in_repository=True)
    assert found.options.limit == 128
    assert found.options.stop == ["\n\n"]


def test_a_suffix_makes_a_gap_of_a_completion() -> None:
    def core(**fields: Any) -> Any:
        return parsed(json.dumps(fields).encode(), CompletionRequest).core().prompt

    assert core(prompt="a", suffix="b") == Infill("a", "b")
    assert core(prompt="a", suffix="") == "a"
    with pytest.raises(Refusal, match="text"):
        core(prompt=[1, 2], suffix="b")


def filled(pieces: list[str], *, pause: float = 0.0, **fields: Any) -> tuple[str, InfillWriter]:
    """The text that a client of a stream gets if the model writes these pieces."""
    writer = asked(**fields).writer("toy")
    sent = ""
    for piece in pieces:
        sent += "".join(one["content"] for _, one in writer.written([ContentPiece(piece)]))
        time.sleep(pause)
    assert writer.document()["content"] == sent
    return sent, writer


def test_a_line_that_is_indented_less_ends_the_answer() -> None:
    text = "    a = 1\n\n        b = 2\n    c = 3\nd = 4\n"
    for step in (1, 3, len(text)):
        pieces = [text[i : i + step] for i in range(0, len(text), step)]
        sent, writer = filled(pieces, n_indent=4)
        assert sent.rstrip("\n") == "    a = 1\n\n        b = 2\n    c = 3"
        assert writer.enough
        assert filled(pieces)[0] == text


def test_when_the_time_is_over_the_line_is_ended() -> None:
    pieces = ["a = 1\n", "b", " = 2\n", "c = 3\n"]
    sent, writer = filled(pieces, t_max_predict_ms=1, pause=0.01)
    assert sent == "a = 1\nb = 2"
    assert writer.enough
    assert filled(pieces, t_max_predict_ms=60_000)[0] == "".join(pieces)


def test_fields_of_the_reply_can_be_chosen() -> None:
    fields = ["content", "timings/prompt_n", "timings/nothing", "nothing"]
    _, writer = filled(["x"], response_fields=fields)
    assert writer.document() == {"content": "x", "timings/prompt_n": 0}
    several = asked(n_cmpl=2).writer("toy")
    list(several.written([ContentPiece("x")]))
    assert [one["content"] for one in several.document()] == ["x"]


@pytest.mark.parametrize("own_marks", [False, True])
def test_gaps_push_out_no_copy_of_a_chat_nor_a_chat_the_other_files(
    filler: Path, *, own_marks: bool
) -> None:
    """Many editors write the marks themselves."""
    request = LoadRequest(
        pair=str(filler), draft="none", ctx_size=1024, threads=1, temp=0.0, n_predict=2
    )
    costs.keep_target(COSTS, filler)
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    model = session.pair.target.model
    completions, talk = Completions(session), [Message(Role.USER, "Tell me a story. " * 6)]
    one, another = (("a.py", "x = 1\n" * 20),), (("b.py", "y = 2\n" * 20),)

    def answered(**asked: Any) -> TurnEnd:
        *_, end = completions.answer(AnswerRequest(session.settings, **asked), Cancel())
        assert isinstance(end, TurnEnd)
        return end

    def fills(prefix: str, others: Any = one, **more: Any) -> GenerationStats:
        gap = Infill(prefix, CODE * 2, others=others, in_repository=True)
        if own_marks:
            return answered(prompt=tuple(InfillPrompt(model, gap, 1024, 2).ids), **more).stats
        return answered(infill=gap, **more).stats

    with closing(session):
        for _ in range(2):
            end = answered(messages=tuple(talk))
            held = session.pair.target.held
            taken = []
            for n in range(4):
                stats = fills(CODE[:n])
                taken.append(completions._prefixes.n_bytes)
            assert 0 < taken[0] == taken[-1]
            talk += [Message(Role.ASSISTANT, end.text), Message(Role.USER, "And then?")]
            assert answered(messages=tuple(talk)).stats.prefill_cached == held
            assert fills("").prefill_cached > 110 < stats.prefill_cached
        assert len(completions._prefixes._kept) == 1  # of the chat
        cached = [fills(CODE[:n], (one, another)[n % 2]).prefill_cached for n in range(6)]
        assert min(cached[2:]) > 110
        ring = [(f"{n}.py", f"v{n} = {n}\n" * 9) for n in range(8)]
        fills(CODE, tuple(ring[:4]))
        kept = len(completions._prefixes._kept)
        for n in range(1, 4):  # an editor leaves out the oldest file
            fills(CODE, tuple(ring[n : n + 4]))
        assert len(completions._prefixes._kept) == kept
        for n in range(6):
            fills(CODE[n // 2 :][: 9 + n % 2], anew=True)  # one key each at several places
        assert len(completions._prefixes._kept) == kept + 1  # and of each project


# --- through the endpoint ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def serving(filler: Path) -> Iterator[Serving]:
    costs.keep_target(COSTS, filler)
    with Serving(pair=str(filler)) as one:
        yield one


def infill(serving: Serving, **fields: Any) -> dict[str, Any]:
    given = {"input_prefix": CODE, "input_suffix": "\n", "temperature": 0, "n_predict": 12}
    status, _, data = serving.ask("/infill", given | fields)
    assert status == 200, data
    assert b'"content":"' in data  # without blanks, as llama.vim looks for it
    found: dict[str, Any] = json.loads(data)
    return found


def test_a_gap_is_filled_whole_and_as_a_stream(serving: Serving) -> None:
    whole = infill(serving)
    assert whole["content"]
    assert whole["stop"] is True
    assert whole["stop_type"] == ("limit" if whole["tokens_predicted"] == 12 else "eos")
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["tokens_evaluated"]
    body = {"input_prefix": CODE, "input_suffix": "\n", "temperature": 0, "n_predict": 12}
    data = serving.ask("/infill", {**body, "stream": True})[2]
    found = chunks(data)
    assert "".join(one["content"] for one in found) == whole["content"]
    assert [one["stop"] for one in found] == [False] * (len(found) - 1) + [True]
    by_suffix = {"prompt": CODE, "suffix": "\n", "temperature": 0, "max_tokens": 12}
    status, _, data = serving.ask("/v1/completions", by_suffix)
    assert status == 200
    assert json.loads(data)["choices"][0]["text"]


def test_a_file_that_is_warmed_up_is_not_read_again(serving: Serving) -> None:
    extra = [{"filename": "a.py", "text": "x = 1\n" * 40}]
    warm = infill(serving, input_prefix="", input_suffix="", input_extra=extra, n_predict=0,
                  samplers=[])  # fmt: skip
    assert warm["content"] == ""
    found = infill(serving, input_extra=extra)
    assert found["timings"]["cache_n"] > 80


def test_what_was_enough_is_stopped_and_has_its_figures(serving: Serving) -> None:
    text = "    a = 1\\nb = 2\\n"
    found = infill(serving, n_indent=4, n_predict=400, grammar=f'root ::= ("{text}")+')
    assert found["content"].rstrip("\n") == "    a = 1"
    assert found["stop_type"] == "limit"
    assert 0 < found["timings"]["predicted_n"] < 400
    serving.until_free(5)


def test_other_files_are_cut_and_a_beginning_that_does_not_fit_is_refused(serving: Serving) -> None:
    extra = [{"filename": f"{i}.py", "text": f"x = {i}\n" * 10} for i in range(1024)]
    found = infill(serving, input_prefix=CODE * 100, input_suffix=CODE * 100, input_extra=extra)
    assert 400 < found["tokens_evaluated"] <= 1024 - 12
    for wrong, said in (
        ({"input_extra": [*extra, {}]}, "input_extra"),
        ({"prompt": CODE * 100}, "context length is 1024"),
    ):
        given = {"input_prefix": "", "input_suffix": "", **wrong}
        status, _, data = serving.ask("/infill", given)
        assert status == 400
        assert said in json.loads(data)["error"]["message"]
    assert json.loads(data)["error"]["param"] == "prompt"
