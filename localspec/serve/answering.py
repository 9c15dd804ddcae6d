"""Answers of the engine on their way to a client: as a stream of events, or as one document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.chat.events import PromptMade, TurnEnd, TurnEvent
from localspec.engine.record.stats import FinishReason
from localspec.serve.protocols.protocol_types import Document, ReplyWriter, encoded
from localspec.serve.refusals import OVERFLOW, Refusal, refusal_of, unavailable
from localspec.serve.request_queue import Answers, QueuedRequest

T = TypeVar("T")

_ALIVE_S = 15.0  # Node closes a connection that is silent for 300
_HEADERS_S = 10.0  # the status waits so long for an error to set it


class EventStream(StreamingResponse):
    """Server-sent events; calls `leave` however the stream ends."""

    def __init__(
        self, events: AsyncIterator[bytes], leave: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        own = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers={**own, **headers})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def streamed(
    job: QueuedRequest,
    starting: asyncio.Task[list[Answers]],
    writer: ReplyWriter,
    stop: Callable[[], None],
) -> AsyncIterator[bytes]:
    """The stream's bytes; while there is nothing to tell, an event says so now and then.

    Some events have nothing for the client, such as progress in reading a prompt.

    Args:
        job: its events are written.
        starting: puts the job into the queue, once its pair was loaded, and has its first events.
        writer: writes them in the protocol's form.
        stop: ends the job.
    """
    try:
        if data := encoded(writer.opening()):
            yield data
        while not (await asyncio.wait([starting], timeout=_ALIVE_S))[0]:
            yield encoded([writer.alive()])
        said = starting.result()
        clock = asyncio.get_running_loop().time
        told_at = clock()
        while True:
            events, refusal = _sorted(job, said)
            data = encoded(writer.written(writer.answer.take(events)))
            if not data and clock() - told_at >= _ALIVE_S:
                data = encoded([writer.alive()])
            if data:
                yield data
                told_at = clock()
            _stop_if_enough(job, writer, stop)
            if refusal is not None:
                raise refusal
            if writer.answer.over:
                yield encoded(writer.closing()) + writer.farewell
                return
            said = []
            with suppress(TimeoutError):  # Python 3.11's wait_for makes a task for each token
                async with asyncio.timeout_at(told_at + _ALIVE_S):
                    said = await _heard(job)
    except Exception as error:  # also a fault in writing: else the stream would just break off
        yield encoded(writer.failed(refusal_of(error)))


async def first_events(job: QueuedRequest) -> list[Answers]:
    """A job's first events.

    Raises:
        Refusal: the job cannot be answered.
    """
    said = await _heard(job)
    refusal = _sorted(job, said)[1]
    if refusal is not None:
        raise refusal
    return said


async def unless_refused(starting: asyncio.Task[list[Answers]], writer: ReplyWriter) -> None:
    """Wait for an answer's start, but not for long: the status waits for an error to set it.

    Raises:
        Refusal: the answer cannot be started, and the stream of `writer` is not to tell it.
    """
    try:
        if (await asyncio.wait([starting], timeout=_HEADERS_S))[0]:
            starting.result()
    except Refusal as refusal:
        if refusal.code not in writer.told_in_stream:
            raise


async def whole(
    job: QueuedRequest,
    starting: asyncio.Task[list[Answers]],
    writer: ReplyWriter,
    stop: Callable[[], None],
) -> Document:
    """The document of a complete answer; the arguments are those of `streamed`.

    Raises:
        Refusal: the job cannot be answered.
    """
    said = await starting
    while True:
        events, refusal = _sorted(job, said)
        list(writer.written(writer.answer.take(events)))
        _stop_if_enough(job, writer, stop)
        if refusal is not None:
            raise refusal
        if writer.answer.over:
            return writer.document()
        said = await _heard(job)


def _stop_if_enough(job: QueuedRequest, writer: ReplyWriter, stop: Callable[[], None]) -> None:
    """Stop a job whose client has enough text; its last event still brings the figures."""
    if writer.enough and not job.sufficed:
        job.sufficed = True
        stop()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
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
        if isinstance(one, PromptMade) and _overflows(one, job):
            return events, _too_long(one, job.prompt_field)
        cancelled = isinstance(one, TurnEnd) and one.reason is FinishReason.CANCELLED
        if cancelled and not job.sufficed:
            return events, unavailable("localspec is ending", 1)
        events.append(one)
        if isinstance(one, TurnEnd):  # later events do not belong to this answer
            break
    return events, None


def _overflows(begun: PromptMade, job: QueuedRequest) -> bool:
    counted = job.asked is not None and job.asked.count_only
    return begun.prompt_tokens > begun.context_size and not counted


def _too_long(begun: PromptMade, param: str) -> Refusal:
    return Refusal(
        400,
        # Agents look for these first words, spelt as OpenAI does, to see that they have to sum up.
        f"This model's maximum context length is {begun.context_size} tokens, and the prompt has"
        f" {begun.prompt_tokens} tokens. Shorten it, or start localspec with a larger --ctx-size.",
        code=OVERFLOW,
        param=param,
        n_prompt_tokens=begun.prompt_tokens,
        n_ctx=begun.context_size,
    )
