"""Automatic gamma side by side with llama.cpp's `llama-speculative-simple`.

Build the tool from llama-cpp-python's own vendored source (cmake -B build vendor/llama.cpp, then
cmake --build build -t llama-speculative-simple), so that both sides run the same kernels.

    uv run python benchmarks/gamma_vs_llama_cpp.py --binary build/bin/llama-speculative-simple
        --target T.gguf --draft D.gguf --output table.md
    ... --spec-type draft-eagle3 --draft EAGLE3.gguf | --spec-type draft-mtp (inside the target)

Processes alternate: for every question one run of each of llama.cpp's draft lengths and one of
localspec, in a random order; each loads its models anew. Both sides count all generated tokens over
decode time, what the target takes for the prompt left out. (So is what llama.cpp's draft takes for
it; localspec's draft reads it after the first token, and that counts. llama.cpp's tool writes one
token more than was asked for, in a plain round.) First `--choose` runs of all lengths choose the
best one of each kind of text; then `--repeats` runs with other questions score it against
localspec. Same prompts, chain, threads and context. 4 x 2 x (3 x 8 + 10 x 2) runs of 128 tokens and
the loads: an hour at 20 tokens a second. It stops after a repeat that ends behind `--minutes`, and
goes on from the JSON beside `--output`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gamma_compare import AUTO, CELLS, KINDS, TEMPERATURES, Runs, interval, speeds_of, write
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.engine.llama import Model, default_threads, machine, repacking_works

_TRIES = 5  # its log's last lines are lost now and then
_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="the target itself where it is left out")
    parser.add_argument(
        "--spec-type", default="draft-simple", help="llama.cpp's word for the draft"
    )
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--lengths", default="1,2,3,4,6,8,12")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--choose", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--ctx-size", type=int, default=1024)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    arguments.draft = arguments.draft or arguments.target
    until = time.monotonic() + 60 * arguments.minutes
    runs = Runs()
    if arguments.output and arguments.output.with_suffix(".json").exists():
        raw = arguments.output.with_suffix(".json")
        runs = Runs(*(speeds_of(raw, phase) for phase in ("choosing", "scoring")))
    with tempfile.TemporaryDirectory() as folder:
        for _ in compare(runs, Path(folder), arguments):
            text = table(runs, arguments)
            if arguments.output:
                write(arguments.output, text, runs)
            if time.monotonic() > until:
                break
        else:
            text = table(runs, arguments)
    print(text)


def compare(runs: Runs, folder: Path, arguments: argparse.Namespace) -> Iterator[None]:
    """Run them all; the figures go into `runs`, and there is a pause after every repeat."""
    luck, lengths = random.Random(0), arguments.lengths.split(",")
    with Model.load(arguments.target) as model:
        template = model.chat_template or ""
    first = (*CELLS[-1], AUTO)
    done = sum(len(speeds.get(first, [])) for speeds in (runs.choosing, runs.scoring))
    for repeat in range(done, arguments.choose + arguments.repeats):
        scores = repeat >= arguments.choose
        speeds = runs.scoring if scores else runs.choosing
        for kind, temperature in CELLS:
            chosen = [runs.best((kind, temperature), lengths)] if scores else lengths
            order = [AUTO, *chosen]
            luck.shuffle(order)
            for name in order:
                run = ours if name == AUTO else theirs
                question = KINDS[kind][repeat % len(KINDS[kind])]
                options = {
                    "question": question,
                    "prompt": rendered(template, question),
                    "temperature": temperature,
                    "seed": repeat,
                    "length": name,
                    "folder": str(folder),
                }
                speed = run(arguments, options)
                speeds.setdefault((kind, temperature, name), []).append(speed)
                at = f"{repeat} {kind} {temperature} {name}"
                print(f"{at}: {speed:.2f} tokens/s", file=sys.stderr, flush=True)
        yield


def rendered(template: str, question: str) -> str:
    """The prompt under the target's own chat template."""
    render = Jinja2ChatFormatter(template, eos_token="", bos_token="")
    return render(messages=[{"role": "user", "content": question}]).prompt


def theirs(arguments: argparse.Namespace, options: dict) -> float:
    """Tokens per second of one run of llama.cpp's tool."""
    command = [
        *(str(arguments.binary), "-m", str(arguments.target), "-md", str(arguments.draft)),
        *("-p", options["prompt"], "-n", str(arguments.tokens), "-c", str(arguments.ctx_size)),
        *("-t", str(arguments.threads), "-td", str(arguments.threads)),
        *("--spec-type", arguments.spec_type),
        *("--spec-draft-n-max", options["length"], "--seed", str(options["seed"])),
        *("--temp", str(options["temperature"]), "--top-k", "40"),
        *("--top-p", "0.95", "--min-p", "0.05", "--ignore-eos"),
        *(() if repacking_works() else ("--no-repack",)),  # the same kernels on both sides
    ]
    for _ in range(_TRIES):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = _DECODED.search(done.stdout + done.stderr)
        if found is not None:
            return int(found[1]) / float(found[2])
    raise SystemExit(f"no speed in the output of {arguments.binary.name}")


_CHILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gamma_compare import Lane, drafter
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.length.gamma import AutoGamma
from localspec.engine.llama import Context, ContextOptions, Head, Model, head_of
from localspec.engine.length.profile import Profile, ProfileStore, measure_by_context
how = json.loads(sys.argv[2])
options = ContextOptions(n_ctx=how["ctx_size"], threads=how["threads"])
inside, head = how["target"] == how["draft"], how["head"]
target = Model.load(Path(how["target"]), mtp=inside)
draft = target if inside else Model.load(Path(how["draft"]), head=head)
t = Context(target, options)
d = head_of(draft, t, options) if head else Context(draft, options)
name = drafter(target, d).name
store = ProfileStore(Path(how["folder"]))
profiles = []
for context, drafts in ((t, False), (d, True)):
    known = {"use": str(drafts)}
    found = store.load(known)
    if found is None:
        points, timing = measure_by_context(context, draft=drafts, budget=6.0)
        found = Profile(known, points, onset=timing.onset)
        store.save(found)
    profiles.append(found)
target_costs, draft_costs = (
    ModelCosts(one.measured, one.learned, onset=one.onset) for one in profiles
)
auto = AutoGamma(Costs(target_costs, {name: draft_costs}))
lane = Lane("auto", t, [d], auto)
lane.start(how["question"], temperature=how["temperature"], seed=how["seed"], tokens=how["tokens"])
while not lane.over:
    lane.go_on()
print(lane.speed_with_first)
costs = auto.costs
store.learn(profiles[0], costs.target.learned())
store.learn(profiles[1], costs.drafts[name].learned())
"""


def ours(arguments: argparse.Namespace, options: dict) -> float:
    """Tokens per second of one run of localspec, in a process of its own."""
    how = {
        "target": str(arguments.target),
        "draft": str(arguments.draft),
        "head": arguments.spec_type != "draft-simple",
        "threads": arguments.threads,
        "ctx_size": arguments.ctx_size,
        "folder": options["folder"],
        "question": options["question"],
        "temperature": options["temperature"],
        "seed": options["seed"],
        "tokens": arguments.tokens,
    }
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", _CHILD, here, json.dumps(how)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(runs: Runs, arguments: argparse.Namespace) -> str:
    lengths = arguments.lengths.split(",")
    lines = [
        f"Target {arguments.target.name}, draft {arguments.draft.name} ({arguments.spec_type}),"
        f" {arguments.tokens} tokens,"
        f" {arguments.choose} runs to choose, {arguments.repeats} to score,"
        f" {arguments.threads} threads. {machine()}.",
        "",
        "| text | temperature | llama.cpp's best length | its tokens/s | localspec / llama.cpp |",
        "|---|---|---|---|---|",
    ]
    for temperature in TEMPERATURES:
        together = []
        for cell in (cell for cell in CELLS if cell[1] == temperature):
            best = runs.best(cell, lengths)
            theirs_ = runs.scoring.get((*cell, best), [])
            if theirs_:
                ratios = runs.ratios(cell, best)
                together += ratios
                lines.append(
                    f"| {cell[0]} | {temperature} | {best} | {statistics.median(theirs_):.1f} "
                    f"| {interval(ratios)} |"
                )
        lines.append(f"| all | {temperature} | | | {interval(together, geometric=True)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
