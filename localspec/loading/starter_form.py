"""Chooses the starter's form: its file in Q4_1 as it comes, or a copy converted to Q8_0.

On many processors llama.cpp's Q4_1 kernels are slow, most of all for the few tokens of a
verification; on others they may be faster. So the file is converted once and both are timed in
turns. The copy is used unless it is clearly slower without drafting: compared with a slow baseline
any draft would look good. Where both are about as fast it wins, as it has the head and checks
drafts at less cost.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from localspec import formats, private
from localspec.engine.length.profile import measure
from localspec.engine.llama import (
    Context,
    ContextOptions,
    Model,
    default_threads,
    kernels,
    machine,
    too_busy,
    write_q8_0,
)
from localspec.errors import LocalspecError
from localspec.pairs.disk import starter
from localspec.pairs.disk.starter import StarterForm
from localspec.safe_text import reason

_TURNS: Final = 5  # of each form, so that disturbances hit both
_AS_FAST: Final = 1.05  # least times that differ by less are about the same
_DECODES: Final = (1,) * 8
_TURN_S: Final = 0.2  # after which a slow machine skips decodes
_N_CTX: Final = 256
_ASIDE: Final = ".unfinished-"  # part of a temporary folder's name, before its process id


def is_settled() -> bool:
    """Whether the starter's form on this machine is decided."""
    form = starter.recall()
    return form is not None and (form.machine, form.build) == (machine(), kernels())


def settle(source: Path) -> str:
    """Choose the form in which the starter answers, and say what was done.

    While other programs run nothing can be timed; the copy is then used until the next start.

    Args:
        source: the starter's original file.
    """
    try:
        known = starter.recall()
        copy_bytes = known.copy_bytes if known is not None else 0
        made = not copy_bytes
        if made:
            copy_bytes = _convert(source, starter.converted())
        if too_busy(default_threads()):
            starter.remember(StarterForm("", "", copy_bytes))
            return f"starter converted to Q8_0 ({_taking(copy_bytes)})" if made else ""
        baseline = times(source, starter.converted())
        if baseline[1] > _AS_FAST * baseline[0]:
            starter.converted().unlink()
            copy_bytes = 0
        starter.remember(StarterForm(machine(), kernels(), copy_bytes))
    except (OSError, LocalspecError) as error:
        return f"starter stays in Q4_1, as it came: converting it failed ({reason(error)})"
    before, after = (f"{1 / seconds:.0f}" for seconds in baseline)
    if not copy_bytes:
        return f"starter stays in Q4_1, as it came: {before} tokens/s, {after} in Q8_0"
    told = f"{after} tokens/s, {before} as it came ({_taking(copy_bytes)})"
    return f"starter converted to Q8_0: {told}"  # fits a line of 80 columns


def _taking(copy_bytes: int) -> str:
    return f"{formats.size(copy_bytes)} of cache"


def _convert(source: Path, copy: Path) -> int:
    """Write the copy, which appears whole or not at all; return its size in bytes.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
        ModelLoadError: llama.cpp cannot convert `source`.
    """
    private.make_folder(copy.parent)
    _sweep(copy.parent)
    _sweep(Path(os.environ.get("PUBLIC", copy.parent)))  # Windows: where `requantise` may write
    # llama.cpp gives no reason when the disk is full. Q8_0 takes less than twice the size of Q4_1.
    if shutil.disk_usage(copy.parent).free < 2 * source.stat().st_size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    prefix = f"{os.getpid()}{_ASIDE}"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=copy.parent) as aside:
        trial = Path(aside) / copy.name
        write_q8_0(source, trial, starter.NAME)
        return trial.replace(copy).stat().st_size


def _sweep(folder: Path) -> None:
    """Delete temporary folders of killed starts; those of live processes stay."""
    for left in folder.glob(f"*{_ASIDE}*"):
        pid, _, _ = left.name.partition(_ASIDE)
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def times(*files: Path) -> tuple[float, ...]:
    """The least seconds per token of each model without drafting, timed in turns."""
    with ExitStack() as stack:
        models = [stack.enter_context(Model.load(file)) for file in files]
        contexts = [
            stack.enter_context(Context(model, ContextOptions(n_ctx=_N_CTX))) for model in models
        ]
        turns = [
            [measure(each, _DECODES, budget=_TURN_S).points[1] for each in contexts]
            for _ in range(_TURNS)
        ]
    return tuple(map(min, zip(*turns, strict=True)))
