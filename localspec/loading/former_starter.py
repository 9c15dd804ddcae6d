"""Removes what the former starter pair `demo` left on the disk, and reports it.

Stored conversations stay: the new starter continues from their text. Their caches go, as their
models are gone, and so do files that were padded to 300 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from localspec import formats
from localspec.chat.states.state_files import STATES, forget_models
from localspec.errors import LocalspecError
from localspec.loading.measurements import ranking
from localspec.pairs.disk import folders, starter
from localspec.pairs.names.reserved_names import FORMER_STARTER, STARTER

SWITCH: Final = "LOCALSPEC_DEMO"
TARGETS: Final = (
    "70afb0096e8901d7efcfaca6799ad9ab5c80122e9f56ce620dcd67062f0d422a",
    "db22249dd60672df15de0f97da565ea03eb3d1964c440220dbae7288458d904e",
)
"""Hashes of the first megabyte of its target, as shipped and padded; states are named by them."""


def cleared() -> Iterator[str]:
    """Remove the leftovers and yield a sentence on the bytes freed; nothing if there are none."""
    freed = forget_models(folders.data_folder() / STATES, TARGETS)
    try:
        freed += starter.clear_former()
    except LocalspecError as error:
        yield error.message
    ranking.forget(FORMER_STARTER)
    if freed:
        yield (
            f"{STARTER} has taken the place of {FORMER_STARTER}: conversations are kept, and"
            f" {formats.size(freed)} of its files are removed"
        )
    if os.environ.get(SWITCH):
        yield f"{SWITCH} is set and does nothing any more: {STARTER} is a real model"
