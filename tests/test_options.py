"""The shared options: names, defaults, and values refused before anything is loaded."""

from __future__ import annotations

import importlib
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from localspec.chat.settings import ChatSettings
from localspec.cli.shared_options import shared_options
from localspec.cli.subcommands import COMMANDS
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import UsageError
from localspec.loading.load import chat_settings
from localspec.loading.load_request import LoadRequest


@click.command()
@shared_options
@click.option("--extra", default="")
def command(options: LoadRequest, extra: str) -> None:
    click.echo(f"{options!r} {extra}")


def parse(*arguments: str) -> LoadRequest:
    seen: list[LoadRequest] = []

    @click.command()
    @shared_options
    def probe(options: LoadRequest) -> None:
        seen.append(options)

    probe.main(list(arguments), standalone_mode=False)
    return seen[0]


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 2
    return result.output


def test_defaults_are_those_of_the_engine() -> None:
    assert chat_settings(parse()) == ChatSettings(sampling=SamplingParams())
    assert parse() == LoadRequest()


def test_every_option_arrives() -> None:
    options = parse(
        *("mine", "--draft", "none", "-c", "512", "-t", "3", "-ngl", "5", "--temp", "0.5"),
        *("--top-k", "9", "--top-p", "0.5", "--min-p", "0.1", "-s", "7", "-n", "20"),
        *("--gamma", "4", "--system-prompt", "Be brief.", "--stop", "a", "--stop", "b"),
    )
    assert options == LoadRequest(
        pair="mine",
        draft="none",
        ctx_size=512,
        threads=3,
        n_gpu_layers=5,
        temp=0.5,
        top_k=9,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        n_predict=20,
        gamma=4,
        system_prompt="Be brief.",
        stop=("a", "b"),
    )
    settings = chat_settings(options)
    assert settings.sampling.seed == 7
    assert (settings.gamma, settings.stop, settings.n_predict) == (4, ("a", "b"), 20)


def test_target_says_the_same_as_pair() -> None:
    assert parse("--target", "x.gguf").pair == parse("x.gguf").pair == "x.gguf"
    with pytest.raises(UsageError, match="the same"):
        parse("a", "--target", "b")


def test_minus_one_means_the_default_as_in_llama_cpp() -> None:
    options = parse("--seed", "-1", "--threads", "-1", "-n", "-1")
    assert (options.seed, options.threads, options.n_predict) == (None, None, -1)


def test_a_given_seed_asks_for_repeatability() -> None:
    assert chat_settings(LoadRequest(seed=3)).repeatable
    assert not chat_settings(LoadRequest()).repeatable


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gamma", "-1"],
        ["--gamma", "64"],
        ["--gamma", "some"],
        ["--gamma", "9" * 5000],
        ["--logit-bias", "9" * 5000 + "+1"],
        ["--gamma", "\u0664"],
        ["--ctx-size", "-1"],
        ["--threads", "9999"],
        ["--n-predict", "-2"],
        ["--seed", "x"],
        ["--accept", "perhaps"],
        ["--lossy", "0"],
        ["--lossy", "1.5"],
        ["--lossy", "nan"],
        ["-l", "5"],
        ["-l", "x+1"],
        ["-l", "5+inf"],
        ["-l", "5+1.2.3"],
        ["--repeat-last-n", "-1"],
        ["--grammar", "a", "-j", "{}"],
        ["--grammar-file", "/no/such/file"],
        ["--system-prompt", "\udcff"],
        ["--stop", "\udcff"],
        ["one", "two"],
        ["--nonsense"],
    ],
)
def test_nonsense_is_wrong_usage(arguments: list[str]) -> None:
    output = refusal(*arguments)
    assert "Usage:" in output
    assert "Traceback" not in output


def test_help_of_run_imports_no_llama_cpp() -> None:
    program = (
        "import sys\n"
        "from localspec.cli import main\n"
        "sys.argv = ['localspec', 'run', '--help']\n"
        "try:\n    main()\n"
        "finally:\n"
        "    print([m for m in ('llama_cpp', 'textual', 'huggingface_hub', 'numpy')"
        " if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "--n-predict" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["run", "chat", "serve", "bench", "tune"])
def test_the_help_has_every_option_once_and_in_groups(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    text = CliRunner().invoke(command, ["--help"]).output
    titles = [title for title in ("Options:", "Models:", "Machine:") if f"\n{title}\n" in text]
    assert titles == ["Options:", "Models:", "Machine:"]
    # The first column: the second one may name other options.
    lines = [line[2:].split("  ")[0].split() for line in text.splitlines() if line[:3] == "  -"]
    shown = [word.rstrip(",") for line in lines for word in line if word.startswith("-")]
    options = [one for one in command.params if isinstance(one, click.Option)]
    for option in options:
        assert shown.count(max(option.opts, key=len)) == 1, option.name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tune", "half a minute for a small model, and some minutes for a large one"),
        ("train", "--anew Begin anew, in place of a training that was stopped."),
        ("bench", "--quick Stop once it is clear for each kind of text whether drafting helps;"),
        ("doctor", "but for the addresses of these workers, can be shown to others."),
        (
            "run",
            "--draft-threads N The draft's CPU threads. [default: --threads unless --exact]",
        ),
        ("run", "--draft-n-gpu-layers N|auto|all The draft's layers on the GPU."),
        ("run", "--draft-device NAMES Devices for the draft. [default: --device]"),
    ],
)
def test_the_help_says_what_holds(name: str, said: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    assert said in " ".join(CliRunner().invoke(command, ["--help"]).output.split())
