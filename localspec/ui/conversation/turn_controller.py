"""Turns and changes of the conversation, one at a time, from the request to the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localspec.chat.conversation import Message, Role
from localspec.chat.figures.figures import figures_of
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.tree import MessageNode
from localspec.chat.settings import ChatSettings
from localspec.errors import UsageError, in_words
from localspec.process.engine_client import EngineClient
from localspec.process.messages import (
    Compact,
    CompareAnswers,
    GoOn,
    OpenConversation,
    Regenerate,
    Request,
)
from localspec.ui.conversation.engine_phase import ANSWER, LOADABLE, EnginePhase
from localspec.ui.conversation.stream import AnswerStream
from localspec.ui.input.prompt_area import PromptArea
from localspec.ui.panel.dashboard import Dashboard
from localspec.ui.status_lines import StatusLine
from localspec.ui.transcript.items import Answer
from localspec.ui.transcript.transcript import Transcript


class CallRunner(Protocol):
    """Runs the calls of tools that answers end with."""

    def begin(self, answer: Message) -> bool:
        """Begin to run the calls of an answer; False if it has none.

        Once all have results, `TurnController.go_on` follows.
        """

    def stop(self) -> None:
        """Stop what has begun; the turn is over."""


@dataclass(eq=False, repr=False)
class TurnController:
    """Has the engine answer, and puts the result into the record and on the screen.

    It knows what the engine is doing, and so decides what may begin. Lives in the screen's thread.

    Attributes:
        phase_changed: called when the phase changes, or the purpose of the input.
        phase: what the engine is doing; `enter` another.
        editing: the node of the question that is being edited, None for a new one.
        runner: runs the tools that answers call; None for none.
    """

    phase_changed: Callable[[], None]
    engine: EngineClient
    record: ConversationRecord
    stream: AnswerStream
    transcript: Transcript
    prompt: PromptArea
    dashboard: Dashboard
    status: StatusLine
    phase: EnginePhase = EnginePhase.LOADING
    editing: str | None = None
    runner: CallRunner | None = None
    _asked: str = ""
    _instead_of: str | None = None  # the question that the running one is a version of
    _replaced: Answer | None = None
    _returning: bool = False  # the answer goes on after results of tools
    _redraws: bool = False  # if the answer never begins, the screen has to be drawn anew
    _summing: bool = False
    _then: Callable[[], None] | None = None
    _unsent: str = ""  # the input as it was before an earlier question was edited
    _notice: str = ""  # shown once the current change is done
    _numbers: dict[str, int] = field(default_factory=dict)  # of the engine's turns, by node

    @property
    def busy(self) -> bool:
        """Whether an answer is running or being stopped."""
        return self.phase in ANSWER

    def number_of(self, back: int) -> int:
        """The engine's number of the answer that stands `back` answers before the last.

        Raises:
            UsageError: the answer does not exist, or how it was drafted is not known.
        """
        path = self.record.nodes()
        nodes = [node.id for node in path if node.message.role is Role.ASSISTANT]
        if not nodes:
            raise UsageError("there is no answer yet", "Ask something first.")
        if not 0 <= back < len(nodes):
            raise UsageError("there is no such answer", "Say which, from the last: 1.")
        number = self._numbers.get(nodes[-1 - back], 0)
        if not number:
            raise UsageError(
                "how this answer was drafted is not known any more",
                "It is of an earlier start. F5 answers the last question again: look then.",
            )
        return number

    # What the engine is doing

    def enter(self, phase: EnginePhase) -> None:
        """Enter another phase."""
        self.phase = phase
        self.phase_changed()

    def edit(self, node: str | None) -> None:
        """Let the next question be another version of `node`, or a new one."""
        if node != self.editing:
            self.editing = node
            self.phase_changed()

    def refuse(self) -> None:
        """Say what has to end first."""
        self.status.flash(self.phase.reason)

    def free(self) -> bool:
        """Whether the engine is idle; otherwise tells the user what it does."""
        if self.phase is not EnginePhase.READY:
            self.refuse()
        return self.phase is EnginePhase.READY

    def close_for_loading(self) -> bool:
        """Begin to load another pair; False, with a message, while the engine is busy."""
        if self.phase not in LOADABLE:
            self.refuse()
            return False
        self.enter(EnginePhase.LOADING)
        return True

    def shown(self) -> tuple[str, str]:
        """The text of the status line, and the key that matters."""
        if self.phase is EnginePhase.READY and self.editing is not None:
            return "editing an earlier message", "Enter sends it again, Esc leaves it"
        return self.phase.shown, self.phase.hint

    # Turns

    def reserve(self) -> bool:
        """Take the engine for a turn; False, with a message, while it is busy or missing."""
        if not self.free():
            return False
        self.enter(EnginePhase.ANSWERING)
        self.engine.reserve()
        return True

    def ask(self, text: str) -> None:
        """Send `text` to the model, after `reserve`."""
        self._instead_of, earlier = self.editing, None
        self.edit(None)
        if self._instead_of is not None:
            earlier = self.record.before(self._instead_of)
            self.transcript.cut(self._instead_of)
        nodes = self.record.begin(text, self._settings(), instead_of=self._instead_of)
        question, answer = (self.record.place(node) for node in nodes)
        item = self.transcript.ask(text, question)
        item.place = answer
        self._numbers[answer.node] = self.engine.turn
        self._asked = self.prompt.as_typed(text)
        self.stream.begin(item)
        self.engine.ask(text, earlier, self.record.stored_as)

    def go_on(self, results: Sequence[Message]) -> None:
        """Have the model answer on after the results of the calls that it made last."""
        self.enter(EnginePhase.ANSWERING)
        self.engine.reserve()
        *places, answer = map(self.record.place, self.record.go_on(results, self._settings()))
        item = self.transcript.go_on(zip(results, places, strict=True))
        item.place = answer
        self._numbers[answer.node] = self.engine.turn
        self._asked, self._returning = "", True
        self.stream.begin(item)
        self.engine.begin(GoOn(tuple(results)))

    def regenerate(self) -> None:
        """Answer the last question, again if it has an answer."""
        if self.record.question_before(None) is None:
            self.status.flash("there is no question yet")
        elif self.reserve():
            self._replaced = last = self._first_answer()
            answer = self.transcript.answer_again(last)
            (node,) = self.record.begin(None, self._settings())
            answer.place = self.record.place(node)
            self._numbers[node] = self.engine.turn
            self._asked = ""
            self.stream.begin(answer)
            self.engine.begin(Regenerate())

    def _first_answer(self) -> Answer | None:
        """The first answer to the last question; what followed its calls leaves the screen.

        None if the conversation ends with the question.
        """
        question = self.record.question_before(None)
        since = [node.id for node in self.record.nodes()]
        if question is not None:
            since = since[since.index(question.id) + 1 :]
        self._redraws = len(since) != 1
        if len(since) > 1:
            self.transcript.cut(since[1])
        return self.transcript.last_answer() if since else None

    def compact(self) -> None:
        """Ask for a summary, which replaces the conversation as another version."""
        if self.reserve():
            self._summing = True
            self.stream.begin(self.transcript.ask("/compact"))
            self.engine.begin(Compact())

    def compare(self, text: str, before: Sequence[Message]) -> bool:
        """Have `text` answered twice after `before`; `stop` of the engine ends it.

        Returns:
            False, with a message, while the engine is busy or missing.
        """
        if not self.free():
            return False
        self.engine.reserve()
        self.enter(EnginePhase.CHANGING)
        self.engine.begin(CompareAnswers(text, tuple(before)))
        return True

    def stop(self) -> None:
        """Ask the running answer, or call of a tool, to end; the screen answers at once."""
        if self.phase is EnginePhase.CALLING and self.runner is not None:
            self.runner.stop()
            self.enter(EnginePhase.READY)
        elif self.phase is EnginePhase.ANSWERING:
            self.enter(EnginePhase.STOPPING)
            self.engine.stop()

    def _settings(self) -> ChatSettings:
        if self.engine.info is None:
            raise AssertionError("a turn without a session")
        return self.engine.info.settings

    # An earlier question in another form

    def earlier_question(self) -> MessageNode | None:
        """The last question, or the one before that which is being edited; None for none."""
        return self.record.question_before(self.editing)

    def earlier_messages(self) -> list[Message]:
        """The messages before the question in the input: before an edited one, or all."""
        edited = self.editing
        return self.record.messages() if edited is None else self.record.before(edited)

    def edit_earlier(self) -> None:
        """Put the last question into the input to be sent in another form; then the one before."""
        if not self.free():
            return
        node = self.earlier_question()
        if node is None:
            self.status.flash("there is no earlier message")
            return
        self._remember_typed()
        if self.editing is None:
            self._unsent = self.prompt.text
        self.edit(node.id)
        self.prompt.show(self.prompt.as_typed(node.message.content))
        self.prompt.history.clear()  # undo would leave the edit on; Esc takes it back
        self.transcript.show(node.id)

    def leave_edit(self) -> None:
        """Leave an edited question as it was."""
        if self.editing is not None:
            self._remember_typed()
            self.edit(None)
            self.prompt.show(self._unsent)

    def _remember_typed(self) -> None:
        """Let Up find what is in the input, unless it is a question as it was sent."""
        edited = self.record.tree.nodes.get(self.editing or "")
        typed, as_typed = self.prompt.text, self.prompt.as_typed
        if typed.strip() and (edited is None or typed != as_typed(edited.message.content)):
            self.prompt.sent.add(typed)

    @property
    def gave_back(self) -> bool:
        """Whether the input holds the question that a lost engine did not answer."""
        asked = self._asked.strip()
        return self.phase is EnginePhase.DEAD and asked == self.prompt.text.strip() != ""

    # Changes between turns

    def clear(self, then: Callable[[], None] = lambda: None) -> None:
        """Begin a new conversation; call `then` once it is there."""

        def cleared() -> None:
            self.record.fresh()
            self.show_conversation()
            then()

        self.change(OpenConversation(()), cleared)

    def change(self, request: Request, then: Callable[[], None]) -> None:
        """Change the session between turns, if the engine is free; call `then` afterwards."""
        if self.free():
            self.engine.change(request)  # first: nothing has begun if it cannot be sent
            self._then = then
            self.enter(EnginePhase.CHANGING)

    def changed(self, error: Exception | None) -> None:
        """End a change, which the engine has made or refused."""
        then, self._then = self._then, None
        if then is not None:  # a comparison changes nothing
            self.edit(None)
        if error is not None:
            self.transcript.say_error(error)
        elif then is not None:
            then()
        self._notice = ""
        self.enter(EnginePhase.READY)
        self.dashboard.refresh()

    def reopen(
        self,
        settings: ChatSettings | None = None,
        notice: str = "",
        editing: str | None = None,
    ) -> None:
        """Let the session know the path in force, then show it.

        Args:
            settings: those of the conversation; None to keep the current ones.
            notice: shown below the conversation.
            editing: the node of the question that the input holds another version of.
        """

        def opened() -> None:
            self.show_conversation()
            if editing in self.record.tree.nodes:
                self.edit(editing)

        self._notice = notice
        if self.engine.alive:
            said = tuple(self.record.messages())
            self.change(OpenConversation(said, settings, self.record.stored_as), opened)
        else:
            opened()

    def show_conversation(self) -> None:
        """Show the path in force, as the record has it."""
        record = self.record
        shown = [(node.message, record.place(node.id), node.figures) for node in record.nodes()]
        last = shown[-1][2] if shown else {}
        self.dashboard.state.begin(last if self._ours(last) else {})
        self.transcript.open(self.engine.latest, shown)
        if self._notice:
            self.transcript.say(self._notice)
            self._notice = ""
        self.dashboard.refresh()

    def _ours(self, figures: Mapping[str, Any]) -> bool:
        """Whether the loaded pair gave the answer with these figures, as far as they tell."""
        info = self.engine.info
        if info is None:
            return False
        now = {"pair": info.pair_name, "draft": info.pair_reference[1]}
        return all(figures.get(name, one) == one for name, one in now.items())

    # How a turn ends

    def over(
        self,
        error: Exception | None,
        said: Sequence[Message],
        phase: EnginePhase = EnginePhase.READY,
    ) -> None:
        """End a turn: draw the rest, settle the answer, free the engine.

        Args:
            error: why it failed, if it did.
            said: the messages that joined the conversation.
            phase: what the engine is doing now.
        """
        stopped = self.phase is EnginePhase.STOPPING  # perhaps after its last word
        self.stream.flush()
        self.enter(phase)
        if self._summing:
            self._compacted(error, () if stopped else said)
        else:
            self._answered(error, said)
        self._replaced = self._instead_of = None
        self._returning = self._redraws = False
        self.stream.close()
        if self.phase is EnginePhase.READY and error is None and not stopped and self._calls(said):
            self.enter(EnginePhase.CALLING)

    def _calls(self, said: Sequence[Message]) -> bool:
        """Begin to run the calls of the answer that has ended; False if it has none."""
        end = self.stream.end
        if self.runner is None or not said or end is None or end.cut_off(self._settings().stop):
            return False
        return self.runner.begin(said[-1])

    def died(self, error: Exception) -> None:
        """Keep what the engine said before it was lost."""
        if self.phase is EnginePhase.CALLING:
            self.stop()
        if self._then is not None:  # another conversation may have been opened for the next engine
            self._then, self._notice = None, ""
            self.show_conversation()
        if self.busy:
            self.stream.flush()
            heard = tuple(self.stream.heard)
            text = "".join(span.text for span in heard)
            said = [Message(Role.ASSISTANT, text, None, heard)] if text else []
            self.over(error, [] if self._summing else said, EnginePhase.DEAD)
        else:
            self.transcript.say_error(error)
        if self.editing not in self.record.tree.nodes:
            self.edit(None)
        self.enter(EnginePhase.DEAD)

    def _compacted(self, error: Exception | None, said: Sequence[Message]) -> None:
        self._summing = False
        if said:
            self.record.graft(list(said), self._settings())
            notice = "this summary is what the model knows from now on; F9 goes back"
            if self.stream.left_out:
                notice += f"; the oldest {self.stream.left_out:,} messages had no room in it"
        elif error is not None:
            notice = ": ".join(in_words(error))
        else:
            notice = "there is no summary: the conversation is what it was"
        self.reopen(notice=notice)

    def _answered(self, error: Exception | None, said: Sequence[Message]) -> None:
        answer, end = self.stream.answer, self.stream.end
        figures = figures_of(end.stats if end else None)
        if answer is not None:
            figures.update(answer.thought.figures())
        kept = said[-1] if said and said[-1].role is Role.ASSISTANT else None
        pair = self.record.pair
        results = [one for one in said if one.role is Role.TOOL]
        self.record.end(kept, {**figures, "pair": pair.name, "draft": pair.draft}, results)
        if answer is not None:
            self.transcript.finish(answer, figures, end.reason if end else None)
            # As in the session, an answer that never began replaces nothing.
            if self._redraws and not answer.text:
                self.show_conversation()
                answer = None
            elif self._replaced is not None and kept is None:
                self.transcript.put_back(answer, self._replaced)
                answer = None
        if kept is None and (self._instead_of is not None or self._returning):
            # An edited question, or a tool, got no answer: the conversation stays as it was.
            self.prompt.put_back(self._asked)
            notice = ": ".join(in_words(error)) if error is not None else ""
            self.reopen(notice=notice, editing=self._instead_of)
        elif error is not None:
            self._failed(error, answer)

    def _failed(self, error: Exception, answer: Answer | None) -> None:
        """Say what happened; a question without any answer goes back into the input."""
        if answer is not None and not answer.text:
            self.transcript.take_back(answer)
            self.prompt.put_back(self._asked)
        self.transcript.say_error(error)
