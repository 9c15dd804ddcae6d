"""The options of the sampler chain, grammars, rules and traces, from the command line on."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import click
import numpy as np
import pytest
from click.testing import CliRunner

import localspec
from localspec.chat.advice import SamplingAdvice
from localspec.chat.dialects import Dialect
from localspec.chat.figures.figures import gamma_words, lossy_words
from localspec.chat.settings import ChatSettings
from localspec.cli.answers.run import command as run_command
from localspec.cli.settings_file import settings_of
from localspec.engine.record.stats import GammaNote, GammaReason
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.params import CHAIN, MOST_WHOLE
from localspec.engine.round.sampling import Sampler, SamplingParams
from localspec.errors import UsageError
from localspec.loading.load import chat_settings
from localspec.loading.load_request import LoadOptions, LoadRequest
from localspec.serve.core.requests import parsed
from localspec.serve.protocols.text_completions import CompletionRequest
from localspec.serve.refusals import Refusal
from localspec.ui.commands.parameters import changed
from tests.support import toy

from .support.replay import read_trace, rederive
from .test_options import parse


def test_every_option_reaches_the_chain() -> None:
    settings = chat_settings(
        parse(
            *("--typical-p", "0.9", "--repeat-penalty", "1.1", "--presence-penalty", "0.2"),
            *("--frequency-penalty", "0.3", "--repeat-last-n", "7", "-l", "5+1.5", "-l", "6-inf"),
            *("--accept", "coupled", "--grammar", 'root ::= "a"'),
        )
    )
    assert settings.sampling == SamplingParams(
        typical_p=0.9,
        repeat_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repeat_last_n=7,
        logit_bias={5: 1.5, 6: -math.inf},
    )
    assert settings.accept is Accept.COUPLED
    assert settings.grammar == 'root ::= "a"'


def test_a_lossy_rule_takes_no_other_beside_it() -> None:
    assert chat_settings(parse("--lossy", "0.5")).lenience == 0.5
    with pytest.raises(UsageError, match="cannot be combined"):
        chat_settings(parse("--lossy", "0.5", "--accept", "match"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--lossy", "1e-40"], "lossy cannot be 1e-40"),
        (["--lossy", "1e-40", "--temp", "0"], "lossy cannot be 1e-40"),
        (["--lossy", "0.5", "--temp", "0", "--typical-p", "0.5"], "typical-p"),
    ],
)
def test_a_lenience_that_cannot_be_is_refused_before_loading(
    arguments: list[str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        chat_settings(parse(*arguments))
    assert chat_settings(parse("--lossy", "0.5", "--typical-p", "0.5")).lenience == 0.5


@pytest.mark.parametrize("name", CHAIN)
def test_a_setting_of_the_chain_is_on_every_surface(name: str) -> None:
    """The command line, the settings file, requests and `/set` have it, from one table."""
    each = CHAIN[name]
    on_command_line = next(one for one in run_command.params if one.name == each.key)
    assert isinstance(on_command_line, click.Option)
    assert on_command_line.opts == [*each.flags]
    assert (on_command_line.help or "").startswith(each.meaning)
    assert settings_of(run_command)[each.name] is on_command_line

    expected = SamplingParams(**{name: each.kind(1)})
    assert chat_settings(parse(each.flags[-1], "1")).sampling == expected
    for spelt in (name, each.name, each.key, *each.also):
        assert changed(ChatSettings(), spelt, "1", SamplingAdvice()).sampling == expected
    for spelt in (name, *each.also):
        body = json.dumps({"prompt": "a", spelt: 1}).encode()
        asked, _ = parsed(body, CompletionRequest).core().prepared(ChatSettings(), Dialect())
        assert asked.settings.sampling == expected
    for declared in (LoadRequest, LoadOptions):
        assert get_type_hints(declared)[each.key] == each.kind | None


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 1e-8, {"temperature": 0.0}),
        ("temperature", 1e-6, {"temperature": 1e-6}),
        ("repeat_last_n", -1, {"repeat_last_n": MOST_WHOLE}),
        ("seed", -1, {"seed": None}),
        ("seed", -5, {"seed": MOST_WHOLE - 4}),
        ("seed", -MOST_WHOLE - 1, {"seed": 0}),
    ],
)
def test_a_value_that_other_programs_take_is_taken_in_requests(
    field: str, value: float, expected: dict[str, float]
) -> None:
    body = json.dumps({"prompt": "a", field: value}).encode()
    asked, _ = parsed(body, CompletionRequest).core().prepared(ChatSettings(), Dialect())
    assert asked.settings.sampling == SamplingParams(**expected)  # type: ignore[arg-type]
    assert asked.settings.repeatable == (field == "seed" and value != -1)


def test_a_top_p_of_nothing_in_a_request_keeps_the_best_token() -> None:
    body = json.dumps({"prompt": "a", "top_p": 0, "temperature": 1, "top_k": 0}).encode()
    asked, _ = parsed(body, CompletionRequest).core().prepared(ChatSettings(), Dialect())
    logits = np.zeros(1000, dtype=np.float32)
    logits[7] = 1e-3
    assert Sampler(asked.settings.sampling).row(logits, []).ids.tolist() == [7]


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_p", -0.1), ("top_p", 1.1), ("temperature", -1), ("repeat_last_n", -2)],
)
def test_a_value_that_means_nothing_is_refused_in_requests(field: str, value: float) -> None:
    core = parsed(json.dumps({"prompt": "a", field: value}).encode(), CompletionRequest).core()
    with pytest.raises(Refusal, match="cannot be"):
        core.prepared(ChatSettings(), Dialect())


def test_a_setting_of_the_chain_is_declared_once() -> None:
    """Elsewhere its name only declares a type, or is computed with; no surface repeats it."""
    names = {name for name in CHAIN if "penalty" in name} | {"typical_p", "repeat_last_n"}
    package = Path(localspec.__file__).parent

    def spells(source: str) -> bool:
        likely = any(name in source.replace("-", "_") for name in names)  # parsing takes its time
        return likely and not names.isdisjoint(spelt(ast.parse(source)))

    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if spells(path.read_text(encoding="utf-8"))
    }
    assert found == {
        "engine/round/params.py",
        "engine/round/acceptance.py",
        "engine/round/sampling.py",
        "loading/load_request.py",
    }


def spelt(tree: ast.Module) -> Iterator[str]:
    """The identifiers and whole strings of a file, those of options as identifiers."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text.lstrip("-").replace("-", "_")
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name


def test_several_biases_of_one_token_add_up() -> None:
    given = parse("-l", "5+1", "-l", "5+2", "-l", "6+1", "-l", "6-inf")
    assert chat_settings(given).sampling.logit_bias == {5: 3.0, 6: -math.inf}


def test_the_defaults_are_the_chains() -> None:
    settings = chat_settings(parse())
    assert settings.sampling == SamplingParams()
    assert settings.lenience is None
    assert settings.grammar == ""
    assert lossy_words(settings.lenience) == ""


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (ChatSettings(sampling=SamplingParams(temperature=0)), Accept.MATCH),
        (ChatSettings(sampling=SamplingParams(temperature=0, seed=1), repeatable=True), "match"),
        (ChatSettings(sampling=SamplingParams(seed=1), repeatable=True), Accept.COUPLED),
        (ChatSettings(), Accept.BLOCK),
        (ChatSettings(accept=Accept.TOKEN, repeatable=True), Accept.TOKEN),
    ],
)
def test_the_rule_where_none_is_chosen(settings: ChatSettings, rule: Accept) -> None:
    assert settings.rule == rule


def test_a_lossy_rule_is_called_lossy_where_speed_is_shown() -> None:
    for reason in set(GammaReason) - {GammaReason.OFF}:
        assert gamma_words(GammaNote(reason, lenience=0.5)).endswith(", lossy 0.5")
        assert "lossy" not in gamma_words(GammaNote(reason))


def test_files_and_schemas(tmp_path: Path) -> None:
    grammar, schema = tmp_path / "a.gbnf", tmp_path / "a.json"
    grammar.write_text('root ::= "é"', encoding="utf-8")
    schema.write_text('{"type": "boolean"}', encoding="utf-8")
    assert chat_settings(parse("--grammar-file", str(grammar))).grammar == 'root ::= "é"'
    by_file = chat_settings(parse("-jf", str(schema))).grammar
    assert by_file == chat_settings(parse("-j", '{"type": "boolean"}')).grammar
    assert "true" in by_file


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temp", "-1"],
        ["--temp", "nan"],
        ["--temp", "inf"],
        ["--top-p", "2"],
        ["--min-p", "-1"],
        ["--typical-p", "0"],
        ["--repeat-penalty", "0"],
        ["--repeat-penalty", "nan"],
        ["--presence-penalty", "inf"],
        ["--grammar", "root ::= ("],
        ["--grammar", ""],
        ["-j", "{"],
        ["-j", '{"type": "integer", "not": {}}'],
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        chat_settings(parse(*arguments))


def run(*arguments: str) -> str:
    draft = toy.DRAFT
    target = toy.TARGET
    result = CliRunner().invoke(
        run_command,
        [str(target), "--draft", str(draft), "-t", "1", *arguments],
        env={"LOCALSPEC_ENGINE": "inline"},
    )
    assert result.exception is None, result.output
    return str(result.stdout) + str(result.stderr)


@pytest.mark.slow
def test_a_bias_on_a_token_that_is_not_there() -> None:
    target = toy.TARGET
    result = CliRunner().invoke(run_command, [str(target), "-p", "x", "-l", "99999999+1"])
    assert isinstance(result.exception, UsageError)
    assert "99999999" in str(result.exception)


def test_a_trace_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    document = json.loads(
        run("-p", "A dog", "--seed", "3", "-n", "30", "--json", "--trace", str(path))
    )
    with path.open(encoding="utf-8") as lines:
        trace = read_trace(lines)
    assert rederive(trace)[: len(document["tokens"])] == document["tokens"]
    assert trace.about["accept"] == "coupled"
    assert trace.about["seed"] == 3


@pytest.mark.slow
def test_an_answer_of_a_schema_and_the_lossy_mark() -> None:
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
    output = run("-p", "A dog", "-j", schema, "--lossy", "0.5", "--stats")
    answer, _, figures = output.partition("\n")
    assert isinstance(json.loads(answer)["ok"], bool)
    generated = next(line for line in figures.splitlines() if line.startswith("generated"))
    assert "lossy 0.5" in generated
