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
from localspec.errors import HubUnavailable
from localspec.pairs.hub.errors import CONTINUES, NO_HUB
from localspec.pairs.hub.patience import Interrupted, Patience
from localspec.pairs.hub.settings import endpoint, headers, timeout_s

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

STEP_S: Final = 0.25
HEAD_S: Final = 60.0  # for addresses, redirects, certificates and the head of an answer
MOST_REDIRECTS: Final = 10
SLOW_S: Final = 60.0  # in which at least SLOW_BYTES come, or the connection counts as broken
SLOW_BYTES: Final = 64_000
_PIECES: Final = 16  # of 64 KiB, that may come before anybody wants them
_FOR_ERRORS: Final = ("X-Error-Code", "X-Error-Message", "Retry-After", "X-Request-Id")


class Body:
    """The bytes of an answer as they come.

    Attributes:
        start: where in the file they begin.
        ended: whether the server has sent all that it promised.
    """

    def __init__(self, answer: _Answer, wanted: int, patience: Patience) -> None:
        self.ended = False
        self._answer = answer
        self._patience = patience
        self.start = _first_byte(answer.head(patience), wanted)
        self._piece = memoryview(b"")
        self._heard = self._since = time.monotonic()
        self._count = 0

    def read_into(self, buffer: memoryview) -> int:
        """Fill the beginning of `buffer`; return how many bytes came, 0 when none did for a moment.

        Raises:
            Cancelled: the user wants to stop.
            Interrupted: the connection broke off, is silent or too slow.
        """
        self._patience.check()
        if not self._piece:
            piece = self._answer.next(STEP_S)
            if piece is None:
                self._require_speed()
                return 0
            self.ended = not piece
            self._piece = memoryview(piece)
            self._heard = time.monotonic()
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        self._count += count
        self._require_speed()
        return count

    def _require_speed(self) -> None:
        now = time.monotonic()
        if now - self._heard > timeout_s() + STEP_S:
            raise Interrupted(f"{endpoint()} did not answer in time", CONTINUES)
        if now - self._since > SLOW_S:
            if self._count < SLOW_BYTES:
                slow = f"{formats.size(self._count)} in {formats.duration(SLOW_S)}"
                raise Interrupted(f"{endpoint()} sends only {slow}", CONTINUES)
            self._since, self._count = now, 0


class _Answer:
    """One request and its answer, in a thread of its own; redirects are followed."""

    def __init__(self, url: str, more: dict[str, str]) -> None:
        self._url = url
        self._headers = headers() | {"Accept-Encoding": "identity"} | more
        # Simple queues pass 64 KiB on in a third of the time that one with a bound takes.
        self._come: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_PIECES):
            self._room.put(None)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._work, name="localspec-hub", daemon=True)
        self._thread.start()

    def head(self, patience: Patience) -> Any:
        """Wait for the answer's status and headers.

        Raises:
            Interrupted: they take too long.
            Cancelled: the user wants to stop.
            Exception: what the HTTP client raised.
        """
        deadline = time.monotonic() + HEAD_S
        while (head := self.next(STEP_S)) is None:
            patience.check()
            if time.monotonic() > deadline:
                raise Interrupted(f"{endpoint()} did not answer in time", CONTINUES)
        return head

    def next(self, seconds: float) -> Any:
        """Give what comes next: the head, pieces, then an empty one; None when nothing does."""
        try:
            found = self._come.get(timeout=min(seconds, timeout_s()))
        except queue.Empty:
            return None
        self._room.put(None)
        if isinstance(found, Exception):
            raise found
        return found

    def leave(self) -> None:
        """Have no more of it."""
        self._unwanted.set()
        self._room.put(None)
        self._thread.join(STEP_S)

    def _work(self) -> None:
        try:
            response = self._open()
            try:
                _require_good(response)
                self._put(response)
                for piece in response.iter_raw():
                    if piece:
                        self._put(piece)
                self._put(b"")
            finally:
                response.close()
        except _Unwanted:
            pass
        except Exception as error:
            self._come.put(error)

    def _open(self) -> Any:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        session = get_session()
        request = session.build_request(
            "GET", self._url, headers=self._headers, timeout=timeout_s()
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


@contextlib.contextmanager
def opened(
    url: str, patience: Patience, *, start: int = 0, more: dict[str, str] | None = None
) -> Iterator[Body]:
    """Open the body of `url` with some more headers; it is expected to begin at `start`.

    Raises:
        Exception: what `hub.errors.translated` turns into the errors people meet.
        Cancelled: the user wants to stop.
    """
    answer = _Answer(url, more or {})
    try:
        yield Body(answer, start, patience)
    finally:
        answer.leave()


def document(url: str, patience: Patience, limit: int) -> bytes:
    """Read all of `url`, which may have `limit` bytes at most.

    Raises:
        Exception: as `opened`; HubUnavailable where it is larger, Interrupted where it is slow.
    """
    deadline, got = time.monotonic() + HEAD_S, bytearray()
    block = memoryview(bytearray(1 << 16))
    with opened(url, patience) as body:
        while not body.ended:
            got += block[: body.read_into(block)]
            if len(got) > limit:
                size = formats.size(limit)
                raise HubUnavailable(f"{endpoint()} answers with more than {size}", NO_HUB)
            if time.monotonic() > deadline:
                raise Interrupted(f"{endpoint()} did not answer in time", CONTINUES)
    return bytes(got)


def _require_good(response: Any) -> None:
    from huggingface_hub.utils import hf_raise_for_status, httpx  # type: ignore[attr-defined]

    # What an error's body says is not shown, and it may have no end: it is not read.
    known = {name: response.headers[name] for name in _FOR_ERRORS if name in response.headers}
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
