"""Removes pairs: their names, and the files that no other pair uses."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec.errors import LocalspecError, ModelError, NotOnHub
from localspec.pairs.disk import (
    folders,
    installed,
    starter,
    trained_heads,
    trainings,
    unfinished_pulls,
)
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import client as hub
from localspec.pairs.hub import download
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.names.reserved_names import STARTER

_USED_BY_A_PROGRAM = 32  # Windows's ERROR_SHARING_VIOLATION


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed.

    Attributes:
        freed: bytes of disk space regained.
        kept: files that stay, each with the reason.
    """

    name: str
    freed: int
    kept: tuple[str, ...]


def remove(name: str, retries: RetryPolicy) -> Removal:
    """Remove the installed pair `name` and everything that only it uses.

    What an unfinished pull under its name has fetched goes, too, whether the pair is installed or
    not.

    Raises:
        LocalspecError: the pair does not exist, or a file cannot be deleted.
        Cancelled: the user stopped it while another process held a file.
    """
    if starter.is_meant(name):
        return _remove_starter(retries)
    return _remove_pair(name, retries)


def remove_all(retries: RetryPolicy) -> Iterator[Removal]:
    """Remove every installed pair, as `remove` does, and the starter's converted copy.

    What unfinished pulls left and folders of trainings that never began are removed too.

    Yields:
        Each removal, when it is done.

    Raises:
        LocalspecError: at the end, if something could not be removed; the rest is.
        Cancelled: as for `remove`.
    """
    names = [*(pair.name for pair in installed.all_pairs()), *installed.damaged()]
    parts = {
        f"unfinished downloads of {hub_cache.repo_of(repo)}": repo
        for repo in hub_cache.repo_folders()
    }
    pulls = {f"the unfinished pull of {name}": name for name in unfinished_pulls.names()}
    steps: dict[str, Callable[[], Removal]] = {
        **{name: partial(remove, name, retries) for name in names},
        "the starter's copy": _remove_copy,
        **{text: partial(_clear_pull, name, text, retries) for text, name in pulls.items()},
        **{name: partial(_remove_parts, name, repo, retries) for name, repo in parts.items()},
        "trainings that never began": _remove_void_trainings,
    }
    failed: dict[str, LocalspecError] = {}
    for name, step in steps.items():
        try:
            removal = step()
        except LocalspecError as error:
            failed[name] = error
            continue
        if name in names or removal.freed or removal.kept:
            yield removal
    if failed:
        said = ", ".join(f"{name} ({error.message})" for name, error in failed.items())
        raise LocalspecError(f"not removed: {said}", next(iter(failed.values())).remedy)


def _remove_copy() -> Removal:
    freed, kept = _clear_starter()
    return Removal(STARTER, freed, tuple(kept))


def _remove_parts(name: str, repo: Path, retries: RetryPolicy) -> Removal:
    return Removal(name, _delete_parts(repo, retries), ())


def _remove_void_trainings() -> Removal:
    void = trainings.void()
    with trainings.alone() if void else contextlib.nullcontext():
        return Removal("trainings that never began", sum(map(trainings.delete, void)), ())


def _remove_starter(retries: RetryPolicy) -> Removal:
    """Remove the starter's converted copy, and its file if it was pulled."""
    freed, left = _clear_starter()
    packaged = starter.packaged()
    try:
        removal = _remove_pair(STARTER, retries)
    except NotOnHub:
        if not freed and packaged is None:
            raise
        if not freed:
            raise ModelError(
                f"nothing of the starter is removed: its file belongs to {starter.PACKAGE}",
                f"Uninstall that Python package to remove it: {packaged}",
            ) from None
        removal = Removal(STARTER, 0, ())
    kept = (f"{packaged}: it belongs to the package {starter.PACKAGE}",) if packaged else ()
    return replace(removal, freed=removal.freed + freed, kept=(*removal.kept, *left, *kept))


def _clear_starter() -> tuple[int, list[str]]:
    """Delete the converted copy unless another pair uses it.

    Returns:
        Bytes freed, and the training that is kept, if any, with the reason.
    """
    others = (pair for pair in installed.all_pairs() if pair.name != STARTER)
    keep = {path for pair in others for path in _paths(pair)}
    with _training([starter.converted()]) as training:
        freed = starter.clear(keep)
        more, kept = _forget_training(training, [starter.converted()])
    return freed + more, kept


def _remove_pair(name: str, retries: RetryPolicy) -> Removal:
    try:
        pair = installed.find(name)
    except LocalspecError:
        installed.forget(name)
        return Removal(name, 0, ("the model files: the pair's record was damaged",))
    if pair is None:
        return _remove_partial(name, retries)
    target = [Path(path) for path in pair.target.paths]
    with _training(target) as training:
        installed.forget(name)  # first: a pair without all its files would be worse
        try:
            freed, left = _delete_models(pair, retries)
        except BaseException:
            installed.save(pair)  # the rest can be removed another time
            raise
        installed.forget_last(name)
        more, kept = _forget_training(training, target)
    update = _clear_pull(pair.name, name, retries)
    return Removal(pair.name, freed + more + update.freed, (*kept, *left, *update.kept))


@contextlib.contextmanager
def _training(target: Sequence[Path]) -> Iterator[Path | None]:
    """Yield the folder of a target's unfinished training, if any, while no training runs.

    A training is found by the target's files, so that this comes before they are deleted.

    Raises:
        LocalspecError: it is running, or another one is.
    """
    folder = trainings.unfinished(target)
    with trainings.alone() if folder is not None else contextlib.nullcontext():
        yield folder


def _forget_training(folder: Path | None, target: Sequence[Path]) -> tuple[int, list[str]]:
    """Delete a training whose target is deleted, or that never began.

    Returns:
        Bytes freed, and the training that is kept, if any, with the reason.

    Raises:
        LocalspecError: it cannot be deleted.
    """
    if folder is None:
        return 0, []
    if not target[0].exists() or not trainings.record_of(folder).exists():
        return trainings.delete(folder), []
    command = f"`localspec train {shlex.quote(str(target[0]))} --resume`"
    how = f"{command} goes on with it; delete that folder to forget it"
    return 0, [f"{folder}: a training that was stopped; {how}"]


def _delete_models(pair: InstalledPair, retries: RetryPolicy) -> tuple[int, list[str]]:
    """Delete files that nothing else uses; return the bytes freed, and what is kept and why."""
    freed, kept = 0, []
    for model in pair.models:
        for at, path in enumerate(map(Path, model.paths)):
            keep = _reason_to_keep(model, path)
            if keep:
                kept.append(f"{path}: {keep}")
            elif not model.repo:
                with _deleting(path):
                    freed += _unlink(path)
            elif at < len(model.files):
                file = _remote(model, at)
                if other := _left_to_pull(file, pair.name):
                    kept.append(f"{path}: {other}")
                else:
                    freed += _delete(file, retries)
    return freed, kept


def _left_to_pull(file: RemoteFile, name: str) -> str:
    """Leave a file to another unfinished pull than that of `name`; why it stays, empty if not."""
    other = unfinished_pulls.other_than(name, file)
    if not other or not hub_cache.snapshot_path(file).exists():
        return ""
    unfinished_pulls.note_fetched(other, file)
    return f"the unfinished pull of {other} wants it"


def _remote(model: InstalledModel, at: int) -> RemoteFile:
    """One file of a model from the Hub; its etag is known although its link may be gone."""
    path, digest = Path(model.paths[at]), "".join(model.sha256[at : at + 1])
    etag = digest or hub_cache.etag_of(path) or path.name
    return RemoteFile(model.repo, model.commit, model.files[at], 0, etag)


def used_bytes() -> int:
    """Bytes on disk of all installed pairs and the starter, counting each file once.

    Raises:
        LocalspecError: the records cannot be read.
    """
    pairs = [*installed.all_pairs(), *starter.pairs_here()]
    paths = {path for pair in pairs for path in _paths(pair)}
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError):
            sizes[folders.real(path)] = path.stat().st_size
    return sum(sizes.values())


def _paths(pair: InstalledPair) -> list[Path]:
    return [Path(path) for model in pair.models for path in model.paths]


def _reason_to_keep(model: InstalledModel, path: Path) -> str:
    if not model.repo:
        return _reason_to_keep_local(path)
    # Compare resolved paths: the cache may have been reached through a link.
    if not folders.real(path.parent).is_relative_to(folders.real(hub_cache.cache_folder())):
        return "it lies outside the present Hub cache"
    cache = folders.real(hub_cache.cache_folder())
    snapshots = folders.real(hub_cache.repo_folder(model.repo)) / "snapshots"
    shared = folders.real(path).is_relative_to(cache / "blobs")
    for pair in installed.all_pairs():
        for other in (Path(other) for one in pair.models for other in one.paths):
            # The repository may have the same bytes under another name, which keeps them; those
            # that repositories share are kept by a name in any.
            place = _place(other)
            named = snapshots in place.parents or (shared and _is_cached_name(place, cache))
            own_name = place != _place(path) and named
            if folders.real(path) == folders.real(other) and not own_name:
                return f"the pair {pair.name} uses it"
    return ""


def _is_cached_name(place: Path, cache: Path) -> bool:
    """Whether this is a name that the cache gives a file, and not the file itself."""
    return place.is_relative_to(cache) and "snapshots" in place.relative_to(cache).parts[1:2]


def _reason_to_keep_local(path: Path) -> str:
    """Why to keep a local file: it is the user's own, unless it is a head trained here."""
    if path == starter.converted():
        return f"`localspec rm {STARTER}` deletes it"
    if not trained_heads.is_ours(path):
        return "it is your own file"
    users = (pair for pair in installed.all_pairs() if path in _paths(pair))
    return next((f"the pair {pair.name} uses it" for pair in users), "")


@contextlib.contextmanager
def _deleting(path: Path) -> Iterator[None]:
    """Raise `LocalspecError` where the system does not let `path` be deleted."""
    try:
        yield
    except OSError as error:
        used = getattr(error, "winerror", None) == _USED_BY_A_PROGRAM
        remedy = "Close the program that uses it." if used else "Check its folder's permissions."
        raise LocalspecError(f"{path} cannot be deleted: {error.strerror}", remedy) from None


def _place(path: Path) -> Path:
    """The path with its folder resolved, but not the last part, which may be a link itself."""
    return folders.real(path.parent) / path.name


def _delete(file: RemoteFile, retries: RetryPolicy) -> int:
    """Delete a file's name, and its bytes if no other name links to them; return bytes freed."""
    hub.require_safe(file)
    pointer, blob = hub_cache.snapshot_path(file), hub_cache.blob_path(file)
    waits = f"waiting for another process that uses {file.name}"
    with _deleting(pointer):
        with hub_cache.locked(file, retries, lambda: retries.note(waits)):
            snapshots, real = hub_cache.repo_folder(file.repo) / "snapshots", folders.real(blob)
            others = (path for path in snapshots.rglob("*") if path.is_symlink())
            freed = 0
            # The bytes come first: Windows does not let them go while a program uses them.
            if not any(folders.real(link) == real for link in others if link != pointer):
                freed += hub_cache.delete_blob(file)
            freed += _unlink(pointer) + _unlink(download.part_path(file))
        _tidy(file)
    return freed


def _unlink(path: Path) -> int:
    """Delete a name, if it is there; return the bytes that this frees."""
    size = 0 if path.is_symlink() else folders.regular_size(path) or 0
    path.unlink(missing_ok=True)
    return size


def _tidy(file: RemoteFile) -> None:
    """Remove folders that have become empty, and the repository's if nothing is left."""
    folder = hub_cache.repo_folder(file.repo)
    for parent in hub_cache.snapshot_path(file).parents:
        if parent == folder / "snapshots" or parent == folder:
            break
        with contextlib.suppress(OSError):
            parent.rmdir()
    left = [path for kind in ("blobs", "snapshots") for path in (folder / kind).glob("*")]
    if not left and folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(hub_cache.cache_folder() / ".locks" / folder.name, ignore_errors=True)


def _remove_partial(name: str, retries: RetryPolicy) -> Removal:
    """Remove what an unfinished pull left."""
    removal = _clear_pull(name.lower(), name, retries)
    if not removal.freed and not removal.kept:
        known = name.lower() in catalogue.pairs()
        remedy = "The catalogue knows it; there is nothing to remove." if known else ""
        raise NotOnHub(f"no pair named {name} is installed", remedy or resolver.suggestion(name))
    return removal


def _clear_pull(name: str, shown: str, retries: RetryPolicy) -> Removal:
    """Remove what an unfinished pull of the pair `name` fetched and no pair uses.

    Raises:
        LocalspecError: another process is fetching one of the files, or it cannot be deleted.
    """
    pull, kept = unfinished_pulls.find(name), []
    for file in pull.files:
        hub.require_safe(file)
    own = [file for file in pull.files if not unfinished_pulls.other_than(name, file)]
    freed = sum(_delete_part(file, retries) for file in own)  # first: a pull may be running
    for file in pull.files:
        path = hub_cache.snapshot_path(file)
        if not pull.has_fetched(file):
            continue
        model = InstalledModel((str(path),), repo=file.repo)
        if reason := _reason_to_keep(model, path) or _left_to_pull(file, name):
            kept.append(f"{path}: {reason}")
        else:
            freed += _delete(file, retries)
    unfinished_pulls.forget(name, pull.files)
    return Removal(shown, freed, tuple(kept))


def _delete_parts(repo: Path, retries: RetryPolicy) -> int:
    """Delete what unfinished pulls left in the cache's folder of a repository; return bytes freed.

    Raises:
        LocalspecError: another process is fetching one of the files, or it cannot be deleted.
    """
    parts = list(repo.glob(f"blobs/*{download.PART_ENDING}"))
    etags = [part.name.removesuffix(download.PART_ENDING) for part in parts]
    files = [RemoteFile(hub_cache.repo_of(repo), "", "", 0, etag) for etag in etags]
    return sum(_delete_part(file, retries) for file in files)


def _delete_part(file: RemoteFile, retries: RetryPolicy) -> int:
    """Delete what is here of a file that was not fetched whole; return bytes freed."""
    part, freed = download.part_path(file), 0
    if part.exists():
        with _deleting(part), hub_cache.locked(file, retries, partial(_refuse, file)):
            freed = _unlink(part)
        _tidy(file)
    return freed


def _refuse(file: RemoteFile) -> None:
    raise LocalspecError(
        f"a file of {file.repo} is being fetched by another process", "Wait for it, or stop it."
    )
