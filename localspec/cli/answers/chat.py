"""`localspec chat`: the chat app in the terminal."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from localspec.cli.option_types import plain_text
from localspec.cli.settings_file import PANELS, SettingsFile
from localspec.cli.shared_options import (
    IDLE_UNLOAD,
    REPEAT_STOP,
    GroupedCommand,
    option,
    shared_options,
    typed,
    typed_settings,
)
from localspec.errors import ConversationError, UsageError
from localspec.loading.load_request import LoadRequest

if TYPE_CHECKING:
    from localspec.chat.history.tree import ConversationHeader
    from localspec.ui.chat_app import Appearance


@click.command(name="chat", cls=GroupedCommand)
@shared_options
@click.option("--continue", "latest", is_flag=True, help="Continue the latest conversation.")
@option(
    "--resume",
    plain_text,
    "Continue the latest conversation that contains all these words.",
    "TEXT",
)
@REPEAT_STOP
@IDLE_UNLOAD
def command(
    options: LoadRequest,
    latest: bool,
    resume: str | None,
    *,
    repeat_stop: bool,
    idle_unload: float,
) -> None:
    """Chat in the terminal.

    PAIR is a short name, a GGUF file or a reference `user/repo[:QUANT]`; without it the pair that
    `chat` or `serve` used last answers, at first the starter. A conversation that is resumed brings
    its pair and its settings along; options that are typed come before them.
    """
    # The screen is drawn on standard error. One that is closed (>&-) is None.
    if not all(one and one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("the chat needs a terminal", _without_terminal())
    options = replace(options, repeat_stop=repeat_stop)
    if latest and resume is not None:
        if typed("latest") is typed("resume"):
            raise UsageError("--continue and --resume exclude each other", "Give one of them.")
        latest, resume = (True, None) if typed("latest") else (False, resume)
    from localspec.cli import stored_conversations  # noqa: PLC0415

    found = _found(resume or "") if latest or resume is not None else None
    if found is not None and not (typed("pair") or typed("target")) and found.pair.target:
        draft = options.draft if typed("draft") else found.pair.draft
        options = replace(options, pair=found.pair.target, draft=draft)
    # Late, like everything heavy: `chat --help` needs neither Textual nor an engine.
    from localspec.process.engine_client import EngineClient  # noqa: PLC0415

    engine = EngineClient(options)  # it imports and loads while this process imports Textual
    from localspec.ui.launch import run_app  # noqa: PLC0415

    appearance = replace(_appearance(click.get_current_context().obj), idle_s=idle_unload)
    shown = run_app(
        engine,
        archive=stored_conversations.archive(),
        resume=found.id if found else None,
        typed=typed_settings() if found else frozenset(),
        appearance=appearance,
    )
    _say_how_to_go_on(shown)


def _without_terminal() -> str:
    if os.name != "nt":
        return "Without one, use: localspec run -p TEXT, or localspec run < FILE."
    if "MSYSTEM" in os.environ:  # Git Bash, whose own window is a pipe to other programs
        way = "Start it in Windows Terminal, or: winpty localspec chat"
        return f"{way}; without a terminal: localspec run -p TEXT"
    return "Without one, use: localspec run -p TEXT"  # PowerShell refuses <


def _found(words: str) -> ConversationHeader | None:
    """The conversation to go on with; None if there is none, and only the settings file asks."""
    from localspec.cli import stored_conversations  # noqa: PLC0415

    try:
        return stored_conversations.latest(words)
    except ConversationError as error:
        if typed("latest") or typed("resume"):
            raise
        settings: SettingsFile | None = click.get_current_context().obj
        if words and settings is not None:
            settings.note("chat", "resume", error.message)
        return None


def _say_how_to_go_on(shown: str) -> None:
    """Name the option that opens this conversation again, if it is the latest."""
    from localspec.cli import stored_conversations  # noqa: PLC0415

    with suppress(ConversationError):
        if shown and stored_conversations.latest().id == shown:
            click.echo("to go on with this conversation: localspec chat --continue", err=True)


def _appearance(settings: SettingsFile | None) -> Appearance:
    """The choices about the screen, from the settings file or later in the app, and its faults."""
    from localspec.ui.chat_app import Appearance  # noqa: PLC0415
    from localspec.ui.commands.command_table import COMMANDS  # noqa: PLC0415
    from localspec.ui.launch import recall  # noqa: PLC0415
    from localspec.ui.screens.themes import themes  # noqa: PLC0415

    if settings is None:
        return Appearance(proposes=True)
    keys = settings.keys({one.name: one.keys for one in COMMANDS})
    appearance = {"theme": themes(), "panel": PANELS}
    found = {name: settings.appearance(name, allowed) for name, allowed in appearance.items()}
    chosen = recall(settings.path)
    found |= {name: value for name, value in chosen.items() if value in appearance.get(name, ())}
    return Appearance(
        keys,
        found["theme"],
        found["panel"],
        problems=tuple(settings.problems),
        settings=settings.path,
        proposes=True,
    )
