"""One prompt answered twice, without and with speculation, and everything left as it was.

One after the other: at the same time they would take each other's speed. Both use the caches that
the conversation has anyway, so that nothing is needed beyond what was planned for when it was
loaded.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from localspec.chat.conversation import Message
    from localspec.chat.events import TurnEvent
    from localspec.chat.session import Session
    from localspec.engine.cancel import Cancel

_SEED_BITS = 32


def answer_twice(
    session: Session, text: str, before: Sequence[Message], cancel: Cancel
) -> Iterator[tuple[bool, TurnEvent]]:
    """Answer `text` after `before` without speculation, then with it; both draw the same.

    Yields:
        every event, with whether that answer is drafted; nothing more once cancelled.

    Raises:
        LocalspecError: as `Session.turn`.
    """
    settings = session.settings
    sampling = settings.sampling
    if sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(_SEED_BITS))
    with session.aside():
        for speculation in (False, True):
            session.open(before)
            session.settings = replace(settings, sampling=sampling, repeatable=True)
            session.speculation = speculation
            for event in session.turn(text, cancel):
                yield speculation, event
            if cancel.is_set():
                return
