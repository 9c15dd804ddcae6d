"""Thirty faults in engine, store, pull and screen, and the test that finds each of them.

    python -m tests.support.planted_faults              all of them, some minutes
    python -m tests.support.planted_faults store pull   those of two rooms

A fault is one piece of source text in place of another, in a copy of the package. Its test must
pass without the fault, fail with it, and run by default (`tests/test_planted_faults.py`). The exit
code is 1 if a fault is not found, 2 if its source text does not occur exactly once any more: then
the list must follow the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Fault:
    """One piece of source text in place of another.

    Attributes:
        what: what the program then does.
        path: of the file, below ``localspec``.
        test: finds it; ``file.py::function``, below ``tests``.
    """

    what: str
    path: str
    right: str
    wrong: str
    test: str

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


FAULTS: Final = {
    "engine": (
        Fault(
            "A token that the target finds impossible is not the end of a block.",
            "engine/round/verify.py",
            "        if weight == 0:\n            break\n",
            "",
            "test_verify.py::test_rows_behind_an_impossible_token_are_not_asked_for",
        ),
        Fault(
            "After a rejection the target's own row is drawn from.",
            "engine/round/verify.py",
            "_residual(p[i], row, 1 / lenience)",
            "p[i]",
            "test_verify.py::test_token_rule_weighs_p_against_q",
        ),
        Fault(
            "The residual is not weighed by how likely the block before it was.",
            "engine/round/verify.py",
            "_residual(p[i], draft.q[i], weights[i])",
            "_residual(p[i], draft.q[i])",
            "test_lossless_enumeration.py::test_every_policy_is_lossless",
        ),
        Fault(
            "A cut draft loses tokens that must be submitted.",
            "engine/round/verify.py",
            "        kept = max(length, self.must_verify)\n",
            "        kept = length\n",
            "test_lossless_enumeration.py::test_every_policy_is_lossless",
        ),
        Fault(
            "Every bonus token is drawn with the noise of the position before it.",
            "engine/round/verify.py",
            "        if token != drafted:\n            return Verdict(i, token)\n"
            "    n = len(draft.tokens)\n    return Verdict(n, noise.pick(p[n], position + n))",
            "        if token != drafted:\n            return Verdict(i, token)\n"
            "    n = len(draft.tokens)\n    return Verdict(n, noise.pick(p[n], position + n - 1))",
            "test_verify.py::test_an_empty_draft_is_the_baseline",
        ),
        Fault(
            "Penalties count the tokens before the last ones.",
            "engine/round/sampling.py",
            "Counter(history[-p.repeat_last_n :])",
            "Counter(history[: p.repeat_last_n])",
            "test_sampling.py::test_penalties_advance_over_the_draft",
        ),
        Fault(
            "A token of negative logit gains by a repeat penalty.",
            "engine/round/sampling.py",
            "np.where(x <= 0, x * penalty, x / penalty)",
            "x / penalty",
            "test_sampling_llama.py::test_random_logits",
        ),
        Fault(
            "Lookup copies what stood at an earlier place than it says.",
            "engine/drafters/lookup.py",
            "self._tokens[start : start + limit]",
            "self._tokens[start - 1 : start - 1 + limit]",
            "test_lookup.py::test_what_followed_the_same_tokens_is_copied",
        ),
    ),
    "store": (
        Fault(
            "What streams is never written down before its end.",
            "chat/history/store_thread.py",
            "                taken.setdefault(message, []).extend(spans)\n",
            "                pass\n",
            "test_history.py::test_a_killed_program_loses_at_most_one_round",
        ),
        Fault(
            "A change that failed is not tried again.",
            "chat/history/store_thread.py",
            "            self._trouble(store_error(error, self._path))\n            return False\n",
            "            self._trouble(store_error(error, self._path))\n            return True\n",
            "test_history.py::test_rounds_that_could_not_be_written_are_written_with_the_next",
        ),
        Fault(
            "Rounds of a killed program are put together in the wrong order.",
            "chat/history/store.py",
            "before[0] + text(more), before[1]",
            "text(more) + before[0], before[1]",
            "test_history.py::test_a_killed_program_loses_at_most_one_round",
        ),
        Fault(
            "What was deleted stands in the list.",
            "chat/history/store.py",
            "deleted IS NULL AND (hits",
            "(hits",
            "test_history.py::test_rename_delete_and_undo",
        ),
        Fault(
            "A message that came to nothing is still found by a search.",
            "chat/history/store.py",
            'self._db.execute(f"DELETE FROM words WHERE rowid = ({_NUMBER})", (node,))',
            "pass",
            "test_history.py::test_a_message_that_came_to_nothing_is_found_by_no_search",
        ),
        Fault(
            "A conversation deleted a week ago stays.",
            "chat/history/store.py",
            "deleted >= created AND deleted < ?",
            "deleted >= created AND deleted > ?",
            "test_history.py::test_what_was_deleted_long_ago_is_removed_for_good",
        ),
        Fault(
            "An earlier version of a message cannot be reached.",
            "chat/history/conversation_record.py",
            "versions.index(node) + by",
            "versions.index(node) + abs(by)",
            "test_history.py::test_versions_of_questions_and_answers",
        ),
    ),
    "pull": (
        Fault(
            "A wrong hash is published.",
            "pairs/hub/download.py",
            "        if digest.hexdigest() != self._file.etag:\n            path.unlink()",
            "        if False:\n            path.unlink()",
            "test_pull.py::test_wrong_bytes_are_thrown_away_and_said",
        ),
        Fault(
            "What an earlier attempt left is taken without being read for the hash.",
            "pairs/hub/download.py",
            "            digest.update(block)\n",
            "",
            "test_pull.py::test_cancelling_keeps_what_came",
        ),
        Fault(
            "A server that knows no ranges has its file appended to what is there.",
            "pairs/hub/response_body.py",
            "new, known = piece[known:], max(0, known - len(piece))",
            "new = piece",
            "test_pull.py::test_a_server_without_ranges_starts_from_the_beginning",
        ),
        Fault(
            "The first cut ends the download.",
            "pairs/hub/retries.py",
            "if in_vain > len(retries.pauses) or",
            "if in_vain > 0 or",
            "test_pull.py::test_a_busy_server_is_asked_again",
        ),
        Fault(
            "A server's wish to wait for an hour is followed.",
            "pairs/hub/retries.py",
            " or error.retry_after > longest:",
            ":",
            "test_hub_hostile.py::test_who_asks_to_wait_for_hours_is_not_waited_for",
        ),
        Fault(
            "A file that has the right size is taken for the right one.",
            "pairs/hub/download.py",
            "return bool(self._hash(file).hexdigest() == self._file.etag)",
            "return True",
            "test_hub_hostile.py::test_whatever_the_cache_holds_is_hashed_before_it_is_done",
        ),
        Fault(
            "Two pairs get one name.",
            "pairs/hub/pair_pull.py",
            "return target == ours[0] and set(drafts) <= set(ours[1:])",
            "return True",
            "test_pull.py::test_names_are_derived_told_and_kept_apart",
        ),
        Fault(
            "The time left is of what has come already.",
            "pairs/hub/pair_pull.py",
            "left = (total - done) / rate if rate > 0 else None",
            "left = done / rate if rate > 0 else None",
            "test_pull.py::test_the_time_left_is_that_of_the_missing_bytes",
        ),
    ),
    "screen": (
        Fault(
            "What waits is sent the latest first.",
            "ui/conversation/prompt_sender.py",
            "self._ask(self.waiting.pop(0))",
            "self._ask(self.waiting.pop())",
            "test_ui_input.py::test_what_is_sent_during_an_answer_waits_for_its_end",
        ),
        Fault(
            "What waits is lost where the answer before it is stopped.",
            "ui/conversation/prompt_sender.py",
            '            self.app.prompt.put_back("\\n".join(self.waiting))\n',
            "",
            "test_ui_input.py::test_what_waits_stands_in_the_input_again_where_the_answer_is_none",
        ),
        Fault(
            "A question that cannot be sent is gone from the input.",
            "ui/conversation/prompt_sender.py",
            "        self.give_back()\n        self.app.prompt.put_back(text)\n",
            "        self.give_back()\n",
            "test_ui_input.py::test_messages_behind_one_that_cannot_be_sent_come_back",
        ),
        Fault(
            "Of several rounds that come between two frames one is drawn.",
            "ui/conversation/stream.py",
            "            spans.extend(self._take(event))\n",
            "            spans = list(self._take(event))\n",
            "test_ui_app.py::test_a_conversation_of_three_turns",
        ),
        Fault(
            "A message of a full context is not told.",
            "ui/conversation/stream.py",
            "elif isinstance(event, TurnsLeftOut):",
            "elif event is None:",
            "test_ui_app.py::test_turns_that_are_left_out_are_told",
        ),
        Fault(
            "A part of a bar that is small has no cell.",
            "ui/panel/drawing.py",
            "cells = [max(1, round(width * part[0] / whole)) for part in present]",
            "cells = [round(width * part[0] / whole) for part in present]",
            "test_ui_text.py::test_bars_fill_their_width",
        ),
        Fault(
            "A column that is too tall loses accepted tokens, and keeps rejected ones.",
            "ui/panel/drawing.py",
            "emitted = marks.rstrip(REJECTED)",
            "emitted = marks",
            "test_ui_text.py::test_rounds_are_drawn_newest_on_the_right_and_readable_without_colour",
        ),
    ),
}


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package in a folder with everything else of the repository.

    What the runs on it have compiled stays with it, as long as it is there.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        for path in ROOT.iterdir():
            if path.name == "localspec":
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("*.pyc"))
            elif not path.name.startswith("."):
                (folder / path.name).symlink_to(path)
        yield folder
    if sys.pycache_prefix:
        shutil.rmtree(f"{sys.pycache_prefix}{name}", ignore_errors=True)


def exit_code(folder: Path, *tests: str, limit: float = 600.0) -> int:
    """The exit code of these tests on the copy.

    Raises:
        subprocess.TimeoutExpired: after `limit` seconds; the run was made to show its stacks.
    """
    # Only the exit code counts, so no assertion is explained: where `CI` is set, pytest compares
    # two models of 800 kB line by line, for more than 15 minutes. Its own limit would end the run
    # with the code of a test that failed, and does not hold for what runs after the tests.
    words = ["-X", "faulthandler", "-m", "pytest", "-q", "-x", "--assert=plain", "--tb=no"]
    words += ["-p", "no:xdist", "-m", "not slow", "-o", "faulthandler_timeout=0"]
    with subprocess.Popen(
        [sys.executable, *words, *(f"tests/{name}" for name in tests)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.DEVNULL,
    ) as run:
        try:
            return run.wait(limit)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGABRT)  # for which faulthandler shows the stacks
            raise


def found(fault: Fault, folder: Path) -> bool:
    """Whether the fault's test fails with it; the copy is as before afterwards."""
    fault.plant(folder / "localspec")
    code = exit_code(folder, fault.test)
    shutil.copy(ROOT / "localspec" / fault.path, folder / "localspec" / fault.path)
    return code == 1


def missed(room: str) -> Iterator[str]:
    """What is wrong in a room: its tests fail without a fault, or one passes with its fault."""
    with copied() as folder:
        if exit_code(folder, *dict.fromkeys(fault.test for fault in FAULTS[room])):
            yield f"{room}: the tests fail without a fault"
            return
        for fault in FAULTS[room]:
            is_found = found(fault, folder)
            print(f"{room}: {'found' if is_found else 'NOT FOUND'}: {fault.what}", flush=True)
            if not is_found:
                yield f"{room}: {fault.what}"


def main() -> int:
    """Plant the faults of the rooms that are named, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", choices=[*FAULTS, []], metavar="ROOM")
    given = parser.parse_args()
    try:
        for fault in (fault for faults in FAULTS.values() for fault in faults):
            fault.planted()
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    return 1 if [fault for room in given.rooms or FAULTS for fault in missed(room)] else 0


if __name__ == "__main__":
    sys.exit(main())
