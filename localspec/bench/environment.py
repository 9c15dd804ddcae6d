"""Where a bench ran and on what: enough to judge its figures, and nothing about the person."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

from localspec import __version__
from localspec.chat.session import Session
from localspec.engine.llama import Context, build, machine
from localspec.safe_text import one_line

_WHOLE = 4 << 30  # a larger file is known by its size and its first megabyte: hashing takes minutes
_FIRST = 1 << 20


def environment(sessions: list[Session]) -> dict[str, Any]:
    """Machine, backend, versions and models. No paths, no user and no host name."""
    first = sessions[0].pair
    drafts = [session.pair.draft for session in sessions if session.pair.draft is not None]
    return {
        "machine": machine(),
        "system": f"{platform.system()} {platform.machine()}",
        "localspec": __version__,
        "python": platform.python_version(),
        "llama_cpp_python": build(),
        "pair": one_line(first.name, 80),
        "target": _model(first.target),
        "drafts": [_model(draft) for draft in drafts],
        "loaded_with": first.loaded.document(),
    }


def _model(context: Context) -> dict[str, Any]:
    """A model's name and what tells its file from others."""
    path = context.model.path
    size = path.stat().st_size
    whole = size <= _WHOLE
    with path.open("rb") as file:
        if whole:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            digest = hashlib.sha256(file.read(_FIRST)).hexdigest()
    return {
        "name": one_line(context.model.name, 80),
        "file_bytes": size,
        "sha256" if whole else "sha256_of_first_mebibyte": digest,
    }
