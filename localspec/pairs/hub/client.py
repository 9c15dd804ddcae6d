"""Repositories and their bytes, through the library's HTTP session and errors.

Metadata and downloads are requested here, not by the library: its metadata requests accept answers
of any size, and its downloads start from zero in every new process.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from localspec import connections, formats
from localspec.errors import AccessDenied, HubError, HubOffline, HubUnavailable, NotOnHub, runs
from localspec.limits import LARGEST_FILE
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.response_body import Take, endpoint, receive
from localspec.pairs.hub.retries import (
    NO_HUB,
    RetryPolicy,
    TransferInterrupted,
    Unreachable,
    retried,
)
from localspec.pairs.names import references
from localspec.pairs.names.references import Reference
from localspec.safe_text import one_line, reason

# ruff: noqa: PLC0415 - importing huggingface_hub takes a second; many commands do not need it

MOST_TOLD: Final = 16_000_000  # bytes about one repository; the largest have two million
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # temporary failures
_WITHOUT: Final = "Check the network; what is on this disk works without it."


@dataclass(frozen=True, slots=True)
class RemoteRepo:
    """A repository at one commit; `gated` if its owner requires terms to be accepted."""

    commit: str
    gated: bool
    licence: str
    files: dict[str, RemoteFile]


class _Lfs(msgspec.Struct):
    sha256: str


class _Sibling(msgspec.Struct):
    rfilename: str
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_FILE)] | None = None
    blob_id: str | None = msgspec.field(default=None, name="blobId")
    lfs: _Lfs | None = None


class _Info(msgspec.Struct):
    """The fields that are used of the Hub's answer about a repository."""

    id: str
    sha: str
    gated: bool | str = False
    tags: list[str] = []  # msgspec copies the default
    card: dict[str, Any] | None = msgspec.field(default=None, name="cardData")
    siblings: list[_Sibling] = []


def look_up(reference: Reference, retries: RetryPolicy) -> RemoteRepo:
    """Ask the Hub about a repository at a revision. Raises `HubError` or `Cancelled`.

    The files bear the repository's name as the Hub spells it: a user may write it in any case.
    """
    repo, revision = reference.repo, quote(reference.revision or "main", safe="")
    url = f"{endpoint()}/api/models/{repo}/revision/{revision}?blobs=true"
    told = _gathered(url, reference, retries)
    try:
        info = msgspec.json.decode(told, type=_Info)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        what = f"{endpoint()} does not answer like a Hub: {reason(error)}"
        raise HubUnavailable(what, NO_HUB) from None
    if info.id.encode().lower() != repo.encode().lower():
        moved = replace(reference, repo=one_line(info.id))
        raise NotOnHub(f"{repo} has moved to {moved.repo}", f"Pull {moved} if you trust its owner.")
    if not re.fullmatch(r"[0-9a-f]{40}", info.sha):
        raise HubUnavailable(f"{endpoint()} gives no commit for {repo}", NO_HUB)
    files = {}
    for one in info.siblings:
        etag = (one.lfs.sha256 if one.lfs else one.blob_id) or ""
        if one.size is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag):
            files[one.rfilename] = RemoteFile(info.id, info.sha, one.rfilename, one.size, etag)
    return RemoteRepo(info.sha, bool(info.gated), _licence(info), files)


def _licence(info: _Info) -> str:
    tags = [tag.removeprefix("license:") for tag in info.tags if tag.startswith("license:")]
    named = (info.card or {}).get("license_name")  # where the tag is only "other"
    return one_line(named if isinstance(named, str) else ", ".join(tags), 80)


def require_safe(file: RemoteFile) -> None:
    """Raise `HubError` if the file's name would leave its folder."""
    if not references.safe_file(file.name):
        what = f"{file.repo} has a file named {one_line(file.name, 80)!r}: such a name is refused"
        raise HubError(what, "Do not use this repository.")


def receive_file(
    file: RemoteFile,
    retries: RetryPolicy,
    take: Take,
    start: int,
    stop: int,
    *,
    tick: Callable[[], None],
) -> None:
    """Read `file` from byte `start` to `stop` by `receive`. Raises `HubError` or `Cancelled`."""
    with translated(Reference(file.repo, file.name)):
        until = stop if stop < file.size else None
        receive(_url(file), retries, take, start, until, size=file.size, tick=tick)


def read_range(file: RemoteFile, offset: int, size: int, retries: RetryPolicy) -> bytes:
    """Read `size` bytes of `file` from `offset`, fewer at its end; raises as `receive_file`."""
    stop = min(offset + size, file.size)
    if offset >= stop:
        return b""
    reference = Reference(file.repo, file.name)
    return _gathered(_url(file), reference, retries, (offset, stop), file.size)


def _url(file: RemoteFile) -> str:
    return f"{endpoint()}/{file.repo}/resolve/{file.commit}/{quote(file.name)}"


def _gathered(
    url: str,
    reference: Reference,
    retries: RetryPolicy,
    part: tuple[int, int | None] = (0, None),
    size: int | None = None,
) -> bytes:
    """A part, from start to stop, of what has `size` bytes; without a stop at most `MOST_TOLD`."""
    start, stop = part
    most = MOST_TOLD + 1 if stop is None else stop - start

    def attempt() -> bytes:
        got = bytearray()

        def take(piece: bytes) -> bool:
            got.extend(piece)
            return len(got) < most

        with translated(reference):
            receive(url, retries, take, start, stop, size=size)
        if stop is None and len(got) >= most:
            what = f"{endpoint()} answers with more than {formats.size(MOST_TOLD)}"
            raise HubUnavailable(what, NO_HUB)
        return bytes(got[:most])

    return retried(attempt, retries, tell=retries.note)


@contextlib.contextmanager
def translated(reference: Reference) -> Iterator[None]:
    """Convert errors of the library and its HTTP client to errors of localspec."""
    from huggingface_hub import errors
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    broken = httpx.TimeoutException, httpx.NetworkError, httpx.ProxyError, httpx.RemoteProtocolError
    try:
        yield
    except errors.OfflineModeIsEnabled:
        what = f"{reference.repo} cannot be looked up: offline mode is on"
        names = "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"
        named = " and ".join(filter(os.environ.get, names)) or names[0]
        raise HubOffline(what, f"Unset {named}.") from None
    except errors.HfHubHTTPError as error:
        raise _from_status(error, reference) from None
    except broken as error:
        # The Hub's own server, or the storage that it redirects to.
        host = error.request.url.netloc.decode("ascii", "replace")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            remedy = connections.way_out(error) or _WITHOUT
            raise Unreachable(f"{host} cannot be reached: {reason(error)}", remedy) from None
        if isinstance(error, httpx.TimeoutException):
            raise TransferInterrupted(f"{host} did not answer in time") from None
        raise TransferInterrupted(f"the connection to {host} broke off: {reason(error)}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:
        # ValueError: a proxy of an unknown kind. ImportError: one that needs another package.
        what = f"{endpoint()} cannot be used: {reason(error)}"
        raise HubUnavailable(what, connections.way_out(error) or NO_HUB) from None


def _login() -> str:
    """How the Hub gets a token: its program `hf` may lie where no shell looks."""
    return f"set HF_TOKEN or run `{runs('-m huggingface_hub.cli.hf auth login')}`"


def _from_status(error: Any, reference: Reference) -> HubError:
    from huggingface_hub import errors

    repo, status = reference.repo, error.response.status_code
    kind: type[HubError] = NotOnHub
    if isinstance(error, errors.GatedRepoError):
        what, kind = f"{repo} is gated: its owner wants you to accept terms first", AccessDenied
        remedy = f"Accept them at {endpoint()}/{repo}, then {_login()}."
    elif isinstance(error, errors.RevisionNotFoundError):
        what = f"{repo} has no revision {reference.revision or 'main'}"
        remedy = "Leave the @revision out."
    elif isinstance(error, errors.RemoteEntryNotFoundError):
        what, remedy = f"{repo} has no file {reference.file}", "Check the file's name."
    elif isinstance(error, errors.RepositoryNotFoundError):
        what = f"there is no repository {repo}, or it is private"
        remedy = f"Check the spelling; for a private one, {_login()}."
    elif status in (401, 403) and "Authorization" in error.response.request.headers:
        what, kind = f"the Hub refuses this access token for {repo} (status {status})", AccessDenied
        remedy = f"Check the token: {_login()}; unset HF_TOKEN to go without one."
    elif status in (401, 403):
        what, kind = f"access to {repo} is refused (status {status})", AccessDenied
        remedy = f"If it takes a token, {_login()}; else check any proxy or firewall."
    elif status in _PASSING:
        pause = _asked_pause(status, error.response.headers)
        fault = "asks for fewer requests" if status == 429 else "has an internal error"
        return TransferInterrupted(f"{endpoint()} {fault} (status {status})", pause)
    elif status == 404:
        what, remedy = f"{repo} is not at {endpoint()}", "Check the spelling."
    else:
        what, kind = f"{endpoint()} refuses the request (status {status})", HubUnavailable
        remedy = NO_HUB
    return kind(what, remedy)


def _asked_pause(status: int, headers: Any) -> float:
    """Seconds that a server asks to wait; 0 if it does not say."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    told = re.fullmatch(r"\d{1,6}", headers.get("Retry-After", ""))
    pause = float(told[0]) if told else 0.0
    # The Hub's limit of requests in five minutes, which other failures tell as well.
    limit = parse_ratelimit_headers(headers) if status == 429 else None
    return pause if limit is None or limit.remaining else max(pause, limit.reset_in_seconds)
