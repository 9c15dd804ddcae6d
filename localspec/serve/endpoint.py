"""The endpoint: which address does what."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from localspec import __version__
from localspec.engine.round.params import CHAIN
from localspec.process.messages import SessionInfo
from localspec.serve.access import AccessRules, json_reply, read_body, refused, sent_keys
from localspec.serve.answering import (
    EventStream,
    first_events,
    streamed,
    unless_gone,
    unless_refused,
    whole,
)
from localspec.serve.core.requests import parsed, require_sendable
from localspec.serve.counters import EndpointCounters
from localspec.serve.protocols import anthropic_messages
from localspec.serve.protocols.anthropic_messages import CountRequest, MessagesRequest
from localspec.serve.protocols.chat_completions import ChatRequest
from localspec.serve.protocols.infill import InfillRequest
from localspec.serve.protocols.openai_responses import ResponsesRequest
from localspec.serve.protocols.protocol_types import ProtocolRequest, ReplyWriter
from localspec.serve.protocols.text_completions import CompletionRequest
from localspec.serve.refusals import Refusal, refusal_of, unavailable
from localspec.serve.request_queue import Answers, QueuedRequest, RequestQueue

_ANSWERED_BY = "x-localspec-model"  # in replies to requests for a model of another name
_LOOK_S = 10.0  # a disk that sleeps wakes in less

Answering: TypeAlias = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """Answers requests through a request queue.

    Args:
        request_queue: gives the engine to one request at a time.
        rules: check every request.
        counters: count every request.
        strict: whether requests for a model of another name are refused.
        others: the names of pairs that may be loaded for requests which name them.
    """

    def __init__(
        self,
        request_queue: RequestQueue,
        rules: AccessRules,
        counters: EndpointCounters,
        *,
        strict: bool = False,
        others: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._queue = request_queue
        self._rules = rules
        self._counters = counters
        self._strict = strict
        self._others = others
        self._looking: asyncio.Task[None] | None = None
        self._found: Sequence[str] = ()  # by the last look that ended

    def app(self) -> Starlette:
        """The application for the HTTP server."""
        asked: dict[str, type[ProtocolRequest]] = {
            "/chat/completions": ChatRequest,
            "/completions": CompletionRequest,
            "/messages": MessagesRequest,
            "/messages/count_tokens": CountRequest,
            "/responses": ResponsesRequest,
            "/infill": InfillRequest,
        }
        answers: list[tuple[str, str, Answering]] = [
            *(("POST", path, partial(self._answer, kind=kind)) for path, kind in asked.items()),
            ("GET", "/responses", self._nothing_stored),
            ("POST", "/embeddings", self._embeddings),
            ("GET", "/models", self._models),
            ("GET", "/models/{name:path}", self._model),
            ("GET", "/health", self._health),
            ("GET", "/props", self._props),
            ("GET", "/metrics", self._metrics),
        ]
        routes = [
            Route(version + path, self._guarded(answer), methods=[method])
            for version in ("/v1", "")
            for method, path, answer in answers
        ]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self._rules.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients send their own headers
            allow_private_network=True,  # Chromium asks for it; the origin is allowed already
            expose_headers=[_ANSWERED_BY, "Retry-After"],
        )
        handlers: Any = {404: self._lost, 405: self._lost}
        middleware = [cors] if self._rules.origins else []
        app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would bypass the rules
        return app

    def _guarded(self, do: Answering) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """`do`, after the rules were checked; errors get the form of the address's protocol."""

        async def reply(request: Request) -> Response:
            identity = f"req_{secrets.token_hex(12)}"
            try:
                self._rules.check(request)
                response = await do(request)
            except Exception as error:  # an unforeseen one is told without its words
                response = _refused(request, refusal_of(error), identity)
            response.headers["request-id"] = identity
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
            raise unavailable("the models are being loaded", 2)
        return info

    def _names(self) -> list[str]:
        info = self._info
        return list(dict.fromkeys([info.pair_name, info.target_name]))

    async def _look(self) -> None:
        """Look for other pairs, in one thread, as the disk may sleep or never answer.

        Requests wait for it, but not for ever: then what was found last holds.
        """
        self._names()  # while models load, no request waits for the disk
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._find())
        for look in (await asyncio.wait([self._looking], timeout=_LOOK_S))[0]:
            look.result()

    async def _find(self) -> None:
        self._found = await asyncio.to_thread(self._others)

    def _all_names(self) -> list[str]:
        return list(dict.fromkeys([*self._names(), *self._queue.known, *self._found]))

    async def _chosen(self, name: str | None) -> tuple[SessionInfo | None, str, dict[str, str]]:
        """The pair that answers a request for `name`, its name, and a header if that is another.

        The pair is None if it was never loaded. Many programs send a name of their own.

        Raises:
            Refusal: there is none of that name, and other names are refused.
        """
        if not (name is None or name in self._names() or name in self._queue.known):
            await self._look()
        info, own = self._info, self._names()  # another pair may have been loaded meanwhile
        if name is None or name in own:
            return info, name or own[0], {}
        if name in self._queue.known or name in self._found:
            return self._queue.known.get(name), name, {}
        if self._strict:
            raise self._unknown()
        return info, own[0], {_ANSWERED_BY: quote(own[0], safe=" :/@+()[],")}

    def _unknown(self) -> Refusal:
        return Refusal(
            404,
            f"this server has no model of that name, only {', '.join(self._all_names())}",
            param="model",
            code="model_not_found",
        )

    def _described(self, name: str) -> dict[str, Any]:
        """A pair for clients of all protocols, which look for different fields."""
        figures, loaded = self._counters.figures, name in self._names()
        size = figures.context_size if figures else 0
        held: dict[str, Any] = {
            "max_model_len": size,
            "context_length": size,
            "meta": {"n_ctx": size, "draft": self._info.draft_name},
        }
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "localspec",
            **(held if loaded else {}),
        }

    async def _models(self, _: Request) -> Response:
        await self._look()
        own, *others = self._names()
        listed = [own, *(name for name in self._all_names() if name not in (own, *others))]
        ends = {"has_more": False, "first_id": own, "last_id": listed[-1]}
        data = [*map(self._described, listed)]
        # Codex wants a list `models`; an entry of it would replace Codex's own system prompt.
        return json_reply({"object": "list", "data": data, "models": [], **ends})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._look()
        if name not in self._all_names():
            raise self._unknown()
        return json_reply(self._described(name))

    async def _health(self, _: Request) -> Response:
        if self._queue.loaded or self._queue.asleep:
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
                        **{name: getattr(settings.sampling, name) for name in CHAIN},
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

    async def _nothing_stored(self, _: Request) -> Response:
        # Codex asks so for a WebSocket, and goes on without one after a 404.
        raise Refusal(404, "responses are not stored: POST a request", code="not_found")

    # Answers

    async def _answer(self, request: Request, kind: type[ProtocolRequest]) -> Response:
        asked = parsed(await read_body(request), kind)
        info, model, headers = await self._chosen(asked.model)
        writer = asked.writer(model)
        job = QueuedRequest(_asker(request), None, writer.prompt_field, model)
        starting = asyncio.create_task(self._start(job, asked, info, writer))

        def leave() -> None:
            starting.cancel()
            self._queue.withdraw(job)

        try:
            if not asked.stream:
                document = whole(job, starting, writer, leave)
                return json_reply(await unless_gone(request, document), headers=headers)
            await unless_gone(request, unless_refused(starting, writer))
        except BaseException:
            leave()
            raise
        return EventStream(streamed(job, starting, writer, leave), leave, headers)

    async def _start(
        self,
        job: QueuedRequest,
        asked: ProtocolRequest,
        info: SessionInfo | None,
        writer: ReplyWriter,
    ) -> list[Answers]:
        """Put a job into the queue, once its pair was loaded; its first events.

        Raises:
            Refusal: the request is invalid, or cannot be answered.
            SchemaError: a schema that must be enforced cannot be.
        """
        pair = info or await self._queue.with_pair(job)
        wanted, writer.answer = await asyncio.to_thread(
            lambda: asked.core().prepared(pair.settings, pair.dialect)
        )
        require_sendable(wanted)
        job.asked, job.pair = wanted, pair.pair_name
        self._queue.submit(job)
        return await first_events(job)


def _refused(request: Request, refusal: Refusal, identity: str) -> Response:
    """The reply for a refusal, in the form of the protocol that the address belongs to."""
    if request.scope["path"].removeprefix("/v1").startswith("/messages"):
        status, document = anthropic_messages.error_of(refusal)
        return refused(refusal, {**document, "request_id": identity}, status)
    return refused(refusal, refusal.document, refusal.status)


def _asker(request: Request) -> str:
    """The client program, as far as it can be identified; programs take turns."""
    client = request.client.host if request.client else ""
    return f"{client} {sent_keys(request)} {request.headers.get('user-agent', '')}"
