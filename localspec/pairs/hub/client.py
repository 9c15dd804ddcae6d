"""Repositories and their bytes. Nothing but the rooms `hub*` touches huggingface_hub.

The library gives metadata and authorisation. The bytes come through its HTTP session, but by our
own Range requests: its own downloads start from zero in every new process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from localspec.errors import (
    HubError,
    HubUnavailable,
    NotOnHub,
)
from localspec.pairs import references
from localspec.pairs.hub.body import Body
from localspec.pairs.hub.errors import NO_HUB, only_hub_answers, translated
from localspec.pairs.hub.patience import Patience, retried
from localspec.pairs.hub.settings import endpoint, headers, timeout_s
from localspec.pairs.references import Reference
from localspec.safe_text import one_line

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

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


def look_up(reference: Reference, patience: Patience) -> RemoteRepo:
    """Ask the Hub about the repository of `reference`, at its revision.

    Raises:
        HubError: it is not there, not ours to see, or the Hub cannot be asked.
        Cancelled: the user wants to stop.
    """
    headers()  # what is wrong with the token is said before anybody is asked
    from huggingface_hub import HfApi

    def ask() -> Any:
        with translated(reference.repo, reference), only_hub_answers():
            return HfApi(endpoint=endpoint()).model_info(
                reference.repo,
                revision=reference.revision or "main",
                files_metadata=True,
                timeout=timeout_s(),
            )

    info = retried(ask, patience)
    with only_hub_answers():
        _check_moved(reference, info.id)
        return _describe(reference, info)


def _describe(reference: Reference, info: Any) -> RemoteRepo:
    if not _COMMIT.fullmatch(info.sha or ""):
        raise HubUnavailable(f"{endpoint()} gives no commit for {reference.repo}", NO_HUB)
    files = [_remote_file(reference.repo, info.sha, sibling) for sibling in info.siblings or []]
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


def _remote_file(repo: str, commit: str, sibling: Any) -> RemoteFile | None:
    """Take over a file's description; None where it is not complete enough to be fetched."""
    lfs = sibling.lfs
    etag = (lfs.sha256 if lfs else sibling.blob_id) or ""
    size = lfs.size if lfs else sibling.size
    if not isinstance(size, int) or size < 0 or not _ETAG.fullmatch(etag):
        return None
    return RemoteFile(repo, commit, str(sibling.rfilename), size, etag)


def _licence(info: Any) -> str:
    card = getattr(info, "card_data", None)
    name = card.get("license_name") or card.get("license") if card is not None else None
    if not name:
        tags = [tag for tag in info.tags or [] if tag.startswith("license:")]
        name = tags[0].removeprefix("license:") if tags else ""
    if isinstance(name, list):
        name = ", ".join(str(one) for one in name)
    return one_line(str(name), 80)


def require_safe(file: RemoteFile) -> None:
    """Refuse a file whose name would leave the folder that it is put into.

    Raises:
        HubError: it would.
    """
    if not references.safe_file(file.name):
        raise HubError(
            f"{file.repo} has a file named {file.name!r}, which leaves its folder: refused",
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
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        get_session,
        hf_raise_for_status,
    )

    url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=endpoint())
    sent = headers()
    sent["Accept-Encoding"] = "identity"
    if start or stop is not None:
        sent["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    with (
        translated(file.repo, Reference(file.repo, file.name)),
        get_session().stream(
            "GET", url, headers=sent, timeout=timeout_s(), follow_redirects=True
        ) as response,
    ):
        hf_raise_for_status(response)
        yield Body(response, start, patience)


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
