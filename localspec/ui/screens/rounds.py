"""The screen that plays rounds of an answer in slow motion, picture by picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from localspec.engine.record.explanation import RoundExplanation
from localspec.safe_text import one_line
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.panel.drawing import two_sides
from localspec.ui.screens.round_lines import pictures, round_lines
from localspec.ui.status_lines import as_many
from localspec.ui.widgets import KEY, MUTED, Dialogue, key_hint

_STEP_S = 1.2


@dataclass(slots=True)
class RoundPlayer:
    """Which picture of which round is shown.

    Attributes:
        at: the number of the picture.
        playing: whether the next one follows by itself.
        kept: the explained rounds so far, by number.
        waits: what the screen waits for; empty if it does not wait.
        end: says that this is the last round in that direction; empty until one was asked for.
    """

    explained: RoundExplanation | None = None
    at: int = 0
    playing: bool = True
    kept: dict[int, RoundExplanation] = field(default_factory=dict)
    waits: str = ""
    end: str = ""

    def show(self, explained: RoundExplanation, *, at_end: bool = False) -> None:
        """Begin with a round, or with its end."""
        self.kept[explained.number] = self.explained = explained
        self.waits = self.end = ""
        self.at = len(pictures(explained)) - 1 if at_end else 0

    def step(self, by: int) -> bool:
        """Go to another picture; False if the round has none there."""
        if self.explained is None or not 0 <= self.at + by < len(pictures(self.explained)):
            return False
        self.at += by
        self.end = ""
        return True


class RoundScreen(Dialogue[None]):
    """Plays rounds of one answer.

    Args:
        turns: has the engine explain rounds, which `hear` gets.
        turn: the engine's number of the answer.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,Q", "dismiss", "Close"),
        ("space", "pause", "Pause"),
        ("right", "step(1)", "Step"),
        ("left", "step(-1)", "Back"),
        ("n,N,down", "turn(1)", "Next round"),
        ("p,P,up", "turn(-1)", "Previous round"),
    ]

    def __init__(self, turns: TurnController, turn: int) -> None:
        super().__init__()
        self.player = RoundPlayer()
        self._turns, self._engine = turns, turns.engine
        self._turn = turn
        self._request: int | None = None  # the number of the one that is not answered yet
        self._at_end = False
        self._timer: Timer | None = None
        self._keys_for: tuple[bool, int] | None = None  # what the shown keys were made for
        self._text = Static("", markup=False, id="round-text")
        self._keys = Static("", markup=False, id="round-keys")

    def compose(self) -> ComposeResult:
        """The picture, the keys below it."""
        with Vertical(id="round") as box:
            box.border_title = "inside a round"
            yield self._text
            yield self._keys

    def on_mount(self) -> None:
        """Ask for the newest round."""
        self._timer = self.set_interval(_STEP_S, self._tick)
        self._want(0)

    def on_unmount(self) -> None:
        """Withdraw the request, so that nothing is decoded for a closed screen."""
        self._withdraw()

    def _withdraw(self) -> None:
        if self._request is not None:
            self._engine.withdraw(self._request)
            self._request = None

    def _growing(self) -> bool:
        """Whether the answer is still being written."""
        return self._turns.busy and self._turn == self._engine.turn

    def on_resize(self) -> None:
        """Lay out for the new size."""
        self.call_after_refresh(self.redraw)

    def hear(self, request: int, explained: RoundExplanation | None, problem: str) -> None:
        """Take an explained round, or why it cannot be explained, if it still is asked for."""
        if request != self._request:
            return
        self._request = None
        if explained is not None:
            self.player.show(explained, at_end=self._at_end)
        elif problem:
            self.player.waits = problem
        self.redraw()

    def _want(self, number: int, *, at_end: bool = False) -> None:
        """Show a round, at once if it is already explained."""
        self._withdraw()
        self._at_end = at_end
        if (known := self.player.kept.get(number)) is not None:
            self.player.show(known, at_end=at_end)
        else:
            waits = "decoding a round again …"
            if self._growing():
                waits = "this round is decoded again once the answer has ended …"
                if not number:
                    waits = "waiting for the next round with a draft …"
            self.player.waits = waits
            self._request = self._engine.explain_round(self._turn, number)
        self.redraw()

    def _tick(self) -> None:
        if self.player.playing and not self.player.waits and self.player.explained is not None:
            self.action_step(1)

    def action_step(self, by: int) -> None:
        """Go to the next picture (1) or the one before (-1), also into other rounds."""
        if self.player.step(by):
            self.redraw()
        elif not self.player.waits:
            self.action_turn(by, at_end=by < 0)

    def action_turn(self, by: int, *, at_end: bool = False) -> None:
        """The next round with a draft (1) or the one before (-1).

        While the answer runs, the next one is the next that the engine makes.
        """
        explained = self.player.explained
        if explained is None:
            return
        number = explained.later if by > 0 else explained.earlier
        if by > 0 and self._growing():
            self._want(0)
        elif number:
            self._want(number, at_end=at_end)
        else:
            self.player.playing = False
            self.player.end = f"no {'later' if by > 0 else 'earlier'} round has a draft"
            self.redraw()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self.player.playing = not self.player.playing
        self.redraw()

    def redraw(self) -> None:
        """Show the picture as it is now."""
        width, height = self._text.size
        explained, said = self.player.explained, self.player.waits or self.player.end
        words = Content.styled(one_line(said, 300), KEY)
        if width <= 0:  # no frame was drawn yet: the first one has the words
            self._text.update(words)
            return
        lines = words.wrap(width) if said else []
        if explained is not None:
            drafter = f"drafter {explained.made.proposed_by}, rule {explained.rule}"
            how = drafter if explained.guesses else "no draft"
            count = f"round {explained.number} of {explained.rounds}, {how}"
            steps = f"{self.player.at + 1}/{len(pictures(explained))}"
            lines.insert(0, two_sides((count, "bold"), (steps, MUTED), width))
            now = pictures(explained)[self.player.at]
            lines += round_lines(explained, now, width, height - len(lines))
        # Both have a fixed size: laying out the screen anew is most of a picture's cost.
        self._text.update(Content("\n").join(lines[:height]), layout=False)
        keys = (self.player.playing, self._keys.size.width)
        if keys != self._keys_for:
            self._keys_for = keys
            self._keys.update(as_many(self._hints(), keys[1]), layout=False)

    def _hints(self) -> list[Content]:
        pause = "pause" if self.player.playing else "play"
        return [
            key_hint("Space", pause, "screen.pause"),
            key_hint("→", "step", "screen.step(1)"),
            key_hint("←", "back", "screen.step(-1)"),
            key_hint("N", "next round", "screen.turn(1)"),
            key_hint("P", "previous", "screen.turn(-1)"),
            key_hint("Esc", "close", "screen.dismiss"),
        ]
