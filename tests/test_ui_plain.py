"""The plain way to the screen shows what Textual's own way shows."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from localspec.ui.plain import PlainScrollBar
from localspec.ui.transcript import Transcript
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
def test_our_scrollbar_looks_like_textuals(total: int, window: int, position: float) -> None:
    async def body() -> None:
        async with Bars().run_test(size=(10, 20)) as pilot:
            ours, theirs = pilot.app.query_one(PlainScrollBar), pilot.app.query(ScrollBar).last()
            for hovered in (False, True):
                for bar in (ours, theirs):
                    bar.window_virtual_size, bar.window_size = total, window
                    bar.position, bar.mouse_over = position, hovered
                assert cells(ours) == cells(theirs)

    asyncio.run(body())


def test_the_scrollbar_of_the_conversation_is_dragged_and_clicked() -> None:
    async def body() -> None:
        async with chatting(answers=[LONG]) as chat:
            await chat.ask("Go on.")
            transcript = chat.app.query_one(Transcript)
            bar = transcript.vertical_scrollbar
            assert isinstance(bar, PlainScrollBar)
            assert transcript.is_vertical_scroll_end
            await chat.pilot.click(bar, offset=(0, 1))
            await chat.until(lambda: not transcript.is_vertical_scroll_end, "a page up")
            transcript.scroll_end(animate=False, immediate=True)
            before, end = transcript.scroll_y, (bar.region.x, bar.region.bottom - 1)
            await chat.pilot.mouse_down(offset=end)
            await chat.pilot.hover(offset=(bar.region.x, bar.region.y + 5))
            await chat.pilot.mouse_up(offset=(bar.region.x, bar.region.y + 5))
            await chat.until(lambda: transcript.scroll_y < before, "the drag")

    asyncio.run(body())
