"""Dialects that were learnt, on the disk: a template is rendered for it once, not at each start."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from localspec import private
from localspec.chat.dialects.dialect import Dialect
from localspec.chat.prompt.renderer import TemplateSource

DIALECTS = "dialects"
"""The folder, in that of what can be made again."""


def recall(folder: Path, source: TemplateSource) -> Dialect | None:
    """What this code has learnt of a template before; None where nothing is kept."""
    return private.read_json(_path(folder, source), Dialect)


def keep(folder: Path, source: TemplateSource, dialect: Dialect) -> None:
    """Keep what was learnt; where the folder cannot be written, it is learnt again."""
    with suppress(OSError):
        private.write_json(_path(folder, source), dialect)


def _path(folder: Path, source: TemplateSource) -> Path:
    """The file of a template: named by its hash, and that of the code that has learnt it."""
    digest = hashlib.sha256(_code())
    for text in (source.template, source.bos, source.eos):
        part = text.encode("utf-8", "replace")
        digest.update(b"%d " % len(part) + part)
    return folder / f"{digest.hexdigest()}.json"


@cache
def _code() -> bytes:
    """A hash of what learns and renders: other code may learn something else."""
    dialects = Path(__file__).parents[1]
    files = [*sorted(dialects.rglob("*.py")), dialects.parent / "prompt" / "renderer_child.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).digest()
