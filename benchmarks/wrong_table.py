"""What a wrong stored table costs, on a real pair: the right one and wrong ones side by side.

Runs the starter, or any other pair. Automatic gamma writes a conversation with the measured table
and, round by round over the same text, with a table whose points are wrong: all but one multiplied
by 5 or by 0.2, or all of target and draft by a random factor of 0.2 to 5. Each conversation has two
answers of 300 tokens, at temperature 0 and 0.8 in turn. For every kind of wrong table this prints
the ratio of both speeds in the first and in the second answer: the geometric mean with its 95 %
interval. Four conversations each take about 20 minutes; the machine has to be idle.

    uv run python -m benchmarks.wrong_table [--conversations 4]
"""

from __future__ import annotations

import argparse
import random
from contextlib import ExitStack, closing

from benchmarks.gamma_compare import KINDS, TEMPERATURES, Lane, interval, race
from benchmarks.gamma_disturbed import Tables, Wrong, all_but_one, all_points, right
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.length.profile import DRAFT_BUDGET, TARGET_BUDGET, measure_by_context
from localspec.engine.llama import Context, ContextOptions, machine
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

TOKENS, ANSWERS, CONTEXT = 300, 2, 1024
WAYS: dict[str, Wrong] = {
    "as measured": right,
    "all but one point 5 times too dear": all_but_one(5),
    "all but one point 5 times too cheap": all_but_one(0.2),
    "all points wrong by 0.2 to 5": all_points,
}

Pair = tuple[Context, Context]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        pairs = opened(stack, arguments.pair)
        tables = measured(pairs[0])
        print("| table | first answer | second |\n|---|---|---|", flush=True)
        for name, wrong in WAYS.items():
            found = [
                conversation(pairs, tables, wrong, at, arguments.tokens)
                for at in range(arguments.conversations)
            ]
            cells = (interval(list(ratios), geometric=True) for ratios in zip(*found, strict=True))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{machine()}")


def opened(stack: ExitStack, pair: str | None) -> tuple[Pair, Pair]:
    """Two sets of contexts over one load, with as many threads as the pair is run with."""
    session = load_session(LoadRequest(pair=pair), progress=lambda *_: None, cancel=Cancel())
    loaded = stack.enter_context(closing(session)).pair
    assert loaded.draft is not None
    flash = None if loaded.loaded.flash_attn == "auto" else loaded.loaded.flash_attn == "on"
    options = ContextOptions(n_ctx=CONTEXT, threads=loaded.loaded.threads, flash_attention=flash)
    models = loaded.target.model, loaded.draft.model

    def both() -> Pair:
        target, draft = (stack.enter_context(Context(model, options)) for model in models)
        return target, draft

    return both(), both()


def measured(pair: Pair) -> Tables:
    """The target's and the draft's points, measured as before a first prompt."""
    budgets = (TARGET_BUDGET, False), (DRAFT_BUDGET, True)
    target, draft = (
        measure_by_context(context, draft=draft, budget=budget)[0]
        for context, (budget, draft) in zip(pair, budgets, strict=True)
    )
    return dict(target[min(target)]), dict(draft[min(draft)])


def conversation(
    pairs: tuple[Pair, Pair], tables: Tables, wrong: Wrong, at: int, tokens: int
) -> list[float]:
    """For each answer the speed with a wrong table over that with the right one."""
    lanes = [
        Lane(
            name,
            target,
            (draft,),
            AutoGamma(Costs({0: points}, {DRAFT: {0: steps}})),
            same_text=True,
        )
        for name, (target, draft), (points, steps) in zip(
            ("right", "wrong"), pairs, (tables, wrong(tables, random.Random(at))), strict=True
        )
    ]
    found = []
    for answer in range(ANSWERS):
        questions = list(KINDS.values())[(at // 2 + answer) % len(KINDS)]
        race(
            lanes if at % 2 else lanes[::-1],
            questions[at % len(questions)],
            temperature=TEMPERATURES[at % 2],
            seed=at,
            tokens=tokens,
        )
        found.append(lanes[1].speed_with_first / lanes[0].speed_with_first)
    return found


if __name__ == "__main__":
    main()
