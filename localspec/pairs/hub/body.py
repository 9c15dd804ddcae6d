"""A Hub's answer: its head, and its bytes as they come.

httpx waits for every read anew, so that an answer which drips never ends. It is therefore opened
and read by a thread of its own, and whoever wants it looks at a clock, and at the user's wish to
stop, while it comes. A thread that nobody listens to any more ends with its next byte, or when
httpx has heard nothing for long enough.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from localspec import formats
from localspec.errors import AccessDenied, HubError, HubUnavailable
from localspec.pairs.hub.cache import constants
from localspec.pairs.hub.patience import CONTINUES, NO_HUB, Interrupted, Patience

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

LOGIN: Final = "set HF_TOKEN or run `hf auth login`"
STEP_S: Final = 0.25
HEAD_S: Final = 60.0  # for addresses, redirects, certificates and the head of an answer
MOST_REDIRECTS: Final = 10
SLOW_S: Final = 60.0  # in which at least SLOW_BYTES come, or the connection counts as broken
SLOW_BYTES: Final = 64_000
_PIECES: Final = 16  # of 64 KiB, that may come before anybody wants them
_FOR_ERRORS: Final = (b"x-error-code", b"x-error-message", b"retry-after", b"x-request-id")


def endpoint() -> str:
    """Give the Hub's address, as ``HF_ENDPOINT`` says."""
    return str(constants().ENDPOINT)


def _timeout_s() -> float:
    """Give the seconds after which the Hub counts as silent."""
    return float(constants().HF_HUB_DOWNLOAD_TIMEOUT)


def headers() -> dict[str, str]:
    """Give what every request says about us, the access token among it.

    Raises:
        AccessDenied, HubError: the token cannot be one, or cannot be read.
    """
    constants()
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        headers: dict[str, str] = build_hf_headers(library_name="localspec")
        for value in headers.values():
            value.encode("ascii")
    except UnicodeEncodeError:
        raise AccessDenied(
            "the access token has characters that no token has", f"Check the token: {LOGIN}."
        ) from None
    except OSError as error:
        raise HubError(
            f"the access token cannot be looked for: {error}",
            "Check the permissions of HF_HOME, or set HF_HOME to another folder.",
        ) from None
    return headers


class Body:
    """The bytes of one request's answer, to be used in a `with`; redirects are followed.

    Args:
        url: whose bytes.
        patience: whether the user wants to stop.
        start: where they should begin; some servers know no ranges, and begin at 0.
        stop: where they should end, None for the end of the file.

    Attributes:
        start: where they do begin.
    """

    def __init__(
        self, url: str, patience: Patience, start: int = 0, stop: int | None = None
    ) -> None:
        self.start = start
        self._url = url
        self._headers = headers() | {"Accept-Encoding": "identity"}
        if start or stop is not None:
            self._headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        self._patience = patience
        # Simple queues pass 64 KiB on in a third of the time that one with a bound takes.
        self._come: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_PIECES):
            self._room.put(None)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="localspec-hub", daemon=True)
        self._thread.start()

    def __enter__(self) -> Body:
        """Wait for the answer's status and headers.

        Raises:
            Interrupted: they take too long.
            Cancelled: the user wants to stop.
            Exception: what the HTTP client raised.
        """
        deadline = time.monotonic() + HEAD_S
        try:
            while (head := self._next()) is None:
                if time.monotonic() > deadline:
                    raise _silent()
            self.start = _first_byte(head, self.start)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Have no more of it."""
        self._unwanted.set()
        self._room.put(None)
        self._thread.join(STEP_S)

    def __iter__(self) -> Iterator[bytes]:
        """Give the pieces to the end as they come, an empty one where none does for a moment.

        Raises:
            Cancelled: the user wants to stop.
            Interrupted: the connection broke off, is silent or too slow.
        """
        heard = since = time.monotonic()
        count = 0
        while (piece := self._next()) != b"":
            now = time.monotonic()
            heard = heard if piece is None else now
            count += len(piece or b"")
            if now - heard > _timeout_s() + STEP_S:
                raise _silent()
            if now - since > SLOW_S:
                if count < SLOW_BYTES:
                    slow = f"{formats.size(count)} in {formats.duration(SLOW_S)}"
                    raise Interrupted(f"{endpoint()} sends only {slow}", CONTINUES)
                since, count = now, 0
            yield piece or b""

    def _next(self) -> Any:
        """Give what comes next: the head, pieces, then an empty one; None when nothing does."""
        self._patience.check()
        try:
            found = self._come.get(timeout=min(STEP_S, _timeout_s()))
        except queue.Empty:
            return None
        self._room.put(None)
        if isinstance(found, Exception):
            raise found
        return found

    def _receive(self) -> None:
        try:
            response = self._open()
            with contextlib.closing(response):
                _require_good(response)
                self._put(response)
                for piece in filter(None, response.iter_raw()):
                    self._put(piece)
                self._put(b"")
        except _Unwanted:
            pass
        except Exception as error:
            self._come.put(error)

    def _open(self) -> Any:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        session = get_session()
        request = session.build_request(
            "GET", self._url, headers=self._headers, timeout=_timeout_s()
        )
        for _ in range(MOST_REDIRECTS):
            response = session.send(request, stream=True, follow_redirects=False)
            if response.next_request is None:
                return response
            request = response.next_request
            response.close()  # unread: its body may have no end
        raise HubUnavailable(f"{endpoint()} sends us on and on", NO_HUB)

    def _put(self, what: Any) -> None:
        self._room.get()
        if self._unwanted.is_set():
            raise _Unwanted
        self._come.put(what)


class _Unwanted(Exception):
    """Nobody waits for the answer any more."""


def document(url: str, patience: Patience, limit: int) -> bytes:
    """Read all of `url`, which may have `limit` bytes at most.

    Raises:
        Exception: as `Body`; HubUnavailable where it is larger, Interrupted where it is slow.
    """
    deadline, got = time.monotonic() + HEAD_S, bytearray()
    with Body(url, patience) as body:
        for piece in body:
            got += piece
            if len(got) > limit:
                size = formats.size(limit)
                raise HubUnavailable(f"{endpoint()} answers with more than {size}", NO_HUB)
            if time.monotonic() > deadline:
                raise _silent()
    return bytes(got)


def _silent() -> Interrupted:
    return Interrupted(f"{endpoint()} did not answer in time", CONTINUES)


def _require_good(response: Any) -> None:
    from huggingface_hub.utils import hf_raise_for_status, httpx  # type: ignore[attr-defined]

    # What an error's body says is not shown, and it may have no end: it is not read.
    known = [header for header in response.headers.raw if header[0].lower() in _FOR_ERRORS]
    hf_raise_for_status(
        httpx.Response(response.status_code, headers=known, request=response.request)
    )
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HubUnavailable(f"{endpoint()} packs its answers, unasked", NO_HUB)


def _first_byte(response: Any, wanted: int) -> int:
    if response.status_code != 206:
        return 0
    match = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    start = int(match[1]) if match else wanted
    if start != wanted:
        raise Interrupted(f"the server sent bytes from {start:,} on instead of {wanted:,}")
    return start
