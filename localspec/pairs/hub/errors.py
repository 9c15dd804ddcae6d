"""From what the library and its HTTP client raise to the errors people meet."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

from localspec.errors import (
    AccessDenied,
    BadReference,
    HubError,
    HubOffline,
    HubUnavailable,
    NotOnHub,
)
from localspec.pairs.hub.patience import Interrupted, Unreachable
from localspec.pairs.hub.settings import LOGIN, endpoint
from localspec.pairs.references import Reference
from localspec.safe_text import reason

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

CONTINUES: Final = "Run the same command again: it continues where it stopped."
NO_HUB: Final = "Check HF_ENDPOINT, and any proxy or firewall between here and the Hub."
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@contextlib.contextmanager
def translated(repo: str, reference: Reference) -> Iterator[None]:
    """Turn what the library and its HTTP client raise into the errors people meet."""
    from huggingface_hub import errors
    from huggingface_hub.utils import HFValidationError, httpx  # type: ignore[attr-defined]

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise HubOffline(
            f"{repo} cannot be looked up: offline mode is on", "Unset HF_HUB_OFFLINE."
        ) from None
    except errors.HfHubHTTPError as error:
        raise _from_status(error, repo, reference) from None
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
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HubUnavailable(f"{endpoint()} cannot be used: {reason(error)}", NO_HUB) from None


def _host(error: Any) -> str:
    """Name who did not answer: the Hub, or the storage it sent us to."""
    with contextlib.suppress(AttributeError, RuntimeError):  # no request is known
        return str(error.request.url.netloc.decode("ascii", "replace"))
    return endpoint()


def _from_status(error: Any, repo: str, reference: Reference) -> HubError:
    from huggingface_hub import errors

    status = error.response.status_code
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
    return _from_plain_status(status, repo, error)


def _from_plain_status(status: int, repo: str, error: Any) -> HubError:
    if status in (401, 403):
        return AccessDenied(
            f"the Hub refuses this access token for {repo} (status {status})",
            f"Check the token: {LOGIN}; unset HF_TOKEN to go without one.",
        )
    if status in _PASSING:
        what = "asks for fewer requests" if status == 429 else "has a fault of its own"
        return Interrupted(
            f"{endpoint()} {what} (status {status})",
            "Run the same command again in a while: it continues where it stopped.",
            _retry_after(error.response.headers.get("Retry-After", "")),
        )
    if status == 404:
        return NotOnHub(f"{repo} is not at {endpoint()}", "Check the spelling.")
    return HubUnavailable(f"{endpoint()} refuses the request (status {status})", NO_HUB)


def _retry_after(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,6}", text) else None
