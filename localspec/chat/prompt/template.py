"""The chat template: renders messages to text, and turns that text into ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from localspec.chat.conversation import (
    Message,
    Role,
    arrived,
    fold_system,
    in_parts,
    merge_neighbours,
)
from localspec.chat.dialects import Dialect
from localspec.chat.dialects.learning.learner import learnt
from localspec.chat.dialects.marks import only_named
from localspec.chat.dialects.reading.code_quotes import CodeQuotes
from localspec.chat.dialects.shapes import told_thought
from localspec.chat.prompt.control_tokens import ControlTokens
from localspec.chat.prompt.renderer import (
    RenderBudget,
    TemplateRefused,
    TemplateRenderer,
    TemplateSource,
    TemplateStarved,
    TemplateUnusable,
)
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Model
from localspec.errors import LocalspecError

PLAIN_STOPS = ("\nUser:",)

# If a message contains the text of a mark, one of these private-use characters replaces it until
# the rendered text has been split into marks and plain text.
_GUARDS = range(0x10E000, 0x10FFFE)


class ChatTemplate:
    """Renders conversations with the model's own template.

    Rendered text is *guarded*: the content of messages is plain text, even if it looks like a mark.
    Only `tokenize` of the same object can read it.

    Attributes:
        marks: the tokens that no message may produce.
        notices: what a user should know (no template, a system role that is refused).
        stops: stop strings that the plain fallback needs; empty for a real template.
    """

    def __init__(
        self,
        model: Model,
        renderer: TemplateRenderer | None = None,
        written: str | None = None,
        dialects: Path | None = None,
    ) -> None:
        """Read the template of `model`.

        Args:
            model: has the template, and tokenises.
            renderer: renders it; closed with this object.
            written: replaces the model's template.
            dialects: the folder of learnt dialects; None for none.
        """
        self._model, self._dialects = model, dialects
        self._guards: dict[str, str] = {}  # the text of a mark -> its stand-in
        self._plain: dict[int, str] = {}  # the inverse, for `str.translate`
        self.notices: list[str] = []
        self.stops: tuple[str, ...] = ()
        self._renderer = renderer or TemplateRenderer()
        self._source: TemplateSource | None = None
        self._written = model.chat_template if written is None else written
        if self._written is None:
            self._fall_back("the model has no chat template")
        else:
            bos, eos = self._special(model.bos), self._special(model.eos)
            self._source = TemplateSource(self._written, bos, eos)
        self.marks = ControlTokens(model, self._written)
        self._dialect: Dialect | None = None
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """End the renderer's process."""
        self._renderer.close()

    def _fall_back(self, why: str) -> None:
        """Replace the template by a plain transcript, which any text model can continue."""
        self._source = None
        self._notice(f"{why}: a plain 'User: ... Assistant:' transcript is used instead")
        self.stops = PLAIN_STOPS

    def render(
        self,
        messages: Sequence[Message],
        cancel: Cancel | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        give_up: bool = True,
        continues: bool = False,
    ) -> str:
        """The guarded text of `messages` with the beginning of the next answer.

        If a template refuses or drops the system role, the system prompt moves into the first user
        message; if it wants alternating roles, neighbours are merged. If it is invalid, exceeds its
        limits or writes nothing, the plain transcript replaces it.

        Args:
            messages: the conversation.
            cancel: stops the rendering.
            variables: further variables of the template, such as ``tools``.
            give_up: False if a failure must not affect other conversations: the template stays, and
                this conversation is refused.
            continues: the last message is an answer that goes on: the text ends with its words.

        Raises:
            LocalspecError: the template refuses the conversation in every arrangement.
            Cancelled: `cancel` was set meanwhile.
        """
        guarded = [
            Message(m.role, guard(m.content), more=self._guarded(m.more))
            for m in messages
            for guard in [self.guard_answer if m.role is Role.ASSISTANT else self.guard]
        ]
        end = self._stand_in("") if continues else ""  # no message has it
        if continues:
            guarded[-1] = replace(guarded[-1], content=guarded[-1].content + end)
        text = self._written_with(guarded, cancel, variables or {}, give_up=give_up)
        if continues and end not in text:
            raise LocalspecError(
                "the model's chat template leaves out the answer that is to be continued",
                "End the conversation with the user's message.",
            )
        return text.rpartition(end)[0] if continues else text

    def _written_with(
        self,
        guarded: list[Message],
        cancel: Cancel | None,
        variables: Mapping[str, Any],
        *,
        give_up: bool,
    ) -> str:
        """The template's text of guarded messages, or the plain transcript."""
        if self._source is not None:
            arranged = partial(self._arranged, self._source, guarded, cancel)
            seen, budget = self._guarded(variables), RenderBudget()
            try:
                with suppress(TemplateStarved):
                    return arranged(seen, budget=budget)
                # Once more, in a new process, with what is left to compute.
                return arranged(seen, budget=RenderBudget(budget.seconds))
            except TemplateStarved as error:
                raise LocalspecError(
                    f"the model's chat template {error}: the machine is too busy",
                    "Close other programs, and try again.",
                ) from None
            except TemplateUnusable as error:
                if not give_up:
                    raise LocalspecError(
                        f"the model's chat template {error} with this conversation", "Shorten it."
                    ) from None
                self._fall_back(f"the model's chat template {error}")
        return _plain_text(guarded)

    def _arranged(
        self,
        source: TemplateSource,
        guarded: list[Message],
        cancel: Cancel | None,
        variables: Mapping[str, Any],
        *,
        budget: RenderBudget,
    ) -> str:
        """The text of the first arrangement of the messages that the template accepts."""
        refusal, lost, folded = "", False, fold_system(guarded)
        ways = [guarded, folded, merge_neighbours(guarded), merge_neighbours(folded)]
        tries = [(arranged, variables) for arranged in (*ways, *map(in_parts, ways))]
        tries += [(arranged, _whole_tools(variables)) for arranged in ways]
        tries.append((merge_neighbours(folded, results=True), variables))
        for arranged, seen in tries:
            try:
                told = [*map(self._with_thought, arranged)]
                text = self._renderer.render(source, told, budget, cancel, seen)
            except TemplateRefused as error:
                refusal = refusal or str(error)
                continue
            lost = lost or bool(text.strip())
            systems = [m for m in arranged if m.role is Role.SYSTEM]
            # Check that no message is missing: some templates drop a role, or content that is text.
            if text.strip() and all(arrived(m, text) for m in arranged):
                if not systems and any(m.role is Role.SYSTEM for m in guarded):
                    self._notice(
                        "the model's chat template takes no system prompt:"
                        " it is put before the first message"
                    )
                return text
        if lost:
            raise LocalspecError(
                "the model's chat template leaves out a message of this conversation",
                "Give another template with --chat-template.",
            )
        if not refusal:
            raise TemplateUnusable("writes nothing")
        raise LocalspecError(
            f"the model's chat template refuses this conversation: {refusal.removesuffix('.')}",
            "Start a new conversation, or leave out the system prompt.",
        )

    def _with_thought(self, message: Message) -> Message:
        """A message; the thought of an answer is told as the template reads it."""
        thought, said = message.more.get("reasoning_content"), message.content
        if not thought:
            return message
        marks = self.dialect.marks
        if marks.speech == "harmony" and "tool_calls" in message.more:
            said = ""  # its template refuses a text and a thought before a call
        told = told_thought(thought, said, parts=marks.parts)
        return replace(message, content=said, more={**message.more, **told})

    @property
    def dialect(self) -> Dialect:
        """How the model marks thoughts and calls; learnt at the first access.

        Raises:
            Cancelled: the renderer's flag was set meanwhile.
        """
        if self._dialect is None:
            source = self._source
            self._dialect = (
                learnt(self._renderer, source, folder=self._dialects) if source else Dialect()
            ).without_ends(self._ends_generation)
        return self._dialect

    def _ends_generation(self, text: str) -> bool:
        """Whether `text` begins with a token that ends generation, and so is in no answer."""
        ids = self._model.tokenize(text, add_special=False, parse_special=True)
        return self._model.is_end(ids[0])

    def piece(self, token: int) -> bytes:
        """What a token adds to an answer: its bytes, or its text if it is a mark."""
        known = self._pieces.get(token)
        if known is None:
            known = self._model.piece(token)
            if not known and (mark := self.marks.text(token)) and self.dialect.speaks(mark):
                known = mark.encode()
            self._pieces[token] = known
        return known

    def guard(self, text: str, named: Set[str] = frozenset()) -> str:
        """`text` with stand-ins for what looks like a mark, and for all `named` texts."""
        if taken := sorted(char for char in set(text) if ord(char) in _GUARDS):
            text = text.translate({ord(char): self._stand_in(char) for char in taken})
        while marks := self.marks.within(text) | {one for one in named if one in text}:
            for mark in sorted(marks):
                text = text.replace(mark, self._stand_in(mark))
        return text

    def guard_answer(self, text: str) -> str:
        """Guard an answer, but keep the marks of the thought that it begins with.

        By these templates find the thought. Elsewhere a mark of thoughts is only named, and becomes
        plain text even if it is not a token: many templates drop all that precedes the last one.
        """
        marks = self.dialect.marks
        pairs = marks.thoughts if marks.speech == "marks" else ()
        named, begun = {mark for one in pairs for mark in one if mark}, text.lstrip()
        pair = next((one for one in pairs if begun.startswith(one) or _unopened(text, *one)), None)
        if pair is None:
            return self.guard(text, named)
        begin, close = pair
        within = (self.dialect.said(text).thought or "").count(close)  # these are named there
        parts = begun.removeprefix(begin).split(close, within + 1)
        thought, said = (close.join(some) for some in (parts[: within + 1], parts[within + 1 :]))
        kept = begin if begun.startswith(begin) else "", close if len(parts) > within + 1 else ""
        lead = text[: len(text) - len(begun)] + kept[0]
        return lead + self.guard(thought, named) + kept[1] + self.guard(said, named)

    def lasts(self, text: str) -> bool:
        """Whether guarded `text` is valid in other objects, which assign their own stand-ins."""
        return not any(ord(char) in _GUARDS for char in set(text))

    def _guarded(self, value: Any) -> Any:
        """A JSON value with every string in it guarded, including the keys."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guard(name): self._guarded(one) for name, one in value.items()}
        return [self._guarded(one) for one in value] if isinstance(value, list | tuple) else value

    def tokenize(self, text: str, *, continues: bool = False) -> list[int]:
        """The ids of guarded `text`.

        Args:
            text: what `render` returned, or its end.
            continues: the text follows other ids, so that no BOS is added.
        """
        if not text:
            return []
        if continues:
            return self.marks.continued(text, self._guarded_ids)
        ids = self._guarded_ids(text)
        bos = self._model.bos
        # Many templates write BOS themselves, and a second BOS makes answers worse.
        if self._model.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _guarded_ids(self, text: str) -> list[int]:
        """llama.cpp's own ids, except between two marks if a stand-in occurs there."""
        parsed = self._model.tokenize(text, add_special=False, parse_special=True)
        if not self._plain or not any(ord(c) in self._plain for c in set(text)):
            return parsed
        ids: list[int] = []
        fragment: list[int] = []
        at = 0
        for token in parsed:
            mark = self.marks.text(token)
            start = text.find(mark, at) if mark else -1
            if start < 0:
                fragment.append(token)
                continue
            ids += [*self._plain_ids(text[at:start], fragment), token]
            fragment, at = [], start + len(mark)
        return ids + self._plain_ids(text[at:], fragment)

    def _plain_ids(self, text: str, known: list[int]) -> list[int]:
        """The ids of text between marks, with stand-ins turned back into plain text."""
        restored = text.translate(self._plain)
        return known if restored == text else self.marks.spell(restored)

    def _stand_in(self, text: str) -> str:
        if text not in self._guards:
            if len(self._guards) == len(_GUARDS):
                return "\N{REPLACEMENT CHARACTER}"
            code = _GUARDS[len(self._guards)]
            self._guards[text] = chr(code)
            self._plain[code] = text
        return self._guards[text]

    def _special(self, token: int | None) -> str:
        if token is None:
            return ""
        return self._model.piece(token, special=True).decode("utf-8", "replace")

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)


def _unopened(answer: str, begin: str, close: str) -> bool:
    """Whether an answer has the end of a thought alone, as from servers that leave its mark out."""
    if begin in answer or answer.count(close) != 1:
        return False
    before, after = answer.split(close)
    code = CodeQuotes(re.compile(re.escape(close)))
    code.add(before)
    bold = code.line[len(code.line.rstrip("*_")) :]
    if after.startswith("</") or (bold and code.line.count(bold) % 2):  # within HTML, or bold type
        return False
    # A sentence goes on after the name, or ends with it.
    if only_named(after) or (code.line.endswith(" ") and not after.strip()):
        return False
    return not code.quoted(after, block=True, final=True)


def _whole_tools(variables: Mapping[str, Any]) -> dict[str, Any]:
    """`variables` for templates that require tools, or that each has a description and schema."""
    given = variables.get("tools")
    tools = given if isinstance(given, list) else []
    return {**variables, "tools": [_whole_tool(one) for one in tools]}


def _whole_tool(tool: Any) -> Any:
    """A tool with a schema, and descriptions of it and its arguments; others are unchanged."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        return tool
    function = {"description": "", **tool["function"]}
    schema = function.get("parameters") or {}
    if isinstance(schema, Mapping):
        schema = {"type": "object", "properties": {}, **schema}
        if isinstance(known := schema["properties"], Mapping):
            schema["properties"] = {
                name: {"description": "", **one} if isinstance(one, Mapping) else one
                for name, one in known.items()
            }
        function["parameters"] = schema
    return {**tool, "function": function}


def _plain_text(messages: Sequence[Message]) -> str:
    """A transcript that any text model can continue, with the beginning of its next answer.

    It has no mark for the end of an answer, so the next "User:" ends it (`PLAIN_STOPS`).
    """
    form = {Role.SYSTEM: "{}\n\n", Role.USER: "User: {}\n", Role.ASSISTANT: "Assistant:{}\n"}
    return "".join(form[m.role].format(m.content) for m in messages) + "Assistant:"
