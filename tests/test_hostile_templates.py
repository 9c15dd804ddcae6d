"""Templates that never end, never stop growing, or lie: ended in time, replaced, and told."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.chat.conversation import Message, Role
from localspec.chat.events import Noticed, TurnEnd
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRenderer,
    TemplateSource,
    TemplateStarved,
    _RenderingProcess,
)
from localspec.chat.prompt.template import PLAIN_STOPS, ChatTemplate
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import FinishReason
from localspec.errors import Cancelled, LocalspecError
from tests.fakes import CHATML, FakeModel, ended, fake_session, impatient, renderer, rounds_of
from tests.support.gguf_models import Sizes, other_vocabulary, write_llama
from tests.support.processor import worked

TALK = [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "hi")]
ENDLESS = "{{ 10 ** (10 ** 9) }}"
# No part of it can be evaluated while it is parsed.
LATER = "{% if messages|length > 1 %}{{ (messages|length) ** (10 ** 9) }}{% endif %}" + CHATML


def powers(rng: random.Random) -> str:
    base, exponent = rng.choice(["(messages|length + 2)", "7"]), rng.randint(8, 18)
    return f"{{{{ {base} ** (10 ** {exponent}) }}}}"


def loops(rng: random.Random) -> str:
    depth = rng.randint(3, 7)
    opened = "".join(f"{{% for a{i} in range(99999) %}}" for i in range(depth))
    return opened + rng.choice(["", "{{ a0 }}"]) + "{% endfor %}" * depth


def repeats(rng: random.Random) -> str:
    size = rng.randint(10**8, 10**11)
    return rng.choice(
        [
            f"{{{{ 'x' * {size} }}}}",
            f"{{{{ ['y'] * {size} }}}}",
            f"{{{{ ('z' * 1000)|center({size}) }}}}",
            f"{{{{ '%{size}d' % 1 }}}}",
            f"{{% set a = 'x' * {size} %}}{{% set b = a + a %}}",
        ]
    )


def recursion(rng: random.Random) -> str:
    calls = " ".join(["{{ f(n + 1) }}"] * rng.randint(1, 3))
    return f"{{% macro f(n) %}}{calls}{{% endmacro %}}{{{{ f(0) }}}}"


def output(rng: random.Random) -> str:
    size = rng.randint(10**3, 10**6)
    return "{% for i in range(99999) %}{{ 'x' * " + str(size) + " }}{% endfor %}"


def refusals(rng: random.Random) -> str:
    text = rng.choice(["\\x1b]0;owned\\x07", "\\x1b[2J", "\\u202e", "\\x9b31m" * 1000])
    return "{{ raise_exception('" + text + "') }}"


def unknown(rng: random.Random) -> str:
    return rng.choice(
        [
            *("{{ nothing.at.all }}", "{{ nothing() }}", "{{ messages.__class__.__mro__ }}"),
            *("{% include 'x' %}", "{% for m in %}", "{{ 'a'.format_map }}", "{{", "{% foo %}"),
            *("{{ cycler.__init__.__globals__ }}", "{{ messages[0].content.x.y }}"),
        ]
    )


def nothing(rng: random.Random) -> str:
    return rng.choice(["", " \n", "{# only a comment #}", "{% set x = 1 %}", "{{ '' }}"])


def nesting(rng: random.Random) -> str:
    deep = rng.randint(100, 20_000)
    return rng.choice(["{{ " + "(" * deep + "1" + ")" * deep + " }}", "{% if 1 %}" * deep])


KINDS: list[Callable[[random.Random], str]] = [
    *(powers, loops, repeats, recursion, output, refusals, unknown, nothing, nesting)
]


def hostile(number: int) -> str:
    """Attack `number`; three in ten run only once the conversation has several messages."""
    rng = random.Random(number)
    text = KINDS[number % len(KINDS)](rng)
    if rng.random() < 0.3:
        text = "{% if messages|length > 1 %}" + text + "{% endif %}" + CHATML
    return text


@contextmanager
def memory_of_children() -> Iterator[list[int]]:
    """Yield a list whose only item is the largest size of a renderer's process so far, in bytes.

    A child has the size and the words of this process until it runs its own program.
    """
    largest, over = [0], threading.Event()

    def watch() -> None:
        looks_on = True
        while looks_on:
            looks_on = not over.wait(0.03)
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    if any(word.endswith("renderer_child.py") for word in child.cmdline()):
                        largest[0] = max(largest[0], child.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        over.set()
        thread.join()


def attack(number: int, reading: float = 2.5, rendering: float = 2.0) -> None:
    """Run an attack within seconds of processor time: its budget and our process's start."""
    with memory_of_children() as largest:
        begun = worked()
        chat = ChatTemplate(FakeModel(chat_template=hostile(number)), renderer())
        assert chat.dialect is not None
        read = worked()
        with suppress(LocalspecError):
            assert chat.render(TALK).strip()
        ended = worked()
    assert read - begun < reading
    assert ended - read < rendering
    assert 0 < largest[0] < 330 << 20
    assert all(notice.isprintable() and len(notice) <= 500 for notice in chat.notices)


@pytest.mark.parametrize("number", [0, 3, 5, 7, 8, 14, 16, 17, 20, 31, 64, 87])
def test_a_hostile_template_gets_its_budget_and_no_more(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    attack(number, reading=1.2, rendering=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_a_hundred_hostile_templates(number: int) -> None:
    attack(number)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ENDLESS, "takes too"),
        ("{{ 'x' * 3000000000 }}", "takes too much memory"),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "writes too much"),
        ("{# only a comment #}", "writes nothing"),
        ("x" * 2_000_000, "is too large"),
    ],
)
def test_a_template_that_is_no_use_is_replaced_and_told(
    template: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    chat = ChatTemplate(FakeModel(chat_template=template), renderer())
    for _ in range(2):  # given up for good: the second time takes no budget
        assert chat.render(TALK) == "Be brief.\n\nUser: hi\nAssistant:"
    assert len(chat.notices) == 1
    assert reason in chat.notices[0]
    assert "plain 'User: ... Assistant:'" in chat.notices[0]
    assert chat.stops == PLAIN_STOPS


def test_a_refusal_brings_no_escape_sequence() -> None:
    chat = ChatTemplate(
        FakeModel(chat_template="{{ raise_exception('\\x1b[2J never' ~ 'x' * 9999) }}"), renderer()
    )
    with pytest.raises(LocalspecError, match=r"conversation: \[2J never") as caught:
        chat.render(TALK)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


@pytest.mark.timed
@pytest.mark.parametrize("template", [ENDLESS, loops(random.Random(1)), "{{ 'x' * 10 ** 8 }}" * 99])
def test_a_wish_to_stop_ends_a_running_template(template: str) -> None:
    ours, cancel = renderer(), Cancel()
    ours.render(TemplateSource(CHATML, "", ""), TALK, RenderBudget())  # the process is there
    set_at: list[float] = []

    def stop() -> None:
        set_at.append(time.monotonic())
        cancel.set()

    threading.Timer(0.1, stop).start()
    with pytest.raises(Cancelled):
        ours.render(TemplateSource("{{ x }}" + template * 50, "", ""), TALK, RenderBudget(), cancel)
    assert time.monotonic() - set_at[0] < 0.2


def test_a_turn_is_stopped_while_its_template_runs() -> None:
    session, _ = fake_session(rounds_of(b"never said"), model=FakeModel(chat_template=LATER))
    session.settings.system_prompt = "Be brief."
    cancel = Cancel()
    threading.Timer(0.1, cancel.set).start()
    end = list(session.turn("hi", cancel))[-1]
    assert isinstance(end, TurnEnd)
    assert end.reason is FinishReason.CANCELLED
    assert session.notices == []  # the user cancelled: the template is not given up


def test_a_template_that_is_given_up_in_a_turn_is_told_in_that_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch)
    session, _ = fake_session(rounds_of(b" hello\nUser: and"), model=FakeModel(chat_template=LATER))
    session.settings.system_prompt = "Be brief."
    events = list(session.turn("hi", Cancel()))
    assert isinstance(events[0], Noticed)
    assert "takes too" in events[0].text
    assert session.messages[-1].content == " hello"


def test_a_child_that_somebody_ends_is_started_again() -> None:
    ours = TemplateRenderer()
    source = TemplateSource(CHATML, "", "")
    try:
        for _ in range(3):
            assert ours.render(source, TALK, RenderBudget()).startswith("<|im_start|>system")
            child = max(psutil.Process().children(), key=lambda process: process.create_time())
            child.kill()
            child.wait(5)
    finally:
        ours.close()


def test_a_child_that_gets_no_processor_is_waited_for() -> None:
    """It may be swapped out, or the machine may be busy: its template needs no more for that."""
    ours, source = TemplateRenderer(), TemplateSource(CHATML, "", "")
    ours.render(source, TALK, RenderBudget())
    try:
        assert ours._child is not None
        child = psutil.Process(ours._child._pid)
        child.suspend()
        threading.Timer(0.5, child.resume).start()
        assert ours.render(source, TALK, RenderBudget(0.25)).startswith("<|im_start|>system")
        child.suspend()
        with pytest.raises(TemplateStarved):
            ours.render(source, TALK, RenderBudget(0.05))
    finally:
        ours.close()


def test_a_process_that_starts_slowly_is_not_the_templates_doing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Computing or not, all of its time is waited for."""
    exchange = _RenderingProcess.exchange

    def slow(self: _RenderingProcess, line: bytes = b"") -> bytes:
        time.sleep(0 if line else 1)
        return exchange(self, line)

    monkeypatch.setattr(_RenderingProcess, "worked", lambda _self: time.perf_counter())
    monkeypatch.setattr(_RenderingProcess, "exchange", slow)
    ours, source = TemplateRenderer(), TemplateSource(CHATML, "", "")
    try:
        monkeypatch.setattr("localspec.chat.prompt.renderer._START_S", 0.3)
        with pytest.raises(TemplateStarved):
            ours.render(source, TALK, RenderBudget())
        monkeypatch.setattr("localspec.chat.prompt.renderer._START_S", 3.0)
        assert ours.render(source, TALK, RenderBudget(5)).startswith("<|im_start|>system")
    finally:
        ours.close()


def test_a_machine_that_is_busy_once_costs_neither_template_nor_dialect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    render = TemplateRenderer.render
    starved = [TemplateStarved("takes too long")]

    def at_first_starved(self: TemplateRenderer, *how: Any, **more: Any) -> str:
        if starved:
            raise starved.pop()
        return render(self, *how, **more)

    monkeypatch.setattr(TemplateRenderer, "render", at_first_starved)
    answer = [*rounds_of(b"hello"), ended()]
    model = FakeModel(chat_template=CHATML + "{# of a busy machine #}")
    session, engine = fake_session(answer, model=model)
    assert session.dialect.known
    starved.append(TemplateStarved("takes too long"))
    list(session.turn("hi", Cancel()))
    assert not session.template.notices
    assert model.text(engine.prompts[-1]).endswith("<|im_start|>assistant\n")
    assert not starved


def test_a_machine_that_stays_busy_is_told_of_and_costs_no_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = FakeModel(chat_template=CHATML + "{# of a machine that stays busy #}")
    session, engine = fake_session([*rounds_of(b"hello"), ended()], model=model)
    with monkeypatch.context() as busy:
        busy.setattr(
            TemplateRenderer, "render", Mock(side_effect=TemplateStarved("takes too long"))
        )
        with pytest.raises(LocalspecError, match="takes too long: the machine is too busy"):
            list(session.turn("hi", Cancel()))
    list(session.turn("hi", Cancel()))
    assert model.text(engine.prompts[-1]).endswith("<|im_start|>assistant\n")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_the_child_ignores_the_terminals_interrupt_and_ends_with_its_parent() -> None:
    program = (
        "import os, psutil, time\n"
        "from localspec.chat.prompt.renderer import *\n"
        "ours = TemplateRenderer()\n"
        "ours.render(TemplateSource('x', '', ''), [], RenderBudget())\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert child.is_running()
        parent.kill()
        parent.wait()
        child.wait(5)


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}{{ m.content.strip() }}\n{% generation %} g {% endgeneration %}"
        "{% endfor %}{{ eos_token }}{{ tools is none }}{{ undefined_name }}"
        "{{ strftime_now('%Y') }}",
        "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% endfor %}{{ ns.n }}{{ {'b': 'ü', 'a': 1} | tojson(indent=2) }}"
        "{% if tools %}x{% endif %}",
    ],
)
def test_templates_mean_what_they_mean_to_llama_cpp_python(template: str) -> None:
    talk = [*TALK, Message(Role.ASSISTANT, "Grüße 🙂 \ud800"), Message(Role.USER, "<b>")]
    usual = Jinja2ChatFormatter(template=template, bos_token="<s>", eos_token="</s>")
    plain = [{"role": m.role.value, "content": m.content} for m in talk]
    expected = usual(messages=plain).prompt  # type: ignore[arg-type]
    assert (
        renderer().render(TemplateSource(template, "<s>", "</s>"), talk, RenderBudget()) == expected
    )


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    vocabulary = replace(other_vocabulary(), template=LATER)
    return write_llama(tmp_path / "hostile.gguf", vocabulary, Sizes(), seed=0, type="q8_0")


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_esc_and_quitting_work_while_a_template_runs(hostile_file: Path, tmp_path: Path) -> None:
    from tests.support.terminal import Terminal  # noqa: PLC0415 - Windows lacks it

    options = ("--system-prompt", "Be brief.", "--n-predict", "4", "--threads", "1")
    chat = Terminal(["chat", str(hostile_file), *options], tmp_path)
    try:
        chat.sees("ready")
        chat.child.send("hi\r")
        chat.sees("answering")
        chat.child.send("\x1b")
        begun = time.monotonic()
        chat.sees("stopped")
        assert time.monotonic() - begun < 1  # the budget is longer; a loaded machine is slow
        chat.child.send("\x1b[15~")  # F5: again, to the end of the template's patience
        chat.sees("takes too")
        chat.sees("ready")
        chat.child.send("\x11")
        assert chat.ends() == 0
    finally:
        chat.child.close(force=True)
