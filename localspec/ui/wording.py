"""Errors in words for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.process.messages import LoadFailed


def in_words(error: Exception) -> tuple[str, str]:
    """What went wrong and what to do about it, also for errors that nobody foresaw."""
    if isinstance(error, LocalspecError):
        return error.message, error.remedy
    if isinstance(error, MemoryError):
        return "there is not enough memory", "Close other programs, or choose a smaller pair."
    return (
        f"something unforeseen happened ({type(error).__name__}: {error})",
        "This is a fault of localspec; the conversation so far is kept.",
    )


def switch_failure(failed: LoadFailed) -> list[tuple[str, str]]:
    """What became of a switch to another pair that did not come about."""
    cancelled = ("loading was cancelled", "")
    lines = [cancelled if failed.error is None else in_words(failed.error.exception())]
    if failed.info is not None:
        lines.append((f"{failed.info.pair_name} is in use again; the conversation is kept", ""))
    elif failed.second is not None:
        text, remedy = in_words(failed.second.exception())
        lines.append((f"the pair before could not be loaded again either: {text}", remedy))
    else:
        lines.append(("no model is loaded; the conversation is kept", "/pairs chooses one."))
    return lines
