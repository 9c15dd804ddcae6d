"""The prompt of a conversation: which messages fit, and which ids are already known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import msgspec

from localspec.chat.conversation import Message, Role
from localspec.chat.prompt.template import ChatTemplate
from localspec.errors import PromptTooLong

# When turns are left out, this share of the context stays filled. Leaving out one turn at a time
# would change the prompt's beginning, and so require a full prefill, with every new turn.
_FILLED = 0.75
# Tokens that a summary may take with the thoughts before it, and the least share of the context:
# a model's largest context cannot be raised where a summary was cut.
_SUMMARY, _OF_LARGE = 4096, 16


class MessageWindow:
    """Leaves out the oldest turns as a whole when the context has no room for an answer.

    Args:
        size: tokens that the context holds.
        sums_up: the last message asks for a summary of the others, and does not count as a turn.

    Attributes:
        left_out: how many messages the last prompt left out.
    """

    def __init__(self, size: int, *, sums_up: bool = False) -> None:
        self._size, self._sums_up = size, sums_up
        summary = min(max(_SUMMARY, size // _OF_LARGE), size // 4)
        # A summary needs more room than an answer, since it must not be cut. It takes the place of
        # these turns, so none of them needs to make room for a later one.
        self._most = size - (summary if sums_up else min(512, size // 8))
        self._enough = self._most if sums_up else int(_FILLED * size)
        self.left_out = 0

    def fit(
        self,
        messages: Sequence[Message],
        encode: Callable[[Sequence[Message]], list[int]],
        *,
        roomy: bool = False,
    ) -> list[int]:
        """The ids of all messages, or of as many of the newest turns as fit.

        Args:
            messages: without the system prompt.
            encode: adds the system prompt and returns the ids.
            roomy: whether a prompt does not fit that leaves too little room for an answer.

        Raises:
            PromptTooLong: not even the last turn fits.
        """
        places = range(1, len(messages) - self._sums_up)
        turns = [place for place in places if messages[place].role is Role.USER]
        begin = self.left_out if self.left_out in turns else 0
        prompt = encode(messages[begin:])
        later = [turn for turn in turns if turn > begin]
        if len(prompt) > self._most and later:
            position = bisect_left(
                later, True, key=lambda turn: len(encode(messages[turn:])) <= self._enough
            )
            begin = later[min(position, len(later) - 1)]
            prompt = encode(messages[begin:])
        if len(prompt) > (self._most if roomy else self._size):
            raise PromptTooLong(
                f"the prompt has {len(prompt):,} tokens, the context holds {self._size:,}",
                "Shorten it, or raise --ctx-size.",
            )
        self.left_out = begin
        return prompt


class KnownIds:
    """A rendered text and its ids, with the places where both may be cut.

    Tokenising an answer's text need not give the ids that were generated, and a cache is only
    useful up to the first different id. So the ids are kept, and only new text is tokenised.

    A template may rewrite history (drop thinking blocks, trim answers). Then everything after the
    last cut up to which the new rendering has the same text is tokenised again.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._text = ""
        self._ids: list[int] = []
        self._cuts: list[tuple[int, int]] = []  # (characters, ids), ascending

    def clear(self) -> None:
        """Forget everything."""
        self._text, self._ids, self._cuts = "", [], []

    def packed(self) -> bytes:
        """Everything known, encoded for another process; empty if that process could not use it."""
        if not self._template.lasts(self._text):
            return b""
        return msgspec.msgpack.encode((self._text, self._ids, self._cuts))

    def unpack(self, packed: bytes) -> None:
        """Replace what is known by the result of `packed`."""
        if packed:
            kind = tuple[str, list[int], list[tuple[int, int]]]
            self._text, self._ids, self._cuts = msgspec.msgpack.decode(packed, type=kind)

    def reach(self, rendered: str) -> int:
        """How many leading characters of `rendered` have known ids."""
        ends = (end for end, _ in reversed(self._cuts) if rendered.startswith(self._text[:end]))
        return next(ends, 0)

    def goes_on(self, rendered: str) -> bool:
        """Whether `rendered` continues the whole text."""
        return rendered.startswith(self._text)

    def following(self, rendered: str) -> list[int]:
        """As `prompt`, but nothing is learnt from it."""
        return self.copy().prompt(rendered)

    def copy(self) -> KnownIds:
        """An object that knows the same, for another prompt."""
        other = KnownIds(self._template)
        other._text, other._ids, other._cuts = self._text, self._ids[:], self._cuts[:]
        return other

    def prompt(self, rendered: str) -> list[int]:
        """The ids of the prompt `rendered`, beginning with known ids as far as possible."""
        while self._cuts and not rendered.startswith(self._text[: self._cuts[-1][0]]):
            self._cuts.pop()
        n_text, n_ids = self._cuts[-1] if self._cuts else (0, 0)
        del self._ids[n_ids:]
        self._ids += self._template.tokenize(rendered[n_text:], continues=n_text > 0)
        self._text = rendered
        self._cut()
        return list(self._ids)

    def answered(self, ids: Sequence[int], piece: Callable[[int], bytes], text: str) -> None:
        """Append an answer: the generated ids, and the text released from them.

        Ids whose text was not released (after a stop string, or half a character) are left out.
        """
        raw = text.encode()
        ends = _ends(ids, piece, raw)
        prompt, n_prompt = self._text, len(self._ids)
        opening = self._template.dialect.opened(prompt)
        # Cut before closing white space as well, because many templates trim it.
        for limit in (len(raw.rstrip()), len(raw)):
            count = bisect_right(ends, limit)
            while count and not _between_characters(raw, ends[count - 1]):
                count -= 1
            known = len(self._ids) - n_prompt
            text_now = prompt + self._guarded(raw, ids[:count], ends, opening)
            if count > known and text_now.startswith(self._text):
                self._ids += ids[known:count]
                self._text = text_now
                self._cut()

    def _guarded(self, raw: bytes, ids: Sequence[int], ends: Sequence[int], opening: str) -> str:
        """The text of an answer's leading `ids`, guarded except where the answer wrote a mark.

        So a template that writes the marks of an earlier call writes the same text. The prompt has
        ended with `opening`, the mark of a thought, or with none.
        """
        text, begin, end = "", 0, 0
        for token, after in zip(ids, ends, strict=False):
            if after > end and self._template.marks.text(token):
                plain = self._plain(raw[begin:end], "" if begin else opening)
                text, begin = text + plain + raw[end:after].decode(), after
            end = after
        return text + self._plain(raw[begin:end], "" if begin else opening)

    def _plain(self, part: bytes, opening: str) -> str:
        return self._template.guard_answer(opening + part.decode())[len(opening) :]

    def _cut(self) -> None:
        cut = (len(self._text), len(self._ids))
        if cut not in self._cuts[-1:]:
            self._cuts.append(cut)


def _ends(ids: Sequence[int], piece: Callable[[int], bytes], raw: bytes) -> list[int]:
    """Where in `raw` each of the leading `ids` ends, as long as their bytes match `raw`."""
    ends: list[int] = []
    end = 0
    for token in ids:
        part = piece(token)
        if raw[end : end + len(part)] != part:
            break
        end += len(part)
        ends.append(end)
    return ends


def _between_characters(raw: bytes, end: int) -> bool:
    return end == len(raw) or raw[end] & 0xC0 != 0x80
