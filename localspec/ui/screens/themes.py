"""The list of themes: the current one is marked, the highlighted one applies at once."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.theme import BUILTIN_THEMES
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.ui.widgets import MUTED, Dialogue, MarkedList


def themes() -> list[str]:
    """The themes by name."""
    return sorted(BUILTIN_THEMES)


class ThemeScreen(Dialogue[None]):
    """Arrows try a theme on, Enter keeps it; all else that closes the list goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,Q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """The list alone, so that much of the conversation can be seen in the new colours."""
        self._before = self.app.theme
        options = [
            Option(Content.assemble(f"  {name}", ("  present", MUTED) if here else ""), id=name)
            for name, here in ((name, name == self._before) for name in themes())
        ]
        names = MarkedList(*options, id="themes", markup=False)
        names.border_title = "themes"
        names.border_subtitle = "Enter keeps, Esc leaves"
        names.highlighted = themes().index(self._before) if self._before in themes() else 0
        yield names

    @on(OptionList.OptionHighlighted)
    def _try(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id is not None:
            self.app.theme = event.option_id

    @on(OptionList.OptionSelected)
    def _keep(self) -> None:
        self._before = self.app.theme
        self.dismiss()

    def on_unmount(self) -> None:
        """Go back to the theme before; one that was only tried is not stored when the app ends."""
        self.app.theme = self._before
