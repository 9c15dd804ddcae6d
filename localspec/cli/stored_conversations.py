"""The store of conversations for commands, which wait for it and report its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec.chat.conversation import Message, Role
from localspec.chat.figures.figures import figures_of
from localspec.chat.history.conversation_record import ConversationRecord
from localspec.chat.history.fields import settings_of
from localspec.chat.history.store_thread import StoreThread
from localspec.chat.history.tree import PairReference
from localspec.chat.settings import without_bias
from localspec.cli.standard_streams import warn
from localspec.errors import ConversationError, LocalspecError
from localspec.loading.results import BrokenAnswer
from localspec.pairs.disk.folders import data_folder

if TYPE_CHECKING:
    from localspec.chat.history.store import Store
    from localspec.chat.history.tree import ConversationHeader, StoredConversation
    from localspec.loading.results import AnswerResult

from contextlib import contextmanager, suppress

Found = TypeVar("Found")


def archive() -> Path:
    """The file of the conversations."""
    return data_folder() / "conversations.db"


@contextmanager
def _kept() -> Iterator[StoreThread]:
    """A store thread for the block; faults of the store are reported at the end."""
    told: list[LocalspecError] = []
    store_thread = StoreThread(archive(), told.append)
    store_thread.start()
    try:
        yield store_thread
    finally:
        store_thread.close()
        for error in told:
            warn(f"{error.message}. {error.remedy}")


def ask(job: Callable[[Store], Found]) -> Found:
    """Run a job in the store thread, and return its result.

    Raises:
        ConversationError: the store cannot be read.
    """
    with _kept() as store_thread:
        return store_thread.ask(job).result()


def latest(words: str = "") -> ConversationHeader:
    """The latest conversation, or the latest in which all these words occur.

    Raises:
        ConversationError: none exists, or the store cannot be read.
    """
    found = ask(lambda store: store.listed(words))
    if not found:
        if not words:
            raise ConversationError("there is no conversation yet", "`localspec chat` begins one.")
        raise ConversationError("there is no such conversation", "F7 in the chat lists them all.")
    return found[0].header


def keep(
    question: str, found: AnswerResult | BrokenAnswer, before: StoredConversation | None
) -> None:
    """Store a question of `run` and its answer: a new conversation, or the next turn of one.

    Args:
        question: the prompt as the user wrote it.
        found: the result of the job that answered it, or what was heard of it.
        before: the conversation that it continues, whose settings stay; None for a new one.
    """
    with _kept() as store_thread:
        record = ConversationRecord(
            store_thread, PairReference(found.pair_name, *found.pair_reference)
        )
        settings = found.chosen
        if before is not None:
            record.open(before)
            now = before
            with suppress(LocalspecError):  # a chat may have changed them during the answer
                now = store_thread.ask(lambda store: store.load(before.header.id)).result()
            settings = settings_of(now.header.parameters, settings)
            if now.header.pair.name != found.pair_name:
                settings = without_bias(settings)
        record.begin(question, settings)
        pair = {"pair": record.pair.name}
        if record.pair.draft:
            pair["draft"] = record.pair.draft
        results: list[Message] = []
        steps, answer, figures = _said(found)
        for said in (*steps, answer):
            if said.role is Role.TOOL:
                results.append(said)
                continue
            if results:
                record.go_on(results, settings)
            its = figures if said is answer else {}
            record.end(said if said.content else None, {**its, **pair}, results)
            results = []


def _said(
    found: AnswerResult | BrokenAnswer,
) -> tuple[Sequence[Message], Message, dict[str, float]]:
    """The steps before an answer, the answer, and its figures."""
    if isinstance(found, BrokenAnswer):
        text = "".join(span.text for span in found.spans)
        return (), Message(Role.ASSISTANT, text, None, found.spans), {}
    answer = Message(Role.ASSISTANT, found.end.text, found.end.reason, found.spans)
    return found.steps, answer, figures_of(found.end.stats)
