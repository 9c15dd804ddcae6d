"""The prompt of a turn: what the model is told of the conversation, and in which ids."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.conversation import Message, Role, with_system
from localspec.chat.dialects import Dialect
from localspec.chat.prompt.prompt_ids import KnownIds, MessageWindow
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context
from localspec.engine.record.stats import FinishReason

THOUGHT_ENDS = "\nI have thought long enough and answer now.\n"


class TurnPrompt:
    """Makes the target's prompts of one conversation.

    Args:
        target: of which the prompts must leave room for an answer.
        template: makes text of messages.

    Attributes:
        known_ids: the text and the ids of the last prompt and its answer.
        window: which messages fit into the context.
    """

    def __init__(self, target: Context, template: ChatTemplate) -> None:
        self._model = target.model
        self._template = template
        self.known_ids = KnownIds(template)
        self.window = MessageWindow(target.n_ctx)

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
        dialect = self.dialect(settings)
        thinking = self._template.dialect.thinking
        variables = thinking.variables(settings.reasoning, settings.reasoning_effort)

        def encode(some: Sequence[Message]) -> list[int]:
            # An answer that was stopped before its first word must not appear in the prompt.
            said = [told(m, dialect) for m in some if m.content or m.role is not Role.ASSISTANT]
            text = self._template.render(
                with_system(said, settings.system_prompt), cancel, variables
            )
            return self.known_ids.prompt(text)

        return self.window.fit(messages, encode)

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


def told(message: Message, dialect: Dialect) -> Message:
    """A message as the template needs it: an answer's thoughts are separated from its text."""
    if message.role is not Role.ASSISTANT or message.more:
        return message
    found = dialect.said(message.content, cut=message.finish is not FinishReason.STOP)
    if found.content == message.content:
        return message
    more = {"reasoning_content": found.thought} if found.thought else {}
    return Message(Role.ASSISTANT, found.content or "", more=more)
