"""Which sampling settings are in force, and where each of them comes from.

What the user sets comes first, then what the model's file says (``general.sampling.*``, the keys
that llama.cpp reads), then what the catalogue says of the model, then llama.cpp's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from localspec.chat.settings import ChatSettings
from localspec.engine.round.params import SamplingParams
from localspec.errors import SamplingError
from localspec.safe_text import one_line

Number: TypeAlias = int | float

DEFAULTS: Final = SamplingParams()
ADVISABLE: Final = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n"),
)
"""The fields of `SamplingParams` that have a source: all but the seed and the logit bias."""

_KEY: Final = "general.sampling."
_IN_FILES: Final = {
    **{name: name for name in ("top_k", "top_p", "min_p")},
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}
_OFF: Final = {"xtc_probability": 0, "mirostat": 0}
_ORDER: Final = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")


class SettingSource(StrEnum):
    """Where a setting comes from."""

    USER = "user"
    FILE = "file"
    CATALOGUE = "catalogue"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SamplingAdvice:
    """What is advised for a model.

    Attributes:
        model: how the model is called.
        file: what its file says, by the fields of `SamplingParams`.
        catalogue: the same of the catalogue.
        ignored: what either says that cannot be followed, in words.
    """

    model: str = ""
    file: Mapping[str, Number] = field(default_factory=dict)
    catalogue: Mapping[str, Number] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def value(self, name: str) -> Number:
        """The value of a setting that the user leaves alone."""
        found: Number = {**self.catalogue, **self.file}.get(name, getattr(DEFAULTS, name))
        return found

    def settled(self, settings: ChatSettings) -> ChatSettings:
        """`settings` with this model's value for everything that the user has not chosen."""
        values: dict[str, Any] = {
            name: self.value(name) for name in ADVISABLE if name not in settings.chosen
        }
        return replace(settings, sampling=replace(settings.sampling, **values))

    def sources(self, settings: ChatSettings) -> dict[str, SettingSource]:
        """Where each setting in force comes from, by the fields of `SamplingParams`."""
        return {name: self._source(name, settings) for name in ADVISABLE}

    def _source(self, name: str, settings: ChatSettings) -> SettingSource:
        if name in settings.chosen or getattr(settings.sampling, name) != self.value(name):
            return SettingSource.USER
        if name in self.file:
            return SettingSource.FILE
        return SettingSource.CATALOGUE if name in self.catalogue else SettingSource.DEFAULT

    def document(self) -> dict[str, dict[str, Any]]:
        """Every setting that the user leaves alone, with its source, by the options' names."""
        sources = self.sources(self.settled(ChatSettings()))
        return {
            option(name): {"value": self.value(name), "source": source.value}
            for name, source in sources.items()
        }

    @property
    def told(self) -> str:
        """What is advised, in a line."""
        found = [
            f"{name.replace('_', '-')} {self.value(name):g} ({self.words(source)})"
            for name, source in self.sources(self.settled(ChatSettings())).items()
            if source is not SettingSource.DEFAULT
        ]
        return ", ".join(
            [*found, "the rest as llama.cpp's defaults" if found else "llama.cpp's defaults"]
        )

    def words(self, source: SettingSource) -> str:
        """A source as people read it."""
        return {
            SettingSource.USER: "yours",
            SettingSource.FILE: "from the file",
            SettingSource.CATALOGUE: f"advised for {self.model}",
            SettingSource.DEFAULT: "llama.cpp's default",
        }[source]

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know: what cannot be followed."""
        if not self.ignored:
            return ()
        return (f"sampling advice for {self.model} is left out: {', '.join(self.ignored)}",)


def option(name: str) -> str:
    """How the command line calls a field of `SamplingParams`, with underscores."""
    return "temp" if name == "temperature" else name


def advise(
    model: str, metadata: Mapping[str, Any], catalogue: Mapping[str, Number]
) -> SamplingAdvice:
    """What is advised for a model; what makes no distribution is left out and noted.

    Args:
        model: how it is called.
        metadata: of its GGUF file; from strangers, so that anything may stand in it.
        catalogue: what the catalogue says, by the fields of `SamplingParams`.
    """
    said = {name: metadata[_KEY + key] for key, name in _IN_FILES.items() if _KEY + key in metadata}
    ignored = [*_wrong(said), *_wrong(catalogue), *_unknown(metadata)]
    return SamplingAdvice(one_line(model, 60), _sound(said), _sound(catalogue), tuple(ignored))


def _sound(said: Mapping[str, Any]) -> dict[str, Number]:
    values = {name: _number(name, value) for name, value in said.items()}
    return {name: value for name, value in values.items() if value is not None}


def _wrong(said: Mapping[str, Any]) -> Iterator[str]:
    for name, value in said.items():
        if _number(name, value) is None:
            yield _words(name, value)


def _unknown(metadata: Mapping[str, Any]) -> Iterator[str]:
    """What llama.cpp would do by this file's advice and localspec does not."""
    for name, off in _OFF.items():
        if (value := metadata.get(_KEY + name, off)) != off:
            yield _words(name, value)
    order = metadata.get(f"{_KEY}sequence")
    if order is not None and order != ";".join(_ORDER):
        yield _words("sequence", order)


def _words(name: str, value: Any) -> str:
    shown = str(value) if isinstance(value, str | int | float) else "a list"
    return f"{name.replace('_', '-')} {one_line(shown, 40)}"


def _number(name: str, value: Any) -> Number | None:
    """A value that `SamplingParams` takes for this field; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    whole = isinstance(getattr(DEFAULTS, name, None), int)
    if whole and (value != int(value) or abs(value) >= 1 << 31):
        return None
    # As llama.cpp reads it, with six decimals: 0.6, not the nearest 32-bit float.
    found: Number = int(value) if whole else round(float(value), 6)
    checked: dict[str, Any] = {name: found}
    try:
        SamplingParams(**checked)
    except (SamplingError, TypeError):
        return None
    return found
