"""Every parameter of a conversation, shown and changed, in the words of a user."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from localspec.engine.params import SamplingParams
from localspec.errors import UsageError
from localspec.limits import MAX_GAMMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from localspec.chat.settings import ChatSettings, Gamma

_LEFT_OUT = ("logit_bias",)


def _optional(value: str) -> int | None:
    return None if value in ("none", "-1") else int(value)


def _kinds() -> dict[str, Callable[[str], Any]]:
    """How the words of a user become values, by the parameter's name."""
    found: dict[str, Callable[[str], Any]] = {}
    for one in fields(SamplingParams):
        if one.name not in _LEFT_OUT:
            kind = float if one.type in ("float", float) else int
            found[one.name] = _optional if one.name == "seed" else kind
    return found


NAMES = ("temp", *(n.replace("_", "-") for n in _kinds() if n != "temperature"), "n-predict")


def shown(settings: ChatSettings) -> str:
    """All parameters on a few lines."""
    values = {name: _value(settings, name) for name in NAMES}
    return " · ".join(f"{name} {_spelt(value)}" for name, value in values.items())


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """`settings` with another value.

    Raises:
        UsageError: there is no such parameter, or the value is no number.
        SamplingError: the value makes no distribution.
    """
    plain = name.lower().replace("_", "-")
    if plain not in NAMES:
        raise UsageError(f"there is no parameter {name}", f"There is {', '.join(NAMES)}.")
    inner = "temperature" if plain == "temp" else plain.replace("-", "_")
    try:
        if plain == "n-predict":
            return replace(settings, n_predict=max(-1, int(value)))
        taken = _kinds()[inner](value)
    except ValueError:
        raise UsageError(f"{plain} cannot be “{value}”", "Say a number.") from None
    sampling = replace(settings.sampling, **{inner: taken})
    repeatable = settings.repeatable if plain != "seed" else taken is not None
    return replace(settings, sampling=sampling, repeatable=repeatable)


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


def _value(settings: ChatSettings, name: str) -> object:
    if name == "n-predict":
        return settings.n_predict
    inner = "temperature" if name == "temp" else name.replace("-", "_")
    return getattr(settings.sampling, inner)


def _spelt(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
