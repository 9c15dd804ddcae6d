"""The only room that touches huggingface_hub; it is imported when it is needed, not before."""

from __future__ import annotations

from pathlib import Path


def cache_folder() -> Path:
    """Give the Hub cache's folder, as ``HF_HUB_CACHE`` and ``HF_HOME`` and the defaults say."""
    from huggingface_hub import constants  # noqa: PLC0415 - slow, and often not needed

    return Path(constants.HF_HUB_CACHE)
