"""A connection to one server, from its start to its end, in one task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import mcp_types
from anyio.abc import ObjectReceiveStream
from mcp import Client, MCPError
from mcp.client._transport import Transport, TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import methods
from pydantic import ValidationError

from localspec import __version__
from localspec.errors import LocalspecError
from localspec.safe_text import one_line, reason
from localspec.tools.server_settings import ServerSettings
from localspec.tools.servers.child_transport import ChildServer
from localspec.tools.servers.http_client import LARGEST_RESPONSE, HttpClient, unreachable
from localspec.tools.servers.tool_results import text_of
from localspec.tools.tool_definitions import MOST_TOOLS, checked
from localspec.tools.tool_messages import CallDone, CallTool, ServerGone, ServerReady, ToolReply

_MOST_PAGES = 32
_STOPPED = "the call was stopped, or the server ended"
# Least seconds between two readings of a list, however often it changes, and between two streams of
# events, the first of which ended; each that fails, or ends sooner, doubles its own.
_LIST_AGAIN_S = 1.0
_LISTEN_AGAIN_S = 5.0
_MOST_AGAIN_S = 60.0
_FAULT = "localspec/fault"  # what is wrong with a tool, in its `_meta`


class ServerConnection:
    """Keeps a server connected until `stop`; connects once more if it ends or forgets the session.

    All methods are for one event loop.

    Args:
        name: the server's.
        settings: expanded.
        mark: begins the mark of every run of the server.
        tell: gets what happens.
        after: ends with the server's last process, which may hold what the next one needs.
    """

    def __init__(
        self,
        name: str,
        settings: ServerSettings,
        mark: str,
        tell: Callable[[ToolReply], object],
        *,
        after: asyncio.Task[None] | None = None,
    ) -> None:
        self._name, self._settings, self._mark, self._tell = name, settings, mark, tell
        self._after = after
        self._client: Client | None = None
        self._child: ChildServer | None = None
        self._http: HttpClient | None = None
        self._limit: asyncio.Timeout | None = None
        self._told: ServerReady | None = None  # the last, since it was connected
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._calls: dict[int, asyncio.Task[None]] = {}
        # The SDK's contexts must be left in the task that entered them.
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the server, and wait for its end."""
        self._stopping.set()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.wait([self._task])

    def call(self, asked: CallTool) -> None:
        """Run a tool; `CallDone` follows."""
        task = asyncio.create_task(self._call(asked))
        self._calls[asked.number] = task

        def over(done: asyncio.Task[None]) -> None:
            self._calls.pop(asked.number, None)
            if done.cancelled():  # before its first step
                self._tell(CallDone(asked.number, _STOPPED, failed=True))

        task.add_done_callback(over)

    def cancel(self, number: int) -> None:
        """Stop a call, if it is one of this server's."""
        if number in self._calls:
            self._calls[number].cancel()

    # The task

    async def _run(self) -> None:
        mode = self._settings.mode
        if self._after is not None:
            await asyncio.wait([self._after])
        if self._stopping.is_set():
            return
        for again in (True, False):
            ready, why = False, ""
            try:
                async with self._connected(mode) as (client, gone):
                    await self._list(client)
                    self._client, ready = client, True
                    await self._attend(client, gone)
                    why = self._http.end if self._http is not None else "it ended by itself"
            except Exception as error:  # also of an end that is known already
                why = why or _why(error, self._settings.timeout)
            finally:
                self._client = self._told = None
                for task in list(self._calls.values()):
                    task.cancel()
            if self._stopping.is_set():
                return
            self._tell(ServerGone(self._name, self._with_last_words(why), again=again))
            mode = mode if ready else "legacy"  # which some servers need

    def _with_last_words(self, why: str) -> str:
        words = self._child.last_words if self._child is not None else ""
        return f"{why}: {words}" if words else why

    @asynccontextmanager
    async def _connected(self, mode: str) -> AsyncIterator[tuple[Client, asyncio.Event]]:
        """Connect, within the server's timeout; the event is set once the server is gone."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.url:
                self._http = await stack.enter_async_context(HttpClient(settings))
                gone = self._http.gone
                streams = streamable_http_client(
                    settings.url, http_client=self._http, max_sse_event_size=LARGEST_RESPONSE
                )
            else:
                self._child = ChildServer(settings, f"{self._mark}.{uuid4().hex}")
                gone, streams = self._child.gone, self._child.streams()
            messages = _Messages(gone)
            client = Client(
                messages.of(streams),
                mode=mode,
                read_timeout_seconds=settings.timeout,
                message_handler=self._heard,
                client_info=mcp_types.Implementation(name="localspec", version=__version__),
                cache=None,
            )
            async with self._within(settings.timeout):
                await stack.enter_async_context(client)
            messages.version = client.protocol_version
            yield client, gone

    @asynccontextmanager
    async def _within(self, seconds: float | None) -> AsyncIterator[None]:
        """Limit the time of what `stop` may end at once."""
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        finally:
            self._limit = None

    async def _attend(self, client: Client, gone: asyncio.Event) -> None:
        """Until the server is gone or to be stopped, list its tools again when they change."""
        wait_s = _LIST_AGAIN_S
        listening = asyncio.create_task(self._listen(client))
        try:
            while True:
                if await _first(gone, self._stopping, self._changed) is not self._changed:
                    return
                try:
                    await self._list(client)
                    wait_s = _LIST_AGAIN_S
                except (MCPError, TimeoutError, ValueError):  # the earlier tools stay until then
                    self._changed.set()
                    wait_s = min(2 * wait_s, _MOST_AGAIN_S)
                await _first(gone, self._stopping, within=wait_s)
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _heard(self, message: object) -> None:
        """A server before 2026-07-28 says so when its tools have changed.

        What it says by HTTP while the SDK has no stream of events open is lost, and the SDK opens
        none after two that failed.
        """
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._changed.set()

    async def _listen(self, client: Client) -> None:
        """A later server says so to those that listen: until it is gone, if it offers this."""
        again, wait_s = False, _LISTEN_AGAIN_S
        while True:
            begun = inf
            try:
                async with client.listen(tools_list_changed=True) as events:
                    if not events.honored.tools_list_changed:
                        return
                    if again:  # what has changed since the last stream was not told
                        self._changed.set()
                    again, begun = True, time.monotonic()
                    async for _ in events:
                        self._changed.set()
            except Exception:  # such as by a proxy on the way, or while the server is restarted
                if not again:  # it does not offer this
                    return
            if time.monotonic() - begun > wait_s:  # one that ends sooner counts as failed
                wait_s = _LISTEN_AGAIN_S
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_AGAIN_S)

    async def _list(self, client: Client) -> None:
        """Tell which tools the server offers, if that is new; not if it is to be stopped."""
        self._changed.clear()  # before it is asked: what changes from now on may be missing
        offered: list[dict[str, Any]] = []
        cursor: str | None = None
        async with self._within(0.0 if self._stopping.is_set() else None):
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                offered += map(_plain, page.tools)
                cursor = page.next_cursor
                if not cursor or len(offered) > MOST_TOOLS:
                    break
        if self._stopping.is_set():
            return
        tools, problems = checked(self._name, offered)
        ready = ServerReady(self._name, tools, problems)
        if ready != self._told:
            self._told = ready
            self._tell(ready)

    # Calls

    async def _call(self, asked: CallTool) -> None:
        try:
            text, failed = await self._result(asked)
        except asyncio.CancelledError:
            text, failed = _STOPPED, True
        except Exception as error:
            text, failed = _why(error, self._settings.timeout), True
        self._tell(CallDone(asked.number, text, failed))

    async def _result(self, asked: CallTool) -> tuple[str, bool]:
        if self._client is None:
            return "the server is not connected", True
        # `Client.call_tool` would check the result against a schema of the server, whose patterns
        # may take for ever; and it would answer the server's own questions.
        params = mcp_types.CallToolRequestParams(
            name=asked.tool, arguments=json.loads(asked.arguments)
        )
        async with asyncio.timeout(self._settings.timeout):  # the SDK's begins once it is sent
            result = await self._client.session.send_request(
                mcp_types.CallToolRequest(params=params), mcp_types.CallToolResult
            )
        return text_of(result), bool(result.is_error)


async def _first(*events: asyncio.Event, within: float | None = None) -> asyncio.Event | None:
    """Wait for one of several events, `within` seconds; None if none was set."""
    tasks = {asyncio.create_task(event.wait()): event for event in events}
    try:
        done, _ = await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return next((event for task, event in tasks.items() if task in done), None)


def _plain(tool: mcp_types.Tool) -> dict[str, Any]:
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else None
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "parameters": tool.input_schema,
        "output": tool.output_schema,
        "annotations": hints,
        "fault": (tool.meta or {}).get(_FAULT),
    }


def _wrong(tool: object, where: str) -> dict[str, Any]:
    """What stands in place of a tool that does not follow the protocol."""
    return {
        "name": str(tool.get("name")) if isinstance(tool, dict) else "",
        "inputSchema": {"type": "object"},
        "_meta": {_FAULT: f"{where or 'it'} does not follow the protocol"},
    }


class _Messages(ObjectReceiveStream[SessionMessage | Exception]):
    """What a server sends, with its lists of tools mended.

    The SDK refuses a whole list for one wrong tool.

    In place of a tool that does not follow the protocol stands one that says so.

    Args:
        gone: set at the end of the messages.

    Attributes:
        version: the protocol's; nothing is mended until it is agreed on.
    """

    def __init__(self, gone: asyncio.Event) -> None:
        self.version = ""
        self._gone = gone

    @asynccontextmanager
    async def of(self, streams: Transport) -> AsyncIterator[TransportStreams]:
        """The streams of a transport, of which this is the first from now on."""
        async with streams as (self._read, write):
            yield self, write

    async def receive(self) -> SessionMessage | Exception:
        """The next message, mended."""
        try:
            got = await self._read.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):  # the SDK tells only its log why
            self._gone.set()
            raise
        if self.version and isinstance(got, SessionMessage):
            match got.message:
                case mcp_types.JSONRPCResponse(result={"tools": list()} as result):
                    self._mend(result)
        return got

    def _mend(self, result: dict[str, Any]) -> None:
        tools = result["tools"]
        for tool in tools:
            match tool:
                case {"inputSchema": dict(schema)}:
                    schema.setdefault("type", "object")  # many servers leave it out
        for _ in range(2):  # the protocol's form is checked, then the SDK's
            try:
                methods.parse_server_result("tools/list", self.version, result)
            except ValidationError as error:
                for found in error.errors(include_url=False, include_context=False):
                    match found["loc"]:
                        case ("tools", int(at), *where):
                            tools[at] = _wrong(tools[at], ".".join(map(str, where)))

    async def aclose(self) -> None:
        """Close the stream."""
        await self._read.aclose()


def _why(error: BaseException, timeout: float) -> str:
    """What went wrong, to follow the name of a server or a tool."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case TimeoutError():
            return f"it did not answer within {timeout:g} s"
        case LocalspecError():
            return f"{error.message}. {error.remedy}"
        case MCPError():
            return one_line(error.message, 400) or "it refused without a reason"
        case httpx2.HTTPError():
            return unreachable(error)
        case ValueError():
            return "its answer does not follow the protocol"
    return f"{type(error).__name__}: {reason(error)}"
