"""One answer of the Hub, read so that it can be cancelled and cannot last forever.

httpx limits each read separately, so a slowly dripping answer never ends. A thread therefore opens
and reads the answer, while the caller watches the clock and the user's wish to stop. An abandoned
thread ends with its next piece, or at httpx's timeout.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from localspec import connections, formats
from localspec.errors import AccessDenied, HubError, HubUnavailable
from localspec.pairs.hub.cache import constants
from localspec.pairs.hub.retries import NO_HUB, RetryPolicy, TransferInterrupted
from localspec.safe_text import reason

# ruff: noqa: PLC0415 - importing huggingface_hub takes a second; many commands do not need it

STEP_S: Final = 0.1
HEAD_S: Final = 60.0  # for name lookup, redirects, certificates and the head of an answer
MOST_REDIRECTS: Final = 10
SLOW_S: Final = 60.0  # if the next SLOW_BYTES take longer, the connection counts as broken
SLOW_BYTES: Final = 64_000
_LONGEST_HEADER: Final = 300
_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FOR_ERRORS: Final = frozenset(
    {b"x-error-code", b"x-error-message", b"retry-after", b"ratelimit", b"x-request-id"}
)

Take: TypeAlias = Callable[[bytes], bool]
"""Receives the next bytes; returns whether more are wanted."""


def endpoint() -> str:
    """The Hub's address, as set by ``HF_ENDPOINT``."""
    return str(constants().ENDPOINT)


def receive(
    url: str,
    retries: RetryPolicy,
    take: Take,
    start: int = 0,
    stop: int | None = None,
    *,
    size: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Read an answer from byte `start` to `stop`, or to its end, as long as `take` wants more.

    A server without ranges sends all: what precedes `start` is dropped, what follows `stop` may
    come. `take` runs in another thread, and never after this function has ended; `tick` runs every
    `STEP_S` in the caller's. With `size`, nothing is taken of an answer that names another length
    for the whole, or of a web page that names none.

    Raises:
        HubUnavailable: it is something else than was promised, such as the page of a proxy.
        TransferInterrupted: no answer came within `HEAD_S`, or it is too slow.
        Cancelled: the user stopped it.
        Exception: whatever the client, the library, `take` or `tick` raised.
    """
    reading = _Reading(take, size)
    threading.Thread(target=reading.run, args=(url, start, stop), daemon=True).start()
    try:
        while not reading.ended.wait(STEP_S):
            retries.check()
            tick()
            if time.monotonic() > reading.deadline:
                sent = f"{formats.size(reading.count)} in {formats.duration(SLOW_S)}"
                slow = f"sends only {sent}" if reading.has_head else "did not answer in time"
                raise TransferInterrupted(f"{endpoint()} {slow}")
    finally:
        with reading.lock:
            reading.wanted = False
    if reading.error is not None:
        raise reading.error


@dataclass(slots=True)
class _Reading:
    """One answer, read by a thread; its caller clears `wanted` to end it.

    `deadline` is that of the head, then of the next `SLOW_BYTES`, of which `count` have come.
    """

    take: Take
    size: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    wanted: bool = True
    has_head: bool = False
    deadline: float = field(default_factory=lambda: time.monotonic() + HEAD_S)
    count: int = 0
    error: Exception | None = None

    def run(self, url: str, start: int, stop: int | None) -> None:
        """Open and read the answer; keep the error that ends it."""
        ranged = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        try:
            with contextlib.closing(_open(url, ranged if start or stop else {})) as response:
                known = start - _first_byte(response, start, self.size)
                self.deadline, self.has_head = time.monotonic() + SLOW_S, True
                for piece in response.iter_raw():
                    new, known = piece[known:], max(0, known - len(piece))
                    with self.lock:
                        if not (self.wanted and self.take(new)):
                            return
                    self.count += len(piece)
                    if self.count >= SLOW_BYTES:
                        self.count, self.deadline = 0, time.monotonic() + SLOW_S
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()


def _open(url: str, ranged: dict[str, str]) -> Any:
    """Send the request and follow redirects, whose bodies may be endless and are not read."""
    from huggingface_hub.utils import get_session, httpx  # type: ignore[attr-defined]

    headers = _headers()
    try:
        session = get_session()
    except OSError as error:  # missing, or without certificates
        raise HubUnavailable(*connections.no_certificates(error)) from None
    timeout = constants().HF_HUB_DOWNLOAD_TIMEOUT
    request = session.build_request("GET", url, headers=headers | ranged, timeout=timeout)
    for _ in range(MOST_REDIRECTS):
        response = session.send(request, stream=True, follow_redirects=False)
        if response.next_request is None:
            return response
        request = response.next_request
        response.close()
    raise httpx.TooManyRedirects("too many redirects")


def _headers() -> dict[str, str]:
    """The library's headers, with the access token if there is one."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        found = build_hf_headers(library_name="localspec") | {"Accept-Encoding": "identity"}
    except (OSError, UnicodeDecodeError) as error:
        raise HubError(
            f"the access token cannot be read: {reason(error)}",
            f"Check the file {constants().HF_TOKEN_PATH}, or set HF_HOME to another folder.",
        ) from None
    if not connections.may_be_sent(found.get("authorization", "")):
        place = next(filter(os.environ.get, _TOKENS), constants().HF_TOKEN_PATH)
        what = "the access token has characters that no token has"
        raise AccessDenied(what, f"Check the token in {place}.")
    return found


def _first_byte(response: Any, start: int, size: int | None) -> int:
    """The offset at which the body begins; raises the library's errors for a refusal.

    Raises:
        HubUnavailable: it is not a part of `size` bytes.
    """
    from huggingface_hub.utils import hf_raise_for_status, httpx  # type: ignore[attr-defined]

    # The library would read the body of an error, which is not shown and may be endless.
    # Longer values are not of the Hub, and the library may fail to read them.
    known = [
        (name, value)
        for name, value in response.headers.raw
        if name.lower() in _FOR_ERRORS and len(value) < _LONGEST_HEADER
    ]
    status = response.status_code
    hf_raise_for_status(httpx.Response(status, headers=known, request=response.request))
    if response.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
        raise HubUnavailable(f"{endpoint()} packs its answers, unasked", NO_HUB)
    _require_size(response, size)
    told = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    if status == 206 and told and int(told[1]) != start:
        raise TransferInterrupted(f"the server sent bytes from {told[1]} on, not from {start}")
    return start if status == 206 else 0


def _require_size(response: Any, size: int | None) -> None:
    """Refuse what cannot be a part of the `size` bytes that were promised; None for no promise.

    Raises:
        HubUnavailable: it is of another length, or a web page whose length is not said.
    """
    headers, part = response.headers, response.status_code == 206
    name, form = ("Content-Range", r".*/(\d{1,18})") if part else ("Content-Length", r"(\d{1,18})")
    told = re.fullmatch(form, headers.get(name, ""))
    if size is None or (told and int(told[1]) == size):
        return
    if told:
        what = f"sends {formats.count(int(told[1]))} bytes in place of {formats.count(size)}"
    elif headers.get("Content-Type", "").lower().startswith("text/html"):
        what = "sends a web page in place of a file"
    else:
        return
    raise HubUnavailable(f"{endpoint()} {what}", NO_HUB)
