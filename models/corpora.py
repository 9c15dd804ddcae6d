"""The corpora: one JSON object per line, packed with zstandard, in a folder of their own."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Message = dict[str, str]
"""`{"role": "user" | "assistant" | "system", "content": text}`."""


def conversations(folder: Path, source: str, *, held_out: bool = False) -> Iterator[list[Message]]:
    """Yield the conversations of one source, in file order, the contents stripped."""
    path = folder / f"{source}{'.heldout' if held_out else ''}.jsonl.zst"
    with path.open("rb") as packed:
        stream = zstandard.ZstdDecompressor().stream_reader(packed)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            messages = json.loads(line)["messages"]
            yield [{"role": m["role"], "content": m["content"].strip()} for m in messages]


def sources(folder: Path) -> list[str]:
    """Name every source in the folder."""
    return sorted(
        path.name.removesuffix(".jsonl.zst")
        for path in folder.glob("*.jsonl.zst")
        if ".heldout." not in path.name
    )
