"""What `--exact` costs end to end, against what `tune` says of it.

The same questions are answered with the usual settings and with those of `--exact`, each without
drafting and with lookup, all four in turns from empty caches: eight edits, of which half repeat a
whole file, and eight questions that copy nothing. Printed is the share of the speed that `--exact`
takes, with the interval of 95 % over the questions, next to what `tune` measured before. Where
`tune` calls it free, at most 3 % may be lost.

On one core, where the usual settings have one thread as well, it may be free: call it with
`taskset -c 0`. It takes some 5 minutes with the starter and 25 with 1.5B, and no other program
may run meanwhile.

    uv run python -m benchmarks.exact_cost MODEL.gguf [--tokens 128]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace

from benchmarks.quick_advice import silent
from localspec.bench import prompt_sets
from localspec.bench.prompt_sets import BenchPrompt, BenchRequest
from localspec.bench.result import OFF, BenchRun, MeanInterval
from localspec.bench.runner import Arm, Runner
from localspec.bench.summarise import interval
from localspec.engine.cancel import Cancel
from localspec.engine.llama import machine
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.tuning import tune
from localspec.loading.results import ExactnessCost

EACH = 8
EXACT_OFF = f"exact {OFF}"
WAYS = {"usual": False, "exact": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most")
    given = parser.parse_args()
    options = LoadRequest(pair=given.model, draft="lookup", temp=0.0, past=False)
    known = tune(options, progress=silent, warn=silent, cancel=Cancel())
    if known.exact_cost is None:
        raise SystemExit("--exact is not possible here, or the machine was busy.")
    print(f"Passes of up to {known.exact} tokens give equal bits.\n", flush=True)
    runs = answered(options, given.tokens)
    expected = {OFF: known.exact_cost.baseline, "auto": known.exact_cost.copying}
    print("| kind | decoding | `--exact` takes (95 %) | `tune` says | |\n|---|---|---|---|---|")
    for kind in ("edit", "chat"):
        for manner, told in expected.items():
            its = kept(runs, kind, manner)
            low, high = its.low or its.value, its.high or its.value
            taken = f"{1 - its.value:.1%} ({1 - high:.1%} to {1 - low:.1%})"
            lost = ExactnessCost(1 - its.value, 0.0)
            short = "FALLS SHORT" if known.exact_cost.free and not lost.free else ""
            said = f"{told:.1%}" if kind == "edit" or manner == OFF else ""
            cells = kind, manner, taken, said, short
            print(f"| {' | '.join(cells)} |")
    print(f"\n{'free' if known.exact_cost.free else 'not free'}, says tune; {machine()}")


def answered(options: LoadRequest, tokens: int) -> list[BenchRun]:
    """All answers in all four ways."""
    request = BenchRequest(
        prompts=prompt_sets.quick(), repeats=1, n_predict=tokens, temperature=0.0, seed=1, gamma=0
    )
    with ExitStack() as stack:
        arms = []
        for way, exact in WAYS.items():
            wanted = replace(options, exact=exact)
            session = load_session(wanted, progress=silent, cancel=Cancel())
            stack.enter_context(closing(session))
            plain = OFF if way == "usual" else EXACT_OFF
            arms.append(Arm(name=plain, session=session, gamma=0))
            arms.append(Arm(name=f"{way} auto", session=session, gamma="auto"))
        settings = request.settings(arms[0].session.pair.target.model.end_tokens)
        runner = Runner(arms, settings, Cancel())
        runner.warm_up(request.prompts.prompts[0])
        return runner.run([*chosen(request.prompts.prompts)], 1).runs


def chosen(prompts: Iterable[BenchPrompt]) -> Iterable[BenchPrompt]:
    """The first `EACH` edits and questions."""
    counts = {"edit": EACH, "chat": EACH}
    for prompt in prompts:
        if counts.get(prompt.kind, 0):
            counts[prompt.kind] -= 1
            yield prompt


def kept(runs: Iterable[BenchRun], kind: str, manner: str) -> MeanInterval:
    """The speed with `--exact` over the usual one."""
    speeds = {(run.prompt, run.arm): speed(run) for run in runs if run.kind == kind and run.timed}
    usual, exact = (OFF, EXACT_OFF) if manner == OFF else ("usual auto", "exact auto")
    ratios = [
        speeds[prompt, exact] / its
        for (prompt, arm), its in speeds.items()
        if arm == usual and (prompt, exact) in speeds
    ]
    found = interval({kind: ratios})
    if found is None:
        raise SystemExit("No answer is long enough to be timed.")
    return found


def speed(run: BenchRun) -> float:
    """Tokens per second of an answer that is timed."""
    assert run.stats.tokens_per_second is not None
    return run.stats.tokens_per_second


if __name__ == "__main__":
    main()
