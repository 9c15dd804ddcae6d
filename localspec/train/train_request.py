"""The request for a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

USUAL_PASSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The request from the command line or a program, as plain values.

    Attributes:
        pair: the target: a pair's name, a file or a reference.
        scan: whether a name may mean a model of another program.
        prompts: files of prompts; empty for the built-in ones.
        answers: files of conversations that this target has already written.
        history: whether to use the user's own conversations.
        tokens: of answers; None for `USUAL_TOKENS`, or as many as `hours` allow.
        passes: how often all answers are read.
        hours: estimated limit of the duration; None for no limit.
        init: a head to start from.
        force: train even if no head can pay, and keep a head that is no better than the control.
        out: path for the head; None for localspec's own folder.
        threads: CPU threads; None for the target's decode threads.
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
