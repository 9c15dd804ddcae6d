"""`Channel`: sends and receives envelopes through two byte streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import IO, Any, Generic

import msgspec

from localspec.errors import EngineError
from localspec.process.messages import PROTOCOL, Body, Envelope, Hello

_SIZE = 4  # bytes of a frame's length
_CHUNK = 1 << 16
_UPDATED = "Start localspec again: it was updated while it ran."


class Channel(Generic[Body]):
    """One end of a connection by two byte streams; any thread may send, one thread receives.

    A frame is a length in four bytes, little endian, then MessagePack.

    Args:
        source, sink: the streams that are read and written.
        incoming: the type of what comes, such as `Envelope[Event]`.
    """

    def __init__(self, source: IO[bytes], sink: IO[bytes], incoming: type[Envelope[Body]]) -> None:
        self._source = source
        self._sink = sink
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._understood = False
        self.send(Envelope(0, Hello()))

    def send(self, envelope: Envelope[Any]) -> None:
        """Send an envelope; blocks while the other end does not read."""
        self.write(self.encoded(envelope))

    def encoded(self, envelope: Envelope[Any]) -> bytes:
        """Encode an envelope for `write`."""
        data = self._encoder.encode(envelope)
        return len(data).to_bytes(_SIZE, "little") + data

    def write(self, data: bytes) -> None:
        """Send an encoded envelope; if the other end is gone, it is dropped."""
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (OSError, ValueError):
            return  # the receiving thread notices the end, and reports it

    def close(self) -> None:
        """Close the sending side, which the other end notices."""
        try:
            with self._lock:
                self._sink.close()
        except OSError:
            return

    def _decoded(self, data: bytearray) -> Envelope[Body]:
        try:
            envelope = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            # Of another version, the first message may have another shape.
            raise EngineError(
                f"another process sent something that is not a message: {error}",
                "" if self._understood else _UPDATED,
            ) from None
        if isinstance(envelope.body, Hello) and envelope.body.protocol != PROTOCOL:
            raise EngineError(
                f"the engine's process uses version {envelope.body.protocol} of the protocol,"
                f" this one {PROTOCOL}",
                _UPDATED,
            )
        self._understood = True
        return envelope

    def envelopes(self) -> Iterator[list[Envelope[Body]]]:
        """Give what has arrived at each read, until the connection ends.

        Raises:
            EngineError: the other end uses another version, or sends something malformed.
        """
        held = bytearray()
        while data := os.read(self._source.fileno(), _CHUNK):
            held += data
            found = []
            while len(held) >= _SIZE:
                end = _SIZE + int.from_bytes(held[:_SIZE], "little")
                if len(held) < end:
                    break
                envelope = self._decoded(held[_SIZE:end])
                del held[:end]
                if not isinstance(envelope.body, Hello):
                    found.append(envelope)
            if found:
                yield found
