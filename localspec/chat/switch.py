"""A gamma policy that can be exchanged while an answer is written."""

from __future__ import annotations

from collections.abc import Callable

from localspec.engine.length.gamma import GammaPolicy
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.stats import Round


class Switch:
    """The policy in force, asked for anew before every round, so that it can be switched."""

    def __init__(self, policy: Callable[[], GammaPolicy]) -> None:
        self._now = policy
        self._policy = policy()
        self._follow_clock = True

    def begin(self, *, follow_clock: bool) -> None:
        """A generation starts."""
        self._follow_clock = follow_clock
        self._policy.begin(follow_clock=follow_clock)

    def plan(self, situation: Situation) -> Plan:
        """The plan of the policy of this moment."""
        policy = self._now()
        if type(policy) is not type(self._policy):
            policy.begin(follow_clock=self._follow_clock)
        self._policy = policy
        return policy.plan(situation)

    def observe(self, done: Round) -> None:
        """Let it learn."""
        self._policy.observe(done)
