"""What a connection depends on here: variables for proxies and certificates, texts in headers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from localspec.safe_text import reason

_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def way_out(error: Exception) -> str:
    """What to do about a connection that fails with `error`; empty where no variable has a part.

    Values are left out: a proxy's address may contain a password.
    """
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        if named := certificates():
            return f"Check {named}: certificates are looked for there."
        return "If a proxy signs this connection, set SSL_CERT_FILE to the file of its certificate."
    named = _named(
        name for each in _PROXIES for name in (each, each.lower()) if os.environ.get(name)
    )
    return f"Check the proxy in {named}, or unset it." if named else ""


def no_certificates(error: OSError) -> tuple[str, str]:
    """Message and remedy where no secure connection can be set up at all."""
    named = certificates()
    remedy = f"Correct or unset {named}." if named else "Install the system's certificates."
    return f"secure connections cannot be set up: {reason(error)}", remedy


def certificates() -> str:
    """Names of the variables for secure connections: the wrong ones, or else all that are set."""
    given = [name for name in _CERTIFICATES if os.environ.get(name)]
    return _named([name for name in given if not _usable(name)] or given)


def may_be_sent(text: str) -> bool:
    """Whether a header can hold `text`: ASCII without line ends and other control characters."""
    return text.isascii() and text.isprintable()


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
