"""A short training in a process that tells what it took: `python -m tests.support.training_size`.

Its answers are short, and two prompts are held out; a step learns as many rows as ever.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import machine
from localspec.engine.cancel import Cancel
from localspec.pairs.disk.folders import cache_folder, data_folder
from localspec.train import pipeline
from localspec.train.pipeline import TrainingListener
from localspec.train.texts import prompts
from localspec.train.train_request import TrainRequest

TOKENS = 1100  # enough for a step of all rows


def on_disk() -> int:
    """Bytes of all files in localspec's folders."""
    folders = (data_folder(), cache_folder())
    return sum(each.stat().st_size for it in folders for each in it.rglob("*") if each.is_file())


def main() -> None:
    """Train, and print JSON: the sentence told before, and the most bytes of memory and disk."""
    target, asked = map(Path, sys.argv[1:])
    few = replace(found := prompts.gather((), ()), held_out=found.held_out[:2])
    patch = pytest.MonkeyPatch()
    patch.setattr("localspec.train.texts.answers.LONGEST", 160)
    patch.setattr("localspec.train.head_verdict.gather", lambda *_: few)
    patch.setattr("localspec.train.pipeline.wait_for_calm", lambda *_: 0.0)
    said: list[str] = []
    disk = before = on_disk()

    def between() -> None:
        nonlocal disk
        disk = max(disk, on_disk())

    request = TrainRequest(
        pair=str(target), prompts=(asked,), tokens=TOKENS, passes=1, force=True, threads=1
    )
    pipeline.train(request, TrainingListener(said.append, lambda *_: None, Cancel(), between))
    between()
    told = next(sentence for sentence in said if " of memory" in sentence)
    took = {"told": told, "memory": machine.peak_resident(), "disk": disk - before}
    sys.stdout.write(json.dumps(took))


if __name__ == "__main__":
    main()
