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
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Context
from localspec.engine.noise import Noise
from localspec.engine.sampling import Dist, Sampler, check_largest
from localspec.engine.verify import Draft
from localspec.errors import SamplingError

Logits: TypeAlias = NDArray[np.float32]


class View(Protocol):
    """What the draft's pass shows of the next token, before any is picked."""

    def confidence(self) -> float:
        """The probability of the draft's best guess: 0 to 1."""
        ...

    def pick(self) -> tuple[int, Dist | None]:
        """A token, and the q that it was drawn from, or None for one that was not drawn."""
        ...

    def chance(self, p: Dist) -> float:
        """The probability that the rule accepts what is picked here, with `p` the target's."""
        ...


Look: TypeAlias = Callable[[Logits, Sequence[int], Sequence[int]], View]
"""(logits of shape (n_vocab,), tokens so far, drafted so far) -> the view of the next token."""


@dataclass(frozen=True, slots=True)
class ArgmaxView:
    """Propose the most probable token: the best guess where the rule asks for a match.

    Attributes:
        token: the best guess.
        logits: the draft's, of shape (n_vocab,).
        maxima: those of `_column_maxima`, if they were wanted for the guess already.
    """

    token: int
    logits: Logits
    maxima: Logits | None = None

    def confidence(self) -> float:
        """An estimate from above of the softmax at its largest value.

        The sum runs over the maxima of many short columns in place of all logits: the few tokens
        that carry the mass are rarely in one column, and nothing passes over the vocabulary more
        than once. What it gets wrong the calibration takes out again.
        """
        maxima = _column_maxima(self.logits) if self.maxima is None else self.maxima
        return 1.0 / max(1.0, float(np.add.reduce(np.exp(maxima - self.logits[self.token]))))

    def pick(self) -> tuple[int, None]:
        """The most probable token."""
        return self.token, None

    def chance(self, p: Dist) -> float:
        """The target's probability of that very token."""
        return p.prob(self.token)


def _column_maxima(logits: Logits) -> Logits:
    """The largest of every column of logits (n,) that are laid out in 64 rows and perhaps a bit."""
    rows = max(1, min(64, len(logits) // 64))
    width = len(logits) // rows
    maxima: Logits = np.maximum.reduce(logits[: rows * width].reshape(rows, width))
    rest = logits[rows * width :]
    if rest.size:
        np.maximum(maxima[: rest.size], rest, out=maxima[: rest.size])
    return maxima


def look_for_argmax(logits: Logits, _tokens: Sequence[int], _drafted: Sequence[int]) -> ArgmaxView:
    """See the most probable token; it is found in the pass that tells how sure the draft is.

    Raises:
        SamplingError: the logits are no distribution.
    """
    maxima = _column_maxima(logits)
    column, width = int(maxima.argmax()), len(maxima)
    check_largest(float(maxima[column]))
    row = int(logits[column::width].argmax())
    return ArgmaxView(row * width + column, logits, maxima)


@dataclass(frozen=True, slots=True)
class LookForBest:
    """See the most probable token after logit bias and penalties, within the grammar.

    Attributes:
        best: a greedy chain, with the target's constraint.
    """

    best: Sampler

    def __call__(self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]) -> ArgmaxView:
        """See what may follow `tokens` and `drafted`."""
        return ArgmaxView(int(self.best.along(logits, tokens, drafted).ids[0]), logits)


@dataclass(frozen=True, slots=True)
class KeptView:
    """A best guess where the rule accepts whatever the target's row keeps.

    Attributes:
        guess: the same where the rule asks for a match.
    """

    guess: View

    def confidence(self) -> float:
        """That of the guess."""
        return self.guess.confidence()

    def pick(self) -> tuple[int, Dist | None]:
        """The guess."""
        return self.guess.pick()

    def chance(self, p: Dist) -> float:
        """Nothing is left to chance: the row has the guess or it has not."""
        return float(p.prob(self.guess.pick()[0]) > 0)


Agreement: TypeAlias = Callable[[Dist, Dist], float]
"""(p, q) -> the probability that a token drawn from q is accepted."""


@dataclass(frozen=True, slots=True)
class SampledView:
    """Draw the proposal from the draft's own distribution, and hand that distribution over."""

    q: Dist
    noise: Noise
    position: int
    agreement: Agreement

    def confidence(self) -> float:
        """The largest probability in q."""
        return float(self.q.probs[0])

    def pick(self) -> tuple[int, Dist]:
        """A token drawn from q."""
        return self.noise.pick(self.q, self.position), self.q

    def chance(self, p: Dist) -> float:
        """What the rule makes of p and q."""
        return self.agreement(p, self.q)


@dataclass(frozen=True, slots=True)
class LookToSample:
    """See the draft's distribution after the sampler chain.

    What breaks a grammar is masked before the draw: to cut a sampled draft for it afterwards would
    change the distribution of what is emitted.

    Attributes:
        sampler: the generation's sampler chain, with its constraint.
        noise: the generation's randomness, the same object that verification draws from. Under
            the coupled rule this is what makes draft and target tend to say the same.
        agreement: how likely the rule is to accept.
    """

    sampler: Sampler
    noise: Noise
    agreement: Agreement

    def __call__(
        self, logits: Logits, tokens: Sequence[int], drafted: Sequence[int]
    ) -> SampledView:
        """See what may follow `tokens` and `drafted`."""
        q = self.sampler.along(logits, tokens, drafted)
        return SampledView(q, self.noise, len(tokens) + len(drafted), self.agreement)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a drafter had to read before it could propose: tokens decoded, tokens cached."""

    decoded: int
    cached: int


NOTHING_READ = CatchUp(0, 0)


class Drafter(Protocol):
    """Proposes tokens; learns what became of them.

    `begin` opens a generation, then `propose` and `observe` alternate. A drafter that was not asked
    for some rounds catches up by itself: `tokens` is always the whole sequence.
    """

    def begin(self, tokens: Sequence[int], look: Look, cancel: Cancel) -> None:
        """Start a generation that continues `tokens`."""
        ...

    def lag(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` the first pass of a proposal would have to read."""
        ...

    def propose(self, tokens: Sequence[int], plan: Plan) -> Draft:
        """Tokens that may follow `tokens`, as many as the plan wants. Raises Cancelled."""
        ...

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """The round is over: `accepted` of the drafted tokens stay; `tokens` is all there is."""
        ...

    @property
    def catch_up(self) -> CatchUp:
        """What the last `propose` had to read first."""
        ...

    @property
    def views(self) -> Sequence[View]:
        """What the passes of the last `propose` showed, also those that led to no token."""
        ...

    @property
    def confidences(self) -> Sequence[float]:
        """Of these views, if the plan learns."""
        ...


class ModelDrafter:
    """A small model that writes ahead of the target.

    The draft's cache is always a prefix of what the conversation holds: `observe` takes back what
    was rejected, `propose` decodes what is missing. After a draft accepted whole, its last token
    is missing, since nothing was to be proposed after it.

    Attributes:
        context: the draft model's context.
        catch_up: what the last `propose` had to read first.
        views: what the passes of the last `propose` showed; by now without their confidence,
            since llama.cpp's buffer has been overwritten.
        confidences: of these views, if the plan learns.
    """

    def __init__(self, context: Context, n_vocab: int) -> None:
        """Draft with `context` for a target of `n_vocab` tokens.

        Ids that the target does not have are left out before anything is picked.
        """
        self.context = context
        self.catch_up = CatchUp(0, 0)
        self.views: list[View] = []
        self.confidences: list[float] = []
        self._cancel = Cancel()
        self._n_vocab = min(n_vocab, context.model.n_vocab)
        self._look: Look = look_for_argmax

    def begin(self, tokens: Sequence[int], look: Look, cancel: Cancel) -> None:
        """Keep of the cache what `tokens` begins with."""
        self.context.watch(cancel)
        self._cancel = cancel
        # The last token is decoded anew if need be: proposing needs its logits.
        self.context.keep_prefix(tokens[:-1])
        self._look = look

    def lag(self, tokens: Sequence[int]) -> int:
        """What the cache lacks of `tokens`."""
        return len(tokens) - len(self.context.tokens)

    def propose(self, tokens: Sequence[int], plan: Plan) -> Draft:
        """Draft while the plan goes on.

        Fewer after an end of generation, in a full context, where no id that the draft has may
        follow and where its logits are no distribution; none once the text holds an id that only
        the target has.
        """
        limit = min(plan.limit, self.context.n_ctx - len(tokens) + 1)
        self.catch_up = CatchUp(0, len(self.context.tokens))
        self.views, self.confidences = [], []
        if limit < 1 or max(tokens[len(self.context.tokens) :]) >= self.context.model.n_vocab:
            return Draft(())
        logits = self._read(tokens)
        drafted: list[int] = []
        rows: list[Dist | None] = []
        while True:
            try:
                view = self._look(logits[0, : self._n_vocab], tokens, drafted)
            except SamplingError:  # no distribution; or none but the target has an id for it
                break
            confidence = view.confidence() if plan.learns else 0.0
            self.views.append(view)
            self.confidences.append(confidence)
            # Nothing has been drawn yet: a draft that ends here is lossless under every rule.
            if not plan.wants_token(confidence):
                break
            token, q = view.pick()
            drafted.append(token)
            rows.append(q)
            if len(drafted) == limit or self.context.model.is_end(token) or not plan.wants_pass():
                break
            self._cancel.check()
            if len(drafted) == 1:
                self.context.mark()
            logits = self.context.decode([token], 1)
        return Draft(tuple(drafted), _all_or_none(rows))

    def _read(self, tokens: Sequence[int]) -> Logits:
        """Decode what the cache lacks of `tokens`; return the logits after the last one."""
        start = len(self.context.tokens)
        step = self.context.n_batch
        for i in range(start, len(tokens), step):
            self._cancel.check()
            if i > start:
                self.context.mark()
            logits = self.context.decode(tokens[i : i + step], 1)
        self.catch_up = CatchUp(len(tokens) - start, start)
        return logits

    def observe(self, tokens: Sequence[int], accepted: int) -> None:  # noqa: ARG002 - the protocol's
        """Take what was rejected out of the cache: it may hold all but the newest token.

        A recurrent draft goes back to where it began to draft, and reads what was accepted with
        the newest token.
        """
        self.context.rewind(len(tokens) - 1)


def _all_or_none(rows: Iterable[Dist | None]) -> tuple[Dist, ...] | None:
    kept = tuple(row for row in rows if row is not None)
    return kept or None
