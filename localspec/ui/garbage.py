"""Python's garbage collector, kept from looking at what lives as long as the app."""

from __future__ import annotations

import gc


def settle() -> None:
    """Leave all that is alive now out of the collections to come.

    Modules, widgets and the session are a few hundred thousand objects. A full collection that
    walks them holds Python's lock for 40 ms, in the middle of an answer. What is frozen is still
    freed as soon as nothing refers to it any more.
    """
    gc.freeze()


def unsettle() -> None:
    """Look at everything again."""
    gc.unfreeze()
