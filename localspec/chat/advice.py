"""Which sampling settings are in force, and where each of them comes from.

The order of precedence: the user's choice, the model's file (``general.sampling.*``, the keys that
llama.cpp reads), the catalogue, llama.cpp's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from localspec.chat.settings import ChatSettings
from localspec.engine.round.params import CHAIN, SamplingParams
from localspec.errors import SamplingError
from localspec.safe_text import one_line

Number: TypeAlias = int | float

DEFAULTS: Final = SamplingParams()

_KEY: Final = "general.sampling."
_IN_FILES: Final = {each.file_key: name for name, each in CHAIN.items() if each.file_key}
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
    """The sampling settings that are advised for a model.

    Attributes:
        file: the values in its file, by the fields of `SamplingParams`.
        catalogue: the values in the catalogue, likewise.
        ignored: what the file or the catalogue advises that cannot be followed, in words.
    """

    model: str = ""
    file: Mapping[str, Number] = field(default_factory=dict)
    catalogue: Mapping[str, Number] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def value(self, name: str) -> Number:
        """The value of a setting that the user has not chosen."""
        found: Number = {**self.catalogue, **self.file}.get(name, getattr(DEFAULTS, name))
        return found

    def settled(self, settings: ChatSettings) -> ChatSettings:
        """`settings` with the advised values for everything that the user has not chosen."""
        values: dict[str, Any] = {
            name: self.value(name) for name in CHAIN if name not in settings.chosen
        }
        return replace(settings, sampling=replace(settings.sampling, **values))

    def sources(self, settings: ChatSettings) -> dict[str, SettingSource]:
        """Where each setting in force comes from, by the fields of `SamplingParams`."""
        return {name: self._source(name, settings) for name in CHAIN}

    def _source(self, name: str, settings: ChatSettings) -> SettingSource:
        if name in settings.chosen or getattr(settings.sampling, name) != self.value(name):
            return SettingSource.USER
        if name in self.file:
            return SettingSource.FILE
        return SettingSource.CATALOGUE if name in self.catalogue else SettingSource.DEFAULT

    def document(self) -> dict[str, dict[str, Any]]:
        """The value and source of every setting, if the user chooses none, by option name."""
        sources = self.sources(self.settled(ChatSettings()))
        return {
            CHAIN[name].key: {"value": self.value(name), "source": source.value}
            for name, source in sources.items()
        }

    @property
    def told(self) -> str:
        """The advice in one line."""
        found = [
            f"{name.replace('_', '-')} {self.value(name):g} ({self.words(source)})"
            for name, source in self.sources(self.settled(ChatSettings())).items()
            if source is not SettingSource.DEFAULT
        ]
        return ", ".join(
            [*found, "the rest as llama.cpp's defaults" if found else "llama.cpp's defaults"]
        )

    def words(self, source: SettingSource) -> str:
        """A source as text."""
        return {
            SettingSource.USER: "yours",
            SettingSource.FILE: "from the file",
            SettingSource.CATALOGUE: f"advised for {self.model}",
            SettingSource.DEFAULT: "llama.cpp's default",
        }[source]

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know: advice that cannot be followed."""
        if not self.ignored:
            return ()
        return (f"sampling advice for {self.model} is left out: {', '.join(self.ignored)}",)


def advise(
    model: str, metadata: Mapping[str, Any], catalogue: Mapping[str, Number]
) -> SamplingAdvice:
    """The advice for a model; invalid values are left out and noted.

    Args:
        model: its name.
        metadata: of its GGUF file; not trusted, so values may have any type.
        catalogue: the catalogue's values, by the fields of `SamplingParams`.
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
    """Advice in this file that llama.cpp would follow, but localspec does not."""
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
    """A value that `SamplingParams` accepts for this field; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    whole = isinstance(getattr(DEFAULTS, name, None), int)
    if whole and (value != int(value) or abs(value) >= 1 << 31):
        return None
    # Round as llama.cpp does, to six decimals: 0.6, not the nearest 32-bit float.
    found: Number = int(value) if whole else round(float(value), 6)
    checked: dict[str, Any] = {name: found}
    try:
        SamplingParams(**checked)
    except (SamplingError, TypeError):
        return None
    return found
