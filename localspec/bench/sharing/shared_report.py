"""What one machine measured, as a JSON document for others; docs/bench.md has its form.

It holds nothing personal: no user, host, path or text.
"""

from __future__ import annotations

import getpass
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from localspec.bench.result import ArmReport, BenchReport, CurvePoint
from localspec.errors import LocalspecError
from localspec.safe_text import one_line

_FORMAT: Final = "localspec-share-1"
MOST_TEXT, MOST_BUILD, MOST_SIZE = 160, 1000, 64
"""Characters of a text and of the build, tokens of a pass."""

SLOWEST, FASTEST = 0.02, 50.0
"""The speed-ups that can be true."""

PRIVATE: Final = re.compile(
    r"://|\w@\w|\\|<|>|`|\]\s*[(\[]"  # addresses with a scheme, of mail, paths of Windows, markup
    r"|/\S*/|(^|[\s\"'(=])(~\S*|\.{1,2}|[A-Za-z]:\S*)/"  # other paths
    r"|[\w-]\.[A-Za-z]{2,}(:\d|/)|\bwww\.|\blocalhost\b"  # hosts without a scheme
    r"|(?<![\d.])\d{1,3}(\.\d{1,3}){3}(?![\d.])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){2,}"  # addresses of devices, and of IPv6
)
SHOWN: Final = re.compile("[ -~…]*")  # ASCII, and the sign of what was cut off
_POINT: Final = re.compile(r"\[\s+(\d+),\s+([\d.e-]+)\s+\]")  # of T(n), on lines of its own


class SharedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model file.

    Attributes:
        name: the name in the file; empty without one, or if it could tell whose it is.
        type: architecture, size and type of weights.
        hash: SHA-256 in hexadecimal digits: of the file, or of its first mebibyte.
        hashed: how much of the file that is.
    """

    name: str
    type: str
    file_bytes: int
    hash: str
    hashed: Literal["file", "first mebibyte"] = "file"


class SharedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the target ran and was asked, by the names of the command line's options."""

    ctx_size: int
    threads: int
    n_gpu_layers: int
    flash_attn: Literal["on", "off", "auto"]
    cache_type_k: str
    cache_type_v: str
    exact: bool
    temp: float
    n_predict: int
    ignore_eos: bool
    quick: bool


class SharedGain(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of text.

    Attributes:
        prompts: how many questions were timed.
        speedup, low, high: over no drafting, and its 95 % interval; None for a single question.
        acceptance: accepted over drafted tokens; None if nothing was drafted.
    """

    kind: str
    prompts: int
    speedup: float
    low: float | None
    high: float | None
    acceptance: float | None


class SharedArm(Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of drafters.

    Attributes:
        drafters: their names, joined by +; of one without a name its kind.
        gamma: ``auto`` or a number.
    """

    drafters: str
    gamma: str
    gains: tuple[SharedGain, ...]


class SharedReport(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is shared.

    Attributes:
        machine: processor, threads, memory, accelerators.
        build: llama-cpp-python's version and what llama.cpp was compiled for.
        curve: (n, seconds of a pass of the target over n tokens), n rising from 1 and 2.
        draft_step_s: one token by the first draft model; None without one.
    """

    format: Literal["localspec-share-1"]
    localspec: str
    machine: str
    system: str
    build: str
    settings: SharedSettings
    target: SharedModel
    drafts: tuple[SharedModel, ...]
    curve: tuple[tuple[int, float], ...]
    draft_step_s: float | None
    arms: tuple[SharedArm, ...]


def shared(report: BenchReport) -> SharedReport:
    """What a report has to share.

    Raises:
        LocalspecError: no drafting was timed.
    """
    found = without_arms(report.environment, report.settings, report.curve, report.draft_step_s)
    arms = _distinct(each for each in map(_arm, report.on) if each.gains)
    if not found.curve or not drafted(arms):
        raise LocalspecError(
            "there is nothing to share: no drafting was timed", "Let it run longer."
        )
    return msgspec.structs.replace(found, arms=arms)


def drafted(arms: Iterable[SharedArm]) -> bool:
    """Whether anything was drafted in any answer."""
    return any(gain.acceptance is not None for arm in arms for gain in arm.gains)


def without_arms(
    where: Mapping[str, Any],
    settings: Mapping[str, Any],
    curve: Sequence[CurvePoint],
    draft_step_s: float | None,
) -> SharedReport:
    """What is known before a question is asked.

    Args:
        where: `BenchReport.environment`.
        settings: `BenchReport.settings`.
        curve: T(n) of the target.
        draft_step_s: one decode of the first draft; None without one.
    """
    loaded = where["loaded_with"]
    how = {**settings, **loaded, "exact": (loaded["exact"] or 1) > 1}
    return SharedReport(
        format=_FORMAT,
        localspec=where["localspec"],
        machine=_ascii(_counted(where["machine"])),
        system=_ascii(where["system"]),
        build=_ascii(where["llama_cpp_python"], MOST_BUILD),
        settings=SharedSettings(**{name: how[name] for name in SharedSettings.__struct_fields__}),
        target=_model(where["target"]),
        drafts=tuple(map(_model, where["drafts"])),
        curve=tuple((p.n, p.seconds) for p in curve if p.seconds and p.n <= MOST_SIZE),
        draft_step_s=draft_step_s,
        arms=(),
    )


def _ascii(text: str, most: int = MOST_TEXT) -> str:
    """`text` without all other characters, such as the sign of a trade mark."""
    return one_line(text.encode("ascii", "ignore").decode(), most)


def _counted(machine: str) -> str:
    """The name of a machine, with equal cards as ``4 x NAME``."""
    same = [(name, len([*names])) for name, names in groupby(machine.split(", "))]
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in same)


def _distinct(arms: Iterable[SharedArm]) -> tuple[SharedArm, ...]:
    """The arms, numbered where drafters have the same names."""
    found: list[SharedArm] = []
    seen: Counter[tuple[str, str]] = Counter()
    for arm in arms:
        seen[arm.drafters, arm.gamma] += 1
        n = seen[arm.drafters, arm.gamma]
        name = f"{arm.drafters} #{n}" if n > 1 else arm.drafters
        found.append(msgspec.structs.replace(arm, drafters=name))
    return tuple(found)


def _arm(arm: ArmReport) -> SharedArm:
    gains = tuple(
        SharedGain(
            row.kind, row.prompts, its.value, _true(its.low), _true(its.high), row.acceptance
        )
        for row in arm.kinds
        if (its := row.speedup) is not None
    )
    drafters = "+".join(_impersonal(name) or kind for kind, name in arm.drafters)
    return SharedArm(one_line(drafters, MOST_TEXT - 4), arm.gamma, gains)


def _true(end: float | None) -> float | None:
    """The end of an interval within what can be true: that of two prompts may be without bounds."""
    return None if end is None else min(max(end, SLOWEST), FASTEST)


def _model(model: Mapping[str, Any]) -> SharedModel:
    whole = "sha256" in model
    return SharedModel(
        name=_impersonal(model["own_name"]),
        type=_ascii(model["type"]),
        file_bytes=model["file_bytes"],
        hash=model["sha256" if whole else "sha256_of_first_mebibyte"],
        hashed="file" if whole else "first mebibyte",
    )


def _impersonal(name: str) -> str:
    """`name` without the publisher's, as in ``Meta/Llama``.

    It is empty if it is not ASCII, has a path, or tells the name of this user or machine.
    """
    told = any(_tells(name.casefold(), word.casefold()) for word in _own_names())
    shown = SHOWN.fullmatch(name) and not PRIVATE.search(name)
    own = re.sub(r"^[\w.-]+/(?=\S)", "", name)
    return one_line(own, MOST_TEXT) if shown and not told and "/" not in own else ""


def _tells(text: str, name: str) -> bool:
    """Whether a person's name is in a text; one of two letters counts only as a whole word."""
    if len(name) > 2:
        return name in text
    return len(name) == 2 and name in re.split("[^a-z0-9]+", text)


def _own_names() -> set[str]:
    host = platform.node()
    found = {host, host.split(".")[0]}
    with suppress(OSError, KeyError, RuntimeError):  # a user without a name or a home
        found |= {getpass.getuser(), Path.home().name}
    return found


def to_json(found: SharedReport) -> str:
    """The document, as it is written and shown."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    return _POINT.sub(r"[\1, \2]", text) + "\n"
