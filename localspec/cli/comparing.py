"""The work behind `localspec bench --compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from localspec.bench.compare import Comparison, compare, load
from localspec.bench.result import ALL
from localspec.bench.wording import speedup
from localspec.cli.standard_streams import write
from localspec.safe_text import one_line


def compare_files(old: Path, new: Path, *, as_json: bool) -> None:
    """Print what changed from `old` to `new`.

    Raises:
        LocalspecError: a file is no report, or they have nothing in common.
    """
    found = compare(load(old), load(new))
    write((json.dumps(asdict(found), indent=1) if as_json else _text(found)) + "\n")


def _text(found: Comparison) -> str:
    rows = [("setting", "kind", "tokens/s, new/old", "speed-up, new/old")]
    rows += [
        (
            one_line(change.arm, 80),
            one_line(change.kind, 80),
            speedup(change.speed),
            speedup(change.speedup),
        )
        for change in found.changes
        if change.kind == ALL or not change.arm.startswith("gamma ")
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if found.different:
        lines += ["", "Different:"]
        lines += [
            f"  {one_line(name, 80)}: {one_line(old, 200)} -> {one_line(new, 200)}"
            for name, old, new in found.different
        ]
    return "\n".join([*lines, "", *(one_line(line, 400) for line in found.verdict)])
