"""What the palette finds: commands by their name and by what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.command import Hit
from textual.system_commands import SystemCommandsProvider

if TYPE_CHECKING:
    from textual.command import Hits

_BY_MEANING = 0.5  # of a name's score at most: names come first


class Commands(SystemCommandsProvider):
    """Textual's own looks at names alone."""

    async def search(self, query: str) -> Hits:
        """What has `query` in its name, or all words of it in its meaning."""
        matcher, words = self.matcher(query), query.casefold().split()
        for name, meaning, call, *_ in self.app.get_system_commands(self.screen):
            score = matcher.match(name)
            if not score and all(word in meaning.casefold() for word in words):
                score = _BY_MEANING
            if score:
                yield Hit(score, matcher.highlight(name), call, help=meaning)
