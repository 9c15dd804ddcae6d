"""The command ``/mcp``: add, list, remove and switch servers and their tools."""

from __future__ import annotations

import shlex

from localspec import formats
from localspec.errors import UsageError
from localspec.safe_text import one_line, reason
from localspec.tools.server_settings import ServerSettings, added, split
from localspec.ui.tools.tool_servers import ToolServers

_WAYS = "Say /mcp add NAME COMMAND …|URL, list, remove NAME, off NAME [TOOL] or on NAME [TOOL]."
_TAKES = {
    "add": "a name, and a command or URL",
    "remove": "the name of a server",
    "on": "the name of a server, and of one tool at most",
    "off": "the name of a server, and of one tool at most",
}


def mcp(servers: ToolServers, argument: str) -> None:
    """Do what follows ``/mcp``.

    Raises:
        UsageError: there is no such command, or it cannot be done.
    """
    word, _, rest = argument.partition(" ")
    match word, _names(argument, rest):
        case "" | "list", []:
            _list(servers)
        case "add", [_, *_]:
            _add(servers, rest)
        case "remove", [name]:
            if name not in servers.file.names():
                raise UsageError(f"there is no server {name}", "/mcp lists them.")
            servers.stop(name)
            servers.permissions.forget(name)
            servers.file.remove(name)
            _say(servers, f"the server {name} is removed")
        case (("on" | "off"), [name]):
            _switch(servers, name, on=word == "on")
        case (("on" | "off"), [name, tool]):
            servers.switch_tool(name, tool, on=word == "on")
            _say(servers, f"{name}: {tool} is {word}", _unchecked(servers, name))
        case _:
            if word in _TAKES:
                raise UsageError(f"/mcp {word} needs {_TAKES[word]}", _WAYS)
            raise UsageError(f"/mcp cannot do “{one_line(argument, 60)}”", _WAYS)


def _unchecked(servers: ToolServers, name: str) -> str:
    """The sentence on a switched tool of a server whose tools are not known; else empty."""
    known = servers.known.get(name)
    if known is not None and known.tools:
        return ""
    off = servers.settings(name).disabled
    starts = f" The server is off: /mcp on {shlex.quote(name)} starts it." if off else ""
    return f"The name was not checked: the tools of {name} are not known now.{starts}"


def _names(argument: str, rest: str) -> list[str]:
    """The words of `rest`; quotes hold together those of a name with spaces.

    Raises:
        UsageError: a quote has no end.
    """
    try:
        return split(rest)
    except ValueError as error:
        raise UsageError(
            f"/mcp cannot read “{one_line(argument, 60)}”: {reason(error)}", _WAYS
        ) from None


def _add(servers: ToolServers, words: str) -> None:
    name, settings = added(words)
    if name in servers.file.names():
        raise UsageError(f"there is a server {name} already", f"Say /mcp remove {name} first.")
    servers.file.put(name, settings)
    servers.start(name)
    _say(
        servers,
        f"{name} is started: {settings.shown}",
        "You are asked before one of its tools runs.",
    )


def _switch(servers: ToolServers, name: str, *, on: bool) -> None:
    servers.settings(name)
    servers.file.switch(name, disabled=not on)
    if on:
        servers.start(name)
        _say(servers, f"{name} is started")
    else:
        servers.stop(name)
        _say(servers, f"{name} is off")


def _list(servers: ToolServers) -> None:
    lines = [
        line
        for name, settings in servers.file.servers().items()
        for line in _described(servers, name, settings)
    ]
    _say(servers, "\n".join([*lines, *servers.file.problems]) or "there is no server", _WAYS)


def _described(servers: ToolServers, name: str, settings: ServerSettings) -> list[str]:
    """A server's state, and its tools."""
    server = servers.known.get(name)
    if server is None:
        return [f"{name}  off  {one_line(settings.shown, 120)}"]
    tools = formats.counted(len(server.tools), "tool")
    state = server.trouble or ("starting" if server.waiting else tools)
    lines = [f"{name}  {state}  {one_line(server.settings.shown, 120)}"]
    for tool in server.tools:
        parts = [f"  {one_line(tool.name, 60)}"]
        if tool not in server.offered:
            parts.append("off")
        elif (cost := servers.costs.get(tool.shown)) is not None:
            parts.append(f"{formats.count(cost)} tokens")
        if servers.permissions.allowed(server.settings, tool):
            parts.append("always allowed")
        lines.append("  ".join(parts))
    return lines


def _say(servers: ToolServers, text: str, remedy: str = "") -> None:
    servers.turns.transcript.say(text, remedy)
