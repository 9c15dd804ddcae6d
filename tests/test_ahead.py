"""The draft goes on during the target's pass: what is kept, what is not, and when it is tried."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.ahead import Ahead
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.ahead_policy import AheadPolicy
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.length.neighbours import Neighbours
from localspec.engine.length.stopping import Askable, Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.record.explanation import RoundExplanation
from localspec.engine.record.stats import FinishReason, Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.errors import EngineError
from localspec.loading import draft_models

from .fakes import round_of, tokens_of
from .support.stub_context import StubContext, StubModel, near, random_script

VOCAB = 24
PROMPT = (1, 2, 3)
GREEDY = SamplingParams(temperature=0)
COUPLED = SamplingParams(temperature=0.9, seed=4)


class Forced(AheadPolicy):
    """Decides the same every time."""

    def __init__(self, *, forced: bool = True) -> None:
        super().__init__()
        self._forced = forced

    def wants(self, drafted: int) -> bool:
        return self._forced


def ahead_of(engine: Engine) -> Ahead:
    ahead = engine.drafters[DRAFT].capabilities.ahead
    assert ahead is not None
    return ahead


def drafts(engine: Engine) -> StubContext:
    return cast("StubContext", cast("ModelDrafter", engine.drafters[DRAFT]).context)


def pair(
    noise: float = 0.8,
    *,
    forced: bool = True,
    waits: bool = True,
    ends: frozenset[int] = frozenset(),
    n_ctx: int = 256,
    lookup: bool = False,
) -> Engine:
    """Scripted models; with `waits` each target pass lasts until the draft has read all it may."""
    script = random_script(VOCAB, 5)
    target = StubContext(script, StubModel(VOCAB, ends), n_ctx)
    draft = StubContext(near(script, noise, 6), StubModel(VOCAB, ends), n_ctx)
    drafter = ModelDrafter(draft, VOCAB, ahead=Forced(forced=forced))  # type: ignore[arg-type]
    copier = Lookup(n_ctx, target.model.is_end) if lookup else None
    engine = Engine(target, drafter, lookup=copier)  # type: ignore[arg-type]

    def wait() -> None:
        running = ahead_of(engine)._running
        if waits and running is not None:
            running.exception(timeout=10)

    target.on_decode = wait
    return engine


def run(
    engine: Engine,
    gamma: int,
    *,
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParams = GREEDY,
    cancel: Cancel | None = None,
    **how: Any,
) -> tuple[list[int], list[Round]]:
    cancel = cancel or Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(
        **{"sampling": sampling, "accept": Accept.COUPLED, "n_predict": 60, **how}
    )
    rounds = list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))
    return tokens_of(rounds), rounds


def rested(engine: Engine, text: Sequence[int]) -> None:
    """Check that no thread works and that the caches hold nothing but the text."""
    assert ahead_of(engine)._running is None
    for held in (engine.target.tokens, drafts(engine).tokens):
        assert held == list(text[: len(held)])


@pytest.mark.few(8)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("gamma", [1, 2, 3, 8])
@pytest.mark.parametrize("noise", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED])
def test_the_text_is_the_same(
    sampling: SamplingParams, noise: float, gamma: int, waits: bool
) -> None:
    baseline, _ = run(pair(noise, forced=False), 0, sampling=sampling)
    engine = pair(noise, waits=waits)
    tokens, rounds = run(engine, gamma, sampling=sampling)
    assert tokens == baseline
    assert any(done.ahead for done in rounds)
    rested(engine, [*PROMPT, *tokens])
    if waits and noise < 1:
        assert sum(done.kept for done in rounds) > 3


def test_what_was_right_is_kept_and_nothing_is_waited_for() -> None:
    engine = pair(0.0)
    _, rounds = run(engine, 3)
    first, *later = [done for done in rounds if done.drafted == 3]
    assert (first.kept, first.draft_passes) == (0, 3)
    assert len(later) > 10
    # Ahead of each round the draft has read its last token, its guess of the next and two more.
    assert {(d.kept, d.draft_passes, d.draft_prefill, d.ahead) for d in later[:-2]} == {
        (3, 0, 0, 4)
    }
    singles = [batch for batch in drafts(engine).batches if len(batch) == 1]
    assert len(singles) >= 4 * len(later[:-2])


def test_what_was_wrong_is_not_kept() -> None:
    engine = pair(50.0)
    _, rounds = run(engine, 3)
    later = [done for done in rounds if done.drafted == 3]
    assert all(done.ahead for done in later[:-2])
    wrong = [b for a, b in itertools.pairwise(later) if a.accepted < 3]
    assert len(wrong) > 10
    assert all((done.kept, done.draft_passes) == (0, 3) for done in wrong)
    assert all(done.draft_prefill >= 1 for done in wrong)


def test_lookup_beside_it_changes_nothing() -> None:
    prompt = PROMPT * 6
    baseline, _ = run(pair(forced=False), 0, prompt=prompt)
    tokens, rounds = run(pair(0.3, lookup=True), 3, prompt=prompt)
    assert tokens == baseline
    assert any(done.kept for done in rounds)


def test_nothing_goes_on_where_the_text_cannot_be_read() -> None:
    class Copying(Plan):
        def copies(self, confidences: Sequence[float], drafted: int) -> int:
            return len(confidences)

    class AllTheWay(FixedGamma):
        def plan(self, situation: Situation) -> Plan:
            return Copying(min(2, situation.room), DRAFT)

    prompt = [VOCAB - 1, *PROMPT]  # the draft does not read the first one
    engine = pair(lookup=True)
    cast("StubContext", engine.target).script = random_script(VOCAB, 5, window=1)  # loops
    drafts(engine).model = StubModel(VOCAB - 1)
    list(engine.prefill(prompt, Cancel()))
    settings = GenerateSettings(sampling=GREEDY, accept=Accept.COUPLED, n_predict=60)
    rounds = list(engine.generate(prompt, settings, AllTheWay(2), Cancel()))
    assert any(done.copied for done in rounds)
    assert not any(done.ahead for done in rounds)
    rested(engine, [*prompt, *tokens_of(rounds)])


def test_a_plan_finds_its_first_pass_made() -> None:
    pending: list[int] = []

    class Watching(FixedGamma):
        def plan(self, situation: Any) -> Any:
            pending.append(situation.drafters[DRAFT].pending)
            return super().plan(situation)

    engine = pair(0.0)
    list(engine.prefill(PROMPT, Cancel()))
    settings = GenerateSettings(sampling=GREEDY, n_predict=20)
    list(engine.generate(PROMPT, settings, Watching(2), Cancel()))
    assert pending[0] >= 1
    assert set(pending[1:-1]) == {0}


@pytest.mark.parametrize("between", [1, 2, 3, 4])
def test_baseline_rounds_in_between_keep_what_is_still_right(between: int) -> None:
    """Automatic gamma inserts such rounds to compare, and users switch drafting off for a while."""
    baseline, _ = run(pair(forced=False), 0)
    engine, policy, tokens, kept = pair(0.0), FixedGamma(3), list[int](), 0
    list(engine.prefill(PROMPT, Cancel()))
    settings = GenerateSettings(sampling=GREEDY, n_predict=60)
    for i, done in enumerate(engine.generate(PROMPT, settings, policy, Cancel())):
        tokens += done.tokens
        if i % 6 == between:
            kept += done.kept
        policy.gamma = 3 if (i + 1) % 6 >= between else 0
    assert tokens == baseline
    # Every token of a baseline round takes one of three rows along.
    assert (kept > 0) == (between <= 2)


@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_not_where_the_draft_has_a_part_in_what_a_seed_gives(accept: Accept) -> None:
    how: dict[str, Any] = {"sampling": COUPLED, "accept": accept}
    alone, _ = run(pair(forced=False), 3, repeatable=True, **how)
    tokens, rounds = run(pair(), 3, repeatable=True, **how)
    assert tokens == alone
    assert not any(done.ahead for done in rounds)
    assert any(done.kept for done in run(pair(0.1), 3, **how)[1])  # the control


def test_not_in_a_round_that_somebody_looks_at() -> None:
    engine, seen = pair(0.0), list[RoundExplanation]()
    list(engine.prefill(PROMPT, Cancel()))
    settings = GenerateSettings(sampling=COUPLED, accept=Accept.COUPLED, n_predict=40)
    rounds: list[Round] = []
    for done in engine.generate(PROMPT, settings, FixedGamma(3), Cancel()):
        rounds.append(done)
        if len(rounds) % 3 == 0:
            engine.recorder.watch = seen.append
    assert len(seen) > 2
    assert all(look.same for look in seen)
    assert [rounds[look.number - 1].ahead for look in seen] == [0] * len(seen)
    assert any(done.kept for done in rounds)
    tokens = tokens_of(rounds)
    assert tokens == run(pair(forced=False), 0, sampling=COUPLED, n_predict=40)[0]


@pytest.mark.parametrize("n_predict", range(1, 14))
def test_the_end_of_the_wanted_length_reads_nothing_in_vain(n_predict: int) -> None:
    engine = pair(0.0)
    tokens, rounds = run(engine, 3, n_predict=n_predict)
    assert tokens == run(pair(forced=False), 0)[0][:n_predict]
    left = n_predict
    for done in rounds:
        left -= done.emitted
        assert left > 1 or not done.ahead  # with room for one token nothing is drafted
    rested(engine, [*PROMPT, *tokens])


@pytest.mark.parametrize("n_ctx", range(5, 20))
def test_the_context_fills(n_ctx: int) -> None:
    engine = pair(0.0, n_ctx=n_ctx)
    tokens, rounds = run(engine, 3, n_predict=-1)
    assert tokens == run(pair(forced=False, n_ctx=n_ctx), 0, n_predict=-1)[0]
    assert rounds[-1].finish is FinishReason.CONTEXT
    rested(engine, [*PROMPT, *tokens])


def test_nothing_is_read_behind_an_end() -> None:
    baseline, _ = run(pair(0.0, forced=False), 0)
    for end in set(baseline[5:12]):
        engine = pair(0.0, ends=frozenset({end}))
        tokens, rounds = run(engine, 3)
        assert tokens == baseline[: baseline.index(end)]
        assert rounds[-1].finish is FinishReason.STOP
        assert all(end not in batch[:-1] for batch in drafts(engine).batches)
        rested(engine, [*PROMPT, *tokens, end])


def test_a_second_turn_goes_on_from_the_text() -> None:
    engine = pair(0.0)
    answer, _ = run(engine, 3, n_predict=23)
    prompt = [*PROMPT, *answer, 4, 5, 6]
    tokens, rounds = run(engine, 3, prompt=prompt, n_predict=20)
    assert tokens == run(pair(forced=False), 0, prompt=prompt, n_predict=20)[0]
    assert next(done.draft_prefill for done in rounds if done.drafted) <= 3 + 1 + 4 + 1


def test_a_consumer_may_stop_in_the_middle() -> None:
    engine = pair(0.0, waits=False)
    list(engine.prefill(PROMPT, Cancel()))
    rounds = engine.generate(PROMPT, GenerateSettings(sampling=GREEDY), FixedGamma(4), Cancel())
    text = [*PROMPT, *next(rounds).tokens, *next(rounds).tokens, *next(rounds).tokens]
    rounds.close()
    rested(engine, text)
    assert run(engine, 4)[0] == run(pair(forced=False), 0)[0]


def in_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def test_cancelling_ends_what_goes_on() -> None:
    """Whether the user cancels during the target's pass or in the draft's thread."""
    baseline, _ = run(pair(forced=False), 0)
    for at in range(2, 8):
        engine, cancel = pair(0.0, waits=False), Cancel()
        calls = iter(range(100))
        engine.target.on_decode = lambda: cancel.set() if next(calls) == at else None  # type: ignore[attr-defined]  # noqa: B023
        tokens, rounds = run(engine, 3, cancel=cancel)
        assert rounds[-1].finish is FinishReason.CANCELLED
        assert tokens == baseline[: len(tokens)]
        rested(engine, [*PROMPT, *baseline])
        engine.target.on_decode = lambda: None  # type: ignore[attr-defined]
        assert run(engine, 3)[0] == baseline


def test_a_pass_that_goes_on_when_somebody_cancels_is_given_up() -> None:
    """Such a pass may take long, so cancelling does not wait for its end."""
    engine, cancel, begun = pair(0.0, waits=False), Cancel(), threading.Event()
    draft = drafts(engine)

    def stuck() -> None:
        if in_thread():
            begun.set()
            halt = draft.cancel
            assert halt is not None
            assert halt is not cancel
            while not halt.is_set():
                pass

    draft.on_decode = stuck
    list(engine.prefill(PROMPT, cancel))
    rounds = engine.generate(PROMPT, GenerateSettings(sampling=GREEDY), FixedGamma(3), cancel)
    next(rounds)
    next(rounds)
    assert begun.wait(10)
    cancel.set()
    assert next(rounds).finish is FinishReason.CANCELLED
    assert list(rounds) == []
    assert ahead_of(engine)._running is None


def test_an_error_in_the_thread_is_one_where_its_pass_was_wanted() -> None:
    engine = pair(0.0)

    def fail() -> None:
        if in_thread():
            raise EngineError("broken")

    drafts(engine).on_decode = fail
    with pytest.raises(EngineError, match="broken"):
        run(engine, 3)
    rested(engine, [*PROMPT, *run(pair(forced=False), 0)[0]])
    assert run(engine, 3, n_predict=1)[1][-1].finish is FinishReason.LENGTH

    list(engine.prefill(PROMPT, Cancel()))
    rounds = engine.generate(PROMPT, GenerateSettings(sampling=GREEDY), FixedGamma(3), Cancel())
    next(rounds)
    next(rounds)
    rounds.close()  # it was cancelled
    drafts(engine).on_decode = lambda: None
    assert run(engine, 3)[0] == run(pair(forced=False), 0)[0]


def test_an_error_along_a_way_that_the_text_did_not_take_is_nobodys() -> None:
    engine, baseline, failed = pair(50.0), run(pair(50.0, forced=False), 0)[0], list[int]()

    def fail() -> None:
        if in_thread():
            failed.append(1)
            raise EngineError("broken")

    drafts(engine).on_decode = fail
    tokens, _ = run(engine, 3)
    assert tokens == baseline
    assert len(failed) > 3
    rested(engine, [*PROMPT, *tokens])


def test_a_tail_that_a_grammar_refuses_ends_what_goes_on_and_nothing_else() -> None:
    engine, baseline = pair(0.0), run(pair(0.0, forced=False), 0)[0]
    drafter = cast("ModelDrafter", engine.drafters[DRAFT])
    begin, refused = drafter.begin, list[int]()

    def refusing(tokens: Any, proposer: Any, cancel: Cancel, **how: Any) -> None:
        def look(row: Any, text: Any, drafted: Any) -> Any:
            if in_thread():
                refused.append(len(drafted))
                raise EngineError("token 7 breaks the grammar")
            return proposer(row, text, drafted)

        begin(tokens, look, cancel, **how)

    drafter.begin = refusing  # type: ignore[method-assign]
    tokens, _ = run(engine, 3)
    assert tokens == baseline
    assert len(refused) > 3
    rested(engine, [*PROMPT, *tokens])


def test_once_the_targets_pass_is_over_no_more_is_guessed() -> None:
    """The sampler chain, and a grammar in it, belong to one thread at a time."""
    engine, passes = pair(0.0, waits=False), list[int]()
    ahead = ahead_of(engine)

    def until_it_is_over() -> None:
        while in_thread() and not ahead._over:
            time.sleep(0.001)

    drafts(engine).on_decode = until_it_is_over
    list(engine.prefill(PROMPT, Cancel()))
    settings = GenerateSettings(sampling=GREEDY, n_predict=30)
    for done in engine.generate(PROMPT, settings, FixedGamma(3), Cancel()):
        passes.append(done.ahead)
    assert set(passes) == {0, 1}


# ---------------------------------------------------------------- real models


@pytest.fixture
def contexts(target_model: Model, draft_model: Model) -> Iterator[tuple[Context, Context]]:
    """A context for each model, with one thread each, so that both can run at the same time."""
    how = ContextOptions(n_ctx=512, threads=1, flash_attention=True)
    with Context(target_model, how) as target, Context(draft_model, how) as draft:
        yield target, draft


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_real_models_the_text_is_that_of_the_baseline(
    contexts: tuple[Context, Context], temperature: float
) -> None:
    target, draft = contexts
    n_vocab = target.model.n_vocab
    text = "The little dog ran to the park. The little dog was very happy"
    ids = target.model.tokenize(text, add_special=True, parse_special=False)
    sampling = SamplingParams(temperature=temperature, seed=3)
    found = []
    for ahead, gamma in ((None, 0), (Forced(), 1), (Forced(), 4)):
        engine = Engine(target, ModelDrafter(draft, n_vocab, ahead=ahead))
        tokens, rounds = run(engine, gamma, prompt=ids, sampling=sampling, n_predict=120)
        found.append(tokens)
        whole = [*ids, *tokens]
        assert draft.tokens == whole[: len(draft.tokens)]
        if gamma:
            assert any(done.ahead for done in rounds)
    assert found[0] == found[1] == found[2]


def test_with_real_models_passes_are_kept(contexts: tuple[Context, Context]) -> None:
    target, draft = contexts
    ids = target.model.tokenize("Once upon a time", add_special=True, parse_special=False)
    drafter = ModelDrafter(draft, target.model.n_vocab, ahead=Forced())
    engine = Engine(target, drafter)
    decode = target.decode

    def slow(tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        running = ahead_of(engine)._running
        if running is not None:
            running.result(timeout=30)
        return decode(tokens, n_logits)

    target.decode = slow  # type: ignore[method-assign]
    _, rounds = run(engine, 2, prompt=ids, n_predict=100)
    assert sum(done.kept for done in rounds) > 10


def test_a_closed_engine_has_no_threads() -> None:
    before = set(threading.enumerate())
    engine = pair()
    run(engine, 3)
    assert set(threading.enumerate()) - before
    engine.close()
    assert not set(threading.enumerate()) - before


# ---------------------------------------------------------------- when


V, C = 0.1, 0.03


def beside_round(rule: AheadPolicy, *, s: float, accepted: int, kept: bool) -> Round:
    """A round whose target pass takes `s` times as long if the draft goes on during it."""
    ahead = 4 if rule.wants(3) else 0
    verify_s = V * (s if ahead else 1.0)
    draft_s = 0.0 if kept else 3 * C
    done = round_of(3, accepted, seconds=verify_s)
    done = replace(
        done,
        draft_s=draft_s,
        total_s=draft_s + verify_s,
        draft_passes=0 if kept else 3,
        kept=3 * kept,
        ahead=ahead,
    )
    rule.observe(done, right=accepted == 3)
    return done


def rounds_of(
    rule: AheadPolicy, n: int, *, s: float, accepted: Sequence[int] = (3,)
) -> list[Round]:
    rounds: list[Round] = []
    for i in range(n):
        kept = bool(rounds) and rounds[-1].ahead > 0 and rounds[-1].accepted == 3
        rounds.append(beside_round(rule, s=s, accepted=accepted[i % len(accepted)], kept=kept))
    return rounds


def test_where_nothing_is_lost_it_goes_on_and_now_and_then_without() -> None:
    rounds = rounds_of(AheadPolicy(), 200, s=1.0)
    on = [done.ahead > 0 for done in rounds]
    assert not any(on[:2])
    assert 0.9 < sum(on[20:]) / len(on[20:]) < 0.96


@pytest.mark.parametrize("s", [1.6, 2.0, 3.0])
def test_on_one_bus_it_is_hardly_ever_tried(s: float) -> None:
    rule = AheadPolicy()
    rounds = rounds_of(rule, 400, s=s)
    lost = sum(done.verify_s - V for done in rounds)
    spent = sum(done.total_s for done in rounds)
    assert 0 < lost < (s - 1) * V + 0.006 * spent
    assert sum(done.ahead > 0 for done in rounds[:100]) <= 2


def test_a_draft_that_is_hardly_ever_right_is_not_tried() -> None:
    rounds = rounds_of(AheadPolicy(), 300, s=1.0, accepted=(0, 1, 0, 2))
    assert sum(done.ahead > 0 for done in rounds[60:]) == 0


def test_it_stops_where_the_machine_gets_slower_and_comes_back() -> None:
    rule = AheadPolicy()
    rounds_of(rule, 60, s=1.0)
    slow = rounds_of(rule, 60, s=2.5)
    assert sum(done.ahead > 0 for done in slow[20:]) <= 2
    rounds_of(rule, 3000, s=1.0)
    assert sum(done.ahead > 0 for done in rounds_of(rule, 60, s=1.0)) > 50


def test_what_trials_may_cost_does_not_pile_up() -> None:
    """After an hour in which too little was accepted, going on is tried now and then, not often."""
    rule = AheadPolicy()
    rounds_of(rule, 20_000, s=3.0, accepted=(0, 1, 0, 2))
    rounds = rounds_of(rule, 400, s=3.0)
    assert sum(done.ahead > 0 for done in rounds) <= 6


def test_no_more_is_read_than_a_draft_lately_had() -> None:
    rule = AheadPolicy()
    assert rule.reach(2) == 2
    rule.observe(round_of(5, 5), right=True)
    assert rule.reach(2) == 5


def test_what_runs_beside_another_teaches_no_times() -> None:
    costs = {
        True: Costs({0: {1: 1.0, 4: 1.4}}, {DRAFT: {0: {1: 0.1}}}),
        False: Costs({0: {1: 1.0, 4: 1.4}}, {DRAFT: {0: {1: 0.1}}}),
    }
    for beside, table in costs.items():
        known = Neighbours(table)
        for _ in range(10):
            for i in range(6):
                drafted = 3 * (i != 3)
                done = round_of(drafted, drafted, seconds=2.8 if drafted else 1.0)
                if drafted:
                    done = replace(done, draft_s=0.6, total_s=3.4)
                ahead = 4 * bool(drafted) * beside
                known.add(replace(done, ahead=ahead, kept=min(2, ahead)))
        votes = table.target.votes(4), table.drafts[DRAFT].votes(1)
        assert all(votes) is not beside
        assert (table.target.at(0).seconds(4) == 1.4) is beside
        if beside:
            assert not any(votes)


def test_a_kept_pass_costs_a_plan_nothing() -> None:
    policy = AutoGamma(Costs({0: {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.4}}, {DRAFT: {0: {1: 2.0}}}))
    policy.begin(follow_clock=True)
    assert policy.plan(Situation(room=1, drafters={DRAFT: Askable(0)})).limit > 0


def context_of(threads: int, *, offloaded: bool = False, remote: bool = False) -> Any:
    model = SimpleNamespace(offloaded=offloaded, remote=remote)
    return SimpleNamespace(threads=SimpleNamespace(most=threads), model=model)


@pytest.mark.parametrize(
    ("target", "draft", "devices", "expected"),
    [
        (context_of(8), context_of(8), (None, None), False),
        (context_of(4), context_of(4), (None, None), True),
        (context_of(6), context_of(2), (None, None), True),
        (context_of(8, offloaded=True), context_of(8), (None, None), True),
        (context_of(8), context_of(8, offloaded=True), (None, None), True),
        (context_of(8, offloaded=True), context_of(8, offloaded=True), (None, None), False),
        (context_of(8, offloaded=True), context_of(8, offloaded=True), (("A",), ("A",)), False),
        (context_of(8, offloaded=True), context_of(8, offloaded=True), (("A",), ("B",)), True),
        (
            context_of(8, offloaded=True, remote=True),
            context_of(8, offloaded=True),
            (None, ("A",)),
            True,
        ),
        (
            context_of(8, offloaded=True, remote=True),
            context_of(8, offloaded=True, remote=True),
            (("R0",), ("R1",)),
            False,
        ),
    ],
)
def test_it_is_tried_where_both_have_compute_of_their_own(
    target: Any, draft: Any, devices: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_models, "default_threads", lambda: 8)
    how: Any = SimpleNamespace(device=devices[0], draft_device=devices[1])
    pair: Any = SimpleNamespace(target=target, loaded=how)
    assert draft_models.apart(pair, draft) is expected
