"""Jobs: work that a command asks for as a whole, from loading to freeing, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, msgpack

from localspec.bench.request import BenchRequest
from localspec.chat.conversation import Message
from localspec.chat.events import Noticed, TurnEvent
from localspec.loading.request import LoadRequest
from localspec.process.messages import Asking, Loading, Tell, Turn

if TYPE_CHECKING:
    from localspec.bench.result import Report
    from localspec.engine.cancel import Cancel
    from localspec.loading.results import Answered, TunedPair


class AnswerJob(Struct, frozen=True, tag=True):
    """Answer one prompt; `Answered` comes of it.

    Attributes:
        request: what is loaded, and how it answers.
        prompt: the question.
        trace: a file for what a replay needs; None for none.
        before: what was said before, without the system prompt.
    """

    request: LoadRequest
    prompt: str
    trace: str | None = None
    before: tuple[Message, ...] = ()


class BenchJob(Struct, frozen=True, tag=True):
    """Measure speculation off against on; a `Report` comes of it, also where it is stopped.

    Attributes:
        request: the target, and the first draft.
        how: what is measured.
    """

    request: LoadRequest
    how: BenchRequest


class TuneJob(Struct, frozen=True, tag=True):
    """Measure what decodes cost, and keep that; a `TunedPair` comes of it."""

    request: LoadRequest


AnyJob: TypeAlias = AnswerJob | BenchJob | TuneJob


def perform(job: bytes, tell: Tell, cancel: Cancel) -> bytes:
    """Do a job.

    Args:
        job: encoded.
        tell: told of `Loading`, `Turn` and `Asking`.
        cancel: stops it.

    Returns:
        The result, encoded.

    Raises:
        LocalspecError: what was asked for cannot be done.
        Cancelled: it was stopped before there was a result.
    """

    def loading(step: str, share: float | None) -> None:
        tell(Loading(step, share))

    def hear(event: TurnEvent) -> None:
        tell(Turn(event))

    found: Answered | Report | TunedPair
    match msgpack.decode(job, type=AnyJob):  # late imports: each needs only its own
        case AnswerJob(request, prompt, trace, before):
            from localspec.loading.answering import answer  # noqa: PLC0415

            found = answer(
                request,
                prompt,
                None if trace is None else Path(trace),
                before=before,
                progress=loading,
                hear=hear,
                cancel=cancel,
            )
        case TuneJob(request):
            from localspec.loading.tuning import tune  # noqa: PLC0415

            found = tune(request, progress=loading, cancel=cancel)
        case BenchJob(request, how):
            from localspec.bench.benchmark import bench_pair  # noqa: PLC0415

            found = bench_pair(
                request,
                how,
                cancel,
                progress=loading,
                asking=lambda *at: tell(Asking(*at)),
                warn=lambda notice: hear(Noticed(notice)),
            )
    return msgpack.encode(found)
