"""Conversations as files: Markdown for reading, JSON with all versions; both can be imported."""

from __future__ import annotations

import json
import os
import re
import stat
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from localspec.chat.conversation import Role
from localspec.chat.history.fields import Moment, message_of, pack, sound, sound_figures
from localspec.chat.history.markdown import VERSION, from_markdown, to_markdown
from localspec.chat.history.tree import (
    ConversationHeader,
    MessageNode,
    MessageTree,
    PairReference,
    StoredConversation,
    fresh_id,
    title_of,
)
from localspec.engine.record.stats import FinishReason
from localspec.errors import ConversationError, UsageError
from localspec.safe_text import decoded, encodable, words

FORMAT = "localspec conversation"
FORMS = ("md", "json")
_FORM_OF = {"md": "md", "markdown": "md", "txt": "md", "json": "json"}
_NOT_WRITTEN = ("html", "htm", "pdf", "docx", "csv")
LARGEST = 64 << 20
_MOST_VALUES = 1_000_000
# A JSON string, even without its closing quote. A text without its strings is its structure.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_REMEDY = "Choose a file that /export has written."


class _ExportedMessage(Struct):
    """A message in a file; only some of its fields must be valid."""

    id: Any
    role: Role
    content: str
    finish: FinishReason | None = None
    parent: Any = None
    origins: Any = ""
    figures: Any = None


class _ExportedConversation(Struct):
    """A conversation in a file."""

    messages: list[_ExportedMessage]
    title: Any = ""
    created: Any = None
    pair: Any = None
    parameters: Any = None
    leaf: Any = None


def to_json(stored: StoredConversation) -> str:
    """The conversation as JSON, with all versions."""
    header = stored.header
    document = {
        "format": FORMAT,
        "version": VERSION,
        "title": header.title,
        "created": header.created,
        "pair": asdict(header.pair),
        "parameters": header.parameters,
        "leaf": stored.tree.leaf,
        "messages": [
            {
                "id": node.id,
                "parent": node.parent,
                "role": node.message.role.value,
                "content": node.message.content,
                "finish": node.message.finish,
                "origins": pack(node.message.spans),
                "figures": dict(node.figures),
            }
            for node in stored.tree.nodes.values()
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def from_text(text: str) -> StoredConversation:
    """Import a conversation from either format, under new ids.

    Raises:
        ConversationError: the text is something else, or damaged.
    """
    try:
        document = _document(text)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConversationError(f"this is not an exported conversation: {error}", _REMEDY) from None
    if document.get("version") != VERSION:
        raise ConversationError(
            f"this export is of version {document.get('version')}, not {VERSION}",
            "Update localspec to read it.",
        )
    try:
        return _stored(msgspec.convert(document, _ExportedConversation))
    except ValueError as error:
        raise ConversationError(f"this export is damaged: {error}", _REMEDY) from None


def read_file(path: Path) -> StoredConversation:
    """Import a conversation from a file.

    Raises:
        ConversationError: the file cannot be read, or holds no conversation.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise ConversationError(f"cannot read {path}: it is not a file", _REMEDY)
        if found.st_size > LARGEST:
            raise ConversationError(f"{path} is too large for a conversation", _REMEDY)
        return from_text(decoded(path.read_bytes()))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConversationError(f"cannot read {path}: {reason}", "Choose another file.") from None


def write_file(stored: StoredConversation, form: str, path: Path | None) -> Path:
    """Write a conversation; without a path, to a file named by its title in the current folder.

    Raises:
        ConversationError: the file exists already, or cannot be written.
    """
    text = to_json(stored) if form == "json" else to_markdown(stored)
    target = path or _free_name(stored.header.title, form)
    begun = False
    try:
        with target.open("x", encoding="utf-8", errors="replace", newline="\n") as out:
            begun = True
            out.write(text)
    except FileExistsError:
        raise ConversationError(f"{target} exists already", "Name another file.") from None
    except (OSError, ValueError) as error:
        if begun:  # a part of it would look like all of it
            with suppress(OSError):
                target.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConversationError(f"cannot write {target}: {reason}", "Name another file.") from None
    return target


def form_of(word: str) -> str:
    """The form that a word or a file's ending names; empty if it names none.

    Raises:
        UsageError: a form in which no conversation is written.
    """
    if word.lower() in _NOT_WRITTEN:
        raise UsageError(
            f"a conversation is not written as {word}", "Say md (Markdown) or json, and a name."
        )
    return _FORM_OF.get(word.lower(), "")


def with_ending(path: Path, form: str) -> tuple[str, Path]:
    """The form for the file, and its name with an ending.

    Args:
        path: as the user wrote it.
        form: that was asked for; empty for that of the path's ending, else Markdown.

    Raises:
        UsageError: as `form_of`.
    """
    own = form_of(path.suffix[1:])
    form = form or own or FORMS[0]
    named = own or os.path.isdir(path)  # which will be refused  # noqa: PTH112 - that may raise
    return form, path if named else path.with_name(f"{path.name}.{form}")


def with_found_ending(path: Path) -> Path:
    """`path`; if there is no such file, but one with the ending of an export, that one."""
    names = [path, *(path.with_name(f"{path.name}.{form}") for form in FORMS if path.name)]
    return next(filter(os.path.isfile, names), path)


def _document(text: str) -> Mapping[str, Any]:
    _require_bounded(text)
    if not text.lstrip().startswith("{"):
        return from_markdown(text)
    document = json.loads(text)
    if "\\u" in text:  # JSON can name half of a letter, which no file and no message can hold
        document = json.loads(encodable(json.dumps(document, ensure_ascii=False)))
    if document.get("format") != FORMAT:
        raise ValueError("it is other JSON")
    found: Mapping[str, Any] = document
    return found


def _require_bounded(text: str) -> None:
    """Refuse JSON that would take a hundred times its size in memory, such as lists of empty lists.

    Raises:
        ConversationError: it has more values than any conversation.
    """
    begin = text.find("{") if text.lstrip().startswith("{") else text.rfind("<!--")
    structure = _STRING.sub("", text[max(begin, 0) :])
    if sum(structure.count(mark) for mark in ",[{") > _MOST_VALUES:
        raise ConversationError("this is not a conversation: it has too many values", _REMEDY)


def _free_name(title: str, form: str) -> Path:
    said = " ".join(words(title))
    stem = textwrap.shorten(said, 50, placeholder="").replace(" ", "-")
    stem = stem or said[:50] or "conversation"  # its first word may be longer
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (Path(f"{stem}{ending}.{form}") for ending in endings)
    return next(name for name in names if not name.exists())


def _stored(export: _ExportedConversation) -> StoredConversation:
    if not export.messages:
        raise ValueError("it has no messages")
    ids = {str(said.id): fresh_id() for said in export.messages}
    if len(ids) < len(export.messages):
        raise ValueError("two messages have one id")
    nodes = [
        MessageNode(
            ids[str(said.id)],
            ids.get(str(said.parent)) if said.parent else None,
            message_of(said.role, said.content, said.finish, str(said.origins), figures),
            figures,
        )
        for said in export.messages
        for figures in [sound_figures(said.figures)]
    ]
    now, wrong = time.time(), set[str]()
    header = ConversationHeader(
        fresh_id(),
        " ".join(str(export.title or title_of(nodes[0].message)).split()),
        sound(export.pair, PairReference, PairReference(), wrong, "pair"),
        sound(export.parameters, dict, {}, wrong, "settings"),
        sound(export.created or now, Moment, now, wrong, "time"),
        now,
    )
    return StoredConversation(header, MessageTree(nodes, ids.get(str(export.leaf))))
