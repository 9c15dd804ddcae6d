"""How answers are written: a conversation's settings, and all that a single answer asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from localspec.chat.conversation import Message
from localspec.engine.round.params import Accept, SamplingParams, default_accept
from localspec.errors import UsageError

Gamma: TypeAlias = int | Literal["auto"]

# What auto means where nothing was measured: it began fixed, or the context is too small for that.
UNMEASURED_GAMMA = 3


@dataclass(slots=True)
class ChatSettings:
    """Settings of a conversation; see `Session.settings` for when they take effect.

    Attributes:
        system_prompt: what the model is told before anything else; empty for nothing.
        sampling: the sampler chain.
        chosen: the fields of `sampling` that the user chose; the others follow the model's advice
            (`chat/advice.py`).
        accept: the acceptance rule; None chooses one (see `default_accept`).
        lenience: makes the rule lossy, with another distribution than the target's; None for
            lossless.
        grammar: what answers conform to: GBNF, or llguidance's Lark (`engine.grammars.lark`); empty
            for none.
        gamma: draft length, or ``"auto"``.
        n_predict: tokens to generate at most; -1 until the end or the end of the context.
        reasoning: whether the model thinks before it answers; ``auto`` leaves it to its template.
        reasoning_effort: how much, of those that the template knows; empty leaves it to that.
        reasoning_budget: tokens that a thought may have, then it is closed; -1 for no limit.
        reasoning_format: ``none`` leaves thoughts where they are, marks and all.
        stop: strings that end an answer and are left out of it.
        repeat_stop: an answer that only repeats itself is stopped (`chat/session/repetition.py`).
        repeatable: somebody chose the seed, so nothing in the answer may follow the clock.
    """

    system_prompt: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    chosen: frozenset[str] = frozenset()
    accept: Accept | None = None
    lenience: float | None = None
    grammar: str = ""
    gamma: Gamma = "auto"
    n_predict: int = -1
    reasoning: Literal["on", "off", "auto"] = "auto"
    reasoning_effort: str = ""
    reasoning_budget: int = -1
    reasoning_format: Literal["auto", "none"] = "auto"
    stop: tuple[str, ...] = ()
    repeat_stop: bool = False
    repeatable: bool = False

    @property
    def rule(self) -> Accept:
        """The acceptance rule in force."""
        if self.accept is not None:
            return self.accept
        return default_accept(self.sampling, seeded=self.repeatable)

    @property
    def draft_length(self) -> int:
        """Gamma as a number."""
        return UNMEASURED_GAMMA if self.gamma == "auto" else self.gamma


class AnswerRequest(Struct, frozen=True):
    """One answer, where the asker keeps the conversation: plain values, which travel.

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


def check_bias(settings: ChatSettings, n_vocab: int) -> None:
    """Check that the logit bias is of tokens that a target of `n_vocab` has.

    Raises:
        UsageError: it is not.
    """
    unknown = [token for token in settings.sampling.logit_bias if token >= n_vocab]
    if unknown:
        raise UsageError(
            f"logit-bias names token {unknown[0]}, the target has {n_vocab:,}",
            "Give ids of the target's vocabulary.",
        )
