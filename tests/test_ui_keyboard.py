"""What the terminal sends: any bytes, cut anywhere."""

from __future__ import annotations

import io
import sys

import pytest
from textual import events

from localspec.ui import launch
from localspec.ui.chat_app import ChatApp
from localspec.ui.launch import TerminalText, reading_anything, writing_anything
from tests.support.inline import inline
from tests.support.scripted_session import ScriptedSession

BEGIN, END = "\x1b[200~", "\x1b[201~"


def read(data: bytes, size: int) -> str:
    reader = TerminalText()
    pieces = [reader.decode(data[at : at + size]) for at in range(0, len(data), size)]
    return "".join([*pieces, reader.decode(b"", final=True)])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_escapes_are_keys_outside_of_a_paste_and_pictures_inside(size: int) -> None:
    pasted = "é\x1b[2J\rsend\r\x07\x1b]0;title\x1b[20\x1b\x1b"
    text = f"a\x1b[A{BEGIN}{pasted}{END}b\x1b[B{BEGIN}\x1b{END}"
    shown = pasted.replace("\x1b", "␛")
    assert read(text.encode(), size) == f"a\x1b[A{BEGIN}{shown}{END}b\x1b[B{BEGIN}␛{END}"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_bytes_that_are_no_utf_8_are_replaced(size: int) -> None:
    assert read(b"caf\xe9 \x9b31m \xff" + "漢".encode(), size) == "caf� �31m �漢"


REPLY = "\x1b[?2026;2$y"  # the terminal answers what the app asks at its start


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("hi\n", "hi\r"),
        ("two\nlines\n", "two\nlines\r"),
        (f"hi\n|{REPLY}", f"hi\r{REPLY}"),
        ("half of\n|a paste", "half of\na paste"),
        ("typed on", "typed on"),
        ("|\n", "\n"),  # Ctrl+J, once each key comes at once
    ],
)
def test_enter_pressed_before_the_app_reads_the_keys_is_enter(typed: str, text: str) -> None:
    whole = typed.partition("|")[0]
    lines = whole.rfind("\n") + 1
    reader = TerminalText(lines)
    assert reader.decode(typed.replace("|", "").encode()) == text
    assert reader.decode(b"\n") == "\n"


def test_nothing_that_is_typed_waits() -> None:
    reader = TerminalText()
    for byte in b"\x1b[20":
        assert reader.decode(bytes([byte])) == chr(byte)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another driver")
def test_textual_takes_such_a_paste_as_one() -> None:
    from textual._xterm_parser import XTermParser  # noqa: PLC0415
    from textual.drivers import linux_driver  # noqa: PLC0415 - Windows lacks it

    usual = linux_driver.getincrementaldecoder  # type: ignore[attr-defined]
    with reading_anything():
        decode = linux_driver.getincrementaldecoder("utf-8")().decode  # type: ignore[attr-defined]
        parser = XTermParser()
        found = list(parser.feed(decode(f"{BEGIN}one \x1b[31m\rtwo\x07 \xe9".encode())))
        found += parser.feed(decode(b"\xff" + END.encode() + b"x"))
    assert linux_driver.getincrementaldecoder is usual  # type: ignore[attr-defined]
    paste, key = found
    assert isinstance(paste, events.Paste)
    assert isinstance(key, events.Key)
    assert paste.text == "one ␛[31m\rtwo\x07 é�"
    assert key.character == "x"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another driver")
@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("1089::99;5", "ctrl+c"),  # с, where a Latin layout has c
        ("1089:1057:99;6", "ctrl+shift+c"),
        ("1103::122;3", "alt+z"),
        ("1089::99;;1089", "с"),
        ("1089:1057:99;2;1057", "С"),
        ("97::113;5", "ctrl+a"),  # AZERTY, whose own letters are Latin
        ("106::99;5", "ctrl+j"),
        ("97:65;2;65", "A"),
        ("99;5", "ctrl+c"),
        ("127;2", "shift+backspace"),
    ],
)
def test_ctrl_and_alt_go_with_the_place_of_a_letter_that_is_not_latin(sent: str, key: str) -> None:
    from textual.drivers import linux_driver  # noqa: PLC0415 - Windows lacks it

    data = f"\x1b[{sent}u".encode()
    flag = linux_driver.KITTY_REPORT_ALTERNATE_KEYS
    with reading_anything():
        assert linux_driver.KITTY_REPORT_ALL_KEYS & flag
        for cut in range(1, len(data) + 1):
            decode = linux_driver.getincrementaldecoder("utf-8")().decode  # type: ignore[attr-defined]
            parser = linux_driver.XTermParser()
            pieces = filter(None, (data[:cut], data[cut:]))
            found = [one for piece in pieces for one in parser.feed(decode(piece))]
            assert [one.key for one in found if isinstance(one, events.Key)] == [key], cut
    assert not linux_driver.KITTY_REPORT_ALL_KEYS & flag


def test_an_unforeseen_error_ends_the_app_without_a_traceback_and_is_raised(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(_: ChatApp) -> None:
        raise ZeroDivisionError("of all things")

    session = ScriptedSession()
    run = ChatApp.run
    monkeypatch.setattr(ChatApp, "show_phase", broken)
    monkeypatch.setattr(ChatApp, "run", lambda app: run(app, headless=True))
    with pytest.raises(ZeroDivisionError, match="of all things"):
        launch.run_app(inline(lambda progress, cancel: session))
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("locale", ["ascii", "latin-1", "utf-8"])
def test_the_screen_is_written_as_utf8_whatever_the_locale_says(
    locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=locale, errors="backslashreplace")
    monkeypatch.setattr("sys.__stderr__", terminal)
    with writing_anything():
        terminal.write("│ é \ud800")
    assert written.getvalue() == "│ é \\ud800".encode()
    assert (terminal.encoding, terminal.errors) == (locale, "backslashreplace")
