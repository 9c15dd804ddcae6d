"""Which tools may run without being asked for: each yes is bound to what the user saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from localspec import private
from localspec.errors import UsageError
from localspec.safe_text import reason
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_definitions import ToolDefinition, difference

FILE = "tool_permissions.json"
_IN = " in "


class GrantedTool(Struct, frozen=True):
    """A tool that may always run.

    Attributes:
        server: the identity of its server's settings when it was allowed.
        tool: the identity of its definition then.
    """

    server: dict[str, Any]
    tool: dict[str, Any]


_Granted: TypeAlias = dict[str, GrantedTool]


class Permissions:
    """The tools that may always run, in a file that only the user may read.

    A yes holds for one server with one command in one folder, and for one definition of the tool:
    its name, title, description, schemas and annotations. Where any of these has changed, there is
    no yes.

    Args:
        path: the file; a damaged one counts as empty, and is put aside by the next change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def allowed(self, settings: ServerSettings, tool: ToolDefinition) -> bool:
        """Whether the tool may run without being asked for."""
        before = self._read().get(_key(settings, tool))
        return before is not None and not _changes(before, _now(settings, tool))

    def changes(self, settings: ServerSettings, tool: ToolDefinition) -> str:
        """What has changed since the tool was allowed, line by line; empty if it never was."""
        known, now = self._read(), _now(settings, tool)
        names = (tool.shown, f"{tool.shown}{_IN}")
        elsewhere = (
            one for key, one in known.items() if key == names[0] or key.startswith(names[1])
        )
        before = known.get(_key(settings, tool), next(elsewhere, None))
        return "" if before is None else _changes(before, now)

    def allow(self, settings: ServerSettings, tool: ToolDefinition) -> None:
        """Let the tool run from now on.

        Raises:
            OSError: the file cannot be read or written.
        """
        known = private.read_to_change(self._path, _Granted) or {}
        private.write_json(self._path, known | {_key(settings, tool): _now(settings, tool)})

    def forget(self, server: str) -> None:
        """Withdraw every yes for the tools of a server.

        Raises:
            UsageError: the file cannot be read or written.
        """
        its = f"{server}: "
        try:
            known = private.read_to_change(self._path, _Granted) or {}
            kept = {shown: one for shown, one in known.items() if not shown.startswith(its)}
            if kept != known:
                private.write_json(self._path, kept)
        except OSError as error:
            raise UsageError(
                f"{self._path} cannot be changed: {reason(error)}", "Check its permissions."
            ) from None

    def _read(self) -> dict[str, GrantedTool]:
        return private.read_json(self._path, _Granted) or {}


def _changes(before: GrantedTool, now: GrantedTool) -> str:
    """What the user has not seen; the yes holds if this is empty."""
    found = (difference(before.server, now.server), difference(before.tool, now.tool))
    return "\n".join(part for part in found if part)


def _key(settings: ServerSettings, tool: ToolDefinition) -> str:
    """The tool, and the folder of its server: elsewhere a path such as ``.`` is another one."""
    return f"{tool.shown}{_IN}{settings.folder}" if settings.folder else tool.shown


def _now(settings: ServerSettings, tool: ToolDefinition) -> GrantedTool:
    return GrantedTool(settings.identity(), tool.identity())
