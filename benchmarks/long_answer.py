"""What a very long answer costs: its speed with and without the app's screen, and an idle app.

    python benchmarks/long_answer.py [--tokens 10000] [--answers 10] [--round 5] [--size 160x50]

A scripted session answers with headings, paragraphs, lists and code, two or three tokens a round.
A round keeps a core busy outside Python's lock for 5 ms, as a pass of a model would. Stretches with
and without the screen alternate in every answer, as in `screen_cost.py`. Afterwards nothing is
done for some seconds, and the share of a core that the idle app takes is counted.

Takes about eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from screen_cost import Driven, drive, report, run_parent

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.scripted_session import ScriptedSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localspec.chat.events import TurnEvent
    from localspec.engine.cancel import Cancel

_IDLE_S = 20.0
_PART = """
## Part {n}

The girl and the dog went on along the river until the sun was low, and *nobody* could have said
whether the **old boat** they found there was {n} or a hundred years old. They took it anyway.

- a rope of {n} metres, dry and grey
- two oars, one of them `broken`
- a lantern that still had some oil

```python
def row(strokes: int = {n}) -> float:
    return sum(0.5 + stroke % 3 for stroke in range(strokes))
```
"""


class Working(ScriptedSession):
    """Its rounds take a core for a while, outside Python's lock."""

    ballast = bytes(32 << 20)
    """Hashed in part; `hashlib` lets the lock go for large blocks."""
    block = 1 << 20

    def calibrate(self, round_s: float) -> None:
        """Find out how much is hashed in the time of a round, `round_s`."""
        times = []
        for _ in range(9):
            started = time.perf_counter()
            hashlib.sha256(self.ballast[: 4 << 20])
            times.append(time.perf_counter() - started)
        self.block = min(len(self.ballast), int((4 << 20) * round_s / sorted(times)[4]))

    def turn(self, text: str, cancel: Cancel) -> Iterator[TurnEvent]:
        """Work before every event, as an engine would."""
        view = memoryview(self.ballast)[: self.block]
        for event in super().turn(text, cancel):
            hashlib.sha256(view)
            yield event


def answer_of(tokens: int) -> str:
    """Text of at least `tokens` words, cut there."""
    parts, words = [], 0
    while words < tokens:
        part = _PART.format(n=len(parts) + 1)
        parts.append(part)
        words += part.count(" ") + 1
    return "".join(parts)


class Watched(Driven):
    """Does nothing for a while at the end."""

    probes = 1

    def _forbid_ends(self) -> None:
        """A scripted answer has the length it has."""

    async def _probe(self) -> None:
        await super()._probe()
        await asyncio.sleep(3)
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(_IDLE_S)
        passed = time.perf_counter() - started
        self._found["idle"] = [(time.process_time() - cpu) / passed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--answers", type=int, default=10)
    parser.add_argument("--round", type=float, default=5.0, help="milliseconds of a round")
    parser.add_argument("--size", default="160x50", help="columns x rows")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        session = Working(answers=[answer_of(arguments.tokens)])
        session.calibrate(arguments.round / 1000)
        drive(Watched(lambda _progress, _cancel: session, arguments.answers, arguments.child))
        return
    found = run_parent(arguments)
    report(arguments, found, "a scripted session")
    print(f"\nidle, {_IDLE_S:.0f} s: {100 * float(np.mean(found['idle'])):.2f} % of a core")


if __name__ == "__main__":
    main()
