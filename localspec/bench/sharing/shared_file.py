"""Reads what others have shared, and refuses what is damaged or cannot be true."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from localspec.bench import prompt_sets
from localspec.bench.sharing.shared_report import (
    FASTEST,
    MOST_BUILD,
    MOST_SIZE,
    MOST_TEXT,
    PRIVATE,
    SHOWN,
    SLOWEST,
    SharedGain,
    SharedReport,
    drafted,
)
from localspec.errors import LocalspecError
from localspec.safe_text import decoded, reason

MOST_BYTES: Final = 64 << 10
_LEAST_S, _MOST_S = 1e-6, 600.0  # seconds of a pass
_CHEAPEST, _DEAREST = 0.5, 4.0  # T(n) over T(1), and over n T(1)
_DIGITS = 100  # of a whole number
_HASH: Final = re.compile("[0-9a-f]{64}")


def read_shared(raw: bytes) -> SharedReport:
    """Read and check a shared file.

    Raises:
        LocalspecError: it is something else, or its figures cannot be true.
    """
    if len(raw) > MOST_BYTES:
        raise _refused(f"it has more than {MOST_BYTES:,} bytes")
    try:
        document = json.loads(
            decoded(raw), object_pairs_hook=_once, parse_constant=_no_number, parse_int=_int
        )
        found = msgspec.convert(document, SharedReport)
        _check_facts(found)
        _check_times(found)
        _check_arms(found)
    except UnicodeError:
        raise _refused("it is not UTF-8") from None
    except json.JSONDecodeError:
        raise _refused("it is not JSON") from None
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise _refused(reason(error)) from None
    return found


def require_shareable(found: SharedReport) -> None:
    """Check what is known before the first question, so that no time is wasted.

    Args:
        found: without arms.

    Raises:
        LocalspecError: it could not be shared.
    """
    again = "Run it again in a calm moment, or leave --share out."
    for check, remedy in ((_check_facts, "Leave --share out."), (_check_times, again)):
        try:
            check(found)
        except ValueError as error:
            raise LocalspecError(f"this cannot be shared: {reason(error)}", remedy) from None


def _refused(why: str) -> LocalspecError:
    return LocalspecError(
        f"this is not what `bench --share` writes: {why}", "Write the file again."
    )


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:40]!r} is given twice")
        found[name] = value
    return found


def _int(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _check_facts(found: SharedReport) -> None:
    """Check what the types leave open of texts, settings and models.

    Raises:
        ValueError: something cannot be true, or does not belong here.
    """
    _check_texts(found)
    _check_settings(found)
    for model in (found.target, *found.drafts):
        _require(bool(_HASH.fullmatch(model.hash)), "a hash has not 64 digits from 0 to f")
        _require(0 < model.file_bytes < 1e14, "a file's size cannot be true")
    _require(len(found.drafts) <= 8, "it has too many drafts")


def _check_times(found: SharedReport) -> None:
    _check_curve(found.curve)
    step = found.draft_step_s
    _require(step is None or _LEAST_S <= step <= _MOST_S, "the draft's step cannot be true")


def _check_arms(found: SharedReport) -> None:
    _require(0 < len(found.arms) <= 16, "it has too many parts, or none")
    names = {(arm.drafters, arm.gamma) for arm in found.arms}
    _require(len(names) == len(found.arms), "the same drafters are given twice")
    for arm in found.arms:
        _require(bool(re.fullmatch("auto|[0-9]{1,2}", arm.gamma)), "no such gamma")
        _check_gains(arm.gains)
    _require(drafted(found.arms), "nothing was drafted")


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)


def _check_texts(found: SharedReport) -> None:
    """Short, ASCII, and neither an address nor a path nor markup."""
    models = (found.target, *found.drafts)
    facts = [found.localspec, found.machine, found.system, *(each.type for each in models)]
    names = [*(each.name for each in models), *(each.drafters for each in found.arms)]
    _require(all(text.strip() for text in (*facts, found.build)), "a text is empty")
    _require(len(found.build) <= MOST_BUILD, f"the build has more than {MOST_BUILD} characters")
    longest = max(map(len, (*facts, *names)))
    _require(longest <= MOST_TEXT, f"a text has more than {MOST_TEXT} characters")
    for text in (*facts, *names, found.build):
        _require(bool(SHOWN.fullmatch(text)), "a text has characters that cannot be shown in ASCII")
        personal = PRIVATE.search(text) or "/" in "".join(names)
        _require(not personal, "a text has a path, an address or markup in it")


def _check_settings(found: SharedReport) -> None:
    how = found.settings
    _require(0 < how.ctx_size <= 1 << 31, "the context size cannot be true")
    _require(0 < how.threads <= 4096, "the number of threads cannot be true")
    _require(-1 <= how.n_gpu_layers <= 4096, "the number of layers cannot be true")
    kinds = (how.cache_type_k, how.cache_type_v)
    _require(all(re.fullmatch("[a-z0-9_]{2,12}", kind) for kind in kinds), "no such cache type")
    _require(0 <= how.temp <= 1e6, "the temperature cannot be true")
    _require(0 < how.n_predict <= 100_000, "the number of tokens of an answer cannot be true")


def _check_curve(curve: Sequence[tuple[int, float]]) -> None:
    sizes = [n for n, _ in curve]
    _require(sizes[:2] == [1, 2], "T(1) or T(2) is missing")
    rising = sizes == sorted(set(sizes)) and sizes[-1] <= MOST_SIZE
    _require(rising, f"the sizes of T(n) do not rise to {MOST_SIZE} at most")
    for n, seconds in curve:
        possible = math.isfinite(seconds) and _LEAST_S <= seconds <= _MOST_S
        _require(possible, f"T({n}) is not between {_LEAST_S:g} and {_MOST_S:g} seconds")
        ratio = seconds / curve[0][1]
        _require(ratio >= _CHEAPEST, f"T({n}) is below half of T(1)")
        _require(ratio <= _DEAREST * n, f"T({n}) is more than {_DEAREST * n:g} times T(1)")


def _check_gains(gains: Sequence[SharedGain]) -> None:
    kinds = [gain.kind for gain in gains]
    known = {*prompt_sets.quick().kinds, *prompt_sets.shipped(prompt_sets.GENERAL).kinds}
    _require(len(set(kinds)) == len(kinds) > 0, "a kind of text is given twice, or none is")
    _require(set(kinds) <= known, "it has a kind of text that localspec does not ask for")
    for gain in gains:
        _require(0 < gain.prompts <= 10_000, "the number of prompts cannot be true")
        low, high = gain.low, gain.high
        _require((low is None) == (high is None), "an interval has one end")
        ends = (gain.speedup if low is None else low, gain.speedup if high is None else high)
        possible = SLOWEST <= ends[0] <= gain.speedup <= ends[1] <= FASTEST
        _require(possible, f"the speed-up for {gain.kind} or its interval cannot be true")
        shares = gain.acceptance is None or 0 <= gain.acceptance <= 1
        _require(shares, f"the acceptance for {gain.kind} is not a share")
