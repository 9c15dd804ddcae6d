"""Writes traces: what is needed to derive every emitted token of a run again.

A trace is a list of JSON documents, one to a line: first the settings, then one for every round
with the drafted ids, the rows of q and p that were looked at, the numbers drawn for the draft and
by the target, and what came of it. `tests/support/replay.py` reads them, derives the tokens and
decodes the batches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from localspec.engine.noise import StreamNoise
from localspec.engine.params import SamplingParams
from localspec.engine.sampling import Dist, Rows
from localspec.engine.verify import Draft, Verdict

FORMAT = "localspec-trace"
VERSION = 2


class Recorder:
    """Writes a trace while a generation runs.

    Args:
        write: takes one document at a time.
        about: what else to note in the first document: the model, the grammar.
    """

    def __init__(
        self, write: Callable[[dict[str, Any]], None], about: Mapping[str, Any] | None = None
    ) -> None:
        self._write = write
        self._about = dict(about or {})
        self._draws: list[float] = []
        self._draft_draws: list[float] = []
        self._header: dict[str, Any] = {}

    def listen(
        self, noise: StreamNoise, drafts: StreamNoise, rule: str, lenience: float | None
    ) -> tuple[StreamNoise, StreamNoise]:
        """The target's noise and the drafts', their numbers noted down unless they are coupled."""
        coupled = noise is drafts  # by position: the seed tells all
        self._header = {"rule": rule, "lenience": lenience, "coupled": coupled, "seed": noise.seed}
        if coupled:
            return noise, drafts
        return _Taped(noise, self._draws), _Taped(drafts, self._draft_draws)

    def begin(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Write the settings: the first document."""
        settings = asdict(sampling)
        settings["logit_bias"] = [[id_, str(bias)] for id_, bias in sampling.logit_bias.items()]
        head = {"format": FORMAT, "version": VERSION, "about": self._about, "prompt": list(prompt)}
        self._write({**head, **self._header, "sampling": settings})

    def round(self, tokens: Sequence[int], draft: Draft, p: Rows, verdict: Verdict) -> None:
        """Write one round; `tokens` is the sequence before it.

        Of p only the rows that the rule looked at are written.
        """
        q = draft.q
        self._write(
            {
                "position": len(tokens),
                "last": tokens[-1],
                "drafted": list(draft.tokens),
                "q": None if q is None else [_plain(row) for row in q],
                "p": {str(i): _plain(row) for i, row in p.seen().items()},
                "draft_draws": self._draft_draws.copy(),
                "draws": self._draws.copy(),
                "accepted": verdict.accepted,
                "token": verdict.token,
            }
        )
        self._draft_draws.clear()
        self._draws.clear()


class _Taped(StreamNoise):
    """A stream whose uniform numbers are noted down."""

    def __init__(self, inner: StreamNoise, tape: list[float]) -> None:
        super().__init__(inner.seed)
        self._inner = inner
        self._tape = tape

    def uniform(self) -> float:
        """The inner stream's next number, noted down."""
        number = self._inner.uniform()
        self._tape.append(number)
        return number


def _plain(dist: Dist) -> list[list[Any]]:
    return [dist.ids.tolist(), dist.probs.tolist()]
