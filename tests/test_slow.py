"""Why a pair is slow: one sentence, in the words of `doctor`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from localspec import formats, machine
from localspec.chat.figures.figures import Figures
from localspec.chat.figures.slowness import SlownessCheck
from localspec.doctor import findings
from localspec.engine.length.cost import Costs, ModelCosts
from localspec.engine.record.stats import Speedup

USUAL = {1: 1.0, 4: 1.5, 8: 2.0}
NOW = Figures(generating=True, speculation=True, context_used=100)
WELL: dict[str, Any] = {
    "total": 16 << 30,
    "available": 9 << 30,
    "swapped_out": 0,
    "clock": (3000.0, 3000.0),
    "on_battery": False,
}


def sentence(
    monkeypatch: pytest.MonkeyPatch,
    now: Figures = NOW,
    costs: Costs | None = None,
    *,
    taken: float = 0.0,
    **found: Any,
) -> str:
    for name, value in {**WELL, **found}.items():
        monkeypatch.setattr(machine, name, lambda value=value: value)
    target = SimpleNamespace(threads=SimpleNamespace(taken=taken))
    return SlownessCheck(cast(Any, target), costs or Costs({0: USUAL}, {})).found(now)["slow"]


def test_where_nothing_is_wrong_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sentence(monkeypatch) == ""
    right = replace(NOW, drafters=(("draft", 100, 60),))
    assert sentence(monkeypatch, right) == ""
    few = replace(NOW, drafters=(("draft", 5, 0),))
    assert sentence(monkeypatch, few) == ""
    copied = replace(NOW, drafters=(("draft", 10, 6), ("lookup", 100, 10)))
    assert sentence(monkeypatch, copied) == ""  # the draft is not to blame for copies


def test_the_machine_s_reasons_are_in_doctor_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: Any = SimpleNamespace(
        swap_used=3 * 10**9,
        memory_free=1 << 30,
        memory_total=16 << 30,
        busy=False,
        logical=8,
        cores=8,
        threads_asked=0,
        power_profile="",
        on_battery=True,
        system="linux",
        clock=1200.0,
        clock_most=3000.0,
        cards=("nvidia",),
        devices=(1,),
        compiler="",
        amx_left_out=False,
        address_space=None,
        allowed=8,
        share=None,
    )
    told = [
        said
        for part in (findings._busy, findings._power, findings._notes)
        for said, _ in part(facts)
    ]
    swapped = sentence(monkeypatch, swapped_out=facts.swap_used, available=facts.memory_free)
    battery = sentence(monkeypatch, on_battery=True)
    throttled = sentence(monkeypatch, clock=(1200.0, 3000.0))
    assert told == [swapped, battery, throttled]
    assert sentence(monkeypatch, taken=1.2).startswith(formats.busy(1.2, 2).split(" of ")[0])
    wrong = replace(NOW, drafters=(("draft", 100, 20),))
    assert "often wrong" in sentence(monkeypatch, wrong)


def test_an_idle_processor_is_not_taken_for_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sentence(monkeypatch, replace(NOW, generating=False), clock=(800.0, 3000.0)) == ""


def test_what_is_the_pair_s_own_is_said_where_the_machine_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grows = Costs(ModelCosts({0: USUAL, 1000: {1: 2.0, 4: 2.5, 8: 3.0}}, spread=0.05), {})
    deep = replace(NOW, context_used=2016)
    assert sentence(monkeypatch, deep, grows) == (
        "after 2,016 tokens of context a token takes 3.0 times as long"
    )
    steep = Costs(ModelCosts({0: {1: 1.0, 4: 3.6, 8: 7.0}}, spread=0.05), {})
    said = "checking four tokens takes as long as writing 3.6"
    assert sentence(monkeypatch, costs=steep) == said
    assert sentence(monkeypatch, replace(NOW, speculation=False), steep) == ""
    wrong = replace(NOW, drafters=(("draft", 100, 21), ("lookup", 100, 90)))
    assert sentence(monkeypatch, wrong) == (
        "the draft is often wrong: 21 % of its tokens were accepted"
    )
    assert sentence(monkeypatch, wrong, on_battery=True) == formats.ON_BATTERY
    for now, its in ((NOW, steep), (wrong, None)):
        gained = replace(now, speedup=Speedup(1.3, 1.2, 1.4))
        assert sentence(monkeypatch, gained, its) == ""  # drafting did help


@pytest.mark.parametrize("spread", [None, 0.6, 9.0])
def test_what_was_measured_while_something_disturbed_it_is_no_reason(
    monkeypatch: pytest.MonkeyPatch, spread: float | None
) -> None:
    """A table with seven times T(1) after 1000 tokens claims 1.7 times T(1) after 114."""
    depth = {1: 7.0, 4: 9.0, 8: 12.0}
    disturbed = Costs(ModelCosts({0: USUAL, 1000: depth}, spread=spread), {})
    assert disturbed.target.at(114).seconds(1) > 1.5
    assert sentence(monkeypatch, replace(NOW, context_used=114), disturbed) == ""
    steep = Costs(ModelCosts({0: {1: 1.0, 4: 3.6, 8: 7.0}}, spread=spread), {})
    assert sentence(monkeypatch, costs=steep) == ""
