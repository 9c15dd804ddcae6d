"""Automatic gamma against every fixed one and plain decoding, on a real pair.

Four kinds of text at temperature 0 and 0.8. Every repeat runs all settings one after the other in
a new random order, in one process, with the same prompt and seed. The best fixed gamma of a text is
chosen on one half of the repeats and scored on the other, both ways; a figure is the median of the
paired ratios, over all texts their geometric mean, with its 95 % interval (bootstrap).

    uv run python benchmarks/gamma_compare.py --target T.gguf --draft D.gguf --output table.md

It runs kinds x temperatures x repeats x settings x tokens: at 20 tokens a second the usual
4 x 2 x 20 x 9 x 128 tokens take two and a half hours; `--quick` (6 repeats, gamma 0, 2, 4, 8) a
quarter of an hour. For "never slower" give a bad draft and `--gammas 0 --tokens 256`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.engine.acceptance import default_accept
from localspec.engine.cancel import Cancel
from localspec.engine.cost import Costs
from localspec.engine.draft import ModelDrafter
from localspec.engine.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.generate import Engine, GenerateSettings
from localspec.engine.llama import Context, ContextOptions, Model, machine
from localspec.engine.profile import measure_by_context
from localspec.engine.sampling import SamplingParams
from localspec.engine.stats import GenerationStats

KINDS = {
    "story": "Tell me a story about a dog and a boat.",
    "code": "Write a Python class for a stack, then a function that reverses a string.",
    "facts": "Explain in detail why the sky is blue and why it is red in the evening.",
    "talk": "Hello! What shall we talk about today? Tell me everything that comes to your mind.",
}
AUTO = "auto"


@dataclass
class Runs:
    """Tokens per second by (kind, temperature, setting), one entry a repeat."""

    speeds: dict[tuple[str, float, str], list[float]] = field(default_factory=dict)
    decided: dict[tuple[str, float], list[str]] = field(default_factory=dict)
    own: list[float] = field(default_factory=list)
    """Automatic over what its own plain rounds took, one entry a run that had enough of them."""

    def of(self, kind: str, temperature: float, names: list[str]) -> dict[str, list[float]]:
        """The speeds with these settings on one kind of text."""
        return {name: self.speeds[kind, temperature, name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--gammas", default="0,1,2,3,4,6,8,12")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ctx-size", type=int, default=1024)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, help="the table; .json beside it has every run")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.gammas = 6, "0,2,4,8"
    gammas = [int(each) for each in arguments.gammas.split(",")]
    options = ContextOptions(n_ctx=arguments.ctx_size, threads=arguments.threads)
    started = time.perf_counter()
    with (
        Model.load(arguments.target) as target,
        Model.load(arguments.draft) as draft,
        Context(target, options) as t,
        Context(draft, options) as d,
    ):
        # Not kept anywhere: every run of this script starts from a measurement of its own.
        auto = AutoGamma(
            Costs(
                measure_by_context(t, draft=False, budget=6.0)[0],
                [measure_by_context(d, draft=True, budget=2.0)[0]],
            )
        )
        engine = Engine(t, ModelDrafter(d, target.n_vocab))
        runs = compare(engine, auto, gammas, arguments)
    text = table(runs, gammas, arguments)
    text += f"\n\n{machine()}; took {(time.perf_counter() - started) / 60:.0f} minutes.\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
        raw = {" ".join(map(str, key)): values for key, values in runs.speeds.items()}
        arguments.output.with_suffix(".json").write_text(json.dumps(raw, indent=1), "utf-8")


def compare(
    engine: Engine, auto: AutoGamma, gammas: list[int], arguments: argparse.Namespace
) -> Runs:
    luck, runs = random.Random(0), Runs()
    policies: dict[str, GammaPolicy] = {str(n): FixedGamma(n) for n in gammas}
    policies[AUTO] = auto
    for repeat in range(-1, arguments.repeats):  # the first warms up, on one kind of text
        for kind, prompt in list(KINDS.items())[: None if repeat >= 0 else 1]:
            for temperature in (0.0, 0.8):
                order = list(policies)
                luck.shuffle(order)
                for name in order:
                    stats = generate(
                        engine,
                        policies[name],
                        prompt,
                        temperature=temperature,
                        seed=repeat,
                        tokens=arguments.tokens,
                    )
                    speed = stats.tokens_per_second or 0.0
                    if repeat >= 0:
                        runs.speeds.setdefault((kind, temperature, name), []).append(speed)
                    if repeat >= 0 and name == AUTO:
                        runs.decided.setdefault((kind, temperature), []).append(auto.explain())
                        runs.own += own_ratio(stats)
                    said = auto.explain() if name == AUTO else ""
                    at = f"{repeat} {kind} {temperature} {name}"
                    print(f"{at}: {speed:.2f} tokens/s {said}", file=sys.stderr, flush=True)
    return runs


def generate(
    engine: Engine,
    policy: GammaPolicy,
    prompt: str,
    *,
    temperature: float,
    seed: int,
    tokens: int,
) -> GenerationStats:
    """Generate `tokens` tokens whatever the text says."""
    model = engine.target.model
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    text = render(messages=[{"role": "user", "content": prompt}]).prompt
    ids = model.tokenize(text, add_special=True, parse_special=True)
    # No end of generation: the runs must be of one length.
    sampling = SamplingParams(
        temperature=temperature,
        seed=max(0, seed),
        logit_bias={token: float("-inf") for token in model.end_tokens},
    )
    cancel, stats = Cancel(), GenerationStats()
    list(engine.prefill(ids, cancel))
    assert engine.drafter is not None
    engine.drafter.context.clear()  # type: ignore[attr-defined]  # every run reads the prompt
    settings = GenerateSettings(
        sampling=sampling, accept=default_accept(sampling, seeded=False), n_predict=tokens
    )
    for done in engine.generate(ids, settings, policy, cancel):
        stats.add(done)
    return stats


def own_ratio(stats: GenerationStats) -> list[float]:
    """Speed over that of the run's own plain rounds, if half of the rounds are such.

    A machine that is faster in one run than in the next changes both alike: where a draft is of
    no use, this tells what was spent on finding that out more sharply than two runs can.
    """
    plain = [each.total_s for each in stats.rounds[1:] if not each.draft_passes]
    if 2 * len(plain) < len(stats.rounds):
        return []
    return [statistics.mean(plain) * (stats.generated_tokens - 1) / stats.after_first_s]


def table(runs: Runs, gammas: list[int], arguments: argparse.Namespace) -> str:
    lines = [
        f"Target {arguments.target.name}, draft {arguments.draft.name}, {arguments.tokens} tokens,"
        f" {arguments.repeats} repeats.",
        "",
        "| text | temperature | plain, tokens/s | best fixed | auto / best fixed | auto / plain"
        " | decided |",
        "|---|---|---|---|---|---|---|",
    ]
    fixed = [str(n) for n in gammas]
    together: dict[float, list[float]] = {0.0: [], 0.8: []}
    for kind in KINDS:
        for temperature in together:
            speeds = runs.of(kind, temperature, [AUTO, *fixed])
            ours = speeds.pop(AUTO)
            best, ratios = crossed(ours, speeds)
            together[temperature] += ratios
            plain = statistics.median(speeds["0"]) if "0" in fixed else 0.0
            paired = [a / b for a, b in zip(ours, speeds.get("0", ()), strict=False)]
            lines.append(
                f"| {kind} | {temperature} | {plain:.1f} | {best} | {interval(ratios)} "
                f"| {interval(paired)} | {runs.decided[kind, temperature][-1]} |"
            )
    for temperature, ratios in together.items():
        lines.append(f"| all | {temperature} | | | {interval(ratios, geometric=True)} | | |")
    lines += ["", *mix(runs, fixed)]
    return "\n".join(lines)


def crossed(ours: list[float], theirs: dict[str, list[float]]) -> tuple[str, list[float]]:
    """Ratios to the best of `theirs`: chosen on every half of the repeats, scored on the other.

    Returns:
        what was chosen, and the ratios
    """
    chosen, ratios = [], []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - half.start, None, 2)
        if not ours[half] or not ours[other]:
            continue
        best = max(theirs, key=lambda name: statistics.median(theirs[name][half]))
        chosen.append(best)
        ratios += [a / b for a, b in zip(ours[other], theirs[best][other], strict=True)]
    return ", ".join(dict.fromkeys(chosen)), ratios


def mix(runs: Runs, fixed: list[str]) -> list[str]:
    """Over all kinds and temperatures together: the best single gamma by total time."""
    cells = [(kind, temperature) for kind in KINDS for temperature in (0.0, 0.8)]

    def rates(name: str) -> list[float]:
        columns = [runs.speeds[*cell, name] for cell in cells]
        return [1 / sum(1 / speed for speed in row) for row in zip(*columns, strict=True)]

    best, ratios = crossed(rates(AUTO), {name: rates(name) for name in fixed})
    said = [f"Over the mix: auto / the best single gamma ({best}): {interval(ratios)}."]
    if runs.own:
        said += [
            "",
            f"Automatic over its own plain rounds, {len(runs.own)} runs in which most rounds"
            f" drafted nothing: {interval(runs.own)}, least {min(runs.own):.3f}.",
        ]
    return said


def interval(ratios: list[float], *, geometric: bool = False) -> str:
    """Median, or geometric mean, and its 95 % interval, by bootstrap."""
    if not ratios:
        return ""
    luck = random.Random(1)
    middle = statistics.geometric_mean if geometric else statistics.median
    found = sorted(middle(luck.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{middle(ratios):.3f} [{found[50]:.3f}, {found[1949]:.3f}]"


if __name__ == "__main__":
    main()
