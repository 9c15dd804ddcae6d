"""How often the screen may draw: as often as is pleasant, within a share of one core."""

from __future__ import annotations

import time

# Drawing takes cores and Python's lock from the model. A frame that costs more is drawn less
# often, so that the screen never takes more than this share of a core from a running answer.
SHARE = 0.01
SHORTEST, LONGEST = 0.1, 1.0


class Pace:
    """Spaces frames by what drawing has cost so far, measured as the thread's own CPU time.

    Lives in the screen's thread: `time.thread_time` counts whoever calls it.

    Attributes:
        interval: seconds from frame to frame at present.
    """

    def __init__(self) -> None:
        self._last_wall = 0.0
        self._last_cpu = 0.0
        self.interval = SHORTEST

    def start(self) -> None:
        """Begin a turn: what was spent before does not count, what a frame costs is still known."""
        self._last_wall = 0.0
        self._last_cpu = time.thread_time()

    def delay(self) -> float:
        """Seconds to wait before the next frame."""
        return max(0.0, self._last_wall + self.interval - time.monotonic())

    def drawn(self) -> None:
        """A frame is being drawn: set the distance to the next by the cost since the last one."""
        cpu = time.thread_time()
        wanted = (cpu - self._last_cpu) / SHARE
        # Half of the old value: a single heavy frame (a resize, a new code block) is not a habit.
        self.interval = min(max((self.interval + wanted) / 2, SHORTEST), LONGEST)
        self._last_cpu = cpu
        self._last_wall = time.monotonic()
