"""The bytes of a Hub's answer, read into the caller's memory.

httpx reads 64 KiB at a time and takes each through several layers and new memory, which costs more
than hashing does. So it opens the connection (address, redirects, proxies, certificates, access
token) and reads the head; the rest of a plain HTTP/1.1 body, whose length is known, is read
from the connection itself. The connection is closed afterwards, as httpx has lost count.
"""

from __future__ import annotations

import functools
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from localspec.pairs.hub.errors import CONTINUES
from localspec.pairs.hub.patience import Interrupted, Patience
from localspec.pairs.hub.settings import endpoint, timeout_s
from localspec.safe_text import reason

STEP_S: Final = 0.25

Receive = Callable[[memoryview], int]
"""Reads decrypted bytes into a buffer; some kind of timeout when none come for a moment."""


class Body:
    """The bytes of a file as they come.

    Attributes:
        start: where in the file they begin.
        ended: whether the server has sent all that it promised.
    """

    def __init__(self, response: Any, wanted: int, patience: Patience) -> None:
        self.start = _first_byte(response, wanted)
        self.ended = False
        self._patience = patience
        self._left = _plain_length(response)
        self._receive = _receiver(response) if self._left is not None else None
        plain = self._receive is not None
        # Kept to the end: letting go of it would close the connection.
        self._pieces = response.iter_raw() if plain else response.iter_bytes()
        self._piece: memoryview | None = None
        self._heard = time.monotonic()

    def read_into(self, buffer: memoryview) -> int:
        """Fill the beginning of `buffer`; return how many bytes came, 0 when none did for a moment.

        Raises:
            Cancelled: the user wants to stop.
            Interrupted: the connection broke off or is silent for too long.
        """
        self._patience.check()
        receive, piece = self._receive, self._piece
        if receive is None or piece is None or piece:
            count = self._take_piece(buffer)
        else:
            count = self._take_rest(receive, buffer)
        if self._left is not None:
            self._left -= count
            self.ended = self.ended or self._left <= 0
        return count

    def _take_piece(self, buffer: memoryview) -> int:
        """Take from what httpx has read."""
        if not self._piece:
            piece = next(self._pieces, None)
            self.ended = piece is None
            self._piece = memoryview(piece or b"")
            self._heard = time.monotonic()
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def _take_rest(self, receive: Receive, buffer: memoryview) -> int:
        """Read from the connection, waiting a short while so that a wish to stop is heard."""
        try:
            count = receive(buffer[: self._left])
        except Exception as error:  # the transport's own classes, and nobody else's business
            if "Timeout" not in type(error).__name__:
                what = f"the connection broke off: {reason(error)}"
                raise Interrupted(what, CONTINUES) from None
            if time.monotonic() - self._heard >= timeout_s():
                raise Interrupted(f"{endpoint()} did not answer in time", CONTINUES) from None
            return 0
        if not count:
            raise Interrupted("the connection broke off", CONTINUES)
        self._heard = time.monotonic()
        return count


def _first_byte(response: Any, wanted: int) -> int:
    if response.status_code != 206:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    start = int(match[1]) if match else wanted
    if start != wanted:
        raise Interrupted(f"the server sent bytes from {start:,} on instead of {wanted:,}")
    return start


def _plain_length(response: Any) -> int | None:
    """Give the bytes that follow on the connection, None where that is not so simple."""
    encoded = {"content-encoding", "transfer-encoding"} & set(response.headers)
    length = response.headers.get("Content-Length", "")
    if encoded or response.http_version != "HTTP/1.1" or not length.isdecimal():
        return None
    return int(length)


def _receiver(response: Any) -> Receive | None:
    """Give what reads from the response's connection."""
    stream = response.extensions.get("network_stream")
    if stream is None:
        return None
    step = min(STEP_S, timeout_s())
    raw = stream.get_extra_info("socket")
    # TLS within the TLS of a proxy is no socket of its own: the socket knows the outer one alone.
    layered = isinstance(stream.get_extra_info("ssl_object"), ssl.SSLObject)
    if layered or not isinstance(raw, socket.socket):
        return functools.partial(_copy, stream, step)
    return functools.partial(_receive, raw, step)


def _receive(raw: socket.socket, step: float, buffer: memoryview) -> int:
    raw.settimeout(step)
    return raw.recv_into(buffer)


def _copy(stream: Any, step: float, buffer: memoryview) -> int:
    data: bytes = stream.read(len(buffer), timeout=step)
    buffer[: len(data)] = data
    return len(data)
