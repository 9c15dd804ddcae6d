"""Prompt lookup on recorded answers of real models: copies pay and slow no answer down.

The answers are SmolLM2-135M's and Qwen2.5-Coder-1.5B's to questions of eight kinds at temperature 0
(`benchmarks/real_record.py`), and others that were held out; the cost curves are those of real
kernels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import pytest

from benchmarks import real_curves, real_informed, real_lookup
from benchmarks.real_curves import READS
from benchmarks.real_informed import Spoken, Told
from benchmarks.real_lookup import CURVES, EndsKnown
from benchmarks.real_prompts import COPYING, KINDS
from benchmarks.several import Answer, Copies, Place, Prices, speed
from localspec.drafter_names import DRAFT
from localspec.engine.length import gamma
from localspec.engine.length.cost import Curve
from localspec.engine.length.gamma import AutoGamma, GammaPolicy
from tests.support.pairwise import usually

DATA = Path(__file__).parents[1] / "benchmarks/data"
STEEP = "EPYC, 1.5B Q4_K_M"
"""The curve on which a rejected copy costs most."""
RECORDED = sorted(DATA.glob("*.t0.jsonl.gz"))
HELD_OUT = sorted(real_curves.HELD_OUT.glob("*.jsonl.gz"))


@cache
def answers(paths: tuple[Path, ...] = tuple(RECORDED)) -> Sequence[tuple[str, Answer]]:
    return [
        (kind, text) for path in paths for kind, text in real_lookup.answers(path) if len(text) > 1
    ]


@cache
def informed() -> Sequence[tuple[Spoken, Told, Told]]:
    """What policies are told of the answers that copy, see `real_informed.informed`."""
    return [*real_informed.informed([*real_informed.real()])]


def speeds(
    policy: Callable[[Prices], GammaPolicy], curve: str, *paths: Path
) -> tuple[dict[str, float], float]:
    """Tokens per baseline round by kind, and the least of any answer of 80 tokens and more.

    The answers are those in `paths`, by default the ones at temperature 0 of which constants know.
    """
    prices, least = Prices.of(CURVES[curve], {}), math.inf
    tokens, rounds = defaultdict[str, int](int), defaultdict[str, float](float)
    for kind, text in answers(paths or tuple(RECORDED)):
        rate = speed(policy(prices), [text], prices)
        tokens[kind], rounds[kind] = tokens[kind] + len(text), rounds[kind] + len(text) / rate
        if len(text) >= 80:
            least = min(least, rate)
    return {kind: tokens[kind] / rounds[kind] for kind in tokens}, least


def auto(prices: Prices) -> AutoGamma:
    return AutoGamma(prices.costs())


def test_every_kind_of_text_was_recorded() -> None:
    assert {kind for kind, _ in answers()} == {*KINDS}
    assert len(answers()) >= 80


@pytest.mark.parametrize("curve", usually(CURVES, STEEP))
def test_copies_slow_no_kind_of_text_and_no_answer_down(
    curve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kind is slower than the baseline, and no answer of 80 tokens or more by a twentieth."""
    by_kind, least = speeds(auto, curve)
    assert min(by_kind.values()) >= 1.0
    assert least >= 0.95
    if curve != STEEP:
        return
    monkeypatch.setattr(gamma, "_STAKE", math.inf)  # the control: any time, once one was right
    monkeypatch.setattr(gamma, "_SEEN_RIGHT", 1e9)
    prices = Prices.of(CURVES[curve], {})
    fixes = [text for kind, text in answers() if kind == "fix" and len(text) >= 80]
    assert min(speed(auto(prices), [text], prices) for text in fixes) < 0.92


@pytest.mark.parametrize("curve", usually(CURVES, STEEP))
@pytest.mark.parametrize("path", HELD_OUT, ids=lambda path: path.name)
def test_copies_slow_no_answer_down_of_which_no_constant_knows(path: Path, curve: str) -> None:
    by_kind, least = speeds(auto, curve, path)
    assert {*by_kind} == {*KINDS}
    assert min(by_kind.values()) >= 0.99
    assert least >= 0.95


@pytest.mark.parametrize("curve", usually(CURVES, "M2 Ultra, 7B Q8_0"))
def test_where_text_is_copied_two_thirds_of_what_is_possible_are_reached(curve: str) -> None:
    """The bound is a policy that knows where every copy ends and wastes nothing."""
    prices = Prices.of(CURVES[curve], {})
    texts = [text for kind, text in answers() if kind in COPYING]
    shares = [speed(auto(prices), [text], prices) / EndsKnown(text, prices).rate for text in texts]
    assert geometric_mean(shares) >= 0.67


@pytest.mark.slow
@pytest.mark.parametrize("curve", [*CURVES])
def test_where_text_is_copied_a_policy_that_is_told_the_chances_is_hardly_faster(
    curve: str,
) -> None:
    """0.85 of it, whether the answer itself is left out of what it is told or not."""
    found = real_informed.shares(informed(), CURVES[curve])
    times = [seconds for _, seconds in sorted(CURVES[curve].items())]
    gained = 1e-6 if times == sorted(times) else 0.005  # it gains where larger passes are cheaper
    assert {*found} == {*COPYING, "all"}
    for _, others, own, place, ends in found.values():
        assert min(others, own) >= 0.85
        assert place <= (1 + 1e-6) * ends  # told which tokens are right, it wastes nothing
        assert place == pytest.approx(ends, rel=gained)
    rate, others, own, *_ = found["all"]
    assert max(others, own) / rate < 0.85  # the control: decoding without drafting


def test_an_answer_tells_its_own_policy_nothing() -> None:
    """Other answers tell it how likely copies go on; with itself among them it knows better."""
    held = [Place({}, Copies((0.9,), (1.0,), 1))] * 40
    ended = [Place({}, Copies((0.9,), (0.0,), 0))] * 40
    alone = [*real_informed.informed([Spoken("edit", 0, held)])]
    assert [told[0][0] for told in alone[0][1:]] == [pytest.approx(0.5), pytest.approx(1, abs=0.1)]
    both = [*real_informed.informed([Spoken("edit", 0, held), Spoken("chat", 1, ended)])]
    assert len(both) == 1  # only kinds that copy are written
    assert both[0][1][0][0] < 0.1
    assert both[0][2][0][0] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in real_curves.curves()])
def test_on_no_published_curve_is_a_kind_of_text_slower(name: str) -> None:
    """Each kind reaches 0.9 of its best fixed length, which was chosen on the same answers."""
    prices = Prices.of(dict(real_curves.curves())[name], {})
    texts = {kind: [text for its, text in answers() if its == kind] for kind in KINDS}
    own, share = real_curves.shares(texts, prices)
    assert min(own.values()) >= 0.98
    assert min(share.values()) >= 0.9


@pytest.mark.slow
def test_copies_open_where_only_long_passes_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right tokens that were not submitted pay for a pass of 15, where 2 to 10 gain nothing."""
    name = next(name for name, _ in real_curves.curves() if name.endswith("Q5_K_M"))
    prices = Prices.of(dict(real_curves.curves())[name], {})
    texts = {kind: [text for its, text in answers() if its == kind] for kind in KINDS}
    found = real_curves.rates(texts, prices, auto)
    assert min(found.values()) >= 0.98
    assert min(found["edit"], found["quote"]) >= 1.1
    none = property(lambda _: 0.0, lambda *_: None)  # the control
    monkeypatch.setattr(Curve, "opening", none, raising=False)
    assert max(real_curves.rates(texts, prices, auto).values()) < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["RTX 3090, 8B Q4_0", "M2 Ultra, 7B Q8_0"])
def test_a_draft_of_half_a_billion_parameters_pays(curve: str) -> None:
    """With its recorded acceptance and a step of T(1) / 10 it beats no drafting, and lookup."""
    texts = real_curves.with_draft()
    drafted = real_curves.rates(texts, Prices.of(CURVES[curve], {DRAFT: 0.1}), auto)
    alone = real_curves.rates(texts, Prices.of(CURVES[curve], {}), auto)
    assert min(drafted.values()) >= 1.2
    assert geometric_mean(drafted[kind] / alone[kind] for kind in texts) >= 1.2
    ends = real_curves.rates(texts, Prices.of(CURVES[curve], {DRAFT: 0.1}), READS["end"])
    assert drafted["convert"] >= 1.2 * ends["convert"]  # all of the prompt is worth reading


@pytest.mark.parametrize("curve", [name for name in CURVES if name.startswith("EPYC")])
def test_copies_that_held_are_trusted_sooner_in_the_next_answer(
    curve: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits one after the other, and in generations of 20 tokens, as between an agent's calls."""
    texts = {kind: [text for its, text in answers() if its == kind] for kind in KINDS}
    drawn, prices = dict(real_curves.sequences(texts)), Prices.of(CURVES[curve], {})

    def gains() -> Sequence[float]:
        names = "10 of edit", "10 of edit, in pieces"
        return [real_curves.gain_of_keeping(drawn[name], prices) for name in names]

    assert min(gains()) > 1.015
    begin = AutoGamma.begin

    def anew(self: AutoGamma, *, follow_clock: bool) -> None:
        begin(self, follow_clock=follow_clock)
        self._stake = 0.0

    monkeypatch.setattr(AutoGamma, "begin", anew)  # the control
    assert max(gains()) < 1.01
