"""One answer of the Hub, read so that it can be cancelled and cannot last forever.

httpx limits each read separately, so a slowly dripping answer never ends. A thread therefore opens
and reads the answer, while the caller watches the clock and the user's wish to stop. An abandoned
thread ends with its next piece, or at httpx's timeout.
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
from localspec.errors import HubError, HubUnavailable
from localspec.pairs.hub.cache import constants
from localspec.pairs.hub.environment import certificates
from localspec.pairs.hub.retries import NO_HUB, RetryPolicy, TransferInterrupted
from localspec.safe_text import reason

# ruff: noqa: PLC0415 - importing huggingface_hub takes a second; many commands do not need it

STEP_S: Final = 0.25
HEAD_S: Final = 60.0  # for name lookup, redirects, certificates and the head of an answer
MOST_REDIRECTS: Final = 10
SLOW_S: Final = 60.0  # a connection counts as broken below SLOW_BYTES in this time
SLOW_BYTES: Final = 64_000
_PIECES: Final = 16  # pieces of 64 KiB that may queue up
_FOR_ERRORS: Final = (b"x-error-code", b"x-error-message", b"retry-after", b"x-request-id")


def endpoint() -> str:
    """The Hub's address, as set by ``HF_ENDPOINT``."""
    return str(constants().ENDPOINT)


class ResponseBody:
    """The bytes of one answer, for a `with`, from `start` to `stop`, or to the end if it is None.

    Within the `with`, `start` is the offset of the first byte that arrives: 0 if the server does
    not support ranges.
    """

    def __init__(
        self, url: str, retries: RetryPolicy, start: int = 0, stop: int | None = None
    ) -> None:
        self.start = start
        self._retries = retries
        asked = f"bytes={start}-{'' if stop is None else stop - 1}"
        ranged = {"Range": asked} if start or stop is not None else {}
        # Two simple queues transfer 64 KiB in a third of the time that one bounded queue takes.
        self._come: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_PIECES):
            self._room.put(None)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._receive, args=(url, ranged), daemon=True)

    def __enter__(self) -> ResponseBody:
        """Wait at most `HEAD_S` for the answer's head; raise what the client or library raised."""
        self._thread.start()
        deadline = time.monotonic() + HEAD_S
        try:
            while (head := self._next()) is None:
                if time.monotonic() > deadline:
                    raise TransferInterrupted(f"{endpoint()} did not answer in time")
            told = re.match(r"bytes (\d{1,18})-", head.headers.get("Content-Range", ""))
            if head.status_code != 206:
                self.start = 0
            elif told and int(told[1]) != self.start:
                raise TransferInterrupted(
                    f"the server sent bytes from {told[1]} on, not from {self.start}"
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._unwanted.set()
        self._room.put(None)
        self._thread.join(STEP_S)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces as they arrive, and an empty one whenever none arrives for `STEP_S`."""
        since, count = time.monotonic(), 0
        while (piece := self._next()) != b"":
            count += len(piece or b"")
            if time.monotonic() - since > SLOW_S:
                if count < SLOW_BYTES:
                    slow = f"{formats.size(count)} in {formats.duration(SLOW_S)}"
                    raise TransferInterrupted(f"{endpoint()} sends only {slow}")
                since, count = time.monotonic(), 0
            yield piece or b""

    def _next(self) -> Any:
        """The next item: the response, then pieces, at last an empty one; None if none came yet."""
        self._retries.check()
        try:
            found = self._come.get(timeout=STEP_S)
        except queue.Empty:
            return None
        self._room.put(None)
        if isinstance(found, Exception):
            raise found
        return found

    def _receive(self, url: str, ranged: dict[str, str]) -> None:
        try:
            with contextlib.closing(_open(url, ranged)) as response:
                _require_good(response)
                self._come.put(response)
                for piece in filter(None, response.iter_raw()):
                    self._room.get()
                    if self._unwanted.is_set():
                        return
                    self._come.put(piece)
                self._come.put(b"")
        except Exception as error:
            self._come.put(error)


def _open(url: str, ranged: dict[str, str]) -> Any:
    """Send the request and follow redirects, whose bodies may be endless and are not read."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        httpx,
    )

    try:
        headers = build_hf_headers(library_name="localspec") | {"Accept-Encoding": "identity"}
    except OSError as error:
        raise HubError(
            f"the access token cannot be looked for: {error}",
            "Check the permissions of HF_HOME, or set HF_HOME to another folder.",
        ) from None
    try:
        session = get_session()
    except OSError as error:  # missing, or without certificates
        named = certificates()
        raise HubUnavailable(
            f"secure connections cannot be set up: {reason(error)}",
            f"Correct or unset {named}." if named else "Install the system's certificates.",
        ) from None
    timeout = constants().HF_HUB_DOWNLOAD_TIMEOUT
    request = session.build_request("GET", url, headers=headers | ranged, timeout=timeout)
    for _ in range(MOST_REDIRECTS):
        response = session.send(request, stream=True, follow_redirects=False)
        if response.next_request is None:
            return response
        request = response.next_request
        response.close()
    raise httpx.TooManyRedirects("too many redirects")


def _require_good(response: Any) -> None:
    from huggingface_hub.utils import hf_raise_for_status, httpx  # type: ignore[attr-defined]

    # The library would read the body of an error, which is not shown and may be endless.
    known = [header for header in response.headers.raw if header[0].lower() in _FOR_ERRORS]
    hf_raise_for_status(
        httpx.Response(response.status_code, headers=known, request=response.request)
    )
    if response.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
        raise HubUnavailable(f"{endpoint()} packs its answers, unasked", NO_HUB)
