"""Hub references as people write them.

``user/repo[:QUANT|:file.gguf][@revision]``, and URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from localspec.errors import BadReference
from localspec.pairs.disk import folders

_REPO: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_QUANT: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,39}", re.ASCII)
_END_OF_FOLDER: Final = re.compile(r"(?:UD-)?[^-.]+$")
_REVISION: Final = re.compile(r"[A-Za-z0-9][\w./+-]{0,127}", re.ASCII)
_HUB_HOSTS: Final = ("hf.co", "www.hf.co", "huggingface.co", "www.huggingface.co")
_IN_URLS: Final = ("blob", "resolve", "raw", "tree")
_LONGEST_NAME: Final = 255  # bytes that file systems allow
_FORMS: Final = (
    "Write user/repo, user/repo:QUANT or user/repo:file.gguf, with @revision after it if need be."
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the Hub: a repository with, optionally, a file or a quant, and a revision."""

    repo: str
    file: str = ""
    quant: str = ""
    revision: str = ""

    def __str__(self) -> str:
        which = f":{self.file or self.quant}" if self.file or self.quant else ""
        return f"{self.repo}{which}" + (f"@{self.revision}" if self.revision else "")


def looks_like_path(text: str) -> bool:
    """Whether `text` starts or ends like a local file's path."""
    if "://" in text:
        return False
    if text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or re.match(r"[A-Za-z]:[\\/]", text):
        return True
    host = text.split("/", 1)[0].lower()
    return text.lower().endswith(".gguf") and ":" not in text and host not in _HUB_HOSTS


def means_local(text: str) -> bool:
    """Whether `text` means a file on this disk, existing or not.

    ``user/repo/file.gguf`` means one only if the file, or at least its folder, exists.
    """
    if not looks_like_path(text):
        return False
    owner, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    if not file or not _REPO.fullmatch(f"{owner}/{name.partition('@')[0]}"):
        return True
    path = folders.user_path(text)
    return folders.is_file(path) or path.parent.is_dir()


def parse(text: str) -> Reference:
    """Parse a Hub reference in any of the usual forms.

    Raises:
        BadReference: it names no repository, or contains something unsafe.
    """
    text = text.strip()
    host = text.split("/", 1)[0].lower()
    if "://" in text or host in _HUB_HOSTS:
        return _parse_url(text)
    body, revision = _cut_revision(text)
    repo, _, which = body.partition(":")
    if not which and repo.count("/") > 1 and repo.lower().endswith(".gguf"):
        owner, name, which = repo.split("/", 2)
        repo = f"{owner}/{name}"
    elif body.endswith(":"):
        raise BadReference(f"{text!r} ends with a colon and names no quant or file", _FORMS)
    kind = "file" if which.lower().endswith(".gguf") else "quant"
    return _checked(text, Reference(repo, revision=revision, **{kind: which}))


def with_quant(reference: Reference, quant: str) -> Reference:
    """The reference with another quant; without one if `quant` is empty.

    Raises:
        BadReference: `quant` cannot be one.
    """
    changed = replace(reference, quant=quant)
    return _checked(str(changed), changed)


def safe_file(name: str) -> bool:
    """Whether `name`, a file's path in a repository, stays inside its folder."""
    if not name or name != name.strip() or "\\" in name or ":" in name or not name.isprintable():
        return False
    path = PurePosixPath(name)
    if any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        return False
    return not path.is_absolute() and path.as_posix() == name and ".." not in path.parts


def _cut_revision(text: str) -> tuple[str, str]:
    """Split off ``@revision``, which may be at the end or before ``:QUANT``."""
    body, at, revision = text.partition("@")
    if ":" in body:  # a file's name may contain an @
        body, at, revision = text.rpartition("@")
    if not at or (":" in body and revision.lower().endswith(".gguf")):
        return text, ""
    revision, colon, which = revision.partition(":")
    if revision.lower().endswith(".gguf") and not which:  # hf://user/repo@revision/file.gguf
        revision, path = _at_revision(revision.split("/"))
        colon, which = ":", "/".join(path)
    if not revision:
        raise BadReference(f"{text!r} has an @ and no revision after it", _FORMS)
    return body + colon + which, revision


def _parse_url(text: str) -> Reference:
    scheme, _, rest = text.rpartition("://")
    try:
        url = urlsplit(text if scheme else f"https://{text}")
    except ValueError:  # unbalanced brackets, as around an IPv6 address
        raise BadReference(f"{text!r} is not a Hub address", _FORMS) from None
    path = f"{url.netloc}{url.path}" if scheme == "hf" else url.path
    if scheme not in ("", "http", "https", "hf") or not rest:
        raise BadReference(f"{text!r} is not a Hub address", _FORMS)
    own = _own_hub()
    if scheme.startswith("http") and url.netloc.lower() not in (*_HUB_HOSTS, own.netloc.lower()):
        raise BadReference(f"{url.netloc} is not the Hub", "Set HF_ENDPOINT to use another Hub.")
    if url.netloc.lower() == own.netloc.lower():  # a mirror may be a folder on its server
        path = path.removeprefix(own.path.rstrip("/"))
    path = path.strip("/").removeprefix("models/")
    parts = [unquote(part) for part in path.split("/")]  # a branch may contain %2F
    (shown,) = parse_qs(url.query).get("show_file_info", [""])[:1]
    if len(parts) >= 4 and parts[2] in _IN_URLS:
        return _checked(text, _inside(parts, shown))
    if shown.lower().endswith(".gguf") and len(parts) == 2:
        return _checked(text, Reference("/".join(parts), file=shown))
    return parse("/".join(parts)) if len(parts) > 1 else _checked(text, Reference(parts[0]))


def _inside(parts: Sequence[str], shown: str) -> Reference:
    """The reference of ``user/repo/tree/revision/path``, or of the file that the page shows."""
    revision, path = _at_revision(parts[3:])
    repo, file = "/".join(parts[:2]), shown or "/".join(path)
    if file.lower().endswith(".gguf"):
        return Reference(repo, file=file, revision=revision)
    # Folders, of models in several parts above all, have the names of quants, or end with them.
    quant = _END_OF_FOLDER.search(path[-1]) if path and parts[2] == "tree" else None
    return Reference(repo, quant=quant[0] if quant else "", revision=revision)


def _at_revision(parts: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The revision that a path begins with, which may be ``refs/pr/3``, and what follows it."""
    whole = parts[0] == "refs" and len(parts) > 2 and not parts[2].lower().endswith(".gguf")
    n = 3 if whole else 1
    return "/".join(parts[:n]), parts[n:]


def _own_hub() -> SplitResult:
    """The address in ``HF_ENDPOINT``; empty without one, or if it is not an address."""
    try:
        return urlsplit(os.environ.get("HF_ENDPOINT", ""))
    except ValueError:  # reported by whatever asks the Hub
        return urlsplit("")


def _checked(text: str, reference: Reference) -> Reference:
    if not _REPO.fullmatch(reference.repo) or "--" in reference.repo or ".." in reference.repo:
        raise BadReference(f"{text!r} names no repository", _FORMS)
    if reference.file and not safe_file(reference.file):
        raise BadReference(f"{reference.file!r} is not a safe file name", _FORMS)
    if reference.quant and not _QUANT.fullmatch(reference.quant):
        raise BadReference(f"{reference.quant!r} in {text!r} is not a quant", _FORMS)
    revision = reference.revision
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise BadReference(f"{revision!r} in {text!r} is not a revision", _FORMS)
    return reference
