"""Checks that every request must pass: its host, origin, key and size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from localspec.serve.refusals import Refusal

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN = ("/health", "/v1/health")  # health checks need no key
_BODY_S = 30.0
_BODY_BYTES = 32 << 20  # agents send pictures again and again, also to models that read text
_READ_BYTES = 4 * _BODY_BYTES  # a client that is refused while it still sends sees only a reset
_ORIGIN = re.compile(r"(\*|null|file://|[a-z][a-z0-9+.-]*://[^/?#@\s]*[^/?#@\s:])/?")
_OWN_PORTS = (("http://", ":80"), ("https://", ":443"))
# Nothing else may follow: a URL made from the header must not change the request's path.
_HOST = re.compile(r"(?:\[([0-9A-Za-z:.%]+)\]|([\w.-]+))(?::[0-9]*)?")


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may send requests.

    Attributes:
        keys: digests of the keys; empty if no key is needed.
        hosts: allowed host names (`host_name`), besides numeric addresses.
        origins: of web pages that may send requests (`origin_of`).
    """

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = LOCAL
    origins: tuple[str, ...] = ()

    def check(self, request: Request) -> None:
        """Check a request's headers.

        Raises:
            Refusal: 403 for a host or a web page that is not allowed, 401 for a wrong key, 413 for
                a body that is much too large.
        """
        name = host_name(request.headers.get("host", ""))
        if not name:
            raise _forbidden("the request has no Host header that names this machine")
        if name not in self.hosts and not _is_address(name):
            raise _forbidden("the Host header names another machine", "--allow-host")
        origin = request.headers.get("origin")
        if origin is not None and not {origin, "*"} & {*self.origins}:
            raise _forbidden("web pages of this origin may not ask", "--allow-origin")
        if request.headers.get("sec-fetch-site") == "cross-site" and origin is None:
            raise _forbidden("web pages of other sites may not ask", "--allow-origin")
        if self.keys and request.scope["path"] not in _OPEN and not self._knows(request):
            raise Refusal(
                401,
                "there is no such key: send Authorization: Bearer KEY, or x-api-key: KEY",
                kind="authentication_error",
                code="invalid_api_key",
            )
        length = request.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > _READ_BYTES:
            raise _too_large()

    def _knows(self, request: Request) -> bool:
        """Whether the request has one of the keys; the time does not depend on the wrong key."""
        sent = [digest(key) for key in sent_keys(request)]
        # Compare all keys, so that the time tells nothing.
        return any([hmac.compare_digest(mine, one) for mine in sent for one in self.keys])  # noqa: C419


async def read_body(request: Request) -> bytes:
    """Read a request's body; of one that is too large the rest is not kept.

    Raises:
        Refusal: 408 if it takes too long, 413 if it is too large.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size <= _BODY_BYTES:
                    body += part
                elif size > _READ_BYTES:
                    break
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {_BODY_S:g} seconds") from None
    except ClientDisconnect:
        raise Refusal(400, "the client has gone") from None
    if size > _BODY_BYTES:
        raise _too_large()
    return bytes(body)


def _too_large() -> Refusal:
    return Refusal(413, f"the body is larger than {_BODY_BYTES >> 20} MB", code="too_large")


def sent_keys(request: Request) -> tuple[str, str]:
    """The keys in a request's headers, under OpenAI's name and Anthropic's; empty for none."""
    given = request.headers.get("authorization", "")
    scheme, _, key = given.partition(" ")
    sent = key.strip() if scheme.lower() == "bearer" else given
    return sent, request.headers.get("x-api-key", "").strip()


def digest(key: str) -> bytes:
    """The digest of a key, which is stored and compared; its length does not depend on the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def origin_of(text: str) -> str:
    """A web page's origin as browsers send it, `*` for all; empty if `text` is none."""
    found = _ORIGIN.fullmatch(text.lower())
    origin = found[1] if found else ""
    for scheme, port in _OWN_PORTS:
        origin = origin.removesuffix(port) if origin.startswith(scheme) else origin
    return origin


def host_name(header: str) -> str:
    """The name in a Host header, without its port; empty if the header is malformed."""
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower().rstrip(".") if found else ""


def _is_address(name: str) -> bool:
    """Whether it is a numeric address, which DNS rebinding cannot use."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _forbidden(message: str, option: str = "") -> Refusal:
    """The refusal of what no option allows, or `option` does."""
    said = f"{message}; {option} allows it" if option else message
    return Refusal(403, said, kind="permission_error", code="forbidden")


def refused(refusal: Refusal, document: object, status: int) -> Response:
    """The reply for a refusal.

    Args:
        refusal: what is wrong.
        document: how the protocol says it.
        status: the protocol's.
    """
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in (408, 413):  # the rest of the body will not be read
        headers["connection"] = "close"
    return json_reply(document, status, headers)


def json_reply(
    document: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A reply with a JSON document."""
    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")
