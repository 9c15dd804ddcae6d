"""What the commands do, each with what was typed after its name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from localspec.chat.history import import_export
from localspec.chat.states.past_conversations import PAST, clear
from localspec.errors import UsageError
from localspec.pairs.disk.folders import data_folder, is_file, user_path
from localspec.safe_text import one_line, safe
from localspec.ui.commands import parameters
from localspec.ui.commands.command_context import CommandContext, loaded
from localspec.ui.conversation.engine_phase import GONE
from localspec.ui.input import extracts
from localspec.ui.panel.dashboard import PanelForm
from localspec.ui.screens import compare
from localspec.ui.screens.history import HistoryScreen
from localspec.ui.screens.rounds import RoundScreen
from localspec.ui.screens.themes import ThemeScreen, themes

# What answers, and how


def speculation(app: CommandContext, argument: str) -> None:
    """Switch drafting on or off."""
    session = loaded(app)
    wanted = {"": not session.speculation, "on": True, "off": False}.get(argument.lower())
    if wanted is None:
        raise UsageError(f"drafting cannot be “{argument}”", "Say /drafting on or off.")
    if wanted and session.speculation_note:
        raise UsageError(f"nothing can be drafted: {session.speculation_note}")
    app.engine.speculate(wanted)
    app.status.flash(f"drafting {'on' if wanted else 'off'} from now on")


def set_parameter(app: CommandContext, argument: str) -> None:
    """Show all parameters, or change one; some have a command of their own."""
    name, value = parameters.parse(argument)
    if name == "ctx-size" and value:
        remedy = "Say how many tokens, or 0 for all that the model was trained for."
        size = None if value == "default" else parameters.whole(name, value, remedy)
        app.pair_loader.reload(ctx_size=size)
        return
    if name == "exact":
        exact(app, value)
        return
    if name == "system":
        system(app, value)
        return
    if name in ("think", "nothink"):  # as Ollama has it
        think(app, value or {"think": "on", "nothink": "off"}[name])
        return
    session, doubt = loaded(app), ""
    if value:
        settings = parameters.changed(session.settings, name, value, session.advice)
        app.engine.configure(settings)
        doubt = parameters.doubt(settings)
    shown = _parameters(app)
    if name and not value:
        shown = [each for each in shown if each.startswith(f"{name} ")]
        if not shown:
            raise parameters.unknown(name)
    app.transcript.say(
        f"for the answers to come: {' · '.join(shown)}",
        doubt
        or "What has no source is llama.cpp's default. /set NAME VALUE changes one, /set NAME"
        " default takes that back.",
    )


def _parameters(app: CommandContext) -> list[str]:
    """All parameters, each with its value and its source."""
    session, size = loaded(app), app.dashboard.state.figures.context_size
    own_size = app.engine.loaded.ctx_size is not None
    return parameters.shown(session.settings, size, session.advice, own_size=own_size)


def exact(app: CommandContext, value: str) -> None:
    """Say what exact decoding costs, or load the pair again with it or without."""
    session = loaded(app)
    choices = {"anyway": True, "off": False, "default": None}
    if value in choices:
        app.pair_loader.reload(exact=choices[value])
    elif value in ("", "on"):  # what it costs is said before it is switched on
        known = session.exact or "its cost is known only for the usual settings (/tune)"
        app.transcript.say(
            f"exact decoding: {known}",
            "/set exact anyway loads the pair again with it, /set exact off without it; /set exact"
            " default uses it where it costs next to nothing.",
        )
    else:
        raise UsageError(f"exact cannot be “{value}”", "Say /set exact anyway, off, or default.")


def think(app: CommandContext, argument: str) -> None:
    """Show or set how the model thinks."""
    session = loaded(app)
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


def system(app: CommandContext, argument: str) -> None:
    """Show or set the system prompt."""
    settings = loaded(app).settings
    if not argument:
        current = settings.system_prompt
        app.transcript.say(f"system prompt: {current}" if current else "no system prompt")
        return
    prompt = "" if argument in {"none", "off"} else argument
    app.engine.configure(replace(settings, system_prompt=prompt))
    done = "set for the answers to come" if prompt else "removed"
    app.transcript.say(f"system prompt {done}")


def preset(app: CommandContext, argument: str) -> None:
    """List, take, keep or forget a system prompt."""
    word, _, name = argument.partition(" ")
    settings = loaded(app).settings
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


def gamma(app: CommandContext, argument: str) -> None:
    """Show or set how many tokens are drafted."""
    settings = loaded(app).settings
    if not argument:
        app.transcript.say(
            f"gamma: {settings.gamma}",
            "/gamma N drafts N tokens in each round, 0 none, auto as many as pay here.",
        )
        return
    settings = replace(settings, gamma=parameters.gamma(argument))
    app.engine.configure(settings)
    app.transcript.say(f"gamma {settings.gamma} from the next round on")


def temperature(app: CommandContext, argument: str) -> None:
    """Show or set the temperature."""
    session, doubt = loaded(app), ""
    said = f"temperature: {parameters.temperature(session.settings, session.advice)}"
    if argument:
        settings = parameters.changed(session.settings, "temp", argument, session.advice)
        app.engine.configure(settings)
        said = f"temperature {settings.sampling.temperature:g} for the answers to come"
        doubt = parameters.doubt(settings)
    app.transcript.say(said, doubt)


def show(app: CommandContext, _argument: str) -> None:
    """Show what answers, and how."""
    session = loaded(app)
    app.transcript.say(
        "\n".join([
            f"pair    {one_line(session.pair_name, 60)}",
            f"target  {one_line(session.target_name, 60)}",
            f"draft   {one_line(session.draft_name or 'no model', 60)}",
            f"system  {session.settings.system_prompt or 'no system prompt'}",
            f"think   {parameters.thinking(session.settings, session.dialect.thinking)}",
            f"set     {' · '.join(_parameters(app))}",
            *([f"exact   {session.exact}"] if session.exact else []),
        ]),
        "/draft says what could draft, /set and /system change the rest.",
    )  # fmt: skip


def pairs(app: CommandContext, argument: str) -> None:
    """Open the screen of pairs, or change to a pair."""
    if argument:
        app.pair_loader.switch(argument)
    elif not app.pairs.is_open:
        from localspec.ui.screens.pairs import PairsScreen  # noqa: PLC0415 - needs the pairs

        app.push_screen(PairsScreen(app.pairs))


def draft(app: CommandContext, argument: str) -> None:
    """Say what can draft, or load the pair with another draft."""
    if argument:
        app.pair_loader.reload(app.pairs.drafting, draft=argument)
    else:
        app.pairs.drafts()


def mcp(app: CommandContext, argument: str) -> None:
    """Add, list, remove or switch MCP servers."""
    from localspec.ui.tools.mcp_command import mcp as do  # noqa: PLC0415 - few chats have servers

    do(app.tools, argument)


def forget(app: CommandContext, _argument: str) -> None:
    """Delete what lookup copies of earlier conversations."""
    try:
        clear(data_folder() / PAST)
    except OSError as error:
        said = f"what lookup knows of earlier conversations is still there: {error.strerror}"
        app.status.flash(said)
    else:
        app.status.flash("lookup knows nothing of earlier conversations any more")


# The conversation and how it is shown


def regenerate(app: CommandContext, _argument: str) -> None:
    """Answer the last message again; load a lost engine first."""
    if app.engine.alive:
        app.turns.regenerate()
        return
    app.pair_loader.reload(app.prompt.submit if app.turns.gave_back else app.turns.regenerate)


def twice(app: CommandContext, argument: str) -> None:
    """Answer a prompt without and with drafting."""
    session = loaded(app)
    if session.speculation_note:
        raise UsageError(f"there is nothing to compare: {session.speculation_note}")
    typed = extracts.expand(argument or app.prompt.message)
    text, before = compare.question(app.turns.earlier_messages(), typed)
    alike = session.equal_passes > 1 and session.settings.keeps_text
    if app.turns.compare(text, before):
        app.push_screen(compare.CompareScreen(text, app.engine.stop, session.dialect, exact=alike))


def show_rounds(app: CommandContext, argument: str) -> None:
    """Open the view of the rounds of an answer."""
    loaded(app)
    back = (
        parameters.whole("round", argument, "Say which answer, from the last: 1.")
        if argument
        else 1
    )
    app.push_screen(RoundScreen(app.turns, app.turns.number_of(back - 1)))


def history(app: CommandContext, argument: str) -> None:
    """List the stored conversations, open one, or read a file."""
    if not argument:
        app.push_screen(HistoryScreen(app.library), partial(_open, app))
    elif is_file(path := import_export.with_found_ending(user_path(argument))):
        # Words may happen to be the name of a file in this folder, such as README.
        typed = Path(argument)
        is_word = typed.name == argument and typed.suffix[1:].lower() not in import_export.FORMS
        app.library.work(app.library.import_file(path, argument if is_word else ""))
    else:
        app.library.work(app.library.open_with(argument))


def _open(app: CommandContext, chosen: str | None) -> None:
    """Go on with a conversation, if one was chosen; load lost models first."""
    if not chosen:
        return
    if app.turns.phase in GONE:
        app.library.open_once_loaded(chosen)
        app.pair_loader.reload()
    else:
        app.library.open(chosen)


def import_file(app: CommandContext, argument: str) -> None:
    """Read an exported conversation."""
    if not argument:
        raise UsageError("/import needs a file", "Name a file that /export has written.")
    path = import_export.with_found_ending(user_path(argument))
    app.library.work(app.library.import_file(path))


def export(app: CommandContext, argument: str) -> None:
    """Write the conversation to a file; its ending tells the form unless that is named."""
    word, _, rest = argument.partition(" ")
    form = import_export.form_of(word)
    name, path = (rest.strip() if form else argument), None
    if name:
        form, path = import_export.with_ending(user_path(name), form)
    app.library.work(app.library.export(form or import_export.FORMS[0], path))


def title(app: CommandContext, argument: str) -> None:
    """Show or change the conversation's title."""
    record, title = app.library.record, one_line(argument, 100)
    if not record.nodes():
        raise UsageError("there is no conversation yet", "Ask something first.")
    if title:
        record.rename(title)
    app.transcript.say(f"title: {record.header.title}")


def stats(app: CommandContext, _argument: str) -> None:
    """Show the figures of the whole conversation, and what drafting brought to the last answer."""
    lines = [parameters.totals([node.figures for node in app.turns.record.nodes()])]
    if said := app.dashboard.said():
        which = "this" if app.dashboard.state.figures.generating else "the last"
        lines.append(f"{which} answer: {said}")
    app.transcript.say("\n".join(lines))


def read(app: CommandContext, argument: str) -> None:
    """Put a text file into the input."""
    if not argument:
        raise UsageError("/read needs a file", "Name a text file, or write @FILE in a message.")
    app.prompt.insert(safe(extracts.attached(user_path(argument))) + "\n\n")


def copy(app: CommandContext, argument: str) -> None:
    """Copy an answer or a block of code."""
    try:
        app.copy(*extracts.to_copy(app.transcript.items, argument.lower()))
    except UsageError as error:
        app.status.flash(error.message)


def origin(app: CommandContext, _argument: str) -> None:
    """Show who proposed each piece of the answers, or hide it."""
    app.transcript.show_origins(not app.transcript.by_origin)
    app.show_phase()


def thoughts(app: CommandContext, _argument: str) -> None:
    """Open or fold thoughts, attached files and pastes."""
    opened = not app.transcript.thoughts_shown
    app.transcript.show_thoughts(opened)
    app.prompt.open_pastes(opened)


def panel(app: CommandContext, argument: str) -> None:
    """Change the size of the panel."""
    if argument and argument.lower() not in list(PanelForm):
        raise UsageError(
            f"the panel cannot be “{argument}”", "Say /panel full, compact, off or auto."
        )
    fits = app.dashboard.cycle(argument.lower())
    app.show_phase()  # the status line says what the panel does not
    if not fits:
        app.status.flash("the terminal is too small for these figures")


def theme(app: CommandContext, argument: str) -> None:
    """Choose the colours."""
    if not argument:
        app.push_screen(ThemeScreen())
    elif argument.lower() in themes():
        app.theme = argument.lower()
    else:
        raise UsageError(
            f"there is no theme {one_line(argument, 60)}", f"There is {', '.join(themes())}."
        )
