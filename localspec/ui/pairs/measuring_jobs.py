"""Tuning and benchmarking from the chat: jobs that have the engine for themselves, and reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

from msgspec import msgpack

from localspec import formats
from localspec.bench import prompt_sets, report_files
from localspec.bench.prompt_sets import BenchRequest
from localspec.bench.result import BenchReport
from localspec.bench.tables import brief
from localspec.chat.settings import Gamma
from localspec.errors import LocalspecError
from localspec.loading.load_request import LoadRequest
from localspec.loading.results import TunedPair, tuned_text
from localspec.process.jobs import BenchJob, TuneJob
from localspec.process.messages import BenchProgress, JobDone
from localspec.safe_text import one_line
from localspec.ui.pairs.pair_loader import PairLoader
from localspec.ui.status_lines import StatusLine
from localspec.ui.transcript.transcript import Transcript


@dataclass(eq=False, repr=False)
class MeasuringJobs:
    """Measures the pair, which is unloaded meanwhile; the conversation stays.

    Attributes:
        report: the latest bench of what is in use, for exporting.
    """

    pair_loader: PairLoader
    transcript: Transcript
    status: StatusLine
    report: BenchReport | None = None
    _kind: type[BenchReport] | type[TunedPair] = BenchReport
    _output: Path | None = None
    _about: object = None  # what `report` was measured with
    _began: float | None = None  # when the first question of a bench was asked

    def tune(self) -> None:
        """Measure thoroughly, as `localspec tune`."""
        self._kind = TunedPair
        self.pair_loader.perform(lambda loaded: TuneJob(replace(loaded, gamma=0)))

    def bench(self, output: Path | None) -> None:
        """Bench as `localspec bench --quick`; with a file, write the latest report to it.

        Raises:
            LocalspecError: the file cannot be written.
        """
        if output is not None:
            report_files.check((output,))
        engine = self.pair_loader.turns.engine
        session = engine.info
        gamma = session.settings.gamma if session is not None else engine.loaded.gamma
        pair = session.pair_reference if session is not None else None
        about = pair, replace(engine.loaded, pair=None, draft=None), gamma
        if about != self._about:
            self._about, self.report = about, None
        if output is not None and self.report is not None:
            report_files.write(self.report, output)
            self.transcript.say(f"the report is in {output}")
            return
        self._kind, self._output = BenchReport, output
        self.pair_loader.perform(partial(_quick, gamma=gamma))

    def hear(self, news: BenchProgress | JobDone) -> None:
        """Show the progress or the result of a job, or say why it has none."""
        match news:
            case BenchProgress():
                self._asking(news)
            case JobDone(None, error):
                stopped = LocalspecError("stopped: nothing was measured")
                self.pair_loader.trouble(error.exception() if error else stopped)
            case JobDone(bytes() as result) if self._kind is TunedPair:
                self.pair_loader.tell(tuned_text(msgpack.decode(result, type=TunedPair)))
            case JobDone(bytes() as result):
                self.report = msgpack.decode(result, type=BenchReport)
                endings = ", ".join(f".{each}" for each in report_files.ENDINGS)
                remedy = f"/bench FILE writes all of the report: {endings}."
                self.pair_loader.tell(brief(self.report), remedy)
                if self._output is not None:
                    self._write(self.report, self._output)

    def _asking(self, at: BenchProgress) -> None:
        if at.done == 0 or self._began is None:
            self._began = perf_counter()
        passed, left, share = perf_counter() - self._began, "", None
        if at.left_s is not None:  # its time is up long before the last repeat
            left, share = f", about {formats.duration(at.left_s)} left", _share(passed, at.left_s)
        said = f"question {at.done + 1}{left}: {one_line(at.prompt, 40)}"
        self.status.lasting(said, share, hint="Esc ends it")

    def _write(self, report: BenchReport, path: Path) -> None:
        try:
            report_files.write(report, path)
        except LocalspecError as error:
            self.pair_loader.trouble(error)
        else:
            self.pair_loader.tell(f"the report is in {path}")


def _share(passed: float, left: float) -> float:
    whole = passed + max(0.0, left)
    return passed / whole if whole else 0.0


def _quick(loaded: LoadRequest, *, gamma: Gamma) -> BenchJob:
    """The request of `localspec bench --quick`, with the gamma of the conversation if not 0."""
    started = perf_counter()
    how = BenchRequest(
        prompts=prompt_sets.quick(),
        repeats=1,
        n_predict=prompt_sets.TOKENS,
        temperature=0.0,
        seed=1,
        gamma=gamma or "auto",
        deadline=started + prompt_sets.QUICK_S,
    )
    return BenchJob(replace(loaded, temp=0.0, seed=None), how)
