"""The endpoint: which address does what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from localspec import __version__
from localspec.chat.events import PromptMade, TurnEnd, TurnEvent
from localspec.chat.settings import AnswerRequest
from localspec.engine.record.stats import FinishReason
from localspec.process.messages import SessionInfo
from localspec.serve.access import AccessRules, json_reply, refused
from localspec.serve.counters import EndpointCounters
from localspec.serve.refusals import Refusal, refusal_of, unavailable
from localspec.serve.replies import Reply
from localspec.serve.request_queue import Answers, QueuedRequest, RequestQueue
from localspec.serve.request_tools import RequestTools
from localspec.serve.requests import (
    AnswerOptions,
    ChatRequest,
    CompletionRequest,
    parsed,
    require_sendable,
)

T = TypeVar("T")

_PING_S = 15.0  # Node closes a connection that is silent for 300
_HEADERS_S = 10.0  # the status waits so long for an error to set it
_CHAIN = ("temperature", "top_k", "top_p", "min_p")


class Endpoint:
    """Answers requests through a request queue.

    Args:
        request_queue: gives the engine to one request at a time.
        rules: check every request.
        counters: count every request.
    """

    def __init__(
        self, request_queue: RequestQueue, rules: AccessRules, counters: EndpointCounters
    ) -> None:
        self._queue = request_queue
        self._rules = rules
        self._counters = counters

    def app(self) -> Starlette:
        """The application for the HTTP server."""
        answers = {
            "/chat/completions": ("POST", self._chat),
            "/completions": ("POST", self._completion),
            "/embeddings": ("POST", self._embeddings),
            "/models": ("GET", self._models),
            "/models/{name:path}": ("GET", self._model),
            "/health": ("GET", self._health),
            "/props": ("GET", self._props),
            "/metrics": ("GET", self._metrics),
        }
        routes = [
            Route(version + path, self._guarded(answer), methods=[method])
            for version in ("/v1", "")
            for path, (method, answer) in answers.items()
        ]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self._rules.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send their own headers
        )
        handlers: Any = {404: self._lost, 405: self._lost}
        middleware = [cors] if self._rules.origins else []
        app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would bypass the rules
        return app

    def _guarded(
        self, do: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """`do`, after the rules were checked; all errors get OpenAI's form."""

        async def reply(request: Request) -> Response:
            try:
                self._rules.check(request)
                response = await do(request)
            except Refusal as refusal:
                response = refused(refusal)
            except Exception as error:  # the last resort; the reply quotes nothing of the request
                response = refused(refusal_of(error))
            self._counters.replied(response.status_code)
            return response

        return reply

    async def _lost(self, request: Request, error: Exception) -> Response:
        async def nothing(_: Request) -> Response:
            if isinstance(error, HTTPException) and error.status_code == 405:
                said = f"this address does not support {request.method} (see docs/serve.md)"
                raise Refusal(405, said, code="method_not_allowed")
            raise Refusal(404, "there is no such address (see docs/serve.md)", code="not_found")

        return await self._guarded(nothing)(request)

    # Models and state

    @property
    def _info(self) -> SessionInfo:
        info = self._queue.engine.latest
        if info is None:
            raise Refusal(
                503, "the models are being loaded", kind="unavailable_error", retry_after=2
            )
        return info

    def _names(self) -> list[str]:
        info = self._info
        return list(dict.fromkeys([info.pair_name, info.target_name]))

    def _require_model(self, name: str | None) -> str:
        """Check the model that a request names; return the name for the reply.

        Raises:
            Refusal: it is not the loaded one.
        """
        names = self._names()
        if name is None or name in names:
            return name or names[0]
        raise Refusal(
            404,
            f"this server has no model of that name, only {', '.join(names)}",
            param="model",
            code="model_not_found",
        )

    def _described(self, name: str) -> dict[str, Any]:
        figures = self._counters.figures
        size = figures.context_size if figures else 0
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "localspec",
            "max_model_len": size,
            "context_length": size,
            "meta": {"n_ctx": size, "draft": self._info.draft_name},
        }

    async def _models(self, _: Request) -> Response:
        return json_reply({"object": "list", "data": [self._described(self._names()[0])]})

    async def _model(self, request: Request) -> Response:
        return json_reply(self._described(self._require_model(request.path_params["name"])))

    async def _health(self, _: Request) -> Response:
        if self._queue.loaded:
            return json_reply({"status": "ok"})
        return json_reply({"status": "loading model"}, 503, {"retry-after": "2"})

    async def _props(self, _: Request) -> Response:
        info, settings = self._info, self._info.settings
        figures = self._counters.figures
        return json_reply(
            {
                "default_generation_settings": {
                    "n_ctx": figures.context_size if figures else 0,
                    "params": {
                        **{name: getattr(settings.sampling, name) for name in _CHAIN},
                        "n_predict": settings.n_predict,
                        "gamma": settings.gamma,
                        "accept": settings.rule.value,
                    },
                    "sampling_sources": info.advice.sources(settings),
                },
                "total_slots": 1,
                "model_alias": info.pair_name,
                "target": info.target_name,
                "draft": info.draft_name,
                "speculation_note": info.speculation_note,
                "notices": list(info.notices),
                "build_info": f"localspec {__version__}",
            }
        )

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(
            self._counters.prometheus(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def _embeddings(self, _: Request) -> Response:
        raise Refusal(
            501,
            "a pair that drafts and verifies makes no embeddings: ask a server with an embedding"
            " model",
            code="not_supported",
        )

    # Answers

    async def _chat(self, request: Request) -> Response:
        asked = parsed(await self._rules.body(request), ChatRequest)
        model, info = self._require_model(asked.model), self._info

        def made() -> tuple[AnswerRequest, bool]:
            toolbox = RequestTools.of(
                asked.tools or (),
                asked.tool_choice,
                native=info.dialect.marks.explained,
                marks=info.dialect.marks,
                thinks=info.dialect.thinking.budget,
                parallel=asked.parallel_tool_calls is not False,
            )
            wanted = asked.asked(info.settings, toolbox, info.dialect.thinking)
            return wanted, bool(toolbox.calls and asked.rule(toolbox))

        offered = msgspec.to_builtins(asked.tools or []) if asked.tool_choice != "none" else []
        wanted, held = await asyncio.to_thread(made)
        scores = bool(asked.logprobs)
        reply = Reply(model, info.dialect, tools=offered, held=held, logprobs=scores)
        return await self._answer(request, asked, wanted, reply)

    async def _completion(self, request: Request) -> Response:
        asked = parsed(await self._rules.body(request), CompletionRequest)
        model = self._require_model(asked.model)
        reply = Reply(model, None, logprobs=asked.logprobs is not None)
        return await self._answer(request, asked, asked.asked(self._info.settings), reply)

    async def _answer(
        self, request: Request, wished: AnswerOptions, asked: AnswerRequest, reply: Reply
    ) -> Response:
        require_sendable(asked)
        job = QueuedRequest(_asker(request), asked)
        self._queue.submit(job)
        if not wished.stream:
            try:
                return json_reply(await _unless_gone(request, _whole(job, reply)))
            finally:
                self._queue.withdraw(job)
        try:
            first = await _unless_gone(request, _first(job))
        except BaseException:
            self._queue.withdraw(job)
            raise
        stream = _streamed(job, first, reply, usage=wished.usage_wanted)
        return _EventStream(stream, lambda: self._queue.withdraw(job))


class _EventStream(StreamingResponse):
    """Server-sent events; calls `leave` however the stream ends."""

    def __init__(self, events: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _streamed(
    job: QueuedRequest, first: list[Answers], reply: Reply, *, usage: bool
) -> AsyncIterator[bytes]:
    """The stream's bytes; pings are sent while there are no events."""
    if data := _events(reply.opening()):
        yield data
    said = first
    while True:
        events, refusal = _sorted(job, said)
        if data := _events(reply.chunks(events)):
            yield data
        if refusal is not None:
            yield _events([refusal.document])
            return
        if reply.end is not None:
            yield _events(reply.closing(usage=usage)) + b"data: [DONE]\n\n"
            return
        said = []
        while not said:
            with suppress(TimeoutError):
                said = await asyncio.wait_for(_heard(job), _PING_S)
            if not said:
                yield b": ping\n\n"


def _asker(request: Request) -> str:
    """The client program, as far as it can be identified; programs take turns."""
    headers = request.headers
    client = request.client.host if request.client else ""
    return f"{client} {headers.get('authorization', '')} {headers.get('user-agent', '')}"


def _events(documents: Any) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in documents)


async def _heard(job: QueuedRequest) -> list[Answers]:
    """Wait for at least one event of a job; return all that have arrived."""
    said = [await job.said.get()]
    while not job.said.empty():
        said.append(job.said.get_nowait())
    return said


def _sorted(job: QueuedRequest, said: list[Answers]) -> tuple[list[TurnEvent], Refusal | None]:
    """Separate events from an error; a prompt longer than the context counts as an error."""
    events: list[TurnEvent] = []
    for one in said:
        if isinstance(one, Refusal):
            return events, one
        if isinstance(one, PromptMade) and one.prompt_tokens > one.context_size:
            return events, _too_long(one, "messages" if job.asked.messages else "prompt")
        if isinstance(one, TurnEnd) and one.reason is FinishReason.CANCELLED:
            return events, unavailable("localspec is ending", 1)
        events.append(one)
        if isinstance(one, TurnEnd):  # later events do not belong to this answer
            break
    return events, None


def _too_long(begun: PromptMade, param: str) -> Refusal:
    return Refusal(
        400,
        f"the prompt has {begun.prompt_tokens} tokens, the context holds {begun.context_size}."
        " Shorten it, or start localspec with a larger --ctx-size.",
        code="context_length_exceeded",
        param=param,
        n_prompt_tokens=begun.prompt_tokens,
        n_ctx=begun.context_size,
    )


async def _first(job: QueuedRequest) -> list[Answers]:
    """A job's first events; empty if they take long.

    Raises:
        Refusal: the job cannot be answered.
    """
    said: list[Answers] = []
    with suppress(TimeoutError):
        said = await asyncio.wait_for(_heard(job), _HEADERS_S)
    refusal = _sorted(job, said)[1]
    if refusal is not None:
        raise refusal
    return said


async def _whole(job: QueuedRequest, reply: Reply) -> dict[str, Any]:
    """The document of a complete answer.

    Raises:
        Refusal: the job cannot be answered.
    """
    deltas: list[dict[str, Any]] = []
    while reply.end is None:
        events, refusal = _sorted(job, await _heard(job))
        deltas += reply.take(events)
        if refusal is not None:
            raise refusal
    return reply.document(deltas)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client disconnects.

    Raises:
        Refusal: the client has disconnected, and will not read it.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refusal(499, "the client has gone")
    finally:
        for task in (working, watching):
            task.cancel()
