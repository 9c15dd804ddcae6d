"""The engine in its own process: what it sends, what it survives, and how it ends."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from localspec.chat.advice import SamplingAdvice
from localspec.chat.conversation import Message, Role
from localspec.chat.events import Origin, PromptProgress, RoundText, Span, TurnEnd
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import FinishReason, GenerationStats
from localspec.engine.round.params import Accept, SamplingParams
from localspec.errors import Cancelled, EngineDied, EngineError, OutOfMemory, UsageError
from localspec.loading.load_request import LoadRequest
from localspec.process import messages as m
from localspec.process.channel import Channel
from localspec.process.engine_client import EngineClient
from localspec.process.loader import Loader
from localspec.process.server import EngineServer
from localspec.process.transport import EngineProcess
from localspec.ui.chat_app import ChatApp
from localspec.ui.commands import parameters
from localspec.ui.conversation.engine_phase import EnginePhase
from tests.fakes import rounds_of
from tests.support import ENDLESS, ROOMY
from tests.support.chat_pilot import Chat
from tests.support.scripted_session import Gate, ScriptedSession
from tests.support.toy import TARGET

TOY = LoadRequest(pair="toy", threads=1, ctx_size=512, gamma=3, n_predict=24, temp=0.0)
QUESTION = "Tell me a story about a dog."

signals = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Heard:
    """An engine in its own process, and the events it sends.

    Attributes:
        children: its processes, the newest last.
    """

    def __init__(self, request: LoadRequest = TOY) -> None:
        self.children: list[EngineProcess] = []
        self.engine = EngineClient(request, self._start)
        self._said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
        self.engine.listen(self._said.put)

    def _start(self) -> EngineProcess:
        self.children.append(EngineProcess())
        return self.children[-1]

    def until(self, kind: type) -> Any:
        """The next event of `kind`."""
        heard: list[str] = []
        while True:
            try:
                envelope = self._said.get(timeout=60)
            except queue.Empty:
                engine = psutil.Process(self.children[-1].pid)
                pytest.fail(f"no {kind.__name__}, but {heard[-9:]}; the process is {engine}")
            heard.append(type(envelope.body).__name__)
            self.engine.settle(envelope)
            if isinstance(envelope.body, kind):
                return envelope.body

    def ask(self, text: str) -> None:
        self.engine.reserve()
        self.engine.ask(text)


@contextmanager
def heard(**changes: Any) -> Iterator[Heard]:
    found = Heard(replace(TOY, **changes))
    yield found
    found.engine.shut_down()
    assert found.engine.join(20)


@pytest.fixture
def toy() -> Iterator[Heard]:
    with heard() as found:
        yield found


# --- what is said ---------------------------------------------------------------------------


def through(body: Any, kind: Any) -> Any:
    """The body of an envelope as it is after encoding and decoding; `kind` is its type."""
    envelope = m.Envelope(3, body)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(envelope), type=m.Envelope[kind]).body


def test_everything_that_is_said_arrives_as_it_was() -> None:
    (done,) = rounds_of([2])
    span = Span("a\0\x1b é", Origin.DRAFT)
    said = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "", FinishReason.STOP, (span,)))
    sampling = SamplingParams(seed=7, logit_bias={3: float("-inf"), 5: 1.5})
    settings = ChatSettings("Be brief.", sampling, accept=Accept.BLOCK, gamma=2, stop=("x",))
    requests = [
        m.Load(LoadRequest(pair="a", gamma=3, device=("x",), logit_bias=((1, -2.0),))),
        m.Load(TOY, m.CarriedConversation(said, settings, speculation=False)),
        m.Ask("text", said),
        m.Ask("text"),
        *(m.Regenerate(), m.Compact()),
        m.OpenConversation(said, settings),
        m.CompareAnswers("text", ()),
        m.Configure(ChatSettings()),
        m.Configure(speculation=True),
        m.Stop(4),
    ]
    assert [through(one, m.Request) for one in requests] == requests
    stats = GenerationStats()
    stats.add(done)
    session = ScriptedSession()
    events = [
        m.Loading("step", None),
        m.LoadFailed(m.SentError("UsageError", "no", "Do."), None, m.SentError("OutOfMemory", "x")),
        m.TurnReported(PromptProgress(1, 2, 3.5)),
        m.TurnReported(RoundText((span,), done), speculation=True),
        m.TurnReported(TurnEnd("text", FinishReason.LENGTH, stats)),
        m.TurnOver(None, said),
        m.ChangeDone(None),
        m.EngineStatus(session.figures(), session.memory()),
    ]
    assert [through(one, m.Event) for one in events] == events


@pytest.mark.parametrize("error", [OutOfMemory("too much", "Less."), ValueError("what?")])
def test_errors_arrive_as_what_they_were(error: Exception) -> None:
    again = m.SentError.of(error).exception()
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "remedy", "") == getattr(error, "remedy", "")


def test_an_error_that_is_made_of_more_than_a_message_is_named() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "\udce9".encode()
    again = m.SentError.of(caught.value).exception()
    assert str(again) == f"UnicodeEncodeError: {caught.value}"
    assert "Traceback" in again.__notes__[0]


def test_an_error_that_nobody_knows_is_named() -> None:
    class StrangeError(Exception):
        pass

    assert str(m.SentError.of(StrangeError("hm")).exception()) == "StrangeError: hm"


class Pipe:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        source, sink = os.pipe()
        self.source, self.sink = os.fdopen(source, "rb", buffering=0), os.fdopen(sink, "wb")

    def close(self) -> None:
        self.source.close()
        self.sink.close()


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    both = Pipe(), Pipe()
    yield both
    for one in both:
        one.close()


def test_envelopes_arrive_whole_however_they_are_cut(pipes: tuple[Pipe, Pipe]) -> None:
    there, back = pipes
    near = Channel(back.source, there.sink, m.Envelope[m.Event])
    envelopes = Channel(there.source, back.sink, m.Envelope[m.Request]).envelopes()
    texts = ["a" * 200_000, "b", "", "c" * 70_000]  # a pipe holds less

    def send() -> None:
        for text in texts:
            near.send(m.Envelope(1, m.Ask(text)))
        near.close()

    thread = threading.Thread(target=send)
    thread.start()
    assert [envelope.body.text for found in envelopes for envelope in found] == texts
    thread.join()


@pytest.mark.parametrize(
    ("messages", "said", "remedy"),
    [
        ([m.Envelope(0, m.Hello(protocol=99))], "version 99", "it was updated"),
        ([(0, 0, m.Hello(protocol=9))], "is not a message", "it was updated"),
        ([m.Envelope(0, m.Hello()), "nonsense"], "is not a message", ""),
    ],
)
def test_another_version_and_nonsense_are_refused(
    pipes: tuple[Pipe, Pipe], messages: list[object], said: str, remedy: str
) -> None:
    """The first message of another version may have another shape, as that of version 9 has."""
    there, back = pipes
    for data in map(msgspec.msgpack.encode, messages):
        there.sink.write(len(data).to_bytes(4, "little") + data)
    there.sink.flush()
    with pytest.raises(EngineError, match=said) as refused:
        next(Channel(there.source, back.sink, m.Envelope[m.Event]).envelopes())
    assert remedy in refused.value.remedy
    assert bool(remedy) == bool(refused.value.remedy)


# --- the server, over scripted sessions -----------------------------------------------------


class Served:
    """A server in this process, and what it says."""

    def __init__(self, load: Callable[..., Any]) -> None:
        self.said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
        self.server = EngineServer(lambda: Loader(load, check=print, perform=print))
        self.server.listen(self.said.put)

    def ask(self, number: int, body: m.Request) -> None:
        self.server.send(m.Envelope(number, body))

    def until(self, kind: type, number: int) -> Any:
        while True:
            envelope = self.said.get(timeout=20)
            if isinstance(envelope.body, kind):
                assert envelope.request == number
                return envelope.body

    def end(self) -> None:
        self.server.shut_down()
        assert self.server.join(10)


def test_a_stop_that_overtakes_its_request_counts_and_one_that_is_late_does_not() -> None:
    session = ScriptedSession(answers=["one two three"])
    served = Served(lambda *_: session)
    served.ask(1, m.Load(TOY))
    served.until(m.Loaded, 1)
    served.ask(9, m.Stop(2))
    served.ask(2, m.Ask("first"))
    assert served.until(m.TurnOver, 2).said[-1].finish is FinishReason.CANCELLED
    served.ask(10, m.Stop(2))
    served.ask(11, m.Ask("second"))
    assert served.until(m.TurnOver, 11).said[-1].content == "one two three"
    served.end()
    assert session.closed


def test_a_reserved_turn_is_stopped_although_a_later_request_is_over() -> None:
    session = ScriptedSession()
    served = Served(lambda *_: session)
    served.ask(1, m.Load(TOY))
    served.ask(4, m.OfferTools(()))
    served.until(m.ToolsOffered, 4)
    served.ask(5, m.Stop(2))
    served.ask(2, m.Ask("stopped before it began"))
    assert served.until(m.TurnOver, 2).said[-1].finish is FinishReason.CANCELLED
    session.gate.close()
    served.ask(3, m.Ask("stopped in its middle"))
    served.until(m.TurnReported, 3)
    served.ask(6, m.Stop(3))
    session.gate.open()
    assert served.until(m.TurnOver, 3).said[-1].finish is FinishReason.CANCELLED
    served.end()


def test_what_is_kept_is_in_force_in_what_is_loaded() -> None:
    served = Served(lambda *_: ScriptedSession())
    said = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "ho"))
    kept = m.CarriedConversation(said, ChatSettings(system_prompt="Be brief."), speculation=False)
    served.ask(1, m.Load(TOY, kept))
    info = served.until(m.Loaded, 1).info
    assert info.settings.system_prompt == "Be brief."
    assert not info.speculation
    served.ask(2, m.Regenerate())
    assert [one.role for one in served.until(m.TurnOver, 2).said] == [Role.USER, Role.ASSISTANT]
    served.end()


def test_another_pair_brings_its_advice_and_what_was_set_stays() -> None:
    sessions = [
        ScriptedSession(advice=SamplingAdvice("One", {"temperature": 0.6, "top_k": 20})),
        ScriptedSession(advice=SamplingAdvice("Other", {"temperature": 0.2})),
    ]
    served = Served(lambda *_: sessions.pop(0))
    served.ask(1, m.Load(TOY))
    one = served.until(m.Loaded, 1).info
    assert one.advice.file == {"temperature": 0.6, "top_k": 20}
    settings = one.advice.settled(one.settings)
    mine = parameters.changed(settings, "min-p", "0.3", one.advice)
    served.ask(2, m.Load(TOY, m.CarriedConversation((), mine, speculation=True)))
    other = served.until(m.Loaded, 2).info.settings
    assert other.sampling == SamplingParams(temperature=0.2, min_p=0.3)
    served.end()


BIASED = ChatSettings("Be brief.", SamplingParams(logit_bias={5: -1.0}))


def test_another_pair_gets_no_logit_bias_and_the_first_one_has_it_again() -> None:
    sent: list[m.Envelope[Any]] = []
    transport: Any = SimpleNamespace(send=sent.append)
    first = replace(TOY, logit_bias=((5, -1.0),))
    client = EngineClient(first, lambda: transport)
    assert client.has_bias
    session = ScriptedSession(settings=BIASED)
    info = msgspec.convert(session, m.SessionInfo, from_attributes=True)
    client.settle(m.Envelope(1, m.Loaded(info)))
    client.reload(())
    assert sent[-1].body.request.logit_bias == first.logit_bias
    assert sent[-1].body.kept.settings == BIASED
    client.load("b", ())
    load = sent[-1].body
    assert (load.request.pair, load.request.logit_bias) == ("b", ())
    assert load.kept.settings == ChatSettings("Be brief.")
    client.load_first()
    assert sent[-1].body == m.Load(replace(first, pair="scripted"))


def test_a_pair_that_comes_back_has_its_logit_bias() -> None:
    loads: list[Any] = [ScriptedSession(settings=BIASED), OutOfMemory("no"), ScriptedSession()]

    def load(*_: object) -> ScriptedSession:
        found = loads.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    served = Served(load)
    served.ask(1, m.Load(TOY))
    served.until(m.Loaded, 1)
    served.ask(2, m.Load(TOY, m.CarriedConversation((), ChatSettings(), speculation=True)))
    assert served.until(m.LoadFailed, 2).info.settings == BIASED
    served.end()


def test_a_loaded_pair_that_cannot_be_described_is_freed_and_the_one_before_is_back() -> None:
    unclear = ScriptedSession(dialect=None)
    sessions = [ScriptedSession(pair_name="one"), unclear, ScriptedSession(pair_name="one")]
    served = Served(lambda *_: sessions.pop(0))
    served.ask(1, m.Load(TOY))
    served.until(m.Loaded, 1)
    served.ask(2, m.Load(TOY))
    failed = served.until(m.LoadFailed, 2)
    assert failed.error.kind == "ValidationError"
    assert failed.info.pair_name == "one"
    assert unclear.closed
    served.end()


def test_without_a_session_every_request_is_refused_in_words() -> None:
    def load(*_: object) -> Any:
        raise UsageError("no such pair")

    served = Served(load)
    served.ask(1, m.Load(TOY))
    assert served.until(m.LoadFailed, 1).error == m.SentError("UsageError", "no such pair")
    served.ask(2, m.Ask("hello"))
    assert served.until(m.TurnOver, 2).error.message == "no model is loaded"
    served.ask(3, m.OpenConversation(()))
    assert served.until(m.ChangeDone, 3).error.message == "no model is loaded"
    served.end()


def test_figures_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.process.server._FIGURES_S", 0.01)
    session = ScriptedSession(gate=Gate(is_open=False))
    served = Served(lambda *_: session)
    served.ask(1, m.Load(TOY))
    served.until(m.Loaded, 1)
    served.ask(2, m.Ask("hello"))
    for _ in range(3):
        assert served.until(m.EngineStatus, 2).memory.process > 0
    session.gate.open()
    served.until(m.TurnOver, 2)
    served.end()


def test_a_session_rests_while_nobody_asks_and_a_request_ends_that_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.process.server._IDLE_S", 0.05)
    rested: list[bool] = []
    begun = threading.Event()

    def rest(cancel: Cancel) -> None:
        begun.set()
        while not cancel.is_set():
            time.sleep(0.001)
        rested.append(True)
        raise Cancelled

    session = ScriptedSession(answers=["one two"] * 2)
    monkeypatch.setattr(session, "rest", rest)
    served = Served(lambda *_: session)
    served.ask(1, m.Load(TOY))
    for number in (2, 3):
        assert begun.wait(10)
        begun.clear()
        served.ask(number, m.Ask("hello"))
        assert served.until(m.TurnOver, number).said[-1].content == "one two"
    assert begun.wait(10)
    served.end()
    assert rested == [True] * 3


# --- a real process -------------------------------------------------------------------------


def test_it_answers_with_figures_and_ends_when_it_is_asked_to(toy: Heard) -> None:
    info = toy.until(m.Loaded).info
    assert (info.pair_name, Path(info.target_file)) == ("toy", TARGET)
    toy.ask("Tell me a story.")
    pieces = []
    while isinstance(turn := toy.until(m.TurnReported), m.TurnReported) and not isinstance(
        turn.event, TurnEnd
    ):
        pieces += [turn.event.text] if isinstance(turn.event, RoundText) else []
    assert "".join(pieces) == turn.event.text
    memory = toy.until(m.EngineStatus).memory
    assert memory.peak_process > psutil.Process().memory_info().rss  # ours is counted too
    asked, answer = toy.until(m.TurnOver).said
    assert (asked.content, answer.content) == ("Tell me a story.", turn.event.text)


@pytest.mark.slow
def test_a_running_answer_is_stopped_and_settings_change_in_its_middle() -> None:
    with heard(ctx_size=ROOMY, grammar=ENDLESS) as toy:
        toy.until(m.Loaded)
        assert toy.engine.info is not None
        toy.engine.configure(replace(toy.engine.info.settings, n_predict=ROOMY))
        toy.ask("Tell me a long story.")
        while not isinstance(toy.until(m.TurnReported).event, RoundText):
            pass
        toy.engine.speculate(False)
        assert toy.engine.info.speculation is False
        assert toy.until(m.SettingsChanged).info.settings.n_predict == ROOMY
        toy.engine.stop()
        assert toy.until(m.TurnOver).said[-1].finish is FinishReason.CANCELLED


@pytest.mark.slow
@signals
def test_it_does_not_hear_ctrl_c_and_says_how_it_died(toy: Heard) -> None:
    os.kill(toy.children[0].pid, signal.SIGINT)  # while Python starts there
    toy.until(m.Loaded)
    os.kill(toy.children[0].pid, signal.SIGINT)
    toy.ask("Tell me a story.")
    toy.until(m.TurnOver)
    os.kill(toy.children[0].pid, signal.SIGABRT)
    error = toy.until(m.Died).error.exception()
    assert isinstance(error, EngineDied)
    assert error.message == "the process that runs the models crashed (SIGABRT)"
    assert "reserve" in error.remedy  # of llama.cpp's log
    assert error.remedy.count(" · ") == 2
    assert not toy.engine.alive
    toy.engine.reload([])
    toy.until(m.Loaded)
    assert toy.engine.alive


def died(program: str) -> m.SentError:
    """What is said of an engine whose process runs `program`, and ends."""
    said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
    child = EngineProcess(("-c", program))
    child.send(m.Envelope(1, m.Load(TOY)))
    child.listen(said.put)
    end = said.get(timeout=20).body
    assert isinstance(end, m.Died)
    assert child.join(10)
    return end.error


def test_the_end_of_a_process_that_never_began_is_said_too() -> None:
    error = died("import sys; sys.exit('no room on this machine')")
    assert error.message.endswith("ended by itself (exit code 1)")
    assert "no room on this machine" in error.remedy


@pytest.mark.parametrize(
    ("path", "way"), [("", "Install localspec again"), ("packages", "Unset PYTHONPATH")]
)
def test_a_package_that_the_process_cannot_load_is_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, path: str, way: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    error = died(
        "try: import one_not_there\nexcept ImportError as e: raise ImportError('\\n') from e"
    )
    assert error.message.endswith("cannot be loaded: No module named 'one_not_there'")
    assert error.remedy.startswith(way)


def test_a_package_that_was_not_needed_is_not_called_the_cause() -> None:
    error = died("import os; os.write(2, b'ImportError: late\\n'); os._exit(3)")
    assert error.message.endswith("ended by itself (exit code 3)")


def test_a_crash_on_windows_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    child = EngineProcess(("-c", ""))
    assert child._process.wait() == 0
    monkeypatch.setattr(child._process, "wait", lambda *_: 0xC0000005)
    assert child._reason().message.endswith("crashed (0xC0000005)")
    child.shut_down()
    assert child.join(1)


def test_a_fault_in_the_engines_thread_ends_the_process_with_a_reason() -> None:
    error = died(
        "from localspec.process import __main__, server\n"
        "server.EngineServer._load = lambda *_: 1 / 0\n"
        "__main__.main()"
    )
    assert error.message.endswith("ended by itself (exit code 1)")
    assert "ZeroDivisionError" in error.remedy


def test_a_process_that_does_not_end_is_killed() -> None:
    child = EngineProcess(("-c", "import time; time.sleep(600)"))
    child.shut_down()
    assert child.join(0.1)
    assert not psutil.pid_exists(child.pid)


def test_no_process_outlives_the_one_that_started_it() -> None:
    program = (
        "import os, time\n"
        "from localspec.loading.load_request import LoadRequest\n"
        "from localspec.process.engine_client import EngineClient\n"
        "from localspec.process.messages import Loaded\n"
        "engine = EngineClient(LoadRequest(pair='toy', threads=1, ctx_size=512))\n"
        "engine.listen(lambda envelope: print(engine._transport.pid, flush=True)"
        " if isinstance(envelope.body, Loaded) else None)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    end = time.monotonic() + 20
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@signals
def test_a_stopped_process_holds_nobody_up_and_gets_everything_in_order(toy: Heard) -> None:
    toy.until(m.Loaded)
    long = (Message(Role.USER, "a" * 1_000_000), Message(Role.ASSISTANT, "b"))
    settings = ChatSettings(n_predict=4)

    def send() -> None:
        toy.engine.change(m.OpenConversation(long, settings))
        settings.n_predict = 400  # too late: what is sent is what it was
        toy.engine.change(m.OpenConversation(()))
        toy.ask("Hello!")

    thread = threading.Thread(target=send, daemon=True)
    os.kill(toy.children[0].pid, signal.SIGSTOP)
    try:
        thread.start()
        thread.join(2)
        assert not thread.is_alive()
    finally:
        os.kill(toy.children[0].pid, signal.SIGCONT)
    assert toy.until(m.ChangeDone).error is None
    assert toy.until(m.ChangeDone).error is None
    asked, _ = toy.until(m.TurnOver).said
    assert asked.content == "Hello!"
    assert toy.engine.info is not None
    assert toy.engine.info.settings.n_predict == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's memory killer")
def test_the_memory_killer_takes_the_engine_before_the_screen(toy: Heard) -> None:
    toy.until(m.Loaded)
    ours, its = (
        int(Path(f"/proc/{one}/oom_score_adj").read_text()) for one in ("self", toy.children[0].pid)
    )
    assert its == min(1000, ours + 300)


# --- on the screen --------------------------------------------------------------------------


class Spoken(Heard):
    """The same, for an app to listen to."""

    def __init__(self, request: LoadRequest) -> None:
        self.children = []
        self.engine = EngineClient(request, self._start)


@asynccontextmanager
async def chatting(**changes: Any) -> AsyncIterator[tuple[Chat, Callable[[], None]]]:
    """A chat with a real engine, and what kills that."""
    spoken = Spoken(replace(TOY, **changes))
    app = ChatApp(spoken.engine)
    async with app.run_test(size=(100, 40)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        yield chat, lambda: os.kill(spoken.children[-1].pid, signal.SIGKILL)
    spoken.engine.shut_down()
    assert await asyncio.to_thread(spoken.engine.join, 20)


def answers(chat: Chat) -> list[str]:
    messages = chat.app.library.record.messages()
    return [one.content for one in messages if one.role is Role.ASSISTANT]


@signals
@pytest.mark.parametrize("key", ["enter", pytest.param("f5", marks=pytest.mark.slow)])
async def test_a_killed_engine_costs_no_conversation_and_comes_back(key: str) -> None:
    # So long an answer that it goes on, however late the screen is with its first words.
    async with chatting(ctx_size=ROOMY, n_predict=60, grammar=ENDLESS) as (chat, kill):
        await chat.send("/system Be brief.")
        await chat.send("Hello!")
        await chat.until(lambda: len(answers(chat)) == 1 and chat.ready())
        await chat.send(f"/set n-predict {ROOMY}")
        await chat.send(QUESTION)
        await chat.until(lambda: chat.app.turns.stream.heard, "some text")
        kill()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD, "the death")
        assert "was killed, perhaps because memory ran out" in " ".join(chat.transcript().split())
        assert "Enter loads them again" in chat.status()
        assert answers(chat)[1]
        await chat.until(lambda: "broken off" in chat.transcript(), "the answer's end")
        await chat.press("f2", "f8")
        assert "Enter loads them again" in chat.status()
        await chat.press(key)
        if key == "f5":  # which answers again, and at as much length
            await chat.until(lambda: chat.app.turns.busy and chat.app.turns.stream.heard, "text")
            await chat.press("escape")
        await chat.until(chat.ready, "the models again")
        await chat.send("/set n-predict 40")
        assert f"▌ {QUESTION}" in chat.transcript()
        assert chat.app.session is not None
        assert chat.app.session.settings.system_prompt == "Be brief."
        await chat.send("And then?")
        await chat.until(lambda: len(answers(chat)) == 3 and answers(chat)[2] and chat.ready())
        if key == "f5":
            assert "‹ 2/2 ›" in chat.transcript()


@pytest.mark.slow
@signals
async def test_a_question_that_got_no_answer_is_asked_again() -> None:
    async with chatting() as (chat, kill):
        kill()
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.DEAD)
        chat.app.prompt.insert(QUESTION)
        await chat.press("enter")
        await chat.until(lambda: answers(chat) and answers(chat)[0] and chat.ready())
        assert chat.app.prompt.text == ""
        assert f"▌ {QUESTION}" in chat.transcript()


@pytest.mark.slow
@signals
async def test_a_death_while_two_answers_are_compared_closes_the_comparison() -> None:
    async with chatting(ctx_size=ROOMY, n_predict=ROOMY, grammar=ENDLESS) as (chat, kill):
        chat.app.prompt.insert(QUESTION)
        await chat.press("ctrl+b")
        await chat.until(lambda: len(chat.app.screen_stack) == 2)
        kill()
        await chat.until(lambda: "was killed" in chat.transcript())
        assert len(chat.app.screen_stack) == 1
        await chat.press("enter")
        await chat.until(lambda: chat.app.turns.busy and chat.app.turns.stream.heard, "text")
        await chat.press("escape")
        await chat.until(lambda: answers(chat) and chat.ready())


@pytest.mark.slow
@signals
async def test_a_death_while_models_are_loaded_leaves_the_choice_to_the_user(
    tmp_path: Path,
) -> None:
    spoken = Spoken(TOY)
    app = ChatApp(spoken.engine)
    os.kill(spoken.children[0].pid, signal.SIGSTOP)  # a busy screen would stand too late
    async with app.run_test(size=(100, 40)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        os.kill(spoken.children[0].pid, signal.SIGKILL)
        await chat.until(lambda: app.turns.phase is EnginePhase.DEAD)
        await asyncio.sleep(0.1)
        assert len(spoken.children) == 1  # nothing is tried again by itself
        assert isinstance(app.pair_loader.load_error, EngineDied)
        await chat.send("/pairs toy")
        await chat.until(chat.ready)
        assert app.pair_loader.load_error is None
    spoken.engine.shut_down()
    assert await asyncio.to_thread(spoken.engine.join, 20)


@pytest.mark.slow
@signals
async def test_a_stopped_engine_keeps_nobody_from_leaving() -> None:
    spoken = Spoken(TOY)
    app = ChatApp(spoken.engine)
    async with app.run_test(size=(100, 40)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(chat.ready, "loading")
        os.kill(spoken.children[0].pid, signal.SIGSTOP)
        chat.app.engine.change(m.OpenConversation((Message(Role.USER, "a" * 1_000_000),)))
        await chat.press("ctrl+q")
        await chat.until(lambda: not app.is_running, "the end")
    spoken.engine.shut_down()
    assert await asyncio.to_thread(spoken.engine.join, 0.2)
    assert not psutil.pid_exists(spoken.children[0].pid)
