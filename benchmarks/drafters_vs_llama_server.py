"""Automatic drafting on a real model: against no drafting, and against llama-server at its best.

    uv run python -m benchmarks.drafters_vs_llama_server --target T.gguf [--draft D.gguf]
        [--binary build/bin/llama-server] [--temperature 0.8] [--kinds edit,chat] --output table.md

Build llama-server of llama-cpp-python's own source with the same compiler, so that both programs
run the same kernels (cmake -B build vendor/llama.cpp, then cmake --build build -t llama-server).
Questions of the eight kinds of `real_prompts.py` are asked of one `localspec serve` three times,
once drafting by its own choice and twice with `"draft": "none"`, and of llama-server: without
drafting, with `ngram-mod` and `ngram-map-k` as they come and with short patterns, and with the
draft at some lengths, alone and after either. All of them are loaded. They answer in turns, in a
random order, with the same rendered prompts, threads and context. The second answer without
drafting shows the noise. It comes from the same process, since two processes with the same settings
differ by up to a seventh for as long as they run.

The first questions of every kind choose the best of llama-server's settings, the others score it
(where there are no others, the same questions do, which favours llama-server); a setting that is a
tenth slower than the best of its kind after four questions is not asked again. Without --binary,
and at temperatures above 0, where one seed draws, only localspec is asked. The figures are those
that a client sees: tokens a second after the first, and seconds until the first. `ngram-mod`
remembers other requests, so its servers begin anew for every question.

It prints how many hours are left, stops after `--minutes`, and goes on from the JSON next to
`--output`.
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
from functools import partial
from pathlib import Path

import msgspec
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from msgspec import Struct

from benchmarks.gamma_compare import interval
from benchmarks.real_prompts import COPYING, KINDS, questions
from localspec.engine.llama import Model, machine, repacking_works
from tests.support.endpoint import Serving, streaming

Server = Callable[[], AbstractContextManager[int]]
"""Opens a server for a question; its port."""
# As the files of raw results name them.
AUTO, BASELINE, AGAIN = "localspec", "localspec plain", "localspec plain again"
OWN = (AUTO, BASELINE, AGAIN)
CONTEXT = "2048"
MOST_PROMPT = 1500  # tokens
SEED = 11  # of the questions, and of the answers above temperature 0
_BEATEN, _AFTER = 0.9, 4
_LONG, _SHORT = range(80, 10**6), range(10, 41)  # tokens of an answer
_MOD = "--spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2 --spec-ngram-mod-n-max 24"
_MAP = "--spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 12"
_PATTERNS = {"mod": ("ngram-mod", _MOD.split()), "map": ("ngram-map-k", _MAP.split())}


class Asked(Struct):
    """One question; figures by server.

    Attributes:
        at: the question's number within its kind.
        speeds: tokens a second after the first, as a client sees them.
        first: seconds until the first token.
        tokens: of the answers.
        seconds: in which all servers answered it.
        chooses: whether it chooses among llama-server's settings, or scores the one chosen.
    """

    at: int
    kind: str
    speeds: dict[str, float]
    first: dict[str, float]
    tokens: dict[str, int]
    seconds: float
    chooses: bool


@contextmanager
def llama_server(
    binary: Path, target: Path, threads: str, drafting: Sequence[str]
) -> Iterator[int]:
    """Run llama.cpp's server with a model and further words of its command line; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [
        *(str(binary), "-m", str(target), "-t", threads, "-c", CONTEXT, "-np", "1"),
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


def drafters(
    draft: Path | None, threads: int, lengths: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """llama-server's settings by name, with the words of its command line.

    If several types are named, llama.cpp asks them in its own order, patterns before the model, and
    takes the first draft.
    """
    found: dict[str, tuple[str, ...]] = {"plain": ()}
    for kind, short in _PATTERNS.values():
        found[kind] = ("--spec-type", kind)
        found[f"{kind}, short"] = ("--spec-type", kind, *short)
    if draft is None:
        return found
    model = ("-md", str(draft), "-td", str(threads))
    for n in lengths:
        found[f"draft {n}"] = ("--spec-type", "draft-simple", *model, "--spec-draft-n-max", n)
    for name, (kind, short) in _PATTERNS.items():
        both = ("--spec-type", f"{kind},draft-simple", *model)
        found[f"draft 3, {kind}"] = both
        found[f"draft 1, {name} short"] = (*both, "--spec-draft-n-max", "1", *short)
    return found


def ready(port: int) -> Server:
    """A server that keeps running."""
    return lambda: nullcontext(port)


@contextmanager
def opened(given: argparse.Namespace) -> Iterator[dict[str, Server]]:
    """All servers by name, loaded but for those that begin anew for every question."""
    threads, target, draft = str(given.threads), given.target, given.draft
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        drafts = f"{draft},lookup" if draft else "lookup"
        one = Serving("-t", threads, "-c", CONTEXT, "--draft", drafts, pair=str(target))
        servers |= dict.fromkeys(OWN, ready(stack.enter_context(one).port))
        its = {} if own(given) else drafters(draft, given.threads, given.lengths.split(","))
        for name, drafting in its.items():
            begin = partial(llama_server, given.binary, target, threads, drafting)
            anew = any("ngram-mod" in word for word in drafting)
            servers[name] = begin if anew else ready(stack.enter_context(begin()))
        yield servers


def own(given: argparse.Namespace) -> bool:
    """Whether localspec alone is asked."""
    return given.binary is None or given.temperature > 0


def prompts(model: Model, each: Mapping[str, int]) -> dict[str, list[str]]:
    """The first turns of `each` questions of every kind, under the target's own chat template."""
    render = Jinja2ChatFormatter(model.chat_template or "", eos_token="", bos_token="")
    found: dict[str, list[str]] = {kind: [] for kind in each}
    for one in questions(4 * max(each.values()), seed=SEED):
        if one.kind not in each:
            continue
        prompt = render(messages=[{"role": "user", "content": one.turns[0]}]).prompt
        ids = model.tokenize(prompt, add_special=True, parse_special=True)
        if len(ids) <= MOST_PROMPT and len(found[one.kind]) < each[one.kind]:
            found[one.kind].append(prompt)
    return found


def streamed(port: int, body: Mapping[str, object]) -> tuple[float, float, int]:
    """Tokens a second after the first, seconds until the first, and tokens of the text.

    llama-server counts the token that ends an answer, too; its timings name no drafters.
    """
    data, times = b"", []
    request = streaming(dict(body)).replace(b"/v1/chat/completions", b"/v1/completions", 1)
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=600) as sock:
        sock.sendall(request)
        while b"data: [DONE]" not in data:
            part = sock.recv(1 << 16)
            if not part:
                raise SystemExit(f"no answer: {data[-500:]!r}")
            data += part
            if b'"text":"' in part.replace(b'"text":""', b""):
                times.append(time.perf_counter())
    said = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    timings = next(one["timings"] for one in reversed(said) if "timings" in one)
    tokens = next(one["usage"] for one in reversed(said) if one.get("usage"))["completion_tokens"]
    choices = [one["choices"][0] for one in said if one["choices"]]
    ended = any(choice.get("finish_reason") == "stop" for choice in choices)
    counted = tokens - (ended and "drafters" not in timings)
    if len(times) < 2:
        return float("inf"), time.perf_counter() - begun, counted
    return (counted - 1) / (times[-1] - times[0]), times[0] - begun, counted


def measure(
    runs: list[Asked], servers: Mapping[str, Server], model: Model, given: argparse.Namespace
) -> Iterator[Asked]:
    """Ask the questions that are not in `runs`, until the time is over."""
    until, luck = time.monotonic() + 60 * given.minutes, random.Random(len(runs))
    kinds = given.kinds.split(",")
    each = {kind: given.copying if kind in COPYING else given.others for kind in kinds}
    drawn = prompts(model, each)
    known = {(run.at, run.kind) for run in runs}
    left = [(at, kind) for at in range(max(each.values())) for kind in kinds if at < each[kind]]
    left = [one for one in left if one not in known]
    for n, (at, kind) in enumerate(left):
        if time.monotonic() > until:
            return
        chooses = at < (given.choosing if kind in COPYING else given.choosing // 2)
        names = asked_of(servers, runs, kind, chooses)
        luck.shuffle(names)
        body = {"prompt": drawn[kind][at], "max_tokens": given.tokens, "cache_prompt": False}
        body |= {"temperature": given.temperature, "stream_options": {"include_usage": True}}
        body |= {"seed": SEED} if given.temperature else {}
        run, begun = Asked(at, kind, {}, {}, {}, 0.0, chooses), time.perf_counter()
        for name in names:
            asked = body | ({"draft": "none"} if name in (BASELINE, AGAIN) else {})
            with servers[name]() as port:
                run.speeds[name], run.first[name], run.tokens[name] = streamed(port, asked)
        run.seconds = time.perf_counter() - begun
        runs.append(run)
        hours = statistics.mean(one.seconds for one in runs) * (len(left) - n - 1) / 3600
        print(f"{hours:.1f} hours left at most", file=sys.stderr)
        yield run


def asked_of(
    servers: Mapping[str, Server], runs: Sequence[Asked], kind: str, chooses: bool
) -> list[str]:
    """The names of the servers that answer a question."""
    its = [name for name in servers if name not in OWN]
    if not its:
        return list(OWN)
    if not chooses:
        its = [best(runs, kind)]
    elif sum(run.kind == kind for run in runs) >= _AFTER:
        fastest = rate(runs, kind, best(runs, kind))
        its = [name for name in its if rate(runs, kind, name) >= _BEATEN * fastest]
    return [*OWN, *its]


def best(runs: Sequence[Asked], kind: str) -> str:
    """llama-server's best setting for one kind of text, by the runs that choose."""
    of = [run for run in runs if run.kind == kind and run.chooses]
    last = max(of, key=lambda run: run.at)  # beaten settings were not asked it
    return max((n for n in last.speeds if n not in OWN), key=lambda name: rate(of, kind, name))


def rate(runs: Sequence[Asked], kind: str, name: str) -> float:
    """Tokens a second of several answers together."""
    of = [run for run in runs if run.kind == kind and name in run.speeds]
    seconds = sum(run.tokens[name] / run.speeds[name] for run in of)
    return sum(run.tokens[name] for run in of) / max(1e-9, seconds)


def ratios(
    runs: Sequence[Asked], over: str, name: str = AUTO, tokens: range = range(2, 10**6)
) -> list[float]:
    """The ratios of one server's speed to another's, answer by answer."""
    of = [run for run in runs if over in run.speeds and run.tokens[name] in tokens]
    return [run.speeds[name] / run.speeds[over] for run in of]


def low(found: Sequence[float]) -> str:
    """The lowest tenth of these ratios."""
    return f"{statistics.quantiles(found, n=10)[0]:.3f}" if len(found) > 1 else ""


def table(runs: Sequence[Asked]) -> str:
    """A row for every kind, and the kinds together."""
    lines = [
        "| text | tokens/s | over no draft | no draft over itself | first token later |"
        " llama-server's best | over it |",
        "|" + 7 * "---|",
    ]
    pooled: dict[str, list[float]] = {"copied": [], "other": []}
    for kind in (kind for kind in KINDS if any(run.kind == kind for run in runs)):
        of = [run for run in runs if run.kind == kind]
        later = [run.first[AUTO] / run.first[BASELINE] for run in of]
        scored = [run for run in of if not run.chooses] or of
        its = best(runs, kind) if any(len(run.speeds) > len(OWN) for run in of) else ""
        theirs = ratios(scored, its) if its else []
        pooled["copied" if kind in COPYING else "other"] += theirs
        cells = [f"{rate(runs, kind, AUTO):.1f}", interval(ratios(of, BASELINE))]
        cells += [interval(ratios(of, BASELINE, AGAIN)), interval(later), its, interval(theirs)]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    for name, found in pooled.items() if any(pooled.values()) else ():
        lines.append(f"| {name} | | | | | | {interval(found, geometric=True)} |")
    for name, tokens in (("80 tokens and more", _LONG), ("10 to 40 tokens", _SHORT)):
        both = [low(ratios(runs, BASELINE, arm, tokens)) for arm in (AUTO, AGAIN)]
        lines.append(f"| {name}, lowest tenth | | {both[0]} | {both[1]} | | | |")
    return "\n".join(lines)


def report(runs: Sequence[Asked], given: argparse.Namespace) -> str:
    """The table with a description of the run."""
    drafts = f"draft {given.draft.name} and prompt lookup" if given.draft else "prompt lookup"
    said = (
        f"Target {given.target.name}, {drafts}, temperature {given.temperature:g}, {given.threads}"
        f" threads, answers of at most {given.tokens} tokens, {len(runs)} questions"
    )
    if not own(given):
        said += (
            f", of which the first {given.choosing} (where text is copied) or"
            f" {given.choosing // 2} of each kind choose among llama-server's settings"
        )
    return "\n\n".join((f"{said}.", table(runs), machine())) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="llama-server; without it localspec alone")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="without one, both copy what repeats")
    parser.add_argument("--lengths", default="1,2,3,4", help="of llama-server's draft model")
    parser.add_argument("--copying", type=int, default=32, help="questions of each such kind")
    parser.add_argument("--others", type=int, default=12, help="questions of each other kind")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of text")
    parser.add_argument("--choosing", type=int, default=8, help="of them, elsewhere half as many")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    raw = given.output.with_suffix(".json")
    runs = msgspec.json.decode(raw.read_bytes() if raw.exists() else b"[]", type=list[Asked])
    with Model.load(given.target) as model, opened(given) as servers:
        for run in measure(runs, servers, model, given):
            said = ", ".join(f"{name} {speed:.1f}" for name, speed in sorted(run.speeds.items()))
            print(f"{run.at} {run.kind}: {said} tokens/s", file=sys.stderr, flush=True)
            raw.write_bytes(msgspec.json.encode(runs))
    given.output.write_text(report(runs, given), "utf-8")
    print(given.output.read_text("utf-8"))


if __name__ == "__main__":
    main()
