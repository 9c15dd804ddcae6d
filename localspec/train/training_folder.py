"""The folder of a training: its terms, its answers so far, and its state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from localspec import formats, private
from localspec.errors import LocalspecError, UsageError
from localspec.pairs.disk import trainings
from localspec.train.texts.prompts import TrainingPrompts

_FORMAT: Final = 1


class TrainingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a training; it can only be resumed with the same terms.

    Attributes:
        target: the fingerprint of the target's files.
        prompts, answers: hashes of the given files.
        history, passes, hours: as in `TrainRequest`.
        tokens: as given; None if not given.
        init: fingerprint of the head it started from; empty for none.
    """

    target: str
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    history: bool
    tokens: int | None
    passes: int
    hours: float | None
    init: str
    format: int = _FORMAT


class TrainingChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions from the beginning of a training.

    Attributes:
        tokens: of answers.
        path: of the target's first file; empty in older records.
    """

    terms: TrainingTerms
    tokens: int
    feed_forward: int
    drafted: int
    path: str = ""


class TrainingFolder:
    """The folder of one target's training.

    Attributes:
        folder: created if missing.
    """

    def __init__(self, target: str) -> None:
        """Name the files for a target with this fingerprint."""
        self.folder = trainings.folder_of(target)
        self.answers = self.folder / "answers.jsonl"
        self.held = self.folder / "held-out.jsonl"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.head = self.folder / "head.gguf"
        self.log = self.folder / "log.jsonl"
        self.probe = self.folder / "probe.gguf"
        self._prompts = self.folder / "prompts.json"
        self._begun = trainings.record_of(self.folder)

    def begun(self) -> TrainingChoices | None:
        """The decisions of an unfinished training; None without one."""
        return private.read_json(self._begun, TrainingChoices)

    def begin(self, begun: TrainingChoices, prompts: TrainingPrompts | None = None) -> None:
        """Store the decisions; an earlier training, which is forgotten now, is deleted.

        Args:
            begun: the decisions.
            prompts: those that will be others when they are gathered again.
        """
        self._begun.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        if prompts is not None:
            private.write_json(self._prompts, prompts)
        private.write_json(self._begun, begun)

    def prompts(self) -> TrainingPrompts | None:
        """The prompts that `begin` stored; None if it stored none.

        Raises:
            UsageError: they cannot be read.
        """
        found = private.read_json(self._prompts, TrainingPrompts)
        if found is None and self._prompts.exists():
            raise UsageError(
                f"the prompts of the training that was stopped cannot be read: {self._prompts}",
                "Begin anew with --anew.",
            )
        return found

    def enter(self, terms: TrainingTerms, *, resume: bool, anew: bool) -> TrainingChoices | None:
        """Begin or resume as requested; return the earlier decisions when resuming.

        An earlier training that is to be forgotten stays until `begin`: the new one may be refused.

        Raises:
            UsageError: a training is unfinished but the request says neither to resume nor to
                discard it; there is none to resume; its terms differ, or cannot be read.
        """
        before = None if anew else self.begun()
        if before is None and self._begun.exists() and not anew:
            raise UsageError(
                f"a training was stopped whose terms cannot be read; it is kept: {self._begun}",
                "Repair that file and go on with --resume, or begin anew with --anew.",
            )
        if before is None:
            if resume:
                raise UsageError(
                    "there is no training of this target to go on with", "Leave --resume out."
                )
            private.make_folder(self.folder)
            return None
        if not resume:
            raise UsageError(
                "a training of this target was stopped before its end",
                "Go on with --resume, or begin anew with --anew.",
            )
        if before.terms != terms:
            raise UsageError(
                f"the training that was stopped had other settings: {_difference(before, terms)}",
                "Give the same ones with --resume, or begin anew with --anew.",
            )
        return before

    def close(self) -> None:
        """Delete the folder unless a training has begun in it, which can go on."""
        if not self._begun.exists():
            self.leave()

    def leave(self) -> None:
        """Delete the folder; the head has been moved out."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _difference(before: TrainingChoices, terms: TrainingTerms) -> str:
    old, new = msgspec.structs.asdict(before.terms), msgspec.structs.asdict(terms)
    return ", ".join(name for name in old if old[name] != new[name])


def require_disk(folder: Path, n_bytes: int) -> None:
    """Check that `n_bytes` fit on the disk of `folder`, in place of what it holds.

    Raises:
        LocalspecError: they do not.
    """
    free = shutil.disk_usage(folder).free + trainings.size(folder)
    if free < n_bytes:
        raise LocalspecError(
            f"the training needs {formats.size(n_bytes)} of disk, {formats.size(free)} are free in"
            f" {folder}",
            "Make room, set LOCALSPEC_DATA to a folder elsewhere, or lower --tokens.",
        )
