"""Draft heads next to a target: in its repository, or in its folder on this disk.

Names only say which files are worth opening, and in which order. The header says what a file is and
whether it fits the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from localspec.drafter_names import ASSISTANT, DFLASH, DSPARK, EAGLE3, MTP
from localspec.errors import HubError, HubOffline, LocalspecError, UnsupportedModel
from localspec.pairs.disk import folders, starter, target_folder
from localspec.pairs.disk.installed import InstalledPair
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.header import GgufHeader
from localspec.pairs.hub import client as hub
from localspec.pairs.hub.client import RemoteRepo
from localspec.pairs.hub.retries import RetryPolicy, TransferInterrupted
from localspec.pairs.names import repository_files
from localspec.pairs.names.draft_option import HEADS
from localspec.pairs.names.references import Reference
from localspec.pairs.report import model_source
from localspec.pairs.report.model_source import ModelSource

_MOST_TRIED: Final = 4  # headers of each kind, of a few MB
_IN_FILES: Final = {
    MTP: (MTP, ASSISTANT),
    DSPARK: (DFLASH,),  # a chain of guesses, in the same architecture
    DFLASH: (DFLASH,),
    EAGLE3: (EAGLE3,),
}

_HeadReader: TypeAlias = Callable[[str], ModelSource]
"""Reads the header of the file with this name."""


@dataclass(frozen=True, slots=True)
class HeadOffer:
    """A head that can draft for a target.

    Attributes:
        kind: one of `HEADS`, which ``--draft`` takes.
        smaller: the smallest one of its kind; None if `head` is that.
    """

    kind: str
    head: ModelSource
    smaller: ModelSource | None = None


def offered(target: ModelSource, retries: RetryPolicy, *, quant: str = "") -> HeadOffer | None:
    """The head that llama.cpp's rules take for a target, if one next to it fits.

    Args:
        target: on the Hub or on this disk.
        retries: the caller's.
        quant: as requested of the target.

    Raises:
        HubOffline, TransferInterrupted: the Hub does not answer.
        Cancelled: the user stopped it.
    """
    for kind in HEADS:
        files, names, read_head = _next_to(target, kind, retries, quant)
        for head in _fitting(kind, names, read_head, target.header, []):
            return HeadOffer(kind, head, _smaller(kind, head, files, read_head, target))
    return None


def of_installed() -> dict[str, HeadOffer]:
    """The heads next to installed targets for which no model drafts, by the names of the pairs.

    All are on this disk: the Hub is not asked. A target's header is read only if the name of a file
    next to it hints at a head.
    """
    pairs = starter.pairs_here()
    return {pair.name: offer for pair in pairs if (offer := _unused(pair)) is not None}


def _unused(pair: InstalledPair) -> HeadOffer | None:
    path = pair.target.path
    if starter.with_drafters(pair)[0].drafts or not _hinted(path):
        return None
    try:
        target = model_source.local(path)
    except LocalspecError:  # it is missing or damaged
        return None
    inside = head_checks.has_usable_mtp(target.header)
    return None if inside else offered(target, RetryPolicy())


def _hinted(target: Path) -> bool:
    name, paths = target_folder.files(target)
    sizes = dict.fromkeys(paths, 0)
    return any(repository_files.heads(sizes, kind, model=name) for kind in HEADS)


def required(
    target: ModelSource, kind: str, retries: RetryPolicy, *, quant: str = ""
) -> ModelSource:
    """The head of this kind next to a target.

    Raises:
        UnsupportedModel: there is none that fits.
        HubError, Cancelled: as for other files.
    """
    refused: list[str] = []
    _, names, read_head = _next_to(_listed(target, retries), kind, retries, quant)
    for head in _fitting(kind, names, read_head, target.header, refused):
        return head
    if kind == MTP and not refused:
        head_checks.require_mtp(target.header, target.label)
    why = refused[0] if refused else "there is none next to it"
    raise UnsupportedModel(
        f"{target.label} cannot draft for itself ({kind}): {why}",
        "Name the head's file, or go without one (`--draft none`).",
    )


def further(
    target: ModelSource,
    kinds: Sequence[str],
    known: Sequence[GgufHeader],
    retries: RetryPolicy,
    *,
    quant: str = "",
) -> list[ModelSource]:
    """The heads of these kinds next to a target, but for kinds that are `known` to draft.

    A head inside the target has no file.

    Raises:
        UnsupportedModel, HubError, Cancelled: as `required`.
    """
    drafting = {head_checks.head_kind(header) for header in known}
    if head_checks.has_usable_mtp(target.header):
        drafting.add(MTP)
    wanted = [kind for kind in kinds if drafting.isdisjoint(_IN_FILES[kind])]
    heads = [required(target, kind, retries, quant=quant) for kind in wanted]
    return list({folders.real(head.paths[0]): head for head in heads}.values())


def of_draft(reference: Reference, target: ModelSource, retries: RetryPolicy) -> ModelSource:
    """What `reference`, without a file's name, means as a draft for a target.

    That is a head of its repository that fits, else its model.

    Raises:
        UnsupportedModel: there are heads alone and none fits; or the model is as large as a target,
            and the heads are not where llama.cpp looks for them.
        HubError, ModelError, Cancelled: as `model_source.from_hub`.
    """
    try:
        repo = hub.look_up(reference, retries)
    except HubOffline:
        return model_source.from_hub(reference, retries)
    sizes = {name: file.size for name, file in repo.files.items()}
    model = repository_files.first_file(repo.files, reference)
    read_head, refused = _on_hub(repo, retries, target.header), list[str]()
    for kind in HEADS:
        names = repository_files.heads(sizes, kind, model=model, quant=reference.quant, far=False)
        for head in _fitting(kind, names, read_head, target.header, refused):
            return head
    if refused and not model:
        raise UnsupportedModel(refused[0], "Choose a head that was made for this model.")
    found = model_source.from_hub(reference, retries)
    far = [name for kind in HEADS for name in repository_files.heads(sizes, kind, model=model)]
    if far and found.n_bytes >= target.n_bytes:
        raise UnsupportedModel(
            f"{found.label} is a whole model, as large as the target: it cannot save time",
            f"Name one of its heads, such as --draft {replace(reference, quant='', file=far[0])}.",
        )
    return found


def _listed(target: ModelSource, retries: RetryPolicy) -> ModelSource:
    """A target that was pulled before, with the listing of its repository if the Hub answers."""
    if target.listing or not target.repo:
        return target
    reference = Reference(target.repo, revision=target.files[0].commit)
    try:
        repo = hub.look_up(reference, retries)
    except HubError:
        return target
    return replace(target, listing=tuple(repo.files.values()))


def _next_to(
    target: ModelSource, kind: str, retries: RetryPolicy, quant: str
) -> tuple[dict[str, int], list[str], _HeadReader]:
    """Sizes of the files next to a target, names of possible heads, and their reader."""
    if target.files and target.listing:
        repo = RemoteRepo(
            target.files[0].commit,
            target.gated,
            target.licence,
            {file.name: file for file in target.listing},
        )
        sizes = {file.name: file.size for file in target.listing}
        name, read_head = target.files[0].name, _on_hub(repo, retries, target.header)
    else:
        name, paths = target_folder.files(target.paths[0])
        sizes = {each: path.stat().st_size for each, path in paths.items()}
        read_head = lambda each: model_source.local(paths[each])  # noqa: E731
    names = repository_files.heads(sizes, kind, model=name, quant=quant)
    return sizes, [each for each in names if sizes[each] < target.n_bytes], read_head


def _on_hub(repo: RemoteRepo, retries: RetryPolicy, like: GgufHeader) -> _HeadReader:
    return lambda name: model_source.of_repository(repo, [name], retries, like=like)


def _fitting(
    kind: str, names: Sequence[str], read_head: _HeadReader, target: GgufHeader, refused: list[str]
) -> Iterator[ModelSource]:
    """The heads of this kind that fit the target; `refused` receives why others do not.

    Raises:
        HubOffline, TransferInterrupted: the Hub does not answer; it would not about others either.
        Cancelled: the user stopped it.
    """
    for name in names[:_MOST_TRIED]:
        try:
            found = read_head(name)
            if head_checks.head_kind(found.header) in _IN_FILES[kind]:
                head_checks.require_fit(found.header, target, found.label)
                yield found
        except (HubOffline, TransferInterrupted):
            raise
        except LocalspecError as error:
            refused.append(error.message)


def _smaller(
    kind: str, head: ModelSource, files: dict[str, int], read_head: _HeadReader, target: ModelSource
) -> ModelSource | None:
    """The smallest head of this kind, if it is smaller than `head` and its header can be read."""
    names = repository_files.heads(files, kind)
    small = sorted((name for name in names if files[name] < head.n_bytes), key=files.__getitem__)
    try:
        return next(_fitting(kind, small[:1], read_head, target.header, []), None)
    except (HubOffline, TransferInterrupted):  # `head` is found without it
        return None
