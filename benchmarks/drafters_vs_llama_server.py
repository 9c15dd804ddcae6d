"""What drafts here, all of it chosen automatically, compared with llama-server and its drafters.

    uv run python -m benchmarks.drafters_vs_llama_server --binary build/bin/llama-server
        --target T.gguf [--draft D.gguf] --output table.md

Build it of llama-cpp-python's own source, so that both sides run the same kernels (cmake -B build
vendor/llama.cpp, then cmake --build build -t llama-server). Short questions of the eight kinds of
`real_prompts.py` are asked of `localspec serve` (lookup, and the draft if there is one; which, and
how much: its own choice) and of llama-server: plain, with `ngram-mod` and `ngram-map-k` as they
come and with short patterns, and with the draft at some lengths, alone and after either. All of
them are loaded; they stream their answers in turns, in a random order: the same rendered prompts,
chain, threads and context. The first `--choose` questions of every kind and temperature choose the
best of llama-server's, the others score it. Compared is what a client sees: tokens per second after
the first. `ngram-mod` remembers what other requests said, so that its servers begin anew for every
question. Texts differ at 0.8, since two programs draw differently. An answer counts only if on
neither side most of what could be copied repeats itself, not the question.

A question takes about (all settings or one, and ours) x 16 x 96 tokens. It stops after `--minutes`
and goes on from the JSON next to `--output`.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import product
from pathlib import Path

import msgspec
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from msgspec import Struct

from benchmarks.gamma_compare import TEMPERATURES, interval
from benchmarks.real_prompts import COPYING, OTHERS, questions
from localspec.engine.llama import Model, machine, repacking_works
from tests.support.endpoint import Serving, streaming

Server = Callable[[], AbstractContextManager[int]]
"""Opens a server for a question; its port."""
OURS, PLAIN = "localspec", "plain"
CHAIN = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
AIMS = {0.0: 1.05, 0.8: 1.15}
SHORT = 1500  # characters of a question: every server reads it
SEED = 11  # of the questions
_FEW = 8  # tokens that could be copied: fewer are not a loop
_GRAM = 3  # of a loop: two tokens repeat by chance
_MOD = "--spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2 --spec-ngram-mod-n-max 24"
_MAP = "--spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 12"
_SHORT = {"mod": ("ngram-mod", _MOD.split()), "map": ("ngram-map-k", _MAP.split())}


def rendered(template: str, question: str) -> str:
    """The prompt under the target's own chat template."""
    render = Jinja2ChatFormatter(template, eos_token="", bos_token="")
    return render(messages=[{"role": "user", "content": question}]).prompt


@contextmanager
def llama_server(
    binary: Path, target: Path, threads: str, drafting: Sequence[str]
) -> Iterator[int]:
    """llama.cpp's server with a model and what else its command line says; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [
        *(str(binary), "-m", str(target), "-t", threads, "-c", "2048", "-np", "1"),
        *("--cache-ram", "0", "--port", str(port)),
        *(() if repacking_works() else ("--no-repack",)),
        *drafting,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


@cache
def texts(each: int) -> dict[str, list[str]]:
    """The first turns of `each` short questions of every kind."""
    found: dict[str, list[str]] = {kind: [] for kind in (*COPYING, *OTHERS)}
    for one in questions(8 * each, seed=SEED):
        if len(one.turns[0]) < SHORT and len(found[one.kind]) < each:
            found[one.kind].append(one.turns[0])
    assert all(len(drawn) == each for drawn in found.values())
    return found


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


def drafters(
    draft: Path | None, threads: int, lengths: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """llama-server's settings by name, with the words of its command line.

    Where several types are named the first of llama.cpp's own order that has a draft drafts:
    patterns before the model.
    """
    found: dict[str, tuple[str, ...]] = {PLAIN: ()}
    for kind, short in _SHORT.values():
        found[kind] = ("--spec-type", kind)
        found[f"{kind}, short"] = ("--spec-type", kind, *short)
    if draft is None:
        return found
    model = ("-md", str(draft), "-td", str(threads))
    for n in lengths:
        found[f"draft {n}"] = ("--spec-type", "draft-simple", *model, "--spec-draft-n-max", n)
    for name, (kind, short) in _SHORT.items():
        both = ("--spec-type", f"{kind},draft-simple", *model)
        found[f"draft 3, {kind}"] = both
        found[f"draft 1, {name} short"] = (*both, "--spec-draft-n-max", "1", *short)
    return found


class Asked(Struct):
    """One question at one temperature; figures by setting.

    Attributes:
        at: the question's number within its kind.
        speeds: tokens per second after the first, as a client sees them.
        told: the same as the server says.
        tokens: of the answers.
        loops: whose answer mostly repeats itself.
    """

    at: int
    kind: str
    temperature: float
    speeds: dict[str, float]
    told: dict[str, float]
    tokens: dict[str, int]
    loops: list[str]


def streamed(port: int, body: Mapping[str, object]) -> tuple[float, float, int, str]:
    """Tokens a second after the first, the same as the server tells it, tokens, and the text.

    Tokens are those of the text: llama-server counts the one that ends an answer, too.
    """
    data, times = b"", []
    request = streaming(dict(body)).replace(b"/v1/chat/completions", b"/v1/completions", 1)
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        sock.sendall(request)
        while b"data: [DONE]" not in data:
            part = sock.recv(1 << 16)
            if not part:
                raise SystemExit(f"no answer: {data[-500:]!r}")
            data += part
            if b'"text":"' in part.replace(b'"text":""', b""):
                times.append(time.perf_counter())
    said = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    choices = [one["choices"][0] for one in said if one["choices"]]
    timings = next(one["timings"] for one in reversed(said) if "timings" in one)
    tokens = next(one["usage"] for one in reversed(said) if one.get("usage"))["completion_tokens"]
    ended = any(choice.get("finish_reason") == "stop" for choice in choices)
    counted = tokens - (ended and "drafters" not in timings)
    seconds = times[-1] - times[0] if len(times) > 1 else float("inf")
    told = 1e3 * counted / timings["predicted_ms"]
    text = "".join(choice["text"] for choice in choices)
    return (counted - 1) / seconds, told, counted, text


def ask(
    asked: tuple[int, str, float],
    servers: Mapping[str, Server],
    model: Model,
    arguments: argparse.Namespace,
) -> Asked:
    """One question to all of these, in this order."""
    at, kind, temperature = asked
    number = at + arguments.questions * (temperature > 0)
    prompt = rendered(model.chat_template or "", texts(2 * arguments.questions)[kind][number])
    ids = model.tokenize(prompt, add_special=True, parse_special=True)
    never = {} if kind in COPYING else {str(token): -100 for token in model.end_tokens}
    body = CHAIN | {
        "prompt": prompt,
        "temperature": temperature,
        "max_tokens": arguments.tokens,
        "logit_bias": never,
        "cache_prompt": False,
        "stream_options": {"include_usage": True},
    }
    run = Asked(at, kind, temperature, {}, {}, {}, [])
    for name, server in servers.items():
        with server() as port:
            speed, told, tokens, text = streamed(port, body)
        run.speeds[name], run.told[name], run.tokens[name] = speed, told, tokens
        answer = model.tokenize(text, add_special=False, parse_special=False)
        if own_loop(ids, answer) or tokens < 8:
            run.loops.append(name)
    return run


def measure(
    runs: list[Asked],
    servers: Mapping[str, Server],
    model: Model,
    arguments: argparse.Namespace,
) -> Iterator[Asked]:
    """Ask what is not in `runs` until the time is over; there is a pause after every question."""
    until = time.monotonic() + 60 * arguments.minutes
    luck, known = random.Random(len(runs)), {(run.at, run.kind, run.temperature) for run in runs}
    for asked in product(range(arguments.questions), (*COPYING, *OTHERS), TEMPERATURES):
        if asked in known:
            continue
        if time.monotonic() > until:
            return
        chooses = asked[0] < arguments.choose
        names = list(servers) if chooses else [OURS, best(runs, *asked[1:], arguments.choose)]
        luck.shuffle(names)
        runs.append(run := ask(asked, {name: servers[name] for name in names}, model, arguments))
        yield run


def rate(runs: Sequence[Asked], name: str, *, told: bool = False) -> float:
    """Tokens per second of several answers together; a client's, or what the server says."""
    found = [(run.tokens[name], (run.told if told else run.speeds)[name]) for run in runs]
    return sum(n for n, _ in found) / max(1e-9, sum(n / speed for n, speed in found))


def best(runs: Sequence[Asked], kind: str, temperature: float, choose: int) -> str:
    """llama-server's best setting in one kind of text, by the runs that choose."""
    of = [run for run in runs if (run.kind, run.temperature) == (kind, temperature)]
    of = [run for run in of if run.at < choose]
    names = [name for name in of[0].speeds if name != OURS]
    return max(names, key=lambda name: rate(of, name))


def table(runs: Sequence[Asked], choose: int) -> str:
    """Every kind at each temperature, and all kinds."""
    lines = [
        "| text | temperature | its best | its tokens/s | localspec's | localspec / llama-server"
        " | the same as the servers tell it | with loops |",
        "|" + 8 * "---|",
    ]
    for temperature in TEMPERATURES:
        together: list[list[float]] = [[], [], []]
        for kind in (*COPYING, *OTHERS):
            of = [r for r in runs if (r.kind, r.temperature) == (kind, temperature)]
            of = [run for run in of if run.at >= choose]
            if not of:
                continue
            its = best(runs, kind, temperature, choose)
            right = [run for run in of if not run.loops]
            columns = [ratios(right, its), ratios(right, its, told=True), ratios(of, its)]
            for column, each in zip(together, columns, strict=True):
                column.extend(each)
            speeds = [f"{rate(right or of, name):.1f}" for name in (its, OURS)]
            cells = [kind, str(temperature), its, *speeds, *map(interval, columns)]
            lines.append(f"| {' | '.join(cells)} |")
        pooled = [interval(each, geometric=True) for each in together]
        lines.append(f"| all | {temperature} | | | | {' | '.join(pooled)} |")
    return "\n".join(lines)


def ratios(runs: Sequence[Asked], its: str, *, told: bool = False) -> list[float]:
    """How many times as fast as llama-server localspec was, answer by answer."""
    found = [run.told if told else run.speeds for run in runs if its in run.speeds]
    return [each[OURS] / each[its] for each in found]


def settings(runs: Sequence[Asked], choose: int) -> str:
    """Tokens a second of every setting in the runs that choose."""
    of = [run for run in runs if run.at < choose]
    names = list(dict.fromkeys(name for run in of for name in sorted(run.speeds)))
    lines = [f"| text | temperature | {' | '.join(names)} |", "|" + (2 + len(names)) * "---|"]
    for kind, temperature in product((*COPYING, *OTHERS), TEMPERATURES):
        its = [run for run in of if (run.kind, run.temperature) == (kind, temperature)]
        if its:
            cells = " | ".join(f"{rate(its, name):.1f}" for name in names)
            lines.append(f"| {kind} | {temperature} | {cells} |")
    return "\n".join(lines)


def report(runs: Sequence[Asked], arguments: argparse.Namespace) -> str:
    """The tables with what they are of."""
    scored = [run for run in runs if run.at >= arguments.choose]
    counted = {t: sum(r.temperature == t and not r.loops for r in scored) for t in TEMPERATURES}
    drafts = f"draft {arguments.draft.name}" if arguments.draft else "prompt lookup"
    spread = [run.speeds[PLAIN] for run in runs if PLAIN in run.speeds]
    said = (
        f"Target {arguments.target.name}, {drafts}, {arguments.threads}"
        f" threads, {arguments.tokens} tokens; {arguments.choose} questions of each kind and"
        f" temperature choose,"
        f" {len(scored)} answers score, of which {counted[0.0]} and {counted[0.8]} are not loops;"
        f" llama-server plain: {statistics.median(spread or [0.0]):.1f} tokens/s. Aims: {AIMS}."
    )
    both = (table(runs, arguments.choose), settings(runs, arguments.choose))
    return "\n\n".join((said, *both, machine())) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="without one, both copy what repeats")
    parser.add_argument("--lengths", default="1,3,6", help="of llama-server's draft model")
    parser.add_argument("--questions", type=int, default=9)
    parser.add_argument("--choose", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="the table; the .json next to it has every run")
    arguments = parser.parse_args()
    raw = arguments.output and arguments.output.with_suffix(".json")
    known = raw.read_bytes() if raw and raw.exists() else b"[]"
    runs = msgspec.json.decode(known, type=list[Asked])
    with ExitStack() as open_:
        model = open_.enter_context(Model.load(arguments.target))
        threads = str(arguments.threads)
        words = ("--draft", f"{arguments.draft},lookup" if arguments.draft else "lookup")
        served = open_.enter_context(Serving("-t", threads, *words, pair=str(arguments.target)))
        servers: dict[str, Server] = {OURS: partial(nullcontext, served.port)}
        its = drafters(arguments.draft, arguments.threads, arguments.lengths.split(","))
        for name, drafting in its.items():
            begin = partial(llama_server, arguments.binary, arguments.target, threads, drafting)
            kept = not any("ngram-mod" in word for word in drafting)
            servers[name] = partial(nullcontext, open_.enter_context(begin())) if kept else begin
        for run in measure(runs, servers, model, arguments):
            said = ", ".join(f"{name} {speed:.1f}" for name, speed in run.speeds.items())
            looped = f" LOOP {run.loops}" if run.loops else ""
            at = f"{run.at} {run.kind} {run.temperature}"
            print(f"{at}: {said} tokens/s{looped}", file=sys.stderr, flush=True)
            if raw:
                raw.write_bytes(msgspec.json.encode(runs))
    text = report(runs, arguments)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
