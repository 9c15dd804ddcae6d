"""What the environment says of the Hub: address, cache, access token, patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from localspec.errors import AccessDenied, HubError, UsageError
from localspec.safe_text import reason

# ruff: noqa: PLC0415 - loading the library takes a second, and many commands do without it

LOGIN: Final = "set HF_TOKEN or run `hf auth login`"


def cache_folder() -> Path:
    """Give the Hub cache's folder, as ``HF_HUB_CACHE`` and ``HF_HOME`` and the defaults say."""
    return Path(_constants().HF_HUB_CACHE).absolute()  # as the records of pairs have it


def links_wanted() -> bool:
    """Tell whether the cache may hold links, as ``HF_HUB_DISABLE_SYMLINKS`` says."""
    return not _constants().HF_HUB_DISABLE_SYMLINKS


def endpoint() -> str:
    """Give the Hub's address, as ``HF_ENDPOINT`` says."""
    return str(_constants().ENDPOINT)


def _constants() -> Any:
    """Give the library's settings; it reads the environment when it is loaded first.

    Raises:
        UsageError: one of the HF_* variables makes no sense.
    """
    try:
        from huggingface_hub import constants
    except ValueError as error:
        raise UsageError(
            f"one of the HF_* environment variables cannot be used: {reason(error)}",
            "Correct it, or unset it.",
        ) from None
    return constants


def headers() -> dict[str, str]:
    """Give what every request says about us, the access token among it.

    Raises:
        AccessDenied, HubError: the token cannot be one, or cannot be read.
    """
    _constants()
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        headers: dict[str, str] = build_hf_headers(library_name="localspec")
        for value in headers.values():
            value.encode("ascii")
    except UnicodeEncodeError:
        raise AccessDenied(
            "the access token has characters that no token has", f"Check the token: {LOGIN}."
        ) from None
    except OSError as error:
        raise HubError(
            f"the access token cannot be looked for: {error}",
            "Check the permissions of HF_HOME, or set HF_HOME to another folder.",
        ) from None
    return headers


def timeout_s() -> float:
    """Give the seconds after which the Hub counts as silent."""
    return float(_constants().HF_HUB_DOWNLOAD_TIMEOUT)
