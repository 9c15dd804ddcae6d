"""The pairs that suit this machine, as `localspec list` and `localspec show` print them."""

from __future__ import annotations

from collections.abc import Sequence

from localspec import machine
from localspec.loading.measurements import published, ranking
from localspec.loading.measurements.published import Expectation
from localspec.loading.measurements.ranking import MachineSpeed, RankedPair
from localspec.pairs.names.catalogue import ListedPair

NOT_MEASURED = "Speeds can be expected once a pair has been loaded here: localspec chat"
_BUSY = "No pair is proposed yet: a chat measures this machine once it is idle."


def expected_here(row: ListedPair | None = None) -> Expectation | None:
    """What drafting is expected to bring by published costs of hardware like this.

    Args:
        row: the pair; None for any single model.
    """
    from localspec.engine.llama import RPC, devices  # noqa: PLC0415 - needless once measured

    accelerators = [each.name for each in devices() if not each.label.startswith(RPC)]
    return published.expected(machine.processor_name(), accelerators, row)


def lines(pairs: Sequence[RankedPair], speed: MachineSpeed | None) -> list[str]:
    """The advice on a card, the best pair for every purpose, and the source of their speeds.

    Args:
        pairs: all listed ones, as `ranking.ranked` gives them.
        speed: what is known about this machine.
    """
    if speed is None or not (basis := speed.basis(pairs)):
        expected = expected_here()
        return ["", NOT_MEASURED, *([f"Until then, expect {expected}."] if expected else [])]
    found = []
    if speed.advice is not None:
        what, command = speed.advice
        found += ["", f"First of all: {what}. This helps:", "", f"    {command}"]
    if best := ranking.proposed(pairs):
        found += ["", "For this machine:", ""]
        found += [f"  {line}" for line in ranking.proposal_lines(best)]
    elif speed.disturbed:
        found += ["", _BUSY]
    how = "`localspec chat NAME` offers to fetch a pair. " if best else ""
    return [*found, "", f"{how}Tokens/s are {basis}."]
