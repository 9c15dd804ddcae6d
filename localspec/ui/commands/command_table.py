"""All commands of the app, in one table for keys, slash commands, palette and help."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from localspec.chat.history import import_export
from localspec.chat.states.past_conversations import PAST, clear
from localspec.errors import UsageError
from localspec.pairs.disk.folders import data_folder, is_file, user_path
from localspec.safe_text import one_line, safe
from localspec.ui.commands import availability, parameters
from localspec.ui.commands.command import Command, named
from localspec.ui.commands.command_context import CommandContext
from localspec.ui.conversation.engine_state import (
    IDLE,
    LOADABLE,
    LOADED,
    WHOLE,
    EnginePhase,
)
from localspec.ui.input import extracts
from localspec.ui.panel.dashboard import PanelForm
from localspec.ui.screens import compare
from localspec.ui.screens.history import HistoryScreen
from localspec.ui.screens.rounds import RoundScreen
from localspec.ui.screens.themes import ThemeScreen, themes


def parse(text: str) -> tuple[str, str] | None:
    """Command name and argument when `text` is a slash command; None when it is for the model."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].partition(" ")
    return name.strip().lower(), argument.strip()


def split(text: str, *, begun: bool = False) -> tuple[str, str]:
    """Split the input into the part that stays and the part that is entered.

    All of it is entered, or only a command on the last line. There only a whole name counts,
    because a message may end in a path; words may follow it if the line was `begun` as a command.
    """
    before, _, last = text.rpartition("\n")
    name, _, argument = last.partition(" ")
    known = name.startswith("/") and named(name[1:], COMMANDS) is not None
    alone = begun or not (argument or text.startswith("/"))
    return (before, last) if before.strip() and known and alone else ("", text)


def message_text(text: str) -> str:
    """The message for the model: two slashes at the beginning stand for one."""
    return text[1:] if text.startswith("//") else text


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
        "/help lists all commands; a message that begins with a slash is sent with two: //text.",
    )


def run(app: CommandContext, name: str, argument: str) -> None:
    """Run the command called `name`; the conversation shows its errors.

    Raises:
        UsageError: the command does not exist, or takes no argument.
        LocalspecError: the command failed.
    """
    command = find(name)
    if argument and not command.argument:
        raise UsageError(f"nothing may follow /{name}", f"Say /{name} alone.")
    command.run(app, argument)


def may_run(name: str, argument: str, phase: EnginePhase) -> bool:
    """Whether the engine lets a command run now; one that does not exist says so when run."""
    try:
        command = find(name)
    except UsageError:
        return True
    return phase in command.when or (command.bare and not argument)


def _speculation(app: CommandContext, argument: str) -> None:
    session = app.session()
    wanted = {"": not session.speculation, "on": True, "off": False}.get(argument.lower())
    if wanted is None:
        raise UsageError(f"speculation cannot be “{argument}”", "Say /speculation on or off.")
    if wanted and session.speculation_note:
        raise UsageError(f"speculation is not available: {session.speculation_note}")
    app.engine.speculate(wanted)
    app.say(f"speculation {'on' if wanted else 'off'} from the next round on")


def _origin(app: CommandContext, _argument: str) -> None:
    app.transcript.show_origins(not app.transcript.by_origin)
    app.show_phase()


def _panel(app: CommandContext, argument: str) -> None:
    if argument and argument.lower() not in list(PanelForm):
        raise UsageError(f"the panel cannot be “{argument}”", "Say /panel full, compact or off.")
    app.dashboard.cycle(argument.lower())


def _regenerate(app: CommandContext, _argument: str) -> None:
    if app.engine.alive:
        app.turns.regenerate()
    else:
        # A message lost with the engine goes back into the input.
        app.pair_loader.reload(app.prompt.submit if app.prompt.text else app.turns.regenerate)


def _copy(app: CommandContext, argument: str) -> None:
    try:
        app.copy(*extracts.to_copy(app.transcript.items, argument.lower()))
    except UsageError as error:
        app.say(error.message)


def _read(app: CommandContext, argument: str) -> None:
    if not argument:
        raise UsageError("/read needs a file", "Name a text file, or write @FILE in a message.")
    app.prompt.insert(safe(extracts.attached(user_path(argument))) + "\n\n")


def _pairs(app: CommandContext, argument: str) -> None:
    if argument:
        app.pair_loader.switch(argument)
    elif (screen := app.pairs().screen()) is not None:
        app.open(screen)


def _draft(app: CommandContext, argument: str) -> None:
    if argument:
        app.pair_loader.reload(lambda: app.pairs().drafting(), draft=argument)
    else:
        app.pairs().drafts()


def _stats(app: CommandContext, _argument: str) -> None:
    app.transcript.say(parameters.totals([node.figures for node in app.turns.record.nodes()]))


def _preset(app: CommandContext, argument: str) -> None:
    word, _, name = argument.partition(" ")
    settings = app.session().settings
    name = name.strip()
    if name and word == "save":
        parameters.keep_preset(name, settings.system_prompt)
        app.transcript.say(f"{one_line(name, 60)} is kept")
    elif name and word == "forget":
        parameters.forget_preset(name)
        app.transcript.say(f"{one_line(name, 60)} is forgotten")
    elif argument:
        prompt = parameters.preset(argument)
        app.engine.configure(replace(settings, system_prompt=prompt))
        app.transcript.say(f"system prompt for the answers to come: {prompt}")
    else:
        app.transcript.say(
            "\n".join(f"{name}: {text}" for name, text in parameters.presets().items())
            or "no system prompt is kept",
            "/preset NAME takes one, /preset save NAME keeps the present one.",
        )


def _compare(app: CommandContext, argument: str) -> None:
    if note := app.session().speculation_note:
        raise UsageError(f"there is nothing to compare: {note}")
    typed = extracts.expand(argument or message_text(app.prompt.text))
    text, before = compare.question(app.turns.messages(), typed)
    app.turns.compare(text, before)
    app.open(compare.CompareScreen(text, app.engine.stop))


def _inside(app: CommandContext, argument: str) -> None:
    app.session()
    back = (
        parameters.whole("round", argument, "Say which answer, from the last: 1.")
        if argument
        else 1
    )
    turn, engine, turns = app.turns.number_of(back - 1), app.engine, app.turns

    def ask(number: int) -> Callable[[], None]:
        return partial(engine.withdraw, engine.look(turn, number))

    app.open(RoundScreen(ask, lambda: turns.busy and turn == engine.turn))


def _set(app: CommandContext, argument: str) -> None:
    name, value = parameters.parse(argument)
    if name == "ctx-size" and value:
        remedy = "Say how many tokens, or 0 for all that the model was trained for."
        app.pair_loader.reload(ctx_size=parameters.whole("ctx-size", value, remedy))
        return
    if name == "system":
        _system(app, value)
        return
    if name in ("think", "nothink"):  # as Ollama has it
        _think(app, value or {"think": "on", "nothink": "off"}[name])
        return
    session, doubt = app.session(), ""
    if value:
        settings = parameters.changed(session.settings, name, value, session.advice)
        app.engine.configure(settings)
        doubt = parameters.doubt(settings)
    elif name:
        raise UsageError(f"/set {name} needs a value", f"Say /set {name} VALUE.")
    size = app.dashboard.state.figures.context_size
    shown = parameters.shown(app.session().settings, size, session.advice)
    app.transcript.say(
        f"for the answers to come: {shown}",
        doubt
        or "Where nothing else is said, sampling is as llama.cpp's defaults have it. /set NAME"
        " VALUE changes one, /set NAME default takes that back.",
    )


def _think(app: CommandContext, argument: str) -> None:
    session = app.session()
    settings, can = session.settings, session.dialect.thinking
    if not argument:
        ways = ", ".join(parameters.ways_to_think(can)).replace("budget ", "budget N")
        app.transcript.say(
            f"thinking: {parameters.thinking(settings, can)}",
            f"/think takes {ways} for this model." if ways else "",
        )
        return
    settings = parameters.asked_to_think(settings, can, argument)
    app.engine.configure(settings)
    app.transcript.say(f"thinking for the answers to come: {parameters.thinking(settings, can)}")


def _system(app: CommandContext, argument: str) -> None:
    settings = app.session().settings
    if not argument:
        current = settings.system_prompt
        app.transcript.say(f"system prompt: {current}" if current else "no system prompt")
        return
    prompt = "" if argument in {"none", "off"} else argument
    app.engine.configure(replace(settings, system_prompt=prompt))
    done = "set for the answers to come" if prompt else "removed"
    app.transcript.say(f"system prompt {done}")


def _gamma(app: CommandContext, argument: str) -> None:
    settings = app.session().settings
    said = f"gamma: {settings.gamma}"
    if argument:
        settings = replace(settings, gamma=parameters.gamma(argument))
        app.engine.configure(settings)
        said = f"gamma {settings.gamma} from the next round on"
    app.transcript.say(said)


def _temperature(app: CommandContext, argument: str) -> None:
    session, doubt = app.session(), ""
    said = f"temperature: {parameters.temperature(session.settings, session.advice)}"
    if argument:
        settings = parameters.changed(session.settings, "temp", argument, session.advice)
        app.engine.configure(settings)
        said = f"temperature {settings.sampling.temperature:g} for the answers to come"
        doubt = parameters.doubt(settings)
    app.transcript.say(said, doubt)


def _forget(app: CommandContext, _argument: str) -> None:
    try:
        clear(data_folder() / PAST)
    except OSError as error:
        app.say(f"what lookup knows of earlier conversations is still there: {error.strerror}")
    else:
        app.say("lookup knows nothing of earlier conversations any more")


def _history(app: CommandContext, argument: str) -> None:
    if not argument:
        screen = HistoryScreen(app.library, app.library.record.header.id)
        app.open(screen, lambda chosen: app.library.open(chosen) if chosen else None)
    elif is_file(path := user_path(argument)):
        app.library.work(app.library.import_file(path))
    else:
        app.library.work(app.library.open_with(argument))


def _show(app: CommandContext, _argument: str) -> None:
    session, size = app.session(), app.dashboard.state.figures.context_size
    app.transcript.say(
        "\n".join([
            f"pair    {one_line(session.pair_name, 60)}",
            f"target  {one_line(session.target_name, 60)}",
            f"draft   {one_line(session.draft_name or 'no model', 60)}",
            f"system  {session.settings.system_prompt or 'no system prompt'}",
            f"think   {parameters.thinking(session.settings, session.dialect.thinking)}",
            f"set     {parameters.shown(session.settings, size, session.advice)}",
        ]),
        "/draft says what could draft, /set and /system change the rest.",
    )  # fmt: skip


def _thoughts(app: CommandContext, _argument: str) -> None:
    opened = not app.transcript.thoughts_shown
    app.transcript.show_thoughts(opened)
    app.prompt.open_pastes(opened)


def _theme(app: CommandContext, argument: str) -> None:
    if not argument:
        app.open(ThemeScreen())
    elif argument.lower() in themes():
        app.set_theme(argument.lower())
    else:
        raise UsageError(
            f"there is no theme {one_line(argument, 60)}", f"There is {', '.join(themes())}."
        )


def _export(app: CommandContext, argument: str) -> None:
    form, _, rest = argument.partition(" ")
    if form not in import_export.FORMS:
        ending = argument.rpartition(".")[2].lower()
        form, rest = (ending if ending in import_export.FORMS else "md"), argument
    path = user_path(rest.strip()) if rest.strip() else None
    app.library.work(app.library.export(form, path))


def _import(app: CommandContext, argument: str) -> None:
    if not argument:
        raise UsageError("/import needs a file", "Name a file that /export has written.")
    app.library.work(app.library.import_file(user_path(argument)))


def _title(app: CommandContext, argument: str) -> None:
    record, title = app.library.record, one_line(argument, 100)
    if not record.nodes():
        raise UsageError("there is no conversation yet", "Ask something first.")
    if title:
        record.rename(title)
    app.transcript.say(f"title: {record.header.title}")


COMMANDS: tuple[Command[CommandContext], ...] = (
    Command("help", "", "keys and commands", lambda app, _: app.show_help(), "?", "f1", "Help"),
    Command(
        "speculation", "[on|off]", "switch speculation, also in the middle of an answer",
        _speculation, keys="f2,ctrl+t", footer="Speculation", when=LOADED,
        able=availability.drafted,
    ),
    Command(
        "origin", "",
        "show answers as they were written, marks and thoughts too, and who proposed each piece",
        _origin, "raw", "f3,ctrl+o", "Origin",
    ),
    Command(
        "panel", "[full|compact|off]", "size of the figures panel",
        _panel, keys="f4,ctrl+g", footer="Panel",
    ),
    Command(
        "regen", "", "answer the last message again",
        _regenerate, "retry", "f5,ctrl+r", "Again", when=IDLE | {EnginePhase.DEAD},
        able=availability.repeatable,
    ),
    Command(
        "history", "[WORDS|FILE]",
        "stored conversations: search, open, rename, delete, export; open the latest with WORDS,"
        " or read an exported FILE",
        _history, "load resume", "f7,ctrl+l", "History", when=IDLE, bare=True,
    ),
    Command(
        "edit", "", "change an earlier message; again for the one before",
        lambda app, _: app.turns.edit_earlier(), keys="f8", footer="Edit", when=IDLE,
        able=availability.changeable,
    ),
    Command(
        "earlier", "", "go back to an earlier version of an answer or a message",
        lambda app, _: app.library.step_newest(-1), keys="f9,alt+left", when=IDLE,
        able=availability.earlier,
    ),
    Command(
        "later", "", "go on to a later version",
        lambda app, _: app.library.step_newest(1), keys="f10,alt+right", when=IDLE,
        able=availability.later,
    ),
    Command(
        "copy", "[N|code [N]]", "copy the last answer, an earlier one, or a block of code",
        _copy, keys="f6", footer="Copy", able=availability.answered,
    ),
    Command("read", "FILE", "put a text file into the message; @FILE in a message does too", _read),
    Command(
        "pairs", "[NAME]", "browse, pull and remove pairs; change to another",
        _pairs, "models model", "f12", "Pairs", when=LOADABLE, bare=True,
        words=lambda app: app.pairs().names(),
    ),
    Command(
        "get", "[NAME]", "fetch the pair proposed for this machine, or NAME, and change to it",
        lambda app, name: app.pairs().get(name), keys="ctrl+f", able=availability.offered,
        words=lambda app: app.pairs().names(),
    ),
    Command(
        "twice", "[PROMPT]",
        "answer PROMPT, or the last one, without and with speculation, side by side",
        _compare, keys="ctrl+b", when=IDLE, able=availability.comparable,
    ),
    Command(
        "round", "[N]", "look inside a round of an answer: guesses, checks and why, in slow motion",
        _inside, keys="ctrl+s,alt+r", when=LOADED, able=availability.known,
    ),
    Command("system", "[TEXT|none]", "show or set the system prompt", _system, when=LOADED),
    Command(
        "preset", "[NAME|save NAME|forget NAME]", "system prompts that are kept, by name", _preset,
        when=LOADED, words=lambda _: list(parameters.presets()),
    ),
    Command(
        "draft", "[NAME|auto|lookup|mtp|none]", "show what can draft for this target, or choose it",
        _draft, when=LOADABLE,
        words=lambda app: [str(path) for path in app.pairs().beside_target()],
    ),
    Command("forget", "", "delete what lookup copies of earlier conversations", _forget),
    Command(
        "tune", "", "measure thoroughly what this pair costs here",
        lambda app, _: app.measuring().tune(), when=IDLE,
    ),
    Command(
        "bench", "[FILE]", "speculation off against on, within a minute; FILE takes the report",
        lambda app, name: app.measuring().bench(user_path(name) if name else None), when=IDLE,
    ),
    Command(
        "show", "", "what answers: the models, the system prompt, all parameters", _show,
        when=LOADED,
    ),
    Command("stats", "", "figures of the whole conversation", _stats),
    Command("gamma", "[N|auto]", "show or set how many tokens are drafted", _gamma, when=LOADED),
    Command(
        "set", "[NAME VALUE]", "show or set any parameter: of sampling, n-predict, stop, ctx-size",
        _set, when=LOADED,
        words=lambda _: [f"{name} " for name in (*parameters.NAMES, "ctx-size", *parameters.ALSO)],
    ),
    Command(
        "temp", "[NUMBER]", "show or set the temperature, 0 is greedy", _temperature, when=LOADED,
    ),
    Command(
        "think", "[HOW]",
        "show or set how a model thinks: off, on, low, medium, high, budget N (tokens), auto",
        _think, when=LOADED,
        words=lambda app: (
            parameters.ways_to_think(app.engine.info.dialect.thinking) if app.engine.info else ()
        ),
    ),
    Command(
        "thoughts", "",
        "open or fold what a model thinks before it answers, attached files and long pastes",
        _thoughts, keys="f11,alt+t",
    ),
    Command(
        "title", "[TEXT]", "show or set the title of this conversation", _title,
        able=availability.begun,
    ),
    Command(
        "export", "[md|json] [FILE]", "write this conversation to a file", _export, "save",
        when=WHOLE, able=availability.begun,
    ),
    Command(
        "import", "FILE", "read an exported conversation, Markdown or JSON", _import, when=IDLE,
    ),
    Command(
        "compact", "", "have the model sum the conversation up and go on from there",
        lambda app, _: app.turns.compact(), when=IDLE, able=availability.begun,
    ),
    Command(
        "clear", "", "begin a new conversation", lambda app, _: app.library.begin_new(),
        "new reset", when=IDLE,
    ),
    Command(
        "theme", "[NAME]", "choose the colours", _theme, "themes",
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
