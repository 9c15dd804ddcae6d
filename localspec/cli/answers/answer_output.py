"""The output of `localspec run`: the text as it comes, the figures, or a JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec import formats
from localspec.chat.conversation import Role
from localspec.chat.events import Noticed, Origin, PromptProgress, RoundText, Span, joined
from localspec.chat.figures.benefit import ratio, summary
from localspec.chat.figures.figures import Figures, gamma_words, lossy_words, speedup_words
from localspec.cli.standard_streams import ProgressLine, aside, takes_all, warn, write_said
from localspec.engine.record.stats import FinishReason, GenerationStats, Round
from localspec.errors import Cancelled, LocalspecError
from localspec.loading.results import AnswerResult, BrokenAnswer
from localspec.process.messages import Event, Loaded, SessionInfo, ToolsCalled, TurnReported

if TYPE_CHECKING:
    from collections.abc import Callable

    from localspec.loading.one_answer import CallTools
    from localspec.process.engine_client import JobClient


_SUMS = (
    *("prompt_tokens", "generated_tokens", "tokens_per_second", "time_to_first_token_s"),
    *("drafted_tokens", "accepted_tokens", "acceptance_rate", "mean_tokens_per_round"),
)


_WORTH_A_LINE_S = 1.0
_REPEATED = (
    "the answer only repeated itself and was stopped; --no-repeat-stop lets it go on, a higher"
    " --temp may help"
)


def print_answer(
    worker: JobClient,
    *,
    stats: bool,
    as_json: bool,
    keep: Callable[[AnswerResult | BrokenAnswer], None] | None = None,
    call: CallTools | None = None,
) -> bool:
    """Print text, figures or a document of an `AnswerJob`; return whether the user stopped it.

    Args:
        worker: runs the job.
        stats: print the figures to standard error afterwards.
        as_json: print one JSON document in place of the text.
        keep: called with the result, or with what was heard of an answer that broke off: once text
            or document are printed, or cannot be.
        call: runs the tools that the model calls; None if it may call none.

    Raises:
        LocalspecError: as `JobClient.result`; standard output cannot be written.
        Cancelled: the user stopped it while it was loading.
    """
    said = _SaidText(worker)
    try:
        try:
            found = _stream(said, call, show=not as_json)
        except (LocalspecError, Cancelled):
            if keep is not None and (heard := said.broken()) is not None:
                keep(heard)
            if said.error is not None:
                raise said.error from None
            raise
        memory = worker.peak_memory_bytes(found.peak_memory_bytes)
        try:
            if as_json:
                text = json.dumps(_document(found, memory), ensure_ascii=not takes_all(), indent=2)
                said.put(text + "\n")
        finally:
            if keep is not None:
                keep(found)
    except BrokenPipeError:
        return False  # the reader (head, less) has seen enough
    if said.error is not None:
        raise said.error
    if stats:
        aside(_summary(found, memory))
    if found.end.reason is FinishReason.REPETITION:
        aside(f"notice: {_REPEATED}")
    return found.end.reason is FinishReason.CANCELLED


class _SaidText:
    """What the model of a job says, on its way to standard output.

    Attributes:
        session: which models speak; None until they are loaded.
        heard: all of it, by origin.
        error: why it could not be written; the job was then stopped, so that its result is kept.
    """

    def __init__(self, worker: JobClient) -> None:
        self.worker = worker
        self.session: SessionInfo | None = None
        self.heard: list[Span] = []
        self.error: LocalspecError | None = None

    def hear(self, event: Event) -> None:
        """Remember what is to be kept of an answer that breaks off."""
        match event:
            case Loaded(session):
                self.session = session
            case TurnReported(RoundText(spans)):
                self.heard += spans
            case ToolsCalled() if joined(self.heard):  # what follows the results is another step
                self.heard.append(Span("\n\n", Origin.TARGET))

    def broken(self) -> BrokenAnswer | None:
        """What was heard, if there is something: text without thoughts, calls and results."""
        now = self.session
        if now is None or not (heard := joined(self.heard)):
            return None
        return BrokenAnswer(now.pair_name, now.pair_reference, now.settings, heard)

    def put(self, text: str) -> None:
        """Write; after a Ctrl+C, which ends a reader such as tee too, if it can be.

        Raises:
            BrokenPipeError: the reader has gone.
        """
        try:
            write_said(text)
        except BrokenPipeError:
            if not self.worker.stopped:
                raise
        except LocalspecError as error:  # once: what follows goes nowhere
            self.error = error
            self.worker.stop()


def _stream(said: _SaidText, call: CallTools | None, *, show: bool) -> AnswerResult:
    """Write the text as it comes; end the line even where the answer breaks off.

    While a long prompt is read, a terminal shows how far that is.
    """
    last, line = "", ProgressLine()

    def end_line() -> None:
        nonlocal last
        if last and not last.endswith("\n"):
            said.put("\n")
        last = ""

    def hear(event: Event) -> None:
        nonlocal last
        said.hear(event)
        match event:
            case TurnReported(Noticed(text)):
                warn(text)
            case TurnReported(PromptProgress(seconds_left=float(left)) as now) if line.is_terminal:
                if left >= _WORTH_A_LINE_S:
                    line.update(_reading(now, left))
            case TurnReported(RoundText() as round_):
                line.clear()
                if show and round_.text:
                    last = round_.text
                    said.put(last)
            case ToolsCalled(calls) if call is not None:
                end_line()
                said.worker.give(call(calls))

    try:
        return said.worker.result(AnswerResult, hear)
    finally:
        line.clear()
        end_line()


def _reading(now: PromptProgress, left: float) -> str:
    read = formats.percent(now.done / now.total)
    return f"reading {formats.count(now.total)} tokens: {read}, about {formats.duration(left)} left"


def _document(found: AnswerResult, memory: int) -> dict[str, Any]:
    """The document that `--json` prints: times in seconds, sizes in bytes."""
    stats, speedup = found.end.stats, ratio(found.figures)
    return {
        "text": found.said,
        "thought": found.thought,
        "tokens": [token for done in stats.rounds for token in done.tokens],
        "finish_reason": found.end.reason.value,
        **{name: getattr(stats, name) for name in _SUMS},
        "speedup": asdict(speedup) if speedup else None,
        "rounds": [_round(done) for done in stats.rounds],
        "drafters": {name: asdict(its) for name, its in stats.drafters.items()},
        "prefill": {
            "target": {"cached": stats.prefill_cached, "decoded": stats.prefill_decoded},
            "draft": {"cached": stats.draft_cached, "decoded": stats.draft_prefill},
        },
        "peak_memory_bytes": memory,
        "calls": [
            {"name": one.more["name"], "arguments": one.more["arguments"], "result": one.content}
            for one in found.steps
            if one.role is Role.TOOL
        ],
        "settings": found.settings,
        "notices": found.notices,
    }


def _summary(found: AnswerResult, memory: int) -> str:
    """The figures for a person, one to a line."""
    stats, figures = found.end.stats, found.figures
    note = lossy_words(stats.lenience)
    gamma = f"0 (no drafting; {found.speculation_note or 'gamma is 0'})"
    if figures.speculation:
        gamma = f"{figures.gamma} ({gamma_words(figures.gamma_note)})"
    rows = [
        ("drafting", summary(figures) or "nothing was written"),
        (
            "prompt",
            f"{stats.prompt_tokens} tokens, {stats.prefill_cached} cached, {stats.prefill_s:.2f} s",
        ),
        (
            "generated",
            f"{stats.generated_tokens} tokens, {formats.number(stats.tokens_per_second, 2)}"
            f" tokens/s{f' ({note})' if note else ''}",
        ),
        ("time to first token", formats.seconds(stats.time_to_first_token_s)),
        ("draft length at its end", gamma),
        ("drafted", _drafted(stats)),
        ("acceptance rate", formats.percent(stats.acceptance_rate, 1)),
        ("tokens per round", formats.number(stats.mean_tokens_per_round, 2)),
        ("speed-up", _speedup(figures)),
        ("time", f"{stats.draft_s:.2f} s drafting, {stats.verify_s:.2f} s verifying"),
        ("peak memory", formats.size(memory)),
    ]
    return "\n".join(formats.columns(rows))


def _speedup(now: Figures) -> str:
    """The measured speed-up with its interval, if it can be trusted."""
    if (found := ratio(now)) is not None:
        return f"{speedup_words(found)} (measured)"
    return "- (can't tell)" if now.speedup else "- (not measured)"


def _round(done: Round) -> dict[str, Any]:
    """A round as JSON; a draft of two drafters has both names with a + between."""
    names = ("drafted", "accepted", "emitted", "draft_s", "verify_s")
    figures = {name: getattr(done, name) for name in names}
    return {"gamma": done.gamma, "drafter": done.proposed_by, **figures}


def _drafted(stats: GenerationStats) -> str:
    line = f"{stats.drafted_tokens} tokens, {stats.accepted_tokens} accepted"
    if len(stats.drafted_by) < 2:
        return line
    each = (f"{name} {accepted} of {drafted}" for name, drafted, accepted in stats.drafted_by)
    return f"{line} ({', '.join(each)})"
