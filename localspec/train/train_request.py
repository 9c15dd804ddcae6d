"""What a training is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

USUAL_PASSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What the command line, or a program, asked for; plain values.

    Attributes:
        pair: the target: a pair's name, a file or a reference.
        scan: whether a name may stand for a model of another program.
        prompts: files of prompts; empty for the built-in ones.
        answers: files of conversations that this target has written already.
        history: whether one's own conversations are used.
        tokens: of answers; None for `USUAL_TOKENS`, or as many as `hours` allow.
        passes: how often all answers are read.
        hours: that it may take, as far as can be told before; None for as many as it takes.
        init: a head to begin with.
        resume: go on with a training that was stopped.
        anew: forget a training that was stopped.
        force: train where no head can pay, and keep one that is no better than the control.
        out: where the head is written; None for localspec's own folder.
        threads: CPU threads; None for those that the target decodes with.
    """

    pair: str
    scan: bool = True
    prompts: tuple[Path, ...] = ()
    answers: tuple[Path, ...] = ()
    history: bool = False
    tokens: int | None = None
    passes: int = USUAL_PASSES
    hours: float | None = None
    init: Path | None = None
    resume: bool = False
    anew: bool = False
    force: bool = False
    out: Path | None = None
    threads: int | None = None
