"""The MCP servers of a chat: which run, what they offer, and what the model is told of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from localspec import formats
from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk.folders import config_folder, data_folder
from localspec.process.messages import ToolsOffered
from localspec.tools import permissions
from localspec.tools.permissions import Permissions
from localspec.tools.server_settings import FILE, ServerSettings, ServersFile
from localspec.tools.tool_definitions import ToolDefinition
from localspec.tools.tool_messages import CallDone, ServerGone, ServerReady, ToolReply
from localspec.tools.tool_offer import RunnableCall, ToolOffer
from localspec.tools.tool_process import ToolProcess
from localspec.ui.conversation.turn_controller import TurnController

MakeProcess = Callable[[Callable[[ToolReply], object]], ToolProcess]


@dataclass(slots=True)
class KnownServer:
    """A server of the file.

    Attributes:
        tools: those that it offers, also those that are switched off.
        waiting: it is being started.
        trouble: why it cannot be used; empty if it can.
        said: the sentences on tools that are left out: a server may tell its tools every second.
    """

    settings: ServerSettings
    tools: tuple[ToolDefinition, ...] = ()
    waiting: bool = False
    trouble: str = ""
    said: set[str] = field(default_factory=set)

    @property
    def offered(self) -> list[ToolDefinition]:
        """The tools that are not switched off."""
        off = self.settings.disabled_tools
        return [tool for tool in self.tools if tool.name not in off]


@dataclass(eq=False, repr=False)
class ToolServers:
    """Starts servers, and keeps the model told of what they offer; lives in the screen's thread.

    Attributes:
        soon: calls a function in the screen's thread, from any thread.
        offer: the tools of all servers, as the model knows them.
        costs: tokens of each offered tool, about, by `ToolDefinition.shown`.
    """

    file: ServersFile
    permissions: Permissions
    turns: TurnController
    soon: Callable[..., None]
    make_process: MakeProcess = ToolProcess
    known: dict[str, KnownServer] = field(default_factory=dict)
    offer: ToolOffer = field(default_factory=ToolOffer)
    costs: dict[str, int] = field(default_factory=dict)
    _process: ToolProcess | None = None
    _begun: bool = False
    _sentence: str = ""  # on what the tools cost
    _told: str = ""  # the last that was shown

    # Servers

    def loaded(self) -> None:
        """A model is loaded: tell it of the tools; at first, start the file's servers."""
        if not self._begun:
            self._begun = True
            self._begin()
        if self.offer.tools:  # also of servers that were added while it was loaded
            self._send()

    def _begin(self) -> None:
        """Start all servers of the file that are not switched off."""
        try:
            found = self.file.servers()
        except LocalspecError as error:
            self.turns.transcript.say_error(error)
            return
        for problem in self.file.problems:
            self._say(problem)
        for name, settings in found.items():
            if not settings.disabled and name not in self.known:
                try:
                    self.start(name)
                except LocalspecError as error:
                    self.turns.transcript.say_error(error)

    def start(self, name: str) -> None:
        """Start a server, or start it anew; a sentence follows.

        Raises:
            UsageError: the file has no such server, or it cannot be used; or the SDK is missing.
        """
        settings = self.settings(name)
        try:
            expanded = settings.expanded(name, os.environ)
            if self._process is None or not self._process.alive:
                self._process = self.make_process(partial(self.soon, self.hear))
        except LocalspecError as error:
            self.stop(name)  # one that runs by its former settings
            self.known[name] = KnownServer(settings, trouble=error.message)
            raise
        self.known[name] = KnownServer(settings, waiting=True)
        self._process.start(name, expanded)

    def stop(self, name: str) -> None:
        """End a server, and withdraw its tools."""
        if self._process is not None:
            self._process.stop(name)
        if self.known.pop(name, None) is not None:
            self._offer_again()

    def settings(self, name: str) -> ServerSettings:
        """The settings of a server, as the file has them now.

        Raises:
            UsageError: the file has no such server, or cannot be read.
        """
        found = self.file.servers().get(name)
        if found is None:
            raise UsageError(f"there is no server {name}", "/mcp lists them.")
        return found

    def switch_tool(self, server: str, tool: str, *, on: bool) -> None:
        """Offer a tool to the model, or no longer; also of a server that is off or gone at present.

        Raises:
            UsageError: there is no such server or tool, or the file cannot be read or written.
        """
        known = self.known.get(server) or KnownServer(self.settings(server))
        if known.tools and tool not in [one.name for one in known.tools]:
            raise UsageError(f"{server} offers no tool {tool}", "/mcp lists them.")
        off = [one for one in known.settings.disabled_tools if one != tool]
        if not on:
            off.append(tool)
        self.file.switch(server, disabledTools=off)
        known.settings = structs.replace(known.settings, disabled_tools=tuple(off))
        self._offer_again()

    def shut_down(self) -> None:
        """Have all servers end; returns at once."""
        if self._process is not None:
            self._process.shut_down()

    def join(self) -> None:
        """Wait for the servers' end, after `shut_down`."""
        if self._process is not None:
            self._process.join()

    def hear(self, reply: ToolReply) -> None:
        """Take what happened to a server."""
        match reply:
            case ServerReady(name, tools, problems) if name in self.known:
                one = self.known[name]
                one.tools, one.waiting, one.trouble = tools, False, ""
                for problem in problems:
                    if problem not in one.said:
                        one.said.add(problem)
                        self._say(problem)
                self._offer_again()
            case ServerGone(name, why, again) if name in self.known:
                one = self.known[name]
                one.tools, one.waiting, one.trouble = (), again, why
                how = f"/mcp on {shlex.quote(name)} starts it again."
                more = "It is started once more." if again else how
                self._say(f"the server {name} cannot be used: {why}", more)
                self._offer_again()
                self._announce()

    # The model

    def _offer_again(self) -> None:
        """Tell the model what is offered now."""
        tools = [tool for one in self.known.values() for tool in one.offered]
        if tools != list(self.offer.tools.values()):
            self.offer = ToolOffer(tools)
            self._send()

    def _send(self) -> None:
        self.turns.transcript.tools = self.offer.known
        if self.turns.engine.info is not None:
            self.turns.engine.offer(self.offer.described, self.offer.search)

    def offered(self, event: ToolsOffered) -> None:
        """Say what the tools cost."""
        if event.error is not None:
            self.turns.transcript.say_error(event.error.exception())
            return
        costs = event.costs
        if costs is None or len(costs.each) != len(self.offer.tools):  # older than the offer
            return
        names = [tool.shown for tool in self.offer.tools.values()]
        self.costs = dict(zip(names, costs.each, strict=True))
        total, context = formats.count(costs.total), formats.count(costs.context)
        said = f"{formats.counted(len(names), 'tool')}, {total} of {context} tokens"
        if costs.searched:
            said += f" (all would take {formats.count(costs.whole)}: the model searches them)"
        self._sentence = said
        self._announce()

    def _announce(self) -> None:
        """Say what the tools cost, once no server is still starting."""
        waiting = any(one.waiting for one in self.known.values())
        if not waiting and self._sentence != self._told:
            self._told = self._sentence
            self._say(self._sentence)

    # Calls

    def is_current(self, call: RunnableCall) -> bool:
        """Whether a tool is still offered, with the same definition."""
        known = self.known.get(call.tool.server)
        return known is not None and call.tool in known.offered

    def call(self, call: RunnableCall) -> Future[CallDone]:
        """Run a tool that the user has allowed.

        Raises:
            UsageError: its server does not run.
        """
        known = self.known.get(call.tool.server)
        if known is None or self._process is None or not self._process.alive:
            raise UsageError(f"the server {call.tool.server} does not run")
        tool = call.tool
        return self._process.call(tool.server, tool.name, call.arguments, known.settings.timeout)

    def _say(self, text: str, remedy: str = "") -> None:
        self.turns.transcript.say(text, remedy, unasked=True)


def servers_of(turns: TurnController, soon: Callable[..., None]) -> ToolServers:
    """The servers of the user's file; none is started yet.

    Raises:
        LocalspecError: there is no home folder.
    """
    file = ServersFile(config_folder() / FILE)
    return ToolServers(file, Permissions(data_folder() / permissions.FILE), turns, soon)
