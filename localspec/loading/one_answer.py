"""One prompt, one answer: load, answer, write the trace, and free the models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import structs

from localspec.chat.conversation import Message
from localspec.chat.dialects.reading.origins import OriginReader
from localspec.chat.events import Noticed, RoundText, Span, TurnEnd, TurnEvent
from localspec.chat.figures.figures import gamma_words
from localspec.chat.session.session import Session
from localspec.chat.settings import ChatSettings
from localspec.engine.cancel import Cancel
from localspec.engine.record.stats import FinishReason
from localspec.engine.record.trace import TraceWriter
from localspec.engine.round.params import CHAIN
from localspec.errors import LocalspecError
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.model_loader import Progress
from localspec.loading.results import AnswerResult


def answer(
    request: LoadRequest,
    prompt: str,
    trace: Path | None,
    *,
    before: Sequence[Message] = (),
    offered: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]] = ((), ()),
    call: CallTools = lambda _: (),
    loaded: Callable[[Session], object] = lambda _: None,
    progress: Progress,
    hear: Callable[[TurnEvent], None],
    cancel: Cancel,
) -> AnswerResult:
    """Load, answer `prompt`, free the models.

    Args:
        request: what to load, and how to answer.
        prompt: the question.
        trace: file for the data of a replay, or None.
        before: earlier messages, without the system prompt.
        offered: the tools that the model may call, as for `Session.offer`.
        call: runs the calls that an answer ends with; returns their results, after which the model
            goes on.
        loaded: called with the session before it answers.
        progress: receives every step of loading.
        hear: receives notices for the user and every event of the turn except its end.
        cancel: stops it; an answer that has begun is returned as far as it got.

    Raises:
        LocalspecError: as `load_session` and `Session.turn`; the trace cannot be written.
        Cancelled: it was stopped while loading.
    """
    with closing(load_session(request, progress=progress, cancel=cancel)) as session:
        asked = session.settings
        loaded(session)
        session.settings = replace(asked, sampling=asked.sampling.seeded())
        for notice in session.notices:
            hear(Noticed(notice))
        session.open(before)
        tools, instead = offered
        if tools:
            session.offer(tools, instead)
        known = (*tools, *instead)
        with _traced(session, trace):
            end = _spoken(session, session.turn(prompt, cancel), known, hear)
            while not end.cut_off(asked.stop) and (calls := _calls(session, end, known)):
                results = call(calls)
                end = _spoken(session, session.go_on(results, cancel), known, hear)
        steps = tuple(session.messages[len(before) + 1 : -1])
        return _answered(session, end, asked, steps)


CallTools: TypeAlias = Callable[[Sequence[tuple[str, str]]], Sequence[Message]]
"""Runs calls, given as names and arguments in JSON."""


def _spoken(
    session: Session,
    turn: Iterator[TurnEvent],
    known: Sequence[dict[str, Any]],
    hear: Callable[[TurnEvent], None],
) -> TurnEnd:
    """Report the events of an answer; return its end."""
    spoken = _WithoutThoughts(session, known)
    for event in turn:
        if isinstance(event, TurnEnd):
            for shown in spoken.end(event):
                hear(shown)
            return event
        for shown in spoken.take(event):
            hear(shown)
    raise AssertionError("the turn ended without a TurnEnd")


def _calls(
    session: Session, end: TurnEnd, known: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    """The calls that an answer ends with."""
    found = session.dialect.calls(end.text, known) if known else []
    return [one.texts() for one in found]


class _WithoutThoughts:
    """Removes thoughts and calls from the text of rounds."""

    def __init__(self, session: Session, known: Sequence[dict[str, Any]]) -> None:
        self._reader = OriginReader(session.dialect.reader(known, exact=True))
        self._last: RoundText | None = None

    def take(self, event: TurnEvent) -> Iterator[TurnEvent]:
        """The events to report for `event`."""
        if not isinstance(event, RoundText):
            yield event
            return
        self._last = event
        told = (one for span in event.spans for one in self._reader.feed(span))
        yield structs.replace(event, spans=_content(told))

    def end(self, event: TurnEnd) -> Iterator[TurnEvent]:
        """Text held back because it could have become a mark: the text of the last round."""
        spans = _content(self._reader.end(cut=event.reason is not FinishReason.STOP))
        if spans and self._last is not None:
            yield structs.replace(self._last, spans=spans)


def _content(told: Iterable[tuple[bool, tuple[Span, ...]]]) -> tuple[Span, ...]:
    return tuple(span for thought, spans in told if not thought for span in spans)


@contextmanager
def _traced(session: Session, path: Path | None) -> Iterator[None]:
    """Write the answer's trace to `path`, one JSON document per line."""
    if path is None:
        yield
        return
    try:
        with path.open("w", encoding="utf-8") as out:

            def line(document: dict[str, Any]) -> None:
                out.write(json.dumps(document, allow_nan=False) + "\n")

            session.trace = TraceWriter(line, _settings(session))
            yield
    except OSError as error:
        raise LocalspecError(
            f"cannot write the trace to {path}: {error.strerror}", "Choose another file."
        ) from None
    finally:
        session.trace = None


def _answered(
    session: Session, end: TurnEnd, asked: ChatSettings, steps: tuple[Message, ...]
) -> AnswerResult:
    said = session.dialect.said(end.text, cut=end.reason is not FinishReason.STOP)
    return AnswerResult(
        end=end,
        said=said.content or "",
        thought=said.thought,
        figures=session.figures(),
        speculation_note=session.speculation_note,
        peak_memory_bytes=session.peak_memory_bytes(),
        settings=_settings(session),
        chosen=asked,
        pair_name=session.pair_name,
        pair_reference=session.pair_reference,
        spans=session.messages[-1].spans if session.messages else (),
        notices=tuple(session.notices),
        steps=steps,
    )


def _settings(session: Session) -> dict[str, Any]:
    """All settings in force, by their names on the command line."""
    chosen, pair = session.settings, session.pair
    sampling = asdict(chosen.sampling)
    return {
        "pair": pair.name,
        "target": str(pair.target.model.path),
        "draft": str(pair.draft.model.path) if pair.draft else None,
        "draft_note": session.speculation_note,
        **pair.loaded.document(),
        "temp": sampling.pop("temperature"),
        **sampling,
        "sampling_sources": {
            CHAIN[name].key: source.value for name, source in session.advice.sources(chosen).items()
        },
        # JSON has no infinity.
        "logit_bias": {str(token): str(bias) for token, bias in chosen.sampling.logit_bias.items()},
        "accept": chosen.rule.value if chosen.lenience is None else "lossy",
        "lossy": chosen.lenience,
        "grammar": chosen.grammar or None,
        "gamma": chosen.gamma,
        "gamma_note": gamma_words(session.figures().gamma_note),
        "n_predict": chosen.n_predict,
        "repeat_stop": chosen.repeat_stop,
        "reasoning": chosen.reasoning,
        "reasoning_effort": chosen.reasoning_effort or None,
        "reasoning_budget": chosen.reasoning_budget,
        "reasoning_format": chosen.reasoning_format,
        "system_prompt": chosen.system_prompt,
        "stop": list(chosen.stop),
    }
