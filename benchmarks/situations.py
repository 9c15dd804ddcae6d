"""The speed-up of automatic gamma and its claim, on a quiet machine and on disturbed ones.

Four situations: nothing else runs; another process keeps one core busy; it does so in bursts of 0.5
to 3 s; every other 20 s this process is stopped half of the time (SIGSTOP and SIGCONT, 10 ms each).
In each situation the starter with prompt lookup, or another pair, writes 40 answers of 128 tokens,
at temperature 0 and 0.8 in turn, to questions of which half hold a text to copy from. The baseline
and automatic gamma write the same text side by side, a round at a time: their ratio is the
reference for the claim of automatic gamma. A second baseline shows the noise of such ratios. In
every third answer fixed lengths run as well; these answers choose the best fixed length, and the
others score it.

Prints what has to hold as a table. Every answer is kept in the JSON next to --output: called again,
it goes on where it was stopped. Takes about 13 minutes a situation, 53 in all, at 25 tokens/s;
--minutes ends it earlier, between two answers. On a fast machine an answer of 128 tokens is over in
a second, in which a burst meets both sides unevenly: --tokens 384 tells more there. The machine has
to be idle otherwise.

    uv run python -m benchmarks.situations --output situations.md [--minutes 8] [--only bursts]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.gamma_compare import AUTO, BASELINE, TEMPERATURES, Lane, interval, measured, race
from benchmarks.real_prompts import questions
from localspec.engine.cancel import Cancel
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.llama import Context, ContextOptions, machine
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest

ANSWERS, TOKENS, EARLY = 40, 128, 64
SHORT = 900  # characters of a question: every setting reads it for itself
FIXED = ("1", "2", "4", "8")
AGAIN = "0 again"
"""The baseline once more: how far both are apart is the noise of the reference."""
BEGIN = """
import os, random, signal, time
parent = os.getppid()
"""
"""Each loop below ends when this process is gone, however that ended."""
BUSY = "while os.getppid() == parent: pass"
BURSTS = """
while os.getppid() == parent:
    until = time.time() + random.uniform(0.5, 3)
    while time.time() < until: pass
    time.sleep(random.uniform(0.5, 6))
"""
HALVING = """
while os.getppid() == parent:
    until = time.time() + 20
    while time.time() < until and os.getppid() == parent:
        os.kill(parent, signal.SIGSTOP)
        time.sleep(0.01)
        os.kill(parent, signal.SIGCONT)
        time.sleep(0.01)
    time.sleep(20)
"""
SITUATIONS = {"quiet": "", "a busy neighbour": BUSY, "bursts": BURSTS, "halving": HALVING}

Lanes = dict[str, tuple[Context, Sequence[Context]]]
"""For every setting its target's context and those of what drafts: none where lookup alone does."""
Answer = dict[str, Any]
"""Of one answer: `speeds` by setting, the `claim` (estimate, low, high) at its end and `early`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="situations with this in their name")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    raw = arguments.output.with_suffix(".json")
    done: dict[str, list[Answer]] = json.loads(raw.read_text("utf-8")) if raw.exists() else {}
    with ExitStack() as stack:
        lanes = opened(stack, arguments.pair)
        for name, script in SITUATIONS.items():
            answers = done.setdefault(name, [])
            if arguments.only not in name or len(answers) >= ANSWERS:
                continue
            target, drafts = lanes[AUTO]
            for context in (target, *drafts):
                context.clear()
            auto = measured(target, *drafts)
            with disturbed(script):
                while len(answers) < ANSWERS and time.monotonic() < until:
                    fixed = best(answers)
                    answers.append(asked(lanes, auto, len(answers), fixed, arguments.tokens))
                    raw.write_text(json.dumps(done, indent=1), "utf-8")
                    print(f"{name}: {len(answers)} of {ANSWERS}", file=sys.stderr, flush=True)
    text = f"{table(done)}\n\n{machine()}\n"
    arguments.output.write_text(text, "utf-8")
    print(text)


def opened(stack: ExitStack, pair: str | None) -> Lanes:
    """Contexts for every setting over one load; their threads give way to other programs."""
    session = load_session(LoadRequest(pair=pair), progress=lambda *_: None, cancel=Cancel())
    loaded = stack.enter_context(closing(session)).pair
    flash = None if loaded.loaded.flash_attn == "auto" else loaded.loaded.flash_attn == "on"
    options = ContextOptions(n_ctx=2048, flash_attention=flash)
    found: Lanes = {}
    for name in (BASELINE, AGAIN, AUTO, *FIXED):
        both = [
            stack.enter_context(Context(each.model, options))
            for each in (loaded.target, loaded.draft)
            if each is not None
        ]
        for context in both:
            context.threads.use(loaded.loaded.threads, at_most=True)
            context.threads.hold(False)
        found[name] = both[0], both[1:]
    return found


@contextmanager
def disturbed(script: str) -> Iterator[None]:
    """Run a disturbing process, which also continues this one after every time it stops it."""
    if not script:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BEGIN + script])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def asked(lanes: Lanes, auto: AutoGamma, at: int, fixed: str, tokens: int) -> Answer:
    """One answer by the baseline, automatic gamma and some fixed lengths, side by side."""
    names = [BASELINE, AGAIN, AUTO, *(FIXED if at % 3 == 0 else (fixed,))]
    policies: dict[str, GammaPolicy] = {name: FixedGamma(int(name)) for name in (BASELINE, *FIXED)}
    policies[AGAIN] = policies[BASELINE]
    going = [
        Lane(name, target, drafts, policies.get(name, auto), lookup=not drafts, same_text=True)
        for name in dict.fromkeys(names)
        for target, drafts in [lanes[name]]
    ]
    short = [each.turns[0] for each in questions(8, seed=7) if len(each.turns[0]) < SHORT]
    question = short[at // 2]
    early: list[Any] = []
    own = next(lane for lane in going if lane.name == AUTO)
    go_on = own.go_on

    def watched() -> None:
        go_on()
        if not early and own.stats.generated_tokens >= EARLY:
            early.append(auto.speedup() is not None)

    own.go_on = watched  # type: ignore[method-assign]
    race(going, question, temperature=TEMPERATURES[at % 2], seed=at, tokens=tokens)
    said = auto.speedup()
    return {
        "speeds": {lane.name: lane.speed for lane in going},
        "claim": said and [said.estimate, said.low, said.high],
        "early": bool(early and early[0]),
    }


def best(answers: list[Answer]) -> str:
    """The best fixed length, 0 included, by the answers in which all of them ran."""
    seen = [each["speeds"] for i, each in enumerate(answers) if i % 3 == 0]
    if not seen:
        return BASELINE
    return max((BASELINE, *FIXED), key=lambda n: geometric_mean([speeds[n] for speeds in seen]))


def table(done: dict[str, list[Answer]]) -> str:
    lines = [
        "| situation | answers | claim / reference | held | claimed by token 64 | high / low, 90 %"
        " | auto / no draft | best fixed | auto / best fixed | noise |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, answers in done.items():
        if not answers:
            continue
        claims = [(each["claim"], ratio(each, BASELINE)) for each in answers if each["claim"]]
        off = [said[0] / truth for said, truth in claims]
        held = sum(said[1] <= truth <= said[2] for said, truth in claims)
        widths = sorted(said[2] / said[1] for said, _ in claims)
        wide = f"{widths[math.ceil(0.9 * len(widths)) - 1]:.2f}" if widths else "–"
        fixed = best(answers)
        scored = [each for i, each in enumerate(answers) if i % 3 and fixed in each["speeds"]]
        cells = (
            *(name, len(answers), interval(off, geometric=True), f"{held} of {len(claims)}"),
            *(sum(each["early"] for each in answers), wide),
            interval([ratio(each, BASELINE) for each in answers], geometric=True),
            *(fixed, interval([ratio(each, fixed) for each in scored], geometric=True)),
            f"{100 * noise(answers):.1f} %",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def noise(answers: list[Answer]) -> float:
    """How far both baselines are apart: the root of the mean square of the logarithms."""
    speeds = [each["speeds"] for each in answers]
    return math.sqrt(fmean(math.log(each[AGAIN] / each[BASELINE]) ** 2 for each in speeds))


def ratio(answer: Answer, name: str) -> float:
    """Automatic gamma over another setting."""
    return float(answer["speeds"][AUTO] / answer["speeds"][name])


if __name__ == "__main__":
    main()
