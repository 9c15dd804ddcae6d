"""The result of a tool as text for a model: foreign text, made safe and cut."""

from __future__ import annotations

import json
from collections.abc import Iterator

import mcp_types

from localspec.safe_text import one_line, safe, without_middle

LONGEST = 256 << 10
"""Characters of a result; the context decides how much of it the model reads."""


def text_of(result: mcp_types.CallToolResult) -> str:
    """The texts of a result, and a line in place of everything else."""
    text = "\n".join(_parts(result))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return safe(without_middle(text, LONGEST)) or "(an empty result)"


def _parts(result: mcp_types.CallToolResult) -> Iterator[str]:
    for block in result.content:
        match block:
            case mcp_types.TextContent():
                yield block.text
            case mcp_types.ImageContent() | mcp_types.AudioContent():
                yield f"[{block.type}, {one_line(block.mime_type, 60)}: left out]"
            case mcp_types.ResourceLink():
                yield f"[a link: {one_line(block.name, 100)} {one_line(str(block.uri), 400)}]"
            case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
                yield text
            case _:
                yield "[data: left out]"
