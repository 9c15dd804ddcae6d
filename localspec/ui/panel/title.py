"""The top line: which pair answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from localspec.safe_text import one_line
from localspec.ui.plain import Uncopied

if TYPE_CHECKING:
    from localspec.ui.contract import ChatSession


class TitleLine(Static, Uncopied):
    """The program's name, the pair's, and those of its models."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__("", markup=False, id=id)

    def show(self, session: ChatSession | None) -> None:
        """Name what has been loaded, if anything has."""
        pieces = [("localspec", "bold $text-primary")]
        if session is not None:
            models = session.target_name + (
                f" + {session.draft_name}" if session.draft_name else ""
            )
            pieces += [
                (f"  {one_line(session.pair_name, 40)}", "bold"),
                (f"  {one_line(models, 100)}", "$foreground 65%"),
            ]
        self.update(Content.assemble(*pieces), layout=False)
