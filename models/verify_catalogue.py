"""Check every curated pair against the Hub, and pin it: revision, sha256 and size.

    uv run python models/verify_catalogue.py              check all entries and write the pins
    uv run python models/verify_catalogue.py qwen3-8b     only this one
    uv run python models/verify_catalogue.py --check      write nothing
    uv run python models/verify_catalogue.py --seen       without a network: only compare the names
                                                          with what was seen (models/seen.tsv)

For each entry its repositories are asked at their newest revision: the file must be there,
ungated or said to be gated, its header readable and of the architecture that is written down,
the vocabularies compatible, a head one of this target's, and the pair must fit its memory class.
About 15 MB of headers are read per entry, no weights. The exit code is 1 when an entry fails; the
others are pinned all the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from localspec import formats
from localspec.errors import HubOffline, LocalspecError
from localspec.pairs.disk import folders
from localspec.pairs.gguf import head_checks
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.model_facts import draft_facts, facts
from localspec.pairs.memory.outlook import outlook_for
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import CuratedFile, CuratedPair
from localspec.pairs.names.references import Reference
from localspec.pairs.report import model_source, vocabulary
from localspec.pairs.report.model_source import ModelSource
from localspec.private import write_whole

PINS = ("bytes", "revision", "sha256")


@dataclass(frozen=True, slots=True)
class Verified:
    """An entry that passed, and what is worth saying about it."""

    models: tuple[ModelSource, ...]
    remarks: tuple[str, ...]


def verify(entry: CuratedPair, retries: RetryPolicy) -> Verified:
    """Check one entry.

    Raises:
        LocalspecError: it does not hold.
    """
    models = tuple(_look_at(file, retries) for file in entry.files)
    target, *drafts = models
    for draft in drafts:
        vocabulary.check(target.header, draft.header)
        if head_checks.is_head(draft.header):
            head_checks.require_fit(draft.header, target.header, draft.label)
    if target.header.architecture != entry.architecture:
        raise LocalspecError(f"{target.label} is of the architecture {target.header.architecture}")
    further = [draft_facts(each.header) for each in drafts]
    sizes = facts(target.header)
    needed = outlook_for(sizes, further).fit.needed
    remarks = []
    if needed > entry.memory_gb * 1e9:
        remarks.append(f"needs {formats.size(needed)}, more than its class of {entry.memory_gb} GB")
    for side, known in zip(models, entry.files, strict=True):
        if side.gated:
            remarks.append(f"{side.repo} is gated")
        if known.sha256 and known.sha256 != side.files[0].sha256:
            remarks.append(f"{side.label} has changed since it was pinned")
        if abs(known.n_bytes - side.n_bytes) > 0.02 * side.n_bytes:
            remarks.append(f"{side.label} has {formats.size(side.n_bytes)}")
    return Verified(models, tuple(remarks))


def _look_at(side: CuratedFile, retries: RetryPolicy) -> ModelSource:
    source = model_source.from_hub(Reference(side.repo, file=side.file), retries)
    if source.files[0].name != side.file:  # `pull` knows a curated pair by these very names
        raise LocalspecError(f"{side.file} is named {source.files[0].name} in {side.repo}")
    if len(source.files) != 1 or not source.files[0].sha256:
        raise LocalspecError(f"{source.label} cannot be pinned: split, or without a sha256")
    return source


@dataclass(frozen=True, slots=True)
class SeenName:
    """A file whose names public lists had, and how sure they are (see `CuratedFile.seen`)."""

    gb: float
    sure: str


def seen_names(path: Path) -> dict[tuple[str, str], SeenName]:
    """Read what was seen, by repository and file."""
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line[:1] != "#"]
    return {(repo, file): SeenName(float(gb), sure) for repo, file, gb, sure, *_ in rows}


def compare(entry: CuratedPair, seen: dict[tuple[str, str], SeenName]) -> list[str]:
    """The files of an entry that were not seen, or of which something else is written down."""
    found = []
    for file in (*entry.files, *(each for each in entry.others if each.file)):
        known = seen.get((file.repo, file.file))
        label = f"{file.repo}/{file.file}"
        if known is None:
            found += [f"{label} is said to have been seen"] if file.seen else []
        elif known.sure != file.seen:
            found.append(f"{label} is {file.seen or 'unmarked'}, and was seen as {known.sure}")
        elif abs(known.gb - file.n_bytes / 1e9) > 0.02 * known.gb:
            found.append(f"{label} has {known.gb} GB elsewhere")
    return found


def pin(text: str, name: str, verified: Verified) -> str:
    """Write the pins of entry `name` into the catalogue's `text`; all else stays as it is."""
    start = re.search(rf'^\[\[pair\]\]\nname = "{re.escape(name)}"$', text, re.M)
    if start is None:
        raise LocalspecError(f"{name} is not written as expected in the catalogue")
    end = text.find("[[pair]]", start.end())
    entry = text[start.start() : end if end >= 0 else None]
    changed = entry
    for side, source in zip(("target", "draft"), verified.models, strict=False):
        changed = _pin_side(changed, side, source)
    return text.replace(entry, changed)


def _pin_side(entry: str, side: str, source: ModelSource) -> str:
    head, section = entry.split(f"[pair.{side}]\n")
    body, gap, rest = section.partition("\n\n")
    lines = [line for line in body.rstrip("\n").split("\n") if line.split(" = ")[0] not in PINS]
    lines += [
        f"bytes = {source.n_bytes}",
        f'revision = "{source.files[0].commit}"',
        f'sha256 = "{source.files[0].sha256}"',
    ]
    return f"{head}[pair.{side}]\n" + "\n".join(lines) + (gap + rest if gap else "\n")


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Check the curated pairs against the Hub.")
    parser.add_argument("names", nargs="*", help="entries to check; all when left out")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--seen", action="store_true", help="only compare with what was seen")
    options = parser.parse_args(arguments)
    path, entries = folders.shipped("catalogue.toml"), catalogue.pairs()
    unknown = [name for name in options.names if name not in entries]
    if unknown:
        parser.error(f"not in the catalogue: {', '.join(unknown)}")
    failed = 0
    if options.seen:
        return _compare_all([entries[name] for name in options.names or entries])
    for name in options.names or entries:
        try:
            verified = verify(entries[name], RetryPolicy())
        except HubOffline as error:
            print(f"error: {error.message}\n  {error.remedy}", file=sys.stderr)
            return 1
        except LocalspecError as error:
            failed += 1
            print(f"{name}: FAILED: {error.message}")
            continue
        print(f"{name}: ok{''.join(f'; {remark}' for remark in verified.remarks)}")
        if not options.check:
            _write(path, name, verified)
    return 1 if failed else 0


def _compare_all(entries: list[CuratedPair]) -> int:
    """Print how each entry compares with what was seen; return the exit code."""
    seen = seen_names(Path(__file__).with_name("seen.tsv"))
    wrong = {entry.name: compare(entry, seen) for entry in entries}
    for entry in entries:
        print(f"{entry.name}: {'; '.join(wrong[entry.name]) or entry.names}")
    return 1 if any(wrong.values()) else 0


def _write(path: Path, name: str, verified: Verified) -> None:
    write_whole(path, pin(path.read_text(encoding="utf-8"), name, verified))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
