"""One question answered without speculation and with it, to be laid side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from localspec.chat.conversation import Message
from localspec.chat.events import TurnEvent
from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.round.params import default_accept


def answer_twice(
    session: Session, text: str, before: Sequence[Message], cancel: Cancel
) -> Iterator[tuple[bool, TurnEvent]]:
    """Answer `text` after `before` without speculation, then with it; both draw the same.

    One after the other, since they would take each other's speed; both with the caches that the
    conversation has anyway. Everything is left as it was.

    Yields:
        every event, with whether that answer is drafted; nothing more once cancelled.

    Raises:
        LocalspecError: as `Session.turn`.
    """
    settings = session.settings
    sampling = settings.sampling.seeded()
    # The rule by which both draw the same; else as any answer, whose threads make way for others.
    rule = settings.accept or default_accept(sampling, seeded=True)
    with session.aside():
        for speculation in (False, True):
            session.open(before)
            session.settings = replace(settings, sampling=sampling, accept=rule)
            session.speculation = speculation
            for event in session.turn(text, cancel):
                yield speculation, event
            if cancel.is_set():
                return
