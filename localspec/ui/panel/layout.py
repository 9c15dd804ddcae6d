"""What the speculation panel says and how it is laid out: figures in, lines out, no widgets."""

from __future__ import annotations

import textwrap
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from textual.content import Content

from localspec import formats
from localspec.chat.figures import Figures, gamma_words
from localspec.engine.stats import Speedup
from localspec.safe_text import one_line
from localspec.ui.bases import HEAD, MUTED
from localspec.ui.panel import drawing
from localspec.ui.panel.memory import machine_lines, memory_lines, short_memory_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localspec.engine.stats import MemoryUse, Round

_SPEEDS_KEPT, _ROUNDS_KEPT = 200, 80
_LATELY = 16  # rounds of one column in the course of the acceptance
_TALLEST_COLUMNS = 6


@dataclass(slots=True)
class PanelState:
    """What the panel knows: the latest figures, and a short past of speed and rounds."""

    figures: Figures = field(default_factory=Figures)
    memory: MemoryUse | None = None
    note: str = ""
    stored: Mapping[str, Any] = field(default_factory=dict)
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=_SPEEDS_KEPT))
    acceptances: deque[float] = field(default_factory=lambda: deque(maxlen=_SPEEDS_KEPT))
    rounds: deque[drawing.RoundTokens] = field(default_factory=lambda: deque(maxlen=_ROUNDS_KEPT))

    def take(self, figures: Figures) -> None:
        """Accept fresh figures; the speed is remembered while an answer runs."""
        self.figures = (
            figures if figures.generated or figures.generating else self._recalled(figures)
        )
        if figures.generating and figures.speed_now is not None:
            self.speeds.append(figures.speed_now)
            lately = list(self.rounds)[-_LATELY:]
            accepted = sum(done.accepted for done in lately)
            drafted = accepted + sum(done.rejected for done in lately)
            if drafted:
                self.acceptances.append(accepted / drafted)

    def add_round(self, done: Round) -> None:
        """Remember how a round went."""
        self.rounds.append(outcome(done))

    def begin(self, stored: Mapping[str, Any]) -> None:
        """Forget the past: this is another conversation.

        Args:
            stored: figures of its last answer, as `figures_of` names them.
        """
        self.stored = stored
        self.speeds.clear()
        self.acceptances.clear()
        self.rounds.clear()

    def _recalled(self, figures: Figures) -> Figures:
        """Until something was answered here, the stored last answer is the last one."""
        speed, rate = (self.stored.get(n) for n in ("tokens_per_second", "acceptance_rate"))
        if not isinstance(speed, int | float) or "lossy" in self.stored:
            return figures
        return replace(
            figures,
            speed_average=speed,
            acceptance_rate=rate if isinstance(rate, int | float) else None,
        )


def outcome(done: Round) -> drawing.RoundTokens:
    """A round as the strips draw it."""
    own = done.emitted - done.from_draft
    return drawing.RoundTokens(
        accepted=done.from_draft,
        rejected=done.drafted - done.accepted,
        recovered=done.recovered,
        bonus=done.bonus,
        plain=max(0, own - done.recovered - done.bonus),
    )


def big_speed(state: PanelState) -> tuple[str, str]:
    """The speed for the big digits and what it is: now while an answer runs, then its average."""
    now = state.figures
    speed = now.speed_now if now.generating else now.speed_average
    figure = "-" if speed is None else f"{speed:.1f}" if speed < 100 else f"{speed:.0f}"
    meaning = "now" if now.generating else "no answer yet" if speed is None else "last answer"
    if now.lossy and now.drafted:
        meaning = f"{meaning.partition(' ')[0]}, {now.lossy}"
    return figure, meaning


def head_lines(state: PanelState) -> list[Content]:
    """The big digits with the unit beside them, and an empty line."""
    figure, meaning = big_speed(state)
    beside = (("", ""), ("  tokens/s", "bold"), (f"  {meaning}", MUTED))
    digits = drawing.big_digits(figure)
    lines = (
        drawing.styled((line, "$text-primary"), piece)
        for line, piece in zip(digits, beside, strict=True)
    )
    return [*lines, Content("")]


def compact_lines(state: PanelState, width: int) -> list[Content]:
    """Two lines of what matters most, for a terminal of ordinary width."""
    if width <= 0:
        return []
    now = state.figures
    bar_width = 10 if width >= 76 else 5
    unit = f"tokens/s, {now.lossy}" if now.lossy and now.drafted else "tokens/s"
    first = _join(
        [
            _figure(formats.speed(_speed(now)), unit),
            drawing.sparkline(state.speeds, bar_width),
            _figure(formats.percent(now.acceptance_rate), "accepted"),
            drawing.bar(now.acceptance_rate, bar_width),
            drawing.styled((formats.number(now.tokens_per_round, 2), "bold"), ("/round", MUTED)),
            _gamma(now),
        ],
        width,
    )
    second = _join(
        [
            *([_figure(_speedup_words(now.speedup), "plain")] if now.speedup else []),
            _figure(f"{_thousands(now.context_used)}/{_thousands(now.context_size)}", "context"),
            _figure(formats.count(now.drafted), "drafted"),
            _figure(formats.count(now.accepted), "accepted"),
            _figure(formats.seconds(now.time_to_first_token_s), "to first"),
            _figure(
                formats.size(state.memory.process) if state.memory else formats.UNKNOWN, "memory"
            ),
        ],
        width,
    )
    return [first, second]


def full_lines(state: PanelState, width: int, height: int) -> list[Content]:
    """The sections that fit into `width` by `height`, the least important left out first.

    Where not even the most important ones fit, they are shorter.
    """
    if width <= 0:
        return []
    wanted = [
        (0, _speed_lines(state, width)),
        (0, _speculation_lines(state, width)),
        (2, _round_lines(state, width, _TALLEST_COLUMNS)),
        (1, _context_lines(state, width)),
        (3, _time_lines(state, width)),
        (1, memory_lines(state.memory, width)),
        (4, machine_lines(state.memory, width)),
    ]
    for least in (5, 4, 3, 2):
        kept = [lines for rank, lines in wanted if rank < least and lines]
        for gaps in (True, False):
            if sum(map(len, kept)) + gaps * (len(kept) - 1) <= height:
                return _stack(kept, gaps=gaps)
    short = [
        _speed_lines(state, width),
        _speculation_lines(state, width),
        _context_lines(state, width)[:2],
        short_memory_lines(state.memory, width),
    ]
    return _stack(short, gaps=sum(map(len, short)) + len(short) - 1 <= height)[:height]


def _stack(sections: list[list[Content]], *, gaps: bool) -> list[Content]:
    lines: list[Content] = []
    for section in sections:
        if lines and gaps:
            lines.append(Content(""))
        lines.extend(section)
    return lines


def _speed(now: Figures) -> float | None:
    """The speed at this moment while an answer runs, then that of the whole answer."""
    return (now.speed_now if now.generating else None) or now.speed_average


def _speed_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    average = drawing.styled(
        ("average ", MUTED), (formats.speed(now.speed_average), "bold"), (" tokens/s", MUTED)
    )
    first = drawing.styled(("first ", MUTED), (formats.seconds(now.time_to_first_token_s), "bold"))
    lines = [
        drawing.two_sides(average, first, width),
        drawing.sparkline(state.speeds, width),
    ]
    if now.plain_speed is not None:
        plain = drawing.styled(
            ("plain ", MUTED), (formats.speed(now.plain_speed), "bold"), (" tokens/s", MUTED)
        )
        lines.append(drawing.two_sides(plain, _speedup(now), width))
    return lines


def _speedup(now: Figures) -> Content:
    """Whether drafting paid, with the doubt about it."""
    found = now.speedup
    if found is None:
        return Content("")
    style = "$text-success" if found.low >= 1 else "$text-warning" if found.high < 1 else ""
    return drawing.styled((_speedup_words(found), f"bold {style}".rstrip()))


def _speedup_words(found: Speedup) -> str:
    return f"{found.estimate:.1f}×, {found.low:.1f}–{found.high:.1f}"


def _speculation_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    switch = ("● on", "bold $text-success") if now.speculation else ("○ off", "bold $text-warning")
    half = width // 2
    lines = [drawing.two_sides(_head("Speculation"), drawing.styled(switch), width)]
    off = "" if now.speculation else state.note
    note = off or gamma_words(now.gamma_note, times="×")
    if note:
        lines += _wrapped(note, width, 3)
    rate = drawing.styled(
        ("accepted ", MUTED), (f"{formats.percent(now.acceptance_rate):>5} ", "bold")
    )
    lines += [
        Content.assemble(rate, drawing.bar(now.acceptance_rate, width - rate.cell_length)),
        *_course(state, width),
        _pair(
            ("gamma", str(now.gamma)), ("per round", formats.number(now.tokens_per_round, 2)), half
        ),
        _pair(
            ("drafted", formats.count(now.drafted)),
            ("accepted", formats.count(now.accepted)),
            half,
        ),
        _pair(
            ("recovered", formats.count(now.recovered)),
            ("bonus", formats.count(now.bonus)),
            half,
        ),
    ]
    return lines


def _course(state: PanelState, width: int) -> list[Content]:
    """The acceptance over time; a full column is everything accepted."""
    if len(state.acceptances) < 2:
        return []
    label = drawing.styled(("over time ", MUTED))
    course = drawing.sparkline(state.acceptances, width - label.cell_length, "$success", top=1.0)
    return [Content.assemble(label, course)]


def _round_lines(state: PanelState, width: int, height: int) -> list[Content]:
    if not state.rounds:
        return []
    tallest = max(len(done.marks) for done in list(state.rounds)[-(width // 2) :])
    key = drawing.styled(
        (drawing.ACCEPTED, drawing.STYLES[drawing.ACCEPTED]),
        (" accepted ", MUTED),
        (drawing.RECOVERED, drawing.STYLES[drawing.RECOVERED]),
        (" recovered ", MUTED),
        (drawing.BONUS, drawing.STYLES[drawing.BONUS]),
        (" bonus", MUTED),
    )
    second = drawing.styled(
        (drawing.REJECTED, drawing.STYLES[drawing.REJECTED]),
        (" rejected ", MUTED),
        (drawing.PLAIN, drawing.STYLES[drawing.PLAIN]),
        (" without a draft", MUTED),
    )
    columns = drawing.round_columns(state.rounds, width, min(height, max(3, tallest)))
    return [_head("Last rounds"), *columns, key, second]


def _time_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    # To find that nothing is to be drafted takes time too, but is no drafting.
    draft_s = now.draft_s if now.drafted or now.draft_read else 0.0
    whole = draft_s + now.verify_s
    if whole <= 0:
        return []
    share = draft_s / whole
    left = drawing.styled(
        ("█", "$success"), (" drafting ", MUTED), (formats.percent(share), "bold")
    )
    right = drawing.styled(
        ("░", "$primary"), (" checking ", MUTED), (formats.percent(1 - share), "bold")
    )
    return [
        _head("Time"),
        drawing.split_bar(draft_s, now.verify_s, width, ("$success", "$primary")),
        drawing.two_sides(left, right, width),
    ]


def _context_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    share = now.context_used / now.context_size if now.context_size else None
    style = "$warning" if share is not None and share > 0.85 else "$primary"
    used = f"{formats.count(now.context_used)} of {formats.count(now.context_size)}"
    lines = [
        drawing.two_sides(_head("Context"), drawing.styled((used, "bold")), width),
        drawing.bar(share, width, style),
    ]
    if now.prompt_tokens:
        read = max(0, now.prompt_tokens - now.prompt_cached)
        lines.append(_known("target", now.prompt_cached, read, width))
    if now.draft_cached or now.draft_read:
        lines.append(_known("draft", now.draft_cached, now.draft_read, width))
    return lines


def _known(whose: str, cached: int, read: int, width: int) -> Content:
    """How much of the prompt was in a model's cache, and how much it had to read."""
    figures = f"{formats.count(cached)} known, {formats.count(read)} read"
    return drawing.two_sides(
        drawing.styled((whose, MUTED)), drawing.styled((figures, "bold")), width
    )


def _head(text: str) -> Content:
    return drawing.styled((text, HEAD))


def _pair(left: tuple[str, str], right: tuple[str, str], half: int) -> Content:
    """Two labelled figures beside each other, each right-aligned in its half."""
    first = drawing.two_sides(
        drawing.styled((left[0], MUTED)), drawing.styled((left[1], "bold")), half - 2
    )
    second = drawing.two_sides(
        drawing.styled((right[0], MUTED)), drawing.styled((right[1], "bold")), half
    )
    return Content.assemble(first, "  ", second)


def _figure(value: str, label: str) -> Content:
    return drawing.styled((value, "bold"), (f" {label}", MUTED))


def _gamma(now: Figures) -> Content:
    if not now.speculation:
        return drawing.styled(("○ off", "bold $text-warning"))
    return drawing.styled(("● ", "$text-success"), ("gamma ", MUTED), (str(now.gamma), "bold"))


def _join(parts: list[Content], width: int) -> Content:
    """As many parts as fit, in order, two cells apart."""
    line = parts[0]
    for part in parts[1:]:
        if line.cell_length + 2 + part.cell_length > width:
            break
        line = Content.assemble(line, "  ", part)
    return line


def _wrapped(text: str, width: int, most: int) -> list[Content]:
    lines = textwrap.wrap(one_line(text), width, max_lines=most, placeholder=" …")
    return [drawing.styled((line, f"{MUTED} italic")) for line in lines]


def _thousands(value: int) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else formats.count(value)
