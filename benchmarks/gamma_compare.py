"""Automatic gamma against every fixed one and the baseline, on a real pair or with prompt lookup.

The texts are of four kinds, at temperature 0 and 0.8. All settings run side by side in one process,
each with separate contexts over the same weights: round by round the one that has written least
goes on, and only its own rounds are timed. So a machine that slows down for some seconds slows all
of them down. First every setting runs `--choose` times: these runs choose the best fixed gamma of
each kind of text and the best single one of the mix. Then `--repeats` other runs, with other
questions and seeds, score automatic gamma, the baseline and the chosen ones. A figure is the
median of the paired ratios, over all texts their geometric mean, with its 95 % interval
(bootstrap).

A choice from few runs is not always the best one: on recorded rounds the chosen length has on
average 0.994 of the best one's speed if 3 runs choose, 0.993 if 2 do, 0.996 if 5 do, and 0.985 at
worst. The automatic policy keeps what it learns from question to question, as in one session. What
it learnt during the choosing runs stays, as their best length does for the others.

    uv run python -m benchmarks.gamma_compare --target T.gguf --draft D.gguf --output table.md

It runs 4 x 2 kinds and temperatures x (choose x 9 + repeats x 2 to 4) settings x tokens: at 10
tokens a second the usual 3 and 10 repeats of 128 tokens take an hour and three quarters. The table
is written after every repeat. `--chosen table.json` takes the choosing runs from an earlier table
of the same pair, so that all the time goes into scoring. For "never slower" give a bad draft and
`--gammas 0 --choose 0 --tokens 256`: with two repeats a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.chat.figures.figures import gamma_words
from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.protocol import Drafter
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.profile import DRAFT_BUDGET, TARGET_BUDGET, measure_by_context
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Model, machine
from localspec.engine.record.stats import GenerationStats, Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import SamplingParams, default_accept

_ASKED = {
    "story": (
        "Tell me a story about {}.",
        "a dog and a boat; a girl who finds a key; an old man and his cat; two brothers at the sea;"
        "a bird that cannot fly; a boy and a red balloon; a mouse in a big house; a bear in winter;"
        "a tree that could talk; three friends and a map; a farmer and his horse; a lost bear;"
        "a snowman who is afraid of spring",
    ),
    "code": (
        "Write a Python {}.",
        "class for a stack, then a function that reverses a string; function that sorts a list;"
        "function that counts the words of a text; class for a bank account; function for the sum"
        " of a list; function that reads a file line by line; class for a queue; function that"
        " finds the largest number; function that checks for prime numbers; class for a point with"
        " x and y; function that removes duplicates; function that turns a list into a dictionary;"
        "class for a simple counter",
    ),
    "facts": (
        "Explain in detail {}.",
        "why the sky is blue and why it is red in the evening; how rain is made; why we sleep; what"
        " a magnet does; how plants grow; why the sea is salty; how the heart works; what the moon"
        " is; why leaves are green; how a volcano works; why birds can fly; how bread is made; what"
        " happens in a thunderstorm",
    ),
    "talk": (
        "{} Tell me everything that comes to your mind.",
        "Hello! What shall we talk about today?; What do you do on a rainy day?; I had a bad day.;"
        "What is your favourite colour?; Do you like music?; Good morning!; I am going on holiday.;"
        "What makes you happy?; I cannot sleep.; Tell me about yourself.; What should I cook"
        " tonight?; My friend is angry with me.; What do you think of winter?",
    ),
}
KINDS = {
    kind: tuple(form.format(each.strip()) for each in what.split(";"))
    for kind, (form, what) in _ASKED.items()
}
"""Questions by kind of text; every repeat asks another one."""
AUTO = "auto"
BASELINE = "0"
TEMPERATURES = (0.0, 0.8)
CELLS = [(kind, temperature) for kind in KINDS for temperature in TEMPERATURES]

Cell = tuple[str, float]
Speeds = dict[tuple[str, float, str], list[float]]


@dataclass
class Runs:
    """Tokens per second by (kind, temperature, setting), one entry a repeat."""

    choosing: Speeds = field(default_factory=dict)
    scoring: Speeds = field(default_factory=dict)
    decided: dict[Cell, str] = field(default_factory=dict)
    own: list[float] = field(default_factory=list)
    """Automatic over what its own baseline rounds took, one entry a run that had enough of them."""

    def best(self, cell: Cell, fixed: Sequence[str]) -> str:
        """The best fixed gamma of one kind of text, by the runs that choose."""
        return max(fixed, key=lambda name: rate(self.choosing.get((*cell, name), ())))

    def best_single(self, fixed: Sequence[str]) -> str:
        """The fixed gamma that takes the least time for the whole mix, by the same runs."""

        def seconds(name: str) -> float:
            return sum(1 / max(1e-9, rate(self.choosing.get((*cell, name), ()))) for cell in CELLS)

        return min(fixed, key=seconds)

    def ratios(self, cell: Cell, name: str) -> list[float]:
        """Ratios of the automatic setting to another one, in the runs that score."""
        ours, theirs = (self.scoring.get((*cell, each), []) for each in (AUTO, name))
        return [a / b for a, b in zip(ours, theirs, strict=True)]


def rate(speeds: Sequence[float]) -> float:
    """Tokens per second of several runs of one length together."""
    return statistics.harmonic_mean(speeds) if speeds else 0.0


def drafter(target: Model, draft: Context) -> Drafter:
    """The drafter for a model with the target's vocabulary or another one."""
    model = draft.model
    size = min(target.n_vocab, model.n_vocab)
    if all(target.piece(token) == model.piece(token) for token in range(size)):
        return ModelDrafter(draft, target.n_vocab)
    return CrossVocabularyDrafter(draft, VocabularyMap(target, model), DRAFT)


class OwnTime:
    """A policy that does not see the time between its rounds, in which other lanes run."""

    def __init__(self, policy: GammaPolicy) -> None:
        self._policy = policy

    def begin(self, *, follow_clock: bool) -> None:
        """Begin as the policy does."""
        self._policy.begin(follow_clock=follow_clock)

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        """Ask the drafters that the policy asks."""
        return self._policy.asks(drafters)

    def plan(self, situation: Situation) -> Plan:
        """Plan as the policy does."""
        return self._policy.plan(situation)

    def observe(self, done: Round) -> None:
        """Pass the round on without the time since the round before."""
        self._policy.observe(replace(done, between_s=0.0))


class Lane:
    """One setting with separate contexts, which runs a round at a time and times only these.

    Args:
        name: how the setting is called.
        target, drafts: its contexts.
        policy: how much is drafted.
        lookup: whether prompt lookup drafts, too.
        same_text: draw so that every lane writes the same text with one seed.
    """

    def __init__(
        self,
        name: str,
        target: Context,
        drafts: Sequence[Context],
        policy: GammaPolicy,
        *,
        lookup: bool = False,
        same_text: bool = False,
    ) -> None:
        self.name, self.policy, self.same_text = name, policy, same_text
        model = target.model
        drafters = [drafter(model, each) for each in drafts]
        self._read_anew = (target, *drafts)
        copier = Lookup(target.n_ctx, model.is_end) if lookup else None
        self.engine = Engine(target, *drafters, lookup=copier)

    def start(self, prompt: str, *, temperature: float, seed: int, tokens: int) -> None:
        """Read the prompt, and decode the first token; the answer does not end by itself."""
        model = self.engine.target.model
        render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
        text = render(messages=[{"role": "user", "content": prompt}]).prompt
        ids = model.tokenize(text, add_special=True, parse_special=True)
        # No end of generation: the runs must be of one length.
        never = {token: float("-inf") for token in model.end_tokens}
        sampling = SamplingParams(temperature=temperature, seed=seed, logit_bias=never)
        cancel, self.stats = Cancel(), GenerationStats()
        for context in self._read_anew:
            context.clear()
        list(self.engine.prefill(ids, cancel))
        accept = default_accept(sampling, seeded=self.same_text)
        settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=tokens)
        self._rounds = self.engine.generate(ids, settings, OwnTime(self.policy), cancel)
        started = time.perf_counter()
        self.stats.add(next(self._rounds))
        self.first_s, self.seconds = time.perf_counter() - started, 0.0

    def go_on(self) -> None:
        """One more round."""
        started = time.perf_counter()
        done = next(self._rounds)
        self.seconds += time.perf_counter() - started
        self.stats.add(done)

    @property
    def over(self) -> bool:
        """Whether the whole answer is written."""
        return self.stats.finish_reason is not None

    @property
    def speed(self) -> float:
        """Tokens per second after the first."""
        return (self.stats.generated_tokens - self.stats.tokens_in_first_round) / self.seconds

    @property
    def speed_with_first(self) -> float:
        """Tokens per second from the first on."""
        return self.stats.generated_tokens / (self.first_s + self.seconds)


def race(lanes: Sequence[Lane], prompt: str, *, temperature: float, seed: int, tokens: int) -> None:
    """Run all lanes side by side: the next round belongs to the lane that has written least."""
    for lane in lanes:
        lane.start(prompt, temperature=temperature, seed=seed, tokens=tokens)
    while running := [lane for lane in lanes if not lane.over]:
        min(running, key=lambda lane: lane.stats.generated_tokens).go_on()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="without one, prompt lookup drafts")
    parser.add_argument("--gammas", default="0,1,2,3,4,6,8,12")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--choose", type=int, default=3)
    parser.add_argument("--chosen", type=Path, help="JSON of an earlier run, which has chosen")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ctx-size", type=int, default=1024)
    parser.add_argument("--output", type=Path, help="the table; the .json next to it has every run")
    arguments = parser.parse_args()
    fixed = arguments.gammas.split(",")
    options = ContextOptions(n_ctx=arguments.ctx_size, threads=arguments.threads)
    started = time.perf_counter()
    with Model.load(arguments.target) as target, ExitStack() as open_:
        models = [target]
        if arguments.draft:
            models.append(open_.enter_context(Model.load(arguments.draft)))
        contexts = [
            [open_.enter_context(Context(model, options)) for model in models]
            for _ in (*fixed, AUTO)
        ]
        auto = measured(*contexts[-1])
        policies: list[tuple[str, GammaPolicy]] = [(n, FixedGamma(int(n))) for n in fixed]
        policies.append((AUTO, auto))
        lanes = [
            Lane(name, its, drafts, policy, lookup=not arguments.draft)
            for (name, policy), (its, *drafts) in zip(policies, contexts, strict=True)
        ]
        runs = Runs()
        if arguments.chosen is not None:
            runs.choosing = speeds_of(arguments.chosen, "choosing")
            arguments.choose = min(map(len, runs.choosing.values()))
        for _ in compare(runs, lanes, auto, arguments):
            text = table(runs, fixed, arguments)
            text += f"\n\n{machine()}; took {(time.perf_counter() - started) / 60:.0f} minutes.\n"
            if arguments.output:
                write(arguments.output, text, runs)
    print(text)


def measured(target: Context, draft: Context | None = None) -> AutoGamma:
    """Automatic gamma from a fresh measurement, which is not stored."""
    drafts = {} if draft is None else {DRAFT: costs_of(draft, draft=True)}
    return AutoGamma(Costs(costs_of(target, draft=False), drafts))


def costs_of(context: Context, *, draft: bool) -> ModelCosts:
    """The costs of a model, measured as for a pair that was never loaded."""
    budget = DRAFT_BUDGET if draft else TARGET_BUDGET
    points, timing = measure_by_context(context, draft=draft, budget=budget)
    return ModelCosts(points, warmup=timing.warmup)


def compare(
    runs: Runs, lanes: Sequence[Lane], auto: AutoGamma, arguments: argparse.Namespace
) -> Iterator[None]:
    """Run all settings and add their figures to `runs`; yield after every repeat."""
    luck, fixed = random.Random(0), [lane.name for lane in lanes if lane.name != AUTO]
    done = arguments.choose if runs.choosing else 0
    for repeat in range(done, arguments.choose + arguments.repeats):
        scores = repeat >= arguments.choose
        speeds = runs.scoring if scores else runs.choosing
        for kind, temperature in CELLS:
            names = {AUTO, BASELINE, runs.best((kind, temperature), fixed), runs.best_single(fixed)}
            going = [lane for lane in lanes if not scores or lane.name in names]
            luck.shuffle(going)
            question = KINDS[kind][repeat % len(KINDS[kind])]
            race(going, question, temperature=temperature, seed=repeat, tokens=arguments.tokens)
            for lane in going:
                speeds.setdefault((kind, temperature, lane.name), []).append(lane.speed)
                said = gamma_words(auto.note()) if lane.name == AUTO else ""
                at = f"{repeat} {kind} {temperature} {lane.name}"
                print(f"{at}: {lane.speed:.2f} tokens/s {said}", file=sys.stderr, flush=True)
                if scores and lane.name == AUTO:
                    runs.decided[kind, temperature] = said
                    runs.own += own_ratio(lane)
        yield


def write(path: Path, text: str, runs: Runs) -> None:
    """Write the table, and every run to the JSON next to it."""
    path.write_text(text, "utf-8")
    raw = {
        phase: {" ".join(map(str, key)): values for key, values in speeds.items()}
        for phase, speeds in (("choosing", runs.choosing), ("scoring", runs.scoring))
    }
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1), "utf-8")


def speeds_of(path: Path, phase: str) -> Speeds:
    """One half of a table that was written before: "choosing" or "scoring"."""
    found: Speeds = {}
    for key, speeds in json.loads(path.read_text("utf-8"))[phase].items():
        kind, temperature, name = key.split()
        found[kind, float(temperature), name] = speeds
    return found


def own_ratio(lane: Lane) -> list[float]:
    """Speed over that of the run's own baseline rounds, if at least half of its rounds are such.

    If a draft is of no use, this shows the cost of finding that out, more exactly than two runs.
    """
    rounds = lane.stats.rounds[1:]  # lookup drafts without a pass
    baseline = [each.total_s for each in rounds if not (each.draft_passes or each.drafted)]
    if 2 * len(baseline) < len(lane.stats.rounds):
        return []
    return [statistics.mean(baseline) * lane.speed]


def table(runs: Runs, fixed: Sequence[str], arguments: argparse.Namespace) -> str:
    drafts = f"draft {arguments.draft.name}" if arguments.draft else "prompt lookup"
    lines = [
        f"Target {arguments.target.name}, {drafts}, {arguments.tokens} tokens,"
        f" {arguments.choose} runs to choose, {arguments.repeats} to score.",
        "",
        "| text | temperature | no draft, tokens/s | best fixed | auto / best fixed |"
        " auto / no draft | decided |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        baseline = runs.scoring.get((*cell, BASELINE), [])
        if baseline:
            best = runs.best(cell, fixed)
            lines.append(
                f"| {cell[0]} | {cell[1]} | {statistics.median(baseline):.1f} | {best} "
                f"| {interval(runs.ratios(cell, best))} | {interval(runs.ratios(cell, BASELINE))} "
                f"| {runs.decided[cell]} |"
            )
    for temperature in TEMPERATURES:
        cells = [cell for cell in CELLS if cell[1] == temperature]
        to_best = [ratio for cell in cells for ratio in runs.ratios(cell, runs.best(cell, fixed))]
        to_baseline = [ratio for cell in cells for ratio in runs.ratios(cell, BASELINE)]
        both = [interval(each, geometric=True) for each in (to_best, to_baseline)]
        lines.append(f"| all | {temperature} | | | {both[0]} | {both[1]} | |")
    return "\n".join([*lines, "", *mix(runs, fixed)])


def mix(runs: Runs, fixed: Sequence[str]) -> list[str]:
    """Compare with the best single gamma over all kinds and temperatures, by total time."""
    best = runs.best_single(fixed)

    def rates(name: str) -> list[float]:
        columns = [runs.scoring.get((*cell, name), []) for cell in CELLS]
        # After an interrupted repeat the columns differ in length.
        return [1 / sum(1 / speed for speed in row) for row in zip(*columns, strict=False)]

    ratios = [a / b for a, b in zip(rates(AUTO), rates(best), strict=True)]
    said = [f"Over the mix: auto / the best single gamma ({best}): {interval(ratios)}."]
    if runs.own:
        said += [
            "",
            f"Automatic over its own baseline rounds, {len(runs.own)} runs in which most rounds"
            f" drafted nothing: {interval(runs.own)}, least {min(runs.own):.3f}.",
        ]
    return said


def interval(ratios: Sequence[float], *, geometric: bool = False) -> str:
    """Median, or geometric mean, and its 95 % interval, by bootstrap."""
    if not ratios:
        return ""
    luck = random.Random(1)
    middle = statistics.geometric_mean if geometric else statistics.median
    found = sorted(middle(luck.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{middle(ratios):.3f} [{found[50]:.3f}, {found[1949]:.3f}]"


if __name__ == "__main__":
    main()
