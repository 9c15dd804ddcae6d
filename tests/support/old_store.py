"""Makes the folders of a user of 0.1.0, who talked to the pair `demo` in 50 conversations.

``tests/data/store_of_demo.db.gz`` is its file of conversations. It was made at the last commit that
had that pair, from a checkout of it:

    git worktree add /tmp/before 29833e8
    cd /tmp/before && uv sync
    uv run python .../tests/support/old_store.py FOLDER
    gzip -9n < FOLDER/data/conversations.db > .../tests/data/store_of_demo.db.gz

FOLDER/data also has the states and the pair that was used last, FOLDER/cache what
the models cost.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from unittest import mock

COUNT = 50
_SUBJECTS = ("dog", "boat", "kite", "bear", "moon", "garden", "river", "train", "bird", "clock")


def questions(number: int) -> list[str]:
    """What is asked in one conversation; the first question has a word that no other one has."""
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    first = f"Tell me story number{number:02d} about a {subject}."
    return [first, "What happens next?", "Is it over?"][: 1 + number % 3]


async def _talk(folder: Path) -> None:
    # ruff: noqa: PLC0415 - names of that version, some of which later ones do not have
    from localspec.process.client import EngineClient  # type: ignore[import-untyped]

    from localspec.loading.load_request import LoadRequest
    from localspec.ui.chat_app import ChatApp
    from localspec.ui.conversation.engine_phase import EnginePhase

    engine = EngineClient(LoadRequest(n_predict=24, seed=7, threads=1))
    app = ChatApp(engine, archive=folder / "data" / "conversations.db")

    async with app.run_test(size=(100, 30)) as pilot:

        async def ready() -> None:
            await pilot.pause(0.05)
            while app.turns.phase is not EnginePhase.READY:
                await pilot.pause(0.05)

        async def send(text: str) -> None:
            app.prompt.insert(text)
            await pilot.press("enter")
            await ready()

        await ready()
        for number in range(COUNT):
            for question in questions(number):
                await send(question)
            if number % 7 == 0:
                await pilot.press("f5")  # a second version of the last answer
                await ready()
            await send("/clear")
    app.engine.shut_down()
    app.engine.join(30)
    app.library.shut_down()


if __name__ == "__main__":
    made = Path(sys.argv[1]).absolute()
    for place in ("data", "cache", "config"):
        os.environ[f"LOCALSPEC_{place.upper()}"] = str(made / place)
    os.environ["LOCALSPEC_DEMO"] = "small"  # the models as they shipped, not padded
    with mock.patch("textual.app.wait_for_idle", new=mock.AsyncMock()):
        asyncio.run(_talk(made))
