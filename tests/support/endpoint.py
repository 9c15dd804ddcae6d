"""`localspec serve` in a separate process, and what its clients send."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import psutil

START_S = 90.0
SAID = re.compile(rb"http://([0-9a-f.:\[\]]+):(\d+)/v1")


class Serving:
    """A server with the toy pair or another one, on a free port.

    Attributes:
        process: of the endpoint; the engine's is its child.
        port: where it listens.
    """

    def __init__(
        self, *options: str, pair: str = "toy", program: tuple[str, ...] = ("-m", "localspec")
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        words = ["serve", pair, "-t", "1", "-c", "1024", "--port", "0", *options]
        self.process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self.port = self._wait_until_ready()

    def _wait_until_ready(self) -> int:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            found = SAID.search(self.log())
            if found:
                return int(found[2])
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        said = self.log()
        self.close()
        raise AssertionError(f"the server did not start: {said!r}")

    def log(self) -> bytes:
        """All that it has written."""
        self._log.seek(0)
        return self._log.read()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def engine(self) -> psutil.Process:
        """The process that runs the models."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if "localspec.process" in child.cmdline():
                    return child
        raise AssertionError("there is no engine")

    def resident(self) -> int:
        """Bytes that both processes take."""
        both = (psutil.Process(self.process.pid), self.engine())
        return sum(one.memory_info().rss for one in both)

    def ask(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the reply; a `body` other than bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, given)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()

    def chat(self, text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
        """An answer at temperature 0, whole."""
        messages = fields.pop("messages", [{"role": "user", "content": text}])
        body = {"messages": messages, "temperature": 0, "max_tokens": 16, **fields}
        status, _, found = self.ask("/v1/chat/completions", body)
        assert status == 200, found
        document: dict[str, Any] = json.loads(found)
        return document

    def metric(self, name: str) -> float:
        """A sum over the labels of one of `/metrics`."""
        lines = self.ask("/metrics")[2].decode().splitlines()
        found = [line.split() for line in lines if line.startswith(f"localspec:{name}")]
        return sum(float(value) for _, value in found)

    def until_free(self, within: float) -> float:
        """Wait until nothing runs and nothing waits; how long that took."""
        begun = time.monotonic()
        while self.metric("requests_processing") or self.metric("requests_deferred"):
            assert time.monotonic() - begun < within, "the engine still works"
        return time.monotonic() - begun

    def raw(self, data: bytes, wait: float = 10.0) -> bytes:
        """What comes back for these bytes, until the server closes or `wait` seconds are over."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as sock:
            with suppress(OSError):
                sock.sendall(data)
            found = b""
            with suppress(OSError):
                while part := sock.recv(65536):
                    found += part
                    if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                        break
            return found

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def streaming(body: dict[str, Any]) -> bytes:
    """The bytes of a request for a stream."""
    data = json.dumps({"stream": True, **body}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    ) + data


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The documents of a stream of server-sent events."""
    lines = [line for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]


def in_parallel(jobs: Sequence[Any]) -> None:
    """Run functions in threads, and raise what one of them raises."""
    failed: list[BaseException] = []

    def run(job: Any) -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# Requests that no server should choke on.

ADDRESSES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses", "/infill", "/v1/models", "/v1/embeddings"),
)

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1.5, 1e308, "", "x", "\0", "\ud800", "é" * 300),
    *([], {}, [[]], [{}], {"type": "x"}, [1, "a"], ["a"] * 40, {"a": {"b": {}}}, "<|im_end|>"),
)
FIELDS = (
    *("model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p"),
    *("top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "seed", "stop", "n", "grammar", "gamma", "accept"),
    *("draft", "max_completion_tokens", "response_format", "tools", "tool_choice", "logprobs"),
    *("top_logprobs", "chat_template_kwargs", "prompt", "parallel_tool_calls", "suffix", "echo"),
    *("system", "stop_sequences", "thinking", "output_config", "output_format", "input", "text"),
    *("instructions", "reasoning", "max_output_tokens", "previous_response_id", "conversation"),
    *("input_prefix", "input_suffix", "input_extra", "n_predict", "n_indent", "response_fields"),
    *("t_max_predict_ms", "n_cmpl", "cache_prompt", "reasoning_budget"),
)
BLOCKS = ("text", "tool_result", "document", "search_result", "thinking", "mid_conv_system", "x")
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "custom_tool_call", "x")
SCHEMAS: tuple[Any, ...] = (
    {"type": "nonsense"},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
    {"$ref": "#/nowhere"},
    {"$ref": "#"},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "maxLength": 10**12},
    {"anyOf": []},
    {"not": {}},
    {"enum": []},
    {"properties": 3},
)


def malformed(rng: random.Random) -> bytes:
    """The bytes of a request that is wrong somewhere, or of none."""
    kind = rng.randrange(12)
    path = rng.choice(ADDRESSES)
    host = b"localhost"
    headers = b""
    if kind == 0:  # no HTTP at all
        return rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n"
    if kind == 1:  # headers without end
        headers = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 100) for i in range(rng.randrange(2000)))
    if kind == 2:
        host = rng.choice(
            [b"evil.example", b"", b"localhost.evil.example", b"\xff", b"[::1", b"a" * 9000]
        )
    if kind == 3:
        headers = rng.choice(
            [b"Origin: http://evil.example\r\n", b"Sec-Fetch-Site: cross-site\r\n"]
        )
    body = _body(rng, kind)
    method = rng.choice([b"POST"] * 8 + [b"GET", b"PUT", b"BREW", b"OPTIONS"])
    length = b"Content-Length: %d\r\n" % len(body)
    if kind == 4:
        lengths = (b"Content-Length: -1", b"Content-Length: " + b"9" * 20, b"Content-Length: x")
        length = rng.choice((*lengths, b"Transfer-Encoding: chunked")) + b"\r\n"
        body += b"\r\n\r\n"  # no length of a chunk
    return (
        method + b" " + path.encode() + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + headers + length
        + b"Connection: close\r\n\r\n" + body
    )  # fmt: skip


def _drawn(rng: random.Random, *fields: str) -> dict[str, Any]:
    return {field: rng.choice(VALUES) for field in fields}


def _body(rng: random.Random, kind: int) -> bytes:
    if kind == 5:
        return rng.randbytes(rng.randrange(300))
    if kind == 6:
        depth = rng.choice([10, 100, 1000, 100_000])
        return rng.choice([b"[", b'{"a":', b'{"messages":[']) * depth
    if kind == 7:
        return b'{"messages": "' + b"a" * rng.choice([1000, 1_000_000, 9_000_000]) + b'"}'
    said = [{"role": "user", "content": "hi"}]
    request: dict[str, Any] = {
        **dict.fromkeys(("messages", "input"), said),
        **dict.fromkeys(("prompt", "input_prefix", "input_suffix"), "hi"),
        **dict.fromkeys(("max_tokens", "max_output_tokens"), rng.randrange(3)),
    }
    if kind == 8:
        request["response_format"] = {
            "type": "json_schema",
            "json_schema": {"schema": rng.choice(SCHEMAS)},
        }
    elif kind == 9:
        request["messages"] = request["input"] = rng.choice(
            [[{"role": rng.choice(VALUES), "content": rng.choice(VALUES)}], rng.choice(VALUES),
             [{"role": "tool"}], [{"role": "user", "content": [rng.choice(VALUES)]}],
             [{"type": rng.choice(ITEMS), **_drawn(rng, "output", "name", "arguments")}],
             [{"role": "user", "content": [{"type": rng.choice(BLOCKS),
                                            **_drawn(rng, "text", "content")}]}]]
        )  # fmt: skip
    else:
        for _ in range(rng.randrange(1, 3)):
            request[rng.choice(FIELDS)] = rng.choice(VALUES)
    data = json.dumps(request).encode()
    return data if rng.random() < 0.9 else data[: rng.randrange(len(data))]
