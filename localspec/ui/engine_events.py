"""Passes the events of the engine to the parts of the screen that they are about."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.process import messages
from localspec.process.messages import SentError, SessionInfo
from localspec.ui.commands.command_context import CommandContext
from localspec.ui.conversation.engine_phase import EnginePhase
from localspec.ui.conversation.prompt_sender import PromptSender
from localspec.ui.conversation.prompt_size import PromptSize
from localspec.ui.late_import import after_import
from localspec.ui.screens.compare import CompareScreen
from localspec.ui.screens.rounds import RoundScreen
from localspec.ui.tools.chat_tools import ChatTools


@dataclass(eq=False, repr=False)
class EngineEvents:
    """Takes the events of the engine; in the screen's thread, but for `hear`.

    Attributes:
        proposes: whether pairs that suit this machine are proposed after the next load.
    """

    app: CommandContext
    sender: PromptSender
    size: PromptSize
    tools: ChatTools
    proposes: bool

    def hear(self, envelope: messages.Envelope[messages.Event]) -> None:
        """Receive an event of the engine, in the thread that delivers it."""
        if isinstance(envelope.body, messages.TurnReported) and envelope.body.speculation is None:
            self.app.library.record.hear(envelope.body.event)
            self.app.turns.stream.inbox.put(envelope.body.event)
        else:
            self.app.soon(self.take, envelope)

    def take(self, envelope: messages.Envelope[messages.Event]) -> None:
        """Take an event of the engine, other than those of a running turn."""
        before = self.app.engine.info
        self.app.engine.settle(envelope)
        self.app.pair_loader.drafts_changed(before)
        match envelope.body:
            case messages.Loading(step, share) if self.app.turns.phase is EnginePhase.LOADING:
                self.app.pair_loader.loading()
                self.app.status.lasting(step, share, hint=f"Esc cancels{self.sender.queue}")
            case messages.Loaded(info):
                self._loaded(info)
            case messages.LoadFailed() as failed:
                self._not_loaded(failed)
            case (
                messages.TurnReported()
                | messages.RoundExplained()
                | messages.TokensCounted()
                | messages.ToolsOffered()
            ) as answered:
                self._to_asker(envelope.request, answered)
            case messages.TurnOver() as ended:
                self._over(ended)
            case messages.ChangeDone(error):
                self._changed(error)
            case messages.BenchProgress() | messages.JobDone() as news:
                self.app.measuring.hear(news)
            case messages.EngineStatus() as status if self.app.engine.alive:
                self.app.dashboard.hear(status)
                self.app.turns.stream.pace.spare = status.figures.spare
            case messages.Died(error):
                self._died(error.exception())

    def _over(self, ended: messages.TurnOver) -> None:
        """A turn has ended; a question that failed comes back before the messages that waited."""
        if ended.error is not None:
            self.sender.give_back()
        self.app.turns.over(_raised(ended.error), ended.said)
        self.app.show_phase()  # the figures now cover the whole answer
        self.sender.answered()

    def _died(self, error: Exception) -> None:
        """The engine's process ended by itself: say why, keep the conversation, lose no input.

        What was said of the running answer stays. Enter loads the pair again.
        """
        self._leave_comparison()
        self.size.died()
        self.sender.give_back()  # the question that failed is put in front of them
        self.app.pair_loader.died(error)

    def _loaded(self, info: SessionInfo) -> None:
        """Show a loaded pair; after the first one, propose others that suit this machine."""
        self.tools.loaded()  # before a message that has waited is sent
        self.app.pair_loader.loaded(info)
        self.size.loaded()
        self.sender.answered()
        if self.proposes:
            self.proposes = False
            after_import("localspec.ui.pairs.pair_manager", self.app.soon, self._propose)

    def _propose(self) -> None:
        self.app.pairs.propose()

    def _not_loaded(self, failed: messages.LoadFailed) -> None:
        """Say that a load failed; the pair before may be back, in a new session."""
        if failed.info is not None:
            self.tools.loaded()
        self.size.died()
        self.app.pair_loader.failed(failed)
        self.sender.give_back()

    def _to_asker(
        self,
        request: int,
        event: messages.TurnReported
        | messages.RoundExplained
        | messages.TokensCounted
        | messages.ToolsOffered,
    ) -> None:
        """Tell the input, the servers, or the dialogue that asked, if it is still there."""
        match self.asking_screen(), event:
            case CompareScreen() as screen, messages.TurnReported(said, speculation):
                screen.hear(said, speculation=bool(speculation))
            case RoundScreen() as screen, messages.RoundExplained(explanation, error):
                screen.hear(request, explanation, error.message if error is not None else "")
            case _, messages.ToolsOffered() as offered:
                self.tools.offered(offered)
            case _, messages.TokensCounted(tokens):
                self.size.counted(tokens)

    def _changed(self, error: SentError | None) -> None:
        """The engine made or refused a change."""
        if error is not None:
            self._leave_comparison()
        self.app.turns.changed(_raised(error))
        self.app.pair_loader.say_unsaid()
        (self.sender.answered if error is None else self.sender.give_back)()

    def _leave_comparison(self) -> None:
        """Close a screen that waits for the lost engine: it would hide the message about that."""
        while self.asking_screen() is not None:
            self.app.pop_screen()

    def asking_screen(self) -> CompareScreen | RoundScreen | None:
        """The screen that has asked the engine for something; another screen may cover it."""
        screens = self.app.screen_stack
        return next((it for it in screens if isinstance(it, CompareScreen | RoundScreen)), None)


def _raised(fault: SentError | None) -> Exception | None:
    return None if fault is None else fault.exception()
