"""Sampling as the model's makers advise: what is in force, and where each value comes from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from llama_cpp import llama_cpp as lib

from localspec.chat.advice import SamplingAdvice, SettingSource, advise
from localspec.chat.history.fields import document_of, settings_of
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.cli.answers.run import command as run_command
from localspec.cli.models.show import command as show_command
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Model
from localspec.engine.round.params import CHAIN, SamplingParams
from localspec.errors import UsageError
from localspec.loading.load import check, load_another_draft, load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.names import catalogue
from tests.support.gguf_models import write_advised, write_other_vocabulary

SMALL = LoadRequest(draft="none", ctx_size=64, threads=1, gamma=0, n_predict=2)


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Session]:
    request = replace(SMALL, pair=str(path), **options)
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
        yield session


def curate(monkeypatch: pytest.MonkeyPatch, name: str, file: str, **sampling: float) -> None:
    """Have the catalogue hold one more pair, with advice."""
    known = catalogue.pairs()
    entry = next(iter(known.values()))
    entry = replace(entry, name=name, target=replace(entry.target, file=file), sampling=sampling)
    monkeypatch.setattr(catalogue, "pairs", lambda: {**known, name: entry})


def test_the_file_comes_before_the_catalogue_and_the_user_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curate(monkeypatch, "tiny", "Tiny-Q4_K_M.gguf", temperature=0.2, top_p=0.9, min_p=0.1)
    path = write_advised(tmp_path / "tiny-Q8_0.gguf", name="Tiny", temp=0.6, top_k=20)
    with loaded(path, min_p=0.3) as session:
        assert session.settings.sampling == SamplingParams(
            temperature=0.6, top_k=20, top_p=0.9, min_p=0.3
        )
        sources = session.advice.sources(session.settings)
    assert {
        name: source for name, source in sources.items() if source is not SettingSource.DEFAULT
    } == {
        "temperature": SettingSource.FILE,
        "top_k": SettingSource.FILE,
        "top_p": SettingSource.CATALOGUE,
        "min_p": SettingSource.USER,
    }


def test_without_advice_the_defaults_are_llama_cpps(tmp_path: Path) -> None:
    with loaded(write_other_vocabulary(tmp_path / "plain.gguf")) as session:
        assert session.settings.sampling == SamplingParams()
        assert set(session.advice.sources(session.settings).values()) == {SettingSource.DEFAULT}
        assert session.notices == []


def test_every_key_of_llama_cpp_is_followed_or_said_to_be_left_out(tmp_path: Path) -> None:
    """The names come from the library in use: a key that it knows and we don't is a fault."""
    known = set()
    for number in range(64):
        key = lib.llama_model_meta_key_str(number)
        if key:
            known.add(key.decode().removeprefix("general.sampling."))
    values: dict[str, object] = {
        "temp": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.5,
        "penalty_last_n": 9, "xtc_probability": 0.5, "mirostat": 2, "sequence": "temperature",
        "xtc_threshold": 0.5, "mirostat_tau": 4.0, "mirostat_eta": 0.5,
    }  # fmt: skip
    assert known == set(values)
    with loaded(write_advised(tmp_path / "all.gguf", **values)) as session:
        assert session.settings.sampling == SamplingParams(
            temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, repeat_penalty=1.5, repeat_last_n=9
        )
        (notice,) = session.notices
    for part in ("xtc-probability 0.5", "mirostat 2", "sequence temperature"):
        assert part in notice


def test_numbers_are_read_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    """A file holds 0.6 as the nearest 32-bit float; llama.cpp writes it with six decimals."""
    path = write_advised(tmp_path / "a.gguf", temp=0.6, top_k=20.0)
    with loaded(path) as session:
        assert (session.settings.sampling.temperature, session.settings.sampling.top_k) == (0.6, 20)
    with Model.load(path) as model:
        buffer = lib.ctypes.create_string_buffer(32)
        lib.llama_model_meta_val_str(model.handle, b"general.sampling.temp", buffer, 32)
    assert float(buffer.value) == 0.6


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("temp", -3.0, "temperature -3.0"),
        ("temp", math.nan, "temperature nan"),
        ("temp", math.inf, "temperature inf"),
        ("temp", "0.6", "temperature 0.6"),
        ("temp", "\x1b[2Jboo\n" * 99, "temperature "),
        ("temp", True, "temperature True"),
        ("temp", [0.5, 0.6], "temperature a list"),
        ("top_k", 20.5, "top-k 20.5"),
        ("top_k", 3e38, "top-k 3"),
        ("top_p", 0.0, "top-p 0.0"),
        ("top_p", 7.0, "top-p 7.0"),
        ("min_p", -0.1, "min-p -0.1"),
        ("penalty_repeat", 0.0, "repeat-penalty 0.0"),
        ("penalty_last_n", -1, "repeat-last-n -1"),
    ],
)
def test_what_makes_no_distribution_is_left_out_with_a_notice(
    tmp_path: Path, key: str, value: object, told: str
) -> None:
    path = write_advised(tmp_path / "hostile.gguf", name="Odd", **{key: value})
    with loaded(path) as session:
        assert session.settings.sampling == SamplingParams()
        (notice,) = session.notices
        assert notice.startswith("sampling advice for Odd is left out: ")
        assert told in notice.replace("0000000149", "")
        assert notice.isprintable()
        assert len(notice) < 200


def test_a_lossy_rule_is_refused_where_the_advice_does_not_go_with_it(tmp_path: Path) -> None:
    path = write_advised(tmp_path / "greedy.gguf", temp=0.0)
    with pytest.raises(UsageError, match="typical-p"), loaded(path, lossy=0.5, typical_p=0.5):
        pass


def test_another_model_brings_its_own_advice_and_what_the_user_set_stays(tmp_path: Path) -> None:
    one = advise("One", {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}, {})
    other = advise("Other", {"general.sampling.temp": 1.0}, {"min_p": 0.0})
    settings = one.settled(replace(ChatSettings(), system_prompt="Be brief."))
    mine = replace(
        settings,
        sampling=replace(settings.sampling, top_p=0.5, seed=3),
        chosen=frozenset({"top_p"}),
    )
    assert other.settled(mine) == replace(
        mine, sampling=SamplingParams(temperature=1.0, min_p=0.0, top_p=0.5, seed=3)
    )
    assert one.settled(other.settled(mine)) == mine


def test_a_value_that_a_program_put_in_force_is_its_own() -> None:
    advice = advise("One", {}, {"temperature": 0.2})
    settings = ChatSettings(sampling=SamplingParams(temperature=0.3))
    assert advice.sources(settings)["temperature"] is SettingSource.USER


def test_a_stored_conversation_keeps_what_was_chosen_and_nothing_else() -> None:
    advice = advise("One", {}, {"temperature": 0.2, "top_p": 0.9})
    stored = document_of(
        replace(
            advice.settled(ChatSettings(chosen=frozenset({"min_p"}))),
            sampling=SamplingParams(temperature=0.2, top_p=0.9, min_p=0.3),
        )
    )
    stored = json.loads(json.dumps(stored))
    now = advise("Other", {}, {"temperature": 0.7}).settled(settings_of(stored, ChatSettings()))
    assert now.sampling == SamplingParams(temperature=0.7, min_p=0.3)


def test_of_an_old_conversation_what_is_not_llama_cpps_default_was_chosen() -> None:
    old = document_of(ChatSettings(sampling=SamplingParams(temperature=0.3)))
    del old["chosen"]
    now = advise("One", {}, {"temperature": 0.2, "top_p": 0.9}).settled(
        settings_of(old, ChatSettings())
    )
    assert (now.sampling.temperature, now.sampling.top_p) == (0.3, 0.9)


def test_a_draft_beside_is_sampled_like_its_target(tmp_path: Path) -> None:
    path = write_advised(tmp_path / "a.gguf", temp=0.6)
    with loaded(path) as session:
        request = check(replace(SMALL, pair=str(path), draft="lookup"))
        beside = load_another_draft(session, request, progress=lambda *_: None, cancel=Cancel())
        assert beside.settings.sampling.temperature == 0.6
        beside.pair.close_drafts()


@pytest.mark.slow
def test_run_tells_the_sources(tmp_path: Path) -> None:
    path = write_advised(tmp_path / "a.gguf", temp=0.6, mirostat=1)
    arguments = [str(path), "--draft", "none", "-c", "64", "-t", "1", "--gamma", "0", "-n", "2"]
    result = CliRunner().invoke(run_command, [*arguments, "--top-p", "0.5", "-p", "x", "--json"])
    assert result.exception is None, result.output
    settings = json.loads(result.stdout)["settings"]
    assert (settings["temp"], settings["top_p"], settings["top_k"]) == (0.6, 0.5, 40)
    sources = settings["sampling_sources"]
    assert (sources["temp"], sources["top_p"], sources["top_k"]) == ("file", "user", "default")
    assert set(sources) <= set(settings)
    assert "mirostat 1" in result.stderr


def test_show_tells_what_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curate(monkeypatch, "tiny", "a-Q4_0.gguf", top_p=0.9)
    path = write_advised(tmp_path / "a-Q8_0.gguf", name="Tiny", temp=0.6)
    text = CliRunner().invoke(show_command, [str(path)]).stdout
    line = next(line for line in text.splitlines() if line.startswith("sampling"))
    assert "temperature 0.6 (from the file), top-p 0.9 (advised for Tiny), the rest as" in line
    document = json.loads(CliRunner().invoke(show_command, [str(path), "--json"]).stdout)
    assert document["sampling"]["temp"] == {"value": 0.6, "source": "file"}
    assert document["sampling"]["top_k"] == {"value": 40, "source": "default"}


def test_advice_is_found_by_the_file_in_any_quant_and_by_the_pairs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    curate(monkeypatch, "tiny", "Tiny-1B-Q4_K_M.gguf", temperature=0.2)
    for name, file in [("mine", "tiny-1b-q8_0.gguf"), ("tiny", "converted.gguf")]:
        assert catalogue.sampling_for(name, file) == {"temperature": 0.2}
    for name, file in [
        ("mine", "Tiny-2B-Q4_K_M.gguf"),
        ("mine", "x.gguf"),
        ("mine", "Q4_K_M.gguf"),
    ]:
        assert catalogue.sampling_for(name, file) == {}


def test_the_catalogue_advises_nothing_that_cannot_be_followed() -> None:
    for pair in catalogue.pairs().values():
        assert set(pair.sampling) <= set(CHAIN), pair.name
        assert advise(pair.name, {}, pair.sampling) == SamplingAdvice(pair.name, {}, pair.sampling)


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
def test_the_help_says_what_holds_where_nothing_is_given(command: str) -> None:
    text = " ".join(CliRunner().invoke(cli, [command, "--help"]).output.split())
    assert "[default: as advised, else 0.8]" in text
    assert "[default: as advised, else 40]" in text
