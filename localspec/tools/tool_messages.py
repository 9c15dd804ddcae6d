"""Messages between the chat and the process of the tools: plain values, a line of JSON each."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_definitions import ToolDefinition


class StartServer(Struct, frozen=True, tag=True):
    """Start a server, or start it anew; `ServerReady` or `ServerGone` answers."""

    name: str
    settings: ServerSettings


class StopServer(Struct, frozen=True, tag=True):
    """End a server; there is no reply."""

    name: str


class CallTool(Struct, frozen=True, tag=True):
    """Run a tool; `CallDone` answers.

    Attributes:
        arguments: a JSON object.
    """

    number: int
    server: str
    tool: str
    arguments: str


class CancelCall(Struct, frozen=True, tag=True):
    """Stop a call; nothing answers."""

    number: int


ToolRequest: TypeAlias = StartServer | StopServer | CallTool | CancelCall


class ServerReady(Struct, frozen=True, tag=True):
    """A server is connected, or offers other tools than before.

    Attributes:
        problems: a sentence for each tool that is left out.
    """

    name: str
    tools: tuple[ToolDefinition, ...]
    problems: tuple[str, ...] = ()


class ServerGone(Struct, frozen=True, tag=True):
    """A server cannot be used.

    Attributes:
        why: to follow its name, without a full stop.
        again: whether it is started once more.
    """

    name: str
    why: str
    again: bool = False


class CallDone(Struct, frozen=True, tag=True):
    """A call is over.

    Attributes:
        text: the result or the error, made safe.
    """

    number: int
    text: str
    failed: bool = False


ToolReply: TypeAlias = ServerReady | ServerGone | CallDone
