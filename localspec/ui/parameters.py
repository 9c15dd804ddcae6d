"""Every parameter of a conversation, shown and changed, in the words of a user."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from localspec.engine.params import SamplingParams
from localspec.errors import UsageError
from localspec.limits import MAX_GAMMA
from localspec.safe_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from localspec.chat.settings import ChatSettings, Gamma


def _kinds() -> dict[str, Callable[[str], Any]]:
    """How the words of a user become values, by the field of `SamplingParams`."""
    found: dict[str, Callable[[str], Any]] = {
        one.name: float if one.type in ("float", float) else int
        for one in fields(SamplingParams)
        if one.name != "logit_bias"
    }
    return found | {"seed": lambda value: None if value in ("none", "-1") else int(value)}


def _field(name: str) -> str:
    return "temperature" if name == "temp" else name.replace("-", "_")


NAMES = (
    *("temp", *(n.replace("_", "-") for n in _kinds() if n != "temperature")),
    *("n-predict", "stop"),
)


def shown(settings: ChatSettings) -> str:
    """All parameters on a few lines."""
    values = {
        name: getattr(settings.sampling, _field(name), getattr(settings, _field(name), None))
        for name in NAMES
    }
    return " · ".join(f"{name} {_spelt(value)}" for name, value in values.items())


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """`settings` with another value.

    Raises:
        UsageError: there is no such parameter, or the value is no number.
        SamplingError: the value makes no distribution.
    """
    plain = name.lower().replace("_", "-")
    if plain not in NAMES:
        remedy = f"There is {', '.join(NAMES)}, ctx-size."
        raise UsageError(f"there is no parameter {name}", remedy)
    if plain == "stop":
        return replace(settings, stop=_strings(value))
    try:
        if plain == "n-predict":
            return replace(settings, n_predict=max(-1, int(value)))
        taken = _kinds()[_field(plain)](value)
    except ValueError:
        raise UsageError(f"{plain} cannot be “{value}”", "Say a number.") from None
    sampling = replace(settings.sampling, **{_field(plain): taken})
    repeatable = settings.repeatable if plain != "seed" else taken is not None
    return replace(settings, sampling=sampling, repeatable=repeatable)


def _strings(value: str) -> tuple[str, ...]:
    """Words, or texts between quotation marks; nothing for ``none``."""
    try:
        return () if value == "none" else tuple(filter(None, shlex.split(value)))
    except ValueError:
        raise UsageError(
            f"stop cannot be “{value}”", 'Close the quotation marks: /set stop END "two words".'
        ) from None


def context_size(value: str) -> int:
    """How many tokens, as a user says it.

    Raises:
        UsageError: it is no number of tokens.
    """
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        raise UsageError(
            f"ctx-size cannot be “{value}”",
            "Say how many tokens, or 0 for all that the model was trained for.",
        )
    return int(value)


def gamma(value: str) -> Gamma:
    """How many tokens to draft, as a user says it.

    Raises:
        UsageError: it is neither a number that can be drafted nor ``auto``.
    """
    if value == "auto":
        return "auto"
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        raise UsageError(
            f"gamma cannot be “{value}”",
            f"Say /gamma auto, or how many tokens to draft: 0 to {MAX_GAMMA}.",
        )
    if int(value) > MAX_GAMMA:
        raise UsageError(
            f"gamma cannot be {int(value)}", f"At most {MAX_GAMMA} tokens are drafted at a time."
        )
    return int(value)


def _spelt(value: object) -> str:
    if value in (None, ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(one_line(str(one), 40) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
