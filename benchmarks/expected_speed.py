"""Speeds that are expected before a pair is loaded, against what it then writes.

    uv run python benchmarks/expected_speed.py [--sizes 0.6G 1.2G 2.4G] [--pairs FOLDER]

The demo pair is loaded as the chat loads it: what it costs is the basis of all expectations. Pairs
of three sizes are made of it (`models/enlarge.py`: they say the same), the speeds of all are
expected, then each is loaded and answers at temperature 0, without and with its draft in turns.
Prints a table: medians of the answers, and how far an expectation is off. What was measured in
earlier runs is not used. The machine has to be idle. Takes about five minutes on two cores, and
room for the files: in the temporary folder, or in the one of `--pairs`, where they stay and
those that are there already are used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import localspec
from localspec import formats
from localspec.api import Chat
from localspec.loading import ranking
from localspec.loading.ranking import RankedPair
from localspec.pairs import catalogue
from localspec.pairs.examine import examine
from localspec.pairs.hub.patience import Patience

ENLARGE = Path(__file__).parents[1] / "models" / "enlarge.py"
DRAFT = 10  # times as small as its target
PROMPTS = (
    "Tell me a story about a dog.",
    "Why is the sky blue?",
    "Write a list of five animals.",
    "What did the girl find in the garden?",
)


@dataclass(frozen=True)
class Pair:
    """An enlarged pair, and what is expected of it."""

    target: Path
    draft: Path
    expected: RankedPair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["0.6G", "1.2G", "2.4G"])
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=Path, help="folder of the enlarged files, which stay there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_CACHE"] = os.environ["LOCALSPEC_DATA"] = str(Path(folder, "own"))
        localspec.load("demo").close()
        speed = ranking.recall()
        assert speed is not None, "the demo could not be measured"
        files = arguments.pairs or Path(folder)
        pairs = [enlarged(files, size, arguments.type, speed) for size in arguments.sizes]
        basis = speed.basis([pair.expected for pair in pairs])
        print(f"{basis[0].upper()}{basis[1:]}.\n")
        head = ("target", "plain", "expected", "off", "drafting", "expected", "off", "accepted")
        rows = [head, *(row(pair, arguments.tokens) for pair in pairs)]
        print("\n".join(formats.columns(rows)))


def enlarged(folder: Path, size: str, kind: str, speed: ranking.Speed) -> Pair:
    """Write a pair of this size and type unless it is there, and say what to expect of it."""
    out, draft = folder / f"{size}-{kind}", f"{float(size[:-1]) / DRAFT:g}{size[-1]}"
    sizes = ("--target-size", size, "--draft-size", draft)
    command = [sys.executable, str(ENLARGE), "demo", *sizes, "--type", kind, str(out)]
    if len(sorted(out.glob("*.gguf"))) < 2:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (target,), (small,) = sorted(out.glob("target*.gguf")), sorted(out.glob("draft*.gguf"))
    report = examine(str(target), str(small), Patience(), scan=False)
    (expected,) = ranking.ranked([catalogue.examined(report)], speed)
    return Pair(target, small, expected)


def row(pair: Pair, tokens: int) -> tuple[str, ...]:
    """Load a pair, have it answer, and compare."""
    speeds: dict[int | str, list[float]] = {0: [], "auto": []}
    accepted = []
    with localspec.load(
        str(pair.target), draft=str(pair.draft), temp=0.0, n_predict=tokens
    ) as chat:
        answer(chat, PROMPTS[0], "auto")  # warms up
        for prompt in PROMPTS:
            for gamma, found in speeds.items():
                speed, share = answer(chat, prompt, gamma)
                found.append(speed)
                accepted += [share] if gamma and share is not None else []
    plain, drafting = median(speeds[0]), median(speeds["auto"])
    expected = pair.expected
    return (
        formats.size(expected.row.target_bytes),
        *compared(plain, expected.plain),
        *compared(drafting, expected.drafted),
        formats.percent(median(accepted) if accepted else None),
    )


def answer(chat: Chat, prompt: str, gamma: int | str) -> tuple[float, float | None]:
    """Tokens per second of one answer, and the share of drafted tokens that were accepted."""
    chat.messages = []
    chat.settings.gamma = gamma  # type: ignore[assignment]
    for _ in chat.ask(prompt):
        pass
    figures = chat.figures
    return figures.speed_average or 0.0, figures.acceptance_rate


def compared(measured: float, expected: float | None) -> tuple[str, str, str]:
    """What was measured, what was expected, and how far that is off."""
    off = "–" if expected is None else f"{expected / measured - 1:+.0%}"
    return formats.speed(measured), formats.speed(expected), off


if __name__ == "__main__":
    main()
