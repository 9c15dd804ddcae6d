"""Everything the user can ask the app to do: one table for keys, slash commands, palette, help."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from localspec.chat.history import exchange
from localspec.chat.settings import Gamma
from localspec.errors import UsageError
from localspec.limits import MAX_GAMMA
from localspec.pairs.folders import user_path
from localspec.safe_text import one_line, safe
from localspec.ui import parameters
from localspec.ui.conversation import attach, copying
from localspec.ui.conversation.turns import ANY_TIME, IDLE, LOADABLE, LOADED, WHOLE, Phase
from localspec.ui.panel.panel import PanelForm
from localspec.ui.screens.history import HistoryScreen

if TYPE_CHECKING:
    from localspec.process.messages import SessionInfo
    from localspec.ui.app import ChatApp

Action: TypeAlias = "Callable[[ChatApp, str], None]"


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do.

    Attributes:
        name: what follows the slash; also names the key binding.
        argument: what may follow the name, as the help shows it; empty where nothing may.
        meaning: one line for the help and the palette.
        run: does it; gets the app and the text after the name.
        keys: key names as Textual spells them, separated by commas; empty for none.
        shown: the keys as people spell them.
        footer: label in the footer; empty where there is no room for it.
        when: what the engine may be doing meanwhile.
        bare: whether it can run at any time without its argument.
    """

    name: str
    argument: str
    meaning: str
    run: Action
    keys: str = ""
    shown: str = ""
    footer: str = ""
    when: frozenset[Phase] = ANY_TIME
    bare: bool = False

    def can_run(self, argument: str, phase: Phase) -> bool:
        """Whether the engine lets it run now."""
        return phase in self.when or (self.bare and not argument)


def parse(text: str) -> tuple[str, str] | None:
    """Command name and argument when `text` is a slash command; None when it is for the model."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].partition(" ")
    return name.strip().lower(), argument.strip()


def message_text(text: str) -> str:
    """What the model gets: two slashes at the beginning stand for one."""
    return text[1:] if text.startswith("//") else text


def find(name: str) -> Command:
    """The command called `name`, or the only one that begins like it.

    Raises:
        UsageError: there is none, or several begin like it.
    """
    for command in COMMANDS:
        if command.name == name:
            return command
    close = [command for command in COMMANDS if name and command.name.startswith(name)]
    if len(close) == 1:
        return close[0]
    if close:
        names = ", ".join(f"/{command.name}" for command in close)
        raise UsageError(f"/{name} could mean {names}", "Type one more letter.")
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1)
    raise UsageError(
        f"there is no command /{name}" + (f"; did you mean /{near[0]}?" if near else ""),
        "/help lists all commands; a message that begins with a slash is sent with two: //text.",
    )


def _session(app: ChatApp) -> SessionInfo:
    if app.session is None:
        raise UsageError("the models are not loaded yet", "Wait until loading has ended.")
    return app.session


def _help(app: ChatApp, argument: str) -> None:  # noqa: ARG001 - one signature for all
    app.show_help()


def _speculation(app: ChatApp, argument: str) -> None:
    session = _session(app)
    wanted = {"": not session.speculation, "on": True, "off": False}.get(argument.lower())
    if wanted is None:
        raise UsageError(f"speculation cannot be “{argument}”", "Say /speculation on or off.")
    if wanted and session.speculation_note:
        raise UsageError(f"speculation is not available: {session.speculation_note}")
    app.engine.speculate(wanted)
    app.say_briefly(f"speculation {'on' if wanted else 'off'} from the next round on")


def _origin(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    app.transcript.show_origins(not app.transcript.by_origin)
    app.show_phase()


def _panel(app: ChatApp, argument: str) -> None:
    if argument and argument.lower() not in list(PanelForm):
        raise UsageError(f"the panel cannot be “{argument}”", "Say /panel full, compact or off.")
    app.dashboard.cycle(argument.lower())


def _regenerate(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    if not app.engine.alive:
        # What came to nothing with the engine stands in the input again.
        app.in_use.reload(app.prompt.submit if app.prompt.text else app.turns.regenerate)
        return
    _session(app)
    app.turns.regenerate()


def _copy(app: ChatApp, argument: str) -> None:
    try:
        text, name = copying.wanted(app.transcript.items, argument.lower())
    except UsageError as error:
        app.say_briefly(error.message)
    else:
        app.copy_text(text, name)


def _read(app: ChatApp, argument: str) -> None:
    if not argument:
        raise UsageError("/read needs a file", "Name a text file, or write @FILE in a message.")
    app.prompt.insert(safe(attach.attached(user_path(argument))) + "\n\n")


def _set(app: ChatApp, argument: str) -> None:
    session = _session(app)
    name, _, value = argument.partition(" ")
    if value.strip():
        app.engine.configure(parameters.changed(session.settings, name, value.strip()))
    elif name:
        raise UsageError(f"/set {name} needs a value", f"Say /set {name} NUMBER.")
    app.transcript.say(f"for the answers to come: {parameters.shown(_session(app).settings)}")


def _pairs(app: ChatApp, argument: str) -> None:
    if argument:
        app.in_use.switch(argument)
    else:
        app.pairs.show()


def _system(app: ChatApp, argument: str) -> None:
    session = _session(app)
    if not argument:
        current = session.settings.system_prompt
        app.transcript.say(f"system prompt: {current}" if current else "no system prompt")
        return
    prompt = "" if argument in {"none", "off"} else argument
    app.engine.configure(replace(session.settings, system_prompt=prompt))
    app.transcript.say(
        "system prompt set for the answers to come" if prompt else "system prompt removed"
    )


def _gamma(app: ChatApp, argument: str) -> None:
    session = _session(app)
    if not argument:
        app.transcript.say(f"gamma: {session.settings.gamma}")
        return
    if argument != "auto" and not (argument.isascii() and argument.isdigit() and len(argument) < 9):
        raise UsageError(
            f"gamma cannot be “{argument}”",
            f"Say /gamma auto, or how many tokens to draft: 0 to {MAX_GAMMA}.",
        )
    gamma: Gamma = "auto" if argument == "auto" else int(argument)
    if isinstance(gamma, int) and gamma > MAX_GAMMA:
        raise UsageError(
            f"gamma cannot be {gamma}", f"At most {MAX_GAMMA} tokens are drafted at a time."
        )
    app.engine.configure(replace(session.settings, gamma=gamma))
    app.transcript.say(f"gamma {gamma} from the next round on")


def _temperature(app: ChatApp, argument: str) -> None:
    session = _session(app)
    sampling = session.settings.sampling
    if not argument:
        app.transcript.say(f"temperature: {sampling.temperature:g}")
        return
    try:
        temperature = float(argument)
    except ValueError:
        raise UsageError(
            f"the temperature cannot be “{argument}”", "Say a number, 0 for greedy: /temp 0.7"
        ) from None
    sampling = replace(sampling, temperature=temperature)
    app.engine.configure(replace(session.settings, sampling=sampling))
    app.transcript.say(f"temperature {temperature:g} for the answers to come")


def _history(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    screen = HistoryScreen(app.shelf, app.shelf.record.header.id)
    app.push_screen(screen, lambda chosen: app.shelf.open(chosen) if chosen else None)


def _edit(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    _session(app)
    app.turns.edit_earlier()


def _earlier(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    app.shelf.step_newest(-1)


def _later(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    app.shelf.step_newest(1)


def _export(app: ChatApp, argument: str) -> None:
    form, _, rest = argument.partition(" ")
    if form not in exchange.FORMS:
        ending = argument.rpartition(".")[2].lower()
        form, rest = (ending if ending in exchange.FORMS else "md"), argument
    path = user_path(rest.strip()) if rest.strip() else None
    app.shelf.export(form, path)


def _import(app: ChatApp, argument: str) -> None:
    _session(app)
    if not argument:
        raise UsageError("/import needs a file", "Name a file that /export has written.")
    app.shelf.import_file(user_path(argument))


def _compare(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    _session(app)
    app.compare()


def _title(app: ChatApp, argument: str) -> None:
    title = one_line(argument, 100)
    if not app.shelf.record.messages():
        raise UsageError("there is no conversation yet", "Ask something first.")
    if title:
        app.shelf.record.rename(title)
    app.transcript.say(f"title: {app.shelf.record.header.title}")


def _compact(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    _session(app)
    app.turns.compact()


def _thoughts(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    app.transcript.show_thoughts(not app.transcript.thoughts_shown)


def _clear(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    _session(app)
    app.turns.clear()


def _quit(app: ChatApp, argument: str) -> None:  # noqa: ARG001
    app.leave()


COMMANDS = (
    Command("help", "", "keys and commands", _help, "f1", "F1", "Help"),
    Command(
        "speculation", "[on|off]", "switch speculation, also in the middle of an answer",
        _speculation, "f2,ctrl+t", "F2, Ctrl+T", "Speculation",
        when=LOADED,
    ),
    Command(
        "origin", "", "show who proposed each piece first, draft or target",
        _origin, "f3,ctrl+o", "F3, Ctrl+O", "Origin",
    ),
    Command(
        "panel", "[full|compact|off]", "size of the figures panel",
        _panel, "f4,ctrl+g", "F4, Ctrl+G", "Panel",
    ),
    Command(
        "regen", "", "answer the last message again",
        _regenerate, "f5,ctrl+r", "F5, Ctrl+R", "Again",
        when=IDLE | {Phase.DEAD},
    ),
    Command(
        "history", "", "stored conversations: search, open, rename, delete, export",
        _history, "f7,ctrl+l", "F7, Ctrl+L", "History",
    ),
    Command(
        "edit", "", "change an earlier message; again for the one before",
        _edit, "f8", "F8", "Edit",
        when=IDLE,
    ),
    Command(
        "earlier", "", "go back to an earlier version of an answer or a message",
        _earlier, "f9,alt+left", "F9, Alt+Left",
        when=IDLE,
    ),
    Command(
        "later", "", "go on to a later version", _later, "f10,alt+right", "F10, Alt+Right",
        when=IDLE,
    ),
    Command(
        "copy", "[N|code [N]]", "copy the last answer, an earlier one, or a block of code",
        _copy, "f6", "F6", "Copy",
    ),
    Command("read", "FILE", "put a text file into the message; @FILE in a message does too", _read),
    Command(
        "pairs", "[NAME]", "browse, pull and remove pairs; change to another",
        _pairs, "f12", "F12", "Pairs",
        when=LOADABLE, bare=True,
    ),
    Command(
        "twice", "", "answer the prompt without and with speculation, side by side",
        _compare, "ctrl+b", "Ctrl+B",
        when=IDLE,
    ),
    Command("system", "[TEXT|none]", "show or set the system prompt", _system, when=LOADED),
    Command("gamma", "[N|auto]", "show or set how many tokens are drafted", _gamma, when=LOADED),
    Command(
        "set", "[NAME NUMBER]", "show or set any parameter of this conversation", _set,
        when=LOADED,
    ),
    Command(
        "temp", "[NUMBER]", "show or set the temperature, 0 is greedy", _temperature,
        when=LOADED,
    ),
    Command(
        "thoughts", "", "open or fold what a reasoning model thinks before it answers",
        _thoughts, "f11,alt+t", "F11, Alt+T",
    ),
    Command("title", "[TEXT]", "show or set the title of this conversation", _title),
    Command(
        "export", "[md|json] [FILE]", "write this conversation to a file", _export,
        when=WHOLE,
    ),
    Command(
        "import", "FILE", "read an exported conversation, Markdown or JSON", _import,
        when=IDLE,
    ),
    Command(
        "compact", "", "have the model sum the conversation up and go on from there", _compact,
        when=IDLE,
    ),
    Command("clear", "", "begin a new conversation", _clear, when=IDLE),
    Command("quit", "", "leave", _quit, "ctrl+q", "Ctrl+Q", "Quit"),
)  # fmt: skip


def with_keys(keys: Mapping[str, str]) -> tuple[Command, ...]:
    """The table with other keys, by the command's name."""
    return tuple(
        replace(one, keys=keys[one.name], shown=spelt(keys[one.name])) if one.name in keys else one
        for one in COMMANDS
    )


def spelt(keys: str) -> str:
    """Keys as people spell them."""
    return ", ".join(
        "+".join(part.capitalize() for part in key.split("+")) for key in keys.split(",")
    )


# What also works while a dialogue is open. The rest would act on what stands behind it.
EVERYWHERE = ("help", "quit")

# Keys that are no commands; the help lists them first.
OTHER_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Alt+Enter", "break the line; Shift+Enter too, where the terminal tells it apart"),
    ("Up, Down", "what you sent before, from the first and last line"),
    ("Page Up, Down", "move the conversation"),
    ("Esc", "stop the answer"),
    ("Ctrl+C", "copy what is selected, else stop the answer; twice: quit"),
    ("Ctrl+P", "all commands, to search"),
    ("Tab", "complete a command, its words, or a file name"),
    ("Mouse", "select text; click keys, versions and thoughts; the wheel moves the conversation"),
)
