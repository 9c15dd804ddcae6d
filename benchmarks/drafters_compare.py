"""Lookup, draft models, heads and the choice between them, on a real pair, over the same text.

Four kinds of text that repeat what was asked (edit, fix, quote, repeat) and four that do not
(story, talk, facts, mathematics), at temperature 0 and 0.8 (coupled rule, one seed): all settings
write the same text, side by side in one process, each with contexts of its own; round by round the
one that has written least goes on, and only its own rounds are timed. The first third of the
questions of each kind chooses the best single drafter, the rest score. A figure is the median of
the paired ratios with its 95 % interval (bootstrap), over several kinds their geometric mean. An
answer counts in nothing if most of what could be copied in it repeats itself, not the question.

    uv run python benchmarks/drafters_compare.py --target T.gguf --draft D.gguf --output table.md
    ... --target T.gguf --draft D.gguf --head EAGLE3.gguf | --target WITH_MTP.gguf --mtp

It goes on until `--minutes` are over; what was measured before is read from the JSON beside
`--output`, and added to. 24 questions a kind take some 90 minutes at 30 tokens a second. For a
draft with another vocabulary `--settings none,draft` is enough, and takes half of that. What it
brings that the model reads what lookup says: `--settings draft+lookup,apart`.

With `--curve` rounds take what a cost curve says in place of what a clock does: engine, models and
texts are the real ones, and nothing that goes on beside them disturbs the figures. A curve is one
of `simulator.CURVES` or like 1:1,2:1.3,4:2.1; `--steps draft=0.1,eagle3=0.06` are the drafters'
passes, in T(1) as well, and every further token of one takes a fifth of that.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
from gamma_compare import KINDS, Lane, costs_of, interval, own_ratio, race
from msgspec import Struct
from simulator import CURVES

from localspec.engine.length.cost import ByContext, Costs, Points
from localspec.engine.length.gamma import AutoGamma, GammaPolicy
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Head, Model, head_of, machine
from localspec.engine.record.stats import DRAFT, Round
from localspec.pairs.gguf import head_checks

PLAIN, LOOKUP = "none", "lookup"
APART = "apart"  # all, but no model reads what lookup says
OWN = "lookup's plain rounds"  # what lookup's answer would have taken at the pace of those
COPYING = ("edit", "fix", "quote", "repeat")
OTHERS = ("story", "talk", "facts", "mathematics")
TEMPERATURES = (0.0, 0.8)
QUESTIONS = 24
_SECOND = 0.02  # what T(1) takes on a curve
_STEP, _MORE = 0.1, 0.2  # of T(1), a drafter's pass; of that, every further token
_FEW = 8  # tokens that could be copied: fewer are no loop
_GRAM = 3  # of a loop: two tokens repeat by chance

_TEXTS = (
    "The old lighthouse stood on a small island. Every night its keeper climbed the stairs and lit"
    " the lamp. One evening a storm came, and a little boat lost its way. The keeper rang the bell"
    " until the boat was safe in the harbour.",
    "Bread is made from flour, water, salt and yeast. The dough has to rest for an hour before it"
    " is baked. In the oven it rises again and gets a brown crust. Fresh bread should cool down"
    " before it is cut.",
    "Anna wanted to learn to swim. Her brother took her to the lake every morning in June. At first"
    " she was afraid of the deep water. In July she swam to the other side and back again.",
    "The library opens at nine and closes at six. On Saturdays it is open until noon. Children may"
    " borrow five books at a time. Whoever brings a book back late has to pay a small fee.",
)
_CODE = (
    "def total(prices, tax):\n    result = 0\n    for price in prices:\n"
    "        result += price * (1 + tax)\n    return result",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n"
    "        counts[word] = counts.get(word, 0) + 1\n    return counts",
    "def find(values, wanted):\n    for index, value in enumerate(values):\n"
    "        if value == wanted:\n            return index\n    return -1",
)
_RENAMED = (("result", "total_sum"), ("items", "values"), ("counts", "table"), ("value", "entry"))
_BROKEN = (
    ("for price in prices:", "for price in prices"),
    ("def push(self, item):", "def push(slef, item):"),
    ("return counts", "retrun counts"),
    ("if value == wanted:", "if value = wanted:"),
)


def question(kind: str, at: int) -> str:
    """The question of this number: of the copying kinds new ones come of few texts by turns."""
    text, other = _TEXTS[at % 4], _TEXTS[(at + 1 + at // 4) % 4]
    code, (old, new), (right, wrong) = _CODE[at % 4], _RENAMED[at % 4], _BROKEN[at % 4]
    again = "" if at < 4 else f"_{at}"
    long = text if at % 8 < 4 else f"{text} {other}"
    words = " ".join(long.split(". ")[1].split()[:3])
    asked = {
        "edit": f"Rename `{old}` to `{new}{again}` in this code:\n\n```python\n{code}\n```",
        "fix": "Fix the bug in this code:\n\n```python\n"
        + code.replace(right, wrong).replace(old, old + again)
        + "\n```",
        "quote": f'Quote everything from "{words}" on:\n\n{long}',
        "repeat": f"Repeat this word for word:\n\n{long}",
        "mathematics": f"Tom has {at + 12} apples and gives {at % 7 + 3} to each of 2 friends."
        " How many are left? Explain every step.",
    }
    return asked[kind] if kind in asked else KINDS[kind][at % len(KINDS[kind])]


def own_loop(ids: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether most of what lookup could have copied stood in the answer itself alone."""
    asked = {tuple(ids[i : i + _GRAM + 1]) for i in range(len(ids) - _GRAM)}
    text, before = [*ids[-_GRAM:], *answer], set(asked)
    hits = own = 0
    for i in range(len(text) - _GRAM):
        gram = tuple(text[i : i + _GRAM + 1])
        hits += gram in before
        own += gram in before and gram not in asked
        before.add(gram)
    return hits >= _FEW and 2 * own > hits


class Apart(AutoGamma):
    """No drafter reads what another one says."""

    def plan(self, situation: Situation) -> Plan:
        """As without it."""
        return super().plan(replace(situation, readers=()))


def lanes_of(
    target: Model,
    files: Sequence[Model],
    options: ContextOptions,
    settings: Sequence[str],
    open_: ExitStack,
    *,
    curve: tuple[str, str] = ("", ""),
) -> list[Lane]:
    """Every setting, with contexts of its own and the same costs to begin with.

    Plain decoding, every drafter alone, and all of them: the settings' names say which. A file that
    is the target's stands for the head inside it. With a `curve` and the drafters' passes nothing
    is timed.
    """
    first = open_.enter_context(Context(target, options))
    of_target = None if curve[0] else costs_of(first, draft=False)

    def opened(file: Model, beside: Context) -> Context:
        head = file is target or file.metadata["general.architecture"] in head_checks.FILES
        made = head_of(file, beside, options) if head else Context(file, options)
        return open_.enter_context(made)

    known, drafts = {}, {}
    for file in files:
        small = opened(file, first)
        name = small.kind if isinstance(small, Head) else DRAFT
        known[name], drafts[name] = (
            None if curve[0] else costs_of(small, draft=True),
            file,
        )
    if curve[0]:
        of_target, known = by_curve(*curve, tuple(drafts))

    def lane(name: str) -> Lane:
        context = open_.enter_context(Context(target, options))
        parts = (*drafts, LOOKUP) if name == APART else name.split("+")
        its = [opened(drafts[each], context) for each in parts if each in drafts]
        costs = Costs(of_target, {each: known[each] for each in parts if each in drafts})
        policy: GammaPolicy = Apart(costs) if name == APART else AutoGamma(costs)
        made = Lane
        if curve[0]:
            made, policy = ByCurve, Truth(Costs(of_target, known), policy)
        return made(name, context, its, policy, lookup=LOOKUP in parts, same_text=True)

    every = [PLAIN, LOOKUP, *drafts, "+".join((*drafts, LOOKUP)), APART]
    return [lane(name) for name in dict.fromkeys(every) if name in (settings or every[:-1])]


class Truth:
    """What rounds take by a curve: a policy is told that, and a lane counts it."""

    def __init__(self, costs: Costs, policy: GammaPolicy) -> None:
        self.costs, self.policy = costs, policy

    def seconds(self, done: Round) -> tuple[float, float]:
        """Of the drafting, and of the target's pass."""
        (model, n, *_), *others = self.costs.decodes(done)
        drafting = sum(count * each.at(0).seconds(size) for each, size, _, count in others)
        return drafting, model.at(0).seconds(n)

    def begin(self, *, follow_clock: bool) -> None:
        """As the policy does."""
        self.policy.begin(follow_clock=follow_clock)

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """As the policy does."""
        return self.policy.asks(drafters)

    def plan(self, situation: Situation) -> Plan:
        """As the policy decides."""
        return self.policy.plan(situation)

    def observe(self, done: Round) -> None:
        """With the curve's times."""
        drafting, verifying = self.seconds(done)
        its = {"draft_s": drafting, "verify_s": verifying, "total_s": drafting + verifying}
        self.policy.observe(replace(done, **its, rollback_s=0.0, copying_s=0.0))


class ByCurve(Lane):
    """A lane whose rounds take what a curve says."""

    def go_on(self) -> None:
        """One more round."""
        assert isinstance(self.policy, Truth)
        done = next(self._rounds)
        self.seconds += sum(self.policy.seconds(done))
        self.stats.add(done)


def points_of(text: str) -> Points:
    """The curve of that name, or written as sizes and times."""
    if text in CURVES:
        return CURVES[text]
    return {int(n): float(t) for n, t in (pair.split(":") for pair in text.split(","))}


def by_curve(
    curve: str, steps: str, drafts: Sequence[str]
) -> tuple[ByContext, dict[str, ByContext]]:
    """The target's costs and the drafters', which a curve and their passes give."""
    target = {n: _SECOND * t for n, t in points_of(curve).items()}
    said = dict(each.split("=") for each in steps.split(",") if each)
    passes = {name: _SECOND * float(said.get(name, _STEP)) for name in drafts}
    sizes = (1, 2, 64)
    return {0: target}, {
        name: {0: {n: step * (1 + _MORE * (n - 1)) for n in sizes}} for name, step in passes.items()
    }


class Run(Struct):
    """One question at one temperature.

    Attributes:
        at: the question's number within its kind.
        counts: whether what it repeats is not its own loop.
        seconds: by setting, after the first token.
        tokens: those that took them.
        drafted, accepted: tokens by setting and, within it, by drafter.
    """

    at: int
    kind: str
    temperature: float
    counts: bool
    seconds: dict[str, float]
    tokens: int = 0
    drafted: dict[str, dict[str, int]] = {}
    accepted: dict[str, dict[str, int]] = {}


def measure(runs: list[Run], lanes: Sequence[Lane], tokens: int, until: float) -> Iterator[None]:
    """Ask what is not in `runs` until the time is over; there is a pause after every question."""
    luck = random.Random(len(runs))
    known = {(run.at, run.kind, run.temperature) for run in runs}
    for asked in product(range(QUESTIONS), (*COPYING, *OTHERS), TEMPERATURES):
        if asked in known:
            continue
        if time.monotonic() > until:
            return
        at, kind, temperature = asked
        luck.shuffle(order := list(lanes))
        ends = kind in COPYING
        race(order, question(kind, at), temperature=temperature, seed=at, tokens=tokens, ends=ends)
        answers = [[t for done in lane.stats.rounds for t in done.tokens] for lane in lanes]
        looped = own_loop(lanes[0].ids, answers[0]) or len(answers[0]) < _FEW
        runs.append(run_of(asked, lanes, counts=not looped))
        said = " ".join(f"{lane.name} {lane.seconds:.2f}" for lane in lanes)
        differ = any(answer != answers[0] for answer in answers)
        note = " LOOP" * looped + " TEXTS DIFFER" * differ
        print(f"{at} {kind} {temperature}: {len(answers[0])} tokens, {said} s{note}",
              file=sys.stderr, flush=True)  # fmt: skip
        yield


def run_of(asked: tuple[int, str, float], lanes: Sequence[Lane], *, counts: bool) -> Run:
    """What the lanes have just done."""
    its = {lane.name: lane.stats.drafters for lane in lanes}
    stats = lanes[0].stats
    return Run(
        *asked,
        counts,
        seconds(lanes),
        stats.generated_tokens - stats.tokens_in_first_round,
        {lane: {name: each.drafted for name, each in of.items()} for lane, of in its.items()},
        {lane: {name: each.accepted for name, each in of.items()} for lane, of in its.items()},
    )


def seconds(lanes: Sequence[Lane]) -> dict[str, float]:
    """What every lane took, and lookup's at the pace of its own plain rounds, if most are such."""
    found = {lane.name: lane.seconds for lane in lanes}
    for lane in lanes:
        if lane.name == LOOKUP and (ratio := own_ratio(lane)):
            found[OWN] = lane.seconds * ratio[0]
    return found


def ratios(runs: Sequence[Run], ours: str, theirs: str) -> list[float]:
    """How many times as fast one setting was as another, where both ran."""
    both = [run.seconds for run in runs if {ours, theirs} <= run.seconds.keys()]
    return [each[theirs] / each[ours] for each in both]


def took(runs: Sequence[Run], name: str) -> float:
    """Seconds of a setting in all of them."""
    return sum(run.seconds[name] for run in runs)


def table(runs: Sequence[Run]) -> str:
    """Every kind at each temperature, every kind, and all together."""
    names = list(dict.fromkeys(name for run in runs for name in run.seconds))
    single = [name for name in names if "+" not in name and name not in (PLAIN, OWN, APART)]
    every = next((name for name in names if "+" in name), single[-1] if single else "")
    pairs = [*((name, PLAIN) for name in (*single, every)), (LOOKUP, OWN)]
    pairs += [(every, name) for name in (*single, APART)]
    fixed = [pair for pair in dict.fromkeys(pairs) if {*pair} <= {*names} and pair[0] != pair[1]]
    titles = [*(f"{ours} / {theirs}" for ours, theirs in fixed), f"{every} / best single"]
    lines = [
        f"| text | temperature | questions | best single | {' | '.join(titles)} |",
        "|" + (4 + len(titles)) * "---|",
    ]
    found: dict[tuple[str, str], list[list[float]]] = {}
    for kind, temperature in product((*COPYING, *OTHERS), TEMPERATURES):
        of = [r for r in runs if (r.kind, r.temperature) == (kind, temperature) and r.counts]
        choosing, scoring = of[: len(of) // 3], of[len(of) // 3 :]
        if not scoring:
            continue
        best = min(single or [every], key=lambda name: took(choosing or of, name))
        cells = [ratios(scoring, *pair) for pair in (*fixed, (every, best))]
        found[kind, str(temperature)] = cells
        shown = " | ".join(map(interval, cells))
        lines.append(f"| {kind} | {temperature} | {len(scoring)} | {best} | {shown} |")
    for name, kinds in {
        **{kind: (kind,) for kind in (*COPYING, *OTHERS)},
        "all that copy": COPYING,
        "all others": OTHERS,
        "all": (*COPYING, *OTHERS),
    }.items():
        of_kinds = [cells for (kind, _), cells in found.items() if kind in kinds]
        pooled = [[x for each in column for x in each] for column in zip(*of_kinds, strict=True)]
        shown = " | ".join(interval(each, geometric=True) for each in pooled)
        if pooled:
            lines.append(f"| {name} | both | {max(map(len, pooled))} | | {shown} |")
    return "\n".join(lines)


def shares(runs: Sequence[Run]) -> str:
    """Tokens a second of every setting, and what was accepted of what each drafter drafted."""
    of = [run for run in runs if run.counts and run.tokens]
    names = list(dict.fromkeys(name for run in of for name in run.drafted))
    asked = [
        (lane, who)
        for lane in names
        for who in dict.fromkeys(x for r in of for x in r.drafted[lane])
    ]
    titles = [
        *(f"{name}, tokens/s" for name in names),
        *(" of ".join(dict.fromkeys((who, lane))) for lane, who in asked),
    ]
    lines = [
        f"| text | temperature | answers | {' | '.join(titles)} |",
        "|" + (3 + len(titles)) * "---|",
    ]
    for kind, temperature in product((*COPYING, *OTHERS), TEMPERATURES):
        its = [run for run in of if (run.kind, run.temperature) == (kind, temperature)]
        if not its:
            continue
        tokens = sum(run.tokens for run in its)
        cells = [f"{tokens / took(its, name):.1f}" for name in names]
        for lane, who in asked:
            drafted = sum(run.drafted[lane].get(who, 0) for run in its)
            accepted = sum(run.accepted[lane].get(who, 0) for run in its)
            cells.append(f"{accepted / drafted:.2f} ({drafted / tokens:.2f})" if drafted else "")
        lines.append(f"| {kind} | {temperature} | {len(its)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="a small model")
    parser.add_argument("--head", type=Path, help="a head's file")
    parser.add_argument("--mtp", action="store_true", help="the head inside the target")
    parser.add_argument("--settings", default="", help="which of them, with commas")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--curve", default="", help="what rounds take, in place of the clock")
    parser.add_argument("--steps", default="", help="what the drafters' passes take there")
    parser.add_argument("--output", type=Path, help="the table; .json beside it has every run")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    settings = [name for name in arguments.settings.split(",") if name]
    raw = arguments.output and arguments.output.with_suffix(".json")
    known = raw.read_bytes() if raw and raw.exists() else b"[]"
    runs = msgspec.json.decode(known, type=list[Run])
    options = ContextOptions(n_ctx=1024, threads=arguments.threads)
    with (
        ExitStack() as weights,
        ExitStack() as open_,
    ):
        target = weights.enter_context(Model.load(arguments.target, mtp=arguments.mtp))
        named = [(arguments.draft, False), (arguments.head, True)]
        files = [weights.enter_context(Model.load(path, head=head)) for path, head in named if path]
        files += [target][: int(arguments.mtp)]
        curve = (arguments.curve, arguments.steps)
        lanes = lanes_of(target, files, options, settings, open_, curve=curve)
        for _ in measure(runs, lanes, arguments.tokens, until):
            if raw:
                raw.write_bytes(msgspec.json.encode(runs))
    where = f"{arguments.curve}; {arguments.steps}" if arguments.curve else machine()
    text = f"{table(runs)}\n\n{shares(runs)}\n\n{where}\n"
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
