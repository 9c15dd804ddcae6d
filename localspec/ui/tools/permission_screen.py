"""The question whether a tool may run."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.safe_text import beginning, one_line
from localspec.tools.tool_offer import RunnableCall
from localspec.ui.widgets import HEAD, MUTED, Dialogue, MarkedList

GRACE_S = 0.5
"""Seconds without an answer: keys in that time may have been meant for something else."""

_LONGEST = 20_000  # characters that are shown


class Consent(StrEnum):
    """What the user answers."""

    REFUSED = "refused"
    ONCE = "once"
    ALWAYS = "always"
    NEVER = "never"
    STOPPED = "stopped"


class PermissionScreen(Dialogue[Consent]):
    """Shows a call, and asks for consent; dismissed with the answer.

    What was typed before the question appeared consents to nothing: for a moment no answer is
    taken, letters do nothing, and Enter refuses unless another answer was chosen with the arrows.

    Args:
        call: what would run.
        command: what its server is.
        changes: what has changed since the tool was allowed; empty if it never was.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "stop", "Stop"),
        Binding("pageup", "scroll(-1)", "Up", priority=True),
        Binding("pagedown", "scroll(1)", "Down", priority=True),
    ]

    def __init__(self, call: RunnableCall, command: str, changes: str) -> None:
        super().__init__()
        self._call, self._command, self._changes = call, command, changes

    def compose(self) -> ComposeResult:
        """The call, then the answers."""
        tool = self._call.tool
        answers = {
            Consent.REFUSED: "do not run it, and tell the model",
            Consent.ONCE: "run it this once",
            Consent.ALWAYS: f"always run {one_line(tool.name, 40)} of {one_line(tool.server, 40)}",
            Consent.NEVER: "never: switch this tool off",
        }
        options = [Option(f"  {text}", id=each) for each, text in answers.items()]
        with Vertical(id="permission") as box:
            box.border_title = "may this tool run?"
            box.border_subtitle = "↑ ↓ and Enter choose, Esc stops the answer"
            with VerticalScroll(id="permission-call", can_focus=False):
                yield Static(self._shown(), markup=False)
            yield MarkedList(*options, id="permission-answers", markup=False, disabled=True)

    def on_mount(self) -> None:
        """Let Enter refuse, after a moment."""
        self.set_timer(GRACE_S, self._open)

    def _open(self) -> None:
        answers = self.query_one(OptionList)
        answers.disabled = False
        answers.highlighted = 0
        answers.focus()

    def _shown(self) -> Content:
        tool = self._call.tool
        parts = [
            Content.styled(one_line(tool.shown, 160), HEAD),
            Content.styled(one_line(self._command, 400), MUTED),
            Content(""),
            Content(beginning(_pretty(self._call.arguments), _LONGEST)),
        ]
        if self._changes:
            head = "It has changed since you allowed it (- before, + now):"
            parts += [Content(""), Content.styled(head, "bold $text-warning")]
            parts.append(Content(beginning(self._changes, _LONGEST)))
        elif tool.description:
            parts += [Content(""), Content.styled(beginning(tool.description, _LONGEST), MUTED)]
        return Content("\n").join(parts)

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        if event.option_id is not None:
            self.dismiss(Consent(event.option_id))

    def action_stop(self) -> None:
        """Run nothing, and end the turn."""
        self.dismiss(Consent.STOPPED)

    def action_scroll(self, pages: int) -> None:
        """Scroll the call by pages."""
        call = self.query_one("#permission-call")
        (call.scroll_page_up if pages < 0 else call.scroll_page_down)(animate=False)


def _pretty(arguments: str) -> str:
    """A call's arguments, one on each line."""
    try:
        return json.dumps(json.loads(arguments), indent=1, ensure_ascii=False)
    except RecursionError:
        return arguments
