"""The settings file: every option has a setting, and what is wrong is told and left out."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from localspec.bench import prompt_sets
from localspec.bench.prompt_sets import BenchRequest
from localspec.chat.history.store import Store
from localspec.chat.history.tree import ConversationHeader, PairReference
from localspec.chat.settings import ChatSettings
from localspec.cli import settings_file, stored_conversations
from localspec.cli.answers import chat
from localspec.cli.option_types import UserFile
from localspec.cli.settings_file import read, settings_of
from localspec.cli.shared_options import shared_options
from localspec.cli.subcommands import COMMANDS, _all_settings, cli
from localspec.engine.round.params import SamplingParams
from localspec.errors import Cancelled, ConversationError, ModelFileError
from localspec.loading.load import check
from localspec.loading.load_request import LoadRequest
from localspec.train.train_request import TrainRequest
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.commands import command_table
from localspec.ui.launch import remember
from localspec.ui.screens.themes import themes
from tests.support import toy
from tests.support.chat_pilot import Chat
from tests.support.inline import inline
from tests.support.scripted_session import ScriptedSession


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    return tmp_path / settings_file.FILE


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[LoadRequest]:
    """What `localspec run` gets, without running it."""
    found: list[LoadRequest] = []

    @click.command(name="run")
    @shared_options
    @click.option("--stats", is_flag=True)
    def command(options: LoadRequest, stats: bool) -> None:
        found.append(options)
        click.echo(f"stats {stats}")

    monkeypatch.setattr(importlib.import_module(COMMANDS["run"][0]), "command", command)
    return found


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["run", *arguments], catch_exceptions=False)


def test_a_file_may_be_named_by_way_of_the_home_folder(
    config: Path, seen: list[LoadRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    config.write_text('chat-template = "~/mine.jinja"\nlora = "~/a.gguf"\n')
    assert run().output == "stats False\n"
    assert seen[-1].chat_template == "{{ messages }}"
    with pytest.raises(ModelFileError) as refused:
        check(replace(seen[-1], pair=str(toy.TARGET)))
    assert refused.value.message.startswith(f"{tmp_path / 'a.gguf'} ")
    assert UserFile().convert("~/keys", None, None) == tmp_path / "keys"


def test_settings_are_defaults_and_the_command_line_comes_first(
    config: Path, seen: list[LoadRequest]
) -> None:
    config.write_text(
        'temp = 0.25\ntop_k = 7\nsystem-prompt = "Be brief."\nstop = ["a", "b"]\n'
        'pair = "other"\nlogit-bias = "5-inf"\ngamma = 4\ngrammar = "root ::= \\"a\\""\n'
        "[run]\nstats = true\nseed = 3\n[chat]\nseed = 4\n"
    )
    done = run("--top-k", "9")
    assert done.exit_code == 0
    assert done.output == "stats True\n"
    options = seen[0]
    assert (options.temp, options.top_k, options.seed) == (0.25, 9, 3)
    assert (options.system_prompt, options.stop, options.pair) == ("Be brief.", ("a", "b"), "other")
    assert options.logit_bias == ((5, float("-inf")),)
    assert options.gamma == 4
    run("mine")
    assert seen[1].pair == "mine"
    run("--target", "mine", "--json-schema", "{}")
    assert seen[2].pair == "mine"
    assert seen[2].grammar is None
    assert seen[2].json_schema == "{}"


@pytest.mark.parametrize("setting", ["continue = true", 'resume = "rivers"'])
def test_a_file_that_goes_on_lets_a_first_conversation_begin(
    config: Path, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[str | None] = []
    told: list[str] = []

    def run_app(_: object, *, resume: str | None, appearance: Appearance, **__: object) -> str:
        resumed.append(resume)
        told.extend(appearance.problems)
        return ""

    config.write_text(f"[chat]\n{setting}\n")
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    monkeypatch.setattr("localspec.process.engine_client.EngineClient", lambda _: None)
    monkeypatch.setattr("localspec.ui.launch.run_app", run_app)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    begun = CliRunner().invoke(cli, ["chat"])
    assert not begun.exception
    assert resumed == [None]
    assert ["line 2: " in line for line in told] == [True] * setting.startswith("resume")
    refused = CliRunner().invoke(cli, ["chat", "--resume", "lakes"])
    assert isinstance(refused.exception, ConversationError)


def test_typed_settings_are_told_apart_for_a_conversation_that_goes_on(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str | None, frozenset[str]]] = []

    def run_app(_: object, *, resume: str | None, typed: frozenset[str], **__: object) -> str:
        told.append((resume, typed))
        return ""

    config.write_text("top-k = 3\n")
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    monkeypatch.setattr("localspec.process.engine_client.EngineClient", lambda _: None)
    monkeypatch.setattr("localspec.ui.launch.run_app", run_app)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    with closing(Store(stored_conversations.archive())) as store:
        store.save(ConversationHeader("c", "lakes", PairReference()), [], None)
    given = ["--temp", "0", "--seed", "42", "--json-schema", "{}", "--lossy", "0.5", "--stop", "a"]
    given += ["--repeat-penalty", "1", "--system-prompt", "x", "--gamma", "2", "-n", "-1"]
    CliRunner().invoke(cli, ["chat", "--continue", *given], catch_exceptions=False)
    ((resume, typed),) = told
    assert resume == "c"
    fields = {"temperature", "seed", "repeatable", "grammar", "lenience", "accept", "stop"}
    fields |= {"repeat_penalty", "system_prompt", "gamma", "n_predict"}
    known = (*dataclasses.fields(ChatSettings), *dataclasses.fields(SamplingParams))
    assert typed & {field.name for field in known} == fields


def test_what_is_typed_comes_before_what_it_excludes_in_the_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(
        "[train]\nhours = 2\nresume = true\n"
        '[bench]\ndrafts = "lookup,none"\nprompts = "own.jsonl"\nrepeat = 3\n'
    )
    trained: list[TrainRequest] = []
    measured: list[tuple[LoadRequest, BenchRequest]] = []

    def train(request: TrainRequest, _: object) -> None:
        trained.append(request)
        raise Cancelled

    def measure(options: LoadRequest, request: BenchRequest, *_: object, **__: object) -> None:
        measured.append((options, request))
        raise Cancelled

    monkeypatch.setenv("LOCALSPEC_ENGINE", "inline")
    monkeypatch.setattr("localspec.train.pipeline.train", train)
    monkeypatch.setattr("localspec.bench.benchmark.bench_pair", measure)
    CliRunner().invoke(cli, ["train", "any", "--tokens", "9", "--anew"])
    assert (trained[0].tokens, trained[0].hours, trained[0].resume) == (9, None, False)
    share = str(tmp_path / "mine.json")
    CliRunner().invoke(cli, ["bench", "toy", "--draft", "lookup", "--share", share])
    options, request = measured[0]
    assert (options.draft, request.drafts, request.repeats) == ("lookup", (), 3)
    assert request.prompts == prompt_sets.shipped(prompt_sets.GENERAL)
    compared = CliRunner().invoke(cli, ["bench", "--compare", share, share])
    assert share in str(compared.exception)  # there is none; what the settings file says is dropped


@pytest.mark.parametrize(
    ("written", "typed", "kept"),
    [
        ("lossy = 0.5", ("--accept", "token"), {"accept": "token", "lossy": None}),
        ('accept = "token"', ("--lossy", "0.5"), {"accept": None, "lossy": 0.5}),
        ("cpu-moe = true", ("--n-cpu-moe", "4"), {"cpu_moe": False, "n_cpu_moe": 4}),
        ('flash-attn = "off"', ("--exact",), {"exact": True, "flash_attn": "auto"}),
        ("exact = true", ("--flash-attn", "off"), {"exact": None, "flash_attn": "off"}),
        ("exact = true", ("--flash-attn", "on"), {"exact": True, "flash_attn": "on"}),
        ('cache-type-v = "q8_0"', ("-fa", "off"), {"cache_type_v": None, "flash_attn": "off"}),
        ('flash-attn = "off"', ("-ctv", "f32"), {"cache_type_v": "f32", "flash_attn": "off"}),
        ('split-mode = "tensor"', ("-fa", "off"), {"split_mode": "layer", "flash_attn": "off"}),
    ],
)
def test_what_is_typed_comes_before_shared_settings_that_it_excludes(
    config: Path,
    seen: list[LoadRequest],
    written: str,
    typed: tuple[str, ...],
    kept: dict[str, Any],
) -> None:
    config.write_text(written)
    run(*typed)
    assert {name: getattr(seen[0], name) for name in kept} == kept


def test_an_allowed_tool_in_the_file_waits_for_a_server(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('[run]\nallow-tool = ["read"]')
    empty = CliRunner().invoke(cli, ["run", "-p", " "])
    assert "the prompt is empty" in str(empty.exception)
    monkeypatch.setattr("localspec.process.engine_client.JobClient", lambda: None)
    asked = CliRunner().invoke(cli, ["run", "-p", "hi"])
    assert "--allow-tool" not in asked.output
    refused = CliRunner().invoke(cli, ["run", "-p", "hi", "--allow-tool", "read"])
    assert "--allow-tool needs a server" in refused.output


def test_what_is_wrong_is_told_with_its_line_and_what_is_allowed_and_nothing_stops(
    config: Path, seen: list[LoadRequest]
) -> None:
    config.write_text(
        '# mine\ntemp = "hot"\ntop-p = 3.0\ntemperature = 1\ngamma = 99\naccept = "blocks"\n'
        "threads = true\nmin-p = 0.2\n\n[run]\nstats = 1\nctx-size = [1]\n[rnu]\nx = 1\n"
    )
    done = run()
    assert done.exit_code == 0
    assert seen[0].min_p == 0.2
    assert seen[0].temp == LoadRequest().temp
    for line, text in [
        (2, "temp cannot be 'hot'"),
        (3, "top-p cannot be 3.0"),
        (4, "there is no setting temperature; did you mean temp?"),
        (5, "gamma cannot be 99: '99' is neither auto nor a number from 0 to"),
        (6, "accept cannot be 'blocks'"),
        (7, "threads cannot be true"),
        (11, "stats cannot be 1: true or false"),
        (12, "ctx-size cannot be [1]"),
        (13, "there is no table [rnu]; did you mean run?"),
    ]:
        assert f"{config}, line {line}: {text}" in done.output, done.output
    assert "'match', 'coupled', 'token', 'block'" in done.output
    assert "above 0, up to 1" in done.output
    assert "--temp" not in done.output
    assert done.output.count("warning:") == 9


@pytest.mark.parametrize("name", ["show", "bench", "tune"])
def test_a_value_for_all_commands_that_others_alone_can_use_is_passed_over(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / settings_file.FILE
    path.write_text("ctx-size = 0\nthreads = -1\nn-predict = -1\nseed = -1\nscan = false\n")
    settings, command = read(path), importlib.import_module(COMMANDS[name][0]).command
    assert settings.defaults(command, _all_settings) == {"ctx_size": "0", "scan": False}
    assert not settings.problems


def test_a_value_that_no_command_can_use_or_that_stands_in_the_own_table_is_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / settings_file.FILE
    path.write_text("threads = -2\n[bench]\nthreads = -1\nseed = -1\n")
    settings, command = read(path), importlib.import_module(COMMANDS["bench"][0]).command
    assert settings.defaults(command, _all_settings) == {}
    told = [problem.partition(": ")[2] for problem in settings.problems]
    assert [each.partition(":")[0] for each in told] == [
        "threads cannot be -2",
        "threads cannot be -1",
        "seed cannot be -1",
    ]


@pytest.mark.parametrize("content", [b"temp = ", b"\xff\xff", b"= 3", b"[" * 5000])
def test_a_broken_file_is_told_in_one_line(
    config: Path, seen: list[LoadRequest], content: bytes
) -> None:
    config.write_bytes(content)
    done = run()
    assert done.exit_code == 0
    assert done.output.startswith(f"warning: {config} is not used: ")
    assert len(done.output.splitlines()) == 2
    assert seen == [LoadRequest()]


def test_a_setting_without_a_name_is_told_as_a_setting(
    config: Path, seen: list[LoadRequest]
) -> None:
    config.write_text("'' = 3\n")
    assert "there is no setting ;" in run().output
    assert seen == [LoadRequest()]


def test_no_file_is_no_problem_and_a_folder_in_its_place_one_line(
    config: Path, seen: list[LoadRequest]
) -> None:
    assert run().output == "stats False\n"
    config.mkdir()
    assert "is not used" in run().output


def test_every_option_of_every_command_has_a_setting() -> None:
    for name, (module, _) in COMMANDS.items():
        command: click.Command = importlib.import_module(module).command
        known = {str(parameter.name) for parameter in settings_of(command).values()}
        options = {str(p.name) for p in command.params if isinstance(p, click.Option)}
        # What is asked, where a file goes, what would act at every start, and the other name of
        # PAIR are not settings; nor is whether `run` goes on with a conversation.
        files = {"out", "outputs", "compare", "share", "trace"}
        never = files | {"prompt", "target", "help", "every", "force", "anew", "head"}
        assert options - known <= never | ({"latest"} if name == "run" else set()), name


def test_what_the_command_line_alone_takes_is_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / settings_file.FILE
    path.write_text("force = true\n[worker]\nforce = true\nforc = true\n")
    found, command = read(path), importlib.import_module(COMMANDS["worker"][0]).command
    assert found.defaults(command, dict) == {}
    told = [problem.partition(": ")[2] for problem in found.problems]
    assert told[:2] == ["force is for the command line: --force"] * 2
    assert told[2].startswith("there is no setting forc")


USUAL = {one.name: one.keys for one in command_table.COMMANDS}


@pytest.mark.parametrize(
    ("content", "kept", "told"),
    [
        ('regen = "f1"', {}, "line 2: regen cannot be 'f1': help has that key"),
        ('regen = "f1"\nhelp = "f2"\nspeculation = "alt+s"',
         {"regen": "f1", "help": "f2", "speculation": "alt+s"}, ""),
        ('regen = "alt+x"\ncopy = "alt+x"', {"regen": "alt+x"}, "line 3: copy cannot be"),
        ('help = "f5"\nregen = "f5"', {}, "line 2: help cannot be 'f5': regen has that key"),
        ('clear = "ctrl+n"', {"clear": "ctrl+n"}, ""),
        ('edit = "e"', {}, "line 2: edit cannot be 'e': keys with Ctrl or Alt, or F1 to F24"),
        ('edit = "shift+e"', {}, "keys with Ctrl or Alt"),
        ('edit = "enter"', {}, "keys with Ctrl or Alt"),
        ('edit = "f25"', {}, "keys with Ctrl or Alt"),
        ("edit = []", {}, "keys with Ctrl or Alt"),
        ("edit = 3", {}, "edit cannot be 3"),
        ('edit = "ctrl+m"', {}, "Enter, Tab and Backspace have ctrl+m"),
        ('edit = "shift+f3"', {"edit": "shift+f3"}, ""),
        ('edit = "ctrl+shift+g"', {"edit": "ctrl+shift+g"}, ""),
        ('edit = ["shift+ctrl+g", "ctrl+alt+g"]', {"edit": "ctrl+shift+g,alt+ctrl+g"}, ""),
        ('edit = "super+shift+g"', {"edit": "shift+super+g"}, ""),
        ('edit = "hyper+g"', {}, "keys with Ctrl or Alt"),
        ('edti = "f8"', {}, "there is no setting edti; did you mean edit?"),
    ],
)  # fmt: skip
def test_no_key_is_lost_to_another_command_or_to_typing(
    tmp_path: Path, content: str, kept: dict[str, str], told: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"[keys]\n{content}\n")
    settings = read(file)
    assert settings.keys(USUAL) == kept
    assert told in "".join(settings.problems)
    assert bool(told) == bool(settings.problems)


def test_the_usual_keys_would_all_be_allowed() -> None:
    for keys in filter(None, USUAL.values()):
        assert not settings_file.wrong_keys(keys.split(",")), keys
    assert settings_file.clash(dict(USUAL), USUAL) is None


def test_a_folder_at_home_is_told_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    file = tmp_path / "settings.toml"
    file.write_text("= 3")
    assert read(file).problems[0].startswith(f"~{os.sep}settings.toml is not used: ")


def test_the_file_that_the_documents_show_is_taken_whole(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text("utf-8")
    page = page.partition("\n## ")[0]
    shown = [line for line in page.splitlines() if line.startswith("    ")]
    file = tmp_path / "settings.toml"
    file.write_text(textwrap.dedent("\n".join(shown)), "utf-8")
    settings = read(file)
    for name in ("run", "chat"):
        settings.defaults(importlib.import_module(COMMANDS[name][0]).command, lambda: {"pair": []})
    assert settings.keys(USUAL)["regen"] == "alt+g"
    assert settings.appearance("panel", settings_file.PANELS) == "compact"
    settings.check_tables(COMMANDS)
    assert not settings.problems


def test_keys_and_looks_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        '[keys]\nregen = "ctrl+y"\ncopy = ["f6", "alt+c"]\nnothing = "f1"\nclear = "f99+"\n'
        '[screen]\ntheme = "none"\npanel = "compact"\ncolour = 1\n'
    )
    settings = read(file)
    assert settings.keys(USUAL) == {
        "regen": "ctrl+y", "copy": "f6,alt+c",
    }  # fmt: skip
    assert settings.appearance("theme", themes()) is None
    assert settings.appearance("panel", settings_file.PANELS) == "compact"
    settings.check_tables(COMMANDS)
    text = "\n".join(settings.problems)
    for line in (4, 5, 7, 9):
        assert f"line {line}:" in text
    assert "nord" in text


async def test_a_dialogue_keeps_its_own_keys(tmp_path: Path) -> None:
    session = ScriptedSession()
    appearance = Appearance({"quit": "ctrl+q,ctrl+d"})
    app = ChatApp(
        inline(lambda progress, cancel: session), archive=tmp_path / "c.db", appearance=appearance
    )
    async with app.run_test(size=(120, 60)) as pilot:
        chat = Chat(app, pilot, session)
        await chat.until(chat.ready)
        await chat.ask("a question")
        await chat.press("f7")
        await chat.until(lambda: "1 message" in chat.screen() or "2 messages" in chat.screen())
        await chat.press("ctrl+d")
        await chat.until(lambda: "this conversation is open" in chat.screen(), "what Ctrl+D does")
        assert app.is_running
        await chat.press("ctrl+q")
        await chat.until(lambda: app._exit)
    assert app.library.shut_down()


async def test_other_keys_work_and_are_shown_and_problems_are_on_the_screen() -> None:
    session = ScriptedSession()
    appearance = Appearance(
        {"origin": "ctrl+y", "thoughts": "f3", "title": "ctrl+n"},
        "nord",
        "off",
        ("line 3: wrong",),
    )
    app = ChatApp(inline(lambda progress, cancel: session), appearance=appearance)
    async with app.run_test(size=(120, 60)) as pilot:
        chat = Chat(app, pilot, session)
        await chat.until(lambda: "line 3: wrong" in chat.transcript())
        assert app.theme == "nord"
        assert not app.query_one("#full").display
        await chat.press("f3")
        assert not app.transcript.by_origin
        await chat.press("ctrl+y")
        assert app.transcript.by_origin
        assert "Ctrl+Y Origin" in chat.screen()
        await chat.press("ctrl+n")  # a command that has no key by itself
        await chat.until(lambda: "there is no conversation yet" in chat.transcript())
        await chat.press("f1")
        await chat.until(lambda: "Ctrl+Y" in chat.screen() and "F3, Ctrl+O" not in chat.screen())
    app.engine.shut_down()
    assert app.engine.join(10)


def test_what_is_chosen_in_the_app_stays_until_the_settings_are_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    settings = tmp_path / "settings.toml"
    settings.write_text('[screen]\ntheme = "nord"\n')

    def appearance() -> Appearance:
        return chat._appearance(settings_file.read(settings))

    async def choose() -> None:
        app = ChatApp(inline(lambda _progress, _cancel: ScriptedSession()), appearance=appearance())
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            assert app.theme == "nord"
            assert app.chosen() == {}
            app.theme = "dracula"
            await pilot.pause()
            app.action_command("panel")
            await pilot.pause()
            remember(settings, app.chosen())
        app.engine.shut_down()
        assert app.engine.join(10)

    asyncio.run(choose())
    assert (appearance().theme, appearance().panel) == ("dracula", "compact")
    os.utime(settings, (time.time() + 10,) * 2)
    assert (appearance().theme, appearance().panel) == ("nord", None)
    (tmp_path / "data" / "screen.json").write_text('{"theme": 3')
    os.utime(settings, (1, 1))
    assert appearance().theme == "nord"
