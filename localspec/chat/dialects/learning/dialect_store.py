"""Learnt dialects on the disk, so that they are not learnt again at each start."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from localspec import private
from localspec.chat.dialects.dialect import Dialect
from localspec.chat.prompt.renderer import TemplateSource

DIALECTS = "dialects"
"""The name of a folder inside the cache folder."""


def recall(folder: Path, source: TemplateSource) -> Dialect | None:
    """What this version of the code learnt from a template; None if nothing is stored."""
    return private.read_json(_path(folder, source), Dialect)


def keep(folder: Path, source: TemplateSource, dialect: Dialect) -> None:
    """Store what was learnt; if the folder is not writable, nothing is stored."""
    with suppress(OSError):
        private.write_json(_path(folder, source), dialect)


def _path(folder: Path, source: TemplateSource) -> Path:
    """The file of a template; its name has the hashes of the template and of the code."""
    digest = hashlib.sha256(_code())
    for text in (source.template, source.bos, source.eos):
        part = text.encode("utf-8", "replace")
        digest.update(b"%d " % len(part) + part)
    return folder / f"{digest.hexdigest()}.json"


@cache
def _code() -> bytes:
    """A hash of the code that learns and renders, because other code may learn something else."""
    dialects = Path(__file__).parents[1]
    files = [*sorted(dialects.rglob("*.py")), dialects.parent / "prompt" / "renderer_child.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).digest()
