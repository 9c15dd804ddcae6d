"""What a schema in force costs: drafting by lookup with a grammar and without, answers in turns.

    uv run python -m benchmarks.constraint MODEL.gguf [--turns 12] [--seed 1]

The model goes on with lines of JSON, at temperature 0; the grammar describes such lines, so that
both arms write the same text. The script prints the ratio of the arms' speeds (tokens after the
first round) and by how much later the first token comes under a grammar that has to be read anew,
once the tokenizer is known: the median of the pairs and the 95 % interval of their mean.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.grammars import lark
from localspec.engine.grammars.grammar_reader import GrammarReader
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, ContextOptions, Model, default_threads
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams

PLACES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Kyoto"]
NAMES = ["Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo"]
N_PREDICT = 80


def grammar(number: int) -> str:
    """Lines of JSON; the number makes it another grammar, which has to be read again."""
    line = {
        "type": "object",
        "title": str(number),
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "city": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id", "name", "city", "tags"],
    }
    return lark.grammar('(line "\\n")+', line=lark.json_value(line))


def prompt(rng: random.Random) -> str:
    """Twelve lines that a model goes on with."""
    lines = [
        {"id": i, "name": rng.choice(NAMES), "city": rng.choice(PLACES), "tags": ["new", "paid"]}
        for i in range(1, 13)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its tokens, those that were drafted, seconds to its first round, its speed."""

    tokens: list[int]
    drafted: int
    first_s: float
    speed: float


def answer(engine: Engine, ids: list[int], grammars: GrammarReader, text: str) -> Answer:
    """Write one answer, under the grammar `text` if there is one."""
    engine.target.rewind(0)
    list(engine.prefill(ids, Cancel()))
    begun = perf_counter()
    how = GenerateSettings(
        sampling=SamplingParams(temperature=0.0),
        accept=Accept.MATCH,
        n_predict=N_PREDICT,
        constraint=grammars.begin(text) if text else None,
    )
    rounds, first = [], 0.0
    for done in engine.generate(ids, how, FixedGamma(6), Cancel()):
        first = first or perf_counter() - begun
        rounds.append(done)
    seconds = perf_counter() - begun - first
    tokens = [token for done in rounds for token in done.tokens]
    after = len(tokens) - len(rounds[0].tokens)
    return Answer(tokens, sum(done.accepted for done in rounds), first, after / seconds)


def interval(values: list[float]) -> str:
    """The median, and the 95 % interval of the mean around it."""
    width = 1.96 * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.median(values):.3f} ± {width:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    chosen = parser.parse_args()
    with Model.load(chosen.model) as model:
        options = ContextOptions(n_ctx=2048, threads=default_threads())
        with Context(model, options) as context:
            compare(context, chosen.turns, chosen.seed)


def compare(context: Context, turns: int, seed: int) -> None:
    """Print what comes of `turns` pairs of answers."""
    model, rng = context.model, random.Random(seed)
    engine = Engine(context, lookup=Lookup(context.n_ctx, model.is_end))
    grammars = GrammarReader(model)
    begun = perf_counter()
    grammars.begin(grammar(0))
    print(f"tokenizer and first grammar: {perf_counter() - begun:.2f} s, {model.n_vocab:,} tokens")
    ratios, later, same, kept = [], [], 0, 0.0
    for turn in range(turns + 1):
        ids = model.tokenize(prompt(rng), add_special=True, parse_special=False)
        arms = {}
        for constrained in (True, False) if turn % 2 else (False, True):
            text = grammar(turn + 1) if constrained else ""
            arms[constrained] = answer(engine, ids, grammars, text)
        if turn == 0:
            continue  # everything for the first time
        held, free = arms[True], arms[False]
        same += held.tokens == free.tokens
        kept += held.drafted / len(held.tokens)
        ratios.append(held.speed / free.speed)
        later.append(1000 * (held.first_s - free.first_s))
    print(f"{turns} pairs, {same} with the same text, {kept / turns:.0%} of the tokens drafted")
    print(f"speed with the grammar / without: {interval(ratios)}")
    print(f"first token later by: {interval(later)} ms")


if __name__ == "__main__":
    main()
