"""Pulls a pair: plan it, refuse what cannot work, fetch, verify, and name it."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from localspec import formats, private
from localspec.drafter_names import AUTO
from localspec.errors import LocalspecError, NotEnoughDisk, UsageError
from localspec.pairs.disk import folders, installed, starter, unfinished_pulls
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.hub import download
from localspec.pairs.hub.cache import RemoteFile
from localspec.pairs.hub.download import FileProgress
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.free import FreeMemory
from localspec.pairs.names import catalogue
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import vocabulary
from localspec.pairs.report.examine import PairReport, examine
from localspec.pairs.report.model_source import ModelSource
from localspec.pairs.report.suited_file import FileSpeed, unmeasured
from localspec.safe_text import one_line

# Bytes that a download leaves free on the disk.
DISK_MARGIN: Final = 256 * 1000 * 1000
_RATE_WINDOW_S: Final = 10.0
_RATE_FIRST_S: Final = 0.5
_FORM: Final = (
    "Write PAIR or user/repo[:QUANT|:file.gguf][@rev], with --draft and --name if need be."
)
_COMMAND: Final = ["localspec", "pull"]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to pull.

    Attributes:
        pair: a short name, a file or a Hub reference.
        draft: what drafts, as in `examine`; None leaves it to the pair.
        name: the pair's new name; None derives one.
    """

    pair: str
    draft: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return self.pair if self.draft is None else f"{self.pair} --draft {self.draft}"

    def means(self, name: str, reference: tuple[str, str | None]) -> bool:
        """Whether this means the pair `name`, opened as `reference`: PAIR and a named draft."""
        if self.name is not None:
            return name == self.name
        pair, draft = reference
        same = self.pair.lower() in (name.lower(), pair.lower())
        return same and self.draft in (None, draft)


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of a pull.

    Attributes:
        files: all files in order; the phase of one not yet begun is ``waits``.
        done, total: bytes of all files, on disk and overall.
        bytes_per_second: over the last seconds; 0 while nothing arrives.
    """

    file: FileProgress
    files: tuple[FileProgress, ...]
    done: int
    total: int
    bytes_per_second: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class PullPlan:
    """A pull that can work.

    Attributes:
        report: what is known about the pair, under its future name.
        free: free bytes on the destination disk.
    """

    report: PairReport
    free: int

    @property
    def name(self) -> str:
        """The future name of the pair."""
        return self.report.name


def plan(
    asked: PullRequest,
    retries: RetryPolicy,
    *,
    scan: bool = True,
    quant: str | None = None,
    free: Callable[[], FreeMemory] | None = None,
    speed_of: FileSpeed = unmeasured,
) -> PullPlan:
    """Look at a pair and check that pulling it makes sense; no weights are fetched.

    Args:
        asked: the pair.
        retries: the caller's.
        scan: whether to consider models of other programs on this disk.
        quant: the target's, as in `examine`; None leaves it to the name.
        free: as in `examine`.
        speed_of: what is known of the speeds of a repository's files.

    Raises:
        VocabularyMismatch: the draft cannot serve the target.
        UsageError: the name cannot be used, or there is nothing to pull.
        HubError, ModelError: a model cannot be found or read.
        Cancelled: the user stopped it.
    """
    ours = asked == PullRequest(asked.pair) and starter.is_meant(asked.pair)
    if ours and (path := starter.source()) is not None:
        raise UsageError(f"{STARTER} is here: {path}", f"Run `localspec chat {STARTER}`.")
    if asked.name is not None:
        installed.check_name(asked.name)
    draft = _draft_of(asked)
    report = examine(
        asked.pair, draft, retries, scan=scan, quant=quant, free=free, speed_of=speed_of
    )
    for drafts in report.drafts:
        vocabulary.check(report.target.header, drafts.header)
    report = replace(report, name=_choose_name(asked.name, report))
    return PullPlan(report, hub_cache.free_bytes(hub_cache.cache_folder()))


def _draft_of(asked: PullRequest) -> str | None:
    """What is to draft: a pair of the catalogue that was pulled without its draft gets it now."""
    entry = catalogue.pairs().get(asked.pair.lower())
    if asked.draft is not None or entry is None or entry.draft is None:
        return asked.draft
    here = installed.find(entry.name)
    return f"{AUTO},{entry.draft.reference}" if here and not here.drafts else None


def require_room(plan: PullPlan) -> None:
    """Check that the missing bytes fit on the disk.

    Raises:
        NotEnoughDisk: they do not.
    """
    needed = plan.report.missing + DISK_MARGIN
    if plan.report.missing and needed > plan.free:
        raise NotEnoughDisk(
            f"{formats.size(plan.report.missing)} are to be fetched and"
            f" {formats.size(plan.free)} are free in {hub_cache.cache_folder()}",
            f"Make room for {formats.size(needed - plan.free)} more,"
            " or set HF_HOME to another disk.",
        )


def execute(
    plan: PullPlan, retries: RetryPolicy, report: Callable[[PullProgress], None]
) -> InstalledPair:
    """Fetch the missing files and record the pair under its name.

    If it stops for any reason, received bytes stay, and the next pull continues there.

    Raises:
        NotEnoughDisk, DownloadCorrupt, HubError: see `download.fetch`.
        LocalspecError: the pair could not be recorded afterwards.
        Cancelled: the user stopped it.
    """
    require_room(plan)
    installed.require_recordable(plan.name)
    pair = plan.report
    wanted = [
        (file, model.revision)
        for model in pair.models
        for file, path in zip(model.files, model.paths, strict=False)
        # An installed pair may have complete files in the cache of another HF_HOME.
        if path.absolute() == hub_cache.snapshot_path(file)
    ]
    wanted = list(dict.fromkeys(wanted))  # each once: a model may be its own draft
    files = [file for file, _ in wanted]
    unfinished_pulls.begin(plan.name, files)
    meter, note = _PullMeter(files, report), partial(unfinished_pulls.note_fetched, plan.name)
    for file, revision in wanted:
        download.fetch(file, revision, retries, meter.tell, fetched=note)
    record = InstalledPair(
        # Another process may have given the name to another pair meanwhile.
        name=plan.name if _free_for(plan.name, pair) else _choose_name(None, pair),
        target=pair.target.record(),
        draft=None if pair.draft is None else pair.draft.record(),
        besides=tuple(model.record() for model in pair.besides),
    )
    installed.save(record)
    with contextlib.suppress(LocalspecError):  # the pair is here, whatever its record still says
        unfinished_pulls.forget(plan.name, files)
    if not record.complete:
        raise LocalspecError(
            f"files of {plan.name} vanished while it was being pulled",
            "Run the same command again.",
        )
    return record


class _PullMeter:
    """Adds up the progress of all files and computes the speed."""

    def __init__(
        self, wanted: Iterable[RemoteFile], report: Callable[[PullProgress], None]
    ) -> None:
        self._report = report
        self._files = {
            file.etag: FileProgress(
                file.name, file.etag, "waits", download.have(file), file.size, fetched=0
            )
            for file in wanted
        }
        self._points: deque[tuple[float, int]] = deque()

    def tell(self, progress: FileProgress) -> None:
        """Take one file's progress and report the sum."""
        now = time.monotonic()
        self._files[progress.etag] = progress
        files, points = tuple(self._files.values()), self._points
        points.append((now, sum(file.fetched for file in files)))
        while now - points[0][0] > _RATE_WINDOW_S:
            points.popleft()
        done, total = sum(file.done for file in files), sum(file.size for file in files)
        (first, before), (last, after) = points[0], points[-1]
        rate = (after - before) / (last - first) if last - first > _RATE_FIRST_S else 0.0
        left = (total - done) / rate if rate > 0 else None
        self._report(PullProgress(progress, files, done, total, rate, left))


def _choose_name(wanted: str | None, report: PairReport) -> str:
    """Check the requested name, or derive a free one."""
    if wanted is not None:
        name = installed.check_name(wanted)
        if not _free_for(name, report):
            installed_one = installed.find(name) is not None
            where = "" if installed_one else " in the catalogue"
            instead = f", or run `localspec rm {name}` first" if installed_one else ""
            raise UsageError(
                f"there is another pair named {name}{where}", f"Choose another --name{instead}."
            )
        return name
    # The name of another program's model may contain characters that are not allowed here.
    base = _derive(report.target, report.name)
    candidates = [base, *(f"{base}-{number}" for number in range(2, 1000))]
    return next(name for name in candidates if _free_for(name, report))


def _derive(target: ModelSource, known: str) -> str:
    """Derive a name from `known`, or from the repository or the file."""
    text = known or target.repo.rpartition("/")[2] or target.paths[0].stem
    text = re.sub(r"[-_.]gguf$", "", text.lower())
    text = re.sub(r"[^a-z0-9._-]+", "-", text).strip("-._")[: 64 if known else 48]
    return text if text and text not in installed.RESERVED else f"pair-{text or 'local'}"


def _free_for(name: str, report: PairReport) -> bool:
    """Whether `name` is free, or its target is the same at any commit and it loses no drafter.

    A name of the catalogue may also be taken by its target alone.
    """
    ours = [_identity(model.record()) for model in report.models]
    try:
        existing = installed.find(name)
    except LocalspecError:
        return True  # a damaged record is replaced
    if existing is not None:
        target, *drafts = (_identity(model) for model in existing.models)
        return target == ours[0] and set(drafts) <= set(ours[1:])
    entry = catalogue.pairs().get(name)
    if entry is None:
        return True
    curated = [(side.repo.lower(), (side.file,)) for side in entry.files]
    return ours == curated[:1] or (ours[:1] == curated[:1] and set(curated) <= set(ours))


def _identity(model: InstalledModel) -> tuple[object, ...]:
    return (model.repo.lower(), model.files) if model.repo else model.paths


def recall_wanted() -> PullRequest | None:
    """The pull that was pending when the program ended; None without one."""
    return private.read_json(_wanted_path(), PullRequest)


def remember_wanted(wanted: PullRequest | None) -> None:
    """Store the pending pull, None for none; if the folder is read-only, nothing is stored."""
    with contextlib.suppress(OSError):
        if wanted is None:
            _wanted_path().unlink(missing_ok=True)
        else:
            private.write_json(_wanted_path(), wanted)


def forget_wanted(wanted: PullRequest) -> None:
    """Forget `wanted` if it is the pending pull."""
    if recall_wanted() == wanted:
        remember_wanted(None)


def _wanted_path() -> Path:
    return folders.data_folder() / "wanted.json"


def parse_request(text: str) -> PullRequest:
    """Parse ``user/repo --draft other/repo --name NAME``, with or without the command's name.

    Raises:
        UsageError: it names nothing to pull, or has an unknown part.
    """
    words = _words(text)
    words = words[len(_COMMAND) :] if words[: len(_COMMAND)] == _COMMAND else words
    options = [click.Option([option]) for option in ("--draft", "--name")]
    parameters = [click.Argument(["pair"]), *options]
    command = click.Command("pull", params=parameters, add_help_option=False)
    try:
        return PullRequest(**command.make_context("pull", words).params)
    except click.UsageError as error:
        raise UsageError(one_line(error.format_message()).rstrip("."), _FORM) from None


def _words(text: str) -> list[str]:
    """Split at spaces outside of quotes; a backslash belongs to a path and escapes nothing."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:
        raise UsageError("a quotation mark is not closed", _FORM) from None
