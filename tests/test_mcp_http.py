"""MCP servers with a URL that are slow, broken, restarted or closed to strangers."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import httpx2
import pytest

from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_messages import CallDone, CallTool, ServerGone, ServerReady, ToolReply
from tests.support.lazily import Lazily
from tests.support.mcp_by_http import Talk, Way, failure, hang, served
from tests.test_mcp_servers import Tools, scripted

if TYPE_CHECKING:
    from localspec.tools.servers.server_connection import ServerConnection

http_client = Lazily("localspec.tools.servers.http_client")  # it imports httpx2
server_connection = Lazily("localspec.tools.servers.server_connection")  # it imports the SDK

_PATIENCE_S = 60.0


def legacy(url: str, timeout: float = 30.0) -> ServerSettings:
    return ServerSettings(url=url, mode="legacy", timeout=timeout)


@pytest.fixture(scope="module")
def shared() -> Iterator[Tools]:
    with closing(Tools()) as tools:
        yield tools


@asynccontextmanager
async def connected(
    ways: Mapping[str, Way], mode: Literal["auto", "legacy"] = "auto"
) -> AsyncIterator[tuple[ServerConnection, Callable[[], Awaitable[ToolReply]]]]:
    """A connection of this process to a server, and what waits for what it tells next."""
    replies: asyncio.Queue[ToolReply] = asyncio.Queue()
    with served(ways) as url:
        settings = ServerSettings(url=url, mode=mode)
        connection = server_connection.ServerConnection("s", settings, "m", replies.put_nowait)
        try:
            yield connection, lambda: asyncio.wait_for(replies.get(), _PATIENCE_S)
        finally:
            await connection.stop()


@pytest.fixture
def tools(shared: Tools) -> Iterator[Tools]:
    yield shared
    shared.stop("s")


def first(way: Way, begun: threading.Event | None = None) -> Way:
    """A way for the first time alone; the event is set once it has begun."""
    once = begun or threading.Event()

    def go(talk: Talk, asked: dict[str, Any]) -> None:
        if once.is_set():
            talk.usual(asked)
        else:
            once.set()
            way(talk, asked)

    return go


def ask(talk: Talk, asked: dict[str, Any]) -> None:
    """Ask much, and answer nothing."""
    numbers = [f"question {number}" for number in range(50)]
    talk.events(*({"jsonrpc": "2.0", "id": one, "method": "roots/list"} for one in numbers))
    hang(talk, asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        {"tools/call": hang, "notifications/cancelled": hang},
        {"tools/call": ask, "answer": hang, "notifications/cancelled": hang},
    ],
    ids=["frozen", "deaf"],
)
def test_a_server_that_takes_no_message_keeps_no_other_from_answering(
    tools: Tools, ways: dict[str, Way]
) -> None:
    with served(ways) as url:
        tools.start("s", legacy(url, timeout=3))
        tools.start("other", scripted())
        for _ in range(2):
            assert tools.process.call("s", "echo", "{}", 3).result(_PATIENCE_S).failed
        assert tools.process.alive
        assert tools.call("echo", "on", server="other").text == "on"
        tools.process.stop("other")


def drop(talk: Talk, _asked: dict[str, Any]) -> None:
    talk.close_connection = True


@pytest.mark.parametrize("fate", [drop, hang])
async def test_a_cancellation_that_is_lost_ends_no_connection(
    monkeypatch: pytest.MonkeyPatch, fate: Way
) -> None:
    limits = importlib.import_module("localspec.tools.servers.http_client")._LIMITS_S
    monkeypatch.setitem(limits, "notifications/cancelled", 0.2)
    begun, lost = threading.Event(), threading.Event()

    def lose(talk: Talk, asked: dict[str, Any]) -> None:
        lost.set()
        fate(talk, asked)

    ways = {"tools/call": first(hang, begun), "notifications/cancelled": lose}
    async with connected(ways, mode="legacy") as (connection, next_reply):
        assert isinstance(await next_reply(), ServerReady)
        connection.call(CallTool(1, "s", "echo", "{}"))
        assert await asyncio.to_thread(begun.wait, _PATIENCE_S)
        connection.cancel(1)
        assert (await next_reply()).failed
        assert await asyncio.to_thread(lost.wait, _PATIENCE_S)
        connection.call(CallTool(2, "s", "echo", '{"text": "on"}'))
        assert await next_reply() == CallDone(2, "on")


def test_a_connection_that_ends_is_made_again(tools: Tools) -> None:
    begun = threading.Event()

    def half(talk: Talk, _asked: dict[str, Any]) -> None:
        """Redirect, and break off: the SDK gives up all that it sends."""
        talk.close_connection = True
        talk.send_response(307)
        talk.send_header("Location", talk.path)
        talk.send_header("Content-Length", "10")
        talk.end_headers()

    with served({"tools/call": first(hang, begun), "notifications/cancelled": half}) as url:
        tools.start("s", legacy(url))
        future = tools.process.call("s", "echo", "{}", 60)
        assert begun.wait(_PATIENCE_S)
        assert future.cancel()
        assert tools.next() == ServerGone("s", "the connection ended", again=True)
        assert isinstance(tools.next(), ServerReady)
        assert tools.call("echo", "on").text == "on"


@pytest.mark.parametrize(
    ("status", "document", "words"),
    [
        (401, {"error": "invalid_token"}, ("401 Unauthorized", "sign-in", "`headers`")),
        (401, failure(None, "No."), ("401 Unauthorized", "sign-in", "`headers`")),
        (403, None, ("403 Forbidden", "perhaps it wants a sign-in", "`headers`")),
        (403, failure(None, "Invalid Host"), ("Invalid Host",)),
        (503, {"error": {"code": 5}}, ("503 Service Unavailable",)),
    ],
)
def test_a_server_that_refuses_to_be_used_is_told_with_the_way_out(
    tools: Tools, status: int, document: object, words: tuple[str, ...]
) -> None:
    def refuse(talk: Talk, _asked: dict[str, Any]) -> None:
        talk.answer(status, document)

    with served({"server/discover": refuse, "initialize": refuse}) as url:
        tools.process.start("s", ServerSettings(url=url))
        for again in (True, False):
            gone = tools.next()
            assert isinstance(gone, ServerGone)
            assert gone.again is again
            assert [word for word in words if word not in gone.why] == []


def test_a_server_that_moves_every_message_is_followed(tools: Tools) -> None:
    def move(talk: Talk, asked: dict[str, Any]) -> None:
        if talk.path.endswith("/"):
            talk.usual(asked)
        else:
            talk.send_response(307)
            talk.send_header("Location", f"{talk.path}/")
            talk.send_header("Content-Length", "0")
            talk.end_headers()

    methods = ("initialize", "notifications/initialized", "tools/list", "tools/call")
    with served(dict.fromkeys(methods, move)) as url:
        tools.start("s", legacy(url))
        assert tools.call("echo", "on").text == "on"


async def test_no_call_has_less_time_than_the_settings_give_it() -> None:
    settings = ServerSettings(url="http://127.0.0.1:9/mcp", timeout=3600)
    async with http_client.HttpClient(settings) as client:
        assert client.timeout == httpx2.Timeout(3600, read=None)


REFUSALS = {  # whether each says that the session is forgotten
    (-32000, "Bad Request: No valid session ID provided"): True,
    (-32000, "Bad Request: Mcp-Session-Id header is required"): True,
    (-32000, "Bad request: session not found"): True,
    (-32000, "Bad Request: Server not initialized"): True,
    (-32000, "No transport found for sessionId 5"): True,
    (-32000, "Invalid session"): True,
    (-32000, "Session expired"): True,
    (-32000, "Unknown session"): True,
    (-32602, "Invalid session ID"): True,
    (-32602, "Invalid params: unknown session 'work'"): False,
    (-32602, "Invalid params: no page has this session_id"): False,
    (-32600, "Bad Request: 5 is not a text"): False,
}


async def test_many_words_say_that_a_session_is_forgotten() -> None:
    found = {}
    url, session = "http://127.0.0.1:9/mcp", {"Mcp-Session-Id": "1"}
    async with http_client.HttpClient(ServerSettings(url=url)) as client:
        for code, said in REFUSALS:
            client.gone.clear()
            refusal, asked = failure(None, said, code), httpx2.Request("POST", url, headers=session)
            await client._notice(httpx2.Response(400, json=refusal, request=asked))
            found[code, said] = client.gone.is_set()
    assert found == REFUSALS


@pytest.mark.parametrize(("code", "said"), [*REFUSALS][8:10])
def test_a_restarted_server_is_connected_again(tools: Tools, code: int, said: str) -> None:
    def refuse(talk: Talk, _asked: dict[str, Any]) -> None:
        talk.answer(400, failure(None, said, code))

    with served({"tools/call": first(refuse)}) as url:
        tools.start("s", legacy(url))
        done = tools.call("echo")
        assert done.failed
        if REFUSALS[code, said]:
            assert tools.next() == ServerGone("s", "it forgot this session", again=True)
            assert isinstance(tools.next(), ServerReady)
        else:
            assert done.text == said
        assert tools.call("echo", "on").text == "on"
        assert tools.replies.empty()


def test_a_text_next_to_a_large_picture_arrives(tools: Tools) -> None:
    picture = {"type": "image", "data": "A" * (2 << 20), "mimeType": "image/png"}
    content = [{"type": "text", "text": "here"}, picture]

    def show(talk: Talk, asked: dict[str, Any]) -> None:
        talk.events({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": content}})

    with served({"tools/call": show}) as url:
        tools.start("s", legacy(url))
        assert tools.call("echo").text == "here\n[image, image/png: left out]"


CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def discover(talk: Talk, asked: dict[str, Any]) -> None:
    can = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
    talk.result(asked, {**CACHED, **can})


def listen(talk: Talk, asked: dict[str, Any]) -> None:
    """Begin a stream of events, which ends at once: by a proxy, or by the server."""
    meta = {"io.modelcontextprotocol/subscriptionId": asked["id"]}
    params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
    method = "notifications/subscriptions/acknowledged"
    talk.events({"jsonrpc": "2.0", "method": method, "params": params})


def hold(talk: Talk, asked: dict[str, Any]) -> None:
    """Begin a stream of events that lasts, and has none."""
    listen(talk, asked)
    hang(talk, asked)


def old(talk: Talk, asked: dict[str, Any]) -> None:
    tool = {"name": "old", "inputSchema": {"type": "object"}}
    talk.result(asked, {**CACHED, "tools": [tool]})


def new(talk: Talk, asked: dict[str, Any]) -> None:
    tool = {"name": "new", "inputSchema": {"type": "object"}}
    talk.result(asked, {**CACHED, "tools": [tool]})


def busy(talk: Talk, _asked: dict[str, Any]) -> None:
    talk.answer(429)


def malformed(talk: Talk, asked: dict[str, Any]) -> None:
    talk.result(asked, {**CACHED, "tools": 5})


def by_turns(*ways: Way) -> Way:
    """One way after the other, and the last from then on."""
    left = list(ways)

    def go(talk: Talk, asked: dict[str, Any]) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(talk, asked)

    return go


def changing(listens: list[Way], lists: list[Way]) -> dict[str, Way]:
    """What a server of 2026-07-28 does whose tools change."""
    return {
        "server/discover": discover,
        "tools/list": by_turns(*lists),
        "subscriptions/listen": by_turns(*listens),
    }


@pytest.mark.parametrize(
    ("listens", "lists"),
    [
        ([listen], [old, new]),
        ([listen], [old, busy, old, new]),
        ([listen, hold], [old, busy, malformed, new]),
        ([listen, busy, busy, listen], [old, new]),
    ],
    ids=["once", "a list fails", "lists fail and no stream ends", "streams fail"],
)
async def test_what_changed_while_nothing_listened_is_told(
    monkeypatch: pytest.MonkeyPatch, listens: list[Way], lists: list[Way]
) -> None:
    for wait in ("_LISTEN_AGAIN_S", "_LIST_AGAIN_S"):
        monkeypatch.setattr(f"localspec.tools.servers.server_connection.{wait}", 0.02)
    async with connected(changing(listens, lists)) as (_, next_reply):
        for name in ("old", "new"):
            reply = await next_reply()
            assert isinstance(reply, ServerReady), reply
            assert [tool.name for tool in reply.tools] == [name]


async def test_streams_of_events_that_end_at_once_are_opened_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: asyncio.Queue[float] = asyncio.Queue()
    sleep, times = asyncio.sleep, iter([0.0, 0.0, 0.0, 100.0])  # only the second stream lasts

    async def rest(seconds: float) -> None:
        waits.put_nowait(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    clock = SimpleNamespace(monotonic=lambda: next(times, 0.0))
    monkeypatch.setattr("localspec.tools.servers.server_connection.time", clock)
    async with connected(changing([listen], [old])):
        rests = [await asyncio.wait_for(waits.get(), _PATIENCE_S) for _ in range(7)]
    assert rests == [5.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


@pytest.mark.slow
def test_a_server_starts_again_though_it_does_not_end_its_last_session(tools: Tools) -> None:
    with served({"DELETE": hang}) as url:
        for _ in range(2):
            (tool,) = tools.start("s", ServerSettings(url=url))
            assert tool.name == "echo"
            tools.process.stop("s")
