"""A program of its own that renders chat templates, so that one that never ends can be ended.

A template comes with a model file and is a program: `{{ 10 ** (10 ** 9) }}` holds Python's lock
for minutes, and no thread can be taken away from it. `localspec.chat.prompt.renderer` starts this
file, speaks with it in lines of JSON, and ends it where it takes too long. It imports nothing of
localspec, so that it is there soon and small.

A request has ``template``, ``bos``, ``eos``, ``messages`` and ``variables``. The reply has one of
``text``, ``refused`` (what the template raised) and ``unusable`` (why nothing can be made with it).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import jinja2
import jinja2.ext
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

resource: Any
try:
    import resource
except ImportError:  # Windows: the parent's clock is the only limit
    resource = None

MEMORY = 192 << 20  # address space, in bytes, beyond what this process has to begin with
CPU_S = 3  # should the parent be gone, or stopped, while a template goes round in circles
LEAST_OUTPUT = 1_000_000  # characters, for a conversation of next to none
TOO_MUCH_MEMORY = {"unusable": "takes too much memory"}
_STATM = Path("/proc/self/statm")


class TooMuchOutput(Exception):
    """The template writes more than any prompt could need."""


class GenerationTag(jinja2.ext.Extension):
    """Hugging Face's ``{% generation %}``, which marks answers for training: its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[Node]:
        """Read up to the closing tag."""
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson``, without the HTML escapes of Jinja's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    """The template, ready to render; a session asks for the same one over and over.

    Jinja is set up as transformers and llama-cpp-python do for chat templates, but a template may
    change the lists that it makes, as llama.cpp lets it: they are this process' own.
    """
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    return environment.from_string(template)


def reply(request: dict[str, Any]) -> dict[str, str]:
    """What a request comes to."""
    template = None
    try:
        template = compiled(request["template"])
        return {"text": rendered(template, request)}
    except MemoryError:
        return TOO_MUCH_MEMORY
    except TooMuchOutput:
        return {"unusable": "writes too much"}
    except Exception as error:
        if template is None:
            return {"unusable": f"cannot be read ({reason(error)})"}
        return {"refused": reason(error)}


def rendered(template: jinja2.Template, request: dict[str, Any]) -> str:
    """The text of a conversation."""
    room = LEAST_OUTPUT + 4 * sum(map(size, request["messages"]))
    parts = []
    variables = {
        **dict.fromkeys(("functions", "function_call", "tools", "tool_choice")),
        "add_generation_prompt": True,
        **request["variables"],
        "messages": request["messages"],
        "bos_token": request["bos"],
        "eos_token": request["eos"],
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    for part in template.generate(variables):
        room -= len(part)
        if room < 0:
            raise TooMuchOutput
        parts.append(part)
    return "".join(parts)


def size(message: dict[str, Any]) -> int:
    """How many characters a message's content has, in parts or not."""
    parts = message["content"]
    if isinstance(parts, list):
        return sum(len(part.get("text", "")) for part in parts)
    return len(parts or "")


def refuse(message: str) -> None:
    """What a template calls for a conversation that it does not take."""
    raise ValueError(message)


def reason(error: Exception) -> str:
    """The error as one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:2000]).split())
    line = line or type(error).__name__
    return line if len(line) <= 200 else line[:199] + "…"


def address_space() -> int | None:
    """What this process has of it, in bytes; None where the system does not say."""
    if resource is None or not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[0]) * int(os.sysconf("SC_PAGE_SIZE"))


def limit(name: str, soft: int) -> None:
    """Set one of the system's limits, as far as it lets us."""
    _, hard = resource.getrlimit(getattr(resource, name))
    bounded = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(getattr(resource, name), (bounded, hard))


def serve(requests: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer request after request, until nobody can ask any more."""
    base = address_space()
    for line in requests:
        if resource is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit("RLIMIT_CPU", int(used.ru_utime + used.ru_stime) + CPU_S)
        if base is not None:  # what a request is read into takes a multiple of its size
            limit("RLIMIT_AS", base + MEMORY + 16 * len(line))
        try:
            answer = json.dumps(reply(json.loads(line)))
        except MemoryError:
            answer = json.dumps(TOO_MUCH_MEMORY)
        replies.write(answer.encode() + b"\n")
        replies.flush()


def main() -> None:
    """Say that this is ready, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in the terminal is the parent's
    if resource is not None:
        limit("RLIMIT_CORE", 0)
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
