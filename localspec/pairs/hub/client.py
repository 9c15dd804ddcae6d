"""Repositories and their bytes.

The library gives its HTTP session, with authorisation and proxies, and its errors. What is read is
asked for here: its own answers may be of any size, and its own downloads start from zero in every
new process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from localspec.errors import (
    HubError,
    HubUnavailable,
    NotOnHub,
)
from localspec.limits import LARGEST_FILE
from localspec.pairs import references
from localspec.pairs.hub.body import Body, document, opened
from localspec.pairs.hub.errors import NO_HUB, translated
from localspec.pairs.hub.patience import Patience, retried
from localspec.pairs.hub.settings import endpoint, headers
from localspec.pairs.references import Reference
from localspec.safe_text import one_line, reason

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

MOST_TOLD: Final = 16_000_000  # bytes about one repository; the largest have two million
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_ETAG: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository at one commit.

    Attributes:
        etag: the name of its blob in the cache: the sha256 of a large file, the git blob id
            (a sha1 over a header and the bytes) of one that is kept in git itself.
        size: in bytes.
    """

    repo: str
    commit: str
    name: str
    size: int
    etag: str

    @property
    def sha256(self) -> str:
        """The file's sha256, empty when the Hub does not say it."""
        return self.etag if re.fullmatch(r"[0-9a-f]{64}", self.etag) else ""


@dataclass(frozen=True, slots=True)
class RemoteRepo:
    """A repository at one commit.

    Attributes:
        commit: the commit that the revision named when it was asked for.
        gated: whether its owner wants terms to be accepted first.
        licence: as the repository's card says, empty when it says nothing.
        files: every file by name.
    """

    repo: str
    commit: str
    revision: str
    gated: bool
    licence: str
    files: dict[str, RemoteFile]


_Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_FILE)]


class _Lfs(msgspec.Struct):
    sha256: str
    size: _Size


class _Sibling(msgspec.Struct):
    rfilename: str
    size: _Size | None = None
    blob_id: str | None = msgspec.field(default=None, name="blobId")
    lfs: _Lfs | None = None


class _Info(msgspec.Struct):
    """What the Hub says of a repository, as far as it is used."""

    id: str
    sha: str
    gated: bool | str = False
    tags: list[str] = []  # msgspec copies it
    card: dict[str, Any] | None = msgspec.field(default=None, name="cardData")
    siblings: list[_Sibling] = []


def look_up(reference: Reference, patience: Patience) -> RemoteRepo:
    """Ask the Hub about the repository of `reference`, at its revision.

    Raises:
        HubError: it is not there, not ours to see, or the Hub cannot be asked.
        Cancelled: the user wants to stop.
    """
    headers()  # what is wrong with the token is said before anybody is asked
    revision = quote(reference.revision or "main", safe="")
    url = f"{endpoint()}/api/models/{reference.repo}/revision/{revision}?blobs=true"

    def ask() -> bytes:
        with translated(reference.repo, reference):
            return document(url, patience, MOST_TOLD)

    told = retried(ask, patience)
    try:
        info = msgspec.json.decode(told, type=_Info)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HubUnavailable(
            f"{endpoint()} does not answer like a Hub: {reason(error)}", NO_HUB
        ) from None
    _check_moved(reference, info.id)
    return _describe(reference, info)


def _describe(reference: Reference, info: _Info) -> RemoteRepo:
    if not _COMMIT.fullmatch(info.sha):
        raise HubUnavailable(f"{endpoint()} gives no commit for {reference.repo}", NO_HUB)
    files = [_remote_file(reference.repo, info.sha, sibling) for sibling in info.siblings]
    return RemoteRepo(
        repo=reference.repo,
        commit=info.sha,
        revision=reference.revision or "main",
        gated=bool(info.gated),
        licence=_licence(info),
        files={file.name: file for file in files if file is not None},
    )


def _check_moved(reference: Reference, actual: str) -> None:
    if actual.lower() != reference.repo.lower():
        actual = one_line(actual, 200)
        moved = Reference(actual, reference.file, reference.quant, reference.revision)
        raise NotOnHub(
            f"{reference.repo} has moved to {actual}", f"Pull {moved} if you trust its owner."
        )


def _remote_file(repo: str, commit: str, sibling: _Sibling) -> RemoteFile | None:
    """Take over a file's description; None where it is not complete enough to be fetched."""
    lfs = sibling.lfs
    etag = (lfs.sha256 if lfs else sibling.blob_id) or ""
    size = lfs.size if lfs else sibling.size
    if size is None or not _ETAG.fullmatch(etag):
        return None
    return RemoteFile(repo, commit, sibling.rfilename, size, etag)


def _licence(info: _Info) -> str:
    card = info.card or {}
    name = card.get("license_name") or card.get("license")
    if not name:
        tags = [tag for tag in info.tags if tag.startswith("license:")]
        name = tags[0].removeprefix("license:") if tags else ""
    if isinstance(name, list):
        name = ", ".join(one for one in name if isinstance(one, str))
    return one_line(name, 80) if isinstance(name, str) else ""


def require_safe(file: RemoteFile) -> None:
    """Refuse a file whose name would leave the folder that it is put into.

    Raises:
        HubError: it would.
    """
    if not references.safe_file(file.name):
        raise HubError(
            f"{file.repo} has a file named {one_line(file.name, 80)!r}: such a name is refused",
            "Do not use this repository.",
        )


@contextlib.contextmanager
def open_body(
    file: RemoteFile, patience: Patience, start: int = 0, stop: int | None = None
) -> Iterator[Body]:
    """Open the bytes of `file` from `start` up to `stop` (its end when None).

    The body may begin at 0 all the same: some servers know no ranges.

    Raises:
        Cancelled: the user wants to stop.
        Interrupted: cut off, too slow or the server is busy; try again.
        Unreachable: nobody answers.
        HubError: anything else.
    """
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=endpoint())
    wanted = f"bytes={start}-{'' if stop is None else stop - 1}"
    more = {"Range": wanted} if start or stop is not None else {}
    with (
        translated(file.repo, Reference(file.repo, file.name)),
        opened(url, patience, start=start, more=more) as body,
    ):
        yield body


def read_range(file: RemoteFile, offset: int, size: int, patience: Patience) -> bytes:
    """Read `size` bytes of `file` from `offset` on, without keeping anything on disk.

    Raises:
        HubError: as `open_body`, after some attempts.
        Cancelled: the user wants to stop.
    """
    if offset >= file.size:
        return b""

    def read() -> bytes:
        stop = min(offset + size, file.size)
        with open_body(file, patience, offset, stop) as body:
            got = bytearray(stop - body.start)
            view, count = memoryview(got), 0
            while count < len(got) and not body.ended:
                count += body.read_into(view[count:])
        return bytes(view[offset - body.start : count])

    return retried(read, patience)
