"""Every parameter of a conversation, shown and changed, in the words of a user."""

from __future__ import annotations

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


_SAMPLING = (name.replace("_", "-") for name in _kinds() if name != "temperature")
NAMES = ("temp", *_SAMPLING, "n-predict", "stop")


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
        return replace(settings, stop=() if value == "none" else (value,))
    try:
        if plain == "n-predict":
            return replace(settings, n_predict=max(-1, int(value)))
        taken = _kinds()[_field(plain)](value)
    except ValueError:
        raise UsageError(f"{plain} cannot be “{value}”", "Say a number.") from None
    sampling = replace(settings.sampling, **{_field(plain): taken})
    repeatable = settings.repeatable if plain != "seed" else taken is not None
    return replace(settings, sampling=sampling, repeatable=repeatable)


def whole(name: str, value: str, remedy: str) -> int:
    """A number of tokens, as a user says it.

    Raises:
        UsageError: it is none, with `remedy`.
    """
    if not (value.isascii() and value.isdigit() and len(value) < 9):
        raise UsageError(f"{name} cannot be “{value}”", remedy)
    return int(value)


def gamma(value: str) -> Gamma:
    """How many tokens to draft, as a user says it.

    Raises:
        UsageError: it is neither a number that can be drafted nor ``auto``.
    """
    if value == "auto":
        return "auto"
    remedy = f"Say /gamma auto, or how many tokens to draft: 0 to {MAX_GAMMA}."
    if (number := whole("gamma", value, remedy)) > MAX_GAMMA:
        raise UsageError(
            f"gamma cannot be {number}", f"At most {MAX_GAMMA} tokens are drafted at a time."
        )
    return number


def _spelt(value: object) -> str:
    if value in (None, ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(one_line(str(one), 40) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
