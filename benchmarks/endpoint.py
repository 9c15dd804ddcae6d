"""`localspec serve` under many requests, beside `localspec run`, and when its engine dies.

    python -m benchmarks.endpoint ratio [--count 24] [--threads 1]  a stream beside run
    python -m benchmarks.endpoint versus --binary llama-server [--count 16] [--threads 1]
    python -m benchmarks.endpoint stored [--count 5]        a stored conversation, beside reading it
    python -m benchmarks.endpoint requests [--count 1000]   four clients, a fifth of them gives up
    python -m benchmarks.endpoint malformed [--count 5000]  requests of any shape
    python -m benchmarks.endpoint kills [--count 50]        the engine is killed during a stream

`ratio` lets a stream and a run take turns over the same prompts, greedy, with the same fixed draft
length, threads and context; every prompt is new to the server. Reported are medians with 95 %
intervals of 10,000 resamples. `versus` lets streams of this server, with the automatic draft
length, and of llama.cpp's, with each fixed one, take turns over the same prompts at each
temperature; its best length is chosen on the other half of the prompts than it is scored on. Build
it of llama-cpp-python's own source (cmake --build build --target llama-server). Takes about six
seconds a pair, 25 a prompt against llama-server, a fifth of a second a request, a twentieth a
malformed one, three seconds a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from localspec.chat.session import Session
from localspec.chat.states import STATES, forget
from localspec.engine.cancel import Cancel
from localspec.engine.llama import repacking_works
from localspec.loading.load import open_session
from localspec.loading.request import LoadRequest
from localspec.pairs import demo
from tests.support.endpoint import Serving, chunks, in_parallel, malformed, streaming

THINGS = ("dog", "cat", "bird", "boy", "girl", "tree", "boat", "ball")
TOKENS = 200
LENGTHS = ("0", "1", "2", "4", "8")  # of llama-server's drafts
NO_END = {"2": -100}
CLIENTS = 4
SPEED, FIRST_S = 0.97, 0.005  # the aims


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> str:
    """`of` the values, with the interval that holds 95 % of resamples."""
    rng = random.Random(0)
    found = sorted(of(rng.choices(values, k=len(values))) for _ in range(10_000))
    return f"{of(values):.4f} ({found[250]:.4f} to {found[9750]:.4f})"


def streamed(port: int, prompt: str, **fields: object) -> tuple[float, float, str]:
    """Tokens a second after the first text, seconds until that, and the text: a client's view."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "max_tokens": TOKENS, "stream_options": {"include_usage": True}, **fields}  # fmt: skip
    data, times = b"", []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        begun = time.perf_counter()
        sock.sendall(streaming(body))
        while b"data: [DONE]" not in data:
            data += sock.recv(1 << 16)
            if b'"content":"' in data.replace(b'"content":""', b""):
                times.append(time.perf_counter())
    found = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    deltas = (one["choices"][0]["delta"] for one in found if one["choices"])
    text = "".join(delta.get("content") or "" for delta in deltas)
    tokens = found[-1]["usage"]["completion_tokens"]
    return (tokens - 1) / (times[-1] - times[0]), times[0] - begun, text


def run(threads: str, prompt: str) -> tuple[float, float, str]:
    """The same of `localspec run`, as it tells it."""
    words = ["run", "demo", "-t", threads, "-c", "1024", "-p", prompt, "--temp", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "localspec", *words, "-n", str(TOKENS), "--gamma", "3", "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    told = json.loads(done.stdout)
    return told["tokens_per_second"], told["time_to_first_token_s"], told["text"]


def ratio(pairs: int, threads: str) -> None:
    rng, speeds, firsts, same = random.Random(1), [], [], 0
    with Serving("--gamma", "3", "-t", threads) as served:
        for i in range(pairs):
            prompt = f"Story {i}: tell me about a {rng.choice(THINGS)} and a {rng.choice(THINGS)}."
            arms = {"stream": partial(streamed, served.port), "run": partial(run, threads)}
            found = {name: arms[name](prompt) for name in rng.sample(sorted(arms), 2)}
            speeds.append(found["stream"][0] / found["run"][0])
            firsts.append(found["stream"][1] - found["run"][1])
            same += found["stream"][2] == found["run"][2]
    print(f"tokens/s, stream over run: {interval(speeds, statistics.median)}, aim {SPEED}")
    print(f"first byte later by, s: {interval(firsts, statistics.median)}, aim {FIRST_S}")
    print(f"same text: {same} of {pairs}")


@contextmanager
def llama_server(
    binary: Path, target: Path, threads: str, drafting: Sequence[str]
) -> Iterator[int]:
    """llama.cpp's server with a model and what else its command line says; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [
        *(str(binary), "-m", str(target), "-t", threads, "-c", "1024", "-np", "1"),
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


def versus(binary: Path, count: int, threads: str) -> None:
    rng, chain = random.Random(1), {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
    with Serving("-t", threads) as served, ExitStack() as stack:
        target, draft = (model.paths[0] for model in demo.pair().models)
        ports = {"auto": served.port}
        for n in LENGTHS:
            drafting = ("-md", str(draft), "--spec-type", "draft-simple", "-td", threads)
            words = (*drafting, "--spec-draft-n-max", n) if n != "0" else ()
            ports[n] = stack.enter_context(llama_server(binary, target, threads, words))
        for temperature, aim in ((0.0, 1.0), (0.8, 1.1)):
            runs: list[dict[str, float]] = []
            fields = {**chain, "temperature": temperature, "max_tokens": 128, "logit_bias": NO_END}
            for i in range(count):
                prompt = f"Story {i}: tell me about a {rng.choice(THINGS)}, a {rng.choice(THINGS)}."
                order = rng.sample(sorted(ports), len(ports))
                runs.append({n: streamed(ports[n], prompt, **fields)[0] for n in order})
            ratios = []
            for half, other in ((runs[::2], runs[1::2]), (runs[1::2], runs[::2])):
                best = max(LENGTHS, key=lambda n: statistics.median(run[n] for run in other))
                ratios += [run["auto"] / run[best] for run in half]
            told = ", ".join(
                f"{n}: {statistics.median(run[n] for run in runs):.1f}" for n in ("auto", *LENGTHS)
            )
            print(f"temperature {temperature}: over llama-server's best length"
                  f" {interval(ratios, statistics.median)}, aim {aim}; tokens/s by length: {told}",
                  flush=True)  # fmt: skip


def stored(count: int) -> None:
    """Go on with a conversation of 1,000 tokens in new sessions, with its file and without."""
    text = "Tell me a story of a dog and a cat in the wood. " * 78
    with TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_DATA"] = folder
        first, known = session(), Cancel()
        first.enter("c1")
        list(first.turn(text, known))
        said, held = list(first.messages), len(first.pair.target.tokens)
        first.close()
        ratios = []
        for _ in range(count):
            took = {}
            for name in ("c1", "none"):
                other = session()
                other.enter(name)
                other.open(said)
                *_, end = other.turn("Go on.", known)
                stats = end.stats  # type: ignore[union-attr]
                took[name] = stats.prefill_s
                read = f"{stats.prefill_decoded} and {stats.draft_prefill} read"
                print(f"{held} tokens, {name}: {stats.prefill_s:.3f} s, {read}", flush=True)
                other.enter("")
                other.close()
                forget(Path(folder) / STATES, "none")
            ratios.append(took["c1"] / took["none"])
    print(f"with the file over without: {interval(ratios, statistics.median)}, aim 0.1")


def session() -> Session:
    request = LoadRequest(pair="demo", ctx_size=2048, threads=1, gamma=3, temp=0.0, n_predict=8)
    return open_session(request, lambda *_: None, Cancel())


def requests(count: int) -> None:
    with Serving("--queue", "8") as served:
        alone = {thing: told(served, thing, 24) for thing in THINGS}
        sizes = [served.resident()]
        for part in range(10):
            jobs = [partial(ask, served, alone, 10 * part + i, count // 10 // CLIENTS)
                    for i in range(CLIENTS)]  # fmt: skip
            in_parallel(jobs)
            served.until_free(10)
            sizes.append(served.resident())
            print(f"{(part + 1) * count // 10} requests, {sizes[-1] / 1e6:.1f} MB", flush=True)
    grown = sizes[-1] / sizes[len(sizes) // 2] - 1
    print(f"no wrong answer, none lost; memory over the second half: {100 * grown:+.1f} %")


def told(served: Serving, thing: str, tokens: int) -> str:
    found = served.chat(f"Tell me a story about a {thing}.", max_tokens=tokens)
    text: str = found["choices"][0]["message"]["content"]
    return text


def ask(served: Serving, alone: dict[str, str], seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        thing, kind = rng.choice(THINGS), rng.random()
        if kind < 0.2:
            with socket.create_connection(("127.0.0.1", served.port)) as sock:
                question = {"role": "user", "content": f"Tell me a story about a {thing}."}
                sock.sendall(streaming({"messages": [question]}))
                time.sleep(rng.random() / 10)
        elif kind < 0.3:
            served.raw(malformed(rng))
        else:
            text = told(served, thing, rng.randrange(1, 24))
            if not alone[thing].startswith(text):
                raise SystemExit(f"a wrong answer: {text!r} in place of {alone[thing]!r}")


def malformed_ones(count: int) -> None:
    rng, slowest = random.Random(2), 0.0
    with Serving() as served:
        before = served.resident()
        for i in range(count):
            data = malformed(rng)
            begun = time.monotonic()
            reply = served.raw(data)
            slowest = max(slowest, time.monotonic() - begun)
            if b" 500 " in reply[:20]:
                raise SystemExit(f"a fault of the server: {data[:1000]!r}")
            if i == count // 2:
                before = served.resident()
        served.until_free(10)
        grown = served.resident() / before - 1
        told(served, "dog", 4)
    print(f"{count} malformed requests: no 500; the slowest took {slowest:.1f} s;"
          f" memory over the second half: {100 * grown:+.1f} %")  # fmt: skip


def kills(count: int) -> None:
    rng = random.Random(3)
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 900,
            "logit_bias": {"2": -100}}  # fmt: skip
    with Serving() as served:
        right = told(served, "dog", 24)
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", served.port), timeout=60) as sock:
                sock.sendall(streaming(body))
                data = sock.recv(1 << 16)
                time.sleep(rng.random())
                served.engine().kill()
                while not data.endswith(b"0\r\n\r\n"):
                    data += sock.recv(1 << 16)
            if chunks(data)[-1].get("error", {}).get("code") != "unavailable":
                raise SystemExit(f"no error event: {data[-500:]!r}")
            if told(served, "dog", 24) != right:
                raise SystemExit("the answer after a kill is another one")
    print(f"{count} kills in the middle of a stream: each was told, each next request succeeded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = {
        "stored": (stored, 5),
        "requests": (requests, 1000),
        "malformed": (malformed_ones, 5000),
        "kills": (kills, 50),
    }
    parts = parser.add_subparsers(dest="what", required=True)
    pairs = parts.add_parser("ratio")
    pairs.add_argument("--count", type=int, default=24)
    pairs.add_argument("--threads", default="1")
    for name, (_, usual) in ways.items():
        parts.add_parser(name).add_argument("--count", type=int, default=usual)
    beside = parts.add_parser("versus")
    beside.add_argument("--binary", type=Path, required=True)
    beside.add_argument("--count", type=int, default=16)
    beside.add_argument("--threads", default="1")
    given = parser.parse_args()
    if given.what == "versus":
        versus(given.binary, given.count, given.threads)
    elif given.what == "ratio":
        ratio(given.count, given.threads)
    else:
        ways[given.what][0](given.count)


if __name__ == "__main__":
    main()
