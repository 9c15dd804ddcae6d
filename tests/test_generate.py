"""The round, with scripted models: exact logits, every edge case, no llama.cpp."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.drafter_names import DRAFT, LOOKUP, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.protocol import Capabilities, Proposal
from localspec.engine.length.cost import ModelCosts
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.length.stopping import Askable
from localspec.engine.record.stats import FinishReason, GenerationStats, Prefill, Round
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.prompt_steps import PromptSteps
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import Cancelled, PromptTooLong

from .fakes import tokens_of
from .support.stub_context import StubContext, StubModel, near, random_script

VOCAB = 24
GREEDY = SamplingParams(temperature=0)
PROMPT = (1, 2, 3)


def pair(
    *,
    noise: float = 0.8,
    ends: frozenset[int] = frozenset(),
    n_ctx: int = 256,
    draft_vocab: int = VOCAB,
    seed: int = 5,
) -> Engine:
    """An engine of two scripted models; the draft sees the target's logits with noise on them."""
    script = random_script(VOCAB, seed)
    target = StubContext(script, StubModel(VOCAB, ends), n_ctx)

    def draft_script(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        row = near(script, noise, seed + 1)(tokens)
        # The draft prefers ids that the target lacks, so that emitting one would be noticed.
        return np.concatenate([row, np.full(draft_vocab - VOCAB, 99, np.float32)])

    draft = StubContext(draft_script, StubModel(draft_vocab, ends), n_ctx)
    return Engine(target, ModelDrafter(draft, VOCAB))  # type: ignore[arg-type]


def run(
    engine: Engine,
    gamma: int,
    *,
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParams = GREEDY,
    accept: Accept = Accept.TOKEN,
    n_predict: int = 60,
    cancel: Cancel | None = None,
) -> tuple[list[int], list[Round]]:
    """Generate after `prompt`; return the tokens and the rounds."""
    cancel = cancel or Cancel()
    list(engine.prefill(prompt, cancel))
    settings = GenerateSettings(sampling=sampling, accept=accept, n_predict=n_predict)
    rounds = list(engine.generate(prompt, settings, FixedGamma(gamma), cancel))
    return tokens_of(rounds), rounds


def read(engine: Engine, prompt: Sequence[int]) -> Prefill:
    """Run the whole prefill; return its figures."""
    steps = engine.prefill(prompt, Cancel())
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Prefill", end.value)


class Listening:
    """A head that drafts nothing, but hears what a real one would know states of."""

    def __init__(self, name: str = MTP) -> None:
        self.name, self.capabilities = name, Capabilities(listener=self)
        self.told: list[bool] = []
        self.known = 0

    def listen(self, *, wanted: bool) -> None:
        self.told.append(wanted)
        self.known = 0

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        self.known = start + len(tokens) if start <= self.known else 0

    def begin(self, *_: object, **__: object) -> None: ...

    def state(self, tokens: Sequence[int]) -> Askable:
        return Askable(1)

    def propose(self, *_: object) -> Proposal:
        return Proposal(self.name)

    def observe(self, *_: object) -> None: ...


def answer_with(engine: Engine, policy: FixedGamma, drafters: frozenset[str] | None) -> None:
    """Read a prompt that goes on after the cache's text, and answer it with these drafters."""
    prompt = [*engine.target.tokens, 1, 2, 3]
    list(engine.prefill(prompt, Cancel(), policy, drafters=drafters))
    settings = GenerateSettings(sampling=GREEDY, n_predict=5, drafters=drafters)
    assert len(list(engine.generate(prompt, settings, policy, Cancel()))) == 5


def test_a_head_that_a_request_leaves_out_still_follows_the_text() -> None:
    head, policy = Listening(), FixedGamma(3)
    target = StubContext(random_script(VOCAB, 5), StubModel(VOCAB))
    engine = Engine(target, head)  # type: ignore[arg-type]
    for drafters in (frozenset[str](), None, frozenset({LOOKUP}), frozenset({MTP})):
        answer_with(engine, policy, drafters)
        assert head.told == [True]
        assert head.known == len(target.tokens)
    policy.gamma = 0
    answer_with(engine, policy, None)
    assert head.told == [True, False]


def test_a_head_that_only_a_request_asks_sees_its_prompt() -> None:
    """A fixed length asks the first drafter, or the first of those that a request names."""
    head = Listening()
    target = StubContext(random_script(VOCAB, 5), StubModel(VOCAB))
    engine = Engine(target, Listening("other"), head)  # type: ignore[arg-type]
    answer_with(engine, FixedGamma(3), frozenset({MTP}))
    assert head.told == [True]
    assert head.known == len(target.tokens)


def test_what_a_device_has_still_to_read_of_the_prompt_is_no_part_of_the_first_round() -> None:
    """A device computes in the background: only reading logits, or `wait`, waits for it."""
    engine, busy = pair(), 0.0
    target = cast("StubContext", engine.target)
    at_once = target.decode

    def wait() -> None:
        nonlocal busy
        time.sleep(busy)
        busy = 0.0

    def decode(tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        nonlocal busy
        busy += 0.03
        if n_logits:
            wait()
        return at_once(tokens, n_logits)

    target.decode, target.wait = decode, wait  # type: ignore[method-assign]
    prompt = [1] * 100
    assert read(engine, prompt).seconds > 4 * 0.03
    rounds = engine.generate(prompt, GenerateSettings(n_predict=1), FixedGamma(0), Cancel())
    assert next(rounds).verify_s < 4 * 0.03  # its own 0.03, on a machine that may be busy


@pytest.mark.few(8)
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 6, 8, 31])
@pytest.mark.parametrize("noise", [0.0, 0.8, 50.0])
def test_greedy_tokens_do_not_depend_on_gamma_or_draft(gamma: int, noise: float) -> None:
    baseline, _ = run(pair(noise=noise), 0)
    tokens, rounds = run(pair(noise=noise), gamma)
    assert tokens == baseline
    assert len(baseline) == 60
    assert all(done.drafted <= gamma for done in rounds)
    accepted = sum(done.accepted for done in rounds) / sum(done.drafted for done in rounds)
    assert accepted == 1 if noise == 0 else 0 < accepted < 1 if noise < 1 else accepted < 0.3


@pytest.mark.parametrize("accept", list(Accept))
def test_the_same_seed_gives_the_same_tokens(accept: Accept) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7)
    first, _ = run(pair(), 4, sampling=sampling, accept=accept)
    again, _ = run(pair(), 4, sampling=sampling, accept=accept)
    other, _ = run(pair(), 4, sampling=SamplingParams(temperature=0.8, seed=8), accept=accept)
    assert first == again
    assert first != other


@pytest.mark.few(12)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [slice(None), slice(7, 8)])
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("accept", list(Accept))
def test_a_draft_whose_logits_are_no_distribution_proposes_nothing(
    bad: float, where: slice, temperature: float, accept: Accept
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5)
    baseline, _ = run(pair(noise=0), 0, sampling=sampling, accept=accept)
    engine = pair(noise=0)
    draft = cast("ModelDrafter", engine.drafters[DRAFT]).context
    at_once, decodes = draft.decode, itertools.count()

    def decode(tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        logits = at_once(tokens, n_logits)
        if next(decodes) % 3 == 1:  # at the start of a draft as well as inside
            logits[:, where] = bad
        return logits

    draft.decode = decode  # type: ignore[method-assign]
    tokens, rounds = run(engine, 4, sampling=sampling, accept=accept)
    assert len(tokens) == len(baseline) == 60
    if temperature == 0 or accept is Accept.COUPLED:
        assert tokens == baseline
    lost = bad != -np.inf or where == slice(None)
    assert any(done.drafted < done.gamma == 4 for done in rounds[1:-2]) is lost
    assert sum(done.accepted for done in rounds) > 10


def test_the_first_round_drafts_nothing() -> None:
    _, rounds = run(pair(), 4)
    assert rounds[0].drafted == 0
    assert rounds[1].drafted == 4


def test_full_acceptance_leaves_the_draft_one_token_behind() -> None:
    engine = pair(noise=0.0)
    _, rounds = run(engine, 3, n_predict=9)
    drafter = engine.drafters[DRAFT]
    assert isinstance(drafter, ModelDrafter)
    # No draft, then 4 and 4: the second draft first reads the two tokens that it lacks.
    assert [done.emitted for done in rounds] == [1, 4, 4]
    assert (
        [batch for batch in drafter.context.batches if len(batch) > 1][1:]
        == [  # type: ignore[attr-defined]
            list(rounds[1].tokens[-2:])
        ]
    )


def test_an_end_inside_an_accepted_run_ends_the_text() -> None:
    baseline, _ = run(pair(noise=0.0), 0)
    end = baseline[7]
    want = baseline[: baseline.index(end)]
    for gamma in (0, 1, 3, 5):
        engine = pair(noise=0.0, ends=frozenset({end}))
        tokens, rounds = run(engine, gamma)
        assert tokens == want
        assert rounds[-1].finish is FinishReason.STOP
        assert all(done.finish is None for done in rounds[:-1])
        # Only the end token itself may stay in the cache, since a template goes on after it.
        held = engine.target.tokens
        assert held == [*PROMPT, *want, end][: len(held)]
        assert len(held) >= len(PROMPT) + len(want)


@pytest.mark.parametrize("n_predict", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_n_predict_is_met_inside_a_round(n_predict: int) -> None:
    baseline, _ = run(pair(noise=0.0), 0)
    tokens, rounds = run(pair(noise=0.0), 4, n_predict=n_predict)
    assert tokens == baseline[:n_predict]
    assert rounds[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize("n_ctx", [4, 5, 8, 11, 16, 17, 18])
def test_the_context_fills_inside_a_round(n_ctx: int) -> None:
    baseline, baseline_rounds = run(pair(n_ctx=n_ctx), 0, n_predict=-1)
    tokens, rounds = run(pair(n_ctx=n_ctx), 4, n_predict=-1)
    assert tokens == baseline
    assert len(tokens) == n_ctx - len(PROMPT) + 1
    assert baseline_rounds[-1].finish is FinishReason.CONTEXT
    assert rounds[-1].finish is FinishReason.CONTEXT


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    engine = pair(n_ctx=8)
    with pytest.raises(PromptTooLong, match="9 tokens, the context holds 8"):
        list(engine.prefill(range(9), Cancel()))
    assert len(run(engine, 2, prompt=range(8), n_predict=-1)[0]) == 1


@pytest.mark.parametrize("accept", list(Accept))
def test_ids_that_the_target_lacks_are_never_drafted(accept: Accept) -> None:
    sampling = SamplingParams(temperature=0.9, seed=1)
    _, rounds = run(pair(draft_vocab=VOCAB + 4), 3, sampling=sampling, accept=accept)
    assert sum(done.accepted for done in rounds) > 0


class EverySecond:
    """A grammar: every second token is one of the last two ids, which the draft lacks."""

    def __init__(self, length: int = 0) -> None:
        self._length = length

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (ids >= VOCAB - 2) == bool(self._length % 2)

    def after(self, token: int) -> EverySecond:
        return EverySecond(self._length + 1)


def smaller_draft() -> Engine:
    """A draft that lacks the target's last two ids."""
    script = random_script(VOCAB, 9)
    target = StubContext(script, StubModel(VOCAB))
    draft = StubContext(lambda tokens: script(tokens)[:-2], StubModel(VOCAB - 2))
    return Engine(target, ModelDrafter(draft, VOCAB))  # type: ignore[arg-type]


@pytest.mark.parametrize("accept", list(Accept))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ids_that_the_draft_lacks_end_drafting_and_nothing_else(
    accept: Accept, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3)
    tokens, rounds = run(smaller_draft(), 3, sampling=sampling, accept=accept)
    assert len(tokens) == 60
    assert any(token >= VOCAB - 2 for token in tokens)
    assert any(done.drafted for done in rounds)
    if accept is Accept.COUPLED or temperature == 0:
        assert tokens == run(smaller_draft(), 0, sampling=sampling, accept=accept)[0]


@pytest.mark.parametrize("accept", list(Accept))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_grammar_that_leaves_the_draft_nothing_to_say(accept: Accept, temperature: float) -> None:
    engine = smaller_draft()
    cancel = Cancel()
    list(engine.prefill(PROMPT, cancel))
    settings = GenerateSettings(
        sampling=SamplingParams(temperature=temperature, seed=1),
        accept=accept,
        n_predict=20,
        constraint=EverySecond(),
    )
    rounds = list(engine.generate(PROMPT, settings, FixedGamma(3), cancel))
    tokens = tokens_of(rounds)
    assert [token >= VOCAB - 2 for token in tokens] == [False, True] * 10


def test_a_consumer_may_stop_between_rounds() -> None:
    engine = pair()
    cancel = Cancel()
    list(engine.prefill(PROMPT, cancel))
    rounds = engine.generate(PROMPT, GenerateSettings(sampling=GREEDY), FixedGamma(4), cancel)
    got = [*next(rounds).tokens, *next(rounds).tokens]
    rounds.close()
    held = [*PROMPT, *got]
    assert engine.target.tokens == held[:-1]
    baseline, _ = run(pair(), 0)
    assert run(engine, 4)[0] == baseline


def test_cancelling_inside_a_decode_emits_nothing_more_and_keeps_the_caches_right() -> None:
    engine = pair()
    baseline, _ = run(pair(), 0)
    cancel = Cancel()
    calls = iter(range(100))
    engine.target.on_decode = lambda: cancel.set() if next(calls) == 4 else None  # type: ignore[attr-defined]
    tokens, rounds = run(engine, 4, cancel=cancel)
    assert rounds[-1].finish is FinishReason.CANCELLED
    assert rounds[-1].tokens == ()
    assert tokens == baseline[: len(tokens)]
    engine.target.on_decode = lambda: None  # type: ignore[attr-defined]
    assert run(engine, 4)[0] == baseline


def test_cancelling_inside_the_draft_does_the_same() -> None:
    engine = pair()
    baseline, _ = run(pair(), 0)
    drafter = engine.drafters[DRAFT]
    assert isinstance(drafter, ModelDrafter)
    cancel = Cancel()
    calls = iter(range(100))
    context = drafter.context
    context.on_decode = lambda: cancel.set() if next(calls) == 6 else None  # type: ignore[attr-defined]
    _, rounds = run(engine, 4, cancel=cancel)
    assert rounds[-1].finish is FinishReason.CANCELLED
    context.on_decode = lambda: None  # type: ignore[attr-defined]
    assert run(engine, 4)[0] == baseline


def test_cancelling_during_the_prefill() -> None:
    engine = pair()
    cancel = Cancel()
    steps = engine.prefill([1] * 100, cancel)
    assert next(steps) == (0, 99)  # before the first pass, which may take long
    assert next(steps) == (16, 99)
    cancel.set()
    with pytest.raises(Cancelled):
        next(steps)
    assert engine.target.tokens == [1] * 16


@pytest.mark.parametrize(
    ("max_rollback", "can_truncate", "passes"),
    [(None, True, [32, 8]), (0, True, [24, 16]), (0, False, [32, 8])],
)
def test_the_last_pass_over_a_prompt_is_not_short_where_its_mark_is_gone_back_to(
    max_rollback: int | None, can_truncate: bool, passes: list[int]
) -> None:
    target = StubContext(random_script(VOCAB, 5), StubModel(VOCAB))
    target.max_rollback, target.can_truncate = max_rollback, can_truncate
    engine = Engine(target)  # type: ignore[arg-type]
    list(engine.prefill([1] * 41, Cancel(), follow_clock=False))
    assert list(map(len, target.batches)) == passes


def passes_over(monkeypatch: pytest.MonkeyPatch, token_s: float, **how: bool) -> list[int]:
    """The sizes of the passes over 3,000 tokens of a prompt, then 900 more, at `token_s` each."""
    now = [0.0]
    target = StubContext(random_script(VOCAB, 5), StubModel(VOCAB), n_ctx=4096, n_batch=512)
    decode = target.decode

    def timed(tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        now[0] += len(tokens) * token_s
        return decode(tokens, n_logits)

    monkeypatch.setattr("localspec.engine.round.generate.perf_counter", lambda: now[0])
    target.decode = timed  # type: ignore[method-assign]
    engine = Engine(target)  # type: ignore[arg-type]
    for prompt in ([1] * 3001, [1] * 3901):
        read, whole = [*engine.prefill(prompt, Cancel(), **how)][-1]
        assert read == whole
    assert sum(map(len, target.batches)) == 3900
    return [len(each) for each in target.batches]


@dataclass
class Told:
    """What was announced before a pass over a prompt: the time left, and the clock's seconds."""

    at: float
    left: float | None


def times_told(
    monkeypatch: pytest.MonkeyPatch, token_s: Callable[[float, int], float]
) -> list[Told]:
    """The times announced while a prompt of 2,400 tokens is read.

    Args:
        monkeypatch: sets the engine's clock.
        token_s: seconds of a token, by the clock and the tokens before it.
    """
    now = [0.0]
    target = StubContext(random_script(VOCAB, 5), StubModel(VOCAB), n_ctx=4096, n_batch=512)
    decode = target.decode

    def timed(tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        middle = len(target.tokens) + len(tokens) // 2
        now[0] += len(tokens) * token_s(now[0], middle)
        return decode(tokens, n_logits)

    monkeypatch.setattr("localspec.engine.round.generate.perf_counter", lambda: now[0])
    target.decode = timed  # type: ignore[method-assign]
    engine, seen = Engine(target), []  # type: ignore[arg-type]
    for done, total in engine.prefill([1] * 2401, Cancel()):
        left = engine.steps.seconds(done, total - done) if engine.steps.trusted else None
        seen.append(Told(now[0], left))
    return seen


@pytest.mark.parametrize(("token_s", "step"), [(0.02, 32), (0.006, 128), (0.00195, 400)])
def test_every_pass_over_a_prompt_takes_less_than_a_second(
    monkeypatch: pytest.MonkeyPatch, token_s: float, step: int
) -> None:
    first, *later = passes_over(monkeypatch, token_s)
    assert first == 16  # nothing is known yet
    assert max(later) == step <= 0.8 / token_s < step + 16
    # At the end of each prompt, and once before attention is known to take no time here.
    assert sum(each != step for each in later) <= 3


def test_a_prompt_that_must_be_repeatable_is_read_in_passes_of_one_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = [512] * 5 + [440] + [512, 388]
    assert passes_over(monkeypatch, 0.02, follow_clock=False) == whole
    # A fast machine makes one pass more.
    assert passes_over(monkeypatch, 1e-6)[:3] == [16, 512, 512]


def test_a_machine_that_becomes_busy_gets_shorter_passes() -> None:
    steps = PromptSteps(512)
    for n, seconds, then in (
        *((64, 0.2, 256), (256, 0.8, 256), (256, 3.2, 64), (64, 0.8, 64), (3, 0.4, 64)),
        *((64, 900.0, 64), (64, 900.0, 16), (16, 0.05, 256), (256, 0.0, 512)),
    ):
        steps.took(n, 0, seconds)
        assert steps.size(0) == then, (n, seconds)


@pytest.mark.parametrize(
    ("token_s", "growth"),
    [(0.0045, 0.0007), (0.02, 0.0003)],  # seen with 135 million and with 1.5 billion parameters
)
def test_the_time_left_is_told_once_it_can_be_trusted(
    monkeypatch: pytest.MonkeyPatch, token_s: float, growth: float
) -> None:
    """The estimate includes attention, which takes longer with every token read before."""
    seen = times_told(monkeypatch, lambda _, depth: token_s * (1 + growth * depth))
    assert max(after.at - before.at for before, after in pairwise(seen[1:])) < 1
    told = [each for each in seen if each.left is not None]
    assert 2 <= told[0].at < 3
    for each in told:
        rest = seen[-1].at - each.at
        assert each.left == pytest.approx(rest, rel=0.3, abs=1.0)


def test_another_program_that_begins_is_not_taken_for_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = times_told(monkeypatch, lambda now, _: 0.01 if now < 10 else 0.03)
    for each in seen:
        if each.left is not None and each.at > 15:
            assert each.left == pytest.approx(seen[-1].at - each.at, rel=0.4, abs=1.0)


def test_a_pass_in_which_the_program_was_suspended_tells_nothing_of_the_rest() -> None:
    steps = PromptSteps(512)
    for at in (0, 512, 1024):
        steps.took(512, at, 0.8)
    steps.took(512, 1536, 600.0)
    assert (steps.seconds(2048, 5000) or math.inf) < 20
    assert steps.size(2048) > 400
    steps.begin()
    for at in (0, 512):  # a machine that became so slow takes as long again
        steps.took(512, at, 60.0)
    assert (steps.seconds(1024, 5000) or 0.0) > 500
    assert steps.size(1024) == 16


def test_short_prompts_learn_too_that_a_machine_became_slow() -> None:
    """Each has a single pass that counts, so that the second slow one is the next prompt's."""
    steps = PromptSteps(512)
    for seconds in (0.8, 60.0, 60.0):
        steps.begin()
        steps.took(512, 0, seconds)
    assert steps.size(0) == 16


def test_what_a_prompt_teaches_counts_in_the_next_one() -> None:
    steps = PromptSteps(512)
    assert steps.seconds(0, 100) is None
    for at in range(0, 2000, 50):
        steps.took(50, at, 50 * 0.01 * (1 + 0.001 * at))
    steps.begin()
    assert not steps.trusted
    assert steps.size(2000) == 16  # 0.03 seconds for a token
    shallow, deep = (steps.seconds(at, 1000) or 0.0 for at in (2000, 4000))
    assert shallow == pytest.approx(1000 * 0.01 * (1 + 0.001 * 2500), rel=0.2)
    assert deep > 1.3 * shallow


def test_measured_costs_are_those_of_the_first_pass() -> None:
    flat = {n: 0.002 * n for n in (1, 2, 4, 8, 16, 32)}
    deep = {n: 2 * seconds for n, seconds in flat.items()}
    steps = PromptSteps(512)
    steps.expect(ModelCosts({0: flat, 1024: deep}))
    assert (steps.size(0), steps.size(1024)) == (400, 192)
    assert steps.seconds(0, 100) == pytest.approx(0.2, rel=0.1)


def test_switching_speculation_off_and_on_in_the_middle() -> None:
    engine = pair(noise=0.3)
    baseline, _ = run(pair(), 0)
    cancel = Cancel()
    policy = FixedGamma(3)
    list(engine.prefill(PROMPT, cancel))
    settings = GenerateSettings(sampling=GREEDY, n_predict=60)
    tokens: list[int] = []
    for i, done in enumerate(engine.generate(PROMPT, settings, policy, cancel)):
        tokens.extend(done.tokens)
        policy.gamma = 0 if 3 <= i < 9 else 3
        assert done.drafted == 0 if 4 <= i < 10 else True
    assert tokens == baseline


def test_a_second_turn_reads_only_what_is_new() -> None:
    engine = pair(noise=0.3)
    answer, _ = run(engine, 4, n_predict=20)
    stats = GenerationStats()
    prompt = [*PROMPT, *answer, 4, 5, 6]
    stats.add_prefill(read(engine, prompt))
    settings = GenerateSettings(sampling=GREEDY, n_predict=20)
    for done in engine.generate(prompt, settings, FixedGamma(4), Cancel()):
        stats.add(done)
    # The last token of the answer had not been decoded; the prompt's last belongs to the round.
    assert (stats.prefill_cached, stats.prefill_decoded) == (22, 3)
    assert stats.draft_cached >= 18
    assert stats.draft_cached + stats.draft_prefill == len(prompt) + 1


def test_a_target_that_cannot_roll_back_is_never_speculated_on() -> None:
    engine = pair()
    target = engine.target
    target.can_truncate = False
    alone = Engine(target, *engine.drafters.values())
    assert not alone.drafts
    tokens, rounds = run(alone, 4)
    assert all(done.drafted == 0 for done in rounds)
    # When the text ends nothing may be rolled back either.
    target.model = StubModel(VOCAB, frozenset({tokens[7]}))  # type: ignore[misc, assignment]
    target.tokens.clear()
    assert run(alone, 4)[1][-1].finish is FinishReason.STOP


def test_the_figures_add_up() -> None:
    _, rounds = run(pair(noise=1.5), 4, n_predict=200)
    stats = GenerationStats()
    for done in rounds:
        stats.add(done)
    assert stats.generated_tokens == 200 == sum(done.emitted for done in rounds)
    assert stats.accepted_tokens <= stats.drafted_tokens
    assert (
        sum(done.from_draft for done in rounds)
        + stats.recovered_tokens
        + stats.bonus_tokens
        + sum(1 for done in rounds if done.drafted == 0)
        == 200
    )
    assert stats.acceptance_rate is not None
    assert 0 < stats.acceptance_rate < 1
    assert stats.mean_tokens_per_round == pytest.approx(200 / len(rounds))
    assert stats.decode_s >= stats.draft_s + stats.verify_s
