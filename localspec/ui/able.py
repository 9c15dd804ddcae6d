"""What a command needs to have anything to do: the palette offers no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.ui.commands import Parts


def always(_app: Parts) -> bool:
    """It needs nothing."""
    return True


def answered(app: Parts) -> bool:
    """There is an answer, or the beginning of one."""
    last = app.transcript.last_answer()
    return last is not None and bool(last.text)


def repeatable(app: Parts) -> bool:
    """There is something to answer again, or there are models to load again."""
    return not app.engine.alive or app.transcript.last_answer() is not None


def begun(app: Parts) -> bool:
    """Something has been said in this conversation."""
    return bool(app.turns.record.nodes())


def changeable(app: Parts) -> bool:
    """There is an earlier message to be changed."""
    turns = app.turns
    return turns.record.question_before(turns.gate.editing) is not None


def earlier(app: Parts) -> bool:
    """There is a version before the one that is shown."""
    place = app.shelf.newest()
    return place is not None and place.version > 1


def later(app: Parts) -> bool:
    """There is a version after the one that is shown."""
    place = app.shelf.newest()
    return place is not None and place.version < place.versions


def drafted(app: Parts) -> bool:
    """Something drafts for the pair in use."""
    session = app.engine.info
    return session is not None and not session.speculation_note


def comparable(app: Parts) -> bool:
    """Something drafts, and there is a prompt to be answered without it and with it."""
    return drafted(app) and (begun(app) or bool(app.prompt.text.strip()))


def known(app: Parts) -> bool:
    """It is known how the last answer was drafted."""
    try:
        app.turns.number_of(0)
    except UsageError:
        return False
    return True


def offered(app: Parts) -> bool:
    """A pair is offered to be fetched."""
    return app.offered()
