"""Runs the endpoint: the socket, the event loop, and a line of figures."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

import uvicorn
from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import UsageError
from localspec.process.engine_client import EngineClient
from localspec.safe_text import reason
from localspec.serve.access import AccessRules
from localspec.serve.counters import EndpointCounters
from localspec.serve.endpoint import Endpoint
from localspec.serve.request_queue import RequestQueue

_HEADERS_S = 20.0  # for all headers of a request, from its first byte or from the connection
_STALLED_S = 120.0  # after which a client that reads nothing is disconnected
_CONNECTIONS = 512
_FAREWELL_S = 2  # for clients, then for the engine
_FIGURES_S = 1.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that disconnects clients that do not finish their headers, or stop reading.

    uvicorn has no such limits. Of its internals this uses only `cycle`, the request being answered.
    """

    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the headers."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a request is complete, else keep it running."""
        try:
            super().data_received(data)
        except LocalProtocolError:  # a refused request went on wrongly: uvicorn refuses it again
            self.transport.close()
            self.loop.call_later(_STALLED_S, self.transport.abort)  # it may read no more
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        super().connection_lost(exc)
        self._forget()
        self._goes_on()

    def pause_writing(self) -> None:
        """Start a timer, because the client does not read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(_STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer, because the client reads again."""
        super().resume_writing()
        self._goes_on()

    def _goes_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(_HEADERS_S, self._give_up)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class EndpointServer(uvicorn.Server):
    """uvicorn, which releases the engine before it waits for its clients.

    Args:
        config: uvicorn's.
        leave: ends the running work.
    """

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        super().__init__(config)
        self._leave = leave

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin an orderly end on a signal; a second signal ends the server at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self._leave()
        super().handle_exit(sig, frame)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket at this address, of IPv4 where a name means several, as localhost does.

    Raises:
        UsageError: this machine has no such address, or another program uses it.
    """
    try:
        meant = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = min(meant, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address, family=family, backlog=128)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise UsageError(
            f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or reason(error)}",
            "Choose another with --host and --port.",
        ) from None


async def serve(
    engine: EngineClient,
    sock: socket.socket,
    rules: AccessRules,
    *,
    queue: int,
    seconds: float,
    idle: float,
    strict: bool,
    others: Callable[[], Sequence[str]],
    on_ready: Callable[[], None],
    show: Callable[[str], None],
) -> None:
    """Serve until a signal ends it.

    Args:
        engine: has begun to load.
        sock: the listening socket.
        rules: check every request.
        queue: how many requests may wait.
        seconds: that one answer may take.
        idle: seconds without a request after which the models are freed until the next; 0 for
            never.
        strict: whether requests for a model of another name are refused.
        others: the names of pairs that may be loaded for requests which name them.
        on_ready: called once the models are loaded.
        show: called with a line of figures when it has changed, at most once per second.

    Raises:
        LocalspecError: the models cannot be loaded.
    """
    counters = EndpointCounters()
    request_queue = RequestQueue(engine, counters, most=queue, limit_s=seconds, idle_s=idle)
    endpoint = Endpoint(request_queue, rules, counters, strict=strict, others=others)
    server = EndpointServer(_config(endpoint), engine.shut_down)

    async def loaded() -> None:
        try:
            await request_queue.ready
        finally:  # without models, the server ends too
            if not request_queue.loaded:
                server.should_exit = True
        on_ready()
        await _tell(counters, show)

    telling = asyncio.create_task(loaded())
    try:
        await server.serve([sock])
    finally:
        engine.shut_down()
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        await asyncio.to_thread(engine.join, _FAREWELL_S)


async def _tell(counters: EndpointCounters, show: Callable[[str], None]) -> None:
    """Show the line of figures whenever it has changed."""
    shown = ""
    while True:
        if (line := counters.line()) != shown:
            shown = line
            show(line)
        await asyncio.sleep(_FIGURES_S)


def _config(endpoint: Endpoint) -> uvicorn.Config:
    return uvicorn.Config(
        endpoint.app(),
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_FAREWELL_S,
    )
