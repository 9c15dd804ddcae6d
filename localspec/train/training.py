"""The steps of a training, its checkpoints, and the best head so far."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from localspec import formats, private
from localspec.engine.cancel import Cancel
from localspec.engine.length.cost import PAUSE, PAUSE_S
from localspec.errors import LocalspecError
from localspec.loading.model_loader import Progress
from localspec.safe_text import reason
from localspec.train.estimate import JUDGED
from localspec.train.texts.answers import AnsweredText
from localspec.train.texts.lessons import Lessons, batches
from localspec.train.training_folder import TrainingFolder

if TYPE_CHECKING:
    from localspec.train.head.learning import Acceptance, HeadLearner

_SAVE_S: Final = 30.0
_BETWEEN_SAVES: Final = 20  # times as long as a save takes: gigabytes for a large head
_SMOOTH: Final = 0.05


@dataclass(slots=True)
class TrainingState:
    """Progress of a training.

    Attributes:
        seconds: total time of all steps.
        loss, first: averages over the last steps.
        best: mean number of accepted tokens per draft of the best head so far.
        shares: for that head, the share of drafts accepted up to each position.
        control: first-token acceptance of the most common token.
    """

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    first: float = 0.0
    best: float = -1.0
    shares: tuple[float, ...] = ()
    control: float = 0.0


class Training:
    """Steps over all batches of all passes, resumed from the last checkpoint."""

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
        """Load what the work folder holds.

        Args:
            work: the folder for checkpoints and the best head.
            learner: a head.
            lessons: of its target.
            samples: answers to train on.
            held: greedy answers to judge by.
            passes: over all samples.
            common: the most common id of the answers.

        Raises:
            LocalspecError: the checkpoint there is damaged.
            OSError: it cannot be read.
        """
        self._work, self._learner, self._lessons = work, learner, lessons
        self._held, self._common = held, common
        self._batches = [batch for turn in range(passes) for batch in batches(samples, turn)]
        self.standing = TrainingState()
        if work.checkpoint.exists():
            self._restore()

    def _restore(self) -> None:
        """Continue from the checkpoint.

        Raises:
            LocalspecError: it is damaged.
            OSError: it cannot be read.
        """
        path = self._work.checkpoint
        saved = path.read_bytes()
        try:
            self.standing = TrainingState(**self._learner.restore(saved))
        except Exception as error:  # torch has many kinds for a damaged file
            raise LocalspecError(
                f"the checkpoint {path} cannot be read: {reason(error)}",
                "Delete it to learn anew from the same answers, or begin anew with --anew.",
            ) from None

    @property
    def steps(self) -> int:
        """Total number of steps."""
        return len(self._batches)

    def run(self, cancel: Cancel, progress: Progress, write: Callable[[], None]) -> None:
        """Train to the end; the end and every interruption write a checkpoint.

        Args:
            cancel: stops it after the current step.
            progress: called after every step.
            write: writes the head in its present state; called when it is the best so far.

        Raises:
            Cancelled: `cancel` was set; a checkpoint was written.
            OSError: a checkpoint or the head cannot be written.
        """
        now, due = self.standing, time.monotonic() + _SAVE_S
        every = max(1, self.steps // JUDGED)
        judged = inf  # seconds of the last judgement; the first counts whole
        try:
            while now.step < self.steps:
                cancel.check()
                started = time.monotonic()
                self._step()
                stepped = time.monotonic()
                usual = now.seconds / (now.step - 1) if now.step > 1 else inf
                now.seconds += _awake(stepped - started, usual)
                if now.step % every == 0 or now.step == self.steps:
                    self._judge(write)
                    judged = _awake(time.monotonic() - stepped, judged)
                    now.seconds += judged
                progress(self._words(), now.step / self.steps)
                if (began := time.monotonic()) > due:
                    self.save()
                    took = time.monotonic() - began
                    due = time.monotonic() + max(_SAVE_S, _BETWEEN_SAVES * took)
        finally:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        its = self.standing
        more: dict[str, Any] = {name: getattr(its, name) for name in TrainingState.__slots__}
        private.write_whole(self._work.checkpoint, self._learner.saved(more))

    def _step(self) -> None:
        now = self.standing
        one = self._lessons.of(self._batches[now.step])
        loss, first = self._learner.learn(one, now.step / self.steps, now.step)
        share = _SMOOTH if now.step else 1.0
        now.loss += share * (loss - now.loss)
        now.first += share * (first - now.first)
        now.step += 1

    def _judge(self, write: Callable[[], None]) -> None:
        """Evaluate on the held-out answers; keep the head if it is the best so far."""
        found = self.held_out_acceptance()
        now, score = self.standing, sum(found.shares)
        if score >= now.best:
            write()  # first: a checkpoint must not name a head that could not be written
            now.best, now.shares, now.control = score, found.shares, found.control
        line = {"step": now.step, "of": self.steps, "seconds": round(now.seconds, 1)}
        figures = {"loss": now.loss, "first": now.first, "control": found.control}
        shares = [round(each, 4) for each in found.shares]
        rounded = {name: round(value, 4) for name, value in figures.items()}
        with self._work.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | rounded | {"held_out": shares}) + "\n")

    def held_out_acceptance(self) -> Acceptance:
        """The acceptance of the head's present drafts on the held-out answers."""
        lessons = (self._lessons.of(batch) for batch in batches(self._held, 0))
        found: Acceptance = self._learner.judge(lessons, self._common)
        return found

    def _words(self) -> str:
        now = self.standing
        left = now.seconds / now.step * (self.steps - now.step)
        first = formats.percent(now.shares[0]) if now.shares else ""
        drafted = f", {first} of first tokens accepted" if first else ""
        return f"Training: {formats.duration(left)} left{drafted}"


def _awake(seconds: float, usual: float) -> float:
    """A time without most of a pause in it.

    Windows' clock goes on while the machine sleeps, and every clock while the program is
    suspended.
    """
    return min(seconds, PAUSE_S + PAUSE * usual)
