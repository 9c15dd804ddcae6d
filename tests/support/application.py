"""The application of `localspec serve`, asked without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp, Message, Scope


async def sent(
    app: ASGIApp, method: str, path: str, body: Any = None, **headers: str
) -> AsyncIterator[Message]:
    """What it sends in reply to a request of this machine, whose client stays until the end.

    Args:
        body: becomes JSON.
        headers: by their names, with ``_`` for ``-``.
    """
    received: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode()}]
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()
        return received.pop()

    named = {"host": "localhost", **headers}
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(one.replace("_", "-").encode(), of.encode()) for one, of in named.items()],
        "client": ("127.0.0.1", 1),
    }
    running = asyncio.ensure_future(app(scope, receive, messages.put))
    more = True
    while more:
        message = await asyncio.wait_for(messages.get(), 20)
        more = message["type"] != "http.response.body" or message.get("more_body", False)
        yield message
    await running
