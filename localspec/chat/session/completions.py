"""Answers for clients that keep their conversations themselves and send all of it each time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.dialects import Dialect
from localspec.chat.events import Noticed, PromptMade, RoundText, TokensScored, TurnEvents
from localspec.chat.prompt.infill_prompt import InfillPrompt
from localspec.chat.prompt.prompt_ids import KnownIds
from localspec.chat.prompt.quoted_texts import QuotedTexts
from localspec.chat.prompt.tool_prompt import ToolPrompt
from localspec.chat.session.answer import AnswerText
from localspec.chat.session.session import Session
from localspec.chat.settings import AnswerRequest, check_bias
from localspec.chat.states.cached_prefixes import WORTH, CachedPrefixes
from localspec.drafter_names import LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.past_texts import Past
from localspec.engine.grammars.grammar_reader import require_grammar
from localspec.engine.record.stats import FinishReason
from localspec.errors import Cancelled, LocalspecError, UsageError

_CONVERSATIONS = 32


class Completions:
    """Answers requests with a session's models; the session's own conversation stays empty.

    The ids and caches of the latest conversations are kept, so that only the new part of each is
    read.

    Args:
        session: loaded; nothing else may use it.
    """

    def __init__(self, session: Session) -> None:
        pair = session.pair
        self._session = session
        self._prefixes = CachedPrefixes(
            lambda: session.pair.contexts,
            session.folder,
            following=self._following,
        )
        self._last: tuple[AnswerRequest, str, KnownIds] | None = None  # and its answer
        self._files: Sequence[int] | None = None  # before the last prompt's gap, if it had one
        self._known: list[KnownIds] = []  # the latest last
        self._grammar = ""  # the last one that was checked, which takes long
        self._quoted = QuotedTexts(pair.target.model)

    def close(self) -> None:
        """Free the copies of caches at once, as the next pair is planned with the free memory."""
        self._prefixes.forget()

    def answer(self, asked: AnswerRequest, cancel: Cancel) -> TurnEvents:
        """Answer the request `asked`.

        Yields:
            `Noticed` if something came up, then `PromptMade`, then what `Session.turn` yields:
            nothing if the prompt was only to be counted, or does not fit in the context.

        Raises:
            LocalspecError: as in `Session.turn`; also for ids outside the target's vocabulary.
            Cancelled: while the prompt was made.
        """
        session, template = self._session, self._session.template
        target = session.pair.target
        target.model.watch(cancel)
        known, noticed = KnownIds(template), len(template.notices)
        check_bias(asked.settings, target.model.n_vocab)
        self._check_drafters(asked.drafters or ())
        if not asked.count_only:
            self._check_grammar(asked.settings.grammar)
        if asked.messages:
            text, opening = self._rendered(asked, cancel)
            yield from map(Noticed, template.notices[noticed:])
            if asked.count_only:  # nothing is learnt for a later turn
                yield PromptMade(len(self._nearest(text).following(text)), target.n_ctx, opening)
                return
            known, prompt = self._recalled(text)
            texts = [self._quoted.past(asked.messages)] if self._may_quote(asked) else []
        else:
            (prompt, texts), opening = self._plain(asked), ""
        if len(prompt) > target.n_ctx:
            yield PromptMade(len(prompt), target.n_ctx, opening)
            return
        answer, marks = self._text(asked, opening), template.dialect.marks
        turn = session.complete(
            prompt,
            asked.settings,
            answer,
            cancel,
            after=marks.awaited(opening, [asked.after] if asked.after else []),
            opening=opening,
            top_logprobs=asked.top_logprobs,
            drafters=asked.drafters,
            texts=texts,
            goes_on=asked.goes_on,
        )
        cached = self._restored(prompt[:-1], anew=asked.anew)
        yield PromptMade(len(prompt), target.n_ctx, opening, cached)
        try:
            yield from turn if asked.top_logprobs is None else self._scored(turn)
        finally:
            begun = asked.messages[-1].content if asked.continues else opening
            self._last = asked, begun + answer.text, known
            if asked.messages:
                known.answered(answer.tokens, template.piece, answer.written)

    def _following(self) -> Sequence[int] | None:
        """The ids with which the next prompt of the last conversation begins.

        None if no template makes it, or the template does not tell.
        """
        if self._last is None or not self._last[0].messages:
            return None
        asked, said, known = self._last
        template = self._session.template
        with suppress(LocalspecError, Cancelled):
            messages = _next_messages(asked, said, self._session.dialect)
            text = template.render(messages, Cancel(), asked.variables, give_up=False)
            return known.following(text)
        return None

    def _restored(self, prompt: Sequence[int], *, anew: bool) -> int:
        """How much of `prompt` the target's cache holds, once restored, or emptied if `anew`.

        Of a gap only the other files are worth a copy, and only if no gap with some of them comes:
        the text around it changes with every key, and an editor leaves out its oldest file.
        """
        target, before, files = self._session.pair.target, self._files, self._before_gap(prompt)
        if before is not None:
            middle = before[len(before) // 2 :][:WORTH]
            same = files is not None and not anew and _occurs(middle, files)
            target.keep_prefix(prompt if same else before)
        self._files = files
        self._prefixes.switch(() if anew else prompt)
        if anew:
            target.clear()
        return common_prefix(target.tokens, prompt)

    def _may_quote(self, asked: AnswerRequest) -> bool:
        """Whether lookup drafts an answer that may hold calls or other JSON."""
        looks_up = asked.drafters is None or LOOKUP in asked.drafters
        told = bool(asked.messages and asked.settings.grammar)
        return self._session.pair.lookup and looks_up and told

    def _text(self, asked: AnswerRequest, opening: str) -> AnswerText:
        """What makes the answer's text of its tokens."""
        session, template = self._session, self._session.template
        if not asked.messages:
            return AnswerText(session.pair.target.model.piece, asked.settings.stop)
        reader = session.dialect.reader((), prompt=opening)
        own = asked.settings.stop
        return AnswerText(template.piece, template.stops, own_stops=own, reader=reader)

    def _rendered(self, asked: AnswerRequest, cancel: Cancel) -> tuple[str, str]:
        """The text of the prompt, and the mark of the thought that is open at its end.

        Raises:
            LocalspecError: the template cannot write it.
        """
        template = self._session.template
        text = template.render(
            asked.messages, cancel, asked.variables, give_up=False, continues=asked.continues
        )
        begun = asked.messages[-1].content if asked.continues else ""
        return text, template.dialect.opened(text, begun)

    def _check_grammar(self, grammar: str) -> None:
        """Refuse a grammar that is wrong: llama.cpp reports errors only in its log.

        Raises:
            UsageError: it is wrong.
        """
        if grammar not in ("", self._session.settings.grammar, self._grammar):
            require_grammar(grammar)
            self._grammar = grammar

    def _check_drafters(self, named: tuple[str, ...]) -> None:
        """Refuse drafters that are not loaded.

        Raises:
            UsageError: one of them is not loaded.
        """
        pair = self._session.pair
        there = [*pair.drafts, *([LOOKUP] if pair.lookup else [])]
        other = next((name for name in named if name not in there), None)
        if other is not None:
            raise UsageError(
                f"there is no drafter named {other[:40]!r}",
                f"Choose from {', '.join(['auto', 'none', *there])}.",
            )

    def _scored(self, turn: TurnEvents) -> TurnEvents:
        """`turn`, with `TokensScored` before the text of every round."""
        piece = self._session.pair.target.model.piece
        for event in turn:
            if isinstance(event, RoundText):
                yield TokensScored(
                    tuple(
                        (piece(one.token), one.logprob, tuple((piece(i), p) for i, p in one.best))
                        # without the tokens after a stop string
                        for one in event.round.logprobs[: len(event.round.tokens)]
                    )
                )
            yield event

    def _recalled(self, text: str) -> tuple[KnownIds, list[int]]:
        """The ids of a rendered prompt, after the object that knows the ids of its conversation."""
        before = self._nearest(text)
        known, goes_on = before.copy(), before.goes_on(text)
        prompt = known.prompt(text)
        if len(prompt) <= self._session.pair.target.n_ctx:  # longer ones are refused
            others = [one for one in self._known if not (goes_on and one is before)]
            self._known = [*others[1 - _CONVERSATIONS :], known]
        return known, prompt

    def _nearest(self, text: str) -> KnownIds:
        """What knows the ids of the longest beginning of `text`."""
        best = max(self._known, key=lambda one: one.reach(text), default=None)
        return best if best and best.reach(text) else KnownIds(self._session.template)

    def _plain(self, asked: AnswerRequest) -> tuple[list[int], list[Past]]:
        """The ids of a prompt that is not made by a template, and texts to copy from.

        Raises:
            UsageError: it is empty, or has ids outside the target's vocabulary; or the target
                cannot fill in text.
        """
        target, prompt = self._session.pair.target, asked.prompt
        model = target.model
        if asked.infill is not None:
            made = InfillPrompt(model, asked.infill, target.n_ctx, asked.settings.n_predict)
            return made.ids, [made.past]
        if isinstance(prompt, str):
            ids = model.tokenize(prompt, add_special=True, parse_special=True)
        else:
            ids = list(prompt)
        if not ids:
            raise UsageError("the prompt is empty", "Give the text to continue.")
        wrong = next((token for token in ids if not 0 <= token < model.n_vocab), None)
        if wrong is not None:
            raise UsageError(
                f"the prompt has the token {wrong}, the target has {model.n_vocab:,}",
                "Give ids of the target's vocabulary.",
            )
        return ids, []

    def _before_gap(self, prompt: Sequence[int]) -> Sequence[int] | None:
        """What stands before a gap's first mark, ours or the client's; None without a gap."""
        marks = self._session.pair.target.model.infill_marks
        found = [prompt.index(mark) for mark in (marks.prefix, marks.suffix) if mark in prompt]
        return prompt[: min(found)] if len(found) == 2 else None


def _occurs(part: Sequence[int], tokens: Sequence[int]) -> bool:
    return any(tokens[at : at + len(part)] == part for at in range(len(tokens) - len(part) + 1))


def _next_messages(asked: AnswerRequest, said: str, dialect: Dialect) -> list[Message]:
    """The messages of the next request, if the client goes on after the answer `said`.

    Its calls get results. Its thought is there unless the client told earlier answers and none of
    their thoughts. That is a guess: these may have had none, as examples or calls without thinking.
    A wrong one costs a copy of the cache, or reading the answer again, once another client asks.
    """
    tools = asked.variables.get("tools")
    calls = dialect.calls(said, tools if isinstance(tools, list) else ())
    then = [tool_result("?", *one.texts()) for one in calls] or [Message(Role.USER, "?")]
    answer = Message(Role.ASSISTANT, said, FinishReason.STOP)
    prompt = ToolPrompt(dialect)
    first, *rest = prompt.told([answer, *then])
    told = [one.more for one in asked.messages if one.role is Role.ASSISTANT]
    more = dict(first.more)
    if told and not any("reasoning_content" in one for one in told):
        more.pop("reasoning_content", None)
    earlier = list(asked.messages)
    if asked.continues:
        more = {**earlier.pop().more, **more}
    return [*prompt.notation.numbered([*earlier, replace(first, more=more), *rest])]
