"""How many tokens the input has, on its frame: estimated at once, counted by the idle engine."""

from __future__ import annotations

from dataclasses import dataclass

from localspec import formats
from localspec.ui.commands.command import parse
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.turn_controller import TurnController

_TOLD_FROM = 40  # characters: a shorter text fits anywhere
_COUNTED_FROM = 400  # characters: a wrong guess for a shorter text hardly matters
_LATEST, _USUAL = 20, 4  # messages to learn from; characters per token before there are any


@dataclass(eq=False, repr=False)
class PromptSize:
    """Says on the input's frame how much is typed; lives in the screen's thread."""

    turns: TurnController
    _counted: tuple[str, int] = ("", 0)  # the last text that the engine counted, and its tokens
    _counting: str = ""  # the text that it counts now

    def show(self) -> None:
        """Say how much is typed now."""
        prompt = self.turns.prompt
        size = "" if parse(prompt.text, COMMANDS) else self._size_of(prompt.text)
        opens = "F11 opens the paste" if prompt.is_folded else ""
        said = ", ".join(part for part in (size, opens) if part)
        if said != prompt.border_subtitle:
            prompt.border_subtitle = said

    def counted(self, tokens: int) -> None:
        """Take the count that `show` asked the engine for."""
        self._counted, self._counting = (self._counting, tokens), ""
        self.show()

    def loaded(self) -> None:
        """Count anew: another model may have other tokens, and no model was there to count."""
        self._counted, self._counting = ("", 0), ""
        self.show()

    def died(self) -> None:
        """Expect no count of an engine that is lost, or had no model."""
        self._counting = ""

    def _size_of(self, text: str) -> str:
        """How many tokens `text` has, and whether they are too many; empty for a short text."""
        if len(text) < _TOLD_FROM:
            return ""
        exact = text == self._counted[0]
        tokens = self._counted[1] if exact else self._guess(text)
        ready = self.turns.phase is EnginePhase.READY and not self._counting
        if ready and not exact and len(text) >= _COUNTED_FROM:
            self._counting = text
            self.turns.engine.count(text)
        said = f"{'' if exact else 'about '}{formats.count(tokens)} tokens"
        room = self.turns.dashboard.state.figures.context_size
        if tokens <= room or not room:
            return said
        return f"{said}, the context holds {formats.count(room)}: /set ctx-size N"

    def _guess(self, text: str) -> int:
        """About how many tokens `text` has, by its own last count or by the latest answers."""
        counted, number = self._counted
        if counted and counted[:_COUNTED_FROM] == text[:_COUNTED_FROM]:
            tokens, characters = number, len(counted)
        else:
            known = [
                (n, len(node.message.content))
                for node in self.turns.record.nodes()[-_LATEST:]
                if isinstance(n := node.figures.get("generated_tokens"), int) and n
            ]
            tokens, characters = map(sum, zip(*known, strict=True)) if known else (1, _USUAL)
        return max(1, round(len(text) * tokens / max(1, characters)))
