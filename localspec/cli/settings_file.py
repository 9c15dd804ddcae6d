"""The settings file: a default for every option of every command, keys, and the screen's looks.

::

    temp = 0.7                      # for every command that has this option
    system-prompt = "Be brief."
    [run]
    n-predict = 200                 # for one command
    [keys]
    regen = ["f5", "ctrl+r"]
    [screen]
    theme = "nord"
    panel = "compact"

A wrong entry is reported with its line and the allowed values, and left out.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from localspec.engine.round.params import CHAIN, SamplingParams
from localspec.errors import SamplingError
from localspec.safe_text import decoded

FILE = "settings.toml"
LARGEST = 1 << 20
_QUOTED = 60
_KEYS, _SCREEN = "keys", "screen"
PANELS = ("full", "compact", "off", "auto")
# What a file cannot set: it would stand for a question, act at each start, or override a refusal.
_NEVER = {
    "all", "anew", "check", "compare", "force", "help",
    "output", "prompt", "share", "target", "trace",
}  # fmt: skip
_PAIR_FOR = {"chat", "run", "serve"}
_SAMPLER = {each.key: name for name, each in CHAIN.items()}
ALLOWED = 'keys with Ctrl or Alt, or F1 to F24, such as "f5" or ["f5", "ctrl+r"]'
# All other keys without Ctrl, Alt or F are for typing and moving about.
_COMMANDING = {"ctrl", "alt", "super", "meta"}
_F_KEY, _ANY_KEY = re.compile(r"f([1-9]|1\d|2[0-4])"), re.compile(r"[a-z0-9_]+")
# These include what the terminal sends for Enter, Tab, Backspace and Esc.
TAKEN = {
    "ctrl+c": "stopping and quitting have",
    "ctrl+p": "the palette has",
    **dict.fromkeys(("ctrl+j", "alt+enter", "ctrl+enter"), "breaking the line has"),
    **dict.fromkeys(("ctrl+m", "ctrl+i", "ctrl+h"), "Enter, Tab and Backspace have"),
    **dict.fromkeys(("ctrl+v", "ctrl+z"), "editing the input has"),
}


@dataclass(slots=True)
class SettingsFile:
    """A settings file that has been read.

    Attributes:
        values: by table; options outside of any table under ``""``.
        problems: the faults found so far, a line each.
    """

    path: Path
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def defaults(
        self, command: click.Command, others: Callable[[], Mapping[str, Iterable[click.Parameter]]]
    ) -> dict[str, Any]:
        """Defaults for the parameters of `command`, those that make sense.

        A value for all commands that others can use and this one cannot is passed over.

        Args:
            command: named as its table is.
            others: the settings of all commands by name, each with the parameters that it sets.
        """
        name = command.name or ""
        known = settings_of(command)
        found: dict[str, Any] = {}
        for table in ("", name):
            for setting, value in self.values.get(table, {}).items():
                plain = setting.replace("_", "-")
                if plain in known:
                    refused = _refused(known[plain], value, found)
                    theirs = others().get(plain, ()) if refused and not table else ()
                    if refused and all(_refused(one, value) for one in theirs):
                        self._wrong(table, setting, value, refused)
                elif not table and plain in others():
                    pass
                elif plain in _options(command):
                    self.note(table, setting, f"{setting} is for the command line: --{plain}")
                else:
                    self._unknown(table, setting, known)
        return found

    def keys(self, usual: Mapping[str, str]) -> dict[str, str]:
        """The keys that were chosen, by command: names as Textual spells them, with commas.

        Args:
            usual: the default keys of every command.
        """
        found = {}
        chosen = self.values.get(_KEYS, {})
        for name, value in chosen.items():
            keys = [value] if isinstance(value, str) else value
            if name not in usual:
                self._unknown(_KEYS, name, usual)
            elif reason := wrong_keys(keys):
                self._wrong(_KEYS, name, value, reason)
            else:
                found[name] = ",".join(map(_as_textual, keys))
        while found_clash := clash(found, usual):
            name, other = found_clash
            del found[name]
            self._wrong(_KEYS, name, chosen[name], f"{other} has that key; give it another one")
        return found

    def appearance(self, name: str, allowed: Iterable[str]) -> str | None:
        """A setting of the table ``screen``, or None if it is absent or not among `allowed`."""
        value = self.values.get(_SCREEN, {}).get(name)
        choices = list(allowed)
        if value is None or value in choices:
            return value
        self._wrong(_SCREEN, name, value, _instead(str(value), choices))
        return None

    def check_tables(self, commands: Iterable[str]) -> None:
        """Note unknown tables, and unknown names in ``screen``."""
        known = [*commands, _KEYS, _SCREEN]
        for table in self.values:
            if table and table not in known:
                self._unknown(table, None, known)
        for name in self.values.get(_SCREEN, {}):
            if name not in ("theme", "panel"):
                self._unknown(_SCREEN, name, ("theme", "panel"))

    def _unknown(self, table: str, setting: str | None, known: Iterable[str]) -> None:
        what = f"table [{table}]" if setting is None else f"setting {setting}"
        meant = _instead((setting or table).replace("_", "-"), known)
        self.note(table, setting, f"there is no {what}; {meant}")

    def _wrong(self, table: str, setting: str, value: Any, allowed: str) -> None:
        self.note(table, setting, f"{setting} cannot be {_as_toml(value)}: {allowed}")

    def note(self, table: str, setting: str | None, text: str) -> None:
        """Add a fault of a setting of `table`, or of all of it, with its place in the file."""
        line = self._line(table, setting)
        where = f"{_shown(self.path)}, line {line}" if line else _shown(self.path)
        note = f"{where}: {text}"
        if note not in self.problems:
            self.problems.append(note)

    def _line(self, table: str, setting: str | None) -> int | None:
        """The line of a name; the parser does not tell it."""
        at = ""
        for number, line in enumerate(self.lines, 1):
            if match := re.match(r"\s*\[\s*[\"']?([^\]\"']+?)[\"']?\s*\]", line):
                at = match[1]
                if setting is None and at == table:
                    return number
            elif setting is not None and at == table:
                name = re.match(r"\s*[\"']?([^=\"'\s]+)[\"']?\s*=", line)
                if name and name[1] == setting:
                    return number
        return None


def read(path: Path) -> SettingsFile:
    """Read the settings; a file that is missing holds none, a broken one a problem."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may never end
            raise ValueError("it is not a file")
        if found.st_size > LARGEST:
            raise ValueError("it is too large")
        text = decoded(path.read_bytes())
        import tomllib  # noqa: PLC0415 - most have no such file

        document = tomllib.loads(text)
    except FileNotFoundError:
        return SettingsFile(path)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return SettingsFile(path, problems=[f"{_shown(path)} is not used: {reason}"])
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    plain = {name: value for name, value in document.items() if name not in tables}
    return SettingsFile(path, {"": plain, **tables}, lines=text.splitlines())


def settings_of(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of `command` by the names that the file has for them."""
    found = _options(command)
    if command.name in _PAIR_FOR:
        found |= {one.name: one for one in command.params if one.name == "pair"}
    never = {*_NEVER, "continue"} if command.name == "run" else _NEVER
    return {name: one for name, one in found.items() if name not in never}


def _options(command: click.Command) -> dict[str, click.Parameter]:
    """All options of `command` by their long names."""
    return {
        name.removeprefix("--"): one
        for one in command.params
        if isinstance(one, click.Option)
        for name in one.opts
        if name.startswith("--")
    }


def _refused(parameter: click.Parameter, value: Any, taken: dict[str, Any] | None = None) -> str:
    """Put `value` into `taken` by the parameter's name; if it cannot be used, return why."""
    try:
        checked = _checked(parameter, value)
    except (click.UsageError, SamplingError, TypeError, ValueError, ArithmeticError) as error:
        reason = error.remedy if isinstance(error, SamplingError) else str(error)
        help_text = getattr(parameter, "help", None) or ""
        return f"{reason.rstrip('.')}. {help_text}".strip()
    if taken is not None:
        taken[str(parameter.name)] = checked
    return ""


def _checked(parameter: click.Parameter, value: Any) -> Any:
    """`value` as the command line would give it to `parameter`.

    Raises:
        click.UsageError, SamplingError, TypeError, ValueError: it does not.
    """
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    if isinstance(value, bool) != flag:
        raise ValueError("true or false" if flag else "true and false mean nothing here")
    if parameter.multiple and not isinstance(value, list):
        value = [value]
    if isinstance(value, Mapping) or (isinstance(value, list) and not parameter.multiple):
        raise TypeError("a single value is wanted")
    context = click.Context(click.Command("settings"))
    # As on the command line, 5.7 is not a whole number, and nothing is rounded.
    given = [_written(one) for one in value] if isinstance(value, list) else _written(value)
    taken = parameter.process_value(context, given)
    if name := _SAMPLER.get(parameter.name or ""):
        SamplingParams(**{name: taken})
    return given


def _written(value: Any) -> Any:
    """A number as a user would type it."""
    return value if isinstance(value, bool) or not isinstance(value, int | float) else str(value)


def _instead(wrong: str, known: Iterable[str]) -> str:
    """The name that was meant, if one is near; else all that there are."""
    choices = sorted(known)
    wrong = wrong.lower()
    near = [one for one in choices if one and wrong.startswith(one)]
    near = near or difflib.get_close_matches(wrong, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there is {', '.join(choices)}"


def _as_toml(value: Any) -> str:
    """A value as the file has it, or its beginning."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= _QUOTED else shown[:_QUOTED] + "…"


def _shown(path: Path) -> str:
    """`path`, the home folder as ``~``: it stands before every problem."""
    try:
        return f"~{os.sep}{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # another place, or no home folder
        return str(path)


def wrong_keys(keys: Any) -> str:
    """Why a value cannot be the keys of a command; empty if it can."""
    if not isinstance(keys, list) or not keys:
        return ALLOWED
    if not all(isinstance(key, str) and _is_for_commands(key) for key in keys):
        return ALLOWED
    taken = [f"{TAKEN[key]} {key}" for key in map(_as_textual, keys) if key in TAKEN]
    return taken[0] if taken else ""


def _is_for_commands(key: str) -> bool:
    *modifiers, name = key.split("+")
    known = {*modifiers} <= _COMMANDING | {"shift"}
    commanding = _F_KEY.fullmatch(name) or (_ANY_KEY.fullmatch(name) and {*modifiers} & _COMMANDING)
    return known and bool(commanding)


def _as_textual(key: str) -> str:
    """The name by which Textual knows a key, whose modifiers are sorted."""
    *modifiers, name = key.split("+")
    return "+".join([*sorted({*modifiers}), name])


def clash(chosen: Mapping[str, str], usual: Mapping[str, str]) -> tuple[str, str] | None:
    """A choice that takes the key of another command, and the name of that command.

    Args:
        chosen: keys with commas, by command.
        usual: the default keys of all commands.
    """
    for name in reversed(list(chosen)):  # of two choices the later one yields
        mine = set(chosen[name].split(","))
        for other, default in usual.items():
            theirs = chosen.get(other, default)
            if other != name and theirs and mine & set(theirs.split(",")):
                return name, other
    return None
