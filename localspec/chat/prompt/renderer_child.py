"""Renders chat templates in a separate program, which can be killed if a template never ends.

A template comes with a model file and is a program: `{{ 10 ** (10 ** 9) }}` holds Python's lock for
minutes, and a thread cannot be killed. `localspec.chat.prompt.renderer` starts this file, exchanges
lines of JSON with it, and kills it if it takes too long. It imports nothing of localspec, so that
it starts quickly and stays small.

A request has ``template``, ``bos``, ``eos``, ``messages`` and ``variables``. The reply has one of
``text``, ``refused`` (the error that the template raised) and ``unusable`` (why the template cannot
be used).
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

MEMORY = 192 << 20  # bytes of address space beyond those at the start
CPU_S = 3  # ends an endless template if the parent is gone or stopped
LEAST_OUTPUT = 1_000_000  # characters, even for a conversation of almost none
FIREFUNCTION = "functools["  # the mark of calls in the templates of Firefunction
TOO_MUCH_MEMORY = {"unusable": "takes too much memory"}
_STATM = Path("/proc/self/statm")


class TooMuchOutput(Exception):
    """The template writes more than any prompt needs."""


class GenerationTag(jinja2.ext.Extension):
    """Hugging Face's ``{% generation %}``, which marks answers for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[Node]:
        """Parse up to the closing tag."""
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
    """The compiled template, cached because a session renders the same one repeatedly.

    Jinja is set up as in transformers and llama-cpp-python, except that a template may change the
    lists it makes, as in llama.cpp: they belong to this process.
    """
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    return environment.from_string(template)


def reply(request: dict[str, Any]) -> dict[str, str]:
    """The reply to a request."""
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
        **described(request),
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


def described(request: dict[str, Any]) -> dict[str, str]:
    """The tools and the date as text, which Firefunction's templates require under these names."""
    if FIREFUNCTION not in request["template"]:
        return {}
    tools = request["variables"].get("tools") or []
    date = datetime.now().strftime("%B %d %Y")
    return {"functions": json.dumps(tools, indent=4, ensure_ascii=False), "datetime": date}


def size(message: dict[str, Any]) -> int:
    """Characters in a message's content, which may be a list of parts."""
    parts = message["content"]
    if isinstance(parts, list):
        return sum(len(part.get("text", "")) for part in parts)
    return len(parts or "")


def refuse(message: str) -> None:
    """The function with which a template rejects a conversation."""
    raise ValueError(message)


def reason(error: Exception) -> str:
    """The error as one short line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:2000]).split())
    line = line or type(error).__name__
    return line if len(line) <= 200 else line[:199] + "…"


def address_space() -> int | None:
    """This process's address space in bytes; None if the system does not tell."""
    if resource is None or not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[0]) * int(os.sysconf("SC_PAGE_SIZE"))


def limit(name: str, soft: int) -> None:
    """Set a limit of the system, if it allows that."""
    _, hard = resource.getrlimit(getattr(resource, name))
    bounded = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(getattr(resource, name), (bounded, hard))


def serve(requests: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer requests until the input ends."""
    base = address_space()
    for line in requests:
        if resource is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit("RLIMIT_CPU", int(used.ru_utime + used.ru_stime) + CPU_S)
        if base is not None:  # parsing a request takes a multiple of its size
            limit("RLIMIT_AS", base + MEMORY + 16 * len(line))
        try:
            answer = json.dumps(reply(json.loads(line)))
        except MemoryError:
            answer = json.dumps(TOO_MUCH_MEMORY)
        replies.write(answer.encode() + b"\n")
        replies.flush()


def main() -> None:
    """Announce the id of this process, which is ready, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl+C
    if resource is not None:
        limit("RLIMIT_CORE", 0)
    sys.stdout.buffer.write(b"%d\n" % os.getpid())
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
