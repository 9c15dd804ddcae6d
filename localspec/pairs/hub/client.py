"""Repositories and their bytes.

The library gives its HTTP session, with authorisation and proxies, and its errors. What is read is
asked for here: its own answers may be of any size, and its own downloads start from zero in every
new process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from localspec.errors import (
    AccessDenied,
    BadReference,
    HubError,
    HubOffline,
    HubUnavailable,
    NotOnHub,
)
from localspec.limits import LARGEST_FILE
from localspec.pairs import references
from localspec.pairs.hub.body import LOGIN, Body, document, endpoint, headers
from localspec.pairs.hub.patience import (
    CONTINUES,
    NO_HUB,
    Interrupted,
    Patience,
    Unreachable,
    retried,
)
from localspec.pairs.references import Reference
from localspec.safe_text import one_line, reason

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

MOST_TOLD: Final = 16_000_000  # bytes about one repository; the largest have two million
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_ETAG: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # states that pass


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

    commit: str
    gated: bool
    licence: str
    files: dict[str, RemoteFile]


_FileSize = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_FILE)]


class _Lfs(msgspec.Struct):
    sha256: str
    size: _FileSize


class _Sibling(msgspec.Struct):
    rfilename: str
    size: _FileSize | None = None
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
        with translated(reference):
            return document(url, patience, MOST_TOLD)

    told = retried(ask, patience)
    try:
        info = msgspec.json.decode(told, type=_Info)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HubUnavailable(
            f"{endpoint()} does not answer like a Hub: {reason(error)}", NO_HUB
        ) from None
    if info.id.lower() != reference.repo.lower():
        actual = one_line(info.id, 200)
        moved = replace(reference, repo=actual)
        raise NotOnHub(
            f"{reference.repo} has moved to {actual}", f"Pull {moved} if you trust its owner."
        )
    if not _COMMIT.fullmatch(info.sha):
        raise HubUnavailable(f"{endpoint()} gives no commit for {reference.repo}", NO_HUB)
    files = [_remote_file(reference.repo, info.sha, sibling) for sibling in info.siblings]
    named = {file.name: file for file in files if file is not None}
    return RemoteRepo(info.sha, bool(info.gated), _licence(info), named)


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
    """Open the bytes of `file`; see `Body`.

    Raises:
        Cancelled: the user wants to stop.
        Interrupted: cut off, too slow or the server is busy; try again.
        Unreachable: nobody answers.
        HubError: anything else.
    """
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=endpoint())
    named = Reference(file.repo, file.name)
    with translated(named), Body(url, patience, start, stop) as body:
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
        stop, got = min(offset + size, file.size), bytearray()
        with open_body(file, patience, offset, stop) as body:
            for piece in body:
                got += piece
                if body.start + len(got) >= stop:
                    break
        return bytes(got[offset - body.start : stop - body.start])

    return retried(read, patience)


@contextlib.contextmanager
def translated(reference: Reference) -> Iterator[None]:
    """Turn what the library and its HTTP client raise into the errors people meet."""
    from huggingface_hub import errors
    from huggingface_hub.utils import HFValidationError, httpx  # type: ignore[attr-defined]

    repo = reference.repo
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise HubOffline(
            f"{repo} cannot be looked up: offline mode is on", "Unset HF_HUB_OFFLINE."
        ) from None
    except errors.HfHubHTTPError as error:
        raise _from_status(error, reference) from None
    except HFValidationError:
        raise BadReference(f"{repo!r} is no repository's name", "Write user/repo.") from None
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        raise Unreachable(
            f"{_host(error)} cannot be reached: {reason(error)}",
            "Check the network; what is on this disk already works without it.",
        ) from None
    except httpx.TimeoutException as error:
        raise Interrupted(
            f"{_host(error)} did not answer in time", "Run the same command again."
        ) from None
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        raise Interrupted(
            f"the connection to {_host(error)} broke off: {reason(error)}",
            CONTINUES,
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:
        # The last two: a proxy of a kind that needs another package, or that nobody knows.
        raise HubUnavailable(f"{endpoint()} cannot be used: {reason(error)}", NO_HUB) from None


def _host(error: Any) -> str:
    """Name who did not answer: the Hub, or the storage it sent us to."""
    with contextlib.suppress(AttributeError, RuntimeError):  # no request is known
        return str(error.request.url.netloc.decode("ascii", "replace"))
    return endpoint()


def _from_status(error: Any, reference: Reference) -> HubError:
    from huggingface_hub import errors

    repo = reference.repo
    if isinstance(error, errors.GatedRepoError):
        return AccessDenied(
            f"{repo} is gated: its owner wants you to accept terms first",
            f"Accept them at {endpoint()}/{repo}, then {LOGIN}.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return NotOnHub(
            f"{repo} has no revision {reference.revision or 'main'}", "Leave the @revision out."
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return NotOnHub(f"{repo} has no file {reference.file}", "Check the file's name.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotOnHub(
            f"there is no repository {repo}, or it is private",
            f"Check the spelling; for a private one, {LOGIN}.",
        )
    return _from_plain_status(error.response.status_code, repo, error)


def _from_plain_status(status: int, repo: str, error: Any) -> HubError:
    if status in (401, 403):
        return AccessDenied(
            f"the Hub refuses this access token for {repo} (status {status})",
            f"Check the token: {LOGIN}; unset HF_TOKEN to go without one.",
        )
    if status in _PASSING:
        after = error.response.headers.get("Retry-After", "")
        what = "asks for fewer requests" if status == 429 else "has a fault of its own"
        return Interrupted(
            f"{endpoint()} {what} (status {status})",
            "Run the same command again in a while: it continues where it stopped.",
            float(after) if re.fullmatch(r"\d{1,6}", after) else None,
        )
    if status == 404:
        return NotOnHub(f"{repo} is not at {endpoint()}", "Check the spelling.")
    return HubUnavailable(f"{endpoint()} refuses the request (status {status})", NO_HUB)
