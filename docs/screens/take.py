"""Take the pictures of this folder: the real app on the starter, two questions each.

    uv run python docs/screens/take.py

Half a minute. Look at them before they are committed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from localspec.loading.load_request import LoadRequest
from localspec.process.engine_client import EngineClient
from localspec.ui.chat_app import Appearance, ChatApp
from localspec.ui.screens.rounds import RoundScreen
from localspec.ui.transcript.items import PROMPTS

HERE = Path(__file__).parent
QUESTION = "Write a Python function that adds two numbers."
SPELLING = PROMPTS[0]
SIZES = {"40x10": (40, 10), "80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}


async def take(
    name: str, size: tuple[int, int], *, asked: tuple[str, ...] = (QUESTION, SPELLING),
    keys: tuple[str, ...] = (), theme: str | None = None, **how: Any,
) -> None:  # fmt: skip
    """One picture: ask, press keys, export."""
    options = LoadRequest(**{"pair": "starter", "temp": 0.0, "n_predict": 160} | how)
    app = ChatApp(EngineClient(options), appearance=Appearance(theme=theme) if theme else None)
    async with app.run_test(size=size) as pilot:
        while app.session is None:
            await pilot.pause(0.05)
        for question in asked:
            app.prompt.insert(question)
            await pilot.press("enter")
            await pilot.pause(0.1)
            while app.turns.busy:
                await pilot.pause(0.05)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.1)
            while isinstance(app.screen, RoundScreen) and app.screen.player.waits:
                await pilot.pause(0.05)
        await pilot.pause(0.6)
        (HERE / f"{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")
    app.engine.shut_down()
    app.engine.join(10)


async def main() -> None:
    """All pictures."""
    for label, size in SIZES.items():
        await take(f"chat-{label}", size)
    await take("light-120x40", SIZES["120x40"], theme="textual-light")
    await take("welcome-80x24", SIZES["80x24"], asked=())
    await take("origin-80x24", SIZES["80x24"], keys=("f3",))
    inside = ("ctrl+s", "space", "p", "p", "p", *["right"] * 8)
    drawn = {"temp": 0.8, "seed": 7, "accept": "token", "gamma": 4, "n_predict": 60}
    for label, size in ("80x24", (80, 24)), ("160x50", (160, 50)):
        await take(f"round-{label}", size, asked=(QUESTION,), keys=inside, **drawn)


if __name__ == "__main__":
    asyncio.run(main())
