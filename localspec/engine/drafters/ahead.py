"""A draft model that goes on while the target decodes (2408.11850, 2405.14105).

It reads along the likeliest outcome: the whole draft is accepted, and its own best guesses follow.
If that is the outcome, the first passes of the next proposal are already done. Only decodes happen
ahead of time: nothing is drawn, so that no random number of a rule is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias

from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.proposer import Proposer, View, argmax_proposer, likeliest
from localspec.engine.length.ahead_policy import AheadPolicy
from localspec.engine.llama import Context
from localspec.engine.round.sampling import Logits
from localspec.errors import Cancelled, EngineError, SamplingError

Guesses: TypeAlias = Callable[[Logits, Sequence[int]], int]
"""(logits of shape (n_vocab,), tokens after the text) -> the likeliest next token."""

_POLL_S = 0.02  # seconds between two checks of the generation's cancel


@dataclass(slots=True)
class _Way:
    """The tokens that are read after a text.

    Attributes:
        text: length of the text.
        held: how many of its tokens the cache holds.
        drafted: how many of `tokens`, counted from the first, were proposed.
        tokens: the draft, and the guesses after it.
        rows: logits after each guess that was read, shape (n_vocab,).
        stays: how many of `tokens` became text.
    """

    text: int
    held: int
    drafted: int
    tokens: list[int]
    rows: list[Logits] = field(default_factory=list)
    stays: int = 0

    @property
    def guesses(self) -> int:
        """How many guesses there are."""
        return len(self.tokens) - self.drafted


class Ahead:
    """Reads with a draft model while the target decodes, in a thread of its own.

    The thread owns the context until `found` or `rest` return. It makes guesses under a lock, and
    none once the target's pass is over, since the target then uses the sampler chain.

    Attributes:
        passes: decodes begun during the last pass of the target.
        right: whether the last outcome was the expected one.
    """

    def __init__(self, context: Context, n_vocab: int, policy: AheadPolicy) -> None:
        """Read with `context`; the target has the first `n_vocab` of its ids."""
        self.policy = policy
        self.passes, self.right = 0, False
        self._context, self._n_vocab = context, n_vocab
        self._threads = ThreadPoolExecutor(1, "draft")
        self._running: Future[None] | None = None
        self._looking, self._over = Lock(), True
        self._halt, self._cancel = Cancel(), Cancel()
        self._way: _Way | None = None
        self._proposer: Proposer = argmax_proposer
        self._paused = False  # until the next `begin`

    def begin(self, proposer: Proposer, cancel: Cancel) -> None:
        """Start a generation: `proposer` picks its tokens, and `cancel` stops it."""
        self.rest()
        self._proposer, self._cancel, self._paused = proposer, cancel, False

    def pause(self) -> None:
        """Read nothing until the next `begin`, so that the proposer sees only proposals."""
        self._paused = True

    def going_on(
        self,
        tokens: Sequence[int],
        held: int,
        draft: Sequence[int],
        following: View | None,
        room: int,
    ) -> AbstractContextManager[Ahead | None]:
        """Read on after the draft while the block runs, if that pays.

        Args:
            tokens: the text that the draft continues.
            held: how many of them the proposal's passes left in the cache.
            draft: the proposed tokens.
            following: what these passes showed after the whole draft, if they got that far.
            room: the largest number of tokens in the next draft.
        """
        context, model = self._context, self._context.model
        if self._paused or not draft or max(draft) >= model.n_vocab or model.is_end(draft[-1]):
            return nullcontext()
        room = min(room, context.n_ctx - held - len(draft), self.policy.reach(len(draft)))
        if room < 1 or not self.policy.wants(len(draft)):
            return nullcontext()
        guess = None if following is None else likeliest(following)
        if guess is not None and model.is_end(guess):
            return nullcontext()

        def guesses(row: Logits, drafted: Sequence[int]) -> int:
            return likeliest(self._proposer(row, tokens, drafted))

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
            text: its length, and how many of its tokens the cache holds: all but those left out.
                After them it may hold some of the draft.
            draft: the proposed tokens.
            guess: the likeliest next token; None if the draft has to be read to know it.
            guesses: makes a guess from logits.
            room: the largest number of tokens in the next draft.
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
        """The thread's work: read `unread`, then guess after guess."""
        with suppress(Cancelled):
            while unread:
                self.passes += 1
                row = self._context.decode(unread, 1)[0, : self._n_vocab]
                if way.guesses:
                    row = row.copy()  # the next decode overwrites it
                    way.rows.append(row)
                unread = self._next(row, way, guesses, room)

    def _next(self, row: Logits, way: _Way, guesses: Guesses, room: int) -> list[int]:
        """The next guess; empty once the target's pass is over."""
        with self._looking:
            if self._over or way.guesses >= room:
                return []
            try:
                token = guesses(row, way.tokens)
            except (SamplingError, EngineError):  # no distribution, or a grammar's refusal
                return []
            if self._context.model.is_end(token):
                return []
            way.tokens.append(token)
            return [token]

    def outcome(self, tokens: Sequence[int]) -> bool:
        """Learn that the text is now `tokens`; reading along another one stops.

        Returns:
            Whether anything was read ahead. `found` and `rest` then settle the cache.
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
        """Logits after the newest of `tokens`, and after each guess that follows it.

        Empty if the text took another branch; the cache then keeps the tokens that match, without
        the newest.

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
        # The last guess may not have been read.
        del way.tokens[way.drafted + len(way.rows) :]
        if same == len(said) and 0 <= newest < len(way.rows):
            return way.rows[newest:]
        self._way = None
        self._context.rewind(way.held + min(common_prefix(way.tokens, said), len(said) - 1))
        return []

    def take(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The guesses after `tokens` in the cache, which the caller owns from now on."""
        way, self._way = self._way, None
        return () if way is None else tuple(way.tokens[len(tokens) - way.text :])

    def rest(self) -> None:
        """Stop reading; the cache then holds only text."""
        self._halt.set()
        self._settle()  # a failure does not matter any more
        way, self._way = self._way, None
        if way is not None:
            self._context.rewind(way.held + way.stays)

    def close(self) -> None:
        """Stop reading, and end the thread."""
        self.rest()
        self._threads.shutdown()

    def _settle(self) -> BaseException | None:
        """Wait until the thread has stopped reading; return the error that it ended with."""
        running = self._running
        if running is None:
            return None
        while not wait([running], _POLL_S).done:
            if self._cancel.is_set():
                self._halt.set()
        self._running = None
        self._context.watch(self._cancel)
        return running.exception()
