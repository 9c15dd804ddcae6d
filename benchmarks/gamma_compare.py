"""Automatic gamma against every fixed one and plain decoding, on a real pair.

Four kinds of text at temperature 0 and 0.8. Every repeat runs all settings one after the other in
a new random order, in one process, with the same prompt and seed. The best fixed gamma is chosen
on the even repeats and scored on the odd ones; a figure is the median of the paired ratios with
its 95 % interval (bootstrap).

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
from localspec.engine.profile import DRAFT_SIZES, TARGET_SIZES, measure
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

    def ratios(self, kind: str, temperature: float, over: str, *, odd: bool) -> list[float]:
        """Automatic over another setting, repeat by repeat; of the odd repeats alone if asked."""
        ours = self.speeds[kind, temperature, AUTO]
        theirs = self.speeds[kind, temperature, over]
        return [
            a / b for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if i % 2 or not odd
        ]


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
                {0: measure(t, TARGET_SIZES, budget=6.0).points},
                [{0: measure(d, DRAFT_SIZES, budget=2.0, one_row=True).points}],
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
    for kind in KINDS:
        for temperature in (0.0, 0.8):
            at = (kind, temperature)
            best = max(fixed, key=lambda n: statistics.median(runs.speeds[*at, n][::2]))
            plain = statistics.median(runs.speeds[*at, "0"]) if "0" in fixed else 0.0
            against_plain = interval(runs.ratios(*at, "0", odd=False)) if "0" in fixed else ""
            lines.append(
                f"| {kind} | {temperature} | {plain:.1f} | {best} "
                f"| {interval(runs.ratios(*at, best, odd=True))} | {against_plain} "
                f"| {runs.decided[at][-1]} |"
            )
    lines += ["", *mix(runs, fixed)]
    return "\n".join(lines)


def mix(runs: Runs, fixed: list[str]) -> list[str]:
    """Over all kinds and temperatures together: the best single gamma by total time."""
    cells = [(kind, temperature) for kind in KINDS for temperature in (0.0, 0.8)]

    def seconds(name: str, repeats: slice) -> list[float]:
        columns = [runs.speeds[*cell, name][repeats] for cell in cells]
        return [sum(1 / speed for speed in row) for row in zip(*columns, strict=True)]

    best = min(fixed, key=lambda n: sum(seconds(n, slice(0, None, 2))))
    odd = slice(1, None, 2)
    pairs = zip(seconds(best, odd), seconds(AUTO, odd), strict=True)
    ratios = [theirs / ours for theirs, ours in pairs]
    said = [f"Over the mix: auto / the best single gamma ({best}): {interval(ratios)}."]
    if runs.own:
        said += [
            "",
            f"Automatic over its own plain rounds, {len(runs.own)} runs in which most rounds"
            f" drafted nothing: {interval(runs.own)}, least {min(runs.own):.3f}.",
        ]
    return said


def interval(ratios: list[float]) -> str:
    """Median and its 95 % interval, by bootstrap."""
    if not ratios:
        return ""
    luck = random.Random(1)
    medians = sorted(statistics.median(luck.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.3f} [{medians[50]:.3f}, {medians[1949]:.3f}]"


if __name__ == "__main__":
    main()
