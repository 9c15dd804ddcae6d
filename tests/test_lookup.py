"""Lookup: its matches, confidences and costs, and its effect in an engine."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import pytest

from localspec.drafter_names import DRAFT, LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.lookup import NO_GUESS, Guess, Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.copying import Copy, Copying, Survival
from localspec.engine.length.cost import ByContext, Costs, Curve
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Askable, Plan, Situation
from localspec.engine.record.stats import GammaReason, GenerationStats, Round
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.limits import MAX_GAMMA

from .fakes import RecordingGamma, round_of, tokens_of
from .support.stub_context import StubContext, StubModel, near, random_script

END = 99
FLAT = {0: {1: 1.0, 2: 1.02, 16: 1.2, 64: 2.0}}
RISING = {0: {n: 1.0 + 0.08 * (n - 1) for n in (1, 2, 4, 8, 16, 32, 64)}}
STEEP = {0: {n: 1.0 + 0.2 * (n - 1) for n in (1, 2, 4, 8, 16, 32, 64)}}


def lookup(n_ctx: int = 1024) -> Lookup:
    return Lookup(n_ctx, lambda token: token == END)


def guess(tokens: Sequence[int], drafted: Sequence[int] = (), limit: int = 8) -> Guess:
    found = lookup()
    found.begin(tokens)
    return found.guess(tokens, drafted, limit)


# ---------------------------------------------------------------- what it finds


def test_what_followed_the_same_tokens_is_copied() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 2, 3, 4]
    assert guess(text, limit=3).tokens == (5, 6, 7)
    assert guess([*range(40), 1, 2, 3], limit=30).tokens == tuple(range(4, 34))


def test_a_draft_is_continued() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 2]
    assert guess(text, [3, 4], limit=3).tokens == (5, 6, 7)
    assert guess(text, [3, 5], limit=3) is NO_GUESS


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 9, 3]])
def test_without_two_tokens_that_stood_there_before_there_is_no_guess(text: list[int]) -> None:
    assert guess(text) is NO_GUESS


def test_the_longest_match_counts_and_of_equals_the_latest() -> None:
    longer, shorter = [7, 1, 2, 3, 40, 0, 0], [8, 1, 2, 3, 41, 0, 5]
    assert guess([*longer, *shorter, 7, 1, 2, 3], limit=1).tokens == (40,)
    assert guess([*longer, *shorter, 6, 1, 2, 3], limit=1).tokens == (41,)


def test_a_copy_goes_on_where_it_came_from_however_often_its_last_tokens_stood_since() -> None:
    """In code two tokens occur in hundreds of places; after a change the right one is found."""
    chance = random.Random(4)
    often, lines = [7, 8], [[chance.randrange(100, 9000) for _ in range(6)] for _ in range(300)]
    code = [token for line in lines for token in (*line, *often)]
    found, text = lookup(1 << 14), [*code, 3, *code[:1]]
    found.begin(text)
    rounds = 0
    while len(text) < 2 * len(code):
        said, right = found.guess(text).tokens, 0
        ahead = [*code, *often][len(text) - len(code) - 1 :]
        while right < len(said) and said[right] == ahead[right]:
            right += 1
        text += [*said[:right], ahead[right]]
        rounds += 1
    assert rounds < len(code) / (MAX_GAMMA - 6)


def test_a_loop_goes_on_as_it_did() -> None:
    assert guess([5, 1, 2, 3, 1, 2, 3], limit=7).tokens == (1, 2, 3, 1, 2, 3, 1)
    assert guess([4, 4, 4, 4], limit=5).tokens == (4, 4, 4, 4, 4)
    assert guess([5, 1, 2, 3, 1, 2], [3], limit=4).tokens == (1, 2, 3, 1)


def test_a_copy_ends_with_the_end_of_a_turn() -> None:
    assert guess([1, 2, 3, 4, END, 6, 1, 2, 3]).tokens == (4, END)


def test_a_guess_has_room_for_no_more_than_a_round() -> None:
    text = [*range(100, 200), *range(100, 110)]
    found = lookup()
    found.begin(text)
    assert len(found.guess(text).tokens) == MAX_GAMMA
    assert found.guess(text, limit=0) is NO_GUESS


def test_whatever_was_before_an_index_is_that_of_its_text() -> None:
    """After the text grew, shrank and changed, it equals a new index."""
    chance = random.Random(3)
    used = lookup(64)  # with few slots many keys share one
    text: list[int] = []
    found = 0
    for _ in range(400):
        text = text[: chance.randrange(len(text) + 1)] if chance.random() < 0.3 else text
        text = [*text, *(chance.randrange(4) for _ in range(chance.randrange(12)))]
        used.begin(text)
        for _ in range(chance.randrange(4)):
            fresh = lookup(64)
            fresh.begin(text)
            now = used.guess(text, limit=9)
            assert now == fresh.guess(text, limit=9)
            found += bool(now.tokens)
            text.append(chance.randrange(4))
    assert found > 200


# ---------------------------------------------------------------- how sure it is


def test_a_longer_match_and_more_places_that_agree_are_surer() -> None:
    once = guess([1, 2, 3, 4, 5, 60, 1, 2, 3], limit=2).confidences
    assert once == pytest.approx([(1 + 3 / 6.5) / 2, (1 + 4 / 7.5) / 2])
    longer = guess([0, 1, 2, 3, 4, 5, 60, 0, 1, 2, 3], limit=2).confidences
    twice = guess([1, 2, 3, 4, 5, 60, 1, 2, 3, 4, 5, 61, 1, 2, 3], limit=2).confidences
    assert longer[0] > once[0] < twice[0] == pytest.approx((2 + 3 / 6.5) / 3)


def test_places_that_disagree_make_it_less_sure_until_they_have() -> None:
    text = [1, 2, 3, 4, 5, 6, 60, 1, 2, 3, 4, 7, 8, 61, 1, 2, 3]
    found = guess(text, limit=3)
    assert found.tokens == (4, 7, 8)
    assert found.confidences == pytest.approx(
        [(2 + 3 / 6.5) / 3, (1 + 4 / 7.5) / 3, (1 + 5 / 8.5) / 2]
    )


def test_every_copied_token_has_a_confidence() -> None:
    chance = random.Random(5)
    for _ in range(300):
        text = [chance.randrange(3) for _ in range(chance.randrange(80))]
        found = guess(text, limit=chance.randrange(70))
        assert len(found.tokens) == len(found.confidences)
        assert all(0 < each < 1 for each in found.confidences)


# ---------------------------------------------------------------- what it takes


def test_it_takes_little_memory() -> None:
    """128 bytes a token over a conversation of 100,000 tokens; the ids themselves are shared."""
    chance = random.Random(1)
    text = [chance.randrange(30_000) for _ in range(100_000)]
    found = lookup(1 << 17)
    found.begin(text)
    found.guess(text)
    held = (found._tokens, found._latest, found._before)
    assert sum(sys.getsizeof(each) for each in held) < 40 * len(text)


def _microseconds(step: Callable[[], object], times: int = 100) -> float:
    """What `step` takes on a core that adds up 1,000 numbers in 16 us.

    This and the sum are timed in turn, for cores change their speed from one moment to the next.
    The least of ten ratios of medians counts: other programs only make one longer.
    """

    def once(what: Callable[[], object]) -> float:
        started = perf_counter()
        what()
        return perf_counter() - started

    def ratio() -> float:
        pairs = [(once(step), once(lambda: sum(range(1000)))) for _ in range(times)]
        return median(taken for taken, _ in pairs) / median(yardstick for _, yardstick in pairs)

    return 16 * min(ratio() for _ in range(10))


@pytest.mark.timed
def test_it_takes_little_time() -> None:
    """20 us a round without a match, 50 with one, over a conversation of 100,000 tokens."""
    chance = random.Random(1)
    text = [chance.randrange(30_000) for _ in range(100_000)]
    found = lookup(1 << 17)
    found.begin(text)
    found.guess(text)

    def says(token: int) -> Guess:
        text.append(token)
        return found.guess(text)

    assert _microseconds(lambda: says(chance.randrange(30_000))) < 20
    page = text[5000:5200]
    for _ in range(8):  # as many places as are ever compared
        for token in page:
            says(token)
    copied = []

    def goes_on() -> None:
        copied.append(says(page[len(copied) % len(page)]).tokens)

    assert _microseconds(goes_on) < 50
    assert {len(each) for each in copied[30:]} == {MAX_GAMMA}


# ---------------------------------------------------------------- in an engine

VOCAB = 50
SCRIPT = random_script(VOCAB, 7, window=1, sharpness=4.0)  # greedy, it soon runs in a circle
PROMPT = [3, 1, 4, 1, 5]


def engine(*, model: float | None = None, copies: bool = True) -> Engine:
    """A target, a draft whose logits are off by `model` if given, and lookup if wanted."""
    target = StubContext(SCRIPT, StubModel(VOCAB))
    draft = StubContext(near(SCRIPT, model or 0.0, 5), StubModel(VOCAB))
    drafters = [] if model is None else [ModelDrafter(draft, VOCAB)]  # type: ignore[arg-type]
    copier = Lookup(256, target.model.is_end) if copies else None
    return Engine(target, *drafters, lookup=copier)  # type: ignore[arg-type]


def run(
    of: Engine,
    policy: GammaPolicy,
    *,
    temperature: float = 0.0,
    accept: Accept = Accept.MATCH,
    n_predict: int = 80,
) -> list[Round]:
    list(of.prefill(PROMPT, Cancel()))
    settings = GenerateSettings(
        sampling=SamplingParams(temperature=temperature, seed=4),
        accept=accept,
        n_predict=n_predict,
        repeatable=True,
    )
    return list(of.generate(PROMPT, settings, policy, Cancel()))


def text(rounds: Sequence[Round]) -> list[int]:
    return tokens_of(rounds)


def auto(*, step: float | None = None) -> AutoGamma:
    return AutoGamma(Costs(FLAT, {} if step is None else {DRAFT: {0: {1: step}}}))


def test_a_target_alone_copies_what_repeats() -> None:
    baseline = run(engine(copies=False), FixedGamma(0))
    rounds = run(engine(), auto())
    assert text(rounds) == text(baseline)
    assert len(rounds) < len(baseline) / 2
    assert {done.drafter for done in rounds} == {"", LOOKUP}
    assert max(done.drafted for done in rounds) > 24
    stats = GenerationStats()
    for done in rounds:
        stats.add(done)
    copied = stats.drafters[LOOKUP]
    assert (copied.drafted, copied.accepted) == (stats.drafted_tokens, stats.accepted_tokens)
    assert 0 < copied.seconds <= stats.draft_s


def test_the_first_token_does_not_wait_for_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    of, asked = engine(), []
    monkeypatch.setattr(Lookup, "_read", lambda _self, tokens: asked.append(len(tokens)))
    run(of, auto(), n_predict=3)
    assert asked == [len(PROMPT) + 1, len(PROMPT) + 2]


def test_a_fixed_length_copies_without_a_model_and_leaves_it_to_one() -> None:
    alone = run(engine(), FixedGamma(4))
    assert {done.drafter for done in alone} == {"", LOOKUP}
    assert max(done.drafted for done in alone) == 4
    beside = run(engine(model=0.5), FixedGamma(4))
    assert {done.drafter for done in beside} == {"", DRAFT}


def test_lookup_is_judged_in_baseline_rounds_too() -> None:
    rounds = run(engine(), RecordingGamma(0))
    tested = [done for done in rounds if done.copy_chances]
    assert len(tested) > 20
    for done in tested:
        assert len(done.copy_chances) == len(done.copy_confidences) == 1
        assert done.copy_chances[0] in (0.0, 1.0)  # greedy


def test_the_baseline_looks_for_nothing_until_drafting_is_switched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, policy, asked = engine(), FixedGamma(0), []
    guess = Lookup.guess
    monkeypatch.setattr(
        Lookup, "guess", lambda self, *how: (asked.append(len(how[0])), guess(self, *how))[1]
    )
    list(of.prefill(PROMPT, Cancel()))
    rounds = []
    for done in of.generate(PROMPT, GenerateSettings(n_predict=80), policy, Cancel()):
        rounds.append(done)
        if len(rounds) == 20:
            assert asked == []
            policy.gamma = 4
    assert asked[0] == len(PROMPT) + 20
    assert any(done.drafter == LOOKUP for done in rounds[20:])


def test_of_a_copy_what_comes_after_the_first_wrong_token_is_not_judged() -> None:
    for done in run(engine(), FixedGamma(8), temperature=1.0):
        assert len(done.copy_chances) <= done.accepted + 1
        if done.drafter == LOOKUP:
            assert len(done.copy_chances) >= min(done.accepted + 1, done.drafted)


def test_lookup_goes_on_where_a_model_stops() -> None:
    """An expensive model is made to draft all the same; the text soon repeats."""
    of = engine(model=0.0)
    baseline = text(run(engine(copies=False), FixedGamma(0)))

    class Both(AutoGamma):
        def _best(self, *args: object) -> object:  # type: ignore[override]
            return super()._best(*args)[0], -1e9  # type: ignore[arg-type]

    rounds = run(of, Both(Costs(FLAT, {DRAFT: {0: {1: 0.05}}})))
    assert text(rounds) == baseline
    both = [done for done in rounds if 0 < done.copied < done.drafted]
    assert both
    for done in both:
        (first, drafted, kept), (second, copied, more) = done.shares
        assert (first, second) == (DRAFT, LOOKUP)
        assert (drafted + copied, kept + more) == (done.drafted, done.accepted)
        assert done.drafter == DRAFT


@pytest.mark.few(4)
@pytest.mark.parametrize("model", [None, 0.0, 1.0])
@pytest.mark.parametrize(
    ("temperature", "accept"),
    # Above temperature 0 the rule `match` draws anew where drafts differ.
    [(0.0, Accept.MATCH), *((each, Accept.COUPLED) for each in (0.0, 0.7, 1.0))],
)
def test_the_text_does_not_depend_on_who_drafts(
    temperature: float, accept: Accept, model: float | None
) -> None:
    how = {"temperature": temperature, "accept": accept}
    baseline = text(run(engine(copies=False), FixedGamma(0), **how))  # type: ignore[arg-type]
    for policy in (auto(step=None if model is None else 0.05), FixedGamma(3)):
        rounds = run(engine(model=model), policy, **how)  # type: ignore[arg-type]
        assert text(rounds) == baseline
        assert any(done.drafted for done in rounds) or temperature


@pytest.mark.few(2)
@pytest.mark.parametrize("accept", list(Accept))
def test_with_a_seed_a_run_repeats(accept: Accept) -> None:
    for model in (None, 0.5):
        once, again = (
            run(engine(model=model), auto(step=0.05), temperature=0.9, accept=accept)
            for _ in range(2)
        )
        assert text(once) == text(again)
        if accept in (Accept.TOKEN, Accept.BLOCK):  # elsewhere the lengths may follow the clock
            assert [done.drafted for done in once] == [done.drafted for done in again]


# ---------------------------------------------------------------- how it is chosen


def observed(policy: AutoGamma, confidence: float, chances: Sequence[float], times: int) -> None:
    """Observe rounds in which lookup's tokens would have been accepted with these chances."""
    for _ in range(times):
        policy.observe(
            Round(
                *((1,), 0, 0, 0, 0.0, 1.0, 1.0),
                copy_confidences=(confidence,) * len(chances),
                copy_chances=tuple(chances),
            )
        )


def brought(policy: AutoGamma, tokens: int, times: int = 1) -> None:
    """Observe rounds whose copied tokens were all accepted."""
    took = policy.costs.target.at(0).seconds(tokens + 1)
    for _ in range(times):
        policy.observe(
            Round(
                *((1,) * (tokens + 1), tokens, tokens, tokens, 0.0, took, took),
                drafter=LOOKUP,
                copied=tokens,
                copy_confidences=(0.99,) * tokens,
                copy_chances=(1.0,) * tokens,
            )
        )


def rejected(policy: AutoGamma, confidence: float, length: int) -> float:
    """Observe a round whose copied tokens, if any, were wrong; the baseline rounds that it lost."""
    target = policy.costs.target.at(0)
    took = target.seconds(length + 1)
    policy.observe(
        Round(
            *((1,), length, length, 0, 0.0, took, took),
            drafter=LOOKUP if length else "",
            copied=length,
            copy_confidences=(confidence,),
            copy_chances=(0.0,),
        )
    )
    return took / target.seconds(1) - 1.0


def test_copies_stake_what_they_have_brought() -> None:
    """The time at stake starts at nothing and grows with what copies saved, until they lose."""
    policy = AutoGamma(Costs(STEEP, {}))
    assert _plan_of(policy, [0.99] * 63) == 0
    observed(policy, 0.99, [1.0], 5)
    assert _plan_of(policy, [0.99] * 63) == 5  # T(6) - T(1) is 1
    observed(policy, 0.99, [1.0], 150)
    assert _plan_of(policy, [0.99] * 63) == 20  # what was only seen to be right adds up to four
    brought(policy, 8)  # for 1.6 rounds
    assert _plan_of(policy, [0.99] * 63) > 15
    brought(policy, 63, 20)
    observed(policy, 0.99, [0.0], 1)
    lost = []
    while length := _plan_of(policy, [0.99] * 63):
        lost.append(rejected(policy, 0.99, length))
    longest = policy.costs.target.at(0).seconds(64) - 1.0
    assert 8.0 < lost[0] <= longest
    assert 0.0 < sum(lost[1:]) <= 4.0


def test_who_owes_copies_nothing() -> None:
    """Where a model drafts as well, a rejected copy may cost more than was at stake."""
    curve = Curve({1: 1.02, 64: 2.28})
    prices = Copying(Survival(), curve.times(64), curve.least, 1.0, stake=-0.1)
    assert prices.best([0.99] * 62) == Copy()
    assert prices._replace(stake=0.21).best([0.99] * 62).length == 10


def test_where_rejected_tokens_are_read_again_the_stake_covers_that() -> None:
    curve = Curve({1: 1.0, 2: 1.1, 64: 1.4})
    prices = Copying(Survival(), curve.times(64), curve.least, 1.0, stake=0.6, rereads=1.0)
    assert prices.best([0.99] * 40) == Copy()
    assert prices._replace(stake=1.2).best([0.99] * 40).length > 1
    policy = AutoGamma(Costs({0: {1: 1.0, 2: 1.1, 64: 1.4}}, {}, max_rollback=0))
    observed(policy, 0.99, [1.0], 40)  # fills the account
    copies = 0
    for _ in range(200):
        plan = _plan_of(policy, [0.99])
        copies += plan
        rejected(policy, 0.99, plan)
    assert 1 <= copies <= 5  # each costs 1.1 baseline rounds


def test_copies_that_a_model_drafted_as_well_are_soon_trusted() -> None:
    curve = {1: 1.0, 2: 1.04, 8: 1.5, 64: 6.5}
    policy = AutoGamma(Costs({0: curve}, {DRAFT: {0: {1: 0.1}}}))
    told = {"copy_confidences": (0.99,) * 20, "copy_chances": (1.0,) * 20}
    for _ in range(2):
        policy.observe(round_of(20, 20, **told))
    plan = policy.plan(Situation(room=63, copies=(0.99,) * 40))
    assert (plan.drafter, plan.limit) == (LOOKUP, 11)  # all that four tokens at this rate may cost


def test_after_a_long_copied_text_its_end_tells_no_nonsense() -> None:
    for held in (340, 360, 400, 8_000):
        survival = Survival()
        for _ in range(held):
            survival.learn((0.99,) * 3, (1.0,) * 3)
        assert 0.99 < next(survival.chances([0.99])) <= 1.0
        for _ in range(3):
            survival.learn((0.99, 0.98), (1.0, 0.0))
            chances = list(survival.chances([0.99] * 30))
            assert chances == sorted(chances, reverse=True)
            assert 0.0 < chances[-1] < chances[0] < 1.0


@pytest.mark.parametrize("confidence", [0.999, 0.9, 0.3])
@pytest.mark.parametrize("held", [0, 30, 8_000])
def test_tokens_that_stayed_against_all_odds_tell_no_nonsense(confidence: float, held: int) -> None:
    """More than one end is expected of them, though a copy ends only once."""
    survival = Survival()
    for _ in range(held):
        survival.learn((confidence,), (0.0,))
    for _ in range(500):
        survival.learn((0.87, 0.26), (0.1, 0.1))
        chances = list(survival.chances([0.9] * 30))
        assert chances == sorted(chances, reverse=True)
        assert 0.0 < chances[-1] < chances[0] < 1.0


def test_a_copy_passes_over_sizes_that_cost_more_than_longer_ones() -> None:
    curve = Curve({1: 1.0, 2: 60.0, 9: 60.0, 10: 1.5, 64: 1.5})
    prices = Copying(Survival(), curve.times(64), curve.least, 1.0, stake=1.0)
    assert prices.best([0.99] * 40).length == 40
    assert prices.best([0.99] * 8) == Copy()


def test_however_fast_the_copies_before_a_short_one_is_copied_too() -> None:
    """As is the end of a long one, which is cut short by the end of what it copies."""
    policy = AutoGamma(Costs({0: {1: 1.0, 2: 1.5, 64: 3.0}}, {}))
    brought(policy, 62, 20)
    assert [_plan_of(policy, [0.99] * length) for length in (62, 5)] == [62, 5]


def test_a_copy_is_as_long_as_pays() -> None:
    policy = AutoGamma(Costs(STEEP, {}))
    brought(policy, 8, 3)
    observed(policy, 0.9, [1.0] * 9 + [0.0], 20)
    lengths = [_plan_of(policy, [sure] * 63) for sure in (0.99, 0.75, 0.05)]
    assert lengths[0] > 24
    assert lengths[0] > lengths[1] > lengths[2] == 0


@pytest.mark.parametrize(("stayed", "least", "most"), [(0.05, 0, 0), (0.6, 1, 24), (0.95, 24, 63)])
def test_a_copy_is_as_long_as_the_copies_of_the_text(stayed: float, least: int, most: int) -> None:
    policy, luck = AutoGamma(Costs(STEEP, {})), random.Random(2)
    brought(policy, 8, 3)
    for _ in range(200):
        observed(policy, 0.9, [1.0] * 4 if luck.random() < stayed else [0.0], 1)
    assert least <= _plan_of(policy, [0.9] * 63) <= most


def _plan_of(policy: AutoGamma, confidences: Sequence[float]) -> int:
    plan = policy.plan(Situation(room=63, drafters={}, copies=confidences))
    assert plan.drafter in ("", LOOKUP)
    return plan.limit


@pytest.mark.parametrize("times", [FLAT, STEEP])
def test_a_copy_that_is_always_wrong_is_soon_left_alone(times: ByContext) -> None:
    """Over 256 tokens it costs at most 2 % of the time."""
    policy, lost = AutoGamma(Costs(times, {})), 0.0
    for _ in range(256):
        lost += rejected(policy, 0.9, _plan_of(policy, [0.9] * 63))
    assert lost < 0.02 * 256
    assert policy.note().reason is GammaReason.TOO_LITTLE_REPEATS


def _asked(policy: AutoGamma, copies: Sequence[float], pending: int = 1) -> str:
    """The drafter chosen when lookup has found `copies` and a model is ready."""
    drafters = {DRAFT: Askable(pending)}
    return policy.plan(Situation(room=63, drafters=drafters, copies=copies)).drafter


def test_the_proposal_that_is_worth_most_now_is_chosen() -> None:
    policy = auto(step=0.2)
    assert _asked(policy, ()) == DRAFT
    assert _asked(policy, [0.6] * 40) == DRAFT  # such a copy soon ends in most texts
    observed(policy, 0.95, [1.0] * 2, 1)
    assert _asked(policy, [0.95] * 40) == LOOKUP
    assert _asked(policy, [0.3]) == DRAFT
    observed(policy, 0.95, [0.0], 16)
    assert _asked(policy, [0.95] * 40) == DRAFT


def agreeing(chance: float, slope: float) -> AutoGamma:
    """A policy whose model agrees with lookup at rate `chance` and reads a token in `slope` s."""
    policy = AutoGamma(Costs(STEEP, {DRAFT: {0: {1: 0.1, 64: 0.1 + 63 * slope}}}))
    for _ in range(20):
        policy.observe(
            Round(
                *((1, 2, 3), 3, 3, 2, 0.3, 1.6, 1.9),
                draft_prefill=1,
                draft_passes=3,
                drafter=DRAFT,
                confidences=(0.9,) * 3,
                chances=(0.9,) * 3,
                path_confidences=(0.6,) * 3,
                path_chances=(chance,) * 3,
            )
        )
    return policy


def test_a_model_reads_what_lookup_says_where_that_saves_passes() -> None:
    copies = [0.6] * 20

    def read(policy: AutoGamma, *, able: bool = True) -> int:
        drafters = {DRAFT: Askable(reads_paths=able)}
        plan = policy.plan(Situation(63, drafters=drafters, copies=copies))
        assert plan.drafter == DRAFT
        return plan.reads

    flat, dear = 0.01, 0.1  # what one more token adds to a model's decode of 0.1
    assert read(agreeing(0.95, flat)) > 5
    assert 0 < read(agreeing(0.5, flat)) < read(agreeing(0.95, flat))
    assert read(agreeing(0.02, flat)) == read(agreeing(0.95, dear)) == 0
    assert read(agreeing(0.95, flat), able=False) == 0
    unknown = AutoGamma(Costs(STEEP, {DRAFT: {0: {1: 0.1, 64: 0.2}}}))
    assert read(unknown) == 0  # before their agreement was observed


def test_what_reading_saves_counts_when_a_drafter_is_chosen() -> None:
    """A good copy is worth more than a model's own draft, and less than a model that reads it."""
    policy = agreeing(0.95, 0.002)
    observed(policy, 0.6, [0.9] * 2, 40)
    chosen = [
        policy.plan(
            Situation(63, drafters={DRAFT: Askable(reads_paths=able)}, copies=[0.6] * 8)
        ).drafter
        for able in (False, True)
    ]
    assert chosen == [LOOKUP, DRAFT]


def test_what_a_model_reads_between_copies_pays_for_the_rounds_until_the_next() -> None:
    """After every copy the model has to catch up, so that cost counts until the next copy only."""
    asked = []
    for copies in (0, 12):
        policy = AutoGamma(Costs(FLAT, {DRAFT: {0: {1: 0.2, 64: 4.0}}}))
        for _ in range(copies):
            policy.observe(Round(*((1, 2), 1, 1, 1, 0.0, 1.0, 1.0), drafter=LOOKUP, copied=1))
        asked.append(_asked(policy, (), pending=40))
    assert asked == [DRAFT, ""]


def test_a_model_that_is_not_asked_does_nothing() -> None:
    of = engine(model=0.0)
    drafter = of.drafters[DRAFT]
    assert isinstance(drafter, ModelDrafter)

    class Copies(AutoGamma):
        def plan(self, situation: Situation) -> Plan:
            return Plan(min(4, len(situation.copies)), LOOKUP)

    rounds = run(of, Copies(Costs(FLAT, {DRAFT: {0: {1: 0.05}}})))
    assert text(rounds) == text(run(engine(copies=False), FixedGamma(0)))
    assert any(done.copied for done in rounds)
    assert drafter.context.tokens == []


def _seconds(copies: Sequence[float], seed: int, tokens: int = 256) -> float:
    """Seconds for `tokens` tokens with a good model and a lookup that is always wrong."""
    costs = Costs(RISING, {DRAFT: {0: {1: 0.08, 64: 1.0}}})
    policy, times, luck = AutoGamma(costs), costs.target.at(0), random.Random(seed)
    step, pending, took, written = 0.08, 1, 0.0, 0
    while written < tokens:
        plan = policy.plan(Situation(room=60, drafters={DRAFT: Askable(pending)}, copies=copies))
        asked, passes = plan.drafter == DRAFT and plan.limit > 0, 0
        while asked:
            passes += 1
            if not plan.wants_token(0.8, must_verify=False) or plan.aim == plan.limit:
                break
            if not plan.wants_pass():
                break
        own = plan.keep() if asked else 0
        copied = plan.copies(copies, own) if asked else plan.limit
        right = next((i for i in range(own) if luck.random() > 0.8), own)
        draft_s = (
            (costs.drafts[DRAFT].at(0).seconds(pending) + (passes - 1) * step) if asked else 0.0
        )
        verify_s = times.seconds(own + copied + 1)
        policy.observe(
            Round(
                *(tuple(range(right + 1)), own, own + copied, right),
                *(draft_s, verify_s, draft_s + verify_s),
                draft_prefill=pending if asked else 0,
                draft_passes=passes,
                drafter=DRAFT if asked else LOOKUP if copied else "",
                copied=copied,
                confidences=(0.8,) * passes,
                chances=(0.8,) * min(passes, right + 1),
                copy_confidences=tuple(copies[:1]),
                copy_chances=(0.0,) * len(copies[:1]),
            )
        )
        pending = 1 + (right == own) if asked else pending + right + 1
        took, written = took + draft_s + verify_s, written + right + 1
    return took


@pytest.mark.slow
def test_a_wrong_lookup_hardly_slows_a_good_model_down() -> None:
    """Over 256 tokens the speed is at least 0.98 of the model's without lookup."""
    alone, beside = (
        sum(_seconds(copies, seed) for seed in range(30)) for copies in ((), [0.95] * 40)
    )
    assert alone < 30 * 256 * 0.75  # the model pays
    assert alone / beside > 0.98
