"""What happened inside one round, as it is told: plain values, which need no numpy."""

from __future__ import annotations

from msgspec import Struct

from localspec.engine.record.stats import Round


class TokenVerdict(Struct, frozen=True):
    """What became of one drafted token.

    Attributes:
        accepted: whether it stays.
        sentence: why, for a person.
        formula: the test in numbers; empty where tokens alone were compared.
        chance: the chance that the test had to succeed; None where the target drew a token instead.
        drawn: the number from 0 to 1 that had to be below it.
        said: the token that the target drew or chose; None where numbers were compared.
    """

    accepted: bool
    sentence: str
    formula: str = ""
    chance: float | None = None
    drawn: float | None = None
    said: int | None = None


class Candidate(Struct, frozen=True, array_like=True):
    """A token that might have come, and how likely it was: 0 to 1."""

    text: str
    share: float


class TokenProbabilities(Struct, frozen=True):
    """What one of the models thought of a position.

    Attributes:
        guess: the probability of the guess.
        best: the most probable tokens.
    """

    guess: float
    best: tuple[Candidate, ...]


class GuessedToken(Struct, frozen=True):
    """A drafted token.

    Attributes:
        text: the token.
        drafter: who guessed it.
        draft: what the drafter thought; None for one that copies, or where its rows are gone.
        target: what the target thought; None where the rule did not look.
        test: how it was judged; None where it was not.
    """

    text: str
    drafter: str
    draft: TokenProbabilities | None
    target: TokenProbabilities | None
    test: TokenVerdict | None


class RoundExplanation(Struct, frozen=True):
    """All that happened inside one round.

    Attributes:
        number, rounds: which round of the answer, from 1, and how many there are so far.
        earlier, later: the nearest rounds with a draft, by number; 0 for none.
        before: the end of the text that the round continues.
        rule: the acceptance rule, as people choose it.
        greedy: whether the target takes its best token; its rows are then those before the choice.
        guesses: the drafted tokens.
        accepted: how many of them stay.
        token: the one more: recovered, or bonus where all stay.
        last: what the target thought of that position: after a rejection, what was left for it.
        made: the round's figures.
        plain_s: seconds of a plain round of the same answer, a median.
        again: whether it was decoded again.
        same: whether the rule gave the same verdict then.
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
    plain_s: float
    again: bool = False
    same: bool = True
