"""Measure how well a target copies: held-out tasks of `copying.py`, with localspec's own engine.

    python models/measure_copying.py CORPORA T.gguf ... --count 40

A token of the right answer counts as copied if it belongs to three in a row that stand in the
prompt too. The first ones of such a run count as well: there a model must find the place.
Prints Markdown, for every kind of task:

- "forced": copied tokens that the model finds likeliest where all before them are right;
- "greedy": copied tokens that its own greedy answer holds, in order (longest common parts);
- "hits": tokens of its greedy answer that end three in a row which stand in the prompt;
- "alike": greedy answers that are right to the last token.
"""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from copying import copies
from corpora import Message
from measure import answer, encode, open_context, text_of

from localspec.engine.generate import Engine
from localspec.engine.llama import MAX_BATCH_OUTPUTS, Context, Model
from localspec.engine.sampling import SamplingParams

KINDS = ("edit", "fix", "quote", "repeat", "form")
RUN = 3
"""Tokens in a row that make a copy."""
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Score:
    """Tokens and answers counted."""

    copied: int = 0
    """Copied tokens of the right answers."""
    forced: int = 0
    greedy: int = 0
    said: int = 0
    """Tokens of the model's answers."""
    hits: int = 0
    answers: int = 0
    alike: int = 0

    def add(self, other: Score) -> None:
        """Add another score."""
        for field in fields(self):
            value = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, value)

    def row(self) -> str:
        """Return the cells of a table."""
        shares = (self.forced / self.copied, self.greedy / self.copied, self.hits / self.said)
        cells = [f"{share:.3f}" for share in shares]
        return " | ".join([*cells, f"{self.alike} of {self.answers}", str(self.copied)])


def runs(ids: list[int]) -> set[tuple[int, ...]]:
    """Return every RUN ids in a row."""
    return {tuple(ids[i : i + RUN]) for i in range(len(ids) - RUN + 1)}


def ends(prompt: list[int], ids: list[int]) -> np.ndarray:
    """Mark the ids that end a run which stands in the prompt."""
    known = runs(prompt)
    found = [tuple(ids[max(0, i - RUN + 1) : i + 1]) in known for i in range(len(ids))]
    return np.array(found, dtype=bool)


def copied(prompt: list[int], ids: list[int]) -> np.ndarray:
    """Mark the ids that belong to a run which stands in the prompt."""
    end = ends(prompt, ids)
    marks = end.copy()
    for back in range(1, RUN):
        marks[:-back] |= end[back:]
    return marks


def likeliest(context: Context, prompt: list[int], right: list[int]) -> np.ndarray:
    """Return the likeliest id at each place of the right answer, all before it given."""
    context.clear()
    ids = [*prompt, *right[:-1]]
    found: list[np.ndarray] = []
    for start in range(0, len(ids), MAX_BATCH_OUTPUTS):
        part = ids[start : start + MAX_BATCH_OUTPUTS]
        found.append(np.asarray(context.decode(part, len(part))).argmax(axis=1))
    return np.concatenate(found)[len(prompt) - 1 :]


def score(target: Context, engine: Engine, talk: list[Message]) -> Score:
    """Score one task."""
    prompt = encode(target.model, text_of(talk[:-1], opened=True))
    whole = encode(target.model, text_of(talk, opened=False))
    right = whole[len(prompt) : -1]  # without the line end after the turn
    marks = copied(prompt, right)
    forced = likeliest(target, prompt, right) == np.array(right)
    engine.target.clear()
    room = len(right) + 16
    said, _ = answer(engine, prompt, gamma=0, n_predict=room, sampling=GREEDY)
    matcher = difflib.SequenceMatcher(None, said, right, autojunk=False)
    held = np.zeros(len(right), dtype=bool)
    for block in matcher.get_matching_blocks():
        held[block.b : block.b + block.size] = True
    return Score(
        copied=int(marks.sum()),
        forced=int((forced & marks).sum()),
        greedy=int((held & marks).sum()),
        said=len(said),
        hits=int(ends(prompt, said).sum()),
        answers=1,
        alike=said == right[:-1],
    )


def measure(folder: Path, path: Path, count: int, threads: int) -> None:
    """Print the table of one target."""
    with Model.load(path) as model:
        target = open_context(model, threads)
        engine = Engine(target)
        print(f"\n| {path.name} | forced | greedy | hits | alike | copied tokens |")
        print("|---|" + "---|" * 5)
        total = Score()
        for kind in KINDS:
            part = Score()
            for talk in copies(folder, f"copy_{kind}", held_out=True)[:count]:
                part.add(score(target, engine, talk))
            print(f"| {kind} | {part.row()} |", flush=True)
            total.add(part)
        print(f"| **all** | {total.row()} |")
        target.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how well targets copy.")
    parser.add_argument("corpora", type=Path)
    parser.add_argument("targets", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=40, help="tasks of each kind")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for path in args.targets:
        measure(args.corpora, path, args.count, args.threads)


if __name__ == "__main__":
    main()
