"""What every drafter has: the `Drafter` protocol, and the `Proposal` that it makes.

`ModelDrafter` drafts with a small model. Other kinds (heads, a model with another vocabulary) only
need this protocol. Lookup is asked in every round, and needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.ahead import Ahead
from localspec.engine.drafters.lookup import NO_GUESS, Guess
from localspec.engine.drafters.proposer import Proposer, View
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import Listener
from localspec.engine.round.verify import EMPTY, Draft


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft that a drafter proposes, and what it took.

    Attributes:
        drafter: the name of the drafter; empty if none was asked.
        views: what the drafter's passes showed, in order, also a last one that added no token. They
            can no longer tell their confidence: the logits have been overwritten.
        confidences: those of the views, if the plan learns; else empty.
        read: tokens that the drafter decoded before it could propose.
        cached: tokens that its cache held already.
        tail: the last tokens of the draft, if lookup added them. They have no views.
        search_s: seconds of the search for these tokens, after the drafter's own.
        passes: decodes of the drafter, if their number differs from that of the views.
        path: how many of the last tokens in `read` were lookup's guess.
        agreed: tokens of lookup's guess that the drafter proposed as well, and went on after.
        begun: the first token that a head's cache knows.
        block: how many of the last tokens in `read` were guessed, in one pass.
        kept: passes that it made ahead, during the target's last pass, and that came true.
        left_out: tokens of the sequence that the drafter's passes did not know.
    """

    drafter: str = ""
    draft: Draft = EMPTY
    views: Sequence[View] = ()
    confidences: Sequence[float] = ()
    read: int = 0
    cached: int = 0
    tail: Guess = NO_GUESS
    search_s: float = 0.0
    passes: int | None = None
    path: int = 0
    agreed: int = 0
    begun: int = 0
    block: int = 0
    kept: int = 0
    left_out: int = 0

    @property
    def decodes(self) -> int:
        """Passes of the drafter that were waited for."""
        return len(self.views) if self.passes is None else self.passes

    @property
    def own(self) -> int:
        """Tokens of the draft that are the drafter's own."""
        return len(self.draft.tokens) - len(self.tail.tokens)

    @property
    def held(self) -> int:
        """Tokens of the text that a draft model's cache holds: those that it left out are not."""
        return self.cached + self.read - self.path

    @property
    def following(self) -> View | None:
        """What a pass over the whole draft showed; None if no pass went so far."""
        looked = not self.tail.tokens and len(self.views) > self.own
        return self.views[self.own] if looked else None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What some drafters can do.

    Attributes:
        listener: sees the target's decodes while the policy may ask the drafter, whether or not
            this generation does, and can copy hidden rows there: the target's next decode
            overwrites them. It never sees what the target's cache held before. None if the drafter
            does not need it.
        ahead: reads while the target decodes; None if the drafter waits.
        own_vocabulary: whether its tokens are not the target's. Its best guesses are then text,
            which it cuts into the target's tokens after its passes, `plan.limit` at most; these it
            has the plan count anew (`Plan.recount`).
    """

    listener: Listener | None = None
    ahead: Ahead | None = None
    own_vocabulary: bool = False


class Drafter(Protocol):
    """Proposes tokens, and learns what became of them.

    `begin` opens a generation. In each round the engine asks for the `state`; where it then chooses
    this drafter, it calls `propose` and `observe`. `tokens` is always the whole sequence, so that a
    drafter that was not chosen for some rounds catches up by itself.
    """

    @property
    def name(self) -> str:
        """What rounds, costs and figures call it."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the same as long as it lives."""

    def begin(
        self,
        tokens: Sequence[int],
        proposer: Proposer,
        cancel: Cancel,
        *,
        anew: bool = False,
        answered: int = 0,
    ) -> None:
        """Start a generation that continues `tokens`, the last `answered` of them its own.

        `anew` forgets all earlier ones.
        """

    def state(self, tokens: Sequence[int]) -> Askable:
        """What a proposal for `tokens` would have to read, and what it would leave out."""

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        """Propose tokens that may follow `tokens`, as many as the plan wants.

        The engine submits as many of them as `plan.keep` then says.

        Args:
            tokens: the whole sequence.
            plan: decides when to stop.
            path: tokens proposed by a cheaper drafter. They do not change the draft (Cascade
                Speculative Drafting, 2312.11462), but reading them saves the passes of those that
                are drafted too.

        Raises:
            Cancelled: the generation's `cancel` was set.
        """

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Learn that `accepted` of the drafted tokens stay, and that the sequence is `tokens`."""
