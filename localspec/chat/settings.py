"""The settings of a conversation, and the request for a single answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from localspec.chat.conversation import Message
from localspec.engine.round.params import Accept, SamplingParams, default_accept
from localspec.errors import UsageError

Gamma: TypeAlias = int | Literal["auto"]

# The draft length of auto if nothing was measured: gamma began fixed, or the context is too small.
UNMEASURED_GAMMA = 3


@dataclass(slots=True)
class ChatSettings:
    """Settings of a conversation; see `Session.settings` for when they take effect.

    Attributes:
        system_prompt: precedes all messages; empty for none.
        chosen: the fields of `sampling` that the user chose; the others follow the model's advice
            (`chat/advice.py`).
        accept: the acceptance rule; None chooses one (see `default_accept`).
        lenience: makes the rule lossy, so that the distribution differs from the target's; None for
            lossless.
        grammar: constrains answers: GBNF, or llguidance's Lark (`engine.grammars.lark`); empty for
            none.
        n_predict: tokens to generate at most; -1 for no limit but the context.
        reasoning: whether the model thinks before it answers; ``auto`` leaves it to its template.
        reasoning_effort: one of the efforts that the template knows; empty leaves it to the
            template.
        reasoning_budget: tokens after which a thought is closed; -1 for no limit.
        reasoning_format: ``none`` leaves thoughts in the text, with their marks.
        stop: strings that end an answer and are left out of it.
        repeat_stop: whether to stop an answer that only repeats itself
            (`chat/session/repetition.py`).
        repeatable: the user chose the seed, so the answer must not depend on timing.
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
    def keeps_text(self) -> bool:
        """Whether the same random numbers give the same text with and without drafting."""
        rules = (None, Accept.MATCH, Accept.COUPLED)  # None: a comparison takes one of these
        return self.lenience is None and self.accept in rules

    @property
    def draft_length(self) -> int:
        """Gamma as a number."""
        return UNMEASURED_GAMMA if self.gamma == "auto" else self.gamma


class Infill(Struct, frozen=True):
    """A gap in a text, to be filled in.

    Attributes:
        begun: the first characters of what fills it.
        others: names and texts of other files, the most important last.
        in_repository: the text and the others are files of a repository.
    """

    prefix: str
    suffix: str
    begun: str = ""
    others: tuple[tuple[str, str], ...] = ()
    in_repository: bool = False


class AnswerRequest(Struct, frozen=True):
    """A request for one answer, by a client that keeps the conversation: plain, sendable values.

    Attributes:
        messages: the conversation, including the system prompt; empty to use `prompt`.
        variables: further variables of the chat template, such as ``tools``.
        prompt: text, or ids, to be continued without a template.
        infill: a gap to be filled in, in place of a prompt; else None.
        after: the grammar applies once this text has been written; empty for at once.
        top_logprobs: how many alternatives to report per token; None for no probabilities.
        drafters: the names of those that may draft; None for all.
        anew: the prompt is read from its beginning, whatever the caches hold of it.
        count_only: the prompt is made and counted, but not answered.
        continues: the last message is the beginning of the answer.
        goes_on: whether the last message follows a question, as the result of a call does.
    """

    settings: ChatSettings
    messages: tuple[Message, ...] = ()
    variables: dict[str, Any] = {}
    prompt: str | tuple[int, ...] = ""
    infill: Infill | None = None
    after: str = ""
    top_logprobs: int | None = None
    drafters: tuple[str, ...] | None = None
    anew: bool = False
    count_only: bool = False
    continues: bool = False
    goes_on: bool = False


def check_bias(settings: ChatSettings, n_vocab: int) -> None:
    """Check that the target's vocabulary has all tokens of the logit bias.

    Args:
        settings: with the bias.
        n_vocab: the size of the target's vocabulary.

    Raises:
        UsageError: a token is outside it.
    """
    unknown = [token for token in settings.sampling.logit_bias if token >= n_vocab]
    if unknown:
        raise UsageError(
            f"logit-bias names token {unknown[0]}, the target has {n_vocab:,}",
            "Give ids of the target's vocabulary.",
        )


def without_bias(settings: ChatSettings) -> ChatSettings:
    """`settings` for another model, whose tokens have other ids than those of the logit bias."""
    return replace(settings, sampling=replace(settings.sampling, logit_bias={}))
