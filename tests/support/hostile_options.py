"""Unforeseen values of options and arguments, given to every command one at a time."""

from __future__ import annotations

import io
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from unittest import mock

import click
from huggingface_hub import constants

from localspec.cli.subcommands import COMMANDS, cli, main
from localspec.pairs.disk import starter
from tests.support import toy

LONGEST = 500
# Characters that would mislead a terminal or its reader.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_MISSING = "missing.gguf"
# What stands before and after the options of a command, so that it ends soon; after a pair that is
# missing where there is nothing. Of an option that is given twice the last value counts.
_AROUND: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "": ((), ()),
    "run": (("toy", "-p", "A dog", "-n", "3", "-c", "128", "-t", "1", "--gamma", "2"), ()),
    "bench": (("toy", "-c", "512", "-t", "1"), ("-n", "2", "--repeat", "1", "--kinds", "chat")),
    "show": (("toy",), ()),
    "rm": (("toy",), ()),
    "pull": (("a/b",), ()),
    "worker": ((), ("--host", "8.8.8.8")),  # it would serve until it is killed
    **dict.fromkeys(("list", "logs", "ps", "doctor"), ((), ())),
}
_ESCAPES = (
    *("\x1b[2J", "\x1b]0;owned\x07", "\x1bc", "\x9b31m", "\x07", "\x08", "\r", "\n", "\x7f"),
    *("\u202e", "\u2066", "\ufeff", "\u2028", "\x85", "\udc80\udcff", "\U0001f600", "é́́́"),
)
_NUMBERS = (
    *("-1", "-2", "0", "5.7", "1e400", "nan", "-nan", "inf", "-inf", "0x10", "1_000", "٣", "²"),
    *("9" * 19, "9" * 4301, "-" + "9" * 400, "1e-400", "+5", " 5 ", "5\n", "1,2", "0..99999"),
)
_WORDS = (
    *("", " ", "-", "--", "@file", "~nobody/x", "/", ".", "..", "/dev/null", "auto", "all", "none"),
    *("user/repo", "user/repo:Q4", "a/b@", "a/b:", ":", "a/b/c/d", "http://[", "//x", "C:\\x"),
    *("{}", "[]", '{"$ref": "#"}', "root ::=", "[" * 3000, "%s%n", "{x}", "[bold]x", "\\x1b"),
    *("127.0.0.1:1", ":0", "h:99999", "[::1]:x", "15043+inf", "1+1e999", "CPU0", "f16", "match"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str

    @property
    def wrong(self) -> str:
        """What is wrong; empty if nothing is."""
        return f"exit code {self.code!r}" if self.code not in (1, 2) else self.wrongly_said

    @property
    def wrongly_said(self) -> str:
        """What is wrong in the output, however the command ended; empty if nothing is."""
        if "has a fault" in self.err or "Traceback" in self.err:
            return f"a fault: {self.err[:300]!r}"
        if wild := STEERS.search(self.out + self.err):
            return f"{wild[0]!r} came out: {self.err[:300]!r}"
        told, said, message = self.err.rstrip("\n").partition("error: ")
        longest = max([len(said + message), *map(len, told.split("\n"))])
        return f"{longest} characters" if longest > LONGEST else ""


def value(rng: random.Random) -> str:
    """Something that a shell can hand over: no NUL."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(_NUMBERS)
    if kind == 1:
        return rng.choice(_WORDS)
    if kind == 2:
        return rng.choice(_ESCAPES) * rng.choice([1, 5, 5000])
    if kind == 3:
        return rng.choice(["x", "x/", "a b ", "é", "1", "-", "漢"]) * rng.choice(
            [300, 5000, 100_000]
        )
    parts = (*_ESCAPES, *_NUMBERS[:12], *_WORDS)
    if kind == 4:
        return "".join(rng.choice(parts) for _ in range(rng.randint(2, 12)))
    return "".join(
        chr(rng.choice([rng.randint(1, 255), rng.randint(1, 0xD7FF)])) for _ in range(40)
    )


def _parameters() -> list[tuple[str, click.Parameter | None]]:
    context = click.Context(cli)
    found: list[tuple[str, click.Parameter | None]] = [("", None)]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        own = (each for each in command.params if not getattr(each, "is_flag", False))
        found += [(name, None), *((name, parameter) for parameter in own)]
    return found


def cases(seed: int, count: int) -> Iterator[list[str]]:
    """Command lines of which none can succeed: every parameter of every command in turn.

    Where no parameter is left, the value is an option, or a command, that does not exist.
    """
    rng = random.Random(seed)
    parameters = _parameters()
    rng.shuffle(parameters)
    for number in range(count):
        command, parameter = parameters[number % len(parameters)]
        wild = value(rng)
        if not command:
            yield ["--" + wild] if rng.random() < 0.5 else [wild or "?"]
        elif parameter is None:
            yield [command, rng.choice(["--", "-"]) + (wild.lstrip("-h") or "?")]
        elif isinstance(parameter, click.Argument):
            yield [command, *(["--"] if wild.startswith("-") else []), f"{_MISSING}{wild}"]
        else:
            name = max(parameter.opts, key=len)
            pair = [] if parameter.name in ("pair", "target") else [_MISSING]
            if command == "worker":  # it takes no pair, and would serve until it is killed
                pair = ["--device=none-such" if parameter.name == "host" else "--host=8.8.8.8"]
            extra = ["-p", "hi"] if command == "run" and parameter.name != "prompt" else []
            yield [command, *pair, *extra, f"{name}={wild}"]


def answers(seed: int, count: int) -> Iterator[list[str]]:
    """Command lines of which many succeed: all options of all commands in turn, with others.

    Three of four values are such as the option takes, though not together with all others. Half of
    the command lines are of `run`.
    """
    rng = random.Random(seed)
    every = rng.sample(found := [*options()], len(found))
    of_run = [one for one in every if one[0] == "run"]
    of_others = [one for one in every if one[0] != "run"]
    for number in range(count):
        known = (of_run, of_others)[number % 2]
        command, first = known[number // 2 % len(known)]
        alike = [option for name, option in known if name == command]
        others = rng.sample(alike, min(len(alike), rng.randint(0, 2)))
        words = [word for option in (first, *others) for word in _words(option, rng)]
        begin, end = _AROUND.get(command, ((_MISSING,), ()))
        yield [*([command] if command else []), *begin, *words, *end]


def options() -> Iterator[tuple[str, click.Option]]:
    """The options of all commands; those of `localspec` itself stand under an empty name."""
    context = click.Context(cli)
    for name in ("", *COMMANDS):
        command = cli.get_command(context, name) if name else cli
        assert command is not None
        own = command.get_params(click.Context(command))
        yield from ((name, one) for one in own if isinstance(one, click.Option))


def _words(option: click.Option, rng: random.Random) -> list[str]:
    """An option and what follows it."""
    name = rng.choice([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return [name]
    known = rng.random() < 0.75
    return [name, *(_taken(option, rng) if known else value(rng) for _ in range(option.nargs))]


def _taken(option: click.Option, rng: random.Random) -> str:
    """A value that the option takes by itself."""
    if option.name in ("threads", "threads_batch", "draft_threads"):
        return str(rng.randint(-1, 4))  # more would only take long
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    values = [
        *map(str, choices),
        *(str(rng.randint(-2, 300)), str(rng.randint(0, 9)), f"{rng.uniform(-1, 3):.3f}"),
        *("0", "1", "toy", "lookup", "none", "auto", "A", "CPU", "1,2", "15+1.5", "15-inf"),
        *('root ::= "a"', '{"type": "integer"}', "127.0.0.1:1", os.devnull, "."),
    ]
    rng.shuffle(values)
    return next((each for each in values if _takes(option, each)), os.devnull)


def _takes(option: click.Option, text: str) -> bool:
    with suppress(click.BadParameter):
        option.type.convert(text, option, click.Context(cli))
        return True
    return False


@contextmanager
def nowhere(folder: Path) -> Iterator[None]:
    """Run commands in an empty folder, without the Hub and without the starter's package.

    So a text that reads as a question is refused as well: nothing is there that could answer.
    """
    before = Path.cwd()
    places = {f"LOCALSPEC_{name}": str(folder / name) for name in ("DATA", "CONFIG")}
    places |= {"LOCALSPEC_ENGINE": "inline"}  # no process for each
    places |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    with (
        mock.patch.dict(os.environ, places),
        mock.patch.object(constants, "HF_HUB_OFFLINE", new=True),
        mock.patch.object(constants, "HF_HUB_CACHE", str(folder / "hub")),
        mock.patch.object(starter, "packaged", return_value=None),
    ):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def run(arguments: list[str], given: BinaryIO | None = None) -> Outcome:
    """Run the command line as the console script does, with nothing or a file as input."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    with (
        io.TextIOWrapper(given or io.BytesIO(), "utf-8") as stdin,
        mock.patch.object(sys, "argv", ["localspec", *arguments]),
        mock.patch.multiple(sys, stdout=out, stderr=err, stdin=stdin),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    texts = (each.buffer.getvalue().decode() for each in (out, err))
    return Outcome(code, *texts)


def attack(numbers: range, folder: Path) -> list[str]:
    """Run `count` cases in an empty folder; return what went wrong, a line each."""
    with nowhere(folder):
        found = [(arguments, run(arguments)) for arguments in cases(numbers.start, len(numbers))]
    return _told((given, done.wrong) for given, done in found)


def attack_answers(seed: int, count: int, folder: Path) -> list[str]:
    """The same with `count` command lines that may succeed; the toy is there to answer."""
    found = []
    with nowhere(folder):
        for arguments in answers(seed, count):
            toy.install(folder / "DATA")  # `rm` may have taken it away
            found.append((arguments, run(arguments)))
    return _told(
        (given, done.wrongly_said if done.code == 0 else done.wrong) for given, done in found
    )


def _told(found: Iterable[tuple[list[str], str]]) -> list[str]:
    return [f"{[each[:60] for each in given]}: {wrong}" for given, wrong in found if wrong]
