"""The calls of tools that an answer ends with: asked for, run, and answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from textual.worker import Worker

from localspec.chat.conversation import Message, Role, tool_result
from localspec.chat.dialects import Call
from localspec.engine.record.stats import FinishReason
from localspec.errors import LocalspecError
from localspec.safe_text import one_line
from localspec.tools.tool_offer import CHANGED, RunnableCall, overdone
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.tools.permission_screen import Consent, PermissionScreen
from localspec.ui.tools.tool_servers import ToolServers


@dataclass(eq=False, repr=False)
class ToolCalls:
    """Runs the calls of answers, each only with the user's consent; lives in the screen's thread.

    Attributes:
        ended: called when a turn ends without results.
    """

    servers: ToolServers
    turns: TurnController
    ended: Callable[[], None]
    _worker: Worker[None] | None = None
    _begun: list[str] = field(default_factory=list)  # the tools that have been run since the answer

    def begin(self, answer: Message) -> bool:
        """Begin to run the calls of an answer; False if it has none."""
        calls = self._calls_of(answer)
        if calls:
            run = self._run(calls)
            self._worker = self.turns.transcript.run_worker(run, group="tools")
        return bool(calls)

    def stop(self) -> None:
        """Stop what has begun."""
        if self._worker is not None:
            self._worker.cancel()

    def _calls_of(self, answer: Message) -> list[Call]:
        info, known = self.turns.engine.info, self.servers.offer.known
        if answer.finish is not FinishReason.STOP or not known or info is None:
            return []
        return info.dialect.calls(answer.content, known)

    async def _run(self, calls: Sequence[Call]) -> None:
        """Answer every call, then have the model go on."""
        results: list[Message] = []
        self._begun = []
        try:
            for call in calls:
                name, arguments = call.texts()
                self._require_progress(name, arguments, results)
                text = await self._answered(name, arguments)
                results.append(tool_result(text, name, arguments))
        except _Stopped:
            self._end()
        except asyncio.CancelledError:
            self._say_begun()
            raise
        except Exception as error:
            self.turns.transcript.say_error(error)
            self._end()
        else:
            self.turns.go_on(results)

    def _end(self) -> None:
        self._say_begun()
        if self.turns.phase is EnginePhase.CALLING:
            self.turns.enter(EnginePhase.READY)
        self.ended()

    def _say_begun(self) -> None:
        """Say what has been run although the model will not know of it."""
        if self._begun and self.turns.transcript.is_running:
            named = ", ".join(one_line(shown, 60) for shown in self._begun)
            self.turns.transcript.say(
                f"begun before the turn ended: {named}", "The model does not know the results."
            )

    def _require_progress(self, name: str, arguments: str, results: Sequence[Message]) -> None:
        """End a turn that only repeats itself.

        Raises:
            LocalspecError: it does.
        """
        since = [*self._since_question(), *results]
        before = [(str(one.more.get("name")), str(one.more.get("arguments"))) for one in since]
        if why := overdone(before, (name, arguments)):
            raise LocalspecError(f"{why}: its turn is ended", "Say what it is to do now.")

    def _since_question(self) -> list[Message]:
        """The results since the last question."""
        found: list[Message] = []
        for message in reversed(self.turns.record.messages()):
            if message.role is Role.USER:
                break
            if message.role is Role.TOOL:
                found.insert(0, message)
        return found

    async def _answered(self, name: str, arguments: str) -> str:
        """The text that answers a call.

        Raises:
            _Stopped: the user ends the turn.
        """
        meaning = self.servers.offer.meaning(name, json.loads(arguments))
        if isinstance(meaning, str):
            return meaning
        refusal = await self._refusal(meaning)
        if refusal:
            return refusal
        if not self.servers.is_current(meaning):
            return CHANGED
        self.turns.status.lasting(
            f"{one_line(meaning.tool.shown, 60)} runs …", hint=EnginePhase.CALLING.hint
        )
        try:
            running = self.servers.call(meaning)
            self._begun.append(meaning.tool.shown)
            done = await asyncio.wrap_future(running)
        except LocalspecError as error:
            return f"Error: {error.message}"
        return f"Error: {done.text}" if done.failed else done.text

    async def _refusal(self, call: RunnableCall) -> str:
        """Why a call must not run, for the model; empty if it may.

        Raises:
            _Stopped: the user ends the turn.
        """
        permissions, tool = self.servers.permissions, call.tool
        settings = self.servers.known[tool.server].settings
        if permissions.allowed(settings, tool):
            return ""
        changes = permissions.changes(settings, tool)
        where = f"{settings.shown}  in {settings.folder}" if settings.folder else settings.shown
        consent = await self._consent(PermissionScreen(call, where, changes))
        if consent is Consent.STOPPED:
            raise _Stopped
        if consent is Consent.NEVER:
            self.servers.switch_tool(tool.server, tool.name, on=False)
            return "The user does not allow this tool: do without it."
        if consent is Consent.REFUSED:
            return "The user refused this call."
        if consent is Consent.ALWAYS and self.servers.is_current(call):
            with suppress(OSError):  # then it is asked for again
                permissions.allow(settings, tool)
        return ""

    async def _consent(self, screen: PermissionScreen) -> Consent:
        """Ask whether a tool may run; the question goes when the engine is lost meanwhile."""
        app = self.turns.transcript.app
        try:
            return await app.push_screen_wait(screen)
        finally:
            while screen in app.screen_stack:  # the help may cover it
                app.pop_screen()


class _Stopped(Exception):
    """The user ends the turn."""
