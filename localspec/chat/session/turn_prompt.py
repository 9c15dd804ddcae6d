"""The prompt of a turn: what the model is told of the conversation, and in which ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from localspec.chat.conversation import Message, Role, with_system
from localspec.chat.dialects import Dialect
from localspec.chat.prompt.prompt_ids import KnownIds, MessageWindow
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.settings import ChatSettings
from localspec.chat.tool_costs import ToolCosts
from localspec.engine.cancel import Cancel
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.llama import Context
from localspec.errors import LocalspecError
from localspec.safe_text import without_middle

THOUGHT_ENDS = "\nI have thought long enough and answer now.\n"
_TWENTIETH = 20
_CallsHeld: TypeAlias = tuple[str, tuple[str, ...]]
"""A grammar of calls, and the marks after which it applies."""
_NOT_HELD: _CallsHeld = ("", ())


class TurnPrompt:
    """Makes the target's prompts of one conversation.

    Args:
        target: of which the prompts must leave room for an answer.
        template: makes text of messages.

    Attributes:
        known_ids: the text and the ids of the last prompt and its answer.
        window: which messages fit into the context.
        tools: those that the model may call, in the form of OpenAI's requests.
    """

    def __init__(self, target: Context, template: ChatTemplate) -> None:
        self._model, self._n_ctx = target.model, target.n_ctx
        self._template = template
        self.known_ids = KnownIds(template)
        self.window = MessageWindow(target.n_ctx)
        self.tools: tuple[dict[str, Any], ...] = ()
        self._held: tuple[ToolPrompt, _CallsHeld] = ToolPrompt(), _NOT_HELD

    def dialect(self, settings: ChatSettings) -> Dialect:
        """How the target marks thoughts and calls under these settings.

        Raises:
            Cancelled: the flag of the template's renderer was set meanwhile.
        """
        dialect = self._template.dialect
        if settings.reasoning_format == "none":
            return dialect.raw()
        return dialect.asked(settings.reasoning, settings.reasoning_effort)

    def ids(self, messages: Sequence[Message], settings: ChatSettings, cancel: Cancel) -> list[int]:
        """The ids of as many of the newest turns as fit, beginning with those in the caches.

        Raises:
            PromptTooLong: not even the last question fits.
            LocalspecError: the template refuses the conversation.
            Cancelled: `cancel` was set.
        """
        tools = self.tool_prompt(settings)

        def encode(some: Sequence[Message]) -> list[int]:
            return self.known_ids.prompt(self._text(some, tools, settings, cancel))

        return self.window.fit(messages, encode)

    def tool_prompt(self, settings: ChatSettings) -> ToolPrompt:
        """The tools of these settings, in the form that the target reads.

        Raises:
            Cancelled: as `dialect`.
        """
        return ToolPrompt(self.dialect(settings), self.tools)

    def calling(self, settings: ChatSettings, prefill: str) -> tuple[ChatSettings, tuple[str, ...]]:
        """The settings of an answer that may call tools, and the texts after which a grammar holds.

        A grammar of the user's own goes before.

        Args:
            settings: of the answer.
            prefill: the mark of a thought that the prompt ends with; empty for none.
        """
        grammar, after = _NOT_HELD if settings.grammar else self._holding(settings)
        if not grammar:
            return settings, ()
        closing = self._template.dialect.marks.closing(prefill)
        return replace(settings, grammar=grammar), (*([closing] if closing else []), *after)

    def _holding(self, settings: ChatSettings) -> _CallsHeld:
        """The grammar of calls, which is made once; none if a schema spoils it."""
        tools = self.tool_prompt(settings)
        if tools != self._held[0]:
            self._held = tools, _NOT_HELD
            # The schemas come from servers: one that is wrong must not make every question fail.
            with suppress(Exception):
                held = tools.grammar()
                if held[0]:
                    require_grammar(held[0])
                self._held = tools, held
        return self._held[1]

    def costs(
        self,
        tools: Sequence[dict[str, Any]],
        instead: Sequence[dict[str, Any]],
        settings: ChatSettings,
    ) -> ToolCosts:
        """What the description of tools costs, and whether others are offered in their place.

        Raises:
            LocalspecError: the template refuses them.
            Cancelled: as `dialect`.
        """
        asked, dialect = [Message(Role.USER, "?")], self.dialect(settings)

        def size(some: Sequence[dict[str, Any]]) -> int:
            text = self._text(asked, ToolPrompt(dialect, tuple(some)), settings, Cancel())
            return len(self._template.tokenize(text))

        plain = size(())
        try:
            whole = size(tools) - plain
        except LocalspecError:  # the template cannot tell so much
            whole = self._n_ctx
        total, searched = whole, False
        if whole > self._n_ctx // _TWENTIETH:
            total = min(whole, size(instead) - plain)
            searched = total < whole
        return ToolCosts(
            total=total,
            whole=whole,
            each=tuple(self._count(json.dumps(tool, ensure_ascii=False)) for tool in tools),
            context=self._n_ctx,
            searched=searched,
        )

    def shortened(self, results: Sequence[Message], share: int) -> list[Message]:
        """Results of tools that together take at most about the `share`-th part of the context."""
        room = self._n_ctx // share // max(1, len(results))

        def cut(text: str) -> str:
            tokens = self._count(text)
            return text if tokens <= room else without_middle(text, len(text) * room // tokens)

        return [replace(one, content=cut(one.content)) for one in results]

    def _count(self, text: str) -> int:
        return len(self._model.tokenize(text, add_special=False, parse_special=False))

    def _text(
        self,
        messages: Sequence[Message],
        tools: ToolPrompt,
        settings: ChatSettings,
        cancel: Cancel,
    ) -> str:
        """The rendered prompt."""
        thinking = self._template.dialect.thinking
        variables = thinking.variables(settings.reasoning, settings.reasoning_effort)
        # An answer that was stopped before its first word must not appear in the prompt.
        said = [m for m in messages if m.content or m.role is not Role.ASSISTANT]
        system = tools.explained(settings.system_prompt)
        return self._template.render(
            with_system(tools.told(said), system),
            cancel,
            {**variables, **tools.variables},
            give_up=not tools.tools,
        )

    def budget(
        self, settings: ChatSettings, prefill: str
    ) -> tuple[str, str, tuple[int, ...]] | None:
        """The opening mark, the closing mark and the tokens that close a thought with a budget.

        The opening mark is empty if the prompt has opened the thought. None without a budget.

        Args:
            settings: of the answer.
            prefill: the mark of a thought that the prompt ends with; empty for none.
        """
        marks = self._template.dialect.marks
        if settings.reasoning_budget < 0 or not marks.thoughts:
            return None
        pairs = marks.thoughts
        begin, close = next((pair for pair in pairs if pair[0] == prefill), pairs[0])
        ids = self._model.tokenize(
            f"{THOUGHT_ENDS}{close}{marks.gap}", add_special=False, parse_special=True
        )
        return "" if prefill else begin, close, tuple(ids)
