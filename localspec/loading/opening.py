"""Which pair the chat opens: the one that is named, else the last used one, else the demo."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError, UsageError
from localspec.loading.load import load_session
from localspec.pairs import last_used
from localspec.pairs.installed import DEMO

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.engine.cancel import Cancel
    from localspec.loading.load import Progress
    from localspec.loading.request import LoadRequest


def open_session(options: LoadRequest, progress: Progress, cancel: Cancel) -> Session:
    """Load the pair of `options`, and remember it if it was named.

    Without a name the last used pair is loaded; where it cannot be, the demo pair with a notice.

    Raises:
        LocalspecError, Cancelled: as `load_session`.
    """
    if options.pair is not None:
        session = load_session(options, progress=progress, cancel=cancel)
        last_used.remember(options.pair, options.draft)
        return session
    used = last_used.recall()
    if used is None:
        return load_session(options, progress=progress, cancel=cancel)
    draft = used.draft if options.draft is None else options.draft
    try:
        again = replace(options, pair=used.pair, draft=draft)
        return load_session(again, progress=progress, cancel=cancel)
    except UsageError:
        raise
    except LocalspecError as error:
        notice = f"{used.pair}, used last, cannot be opened ({error.message}): this is {DEMO}"
        return load_session(options, progress=progress, cancel=cancel, notices=(notice,))
