"""The tools of a chat: servers and calls, which are made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.pairs.disk.folders import config_folder
from localspec.process.messages import ToolsOffered
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.late_import import after_import

if TYPE_CHECKING:
    from localspec.ui.tools.tool_servers import ToolServers


@dataclass(eq=False, repr=False)
class ChatTools:
    """The chat's tools. Nothing of them is imported before the first server is used.

    Attributes:
        soon: calls a function in the screen's thread, from any thread.
        ended: called when a turn ends without the results of its calls.
    """

    turns: TurnController
    soon: Callable[..., None]
    ended: Callable[[], None]
    _servers: ToolServers | None = None

    @property
    def servers(self) -> ToolServers:
        """The MCP servers, made on first use."""
        if self._servers is None:
            from localspec.ui.tools.tool_calls import ToolCalls  # noqa: PLC0415
            from localspec.ui.tools.tool_servers import servers_of  # noqa: PLC0415

            self._servers = servers_of(self.turns, self.soon)
            self.turns.runner = ToolCalls(self._servers, self.turns, self.ended)
        return self._servers

    def loaded(self) -> None:
        """Tell a model that was loaded of the tools; at first, start the servers of the file."""
        if self._servers is not None:
            self._servers.loaded()
        elif _has_servers():
            after_import("localspec.ui.tools.tool_calls", self.soon, self._begin)

    def _begin(self) -> None:
        self.servers.loaded()

    def offered(self, event: ToolsOffered) -> None:
        """Say what the offered tools cost."""
        if self._servers is not None:
            self._servers.offered(event)

    def shut_down(self) -> None:
        """Have all servers end; returns at once."""
        if self._servers is not None:
            self._servers.shut_down()

    def join(self) -> None:
        """Wait for the servers' end, after `shut_down`."""
        if self._servers is not None:
            self._servers.join()


def _has_servers() -> bool:
    """Whether the user has a file of MCP servers."""
    from localspec.tools.server_settings import FILE  # noqa: PLC0415 - after the first frame

    with suppress(LocalspecError):  # there is no home folder
        return (config_folder() / FILE).is_file()
    return False
