"""A running answer on its way to the screen: collected, then drawn at a suitable rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from textual.message import Message
from textual.timer import Timer

from localspec.chat.events import (
    Noticed,
    PromptProgress,
    RoundText,
    Span,
    TurnEnd,
    TurnEvent,
    TurnsLeftOut,
)
from localspec.ui.panel.dashboard import Dashboard
from localspec.ui.transcript.items import Answer
from localspec.ui.transcript.transcript import Transcript

# Drawing takes cores from the model: a frame that costs more is drawn less often, so that drawing
# takes about this share of a core. It may take more of a core that the model does not use. Text
# that waits for longer than LONGEST seems to stall, whatever a frame costs.
SHARE, SPARE_SHARE = 0.04, 0.4
SHORTEST, SPARE_SHORTEST, LONGEST = 0.1, 0.03, 0.3


@dataclass
class PromptRead(Message):
    """The engine has read a part of the prompt; `ChatApp` says how long the rest takes."""

    progress: PromptProgress


class EventInbox:
    """Turn events on their way to the screen.

    They are announced once until they are collected: a fast pair makes hundreds of
    rounds a second, and the screen draws far fewer frames.
    """

    def __init__(self, announce: Callable[[], object]) -> None:
        self._events: deque[TurnEvent] = deque()
        self._announce = announce
        self._announced = False

    def put(self, event: TurnEvent) -> None:
        """Add `event` (another thread)."""
        self._events.append(event)
        if not self._announced:
            self._announced = True
            self._announce()

    def collect(self) -> list[TurnEvent]:
        """Take everything that has arrived (screen's thread)."""
        # In this order, an event that arrives from here on is announced again, at worst needlessly.
        self._announced = False
        return [self._events.popleft() for _ in range(len(self._events))]


class FramePacer:
    """Spaces frames by what drawing has cost so far, measured as the thread's own CPU time.

    Use it in the screen's thread only: `time.thread_time` counts the calling thread.

    Attributes:
        interval: seconds from frame to frame at present.
        spare: whether there is a core that the model does not need.
    """

    def __init__(self) -> None:
        self._last_wall = 0.0
        self._last_cpu = 0.0
        self.spare = False
        self.interval = SHORTEST

    def start(self) -> None:
        """Begin a turn: forget the time spent before, but keep the known cost of a frame."""
        self._last_wall = 0.0
        self._last_cpu = time.thread_time()

    def delay(self) -> float:
        """Seconds to wait before the next frame."""
        return max(0.0, self._last_wall + self.interval - time.monotonic())

    def drawn(self) -> None:
        """Set the distance to the next frame by the cost since the last one."""
        cpu = time.thread_time()
        share, shortest = (SPARE_SHARE, SPARE_SHORTEST) if self.spare else (SHARE, SHORTEST)
        wanted = (cpu - self._last_cpu) / share
        # Half of the old value: a single heavy frame (a resize, a new code block) is not a habit.
        self.interval = min(max((self.interval + wanted) / 2, shortest), LONGEST)
        self._last_cpu = cpu
        self._last_wall = time.monotonic()


class AnswerStream:
    """Draws the events of a running turn as they come; lives in the screen's thread.

    Args:
        transcript: where the answer grows.
        dashboard: shows its rounds.
        soon: calls a function in the screen's thread, from any thread.

    Attributes:
        inbox: where turn events arrive, from any thread.
        heard: the text so far.
        left_out: how many messages were not told to the model, if the answer's prompt is the first
            that leaves them out.
    """

    def __init__(
        self, transcript: Transcript, dashboard: Dashboard, soon: Callable[..., None]
    ) -> None:
        self._transcript = transcript
        self._dashboard = dashboard
        self._timer: Timer | None = None
        self._tokens = 0
        self.inbox = EventInbox(partial(soon, self.news))
        self.pace = FramePacer()
        self.answer: Answer | None = None
        self.heard: list[Span] = []
        self.end: TurnEnd | None = None
        self.left_out = 0

    def begin(self, answer: Answer) -> None:
        """Begin a turn whose text goes into `answer`."""
        self.answer, self.end, self.left_out = answer, None, 0
        self._tokens = 0
        self.heard.clear()
        self.pace.start()
        self._dashboard.run(True)

    def close(self) -> None:
        """End the turn, which is settled."""
        self.answer = None
        self._dashboard.run(False)
        self._dashboard.refresh()

    def news(self) -> None:
        """Draw the events that have arrived, now or when the pace allows."""
        if self._timer is None:
            delay = self.pace.delay() if self.heard else 0.0  # the first words at once
            if delay > 0:
                self._timer = self._transcript.set_timer(delay, self.flush)
            else:
                self.flush()

    def flush(self) -> None:
        """Draw what has arrived."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        spans: list[Span] = []
        for event in self.inbox.collect():
            spans.extend(self._take(event))
        self.heard += spans
        if self.answer is not None and spans:
            self._transcript.write(self.answer, spans, self._tokens)
            self._tokens = 0  # those of a round without text go with the next text
            self._dashboard.go_along()
        self.pace.drawn()

    def _take(self, event: TurnEvent) -> tuple[Span, ...]:
        if isinstance(event, RoundText):
            self._dashboard.state.add_round(event.round)
            self._tokens += len(event.round.tokens)
            return event.spans
        if isinstance(event, PromptProgress):
            self._transcript.app.post_message(PromptRead(event))
        elif isinstance(event, Noticed):
            self._transcript.say_before(self.answer, event.text)
        elif isinstance(event, TurnsLeftOut):
            self.left_out = event.messages
            self._transcript.say_before(
                self.answer,
                f"the context is full: the oldest {event.messages:,} messages are no longer told"
                " to the model",
                "They stay in the conversation. /compact goes on from a summary of what fits.",
            )
        elif isinstance(event, TurnEnd):
            self.end = event
        return ()
