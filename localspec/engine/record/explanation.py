"""The explanation of a round, as plain values that need no numpy."""

from __future__ import annotations

from msgspec import Struct

from localspec.engine.record.stats import Round


class TokenVerdict(Struct, frozen=True):
    """What the rule decided about one drafted token.

    Attributes:
        sentence: the reason, for people.
        formula: the test in numbers; empty if only tokens were compared.
        chance: the probability of acceptance; None if the target drew a token instead.
        drawn: the number from 0 to 1 that had to be below `chance`.
        said: the token that the target drew or chose; None if numbers were compared.
    """

    accepted: bool
    sentence: str
    formula: str = ""
    chance: float | None = None
    drawn: float | None = None
    said: int | None = None


class Candidate(Struct, frozen=True, array_like=True):
    """A token that was possible, and its probability: 0 to 1."""

    text: str
    share: float


class TokenProbabilities(Struct, frozen=True):
    """One model's probabilities at a position.

    Attributes:
        guess: of the drafted token.
    """

    guess: float
    best: tuple[Candidate, ...]


class GuessedToken(Struct, frozen=True):
    """A drafted token.

    Attributes:
        draft: the drafter's probabilities; None if it copies, or they are no longer known.
        target: the target's probabilities; None if the rule did not ask for them.
        test: how the rule tested the token; None if it did not.
    """

    text: str
    drafter: str
    draft: TokenProbabilities | None
    target: TokenProbabilities | None
    test: TokenVerdict | None


class RoundExplanation(Struct, frozen=True):
    """The explanation of one round.

    Attributes:
        number, rounds: the round's number in the answer, from 1, and how many rounds there are.
        earlier, later: numbers of the nearest rounds with a draft; 0 for none.
        before: the end of the text that the round continues.
        rule: the acceptance rule, by the name that users choose.
        greedy: whether the target takes its best token; its probabilities are then the softmax.
        token: the last emitted token: recovered, or bonus if all drafted tokens stay.
        last: the target's probabilities there; after a rejection, those of the residual.
        baseline_s: median seconds of the answer's rounds without a draft.
        again: whether the round was decoded again for this.
        same: whether the rule then gave the same verdict.
    """

    number: int
    rounds: int
    earlier: int
    later: int
    before: str
    rule: str
    greedy: bool
    guesses: tuple[GuessedToken, ...]
    accepted: int
    token: str
    last: TokenProbabilities | None
    made: Round
    baseline_s: float
    again: bool = False
    same: bool = True
