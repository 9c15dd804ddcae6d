"""Spell a target's answers in another vocabulary, for a draft that has that one.

    python models/respell.py OTHER.json OUT.npz ANSWERS.npz ...

The text is cut anew. Where a token of the other vocabulary begins with one of the target's, the
target's distribution there becomes one over the tokens with which its own would begin in the other
spelling; what was said counts for the token that is there. Within a token of the target's nothing
is open: what stands there is certain. `distill.py --tokenizer OTHER.json` learns from the result.
"""

from __future__ import annotations

import argparse
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from distill import load_answers
from export import vocabulary
from generate import TOP, Answers
from tokenizer import SPECIALS
from tokenizers import Tokenizer
from tokenizers.models import BPE
from train import HERE

if TYPE_CHECKING:
    from collections.abc import Sequence


class Respeller:
    """From one vocabulary to another one: both of bytes, with the same special tokens."""

    def __init__(self, old: Tokenizer, new: Tokenizer) -> None:
        self.old, self.new = old, new
        tokens, merges = vocabulary(new)
        cut = Tokenizer(BPE(dict(zip(tokens, range(len(tokens)), strict=True)), merges))
        self.letters = vocabulary(old)[0]
        """Every token of the old one, a letter for each byte; of a special one the name."""
        self.first = [
            new.token_to_id(token) if token in SPECIALS else cut.encode(token).ids[0]
            for token in self.letters
        ]
        """The new token with which each of the old ones begins."""

    def spell(self, ids: Sequence[int]) -> list[tuple[int, int | None, int]] | None:
        """Spell `ids` anew; None where they are no text (a sampled answer may break characters).

        Returns:
            for each new token its id, the place in `ids` that it begins with (None if it begins
            within one), and the place of its first byte.
        """
        spelled: list[tuple[int, int | None, int]] = []
        at = 0
        for special, run in groupby(ids, key=lambda token: self.letters[token] in SPECIALS):
            tokens = list(run)
            if special:
                spelled += [(self.first[t], at + i, at + i) for i, t in enumerate(tokens)]
            else:
                text = self.old.decode(tokens, skip_special_tokens=False)
                new = self.new.encode(text)
                place = [i for i, t in enumerate(tokens) for _ in self.letters[t]]
                if sum(map(len, new.tokens)) != len(place):
                    return None
                begins = accumulate(map(len, new.tokens[:-1]), initial=0)
                spelled += [
                    (
                        token,
                        at + place[b] if not b or place[b] != place[b - 1] else None,
                        at + place[b],
                    )
                    for token, b in zip(new.ids, begins, strict=True)
                ]
            at += len(tokens)
        return spelled

    def odds(self, said: int, here: int, likely: np.ndarray, p: np.ndarray) -> dict[int, float]:
        """Return the odds of new tokens; what the target found likeliest begins with the first.

        Args:
            said: the old token that followed.
            here: the new one that begins there.
            likely: ids of old ones, the likeliest first.
            p: their probabilities.
        """
        odds: dict[int, float] = {}
        for token, share in zip(likely.tolist(), p.tolist(), strict=True):
            new = here if token == said else self.first[token]
            odds[new] = odds.get(new, 0.0) + share
        return odds

    def answers(self, answers: Answers) -> Answers:
        """Spell all of it anew, but for what is no text."""
        rows = np.cumsum(answers.answered) - 1
        ids: list[int] = []
        marks: list[bool] = []
        starts: list[int] = []
        tops: list[dict[int, float]] = []
        ends = [*answers.starts[1:].tolist(), len(answers.ids)]
        for start, end in zip(answers.starts.tolist(), ends, strict=True):
            spelled = self.spell(answers.ids[start:end].tolist())
            if spelled is None:
                continue
            starts.append(len(ids))
            for token, begins, place in spelled:
                ids.append(token)
                marks.append(bool(answers.answered[start + place]))
                if not marks[-1]:
                    continue
                if begins is None:
                    tops.append({token: 1.0})
                    continue
                row, said = rows[start + begins], int(answers.ids[start + begins])
                tops.append(self.odds(said, token, answers.top_ids[row], answers.top_p[row]))
        top_ids, top_p = table(tops)
        return Answers(
            np.array(ids, dtype=np.uint16), np.array(starts), np.array(marks), top_ids, top_p
        )


def table(tops: list[dict[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Write odds as `Answers` has them, filled up with other ids that have none."""
    ids = np.zeros((len(tops), TOP), dtype=np.uint16)
    p = np.zeros((len(tops), TOP), dtype=np.float16)
    for row, odds in enumerate(tops):
        others = (token for token in range(2 * TOP) if token not in odds)
        ids[row] = [*odds, *(next(others) for _ in range(TOP - len(odds)))]
        p[row, : len(odds)] = list(odds.values())
    return ids, p


def main() -> None:
    """Read, spell, save."""
    parser = argparse.ArgumentParser(description="Spell answers in another vocabulary.")
    parser.add_argument("other", type=Path, help="tokenizer.json of the draft to be")
    parser.add_argument("out", type=Path, help="file.npz")
    parser.add_argument("answers", type=Path, nargs="+", help="files of generate.py")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json")
    args = parser.parse_args()
    old, new = (Tokenizer.from_file(str(path)) for path in (args.tokenizer, args.other))
    respeller = Respeller(old, new)
    parts = [respeller.answers(answers) for answers in load_answers(args.answers)]
    shifts = accumulate((len(part.ids) for part in parts[:-1]), initial=0)
    starts = [part.starts + shift for part, shift in zip(parts, shifts, strict=True)]
    whole = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    Answers(**whole | {"starts": np.concatenate(starts)}).save(args.out)


if __name__ == "__main__":
    main()
