"""The parts of `localspec serve`, each by itself."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvicorn
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.routing import Route
from uvicorn.server import ServerState

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.enforcement.value_rules import CallableTool, PythonRules
from localspec.chat.dialects.notations import values
from localspec.chat.dialects.shapes import AnswerMarks, CallShape
from localspec.chat.events import (
    Origin,
    PromptMade,
    PromptProgress,
    RoundText,
    Span,
    TokensScored,
    TurnEnd,
    TurnEvent,
)
from localspec.chat.prompt.call_notation import BEGIN, END, PLAIN
from localspec.chat.session.completions import Completions
from localspec.chat.settings import AnswerRequest, ChatSettings
from localspec.chat.states import cached_prefixes
from localspec.chat.states.cached_prefixes import CachedPrefixes
from localspec.cli.answers.serve import _keys, _rules, _welcome
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.grammars import guidance, lark
from localspec.engine.grammars.constraint import AfterThought, Anything, Awaited
from localspec.engine.grammars.grammar_reader import GrammarReader, require_grammar
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.llama.grammar import LlamaGrammar
from localspec.engine.record.stats import FinishReason, GenerationStats, Prefill, Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.sampling import check_largest
from localspec.errors import EngineError, LocalspecError, SchemaError, UsageError, installs_extra
from localspec.process import messages as m
from localspec.serve import answering
from localspec.serve.access import AccessRules, digest
from localspec.serve.core.replies import IncomingAnswer, timings
from localspec.serve.core.request_tools import RequestTools
from localspec.serve.core.requests import parsed, require_sendable, thoughts_of
from localspec.serve.counters import EndpointCounters
from localspec.serve.endpoint import Endpoint
from localspec.serve.http_server import EndpointServer, PatientProtocol, listening, serve
from localspec.serve.protocols.anthropic_messages import MessagesRequest
from localspec.serve.protocols.chat_completions import ChatRequest, ChatWriter
from localspec.serve.protocols.text_completions import CompletionRequest, TextWriter
from localspec.serve.refusals import Refusal, refusal_of
from localspec.serve.request_queue import QueuedRequest, RequestQueue
from tests.fakes import rounds_of
from tests.support import ROOMY
from tests.support.application import sent
from tests.support.endpoint import Serving, streaming
from tests.support.gguf_models import write_random_gemma3
from tests.support.llama_source import VocabularyOnly, needed, vocabularies

# --- whose turn it is -------------------------------------------------------------------------


class ScriptedEngine:
    """An engine that sends the events that the test gives it."""

    def __init__(self) -> None:
        self.info: Any = "loaded"
        self.latest: Any = None
        self.asked: list[Any] = []
        self.stopped = self.reloaded = self.killed = 0
        self.hear: Any = None

    def listen(self, hear: Any) -> None:
        self.hear = hear

    def settle(self, envelope: m.Envelope[m.Event]) -> None:
        self.info = None if isinstance(envelope.body, m.Died) else "loaded"

    def reserve(self) -> None:
        pass

    def begin(self, body: m.Complete) -> None:
        self.asked.append(body.asked.prompt)

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += 1

    def reload(self, messages: object) -> None:
        self.reloaded += 1

    async def says(self, body: m.Event) -> None:
        self.hear(m.Envelope(1, body))
        await asyncio.sleep(0)


OVER = m.TurnOver(None)
LOADED = m.Loaded(SimpleNamespace(pair_name="toy"))  # type: ignore[arg-type]
DEAD = m.Died(m.SentError("EngineDied", "gone"))


def job(asker: str, text: str) -> QueuedRequest:
    return QueuedRequest(asker, AnswerRequest(ChatSettings(), prompt=text))


async def test_askers_take_turns_and_the_queue_has_an_end() -> None:
    engine: Any = ScriptedEngine()
    request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=60)
    jobs = [job("a", f"a{i}") for i in range(4)] + [job("b", "b0")]
    for one in jobs:
        request_queue.submit(one)
    with pytest.raises(Refusal) as caught:
        request_queue.submit(job("a", "a4"))
    assert caught.value.status == 503
    assert caught.value.retry_after
    newcomer = job("c", "c0")
    request_queue.submit(newcomer)
    refused = jobs[3].said.get_nowait()  # the latest of the longest line
    assert isinstance(refused, Refusal)
    assert refused.retry_after
    request_queue.withdraw(jobs[2])
    request_queue.withdraw(jobs[2])  # a second time changes nothing
    for _ in range(3):
        await engine.says(OVER)
    assert engine.asked == ["a0", "a1", "b0", "c0"]
    request_queue.withdraw(newcomer)
    assert engine.stopped == 1


def count(text: str) -> QueuedRequest:
    return QueuedRequest("a", AnswerRequest(ChatSettings(), prompt=text, count_only=True))


async def test_counts_fill_no_queue_and_wait_for_no_answer_but_the_one_that_runs() -> None:
    """Claude Code asks for forty at once, to show what its context holds."""
    engine: Any = ScriptedEngine()
    counters = EndpointCounters()
    request_queue = RequestQueue(engine, counters, most=2, limit_s=60)
    answers, counts = [job("a", f"a{i}") for i in range(3)], [count(f"c{i}") for i in range(40)]
    for one in (*answers[:2], *counts, answers[2], *[gone := count("gone")]):
        request_queue.submit(one)
    assert counters.waiting == 43
    with pytest.raises(Refusal, match="2 requests are waiting"):
        request_queue.submit(job("a", "too many"))
    request_queue.withdraw(gone)
    for _ in range(42):
        await engine.says(OVER)
    assert engine.asked == ["a0", *(f"c{i}" for i in range(40)), "a1", "a2"]
    assert counters.waiting == 0


async def test_counts_that_keep_coming_hold_up_no_answer() -> None:
    engine: Any = ScriptedEngine()
    request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=60)
    for one in (job("a", "a0"), job("b", "b0"), count("c0")):
        request_queue.submit(one)
    for number in range(1, 4):
        await engine.says(OVER)
        request_queue.submit(count(f"c{number}"))
    assert engine.asked == ["a0", "c0", "b0", "c1"]


async def test_what_takes_too_long_is_stopped_and_told() -> None:
    engine: Any = ScriptedEngine()
    request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=0.01)
    one = job("a", "x")
    request_queue.submit(one)
    found = await asyncio.wait_for(one.said.get(), 5)
    assert isinstance(found, Refusal)
    assert (found.status, engine.stopped) == (504, 1)


def test_an_engine_that_does_not_stop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.serve.request_queue._STOP_S", 0.01)

    async def go() -> None:
        engine: Any = ScriptedEngine()
        request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=60)
        stuck, other = job("a", "x"), job("a", "y")
        request_queue.submit(other)
        request_queue.withdraw(other)
        await engine.says(OVER)  # it stops: nothing happens to it
        request_queue.submit(stuck)
        request_queue.withdraw(stuck)
        while not engine.killed:
            await asyncio.sleep(0.01)
        assert engine.killed == 1

    asyncio.run(asyncio.wait_for(go(), 5))


ENDLESS = 'root ::= x{0,1000}\nx ::= ("a" | "b" | "") ("a" | "b" | "")'


@pytest.mark.slow
def test_a_grammar_without_end_does_not_keep_the_engine() -> None:
    program = SLOW.replace("from localspec.cli", "from localspec.serve import request_queue\n"
                           "request_queue._STOP_S = 0.5\nfrom localspec.cli")  # fmt: skip
    with Serving(program=("-c", program)) as one:
        messages = [{"role": "user", "content": "Tell me a story."}]
        sock = socket.create_connection(("127.0.0.1", one.port))
        sock.sendall(streaming({"messages": messages, "grammar": ENDLESS}))
        while not one.metric("requests_processing"):
            time.sleep(0.01)
        time.sleep(0.2)
        sock.close()
        assert one.chat(max_tokens=2)["choices"]


def test_an_answer_that_is_complete_stays_so_and_one_that_was_ended_is_none() -> None:
    whole = TurnEnd("a", FinishReason.STOP, GenerationStats())
    assert answering._sorted(job("a", "x"), [whole, Refusal(504, "too late")]) == ([whole], None)
    events, refusal = answering._sorted(
        job("a", "x"), [TurnEnd("a", FinishReason.CANCELLED, GenerationStats())]
    )
    assert not events
    assert refusal is not None


async def test_a_stream_is_kept_alive_while_a_prompt_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's progress, which comes every second, does not reach the client."""
    monkeypatch.setattr("localspec.serve.answering._ALIVE_S", 0.05)
    asked = job("a", "x")
    writer = ChatWriter("x")
    asked.said.put_nowait(PromptMade(3, 10))
    starting = asyncio.create_task(answering.first_events(asked))
    stream = answering.streamed(asked, starting, writer, lambda: None)
    assert b'"role":"assistant"' in await anext(stream)

    async def read_on() -> None:
        while True:
            asked.said.put_nowait(PromptProgress(1, 3))
            await asyncio.sleep(0.01)

    reading = asyncio.create_task(read_on())
    for _ in range(3):
        assert b'"content":""' in await asyncio.wait_for(anext(stream), 20)
    reading.cancel()
    asked.said.put_nowait(TurnEnd("", FinishReason.STOP, GenerationStats()))
    assert b"[DONE]" in [data async for data in stream][-1]


async def test_a_stream_whose_writer_fails_ends_with_an_error() -> None:
    asked = job("a", "x")
    writer = ChatWriter("x")
    writer.written = Mock(side_effect=UnicodeEncodeError("utf-8", "x", 0, 1, "no"))  # type: ignore[method-assign]
    asked.said.put_nowait(PromptMade(3, 10))
    starting = asyncio.create_task(answering.first_events(asked))
    *_, last = [one async for one in answering.streamed(asked, starting, writer, lambda: None)]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["message"] == "localspec has a fault (UnicodeEncodeError)"


def test_ids_of_prompts_that_are_refused_are_not_kept() -> None:
    template = SimpleNamespace(tokenize=lambda text, continues: list(text.encode()))
    pair = SimpleNamespace(target=SimpleNamespace(n_ctx=10, model=None), drafts={})
    session = SimpleNamespace(template=template, pair=pair, folder=None, engine=Mock())
    completions = Completions(session)  # type: ignore[arg-type]
    assert completions._recalled("short")[1] == list(b"short")
    for i in range(50):
        assert len(completions._recalled(f"{i} is much longer")[1]) > 10
    completions._recalled("short and long")
    assert [one.reach("short and long") for one in completions._known] == [5]
    completions._recalled("short too")
    assert [one.reach("short too") for one in completions._known] == [9]


async def one_runs_and_one_waits() -> tuple[Any, RequestQueue, QueuedRequest, QueuedRequest]:
    """An engine and its queue: the engine works on one job while another one waits."""
    engine: Any = ScriptedEngine()
    request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=60)
    await engine.says(LOADED)
    running, waiting = job("a", "x"), job("b", "y")
    request_queue.submit(running)
    request_queue.submit(waiting)
    return engine, request_queue, running, waiting


async def test_an_engine_that_keeps_dying_is_given_a_rest() -> None:
    engine, request_queue, running, waiting = await one_runs_and_one_waits()
    await engine.says(DEAD)
    refused = running.said.get_nowait()
    assert isinstance(refused, Refusal)
    assert str(refused).startswith("gone; ")  # such as which worker went away
    assert engine.reloaded == 1
    await engine.says(DEAD)
    await engine.says(DEAD)
    assert engine.reloaded == 2
    found = waiting.said.get_nowait()
    assert isinstance(found, Refusal)
    assert found.status == 503
    assert str(found).endswith(": gone")
    with pytest.raises(Refusal):
        request_queue.submit(job("a", "z"))


async def test_an_engine_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.serve.request_queue._PATIENCE_S", 0)
    engine, request_queue, _, waiting = await one_runs_and_one_waits()
    works = engine.reload
    engine.reload = Mock(side_effect=OSError(12, "no memory"))
    await engine.says(DEAD)
    found = waiting.said.get_nowait()
    assert isinstance(found, Refusal)
    assert found.status == 503
    assert "no memory" in str(found)
    engine.reload = works
    while not engine.reloaded:
        await asyncio.sleep(0.01)
    await engine.says(LOADED)
    request_queue.submit(job("a", "z"))
    assert engine.asked[-1] == "z"


async def test_an_engine_whose_process_does_not_end_is_tried_again_too() -> None:
    engine, request_queue, _, waiting = await one_runs_and_one_waits()
    engine.reload = Mock(side_effect=subprocess.TimeoutExpired("engine", 2))
    await engine.says(DEAD)
    found = waiting.said.get_nowait()
    assert isinstance(found, Refusal)
    assert found.status == 503
    with pytest.raises(Refusal):  # it rests, so that no job waits for good
        request_queue.submit(job("a", "z"))


def test_whose_fault_an_error_is() -> None:
    assert refusal_of(UsageError("wrong", "")).status == 400
    assert refusal_of(EngineError("llama.cpp failed to decode", "")).status == 500
    for largest, status in ((math.nan, 500), (math.inf, 500), (-math.inf, 400)):
        with pytest.raises(LocalspecError) as caught:
            check_largest(largest)
        assert refusal_of(caught.value).status == status


async def test_who_stops_reading_is_left_and_who_goes_on_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.serve.http_server._STALLED_S", 0.05)

    def stalled() -> tuple[PatientProtocol, Mock]:
        config = uvicorn.Config(lambda: None, log_config=None)
        protocol = PatientProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Mock(spec=asyncio.Transport)
        transport.get_extra_info.return_value = None
        protocol.connection_made(transport)
        protocol.pause_writing()
        return protocol, transport

    (slow, left), (_, gone) = stalled(), stalled()
    slow.resume_writing()
    await asyncio.sleep(0.2)
    gone.abort.assert_called_once()
    left.abort.assert_not_called()


async def test_a_slow_client_that_goes_on_wrongly_gets_its_whole_refusal() -> None:
    refusal = b"x" * (8 << 20)  # more than the system keeps for a client

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(refusal))]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": refusal})

    loop, config = asyncio.get_running_loop(), uvicorn.Config(refuses, log_config=None)
    protocol = PatientProtocol(config, ServerState(), {}, loop)
    server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"zz\r\n")
    while not protocol.transport.is_closing():
        await asyncio.sleep(0.01)
    assert await reader.read() == refusal
    writer.close()
    server.close()


# --- what the caches held ---------------------------------------------------------------------


def read(contexts: list[Context], prefixes: CachedPrefixes, prompt: list[int]) -> int:
    """Read a prompt into all caches; return how many tokens the target had to read."""
    prefixes.switch(prompt)
    missing = 0
    for context in reversed(contexts):
        missing = len(prompt) - context.keep_prefix(prompt)
        if missing:
            context.decode(prompt[-missing:], 1)
    return missing


def test_a_prefix_that_was_left_is_gone_back_to(
    target_context: Context, draft_context: Context
) -> None:
    both = [target_context, draft_context]
    prefixes = CachedPrefixes(lambda: both)
    texts = [[10 * i + j for j in range(1, 60)] for i in range(4)]
    assert [read(both, prefixes, text) for text in texts] == [59] * 4
    assert [read(both, prefixes, [*text, 7, 8]) for text in texts] == [2] * 4
    assert read(both, prefixes, [*texts[0][:40], 3]) == 1  # another path of the same
    assert read(both, prefixes, [*texts[0], 7, 8, 9]) == 1  # and the first one is still there
    assert draft_context.tokens == [*texts[0], 7, 8, 9]
    after = target_context.decode([4], 1).copy()
    target_context.clear()
    target_context.decode([*texts[0], 7, 8, 9], 0)
    assert np.allclose(target_context.decode([4], 1), after, atol=0.05)


def test_a_copy_is_compared_with_a_prompt_as_a_whole(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists equal no tuples: their tokens would be compared one after the other."""
    compared = Mock(side_effect=common_prefix)
    monkeypatch.setattr(cached_prefixes, "common_prefix", compared)
    prefixes = CachedPrefixes(lambda: [target_context])
    for prompt in ([*range(1, 60)], [*range(100, 160)], [*range(1, 60)]):
        read([target_context], prefixes, prompt)
    assert {(type(a), type(b)) for (a, b), _ in compared.call_args_list} == {(list, list)}


def test_a_thought_that_the_next_prompt_leaves_out_is_not_copied(target_context: Context) -> None:
    told = [*range(1, 60)]
    prefixes = CachedPrefixes(lambda: [target_context], following=lambda: told)
    thought, said = [*range(100, 160)], [*range(200, 205)]
    assert read([target_context], prefixes, told) == 59
    for _ in range(3):
        target_context.decode([*thought, *said], 0)
        told += [*said, 7]
        assert read([target_context], prefixes, told) == 6
        assert prefixes.n_bytes == 0
    target_context.decode(thought, 0)
    assert read([target_context], prefixes, said) == 5
    assert prefixes.n_bytes > 0
    assert read([target_context], prefixes, [*told, 8]) == 1


def test_of_a_window_a_copy_is_gone_back_to_whole(tmp_path: Path) -> None:
    """llama.cpp copies only what the last token sees of these layers: a shorter cut lacks some."""
    path = write_random_gemma3(tmp_path / "g.gguf", window=32)
    options = ContextOptions(n_ctx=512, threads=1, flash_attention=True)
    with (
        Model.load(path) as model,
        Context(model, options) as context,
        Context(model, options) as alone,
    ):
        prefixes = CachedPrefixes(lambda: [context])
        one, other = [*range(300, 420)], [*range(420, 540)]
        for prompt, missing in (
            (one, 120),
            (other, 120),
            ([*one, 9], 1),
            ([*other[:90], 8], 91),
            ([*one, 9, 7, 8], 1),
            ([*other[:20], 8], 21),
        ):
            assert read([context], prefixes, prompt) == missing
            alone.clear()
            alone.decode(prompt, 0)
            assert np.abs(context.decode([7], 1) - alone.decode([7], 1)).max() < 0.2
        held, state = tuple(context.tokens), context.state()
        context.restore(one, state[:0])  # no state: it holds nothing
        assert context.tokens == []
        context.restore(held, state)
        assert context.keep_prefix(held) == len(held)
        context.truncate(15)  # read again
        alone.truncate(15)
        assert context.tokens == alone.tokens == [*held[:15]]
        assert np.abs(context.decode([7], 1) - alone.decode([7], 1)).max() < 0.2


def test_what_is_on_the_disk_is_not_written_again(target_context: Context, tmp_path: Path) -> None:
    prefixes = CachedPrefixes(lambda: [target_context], tmp_path, room=lambda: 0)
    texts = [[10 * i + j for j in range(1, 60)] for i in range(4)]
    read([target_context], prefixes, texts[0])
    read([target_context], prefixes, texts[1])
    first = prefixes._kept[0].states[0]
    assert isinstance(first, np.memmap)
    read([target_context], prefixes, texts[2])
    assert prefixes._kept[0].states[0] is first
    assert read([target_context], prefixes, texts[0]) == 0


def test_without_memory_for_a_copy_the_prompt_is_read_all_the_same(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Context) -> None:
        raise MemoryError

    monkeypatch.setattr(Context, "state", refused)
    prefixes = CachedPrefixes(lambda: [target_context])
    texts = [[10 * i + j for j in range(1, 60)] for i in range(2)]
    assert [read([target_context], prefixes, text) for text in (*texts, *texts)] == [59] * 4
    assert prefixes.n_bytes == 0


def test_without_room_nothing_is_copied(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "state", lambda _: pytest.fail("it was copied"))
    prefixes = CachedPrefixes(lambda: [target_context], room=lambda: 0)
    texts = [[10 * i + j for j in range(1, 60)] for i in range(2)]
    assert [read([target_context], prefixes, text) for text in (*texts, *texts)] == [59] * 4
    assert prefixes.n_bytes == 0


def test_probabilities_are_the_models_own(target_context: Context) -> None:
    from localspec.engine.length.gamma import FixedGamma  # noqa: PLC0415
    from localspec.engine.round.generate_settings import GenerateSettings  # noqa: PLC0415
    from localspec.engine.round.params import SamplingParams  # noqa: PLC0415

    engine = Engine(target_context)
    prompt = target_context.model.tokenize("Once upon a", add_special=True, parse_special=False)
    list(engine.prefill(prompt, Cancel()))
    how = GenerateSettings(sampling=SamplingParams(seed=1), n_predict=3, top_logprobs=2)
    scored = [
        one
        for done in engine.generate(prompt, how, FixedGamma(0), Cancel())
        for one in done.logprobs
    ]
    assert len(scored) == 3
    target_context.clear()
    x = target_context.decode(prompt, 1)[0].astype(np.float64)
    expected = x - np.log(np.exp(x - x.max()).sum()) - x.max()
    assert scored[0].logprob == pytest.approx(expected[scored[0].token], abs=1e-3)
    assert [token for token, _ in scored[0].best] == list(np.argsort(-x)[:2])


# --- grammars and tools -----------------------------------------------------------------------


def test_a_grammar_holds_from_behind_its_mark_on(target_model: Model) -> None:
    grammar = LlamaGrammar.parse(target_model, 'root ::= " "? "yes"')
    state: Any = Awaited(b"<go>", grammar, target_model)
    ids = np.arange(target_model.n_vocab)
    for token in target_model.tokenize("no <g <go>", add_special=False, parse_special=False):
        assert isinstance(state, Awaited)
        assert state.allowed(ids).all()
        state = state.after(token)
    assert isinstance(state, LlamaGrammar)
    texts = {target_model.piece(int(i)) for i in ids[state.allowed(ids)]}
    assert all(b" yes".startswith(text) or b"yes".startswith(text) for text in texts)


def test_a_grammar_holds_behind_a_mark_whose_last_token_goes_on() -> None:
    """Also where the tokenizer puts a blank in front of every text."""
    needed()
    with VocabularyOnly.of(vocabularies()["llama-spm"]) as model:
        grammar = LlamaGrammar.parse(model, 'root ::= "{" [a-z]* "}"')
        state: Any = Awaited(b"</think>", grammar, model)
        ids = model.tokenize("</think>{ab", add_special=False, parse_special=False)
        assert b">{" in map(model.piece, ids)
        for token in ids:
            state = state.after(token)
        assert isinstance(state, LlamaGrammar)


@pytest.mark.parametrize("pieces", ["<tool _ call >", "n < tool _call >", "a<t ool_c all>"])
def test_a_mark_is_found_however_it_is_cut(pieces: str) -> None:
    texts = [piece.encode() for piece in pieces.split()]
    vocabulary: Any = SimpleNamespace(
        piece=lambda token, **_: texts[token], tokenize=lambda *_, **__: []
    )
    then: Any = object()
    state: Any = Awaited(b"<tool_call>", then, vocabulary)
    for i in range(len(texts)):
        assert state is not then
        state = state.after(i)
    assert state is then


@pytest.mark.parametrize("pieces", ["<think>", "\n| <th|ink>", "<|think>\n"])
def test_a_thought_puts_a_constraint_off_however_its_mark_is_cut(pieces: str) -> None:
    texts = [piece.encode() for piece in pieces.split("|")]
    vocabulary: Any = SimpleNamespace(piece=lambda token, **_: texts[token])
    then, thinking = Anything(), Anything()
    state: Any = AfterThought(then, thinking, b"<think>", vocabulary)
    for i in range(len(texts)):
        assert isinstance(state, AfterThought)
        state = state.after(i)
    assert state is thinking
    for text in (b"so <think>", b"<thinking", b"<th ink>"):
        texts[0] = text
        assert AfterThought(then, thinking, b"<think>", vocabulary).after(0) is then


def test_a_call_within_a_thought_is_none(target_model: Model) -> None:
    grammar = LlamaGrammar.parse(target_model, 'root ::= " "? "yes"')
    state: Any = Awaited(b"</t>", Awaited(b"<go>", grammar, target_model), target_model)
    for text, held in (("I may <go> there", False), ("</t>no", False), ("<go>", True)):
        for token in target_model.tokenize(text, add_special=False, parse_special=False):
            state = state.after(token)
        assert isinstance(state, LlamaGrammar) is held


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a": {"items": {"type": "x"}}}}, "s.properties.a.items"),
        ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, "s.$defs.a"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "("}]}, "s.anyOf.1"),
        (
            {"definitions": {"a": {}}}
            | {"properties": {"p": {"$ref": "#/definitions/a"}, "q": {"type": "x"}}},
            "s.properties.q",
        ),
        ({"type": "array", "items": {"type": "array", "items": {"$ref": "#/x"}}}, "s.items.items"),
    ],
)
def test_a_wrong_schema_is_told_with_its_place(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(SchemaError) as caught:
        guidance.check(lark.grammar(lark.json_value(schema, "s")))
    again = m.SentError.of(caught.value).exception()  # as it comes from the engine's process
    error = refusal_of(again).document["error"]
    assert (error["param"], error["code"]) == (place, "invalid_schema")


@pytest.mark.parametrize("strict", [None, False, True])
def test_what_of_a_tools_schema_cannot_be_enforced_is_a_hint(strict: bool | None) -> None:
    each = {"type": "integer", "not": {"const": 3}}
    given = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "phone"}, "n": {"anyOf": [each, {}]}},
        "definitions": {"m": {"type": "array", "items": each, "uniqueItems": True}},
        "additionalProperties": {"$ref": "#/definitions/m"},
    }
    function = {"name": "a", "parameters": given, "strict": strict}
    body = {"messages": [{"role": "user", "content": "x"}]}
    body["tools"] = [{"type": "function", "function": function}]
    asked = parsed(json.dumps(body).encode(), ChatRequest)

    def box() -> RequestTools:
        return RequestTools.of(asked.core().tools, native=True, parallel=False)

    if strict:
        with pytest.raises(SchemaError, match="cannot be enforced"):
            require_grammar(box().grammar)
        return
    require_grammar(box().grammar)
    told = box().variables["tools"][0]["function"]
    assert told["parameters"] == given  # the model is told all of it
    assert "description" not in told


def test_schemas_that_take_for_ever_are_refused() -> None:
    defs: dict[str, Any] = {"a0": {"type": "integer"}}
    for i in range(1, 30):
        both = [{"$ref": f"#/$defs/a{i - 1}"}, {"$ref": f"#/$defs/a{i - 1}"}]
        defs[f"a{i}"] = {"anyOf": both}
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"items": deep}
    large = {"enum": ["x" * 100] * 1000}
    for schema in (deep, large):
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        body = {"messages": [{"role": "user", "content": "x"}], "response_format": form}
        asked = parsed(json.dumps(body).encode(), ChatRequest)
        with pytest.raises(Refusal):
            asked.core()
    begun = time.monotonic()
    with suppress(UsageError):
        guidance.check(lark.grammar(lark.json_value({"$defs": defs, "$ref": "#/$defs/a29"})))
    assert time.monotonic() - begun < 10


def test_tools_with_references_of_their_own_make_one_grammar(target_model: Model) -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        given = {
            "$defs": {"x": {"type": kind}},
            "type": "object",
            "properties": {"v": {"$ref": "#/$defs/x"}},
            "required": ["v"],
        }
        return {"type": "function", "function": {"name": name, "parameters": given}}

    tools = [tool("a", "boolean"), tool("b", "null")]
    messages = [{"role": "user", "content": "x"}]
    body = {"messages": messages, "tools": tools, "tool_choice": "required"}
    asked = parsed(json.dumps(body).encode(), ChatRequest)
    box = RequestTools.of(asked.core().tools, asked.core().choice, native=False, parallel=False)
    state: Any = GrammarReader(target_model).begin(box.grammar)
    text = f'{BEGIN}\n{{"name": "b", "arguments": {{"v": null}}}}\n{END}'
    tokens = target_model.tokenize(text, add_special=False, parse_special=False)
    for token in tokens:
        state = state.after(token)  # raises where it is not allowed
    wrong = target_model.tokenize('{"v": true', add_special=False, parse_special=False)
    state = GrammarReader(target_model).begin(box.grammar)
    with pytest.raises(EngineError):
        list(
            accumulate(
                [*tokens[: len(tokens) // 2], *wrong], lambda x, i: x.after(i), initial=state
            )
        )


def test_a_tool_that_may_not_be_called_is_bounded_too() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"type": "object", "properties": {"x": deep}}
    plain = {"type": "function", "function": {"name": "a", "parameters": {}}}
    other = {"type": "function", "function": {"name": "b", "parameters": deep}}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [plain, other],
        "tool_choice": {"type": "function", "function": {"name": "a"}},
    }
    core = parsed(json.dumps(body).encode(), ChatRequest).core()
    with pytest.raises(Refusal, match="nested deeper") as refused:
        RequestTools.of(core.tools, core.choice, native=True, parallel=False)
    assert refused.value.param == "tools[1].function.parameters"


def test_an_editor_may_bring_a_hundred_large_tools() -> None:
    given = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "x" * 1500}},
    }
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": given}} for i in range(100)
    ]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    asked = parsed(json.dumps(body).encode(), ChatRequest)
    box = RequestTools.of(asked.core().tools, native=True, parallel=True)
    assert all(f'"f{i}"' in box.grammar for i in range(100))
    begun = time.monotonic()
    require_grammar(box.grammar)
    assert time.monotonic() - begun < 5
    assert box.after == BEGIN


def test_templates_see_calls_and_results_or_read_them_as_text() -> None:
    calls = [("id", "f", '{"a": 1}')]
    native = RequestTools(native=True).called("", "hm", calls)
    assert native.more["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert native.more["reasoning_content"] == "hm"
    assert RequestTools(native=True).returned("7", "id", "f").more["role"] == "tool"
    plain = RequestTools().called("ok", None, calls)
    assert plain.content == f'ok\n{BEGIN}\n{{"name": "f", "arguments": {{"a": 1}}}}\n{END}'
    assert RequestTools().returned("7", "id", None) == Message(
        Role.USER, "<tool_response>\n7\n</tool_response>"
    )


def test_a_model_whose_dialect_is_not_known_calls_in_the_notation_that_is_explained() -> None:
    """It has no chat template, or one that could not be learnt in time."""
    request = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    asked = parsed(json.dumps(request).encode(), ChatRequest)
    wanted, answer = asked.core().prepared(ChatSettings(), Dialect())
    assert BEGIN in wanted.messages[0].content
    assert wanted.after == BEGIN
    end = TurnEnd("", FinishReason.STOP, GenerationStats())
    call = f'{BEGIN}\n{{"name": "f", "arguments": {{"a": 1}}}}\n{END}'
    choice = chat_document(answer, [PromptMade(3, 10), said(call), end])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (told,) = choice["message"]["tool_calls"]
    assert told["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_a_call_that_is_cut_off_is_none() -> None:
    """The call's marks are not shown as text either."""
    tool = {"type": "function", "function": {"name": "f"}}
    answer = IncomingAnswer(Dialect(marks=PLAIN), tools=[tool])
    end = TurnEnd("", FinishReason.LENGTH, GenerationStats())
    text = f'Well. {BEGIN}{{"name": "f", "arguments": {{"a": "b'
    choice = chat_document(answer, [PromptMade(3, 10), said(text), end])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "Well."
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_thought_that_stays_in_the_answer_has_both_marks(goes_on: bool) -> None:
    """Unless the client has begun the answer: then it has the first one."""
    tool = {"function": {"name": "f"}}
    answer = IncomingAnswer(Dialect(marks=PLAIN).raw(), tools=[tool], goes_on=goes_on)
    thought = f'hm {BEGIN}{{"name": "f", "arguments": {{}}}}{END}?</think>Yes'
    end = TurnEnd("", FinishReason.STOP, GenerationStats())
    events = [PromptMade(3, 10, "<think>"), *map(said, thought), end]
    message = chat_document(answer, events)["choices"][0]["message"]
    assert message["content"] == ("" if goes_on else "<think>") + thought
    assert "tool_calls" not in message


@given(st.data())
def test_calls_are_told_from_text_however_it_is_cut(data: st.DataObject) -> None:
    arguments = {"a": f'say {END} and }}]"\\{END}', "b": [[], {}]}
    call = f'{BEGIN}\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n{END}'
    text = f"I look < it up.\n{call}{call}"
    answer = IncomingAnswer(Dialect(marks=PLAIN), tools=[{"function": {"name": "f"}}])
    events: list[TurnEvent] = [PromptMade(3, 10)]
    while text:
        n = data.draw(st.integers(1, 12))
        events.append(said(text[:n]))
        text = text[n:]
    events.append(TurnEnd("", FinishReason.STOP, GenerationStats()))
    message = chat_document(answer, events)["choices"][0]["message"]
    assert message["content"] == "I look < it up."
    functions = [one["function"] for one in message["tool_calls"]]
    assert [one["name"] for one in functions] == ["f", "f"]
    assert [json.loads(one["arguments"]) for one in functions] == [arguments] * 2


def chat_document(answer: IncomingAnswer, events: list[TurnEvent]) -> dict[str, Any]:
    """The document of an answer whose events are read one by one."""
    writer = ChatWriter("x")
    writer.answer = answer
    for event in events:
        list(writer.written(answer.take([event])))
    return writer.document()


def said(text: str) -> RoundText:
    return RoundText((Span(text, Origin.TARGET),), rounds_of([0])[0])


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_json_lacks_is_null_in_a_calls_arguments(number: str) -> None:
    answer = IncomingAnswer(Dialect(marks=PLAIN), tools=[{"function": {"name": "f"}}])
    call = f'{BEGIN}\n{{"name": "f", "arguments": {{"a": [1.5, {number}]}}}}\n{END}'
    end = TurnEnd("", FinishReason.STOP, GenerationStats())
    document = chat_document(answer, [PromptMade(3, 10), said(call), end])
    (told,) = document["choices"][0]["message"]["tool_calls"]
    assert told["function"]["arguments"] == '{"a": [1.5, null]}'


MARK = "]<]minimax[>["
TWICE = {
    "tags": (
        CallShape("tags", ("<tool_call>", "<function="), ("</function>", "</tool_call>"),
                  name_end=">", key_open="<parameter=", value_open=">", value_close="</parameter>"),
        "<tool_call><function=f><parameter=k>1</parameter><parameter=k>2</parameter>"
        "</function></tool_call>",
    ),
    "gemma": (CallShape("gemma", ("<|tool_call>", "call:"), ("<tool_call|>",)),
              "<|tool_call>call:f{k:1,k:2}<tool_call|>"),
    "python": (CallShape("python", ("<|a|>",), ("<|b|>",)), "<|a|>[f(k=1, k=2)]<|b|>"),
    "raw python": (CallShape("python", ("<|a|>",), ("<|b|>",), raw=True),
                   "<|a|>[f(k=1, k=2)]<|b|>"),
    "nested": (
        CallShape("nested", (f"{MARK}<tool_call>", f'{MARK}<invoke name="'),
                  (f"{MARK}</invoke>", f"{MARK}</tool_call>"), name_end='">', key_open=f"{MARK}<"),
        f'{MARK}<tool_call>{MARK}<invoke name="f">{MARK}<k>1{MARK}</k>{MARK}<k>2{MARK}</k>'
        f"{MARK}</invoke>{MARK}</tool_call>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("notation", TWICE)
@pytest.mark.parametrize("step", [3, 500])
def test_an_argument_that_comes_twice_has_the_value_that_was_told(notation: str, step: int) -> None:
    shape, raw = TWICE[notation]
    choice = held_call(shape, raw, step)
    assert choice["finish_reason"] == "tool_calls"
    (told,) = choice["message"]["tool_calls"]
    assert json.loads(told["function"]["arguments"]) == {"k": 1}


def test_a_call_that_is_not_what_was_told_of_it_is_not_whole() -> None:
    raw = f'{BEGIN}\n{{"name": "f", "arguments": {{"a": NaN}}}}\n{END}'
    choice = held_call(PLAIN.calls[0], raw, 3)
    assert choice["finish_reason"] == "stop"
    (told,) = choice["message"]["tool_calls"]
    assert told["function"]["arguments"] == '{"a": NaN'


@pytest.mark.parametrize("step", [3, 500])
def test_a_number_that_is_too_large_is_told_as_the_grammar_let_it_be(step: int) -> None:
    raw = f'{BEGIN}\n{{"name": "f", "arguments": {{"a": 1e400, "b": 2}}}}\n{END}'
    choice = held_call(PLAIN.calls[0], raw, step)
    assert choice["finish_reason"] == "tool_calls"
    (told,) = choice["message"]["tool_calls"]
    assert told["function"]["arguments"] == '{"a": 1e400, "b": 2}'


def held_call(shape: CallShape, raw: str, step: int) -> dict[str, Any]:
    """The choice in the document of an answer, in pieces, whose calls a grammar holds."""
    dialect = Dialect(marks=AnswerMarks(calls=(shape,), explained=True))
    answer = IncomingAnswer(dialect, tools=[{"function": {"name": "f"}}], held=True)
    pieces = [said(raw[i : i + step]) for i in range(0, len(raw), step)]
    end = TurnEnd("", FinishReason.STOP, GenerationStats())
    choice: dict[str, Any] = chat_document(answer, [PromptMade(3, 10), *pieces, end])["choices"][0]
    return choice


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "[-1e999]"])
def test_what_is_no_number_in_json_stays_text_between_tags(text: str) -> None:
    assert values.typed(text, {"type": "number"}, {}) == text
    assert values.literal(text) is values.NOTHING


def test_the_places_of_tokens_go_on_from_chunk_to_chunk() -> None:
    answer = IncomingAnswer(None, scores=True)
    writer = TextWriter("x")
    writer.answer = answer
    offsets: list[int] = []
    for text in ("One", "ce", " up"):
        scored = TokensScored(((text.encode(), -1.0, ()), (b"!", -2.0, ())))
        for _, chunk in writer.written(answer.take([scored, said(f"{text}!")])):
            offsets += chunk["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 3, 4, 6, 7, 10]


def completion_scores(*tokens: bytes, best: tuple[tuple[bytes, float], ...]) -> dict[str, Any]:
    answer = IncomingAnswer(None, scores=True)
    writer = TextWriter("x")
    writer.answer = answer
    scored = TokensScored(tuple((token, -1.0, best) for token in tokens))
    list(writer.written(answer.take([scored, said("x")])))
    found = writer.document()["choices"][0]["logprobs"]
    assert isinstance(found, dict)
    return found


def test_parts_of_characters_are_told_apart_by_their_bytes() -> None:
    dog = "🐕".encode()
    scores = completion_scores(
        dog[:1], dog[1:], b"!", best=((dog[:1], -0.5), (dog[1:], -1.5), (b"\xff", -3.0))
    )
    assert scores["tokens"] == ["bytes:\\xf0", "bytes:\\x9f\\x90\\x95", "!"]
    assert scores["top_logprobs"][0] == {
        "bytes:\\xf0": -0.5,
        "bytes:\\x9f\\x90\\x95": -1.5,
        "bytes:\\xff": -3.0,
    }
    assert scores["text_offset"] == [0, 0, 1]


def test_of_tokens_that_are_spelt_alike_the_most_probable_is_told() -> None:
    scores = completion_scores(b"\n", best=((b"\n", -0.5), (b"a", -1.0), (b"\n", -3.0)))
    assert scores["top_logprobs"] == [{"\n": -0.5, "a": -1.0}]


def test_a_request_without_drafting_leaves_the_automatic_choice_alone() -> None:
    """As with gamma 0, whose rounds teach it nothing about drafts, and which is told as off."""
    for gamma in (None, 3, "auto"):
        body = {"prompt": "x", "draft": "none"} | ({} if gamma is None else {"gamma": gamma})
        asked = parsed(json.dumps(body).encode(), CompletionRequest)
        assert asked.core().prepared(ChatSettings(), Dialect())[0].settings.gamma == 0


@pytest.mark.parametrize("field", ["max_tokens", "seed", "top_k", "n", "repeat_last_n", "logprobs"])
def test_a_whole_number_may_be_written_with_a_point(field: str) -> None:
    body = {"prompt": [1.0, 2.0], "temperature": 1.0, field: 1.0}
    asked = parsed(json.dumps(body).encode(), CompletionRequest)
    assert type(getattr(asked, field)) is int
    assert asked.core().prepared(ChatSettings(), Dialect())[0].prompt == (1, 2)
    body[field] = 1.5
    with pytest.raises(Refusal) as refusal:
        parsed(json.dumps(body).encode(), CompletionRequest)
    assert refusal.value.document["error"]["param"] == field


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"a\ud83d b", "a\ufffd b"),
        (r"\uDE00\uD83D", "\ufffd\ufffd"),
        (r"\ud83d\uD83D\uDE00\n", "\ufffd\U0001f600\n"),
        (r"\\ud83d\\\ud83d", "\\ud83d\\\ufffd"),
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
    ],
)
def test_half_of_a_surrogate_pair_ends_no_session(written: str, read: str) -> None:
    said = b'{"messages":[{"role":"user","content":"%s"}]}' % written.encode()
    (message,) = parsed(said, ChatRequest).core().messages
    assert message.text == read
    call = b'{"type":"tool_use","id":"t","name":"say","input":{"a":"%s"}}' % written.encode()
    said = b'{"max_tokens":1,"messages":[{"role":"assistant","content":[%s]}]}' % call
    (message,) = parsed(said, MessagesRequest).core().messages
    assert message.calls[0].arguments == {"a": read}


def test_a_body_with_half_a_surrogate_pair_may_be_wrong_elsewhere() -> None:
    wrong = (
        r'{"prompt":"\ud83d"',
        r'{"prompt":"\ud8zz"}',
        r'{"prompt":"\ud83"}',
        r'{"prompt":"\Udead"}',
    )
    for body in wrong:
        with pytest.raises(Refusal, match="not JSON"):
            parsed(body.encode(), CompletionRequest)


def test_a_long_body_that_is_wrong_is_refused_fast() -> None:
    began = time.process_time()
    with pytest.raises(Refusal, match="not JSON"):
        parsed(b'{"prompt":"\\ud83d' + b"a" * (16 << 20), CompletionRequest)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("field", ["max_completion_tokens", "top_logprobs", "gamma"])
def test_a_chats_whole_number_too_and_what_templates_get_stays(field: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"budget": 2.0},
        field: 3.0,
    }
    asked = parsed(json.dumps(body).encode(), ChatRequest)
    assert getattr(asked, field) == 3
    assert asked.chat_template_kwargs == {"budget": 2.0}
    assert type(asked.chat_template_kwargs["budget"]) is float


def test_of_a_limits_names_llama_servers_goes_first() -> None:
    names = ("n_predict", "max_completion_tokens", "max_tokens")
    for first in range(3):
        given = {name: i for i, name in enumerate(names) if i >= first}
        for kind, text in ((ChatRequest, {"messages": [{"role": "user", "content": "hi"}]}),
                           (CompletionRequest, {"prompt": "hi"})):  # fmt: skip
            asked = parsed(json.dumps(text | given).encode(), kind)
            assert asked.limit == first


def test_a_whole_number_may_be_written_with_a_point_within_an_object_too() -> None:
    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4e1}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024.0}}
    asked = parsed(json.dumps(said | thinking).encode(), MessagesRequest).core()
    assert (asked.options.limit, asked.options.reasoning_budget) == (40, 1024)
    thinking["thinking"]["budget_tokens"] = 1024.5
    with pytest.raises(Refusal) as refusal:
        parsed(json.dumps(said | thinking).encode(), MessagesRequest)
    assert refusal.value.document["error"]["param"] == "thinking.budget_tokens"


@pytest.mark.parametrize("given", [{"enum": [1.0, 2.5, "a"]}, {"const": 1.0}])
def test_a_given_value_of_a_schema_is_written_as_the_whole_number_that_it_is(given: Any) -> None:
    schema = {"type": "object", "properties": {"a": given}, "required": ["a"]}
    tool = CallableTool("f", schema, "tools", strict=True)
    rules = PythonRules(tool, "t")
    written = lark.json_value(schema)
    in_python = str([rules.value(rules.tool.schema, "tools"), *rules.rules.values()])
    assert '"1"' in in_python
    assert "1.0" not in written + in_python
    guidance.check(lark.grammar(written))


def test_counts_in_a_tools_schema_may_be_written_with_a_point() -> None:
    """This includes notations other than JSON, whose grammar rules localspec writes itself."""

    def written(count: float) -> str:
        listed = {"type": "array", "items": {"type": "integer"}, "maxItems": count}
        schema = {"type": "object", "properties": {"a": listed}}
        rules = PythonRules(CallableTool("f", schema, "tools", strict=True), "t")
        return rules.value(rules.tool.schema, "tools")

    assert written(2.0) == written(2) != written(3)


@pytest.mark.parametrize("thinks", [True, False])
def test_thoughts_come_apart_from_the_answer(thinks: bool) -> None:
    answer = IncomingAnswer(Dialect())
    text = "hm, well</think>Yes" if thinks else "<think>hm, well</think>Yes"
    events: list[TurnEvent] = [PromptMade(3, 10, "<think>" if thinks else "")]
    events += [said(one) for one in text]
    end = TurnEnd(text, FinishReason.STOP, GenerationStats())
    message = chat_document(answer, [*events, end])["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes", "reasoning_content": "hm, well"}


# --- who may ask ------------------------------------------------------------------------------


def test_a_file_of_keys_may_be_written_by_any_editor(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("abcdefghijklmnopqrst\r\n  # not one at all, this\r\n", "utf-8-sig")
    assert _keys(path) == ["abcdefghijklmnopqrst"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schlüssel-0123456789", "no header can hold"),
        ("abcdefgh\tijklmnopqr", "no header can hold"),
        ("abcdefghijklmnopqrst\n" * 4000, "larger than 64 KB"),
    ],
)
def test_keys_that_no_client_can_send_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=said):
        _keys(path)


@pytest.mark.skipif(os.name == "nt", reason="PowerShell has other rules")
def test_a_key_is_made_by_a_line_that_shells_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/a tool/bin/python")
    path = tmp_path / "keys"
    path.write_text("short\n")
    with pytest.raises(UsageError, match="less than 16 characters") as refused:
        _keys(path)
    program = '"import secrets; print(secrets.token_urlsafe(32))"'
    assert refused.value.remedy == f"Make one: '/opt/a tool/bin/python' -c {program}"


def test_a_file_of_keys_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["serve", "--api-key-file", str(tmp_path / "keys.txt")])
    assert done.exit_code == 2
    assert "keys.txt" in done.stderr
    assert "does not exist" in done.stderr


def asking(**headers: str) -> Request:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "path": "/v1/models", "headers": given})


@pytest.mark.parametrize("name", ["foo.lan:8932", "FOO.lan."])
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("http://LocalHost:3000/", "http://localhost:3000"),
        ("https://foo.lan:443", "https://foo.lan"),
        ("*", "https://any.lan"),
        ("null", "null"),
        ("file://", "file://"),
    ],
)
def test_names_and_origins_are_allowed_however_they_are_written(
    name: str, given: str, sent: str
) -> None:
    rules = _rules("127.0.0.1", (), [name], [given])
    rules.check(asking(host="foo.lan:8080", origin=sent))
    with pytest.raises(Refusal):
        rules.check(asking(host="foo.lan.evil", origin=sent))


@pytest.mark.parametrize("host", [{}, {"host": ""}, {"host": "a/b"}])
def test_an_option_is_named_only_for_a_host_that_it_can_allow(host: dict[str, str]) -> None:
    for headers, named in ((host, False), ({"host": "foo.lan"}, True)):
        with pytest.raises(Refusal) as refusal:
            AccessRules().check(asking(**headers))
        assert refusal.value.status == 403
        assert ("--allow-host" in refusal.value.message) is named


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]"), ("10.0.0.2", "10.0.0.2")],
)
def test_the_address_that_is_printed_can_be_connected_to(
    host: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows connects to no unspecified address."""
    sock = Mock(getsockname=lambda: (host, 8080))
    _welcome(Mock(latest=None), sock, Mock())
    assert f"http://{shown}:8080/v1 " in capsys.readouterr().err


def test_localhost_is_the_address_that_clients_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems name ::1 first."""
    meant = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: meant)
    with listening("localhost", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "origin"),
    [("http://foo.lan", "*"), ("", "*"), ("foo.lan", "localhost:3000"), ("foo.lan", "http://a/b")],
)
def test_what_no_request_can_match_is_not_allowed(name: str, origin: str) -> None:
    with pytest.raises(UsageError, match="no request can match"):
        _rules("127.0.0.1", (), [name], [origin])


@pytest.mark.parametrize(
    ("authorization", "api_key", "status"),
    [("Bearer none", "one key", 0), ("one key", "none", 0), ("Bearer none", "none", 401)],
)
def test_either_header_may_have_the_key(authorization: str, api_key: str, status: int) -> None:
    given = {"host": "localhost", "authorization": authorization, "x-api-key": api_key}
    request = asking(**given)
    rules = AccessRules(keys=(digest("one key"), digest("an other")))
    with pytest.raises(Refusal) if status else nullcontext() as caught:
        rules.check(request)
    assert caught is None or caught.value.status == status


def test_all_keys_are_compared_whole() -> None:
    rules = AccessRules(keys=(digest("one key"), digest("an other")))
    assert len({len(key) for key in rules.keys}) == 1


async def test_the_rules_hold_at_every_address() -> None:
    rules = AccessRules((digest("k" * 16),))
    app = Endpoint(Mock(), rules, EndpointCounters()).app()
    addresses = [
        (method, route.path.replace("{name:path}", "toy"))
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
    ]
    assert len(addresses) > 25
    for method, path in [*addresses, ("GET", "/"), ("DELETE", "/v1/models"), ("POST", "/infill/")]:
        known = {"x_api_key": "k" * 16}
        for headers, status in (
            ({**known, "host": "evil.example"}, 403),
            ({**known, "origin": "http://evil.example"}, 403),
            ({**known, "sec_fetch_site": "cross-site"}, 403),
            ({**known, "content_length": str(1 << 30)}, 413),
            ({}, 401),
            ({"authorization": "Bearer " + "k" * 15}, 401),
        ):
            if status == 401 and path.endswith("/health"):
                continue
            start, *_ = [one async for one in sent(app, method, path, {}, **headers)]
            assert start["status"] == status, (method, path, headers)


async def test_a_client_that_comes_while_the_models_are_loaded_is_told_so_in_a_code() -> None:
    request_queue = RequestQueue(ScriptedEngine(), EndpointCounters(), most=4, limit_s=60)  # type: ignore[arg-type]
    app = Endpoint(request_queue, AccessRules(), EndpointCounters()).app()
    start, body, *_ = [one async for one in sent(app, "GET", "/v1/models", {})]
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["code"] == "unavailable"


@pytest.mark.parametrize("private", [False, True])
async def test_an_allowed_page_asks_before_it_sends_and_reads_the_headers(private: bool) -> None:
    """Chromium asks for machines of a private network with one header more."""
    engine: Any = ScriptedEngine()
    engine.latest = SimpleNamespace(pair_name="toy", target_name="t", draft_name="")
    rules = AccessRules(origins=("https://page.example",))
    request_queue = RequestQueue(engine, EndpointCounters(), most=4, limit_s=60)
    app = Endpoint(request_queue, rules, EndpointCounters()).app()
    origin = {"origin": "https://page.example"}
    asks = {"access_control_request_method": "POST"}
    if private:
        asks["access_control_request_private_network"] = "true"
    start, *_ = [one async for one in sent(app, "OPTIONS", "/v1/models", {}, **origin, **asks)]
    assert start["status"] == 200
    allows = (b"access-control-allow-private-network", b"true") in start["headers"]
    assert allows is private
    start, *_ = [one async for one in sent(app, "GET", "/v1/models", {}, **origin)]
    assert start["status"] == 200
    exposed = dict(start["headers"])[b"access-control-expose-headers"]
    assert exposed == b"x-localspec-model, Retry-After"
    evil = {"origin": "https://evil.example"}
    start, *_ = [one async for one in sent(app, "OPTIONS", "/v1/models", {}, **evil, **asks)]
    assert start["status"] == 400


SLOW = """
import sys
from localspec.serve import access, answering, http_server
access._BODY_S = http_server._HEADERS_S = answering._HEADERS_S = answering._ALIVE_S = 0.5
from localspec.cli import main
main()
"""


@pytest.mark.slow
def test_slow_headers_and_slow_bodies_are_given_up() -> None:
    with Serving(program=("-c", SLOW)) as one:
        for sent, status in (
            (b"", b""),
            (b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b""),
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
                b" 408 ",
            ),
        ):
            with socket.create_connection(("127.0.0.1", one.port), timeout=10) as sock:
                sock.sendall(sent)
                begun = time.monotonic()
                data = b""
                while part := sock.recv(65536):
                    data += part
                assert status in data[:20]
                assert time.monotonic() - begun < 5
        assert one.ask("/health")[0] == 200


@pytest.mark.slow
@pytest.mark.timed
def test_a_stream_that_waits_is_kept_alive() -> None:
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "gamma": 0}
    slow = streaming({**body, "max_tokens": 900, "logit_bias": {"2": -100}})
    with Serving(program=("-c", SLOW)) as one, ExitStack() as open_:
        # Several ahead: one may be written in less than the time between two pings.
        socks = [
            open_.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=20))
            for _ in range(5)
        ]
        for ahead in socks[:-1]:
            ahead.sendall(slow)
        assert socks[0].recv(1)  # it is being answered
        socks[-1].sendall(slow)
        data = b""
        while b'"content":""' not in data.partition(b'"role"')[2].partition(b"\n\n")[2]:
            part = socks[-1].recv(65536)
            assert part, data
            data += part
        assert data.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in data


def test_models_that_cannot_be_loaded_end_it_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "serve", str(tmp_path / "none.gguf"), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "none.gguf is cut off" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(cli, ["serve", "toy"])
    assert installs_extra("serve") in getattr(done.exception, "remedy", "")


def test_the_endpoints_process_imports_neither_llama_cpp_nor_numpy() -> None:
    program = (
        "import sys, localspec.serve.http_server, localspec.cli.answers.serve\n"
        "import localspec.process.engine_client\n"
        "heavy = ('llama_cpp', 'llguidance', 'numpy', 'ctypes', 'jinja2', 'textual')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


async def test_an_end_that_is_asked_for_while_it_loads_holds_once_it_has_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: Any = ScriptedEngine()
    engine.info, engine.shut_down, engine.join = None, Mock(), Mock()
    servers: list[EndpointServer] = []

    def captured(server: EndpointServer) -> AbstractContextManager[None]:
        servers.append(server)
        return nullcontext()

    monkeypatch.setattr(EndpointServer, "capture_signals", captured)
    more: dict[str, Any] = {"queue": 1, "seconds": 60, "idle": 0, "strict": False, "others": tuple}
    sock = listening("127.0.0.1", 0)
    serving = asyncio.create_task(
        serve(engine, sock, AccessRules(), on_ready=Mock(), show=Mock(), **more)
    )
    async with asyncio.timeout(10):
        while not (servers and servers[0].started):
            await asyncio.sleep(0.01)
        servers[0].handle_exit(signal.SIGINT, None)
        await engine.says(LOADED)
        await serving
    assert engine.join.called


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_end_that_is_asked_for_comes_soon_also_during_a_stream() -> None:
    with Serving("-c", str(ROOMY)) as one:  # so that the answer does not end before
        engine = one.engine()
        with socket.create_connection(("127.0.0.1", one.port)) as sock:
            messages = [{"role": "user", "content": "Tell me a story."}]
            sock.sendall(streaming({"messages": messages, "logit_bias": {"2": -100}}))
            sock.recv(1000)
            one.process.send_signal(signal.SIGINT)
            data = b"".join(iter(lambda: sock.recv(65536), b""))
            assert b'"code":"unavailable"' in data
            assert b'"finish_reason":"length"' not in data
            assert one.process.wait(10) == 130
        engine.wait(10)
        assert b"Traceback" not in one.log()


def test_timings_of_a_single_token_are_numbers_that_agree() -> None:
    stats = GenerationStats()
    stats.add_prefill(Prefill(10, 0, 9, 0.5))
    stats.add(Round((1,), 0, 0, 0, 0.0, 0.1, 0.1))
    told = timings(stats)
    assert told["cache_n"] + told["prompt_n"] == 10
    assert told["prompt_per_second"] == pytest.approx(20)
    assert told["predicted_per_second"] == pytest.approx(1e3 / told["predicted_ms"])
    assert None not in timings(GenerationStats()).values()


HALF_A_LETTER = '{"a": "\\ud83d"}'
EARLIER = ("", '{"a": "cut of', None, {"a": 1}, "null", "[1]", '{"a": 1}', HALF_A_LETTER)


@pytest.mark.parametrize("given", EARLIER)
def test_earlier_arguments_are_made_an_object(given: Any) -> None:
    """Arguments that localspec wrote or a client left out must not make later requests fail."""
    call = {"function": {"name": "f", "arguments": given}}
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "7", "tool_call_id": "unknown"},
        ]
    }
    asked = parsed(json.dumps(body).encode(), ChatRequest)
    wanted = asked.core().asked(ChatSettings(), RequestTools(native=True))
    require_sendable(wanted)
    said = wanted.messages
    (told,) = said[1].more["tool_calls"]
    assert isinstance(told["function"]["arguments"], dict)
    assert said[2].more["tool_call_id"] == told["id"]
    assert said[2].more["name"] == "f"
    assert len(told["id"]) == 9


def test_the_line_counts_answers_and_the_metric_counts_replies() -> None:
    counters = EndpointCounters()
    counters.answered(GenerationStats())
    for status in (200, 200, 403):
        counters.replied(status)
    assert counters.line().startswith("1 answered")
    assert 'requests_total{status="200"} 2' in counters.prometheus()


def test_a_protocols_effort_says_whether_and_how_much_to_think() -> None:
    assert {thoughts_of(word) for word in (None, "")} == {(None, "")}
    assert {thoughts_of(word) for word in ("none", "None", "off")} == {("off", "")}
    assert thoughts_of("High") == ("on", "high")
