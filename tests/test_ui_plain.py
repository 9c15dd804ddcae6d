"""The plain way to the screen shows what Textual's own way shows."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Offset, Region
from textual.scrollbar import ScrollBar
from textual.selection import SELECT_ALL
from textual.strip import Strip

from localspec.ui.panel.dashboard import _Column
from localspec.ui.transcript.transcript import Transcript
from localspec.ui.widgets import PlainScrollBar
from tests.support.chat_pilot import chatting

LONG = "\n\n".join(f"Paragraph {n} of some words." for n in range(60))


class Bars(App[None]):
    CSS = "PlainScrollBar, ScrollBar { width: 1; height: 20; dock: left; }"

    def compose(self) -> ComposeResult:
        yield PlainScrollBar(name="ours")
        yield ScrollBar(name="theirs")


def cells(bar: ScrollBar) -> list[tuple[str, object, object, object]]:
    """What is seen in the bar, ink and ground, and what the mouse does there."""
    lines: list[Strip] = bar.render_lines(Region(0, 0, 1, bar.size.height))
    looks = []
    for line in lines:
        ((text, style, _),) = list(line)
        assert style is not None
        ink, ground = style.color, style.bgcolor
        if style.reverse:
            ink, ground = ground, ink
        looks.append((text, ink if text.strip() else None, ground, style.meta))
    return looks


@pytest.mark.parametrize(
    ("total", "window", "position"),
    [(100, 20, 0), (100, 20, 80), (100, 20, 33.5), (27, 20, 3), (20, 20, 0), (100_000, 20, 5_000)],
)
async def test_our_scrollbar_looks_like_textuals(total: int, window: int, position: float) -> None:
    async with Bars().run_test(size=(10, 20)) as pilot:
        ours, theirs = pilot.app.query_one(PlainScrollBar), pilot.app.query(ScrollBar).last()
        for hovered in (False, True):
            for bar in (ours, theirs):
                bar.window_virtual_size, bar.window_size = total, window
                bar.position, bar.mouse_over = position, hovered
            assert cells(ours) == cells(theirs)


async def test_the_scrollbar_of_the_conversation_is_dragged_and_clicked() -> None:
    async with chatting(answers=[LONG]) as chat:
        await chat.ask("Go on.")
        transcript = chat.app.query_one(Transcript)
        bar = transcript.vertical_scrollbar
        assert isinstance(bar, PlainScrollBar)
        assert bar.region.right == chat.app.query_one("#talk").region.right
        assert transcript.is_vertical_scroll_end
        await chat.pilot.click(bar, offset=(0, 1))
        await chat.until(lambda: not transcript.is_vertical_scroll_end, "a page up")
        transcript.scroll_end(animate=False, immediate=True)
        before, end = transcript.scroll_y, (bar.region.x, bar.region.bottom - 1)
        await chat.pilot.mouse_down(offset=end)
        await chat.pilot.hover(offset=(bar.region.x, bar.region.y + 5))
        await chat.pilot.mouse_up(offset=(bar.region.x, bar.region.y + 5))
        await chat.until(lambda: transcript.scroll_y < before, "the drag")


def test_what_is_copied_is_the_conversation() -> None:
    async def body(size: tuple[int, int]) -> None:
        async with chatting(size=size, answers=["The answer."]) as chat:
            await chat.ask("The question?")
            screen, transcript = chat.app.screen, chat.app.transcript
            inside = transcript.region.offset + Offset(8, 3)
            for name in ("#title", "#status", "#compact", "#figures"):
                widget = chat.app.query_one(name)
                if not (widget.display and widget.region):
                    continue
                outside = widget.region.offset + Offset(5, 0)
                await chat.pilot.mouse_down(offset=inside)
                await chat.pilot.hover(offset=outside)
                await chat.pilot.mouse_up(offset=outside)
                selected = screen.get_selected_text()
                assert selected, name
                assert all(line in transcript.plain() for line in selected.split("\n")), name
                screen.clear_selection()
            await chat.pilot.click(transcript, offset=(8, 3), times=3)
            selected = screen.get_selected_text()
            assert selected is not None
            assert selected.strip() == transcript.plain().strip()

    for size in ((80, 24), (120, 40)):
        asyncio.run(body(size))


async def test_a_line_wider_than_the_panel_is_cut_at_its_edge() -> None:
    async with chatting(size=(120, 40)) as chat:
        column = chat.app.query_one("#figures", _Column)
        await chat.until(lambda: column.size.width, "the column")
        width = column.size.width
        line = "a few words and then a " + width * "x"
        column.show([Content(line)])
        assert column.render_line(0).text == line[:width]


@pytest.mark.slow
async def test_a_long_conversation_keeps_no_drawn_lines_and_leaves_no_styles() -> None:
    async with chatting(answers=[5 * f"{LONG}\n\n"]) as chat:
        await chat.ask("Go on.")
        transcript, console = chat.app.transcript, chat.app.console
        view = Region(0, 0, *transcript.size)
        drawn, styles = [], []
        for top in range(0, int(transcript.max_scroll_y), view.height):
            transcript.scroll_to(y=top, animate=False, immediate=True)
            for strip in transcript.render_lines(view):
                strip.render(console)
            drawn.append(sum(isinstance(one, Strip) for one in gc.get_objects()))
            styles.append(Strip.render_ansi.cache_info().currsize)
        assert len(drawn) > 10
        # Of a drawn line two strips are kept, with the one that Textual derives from it.
        assert max(drawn) - drawn[0] <= 2 * 5 * view.height
        assert max(styles) - styles[5] < len(drawn)  # nearly none


async def test_a_selection_goes_when_its_lines_move() -> None:
    async with chatting(size=(80, 24), answers=["The answer."]) as chat:
        await chat.ask("The question?")
        transcript, screen = chat.app.transcript, chat.app.screen
        for move in (
            partial(chat.press, "f3"),
            partial(chat.press, "f11"),
            partial(chat.pilot.resize_terminal, 60, 24),
        ):
            screen.selections = {transcript: SELECT_ALL}
            await move()
            await chat.until(lambda: not screen.selections, str(move))
        screen.selections = {transcript: SELECT_ALL}
        transcript.say_before(transcript.last_answer(), "A word before.")
        assert not screen.selections
        screen.selections = {transcript: SELECT_ALL}
        transcript.say("A word after.")
        assert screen.selections


async def test_a_selection_in_a_scrolled_conversation_is_what_the_mouse_touched() -> None:
    numbered = "\n".join(f"line {n} of the answer" for n in range(300))
    async with chatting(size=(80, 24), answers=[numbered]) as chat:
        await chat.ask("Go on.")
        await chat.until(lambda: not chat.timers(), "rest")  # else lines may still move
        transcript = chat.app.transcript
        transcript.scroll_to(y=120, animate=False, immediate=True)
        await chat.settle()
        rows = chat.screen().split("\n")
        first = next(y for y, row in enumerate(rows) if "line" in row and y > 5)
        start = rows[first].index("of the")
        await chat.pilot.mouse_down(offset=(start, first))
        await chat.pilot.hover(offset=(start + 3, first + 1))
        await chat.pilot.mouse_up(offset=(start + 3, first + 1))
        number = int(rows[first].split()[1])
        upper, lower = str(chat.app.screen.get_selected_text()).split("\n")
        assert upper == "of the answer"
        assert lower == f"  line {number + 1} of t"


async def test_a_double_click_selects_the_word_under_the_mouse() -> None:
    async with chatting(size=(80, 24), answers=["Say 漢字, then `git_log` again."]) as chat:
        await chat.ask("Go on.")
        rows = chat.screen().split("\n")
        row = next(y for y, line in enumerate(rows) if "git_log" in line)
        column = cell_len(rows[row][: rows[row].index("t_log")])
        place = Offset(column, row) - chat.app.transcript.region.offset
        await chat.pilot.click(chat.app.transcript, offset=place, times=2)
        assert chat.app.screen.get_selected_text() == "git_log"
        await chat.press("ctrl+c")
        assert chat.app.clipboard == "git_log"
        wide = Offset(cell_len(rows[row][: rows[row].index(",")]) - 1, row)  # its second half
        await chat.pilot.click(
            chat.app.transcript, offset=wide - chat.app.transcript.region.offset, times=2
        )
        assert chat.app.screen.get_selected_text() == "漢字"
        await chat.pilot.click(chat.app.transcript, offset=place + Offset(0, 2), times=2)
        assert not chat.app.screen.get_selected_text()


@pytest.mark.parametrize("opens", ["ctrl+p", "theme"])
async def test_a_list_in_a_window_without_room_ends_no_chat(opens: str) -> None:
    async with chatting((80, 24)) as chat:
        if opens == "theme":
            chat.app.action_command("theme")
        else:
            await chat.press(opens)
        await chat.until(lambda: len(chat.app.screen_stack) == 2, "the list")
        for size in ((80, 1), (80, 3), (3, 10), (6, 24)):
            for width, height in (size, (80, 24), size):
                await chat.pilot.resize_terminal(width, height)
                await chat.press("down", "pagedown", "pageup")
                await chat.until(lambda: chat.screen() is not None, f"the screen at {size}")
        await chat.pilot.resize_terminal(80, 24)
        await chat.press("escape", "escape")
        await chat.until(lambda: len(chat.app.screen_stack) == 1, "no list")


async def test_the_help_can_be_read_in_five_rows() -> None:
    async with chatting((20, 5)) as chat:
        await chat.press("f1")
        await chat.until(lambda: "Keys" in chat.screen(), "the first line")
