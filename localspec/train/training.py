"""The steps of a training, the checkpoints between them, and the best head so far."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from localspec import formats, private
from localspec.engine.cancel import Cancel
from localspec.loading.model_loader import Progress
from localspec.train.head.learning import Acceptance, HeadLearner
from localspec.train.texts.answers import AnsweredText
from localspec.train.texts.lessons import Lessons, batches
from localspec.train.training_folder import TrainingFolder

_SAVE_S: Final = 30.0
_JUDGED: Final = 20  # times in a training
_SMOOTH: Final = 0.05
_PAUSE_S: Final = 60.0  # a step that took longer: the machine slept


@dataclass(slots=True)
class TrainingState:
    """Where a training stands.

    Attributes:
        step: how many steps are done.
        seconds: that they took.
        loss, first: of the last steps, on average.
        best: of the best head so far, how many tokens of a draft are accepted on average.
        shares: of that head, how many drafts are accepted up to each place.
        control: what the commonest token would come to.
    """

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    first: float = 0.0
    best: float = -1.0
    shares: tuple[float, ...] = ()
    control: float = 0.0


class Training:
    """Steps over all batches of all passes, from wherever it stands."""

    def __init__(
        self,
        work: TrainingFolder,
        learner: HeadLearner,
        lessons: Lessons,
        samples: Sequence[AnsweredText],
        held: Sequence[AnsweredText],
        *,
        passes: int,
        common: int,
    ) -> None:
        """Take up what the work folder holds.

        Args:
            work: where checkpoints and the best head go.
            learner: a head.
            lessons: of its target.
            samples: what is learnt from.
            held: greedy answers by which it is judged.
            passes: over all samples.
            common: the commonest id of answers.
        """
        self._work, self._learner, self._lessons = work, learner, lessons
        self._held, self._common = held, common
        self._batches = [batch for turn in range(passes) for batch in batches(samples, turn)]
        self.standing = TrainingState()
        if work.checkpoint.exists():
            self.standing = TrainingState(**learner.restore(work.checkpoint.read_bytes()))

    @property
    def steps(self) -> int:
        """How many there are in all."""
        return len(self._batches)

    def run(
        self,
        cancel: Cancel,
        progress: Progress,
        write: Callable[[], None],
        between: Callable[[], None],
    ) -> None:
        """Learn until all is done; the end and every interruption leave a checkpoint.

        Args:
            cancel: stops it, after the step that is running.
            progress: told after every step.
            write: writes the head as it is now; called when it is the best so far.
            between: called before every step.

        Raises:
            Cancelled: `cancel` was set; a checkpoint is there.
            OSError: a checkpoint or the head cannot be written.
        """
        now, saved = self.standing, time.monotonic()
        every = max(1, self.steps // _JUDGED)
        try:
            while now.step < self.steps:
                between()
                cancel.check()
                started = time.monotonic()
                self._step()
                if now.step % every == 0 or now.step == self.steps:
                    self._judge(write)
                now.seconds += min(_PAUSE_S, time.monotonic() - started)
                progress(self._words(), now.step / self.steps)
                if time.monotonic() - saved > _SAVE_S:
                    self.save()
                    saved = time.monotonic()
        finally:
            self.save()

    def save(self) -> None:
        """Write a checkpoint: all or nothing."""
        its = self.standing
        more: dict[str, Any] = {name: getattr(its, name) for name in TrainingState.__slots__}
        with private.whole_file(self._work.checkpoint) as file:
            file.write(self._learner.saved(more))

    def _step(self) -> None:
        now = self.standing
        one = self._lessons.of(self._batches[now.step])
        loss, first = self._learner.learn(one, now.step / self.steps, now.step)
        share = _SMOOTH if now.step else 1.0
        now.loss += share * (loss - now.loss)
        now.first += share * (first - now.first)
        now.step += 1

    def _judge(self, write: Callable[[], None]) -> None:
        """Look at the held-out answers; keep the head if it is the best so far."""
        found = self.judged()
        now, score = self.standing, sum(found.shares)
        if score > now.best:
            now.best, now.shares, now.control = score, found.shares, found.control
            write()
        line = {"step": now.step, "of": self.steps, "seconds": round(now.seconds, 1)}
        figures = {"loss": now.loss, "first": now.first, "control": found.control}
        shares = [round(each, 4) for each in found.shares]
        rounded = {name: round(value, 4) for name, value in figures.items()}
        with self._work.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | rounded | {"held_out": shares}) + "\n")

    def judged(self) -> Acceptance:
        """How much of what the head drafts now the held-out answers would accept."""
        lessons = (self._lessons.of(batch) for batch in batches(self._held, 0))
        found: Acceptance = self._learner.judge(lessons, self._common)
        return found

    def _words(self) -> str:
        now = self.standing
        left = now.seconds / now.step * (self.steps - now.step)
        drafted = f", {now.shares[0]:.0%} of first tokens accepted" if now.shares else ""
        return f"Training: {formats.duration(left)} left{drafted}"
