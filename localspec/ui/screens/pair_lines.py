"""The state of the screen of pairs, and its lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rich.cells import cell_len
from textual.content import Content

from localspec import formats
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import MachineSpeed, RankedPair
from localspec.pairs.hub.download import FileProgress
from localspec.pairs.hub.pair_pull import PullPlan, PullProgress
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.report import describe
from localspec.pairs.report.nearby_heads import HeadOffer
from localspec.safe_text import one_line, safe, shortened
from localspec.ui.panel.drawing import Piece, bar, two_sides
from localspec.ui.widgets import MUTED

_NAME = 22
_WIDE = 84  # cells from which the speeds have words
_MOST_FILES = 4
_UNKNOWN = "not known before loading"

LOOKING: Final = "looking for pairs …"


class PairWork(Enum):
    """Work on a pair; the values are said after "is being"."""

    NONE = ""
    CHECKING = "checked"
    PULLING = "pulled"
    REMOVING = "removed"


@dataclass(slots=True)
class PairsState:
    """All that the screen shows.

    Attributes:
        ranked: the pairs, the best for this machine first, with what to expect of them.
        speed: the measurement that it rests on, if any.
        used: bytes on disk of the installed pairs.
        heads: those next to installed targets that draft for none yet, by the pairs' names.
        in_use: the name of the pair in the chat.
        work: the work that goes on with the pair `name`.
        plan: the report about `name`, until it is pulled or left.
        note: the model that is being looked at.
        said: how the last work ended, in short lines.
        about: the pair that `said` is about; a listed one shows `said` with it.
        doomed: the pair that is removed if the user says so again.
        typed: whether the user typed `name`, so that it is not a pair yet.
        guest: the pair that a typed reference gave, until it is installed or left.
        progress: of the pull, as another thread told it last.
    """

    ranked: Sequence[RankedPair] = ()
    speed: MachineSpeed | None = None
    used: int = 0
    heads: Mapping[str, HeadOffer] = field(default_factory=dict)
    in_use: str = ""
    work: PairWork = PairWork.NONE
    name: str = ""
    plan: PullPlan | None = None
    note: str = ""
    said: tuple[str, ...] = ()
    about: str = ""
    doomed: str = ""
    typed: bool = False
    guest: ListedPair | None = None
    progress: PullProgress | None = None

    def list(
        self,
        pairs: Sequence[RankedPair],
        speed: MachineSpeed | None,
        used: int,
        heads: Mapping[str, HeadOffer],
    ) -> None:
        """Take the current pairs."""
        self.ranked, self.speed, self.used, self.heads = pairs, speed, used, heads
        if self.guest is not None and self.row(self.guest.name) is not self.guest:
            self.guest = None

    def shown(self) -> tuple[ListedPair, ...]:
        """The lines of the list: a typed reference first, then the pairs."""
        typed = [] if self.guest is None else [self.guest]
        return (*typed, *(one.row for one in self.ranked))

    def row(self, name: str) -> ListedPair | None:
        """The pair of that name; a known one goes before one that was typed."""
        return next((row for row in reversed(self.shown()) if row.name == name), None)

    def expected(self, row: ListedPair) -> RankedPair:
        """What to expect of `row`, which may have been typed."""
        known = next((one for one in self.ranked if one.row is row), None)
        return known or ranking.ranked([row], self.speed)[0]

    def checked(self, name: str) -> PullPlan | None:
        """The report about `name`, if the user is being asked about it now."""
        return self.plan if self.name == name and self.work is PairWork.NONE else None

    def share(self) -> str:
        """The share of the pull that is done, and the time left; empty while not known."""
        at = self.progress
        share = f" {formats.percent(at.done / at.total)}" if at and at.total else ""
        left = f", {formats.duration(at.seconds_left)} left" if at and at.seconds_left else ""
        return share + left

    def doing(self) -> str:
        """The long work that goes on, in one line; empty if there is none."""
        name = one_line(self.name, 40)
        if self.work is PairWork.PULLING:
            return f"fetching {name}{self.share()}"
        return f"checking {name}" if self.work is PairWork.CHECKING else ""

    def end(self, said: tuple[str, ...]) -> None:
        """End the work."""
        self.work, self.plan, self.progress = PairWork.NONE, None, None
        self.say(said, "" if self.typed else self.name)

    def say(self, said: tuple[str, ...], about: str = "") -> None:
        """Show lines with the pair that they are about, or with any pair if it is not listed."""
        self.said = tuple(text for text in said if text)
        self.about = about

    def pass_on(self) -> None:
        """Drop lines about a pair that is not listed: the user has read them and moved on."""
        if self.row(self.about) is None:
            self.said = ()


def table(state: PairsState, width: int) -> list[Content]:
    """The names of the columns, then a line for each pair, of `width` cells.

    All lines have the same columns: as many as fit next to the longest speeds.
    """
    rows = [_names(), *(_cells(state, row, width) for row in state.shown())]
    ends = [right if width >= 54 else right[1:] for _, right in rows]
    room = width - max(sum(len(text) for text, _ in end) for end in ends)
    shown = 2 + sum(width >= least for least in (44, 62, _WIDE))
    while shown > 2 and sum(len(text) for text, _ in rows[0][0][:shown]) >= room:
        shown -= 1
    return [
        two_sides(Content.assemble(*left[:shown]), Content.assemble(*end), width)
        for (left, _), end in zip(rows, ends, strict=True)
    ]


def _names() -> tuple[list[Piece], list[Piece]]:
    """The names of the columns, at the left and the right end."""
    names = "  ", "pair", f"{'size':>{_NAME + 5}}", f"  {'for':<10}", f"  {'licence':<20}"
    return [(name, MUTED) for name in names], [("tokens/s  ", MUTED), (f"{'state':>9}", MUTED)]


def _cells(state: PairsState, row: ListedPair, width: int) -> tuple[list[Piece], list[Piece]]:
    """The columns of one pair, at the left and the right end."""
    name = shortened(row.name, _NAME if width >= 44 else width - 14)
    mark = "●" if row.name == state.in_use else " "
    left: list[Piece] = [
        (f"{mark} ", "$text-success"),
        (name, "bold"),
        (" " * (_NAME - cell_len(name) + 1) + f"{formats.size(row.n_bytes):>8}", ""),
        (f"  {row.kind:<10}", MUTED),
        (f"  {one_line(row.licence or 'not stated', 20):<20}", MUTED),
    ]
    known = state.expected(row)
    speeds = known.short if width >= _WIDE else known.short.removesuffix(" drafted")
    fit = (f"{speeds}  ", "$text-warning" if known.verdict != "fits" else MUTED)
    return left, [fit, (f"{_state(state, row):>9}", "")]


def _state(state: PairsState, row: ListedPair) -> str:
    if row.name == state.in_use:
        return "in use"
    if row.name == state.name and state.work is PairWork.PULLING:
        done = state.progress
        share = done.done / done.total if done and done.total else None
        return "pulling" if share is None else f"pull {formats.percent(share)}"
    return row.state


def detail_lines(
    state: PairsState, row: ListedPair | None, width: int, height: int
) -> list[Content]:
    """The lines below the list: progress, the report of a check, or the row's details."""
    if width <= 0 or height <= 0:
        return []
    here = state.typed or (row is not None and row.name == state.name)
    if state.work is PairWork.PULLING and (here or row is None):
        lines = pull_lines(state, width, height)
    elif state.work is not PairWork.NONE and here:
        lines = _wrap(f"{state.work.name.lower()} … {state.note}", width)
    elif row is not None and (plan := state.checked(row.name)) is not None:
        there = "uses" if row.state == "found" else "installs"
        lines = _plan_lines(plan, width, height, there)
    else:
        lines = _said_lines(state, row.name if row is not None else "", width)
        lines += _row_lines(state, row, width) if row is not None else []
        lines = lines or [Content(LOOKING)]
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], lines[height - 1].truncate(max(1, width - 2)).append(" …")]


def _said_lines(state: PairsState, name: str, width: int) -> list[Content]:
    """The message about the pair `name`, or about none in particular."""
    if state.doomed and state.doomed == name:
        return _wrap(f"Remove {state.doomed}? X once more removes it.", width, "bold")
    if state.about != name and state.row(state.about) is not None:
        return []
    style = "bold $text-error" if state.said and state.said[0].startswith("✗") else "bold"
    return [line for text in state.said for line in _wrap(text, width, style)]


def _row_lines(state: PairsState, row: ListedPair, width: int) -> list[Content]:
    """The details of a pair that has not been checked yet."""
    known = state.expected(row)
    basis = state.speed.basis([known]) if state.speed is not None else ""
    speeds = f"{known.speed}; {basis}" if known.baseline else _UNKNOWN
    unsure = row.state == "available" and not row.verified
    offer = state.heads.get(row.name)
    licence = (row.licence or "not stated") + (" (not verified yet)" if unsure else "")
    return _wrap(row.notes, width) + _labelled(
        width,
        ("memory", row.fit.words),
        ("speed", speeds),
        ("head", f"not used yet: {describe.offer_line(offer)}" if offer else ""),
        ("licence", licence),
        ("drafting", row.evidence),
        ("target", row.target),
        ("draft", row.draft),
    )


def _labelled(width: int, *rows: tuple[str, str]) -> list[Content]:
    return [
        line for name, text in rows if text for line in _wrap(f"{name:<9}{text}", width, hang=9)
    ]


def _plan_lines(plan: PullPlan, width: int, height: int, there: str) -> list[Content]:
    """The report of a check, and what Enter does now; the last line is never left out.

    If all files of the pair are there, Enter does what `there` says.
    """
    missing = plan.report.missing
    question = f"Enter fetches {formats.size(missing)}" if missing else f"Enter {there} it"
    free = f" ({formats.size(plan.free)} free on disk)" if missing else ""
    found = plan.report
    chats = found.target.header.text("tokenizer.chat_template")  # nearly all say how to
    drafts = " and ".join(f"{it.label}, {formats.size(it.n_bytes)}" for it in found.drafts)
    lines = _labelled(
        width,
        ("licence", describe.licence_line(found)),
        ("memory", describe.memory_line(found.outlook)),
        ("template", "" if chats else "none in the file: a plain transcript stands in"),
        ("tokens", found.vocabulary.reason if found.vocabulary else "no draft to compare"),
        ("target", f"{found.target.label}, {formats.size(found.target.n_bytes)}"),
        ("file", describe.file_line(found)),
        ("draft", drafts or f"none: {found.draft_reason}"),
        ("head", describe.offer_line(found.offer) if found.offer else ""),
        *(("", line) for line in describe.candidate_lines(found.candidates)),
    )
    return [*lines[: height - 1], *_wrap(f"{question}{free}, Esc leaves it.", width, "bold")[:1]]


def pull_lines(state: PairsState, width: int, height: int) -> list[Content]:
    """The whole pull, then its files as far as they fit."""
    progress = state.progress
    if progress is None:
        return _wrap(f"pulling {state.name} …", width)
    share = progress.done / progress.total if progress.total else 1.0
    figures = f"{formats.size(progress.done)} of {formats.size(progress.total)}"
    speed = f"{formats.size(round(progress.bytes_per_second))}/s"
    left = progress.seconds_left
    times = f"{speed}, {formats.duration(left)} left" if left is not None else progress.file.phase
    lines = [
        two_sides(
            Content.assemble((f"{formats.percent(share):>5} ", "bold"), figures),
            (times, MUTED),
            width,
        ),
        bar(share, width, "$primary"),
    ]
    if progress.file.note:
        lines += _wrap(progress.file.note, width)
    # As many files as fit, around the current one.
    room = max(1, min(_MOST_FILES, height - len(lines)))
    at = progress.files.index(progress.file)
    first = max(0, min(at - room // 2, len(progress.files) - room))
    return lines + [_file_line(file, width) for file in progress.files[first : first + room]]


def _file_line(file: FileProgress, width: int) -> Content:
    """One file: the end of its name, a bar, its share and its state."""
    share = file.done / file.size if file.size else 1.0
    right = Content.assemble(
        bar(share, 12) if width >= 56 else "",
        f" {formats.percent(share):>5} ",
        (f"{file.phase:<8}", MUTED),
    )
    room = max(4, width - right.cell_length - 1)
    name = shortened(file.name, room, end=room - 1)  # by which parts of a model differ
    return two_sides((name, ""), right, width)


def summary(state: PairsState) -> str:
    """This machine, in a few words."""
    if not state.ranked:
        return LOOKING
    fit = state.ranked[0].row.fit
    return (
        f"memory {formats.size(fit.available)} of {formats.size(fit.total)} available,"
        f" pairs take {formats.size(state.used)} of disk"
    )


def key_hints(state: PairsState, row: ListedPair | None) -> list[tuple[str, str]]:
    """The keys that work now and their meanings, the most important first."""
    hints = []
    if state.work in (PairWork.PULLING, PairWork.CHECKING):
        hints.append(("C", "cancel"))
    busy = row is not None and row.name == state.name and state.work is not PairWork.NONE
    if row is not None and row.name != state.in_use and not busy:
        planned = state.checked(row.name) is not None
        known = row.state == "installed" or (planned and row.state == "found")
        word = "use" if known else "pull" if planned else "check"
        hints.append(("Enter", word))
        if row.state not in ("available", "found"):
            hints.append(("X", "remove"))
    hints += [("Esc", "close"), ("P", "pull another"), ("R", "look again")]
    return hints


def _wrap(text: str, width: int, style: str = "", hang: int = 0) -> list[Content]:
    indent = " " * hang if width > 2 * hang else ""
    lines = textwrap.wrap(
        " ".join(safe(text).splitlines()),
        max(1, width),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [Content.styled(line, style) for line in lines]
