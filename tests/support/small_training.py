"""Trainings that take seconds: `python -m tests.support.small_training train ...`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.cli import main
from localspec.train import pipeline
from localspec.train.texts import answers, prompts
from localspec.train.verdict import head_verdict


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Answers are short, since random models never end one; prompts are few, and no run waits."""
    patch.setattr(answers, "LONGEST", 160)
    patch.setattr(pipeline, "wait_for_calm", lambda *_: 0.0)
    few = replace(found := prompts.gather((), ()), held_out=found.held_out[:2])
    patch.setattr(head_verdict, "gather", lambda *_: few)


if __name__ == "__main__":
    shrink(pytest.MonkeyPatch())
    main()
