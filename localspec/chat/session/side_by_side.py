"""Answers one question without and with drafting, for a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from localspec.chat.conversation import Message
from localspec.chat.events import Disturbed, TurnEvent
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.round.params import default_accept
from localspec.errors import Cancelled


def answer_twice(
    session: Session, text: str, before: Sequence[Message], cancel: Cancel
) -> Iterator[tuple[bool, TurnEvent]]:
    """Answer `text` after `before` without drafting, then with it, from the same random draws.

    The answers run one after the other, because together they would slow each other down. Both may
    use the caches that the conversation has anyway. The session is left unchanged.

    Yields:
        every event, with whether that answer is drafted; after an answer `Disturbed` if other
        programs took threads that it needed, and last the `Parting` if the answers part. Nothing
        more after cancellation.

    Raises:
        LocalspecError: as in `Session.turn`.
    """
    settings = session.settings
    sampling = settings.sampling.seeded()
    # This rule gives both answers the same draws. In all else they run like any other answer.
    rule = settings.accept or default_accept(sampling, seeded=True)
    records = []
    with session.aside():
        for speculation in (False, True):
            session.open(before)
            session.settings = replace(settings, sampling=sampling, accept=rule)
            session.speculation = speculation
            for event in session.turn(text, cancel):
                yield speculation, event
            if cancel.is_set():
                return
            if busy := session.figures().busy:
                yield speculation, Disturbed(busy)
            records.append(session.written)
        without, drafted = records
        if without is not None and drafted is not None:
            with suppress(Cancelled):
                parting = session.part(without, drafted, cancel)
                if parting is not None:
                    yield True, parting
