"""Speeds that are expected before a pair is loaded, against what it then writes.

    uv run python benchmarks/expected_speed.py [--sizes 0.6G 1.2G 2.4G] [--types f16 q4_k_m]
                                               [--basis FOLDER] [--pairs FOLDER]

The demo pair, or the one in the folder of `--basis`, is loaded as the chat loads it: what it costs
is the basis of all expectations. Pairs of three sizes are made of the demo in every type
(`models/enlarge.py`: they say the same), the speeds of all are expected, then each is loaded and
answers at temperature 0, without and with its draft in turns. Prints a table: the speed of all
answers together, and how far an expectation is off; the share of the drafted tokens that was
accepted, the chance of one behind accepted ones, and the speed to expect had that been known; how
far the times expected of passes over one token, two, three and five are off. What was measured in
earlier runs is not used. The machine has to be idle. Takes two minutes a type on two cores, and
room for the files: in the temporary folder, or in the one of `--pairs`, where they stay and those
that are there already are used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import localspec
from localspec import formats
from localspec.api import Chat
from localspec.chat.figures import Figures
from localspec.engine.length.stopping import gamma_for
from localspec.loading import ranking
from localspec.loading.ranking import RankedPair
from localspec.pairs.examine import examine
from localspec.pairs.hub.patience import Patience

ENLARGE = Path(__file__).parents[1] / "models" / "enlarge.py"
DRAFT = 10  # times as small as its target
PASSES = (1, 2, 3, 5)  # tokens
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
    kind: str
    expected: RankedPair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["0.6G", "1.2G", "2.4G"])
    parser.add_argument("--types", nargs="+", default=["f16", "q4_k_m"])
    parser.add_argument("--basis", type=Path, help="folder of another pair than the demo")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=Path, help="folder of the enlarged files, which stay there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_CACHE"] = os.environ["LOCALSPEC_DATA"] = str(Path(folder, "own"))
        speed = basis(arguments.basis)
        files = arguments.pairs or Path(folder)
        pairs = [
            enlarged(files, size, kind, speed)
            for kind in arguments.types
            for size in arguments.sizes
        ]
        made = speed.basis([pair.expected for pair in pairs])
        print(f"{made[0].upper()}{made[1:]}.\n")
        both = ("plain", "expected", "off", "drafting", "expected", "off")
        chances = ("accepted", "chance", "knowing it", "off")
        head = ("target", "type", *both, *chances, *(f"T({n})" for n in PASSES))
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for pair in pairs:
            print(f"| {' | '.join(row(pair, arguments.tokens, speed))} |", flush=True)


def basis(folder: Path | None) -> ranking.Speed:
    """Load the pair that all is expected from, and give what it cost."""
    if folder is None:
        localspec.load("demo").close()
    else:
        target, draft = files_of(folder)
        localspec.load(str(target), draft=str(draft)).close()
    return known()


def files_of(folder: Path) -> tuple[Path, Path]:
    """The two files of an enlarged pair."""
    (target,), (draft,) = sorted(folder.glob("target*.gguf")), sorted(folder.glob("draft*.gguf"))
    return target, draft


def enlarged(folder: Path, size: str, kind: str, speed: ranking.Speed) -> Pair:
    """Write a pair of this size and type unless it is there, and say what to expect of it."""
    out, draft = folder / f"{size}-{kind}", f"{float(size[:-1]) / DRAFT:g}{size[-1]}"
    sizes = ("--target-size", size, "--draft-size", draft)
    command = [sys.executable, str(ENLARGE), "demo", *sizes, "--type", kind, str(out)]
    if len(sorted(out.glob("*.gguf"))) < 2:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    target, small = files_of(out)
    report = examine(str(target), str(small), Patience(), scan=False)
    (expected,) = ranking.ranked([report.listed], speed)
    return Pair(target, small, kind, expected)


def row(pair: Pair, tokens: int, speed: ranking.Speed) -> tuple[str, ...]:
    """Load a pair, have it answer, and compare."""
    answers: dict[int | str, list[Figures]] = {0: [], "auto": []}
    with (
        measured_alone(),
        localspec.load(str(pair.target), draft=str(pair.draft), temp=0.0, n_predict=tokens) as chat,
    ):
        (own,) = known().pairs.values()
        answer(chat, PROMPTS[0], "auto")  # warms up
        for prompt in PROMPTS:
            for gamma, found in answers.items():
                found.append(answer(chat, prompt, gamma))
    plain, drafting = (pooled(found) for found in answers.values())
    drafted = sum(figures.drafted for figures in answers["auto"])
    accepted = sum(figures.accepted for figures in answers["auto"])
    rejected = sum(figures.recovered or 0 for figures in answers["auto"])
    expected, costs = pair.expected, ranking.expected_costs(pair.expected.row, speed)
    assert costs is not None
    assert costs.step is not None
    chance = accepted / max(1, accepted + rejected)
    knowing = (expected.plain or 0.0) * gamma_for(chance, costs.times, costs.step)[1]
    return (
        formats.size(expected.row.target_bytes),
        pair.kind,
        *compared(plain, expected.plain),
        *compared(drafting, expected.drafted),
        formats.percent(accepted / drafted if drafted else None),
        formats.percent(chance),
        *compared(drafting, knowing)[1:],
        *(f"{costs.times[n] / own.times[n] - 1:+.0%}" for n in PASSES),
    )


def answer(chat: Chat, prompt: str, gamma: int | str) -> Figures:
    """The figures of one answer."""
    chat.messages = []
    chat.settings.gamma = gamma  # type: ignore[assignment]
    for _ in chat.ask(prompt):
        pass
    return chat.figures


def pooled(answers: list[Figures]) -> float:
    """Tokens per second of all answers together."""
    tokens = [figures.generated for figures in answers]
    seconds = [figures.generated / (figures.speed_average or 1.0) for figures in answers]
    return sum(tokens) / sum(seconds)


@contextmanager
def measured_alone() -> Iterator[None]:
    """Let what is measured meanwhile be kept apart from what was before."""
    before = os.environ["LOCALSPEC_CACHE"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_CACHE"] = folder
        yield
    os.environ["LOCALSPEC_CACHE"] = before


def known() -> ranking.Speed:
    """What was measured so far."""
    speed = ranking.recall()
    assert speed is not None, "it could not be measured"
    return speed


def compared(measured: float, expected: float | None) -> tuple[str, str, str]:
    """What was measured, what was expected, and how far that is off."""
    off = "–" if expected is None else f"{expected / measured - 1:+.0%}"
    return formats.speed(measured), formats.speed(expected), off


if __name__ == "__main__":
    main()
