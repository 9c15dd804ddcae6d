"""From the starter to a better pair, in a real terminal and from a Hub on loopback."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from localspec.pairs.names import catalogue
from tests.support import costs, toy
from tests.support.hub_server import HubServer, running
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

SIZES = [(80, 24), (120, 40)]
GET = "\x06"  # Ctrl+F


@pytest.fixture
def hub(toy_target: Path, toy_draft: Path) -> Iterator[HubServer]:
    """All pairs of the catalogue: the toy's, or the toy with MTP for pairs without a draft."""
    with running() as server:
        for entry in catalogue.pairs().values():
            served = toy_target if entry.draft else toy.mtp()
            for file, path in zip(entry.files, (served, toy_draft), strict=False):
                files = server.repos[file.repo].files if file.repo in server.repos else {}
                server.add(file.repo, {**files, file.file: path})
        yield server


@pytest.fixture
def start(
    starter_file: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    costs.keep_starter(starter_file)  # as on a quiet machine: pairs are proposed

    def begin(size: tuple[int, int], *arguments: str) -> Terminal:
        folders = {"LOCALSPEC_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}
        more = {"HF_ENDPOINT": hub.url, **folders}
        arguments = ("chat", *arguments, "--n-predict", "8", "--temp", "0")
        opened.append(Terminal([*arguments], tmp_path, *size, environment=more))
        return opened[-1]

    yield begin
    for one in opened:
        one.child.close(force=True)


def proposed(chat: Terminal) -> str:
    """The name of the pair that one key fetches."""
    pattern = r"Ctrl\+F\s+fetches\s+([a-z0-9.-]+[a-z0-9])"
    chat.until(lambda: re.search(pattern, chat.text()), "a proposal")
    found = re.search(pattern, chat.text())
    assert found is not None
    return found[1]


def ask(chat: Terminal, text: str) -> None:
    chat.child.send(f"{text}\r")
    chat.sees(f"▌ {text}")
    chat.until(lambda: "ready" in chat.text() and "8 tokens" in chat.text(), "an answer")


def answers(chat: Terminal, name: str) -> None:
    """The pair is loaded, and the conversation goes on with it."""
    chat.until(lambda: f"localspec  {name}" in chat.text() and "ready" in chat.text(), name)
    ask(chat, "And now?")


def leave(chat: Terminal) -> None:
    chat.child.send("\x11")
    assert chat.ends() == 0
    assert chat.restored()


def kill(chat: Terminal) -> None:
    chat.child.kill(signal.SIGKILL)
    chat.until(lambda: not chat.child.isalive(), "the end")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_one_key_leads_from_the_starter_to_a_better_pair(
    start: Callable[..., Terminal], size: tuple[int, int]
) -> None:
    chat = start(size, "starter")
    name = proposed(chat)
    chat.sees("for this machine (expected from starter")
    ask(chat, "Tell me a story.")
    assert "for this machine: " not in chat.text()  # it was told once
    chat.child.send(GET)
    chat.until(lambda: f"localspec  {name}" in chat.text(), "the other pair")
    chat.sees("▌ Tell me a story.")
    answers(chat, name)
    leave(chat)
    again = start(size)
    again.sees(f"localspec  {name}")
    again.sees("Enter send")
    assert "Ctrl+F" not in again.text()
    leave(again)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_whatever_interrupts_it_the_next_start_offers_to_go_on(
    start: Callable[..., Terminal], hub: HubServer, tmp_path: Path, size: tuple[int, int]
) -> None:
    name = [*catalogue.pairs()][1]  # after the starter
    file = f"/cdn/{catalogue.pairs()[name].target.repo}"
    chat = start(size, name)  # the pair is not on this disk: it is offered
    chat.sees("is not on this disk yet")
    assert proposed(chat) == name

    checking = hub.fault(file, hold_after=10)
    chat.child.send(GET)
    wait_for(checking.reached.is_set)
    chat.sees(f"checking {name}")
    kill(chat)
    checking.release.set()

    chat = start(size, name)  # no byte of the file came, so no pull was begun
    chat.sees("is not on this disk yet")
    assert "was being fetched" not in chat.text()
    fetching = hub.fault(file, whole=True, hold_after=5_000_000)
    chat.child.send(GET)
    wait_for(fetching.reached.is_set)
    chat.sees(f"fetching {name}")
    wait_for((tmp_path / "wanted.json").exists)  # with the first bytes
    kill(chat)
    fetching.release.set()
    before = len(hub.bodies(file))

    chat = start(size, "starter")
    chat.sees("what came is kept")
    chat.child.send(GET)
    wait_for((tmp_path / "pairs" / f"{name}.json").exists)
    kill(chat)  # while it is loaded or measured
    ranges = [seen.range for seen in hub.bodies(file)[before:]]
    assert any(not each.startswith("bytes=0-") for each in ranges), ranges

    chat = start(size, "starter")
    chat.sees(f"{name} was being fetched")
    chat.child.send(GET)
    answers(chat, name)
    leave(chat)
    assert not (tmp_path / "wanted.json").exists()
