"""Drafters: what proposes tokens for the target to check.

A drafter proposes and observes. `ModelDrafter` is the small model beside the large one. Another
kind (n-gram, a hierarchy, another vocabulary) needs only the `Drafter` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context
from localspec.engine.noise import Noise
from localspec.engine.sampling import Dist, Sampler
from localspec.engine.verify import Draft

Logits: TypeAlias = NDArray[np.float32]

Pick: TypeAlias = Callable[[Logits, Sequence[int], Sequence[int]], tuple[int, Dist | None]]
"""(logits of shape (n_vocab,), tokens so far, drafted so far) -> drafted token, and the q that it
was drawn from, or None for a proposal that was not drawn."""


def argmax_pick(
    logits: Logits, _tokens: Sequence[int], _drafted: Sequence[int]
) -> tuple[int, None]:
    """Propose the most probable token: the best guess where the rule asks for a match."""
    return int(logits.argmax()), None


@dataclass(frozen=True, slots=True)
class BestPick:
    """Propose the most probable token after logit bias and penalties, within the grammar.

    Attributes:
        best: a greedy chain, with the target's constraint.
    """

    best: Sampler

    def __call__(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]
    ) -> tuple[int, None]:
        """Propose the token that follows `tokens` and `drafted`."""
        return int(self.best.along(logits, tokens, drafted).ids[0]), None


@dataclass(frozen=True, slots=True)
class SampledPick:
    """Draw the proposal from the draft's own distribution, and hand that distribution over.

    What breaks a grammar is masked before the draw: to cut a sampled draft for it afterwards would
    change the distribution of what is emitted.

    Attributes:
        sampler: the generation's sampler chain, with its constraint.
        noise: the generation's randomness, the same object that verification draws from. Under
            the coupled rule this is what makes draft and target tend to say the same.
    """

    sampler: Sampler
    noise: Noise

    def __call__(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]
    ) -> tuple[int, Dist]:
        """Draw the token that follows `tokens` and `drafted`."""
        q = self.sampler.along(logits, tokens, drafted)
        return self.noise.pick(q, len(tokens) + len(drafted)), q


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a drafter had to read before it could propose: tokens decoded, tokens cached."""

    decoded: int
    cached: int


class Drafter(Protocol):
    """Proposes tokens; learns what became of them.

    `begin` opens a generation, then `propose` and `observe` alternate. A drafter that was not asked
    for some rounds catches up by itself: `tokens` is always the whole sequence.
    """

    def begin(self, tokens: Sequence[int], pick: Pick, cancel: Cancel) -> None:
        """Start a generation that continues `tokens`."""
        ...

    def propose(self, tokens: Sequence[int], gamma: int) -> Draft:
        """Up to `gamma` tokens that may follow `tokens`. Raises Cancelled."""
        ...

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """The round is over: `accepted` of the drafted tokens stay; `tokens` is all there is."""
        ...

    @property
    def catch_up(self) -> CatchUp:
        """What the last `propose` had to read first."""
        ...


class ModelDrafter:
    """A small model that writes ahead of the target.

    The draft's cache is always a prefix of what the conversation holds: `observe` takes back what
    was rejected, `propose` decodes what is missing. After a draft accepted whole, its last token
    is missing, since nothing was to be proposed after it.

    Attributes:
        context: the draft model's context.
        catch_up: what the last `propose` had to read first.
    """

    def __init__(self, context: Context, n_vocab: int) -> None:
        """Draft with `context` for a target of `n_vocab` tokens.

        Ids that the target does not have are left out before anything is picked.
        """
        self.context = context
        self.catch_up = CatchUp(0, 0)
        self._n_vocab = min(n_vocab, context.model.n_vocab)
        self._pick: Pick = argmax_pick

    def begin(self, tokens: Sequence[int], pick: Pick, cancel: Cancel) -> None:
        """Keep of the cache what `tokens` begins with."""
        self.context.watch(cancel)
        # The last token is decoded anew if need be: proposing needs its logits.
        self.context.keep_prefix(tokens[:-1])
        self._pick = pick

    def propose(self, tokens: Sequence[int], gamma: int) -> Draft:
        """Draft up to `gamma` tokens: fewer after an end of generation or in a full context."""
        gamma = min(gamma, self.context.n_ctx - len(tokens) + 1)
        self.catch_up = CatchUp(0, len(self.context.tokens))
        if gamma < 1:
            return Draft(())
        logits = self._read(tokens)
        drafted: list[int] = []
        rows: list[Dist | None] = []
        while True:
            token, q = self._pick(logits[0, : self._n_vocab], tokens, drafted)
            drafted.append(token)
            rows.append(q)
            if len(drafted) == gamma or self.context.model.is_end(token):
                break
            logits = self.context.decode([token], 1)
        return Draft(tuple(drafted), _all_or_none(rows))

    def _read(self, tokens: Sequence[int]) -> Logits:
        """Decode what the cache lacks of `tokens`; return the logits after the last one."""
        start = len(self.context.tokens)
        step = self.context.n_batch
        for i in range(start, len(tokens), step):
            logits = self.context.decode(tokens[i : i + step], 1)
        self.catch_up = CatchUp(len(tokens) - start, start)
        return logits

    def observe(self, tokens: Sequence[int], accepted: int) -> None:  # noqa: ARG002 - the protocol's
        """Take what was rejected out of the cache: it may hold all but the newest token."""
        self.context.truncate(len(tokens) - 1)


def _all_or_none(rows: Iterable[Dist | None]) -> tuple[Dist, ...] | None:
    kept = tuple(row for row in rows if row is not None)
    return kept or None
