"""What the panel says about memory: figures in, lines out, no widgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from localspec import formats
from localspec.safe_text import one_line
from localspec.ui.bases import HEAD, MUTED
from localspec.ui.panel import drawing

if TYPE_CHECKING:
    from localspec.engine.stats import MemoryUse

_MARKS = {"█": "$primary", "▒": "$warning", "─": "$foreground 35%"}


def memory_lines(use: MemoryUse | None, width: int) -> list[Content]:
    """What localspec takes, by part, and what the machine and its devices have."""
    if use is None:
        return []
    parts = [
        ("target weights", use.target_weights, "█", "$primary"),
        ("draft weights", use.draft_weights, "▓", "$success"),
        ("caches", use.target_cache + use.draft_cache, "▒", "$warning"),
        ("buffers", use.buffers, "░", "$accent"),
    ]
    lines = [
        _head(use, width),
        drawing.stacked_bar([(amount, mark, style) for _, amount, mark, style in parts], width),
    ]
    for label, amount, mark, style in parts:
        lines.append(_amount(mark, style, label, formats.size(amount), width))
    return [*lines, *_amounts_elsewhere(use, width)]


def short_memory_lines(use: MemoryUse | None, width: int) -> list[Content]:
    """The same in fewer lines, two parts in each."""
    if use is None:
        return []
    parts = [
        ("target ", use.target_weights),
        ("draft ", use.draft_weights),
        ("caches ", use.target_cache + use.draft_cache),
        ("buffers ", use.buffers),
    ]
    named = [
        drawing.styled((label, MUTED), (formats.size(amount), "bold")) for label, amount in parts
    ]
    pairs = [drawing.two_sides(named[i], named[i + 1], width) for i in (0, 2)]
    return [_head(use, width), *pairs, *_amounts_elsewhere(use, width, indent="")]


def _head(use: MemoryUse, width: int) -> Content:
    process = drawing.styled((formats.size(use.process), "bold"))
    return drawing.two_sides(drawing.styled(("Memory", HEAD)), process, width)


def _amounts_elsewhere(use: MemoryUse, width: int, indent: str = "  ") -> list[Content]:
    """What is in use of the machine's memory and of each device's."""
    used = use.machine_total - use.machine_available
    amounts = [("machine", used, use.machine_total)]
    amounts += [(one_line(one.name, 14), one.total - one.free, one.total) for one in use.devices]
    return [
        drawing.two_sides(
            drawing.styled((indent, ""), (label, MUTED)),
            drawing.styled((f"{formats.size(taken)} of {formats.size(total)}", "bold")),
            width,
        )
        for label, taken, total in amounts
    ]


def machine_lines(use: MemoryUse | None, width: int) -> list[Content]:
    """The main memory and each device's own as bars: this program, others, free."""
    if use is None or width < 20:
        return []
    others = max(0, use.machine_total - use.machine_available - use.process)
    bars = [("memory", [(use.process, "█"), (others, "▒"), (use.machine_available, "─")])]
    bars += [
        (one_line(one.label or one.name, 8), [(one.total - one.free, "▒"), (one.free, "─")])
        for one in use.devices
        if not one.integrated
    ]
    lines = []
    for label, parts in bars:
        bar = drawing.stacked_bar([(n, mark, _MARKS[mark]) for n, mark in parts], width - 9)
        lines.append(Content.assemble((f"{label:<9}", MUTED), bar))
    legend = (("█", " localspec  "), ("▒", " in use  "), ("─", " free"))
    pieces = [piece for mark, text in legend for piece in ((mark, _MARKS[mark]), (text, MUTED))]
    return [*lines, drawing.styled(*pieces)]


def _amount(mark: str, style: str, label: str, value: str, width: int) -> Content:
    left = drawing.styled((f"{mark} ", style), (label, MUTED))
    return drawing.two_sides(left, drawing.styled((value, "bold")), width)
