"""What drafted rounds bring an answer, by the times of the rounds around them.

A machine that other programs or its own cooling slow down for seconds at a time hides a fiftieth
from any comparison of whole answers. So this one compares rounds with their neighbours: questions
of `real_prompts.py` are answered once each, with the automatic choice. A drafted round gains its
tokens less its time in rounds without a draft, whose time is the median of the sixteen nearest ones
in the same answer. The round that ends an answer is left out. All rounds plan, which takes its
share of the time.

    uv run python -m benchmarks.drafted_rounds TARGET.gguf [--draft D.gguf] [--temperature 0.8]
        [--kinds code,chat] [--each 8] --output drafted.md

Prints for every kind: tokens, drafted rounds, tokens drafted and accepted, the gain of the drafted
rounds and the share of planning in percent of the text, and the least gain of a single answer of 80
tokens and more. Takes ten seconds an answer with 1.5B on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.drafters_vs_llama_server import SEED, prompts
from benchmarks.quick_advice import silent
from benchmarks.real_prompts import KINDS
from localspec.bench.report_files import put
from localspec.chat.events import RoundText
from localspec.chat.session.answer import AnswerText
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.llama import machine
from localspec.engine.record.stats import Round
from localspec.engine.round.params import SamplingParams
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

_NEAREST = 16
_LONG = 80  # tokens of an answer


class Answered(NamedTuple):
    """One answer; its first round, which never drafts, and its last are left out.

    Attributes:
        tokens: emitted.
        rounds: with a draft.
        drafted, accepted: tokens.
        gained: tokens that the drafted rounds brought beyond what their time would have.
        planning: seconds of lookup and planning in rounds without a draft, in such rounds.
    """

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    gained: float
    planning: float


def judged(rounds: Sequence[Round]) -> Answered:
    """What the drafted ones of these rounds brought."""
    times = [(i, done.total_s) for i, done in enumerate(rounds) if not done.drafted]
    drafted = [(i, done) for i, done in enumerate(rounds) if done.drafted]
    gained = 0.0
    for at, done in drafted:
        near = sorted(times, key=lambda one: abs(one[0] - at))[:_NEAREST]
        gained += len(done.tokens) - done.total_s / median(seconds for _, seconds in near)
    plain = [done for done in rounds if not done.drafted]
    return Answered(
        sum(len(done.tokens) for done in rounds),
        len(drafted),
        sum(done.drafted for _, done in drafted),
        sum(done.accepted for _, done in drafted),
        gained,
        sum(done.draft_s for done in plain) / mean(done.total_s for done in plain),
    )


def answers(
    session: Session, asked: Sequence[str], given: argparse.Namespace
) -> Iterator[Answered]:
    """The answers to these prompts."""
    model = session.pair.target.model
    settings = ChatSettings(
        sampling=SamplingParams(temperature=given.temperature, seed=SEED),
        gamma="auto",
        n_predict=given.tokens,
    )
    for prompt in asked:
        ids = model.tokenize(prompt, add_special=True, parse_special=True)
        answer = AnswerText(model.piece, ())
        told = session.complete(ids, settings, answer, Cancel())
        rounds = [event.round for event in told if isinstance(event, RoundText)][1:-1]
        if sum(not done.drafted for done in rounds) >= _NEAREST:
            yield judged(rounds)


def row(kind: str, found: Sequence[Answered]) -> str:
    """A kind's row of the table."""
    tokens = sum(one.tokens for one in found)
    gained, planning = sum(one.gained for one in found), sum(one.planning for one in found)
    single = [one.gained / (one.tokens - one.gained) for one in found if one.tokens >= _LONG]
    cells = [
        *(kind, str(len(found)), f"{tokens:,}", str(sum(one.rounds for one in found))),
        f"{sum(one.drafted for one in found)}, {sum(one.accepted for one in found)}",
        f"{gained / (tokens - gained):+.1%}",
        f"{planning / (tokens - gained):.1%}",
        f"{min(single):+.1%}" if single else "",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path, help="without one, lookup alone")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of text")
    parser.add_argument("--each", type=int, default=8, help="questions of a kind")
    parser.add_argument("--tokens", type=int, default=320, help="of an answer at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    drafts = f"{given.draft},lookup" if given.draft else "lookup"
    options = LoadRequest(
        pair=str(given.target), draft=drafts, past=False, temp=given.temperature, ctx_size=2048
    )
    head = "text", "answers", "tokens", "drafted rounds", "drafted, accepted", "they gain"
    lines = [f"| {' | '.join((*head, 'planning', 'least gain'))} |", "|" + 8 * "---|"]
    with closing(load_session(options, progress=silent, cancel=Cancel())) as session:
        each = dict.fromkeys(given.kinds.split(","), given.each)
        for kind, asked in prompts(session.pair.target.model, each).items():
            lines.append(row(kind, list(answers(session, asked, given))))
            print(lines[-1], flush=True)
    named = f"{given.draft.name} and lookup" if given.draft else "lookup"
    said = f"{given.target.name}, {named}, temperature {given.temperature:g}; {machine()}"
    put(("\n".join((*lines, "", said)) + "\n").encode(), given.output)


if __name__ == "__main__":
    main()
