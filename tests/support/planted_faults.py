"""Thirty faults in engine, store, pull and screen: the tests of each room find the room's own.

    python -m tests.support.planted_faults              all of them, some minutes
    python -m tests.support.planted_faults store pull   those of two rooms
    python -m tests.support.planted_faults --check      only whether each can still be planted

A fault is one piece of source text in place of another, in a copy of the package. A room's tests
are those that the list names for it, stopped at the first that fails. They have to pass without a
fault, and to fail with it. The exit code is 1 where one is not found, 2 where a source text is not
there exactly once any more: then the list has to follow the code.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.two_parts import surroundings

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Fault:
    """One piece of source text in place of another.

    Attributes:
        what: what the program then does.
        path: of the file, below ``localspec``.
    """

    what: str
    path: str
    right: str
    wrong: str

    def plant(self, package: Path) -> None:
        """Put it into a copy of the package."""
        (package / self.path).write_text(self.planted(), "utf-8")

    def planted(self) -> str:
        """The file's text with the fault in it.

        Raises:
            LookupError: what it replaces is not there exactly once.
        """
        text = (ROOT / "localspec" / self.path).read_text("utf-8")
        if text.count(self.right) != 1:
            raise LookupError(f"{self.path} has {self.right!r} {text.count(self.right)} times")
        return text.replace(self.right, self.wrong)


TESTS: Final = {
    "engine": (
        *("test_verify.py", "test_sampling.py", "test_noise.py", "test_lookup.py"),
        *("test_generate.py", "test_lossless_enumeration.py"),
    ),
    "store": ("test_history.py", "test_damaged_history.py"),
    "pull": ("test_hub.py", "test_hub_hostile.py", "test_pull.py"),
    "screen": ("test_ui_text.py", "test_ui_panel.py", "test_ui_input.py", "test_ui_app.py"),
}
"""The tests of each room, the quickest first."""

FAULTS: Final = {
    "engine": (
        Fault(
            "A token that the target finds impossible is not the end of a block.",
            "engine/round/verify.py",
            "        if weight == 0:\n            break\n",
            "",
        ),
        Fault(
            "After a rejection the target's own row is drawn from.",
            "engine/round/verify.py",
            "            return Verdict(i, noise.pick(_residual(p[i], q), position + i))",
            "            return Verdict(i, noise.pick(p[i], position + i))",
        ),
        Fault(
            "The residual is not weighed by how likely the block before it was.",
            "engine/round/verify.py",
            "_residual(p[i], draft.q[i], weights[i])",
            "_residual(p[i], draft.q[i])",
        ),
        Fault(
            "A cut draft loses tokens that must be submitted.",
            "engine/round/verify.py",
            "        kept = max(length, self.must_verify)\n",
            "        kept = length\n",
        ),
        Fault(
            "Every bonus token is drawn with the noise of the position before it.",
            "engine/round/verify.py",
            "        if token != drafted:\n            return Verdict(i, token)\n"
            "    n = len(draft.tokens)\n    return Verdict(n, noise.pick(p[n], position + n))",
            "        if token != drafted:\n            return Verdict(i, token)\n"
            "    n = len(draft.tokens)\n    return Verdict(n, noise.pick(p[n], position + n - 1))",
        ),
        Fault(
            "Penalties count the tokens before the last ones.",
            "engine/round/sampling.py",
            "Counter(history[-p.repeat_last_n :])",
            "Counter(history[: p.repeat_last_n])",
        ),
        Fault(
            "A token of negative logit gains by a repeat penalty.",
            "engine/round/sampling.py",
            "np.where(x <= 0, x * penalty, x / penalty)",
            "x / penalty",
        ),
        Fault(
            "Lookup copies what stood at an earlier place than it says.",
            "engine/drafters/lookup.py",
            "self._tokens[start : start + limit]",
            "self._tokens[start - 1 : start - 1 + limit]",
        ),
    ),
    "store": (
        Fault(
            "What streams is never written down before its end.",
            "chat/history/store_thread.py",
            "                taken.setdefault(message, []).extend(spans)\n",
            "                pass\n",
        ),
        Fault(
            "A change that failed is not tried again.",
            "chat/history/store_thread.py",
            "            self._trouble(store_error(error, self._path))\n            return False\n",
            "            self._trouble(store_error(error, self._path))\n            return True\n",
        ),
        Fault(
            "Rounds of a killed program are put together in the wrong order.",
            "chat/history/store.py",
            "before[0] + text(more), before[1]",
            "text(more) + before[0], before[1]",
        ),
        Fault(
            "What was deleted stands in the list.",
            "chat/history/store.py",
            '"deleted IS NULL", list[str]()',
            '"1", list[str]()',
        ),
        Fault(
            "A message that came to nothing is still found by a search.",
            "chat/history/store.py",
            'self._db.execute(f"DELETE FROM words WHERE rowid = ({_NUMBER})", (node,))',
            "pass",
        ),
        Fault(
            "A conversation deleted a week ago stays.",
            "chat/history/store.py",
            "deleted >= created AND deleted < ?",
            "deleted >= created AND deleted > ?",
        ),
        Fault(
            "An earlier version of a message cannot be reached.",
            "chat/history/conversation_record.py",
            "versions.index(node) + by",
            "versions.index(node) + abs(by)",
        ),
    ),
    "pull": (
        Fault(
            "A wrong hash is published.",
            "pairs/hub/download.py",
            "        if digest.hexdigest() != self._file.etag:\n            path.unlink()",
            "        if False:\n            path.unlink()",
        ),
        Fault(
            "What an earlier attempt left is taken without being read for the hash.",
            "pairs/hub/download.py",
            "            digest.update(block)\n",
            "",
        ),
        Fault(
            "A server that knows no ranges has its file appended to what is there.",
            "pairs/hub/download.py",
            "known = self._done - at",
            "known = 0",
        ),
        Fault(
            "The first cut ends the download.",
            "pairs/hub/retries.py",
            "if in_vain > len(retries.pauses) or",
            "if in_vain > 0 or",
        ),
        Fault(
            "A server's wish to wait for an hour is followed.",
            "pairs/hub/retries.py",
            " or error.retry_after > LONGEST_PAUSE:",
            ":",
        ),
        Fault(
            "A file that has the right size is taken for the right one.",
            "pairs/hub/download.py",
            "return bool(self._hash(file).hexdigest() == self._file.etag)",
            "return True",
        ),
        Fault(
            "Two pairs get one name.",
            "pairs/hub/pair_pull.py",
            "return [_identity(model) for model in existing.models] == ours",
            "return True",
        ),
        Fault(
            "The time left is of what has come already.",
            "pairs/hub/pair_pull.py",
            "left = (total - done) / rate if rate > 0 else None",
            "left = done / rate if rate > 0 else None",
        ),
    ),
    "screen": (
        Fault(
            "What waits is sent the latest first.",
            "ui/conversation/prompt_sender.py",
            "self._ask(self.waiting.pop(0))",
            "self._ask(self.waiting.pop())",
        ),
        Fault(
            "What waits is lost where the answer before it is stopped.",
            "ui/conversation/prompt_sender.py",
            '            self.app.prompt.put_back("\\n".join(self.waiting))\n',
            "",
        ),
        Fault(
            "A question that cannot be sent is gone from the input.",
            "ui/conversation/prompt_sender.py",
            "        self.give_back()\n        self.app.prompt.put_back(text)\n",
            "        self.give_back()\n",
        ),
        Fault(
            "Of several rounds that come between two frames one is drawn.",
            "ui/conversation/stream.py",
            "            spans.extend(self._take(event))\n",
            "            spans = list(self._take(event))\n",
        ),
        Fault(
            "A message of a full context is not told.",
            "ui/conversation/stream.py",
            "elif isinstance(event, TurnsLeftOut):",
            "elif event is None:",
        ),
        Fault(
            "A part of a bar that is small has no cell.",
            "ui/panel/drawing.py",
            "cells = [max(1, round(width * part[0] / whole)) for part in present]",
            "cells = [round(width * part[0] / whole) for part in present]",
        ),
        Fault(
            "A column that is too tall loses accepted tokens, and keeps rejected ones.",
            "ui/panel/drawing.py",
            "emitted = marks.rstrip(REJECTED)",
            "emitted = marks",
        ),
    ),
}


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package in a folder that has everything else as here."""
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        for path in ROOT.iterdir():
            if path.name == "localspec":
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("*.pyc"))
            elif not path.name.startswith("."):
                (folder / path.name).symlink_to(path)
        yield folder


def tested(folder: Path, tests: Iterable[str]) -> int:
    """The exit code of these tests on the copy."""
    words = ["-m", "pytest", "-q", "-x", "-m", "not slow and not timed", "--tb=no"]
    kept = {"PYTHONPYCACHEPREFIX": str(folder / ".bytecode")}  # all that no fault is in
    return subprocess.call(
        [sys.executable, *words, *(f"tests/{name}" for name in tests)],
        cwd=folder,
        env={**surroundings(ROOT), "PYTHONPATH": str(folder), **kept},
        stdout=subprocess.DEVNULL,
    )


def missed(room: str) -> Iterator[str]:
    """What the tests of a room get wrong: they fail without a fault, or pass with one."""
    with copied() as folder:
        if tested(folder, TESTS[room]):
            yield f"{room}: the tests fail without a fault"
            return
        for fault in FAULTS[room]:
            fault.plant(folder / "localspec")
            found = tested(folder, TESTS[room]) == 1
            print(f"{room}: {'found' if found else 'NOT FOUND'}: {fault.what}", flush=True)
            shutil.copy(ROOT / "localspec" / fault.path, folder / "localspec" / fault.path)
            if not found:
                yield f"{room}: {fault.what}"


def main() -> int:
    """Plant the faults of the rooms that are named, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", choices=[*FAULTS, []], metavar="ROOM")
    parser.add_argument("--check", action="store_true", help="only whether each can be planted")
    given = parser.parse_args()
    try:
        for fault in (fault for faults in FAULTS.values() for fault in faults):
            fault.planted()
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    rooms = [] if given.check else given.rooms or FAULTS
    return 1 if [fault for room in rooms for fault in missed(room)] else 0


if __name__ == "__main__":
    sys.exit(main())
