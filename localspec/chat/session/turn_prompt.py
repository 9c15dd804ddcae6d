"""The prompt of a turn: what the model is told of the conversation, and in which ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from localspec.chat.conversation import Message, Role, with_system
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.shapes import AwaitedText
from localspec.chat.prompt.conversation_tools import ConversationTools
from localspec.chat.prompt.prompt_ids import KnownIds, MessageWindow
from localspec.chat.prompt.quoted_texts import QuotedTexts
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.settings import ChatSettings
from localspec.chat.tool_costs import ToolCosts
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.past_texts import Past
from localspec.engine.llama import Context

THOUGHT_ENDS = "\nI have thought long enough and answer now.\n"


class TurnPrompt:
    """Makes the target's prompts of one conversation.

    Args:
        target: its context must hold a prompt and leave room for an answer.
        template: makes text of messages.

    Attributes:
        known_ids: the text and the ids of the last prompt and its answer.
        tools: those that the model may call.
    """

    def __init__(self, target: Context, template: ChatTemplate) -> None:
        self._model, self._n_ctx = target.model, target.n_ctx
        self._template = template
        self.known_ids = KnownIds(template)
        self.window = MessageWindow(target.n_ctx)
        self.tools = ConversationTools(target)
        self._quoted = QuotedTexts(target.model)

    def dialect(self, settings: ChatSettings) -> Dialect:
        """How the target marks thoughts and calls under these settings.

        Raises:
            Cancelled: the flag of the template's renderer was set meanwhile.
        """
        dialect = self._template.dialect.asked(settings.reasoning, settings.reasoning_effort)
        return dialect.raw() if settings.reasoning_format == "none" else dialect

    def ids(
        self,
        messages: Sequence[Message],
        settings: ChatSettings,
        cancel: Cancel,
        *,
        roomy: bool = False,
    ) -> list[int]:
        """The ids of as many of the newest turns as fit, beginning with those in the caches.

        Raises:
            PromptTooLong: not even the last question fits, or a `roomy` prompt leaves no room.
            LocalspecError: the template refuses the conversation.
            Cancelled: `cancel` was set.
        """
        tools = ToolPrompt(self.dialect(settings), self.tools.offered)

        def encode(some: Sequence[Message]) -> list[int]:
            return self.known_ids.prompt(self._text(some, tools, settings, cancel))

        return self.window.fit(messages, encode, roomy=roomy)

    @contextmanager
    def summing_up(self) -> Iterator[None]:
        """Have the prompts inside, which end by asking for a summary, hold as much as fits."""
        window, self.window = self.window, MessageWindow(self._n_ctx, sums_up=True)
        try:
            yield
        finally:
            self.window = window

    def following(self, messages: Sequence[Message], settings: ChatSettings) -> list[int]:
        """The ids of a prompt that goes on after `messages`.

        Raises:
            LocalspecError: the template refuses the conversation.
            Cancelled: the flag of the template's renderer was set meanwhile.
        """
        tools = ToolPrompt(self.dialect(settings), self.tools.offered)
        asked = [*messages[self.window.left_out :], Message(Role.USER, "?")]
        text = self._text(asked, tools, settings, Cancel(), give_up=False)
        return self.known_ids.following(text)

    def quoted(self, messages: Sequence[Message], settings: ChatSettings) -> Sequence[Past]:
        """The messages as JSON writes them, if the answer may call tools or has a grammar."""
        return [self._quoted.past(messages)] if self.tools.offered or settings.grammar else []

    def calling(
        self, settings: ChatSettings, opening: str
    ) -> tuple[ChatSettings, tuple[AwaitedText, ...]]:
        """The settings of an answer that may call tools, and what its grammar waits for.

        A grammar of the user's own takes precedence. Neither holds within a thought that is open,
        and that of calls in none that the model begins with.

        Args:
            settings: of the answer.
            opening: the mark of a thought that the prompt ends with; empty for none.
        """
        own = settings.grammar
        grammar, after = (own, ()) if own else self.tools.grammar(self.dialect(settings))
        if not grammar:
            return settings, ()
        awaited = self._template.dialect.marks.awaited(opening, after)
        return replace(settings, grammar=grammar), awaited

    def offer(
        self,
        tools: Sequence[dict[str, Any]],
        instead: Sequence[dict[str, Any]],
        settings: ChatSettings,
    ) -> ToolCosts:
        """As `Session.offer`, with the settings that decide how the target reads tools."""
        asked = [Message(Role.USER, "?")]

        def size(some: Sequence[dict[str, Any]]) -> int:
            shown = ToolPrompt(self.dialect(settings), tuple(some))
            text = self._text(asked, shown, settings, Cancel())
            return len(self._template.tokenize(text))

        return self.tools.choose(tools, instead, size)

    def _text(
        self,
        messages: Sequence[Message],
        tools: ToolPrompt,
        settings: ChatSettings,
        cancel: Cancel,
        *,
        give_up: bool = True,
    ) -> str:
        """The rendered prompt; `give_up` is as in `ChatTemplate.render`."""
        thinking = self._template.dialect.thinking
        variables = thinking.variables(settings.reasoning, settings.reasoning_effort)
        # An answer that was stopped before its first word must not appear in the prompt.
        said = [m for m in messages if m.content or m.role is not Role.ASSISTANT]
        system = tools.explained(settings.system_prompt)
        return self._template.render(
            with_system(tools.told(said), system),
            cancel,
            {**variables, **tools.variables},
            give_up=give_up and not tools.tools,
        )

    def budget(
        self, settings: ChatSettings, opening: str
    ) -> tuple[str, str, tuple[int, ...]] | None:
        """The opening mark, the closing mark and the tokens that close a thought with a budget.

        The opening mark is empty if the prompt has opened the thought. None without a budget.

        Args:
            settings: of the answer.
            opening: the mark of a thought that the prompt ends with; empty for none.
        """
        marks = self._template.dialect.marks
        if settings.reasoning_budget < 0 or not marks.thoughts:
            return None
        pairs = marks.thoughts
        begin, close = next((pair for pair in pairs if pair[0] == opening), pairs[0])
        ids = self._model.tokenize(
            f"{THOUGHT_ENDS}{close}{marks.gap}", add_special=False, parse_special=True
        )
        return "" if opening else begin, close, tuple(ids)
