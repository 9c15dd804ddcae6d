"""All commands of the app, in one table for keys, slash commands, palette and help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk.folders import user_path
from localspec.ui.commands import command_actions as actions
from localspec.ui.commands import parameters
from localspec.ui.commands.command import Command, named, parse
from localspec.ui.commands.command_context import CommandContext
from localspec.ui.conversation.engine_phase import (
    GONE,
    IDLE,
    LOADABLE,
    LOADED,
    WHOLE,
    EnginePhase,
)
from localspec.ui.screens.themes import themes


def split(text: str, *, begun: bool = False) -> tuple[str, str]:
    """Split the input into the part that stays and the part that is entered.

    All of it is entered, or only a command on the last line. There only a whole name counts,
    because a message may end in a path; words may follow it if the line was `begun` as a command.
    """
    before, _, last = text.rpartition("\n")
    name, _, argument = last.partition(" ")
    known = name.startswith("/") and named(name[1:], COMMANDS) is not None
    alone = begun or not (argument or parse(text, COMMANDS))
    return (before, last) if before.strip() and known and alone else ("", text)


def find(name: str) -> Command[CommandContext]:
    """The command called `name`, or the only one that begins like it.

    Own names go before others: /ex is /export, although /exit quits.

    Raises:
        UsageError: there is none, or several begin like it.
    """
    if (command := named(name, COMMANDS)) is not None:
        return command
    close = [one for one in COMMANDS if name and one.name.startswith(name)]
    close = close or [one for one in COMMANDS if name and f" {name}" in f" {one.also}"]
    if len(close) == 1:
        return close[0]
    if close:
        names = ", ".join(f"/{command.name}" for command in close)
        raise UsageError(f"/{name} could mean {names}", "Type one more letter.")
    known = [each for command in COMMANDS for each in command.names]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"there is no command /{name}" + (f"; did you mean /{near[0]}?" if near else ""),
        "/help lists all commands; two slashes send a message that begins like one: //text.",
    )


def run(app: CommandContext, name: str, argument: str) -> None:
    """Run the command called `name`; the conversation shows why it could not."""
    try:
        command = find(name)
        if argument and not command.argument:
            raise UsageError(f"nothing may follow /{name}", f"Say /{name} alone.")
        command.run(app, argument)
    except LocalspecError as error:
        app.transcript.say_error(error)


def may_run(name: str, argument: str, phase: EnginePhase) -> bool:
    """Whether the engine lets a command run now; one that does not exist says so when run."""
    try:
        command = find(name)
    except UsageError:
        return True
    return phase in command.when or (command.bare and not argument)


# Whether a command has anything to do: the palette offers only those that have.


def _answered(app: CommandContext) -> bool:
    """Whether there is an answer, or the beginning of one."""
    last = app.transcript.last_answer()
    return last is not None and bool(last.text)


def _begun(app: CommandContext) -> bool:
    """Whether this conversation has messages."""
    return bool(app.turns.record.nodes())


def _has_version(app: CommandContext, by: int) -> bool:
    """Whether there is a version before (-1) or after (1) the shown one."""
    place = app.library.newest()
    return place is not None and 1 <= place.version + by <= place.versions


def _drafted(app: CommandContext) -> bool:
    """Whether the pair in use has a drafter."""
    session = app.engine.info
    return session is not None and not session.speculation_note


def _known(app: CommandContext) -> bool:
    """Whether it is known how the last answer was drafted."""
    try:
        app.turns.number_of(0)
    except UsageError:
        return False
    return True


COMMANDS: tuple[Command[CommandContext], ...] = (
    Command("help", "", "keys and commands", lambda app, _: app.show_help(), "?", "f1", "Help"),
    Command(
        "speculation", "[on|off]", "switch drafting off or on, also in the middle of an answer",
        actions.speculation, "drafting", "f2,ctrl+t", "Drafting", when=LOADED,
        able=_drafted,
    ),
    Command(
        "origin", "",
        "show answers as they were written, marks and thoughts too, and who proposed each piece",
        actions.origin, "raw", "f3,ctrl+o", "Origin",
    ),
    Command(
        "panel", "[full|compact|off|auto]",
        "size of the figures panel; auto follows the size of the terminal",
        actions.panel, keys="f4,ctrl+g", footer="Panel",
    ),
    Command(
        "regen", "", "answer the last message again",
        actions.regenerate, "retry", "f5,ctrl+r", "Again", when=IDLE | GONE,
        able=lambda app: (
            not app.engine.alive or app.turns.record.question_before(None) is not None
        ),
    ),
    Command(
        "history", "[WORDS|FILE]",
        "stored conversations: search, open, rename, delete, export; open the latest with WORDS,"
        " or read an exported FILE",
        actions.history, "load resume", "f7,ctrl+l", "History", when=IDLE, bare=True,
    ),
    Command(
        "edit", "", "change an earlier message; again for the one before",
        lambda app, _: app.turns.edit_earlier(), keys="f8", footer="Edit", when=IDLE,
        able=lambda app: app.turns.earlier_question() is not None,
    ),
    Command(
        "earlier", "", "go back to an earlier version of an answer or a message",
        lambda app, _: app.library.step_newest(-1), keys="f9,alt+left", when=IDLE,
        able=lambda app: _has_version(app, -1),
    ),
    Command(
        "later", "", "go on to a later version",
        lambda app, _: app.library.step_newest(1), keys="f10,alt+right", when=IDLE,
        able=lambda app: _has_version(app, 1),
    ),
    Command(
        "copy", "[N|code [N]]", "copy the last answer, an earlier one, or a block of code",
        actions.copy, keys="f6", footer="Copy", able=_answered,
    ),
    Command(
        "read", "FILE", "put a text file into the message; @FILE in a message does too",
        actions.read,
    ),
    Command(
        "pairs", "[NAME]", "browse, pull and remove pairs, change to another",
        actions.pairs, "models model", "f12", "Pairs", when=LOADABLE, bare=True,
        words=lambda app: app.pairs.names(),
    ),
    Command(
        "get", "[NAME]",
        "fetch the pair proposed for this machine and change to it; with NAME that one",
        lambda app, name: app.pairs.get(name), "pull", "ctrl+f", able=lambda app: app.offers_pair,
        words=lambda app: app.pairs.names(),
    ),
    Command(
        "twice", "[PROMPT]",
        "answer the last message without and with drafting, side by side; with PROMPT that one",
        actions.twice, keys="ctrl+b", footer="Compare", when=IDLE,
        able=lambda app: _drafted(app) and (_begun(app) or bool(app.prompt.text.strip())),
    ),
    Command(
        "round", "[N]", "look inside a round of an answer: guesses, checks and why, in slow motion",
        actions.show_rounds, keys="ctrl+s,alt+r", footer="Rounds", when=LOADED, able=_known,
    ),
    Command(
        "system", "[TEXT|none]", "show or set the system prompt", actions.system, when=LOADED,
    ),
    Command(
        "preset", "[NAME|save NAME|forget NAME]", "system prompts that are kept, by name",
        actions.preset, when=LOADED, words=lambda _: list(parameters.presets()),
    ),
    Command(
        "draft", "[NAME|auto|lookup|mtp|none]", "show what can draft for this target, or choose it",
        actions.draft, when=LOADABLE,
        words=lambda app: [str(path) for path in app.pairs.next_to_target()],
    ),
    Command(
        "forget", "", "delete what lookup copies of earlier conversations", actions.forget,
    ),
    Command(
        "mcp", "[add|list|remove|on|off …]",
        "MCP servers, whose tools a model may call: add NAME COMMAND …|URL, list, remove NAME,"
        " on or off NAME [TOOL]",
        actions.mcp,
        words=lambda _: ["add ", "list", "remove ", "on ", "off "],
    ),
    Command(
        "tune", "", "measure thoroughly what this pair costs here",
        lambda app, _: app.measuring.tune(), when=IDLE,
    ),
    Command(
        "bench", "[FILE]", "what drafting brings to each kind of text; FILE takes the report",
        lambda app, name: app.measuring.bench(user_path(name) if name else None), when=IDLE,
    ),
    Command(
        "unload", "", "give the memory back; the next message loads the models again",
        lambda app, _: app.pair_loader.unload(), when=IDLE | GONE,
        able=lambda app: app.engine.info is not None,
    ),
    Command(
        "show", "", "what answers: the models, the system prompt, all parameters",
        actions.show, when=LOADED,
    ),
    Command("stats", "", "figures of the whole conversation", actions.stats),
    Command(
        "gamma", "[N|auto]", "show or set how many tokens are drafted", actions.gamma, when=LOADED,
    ),
    Command(
        "set", "[NAME VALUE]", "show or set any parameter: of sampling, n-predict, stop, ctx-size",
        actions.set_parameter, when=LOADED,
        words=lambda _: [
            f"{name} " for name in (*parameters.NAMES, "ctx-size", "exact", *parameters.ALSO)
        ],
    ),
    Command(
        "temp", "[NUMBER]", "show or set the temperature, 0 is greedy", actions.temperature,
        when=LOADED,
    ),
    Command(
        "think", "[HOW]",
        "show or set how a model thinks: off, on, low, medium, high, budget N (tokens), auto",
        actions.think, when=LOADED,
        words=lambda app: (
            parameters.ways_to_think(app.engine.info.dialect.thinking) if app.engine.info else ()
        ),
    ),
    Command(
        "thoughts", "",
        "open or fold what a model thinks before it answers, attached files and long pastes",
        actions.thoughts, keys="f11,alt+t",
    ),
    Command(
        "title", "[TEXT]", "show or set the title of this conversation", actions.title,
        able=_begun,
    ),
    Command(
        "export", "[md|json] [FILE]", "write this conversation to a file", actions.export,
        "save", when=WHOLE, able=_begun,
    ),
    Command(
        "import", "FILE", "read an exported conversation, Markdown or JSON",
        actions.import_file, when=IDLE,
    ),
    Command(
        "compact", "", "have the model sum the conversation up and go on from there",
        lambda app, _: app.turns.compact(), when=IDLE, able=_begun,
    ),
    Command(
        "clear", "", "begin a new conversation", lambda app, _: app.library.begin_new(),
        "new reset", when=IDLE,
    ),
    Command(
        "theme", "[NAME]", "choose the colours", actions.theme, "themes",
        words=lambda _: themes(),
    ),
    Command("quit", "", "leave", lambda app, _: app.leave(), "exit bye", "ctrl+q", "Quit"),
)  # fmt: skip


def with_keys(keys: Mapping[str, str]) -> tuple[Command[CommandContext], ...]:
    """The table with other keys, by the command's name."""
    return tuple(replace(one, keys=keys.get(one.name, one.keys)) for one in COMMANDS)


# Commands that also work while a dialogue is open. The rest would act on the screen under it.
EVERYWHERE = ("help", "theme", "quit")


def hints(commands: Sequence[Command[CommandContext]]) -> list[tuple[str, str]]:
    """The keys that work on every screen, and what they do."""
    shown = (one for one in commands if one.name in EVERYWHERE and one.footer)
    return [(one.shown, one.footer.lower()) for one in shown]
