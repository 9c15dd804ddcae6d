"""The Python API: chat with a pair of models in this process.

::

    with localspec.load("starter") as chat:
        for piece in chat.ask("Tell me a story."):
            print(piece.text, end="")
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from math import inf
from typing import Any, Self, Unpack

from localspec.chat.conversation import Message
from localspec.chat.events import RoundText, TurnEnd, TurnEvents
from localspec.chat.figures.figures import Figures
from localspec.chat.session.pair import LoadRecord
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.round.params import Accept
from localspec.errors import UsageError
from localspec.limits import CACHE_TYPES, FLASH_ATTENTION, MAX_GAMMA, SPLIT_MODES
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadOptions, LoadRequest
from localspec.loading.model_loader import Progress

_SEVERAL = ("stop", "device", "draft_device", "rpc", "tensor_split", "lora")
_ONE_OF = {
    "flash_attn": tuple(FLASH_ATTENTION),
    "split_mode": SPLIT_MODES,
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
    "accept": tuple(Accept),
}


def load(
    pair: str | None = None, *, progress: Progress | None = None, **options: Unpack[LoadOptions]
) -> Chat:
    """Find and load a pair of models, and begin a conversation with them.

    Args:
        pair: a pair's name, a GGUF file or a downloaded reference ``user/repo[:QUANT]``; None for
            the starter.
        progress: called with the name of every step and its share done (0 to 1, None if not known).
        options: those of ``localspec run``, with underscores; see `LoadRequest`. An option that
            takes several values also accepts a single string.

    Raises:
        LocalspecError: a file that is missing or is not a usable model (`ModelError`), a draft with
            another vocabulary (`VocabularyMismatch`), too little memory (`OutOfMemory`), an unknown
            name (`HubError`), invalid options (`UsageError`).
    """
    given: dict[str, Any] = dict(options)
    for name in _SEVERAL:
        if given.get(name) is not None:
            given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
    given["lora"] = tuple(
        (each, 1.0) if isinstance(each, str) else tuple(each) for each in given.get("lora") or ()
    )
    bias = given.get("logit_bias", ())
    given["logit_bias"] = tuple(bias.items() if isinstance(bias, Mapping) else bias)
    request = LoadRequest(pair=pair, **given)
    _check(request)
    progress = progress or (lambda _step, _share: None)
    return Chat(load_session(request, progress=progress, cancel=Cancel()))


def _check(request: LoadRequest) -> None:
    """Refuse values that the command line would refuse.

    Raises:
        UsageError: a value is invalid.
    """
    for name, allowed in _ONE_OF.items():
        value = getattr(request, name)
        if value is not None and value not in allowed:
            raise UsageError(f"{name} is {value!r}", f"Choose one of {', '.join(allowed)}.")
    if request.gamma not in ("auto", *range(MAX_GAMMA + 1)):
        raise UsageError(f"gamma is {request.gamma!r}", f"Choose auto, or 0 to {MAX_GAMMA}.")
    split = request.tensor_split
    if split and not (all(0 <= each < inf for each in split) and 0 < sum(split) < inf):
        raise UsageError(f"tensor_split is {split!r}", "Give proportions, such as (3, 1).")


class Chat:
    """A conversation with loaded models, one answer at a time; a context manager.

    Any thread may read `figures` and call `stop`.

    Attributes:
        last: how the last answer ended, with its whole text and figures; None before the first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.last: TurnEnd | None = None

    def ask(self, text: str) -> Generator[RoundText, None, None]:
        """Ask a question, and yield the answer round by round while it is written.

        If the iteration ends early, the conversation keeps what was yielded by then.

        Raises:
            LocalspecError: the question is empty, or too long for the context (`PromptTooLong`);
                another answer is being written; the models failed (`EngineError`).
        """
        yield from self._answer(self._session.turn(text, Cancel()))

    def ask_again(self) -> Generator[RoundText, None, None]:
        """Answer the last question again, replacing the old answer. Yields and raises as `ask`."""
        yield from self._answer(self._session.regenerate(Cancel()))

    def stop(self) -> None:
        """End the running answer after its present round."""
        self._session.stop()

    def _answer(self, turn: TurnEvents) -> Generator[RoundText, None, None]:
        with closing(turn):
            for event in turn:
                if isinstance(event, RoundText):
                    yield event
                elif isinstance(event, TurnEnd):
                    self.last = event

    @property
    def figures(self) -> Figures:
        """The figures of the running or else the last answer."""
        return self._session.figures()

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        return list(self._session.messages)

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        """Go on from other messages; none begin a new conversation.

        Raises:
            LocalspecError: an answer is being written.
        """
        self._session.open(messages)

    @property
    def settings(self) -> ChatSettings:
        """The settings, which may be changed between answers: sampling, gamma, stop strings, ..."""
        return self._session.settings

    @property
    def loaded(self) -> LoadRecord:
        """How the models were loaded."""
        return self._session.pair.loaded

    @property
    def notices(self) -> list[str]:
        """What the user should know about this pair and its settings, a sentence each."""
        return self._session.notices

    def close(self) -> None:
        """Stop the running answer and free the models. A second call does nothing."""
        self._session.close()

    def __enter__(self) -> Self:
        """Return this conversation; it is closed on exit."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the conversation."""
        self.close()
