"""The course of a turn on the screen: gate the input, collect what arrives, draw, settle."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from localspec.chat.conversation import Message, Role
from localspec.chat.events import Noticed, PromptProgress, RoundText, TurnEnd, TurnsLeftOut
from localspec.process.messages import Compact, Compare, Regenerate, Request, Reset
from localspec.ui.conversation.items import figures_of
from localspec.ui.messages import Inbox
from localspec.ui.pace import Pace
from localspec.ui.wording import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.timer import Timer

    from localspec.chat.events import Span, TurnEvent
    from localspec.ui.app import ChatApp
    from localspec.ui.conversation.items import Answer


class Phase(Enum):
    """What the engine is doing, as far as the screen knows."""

    LOADING = auto()
    READY = auto()
    ANSWERING = auto()
    STOPPING = auto()
    CHANGING = auto()
    UNUSABLE = auto()
    DEAD = auto()


ANY_TIME = frozenset(Phase)
LOADED = frozenset({Phase.READY, Phase.ANSWERING, Phase.STOPPING, Phase.CHANGING})
IDLE = frozenset({Phase.READY})
LOADABLE = frozenset({Phase.READY, Phase.UNUSABLE, Phase.DEAD})
WHOLE = frozenset({Phase.LOADING, *LOADABLE})  # no message is being written


class Turns:
    """Runs turns one at a time; lives in the screen's thread.

    Args:
        app: whose turns they are.
        announce: called from any thread when the inbox is to be looked at.

    Attributes:
        inbox: where turn events arrive, from any thread.
        phase: what the engine is doing.
        pace: how often its answers are drawn.
        editing: the node of the question that is being edited, None for a new one.
        unsent: what stood in the input before that.
        notice: to be shown once the change that is being made is done.
    """

    def __init__(self, app: ChatApp, announce: Callable[[], object]) -> None:
        self._app = app
        self.inbox = Inbox(announce)
        self.phase = Phase.LOADING
        self.pace = Pace()
        self._flush_timer: Timer | None = None
        self._answer: Answer | None = None
        self._asked = ""
        self._replaced: Answer | None = None
        self._end: TurnEnd | None = None
        self._heard: list[Span] = []
        self._then: Callable[[], None] | None = None
        self._instead_of: str | None = None
        self._summing = False
        self._tokens = 0
        self.editing: str | None = None
        self.unsent = ""
        self.notice = ""

    @property
    def busy(self) -> bool:
        """Whether an answer is running or being stopped."""
        return self.phase in (Phase.ANSWERING, Phase.STOPPING)

    def reserve(self) -> bool:
        """Close the gate for a turn that is about to begin; False while there is no free engine."""
        if self.phase is not Phase.READY:
            return False
        self.phase = Phase.ANSWERING
        self._app.engine.reserve()
        return True

    def reserve_loading(self) -> bool:
        """Close the gate for loading another pair; False while the engine does something else."""
        if self.phase not in LOADABLE:
            return False
        self.phase = Phase.LOADING
        return True

    def ask(self, text: str) -> None:
        """Send `text` to the model, after `reserve`."""
        app, self._instead_of, self.editing = self._app, self.editing, None
        earlier = None
        if self._instead_of is not None:
            earlier = app.shelf.record.before(self._instead_of)
            app.transcript.cut(self._instead_of)
        question, answer = app.shelf.begin(text, self._instead_of)
        item = app.transcript.ask(text, question)
        item.place = answer
        self._begin(item, text)
        app.engine.ask(text, earlier)

    def regenerate(self) -> None:
        """Answer the last message again."""
        if not self.free() or not self.reserve():
            return
        self._replaced = self._app.transcript.last_answer()
        answer = self._app.transcript.answer_again()
        if answer is None:
            self.phase = Phase.READY
            self._app.say_briefly("there is no answer yet")
            return
        self._instead_of = None
        (answer.place,) = self._app.shelf.begin(None)
        self._begin(answer, "")
        self._app.engine.begin(Regenerate())

    def compact(self) -> None:
        """Have the conversation summed up; the summary takes its place, as another version."""
        if not self.free() or not self.reserve():
            return
        self._summing = True
        self._begin(self._app.transcript.ask("/compact"), "")
        self._app.engine.begin(Compact())

    def _compacted(self, error: Exception | None, said: Sequence[Message]) -> None:
        self._summing = False
        if said:
            self._app.shelf.graft(said)
            self.notice = "this summary is what the model knows from now on; F9 goes back"
        elif error is not None:
            self.notice = ": ".join(in_words(error))
        else:
            self.notice = "there is no summary: the conversation is what it was"
        self._app.shelf.reopen()

    def edit_earlier(self) -> None:
        """Put the last question into the input to be sent in another form; then the one before."""
        if not self.free():
            return
        node = self._app.shelf.question_before(self.editing)
        if node is None:
            self._app.say_briefly("there is no earlier message")
            return
        prompt = self._app.prompt
        if self.editing is None:
            self.unsent = prompt.text
            if self.unsent.strip():
                prompt.sent.add(self.unsent)  # whatever becomes of the edit, Up finds it
        self.edit(node.id)
        prompt.show(node.message.content)
        self._app.transcript.show(node.id)

    def edit(self, node: str | None) -> None:
        """Let the next question be another version of `node`, or a new one."""
        self.editing = node
        self._app.show_phase()

    def stop(self) -> None:
        """Ask the running answer to end; the screen answers at once."""
        if self.phase is Phase.ANSWERING:
            self.phase = Phase.STOPPING
            self._app.engine.stop()
            self._app.show_phase()

    def clear(self) -> None:
        """Begin a new conversation."""
        self.change(Reset(), self._app.cleared)

    def change(self, request: Request, then: Callable[[], None]) -> None:
        """Change the session between turns, if it is free; once it is done, do `then`."""
        if self.free():
            self.phase, self._then = Phase.CHANGING, then
            self._app.engine.change(request)

    def compare(self, text: str, before: Sequence[Message]) -> None:
        """Have `text` answered twice after `before`; `stop` ends it."""
        self._app.engine.reserve()
        self.phase = Phase.CHANGING
        self._app.engine.begin(Compare(text, tuple(before)))

    def changed(self, *, done: bool) -> None:
        """The change has been made, or refused."""
        self.phase = Phase.READY
        self.editing = None
        then, self._then = self._then, None
        if done and then is not None:
            then()

    def shown(self) -> tuple[str, str]:
        """What is going on, for the status line, and which key matters."""
        if self.phase is Phase.READY and self.editing is not None:
            return "editing an earlier message", "Enter sends it again, Esc leaves it"
        return _SHOWN[self.phase]

    def free(self) -> bool:
        """Whether the engine has nothing to do; says what it does otherwise."""
        if self.phase is not Phase.READY:
            self._app.say_briefly(REASONS[self.phase])
        return self.phase is Phase.READY

    def _begin(self, answer: Answer, asked: str) -> None:
        self._answer, self._asked, self._end = answer, asked, None
        self._heard.clear()
        self.pace.start()
        self._app.turn_began()

    def news(self) -> None:
        """Turn events have arrived: draw them now, or when the pace allows."""
        if self._flush_timer is not None:
            return
        delay = self.pace.delay()
        if delay > 0:
            self._flush_timer = self._app.set_timer(delay, self._flush_later)
        else:
            self._flush()

    def died(self, error: Exception) -> None:
        """There is no engine any more: what it said so far is kept."""
        if self.busy:
            self._flush()
            text = "".join(span.text for span in self._heard)
            said = [Message(Role.ASSISTANT, text, None, tuple(self._heard))] if text else []
            self.over(error, [] if self._summing else said, Phase.DEAD)
        else:
            self._app.transcript.say(*in_words(error), error=True)
        self.phase, self._then = Phase.DEAD, None

    def over(
        self, error: Exception | None, said: Sequence[Message], phase: Phase = Phase.READY
    ) -> None:
        """The turn is over: draw the rest, settle the answer, open the gate.

        Args:
            error: why it failed; None where it did not.
            said: the messages that joined the conversation.
            phase: what the engine is doing now.
        """
        self._flush()
        self.phase = phase
        if self._summing:
            self._compacted(error, said)
            self._answer = None
            self._app.turn_ended()
            return
        answer, end = self._answer, self._end
        figures = figures_of(end.stats if end else None)
        if answer is not None:
            figures.update(answer.thought.figures())
        kept = self._app.shelf.end(said, figures)
        if answer is not None:
            self._app.transcript.finish(answer, figures, end.reason if end else None)
            if self._replaced is not None and not answer.text:
                # As the session does: an answer that never began replaces nothing.
                self._app.transcript.put_back(answer, self._replaced)
                self._answer = None
        if not kept and self._instead_of is not None:
            self._back(error)
        elif error is not None:
            self._failed(error)
        self._answer = self._replaced = self._instead_of = None
        self._app.turn_ended()

    def _back(self, error: Exception | None) -> None:
        """An edited question came to nothing: the conversation is what it was."""
        self._app.give_back(self._asked)
        self.notice = ": ".join(in_words(error)) if error is not None else ""
        self._app.shelf.reopen()

    def _failed(self, error: Exception) -> None:
        """Say what happened; a question without any answer goes back into the input."""
        answer = self._answer
        if answer is not None and not answer.text:
            self._app.transcript.take_back(answer)
            self._app.give_back(self._asked)
        self._app.transcript.say(*in_words(error), error=True)

    def _flush_later(self) -> None:
        self._flush_timer = None
        self._flush()

    def _flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.stop()
            self._flush_timer = None
        spans: list[Span] = []
        for event in self.inbox.collect():
            spans.extend(self._take(event))
        self._heard += spans
        if self._answer is not None and spans:
            self._app.transcript.write(self._answer, spans, self._tokens)
            self._app.dashboard.go_along()
        self._tokens = 0
        self.pace.drawn()

    def _take(self, event: TurnEvent) -> tuple[Span, ...]:
        if isinstance(event, RoundText):
            self._app.dashboard.state.add_round(event.round)
            self._tokens += len(event.round.tokens)
            return event.spans
        if isinstance(event, PromptProgress):
            self._app.show_prompt_progress(event)
        elif isinstance(event, Noticed):
            self._app.transcript.say_before(self._answer, event.text)
        elif isinstance(event, TurnsLeftOut):
            self._app.transcript.say_before(
                self._answer,
                f"the context is full: the oldest {event.messages:,} messages are no longer told"
                " to the model",
                "They stay in the conversation. /compact sums it up instead.",
            )
        else:
            self._end = event
        return ()


REASONS = {
    Phase.LOADING: "the models are still being loaded",
    Phase.READY: "",
    Phase.ANSWERING: "an answer is running: Esc stops it",
    Phase.STOPPING: "the answer is being stopped",
    Phase.CHANGING: "one moment",
    Phase.UNUSABLE: "no model is loaded: /pairs chooses one",
    Phase.DEAD: "the models are gone: Enter loads them again",
}

_SHOWN = {
    Phase.LOADING: ("loading …", "Esc cancels"),
    Phase.READY: ("ready", ""),
    Phase.ANSWERING: ("answering …", "Esc stops"),
    Phase.STOPPING: ("stopping …", ""),
    Phase.CHANGING: ("one moment …", ""),
    Phase.UNUSABLE: ("no model is loaded", "/pairs chooses one, Ctrl+Q quits"),
    Phase.DEAD: ("the models are gone", "Enter loads them again"),
}
