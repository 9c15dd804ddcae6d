"""How much of a conversation the model is told: all of it, or the newest turns that fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from localspec.chat.conversation import Message, Role
from localspec.errors import PromptTooLong

# Where turns are left out, so many are that this share of the context is filled: each further one
# would cost another reading of everything behind it.
_FILLED = 0.75


class Window:
    """Leaves the oldest turns out, whole, once an answer would have no room.

    Args:
        size: tokens that the context holds.

    Attributes:
        left_out: how many messages the last prompt left out.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._room = min(512, size // 8)
        self.left_out = 0

    def fit(
        self, messages: Sequence[Message], encode: Callable[[Sequence[Message]], list[int]]
    ) -> list[int]:
        """The prompt of `messages`, or of as many of the newest ones as fit.

        Args:
            messages: without the system prompt.
            encode: puts the system prompt in front and makes ids.

        Raises:
            PromptTooLong: not even the last question fits.
        """
        turns = [i for i, message in enumerate(messages) if i and message.role is Role.USER]
        begin = self.left_out if self.left_out in turns else 0
        prompt = encode(messages[begin:])
        later = [turn for turn in turns if turn > begin]
        if len(prompt) > self._size - self._room and later:
            enough = int(_FILLED * self._size)
            position = bisect_left(
                later, True, key=lambda turn: len(encode(messages[turn:])) <= enough
            )
            begin = later[min(position, len(later) - 1)]
            prompt = encode(messages[begin:])
        if len(prompt) > self._size:
            raise PromptTooLong(
                f"the prompt has {len(prompt):,} tokens, the context holds {self._size:,}",
                "Shorten it, or raise --ctx-size.",
            )
        self.left_out = begin
        return prompt
