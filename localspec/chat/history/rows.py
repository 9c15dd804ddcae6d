"""Rows of the store as plain values: what is damaged in one never hides the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.conversation import Message, Role
from localspec.chat.history.records import (
    Header,
    PairReference,
    is_moment,
    sound_figures,
    unpack,
)
from localspec.chat.history.tree import Node
from localspec.engine.stats import FinishReason


def readable(raw: bytes) -> str:
    """Text of a file, also where it is not UTF-8."""
    return raw.decode("utf-8", "replace")


def text(value: Any) -> str:
    """A value as text, whatever the file holds in its place."""
    if isinstance(value, bytes):
        return readable(value)
    return "" if value is None else str(value)


def header_of(row: Sequence[Any], wrong: set[str]) -> Header:
    """A conversation out of its id, title, pair, parameters and two times.

    Args:
        row: these values.
        wrong: gets the names of those that cannot be read.
    """
    pair = _mapping(row[2], "pair", wrong)
    draft = pair.get("draft")
    return Header(
        text(row[0]),
        _text(row[1], "title", wrong),
        PairReference(
            str(pair.get("name", "")),
            str(pair.get("target", "")),
            draft if isinstance(draft, str) else None,
        ),
        _mapping(row[3], "settings", wrong),
        *(_moment(value, wrong) for value in row[4:6]),
    )


def node_of(row: Sequence[Any], wrong: set[str]) -> Node:
    """A message out of its id, parent, role, content, finish, origins and figures.

    Args:
        row: these values.
        wrong: gets the names of those that cannot be read.
    """
    node_id, parent, role, content, finish, origins, figures = row
    said = _text(content, "message", wrong)
    reason = FinishReason(finish) if finish in set(FinishReason) else None
    message = Message(_role(role, finish, wrong), said, reason, unpack(said, text(origins)))
    return Node(
        text(node_id),
        None if parent is None else text(parent),
        message,
        sound_figures(_mapping(figures, "figures", wrong)),
    )


def _role(value: Any, finish: Any, wrong: set[str]) -> Role:
    """Who spoke; where that is damaged, whoever's messages end for a reason."""
    if value in set(Role):
        return Role(value)
    wrong.add("speaker")
    return Role.USER if finish is None else Role.ASSISTANT


def _text(value: Any, name: str, wrong: set[str]) -> str:
    if not isinstance(value, str):
        wrong.add(name)
    return text(value)


def _moment(value: Any, wrong: set[str]) -> float:
    if is_moment(value):
        return float(value)
    wrong.add("time")
    return 0.0


def _mapping(value: Any, name: str, wrong: set[str]) -> Mapping[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    wrong.add(name)
    return {}
