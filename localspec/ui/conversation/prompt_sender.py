"""Decides what an entered text is: a command, a question, or a message that waits its turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from localspec import formats
from localspec.errors import LocalspecError
from localspec.ui.commands import command_table
from localspec.ui.commands.command import message_text, parse
from localspec.ui.commands.command_context import CommandContext
from localspec.ui.commands.command_table import COMMANDS
from localspec.ui.conversation.engine_phase import GONE, PASSING, EnginePhase
from localspec.ui.input import extracts
from localspec.ui.transcript.items import PROMPTS


@dataclass(eq=False, repr=False)
class PromptSender:
    """Sends an entered text, or keeps it until it may be sent.

    Attributes:
        waiting: messages for when the models are loaded, the conversation is open, and the last
            answer or change has ended.
    """

    app: CommandContext
    waiting: list[str] = field(default_factory=list)
    _doubted: str = ""  # a message that names a missing file
    _tried: int = 0  # prompts to try that were taken

    def enter(self, text: str, command: bool) -> bool:
        """Take an entered text, once the input is empty, if it may be sent now.

        If the models are gone it stays in the input; they are loaded, and it is entered again.

        Args:
            text: all of it.
            command: whether its last line was begun as a command.
        """
        before, entered = command_table.split(text, begun=command)
        if self._needs_models(entered):
            self.app.pair_loader.reload(partial(self._enter_again, text))
            return False
        accepted = self._accepts(entered)
        if accepted:
            self.app.status.settle()  # what it says is about the input before
            self.app.soon(self._send, entered, before)
        elif text:
            self.app.turns.refuse()
        return accepted

    @property
    def queue(self) -> str:
        """How many messages wait, for the end of a line; empty if none does."""
        return f"  {formats.counted(len(self.waiting), 'message')} waiting" if self.waiting else ""

    def answered(self) -> None:
        """Send the next waiting message once the engine is idle and the conversation is there."""
        ready = self.app.turns.phase is EnginePhase.READY and self.app.library.restored
        if self.waiting and ready:
            self._ask(self.waiting.pop(0))
            self.keep()

    def begin(self, there: bool) -> None:
        """Send what was entered while the last run's conversation was looked for.

        Args:
            there: whether it is open now; if not, the messages come back into the input.
        """
        if not there:
            self.give_back()
        if self.waiting or self.app.prompt.text:
            self.keep()
        self.answered()

    def give_back(self) -> None:
        """Put the messages that wait into the input again."""
        if self.waiting:
            self.app.prompt.put_back("\n".join(self.waiting))
            self.waiting.clear()

    def keep(self) -> None:
        """Store the waiting messages and the input, with which the next start begins."""
        self.app.library.draft("\n".join(filter(None, [*self.waiting, self.app.prompt.text])))

    def _needs_models(self, text: str) -> bool:
        """Whether the models are gone and have to be loaded first; also for an empty Enter."""
        phase, slash = self.app.turns.phase, parse(text, COMMANDS)
        return phase in GONE and (slash is None or not command_table.may_run(*slash, phase))

    def _accepts(self, text: str) -> bool:
        """Whether `text` may be sent or wait; an empty Enter takes a prompt to try at first."""
        turns = self.app.turns
        if (slash := parse(text, COMMANDS)) is not None:
            return command_table.may_run(*slash, turns.phase)
        takes = turns.phase is EnginePhase.READY or turns.phase in PASSING
        if not text and turns.phase is EnginePhase.READY:
            return not turns.record.messages()
        return bool(text) and takes

    def _send(self, text: str, before: str) -> None:
        """Carry out an entered text; `before` stays in the input."""
        prompt, turns = self.app.prompt, self.app.turns
        if before:
            prompt.keep(before)
        if (slash := parse(text, COMMANDS)) is not None:
            command_table.run(self.app, *slash)
        elif not text:
            if self._accepts(text):  # not after a first question, whose Enter came twice
                prompt.give_back(PROMPTS[self._tried % len(PROMPTS)])
                self._tried += 1
        elif text != self._doubted and (missing := extracts.missing(text)):
            self._doubted = text
            self.app.status.flash(f"there is no file {missing}: Enter sends the word as it is")
            prompt.put_back(text)
        elif turns.phase in PASSING or not self.app.library.restored:
            self.waiting.append(text)
            self.keep()
            self.app.show_phase()
        else:
            self._ask(text)

    def _enter_again(self, text: str) -> None:
        """Enter what was entered before the models came back, unless it was changed meanwhile."""
        if text and self.app.prompt.entered == text:
            self.app.prompt.submit()

    def _ask(self, text: str) -> None:
        """Send a message, or put it back into the input if it cannot be sent."""
        try:
            question = extracts.expand(message_text(text, COMMANDS))
        except LocalspecError as error:
            self.app.transcript.say_error(error)
        else:
            if self.app.turns.reserve():
                self.app.library.sent()
                self.app.turns.ask(question)
                return
        self.give_back()
        self.app.prompt.put_back(text)
