"""What is in the Hub cache already: ``models--user--repo/{blobs,refs,snapshots}``, read only."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import NotOnHub
from localspec.pairs import folders, hub, quants

if TYPE_CHECKING:
    from localspec.pairs.references import Reference


def find(reference: Reference) -> list[Path]:
    """Find the files that `reference` means, complete with all parts; empty when not cached."""
    try:
        snapshots = _snapshots(reference)
    except OSError:  # a cache that may not be read
        return []
    for snapshot in snapshots:
        files = {
            path.relative_to(snapshot).as_posix(): path
            for path in sorted(snapshot.rglob("*.gguf"))
            if folders.is_file(path)  # a link whose blob is gone is none
        }
        with contextlib.suppress(NotOnHub):
            return [files[name] for name in quants.choose(files, reference)]
    return []


def _snapshots(reference: Reference) -> list[Path]:
    """List the snapshots that may answer `reference`, the most likely first."""
    folder = hub.repo_folder(reference.repo)
    revision = reference.revision or "main"
    if re.fullmatch(r"[0-9a-f]{7,40}", revision):
        return sorted((folder / "snapshots").glob(f"{revision}*"))
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    found = [folder / "snapshots" / commit] if re.fullmatch(r"[0-9a-f]{40}", commit) else []
    if not reference.revision:
        # Nothing was asked for in particular: any snapshot will do, the newest first.
        others = [path for path in (folder / "snapshots").glob("*") if path not in found]
        found += sorted(others, key=lambda path: path.lstat().st_mtime, reverse=True)
    return found
