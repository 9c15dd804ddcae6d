"""A draft model is loaded after the target, and not at all where it can save no time."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from localspec.chat.events import RoundText
from localspec.chat.session.pair import LoadRecord
from localspec.chat.session.session import Session
from localspec.cli.subcommands import cli
from localspec.drafter_names import DFLASH, DRAFT, EAGLE3, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs, Points
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.profile import Profile, of_file
from localspec.engine.llama import default_threads
from localspec.engine.record.stats import FinishReason
from localspec.errors import Cancelled, ModelLoadError
from localspec.loading import draft_models, model_loader
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import draft_worth, measured_costs
from localspec.loading.measurements.measured_costs import ANY_THREADS, MeasuredPair, profile_store
from localspec.loading.model_loader import ModelLoader
from localspec.pairs.gguf.header import read_model
from localspec.pairs.memory.model_facts import draft_facts
from localspec.pairs.memory.need import ModelSetup
from localspec.pairs.memory.placement import PROGRAM
from localspec.process import messages as m
from tests.support import costs, toy
from tests.support.gguf_models import write_random_llama
from tests.support.scripted_session import ScriptedSession
from tests.test_process import Served, heard

CURVE: Points = {1: 1.0, 2: 1.8, 4: 3.0, 8: 7.0, 16: 8.1, 64: 24.0}
"""T(n) of Qwen2.5-Coder-1.5B in Q4_K_M on two cores of an AMD EPYC."""


@pytest.mark.parametrize(("step", "dear"), [(0.05, False), (0.1, False), (0.44, True), (1.0, True)])
def test_a_step_that_no_acceptance_pays_for_is_too_dear(step: float, dear: bool) -> None:
    assert AutoGamma(Costs({0: CURVE}, {})).too_dear(step, 0) is dear


@pytest.mark.parametrize(("kind", "dear"), [(EAGLE3, True), (DFLASH, False)])
def test_a_block_costs_one_pass_however_many_tokens_it_guesses(
    kind: str, dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_worth, "acceptance", lambda *_: 0.4)
    head: Any = SimpleNamespace(header=SimpleNamespace(architecture=kind))
    auto = AutoGamma(Costs({0: {1: 1.0, 16: 1.3}}, {}))
    assert draft_worth.too_dear(head, [], auto, 0.35) is dear


def test_a_model_is_not_judged_by_the_head_in_its_file(
    toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    how, setup = LoadRecord(ctx_size=0, threads=0), ModelSetup(n_ctx=512)
    store = profile_store()
    base = {**of_file(toy_draft, draft=True), "n_gpu_layers": 0}
    head, model = ({**base, "head": MTP}, 1, 0.004), (base, default_threads(), 0.05)
    for known, threads, step in (head, model):
        store.save(Profile({**known, "threads": ANY_THREADS}, threads=threads))
        store.save(Profile({**known, "threads": threads}, {0: {1: step}}, spread=0.0))
    sized = (draft_facts(read_model(toy_draft).header), setup)
    for kind, step in (("", 0.05), (MTP, 0.004)):
        assert draft_worth.least_step(toy_draft, sized, None, 1.0, how, head=kind) == step


@pytest.mark.parametrize("damage", [{"threads": None}, {"takes_back": "3"}])
def test_a_damaged_measurement_judges_no_draft(
    toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    known = of_file(toy_draft, draft=True) | {"threads": default_threads(), "n_gpu_layers": 0}
    profile_store().save(Profile(known, {0: {1: 1.0}}, spread=0.0))
    setup, how = ModelSetup(n_ctx=512), LoadRecord(ctx_size=0, threads=0)
    sized = (draft_facts(read_model(toy_draft).header), setup)

    def step() -> float:
        return draft_worth.least_step(toy_draft, sized, None, 1.0, how, head="")

    assert step() == 1.0
    (path,) = profile_store().folder.iterdir()
    written = json.loads(path.read_text())
    changed = {name: it for name, it in (known | damage).items() if it is not None}
    path.write_text(json.dumps(written | {"identity": changed}))
    assert step() == 0.0


@pytest.fixture
def stored() -> Iterator[None]:
    """Restore the toy's usual costs after a test that stores others."""
    yield
    costs.keep_toy()


class Opened:
    """A session over the toy pair, and the steps of its load."""

    def __init__(self, **asked: Any) -> None:
        self.steps: list[str] = []
        request = LoadRequest(pair=str(toy.TARGET), ctx_size=512, threads=1)
        request = replace(request, **{"draft": f"{toy.DRAFT},lookup", **asked})
        self.session = load_session(
            request, progress=lambda step, _: self.steps.append(step), cancel=Cancel()
        )

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


def test_what_was_measured_to_be_too_dear_is_not_loaded_again_and_said(stored: None) -> None:
    costs.keep_draft(2e-3)
    with Opened() as opened:
        session = opened.session
        assert (session.pair.drafts, session.drafters) == ({}, ("lookup",))
        assert f"Loading {toy.DRAFT.name}" not in opened.steps
        assert session.draft_state in session.notices
        assert session.draft_state.startswith(f"{toy.DRAFT.name}: too big to save time here")
        way = "chat, run and serve load it with --draft-anyway"  # `bench` cannot
        assert session.draft_state.endswith(f", and not loaded ({way})")
        assert session.pair.saves_nothing


def test_what_turns_out_to_be_too_dear_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No costs are stored for this file, and its size alone does not tell: it must be measured."""
    slow = {n: n * 2e-3 for n in (1, 2, 4, 16)}
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    monkeypatch.setattr(
        measured_costs, "profile", lambda _, known: Profile(known, {0: slow}, spread=0.0)
    )
    target = shutil.copy(toy.TARGET, tmp_path / "target.gguf")
    with Opened(draft=f"{target},lookup") as opened:
        session = opened.session
        assert "Loading target.gguf" in opened.steps
        assert (session.pair.drafts, session.drafters) == ({}, ("lookup",))
        assert session.pair.memory().draft_weights == 0
        assert session.pair.loaded.draft_threads == 0
        assert session.draft_state.startswith("target.gguf: too big to save time here")


def test_what_its_bytes_alone_make_too_dear_is_not_loaded(stored: None, tmp_path: Path) -> None:
    costs.keep_target({n: 2e-3 * times for n, times in CURVE.items()})
    target = shutil.copy(toy.TARGET, tmp_path / "target.gguf")
    with Opened(draft=f"{target},lookup") as opened:
        assert not opened.session.pair.drafts
        assert "Loading target.gguf" not in opened.steps
        assert opened.session.draft_state.startswith("target.gguf: too big to save time here")
    with Opened() as opened:  # that of a tenth of the size is loaded
        assert [*opened.session.pair.drafts] == [DRAFT]


@pytest.mark.few(1)
@pytest.mark.parametrize("asked", [{"draft_anyway": True}, {"gamma": 4}])
def test_it_stays_where_it_was_asked_for(stored: None, asked: dict[str, Any]) -> None:
    costs.keep_draft(2e-3)
    with Opened(**asked) as opened:
        assert [*opened.session.pair.drafts] == [DRAFT]
        assert opened.session.draft_state == ""


@pytest.mark.parametrize("asked", [{"draft_threads": 3}, {"threads_batch": 3}])
def test_what_was_measured_in_another_way_to_run_keeps_none_from_being_loaded(
    stored: None, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs.keep_draft(2e-3)
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    flat = dict.fromkeys((1, 2, 4, 16), 2e-3)
    monkeypatch.setattr(
        measured_costs, "profile", lambda _, known: Profile(known, {0: flat}, spread=0.0)
    )
    with Opened(**asked) as opened:
        assert f"Loading {toy.DRAFT.name}" in opened.steps


@pytest.mark.parametrize("draft", [False, True])
def test_a_draft_is_left_out_only_if_all_that_fits_the_load_says_so(
    draft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load without memory for repacked weights has other costs, under another key."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    costs.keep_toy()
    store, path = profile_store(), toy.DRAFT if draft else toy.TARGET
    known = store.matching(of_file(path, draft=draft))
    dear = {1: 2e-3} if draft else {n: 3e-4 * times for n, times in CURVE.items()}
    for other in (False, True):
        for usual in (False, True):
            for one in known:
                for mine, is_dear in (({}, usual), ({"weights_bytes": 1}, other)):
                    measured = {0: dear} if is_dear else one.measured
                    store.save(replace(one, identity={**one.identity, **mine}, measured=measured))
            shown = CliRunner().invoke(cli, ["show", str(toy.TARGET), "--draft", str(toy.DRAFT)])
            assert ("too big to save time here" in shown.stdout) is (usual and other)


def test_nothing_drafts_without_lookup(stored: None) -> None:
    costs.keep_draft(2e-3)
    with Opened(draft=str(toy.DRAFT)) as opened:
        assert not opened.session.pair.drafts
        assert "too big to save time here" in opened.session.speculation_note


def test_a_cheap_one_stays() -> None:
    with Opened() as opened:
        assert [*opened.session.pair.drafts] == [DRAFT]


def test_show_says_so(stored: None) -> None:
    known = ["show", str(toy.TARGET), "--draft", str(toy.DRAFT)]
    assert "too big to save time here" not in CliRunner().invoke(cli, known).stdout
    costs.keep_draft(2e-3)
    lines = CliRunner().invoke(cli, known).stdout.splitlines()
    why = "too big to save time here: the next load without --draft-anyway leaves it out"
    assert lines[2] == f"draft       {why}, with its room"
    assert not [line for line in lines if line.startswith("  draft ")]  # in the plan


def test_a_draft_that_is_known_to_save_no_time_leaves_its_room_to_the_target(
    stored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "choose", lambda *_, **__: None)  # it would be measured
    costs.keep_draft(2e-3)
    planned = []
    for asked in ({}, {"draft_anyway": True}):
        with Opened(threads=None, **asked) as opened:
            planned.append(opened.session.pair.loaded.memory_plan_bytes)
    assert planned[0] < planned[1]
    show = ["show", str(toy.TARGET), "--draft", str(toy.DRAFT), "-c", "512", "--json"]
    shown = json.loads(CliRunner().invoke(cli, show).stdout)
    assert shown["plan"]["host_bytes"] == planned[0]
    assert shown["plan"]["draft"] is None
    assert shown["left_out"] == "too big to save time here"
    assert shown["memory"]["needed_bytes"] == planned[1] + PROGRAM  # of the pair, as in lists


# --- after the target -----------------------------------------------------------------------


LATE: dict[str, Any] = {"pair": str(toy.TARGET), "ctx_size": 512, "threads": 1, "n_predict": 24}


@pytest.mark.slow
def test_the_target_answers_before_a_large_draft_model_is_there(tmp_path: Path) -> None:
    """In a real process: the first question comes with the load, the second after it."""
    large = write_random_llama(tmp_path / "large.gguf", n_layer=4, n_embd=512, type="f32")
    costs.keep_draft(0.2e-3, large)
    with heard(**LATE, draft=str(large), draft_anyway=True) as engine:
        engine.ask("Tell me a story about a dog.")
        info = engine.until(m.Loaded).info
        assert info.draft_name == "large"
        assert info.draft_state == info.speculation_note == "large is still being loaded"
        assert engine.until(m.TurnOver).said[-1].content
        joined = engine.until(m.SettingsChanged).info
        assert (joined.draft_name, joined.draft_state, joined.speculation_note) == ("large", "", "")
        assert joined.speculation
        assert engine.until(m.EngineStatus).memory.draft_weights > 50e6
        engine.ask("Tell me a story about a cat.")
        assert engine.until(m.TurnOver).said[-1].content


def loaded(**asked: Any) -> Session:
    """A session that may answer before its draft model is loaded."""
    request = LoadRequest(**{**LATE, "draft": f"{toy.DRAFT},lookup", **asked})
    return load_session(request, progress=lambda *_: None, cancel=Cancel(), may_wait=True)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose draft model is not loaded yet, however small it is."""
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    with closing(loaded()) as session:
        assert session.awaits_drafts
        yield session


def test_a_load_that_is_interrupted_is_made_again(waiting: Session) -> None:
    stopped = Cancel()
    stopped.set()
    with pytest.raises(Cancelled):
        waiting.load_drafts(stopped)
    assert waiting.awaits_drafts
    assert not waiting.pair.drafts
    waiting.load_drafts(Cancel())
    assert not waiting.awaits_drafts
    assert [*waiting.engine.drafters] == [*waiting.pair.drafts] == [DRAFT]
    assert waiting.pair.loaded.draft_threads == 1


def test_a_draft_model_that_cannot_be_loaded_leaves_the_target_answering(
    waiting: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ModelLoadError("damaged")

    monkeypatch.setattr(ModelLoader, "load_drafts", refused)
    waiting.load_drafts(Cancel())
    assert not waiting.awaits_drafts
    assert waiting.draft_state == f"{toy.DRAFT.stem} cannot draft: damaged"
    assert not waiting.pair.saves_nothing
    assert waiting.draft_state in waiting.notices
    assert waiting.drafters == ("lookup",)
    assert waiting.draft_name is None


def test_a_small_draft_model_is_waited_for_and_with_a_seed_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for least, asked in ((draft_models._AT_ONCE, {}), (0, {"seed": 1})):
        monkeypatch.setattr(draft_models, "_AT_ONCE", least)
        with closing(loaded(**asked)) as session:
            assert not session.awaits_drafts
            assert [*session.pair.drafts] == [DRAFT]


def test_a_draft_model_joins_an_answering_session(waiting: Session) -> None:
    def drafters() -> set[str]:
        turn = waiting.turn("Tell me a story about a dog.", Cancel())
        return {each.round.drafter for each in turn if isinstance(each, RoundText)}

    assert DRAFT not in drafters()
    waiting.load_drafts(Cancel())
    assert DRAFT in drafters()


def test_a_head_in_use_is_not_freed_when_a_draft_model_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if later costs make it too dear: the session and its stored caches refer to it."""
    slow = {n: n * 1e-3 for n in (1, 2, 4, 16)}
    monkeypatch.setattr(draft_models, "_AT_ONCE", 0)
    monkeypatch.setattr(measured_costs, "too_busy", lambda _threads: False)
    monkeypatch.setattr(
        measured_costs, "profile", lambda _, known: Profile(known, {0: slow}, spread=0.0)
    )
    with closing(loaded(draft=f"{toy.EAGLE3},{toy.DRAFT},lookup")) as session:
        (head,) = session.pair.drafts.values()
        monkeypatch.setattr(draft_worth, "too_dear", lambda *_: True)
        session.load_drafts(Cancel())
        assert [*session.pair.drafts.values()] == [head]
        assert session.draft_state.startswith(f"{toy.DRAFT.name}: too big to save time here")
        session.settings = replace(session.settings, gamma=2)
        turn = session.turn("Tell me a story about a dog.", Cancel())
        assert "eagle3" in {each.round.drafter for each in turn if isinstance(each, RoundText)}


class Unhurried(ScriptedSession):
    """A session whose first load of the draft model goes on until it is cancelled."""

    loads = 0

    def load_drafts(self, cancel: Cancel) -> None:
        self.loads += 1
        if self.loads == 1:
            while not cancel.is_set():
                time.sleep(0.001)
            raise Cancelled
        self.awaits_drafts = False


def test_one_request_goes_before_the_draft_model_and_the_next_waits_for_it() -> None:
    session = Unhurried(awaits_drafts=True)
    served = Served(lambda *_: session)
    served.ask(1, m.Load(LoadRequest()))
    served.until(m.Loaded, 1)
    served.ask(2, m.Ask("first"))
    served.until(m.TurnOver, 2)
    while (event := served.said.get(timeout=20)).body.__class__ is not m.SettingsChanged:
        pass
    assert event.request == 2
    assert session.loads == 2
    served.end()


class Hurried(ScriptedSession):
    """A session whose draft model loads until it is cancelled, however often it is begun."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(awaits_drafts=True, **fields)
        self.begun = threading.Semaphore(0)

    def load_drafts(self, cancel: Cancel) -> None:
        self.begun.release()
        while not cancel.is_set():
            time.sleep(0.001)
        raise Cancelled


@pytest.mark.parametrize("way", ["stopped", "another pair"])
def test_a_request_that_is_stopped_does_not_wait_for_the_draft_model(way: str) -> None:
    session = Hurried(answers=["one", "two"])
    served = Served(lambda *_: session)
    served.ask(1, m.Load(LoadRequest()))
    served.until(m.Loaded, 1)
    served.ask(2, m.Ask("first"))
    served.until(m.TurnOver, 2)
    for _ in range(2):  # before the first answer, which interrupts it, and after it
        assert session.begun.acquire(timeout=20)
    if way == "stopped":
        served.ask(3, m.Ask("second"))
        served.ask(4, m.Stop(3))
        assert served.until(m.TurnOver, 3).said[-1].finish is FinishReason.CANCELLED
    else:
        served.ask(3, m.Load(LoadRequest()))
        served.until(m.Loaded, 3)
        session.awaits_drafts = False
    served.end()


class Counted(ScriptedSession):
    """A session that notes how many messages there were when its draft model was loaded."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(awaits_drafts=True, **fields)
        self.loaded_before: list[int] = []

    def load_drafts(self, cancel: Cancel) -> None:
        if not self.settings.repeatable:
            raise Cancelled  # as if the request came before the load
        self.loaded_before.append(len(self.messages))
        self.awaits_drafts = False


def test_an_answer_with_a_seed_waits_for_the_draft_model() -> None:
    session = Counted(answers=["one"])
    session.settings = replace(session.settings, repeatable=True)
    served = Served(lambda *_: session)
    served.ask(1, m.Load(LoadRequest()))
    served.ask(2, m.Ask("first"))
    served.until(m.TurnOver, 2)
    assert session.loaded_before == [0]
    served.end()


def test_whatever_a_late_draft_model_runs_into_leaves_the_target_answering(
    waiting: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(draft_models, "_drafter", exhausted)
    waiting.load_drafts(Cancel())
    assert not waiting.awaits_drafts
    assert waiting.draft_state == f"{toy.DRAFT.stem} cannot draft: there is not enough memory"
    assert [*waiting.pair.drafts] == []
    turn = waiting.turn("Tell me a story about a dog.", Cancel())
    assert any(isinstance(each, RoundText) for each in turn)


def test_a_draft_model_that_could_not_join_is_not_measured_when_idle(
    waiting: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its measurement was disturbed, but it is freed: whatever decodes it may end the process."""
    left: list[object] = []
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(
        measured_costs, "profile", lambda _, known: Profile(known, {0: {1: 1e-4}}, spread=9.0)
    )
    monkeypatch.setattr(MeasuredPair, "again", lambda found, _: left.extend(found.unkept))
    monkeypatch.setattr(MeasuredPair, "extend", lambda *_: None)
    monkeypatch.setattr(draft_models, "_drafter", lambda *_: 1 / 0)
    waiting.load_drafts(Cancel())
    assert waiting.draft_state.startswith(f"{toy.DRAFT.stem} cannot draft")
    waiting.rest(Cancel())
    assert left == []
