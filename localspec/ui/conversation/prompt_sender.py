"""Decides what an entered text is: a command, a question, or a message that waits its turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.errors import LocalspecError
from localspec.ui.commands import command_table
from localspec.ui.conversation.conversation_library import ConversationLibrary
from localspec.ui.conversation.engine_state import EnginePhase, EngineState
from localspec.ui.conversation.turn_controller import TurnController
from localspec.ui.input import extracts
from localspec.ui.input.prompt_area import PromptArea
from localspec.ui.pairs.pair_loader import PairLoader
from localspec.ui.transcript.items import PROMPTS
from localspec.ui.transcript.transcript import Transcript


@dataclass(eq=False, repr=False)
class PromptSender:
    """Sends an entered text, or keeps it until the running answer has ended.

    Attributes:
        engine_state, turns, library, pair_loader, transcript, prompt: the app's.
        run: runs a command, by its name and argument.
        soon: calls a function in the screen's thread after all pending keys and messages.
        changed: called when another message waits.
        waiting: messages for when the running answer has ended.
    """

    engine_state: EngineState
    turns: TurnController
    library: ConversationLibrary
    pair_loader: PairLoader
    transcript: Transcript
    prompt: PromptArea
    run: Callable[[str, str], None]
    soon: Callable[..., None]
    changed: Callable[[], None]
    waiting: list[str] = field(default_factory=list)
    _doubted: str = ""  # a message that names a missing file
    _tried: int = 0  # prompts to try that were taken

    def enter(self, text: str, command: bool) -> bool:
        """Take an entered text, once the input is empty, if it may be sent now.

        Args:
            text: all of it.
            command: whether its last line was begun as a command.
        """
        before, entered = command_table.split(text, begun=command)
        accepted = self._accepts(entered)
        if accepted:
            self.soon(self._send, entered, before)
        elif text:
            self.engine_state.refuse()
        return accepted

    def answered(self, *, go_on: bool = True) -> None:
        """Send the next waiting message once the engine is idle, or give all of them back."""
        if not go_on:
            self.give_back()
        elif self.waiting and self.engine_state.phase is EnginePhase.READY:
            self._ask(self.waiting.pop(0))
            self.keep()

    def give_back(self) -> None:
        """Put the messages that wait into the input again."""
        if self.waiting:
            self.prompt.put_back("\n".join(self.waiting))
            self.waiting.clear()

    def keep(self) -> None:
        """Store the waiting messages and the input, with which the next start begins."""
        self.library.draft("\n".join(filter(None, [*self.waiting, self.prompt.text])))

    def _accepts(self, text: str) -> bool:
        """Whether `text` may be sent or wait.

        An empty Enter loads a lost engine again, and takes a prompt to try where nothing was asked.
        """
        if (slash := command_table.parse(text)) is not None:
            return command_table.may_run(*slash, self.engine_state.phase)
        takes = self.engine_state.phase is EnginePhase.READY or self.turns.busy
        if not text and self.engine_state.phase is EnginePhase.READY:
            return not self.turns.messages()
        return self.engine_state.phase is EnginePhase.DEAD or (bool(text) and takes)

    def _send(self, text: str, before: str) -> None:
        """Carry out an entered text; `before` stays in the input."""
        if before:
            self.prompt.keep(before)
        if (slash := command_table.parse(text)) is not None:
            self.run(*slash)
        elif self.engine_state.phase is EnginePhase.DEAD:
            self.prompt.put_back(text)
            self.pair_loader.reload(lambda: self._send_again(text))
        elif not text:
            self.prompt.give_back(PROMPTS[self._tried % len(PROMPTS)])
            self._tried += 1
        elif text != self._doubted and (missing := extracts.missing(text)):
            self._doubted = text
            self.engine_state.say(f"there is no file {missing}: Enter sends the word as it is")
            self.prompt.put_back(text)
        elif self.turns.busy:
            self.waiting.append(text)
            self.keep()
            self.changed()
        else:
            self._ask(text)

    def _send_again(self, text: str) -> None:
        """Send what was entered before the models came back, unless it was changed meanwhile."""
        if text and self.prompt.text.strip() == text:
            self.prompt.submit()

    def _ask(self, text: str) -> None:
        """Send a message, or put it back into the input if it cannot be sent."""
        try:
            question = extracts.expand(command_table.message_text(text))
        except LocalspecError as error:
            self.transcript.say_error(error)
        else:
            if self.turns.reserve():
                self.library.sent()
                self.turns.ask(question)
                return
        self.give_back()
        self.prompt.put_back(text)
