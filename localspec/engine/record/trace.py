"""Writes traces, from which every emitted token of a run can be derived again.

A trace is a list of JSON documents, one per line: the settings first, then one for every round with
the drafted ids, the rows of q and p that the rule looked at, the numbers drawn for the draft and by
the target, and the verdict. `tests/support/replay.py` reads traces, derives the tokens and decodes
the batches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from localspec.engine.round.noise import StreamNoise
from localspec.engine.round.params import SamplingParams
from localspec.engine.round.sampling import Dist, TargetRows
from localspec.engine.round.verify import Draft, Verdict

FORMAT = "localspec-trace"
VERSION = 2


class TraceWriter:
    """Writes a trace while a generation runs.

    Args:
        write: takes one document at a time.
        about: more for the first document: the model, the grammar.
    """

    def __init__(
        self, write: Callable[[dict[str, Any]], None], about: Mapping[str, Any] | None = None
    ) -> None:
        self._write = write
        self._about = dict(about or {})
        self._streams: tuple[StreamNoise, ...] = ()
        self._drawn: list[int] = []
        self._header: dict[str, Any] = {}

    def listen(
        self, noise: StreamNoise, drafts: StreamNoise, rule: str, lenience: float | None
    ) -> None:
        """Record the rule, and from now on what the target and the drafts draw."""
        coupled = noise is drafts  # by position: the seed tells all
        self._header = {"rule": rule, "lenience": lenience, "coupled": coupled, "seed": noise.seed}
        self._streams = () if coupled else (drafts, noise)
        self._drawn = [each.drawn for each in self._streams]

    def begin(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        """Write the first document, the settings."""
        settings = asdict(sampling)
        settings["logit_bias"] = [[id_, str(bias)] for id_, bias in sampling.logit_bias.items()]
        head = {"format": FORMAT, "version": VERSION, "about": self._about, "prompt": list(prompt)}
        self._write({**head, **self._header, "sampling": settings})

    def round(self, tokens: Sequence[int], draft: Draft, p: TargetRows, verdict: Verdict) -> None:
        """Write one round; `tokens` is the sequence before it.

        Only those rows of p are written that the rule looked at.
        """
        q = draft.q
        numbers = zip(self._streams, self._drawn, strict=True)
        draft_draws, draws = [each.since(n) for each, n in numbers] or ([], [])
        self._drawn = [each.drawn for each in self._streams]
        self._write(
            {
                "position": len(tokens),
                "last": tokens[-1],
                "drafted": list(draft.tokens),
                "q": None if q is None else [_plain(row) for row in q],
                "p": {str(i): _plain(row) for i, row in p.seen().items()},
                "draft_draws": draft_draws,
                "draws": draws,
                "accepted": verdict.accepted,
                "token": verdict.token,
            }
        )


def _plain(dist: Dist) -> list[list[Any]]:
    return [dist.ids.tolist(), dist.probs.tolist()]
