"""The tools that a model may call in a conversation, and the room that they take in its context."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from localspec.chat.conversation import Message
from localspec.chat.dialects import Dialect
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.tool_costs import ToolCosts
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.llama import Context
from localspec.errors import LocalspecError
from localspec.safe_text import without_middle

_TWENTIETH = 20
_CallsHeld: TypeAlias = tuple[str, tuple[str, ...]]
"""A grammar of calls, and the marks after which it applies."""
_NOT_HELD: _CallsHeld = ("", ())


class ConversationTools:
    """What a model is offered, within the room that its context has.

    Attributes:
        offered: those that it may call, in the form of OpenAI's requests.
    """

    def __init__(self, target: Context) -> None:
        self._model, self._n_ctx = target.model, target.n_ctx
        self.offered: tuple[dict[str, Any], ...] = ()
        self._held: tuple[ToolPrompt, _CallsHeld] = ToolPrompt(), _NOT_HELD

    def grammar(self, dialect: Dialect) -> _CallsHeld:
        """The grammar of calls, which is made once; an empty one if a schema spoils it."""
        tools = ToolPrompt(dialect, self.offered)
        if tools != self._held[0]:
            self._held = tools, _NOT_HELD
            # The schemas come from servers: one that is wrong must not make every question fail.
            with suppress(Exception):
                held = tools.grammar()
                if held[0]:
                    require_grammar(held[0])
                self._held = tools, held
        return self._held[1]

    def choose(
        self,
        tools: Sequence[dict[str, Any]],
        instead: Sequence[dict[str, Any]],
        size: Callable[[Sequence[dict[str, Any]]], int],
    ) -> ToolCosts:
        """Offer tools, or others in their place if these take too much; what that costs.

        Args:
            tools: in the form of OpenAI's requests.
            instead: tools that find these.
            size: tokens of a prompt with some tools.

        Raises:
            LocalspecError: `size` raises it: the template refuses them. None is offered then.
        """
        self.offered = ()
        plain = size(())
        try:
            whole = size(tools) - plain
        except LocalspecError:  # the template cannot tell so much
            whole = self._n_ctx
        total, searched = whole, False
        if whole > self._n_ctx // _TWENTIETH:
            total = min(whole, size(instead) - plain)
            searched = total < whole
        self.offered = tuple(instead if searched else tools)
        return ToolCosts(
            total=total,
            whole=whole,
            each=tuple(self.count(json.dumps(tool, ensure_ascii=False)) for tool in tools),
            context=self._n_ctx,
            searched=searched,
        )

    def shortened(self, results: Sequence[Message], share: int) -> list[Message]:
        """Results of tools that together take at most about the `share`-th part of the context."""
        room = self._n_ctx // share // max(1, len(results))

        def cut(text: str) -> str:
            tokens = self.count(text)
            return text if tokens <= room else without_middle(text, len(text) * room // tokens)

        return [replace(one, content=cut(one.content)) for one in results]

    def count(self, text: str) -> int:
        """How many tokens `text` has in a message."""
        return len(self._model.tokenize(text, add_special=False, parse_special=False))
