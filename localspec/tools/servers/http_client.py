"""The HTTP client for a server with a URL: how long it waits, and what refusals mean."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import httpx2

from localspec import connections
from localspec.errors import UsageError
from localspec.safe_text import reason
from localspec.tools.server_settings import ServerSettings

LARGEST_RESPONSE = 32 << 20
"""Bytes of one HTTP response."""

_END_S = 2.0  # the most seconds that each step of ending a call or a session may take
_SESSION = "mcp-session-id"
# How servers refuse a session with status 400. That of invalid params (-32602) may be one that a
# tool has opened.
_FORGOTTEN = re.compile(
    rb"session[ -]id|\A(?!.*:\s*-32602).*"
    rb"(session_?id|valid session|unknown session|no session|not initialized"
    rb"|session (not found|(has )?expired|has been terminated))",
    re.IGNORECASE | re.DOTALL,
)
_REFUSED = -32603  # an internal error, in JSON-RPC
_LISTEN = "subscriptions/listen"
# What nothing waits for: the most seconds of each step, None for any; else those of the settings.
_LIMITS_S: dict[str, float | None] = {
    "GET": None,
    _LISTEN: None,
    "DELETE": _END_S,
    "notifications/cancelled": _END_S,
}


class HttpClient(httpx2.AsyncClient):
    """The client for a server with a URL.

    It follows the environment's proxies (HTTPS_PROXY, NO_PROXY …), but reaches this machine itself.
    A response with more bytes than any result may have ends with `httpx2.ReadError`.

    The SDK limits the time of its requests. What else it sends, one message after the other, is
    limited here; where that fails, the connection goes on, and the next request tells.

    Args:
        settings: expanded; with a URL.

    Attributes:
        gone: set once the server has forgotten the session, or sends no more.
        end: how the connection ended, once it has.

    Raises:
        UsageError: a proxy of the environment, or certificates, cannot be used.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.gone, self.end = asyncio.Event(), "the connection ended"
        self._patience_s = settings.timeout
        url = httpx2.URL(settings.url)
        here = f"all://{url.netloc.decode('ascii')}"
        try:
            super().__init__(
                headers={"Accept-Encoding": "identity", **settings.headers},
                timeout=httpx2.Timeout(settings.timeout, read=None),
                event_hooks={"response": [_bound, self._notice]},
                mounts={here: None} if _is_here(url.host) else None,
            )
        except OSError as error:
            raise UsageError(*connections.no_certificates(error)) from None
        except (ValueError, httpx2.InvalidURL, ImportError) as error:  # or a kind lacks a package
            raise UsageError(
                f"a proxy of the environment cannot be used: {reason(error)}",
                "Unset it, or name the server's host in NO_PROXY.",
            ) from None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a message of the SDK, or open or end what belongs to a session.

        Raises:
            httpx2.HTTPError: a request whose answer is waited for fails.
        """
        message = json.loads(await request.aread() or b"{}")
        what = message.get("method", request.method)
        if {"id", "method"} <= message.keys() and what != _LISTEN:
            response = await super().send(request, **options)
            return await _explained(response, message["id"]) if response.is_error else response
        seconds = _LIMITS_S.get(what, self._patience_s)
        if seconds is not None:
            request.extensions["timeout"] = httpx2.Timeout(seconds).as_dict()
        try:
            return await super().send(request, **options)
        except httpx2.TransportError:
            return httpx2.Response(504, request=request)

    async def _notice(self, response: httpx2.Response) -> None:
        """Notice that a server does not know its session: it was restarted, or waited too long."""
        status = response.status_code
        if _SESSION in response.request.headers and (
            status == 404 or (status == 400 and _FORGOTTEN.search(await response.aread()))
        ):
            self.end = "it forgot this session"
            self.gone.set()


async def _explained(response: httpx2.Response, number: object) -> httpx2.Response:
    """A refusal in the form in which the SDK looks for its reason.

    Args:
        response: any with the status of an error.
        number: the request's.
    """
    status = response.status_code
    error: object = {"code": _REFUSED, "message": _meaning(response)}
    try:
        with suppress(httpx2.TransportError, ValueError, RecursionError):
            match json.loads(await response.aread()):
                case {"error": {"code": int(), "message": str()} as said} if status != 401:
                    error = said
    finally:
        await response.aclose()
    document = json.dumps({"jsonrpc": "2.0", "id": number, "error": error})
    kind = {"Content-Type": "application/json"}
    return httpx2.Response(status, content=document, headers=kind, request=response.request)


def _meaning(response: httpx2.Response) -> str:
    said = f"it answered {response.status_code} {response.reason_phrase}".rstrip()
    if response.status_code in (401, 403):
        perhaps = "perhaps " if response.status_code == 403 else ""  # or a firewall refuses
        said += (
            f": {perhaps}it wants a sign-in, which localspec cannot do;"
            " put a token into `headers` of this server in mcp.json"
        )
    return said


def unreachable(error: httpx2.HTTPError) -> str:
    """Why a server cannot be reached, and the variable to check if requests to it leave here."""
    if isinstance(error, httpx2.ReadError):  # it was reached
        return reason(error)
    refused = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)
    outside = refused and not _is_here(error.request.url.host)
    remedy = connections.way_out(error) if outside else ""
    return ". ".join(filter(None, (f"it cannot be reached: {reason(error)}", remedy)))


def _is_here(host: str) -> bool:
    """Whether a host is this machine: loopback, or the address that stands for all its own."""
    name = host.rstrip(".").lower()
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


async def _bound(response: httpx2.Response) -> None:
    """Limit the bytes of a response before it is read; packed ones could grow without a limit."""
    if response.headers.get("content-encoding", "").lower() not in ("", "identity"):
        raise httpx2.ReadError("it sent a compressed answer, which it was not asked for")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = LARGEST_RESPONSE
        async for data in self._inner:
            left -= len(data)
            if left < 0:
                raise httpx2.ReadError(f"it sent more than {LARGEST_RESPONSE >> 20} MB")
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
