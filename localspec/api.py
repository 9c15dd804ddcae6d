"""The Python API: chat with a pair of models in this process.

::

    with localspec.load("starter") as chat:
        for piece in chat.ask("Tell me a story."):
            print(piece.text, end="")
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec

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

_LEAST = {"threads": 1, "threads_batch": 1, "draft_threads": 1, "seed": 0}  # less: not chosen
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
            takes several values also accepts a single string, with commas between as on the
            command line (but for `stop` and `lora`).

    Raises:
        LocalspecError: a file that is missing or is not a usable model (`ModelError`), a draft with
            another vocabulary (`VocabularyMismatch`), too little memory (`OutOfMemory`), an unknown
            name (`HubError`), invalid options (`UsageError`).
    """
    try:
        request = _request(pair, {name: each for name, each in options.items() if each is not None})
    except (TypeError, ValueError) as error:
        wrong = f"these options cannot be used: {error}"
        raise UsageError(wrong, "docs/api.md names the options.") from None
    progress = progress or (lambda _step, _share: None)
    return Chat(load_session(request, progress=progress, cancel=Cancel()))


def _request(pair: str | None, given: dict[str, Any]) -> LoadRequest:
    """The request for options that are given as plain values, or as on the command line.

    Raises:
        TypeError, ValueError: an option is unknown, or has another type.
        UsageError: the command line would refuse it.
    """
    for name in given.keys() & {*_SEVERAL}:
        try:
            given[name] = _several(name, given[name])
        except TypeError:
            raise TypeError(f"{name} takes several values, not {given[name]!r}") from None
    for name in given.keys() & {"n_gpu_layers", "draft_n_gpu_layers"}:
        given[name] = {"auto": None, "all": -1}.get(str(given[name]), given[name])
    lora, bias = given.get("lora", ()), given.get("logit_bias", ())
    given["lora"] = tuple((each, 1.0) if isinstance(each, str) else tuple(each) for each in lora)
    given["logit_bias"] = tuple(bias.items() if isinstance(bias, Mapping) else map(tuple, bias))
    asked = LoadRequest(pair=pair, **given)
    _check(asked)
    plain = {name: _plain(each) for name, each in asdict(asked).items()}
    request = msgspec.convert(plain, LoadRequest)
    counts = {name: getattr(request, name) for name in _LEAST}
    chosen = {name: n for name, n in counts.items() if n is not None and n >= _LEAST[name]}
    return replace(request, **{**dict.fromkeys(_LEAST), **chosen})


def _several(name: str, value: Any) -> tuple[Any, ...]:
    """The values of an option that takes several, which one string may name."""
    if not isinstance(value, str):
        return tuple(value)
    if name in ("stop", "lora"):
        return (value,)
    names = tuple(filter(None, map(str.strip, value.split(","))))
    if name == "tensor_split":
        return tuple(map(float, names))
    return () if names == ("none",) else names


def _plain(value: Any) -> Any:
    """A value with Python's own numbers for numpy's, and texts for paths."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value


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
    """

    def __init__(self, session: Session) -> None:
        self._session = session

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
        settings = self.settings
        settings.repeatable = settings.sampling.seed is not None  # only a user sets it here
        with closing(turn):
            for event in turn:
                if isinstance(event, RoundText):
                    yield event

    @property
    def last(self) -> TurnEnd | None:
        """How the last answer ended, with its whole text and figures.

        None before the first, and after one that failed.
        """
        return self._session.last

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
