"""`check`: what a head that exists is worth for a target."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from localspec import formats
from localspec.loading.load import load_session
from localspec.pairs.disk import trained_heads
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.gguf.header import read_model
from localspec.train.target import find, target_options
from localspec.train.training_listener import TrainingListener
from localspec.train.verdict import head_verdict


def check(
    pair: str, path: Path, listener: TrainingListener, *, scan: bool, threads: int | None = None
) -> list[str]:
    """Measure a head with a target, and compare with the file it was made for.

    From then on this acceptance decides whether the head is loaded for the target.

    Raises:
        LocalspecError: they do not fit together.
        OSError: the acceptance cannot be stored.
        Cancelled: it was stopped.
    """
    _, target = find(pair, scan=scan)
    head = read_model(path)
    options = target_options(target, str(path), threads)
    with closing(
        load_session(options, progress=listener.progress, cancel=listener.cancel)
    ) as session:
        listener.progress("Judging the head", None)
        common = session.pair.target.model.end or 0
        found = head_verdict.accepted_of(session, common, listener.cancel)
    first, every = formats.percent(found.first), formats.percent(found.all)
    lines = [f"accepted    {first} of first tokens, {every} of all, greedily"]
    trained_heads.remember(head, target, found.first)
    made = trained_heads.made_for(head.header)
    if made is None or made.hash == fingerprint(target.paths):
        return lines
    more = (
        "" if made.accepted is None else f": {trained_heads.difference(made.accepted, found.first)}"
    )
    return [*lines, f"made for    another file ({made.name}){more}"]
