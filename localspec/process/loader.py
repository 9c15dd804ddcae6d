"""`Loader`: what a server has the rooms below it do. Tests give it loaders of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.chat.conversation import Message
    from localspec.chat.session.session import Session
    from localspec.engine.cancel import Cancel
    from localspec.loading.load_request import LoadRequest
    from localspec.loading.model_loader import Progress
    from localspec.loading.planning import CheckedRequest
    from localspec.process.messages import SendEvent


@dataclass(frozen=True, slots=True)
class Loader:
    """The functions that load sessions and do jobs; all raise `LocalspecError`.

    Attributes:
        load: makes a session of a request or a checked one; raises `Cancelled` when cancelled.
        check: checks a request as far as possible while other models are still loaded.
        perform: does an encoded job, returns its encoded result; raises `Cancelled` when cancelled.
            Its last argument waits for the results of tools that the job has called.
    """

    load: Callable[[LoadRequest | CheckedRequest, Progress, Cancel], Session]
    check: Callable[[LoadRequest], CheckedRequest]
    perform: Callable[[bytes, SendEvent, Cancel, Callable[[], tuple[Message, ...]]], bytes]


def loader(*, echo: int | None = None) -> Loader:
    """Make the real one; imports llama.cpp, whose log also goes to the file descriptor `echo`."""
    from localspec.engine.llama.log import start_backend  # noqa: PLC0415
    from localspec.loading.load import check, open_session  # noqa: PLC0415
    from localspec.process.jobs import perform  # noqa: PLC0415

    start_backend().echo = echo
    return Loader(open_session, check, perform)
