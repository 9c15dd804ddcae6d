"""The Python API: what its page shows, and what a program may get wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import click
import numpy as np
import pytest

import localspec
from localspec import api
from localspec.chat.events import RoundText
from localspec.cli.shared_options import shared_options
from localspec.engine.length import profile
from localspec.engine.length.profile import Timing
from localspec.engine.record.stats import FinishReason
from localspec.engine.round.params import Accept
from localspec.errors import LocalspecError, UsageError
from localspec.loading import starter_form
from localspec.loading.load_request import LoadOptions, LoadRequest
from localspec.loading.measurements import attention
from tests.support.pairwise import usually

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
SMALL: LoadOptions = {"ctx_size": 256, "threads": 1, "n_predict": 12, "temp": 0, "gamma": 3}


@pytest.fixture(scope="module")
def chat() -> Iterator[localspec.Chat]:
    with localspec.load("toy", **SMALL) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def _empty(chat: localspec.Chat) -> None:
    chat.messages = []


@pytest.mark.parametrize("example", usually(EXAMPLES, EXAMPLES[1]))
def test_the_examples_of_the_page_run(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))  # nothing is measured for seconds
    monkeypatch.setattr(profile, "measure", lambda *_, **__: Timing({1: 1e-3, 4: 2e-3}))
    monkeypatch.setattr(attention, "in_turns", lambda *_, **__: {})
    monkeypatch.setattr(starter_form, "settle", lambda _source: "")  # the starter stays as it came
    exec(compile(example, str(PAGE), "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_the_page_has_its_examples_and_names_every_option() -> None:
    assert len(EXAMPLES) == 3
    text = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in fields(LoadRequest) if f"`{each.name}`" not in text] == []


def test_the_options_are_those_of_a_request() -> None:
    names = {each.name for each in fields(LoadRequest)} - {"pair"}
    assert names == LoadOptions.__optional_keys__
    assert not LoadOptions.__required_keys__


def test_an_option_has_the_type_of_the_request_unless_it_takes_more() -> None:
    request, options = get_type_hints(LoadRequest), get_type_hints(LoadOptions)
    wider = {"device", "draft_device", "logit_bias", "lora", "rpc", "stop", "tensor_split"}
    wider |= {"n_gpu_layers", "draft_n_gpu_layers"}
    assert {name for name, kind in options.items() if kind != request[name]} == wider


def test_importing_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, localspec\n"
        "print([m for m in ('numpy', 'llama_cpp', 'textual') if m in sys.modules])\n"
        "localspec.load\nprint('numpy' in sys.modules, 'textual' in sys.modules)\n"
        "try:\n    localspec.lod\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    missing = "module 'localspec' has no attribute 'lod'"
    assert done.stdout.splitlines() == ["[]", "True False", missing]


def test_an_answer_comes_round_by_round(chat: localspec.Chat) -> None:
    pieces = list(chat.ask("Tell me a story."))
    assert all(isinstance(piece, RoundText) for piece in pieces)
    assert chat.last is not None
    assert "".join(piece.text for piece in pieces) == chat.last.text == chat.messages[-1].content
    assert chat.last.reason is FinishReason.LENGTH
    assert chat.figures.generated == 12
    assert chat.figures.drafted > 0
    assert chat.loaded.ctx_size == 256
    assert "".join(piece.text for piece in chat.ask_again()) == chat.last.text
    assert len(chat.messages) == 2


def test_stopping_keeps_what_was_written(chat: localspec.Chat) -> None:
    answer = chat.ask("Tell me a story.")
    first = next(answer)
    chat.stop()
    rest = [piece.text for piece in answer]
    assert chat.last is not None
    assert chat.last.reason is FinishReason.CANCELLED
    assert chat.messages[-1].content == "".join([first.text, *rest]) == chat.last.text


def test_breaking_off_keeps_what_was_written_and_leaves_room_for_the_next(
    chat: localspec.Chat,
) -> None:
    for piece in chat.ask("Tell me a story."):
        if piece.text:
            break
    assert chat.messages[-1].content == piece.text
    assert chat.last is not None
    assert (chat.last.text, chat.last.reason) == (piece.text, FinishReason.CANCELLED)
    assert list(chat.ask("And then?"))


def test_gamma_may_be_changed_between_two_answers() -> None:
    with localspec.load("toy", **{**SMALL, "gamma": 0}) as chat:
        for gamma in (0, 3, 0, 2):
            chat.settings.gamma = gamma
            list(chat.ask("Tell me a story."))
            assert (chat.figures.drafted > 0) == (gamma > 0)


def test_a_seed_set_between_two_answers_has_the_rule_of_a_seed() -> None:
    with localspec.load("toy", **{**SMALL, "temp": 0.9}) as chat:
        list(chat.ask("Tell me a story."))
        assert chat.settings.rule is Accept.BLOCK
        chat.settings.sampling = replace(chat.settings.sampling, seed=7)
        texts, drafted = [], []
        for gamma in (0, 4):
            chat.messages, chat.settings.gamma = [], gamma
            texts.append("".join(piece.text for piece in chat.ask("Tell me a story.")))
            drafted.append(chat.figures.drafted)
        assert chat.settings.rule is Accept.COUPLED
        assert texts[0] == texts[1]
        assert drafted[0] == 0 < drafted[1]
        chat.settings.sampling = replace(chat.settings.sampling, seed=None)
        list(chat.ask("And then?"))
        assert chat.settings.rule is Accept.BLOCK


def test_two_answers_at_once_are_refused(chat: localspec.Chat) -> None:
    answer = chat.ask("Tell me a story.")
    next(answer)
    with pytest.raises(LocalspecError, match="still being written"):
        next(chat.ask("Another one."))
    chat.stop()
    list(answer)
    assert chat.last is not None
    assert chat.last.reason is FinishReason.CANCELLED


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gamma": 64}, "gamma is 64"),
        ({"gamma": "often"}, "gamma is 'often'"),
        ({"accept": "all"}, "accept is 'all'"),
        ({"flash_attn": "yes"}, "flash_attn is 'yes'"),
        ({"cache_type_k": "q1"}, "cache_type_k is 'q1'"),
        ({"temp": -1.0}, "temperature"),
        ({"ctx_size": 3}, "a context of 3"),
        ({"tensor_split": (1.0, -1.0)}, "tensor_split is"),
        ({"logit_bias": {10**6: 1.0}}, "names token 1000000"),
        ({"threads": "four"}, r"`\$.threads`"),
        ({"n_gpu_layers": "most"}, r"`\$.n_gpu_layers`"),
        ({"tensor_split": "3:1"}, "'3:1'"),
        ({"device": 1}, "device takes several values, not 1"),
        ({"temperature": 1.0}, "'temperature'"),
    ],
)
def test_impossible_options_are_usage_errors(wrong: dict[str, Any], says: str) -> None:
    options: Any = {**SMALL, **wrong}
    with pytest.raises(UsageError, match=says):
        localspec.load(**options)


def test_options_mean_the_same_as_on_the_command_line() -> None:
    written = {
        "--threads": "-1",
        "--seed": "-1",
        "--device": "none",
        "--draft-device": "A, B",
        "--n-gpu-layers": "all",
        "--draft-n-gpu-layers": "auto",
        "--tensor-split": "3,1",
    }
    given = {name.lstrip("-").replace("-", "_"): value for name, value in written.items()}
    given |= {"threads": -1, "seed": -1, "draft_threads": np.int64(2), "temp": np.float32(0.5)}
    meant: list[LoadRequest] = []

    @click.command()
    @shared_options
    def command(options: LoadRequest) -> None:
        meant.append(options)

    words = ["--draft-threads", "2", "--temp", "0.5", *chain.from_iterable(written.items())]
    command.main(words, standalone_mode=False)
    assert meant == [api._request(None, given)]


def test_one_string_is_one_of_several() -> None:
    with localspec.load("toy", stop="dog", logit_bias={5: 1.0}, **SMALL) as chat:
        assert chat.settings.stop == ("dog",)
        assert chat.settings.sampling.logit_bias == {5: 1.0}
    with localspec.load("toy", stop=["dog", "cat"], **SMALL) as chat:
        assert chat.settings.stop == ("dog", "cat")
    chat.close()
    with pytest.raises(LocalspecError, match="closed"):
        next(chat.ask("Are you there?"))
