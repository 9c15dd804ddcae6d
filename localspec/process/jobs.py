"""Jobs: work that a command requests as a whole, from loading the models to freeing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, convert, msgpack

from localspec.bench.prompt_sets import BenchRequest
from localspec.chat.conversation import Message
from localspec.chat.events import Noticed
from localspec.loading.load_request import LoadRequest
from localspec.process.messages import (
    BenchProgress,
    Loaded,
    Loading,
    SendEvent,
    SessionInfo,
    ToolsCalled,
    TurnReported,
)

if TYPE_CHECKING:
    from localspec.bench.result import BenchReport
    from localspec.engine.cancel import Cancel
    from localspec.loading.results import AnswerResult, TunedPair


class AnswerJob(Struct, frozen=True, tag=True):
    """Answer one prompt; the result is an `AnswerResult`.

    Attributes:
        trace: the path of a file for what a replay needs; None for none.
        before: the earlier messages, without the system prompt.
        tools: those that the model may call, in the form of OpenAI's requests.
        instead: offered in their place if these would take too much of the context.
    """

    request: LoadRequest
    prompt: str
    trace: str | None = None
    before: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    instead: tuple[dict[str, Any], ...] = ()


class BenchJob(Struct, frozen=True, tag=True):
    """Measure speculation off against on; the result is a `BenchReport`, even if it is stopped.

    `request` has the target and the first draft.
    """

    request: LoadRequest
    how: BenchRequest


class TuneJob(Struct, frozen=True, tag=True):
    """Measure what decodes cost, and store it; the result is a `TunedPair`."""

    request: LoadRequest


AnyJob: TypeAlias = AnswerJob | BenchJob | TuneJob


def perform(
    job: bytes, tell: SendEvent, cancel: Cancel, returned: Callable[[], tuple[Message, ...]]
) -> bytes:
    """Do an encoded job; return its encoded result.

    `tell` gets `Loading`, `TurnReported`, `BenchProgress` and `ToolsCalled` events, and `Loaded`
    before an answer; `cancel` stops the job; `returned` waits for the results of called tools.

    Raises:
        LocalspecError: the job cannot be done.
        Cancelled: it was stopped before it had a result.
    """

    def loading(step: str, share: float | None) -> None:
        tell(Loading(step, share))

    def warn(notice: str) -> None:
        tell(TurnReported(Noticed(notice)))

    found: AnswerResult | BenchReport | TunedPair
    match msgpack.decode(job, type=AnyJob):  # late imports: each job needs only its own
        case AnswerJob(request, prompt, trace) as asked:
            from localspec.loading.one_answer import answer  # noqa: PLC0415

            found = answer(
                request,
                prompt,
                None if trace is None else Path(trace),
                before=asked.before,
                offered=(asked.tools, asked.instead),
                call=lambda calls: _called(calls, tell, returned),
                loaded=lambda one: tell(Loaded(convert(one, SessionInfo, from_attributes=True))),
                progress=loading,
                hear=lambda event: tell(TurnReported(event)),
                cancel=cancel,
            )
        case TuneJob(request):
            from localspec.loading.measurements.tuning import tune  # noqa: PLC0415

            found = tune(request, progress=loading, warn=warn, cancel=cancel)
        case BenchJob(request, how):
            from localspec.bench.benchmark import bench_pair  # noqa: PLC0415

            found = bench_pair(
                request,
                how,
                cancel,
                progress=loading,
                asking=lambda *at: tell(BenchProgress(*at)),
                warn=warn,
            )
    return msgpack.encode(found)


def _called(
    calls: Sequence[tuple[str, str]], tell: SendEvent, returned: Callable[[], tuple[Message, ...]]
) -> tuple[Message, ...]:
    """Tell of calls, and wait for their results."""
    tell(ToolsCalled(tuple(calls)))
    return returned()
