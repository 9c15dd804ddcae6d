"""The draft model goes on while the target decodes (2408.11850, 2405.14105).

It reads along the likeliest outcome: all that was proposed is accepted, and what follows is its own
best guess, again and again. Where the outcome was that, the next proposal finds its first passes
made. They are decodes and no more: nothing is drawn ahead, and no number of a rule's is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.proposer import Proposer, View, argmax_proposer, likeliest
from localspec.engine.length.beside import Beside
from localspec.engine.llama import Context
from localspec.engine.llama.context import common_prefix
from localspec.engine.round.sampling import Logits
from localspec.errors import Cancelled, EngineError, SamplingError

Guesses: TypeAlias = Callable[[Logits, Sequence[int]], int]
"""(logits of shape (n_vocab,), tokens behind the text) -> the likeliest next token."""

_LOOK_S = 0.02  # seconds from one look at the generation's cancel to the next


@dataclass(slots=True)
class _Way:
    """What is read behind a text.

    Attributes:
        text: tokens of the text.
        held: tokens of it that the cache holds.
        drafted: of `tokens` the first ones, that were proposed.
        tokens: those, and the guesses behind them.
        rows: logits behind each guess that was read, shape (n_vocab,).
        stays: of `tokens`, those that became text.
    """

    text: int
    held: int
    drafted: int
    tokens: list[int]
    rows: list[Logits] = field(default_factory=list)
    stays: int = 0

    @property
    def guesses(self) -> int:
        """How many there are."""
        return len(self.tokens) - self.drafted


class Ahead:
    """What a draft model reads while the target decodes, in a thread of its own.

    The thread has the context to itself until `found` or `rest` return. It looks for guesses under
    a lock, and for none once the target's pass is over: the sampler chain is then the target's.

    Attributes:
        beside: decides when.
        passes: decodes begun during the last pass of the target.
        right: whether the last outcome was the one that was read along.
    """

    def __init__(self, context: Context, n_vocab: int, beside: Beside) -> None:
        """Read with `context`, of whose tokens the first `n_vocab` are the target's."""
        self.beside = beside
        self.passes, self.right = 0, False
        self._context, self._n_vocab = context, n_vocab
        self._threads = ThreadPoolExecutor(1, "draft")
        self._running: Future[None] | None = None
        self._looking, self._over = Lock(), True
        self._halt, self._cancel = Cancel(), Cancel()
        self._way: _Way | None = None
        self._proposer: Proposer = argmax_proposer

    def begin(self, proposer: Proposer, cancel: Cancel) -> None:
        """A generation starts whose tokens `proposer` picks, and which `cancel` stops."""
        self.rest()
        self._proposer, self._cancel = proposer, cancel

    def going_on(
        self,
        tokens: Sequence[int],
        held: int,
        draft: Sequence[int],
        following: View | None,
        room: int,
    ) -> AbstractContextManager[Ahead | None]:
        """Read on behind what was proposed while the block runs, where that pays.

        Args:
            tokens: the text that it was proposed for.
            held: how many of them the passes of the proposal left in the cache.
            draft: what was proposed.
            following: what these passes showed behind all of it, if they came so far.
            room: tokens that the next draft may have at most.
        """
        context, model = self._context, self._context.model
        if not draft or max(draft) >= model.n_vocab or model.is_end(draft[-1]):
            return nullcontext()
        room = min(room, context.n_ctx - held - len(draft), self.beside.reach(len(draft)))
        if room < 1 or not self.beside.wants(len(draft)):
            return nullcontext()
        guess = None if following is None else likeliest(following)
        if guess is not None and model.is_end(guess):
            return nullcontext()

        def guesses(row: Logits, behind: Sequence[int]) -> int:
            return likeliest(self._proposer(row, tokens, behind))

        return self._beside((len(tokens), held), draft, guess, guesses, room)

    @contextmanager
    def _beside(
        self,
        text: tuple[int, int],
        draft: Sequence[int],
        guess: int | None,
        guesses: Guesses,
        room: int,
    ) -> Iterator[Ahead]:
        """Read on while the block runs.

        Args:
            text: its tokens, and how many of them the cache holds: all but what was left out.
                Behind them it may hold some of the draft's.
            draft: what was proposed.
            guess: what is likeliest to follow, None where the draft has to be read for that.
            guesses: tells the same from logits.
            room: tokens that the next draft may have at most.
        """
        held, tokens = text[1], [*draft] if guess is None else [*draft, guess]
        same = min(common_prefix(self._context.tokens[held:], tokens), len(tokens) - 1)
        self._context.rewind(held + same)
        self._way = way = _Way(*text, len(draft), tokens)
        self._halt.clear()
        self._context.watch(self._halt)
        self.passes, self.right, self._over = 0, False, False
        unread = tokens[same:]
        self._running = self._threads.submit(self._read, way, unread, guesses, room)
        try:
            yield self
        except BaseException:
            self._halt.set()
            raise
        finally:
            with self._looking:
                self._over = True

    def _read(self, way: _Way, unread: list[int], guesses: Guesses, room: int) -> None:
        """What the thread does: `unread` first, then guess after guess."""
        with suppress(Cancelled):
            while unread:
                self.passes += 1
                row = self._context.decode(unread, 1)[0, : self._n_vocab]
                if way.guesses:
                    row = row.copy()  # the next decode writes over it
                    way.rows.append(row)
                unread = self._next(row, way, guesses, room)

    def _next(self, row: Logits, way: _Way, guesses: Guesses, room: int) -> list[int]:
        """The guess that follows; none once the target's pass is over."""
        with self._looking:
            if self._over or way.guesses >= room:
                return []
            try:
                token = guesses(row, way.tokens)
            except (SamplingError, EngineError):  # no distribution; a tail that a grammar refuses
                return []
            if self._context.model.is_end(token):
                return []
            way.tokens.append(token)
            return [token]

    def outcome(self, tokens: Sequence[int]) -> bool:
        """The text is `tokens` now: what is still being read along another one is given up.

        Returns:
            whether anything was read ahead, through which `found` and `rest` will look.
        """
        way = self._way
        if way is None:
            return False
        said = list(tokens[way.text :])
        self.right = said == way.tokens[: len(said)]
        if not self.right and way.tokens != said[: len(way.tokens)]:
            self._halt.set()
        way.stays = max(0, min(common_prefix(way.tokens, said), len(said) - 1))
        return True

    def found(self, tokens: Sequence[int]) -> list[Logits]:
        """Logits behind the newest of `tokens`, and behind each of the guesses that follow it.

        None where the text went another way: the cache then holds what is right of it, and not the
        newest token.

        Raises:
            LocalspecError: a decode along the text failed.
        """
        failed = self._settle()
        way = self._way
        if way is None:
            return []
        said = list(tokens[way.text :])
        newest, same = len(said) - 1 - way.drafted, common_prefix(way.tokens, said)
        if failed is not None and same == min(len(way.tokens), len(said)):
            raise failed
        # A guess may not have been read to its end.
        del way.tokens[way.drafted + len(way.rows) :]
        if same == len(said) and 0 <= newest < len(way.rows):
            return way.rows[newest:]
        self._way = None
        self._context.rewind(way.held + min(common_prefix(way.tokens, said), len(said) - 1))
        return []

    def take(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The guesses that follow `tokens` in the cache, which is the caller's from now on."""
        way, self._way = self._way, None
        return () if way is None else tuple(way.tokens[len(tokens) - way.text :])

    def rest(self) -> None:
        """Nothing of it is wanted any more: the cache holds nothing but text."""
        self._halt.set()
        self._settle()  # nobody asked for what failed
        way, self._way = self._way, None
        if way is not None:
            self._context.rewind(way.held + way.stays)

    def close(self) -> None:
        """Rest, and end the thread."""
        self.rest()
        self._threads.shutdown()

    def _settle(self) -> BaseException | None:
        """Wait for what is being read; give what it failed of."""
        running = self._running
        if running is None:
            return None
        while not wait([running], _LOOK_S).done:
            if self._cancel.is_set():
                self._halt.set()
        self._running = None
        self._context.watch(self._cancel)
        return running.exception()
