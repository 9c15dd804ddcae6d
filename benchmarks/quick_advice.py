"""Whether the advice of `bench --quick` agrees with that of a bench of 24 prompts a kind.

In two situations, on a quiet machine and while another process keeps a core busy, a bench of 24
prompts a kind runs once and a quick one ten times, as `localspec bench` runs them. Compared is
what each says of a kind of text: gain, loss, no gain (or nothing drafted), or that it can't tell.
At least nine of ten quick runs must say of every kind what the long bench says; quiet, at most one
may not be able to tell, and next to the busy process such a run contradicts nothing.

The 24 prompts are those of the quick bench and others of the same kinds, short ones as well; the
long bench goes by the clock alone. Every run is kept in the JSON next to --output: called again, it
goes on where it was stopped. On two cores it takes some 45 minutes with the starter and two hours
with 1.5B; --minutes ends it earlier, between two runs. Where 24 prompts cannot tell, more do
(--each 48 --kinds conversion --runs 0). The machine has to be idle otherwise.

    uv run python -m benchmarks.quick_advice [PAIR] --output advice.md [--minutes 30] [--only quiet]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks import gamma_compare, real_prompts
from benchmarks.situations import BUSY, SHORT, disturbed
from localspec.bench import prompt_sets
from localspec.bench.benchmark import bench_pair
from localspec.bench.prompt_sets import QUICK, BenchPrompt, BenchRequest, PromptSet
from localspec.bench.report_files import put
from localspec.bench.verdict import brought
from localspec.engine.cancel import Cancel
from localspec.engine.llama import machine
from localspec.loading.load_request import LoadRequest

SITUATIONS: Final = {"quiet": "", "a busy neighbour": BUSY}
RUNS, EACH = 10, 24
CANNOT, NO_GAIN, BARE = "can't tell", "no gain", "nothing was drafted"

Advice = dict[str, str]
"""What one run says, by kind of text."""
Done = dict[str, dict[str, list[Advice]]]
"""By situation the runs of the `long` and of the `quick` bench."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", nargs="?")
    parser.add_argument("--draft")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--only", default="", help="situations with this in their name")
    parser.add_argument("--runs", type=int, default=RUNS, help="of the quick bench")
    parser.add_argument("--each", type=int, default=EACH, help="prompts of the long bench")
    parser.add_argument("--kinds", default="", help="of the long bench; all, unless given")
    given = parser.parse_args()
    until, raw = time.monotonic() + 60 * given.minutes, given.output.with_suffix(".json")
    done: Done = json.loads(raw.read_text("utf-8")) if raw.exists() else {}
    options = LoadRequest(pair=given.pair, draft=given.draft, temp=0.0)
    benches = {"long": (many(given.each, given.kinds), 1), "quick": (None, given.runs)}
    for situation, script in SITUATIONS.items():
        if given.only not in situation:
            continue
        with disturbed(script):
            runs = done.setdefault(situation, {"long": [], "quick": []})
            for name, (prompts, wanted) in benches.items():
                while len(runs[name]) < wanted and time.monotonic() < until:
                    runs[name].append(advice(options, prompts))
                    put(json.dumps(done, indent=1).encode(), raw)
                    said = f"{situation}, {name} {len(runs[name])}: {runs[name][-1]}"
                    print(said, file=sys.stderr, flush=True)
    text = f"{table(done, given.each)}\n\n{machine()}\n"
    given.output.write_text(text, "utf-8")
    print(text)


def advice(options: LoadRequest, many: PromptSet | None) -> Advice:
    """What a bench of these prompts says of each kind, or, without any, a quick one."""
    request = BenchRequest(
        prompts=many or prompt_sets.quick(),
        repeats=1,
        n_predict=prompt_sets.TOKENS,
        temperature=0.0,
        seed=1,
        gamma="auto",
        # A wait for a calm machine is not counted.
        deadline=None if many else time.perf_counter() + prompt_sets.QUICK_S,
    )
    report = bench_pair(options, request, Cancel(), progress=silent, asking=silent, warn=silent)
    return {row.kind: brought(row) for row in report.on[0].kinds}


def silent(*_: object) -> None:
    """Show no progress."""


def many(each: int, kinds: str) -> PromptSet:
    """`each` prompts of every kind, those of the quick bench first."""
    drawn: dict[str, list[str]] = {}
    for one in real_prompts.questions(3 * each, seed=7):
        if len(one.turns[0]) < SHORT:
            drawn.setdefault(one.kind, []).append(one.turns[0])
    more: Mapping[str, Sequence[str]] = {
        "edit": drawn["edit"],
        "conversion": drawn["convert"],
        "chat": [*gamma_compare.KINDS["talk"], *drawn["chat"]],
        "code": [*gamma_compare.KINDS["code"], *drawn["code"]],
    }
    own = prompt_sets.quick()
    found = []
    for kind in kinds.split(",") if kinds else own.kinds:
        first = [prompt.text for prompt in own.prompts if prompt.kind == kind]
        texts = [*dict.fromkeys([*first, *more[kind]])][:each]
        found.append([BenchPrompt(f"{kind}-{n}", kind, text) for n, text in enumerate(texts)])
    return PromptSet(QUICK, tuple(chain.from_iterable(zip(*found, strict=True))))


def word(said: str) -> str:
    """The advice without its figures; where nothing was drafted, nothing was gained."""
    number = re.match(r"[\d.]+", said)
    if number is None:
        return CANNOT if said.startswith(CANNOT) else said.replace(BARE, NO_GAIN)
    return "gain" if float(number[0]) > 1 else "loss"


def table(done: Done, each: int) -> str:
    """A row for every situation and kind of text, by `each` prompts of the long bench."""
    head = "situation", "kind", f"{each} prompts", "quick runs that agree", "can't tell", "others"
    lines = [f"| {' | '.join(head)} | |", f"|{'---|' * (len(head) + 1)}"]
    for situation, runs in done.items():
        for kind, said in runs["long"][0].items() if runs["long"] else ():
            words = [word(run.get(kind, CANNOT)) for run in runs["quick"]]
            agree, cannot = words.count(word(said)), words.count(CANNOT)
            others = sorted({one for one in words if one not in (word(said), CANNOT)})
            holds = met(situation, word(said), words)
            cells = (situation, kind, said, f"{agree} of {len(words)}", cannot, ", ".join(others))
            lines.append(f"| {' | '.join(map(str, cells))} | {'' if holds else 'FALLS SHORT'} |")
    return "\n".join(lines)


def met(situation: str, told: str, words: Sequence[str]) -> bool:
    """Whether at least nine of ten runs agree with what the long bench `told`.

    A run that can't tell does not agree on a quiet machine; next to a busy process it contradicts
    nothing.
    """
    allowed = {told} if situation == "quiet" else {told, CANNOT}
    return sum(each in allowed for each in words) >= 0.9 * len(words)


if __name__ == "__main__":
    main()
