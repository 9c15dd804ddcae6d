"""How much of what a head drafts is accepted, by position, on prompts that it never saw.

    python -m benchmarks.head_acceptance TARGET HEAD CORPORA

The first user turn of six conversations each from `chitchat`, `python_algorithms`, `tinystories`
and `facts` (`CORPORA/NAME.heldout.jsonl.zst`, chosen with seed 0), answered with 64 tokens or
fewer, up to where an answer begins to repeat itself, with drafts of four tokens: once greedily,
three times at temperature 0.8 under the token rule. Beside it stands what a control would come to
that always guesses the commonest token of the answers. Takes a few minutes for a model of 135
million weights on two cores. Needs `zstandard`.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import zstandard

from localspec.chat.conversation import Message, Role
from localspec.engine.cancel import Cancel
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.train.judging import AcceptedDrafts, judge
from localspec.train.texts.token_ids import prompt_ids

KINDS = ("chitchat", "python_algorithms", "tinystories", "facts")
EACH = 6
GOALS = {0.0: (0.50, 0.28), 0.8: (0.42, 0.20)}


def prompts(corpora: Path) -> list[str]:
    found = []
    for kind in KINDS:
        with (corpora / f"{kind}.heldout.jsonl.zst").open("rb") as packed:
            reader = zstandard.ZstdDecompressor().stream_reader(packed)
            lines = list(io.TextIOWrapper(reader, encoding="utf-8"))
        chosen = random.Random(0).sample(lines, EACH)
        found += [json.loads(line)["messages"][0]["content"] for line in chosen]
    return found


def line(temperature: float, found: AcceptedDrafts) -> str:
    first, all_ = GOALS[temperature]
    by_position = " ".join(f"{share:.3f}" for share in found.positions)
    return (
        f"| {temperature} | {found.first:.3f} ({first}) | {found.all:.3f} ({all_}) | {by_position}"
        f" | {found.control:.3f} | {found.drafts} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Acceptance of a head by position.")
    parser.add_argument("target", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    request = LoadRequest(
        pair=str(args.target),
        draft=str(args.head),
        ctx_size=1024,
        gamma=0,
        threads=args.threads,
        past=False,
    )
    cancel = Cancel()
    with closing(load_session(request, progress=lambda *_: None, cancel=cancel)) as session:
        asked = [(Message(Role.USER, text),) for text in prompts(args.corpora)]
        ids = [each for each in prompt_ids(session.template, asked) if each]
        print(f"{len(ids)} prompts, {args.head.stat().st_size / 1e6:.1f} MB")
        print("| temperature | first (least) | all (least) | by position | control | drafts |")
        print("|-|-|-|-|-|-|")
        said: Counter[int] = Counter()
        judge(session, ids, temperature=0.0, common=-1, cancel=cancel, said=said)
        common = said.most_common(1)[0][0]
        for temperature in GOALS:
            found = judge(session, ids, temperature=temperature, common=common, cancel=cancel)
            print(line(temperature, found), flush=True)


if __name__ == "__main__":
    main()
