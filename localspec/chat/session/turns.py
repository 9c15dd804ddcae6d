"""The turns of a conversation: how each kind of them is answered and changes the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from localspec.chat.conversation import RECALL, Message, Role
from localspec.chat.events import Noticed, TurnEnd, TurnEvents, TurnsLeftOut
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.session.answer import AnswerText
from localspec.chat.session.drafting import Drafting
from localspec.chat.session.repetition import Repetition
from localspec.chat.session.turn_prompt import TurnPrompt
from localspec.chat.session.writer import Writer
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.past_texts import Past
from localspec.engine.record.stats import FinishReason
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.errors import Cancelled, LocalspecError, PromptTooLong

SUMMARISE = (
    "Sum up our conversation so far in as few words as possible, without losing names, numbers,"
    " decisions or open questions. Write the summary alone."
)
# What cuts a summary short, and what gives it more room.
_LIMITS: dict[FinishReason | None, str] = {
    FinishReason.LENGTH: "Say /set n-predict -1, then /compact again.",
    FinishReason.CONTEXT: "Say /set ctx-size N: the pair is loaded with a larger context.",
}
# Results of tools are cut to a fourth of the context, then to an eighth ..., until an answer has
# its room; where even the least of these leaves it less, until the prompt fits.
_SHARES = (4, 8, 16, 32)


class Turns:
    """Writes the answers of a conversation, and of prompts that are not part of it.

    All methods are generators of turn events; of all of them, only one may be iterated at a time.

    Args:
        template: of the target.
        prompt: makes the prompts with it.
        drafting: has the settings in force.
        writer: generates.

    Attributes:
        trace: writes a trace of the following answers; None for no trace.
        last: how the last answer ended; None before the first, and after one that failed.
    """

    def __init__(
        self, template: ChatTemplate, prompt: TurnPrompt, drafting: Drafting, writer: Writer
    ) -> None:
        self._template, self._prompt = template, prompt
        self._drafting, self._writer = drafting, writer
        self.messages: list[Message] = []
        self.trace: TraceWriter | None = None
        self.last: TurnEnd | None = None

    def ask(self, text: str, cancel: Cancel) -> TurnEvents:
        """As `Session.turn`."""
        if not text.strip():
            raise LocalspecError("the prompt is empty", "Write something to answer.")
        yield from self._answer([*self.messages, Message(Role.USER, text)], cancel)

    def ask_again(self, cancel: Cancel) -> TurnEvents:
        """As `Session.regenerate`."""
        users = [i for i, m in enumerate(self.messages) if m.role is Role.USER]
        if not users:
            raise LocalspecError("there is no question to answer again", "Ask something first.")
        yield from self._answer(self.messages[: users[-1] + 1], cancel)

    def go_on(self, results: Sequence[Message], cancel: Cancel) -> TurnEvents:
        """As `Session.go_on`."""
        ways = [(True, share) for share in _SHARES]
        # A result that has its place whole is cut no further where that makes too little room.
        if self._prompt.tools.shortened(results, _SHARES[0]) == list(results):
            ways.append((False, _SHARES[0]))
        ways.append((False, _SHARES[-1]))
        for roomy, share in ways:
            shortened = self._prompt.tools.shortened(results, share)
            try:
                yield from self._answer([*self.messages, *shortened], cancel, roomy=roomy)
            except PromptTooLong:
                if (roomy, share) == ways[-1]:
                    raise
            else:
                return

    def compact(self, cancel: Cancel) -> TurnEvents:
        """As `Session.compact`."""
        before = list(self.messages)
        if not before:
            raise LocalspecError("there is nothing to sum up", "Ask something first.")
        asked = [*before, Message(Role.USER, SUMMARISE)]
        try:
            with self._prompt.summing_up():
                yield from self._answer(asked, cancel, grammar="", stop=())
            summary = self.messages[-1]
        finally:
            self.messages[:] = before
        if (remedy := _LIMITS.get(summary.finish)) is not None:
            raise LocalspecError("the summary was cut", remedy)
        said = self._template.dialect.said(summary.content).content or ""
        if summary.finish is FinishReason.STOP and said.strip():
            self.messages[:] = [Message(Role.USER, RECALL), summary]
            self._prompt.window.left_out = 0

    def complete(
        self,
        prompt: Sequence[int],
        settings: ChatSettings,
        how: GenerateSettings,
        answer: AnswerText,
        cancel: Cancel,
        *,
        texts: Sequence[Past],
    ) -> TurnEvents:
        """As `Session.complete`; `how` follows from its other arguments."""
        own, self._drafting.settings = self._drafting.settings, settings
        try:
            stats = self._writer.begin(answer, settings.lenience)
            try:
                reason = yield from self._writer.write(list(prompt), how, answer, cancel, texts)
            except Cancelled:
                reason = FinishReason.CANCELLED
            yield TurnEnd(answer.text, reason, stats, answer.stopped_by)
        finally:
            self._drafting.settings = own

    def _answer(
        self, asked: Sequence[Message], cancel: Cancel, *, roomy: bool = False, **changes: Any
    ) -> TurnEvents:
        """Write the answer to `asked`; on success, the conversation is `asked` and the answer.

        A `roomy` prompt has to leave room for it. Settings that are among the `changes` have
        another value for this answer.
        """
        begun, settings = perf_counter(), replace(self._drafting.settings, **changes)
        left_out, known = self._prompt.window.left_out, len(self._template.notices)
        try:
            prompt = self._prompt.ids(asked, settings, cancel, roomy=roomy)
        except Cancelled:
            prompt = None
        yield from map(Noticed, self._template.notices[known:])
        if self._prompt.window.left_out > left_out:
            yield TurnsLeftOut(self._prompt.window.left_out)
        answer, opened = self._text(settings)
        stats = self._writer.begin(answer, settings.lenience)
        before, self.messages[:] = list(self.messages), asked
        self.last = reason = None
        try:
            if prompt is None:
                raise Cancelled
            texts = self._prompt.quoted(asked, settings) if self._writer.pair.lookup else ()
            calling, after = self._prompt.calling(settings, opened)
            how = self._writer.how(calling, after, self._prompt.budget(settings, opened), begun)
            how = replace(how, trace=self.trace, goes_on=asked[-1].role is Role.TOOL)
            reason = yield from self._writer.write(prompt, how, answer, cancel, texts)
        except Cancelled:
            reason = FinishReason.CANCELLED
        except GeneratorExit:
            reason = FinishReason.CANCELLED
            raise
        finally:
            self._prompt.known_ids.answered(answer.tokens, self._template.piece, answer.written)
            again = len(asked) <= len(before)
            stopped = reason is FinishReason.CANCELLED
            if not answer.text and (reason is None or (again and stopped)):
                self.messages[:], self._prompt.window.left_out = before, left_out
            else:
                message = Message(Role.ASSISTANT, answer.text, reason, answer.spans)
                self.messages.append(message)
            if reason is not None:
                self.last = ended = TurnEnd(answer.text, reason, stats, answer.stopped_by)
        yield ended

    def _text(self, settings: ChatSettings) -> tuple[AnswerText, str]:
        """What makes the answer's text of its tokens, and the mark that the prompt ends with."""
        dialect = self._prompt.dialect(settings)
        answer = AnswerText(
            self._template.piece,
            self._template.stops,
            tuple(self._writer.pair.drafts),
            begins=dialect.opening,
            repetition=Repetition() if settings.repeat_stop else None,
            own_stops=settings.stop,
            reader=dialect.reader((), prompt=dialect.opening),
        )
        return answer, dialect.opening
