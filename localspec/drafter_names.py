"""The names of what drafts: in ``--draft`` and requests, costs and figures, and headers of heads.

A leaf: pairs are known without an engine, and pairs and engine must mean the same by a name.
"""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
"""All that there is."""

NONE: Final = "none"
"""Nothing."""

LOOKUP: Final = "lookup"
"""What copies from the text so far, without a model."""

DRAFT: Final = "draft"
"""A small model with the target's vocabulary."""

CROSS_VOCABULARY: Final = "translated"
"""A small model with another vocabulary."""

MTP: Final = "mtp"
"""A head of layers that predict further tokens, in the target's file or in a separate one."""

EAGLE3: Final = "eagle3"
DFLASH: Final = "dflash"
ASSISTANT: Final = "gemma4-assistant"
"""Heads in files of their own, by architecture."""

DSPARK: Final = "dspark"
"""A head of DFlash's architecture; only ``--draft`` and the names of files tell them apart."""

MODELS: Final = (DRAFT, CROSS_VOCABULARY)
"""What needs nothing of the target, unlike heads."""


def kind_of(drafter: str) -> str:
    """One of the names above; a pair's second drafter of a kind has a number after that."""
    return drafter.partition(" ")[0]
