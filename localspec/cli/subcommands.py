"""The `localspec` command: its sub-commands by name, loaded only when one of them runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click

from localspec import __version__
from localspec.cli.memory_limit import limited
from localspec.cli.questions import is_question
from localspec.cli.settings_file import FILE, SettingsFile, read, settings_of
from localspec.cli.standard_streams import refuse_nothing
from localspec.errors import (
    EXIT_INTERRUPTED,
    Cancelled,
    Ended,
    LocalspecError,
    OutOfMemory,
    exit_code,
    lacks_memory,
    of_system,
)
from localspec.pairs.disk.folders import config_folder
from localspec.safe_text import one_line, safe

# name -> (module, one line for `localspec --help`). The lines stand here so that the help
# can be printed without importing what the commands need.
COMMANDS = {
    "chat": ("localspec.cli.answers.chat", "Chat in the terminal."),
    "run": ("localspec.cli.answers.run", "Answer one prompt on standard output."),
    "serve": (
        "localspec.cli.answers.serve",
        "Answer other programs (OpenAI's and Anthropic's protocols).",
    ),
    "pull": ("localspec.cli.models.pull", "Download a target, and its draft if it has one."),
    "list": ("localspec.cli.models.list", "List pairs and other programs' models, and what fits."),
    "show": (
        "localspec.cli.models.show",
        "Show a pair's vocabulary check, memory, licence and speed.",
    ),
    "tune": (
        "localspec.cli.machine.tune",
        "Measure this machine, and the draft length that follows.",
    ),
    "bench": ("localspec.cli.machine.bench", "Measure speculation off against on."),
    "logs": ("localspec.cli.answers.logs", "Show what was asked and answered."),
    "ps": ("localspec.cli.machine.ps", "Show the running localspec processes, and their memory."),
    "train": ("localspec.cli.models.train", "Train a head that drafts for one's own target."),
    "doctor": ("localspec.cli.machine.doctor", "Look at this machine, and say what would help."),
    "worker": (
        "localspec.cli.machine.worker",
        "Lend this machine's memory and devices to another one.",
    ),
    "rm": ("localspec.cli.models.rm", "Remove a pair and what only it uses."),
}
# Other programs' names for them.
ALSO = {"ls": "list", "models": "list"}
_ENDS = (
    " A pair is loaded as long as its program runs: /unload or /quit in the chat, Ctrl+C or"
    " `kill PID` for serve; localspec ps lists what runs."
)
_INSTEAD = {"stop": _ENDS, "unload": _ENDS}  # what needs no command here


COMPLETES = "_LOCALSPEC_COMPLETE"
"""The variable by which a shell asks click for completion."""

_LONGEST = 450  # characters of a message; the line has more around it

LEAST = 200_000_000
"""Bytes for numpy, llama.cpp's libraries, one thread, and an error message."""

# Those that need llama.cpp.
_WITH_ENGINE = {*COMMANDS} - {"pull", "logs", "ps", "rm"}


def _command(name: str) -> click.Command:
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    return command


def _all_settings() -> dict[str, list[click.Parameter]]:
    """The parameters that each setting has, of all commands."""
    found: dict[str, list[click.Parameter]] = {}
    for command in map(_command, COMMANDS):
        for name, parameter in settings_of(command).items():
            found.setdefault(name, []).append(parameter)
    return found


class LateGroup(click.Group):
    """A click group that imports a sub-command's module when it is called, not before."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; if its reader (head, less) goes away, that is not a failure."""
        ctx.obj = read(config_folder() / FILE)
        try:
            result: object = super().invoke(ctx)
            if sys.stdout is not None:  # None if it was closed (>&-)
                sys.stdout.flush()
        except BrokenPipeError:
            return 0
        except Ended as error:  # here: click would write to a terminal that may be gone
            return exit_code(error)
        return result

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command; say where one stands that only commands have."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            for name in ("run", *COMMANDS):
                if any(option in each.opts for each in _command(name).params):
                    ctx.fail(f"{option} follows a command: localspec {name} {option} ...")
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The command names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of `cmd_name` and return its command."""
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is about to run, and take its defaults from the settings file.

        Checks that memory suffices for its imports. A question alone goes to `run`.
        """
        if args and is_question(args[0]):
            args = ["run", *args]
        elif args:
            args = [ALSO.get(args[0], args[0]), *args[1:]]
        if args and args[0] in _WITH_ENGINE:
            require_memory()
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            _refuse(ctx, args)
        name, command, rest = super().resolve_command(ctx, args)
        # Not for the shell's completion, which never calls `invoke` and needs no values.
        if name is not None and command is not None and not ctx.resilient_parsing:
            ctx.default_map = {name: self._defaults(ctx, command)}
        return name, command, rest

    def _defaults(self, ctx: click.Context, command: click.Command) -> dict[str, Any]:
        """The defaults for `command` from the settings file, whose faults are reported."""
        settings: SettingsFile = ctx.obj
        found = settings.defaults(command, _all_settings)
        settings.check_tables(COMMANDS)
        for problem in settings.problems:
            click.echo(f"warning: {_fit(problem)}", err=True)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the command list from the table above, so that nothing is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _refuse(ctx: click.Context, words: list[str]) -> None:
    """Fail because the command does not exist, and name the one that may have been meant."""
    import difflib  # noqa: PLC0415 - not for `--help`

    near = difflib.get_close_matches(words[0].lower(), [*COMMANDS, *ALSO], n=1)
    if words[0].lower() in _INSTEAD:
        meant = _INSTEAD[words[0].lower()]
    elif near:
        meant = f" Did you mean {near[0]}?"
    elif len(words) > 1:
        meant = ' A question stands in quotes: localspec "why is the sky blue?"'
    else:
        word = one_line(words[0], 60)
        meant = f' To open a pair: localspec chat {word}. To ask: localspec run -p "{word}"'
    ctx.fail(f"No such command {words[0]!r}.{meant}")


def _install(ctx: click.Context, _option: click.Parameter, shell: str | None) -> None:
    """Have a shell complete commands and options, then leave."""
    if shell is None or ctx.resilient_parsing:
        return
    from localspec.cli.shell_completion import install  # noqa: PLC0415 - seldom

    click.echo(install(shell, ctx.command, COMPLETES))
    ctx.exit()


@click.group(
    cls=LateGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `localspec chat`: a small model, the starter, answers. A question in"
    ' quotes is answered at once: localspec "Write a Python function that reverses a string."',
)
@click.version_option(__version__, prog_name="localspec")
@click.option(
    "--install-completion",
    is_flag=False,
    flag_value="",
    metavar="[SHELL]",
    expose_value=False,
    is_eager=True,
    callback=_install,
    help="Have bash, zsh or fish complete commands and options.  [default: the shell in use]",
)
def cli() -> None:
    """Local chat with speculative decoding: a draft guesses, the target checks, the text stays."""


def require_memory() -> None:
    """Refuse to go on if importing numpy or llama.cpp would abort for lack of memory.

    Raises:
        OutOfMemory: the limit leaves too little.
    """
    from localspec import formats, machine  # noqa: PLC0415 - not for `--help`

    left = machine.address_space_left()
    if left is None:
        return
    # Its threads take address space, and nothing here uses linear algebra.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if left < LEAST:
        raise OutOfMemory(
            f"localspec itself needs {formats.size(LEAST)} of memory, this process may take"
            f" {formats.size(left)}",
            "Raise the limit (ulimit -v).",
        )


def main() -> NoReturn:
    """Run the command line, and exit with the code of its error."""
    refuse_nothing()
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        text = shown.getvalue().rstrip()
        whole = isinstance(error, click.exceptions.NoArgsIsHelpError)  # all commands
        click.echo(text if whole else _fit(text), err=True)
        code = error.exit_code
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except BaseException as error:
        code = report(error)
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    sys.exit(code if isinstance(code, int) else 0)


def _let_go(stream: TextIO | None) -> None:
    """Flush a stream, or discard its rest: Python flushes it at exit, which must not fail."""
    if stream is None:
        return
    try:
        stream.flush()
    except ValueError:  # closed
        return
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report(error: BaseException) -> int:
    """Print `error` for a person on standard error; return its exit code."""
    if isinstance(error, LocalspecError):
        _say(error.message, error.remedy)
    elif lacks_memory(error):
        of_card = isinstance(error, RuntimeError) and "CPUAllocator" not in str(error)
        limit = ", or raise the limit (ulimit -v)" if limited() and not of_card else ""
        _say("there is not enough memory", f"Close other programs{limit}.")
    elif (said := of_system(error)) is not None:
        _say(*said)
    elif isinstance(error, KeyError | ValueError) and COMPLETES in os.environ:
        _say(f"{COMPLETES} is set, and no shell asks for completion", "Unset it.")
    elif isinstance(error, Exception) and not isinstance(error, Cancelled):
        _say(
            _fit(f"localspec has a fault: {type(error).__name__}: {error}"),
            "Please report it, with what LOCALSPEC_TRACEBACK=1 prints.",
        )
        if os.environ.get("LOCALSPEC_TRACEBACK"):
            traceback.print_exception(error)
    return exit_code(error)


def _say(message: str, remedy: str) -> None:
    with suppress(OSError):  # if standard error is full as well, the message is lost
        click.echo(f"error: {message}", err=True)
        if remedy:
            click.echo(f"  {remedy}", err=True)


def _fit(text: str) -> str:
    """`text` made safe, its lines kept, its middle left out where it is long."""
    text = safe(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 151]}…{text[-150:]}"
