"""Explains the verdict of an acceptance rule, in numbers and in plain sentences.

The rule itself is run again, with a noise that records the chances that it tested, the numbers that
were drawn against them, and the tokens that it drew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from localspec.engine.record.explanation import TokenVerdict
from localspec.engine.round.acceptance import Verification
from localspec.engine.round.noise import StreamNoise
from localspec.engine.round.sampling import Dist
from localspec.engine.round.verify import Draft, Verdict

# token -> its text, as it is shown
TokenText: TypeAlias = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class ExplainedVerdict:
    """A verdict and how it came about.

    Attributes:
        tests: how each drafted token was tested, in order, up to the first rejection.
        last: the distribution that the last token was drawn from; None if it was not drawn.
    """

    verdict: Verdict
    tests: tuple[TokenVerdict, ...]
    last: Dist | None


@dataclass(frozen=True, slots=True)
class _RecordingNoise:
    """A `Noise` that records what it is asked for."""

    noise: StreamNoise
    chances: list[tuple[float, float]] = field(default_factory=list)
    picks: list[tuple[int, Dist]] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        """True with this probability; records it, and the number drawn."""
        number = self.noise.uniform()
        self.chances.append((probability, number))
        return number < probability

    def pick(self, dist: Dist, position: int) -> int:
        """A token drawn from `dist`; records both."""
        token = self.noise.pick(dist, position)
        self.picks.append((token, dist))
        return token


@dataclass(frozen=True, slots=True)
class Case:
    """The input of a rule in one round.

    Attributes:
        how: the generation's rule, randomness and settings.
        p: the target's rows along the draft.
        position: of the first row in the sequence.
    """

    how: Verification
    draft: Draft
    p: Sequence[Dist]
    position: int


def explain_verdict(case: Case, noise: StreamNoise, word: TokenText) -> ExplainedVerdict:
    """Run the rule again with the same random numbers, and explain its verdict."""
    heard, name = _RecordingNoise(noise), case.how.name
    verdict = case.how.rule(case.draft, case.p, heard, case.position)
    tested = min(len(case.draft.tokens), verdict.accepted + 1)
    if name == "lossy greedy":
        tests = [_kept(case, i, word) for i in range(tested)]
    elif name == "match" or (name != "lossy" and case.draft.q is None):
        tests = [_compared(case, i, heard.picks[i][0], word) for i in range(tested)]
    elif name == "block":
        tests = _as_a_whole(case, verdict, heard.chances)
    else:
        tests = [_weighed(case, i, *heard.chances[i]) for i in range(tested)]
    return ExplainedVerdict(verdict, tuple(tests), heard.picks[-1][1] if heard.picks else None)


def _compared(case: Case, i: int, said: int, word: TokenText) -> TokenVerdict:
    accepted = said == case.draft.tokens[i]
    if case.how.greedy:
        how = f"The target's most probable token is “{word(said)}”"
    elif case.how.coupled:
        how = f"With the same random numbers as the draft, the target drew “{word(said)}”"
    else:
        how = f"The target drew “{word(said)}” for itself"
    end = "the guess, which stays" if accepted else "not the guess, and the target decides"
    return TokenVerdict(accepted, f"{how}: {end}.", said=said)


def _weighed(case: Case, i: int, chance: float, drawn: float) -> TokenVerdict:
    """Explain the token rule, with or without lenience."""
    token, q, lenience = case.draft.tokens[i], case.draft.q, case.how.lenience
    of_p, of_q = case.p[i].prob(token), 1.0 if q is None else q[i].prob(token)
    below = f"{of_q:.3f}" if lenience is None else f"({lenience:g} × {of_q:.3f})"
    accepted = drawn < chance
    if chance >= 1:
        why = "The target finds it at least as likely as the draft did: it stays for sure."
    elif accepted:
        why = "The draft finds it likelier than the target does, but the number drawn is below p/q."
    else:
        why = "The draft finds it likelier than the target does, and the number drawn is above p/q."
    formula = f"p/q = {of_p:.3f}/{below} = {chance:.3f}, drawn {drawn:.3f}"
    if lenience is not None:
        why = f"{why} Lossy: q counts {lenience:g} of itself."
    return TokenVerdict(accepted, why, formula, chance, drawn)


def _as_a_whole(
    case: Case, verdict: Verdict, chances: Sequence[tuple[float, float]]
) -> list[TokenVerdict]:
    """Explain the block rule, which tests the longest prefix first, until one passes."""
    n, tau = len(case.draft.tokens), verdict.accepted
    longest = tau + len(chances) - (tau > 0)
    tested = {longest - k: found for k, found in enumerate(chances)}
    tests = []
    for i in range(1, n + 1):
        chance, drawn = tested.get(i, (None, None))
        formula = ""
        if chance is not None and drawn is not None:
            formula = f"h = {min(1.0, chance):.3f} for the first {i}, drawn {drawn:.3f}"
        tests.append(TokenVerdict(i <= tau, _block_words(i, tau, tested=bool(formula)), formula,
                          chance, drawn))  # fmt: skip
    return tests


def _block_words(i: int, tau: int, *, tested: bool) -> str:
    first = f"the first {i}" if i > 1 else "the first one"
    if i < tau:
        return f"The first {tau} guesses passed their test together, so this one stays too."
    if i == tau:
        return f"The rule tests the longest beginning of the draft first: {first} passed."
    if tested:
        return f"The rule tests the longest beginning of the draft first: {first} did not pass."
    return "The target gives it probability 0 here, so no beginning that includes it can pass."


def _kept(case: Case, i: int, word: TokenText) -> TokenVerdict:
    best, least = int(case.p[i].ids[0]), case.how.lenience or 0
    kept = case.p[i].prob(case.draft.tokens[i]) > 0
    share = f"{least:g} of the probability of the target's best token, “{word(best)}”"
    why = f"It has at least {share}: it stays." if kept else f"It has less than {share}."
    return TokenVerdict(kept, f"{why} Lossy: this changes what is said.", said=best)
