"""Tools for `localspec run`: those that the command line or the chat has allowed."""

from __future__ import annotations

import json
import os
import queue
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress

from localspec.chat.conversation import Message, tool_result
from localspec.cli.standard_streams import warn
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.pairs.disk.folders import config_folder, data_folder
from localspec.tools import permissions, server_settings
from localspec.tools.permissions import Permissions
from localspec.tools.server_settings import ServersFile
from localspec.tools.tool_definitions import ToolDefinition
from localspec.tools.tool_messages import CallDone, ServerGone, ServerReady, ToolReply
from localspec.tools.tool_offer import CHANGED, RunnableCall, ToolOffer, overdone
from localspec.tools.tool_process import ToolProcess

_STEP_S = 0.1


class AllowedTools:
    """Servers that run until `close`, and those of their tools that may run without asking.

    Args:
        servers: their names in the user's file.
        allowed: the names of tools that may run: a tool's own, or ``SERVER: TOOL``.

    Attributes:
        offer: all tools of these servers, as the model knows them.

    Raises:
        UsageError: there is no server of such a name, or none offers a tool of an allowed one.
        LocalspecError: a server cannot be used, or the SDK is missing.
    """

    def __init__(self, servers: Sequence[str], allowed: Sequence[str]) -> None:
        known = ServersFile(config_folder() / server_settings.FILE).servers()
        missing = next((name for name in servers if name not in known), None)
        if missing is not None:
            there = ", ".join(known) or "none"
            raise UsageError(
                f"there is no MCP server {missing}: there is {there}",
                "/mcp add in the chat adds one.",
            )
        self._settings = {name: known[name] for name in servers}
        self._permissions = Permissions(data_folder() / permissions.FILE)
        self._allowed = frozenset(allowed)
        self._before: list[tuple[str, str]] = []
        self._now: dict[str, tuple[ToolDefinition, ...]] = {}  # what each server offers
        self._replies: queue.SimpleQueue[ToolReply] = queue.SimpleQueue()
        self._process = ToolProcess(self._replies.put)
        try:
            self.offer = ToolOffer(self._started())
            names = {one for tool in self.offer.tools.values() for one in self._names(tool)}
            wrong = next((name for name in allowed if name not in names), None)
            if wrong is not None:
                there = ", ".join(tool.name for tool in self.offer.tools.values())
                raise UsageError(f"no server offers a tool {wrong}", f"There is {there}.")
        except BaseException:
            self.close()
            raise

    def _started(self) -> list[ToolDefinition]:
        """Start the servers, and wait for what they offer."""
        for name, settings in self._settings.items():
            self._process.start(name, settings.expanded(name, os.environ))
        while len(self._now) < len(self._settings):
            match self._reply():
                case ServerGone(name, why, again=False):
                    raise LocalspecError(
                        f"the MCP server {name} cannot be used: {why}", "Check its settings."
                    )
                case ServerReady() as ready:
                    self._hear(ready)
        return [tool for name in self._settings for tool in self._now[name]]

    def _reply(self) -> ToolReply:
        while True:  # in steps: Windows does not interrupt an endless wait
            with suppress(queue.Empty):
                return self._replies.get(timeout=_STEP_S)

    def _hear(self, reply: ToolReply) -> None:
        """Take what happened to a server."""
        match reply:
            case ServerReady(name, tools, problems):
                for problem in problems:
                    warn(problem)
                off = self._settings[name].disabled_tools
                self._now[name] = tuple(tool for tool in tools if tool.name not in off)
            case ServerGone(name):
                self._now[name] = ()

    def results(
        self, calls: Sequence[tuple[str, str]], stopped: Callable[[], bool] = lambda: False
    ) -> list[Message]:
        """The results of calls, given as names and arguments in JSON.

        Args:
            calls: the names and the arguments.
            stopped: whether the user has asked for the end: no tool is then started or waited for.

        Raises:
            LocalspecError: the model only calls tools, again and again.
            Cancelled: it was stopped.
        """
        found = []
        for call in calls:
            if stopped():
                raise Cancelled
            if why := overdone(self._before, call):
                raise LocalspecError(why, "Ask in other words, or another model.")
            self._before.append(call)
            found.append(tool_result(self._answered(*call, stopped), *call))
        return found

    def _answered(self, name: str, arguments: str, stopped: Callable[[], bool]) -> str:
        meaning = self.offer.meaning(name, json.loads(arguments))
        if isinstance(meaning, str):
            return meaning
        if not self._may_run(meaning.tool):
            name = shlex.quote(self._names(meaning.tool)[0])
            warn(f"{meaning.tool.shown} was not run: --allow-tool {name} allows it")
            return "This tool is not allowed: do without it."
        while not self._replies.empty():
            self._hear(self._replies.get())
        if meaning.tool not in self._now[meaning.tool.server]:
            warn(f"{meaning.tool.shown} was not run: its server has changed it, or is gone")
            return CHANGED
        done = self._run(meaning, stopped)
        return f"Error: {done.text}" if done.failed else done.text

    def _may_run(self, tool: ToolDefinition) -> bool:
        if not self._allowed.isdisjoint(self._names(tool)):
            return True
        return self._permissions.allowed(self._settings[tool.server], tool)

    def _names(self, tool: ToolDefinition) -> tuple[str, ...]:
        """The names that allow a tool; its own does not if it looks like one of a given server."""
        posed = any(tool.name.startswith(f"{server}: ") for server in self._settings)
        return (tool.shown,) if posed else (tool.name, tool.shown)

    def _run(self, call: RunnableCall, stopped: Callable[[], bool]) -> CallDone:
        tool = call.tool
        within = self._settings[tool.server].timeout
        done = self._process.call(tool.server, tool.name, call.arguments, within)
        while not wait([done], _STEP_S).done:  # in steps, for the same reason
            if stopped():
                done.cancel()
                raise Cancelled
        return done.result()

    def close(self) -> None:
        """End the servers."""
        self._process.shut_down()
        self._process.join()
