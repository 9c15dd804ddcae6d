"""A fixed draft length whose drafter leaves out all of a long text but its end."""

from __future__ import annotations

from localspec.engine.length.gamma import FixedGamma
from localspec.engine.length.stopping import Plan, Situation


class EndAlone(FixedGamma):
    """Like `FixedGamma`, which lets a drafter read all."""

    def plan(self, situation: Situation) -> Plan:
        found = super().plan(situation)
        found.whole = False
        return found
