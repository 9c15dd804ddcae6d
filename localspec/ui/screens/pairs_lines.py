"""What the pairs screen says: rows, details and progress as lines; no widgets, no threads."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from textual.content import Content

from localspec import formats
from localspec.pairs import describe
from localspec.safe_text import one_line, safe
from localspec.ui.bases import MUTED
from localspec.ui.panel import drawing

if TYPE_CHECKING:
    from localspec.pairs.catalogue import ListedPair
    from localspec.pairs.hub.client import RemoteFile
    from localspec.pairs.hub.download import FileProgress
    from localspec.pairs.pull import PullPlan, PullProgress

_NAME = 22
_MOST_FILES = 4


class Work(Enum):
    """What is being done; the values follow "is being"."""

    NONE = ""
    CHECKING = "checked"
    PULLING = "pulled"
    REMOVING = "removed"


@dataclass(slots=True)
class PairsState:
    """All that the screen shows.

    Attributes:
        rows: the pairs; None until they are known.
        used: bytes on disk of the installed pairs.
        in_use: the name of the pair in the chat.
        work: what is being done with the pair `name`.
        plan: what was found out about `name`, until it is pulled or left.
        note: what is being looked at.
        said: how the last work ended, in short lines.
        doomed: the pair that is removed if the user says so again.
        typed: whether `name` is what the user has typed, which is no pair yet.
        guest: the pair that came of it, until it is installed or left.
        progress: of the pull.
    """

    rows: list[ListedPair] | None = None
    used: int = 0
    in_use: str = ""
    work: Work = Work.NONE
    name: str = ""
    plan: PullPlan | None = None
    note: str = ""
    said: tuple[str, ...] = ()
    doomed: str = ""
    typed: bool = False
    guest: ListedPair | None = None
    progress: PullProgress | None = None
    files: list[RemoteFile] = field(default_factory=list)
    moved: dict[str, FileProgress] = field(default_factory=dict)

    def list(self, rows: list[ListedPair], used: int) -> None:
        """Take the pairs as they are now."""
        self.rows, self.used = rows, used
        if self.guest is not None and self.row(self.guest.name) is not self.guest:
            self.guest = None

    def shown(self) -> tuple[ListedPair, ...]:
        """The lines of the list: what was typed first, then the pairs."""
        return (*([self.guest] if self.guest is not None else []), *(self.rows or []))

    def row(self, name: str) -> ListedPair | None:
        """The pair of that name; a known one goes before one that was typed."""
        return next((row for row in reversed(self.shown()) if row.name == name), None)

    def checked(self, name: str) -> PullPlan | None:
        """What was found out about `name`, if the user is being asked about it now."""
        return self.plan if self.name == name and self.work is Work.NONE else None

    def expect(self, plan: PullPlan) -> None:
        """The files of `plan` are on their way."""
        models = [plan.report.target, plan.report.draft]
        self.files = [file for model in models if model is not None for file in model.files]
        self.moved, self.progress, self.plan = {}, None, None

    def move(self, progress: PullProgress) -> None:
        """Take news of a pull (any thread: each line is one step for Python)."""
        self.moved[progress.file.etag] = progress.file
        self.progress = progress

    def end(self, said: tuple[str, ...]) -> None:
        """The work is done."""
        self.work, self.plan, self.progress = Work.NONE, None, None
        self.said = tuple(text for text in said if text)


def row_line(state: PairsState, row: ListedPair, width: int) -> Content:
    """One pair as a line of `width` cells."""
    name = one_line(row.name, _NAME if width >= 44 else width - 14)
    mark = "●" if row.name == state.in_use else " "
    left: list[drawing.Piece] = [(f"{mark} ", "$text-success"), (name, "bold")]
    if width >= 44:
        left.append((" " * (_NAME - len(name) + 1) + f"{formats.size(row.n_bytes):>8}", ""))
    if width >= 62:
        left.append((f"  {row.kind:<10}", MUTED))
    if width >= 84:
        left.append((f"  {one_line(row.licence or 'not stated', 20):<20}", MUTED))
    fit = (f"{row.fit.verdict}  ", "$text-warning" if row.fit.verdict != "fits" else MUTED)
    right = drawing.styled(*([fit] if width >= 54 else []), (f"{_state(state, row):>11}", ""))
    return drawing.two_sides(drawing.styled(*left), right, width)


def head_line(width: int) -> Content:
    """The names of the columns of `row_line`."""
    left = "  pair"
    if width >= 44:
        left += " " * (_NAME - 4 + 1) + f"{'size':>8}"
    left += "  for       " if width >= 62 else ""
    left += "  licence             " if width >= 84 else ""
    right = ("memory  " if width >= 54 else "") + f"{'state':>11}"
    return drawing.two_sides(drawing.styled((left, MUTED)), drawing.styled((right, MUTED)), width)


def _state(state: PairsState, row: ListedPair) -> str:
    if row.name == state.in_use:
        return "in use"
    if row.name == state.name and state.work is Work.PULLING:
        done = state.progress
        return f"pull {done.done / done.total:4.0%}" if done and done.total else "pulling"
    return row.state


def detail_lines(
    state: PairsState, row: ListedPair | None, width: int, height: int
) -> list[Content]:
    """What is below the list: progress, the report of a check, or the row's details."""
    if width <= 0 or height <= 0:
        return []
    here = state.typed or (row is not None and row.name == state.name)
    if state.work is Work.PULLING and (here or row is None):
        lines = pull_lines(state, width, height)
    elif state.work is not Work.NONE and here:
        lines = _wrap(f"{state.work.name.lower()} … {state.note}", width)
    elif row is not None and state.checked(row.name) is not None:
        lines = _plan_lines(state.checked(row.name), width, height)
    else:
        lines = _said_lines(state, width)
        lines += _row_lines(row, width) if row is not None else []
    return lines[:height]


def _said_lines(state: PairsState, width: int) -> list[Content]:
    if state.doomed:
        return _wrap(f"Remove {state.doomed}? X once more removes it.", width, "bold")
    style = "bold $text-error" if state.said and state.said[0].startswith("✗") else "bold"
    return [line for text in state.said for line in _wrap(text, width, style)]


def _row_lines(row: ListedPair, width: int) -> list[Content]:
    """What is known about a pair that nobody has looked at yet."""
    need = row.fit
    memory = (
        f"about {formats.size(need.needed)} needed, {formats.size(need.available)} available:"
        f" {need.verdict}"
    )
    licence = (row.licence or "not stated") + ("" if row.verified else " (not verified yet)")
    lines = _wrap(row.notes, width) if row.notes else []
    for label, text in (
        ("memory", memory),
        ("licence", licence),
        ("target", row.target),
        ("draft", row.draft),
    ):
        lines += _labelled(label, text, width)
    return lines


def _labelled(label: str, text: str, width: int) -> list[Content]:
    return _wrap(f"{label:<9}{text}", width, hang=9)


def _draft_words(plan: PullPlan) -> str:
    draft = plan.report.draft
    if draft is None:
        return f"none: {plan.report.draft_reason}"
    return f"{draft.label}, {formats.size(draft.n_bytes)}"


def _plan_lines(plan: PullPlan | None, width: int, height: int) -> list[Content]:
    """The report of a check, and what Enter does now; the last line is never left out."""
    if plan is None:
        return []
    missing = plan.report.missing
    question = f"Enter fetches {formats.size(missing)}" if missing else "Enter installs it"
    free = f" ({formats.size(plan.free)} free on disk)" if missing else ""
    found = plan.report
    lines = []
    for label, text in (
        ("licence", describe.licence_line(found)),
        ("memory", describe.memory_line(found.outlook)),
        ("tokens", found.vocabulary.reason if found.vocabulary else "no draft to compare"),
        ("target", f"{found.target.label}, {formats.size(found.target.n_bytes)}"),
        ("draft", _draft_words(plan)),
        *(("", line) for line in describe.candidate_lines(found.candidates)),
    ):
        lines += _labelled(label, text, width)
    return [*lines[: height - 1], *_wrap(f"{question}{free}, Esc leaves it.", width, "bold")[:1]]


def pull_lines(state: PairsState, width: int, height: int) -> list[Content]:
    """All that comes, then file by file as far as there is room."""
    progress = state.progress
    if progress is None:
        return _wrap(f"pulling {state.name} …", width)
    share = progress.done / progress.total if progress.total else 1.0
    figures = f"{formats.size(progress.done)} of {formats.size(progress.total)}"
    speed = f"{formats.size(round(progress.bytes_per_second))}/s"
    left = progress.seconds_left
    times = f"{speed}, {formats.duration(left)} left" if left is not None else progress.file.phase
    lines = [
        drawing.two_sides(
            drawing.styled((f"{share:4.0%} ", "bold"), (figures, "")),
            drawing.styled((times, MUTED)),
            width,
        ),
        drawing.bar(share, width, "$primary"),
    ]
    if progress.file.note:
        lines += _wrap(f"pausing: {progress.file.note}", width)
    room = max(1, min(_MOST_FILES, height - len(lines)))
    return lines + [_file_line(state, file, width) for file in _nearest(state, room)]


def _nearest(state: PairsState, room: int) -> list[RemoteFile]:
    """At most `room` files around the one that is worked on."""
    etags = [file.etag for file in state.files]
    now = state.progress.file.etag if state.progress else ""
    at = etags.index(now) if now in etags else 0
    first = max(0, min(at - room // 2, len(etags) - room))
    return state.files[first : first + room]


def _file_line(state: PairsState, file: RemoteFile, width: int) -> Content:
    """One file: its name's end, a bar, its share and what happens to it."""
    moved = state.moved.get(file.etag)
    share = (moved.done / moved.size if moved.size else 1.0) if moved else 0.0
    phase = moved.phase if moved else "waits"
    right = Content.assemble(
        drawing.bar(share, 12) if width >= 56 else "", f" {share:4.0%} ", (f"{phase:<8}", MUTED)
    )
    room = max(4, width - right.cell_length - 1)
    name = one_line(file.name, 400)
    name = name if len(name) <= room else f"…{name[1 - room :]}"
    return drawing.two_sides(drawing.styled((name, "")), right, width)


def summary(state: PairsState) -> str:
    """This machine, in a few words."""
    if not state.rows:
        return "looking …"
    fit = state.rows[0].fit
    return (
        f"memory {formats.size(fit.available)} of {formats.size(fit.total)} available,"
        f" pairs take {formats.size(state.used)} of disk"
    )


def key_hints(state: PairsState, row: ListedPair | None) -> list[tuple[str, str]]:
    """What can be done now: keys and meanings, what matters most first."""
    hints = []
    if state.work in (Work.PULLING, Work.CHECKING):
        hints.append(("C", "cancel"))
    busy = row is not None and row.name == state.name and state.work is not Work.NONE
    if row is not None and row.name != state.in_use and not busy:
        planned = state.checked(row.name) is not None
        word = "pull" if planned else "use" if row.state == "installed" else "check"
        hints.append(("Enter", word))
        if row.state != "available" and row.kind != "demo":
            hints.append(("X", "remove"))
    hints += [("Esc", "close"), ("P", "pull another")]
    return hints


def _wrap(text: str, width: int, style: str = "", hang: int = 0) -> list[Content]:
    indent = " " * hang if width > 2 * hang else ""
    lines = textwrap.wrap(
        " ".join(safe(text).splitlines()),
        max(1, width),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [drawing.styled((line, style)) for line in lines]
