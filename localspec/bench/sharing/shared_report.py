"""What one machine measured, as a JSON document for others; docs/bench.md has its form.

It holds nothing personal: no user, host, path or text.
"""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

PRIVATE: Final = re.compile(
    r"://|\w@\w|\\|<|>|`|\]\s*[(\[]"  # addresses with a scheme, of mail, paths of Windows, markup
    r"|(^|[\s\"'(=])(~|\.{0,2}/|[A-Za-z]:)[^\s]*/"  # other paths
    r"|[\w-]\.[A-Za-z]{2,}(:\d|/)|\bwww\.|\blocalhost\b"  # hosts without a scheme
    r"|(?<![\d.])\d{1,3}(\.\d{1,3}){3}(?![\d.])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){2,}"  # addresses of devices, and of IPv6
)
SHOWN: Final = re.compile("[ -~…]*")  # ASCII, and the sign of what was cut off
_POINT: Final = re.compile(r"\[\s+(\d+),\s+([\d.e-]+)\s+\]")  # of T(n), on lines of its own
_SHORT: Final = 3  # letters of a name that would be found in any text


class SharedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A model file.

    Attributes:
        name: what the file calls itself; empty if that could tell whose it is.
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
    """How the target ran, by the names of the command line's options."""

    ctx_size: int
    threads: int
    n_gpu_layers: int
    flash_attn: Literal["on", "off", "auto"]
    cache_type_k: str
    cache_type_v: str
    exact: bool


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
        busy_cores: how many cores other programs kept busy when it began.
        curve: (n, seconds of a pass of the target over n tokens), n rising from 1.
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
    busy_cores: float
    curve: tuple[tuple[int, float], ...]
    draft_step_s: float | None
    arms: tuple[SharedArm, ...]


def shared(report: BenchReport) -> SharedReport:
    """What a report has to share.

    Raises:
        LocalspecError: nothing was timed.
    """
    found = without_arms(
        report.environment, report.curve, report.draft_step_s, busy_cores=report.busy_cores
    )
    arms = tuple(each for each in map(_arm, report.on) if each.gains)
    if not arms or not found.curve:
        raise LocalspecError(
            "there is nothing to share: no drafting was timed", "Let it run longer."
        )
    return msgspec.structs.replace(found, arms=arms)


def without_arms(
    where: Mapping[str, Any],
    curve: Sequence[CurvePoint],
    draft_step_s: float | None,
    *,
    busy_cores: float,
) -> SharedReport:
    """What is known before a question is asked.

    Args:
        where: `BenchReport.environment`.
        curve: T(n) of the target.
        draft_step_s: one decode of the first draft; None without one.
        busy_cores: how many cores other programs kept busy.
    """
    how = where["loaded_with"]
    return SharedReport(
        format=_FORMAT,
        localspec=where["localspec"],
        machine=where["machine"],
        system=where["system"],
        build=one_line(where["llama_cpp_python"], MOST_BUILD),
        settings=SharedSettings(
            **{name: how[name] for name in SharedSettings.__struct_fields__ if name != "exact"},
            exact=(how["exact"] or 1) > 1,
        ),
        target=_model(where["target"]),
        drafts=tuple(map(_model, where["drafts"])),
        busy_cores=busy_cores,
        curve=tuple((p.n, p.seconds) for p in curve if p.seconds and p.n <= MOST_SIZE),
        draft_step_s=draft_step_s,
        arms=(),
    )


def _arm(arm: ArmReport) -> SharedArm:
    gains = tuple(
        SharedGain(row.kind, row.prompts, its.value, its.low, its.high, row.acceptance)
        for row in arm.kinds
        if (its := row.speedup) is not None
    )
    return SharedArm(_impersonal(arm.draft or ""), arm.gamma, gains)


def _model(model: Mapping[str, Any]) -> SharedModel:
    whole = "sha256" in model
    return SharedModel(
        name=_impersonal(model["name"]),
        type=model["type"],
        file_bytes=model["file_bytes"],
        hash=model["sha256" if whole else "sha256_of_first_mebibyte"],
        hashed="file" if whole else "first mebibyte",
    )


def _impersonal(name: str) -> str:
    """`name`; empty if it is not ASCII, has a path, or tells the name of this user or machine."""
    said = name.casefold()
    told = any(len(word) >= _SHORT and word.casefold() in said for word in _own_names())
    shown = SHOWN.fullmatch(name) and not PRIVATE.search(name)
    return one_line(name, MOST_TEXT) if shown and not told else ""


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
