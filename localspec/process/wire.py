"""Letters over two byte streams: a length in four bytes, then MessagePack."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic

import msgspec

from localspec.errors import EngineError
from localspec.process.messages import PROTOCOL, Body, Hello, Letter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_SIZE = 4
_CHUNK = 1 << 16


class Line(Generic[Body]):
    """One end of a line; any thread may send, one receives.

    Args:
        source: where letters come from.
        sink: where they go to.
        incoming: the type of what comes, a `Letter` of something.
    """

    def __init__(self, source: IO[bytes], sink: IO[bytes], incoming: type[Letter[Body]]) -> None:
        self._source = source
        self._sink = sink
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self.send(Letter(0, 0, Hello()))

    def send(self, letter: Letter[Any]) -> None:
        """Send a letter; waits while the other end does not read what has come before."""
        self.write(self.encoded(letter))

    def encoded(self, letter: Letter[Any]) -> bytes:
        """A letter as `write` takes it."""
        data = self._encoder.encode(letter)
        return len(data).to_bytes(_SIZE, "little") + data

    def write(self, data: bytes) -> None:
        """Send an encoded letter; where nobody is left to read it, nothing happens."""
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (OSError, ValueError):
            return  # whoever receives sees the end, and knows more

    def close(self) -> None:
        """Send nothing more: the other end sees the end."""
        try:
            with self._lock:
                self._sink.close()
        except OSError:
            return

    def _decoded(self, data: bytearray) -> Letter[Body]:
        try:
            letter = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise EngineError(f"what came from another process is no message: {error}") from None
        if isinstance(letter.body, Hello) and letter.body.protocol != PROTOCOL:
            raise EngineError(
                f"the engine's process speaks version {letter.body.protocol}, this one {PROTOCOL}",
                "Start localspec anew: it was changed while it ran.",
            )
        return letter

    def letters(self) -> Iterator[list[Letter[Body]]]:
        """All that has come at each look, until the line ends.

        Raises:
            EngineError: the other end speaks another version, or nonsense.
        """
        held = bytearray()
        while data := os.read(self._source.fileno(), _CHUNK):
            held += data
            found = []
            while len(held) >= _SIZE:
                end = _SIZE + int.from_bytes(held[:_SIZE], "little")
                if len(held) < end:
                    break
                letter = self._decoded(held[_SIZE:end])
                del held[:end]
                if not isinstance(letter.body, Hello):
                    found.append(letter)
            if found:
                yield found
