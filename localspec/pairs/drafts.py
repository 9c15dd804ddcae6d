"""Drafts for a target that has none: which fit, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from localspec import formats
from localspec.errors import HubOffline, LocalspecError
from localspec.pairs import catalogue, demo, installed, sources, vocabulary
from localspec.pairs.gguf import header as gguf
from localspec.pairs.gguf.header import GgufHeader
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub.patience import Patience
from localspec.pairs.installed import DEMO
from localspec.pairs.references import Reference
from localspec.pairs.sources import Source

# A draft that is not much smaller than its target costs more than it saves.
LARGEST_SHARE: Final = 0.5

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that was tried as a draft.

    Attributes:
        name: what to give as ``--draft``.
        fits: whether it can serve the target.
        reason: why it does or does not.
        n_bytes: its size.
        here: whether it is on this disk already.
    """

    name: str
    fits: bool
    reason: str
    n_bytes: int
    here: bool


@dataclass(frozen=True, slots=True)
class _Trial:
    """A draft to be tried, and how its header is read."""

    name: str
    n_bytes: int
    here: bool
    header: Callable[[], GgufHeader]


def paired_before(target: Source) -> str:
    """Find a known pair with the same target, an installed one or a curated one; else ""."""
    real = target.paths[0].resolve()
    for pair in installed.all_pairs():
        if pair.draft is not None and pair.draft.complete and pair.target.path.resolve() == real:
            return pair.name
    for entry in catalogue.pairs().values():
        same = target.repo.lower() == entry.target.repo.lower()
        if same and any(file.name == entry.target.file for file in target.files):
            return entry.name
    return ""


def search(target: Source, patience: Patience, note: Note | None = None) -> list[Candidate]:
    """Try the demo's draft, installed models and the catalogue's drafts on `target`.

    Of what is not on this disk only the start of the header is read, and all of it where that
    agrees. Without a network, the rest of the catalogue is left out. The fitting ones come
    first, those on this disk before the others, the smallest first.

    Raises:
        Cancelled: the user wants to stop.
    """
    found: dict[str, Candidate] = {}
    for trial in (*_on_disk(target), *_in_catalogue(target, patience)):
        if trial.name in found:
            continue
        patience.check()
        if note is not None and not trial.here:
            note(f"trying {trial.name} as a draft")
        try:
            found[trial.name] = _try(target, trial)
        except HubOffline:
            break
    return sorted(found.values(), key=lambda one: (not one.fits, not one.here, one.n_bytes))


def _on_disk(target: Source) -> Iterator[_Trial]:
    own = target.paths[0].resolve()
    for pair in installed.all_pairs():
        for model in reversed(pair.models):  # the draft first: it has the pair's name
            if model.complete and model.path.resolve() != own:
                name = pair.name if model is pair.draft else model.reference or model.paths[0]
                yield _Trial(name, model.n_bytes, here=True, header=_reader(model.path))
    shipped = demo.pair().models[-1]
    if shipped.path.resolve() != own:
        yield _Trial(DEMO, shipped.n_bytes, here=True, header=_reader(shipped.path))


def _reader(path: Path) -> Callable[[], GgufHeader]:
    return lambda: gguf.read_header(path)


def _in_catalogue(target: Source, patience: Patience) -> Iterator[_Trial]:
    for entry in catalogue.pairs().values():
        reference, n_bytes = entry.draft.reference, entry.draft.n_bytes
        cached = hub_cache.find(reference)
        if cached:
            yield _Trial(str(reference), n_bytes, here=True, header=_reader(cached[0]))
        else:
            read = partial(_read_remote, target, reference, patience)
            yield _Trial(str(reference), n_bytes, here=False, header=read)


def _read_remote(target: Source, reference: Reference, patience: Patience) -> GgufHeader:
    return sources.from_hub(reference, patience, like=target.header).header


def _try(target: Source, trial: _Trial) -> Candidate:
    fits, reason = False, ""
    if trial.n_bytes > LARGEST_SHARE * target.n_bytes:
        reason = f"it is too large: more than {formats.percent(LARGEST_SHARE)} of the target"
    else:
        try:
            report = vocabulary.compare(target.header, trial.header())
            fits, reason = report.compatible, report.reason
        except HubOffline:
            raise
        except LocalspecError as error:
            reason = error.message
    return Candidate(trial.name, fits, reason, trial.n_bytes, trial.here)
