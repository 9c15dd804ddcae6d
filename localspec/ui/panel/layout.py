"""The text and layout of the figures panel: figures in, lines out, no widgets."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from textual.content import Content

from localspec import formats
from localspec.chat.figures.benefit import baseline_speed, guessed, ratio, summary
from localspec.chat.figures.figures import (
    Figures,
    accepted_share,
    gamma_words,
    kept_words,
    lossy_words,
)
from localspec.engine.record.stats import GammaReason, MemoryUse, Round, Speedup
from localspec.safe_text import one_line
from localspec.ui.panel import drawing
from localspec.ui.panel.drawing import Piece, bar, joined, sparkline, two_sides
from localspec.ui.widgets import HEAD, MUTED

_SPEEDS_KEPT, _ROUNDS_KEPT = 200, 80
_LATELY = 16  # rounds per column of the acceptance over time
_TALLEST_COLUMNS = 6
_ON, _OFF = ("● on", "bold $text-success"), ("○ off", "bold $text-warning")
_MARKS = {"█": "$primary", "▒": "$warning", "─": drawing.FAINT}


@dataclass(slots=True)
class PanelState:
    """The latest figures, and a short past of speed and rounds."""

    figures: Figures = field(default_factory=Figures)
    memory: MemoryUse | None = None
    note: str = ""
    stored: Mapping[str, Any] = field(default_factory=dict)
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=_SPEEDS_KEPT))
    acceptances: deque[float] = field(default_factory=lambda: deque(maxlen=_SPEEDS_KEPT))
    rounds: deque[str] = field(default_factory=lambda: deque(maxlen=_ROUNDS_KEPT))  # their marks

    def take(self, figures: Figures) -> None:
        """Accept fresh figures; the speed is remembered while an answer runs."""
        self.figures = (
            figures if figures.generated or figures.generating else self._recalled(figures)
        )
        if figures.generating and figures.speed_now is not None:
            self.speeds.append(figures.speed_now)
            lately = "".join([*self.rounds][-_LATELY:])
            accepted = lately.count(drawing.ACCEPTED)
            if drafted := accepted + lately.count(drawing.REJECTED):
                self.acceptances.append(accepted / drafted)

    def add_round(self, done: Round) -> None:
        """Remember the marks of a round."""
        self.rounds.append(marks_of(done))

    def begin(self, stored: Mapping[str, Any]) -> None:
        """Forget the past, for another conversation.

        Args:
            stored: figures of its last answer, as `figures_of` names them.
        """
        self.stored = stored
        self.speeds.clear()
        self.acceptances.clear()
        self.rounds.clear()

    def _recalled(self, figures: Figures) -> Figures:
        """The current figures; before the first answer here, those of the stored last answer."""
        known = {name: n for name, n in self.stored.items() if isinstance(n, int | float)}
        names = ("generated_tokens", "drafted_tokens", "accepted_tokens", "context_used")
        counts = [int(known[name]) for name in names if name in known]
        if len(counts) < len(names) or "tokens_per_second" not in known:
            return figures  # only a part of them would contradict the rest
        generated, drafted, accepted, context = counts
        return replace(
            figures,
            answer_note=None,
            speed_average=known["tokens_per_second"],
            lossy=lossy_words(known.get("lossy")),
            generated=generated,
            drafted=drafted,
            accepted=accepted,
            recovered=None,
            bonus=None,
            context_used=min(context, figures.context_size),
        )


def marks_of(done: Round) -> str:
    """A round as it is drawn: a mark for each token, rejected ones last."""
    return (
        drawing.ACCEPTED * done.from_draft
        + drawing.RECOVERED * done.recovered
        + drawing.BONUS * done.bonus
        + drawing.UNDRAFTED * (done.emitted - done.from_draft - done.recovered - done.bonus)
        + drawing.REJECTED * (done.drafted - done.accepted)
    )


def big_speed(state: PanelState) -> tuple[str, str]:
    """The speed for the big digits and its name: the current one, else the average."""
    now = state.figures
    speed = now.speed_now if now.generating else now.speed_average
    figure = "-" if speed is None else formats.speed(speed).replace(",", "")
    meaning = "now" if now.generating else "no answer yet" if speed is None else "last answer"
    if now.lossy and now.drafted:
        meaning = f"{meaning.partition(' ')[0]}, {now.lossy}"
    return figure, meaning


def head_lines(state: PanelState, width: int) -> list[Content]:
    """The big digits with their unit, and what drafting brought."""
    figure, meaning = big_speed(state)
    rest = (("", ""), ("  tokens/s", "bold"), (f"  {meaning}", MUTED))
    digits = drawing.big_digits(figure)
    lines = (
        Content.assemble((line, "$text-primary"), piece)
        for line, piece in zip(digits, rest, strict=True)
    )
    said = textwrap.wrap(summary(state.figures), max(2, width), max_lines=4, placeholder=" …")
    bold = [Content(""), *(Content.styled(line, "bold") for line in said)] if said else []
    return [*lines, *bold, Content("")]


def compact_lines(state: PanelState, width: int) -> list[Content]:
    """Two lines of what matters most, for a terminal of ordinary width."""
    now, memory = state.figures, state.memory
    bar_width = 10 if width >= 76 else 5
    speed = now.speed_now if now.generating else now.speed_average
    unit = "tokens/s" if speed is None else f"tokens/s {big_speed(state)[1]}"
    first = [
        _figure(formats.speed(speed), unit),
        *([Content.styled(*_switch(now))] if now.context_size else []),  # where it is always seen
        sparkline(state.speeds, bar_width),
    ]
    second = []  # what is not known yet is left out
    if now.context_size:
        first += _guesses(now, bar_width)
        used = f"{_thousands(now.context_used)}/{_thousands(now.context_size)}"
        second.append(_figure(used, "context"))
    if now.time_to_first_token_s is not None:
        second.append(_figure(formats.seconds(now.time_to_first_token_s), "to the first word"))
    if memory is not None:
        taken = formats.size(memory.taken), "bold"
        second.append(Content.assemble(("localspec uses ", MUTED), taken))
    return [joined(first, width), joined(second or [Content("")], width)] if width > 0 else []


def _guesses(now: Figures, bar_width: int) -> list[Content]:
    """What became of the draft; once the answer is there, the line below it has the counts."""
    share = accepted_share(now.drafted, now.accepted, now.generated)
    if now.generating or not now.drafted:
        return [Content.styled(guessed(now.drafted, now.accepted), "bold"), bar(share, bar_width)]
    if share is None:
        return []
    return [_figure(formats.percent(share), "kept"), bar(share, bar_width)]


def full_lines(state: PanelState, width: int, height: int) -> list[Content]:
    """The sections that fit into `width` by `height`, the least important left out first.

    If even the most important ones do not fit, they are shortened.
    """
    if width <= 0:
        return []
    speed, speculation = _speed_lines(state, width), _speculation_lines(state, width)
    context, memory = _context_lines(state, width), state.memory
    wanted = [
        (0, speed),
        (0, speculation),
        (2, _round_lines(state, width)),
        (1, context),
        (3, _time_lines(state, width)),
        (1, _memory_lines(memory, width)),
        (4, [*machine_lines(memory, width), *_attention_line(state.figures, width)]),
    ]
    for least in (5, 4, 3, 2):
        kept = [lines for rank, lines in wanted if rank < least and lines]
        for gaps in (True, False):
            if sum(map(len, kept)) + gaps * (len(kept) - 1) <= height:
                return _stack(kept, gaps=gaps)
    short = [speed, speculation, context[:2], _memory_lines(memory, width, short=True)]
    return _stack(short, gaps=sum(map(len, short)) + len(short) - 1 <= height)[:height]


def _stack(sections: list[list[Content]], *, gaps: bool) -> list[Content]:
    lines: list[Content] = []
    for section in sections:
        if lines and gaps:
            lines.append(Content(""))
        lines.extend(section)
    return lines


def _speed_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    average = _speed("average", now.speed_average)
    first = Content.assemble(("wait ", MUTED), (formats.seconds(now.time_to_first_token_s), "bold"))
    lines = [two_sides(average, first, width), sparkline(state.speeds, width)]
    if (without := baseline_speed(now)) is not None:
        lines.append(two_sides(_speed("without", without), _speedup(ratio(now)), width))
    return lines


def _speed(name: str, speed: float | None) -> Content:
    return Content.assemble(
        (f"{name} ", MUTED), (formats.speed(speed), "bold"), (" tokens/s", MUTED)
    )


def _speedup(found: Speedup | None) -> Piece:
    """Whether drafting paid, with its interval."""
    if found is None:
        return "", ""
    style = " $text-success" if found.low >= 1 else " $text-warning" if found.high < 1 else ""
    return f"{found.estimate:.1f}×, {found.low:.1f}–{found.high:.1f}", f"bold{style}"


def _switch(now: Figures) -> Piece:
    """Whether drafting is on; empty before a model was loaded."""
    return (_ON if now.speculation else _OFF) if now.context_size else ("", "")


def _too_early(now: Figures) -> bool:
    """Whether the note tells how much of a text repeats, and there is no text yet."""
    reason = now.gamma_note.reason if now.gamma_note else None
    text = now.generating or now.generated
    return reason is GammaReason.TOO_LITTLE_REPEATS and not text


def _speculation_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    lines = [two_sides(("Drafting", HEAD), _switch(now), width)]
    counts = now.drafted, now.accepted, now.generated
    kept = Content.styled(f"{kept_words(*counts)} ", "bold")
    lines.append(Content.assemble(kept, bar(accepted_share(*counts), width - kept.cell_length)))
    note = "" if now.speculation else state.note
    if not note and (policy := gamma_words(now.gamma_note)) and not _too_early(now):
        note = f"now {policy}"
    said = textwrap.wrap(one_line(note), width, max_lines=3, placeholder=" …")
    lines += [Content.styled(line, f"{MUTED} italic") for line in said]
    if now.drafted and len(state.acceptances) > 1:  # a full column is everything accepted
        label = ("over time ", MUTED)
        room = width - len(label[0])
        lines.append(
            Content.assemble(label, sparkline(state.acceptances, room, "$success", top=1.0))
        )
    pairs = (
        (("gamma", str(now.gamma)), ("per round", formats.number(now.tokens_per_round, 2))),
        (("drafted", formats.count(now.drafted)), ("accepted", formats.count(now.accepted))),
        (("recovered", formats.count(now.recovered)), ("bonus", formats.count(now.bonus))),
    )
    half = width // 2
    for left, right in pairs:
        lines.append(Content.assemble(_row(*left, half - 2), "  ", _row(*right, half)))
    for name, drafted, accepted in now.drafters if len(now.drafters) > 1 else ():
        lines.append(_row(name, f"{formats.count(accepted)} of {formats.count(drafted)}", width))
    return lines


def _round_lines(state: PanelState, width: int) -> list[Content]:
    if not state.rounds:
        return []
    tallest = max(map(len, [*state.rounds][-(width // 2) :]))
    height = min(_TALLEST_COLUMNS, max(3, tallest))
    columns = drawing.round_columns(state.rounds, width, height)
    return [
        Content.styled("Last rounds", HEAD),
        *columns,
        _key(
            (drawing.ACCEPTED, " accepted "),
            (drawing.RECOVERED, " recovered "),
            (drawing.BONUS, " bonus"),
        ),
        _key((drawing.REJECTED, " rejected "), (drawing.UNDRAFTED, " without a draft")),
    ]


def _key(*entries: tuple[str, str], styles: Mapping[str, str] = drawing.STYLES) -> Content:
    """Marks and what they mean."""
    pieces = (((mark, styles[mark]), (meaning, MUTED)) for mark, meaning in entries)
    return Content.assemble(*(piece for both in pieces for piece in both))


def _time_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    # Deciding to draft nothing takes time too, but does not count as drafting.
    draft_s = now.draft_s if now.drafted or now.draft_read else 0.0
    whole = draft_s + now.verify_s
    if whole <= 0:
        return []
    parts = [(draft_s, "█", "$success"), (now.verify_s, "░", "$primary")]
    names = "drafting", "checking" if now.drafted else "writing"
    left, right = (
        Content.assemble((mark, style), (f" {what} ", MUTED), (formats.percent(s / whole), "bold"))
        for (s, mark, style), what in zip(parts, names, strict=True)
    )
    return [
        Content.styled("Time", HEAD),
        drawing.stacked_bar(parts, width),
        two_sides(left, right, width),
    ]


def _context_lines(state: PanelState, width: int) -> list[Content]:
    now = state.figures
    share = now.context_used / now.context_size if now.context_size else None
    style = "$warning" if share is not None and share > 0.85 else "$primary"
    used = f"{formats.count(now.context_used)} of {formats.count(now.context_size)}"
    lines = [_row("Context", used, width, HEAD), bar(share, width, style)]
    # How much of the prompt was in a model's cache, and how much it had to read.
    if now.prompt_tokens:
        read = max(0, now.prompt_tokens - now.prompt_cached)
        lines.append(_row("target", _known(now.prompt_cached, read), width))
    if now.draft_cached or now.draft_read:
        lines.append(_row("draft", _known(now.draft_cached, now.draft_read), width))
    return lines


def _known(cached: int, read: int) -> str:
    return f"{formats.count(cached)} reused, {formats.count(read)} new"


def _memory_lines(use: MemoryUse | None, width: int, *, short: bool = False) -> list[Content]:
    """Measured memory, by part, and that in use on the machine and its devices."""
    if use is None:
        return []
    parts = [
        ("target weights", use.target_weights, "█", "$primary"),
        ("draft weights", use.draft_weights, "▓", "$success"),
        ("caches", use.target_cache + use.draft_cache, "▒", "$warning"),
        ("buffers", use.buffers, "░", "$accent"),
    ]
    lines = [_row("Memory, localspec now", formats.size(use.taken), width, HEAD)]
    if short:
        named = [
            Content.assemble((f"{label.split()[0]} ", MUTED), (formats.size(amount), "bold"))
            for label, amount, *_ in parts
        ]
        lines += [two_sides(named[i], named[i + 1], width) for i in (0, 2)]
    else:
        whole = sum(part[1] for part in parts)  # more than is used until the caches are full
        lines.append(_row("reserved for models", formats.size(whole), width))
        lines.append(drawing.stacked_bar([part[1:] for part in parts], width))
        for label, amount, mark, style in parts:
            left = Content.assemble((f"{mark} ", style), (label, MUTED))
            lines.append(two_sides(left, (formats.size(amount), "bold"), width))
    used = [("machine", use.machine_total - use.machine_available, use.machine_total)]
    used += [(one_line(one.name, 14), one.total - one.free, one.total) for one in use.devices]
    for name, taken, total in used:
        amounts = f"{formats.size(taken)} of {formats.size(total)}"
        lines.append(_row(name if short else f"  {name}", amounts, width))
    return lines


def machine_lines(use: MemoryUse | None, width: int) -> list[Content]:
    """A bar for main memory and one for each device's memory: this program, others, free."""
    if use is None or width < 20:
        return []
    others = max(0, use.machine_total - use.machine_available - use.process)
    bars = [("memory", [(use.process, "█"), (others, "▒"), (use.machine_available, "─")])]
    bars += [
        (one_line(one.label or one.name, 8), [(one.total - one.free, "▒"), (one.free, "─")])
        for one in use.devices
        if one.has_own
    ]
    lines = []
    for label, parts in bars:
        line = drawing.stacked_bar([(n, mark, _MARKS[mark]) for n, mark in parts], width - 9)
        lines.append(Content.assemble((f"{label:<9}", MUTED), line))
    return [*lines, _key(("█", " localspec  "), ("▒", " in use  "), ("─", " free"), styles=_MARKS)]


def _attention_line(now: Figures, width: int) -> list[Content]:
    """How attention is computed, if that was chosen."""
    return [] if now.flash_attn == "auto" else [_row("flash attention", now.flash_attn, width)]


def _row(label: str, value: str, width: int, style: str = MUTED) -> Content:
    """A figure at the right end of its line."""
    return two_sides((label, style), (value, "bold"), width)


def _figure(value: str, label: str) -> Content:
    return Content.assemble((value, "bold"), (f" {label}", MUTED))


def _thousands(value: int) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else formats.count(value)
