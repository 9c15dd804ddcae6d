"""A hash that identifies a model's file without reading all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ENDS: Final = 1 << 20  # bytes hashed at both ends: most of the metadata, and the last weights
_PLACES: Final = 256  # samples taken evenly in between
_EACH: Final = 4096


def fingerprint(paths: Sequence[Path]) -> str:
    """Hash a model's files: their sizes, their ends, and samples from all over them.

    Files of several gigabytes take milliseconds. Another quantisation, a fine-tune or a newer
    upload differs in nearly all weights, so samples tell them apart. A deliberate change of a few
    bytes may go unnoticed.

    Args:
        paths: all parts of the model, in order.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            spots = [(0, _ENDS), (max(0, size - _ENDS), _ENDS)]
            spots += [(size * n // _PLACES, _EACH) for n in range(1, _PLACES)]
            for at, length in spots:
                file.seek(at)
                digest.update(file.read(length))
    return digest.hexdigest()
