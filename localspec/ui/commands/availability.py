"""What a command needs to have anything to do: the palette offers no other."""

from __future__ import annotations

from localspec.errors import UsageError
from localspec.ui.commands.command_context import CommandContext


def answered(app: CommandContext) -> bool:
    """There is an answer, or the beginning of one."""
    last = app.transcript.last_answer()
    return last is not None and bool(last.text)


def repeatable(app: CommandContext) -> bool:
    """There is something to answer again, or there are models to load again."""
    return not app.engine.alive or app.transcript.last_answer() is not None


def begun(app: CommandContext) -> bool:
    """Something has been said in this conversation."""
    return bool(app.turns.record.nodes())


def changeable(app: CommandContext) -> bool:
    """There is an earlier message to be changed."""
    turns = app.turns
    return turns.record.question_before(turns.engine_state.editing) is not None


def earlier(app: CommandContext) -> bool:
    """There is a version before the one that is shown."""
    place = app.library.newest()
    return place is not None and place.version > 1


def later(app: CommandContext) -> bool:
    """There is a version after the one that is shown."""
    place = app.library.newest()
    return place is not None and place.version < place.versions


def drafted(app: CommandContext) -> bool:
    """Something drafts for the pair in use."""
    session = app.engine.info
    return session is not None and not session.speculation_note


def comparable(app: CommandContext) -> bool:
    """Something drafts, and there is a prompt to be answered without it and with it."""
    return drafted(app) and (begun(app) or bool(app.prompt.text.strip()))


def known(app: CommandContext) -> bool:
    """It is known how the last answer was drafted."""
    try:
        app.turns.number_of(0)
    except UsageError:
        return False
    return True


def offered(app: CommandContext) -> bool:
    """A pair is offered to be fetched."""
    return app.offered()
