"""A load resolves each name and parses each header only once."""

from __future__ import annotations

import gc
import queue
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.bench import benchmark
from localspec.chat.prompt import template
from localspec.chat.settings import AnswerRequest, ChatSettings
from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.gguf import header as gguf
from localspec.pairs.names import resolver
from localspec.process import messages as m
from localspec.process.loader import loader
from localspec.process.server import EngineServer
from tests.support import toy
from tests.support.short_bench import short_bench


def ignore(*_: object) -> None: ...


def asked(**how: Any) -> LoadRequest:
    return LoadRequest(threads=1, ctx_size=256, gamma=1, **how)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the header of each file was parsed."""
    found: Counter[str] = Counter()
    parse = gguf.parse_header

    def counting(read: Any, total: int | None, label: str, *more: Any) -> gguf.GgufHeader:
        found[Path(label).name] += 1
        return parse(read, total, label, *more)

    monkeypatch.setattr(gguf, "parse_header", counting)
    return found


@pytest.mark.parametrize(
    ("pair", "draft"),
    [
        (toy.TARGET, f"{toy.DRAFT}"),
        (toy.TARGET, f"{toy.TARGET}"),
        (toy.TARGET, f"{toy.EAGLE3},{toy.DRAFT},lookup"),
        (None, "mtp"),
        (toy.TARGET, "none"),
    ],
    ids=["a draft", "itself", "a head and a draft", "the head inside", "nothing"],
)
def test_a_load_parses_each_header_once(
    pair: Path | None, draft: str, parsed: Counter[str]
) -> None:
    request = asked(pair=str(pair or toy.mtp()), draft=draft)
    load_session(request, progress=ignore, cancel=Cancel()).close()
    assert set(parsed.values()) == {1}
    assert len(parsed) == 1 + sum(name in draft for name in (toy.DRAFT.name, toy.EAGLE3.name))


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    found = EngineServer(loader)
    yield found
    found.shut_down()
    assert found.join(20)


def test_a_change_to_another_pair_parses_each_header_once(
    engine: EngineServer, parsed: Counter[str]
) -> None:
    """The new pair is checked while the old one is still loaded; the load uses that result."""
    said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
    engine.listen(said.put)

    def load(number: int, **how: Any) -> None:
        engine.send(m.Envelope(number, m.Load(asked(**how))))
        while not isinstance(event := said.get(timeout=60).body, m.Loaded):
            assert not isinstance(event, m.LoadFailed), event

    load(1, pair=str(toy.TARGET), draft="none")
    parsed.clear()
    load(2, pair="toy")
    assert parsed == {toy.TARGET.name: 1, toy.DRAFT.name: 1}


def test_another_pair_is_loaded_into_the_memory_that_copies_of_caches_took(
    engine: EngineServer,
) -> None:
    said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
    engine.listen(said.put)

    def done(number: int, body: m.Request, kind: type) -> None:
        engine.send(m.Envelope(number, body))
        while not isinstance(said.get(timeout=60).body, kind):
            pass

    pair = m.Load(asked(pair=str(toy.TARGET), draft="none"))
    done(1, pair, m.Loaded)
    for number in (2, 3):
        prompt = tuple(range(100 * number, 100 * number + 40))
        done(
            number, m.Complete(AnswerRequest(ChatSettings(n_predict=1), prompt=prompt)), m.TurnOver
        )
    assert engine._completions is not None
    (copy,) = engine._completions._prefixes._kept
    state = weakref.ref(copy.states[0])
    del copy
    gc.disable()
    try:
        done(4, pair, m.Loaded)
        assert state() is None
    finally:
        gc.enable()


def test_a_load_that_is_cancelled_while_the_template_is_learnt_has_failed(
    engine: EngineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: queue.Queue[m.Envelope[m.Event]] = queue.Queue()
    engine.listen(said.put)

    def stopped(*_: Any, **__: Any) -> None:
        engine.send(m.Envelope(2, m.Stop(1)))
        raise Cancelled

    monkeypatch.setattr(template, "learnt", stopped)
    engine.send(m.Envelope(1, m.Load(asked(pair=str(toy.TARGET), draft="none"))))
    while isinstance(event := said.get(timeout=20).body, m.Loading | m.EngineStatus):
        pass
    assert event == m.LoadFailed(None)


@pytest.mark.slow
def test_a_bench_of_several_drafts_parses_each_header_once(
    parsed: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 0.0)
    drafts = ("lookup", str(toy.DRAFT), str(toy.EAGLE3))
    report = short_bench(asked(pair=str(toy.TARGET), draft="lookup"), *drafts)
    assert len(report.on) == len(drafts)
    assert parsed == {toy.TARGET.name: 1, toy.DRAFT.name: 1, toy.EAGLE3.name: 1}


def test_a_load_resolves_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()
    meaning = resolver.meaning

    def counting(text: str, **how: Any) -> resolver.Meaning:
        found[text] += 1
        return meaning(text, **how)

    monkeypatch.setattr(resolver, "meaning", counting)
    named = (str(toy.DRAFT), str(toy.EAGLE3))
    request = asked(pair=str(toy.TARGET), draft=",".join(named))
    load_session(request, progress=ignore, cancel=Cancel()).close()
    assert found == dict.fromkeys((str(toy.TARGET), *named), 1)
