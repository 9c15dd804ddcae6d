"""Commands and keys that people use out of habit, in a real terminal with the toy pair."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from tests.support import toy
from tests.support.terminal import Terminal

ESC, DOWN, UP, F7, F12 = "\x1b", "\x1b[B", "\x1b[A", "\x1b[18~", "\x1b[24~"
SHORT = ("toy", "--temp", "0", "--n-predict", "8", "--gamma", "3", "--threads", "1")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def begin(*arguments: str, columns: int = 110, rows: int = 34, **more: str) -> Terminal:
        chat = Terminal(["chat", *arguments], tmp_path, columns, rows, environment=more)
        opened.append(chat)
        chat.sees("ready")
        return chat

    yield begin
    for one in opened:
        one.child.close(force=True)


def ask(chat: Terminal, question: str) -> None:
    chat.child.send(f"{question}\r")
    chat.until(
        lambda: f"▌ {question}" in chat.text() and "ready" in chat.text() and
        "8 tokens" in chat.text(),
        "an answer",
    )  # fmt: skip


@pytest.mark.slow
def test_what_other_programs_call_the_commands(
    start: Callable[..., Terminal], tmp_path: Path
) -> None:
    chat = start(*SHORT)
    chat.sees("million parameters. It makes mistakes")
    chat.child.send("/?\r")
    chat.sees("Esc closes")
    chat.child.send(ESC)
    chat.until(lambda: "Esc closes" not in chat.text(), "the end of the help")
    ask(chat, "Tell me a story.")
    chat.child.send("/retry\r")
    chat.sees("‹ 2/2 ›")
    chat.sees("ready")
    chat.child.send("/show\r")
    chat.sees("system  no system prompt")
    chat.child.send("/set temperature 0.5\r")
    chat.sees("temp 0.5")
    chat.child.send("/set parameter top_k 7\r")
    chat.sees("top-k 7")
    chat.child.send("/set num_ctx 1024\r")
    chat.until(lambda: "ready" in chat.text() and "top-k" not in chat.text(), "loaded again")
    chat.child.send("/set\r")
    chat.sees("ctx-size 1024")
    chat.child.send("/temp 9\r")
    chat.sees("hardly more than noise")
    saved = tmp_path / "saved.md"
    chat.child.send(f"/save {saved}\r")
    chat.until(saved.exists, "the file")
    chat.child.send("/new\r")
    chat.until(lambda: "▌ Tell me a story." not in chat.text(), "a new conversation")
    chat.child.send("/load story\r")
    chat.sees("▌ Tell me a story.")
    chat.child.send("/reset\r")
    chat.until(lambda: "▌ Tell me a story." not in chat.text(), "a new conversation")
    chat.child.send(f"/load {saved}\r")
    chat.sees("▌ Tell me a story.")
    chat.child.send("/clear\r")
    chat.until(lambda: "▌ Tell me a story." not in chat.text(), "a new conversation")
    chat.child.send("/resume story\r")
    chat.sees("▌ Tell me a story.")
    for word in ("/model", "/models"):
        chat.child.send(f"{word}\r")
        chat.sees("available")
        chat.child.send(ESC)
        chat.until(lambda: "available" not in chat.text(), "the end of the list")
    chat.child.send("/drafting off\r")
    chat.sees("drafting off from now on")
    chat.child.send("/nwe\r")
    chat.sees("did you mean /new?")
    chat.child.send("/bye\r")
    assert chat.ends() == 0
    assert chat.restored()


@pytest.mark.slow
@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_words_that_leave(start: Callable[..., Terminal], word: str) -> None:
    chat = start(*SHORT)
    chat.child.send(f"{word}\r")
    assert chat.ends() == 0
    assert chat.restored()


@pytest.mark.slow
def test_a_theme_is_tried_on_and_kept(start: Callable[..., Terminal], tmp_path: Path) -> None:
    chat = start(*SHORT)
    chat.child.send("/themes\r")
    chat.sees("▸ textual-dark  present")
    before = chat.screen.buffer[15][5].bg
    chat.child.send(UP)
    chat.until(lambda: chat.screen.buffer[15][5].bg != before, "other colours below the list")
    chat.child.send(ESC)
    chat.until(lambda: chat.screen.buffer[15][5].bg == before, "the colours before")
    chat.child.send("/theme drac")
    chat.sees("dracula")
    chat.child.send("\t\r")
    chat.until(lambda: chat.screen.buffer[15][5].bg != before, "other colours")
    chat.child.send("/exit\r")
    assert chat.ends() == 0
    assert '"theme": "dracula"' in (tmp_path / "screen.json").read_text()


@pytest.mark.slow
def test_lists_go_by_arrows_and_enter(start: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "qwen-0.5b.gguf").write_bytes(b"GGUF")
    chat = start(*SHORT)
    ask(chat, "What is a quay?")
    chat.child.send("/tit")
    chat.sees("/title [TEXT]")
    chat.child.send(DOWN)
    chat.sees("▸ /title")
    chat.child.send("\r")
    chat.sees("title: What is a quay?")
    chat.child.send(f"/draft {tmp_path}/models/qw\t")
    chat.sees("qwen-0.5b.gguf")
    chat.child.send(ESC)
    chat.sees("press Esc again")
    chat.child.send(ESC)
    chat.sees("Ctrl+Z brings it back")
    chat.child.send(f"@{tmp_path}/models/q")
    chat.sees("qwen-0.5b.gguf")
    chat.child.send(DOWN)
    chat.until(lambda: "▸ " in chat.text(), "the chosen file")
    chat.child.send("\r")
    chat.until(lambda: "▸ " not in chat.text() and "qwen-0.5b.gguf" in chat.text(), "the file")
    chat.child.send(f"{ESC}{ESC}")
    chat.until(lambda: "qwen-0.5b.gguf" not in chat.text(), "an empty input")
    chat.child.send("/new\r")
    chat.until(lambda: "▌ What is a quay?" not in chat.text(), "a new conversation")
    chat.child.send(F7)
    chat.sees("▸ What is a quay?")
    chat.child.send("qua")
    chat.until(lambda: "│  qua  " in chat.text(), "the letters")
    chat.child.send("\x0e")  # Ctrl+N
    chat.sees("Enter gives the new title")
    chat.child.send("!\r")
    chat.sees("▸ What is a quay?!")
    chat.child.send("\r")
    chat.sees("▌ What is a quay?")
    chat.child.send(F12)
    chat.sees("available")
    chat.child.send(DOWN)
    chat.until(lambda: "▸" in chat.text(), "the chosen pair")
    chat.child.send(ESC)
    chat.until(lambda: "available" not in chat.text(), "the end of the list")
    chat.child.send("/bye\r")
    assert chat.ends() == 0


@pytest.mark.slow
def test_models_beside_the_target_are_offered_to_draft(
    start: Callable[..., Terminal], tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(toy.TARGET, folder / "big.gguf")
    shutil.copy(toy.DRAFT, folder / "small.gguf")
    chat = start(
        str(folder / "big.gguf"), "--draft", "lookup", *SHORT[1:], columns=170, HF_HUB_OFFLINE="1"
    )
    chat.child.send("/draft\r")
    chat.until(lambda: "small.gguf" in chat.text(), "the other model")
    chat.child.send("/draft ")
    chat.until(lambda: "small.gguf" in chat.text().partition("ready")[2], "its file")
    chat.child.send(f"{UP}\r")
    chat.until(lambda: "drafting now: small" in chat.text(), "the draft")
    chat.child.send("/exit\r")
    assert chat.ends() == 0


@pytest.mark.slow
def test_a_long_paste_is_folded(start: Callable[..., Terminal]) -> None:
    chat = start(*SHORT)
    text = "\n".join(f"line {n}" for n in range(30))
    chat.child.send(f"\x1b[200~{text}\x1b[201~")
    chat.sees("[pasted 30 lines]")
    chat.child.send(" Why?\r")
    chat.sees("▌ line 0")
    chat.sees("16 more lines: F11 opens them")
    chat.sees("▌ line 29 Why?")
    chat.until(lambda: "ready" in chat.text(), "the answer")
    chat.child.send("/exit\r")
    assert chat.ends() == 0


@pytest.mark.slow
@pytest.mark.parametrize("text", ["می‌خواهم", pytest.param("👩‍👩‍👧", marks=pytest.mark.slow)])
def test_joiners_that_are_typed_arrive(
    start: Callable[..., Terminal], tmp_path: Path, text: str
) -> None:
    chat = start(*SHORT)
    chat.child.send(text)
    chat.child.send(".\r")
    chat.until(lambda: "8 tokens" in chat.text() and "ready" in chat.text(), "an answer")
    saved = tmp_path / "saved.json"
    chat.child.send(f"/export json {saved}\r")
    chat.until(lambda: saved.exists() and saved.read_text().endswith("}\n"), "the file")
    assert f'"content": "{text}."' in saved.read_text()
    chat.child.send("/exit\r")
    assert chat.ends() == 0
    assert chat.restored()


@pytest.mark.slow
def test_an_answer_that_only_repeats_itself_is_stopped(start: Callable[..., Terminal]) -> None:
    endless = ("--grammar", 'root ::= "a" root', "--n-predict", "400")
    chat = start("toy", *endless, "--temp", "0", "--threads", "1", columns=90)
    chat.child.send("Say a.\r")
    said = "stopped, since it only repeated itself: F5 asks again, a higher /temp helps"
    chat.until(lambda: said in " ".join(chat.text().split()), said)
    chat.child.send("/exit\r")
    assert chat.ends() == 0
