"""What a chat's screen says: its figures and its sentence, and where they contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FEWEST = 50
"""Tokens of the shortest answer for which a ratio may be shown."""

_FEWEST_ROUNDS = 8  # that drafted
_GUESSES = r"(?: · guessed ([\d,]+), kept ([\d,]+))?"
_FOOT = re.compile(rf"([\d,]+) tokens? · ([\d.,]+) tokens/s{_GUESSES}")
_COUNTS = re.compile(r"guessed [\d,]+, kept [\d,]+|copied [\d,]+ of [\d,]+ tokens")
_AVERAGE = re.compile(r"average +[\d.,–]+ tokens/s")
_RATIO = re.compile(r"(\d+\.\d)×, (\d+\.\d)–(\d+\.\d)")
_NOTHING = ("nothing was drafted", "not drafting", "drafting is off", "drafting was off")


@dataclass(frozen=True)
class Figures:
    """The figures on a screen after an answer.

    Attributes:
        tokens, speed, guessed, kept: of the line below the last answer.
        average, without: tokens per second in the full panel; None if it is not shown.
        wait: seconds to the first word.
        context: tokens in the cache.
        ratio: in the full panel: estimate, low and high.
        drafted, accepted: in the full panel.
        rounds: that drafted: each ends with a recovered or a bonus token, unless the answer does.
        sentence: what drafting brought; empty if the screen has no such sentence.
        text: the whole screen.
    """

    tokens: int = 0
    speed: float = 0.0
    guessed: int = 0
    kept: int = 0
    average: float | None = None
    without: float | None = None
    wait: float | None = None
    context: int | None = None
    ratio: tuple[float, float, float] | None = None
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    sentence: str = ""
    text: str = ""


def read(screen: str) -> Figures:
    """Read a screen as it stands after an answer."""
    lines = screen.splitlines()
    foot = [found for line in lines if (found := _FOOT.search(line))]
    tokens, speed, guessed, kept = foot[-1].groups() if foot else ("0", "0", None, None)
    average = [found.start() for line in lines if (found := _AVERAGE.search(line))]
    panel = [line[average[-1] :] for line in lines] if average else []
    column = "\n".join(panel)
    counts = column.partition("per round")[2]
    ratio = _RATIO.search(column)
    return Figures(
        tokens=_whole(tokens),
        speed=_number(speed),
        guessed=_whole(guessed or "0"),
        kept=_whole(kept or "0"),
        average=_first(r"average ([\d.,]+) tokens/s", column),
        without=_first(r"without ([\d.,]+) tokens/s", column),
        wait=_wait(screen),
        context=_count(r"(?:Context +([\d,]+) of [\d,]+|([\d,]+)/[\d,]+ context)", screen),
        ratio=(float(ratio[1]), float(ratio[2]), float(ratio[3])) if ratio else None,
        drafted=_count(r"drafted +([\d,]+)", counts),
        accepted=_count(r"accepted +([\d,]+)", counts),
        rounds=sum(map(_whole, re.findall(r"(?:recovered|bonus) +([\d,]+)", counts))),
        sentence=_in_panel(panel) if panel else _in_status(lines),
        text=screen,
    )


def conversation(screen: str) -> str:
    """The part of a screen that the full panel leaves, if it is shown."""
    lines = screen.splitlines()
    average = [found.start() for line in lines if (found := _AVERAGE.search(line))]
    return "\n".join(line[: average[-1] if average else None] for line in lines)


def contradictions(now: Figures) -> list[str]:
    """Where the figures and the sentence of an answer that has ended contradict each other."""
    return [*_sentence(now), *_panel(now), *_claims(now)]


def _claims(now: Figures) -> Iterator[str]:
    """Ratios on the screen without a figure that supports them."""
    if "×" in now.text and (now.tokens < FEWEST or not now.guessed):
        yield f"a × beside {now.tokens} tokens of which {now.guessed} were guessed"
    if "×" in now.text and "can't tell" in now.sentence:
        yield "a ratio next to “can't tell”"
    if now.ratio and now.rounds is not None and now.rounds < _FEWEST_ROUNDS - 1:
        yield f"a × from {now.rounds} drafted rounds"
    if now.context is not None and now.context < now.tokens:
        yield f"{now.context} tokens of context hold an answer of {now.tokens}"
    if now.tokens and not (now.sentence or now.guessed):
        yield "no sentence says what drafting brought"
    counts = _COUNTS.findall(now.text.rpartition("▌")[2])
    if now.average is None and len(counts) > 1:
        yield f"counted twice on a small screen: {', '.join(counts)}"


def _panel(now: Figures) -> Iterator[str]:
    """The full panel against the line below the answer, and against itself."""
    if now.average is None:
        return
    if abs(now.average - now.speed) > 0.11:
        yield f"average {now.average} in the panel, {now.speed} below the answer"
    if (now.drafted or 0, now.accepted or 0) != (now.guessed, now.kept):
        yield f"{now.drafted}/{now.accepted} in the panel, {now.guessed}/{now.kept} below"
    if (now.ratio is None) is not (now.without is None):
        yield "a ratio without the speed that it compares with, or the other way round"
    if now.ratio and now.without:
        quotient = now.average / now.without
        if abs(quotient - now.ratio[0]) > 0.05 + 0.06 * quotient / now.without + 0.005:
            yield f"{now.average} over {now.without} is not {now.ratio[0]}"


def _sentence(now: Figures) -> Iterator[str]:
    """The sentence against the counts."""
    said = now.sentence
    if now.guessed and any(word in said for word in _NOTHING):
        yield f"“{said}”, and {now.guessed} tokens were guessed"
    copied = re.search(r"copied ([\d,]+) of ([\d,]+) tokens", said)
    if copied and (_whole(copied[1]), _whole(copied[2])) != (now.kept, now.tokens):
        yield f"“{said}”, and {now.kept} of {now.tokens} below the answer"
    guessed = re.search(r"guessed ([\d,]+), kept ([\d,]+)", said)
    if guessed and (_whole(guessed[1]), _whole(guessed[2])) != (now.guessed, now.kept):
        yield f"“{said}”, and {now.guessed}/{now.kept} below the answer"
    if now.average is not None and not _fits(said, now.ratio):
        yield f"“{said}”, and {now.ratio or 'no ratio'} in the panel"


def _fits(said: str, ratio: tuple[float, float, float] | None) -> bool:
    """Whether a sentence that tells a ratio tells that of the panel."""
    faster = re.search(r"(\d+\.\d)× faster than", said)
    slower = re.search(r"(\d+) % slower than", said)
    unclear = re.search(r"no clear gain: (\d+\.\d) to (\d+\.\d)×", said)
    same = "as fast as without" in said
    if ratio is None:
        return not (faster or slower or unclear or same)
    estimate, low, high = ratio
    return not (
        (faster and (float(faster[1]) != estimate or low < 1))
        or (slower and (abs(1 - int(slower[1]) / 100 - estimate) > 0.06 or high > 1))
        or (unclear and (float(unclear[1]), float(unclear[2])) != (low, high))
        or (same and not 0.9 <= estimate <= 1.1)
    )


def _in_panel(panel: list[str]) -> str:
    """The sentence in the column: between the big digits and the average."""
    end = next(i for i, line in enumerate(panel) if _AVERAGE.match(line))
    start = next((i for i, line in enumerate(panel) if "tokens/s" in line), -1)
    part = panel[start + 2 : end] if start < end else panel[:end]
    return " ".join(" ".join(part).split())


def _in_status(lines: list[str]) -> str:
    """The sentence in the status line, which may have two lines."""
    at = next((i for i, line in enumerate(lines) if line.strip().startswith("ready")), None)
    if at is None:
        return ""
    both = f"{lines[at]} {lines[at + 1] if at + 1 < len(lines) else ''}"
    return " ".join(re.sub(r"[^\w\s%×;:.,'’–()-]", " ", both.replace("ready", "", 1)).split())


def _first(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return _number(found[1]) if found else None


def _count(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return _whole(next(filter(None, found.groups()))) if found else None


def _wait(text: str) -> float | None:
    """A time as `formats.seconds` writes it."""
    time = r"(?:(\d+) min )?([\d.]+) (m?s)"
    found = re.search(rf"\bwait {time}", text) or re.search(rf"{time} to the first word", text)
    if found is None:
        return None
    return 60 * int(found[1] or 0) + float(found[2]) / (1000 if found[3] == "ms" else 1)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _whole(text: str) -> int:
    return int(text.replace(",", ""))
