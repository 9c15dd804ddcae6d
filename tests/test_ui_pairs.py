"""Pairs in the app: browsing, pulling through the real client from a Hub on loopback, switching."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from textual.command import CommandPalette
from textual.widgets import Input, OptionList

from localspec import formats
from localspec.chat.conversation import Message, Role
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.tree import StoredConversation
from localspec.chat.settings import ChatSettings
from localspec.engine.round.params import SamplingParams
from localspec.errors import Cancelled, LocalspecError, ModelFileError, OutOfMemory, UsageError
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import MachineSpeed, PairCosts, RankedPair
from localspec.pairs.disk import installed, other_programs
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.disk.remove import Removal
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download, pair_pull
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import CuratedPair
from localspec.process.engine_client import EngineClient
from localspec.process.loader import Loader
from localspec.process.server import EngineServer
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.pairs import pair_jobs, pair_messages
from localspec.ui.pairs.pair_events import PairWorkChanged
from localspec.ui.pairs.pair_jobs import PairJobs
from localspec.ui.screens.help import HelpScreen
from localspec.ui.screens.pair_lines import (
    PairsState,
    PairWork,
    detail_lines,
    pull_lines,
    table,
)
from localspec.ui.screens.pairs import PairsScreen
from tests.support import ggufs, hub_layouts
from tests.support.chat_pilot import Chat
from tests.support.hub_server import Repo
from tests.support.hub_world import World
from tests.support.inline import inline
from tests.support.scripted_session import ScriptedSession
from tests.support.waiting import wait_for

NAME = "qwen3-8b"
BIG = 2_000_000 // 32 * 32


@pytest.fixture
def target(hub_world: World) -> Repo:
    """A pair of the catalogue on the Hub: 2 MB and a draft that fits."""
    entry = catalogue.pairs()[NAME]
    hub_world.server.add(entry.draft.repo, {entry.draft.file: ggufs.model(seed=1)})
    return hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model(n_bytes=BIG)})


class Rooms:
    """Pairs that are scripted sessions; `log` has what happens, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refused: dict[str, LocalspecError] = {}
        self.broken: dict[str, LocalspecError] = {}
        self.slow: set[str] = set()
        self.sessions: list[ScriptedSession] = []
        self.draft: str | None = None

    def check(self, name: str) -> None:
        self.log.append(f"check {name}")
        if name in self.refused:
            raise self.refused[name]

    def load(self, name: str, progress: Any, cancel: Any) -> ScriptedSession:
        self.log.append(f"load {name}")
        progress(f"Loading {name}", 0.25)
        while name in self.slow:
            if cancel.is_set():
                raise Cancelled
            threading.Event().wait(0.005)
        if name in self.broken:
            raise self.broken[name]
        session = _Logged(pair_name=name, pair_reference=(name, self.draft), log=self.log)
        self.sessions.append(session)
        return session


class _Logged(ScriptedSession):
    """Writes down when it is freed."""

    def __init__(self, *, log: list[str], **script: Any) -> None:
        super().__init__(**script)
        self.log = log

    def close(self, progress: Any = None) -> None:
        super().close()
        self.log.append(f"free {self.pair_name}")


@asynccontextmanager
async def chatting(
    rooms: Rooms,
    size: tuple[int, int] = (100, 30),
    first: str = "first",
    *,
    scan: bool = True,
    proposes: bool = False,
) -> AsyncIterator[Chat]:
    engine = inline(rooms.load, rooms.check, first, scan=scan)
    app = ChatApp(engine, appearance=Appearance(proposes=proposes))
    async with app.run_test(size=size, notifications=True) as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.turns.phase is not EnginePhase.LOADING or first in rooms.slow)
        if rooms.sessions:
            chat.session = rooms.sessions[0]
        yield chat
    app.engine.shut_down()
    assert await asyncio.to_thread(app.engine.join, 10)
    assert all(session.closed for session in rooms.sessions)


async def browse(chat: Chat, name: str = NAME) -> None:
    """Open the screen and select `name`."""
    await chat.press("f12")
    await chat.until(lambda: chat.app.pairs.state.ranked, "the list")
    await chat.until(lambda: shown(chat).option_count > 0, "the lines")
    await select(chat, name)


async def select(chat: Chat, name: str) -> None:
    options = shown(chat)
    options.highlighted = [option.id for option in options.options].index(name)
    await chat.pilot.pause()


def shown(chat: Chat) -> OptionList:
    return chat.app.screen.query_one(OptionList)


async def test_the_first_frame_says_that_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the next frame comes seconds later."""
    monkeypatch.setattr(PairsScreen, "redraw", lambda _: None)
    async with chatting(Rooms()) as chat:
        await chat.press("f12")
        await chat.until(lambda: "looking for pairs …" in chat.screen(), "what it does")


async def test_a_pair_is_looked_at_pulled_used_and_the_conversation_stays(
    hub_world: World, target: Repo
) -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        await chat.ask("Who are you?")
        await browse(chat)
        await chat.until(lambda: "available" in chat.screen() and "licence" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: "Enter fetches 2" in chat.screen(), "the check")
        assert "the same 300 tokens" in chat.screen()
        assert not [seen for seen in hub_world.server.bodies() if not seen.range]
        fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
        await chat.press("enter")
        await chat.until(fault.reached.is_set, "the download")
        await chat.until(lambda: "fetching" in chat.screen(), "the files")
        assert "waits" in chat.screen()
        assert "C cancel" in chat.screen()
        fault.release.set()
        await chat.until(lambda: f"{NAME} is installed" in chat.screen(), "the end")
        assert installed.find(NAME) is not None
        await chat.until(lambda: "X remove" in chat.screen(), "the list anew")
        await chat.press("enter")
        await chat.until(lambda: len(rooms.sessions) == 2 and chat.ready(), "use")
        assert rooms.log == ["load first", f"check {NAME}", "free first", f"load {NAME}"]
        assert rooms.sessions[1].messages[0].content == "Who are you?"
        assert "▌ Who are you?" in chat.transcript()
        assert NAME in chat.screen()


async def test_cancelling_keeps_what_came_and_pulling_again_continues(
    hub_world: World, target: Repo
) -> None:
    entry = catalogue.pairs()[NAME]
    name = entry.target.file
    file = hub.RemoteFile(target.name, target.commit, name, target.size(name), target.etag(name))

    async with chatting(Rooms()) as chat:
        fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
        await browse(chat)
        await chat.press("enter")
        await chat.until(lambda: "Enter fetches" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: download.part_size(file) > 400_000, "some of it")
        await chat.press("c")
        await chat.until(lambda: "cancelled" in chat.screen())
        assert "kept" in chat.screen()
        fault.release.set()
        kept = download.part_size(file)
        hub_world.server.seen.clear()
        await chat.press("enter")
        await chat.until(lambda: "Enter fetches" in chat.screen())
        fault = hub_world.server.fault("/cdn/", hold_after=10_000)
        await chat.press("enter")
        await chat.until(fault.reached.is_set)
        await chat.press("escape")  # a pull goes on after its screen is closed
        fault.release.set()
        await chat.until(lambda: f"{NAME} is installed" in chat.transcript())
        assert f"bytes={kept}-" in [seen.range for seen in hub_world.server.bodies()]
        assert hub_cache.is_here(file)


async def test_quitting_in_the_middle_of_a_pull_ends_its_thread(
    hub_world: World, target: Repo
) -> None:
    async with chatting(Rooms()) as chat:
        fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
        await browse(chat)
        await chat.press("enter")
        await chat.until(lambda: "Enter fetches" in chat.screen())
        await chat.press("enter")
        await chat.until(fault.reached.is_set)
        await chat.press("escape")
        await chat.until(lambda: chat.app.focused is chat.app.prompt)
        await chat.press("ctrl+q")
    fault.release.set()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "pairs"])
    assert installed.find(NAME) is None


@pytest.mark.slow
async def test_what_cannot_work_is_explained_and_nothing_is_fetched(hub_world: World) -> None:
    entry = catalogue.pairs()[NAME]
    hub_world.server.add(entry.target.repo, {entry.target.file: ggufs.model(n_bytes=BIG)})
    odd = ggufs.model(ggufs.words(300, ["odd"] * 7))
    hub_world.server.add(entry.draft.repo, {entry.draft.file: odd})

    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("enter")
        await chat.until(lambda: "✗" in chat.screen(), "the refusal")
        assert "odd" in chat.screen()
        assert chat.app.pairs.state.work is PairWork.NONE
        await select(chat, "qwen2.5-coder-14b")
        await chat.press("enter")
        await chat.until(lambda: "no repository" in chat.screen(), "another refusal")
    assert installed.all_pairs() == []


@pytest.mark.slow
async def test_an_offline_hub_is_named(hub_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("enter")
        await chat.until(lambda: "offline mode is on" in chat.screen())
        await chat.press("escape")
        await chat.send(f"/get {NAME}")
        await chat.until(lambda: f"✗ {NAME}" in chat.transcript(), "the reason")
        assert pair_pull.recall_wanted() is None  # nothing came


@pytest.mark.slow
async def test_removing_asks_twice_and_spares_the_pair_in_use(
    hub_world: World, target: Repo
) -> None:
    assert hub_world.run("pull", NAME).code == 0
    own = InstalledPair("first", InstalledModel(("/nowhere.gguf",)), None)
    installed.save(own)

    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("x")
        await chat.until(lambda: f"Remove {NAME}?" in chat.screen())
        await chat.press("escape")
        assert f"Remove {NAME}?" not in chat.screen()
        assert installed.find(NAME) is not None
        await chat.press("x", "x")
        await chat.until(lambda: f"{NAME} is removed, 2.0" in chat.screen(), "removal")
        await chat.until(lambda: "available" in chat.screen())
        assert installed.find(NAME) is None
        await select(chat, "first")
        await chat.press("x", "x")
        await chat.until(lambda: "first is in use" in chat.screen())
    assert installed.find("first") is not None


@pytest.mark.parametrize(
    "size", [(40, 10), *(pytest.param(it, marks=pytest.mark.slow) for it in ((80, 24), (200, 50)))]
)
async def test_the_screen_is_usable_at_every_size(hub_world: World, size: tuple[int, int]) -> None:
    async with chatting(Rooms(), size=size) as chat:
        await browse(chat, list(catalogue.pairs())[-1])
        await chat.until(lambda: not chat.timers(), "rest")
        lines = chat.screen().splitlines()
        assert len(lines) == size[1]
        assert any(list(catalogue.pairs())[-1] in line for line in lines)
        assert any("Esc close" in line for line in lines)
        assert any("available" in line for line in lines)
        await chat.press("f12")
        await chat.until(lambda: chat.app.focused is chat.app.prompt, "the end")
        await browse(chat, "starter")
        await chat.press("escape")
        await chat.until(lambda: chat.app.focused is chat.app.prompt, "the end again")


@pytest.mark.slow
async def test_the_keys_of_the_app_that_make_sense_work_on_the_screen_and_are_named(
    hub_world: World,
) -> None:
    rooms = Rooms()
    async with chatting(rooms, size=(120, 30)) as chat:
        chat.session.gate.close()
        await chat.send("Go on.")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.ANSWERING)
        await browse(chat, "starter")
        named = "P pull another  R look again  Ctrl+C stop the answer  F1 help  Ctrl+Q quit"
        await chat.until(lambda: named in chat.screen())
        await chat.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen))
        await chat.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
        offered = [one.title for one in chat.app.get_system_commands(chat.app.screen)]
        assert offered == ["Help", "Theme", "Quit"]
        await chat.press("ctrl+c")
        await chat.until(chat.ready)
        await chat.until(lambda: "press Ctrl+C again to quit" in chat.screen())
        await chat.until(lambda: "stop the answer" not in chat.screen())
        await chat.press("f5", "f2", "f7")  # the screen below ignores keys
        assert isinstance(chat.app.screen, PairsScreen)
        assert chat.session.speculation
        assert chat.ready()
        await chat.press("ctrl+p")
        await chat.until(lambda: isinstance(chat.app.screen, CommandPalette))
        await chat.press("escape")
        await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
        await chat.press("ctrl+q")
    assert rooms.log == ["load first", "free first"]


async def test_words_of_strangers_are_harmless_here_too(hub_world: World) -> None:
    nasty = InstalledModel(("/x.gguf",), reference="a/b:\x1b]0;hi\x07", licence="\x1b[2J[bold]x")
    installed.save(InstalledPair("nasty", nasty, None))

    async with chatting(Rooms()) as chat:
        await browse(chat, "nasty")
        await chat.until(lambda: "[bold]x" in chat.screen())
        assert "\x1b" not in chat.screen()
        assert "\x07" not in chat.screen()


async def test_a_head_next_to_an_installed_target_is_named_with_its_pair(hub_world: World) -> None:
    hub_world.server.add("ann/Pair-GGUF", hub_layouts.with_head())
    assert hub_world.run("pull", "ann/Pair-GGUF", "--name", "without").code == 0
    assert hub_world.run("pull", "ann/Pair-GGUF", "--yes", "--name", "both").code == 0
    async with chatting(Rooms()) as chat:
        await browse(chat, "without")
        line = "head     not used yet: eagle3-a.gguf, 900 kB, fits: --draft auto,eagle3 adds it"
        await chat.until(lambda: line in chat.screen(), "the head")
        await select(chat, "both")
        await chat.until(lambda: "not used yet" not in chat.screen(), "the other pair")


async def test_the_list_names_the_key_that_stops_an_answer_there() -> None:
    async with chatting(Rooms()) as chat:
        chat.session.gate.close()
        await chat.send("Go on.")
        await chat.until(lambda: chat.app.turns.busy, "an answer")
        await chat.press("f12")
        chat.app.pairs._use("other")
        await chat.until(lambda: "an answer is running: Ctrl+C stops it" in chat.screen())
        chat.session.gate.open()


async def test_a_damaged_catalogue_is_said(
    hub_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, CuratedPair]:
        raise LocalspecError("the catalogue cannot be read")

    monkeypatch.setattr(catalogue, "pairs", broken)

    async with chatting(Rooms()) as chat:
        await chat.press("f12")
        await chat.until(lambda: "the catalogue cannot be read" in chat.screen())


# --- switching --------------------------------------------------------------------------------


async def test_what_is_refused_by_its_files_frees_nothing() -> None:
    rooms = Rooms()
    rooms.refused["other"] = ModelFileError("other.gguf is cut off", "Pull it again.")
    async with chatting(rooms) as chat:
        await chat.ask("Hello?")
        await chat.send("/pairs other")
        await chat.until(lambda: "other.gguf is cut off" in chat.transcript())
        assert "Pull it again." in chat.transcript()
        assert rooms.log == ["load first", "check other"]
        assert chat.ready()
        await chat.ask("Still there?")


@pytest.mark.parametrize("width", [76, 120])
def test_what_others_measured_is_said_in_words_and_seen_on_a_small_screen(width: int) -> None:
    (entry,) = (row for row in catalogue.rows() if row.name == "gpt-oss-20b")
    state = PairsState(
        ranked=ranking.ranked([entry], MachineSpeed("here", {"demo": PairCosts(10**9, (0.0, 1.0))}))
    )
    said = " ".join(" ".join(line.plain for line in detail_lines(state, entry, width, 10)).split())
    assert "drafting elsewhere, of gpt-oss-120b with lookup: 181 to 446 tokens/s" in said
    assert "(published in llama.cpp PR 19164)" in said


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (130, 40)])
async def test_a_changed_pair_or_draft_shows_no_figures_of_the_one_before(
    size: tuple[int, int],
) -> None:
    rooms = Rooms()
    async with chatting(rooms, size) as chat:

        def answered() -> bool:
            return "last answer" in chat.screen()

        async def loaded(what: str) -> None:
            known = len(rooms.sessions)
            if what == "another draft":
                chat.app.pair_loader.reload(draft="none")
            elif what == "the same":
                chat.app.pair_loader.reload()
            else:
                chat.app.pair_loader.switch(what)
            await chat.until(lambda: len(rooms.sessions) > known and chat.ready(), what)
            await chat.pilot.pause()
            chat.session = rooms.sessions[-1]

        for what in ("second", "another draft"):
            await chat.ask("Who are you?")
            await chat.until(answered, "its figures")
            rooms.draft = "none" if what == "another draft" else None
            await loaded(what)
            assert not answered()
        await chat.ask("And now?")
        await chat.until(answered, "its figures")
        await loaded("the same")  # the figures are those of this pair
        await chat.until(answered, "them again")


async def test_a_failed_load_brings_the_old_pair_and_the_conversation_back() -> None:
    rooms = Rooms()
    rooms.broken["other"] = OutOfMemory("it does not fit", "Choose a smaller one.")
    async with chatting(rooms) as chat:
        await chat.ask("Hello?")
        await chat.send("/pairs other")
        await chat.until(lambda: "first is in use again" in chat.transcript())
        assert "it does not fit" in chat.transcript()
        assert rooms.log == ["load first", "check other", "free first", "load other",
                             "load first"]  # fmt: skip
        assert "▌ Hello?" in chat.transcript()
        chat.session = rooms.sessions[-1]
        await chat.ask("Still there?")
        assert len(chat.session.messages) == 4


async def test_what_is_told_while_a_pair_is_looked_at_is_said_if_it_is_refused() -> None:
    rooms = Rooms()
    rooms.refused["other"] = UsageError("no")
    async with chatting(rooms) as chat:
        chat.app.pair_loader.switch("other")
        chat.app.pair_loader.tell("a word meanwhile")
        await chat.until(chat.ready, "the refusal")
        assert "a word meanwhile" in chat.transcript()


async def test_a_logit_bias_that_another_pair_cannot_have_is_left_out_and_that_is_said() -> None:
    said, rooms = "the logit bias is left out", Rooms()
    rooms.broken["broken"] = OutOfMemory("it does not fit")
    async with chatting(rooms) as chat:
        chat.app.engine.configure(ChatSettings(sampling=SamplingParams(logit_bias={5: -1.0})))
        await chat.send("/pairs broken")
        await chat.until(lambda: "first is in use again" in chat.transcript() and chat.ready())
        assert said not in chat.transcript()
        assert rooms.sessions[-1].settings.sampling.logit_bias == {5: -1.0}
        await chat.send("/pairs other")
        await chat.until(lambda: said in chat.transcript() and chat.ready(), said)
        assert rooms.sessions[-1].settings.sampling.logit_bias == {}


async def test_when_the_old_pair_fails_as_well_the_conversation_waits_for_a_third() -> None:
    rooms = Rooms()
    rooms.broken["other"] = OutOfMemory("it does not fit")
    async with chatting(rooms) as chat:
        await chat.ask("Hello?")
        rooms.broken["first"] = OutOfMemory("no room")
        await chat.send("/pairs other")
        await chat.until(lambda: "could not be loaded again either" in chat.transcript())
        assert "no room" in " ".join(chat.transcript().split())
        await chat.send("Anybody?")
        assert "no model is loaded" in chat.status()
        chat.app.prompt.clear()
        await chat.send("/pairs third")
        await chat.until(chat.ready)
        assert "▌ Hello?" in chat.transcript()
        assert [m.role for m in rooms.sessions[-1].messages] == [Role.USER, Role.ASSISTANT]
        assert chat.app.pair_loader.load_error is None


async def test_escape_cancels_a_switch_and_its_progress_was_shown() -> None:
    rooms = Rooms()
    rooms.slow.add("other")
    async with chatting(rooms) as chat:
        chat.session.messages.append(Message(Role.USER, "Hello?"))
        await chat.send("/pairs other")
        await chat.until(lambda: "Loading other" in chat.status(), "the progress")
        assert "25 %" in chat.status()
        assert "Esc cancels" in chat.status()
        await chat.send("too early")
        await chat.until(lambda: "Esc cancels  1 message waiting" in chat.status(), "the queue")
        await chat.press("escape")
        await chat.until(lambda: "loading was cancelled" in chat.transcript())
        await chat.until(lambda: chat.app.prompt.text == "too early", "the message")
        await chat.until(chat.ready)
        assert chat.app.session is not None
        assert chat.app.session.pair_name == "first"


@asynccontextmanager
async def first_load_cancelled() -> AsyncIterator[tuple[Rooms, Chat]]:
    rooms = Rooms()
    rooms.slow.add("first")
    async with chatting(rooms) as chat:
        await chat.until(lambda: "Loading first" in chat.status())
        chat.app.post_message(PairWorkChanged())
        await chat.settle()
        assert "Loading first" in chat.status()
        await chat.press("escape")
        await chat.until(lambda: "loading was cancelled" in chat.transcript())
        yield rooms, chat


async def test_the_first_load_can_be_cancelled_and_another_pair_chosen() -> None:
    async with first_load_cancelled() as (rooms, chat):
        await chat.send("/pairs other")
        await chat.until(chat.ready)
        assert rooms.sessions[0].pair_name == "other"
        assert rooms.log == ["load first", "load other"]


async def test_enter_loads_the_pair_whose_load_was_cancelled_and_sends_the_question() -> None:
    async with first_load_cancelled() as (rooms, chat):
        assert "Enter loads the models again" in chat.transcript()
        assert "Enter loads the models again" in chat.status()
        rooms.slow.clear()
        await chat.send("Hello?")
        await chat.until(lambda: "▌ Hello?" in chat.transcript())
        assert rooms.log == ["load first", "load first"]


@pytest.mark.slow
async def test_quitting_while_switching_ends_the_thread() -> None:
    rooms = Rooms()
    rooms.slow.add("other")
    async with chatting(rooms) as chat:
        await chat.send("/pairs other")
        await chat.until(lambda: "load other" in rooms.log)
        rooms.slow.add("first")  # going back would take for ever
        await chat.press("ctrl+q")


async def test_no_switch_while_an_answer_runs_nor_to_the_same_pair() -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        await chat.send("/pairs first")
        assert "first is in use" in chat.status()
        chat.session.gate.close()
        await chat.send("Go on.")
        await chat.send("/pairs other")
        assert "Esc stops it" in chat.status()
        chat.session.gate.open()
        await chat.until(chat.ready)
        assert rooms.log == ["load first"]


# --- a reference that is typed ----------------------------------------------------------------


@pytest.fixture
def strangers(hub_world: World) -> Repo:
    """A pair on the Hub that is not in the catalogue."""
    hub_world.server.add("ann/Small-GGUF", {"s-Q8_0.gguf": ggufs.model(seed=1)})
    files = {"b-Q8_0.gguf": ggufs.model(n_bytes=BIG), "b-Q2_K.gguf": ggufs.model(seed=3)}
    return hub_world.server.add("ann/Big-GGUF", files)


async def type_in(chat: Chat, text: str) -> None:
    """Have the line for a reference, and write `text` in it, the end of it key by key."""
    await chat.press("p")
    await chat.until(lambda: isinstance(chat.app.focused, Input), "the line")
    line = chat.app.screen.query_one(Input)
    line.value, keys = text[:-2], text[-2:]
    line.cursor_position = len(line.value)
    await chat.press(*keys)
    assert line.value == text
    await chat.press("enter")


@pytest.mark.slow
async def test_a_reference_is_typed_checked_pulled_and_used(
    hub_world: World, strangers: Repo
) -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        await browse(chat)
        await type_in(chat, "ann/Big-GGUF:q8_0 --draft ann/Small-GGUF --name cqx")
        await chat.until(lambda: "Enter fetches 2" in chat.screen(), "the check")
        assert "the same 300 tokens" in chat.screen()
        assert shown(chat).highlighted_option is not None
        assert shown(chat).highlighted_option.id == "cqx"
        assert not [seen for seen in hub_world.server.bodies() if not seen.range]
        fault = hub_world.server.fault("/cdn/ann/Big", hold_after=900_000, whole=True)
        await chat.press("enter")
        await chat.until(fault.reached.is_set, "the download")
        await chat.until(lambda: "fetching" in chat.screen(), "the files")
        await chat.press("c")
        await chat.until(lambda: "cancelled" in chat.screen(), "the end of it")
        fault.release.set()
        await chat.press("enter")  # the same reference again, by its line
        await chat.until(lambda: "Enter fetches" in chat.screen(), "the second check")
        await chat.press("enter")
        await chat.until(lambda: "cqx is installed" in chat.screen(), "the pair")
        await chat.until(lambda: "X remove" in chat.screen(), "the list anew")
        record = installed.find("cqx")
        assert record is not None
        assert record.target.files == ("b-Q8_0.gguf",)
        assert record.draft is not None
        await chat.press("enter")
        await chat.until(lambda: len(rooms.sessions) == 2 and chat.ready(), "use")
        assert rooms.log[-1] == "load cqx"


@pytest.mark.slow
async def test_what_is_typed_wrongly_is_said_and_can_be_mended(
    hub_world: World, strangers: Repo
) -> None:
    cases = {
        "": "Missing argument",
        "ann/Big-GGUF ann/Small-GGUF": "unexpected extra argument",
        "ann/Big-GGUF --ctx-size 5": "No such option",
        "ann/Big-GGUF:Q5_K_M": "It has: Q2_K, Q8_0.",
        "ann/Big-GGUF --draft ann/Nobody": "there is no repository ann/Nobody",
        "ann//x": "names no repository",
        "ann/Big-GGUF --name none": "cannot be a pair's name",
        "/no/such.gguf": "does not exist",
    }

    async with chatting(Rooms(), size=(100, 40)) as chat:
        await browse(chat)
        for text, said in cases.items():
            await type_in(chat, text)
            await chat.until(lambda said=said: said in chat.screen(), said)
            assert "✗" in chat.screen()
            await chat.press("escape") if shown(chat) is not chat.app.focused else None
        assert isinstance(chat.app.screen, PairsScreen)
        assert chat.app.pairs.state.guest is None
        assert installed.all_pairs() == []


@pytest.mark.slow
async def test_a_typed_pair_is_left_again_and_what_is_installed_is_not_pulled_twice(
    hub_world: World, strangers: Repo
) -> None:
    assert hub_world.run("pull", "ann/Big-GGUF", "--draft", "none", "--name", "mine").code == 0

    async with chatting(Rooms()) as chat:
        await browse(chat)
        await type_in(chat, "localspec pull ann/Big-GGUF --draft none --name mine")
        await chat.until(lambda: "mine is installed already" in chat.screen())
        await chat.until(lambda: shown(chat).highlighted_option.id == "mine", "its line")
        await type_in(chat, "ann/Big-GGUF:Q2_K")
        # No draft is known: those on this disk and in the catalogue were tried.
        await chat.until(lambda: "Enter fetches" in chat.screen(), "the check")
        assert "models would fit" in chat.screen()
        assert shown(chat).highlighted_option.id == "big"
        await chat.press("escape")
        await chat.until(lambda: "big" not in [o.id for o in shown(chat).options], "gone")
        await chat.press("escape")
        await chat.until(lambda: chat.app.focused is chat.app.prompt, "closed")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(40, 10), (80, 24)])
async def test_typing_fits_on_small_screens(
    hub_world: World, strangers: Repo, size: tuple[int, int]
) -> None:
    async with chatting(Rooms(), size=size) as chat:
        await browse(chat)
        before = shown(chat).scrollable_content_region.width
        await chat.press("p")
        await chat.until(lambda: isinstance(chat.app.focused, Input), "the line")
        assert shown(chat).scrollable_content_region.width == before  # no line is wrapped
        await chat.until(lambda: "Enter check  Esc leave" in chat.screen(), "its keys")
        await chat.press("escape")
        await type_in(chat, "ann/Big-GGUF --draft none --name a")
        await chat.until(lambda: "Enter fetches" in chat.screen(), "the check")
        assert any(line.strip(" │▸").startswith("a ") for line in chat.screen().splitlines())
        await chat.press("p")
        await chat.until(lambda: "ann/Big-GGUF --draft none" in chat.screen(), "the text again")


async def test_a_name_that_means_nothing_is_all_that_is_said() -> None:
    rooms = Rooms()
    rooms.refused["nosuch"] = UsageError("there is no pair nosuch", "localspec list shows all.")
    async with chatting(rooms) as chat:
        await chat.ask("Hello?")
        await chat.send("/pairs nosuch")
        await chat.until(lambda: "there is no pair nosuch" in chat.transcript() and chat.ready())
        assert "in use again" not in chat.transcript()
        assert chat.transcript().count("•") == 0
        await chat.ask("Still there?")


@pytest.mark.slow
async def test_what_is_said_of_a_pair_stays_with_it(hub_world: World, target: Repo) -> None:
    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("X")
        assert f"{NAME} is not installed" in chat.screen()
        await select(chat, "starter")
        assert "is not installed" not in chat.screen()
        await select(chat, NAME)
        assert f"{NAME} is not installed" in chat.screen()


def test_a_pull_says_how_long_it_takes_on_as_soon_as_that_can_be_told() -> None:
    file = download.FileProgress("a.gguf", "e", "fetching", 250, 1000, 250)
    told = pair_pull.PullProgress(file, (file,), 250, 1000, 100.0, 95.0)
    state = PairsState(work=PairWork.PULLING, name="small", progress=told)
    assert state.doing() == "fetching small 25 %, 1 min 35 s left"
    assert "1 min 35 s left" in pull_lines(state, 80, 24)[0].plain
    state.progress = replace(told, seconds_left=None)
    assert state.doing() == "fetching small 25 %"
    assert "fetching" in pull_lines(state, 80, 24)[0].plain


def test_a_removal_says_why_each_file_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    files = "a.gguf: it is your own file", "train/f: a training that was stopped"
    removal = Removal("mine", 0, files)
    monkeypatch.setattr(pair_jobs.remove, "remove", lambda *_: removal)
    monkeypatch.setattr(PairJobs, "_list", lambda _: None)
    app = SimpleNamespace(call_later=lambda call, *its: call(*its), post_message=lambda _: None)
    said: list[str] = []
    turns: Any = SimpleNamespace(
        transcript=SimpleNamespace(app=app, tell=lambda *its, **_: said.extend(its))
    )
    jobs = PairJobs(turns, turns, ())
    jobs._remove("mine")
    told = tuple(f"kept {file}" for file in files)
    assert jobs.state.said == ("mine is removed, 0 bytes freed", *told)
    assert said[1] == "\n".join(told)


def test_details_that_are_cut_say_so() -> None:
    row = catalogue.rows()[0]
    state = PairsState(ranked=[RankedPair(row, "fits")])
    whole = [line.plain for line in detail_lines(state, row, 70, 30)]
    cut = [line.plain for line in detail_lines(state, row, 70, 4)]
    assert len(whole) > 4
    assert len(cut) == 4
    assert cut[:3] == whole[:3]
    assert cut[3].endswith(" …")
    assert len(cut[3]) <= 70
    assert not whole[-1].endswith("…")


def test_what_is_said_before_the_list_is_there_stays_with_its_pair_too() -> None:
    state = PairsState()
    state.say(("starter is installed",), "starter")
    rows = catalogue.rows()
    state.list([RankedPair(row, "fits") for row in rows], None, 0, {})
    for row in rows[:2]:
        lines = "\n".join(line.plain for line in detail_lines(state, row, 80, 30))
        assert ("starter is installed" in lines) is (row.name == "starter")


@pytest.mark.slow
async def test_a_reference_that_failed_stands_in_its_line_again(
    hub_world: World, strangers: Repo
) -> None:
    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("P")  # as a capital letter too
        await chat.until(lambda: isinstance(chat.app.focused, Input), "the line")
        await chat.press(*"ann/Big-GGUF:Q9", "enter")
        await chat.until(lambda: "✗" in chat.screen(), "the reason")
        line = chat.app.focused
        assert isinstance(line, Input)
        assert line.value == "ann/Big-GGUF:Q9"
        await chat.press("backspace", "8", "_", "0", "enter")
        await chat.until(lambda: "Enter fetches" in chat.screen(), "the check")


@pytest.mark.slow
async def test_what_went_wrong_with_a_reference_is_gone_when_a_pair_is_chosen(
    hub_world: World, strangers: Repo
) -> None:
    async with chatting(Rooms()) as chat:
        await browse(chat)
        await chat.press("p")
        await chat.until(lambda: isinstance(chat.app.focused, Input), "the line")
        await chat.press(*"ann/Big-GGUF:Q9", "enter")
        await chat.until(lambda: "✗" in chat.screen(), "the reason")
        await chat.press("escape")
        assert "✗" in chat.screen()
        await chat.press("down")
        await chat.until(lambda: "✗" not in chat.screen(), "the other pair alone")


async def test_a_conversation_opened_without_a_model_has_no_question_of_the_one_before() -> None:
    rooms, record = Rooms(), ConversationRecord()
    record.graft([Message(Role.USER, "Other?"), Message(Role.ASSISTANT, "Yes.")], ChatSettings())
    rooms.broken["other"] = OutOfMemory("it does not fit")
    async with chatting(rooms) as chat:
        await chat.ask("Hello?")
        chat.app.prompt.insert("Later?")
        await chat.press("f8")
        rooms.broken["first"] = OutOfMemory("no room")
        chat.app.pair_loader.switch("other")
        await chat.until(lambda: chat.app.turns.phase is EnginePhase.UNUSABLE, "two failures")
        chat.app.library._show(StoredConversation(record.header, record.tree))
        chat.app.pair_loader.switch("third")
        await chat.until(chat.ready, "the third pair")
        chat.session = rooms.sessions[-1]
        await chat.press("enter")
        await chat.until(lambda: len(chat.session.messages) == 4 and chat.ready(), "the answer")
        assert [m.content for m in chat.session.messages][::2] == ["Other?", "Later?"]


async def test_a_context_that_could_not_be_had_is_not_called_the_users() -> None:
    def load(request: LoadRequest, _progress: object, _cancel: object) -> ScriptedSession:
        if request.ctx_size:
            raise OutOfMemory("it does not fit")
        return ScriptedSession(pair_reference=(str(request.pair), None))

    loader = Loader(load, print, lambda *_: b"")
    app = ChatApp(EngineClient(LoadRequest(pair="demo"), lambda: EngineServer(lambda: loader)))
    async with app.run_test() as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.session is not None)
        await chat.send("/set ctx-size 2048")
        await chat.until(lambda: "it does not fit" in chat.transcript() and chat.ready())
        await chat.send("/set ctx-size")
        await chat.until(lambda: "ctx-size 4096 (chosen by localspec)" in chat.transcript())
    app.engine.shut_down()
    assert app.engine.join(10)


async def test_stop_strings_and_the_context_size_are_set_in_the_app() -> None:
    loaded: list[LoadRequest] = []

    def load(request: LoadRequest, _progress: object, _cancel: object) -> ScriptedSession:
        loaded.append(request)
        reference = str(request.pair), request.draft
        return ScriptedSession(pair_reference=reference, exact="it costs 40 % of the speed")

    def perform(*_: object) -> bytes:
        raise AssertionError

    app = ChatApp(
        EngineClient(
            LoadRequest(pair="demo"), lambda: EngineServer(lambda: Loader(load, print, perform))
        )
    )
    async with app.run_test() as pilot:
        chat = Chat(app, pilot, ScriptedSession())
        await chat.until(lambda: app.session is not None)
        await chat.send("/set stop two words")
        await chat.until(lambda: app.session.settings.stop == ("two words",))
        said = " ".join(chat.transcript().split())
        assert "stop two words (yours) · ctx-size 4096 (chosen by localspec)" in said
        await chat.send("/set stop none")
        await chat.until(lambda: app.session.settings.stop == ())
        await chat.send("/set ctx-size many")
        await chat.until(lambda: "ctx-size cannot be “many”" in chat.transcript())
        await chat.send("/set stop END")
        await chat.send("/set ctx-size 2048")
        await chat.until(lambda: len(loaded) == 2 and chat.ready())
        assert (loaded[1].pair, loaded[1].ctx_size) == ("demo", 2048)
        assert app.session.settings.stop == ("END",)
        await chat.send("/set exact on")  # it is not switched on before its cost is told
        await chat.until(lambda: "it costs 40 %" in chat.transcript())
        assert len(loaded) == 2
        await chat.send("/set exact anyway")
        await chat.until(lambda: len(loaded) == 3 and chat.ready())
        assert loaded[2].exact
        await chat.send("/set exact off")  # nor may the plan choose it then
        await chat.until(lambda: len(loaded) == 4 and chat.ready())
        assert loaded[3].exact is False
        await chat.send("/pairs other")  # what was set stays
        await chat.until(lambda: len(loaded) == 5 and chat.ready())
        assert loaded[4] == replace(loaded[3], pair="other", draft=None)
        await chat.send("/set exact default")
        await chat.until(lambda: len(loaded) == 6 and chat.ready())
        assert loaded[5].exact is None
    app.engine.shut_down()
    assert app.engine.join(10)


@pytest.mark.slow
async def test_what_another_program_has_is_looked_at_and_used_where_it_is(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "Some-Model-Q8_0.gguf").write_bytes(ggufs.model())
    monkeypatch.setenv("LLAMA_CACHE", str(folder))
    name = "Some-Model-Q8_0"

    rooms = Rooms()
    async with chatting(rooms) as chat:
        await chat.press("f12")
        await chat.until(lambda: chat.app.pairs.state.row(name), "another program's model")
        await chat.until(lambda: name in [one.id for one in shown(chat).options], "its line")
        await select(chat, name)
        for part in ("Of llama.cpp, Q8_0, with", "a chat template", "used where it is."):
            assert part in chat.screen()
        await chat.press("x")
        await chat.until(lambda: "is not installed" in chat.screen())
        await chat.press("enter")
        await chat.until(lambda: "Enter uses it" in chat.screen(), "the report")
        await chat.press("enter")
        await chat.until(lambda: f"load {name}" in rooms.log, "the model")
        await chat.until(chat.ready)
        assert installed.all_pairs() == []


@pytest.mark.slow
async def test_a_pair_that_is_fetched_to_be_used_waits_for_the_answers_end_and_says_how_far_it_is(
    hub_world: World, target: Repo
) -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        await chat.send("/get")
        await chat.until(lambda: "nothing is proposed" in chat.transcript())
        chat.session.gate.close()
        await chat.send("Tell me something.")
        await chat.until(lambda: chat.app.turns.busy, "an answer")
        fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
        await chat.send(f"/get {NAME}")
        await chat.until(fault.reached.is_set, "the download")
        await chat.until(lambda: f"fetching {NAME}" in chat.status(), "how far it is")
        await chat.until(
            lambda: pair_pull.recall_wanted() == PullRequest(NAME), "what came is known"
        )
        fault.release.set()
        await chat.until(lambda: "waits for the answer's end" in chat.status(), "waiting")
        assert f"load {NAME}" not in rooms.log
        chat.session.gate.open()
        await chat.until(lambda: f"load {NAME}" in rooms.log, "the change")
        await chat.until(lambda: chat.ready() and pair_pull.recall_wanted() is None, "the end")
        await chat.until(lambda: f"{NAME} answers from now on" in chat.transcript(), "that it is")
        await browse(chat)
        assert "being loaded" not in chat.screen()
        assert rooms.sessions[-1].messages[0].content == "Tell me something."


@pytest.mark.slow
async def test_a_pair_that_is_here_is_changed_to_without_a_network(
    hub_world: World, target: Repo
) -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        await chat.send(f"/get {NAME}")
        await chat.until(lambda: f"{NAME} answers from now on" in chat.transcript(), "the pair")
        await chat.send("/pairs first")
        await chat.until(lambda: f"free {NAME}" in rooms.log and chat.ready(), "the other one")
        asked, loads = len(hub_world.server.seen), rooms.log.count(f"load {NAME}")
        await chat.send(f"/get {NAME}")
        await chat.until(lambda: rooms.log.count(f"load {NAME}") > loads, "the change")
        await chat.until(chat.ready, "the pair again")
        assert len(hub_world.server.seen) == asked
        assert pair_pull.recall_wanted() is None


async def test_a_check_that_is_cancelled_at_its_end_fetches_nothing(
    hub_world: World, target: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pair_pull.plan
    async with chatting(Rooms()) as chat:

        def cancelled_late(*given: Any, **how: Any) -> pair_pull.PullPlan:
            found = plan(*given, **how)
            chat.app.pairs.cancel()
            return found

        monkeypatch.setattr(pair_pull, "plan", cancelled_late)
        await chat.send(f"/get {NAME}")
        await chat.until(lambda: "cancelled" in chat.transcript(), "the end")
        assert chat.app.pairs.state.work is PairWork.NONE
        assert pair_pull.recall_wanted() is None
        assert installed.find(NAME) is None


@pytest.mark.slow
async def test_what_was_cancelled_and_is_fetched_again_is_offered_after_a_restart(
    hub_world: World, target: Repo
) -> None:
    async with chatting(Rooms()) as chat:
        for _ in range(2):
            fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
            await chat.send(f"/get {NAME}")
            await chat.until(lambda: pair_pull.recall_wanted() == PullRequest(NAME), "some of it")
            told = chat.transcript().count("cancelled")
            chat.app.pairs.cancel()
            await chat.until(lambda told=told: chat.transcript().count("cancelled") > told)
            fault.release.set()
            assert pair_pull.recall_wanted() is None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "refused", "loaded"])
async def test_what_another_window_fetches_stays_remembered(
    hub_world: World, target: Repo, how: str
) -> None:
    others = PullRequest("user/other")
    rooms = Rooms()
    async with chatting(rooms) as chat:
        if how == "refused":
            pair_pull.remember_wanted(others)
            await chat.send("/get nobody/nothing")
            await chat.until(lambda: "✗ nobody/nothing" in chat.transcript(), "the reason")
        else:
            fault = hub_world.server.fault("/cdn/", hold_after=900_000, whole=True)
            await chat.send(f"/get {NAME}")
            await chat.until(lambda: pair_pull.recall_wanted() == PullRequest(NAME), "some of it")
            pair_pull.remember_wanted(others)
            if how == "cancelled":
                chat.app.pairs.cancel()
            fault.release.set()
            said = f"{NAME} answers from now on" if how == "loaded" else "cancelled"
            await chat.until(lambda: said in chat.transcript(), "the end")
        assert pair_pull.recall_wanted() == others


@pytest.mark.slow
async def test_a_fetch_is_remembered_again_once_another_window_has_forgotten_its_own(
    hub_world: World, target: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_jobs, "_NEWS_S", 0.0)
    others = PullRequest("user/other")
    async with chatting(Rooms()) as chat:
        first, last = (hub_world.server.fault("/cdn/", hold_after=64, whole=True) for _ in range(2))
        first.hold_after = 900_000
        await chat.send(f"/get {NAME}")
        await chat.until(lambda: pair_pull.recall_wanted() == PullRequest(NAME), "some of it")
        pair_pull.remember_wanted(others)
        pair_pull.forget_wanted(others)
        first.release.set()
        await chat.until(lambda: pair_pull.recall_wanted() == PullRequest(NAME), "more of it")
        last.release.set()
        await chat.until(lambda: f"{NAME} answers from now on" in chat.transcript(), "the end")
        assert pair_pull.recall_wanted() is None


async def test_another_pair_that_is_fetched_meanwhile_is_not_changed_to() -> None:
    rooms = Rooms()
    async with chatting(rooms) as chat:
        pairs = chat.app.pairs
        pairs._getting, pairs._fetching = PullRequest("wanted"), "wanted"
        pairs.state.name = "another"
        pairs._fetched("another")
        await chat.until(lambda: "another is installed" in chat.transcript())
        await chat.until(chat.ready)
        assert "load another" not in rooms.log
        assert not pairs._arrived


async def test_a_pair_that_cannot_be_fetched_to_be_used_is_no_more_than_told(
    hub_world: World,
) -> None:
    async with chatting(Rooms()) as chat:
        await chat.send("/get nobody/nothing")
        await chat.until(lambda: "✗ nobody/nothing" in chat.transcript(), "the reason")
        await chat.until(chat.ready)
        assert pair_pull.recall_wanted() is None  # no later start speaks of it
        await chat.until(lambda: "fetching" not in chat.status(), "the status line's own words")
        chat.app.pairs.cancel()


def test_a_fast_pair_takes_one_line_on_a_small_screen() -> None:
    own = catalogue.rows()[0]
    for baseline, drafted in ((883.0, 1498.0), (1636.0, 1939.0)):
        fast = RankedPair(own, "fits", baseline, drafted, measured=True)
        head, line = table(PairsState(ranked=[fast]), 68)
        assert line.cell_length == head.cell_length == 68
        assert f"{baseline:,.0f}, {drafted:,.0f}  " in line.plain


@pytest.mark.parametrize("name", ["通义千问", "通义千问" * 9])
def test_a_pair_with_a_name_in_wide_letters_has_the_same_columns(name: str) -> None:
    own = catalogue.rows()[0]
    ranked = [RankedPair(one, "fits") for one in (own, replace(own, name=name))]
    head, *lines = table(PairsState(ranked=ranked), 84)
    assert {line.cell_length for line in (head, *lines)} == {84}
    first, second = (cell_len(line.plain.rpartition(f" {own.kind} ")[0]) for line in lines)
    assert first == second > 0


@pytest.mark.parametrize("width", [40, 53, 54, 61, 62, 68, 69, 83, 84, 95, 96, 110])
def test_all_pairs_have_the_same_columns(width: int) -> None:
    """At 80 columns pairs with two speeds lacked the column "for" that the others had."""
    speeds = ((1.84, 1.92), (11.0, 11.0), (1636.0, 1939.0), (0.4, 0.4))
    ranks = [
        RankedPair(row, "fits" if n else "too large", *two, doubtful=True)
        for n, (row, two) in enumerate(zip(catalogue.rows()[1:], speeds, strict=False))
    ]
    head, *lines = table(PairsState(ranked=ranks), width)
    assert {line.cell_length for line in (head, *lines)} == {width}
    for name, of in (("for", lambda row: row.kind), ("licence", lambda row: row.licence)):
        at = head.plain.find(name)
        for line, one in zip(lines, ranks, strict=True):
            assert line.plain.find(f" {of(one.row)[:20]} ") == (at - 1 if at >= 0 else -1)
    slow, *_ = table(PairsState(ranked=ranks[:2]), 69)
    assert "for" in slow.plain  # 80 columns


async def test_the_command_for_a_card_without_a_backend_comes_first(
    hub_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    advice = ("llama.cpp was not built for the card here", "build --for-it")
    costs = PairCosts(10**9, (0.02, *(0.02 + n / 1000 for n in range(9))), bits=8.5)
    ranking.remember("starter", costs, None, advice)
    async with chatting(Rooms(), first="starter", proposes=True) as chat:
        await chat.until(lambda: "for this machine (" in chat.transcript(), "the proposal")
        said = " ".join(chat.transcript().split())
        assert 0 < said.index(f"first of all: {advice[0]}") < said.index("for this machine (")
        assert advice[1] in said
        await chat.ask("A question.")
        assert chat.transcript().count("Ctrl+F fetches") == 1  # told once
    listed = hub_world.run("list", "--no-scan").out
    first, help_, then = f"First of all: {advice[0]}", advice[1], "For this machine:"
    assert 0 < listed.index(first) < listed.index(help_) < listed.index(then)
    assert "Tokens/s are expected from starter" in listed
    assert "with drafting; " in listed


async def test_on_a_busy_machine_pairs_are_proposed_once_it_was_calm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    times = (0.02, *(0.02 + n / 1000 for n in range(9)))
    busy = PairCosts(10**9, times, bits=8.5, doubtful=True)
    ranking.remember("starter", busy, None, None)
    async with chatting(Rooms(), first="starter", proposes=True, size=(80, 24)) as chat:
        await chat.until(lambda: pair_messages.BUSY in chat.screen(), "the whole of it on a line")
        await chat.ask("One question.")
        assert "for this machine" not in chat.transcript()
        await chat.send("/get")
        await chat.until(lambda: "✗ the machine is busy" in chat.transcript(), "why not")
        ranking.remember("starter", replace(busy, doubtful=False), None, None)
        await chat.ask("Another question.")
        await chat.until(lambda: "for this machine: " in chat.transcript(), "a proposal")
        assert (
            " ".join(chat.transcript().split()).count(pair_messages.BUSY) == 2
        )  # and as /get was told


async def test_of_two_lists_at_once_the_newer_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, newer = threading.Event(), threading.Event()
    shown: list[str] = []

    def recall() -> MachineSpeed:
        if asked.is_set():
            newer.set()
            return MachineSpeed("newer")
        asked.set()
        newer.wait(0.5)  # lists that wait for no other overtake this one
        return MachineSpeed("older")

    async with chatting(Rooms()) as chat:
        pairs = chat.app.pairs
        monkeypatch.setattr(ranking, "recall", recall)
        pairs._list_and(lambda: shown.append(pairs.state.speed.processor))
        assert await asyncio.to_thread(asked.wait, 10)
        pairs._list_and(lambda: shown.append(pairs.state.speed.processor))
        await chat.until(lambda: len(shown) == 2, "both lists")
        assert pairs.state.speed.processor == "newer"


def test_what_the_key_does_is_said_with_the_size_or_that_it_is_here_already() -> None:
    row = next(one for one in catalogue.rows() if one.state == "available")
    known = RankedPair(row, "fits", 9.0, 12.0)
    wanted = PullRequest(row.name)
    said = pair_messages.what_get_does(wanted, known)
    assert f"fetches {row.name} ({formats.size(row.n_bytes)}) and changes to it." in said
    assert "(" not in pair_messages.what_get_does(wanted, None)
    here = RankedPair(replace(row, state="installed"), "fits", 9.0, 12.0, measured=True)
    assert (
        pair_messages.what_get_does(wanted, here) == f"Ctrl+F changes to {row.name}, which is here."
    )
    assert ": 9.0 tokens/s, 12 with drafting; " in pair_messages.answers_now(wanted, here)


def test_a_pair_that_nothing_drafts_for_is_shown_without_an_assumed_acceptance() -> None:
    row = catalogue.rows()[0]
    measured = MachineSpeed("here", {"demo": PairCosts(10**9, (0.1, 0.1, 0.1), bits=8.5)})
    for drafted, told in ((10.0, False), (15.0, True)):
        pairs = [RankedPair(row, "fits", 10.0, drafted)]
        state = PairsState(ranked=pairs, speed=measured)
        lines = "\n".join(line.plain for line in detail_lines(state, row, 200, 30))
        assert "expected from demo, which reads 10 GB of weights a second here" in lines
        assert ("70 % of drafted tokens are accepted" in lines) is told


async def test_a_look_at_drafts_that_fails_is_told_and_shown_in_the_status_line(
    hub_world: World, strangers: Repo
) -> None:
    async with chatting(Rooms(), first="ann/Big-GGUF:Q8_0") as chat:
        fault = hub_world.server.fault("Big-GGUF", status=418)
        await chat.send("/draft")
        await chat.until(lambda: "(status 418)" in chat.transcript(), "why")
        assert fault.times == 0
        await chat.until(lambda: "checking" not in chat.status(), "the status line's own words")
        await chat.send("/draft")
        await chat.until(lambda: "drafting now" in chat.transcript(), "the drafts")


@pytest.mark.slow
async def test_what_has_to_wait_for_other_work_says_so_in_the_conversation(
    hub_world: World, target: Repo
) -> None:
    async with chatting(Rooms()) as chat:
        fault = hub_world.server.fault("/cdn/", hold_after=10)
        await chat.send(f"/get {NAME}")
        await chat.until(fault.reached.is_set, "a header on its way")
        assert f"checking {NAME}" in chat.status()
        for times, command in enumerate(("/draft", f"/get {NAME}"), 1):
            await chat.send(command)
            said = f"{NAME} is being checked"
            await chat.until(lambda n=times, it=said: chat.transcript().count(it) == n, command)
        assert "F12, then C, cancels that." in chat.transcript()
        fault.release.set()
        await chat.until(lambda: installed.find(NAME) is not None, "the pair")


@pytest.mark.slow
@pytest.mark.parametrize("typed", [False, True])
async def test_what_was_fetched_and_opened_by_other_means_is_wanted_no_more(
    hub_world: World, typed: bool
) -> None:
    pair_pull.remember_wanted(PullRequest("first"))
    async with chatting(Rooms(), proposes=not typed) as chat:
        if typed:
            await chat.send("/get first")
        await chat.until(lambda: pair_pull.recall_wanted() is None, "the end of it")
        assert "was being fetched" not in chat.transcript()


async def test_another_interrupted_pair_is_still_wanted_and_offered(hub_world: World) -> None:
    pair_pull.remember_wanted(PullRequest("first", "user/other"))  # with a draft it is another pair
    async with chatting(Rooms(), proposes=True) as chat:
        said = "first --draft user/other was being fetched"
        await chat.until(lambda: said in " ".join(chat.transcript().split()), said)
        await chat.send("/get first")
        assert "first is in use" in chat.status()
        assert pair_pull.recall_wanted() == PullRequest("first", "user/other")


@pytest.mark.slow
async def test_what_was_interrupted_is_offered_though_the_pairs_were_looked_at_first(
    hub_world: World,
) -> None:
    pair_pull.remember_wanted(PullRequest("user/other"))
    rooms = Rooms()
    rooms.slow.add("first")
    async with chatting(rooms, proposes=True) as chat:
        await browse(chat, "starter")
        await chat.press("escape")
        rooms.slow.clear()
        await chat.until(lambda: "user/other was being fetched" in chat.transcript(), "the offer")


@pytest.mark.slow
async def test_nothing_is_proposed_over_what_is_fetched_before_the_first_pair_is_there(
    hub_world: World, target: Repo
) -> None:
    rooms = Rooms()
    rooms.slow.add("first")
    async with chatting(rooms, proposes=True) as chat:
        fault = hub_world.server.fault("/cdn/", hold_after=10)
        await chat.send(f"/get {NAME}")
        await chat.until(fault.reached.is_set, "a header on its way")
        rooms.slow.clear()
        await chat.until(chat.ready, "the pair")
        fault.release.set()
        await chat.until(lambda: f"load {NAME}" in rooms.log and chat.ready(), "the other pair")
        assert "was being fetched" not in chat.transcript()


@pytest.mark.slow
async def test_nobody_looks_for_other_programs_models_where_that_is_not_wanted(
    hub_world: World, strangers: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(
        other_programs, "scan", lambda: looked.append(1) or other_programs.FoundModels(())
    )
    async with chatting(Rooms(), scan=False) as chat:
        await browse(chat)
        await type_in(chat, "ann/Big-GGUF:Q2_K")  # for which drafts are searched
        await chat.until(lambda: "Enter fetches" in chat.screen(), "the check")
        await chat.press("escape")
        await type_in(chat, "no-such-name")
        await chat.until(lambda: "there is no pair named no-such-name" in chat.screen(), "why")
    assert looked == []


@pytest.mark.slow
async def test_cancelling_a_look_at_another_pair_keeps_what_was_interrupted(
    hub_world: World, target: Repo
) -> None:
    pair_pull.remember_wanted(PullRequest("user/other"))
    async with chatting(Rooms()) as chat:
        fault = hub_world.server.fault("/cdn/", hold_after=10)
        await browse(chat)
        await chat.press("enter")
        await chat.until(fault.reached.is_set, "a header on its way")
        await chat.press("c")
        fault.release.set()
        await chat.until(lambda: "cancelled" in chat.screen(), "the end")
        assert pair_pull.recall_wanted() == PullRequest("user/other")
