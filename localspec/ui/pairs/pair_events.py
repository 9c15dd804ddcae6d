"""What the app is told about pairs, in messages of Textual."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from localspec.loading.load_request import LoadRequest


@dataclass
class PairMissing(Message):
    """A requested pair is not on this disk.

    Attributes:
        missing: says which part is missing, the target or the draft.
    """

    asked: LoadRequest
    missing: str


class PairWorkChanged(Message):
    """Work on a pair has begun, gone on or ended."""
