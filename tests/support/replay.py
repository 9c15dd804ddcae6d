"""Replays of traces: the tokens derived again, and the batches decoded again.

`rederive` needs nothing but a trace, as `localspec.engine.record.trace` writes it; `redecode` runs
the same batches through a model and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.grammars.constraint import Constraint
from localspec.engine.record.trace import FORMAT, VERSION
from localspec.engine.round.noise import CounterNoise, Noise, StreamNoise
from localspec.engine.round.params import SamplingParams
from localspec.engine.round.sampling import Dist, Sampler
from localspec.engine.round.verify import Draft, Verdict, rule_named
from localspec.errors import LocalspecError

_DAMAGE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
"""What reading a document that is not what it should be can end in."""


class _Recorded(StreamNoise):
    """Gives out noted numbers again."""

    def __init__(self, numbers: Sequence[float]) -> None:
        super().__init__(0)
        self._numbers = iter(numbers)

    def uniform(self) -> float:
        """The next noted number."""
        number = next(self._numbers, None)
        if number is None:
            raise _damaged("too few drawn numbers")
        return number


@dataclass(frozen=True, slots=True)
class TracedRound:
    """One round of a trace, as `TraceWriter.round` writes it."""

    position: int
    last: int
    draft: Draft
    p: Mapping[int, Dist]
    draft_draws: Sequence[float]
    draws: Sequence[float]
    verdict: Verdict

    @property
    def emitted(self) -> tuple[int, ...]:
        """All tokens that the round emitted, those after an end of generation included."""
        return (*self.draft.tokens[: self.verdict.accepted], self.verdict.token)


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace: the settings, what was noted about the run, and the rounds.

    In version 1 draft and target drew from one stream, in turns.
    """

    version: int
    about: Mapping[str, Any]
    prompt: tuple[int, ...]
    sampling: SamplingParams
    rule: str
    lenience: float | None
    coupled: bool
    seed: int
    rounds: tuple[TracedRound, ...]

    def noise(self, done: TracedRound) -> tuple[Noise, Noise]:
        """The randomness of one round: the draft's, and the target's."""
        if self.coupled:
            both = CounterNoise(self.seed)
            return both, both
        noise = _Recorded(done.draws)
        return (_Recorded(done.draft_draws) if self.version > 1 else noise), noise


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `redecode` found.

    Attributes:
        rounds: how many were decoded again.
        same_tokens: whether each gave the recorded verdict.
        max_difference: the largest difference of a probability in a row that was looked at.
    """

    rounds: int
    same_tokens: bool
    max_difference: float


def read_trace(lines: Iterable[str]) -> Trace:
    """A trace from its lines.

    Raises:
        LocalspecError: the lines are not a trace, are damaged, or come from another version.
    """
    try:
        head, *rounds = (json.loads(line) for line in lines if line.strip())
        if head["format"] != FORMAT or not 1 <= _whole(head["version"])[0] <= VERSION:
            raise _damaged(f"version {head['version']} of {head['format']}")
        return _trace(head, rounds)
    except _DAMAGE as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error


def rederive(trace: Trace) -> list[int]:
    """Derive every token from the recorded rows and draws; return those emitted.

    The sampled drafts are derived too.

    Raises:
        LocalspecError: a draft or a verdict differs from the recorded one.
    """
    tokens = list(trace.prompt)
    for number, done in enumerate(trace.rounds):
        if done.position != len(tokens) or done.last != tokens[-1]:
            raise _damaged(f"round {number} does not follow the one before")
        drafts, noise = trace.noise(done)
        for i, (token, q) in enumerate(zip(done.draft.tokens, done.draft.q or (), strict=False)):
            if drafts.pick(q, done.position + i) != token:
                raise _damaged(f"round {number} drafted another token than was drawn")
        if (
            _verdict(trace, done, _Looked(done.p, len(done.draft.tokens) + 1), noise)
            != done.verdict
        ):
            raise _damaged(f"round {number} emits other tokens than were recorded")
        tokens += done.emitted
    return tokens[len(trace.prompt) :]


class Decoder(Protocol):
    """What `redecode` needs of a context."""

    n_batch: int

    def clear(self) -> None:
        """Empty the cache."""
        ...

    def decode(self, tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        """Append `tokens`; the logits of the last `n_logits`."""
        ...

    def mark(self, ahead: int = 0) -> None:
        """Make sure that one can go back to here."""
        ...

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens."""
        ...


def redecode(trace: Trace, target: Decoder, constraint: Constraint | None = None) -> Comparison:
    """Decode the recorded batches again with `target`, and compare rows and verdicts.

    Args:
        trace: of a generation that began with an empty cache.
        target: the model that it was made with; its cache is emptied first.
        constraint: the grammar that was in force.
    """
    target.clear()
    for start in range(0, len(trace.prompt) - 1, target.n_batch):
        target.decode(trace.prompt[start : min(start + target.n_batch, len(trace.prompt) - 1)], 0)
    sampler = Sampler(trace.sampling, constraint)
    tokens, same, difference = list(trace.prompt), True, 0.0
    for done in trace.rounds:
        target.mark(len(done.draft.tokens) + 1)
        logits = target.decode([tokens[-1], *done.draft.tokens], len(done.draft.tokens) + 1)
        rows = sampler.rows(logits, tokens, done.draft.tokens)
        difference = max([difference, *(_apart(rows[i], row) for i, row in done.p.items())])
        same = same and _repeats(trace, done, rows)
        tokens += done.emitted
        sampler.accept(done.emitted)
        target.truncate(len(tokens) - 1)
    return Comparison(len(trace.rounds), same, difference)


class _Looked(Sequence[Dist]):
    """The recorded rows of p; the others were not looked at and must not be now."""

    def __init__(self, rows: Mapping[int, Dist], length: int) -> None:
        self._rows = rows
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if index not in self._rows:
            raise _damaged(f"row {index} is missing")
        return self._rows[index]


def _verdict(trace: Trace, done: TracedRound, p: Sequence[Dist], noise: Noise) -> Verdict:
    return rule_named(trace.rule, trace.lenience)(done.draft, p, noise, done.position)


def _repeats(trace: Trace, done: TracedRound, p: Sequence[Dist]) -> bool:
    """Whether the rows `p` and the recorded draws give the recorded verdict."""
    drafts, noise = trace.noise(done)
    try:
        for i, q in enumerate(done.draft.q or ()):
            drafts.pick(q, done.position + i)
        return _verdict(trace, done, p, noise) == done.verdict
    except LocalspecError:  # other rows may need more draws than were made
        return False


def _apart(a: Dist, b: Dist) -> float:
    ids = np.union1d(a.ids, b.ids)
    return float(np.abs(a.on(ids) - b.on(ids)).max())


def _dist(plain: Sequence[Sequence[Any]]) -> Dist:
    ids, probs = np.array(_whole(*plain[0]), np.int64), np.array(plain[1], np.float64)
    if ids.shape != probs.shape or not (probs > 0).all() or abs(probs.sum() - 1) > 1e-9:
        raise _damaged("a row is not a distribution")
    return Dist(ids, probs)


def _whole(*numbers: Any) -> tuple[int, ...]:
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged("a token or a count is not a whole number")
    return numbers


def _draws(numbers: Sequence[Any]) -> Sequence[float]:
    if not all(type(number) is float and 0 <= number < 1 for number in numbers):
        raise _damaged("a drawn number is not between 0 and 1")
    return numbers


def _trace(head: dict[str, Any], rounds: Iterable[dict[str, Any]]) -> Trace:
    settings = head["sampling"]
    rule_named(head["rule"], head["lenience"])
    if not head["prompt"]:
        raise _damaged("the prompt is empty")
    bias = {id_: float(bias) for id_, bias in settings.pop("logit_bias")}
    return Trace(
        version=head["version"],
        about=head["about"],
        prompt=_whole(*head["prompt"]),
        sampling=SamplingParams(**settings, logit_bias=bias),
        rule=head["rule"],
        lenience=head["lenience"],
        coupled=head["coupled"],
        seed=_whole(head["seed"])[0],
        rounds=tuple(_rounds(rounds, head["version"])),
    )


def _rounds(rounds: Iterable[dict[str, Any]], version: int) -> Iterator[TracedRound]:
    for plain in rounds:
        q = plain["q"]
        rows = None if q is None else tuple(_dist(row) for row in q)
        if rows is not None and len(rows) != len(plain["drafted"]):
            raise _damaged("not every drafted token has its row of q")
        yield TracedRound(
            position=_whole(plain["position"])[0],
            last=_whole(plain["last"])[0],
            draft=Draft(_whole(*plain["drafted"]), rows),
            p={int(i): _dist(row) for i, row in plain["p"].items()},
            draft_draws=_draws(plain["draft_draws"] if version > 1 else ()),
            draws=_draws(plain["draws"]),
            verdict=Verdict(*_whole(plain["accepted"], plain["token"])),
        )


def _damaged(why: str) -> LocalspecError:
    return LocalspecError(f"the trace cannot be replayed: {why}", "Record it again with --trace.")
