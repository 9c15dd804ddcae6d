"""Environment variables that the Hub's client reads, for messages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def proxies() -> str:
    """Names of the variables that set a proxy; empty if none does.

    Their values are left out: a proxy's address may contain a password.
    """
    return _named(
        name for each in _PROXIES for name in (each, each.lower()) if os.environ.get(name)
    )


def certificates() -> str:
    """Names of the variables for secure connections: the wrong ones, or else all that are set."""
    given = [name for name in _CERTIFICATES if os.environ.get(name)]
    return _named([name for name in given if not _usable(name)] or given)


def hub_settings(error: Exception) -> str:
    """The variable of the Hub's library whose value `error` quotes, or else all that are set."""
    given = [name for name in sorted(os.environ) if name.startswith("HF_") and os.environ[name]]
    quoted = [name for name in given if repr(os.environ[name]) in str(error)]
    return _named(quoted) if len(quoted) == 1 else f"one of {_named(given)}"


def _usable(name: str) -> bool:
    path = Path(os.environ[name])
    try:
        if name == "SSLKEYLOGFILE":  # a file to write, created if missing
            return path.parent.is_dir() and os.access(
                path if path.exists() else path.parent, os.W_OK
            )
        return (
            path.is_dir() if name == "SSL_CERT_DIR" else path.stat().st_size > 0 and path.is_file()
        )
    except (OSError, ValueError):
        return False


def _named(names: Iterable[str]) -> str:
    return " and ".join(names)
