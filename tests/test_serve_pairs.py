"""Several pairs at one endpoint, and memory that is given back while nothing is asked."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from click import BadParameter

from localspec.chat.dialects import Dialect
from localspec.chat.events import PromptMade, TurnEnd, TurnEvent
from localspec.chat.settings import AnswerRequest, ChatSettings
from localspec.cli.answers.serve import _others
from localspec.cli.option_types import duration
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.pairs.disk import installed
from localspec.process import messages as m
from localspec.serve import answering, endpoint, request_queue
from localspec.serve.access import AccessRules
from localspec.serve.counters import EndpointCounters
from localspec.serve.endpoint import Endpoint
from localspec.serve.refusals import Refusal
from localspec.serve.request_queue import QueuedRequest, RequestQueue
from tests.support import toy
from tests.support.application import sent
from tests.support.command import run
from tests.support.endpoint import Serving, in_parallel
from tests.support.endpoint_sweep import ALONE as OTHER
from tests.support.endpoint_sweep import install_alone
from tests.support.mixed_requests import CLIENTS, MixedRequests
from tests.support.talks import CHAT, MESSAGES, PATHS, RESPONSES, Talk, Turn, body, events

STORY = Talk((Turn("user", "Tell me a story."),))


@pytest.fixture(scope="module", autouse=True)
def _another_pair() -> Iterator[None]:
    """Install the target alone, under another name."""
    install_alone()
    yield
    installed.forget(OTHER)


# --- the queue --------------------------------------------------------------------------------


def pair(name: str) -> Any:
    """As much of a loaded pair as requests need."""
    more = {"settings": ChatSettings(), "dialect": Dialect(), "draft_name": None}
    return SimpleNamespace(pair_name=name, target_name=name, **more)


class SeveralPairs:
    """An engine that loads what it is told to, when the test says so."""

    def __init__(self) -> None:
        self.info: Any = pair("one")
        self.latest: Any = self.info
        self.done: list[str] = []
        self.hear: Any = None
        self.end: Callable[[float], bool] = lambda seconds: True

    def listen(self, hear: Any) -> None:
        self.hear = hear

    def settle(self, envelope: m.Envelope[m.Event]) -> None:
        if isinstance(envelope.body, m.Loaded | m.LoadFailed):
            self.info = envelope.body.info
            self.latest = self.info or self.latest
        if isinstance(envelope.body, m.Died):
            self.info = None

    def reserve(self) -> None:
        pass

    def begin(self, asked: m.Complete) -> None:
        self.done.append(f"answer {asked.asked.prompt}")

    def load(self, name: str, messages: object) -> None:
        self.info = None
        self.done.append(f"load {name}")

    def load_first(self) -> None:
        self.load("first", ())

    def reload(self, messages: object) -> None:
        self.load("again", messages)

    def unload(self) -> Any:
        self.info = None
        self.done.append("unload")
        return self.end

    async def says(self, event: m.Event) -> None:
        self.hear(m.Envelope(1, event))
        await asyncio.sleep(0)

    async def loaded(self, name: str) -> None:
        await self.says(m.Loaded(pair(name)))


GONE = m.SentError("EngineDied", "gone")


def job(text: str, pair: str = "") -> QueuedRequest:
    return QueuedRequest("a", AnswerRequest(ChatSettings(), prompt=text), pair=pair)


def to_be_made(pair: str) -> QueuedRequest:
    """A client's job whose request to the engine is made once the pair is known."""
    return QueuedRequest("b", None, pair=pair)


async def queue_of(engine: Any, idle_s: float = 0.0) -> RequestQueue:
    queue = RequestQueue(engine, EndpointCounters(), most=8, limit_s=60, idle_s=idle_s)
    await engine.loaded("one")
    return queue


async def test_a_pair_is_loaded_for_the_request_that_names_it() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine)
    first = to_be_made("two")
    waiting = asyncio.create_task(queue.with_pair(first))
    await asyncio.sleep(0)
    assert engine.done == ["load two"]
    await engine.loaded("two")
    assert (await waiting).pair_name == "two"
    queue.withdraw(first)
    # It is known, so that nothing is loaded.
    assert (await queue.with_pair(to_be_made("two"))).pair_name == "two"
    for one in (job("x", "two"), job("y", "one"), job("z", "one"), job("t", "two")):
        queue.submit(one)
    await engine.says(m.TurnOver(None))
    await engine.loaded("one")
    await engine.says(m.TurnOver(None))
    await engine.says(m.TurnOver(None))
    assert engine.done[1:] == ["answer x", "load first", "answer y", "answer z", "load two"]


async def loaded_for_a_request() -> tuple[Any, RequestQueue, QueuedRequest]:
    """An engine that has loaded "two" for a job to be made, while a client waits for "one"."""
    engine: Any = SeveralPairs()
    queue = await queue_of(engine)
    first = to_be_made("two")
    waiting = asyncio.create_task(queue.with_pair(first))
    await asyncio.sleep(0)
    queue.submit(job("y", "one"))
    await engine.loaded("two")
    await waiting
    return engine, queue, first


@pytest.mark.parametrize("count_only", [False, True])
async def test_a_pair_that_was_loaded_stays_until_its_request_is_answered(count_only: bool) -> None:
    engine, queue, first = await loaded_for_a_request()
    assert engine.done == ["load two"]
    first.asked = AnswerRequest(ChatSettings(), prompt="x", count_only=count_only)
    queue.submit(first)
    await engine.says(m.TurnOver(None))
    assert engine.done == ["load two", "answer x", "load first"]


@pytest.mark.parametrize("ends", ["withdrawn", "late", "died"])
async def test_a_turn_that_was_kept_for_nothing_goes_to_the_next(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "_KEPT_S", 0.01 if ends == "late" else 60)
    engine, queue, first = await loaded_for_a_request()
    if ends == "withdrawn":
        queue.withdraw(first)
    elif ends == "died":
        await engine.says(m.Died(GONE))
    while len(engine.done) < 2:
        await asyncio.sleep(0.01)
    assert engine.done[0] == "load two"
    await engine.loaded("one")
    assert engine.done[2:] == ["answer y"]
    first.asked = AnswerRequest(ChatSettings(), prompt="x")
    queue.submit(first)  # it waits like any other
    await engine.says(m.TurnOver(None))
    assert engine.done[3:] == ["load two"]


async def test_requests_that_cannot_be_made_do_not_shorten_the_wait_that_is_told() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine)
    for i in range(20):
        refused = to_be_made(f"pair {i}")
        waiting = asyncio.create_task(queue.with_pair(refused))
        await asyncio.sleep(0)
        await engine.loaded(refused.pair)
        await waiting
        queue.withdraw(refused)
    for text in "abcdefghi":
        queue.submit(job(text))
    with pytest.raises(Refusal) as full:
        queue.submit(job("j"))
    assert full.value.retry_after == 45  # nine answers of the usual length


async def test_a_pair_that_cannot_be_loaded_is_told_and_the_others_go_on() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine)
    asked = [job("x", "two"), job("y", "one")]
    for one in asked:
        queue.submit(one)
    failed = m.SentError("ModelError", "no memory")
    await engine.says(m.LoadFailed(failed, pair("one")))
    refused: TurnEvent | Refusal = asked[0].said.get_nowait()
    assert isinstance(refused, Refusal)
    assert refused.status == 503
    assert "two" in str(refused)
    assert engine.done == ["load two", "answer y"]


@pytest.mark.parametrize("event", [m.Died(GONE), m.LoadFailed(GONE)])
async def test_a_pair_that_ends_the_engine_is_not_loaded_again(event: m.Event) -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine)
    for _ in range(3):  # however often it is asked for
        engine.done.clear()
        asked = [job("x", "two"), job("y", "one")]
        for one in asked:
            queue.submit(one)
        await engine.says(event)
        refused: TurnEvent | Refusal = asked[0].said.get_nowait()
        assert isinstance(refused, Refusal)
        assert "two" in str(refused)
        await engine.loaded("one")
        assert engine.done == ["load two", "load again", "answer y"]
        await engine.says(m.TurnOver(None))


async def asleep(queue: RequestQueue) -> None:
    """Wait until an idle engine has ended."""
    while queue._unloaded is None or not queue._unloaded.done():
        await asyncio.sleep(0.01)


async def test_without_a_queue_a_request_still_wakes_the_engine() -> None:
    engine: Any = SeveralPairs()
    queue = RequestQueue(engine, EndpointCounters(), most=0, limit_s=60, idle_s=0.01)
    await engine.loaded("one")
    await asleep(queue)
    queue.submit(job("x"))
    with pytest.raises(Refusal):
        queue.submit(job("y"))
    await engine.loaded("one")
    assert engine.done == ["unload", "load again", "answer x"]


async def test_an_engine_is_started_only_once_the_idle_one_has_ended() -> None:
    engine: Any = SeveralPairs()
    ended = threading.Event()
    engine.end = lambda seconds: ended.wait(10)
    queue = await queue_of(engine, idle_s=0.01)
    while not queue.asleep:
        await asyncio.sleep(0.01)
    queue.submit(job("x"))
    queue.submit(job("y"))
    await asyncio.sleep(0.01)
    assert engine.done == ["unload"]
    ended.set()
    while engine.done == ["unload"]:
        await asyncio.sleep(0.01)
    await engine.loaded("one")
    assert engine.done == ["unload", "load again", "answer x"]


async def test_an_engine_that_died_does_not_fall_asleep() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine, idle_s=0.02)
    for _ in range(3):
        await engine.says(m.Died(GONE))
    await asyncio.sleep(0.05)
    assert not queue.asleep
    assert engine.done == ["load again"] * 2  # then it rests


async def test_after_a_while_the_engine_ends_and_a_request_starts_it() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine, idle_s=0.02)
    queue.submit(job("x"))
    await asyncio.sleep(0.05)
    assert engine.done == ["answer x"]  # it is busy
    await engine.says(m.TurnOver(None))
    await asleep(queue)
    assert engine.done == ["answer x", "unload"]
    queue.submit(job("y"))
    queue.submit(job("z"))
    assert not queue.asleep
    assert engine.done[2:] == ["load again"]
    await engine.loaded("one")
    assert engine.done[3:] == ["answer y"]


@pytest.mark.parametrize(("first", "loads"), [("two", ["load two"]), ("one", ["load again"])])
async def test_an_engine_that_sleeps_loads_only_the_pair_that_is_asked_for(
    first: str, loads: list[str]
) -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine, idle_s=0.01)
    await asleep(queue)
    for one in (job("x", first), job("y", first)):
        queue.submit(one)
    await engine.loaded(first)
    await engine.says(m.TurnOver(None))
    assert engine.done == ["unload", *loads, "answer x", "answer y"]


async def test_a_pair_that_cannot_wake_the_engine_is_refused() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine, idle_s=0.01)
    await asleep(queue)
    asked = job("x", "two")
    queue.submit(asked)
    await engine.says(m.LoadFailed(GONE))
    assert isinstance(asked.said.get_nowait(), Refusal)
    assert engine.done == ["unload", "load two", "load again"]


async def test_an_engine_without_a_time_never_ends() -> None:
    engine: Any = SeveralPairs()
    queue = await queue_of(engine, idle_s=0)
    queue.submit(job("x"))
    await engine.says(m.TurnOver(None))
    await asyncio.sleep(0.05)
    assert not queue.asleep


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("2h", 7200)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "30 m", "m", "1d", "nan", "1e3", "9" * 30])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="not a time"):
        duration(text)


# --- the endpoint -----------------------------------------------------------------------------


def test_which_pairs_may_be_loaded() -> None:
    assert {toy.PAIR, OTHER} <= {*_others(None)}
    assert _others(f"{OTHER}, nothing") == [OTHER]
    assert _others("none") == []


def test_a_pair_that_is_not_installed_is_told_at_the_start() -> None:
    done = run("serve", "toy", "--models", "nothing", "--port", "0")
    assert done.code == 2
    assert "no pair named nothing is installed" in done.err


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/two", 200),
        ("POST", "/v1/chat/completions", 404),
    ],
)
async def test_others_are_answered_while_a_disk_is_looked_at(
    method: str, path: str, status: int
) -> None:
    looks, answered = threading.Event(), threading.Event()

    def others() -> list[str]:
        looks.set()
        return ["two"] * answered.wait(5)

    queue = await queue_of(SeveralPairs())
    app = Endpoint(queue, AccessRules(), EndpointCounters(), strict=True, others=others).app()

    async def asked(*request: Any) -> int:
        replies = [one async for one in sent(app, *request)]
        return int(replies[0]["status"])

    talk = {"model": "three", "messages": [{"role": "user", "content": "Hi."}]}
    waiting = [asyncio.create_task(asked(method, path, talk)) for _ in range(2)]
    await asyncio.to_thread(looks.wait, 5)
    assert await asked("GET", "/health") == 200
    assert not any(one.done() for one in waiting)
    answered.set()
    assert await asyncio.gather(*waiting) == [status] * 2


@pytest.mark.parametrize(("known", "status"), [([], 404), (["two"], 200)])
async def test_a_disk_that_never_answers_holds_no_request(
    monkeypatch: pytest.MonkeyPatch, known: list[str], status: int
) -> None:
    answers, over = iter([known]), threading.Event()

    def others() -> list[str]:
        if (found := next(answers, None)) is None:
            over.wait(20)
        return found or []

    app = Endpoint(
        await queue_of(SeveralPairs()), AccessRules(), EndpointCounters(), others=others
    ).app()
    for patience in (20.0, 0.01, 0.01):  # one look ends, the next never does
        monkeypatch.setattr(endpoint, "_LOOK_S", patience)
        replies = [one async for one in sent(app, "GET", "/v1/models/two")]
        assert replies[0]["status"] == status
    assert not over.is_set()
    over.set()


async def test_what_a_slow_disk_tells_late_is_known_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "_LOOK_S", 0.01)
    over = threading.Event()
    one = Endpoint(
        await queue_of(SeveralPairs()),
        AccessRules(),
        EndpointCounters(),
        others=lambda: ["two"] if over.wait(20) else [],
    )
    app = one.app()
    for status in (404, 200):
        replies = [each async for each in sent(app, "GET", "/v1/models/two")]
        assert replies[0]["status"] == status
        over.set()
        assert one._looking is not None
        await one._looking


async def test_while_models_load_no_request_waits_for_the_disk() -> None:
    engine, others = SeveralPairs(), Mock()
    app = Endpoint(await queue_of(engine), AccessRules(), EndpointCounters(), others=others).app()
    engine.latest = None
    for path in ("/v1/models", "/v1/models/two"):
        replies = [one async for one in sent(app, "GET", path)]
        assert replies[0]["status"] == 503
    others.assert_not_called()


def test_requests_name_their_pair_in_all_protocols() -> None:
    with Serving("--queue", "64") as one:
        listed = [each["id"] for each in json.loads(one.ask("/v1/models")[2])["data"]]
        assert listed[0] == "toy"
        assert OTHER in listed
        drafted = []
        for path in PATHS:
            for name in (OTHER, "toy"):
                status, headers, data = one.ask(path, body(path, STORY, model=name, gamma=3))
                assert status == 200, data
                document = json.loads(data)
                assert document["model"] == name
                assert "x-localspec-model" not in headers
                drafted.append("draft" in document["timings"]["drafters"])
        assert drafted == [False, True] * 3


@pytest.mark.slow
def test_pairs_that_clients_want_at_once_are_loaded_in_turn() -> None:
    with Serving("--queue", "64") as one:
        expected = one.chat()["choices"][0]["message"]["content"]
        said: list[str] = []

        def ask(name: str) -> None:
            for _ in range(3):
                found = one.chat(model=name)
                assert found["model"] == name
                said.append(found["choices"][0]["message"]["content"])

        in_parallel([lambda name=name: ask(name) for name in ("toy", OTHER, "toy", OTHER)])
        assert said == [expected] * 12


@pytest.mark.parametrize("others", [[], ["two"]])
async def test_pairs_that_may_be_loaded_are_listed(others: list[str]) -> None:
    queue = await queue_of(SeveralPairs())
    app = Endpoint(queue, AccessRules(), EndpointCounters(), others=lambda: others).app()
    data = b"".join([one.get("body", b"") async for one in sent(app, "GET", "/v1/models")])
    assert [each["id"] for each in json.loads(data)["data"]] == ["one", *others]
    status = [one["status"] async for one in sent(app, "GET", "/v1/models/two") if "status" in one]
    assert status == [200 if others else 404]


@pytest.mark.slow
def test_models_that_may_not_be_loaded_are_not() -> None:
    with Serving("--models", "none") as one:
        data = json.loads(one.ask("/v1/models")[2])["data"]
        assert [each["id"] for each in data] == ["toy"]
        _, headers, _ = one.ask(MESSAGES, body(MESSAGES, STORY, model=OTHER))
        assert headers["x-localspec-model"] == "toy"


@pytest.mark.slow
def test_memory_is_given_back_and_the_next_request_loads_again() -> None:
    with Serving("--idle-unload", "1") as one:
        expected = one.chat()["choices"][0]["message"]["content"]
        for path in PATHS:
            gone = one.engine()
            gone.wait(30)
            assert psutil.Process(one.process.pid).children() == []
            assert one.ask("/health")[0] == 200
            assert one.metric("memory_bytes") == 0
            data = one.ask(path, body(path, STORY, stream=True, max_tokens=16))[2]
            assert events(data)
            assert one.engine().pid != gone.pid
        assert one.chat()["choices"][0]["message"]["content"] == expected
        assert one.metric("engine_restarts_total") == 0


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_requests_outlive_kills_and_unloads() -> None:
    """A few of the thousand requests of `python -m tests.support.endpoint_sweep`."""
    with Serving("--exact", "--idle-unload", "1", "--queue", "64") as one:
        mixed = MixedRequests(one, (toy.PAIR, OTHER), 3)
        mixed.run(each=4, bursts=2)
    assert mixed.answers + mixed.others == 2 * 4 * CLIENTS
    assert mixed.parted == 0
    assert mixed.unloads == 2
    assert mixed.resident[-1] < mixed.resident[0] + (200 << 20)
    assert mixed.left() == []


SLOW = """
import sys, time
from localspec.serve import answering
from localspec.process import engine_client
answering._HEADERS_S = answering._ALIVE_S = 0.2
start = engine_client.EngineClient.reload
def late(self, *words, **more):
    start(self, *words, **more)
    self._transport._process.send_signal(19)
    import threading
    threading.Timer(1.5, self._transport._process.send_signal, (18,)).start()
engine_client.EngineClient.reload = late
from localspec.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_stream_that_waits_for_a_load_shows_signs_of_life() -> None:
    with Serving("--idle-unload", "1", program=("-c", SLOW)) as one:
        for path, sign in zip(PATHS, ("", "ping", "response.in_progress"), strict=True):
            one.engine().wait(30)
            begun = time.monotonic()
            found = events(one.ask(path, body(path, STORY, stream=True))[2])
            assert time.monotonic() - begun > 1.4
            names = [name for name, _ in found]
            assert names.count(sign) > 3


LOADS = (  # the event that begins a stream, the one that shows life, and the end
    (CHAT, b'"role":"assistant"', b'{"content":""}', b"data: [DONE]"),
    (MESSAGES, b"event: message_start", b"event: ping", b"event: message_stop"),
    (RESPONSES, b"event: response.created", b"event: response.in_progress", b".completed"),
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_HEADERS_S", 0.01)
    monkeypatch.setattr(answering, "_ALIVE_S", 0.01)


async def streaming(engine: Any, path: str) -> AsyncIterator[bytes]:
    """What a client gets that asks for a stream of the pair `two`, which was never loaded."""
    queue = await queue_of(engine)
    endpoint = Endpoint(queue, AccessRules(), EndpointCounters(), others=lambda: ["two"])
    asked = body(path, STORY, model="two", stream=True)
    async for message in sent(endpoint.app(), "POST", path, asked):
        yield message.get("body", b"")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("path", "first", "sign", "last"), LOADS)
async def test_a_stream_that_waits_for_another_pair_shows_signs_of_life(
    path: str, first: bytes, sign: bytes, last: bytes
) -> None:
    engine: Any = SeveralPairs()
    data = b""
    async for part in streaming(engine, path):
        data += part
        if data.count(sign) > 4 and engine.done == ["load two"]:
            await engine.loaded("two")
        if engine.done[-1].startswith("answer"):
            engine.done.append("told")
            await engine.says(m.TurnReported(PromptMade(3, 10)))
            await engine.says(m.TurnReported(TurnEnd("", FinishReason.STOP, GenerationStats())))
            await engine.says(m.TurnOver(None))
    assert engine.done == ["load two", "answer ", "told"]
    assert data.count(first) == 1
    assert last in data


@pytest.mark.usefixtures("impatient")
async def test_a_stream_whose_pair_cannot_be_loaded_ends_with_the_error() -> None:
    engine: Any = SeveralPairs()
    data = b""
    async for part in streaming(engine, MESSAGES):
        data += part
        if b"ping" in data and engine.done == ["load two"]:
            await engine.says(m.LoadFailed(GONE, pair("one")))
    name, event = events(data)[-1]
    assert name == "error"
    assert event["error"]["message"] == "the pair two cannot be loaded"
