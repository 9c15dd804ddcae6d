"""The pair that ships with localspec, padded so that it costs what a real one does.

The models that ship are so small that a pass costs next to nothing, and drafting cannot gain what
it gains on a model of a useful size. Padded with zeros they say the same and read 300 MB a pass.

They are padded in F16. That is what lets a few cores wait for memory, as all decoding does that
drafting can make faster: checking four tokens takes 1.5 times as long as one on two cores of a
server on which it takes 3.1 times as long in Q8_0 (docs/measurements/kernels.md).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from localspec.errors import LocalspecError, ModelFileError
from localspec.pairs import folders
from localspec.pairs.installed import DEMO, InstalledModel, InstalledPair
from localspec.private import make_folder
from localspec.safe_text import reason

TARGET_BYTES: Final = 300_000_000
DRAFT_BYTES: Final = TARGET_BYTES // 10
SWITCH: Final = "LOCALSPEC_DEMO"
"""Set to ``small``, the models are used as they ship."""

SAID: Final = (
    "the demo's small model is padded to 300 MB, so that it costs what a real one does: it says"
    " the same, but for rounding"
)
LICENCE: Final = "Apache-2.0"  # localspec's own


def pair() -> InstalledPair:
    """Give the demo pair: padded where that has been done, else as it ships.

    Raises:
        ModelFileError: its files are not there.
    """
    work = _work()
    padded = not _small_wanted() and all(folders.is_file(path) for _, path, _ in work)
    target, draft = (
        InstalledModel((str(path),), n_bytes=path.stat().st_size, licence=LICENCE)
        for path in (out if padded else source for source, out, _ in work)
    )
    return InstalledPair(DEMO, target, draft)


def is_meant(text: str | None) -> bool:
    """Whether `text`, as people write a pair, means this one; None does."""
    return text is None or text.strip().lower() == DEMO


def to_be_padded() -> bool:
    """Whether `pad` has something to do."""
    return not _small_wanted() and not all(folders.is_file(path) for _, path, _ in _work())


def pad() -> str:
    """Pad both models (a second or two); say what was done, or why it could not be.

    Raises:
        ModelFileError: they are not there.
    """
    from localspec.pairs.gguf import padding  # noqa: PLC0415 - numpy, once in a lifetime

    try:
        make_folder(_folder())
        for source, path, n_bytes in _work():
            padding.pad(source, path, n_bytes, halves=True)
            for old in _folder().glob(f"{_side(source)}-*.gguf"):
                if old != path:
                    old.unlink(missing_ok=True)
    except (OSError, LocalspecError) as error:
        return f"the demo's models could not be padded ({reason(error)}): drafting gains little"
    return SAID


def unpad(keep: Collection[Path] = ()) -> int:
    """Delete the padded files but for `keep`, those of earlier versions too; give the bytes freed.

    Raises:
        LocalspecError: one cannot be deleted.
    """
    freed = 0
    try:
        for path in sorted(set(_folder().glob("*.gguf*")) - {*keep}):
            freed += path.stat().st_size
            path.unlink()
    except OSError as error:
        raise LocalspecError(f"demo cannot be removed: {reason(error)}") from None
    return freed


def _small_wanted() -> bool:
    return os.environ.get(SWITCH, "").strip().lower() == "small"


def _folder() -> Path:
    return folders.cache_folder() / DEMO


def _work() -> list[tuple[Path, Path, int]]:
    """For target and draft: what ships, where it goes, at how many bytes.

    Other models have other names, so that a new version pads anew.
    """
    found = []
    folder = folders.shipped(DEMO)
    for side, n_bytes in (("target", TARGET_BYTES), ("draft", DRAFT_BYTES)):
        source = next(iter(sorted(folder.glob(f"{side}-*.gguf"))), None)
        if source is None:
            raise ModelFileError(
                f"the demo pair is missing from {folder}",
                "Install localspec again, or pull a pair.",
            )
        name = f"{_side(source)}-F16-{zlib.crc32(_end(source)):08x}.gguf"
        found.append((source, _folder() / name, n_bytes))
    return found


def _side(path: Path) -> str:
    """Whether it is the target or the draft, by its name."""
    return path.stem.partition("-")[0]


def _end(path: Path) -> bytes:
    """The last weights: no other model has the same, and the pair is asked for at every start."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 20)))
        return file.read()
