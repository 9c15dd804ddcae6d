"""Drafts, measuring, presets and statistics from the chat, with real models."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from localspec.bench import prompt_sets, report_files
from localspec.chat.settings import ChatSettings
from localspec.loading import starter_form
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import tuning
from localspec.pairs.disk.installed import remember_last
from localspec.pairs.hub import pair_pull
from localspec.process.engine_client import EngineClient
from localspec.process.jobs import BenchJob
from localspec.process.loader import loader
from localspec.process.messages import BenchProgress
from localspec.process.server import EngineServer
from localspec.ui.chat_app import ChatApp
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.pairs.measuring_jobs import MeasuringJobs
from tests.support import toy
from tests.support.chat_pilot import Chat
from tests.support.heads import write_mtp
from tests.support.pairwise import usually
from tests.support.scripted_session import ScriptedSession


@asynccontextmanager
async def chatting(pair: str | None = "toy", draft: str | None = None) -> AsyncIterator[Chat]:
    wanted = LoadRequest(pair=pair, draft=draft, threads=1, temp=0.0, n_predict=12)
    app = ChatApp(EngineClient(wanted, lambda: EngineServer(loader)))
    async with app.run_test(size=(120, 60)) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.turns.phase is not EnginePhase.LOADING, "loading")
        yield chat
    app.engine.shut_down()
    assert await asyncio.to_thread(app.engine.join, 10)


async def says(chat: Chat, command: str, said: str) -> None:
    await chat.send(command)
    await chat.until(lambda: said in chat.transcript() and chat.ready(), said)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Path(os.environ["LOCALSPEC_CACHE"]) / "costs"
    shutil.copytree(known, tmp_path / "costs")  # the toy is not measured anew
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    monkeypatch.setattr(starter_form, "settle", lambda _source: "")  # the starter stays as it came
    toy.install(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.slow
@pytest.mark.drawn
def test_another_draft_a_bench_its_report_and_the_conversation_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_sets, "QUICK_S", 1.0)

    async def body() -> None:
        async with chatting() as chat:
            await chat.send("Tell me a story.")
            await chat.until(lambda: "12 tokens" in chat.transcript(), "an answer")
            await says(chat, "/stats", "toy: 1 answer, 12 tokens written in")
            await says(chat, "/draft", "auto: ")
            now = " ".join(chat.transcript().split())
            assert "drafting now: draft-Q8_0 and lookup" in now
            assert "and lookup, which copies what repeats" in now
            assert "that could be fetched, but would not fit this target" in now
            assert "/draft NAME takes a draft named here, a file" in now
            assert "fetched):" not in now  # what cannot be chosen gets no line
            await says(chat, "/draft lookup", "drafting now: lookup alone")
            assert chat.app.session.draft_name is None
            await says(chat, "/draft none-such", "there is no pair named none-such")
            await says(chat, "/draft", "drafting now: lookup alone")  # as before
            await says(chat, "/bench", "Verdict")
            endings = ".json, .csv, .md, .png, .svg."
            assert f"all of the report: {endings}" in " ".join(chat.transcript().split())
            assert "more characters" not in chat.transcript()
            assert "Tell me a story." in chat.transcript()
            report = tmp_path / "report.json"
            await says(chat, f"/bench {report}", "the report is in")
            assert json.loads(report.read_text())["verdict"]
            assert chat.app.session.draft_name is None  # as it was chosen
            await chat.send("/draft auto")
            await chat.until(lambda: chat.ready() and chat.app.session.draft_name, "the draft")
            other = tmp_path / "other.json"  # no report of this pair is there yet: it is measured
            await chat.send(f"/bench {other}")
            await chat.until(lambda: other.exists() and chat.ready(), "another report")
            assert other.read_text() != report.read_text()

    asyncio.run(body())


@pytest.mark.slow
def test_tuning_can_be_ended_and_the_pair_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "wait_for_calm", lambda *_: None)

    async def body() -> None:
        async with chatting() as chat:
            await chat.send("/tune")
            await chat.until(lambda: "Measuring target" in chat.status(), "measuring")
            await chat.press("escape")
            await chat.until(lambda: "nothing was measured" in chat.transcript(), "the end")
            await chat.until(chat.ready, "the pair")
            await says(chat, "/preset", "no system prompt is kept")
            await says(chat, "/system Speak like a pirate.", "set for the answers")
            await says(chat, "/preset save pirate", "pirate is kept")
            await says(chat, "/preset", "/preset NAME takes one")
            await says(chat, "/system none", "removed")
            await says(chat, "/preset pirate", "to come: Speak like a pirate.")
            assert chat.app.session.settings.system_prompt == "Speak like a pirate."
            await says(chat, "/preset forget pirate", "pirate is forgotten")
            await says(chat, "/preset pirate", "there is no system prompt pirate")

    asyncio.run(body())


def test_the_bar_of_a_bench_is_of_its_time() -> None:
    told: list[tuple[str, float | None]] = []
    status = SimpleNamespace(lasting=lambda said, share, hint: told.append((said, share)))
    bench = MeasuringJobs(None, None, status)  # type: ignore[arg-type]
    bench.hear(BenchProgress("stories-1", 0, 1750, None))
    bench._began -= 30.0  # type: ignore[operator]
    bench.hear(BenchProgress("stories-2", 6, 1750, 10.0))
    (first, unknown), (second, share) = told
    assert (first, unknown) == ("question 1: stories-1", None)
    assert second == "question 7, about 10 s left: stories-2"
    assert share == pytest.approx(0.75, abs=0.05)


def test_a_bench_measures_what_was_set_and_its_report_is_kept_for_that(tmp_path: Path) -> None:
    jobs: list[BenchJob] = []
    session = SimpleNamespace(pair_reference=("toy", None), settings=ChatSettings(gamma=3))
    engine = SimpleNamespace(info=session, loaded=LoadRequest())
    loader_of = SimpleNamespace(
        turns=SimpleNamespace(engine=engine), perform=lambda make: jobs.append(make(engine.loaded))
    )
    bench = MeasuringJobs(loader_of, None, None)  # type: ignore[arg-type]
    bench.bench(None)
    assert jobs[-1].how.gamma == 3
    engine.loaded = LoadRequest(pair="toy")  # as the pair is loaded again after it
    for change in (
        lambda: setattr(session, "settings", ChatSettings(gamma=5)),
        lambda: setattr(engine, "loaded", LoadRequest(pair="toy", ctx_size=512)),
        lambda: setattr(engine, "loaded", LoadRequest(pair="toy", ctx_size=512, exact=True)),
    ):
        bench.report = report = mock.Mock()
        with mock.patch.object(report_files, "write") as write:
            bench.transcript = mock.Mock()
            bench.bench(tmp_path / "report.json")
            assert write.call_args[0][0] is report
            measured = len(jobs)
            change()
            bench.bench(tmp_path / "report.json")
            assert len(jobs) == measured + 1
    assert jobs[-1].how.gamma == 5


@pytest.mark.parametrize(
    ("pair", "at_first"),
    usually(itertools.product(["toy", None], [True, False]), ("toy", True)),
)
def test_a_draft_that_is_not_here_is_offered_with_the_pair_that_it_is_for(
    pair: str | None, at_first: bool
) -> None:
    draft, name = "user/none-here:Q8_0", pair or "starter"

    async def body() -> None:
        async with chatting(pair, draft if at_first else None) as chat:
            if not at_first:
                assert chat.ready()
                await chat.send(f"/draft {draft}")
            said = f"{draft} is not on this disk yet"
            await chat.until(lambda: said in chat.transcript(), said)
            assert f"Ctrl+F fetches {name} --draft {draft} and" in " ".join(
                chat.transcript().split()
            )
            assert "the name of a model is empty" not in chat.transcript()
            chat.app.pairs.get()  # with its own draft it is another pair than the one in use
            assert chat.app.pairs._getting == pair_pull.PullRequest(name, draft)
            await chat.until(lambda: f"✗ {name}" in chat.transcript(), "there is no Hub here")

    asyncio.run(body())


def test_a_pair_that_is_not_here_is_fetched_with_the_draft_that_was_named() -> None:
    pair, draft = "user/no-pair:Q8_0", "user/none-here:Q8_0"

    async def body() -> None:
        async with chatting(pair, draft) as chat:
            said = f"{pair} is not on this disk yet"
            await chat.until(lambda: said in chat.transcript(), said)
            with mock.patch.object(pair_pull, "plan", wraps=pair_pull.plan) as planned:
                await chat.press("ctrl+f")
                await chat.until(lambda: planned.called, "the look at it")
            assert planned.call_args.args[0] == pair_pull.PullRequest(pair, draft)

    asyncio.run(body())


@pytest.mark.slow
def test_the_pair_that_was_opened_stays_whatever_was_used_last_since(tmp_path: Path) -> None:
    target = write_mtp(tmp_path / "mtp.gguf")
    remember_last(str(target), "none")

    async def body() -> None:
        async with chatting(pair=None) as chat:
            assert chat.app.session.pair_name == "mtp"
            await chat.send("/draft mtp")  # checked for this target, not for the toy
            await chat.until(lambda: chat.ready() and chat.app.session.draft_name, "its head")
            remember_last("toy")  # another localspec
            await chat.send("/set ctx-size 512")
            await chat.until(
                lambda: chat.ready() and chat.app.dashboard.state.figures.context_size == 512
            )
            assert chat.app.session.pair_reference == (str(target), "mtp")

    asyncio.run(body())


@pytest.mark.slow
def test_whatever_answer_is_shown_the_panel_has_its_own_figures_or_none(tmp_path: Path) -> None:
    async def body() -> None:
        async with chatting() as chat:
            state = chat.app.dashboard.state

            def shown() -> tuple[int, int, int, float | None]:
                now = state.figures
                return now.generated, now.drafted, now.accepted, now.speed_average

            await chat.send("/gamma 3")
            await chat.send("Tell me a story.")
            await chat.until(lambda: "12 tokens" in chat.transcript() and chat.ready(), "one")
            drafted = shown()
            await chat.send("/gamma 0")
            await chat.press("f5")
            await chat.until(lambda: "2/2" in chat.transcript() and chat.ready(), "another")
            baseline = shown()
            assert drafted[1] > 0
            assert baseline[:3] == (12, 0, 0)
            for key, place, figures in (("f9", "1/2", drafted), ("f10", "2/2", baseline)):
                await chat.press(key)
                await chat.until(lambda it=place: it in chat.transcript() and chat.ready(), key)
                await chat.until(lambda it=figures: shown() == pytest.approx(it, rel=0.01), key)
            await chat.press("f9")
            await chat.until(lambda: "1/2" in chat.transcript() and chat.ready(), "the first")
            for form in ("json", "md"):
                file = tmp_path / f"it.{form}"
                await chat.send(f"/export {form} {file}")
                await chat.until(lambda it=file: it.exists() and chat.ready(), form)
            await chat.send("/clear")
            await chat.until(lambda: chat.ready() and shown() == (0, 0, 0, None), "none")
            await chat.send(f"/import {tmp_path}/it.json")
            await chat.until(lambda: shown() == pytest.approx(drafted, rel=0.01), "as it was")
            await chat.until(chat.ready)
            await chat.send(f"/import {tmp_path}/it.md")  # which has no figures
            await chat.until(lambda: shown() == (0, 0, 0, None), "none again")
            assert "Tell me a story." in chat.transcript()

    asyncio.run(body())
