"""The work behind `localspec bench --compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from localspec.bench.compare import Comparison, compare, load
from localspec.bench.result import ALL
from localspec.bench.wording import speedup
from localspec.cli.answering import write
from localspec.pairs import units


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
            units.plain(change.arm),
            units.plain(change.kind),
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
            f"  {units.plain(name)}: {units.plain(old, 200)} -> {units.plain(new, 200)}"
            for name, old, new in found.different
        ]
    return "\n".join([*lines, "", *(units.plain(line, 400) for line in found.verdict)])
