"""Whether a command has anything to do: the palette offers only those that have."""

from __future__ import annotations

from localspec.errors import UsageError
from localspec.ui.commands.command_context import CommandContext


def answered(app: CommandContext) -> bool:
    """Whether there is an answer, or the beginning of one."""
    last = app.transcript.last_answer()
    return last is not None and bool(last.text)


def repeatable(app: CommandContext) -> bool:
    """Whether there is a message to answer again, or a pair to load again."""
    return not app.engine.alive or app.transcript.last_answer() is not None


def begun(app: CommandContext) -> bool:
    """Whether this conversation has messages."""
    return bool(app.turns.record.nodes())


def changeable(app: CommandContext) -> bool:
    """Whether there is an earlier message to change."""
    turns = app.turns
    return turns.record.question_before(turns.engine_state.editing) is not None


def earlier(app: CommandContext) -> bool:
    """Whether there is a version before the shown one."""
    place = app.library.newest()
    return place is not None and place.version > 1


def later(app: CommandContext) -> bool:
    """Whether there is a version after the shown one."""
    place = app.library.newest()
    return place is not None and place.version < place.versions


def drafted(app: CommandContext) -> bool:
    """Whether the pair in use has a drafter."""
    session = app.engine.info
    return session is not None and not session.speculation_note


def comparable(app: CommandContext) -> bool:
    """Whether there is a drafter, and a prompt to answer with and without it."""
    return drafted(app) and (begun(app) or bool(app.prompt.text.strip()))


def known(app: CommandContext) -> bool:
    """Whether it is known how the last answer was drafted."""
    try:
        app.turns.number_of(0)
    except UsageError:
        return False
    return True


def offered(app: CommandContext) -> bool:
    """Whether a pair is offered for fetching."""
    return app.offered()
