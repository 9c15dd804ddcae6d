"""Automatic gamma side by side with llama.cpp's `llama-speculative-simple`.

Build the tool from llama-cpp-python's own vendored source (cmake -B build vendor/llama.cpp, then
cmake --build build -t llama-speculative-simple), so that both sides run the same kernels.

    uv run python benchmarks/gamma_vs_llama_cpp.py --binary build/bin/llama-speculative-simple
        --target T.gguf --draft D.gguf --output table.md

Processes alternate: for every prompt and repeat one run of each of llama.cpp's draft lengths and
one of localspec, in a random order; each loads its models anew. Both sides count generated tokens
over decode time, the prompt left out. The best draft length of a text is chosen on one half of the
repeats and scored on the other, both ways. Same prompts, chain, threads and context. 4 x 2 x 20
repeats x 8 runs of 128 tokens and the loads: about three hours at 20 tokens a second; `--quick` (6
repeats, lengths 2, 4, 8) half an hour.
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
from pathlib import Path

from gamma_compare import KINDS, crossed, interval
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from localspec.engine.llama import Model, default_threads, machine
from localspec.engine.llama.devices import repacking_works

_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
LOCALSPEC = "localspec"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--lengths", default="1,2,3,4,6,8,12")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--ctx-size", type=int, default=1024)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.lengths = 6, "2,4,8"
    lengths = arguments.lengths.split(",")
    luck = random.Random(0)
    speeds: dict[tuple[str, float, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prompts = rendered(arguments.target)
        for repeat in range(arguments.repeats):
            for kind, prompt in prompts.items():
                for temperature in (0.0, 0.8):
                    order = [LOCALSPEC, *lengths]
                    luck.shuffle(order)
                    for name in order:
                        run = ours if name == LOCALSPEC else theirs
                        options = {
                            "prompt": prompt,
                            "temperature": temperature,
                            "seed": repeat,
                            "length": name,
                            "folder": folder,
                        }
                        speed = run(arguments, options)
                        speeds.setdefault((kind, temperature, name), []).append(speed)
                        at = f"{repeat} {kind} {temperature} {name}"
                        print(f"{at}: {speed:.2f} tokens/s", file=sys.stderr, flush=True)
    text = table(speeds, lengths, arguments)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
        raw = {" ".join(map(str, key)): values for key, values in speeds.items()}
        arguments.output.with_suffix(".json").write_text(json.dumps(raw, indent=1), "utf-8")


def rendered(target: Path) -> dict[str, str]:
    """The prompts under the target's own chat template."""
    with Model.load(target) as model:
        render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
        return {
            kind: render(messages=[{"role": "user", "content": text}]).prompt
            for kind, text in KINDS.items()
        }


def theirs(arguments: argparse.Namespace, options: dict) -> float:
    """Tokens per second of one run of llama.cpp's tool."""
    command = [
        *(str(arguments.binary), "-m", str(arguments.target), "-md", str(arguments.draft)),
        *("-p", options["prompt"], "-n", str(arguments.tokens), "-c", str(arguments.ctx_size)),
        *("-t", str(arguments.threads), "-td", str(arguments.threads)),
        *("--spec-type", "draft-simple"),
        *("--spec-draft-n-max", options["length"], "--seed", str(options["seed"])),
        *("--temp", str(options["temperature"]), "--top-k", "40"),
        *("--top-p", "0.95", "--min-p", "0.05", "--ignore-eos"),
        *(() if repacking_works() else ("--no-repack",)),  # the same kernels on both sides
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _DECODED.search(done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"no speed in the output of {arguments.binary.name}")
    return int(found[1]) / float(found[2])


_CHILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gamma_compare import generate
from localspec.engine.cost import Costs, ModelCosts
from localspec.engine.draft import ModelDrafter
from localspec.engine.gamma import AutoGamma
from localspec.engine.generate import Engine
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.profile import Profile, ProfileStore, measure_by_context
how = json.loads(sys.argv[2])
options = ContextOptions(n_ctx=how["ctx_size"], threads=how["threads"])
target, draft = (Model.load(Path(how[name])) for name in ("target", "draft"))
t, d = Context(target, options), Context(draft, options)
store = ProfileStore(Path(how["folder"]))
profiles = []
for context, drafts in ((t, False), (d, True)):
    known = {"use": str(drafts)}
    found = store.load(known)
    if found is None:
        found = Profile(known, measure_by_context(context, draft=drafts, budget=6.0)[0])
        store.save(found)
    profiles.append(found)
target_costs, draft_costs = (ModelCosts(one.measured, one.learned) for one in profiles)
auto = AutoGamma(Costs(target_costs, [draft_costs]))
engine = Engine(t, ModelDrafter(d, target.n_vocab))
stats = generate(engine, auto, how["question"], temperature=how["temperature"], seed=how["seed"],
                 tokens=how["tokens"])
print(stats.tokens_per_second)
costs = auto.costs
store.learn(profiles[0], costs.target.learned())
store.learn(profiles[1], costs.drafts[0].learned())
"""


def ours(arguments: argparse.Namespace, options: dict) -> float:
    """Tokens per second of one run of localspec, in a process of its own."""
    kind = next(kind for kind, text in KINDS.items() if text in options["prompt"])
    how = {
        "target": str(arguments.target),
        "draft": str(arguments.draft),
        "threads": arguments.threads,
        "ctx_size": arguments.ctx_size,
        "folder": options["folder"],
        "question": KINDS[kind],
        "temperature": options["temperature"],
        "seed": options["seed"],
        "tokens": arguments.tokens,
    }
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", _CHILD, here, json.dumps(how)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(speeds: dict, lengths: list[str], arguments: argparse.Namespace) -> str:
    lines = [
        f"Target {arguments.target.name}, draft {arguments.draft.name}, {arguments.tokens} tokens,"
        f" {arguments.repeats} repeats, {arguments.threads} threads. {machine()}.",
        "",
        "| text | temperature | llama.cpp's best length | its tokens/s | localspec / llama.cpp |",
        "|---|---|---|---|---|",
    ]
    for temperature in (0.0, 0.8):
        together = []
        for kind in KINDS:
            theirs_ = {name: speeds[kind, temperature, name] for name in lengths}
            best, ratios = crossed(speeds[kind, temperature, LOCALSPEC], theirs_)
            together += ratios
            median = max(statistics.median(each) for each in theirs_.values())
            lines.append(f"| {kind} | {temperature} | {best} | {median:.1f} | {interval(ratios)} |")
        lines.append(f"| all | {temperature} | | | {interval(together, geometric=True)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
