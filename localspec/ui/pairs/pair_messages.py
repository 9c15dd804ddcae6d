"""Messages about pairs that are proposed, fetched, or have just begun to answer."""

from __future__ import annotations

from collections.abc import Sequence

from localspec import formats
from localspec.loading.measurements import ranking
from localspec.loading.measurements.ranking import MachineSpeed, RankedPair
from localspec.pairs.disk import starter
from localspec.pairs.hub.pair_pull import PullRequest
from localspec.pairs.names.reserved_names import STARTER
from localspec.pairs.report import describe
from localspec.process.messages import SessionInfo
from localspec.safe_text import one_line

GET = "Ctrl+F"
BUSY = "the machine is busy: once idle, it is measured and models are proposed"


def interrupted(wanted: PullRequest) -> tuple[str, str]:
    """Say that something was being fetched when the program ended, and what the key does."""
    remedy = f"{GET} fetches the rest and changes to it."
    return f"{one_line(str(wanted), 120)} was being fetched; what came is kept", remedy


def what_get_does(wanted: PullRequest | None, known: RankedPair | None) -> str:
    """Say what the key does with the wanted pair.

    Args:
        wanted: the offered pair.
        known: what to expect of it, if it is a listed pair.
    """
    name = one_line(str(wanted or ""), 120)
    if known is not None and known.row.state == "installed":
        return f"{GET} changes to {name}, which is here."
    size = f" ({formats.size(known.row.n_bytes)})" if known is not None else ""
    other = f" Its file is in a package, too: {starter.install()}" if name == STARTER else ""
    return f"{GET} fetches {name}{size} and changes to it.{other}"


def proposal(best: Sequence[RankedPair], speed: MachineSpeed, key: str) -> str:
    """What the key does, then the proposed pairs: the first lines stay in sight."""
    lines = ranking.proposal_lines(best)
    return "\n".join([key, f"for this machine ({speed.basis(best)}):", *lines])


def answers_now(wanted: PullRequest, known: RankedPair | None) -> str:
    """Say that a pair that was fetched answers, and how fast it was measured to be."""
    return f"{one_line(str(wanted), 120)} answers from now on" + (
        f": {known.offer}" if known is not None else ""
    )


def drafting(session: SessionInfo | None) -> str:
    """Say what drafts for the target in use, if there is one."""
    if session is None:
        return describe.drafting_line(None, lookup=False)
    return describe.drafting_line(session.draft_name, lookup=session.lookup)
