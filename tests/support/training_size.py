"""A short training in a process that tells what it took: `python -m tests.support.training_size`.

Its one step learns from as many rows as ever, and all tokens of a draft, since it begins with the
shipped head; the answers are given. All else is done once and for a few tokens: measuring, the one
prompt that is held out, judging.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from localspec import machine
from localspec.engine.cancel import Cancel
from localspec.pairs.disk import starter
from localspec.pairs.disk.folders import cache_folder, data_folder
from localspec.train import pipeline, step_costs
from localspec.train.texts import answers, prompts
from localspec.train.train_request import TrainRequest
from localspec.train.training_listener import TrainingListener
from localspec.train.verdict import head_verdict, judging
from tests.support.small_training import shrink

HEAD = Path(__file__).parents[2] / "models" / starter.HEAD
FEW = 8  # tokens of an answer by which the head is judged


def on_disk() -> int:
    """Bytes of all files in localspec's folders."""
    folders = (data_folder(), cache_folder())
    return sum(each.stat().st_size for it in folders for each in it.rglob("*") if each.is_file())


def conversations(path: Path) -> Path:
    """Write two conversations whose answers are as long as any: they fill a step."""
    text = " ".join(prompts.built_in()[:100])
    said = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}]
    path.write_text(2 * (json.dumps({"messages": said}) + "\n"))
    return path


def main() -> None:
    """Train, and print JSON: the sentence told before, and the most bytes of memory and disk."""
    target, asked = map(Path, sys.argv[1:])
    patch = pytest.MonkeyPatch()
    patch.setattr(prompts, "_HELD_OUT", 1)
    shrink(patch)
    patch.setattr(answers, "LONGEST", 64)
    patch.setattr(step_costs, "_BUDGET_S", 0.1)
    patch.setattr(step_costs, "_TURNS", 1)
    patch.setattr(head_verdict, "_TOKENS", FEW)
    patch.setattr(head_verdict, "judge", partial(judging.judge, tokens=FEW))
    said: list[str] = []
    given = conversations(asked.with_name("answers.jsonl"))
    disk = before = on_disk()

    def look(*_: object) -> None:
        nonlocal disk
        disk = max(disk, on_disk())

    request = TrainRequest(
        pair=str(target),
        prompts=(asked,),
        answers=(given,),
        tokens=1,  # those that are given suffice
        passes=1,
        init=HEAD,
        force=True,
        threads=1,
    )
    pipeline.train(request, TrainingListener(said.append, look, Cancel()))
    look()
    told = next(sentence for sentence in said if " of memory" in sentence)
    took = {"told": told, "memory": machine.peak_resident(), "disk": disk - before}
    sys.stdout.write(json.dumps(took))


if __name__ == "__main__":
    main()
