"""Errors in words for a person."""

from __future__ import annotations

from localspec.errors import LocalspecError


def in_words(error: Exception) -> tuple[str, str]:
    """What went wrong and what to do about it, also for errors that nobody foresaw."""
    if isinstance(error, LocalspecError):
        return error.message, error.remedy
    return (
        f"something unforeseen happened ({type(error).__name__}: {error})",
        "This is a fault of localspec; the conversation so far is kept.",
    )
