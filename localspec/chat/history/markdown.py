"""A conversation as readable Markdown that can be imported again.

Headings name the speakers. A line of a message that looks like one of these headings gets a
backslash, which Markdown does not show. Everything that only an import needs is in a comment, the
last line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from localspec import formats
from localspec.chat.conversation import Role
from localspec.chat.history.tree import ConversationHeader, MessageNode, StoredConversation

VERSION = 1
"""The version of exported files, in both formats."""

_PROMPT = "system_prompt"  # a parameter that has a heading of its own
_SYSTEM = "System prompt"
_USER = "You"
_TOOL = "Tool"
_NOTE = "<!-- localspec conversation "
_NOTE_END = " -->"


def to_markdown(stored: StoredConversation) -> str:
    """The current path as Markdown."""
    header, path = stored.header, stored.tree.path()
    day = formats.moment(header.created, lambda when: when.isoformat(" ", "minutes"))
    pair = " ".join(header.pair.name.split())
    names = _names(pair)
    said = [(names[node.message.role], node.message.content) for node in path]
    if system := header.parameters.get(_PROMPT):
        said.insert(0, (names[Role.SYSTEM], str(system)))
    parts = [f"# {header.title}", f"{pair or 'unknown pair'}, {day}"]
    reads_like_heading = _line(names.values())
    for name, content in said:
        parts += [f"## {name}", reads_like_heading.sub(r"\\\1", content)]
    return "\n\n".join([*parts, _note(header, path)]) + "\n"


def from_markdown(text: str) -> dict[str, Any]:
    """Parse the result of `to_markdown` into the document of a JSON export.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the text is something else, or damaged.
    """
    body, document = _without_note(text)
    if document["version"] != VERSION:
        return document  # a newer localspec may have written more
    roles = {
        name: role for role, name in _names(" ".join(document["pair"]["name"].split())).items()
    }
    first, *parts = re.split(rf"\n\n## ({_any(roles)})\n\n", body)
    escaped = _line(roles, before=r"\\")
    said = [
        (roles[name], escaped.sub(r"\1", content))
        for name, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    if said and said[0][0] is Role.SYSTEM:
        document["parameters"][_PROMPT] = said.pop(0)[1]
    document["title"] = first.partition("\n")[0].removeprefix("# ").strip()
    finish = document["finish"]
    if len(finish) != len(said):  # messages were added or removed by hand
        finish = [None] * len(said)
    document["messages"] = [
        {"id": n, "parent": n - 1, "role": role, "content": content, "finish": finish[n - 1]}
        for n, (role, content) in enumerate(said, 1)
    ]
    return document


def _names(pair: str) -> dict[Role, str]:
    """The name of each role in headings; no two are equal."""
    answer = pair or "Answer"
    if answer in (_SYSTEM, _USER, _TOOL):
        answer += " (model)"
    return {Role.SYSTEM: _SYSTEM, Role.USER: _USER, Role.ASSISTANT: answer, Role.TOOL: _TOOL}


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


def _line(names: Iterable[str], before: str = "") -> re.Pattern[str]:
    r"""A line that looks like a heading, perhaps after backslashes or with a \r at its end."""
    return re.compile(rf"^{before}(\\*## (?:{_any(names)})(?=\r?$))", re.MULTILINE)


def _note(header: ConversationHeader, path: Sequence[MessageNode]) -> str:
    note = {
        "version": VERSION,
        "created": header.created,
        "pair": asdict(header.pair),
        "finish": [node.message.finish for node in path],
        "parameters": {k: "" if k == _PROMPT else v for k, v in header.parameters.items()},
    }
    written = json.dumps(note, ensure_ascii=False)
    return _NOTE + written.replace(">", r"\u003e") + _NOTE_END  # keeps the comment closed


def _without_note(text: str) -> tuple[str, dict[str, Any]]:
    text = text.rstrip()
    if "\n" not in text.replace("\r\n", ""):
        text = text.replace("\r\n", "\n")  # an editor, or git, has changed the line ends
    body, found, note = text.rpartition(f"\n\n{_NOTE}")
    if not found or not note.endswith(_NOTE_END):
        raise ValueError("its last line is not the comment that localspec writes")
    document: dict[str, Any] = json.loads(note.removesuffix(_NOTE_END))
    return body, document
