"""What the palette finds: commands by their name and by what they mean."""

from __future__ import annotations

from textual.command import Hit, Hits
from textual.system_commands import SystemCommandsProvider

ALSO = {
    "help": "keys shortcuts commands manual",
    "speculation": "speculative decoding drafting draft faster on off",
    "origin": "colours who wrote draft target underline",
    "panel": "figures statistics stats speed tokens dashboard sidebar",
    "regen": "regenerate again retry redo reroll answer",
    "history": "conversations chats sessions resume load previous find delete",
    "edit": "correct fix change question undo",
    "earlier": "version previous back undo",
    "later": "version next forward redo",
    "copy": "clipboard yank code",
    "read": "attach file open upload include",
    "pairs": "models model change switch download install remove catalogue",
    "get": "proposal propose recommended best model download fetch install",
    "bench": "benchmark measure compare speed off on report",
    "draft": "drafter head small model change choose",
    "stats": "statistics figures conversation totals speed tokens",
    "tune": "measure calibrate threads attention costs",
    "preset": "system prompt persona role saved",
    "twice": "compare comparison side by side off on benchmark",
    "round": "inside explain why accepted recovered bonus slow motion probabilities",
    "system": "instructions persona role prompt",
    "gamma": "draft length drafted tokens",
    "set": "settings options parameters sampling seed top-k top-p context size stop",
    "temp": "temperature creativity randomness greedy sampling",
    "thoughts": "thinking reasoning fold files",
    "title": "rename name conversation",
    "export": "save write file markdown json share",
    "import": "load open file markdown json",
    "compact": "summary summarise shorten context full",
    "clear": "new chat conversation reset start over forget",
    "quit": "exit leave close end bye",
    "theme": "colours colors dark light appearance",
}
_BY_MEANING = 0.5  # of a name's score at most: names come first


class Commands(SystemCommandsProvider):
    """Textual's own looks at names alone."""

    async def search(self, query: str) -> Hits:
        """What has `query` in its name, or all words of it in its meaning or in other words."""
        matcher, words = self.matcher(query), query.casefold().split()
        for name, meaning, call, *_ in self.app.get_system_commands(self.screen):
            score = matcher.match(name)
            known = f"{meaning} {ALSO.get(name.casefold(), '')}".casefold()
            if not score and all(word in known for word in words):
                score = _BY_MEANING
            if score:
                yield Hit(score, matcher.highlight(name), call, help=meaning)
