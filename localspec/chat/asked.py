"""What is asked for where the asker keeps the conversation: plain values, which travel."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from localspec.chat.conversation import Message
from localspec.chat.settings import ChatSettings


class Asked(Struct, frozen=True):
    """One answer.

    Attributes:
        settings: how it is written.
        messages: what was said, the system prompt included; without them `prompt` counts.
        variables: what the chat template sees besides: ``tools``, say.
        prompt: text, or ids, to be continued as it is.
        after: the settings' grammar holds from where this text has been written; empty for at once.
        top_logprobs: how many alternatives of each token are told; None for no probabilities.
        drafters: who may draft, by name; None for all.
    """

    settings: ChatSettings
    messages: tuple[Message, ...] = ()
    variables: dict[str, Any] = {}
    prompt: str | tuple[int, ...] = ""
    after: str = ""
    top_logprobs: int | None = None
    drafters: tuple[str, ...] | None = None
