"""Draft heads through llama.cpp: EAGLE-3 and MTP, trained ones of the toy and random ones."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from gguf import gguf_reader as reader
from llama_cpp import llama_cpp_ext

from localspec.bench import benchmark
from localspec.chat.session.pair import LoadRecord
from localspec.chat.states.cached_prefixes import CachedPrefixes
from localspec.drafter_names import DFLASH, DRAFT, EAGLE3, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.head_drafter import HeadDrafter, SharedDrafter, head_drafter
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.drafters.steps import EXCERPT_TOKENS, GAP
from localspec.engine.length.gamma import FixedGamma, GammaPolicy
from localspec.engine.length.profile import DRAFT_SIZES, identity, measure
from localspec.engine.length.stopping import BASELINE, Plan, Situation
from localspec.engine.llama import BlockHead, Context, ContextOptions, Head, Model, head_of
from localspec.engine.llama.checkpoint import Rollback
from localspec.engine.llama.heads import head
from localspec.engine.llama.heads.target_states import Rows, TargetStates
from localspec.engine.llama.thread_controller import ThreadController
from localspec.engine.record.stats import FinishReason, GenerationStats, Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import Accept, SamplingParams
from localspec.engine.round.verify import Draft
from localspec.errors import Cancelled, EngineError, UnsupportedModel
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import identity_of
from localspec.loading.planning import load_plan
from localspec.pairs.disk import installed
from localspec.pairs.disk.installed import InstalledModel, InstalledPair
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf import header as gguf
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.model_facts import draft_facts, facts, mtp_facts
from localspec.pairs.memory.need import ModelSetup, need
from localspec.pairs.memory.outlook import outlook_for
from localspec.pairs.memory.placement import PROGRAM
from localspec.pairs.names import catalogue, resolver
from localspec.pairs.report.examine import examine

from .fakes import tokens_of
from .support import toy, wrong_heads
from .support.gemma4 import Assistant, write_assistant, write_gemma4
from .support.gguf_models import Sizes, vocabulary_of, write_llama, write_random_qwen35
from .support.heads import (
    Block,
    Eagle,
    split_mtp,
    write_chain,
    write_dflash,
    write_eagle3,
    write_mtp,
)
from .support.hub_world import World
from .support.pairwise import usually
from .support.short_bench import short_bench
from .test_toy import PROMPTS as ASKED

PROMPTS = (
    "Once upon a time there was a",
    "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a Python function that adds two numbers.<|im_end|>\n"
    "<|im_start|>assistant\n",
)
# Equally many of every kind that the toy knows; written for the bench, so no model saw them.
HELD_OUT = tuple(
    f"<|im_start|>user\n{each.text}<|im_end|>\n<|im_start|>assistant\n"
    for each in toy.questions().prompts
)
NEXT_TURN = "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SamplingParams(temperature=0.0)
# One thread, flash attention on: batches of every size give the same bits (Q8_0, CPU).
OPTIONS = ContextOptions(n_ctx=512, threads=1, flash_attention=True)


CHAINS = ("eagle3", "mtp", "random eagle3", "random mtp")
WITHIN = {
    MTP: write_mtp,
    "chain": write_chain,
    "hybrid": partial(write_random_qwen35, nextn=1),
}
"""Random targets with their head inside."""

BEGINNING = [
    *CHAINS[:2],
    "random dflash",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in CHAINS[2:]),
]
"""Heads that may begin with the end of a text."""

EVERY = [
    *("eagle3", "mtp", "random hybrid", "random dflash", "random assistant"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in CHAINS[2:]),
]
"""A head of every kind also by default."""


@pytest.fixture(
    scope="module",
    params=[
        *("eagle3", "random dflash", "random assistant"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mtp", *CHAINS[2:])),
        pytest.param("random hybrid", marks=pytest.mark.slow),
    ],
)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Model, Model]]:
    """A target and the model with its head: another file, or the target itself."""
    random, kind = request.param.startswith("random"), request.param.split()[-1]
    folder = tmp_path_factory.mktemp("heads")
    with ExitStack() as stack:
        if kind in (MTP, "chain", "hybrid"):
            path = WITHIN[kind](folder / "mtp.gguf") if random else toy.mtp()
            target = stack.enter_context(Model.load(path, mtp=True))
            yield target, target
            return
        if kind == "assistant":
            target = stack.enter_context(Model.load(write_gemma4(folder / "target.gguf")))
            yield (
                target,
                stack.enter_context(Model.load(write_assistant(folder / "h.gguf"), head=True)),
            )
            return
        write = write_dflash if kind == DFLASH else write_eagle3
        path = write(folder / "h.gguf") if random else toy.EAGLE3
        target = stack.enter_context(Model.load(toy.TARGET))
        yield target, stack.enter_context(Model.load(path, head=True))


@pytest.fixture
def engine(models: tuple[Model, Model]) -> Iterator[Engine]:
    with Context(models[0], OPTIONS) as target, head_of(models[1], target, OPTIONS) as made:
        yield Engine(target, head_drafter(made))


def drafter(engine: Engine) -> HeadDrafter:
    found = next(iter(engine.drafters.values()))
    assert isinstance(found, HeadDrafter)
    return found


def rounds(
    engine: Engine,
    prompt: Sequence[int],
    gamma: int,
    *,
    sampling: SamplingParams = GREEDY,
    accept: Accept = Accept.MATCH,
    n_predict: int = 32,
    stop_after: int = 0,
    policy: GammaPolicy | None = None,
    repeatable: bool = False,
) -> list[Round]:
    """The rounds of an answer, cancelled after some of them if wanted."""
    cancel, found = Cancel(), []
    policy = policy or FixedGamma(gamma)
    list(engine.prefill(prompt, cancel, policy))
    settings = GenerateSettings(
        sampling=sampling, accept=accept, n_predict=n_predict, repeatable=repeatable
    )
    for number, done in enumerate(engine.generate(prompt, settings, policy, cancel), 1):
        found.append(done)
        if number == stop_after:
            cancel.set()
    if stop_after:
        assert done.finish in (FinishReason.CANCELLED, FinishReason.STOP)
    return found


def run(engine: Engine, prompt: Sequence[int], gamma: int, **how: Any) -> tuple[list[int], int]:
    """The tokens of `rounds`, and how many were drafted."""
    found = rounds(engine, prompt, gamma, **how)
    return tokens_of(found), sum(done.drafted for done in found)


def ids(engine: Engine, text: str) -> list[int]:
    return engine.target.model.tokenize(text, add_special=True, parse_special=True)


_SAID: dict[object, list[int]] = {}


def baseline(engine: Engine, prompt: Sequence[int], **how: Any) -> list[int]:
    """The target's own tokens, in a separate cache; remembered for each target."""
    model = engine.target.model
    known = (model, *prompt, *sorted((name, repr(value)) for name, value in how.items()))
    if known not in _SAID:
        with Context(model, OPTIONS) as alone:
            _SAID[known] = run(Engine(alone), prompt, 0, **how)[0]
    return [*_SAID[known]]


@pytest.mark.parametrize("models", EVERY, indirect=True)
@pytest.mark.parametrize(("gamma", "count"), usually([(5, 1), (5, 3), (1, 3)], (5, 1)))
def test_greedy_text_is_that_of_the_baseline(engine: Engine, gamma: int, count: int) -> None:
    for text in PROMPTS[:count]:
        prompt = ids(engine, text)
        tokens, drafted = run(engine, prompt, gamma, n_predict=20)
        assert tokens == baseline(engine, prompt, n_predict=20)
        assert drafted > 0 or len(tokens) < 2


@pytest.mark.few(2)
@pytest.mark.parametrize("models", EVERY, indirect=True)
@pytest.mark.parametrize("gamma", usually([5, 2], 5))
def test_coupled_text_depends_on_the_seed_alone(engine: Engine, gamma: int) -> None:
    prompt = ids(engine, PROMPTS[0])
    how = {"sampling": SamplingParams(temperature=0.8, seed=3), "accept": Accept.COUPLED}
    expected = baseline(engine, prompt, **how)
    assert run(engine, prompt, gamma, **how)[0] == expected


def wrong(
    made: Head, truth: Sequence[int], places: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> HeadDrafter:
    """A drafter of the target's tokens up to the next of `places`, and of a wrong one there."""
    it = head_drafter(made)
    propose = it.propose

    def wrongly(tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        found, at = propose(tokens, plan, path), next(places)
        follows = [*truth[len(tokens) : len(tokens) + at + 1]]
        if len(follows) <= at:
            return replace(found, draft=Draft(()))
        follows[-1] = (follows[-1] + 1) % made.model.n_vocab
        return replace(found, draft=Draft(tuple(follows)))

    monkeypatch.setattr(it, "propose", wrongly)
    return it


def test_a_head_on_a_card_is_measured_and_that_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = drafter(engine).head
    monkeypatch.setattr(head.model, "offloaded", True)
    assert head.settles
    assert measure(head, DRAFT_SIZES, budget=0.5, one_row=True).points.keys() >= {1, 2}


@pytest.mark.parametrize("models", EVERY, indirect=True)
@pytest.mark.parametrize("at", usually(range(4), 1))
def test_a_rejection_at_every_position_leaves_no_trace(
    models: tuple[Model, Model], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(models[0], OPTIONS) as target, head_of(models[1], target, OPTIONS) as made:
        prompt = ids(Engine(target), PROMPTS[0])
        truth = baseline(Engine(target), prompt, n_predict=20)
        engine = Engine(target, wrong(made, [*prompt, *truth], itertools.repeat(at), monkeypatch))
        assert run(engine, prompt, 4, n_predict=20)[0] == truth


class Seldom(FixedGamma):
    """A policy that drafts only in round `at`, or in every round for 0.

    Drafting is switched off in the rounds after those of `off`.
    """

    def __init__(self, at: int, *, off: range = range(0)) -> None:
        super().__init__(3)
        self._at, self._off, self._round = at, off, -1  # the first round is never planned

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        return () if self._round in self._off else drafters

    def plan(self, situation: Situation) -> Plan:
        return super().plan(situation) if self._at in (0, self._round + 1) else BASELINE

    def observe(self, done: Round) -> None:
        self._round += 1


def check_all_ways(
    engine: Engine, alone: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch, **how: Any
) -> tuple[set[int], set[FinishReason | None]]:
    """Compare a conversation with the baseline's, whatever happens in it.

    Returns:
        The indices in the draft at which tokens were rejected, and how the answers ended.
    """
    said = run(alone, prompt, 0, n_predict=8, **how)[0]
    its = wrong(drafter(engine).head, [*prompt, *said], itertools.cycle(range(3)), monkeypatch)
    ways = [
        rounds(engine, prompt, 3, n_predict=8, **how),
        rounds(Engine(engine.target, its), prompt, 3, n_predict=8, **how),
        rounds(engine, prompt, 3, policy=Seldom(0, off=range(2, 4)), n_predict=8, **how),
    ]
    assert [tokens_of(way) for way in ways] == [said] * 3
    begun = run(engine, prompt, 3, stop_after=2, n_predict=8, **how)[0]
    assert begun == said[: len(begun)]
    second = [*said, *ids(engine, NEXT_TURN)[1:]]
    # Then the first turn is dropped: everything moves to other positions.
    for text in ([*prompt, *second], [prompt[0], *second]):
        ways.append(rounds(engine, text, 3, n_predict=5, **how))
        assert tokens_of(ways[-1]) == run(alone, text, 0, n_predict=5, **how)[0]
    rejected = {done.accepted for way in ways for done in way if done.accepted < done.drafted}
    return rejected, {way[-1].finish for way in ways}


@pytest.mark.slow
@pytest.mark.parametrize(
    "models",
    [*CHAINS, "random chain", "random hybrid", "random dflash", "random assistant"],
    indirect=True,
)
@pytest.mark.parametrize("accept", [Accept.MATCH, Accept.COUPLED])
def test_twenty_conversations_are_those_of_the_baseline(
    engine: Engine, accept: Accept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are equal bit by bit under `OPTIONS`: Q8_0, a CPU, one thread, flash attention."""
    rejected, ended = set(), set()
    with Context(engine.target.model, OPTIONS) as context:
        for seed, text in enumerate(HELD_OUT[:20]):
            warm = SamplingParams(temperature=0.8, seed=seed)
            sampling = warm if accept is Accept.COUPLED else GREEDY
            how = {"sampling": sampling, "accept": accept}
            found = check_all_ways(engine, Engine(context), ids(engine, text), monkeypatch, **how)
            rejected |= found[0]
            ended |= found[1]
    assert rejected >= {0, 1, 2}
    assert FinishReason.LENGTH in ended
    if engine.target.model.path in (toy.TARGET, toy.mtp()):  # random weights end no answer
        assert FinishReason.STOP in ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "gamma", "least"),
    [("eagle3", 4, 0.50), ("mtp", 1, 0.65)],
    indirect=["models"],
)
def test_trained_heads_are_right_often_enough(engine: Engine, gamma: int, least: float) -> None:
    """Also in greedy answers to the questions on which the small draft is measured."""
    drafted = accepted = 0
    for text in ASKED:
        prompt = ids(engine, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
        for done in rounds(engine, prompt, gamma, n_predict=64):
            drafted, accepted = drafted + done.drafted, accepted + done.accepted
    assert drafted > 150
    assert accepted / drafted >= least


def test_a_head_goes_on_as_if_it_had_seen_everything_at_once(engine: Engine) -> None:
    """Rounds with rejections, a cancelled turn, more turns, baseline rounds, a return."""
    first = ids(engine, PROMPTS[0])
    said, _ = run(engine, first, 3, stop_after=4)
    second = [*first, *said, *ids(engine, "\nThen")[1:]]
    run(engine, second, 0, n_predict=5, policy=Seldom(1000))
    said, _ = run(engine, second, 2, n_predict=9)
    third = [*second, *said, *ids(engine, " a little bird")[1:]]
    run(engine, third, 3, n_predict=1)

    made = drafter(engine).head
    with (
        Context(engine.target.model, OPTIONS) as target,
        head_of(made.model, target, OPTIONS) as new,
    ):
        fresh = Engine(target, head_drafter(new))
        run(fresh, third, 3, n_predict=1)
        proposals = []
        for each in (engine, fresh):
            its = drafter(each)
            list(each.prefill(third, Cancel()))
            each.target.decode(third[-1:], 1)
            text = [*third, 300]
            proposals.append(its.propose(text, Plan(4, its.name)).draft.tokens)
        assert proposals[0] == proposals[1]
        assert len(proposals[0]) > 0


@pytest.fixture
def passes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every encode and decode of the head."""
    made, counted = drafter(engine).head, list[int]()
    process = made._process
    monkeypatch.setattr(made, "_process", lambda *kind: (counted.append(1), process(*kind)))
    return counted


@pytest.mark.few(1)
def test_baseline_rounds_and_prompts_cost_a_head_nothing(engine: Engine, passes: list[int]) -> None:
    """So it is with a head that seldom drafts, and with drafting off: then no states are copied."""
    prompt = ids(engine, PROMPTS[2]) * 4
    run(engine, prompt, 0, n_predict=24)
    made = drafter(engine).head
    assert not engine.target.readers
    assert not any(engine.target.tapped.values())
    assert (made.states.first, made.states.end, made.tokens, passes) == (0, 0, [], [])
    more = [*prompt, *prompt]
    run(engine, more, 0, n_predict=24, policy=Seldom(1000))
    assert made.states.end > len(more)
    assert passes == []
    run(engine, prompt, 0, n_predict=24, policy=Seldom(20))
    assert 0 < len(passes) <= 2 * (len(prompt) // made.n_batch + 5)


@pytest.mark.slow
@pytest.mark.parametrize("models", BEGINNING, indirect=True)
def test_a_head_not_asked_for_long_begins_with_the_last_part_of_the_text(
    engine: Engine, passes: list[int]
) -> None:
    made = drafter(engine).head
    made.states = TargetStates(12, made.states._rows.shape[1])
    prompt = ids(engine, PROMPTS[2]) * 4
    tokens, drafted = run(engine, prompt, 0, policy=Seldom(20))
    assert tokens == baseline(engine, prompt)
    assert drafted == 3
    assert made.first > len(prompt)
    assert len(made.tokens) <= 12
    assert len(passes) <= 6
    assert run(engine, prompt, 3)[0] == tokens


def test_the_latest_states_are_kept_whole_and_in_order() -> None:
    """Two layers' states side by side, through a ring that begins anew within some of the puts."""
    states, shown, luck = TargetStates(5, 4), {}, np.random.default_rng(7)
    for start, n, held in (
        (0, 3, 3),
        (3, 4, 5),
        (7, 12, 5),
        (19, 1, 5),
        (16, 2, 3),
        (40, 5, 5),
        (43, 1, 4),
    ):
        rows = luck.random((n, 4), np.float32)
        states.put(start, (rows[:, :2], rows[:, 2:]))
        shown |= {start + at: row for at, row in enumerate(rows)}
        assert (states.end, states.end - states.first) == (start + n, held)
        known = states.get(states.first, held)
        assert np.array_equal(known, [shown[at] for at in range(states.first, states.end)])


@pytest.mark.few(1)
@pytest.mark.parametrize("models", BEGINNING, indirect=True)
def test_a_head_begins_with_the_end_of_a_long_text_and_goes_on_from_there(
    engine: Engine, passes: list[int]
) -> None:
    """A head that is never right therefore costs little after a long prompt."""
    its, prompt = drafter(engine), (ids(engine, PROMPTS[2]) * 12)[:250]
    list(engine.prefill(prompt, Cancel(), FixedGamma(3)))
    engine.target.decode(prompt[-1:], 1)
    assert its.state([*prompt, 300]).pending in (
        EXCERPT_TOKENS,
        EXCERPT_TOKENS + 1,
    )  # the newest token, of a block
    tokens, drafted = run(engine, prompt, 0, policy=Seldom(3))
    assert tokens == baseline(engine, prompt)
    assert drafted == 3
    begun = its.head.first
    assert begun == len(prompt) + 2 - EXCERPT_TOKENS
    assert len(passes) <= 2 * (EXCERPT_TOKENS // its.head.n_batch + 3)
    run(engine, prompt, 3, n_predict=64)
    assert its.head.first == begun
    assert len(its.head.tokens) > EXCERPT_TOKENS
    missing, end = (GAP, GAP + 1), its.head.end  # it goes on over what a copy leaves, and no more
    pending = [its.state([7] * (end + 1 + n)).pending for n in missing]
    assert pending in ([GAP, EXCERPT_TOKENS], [GAP + 1, EXCERPT_TOKENS + 1])


def test_a_head_reuses_the_rows_that_it_holds(engine: Engine) -> None:
    its, prompt = drafter(engine), (ids(engine, PROMPTS[2]) * 12)[:250]
    if isinstance(its, SharedDrafter):
        pytest.skip("has no rows")

    def known(text: list[int]) -> tuple[int, int]:
        stats = GenerationStats()
        for done in rounds(engine, text, 3, n_predict=8):
            stats.add(done)
            text += done.tokens
        return stats.draft_cached, stats.draft_prefill

    assert known(prompt) == (0, EXCERPT_TOKENS)
    held = len(its.head.tokens)
    cached, read = known([*prompt, *prompt[:20]])
    assert held - 1 <= cached <= held
    assert 20 <= read <= 24


@pytest.mark.few(1)
def test_a_head_switched_off_and_on_in_an_answer_says_the_same(engine: Engine) -> None:
    prompt = ids(engine, PROMPTS[0])
    expected = baseline(engine, prompt)
    for at, off in ((12, range(3, 8)), (5, range(3, 5)), (7, range(3, 5))):
        tokens, drafted = run(engine, prompt, 0, policy=Seldom(at, off=off))
        assert tokens == expected
        assert drafted == (0 if at - 2 in off else 3)  # after `off` it lacks a state


@pytest.mark.slow
@pytest.mark.few(2)
def test_a_head_is_shown_what_its_own_engine_decodes_alone(models: tuple[Model, Model]) -> None:
    with Context(models[0], OPTIONS) as target:
        made = [head_of(models[1], target, OPTIONS) for _ in range(2)]
        engines = [Engine(target, head_drafter(each)) for each in made]
        prompt = ids(engines[0], PROMPTS[0])
        said = [run(each, prompt, 3)[0] for each in engines]
        assert said[0] == said[1] == baseline(engines[0], prompt)
        assert target.readers == (made[1],)
        made[1].close()
        assert target.readers == ()
        assert not any(target.tapped.values())
        assert run(engines[0], prompt, 3)[0] == said[0]
        made[0].close()


@pytest.mark.few(1)
@pytest.mark.parametrize("models", ["random hybrid"], indirect=True)
@pytest.mark.parametrize("snapshots", [0, 2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_head_inside_a_target_with_a_state_goes_back_with_it(
    models: tuple[Model, Model], snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target goes back to copies of its state, or to snapshots; the head's cache is cut."""
    head_checks.require_mtp(gguf.read_header(models[0].path), "it")
    how = replace(OPTIONS, snapshots=snapshots)
    with (
        Context(models[0], how) as target,
        Context(models[0], OPTIONS) as alone,
        head_of(models[1], target, how) as made,
    ):
        assert target.rollback is (Rollback.SNAPSHOTS if snapshots else Rollback.CHECKPOINT)
        assert made.rollback is Rollback.REMOVAL
        engine = Engine(target, head_drafter(made))
        warm = {"sampling": SamplingParams(temperature=0.8, seed=3), "accept": Accept.COUPLED}
        for text, kind in itertools.product(PROMPTS, ({}, warm)):
            rejected, _ = check_all_ways(
                engine, Engine(alone), ids(engine, text), monkeypatch, **kind
            )
            assert rejected >= {0, 1, 2}


@pytest.mark.few(1)
def test_a_text_without_its_first_turns_is_answered_like_any_other(engine: Engine) -> None:
    """All tokens move to other positions, as when a full context drops its first turns."""
    first = ids(engine, PROMPTS[1])
    said, _ = run(engine, [*first, *ids(engine, PROMPTS[2])[1:]], 3)
    left = [*ids(engine, PROMPTS[2]), *said, *ids(engine, "\nThen")[1:]]
    tokens, drafted = run(engine, left, 3)
    assert tokens == baseline(engine, left)
    assert drafted > 0


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("accept", [Accept.BLOCK, Accept.TOKEN])
def test_with_a_seed_a_text_does_not_depend_on_what_a_head_read_before(
    engine: Engine, accept: Accept
) -> None:
    """The second turn follows one with or without drafts, is repeated, and has a new cache."""
    sampling = SamplingParams(temperature=1.0, seed=5)
    first = ids(engine, PROMPTS[1])
    said, _ = run(engine, first, 3)
    second = [*first, *said, *ids(engine, PROMPTS[2])[1:]]

    def answer() -> tuple[list[int], int]:
        how = {"sampling": sampling, "accept": accept, "repeatable": True}
        return run(engine, second, 3, **how)

    found = [answer(), answer()]
    for gamma in (0, 3):
        engine.target.clear()
        drafter(engine).head.clear()
        list(engine.prefill([*first, *said], Cancel(), FixedGamma(gamma)))
        found.append(answer())
    assert found == found[:1] * 4
    assert found[0][1] > 0


@pytest.mark.slow
@pytest.mark.few(1)
def test_a_head_goes_over_to_another_text_and_back(engine: Engine) -> None:
    made = drafter(engine).head
    prefixes = CachedPrefixes(lambda: (engine.target, made), room=lambda: 1 << 30)
    texts = [ids(engine, text) * 3 for text in (PROMPTS[0], PROMPTS[2])]
    for text in (*texts, *texts):
        prefixes.switch(text)
        tokens, drafted = run(engine, text, 3)
        assert tokens == baseline(engine, text)
        assert drafted > 0


@pytest.mark.few(1)
def test_a_turn_that_changes_what_was_said_is_answered_like_any_other(engine: Engine) -> None:
    first = ids(engine, PROMPTS[0])
    said, _ = run(engine, first, 3)
    changed = [*first, *said[:-3], *ids(engine, " a little bird")[1:]]
    assert run(engine, changed, 3)[0] == baseline(engine, changed)


@pytest.mark.few(1)
def test_a_head_that_came_late_drafts_from_what_it_is_shown(models: tuple[Model, Model]) -> None:
    with Context(models[0], OPTIONS) as target:
        prompt = ids(Engine(target), PROMPTS[0])
        truth = baseline(Engine(target), prompt)
        run(Engine(target), prompt, 0, n_predict=4)
        with head_of(models[1], target, OPTIONS) as made:
            tokens, drafted = run(Engine(target, head_drafter(made)), prompt, 3)
            assert tokens == truth
            assert drafted > 0
            if made.holds and target.rollback is Rollback.REMOVAL:  # else all is read again
                assert made.first >= len(prompt) - 1


def states_of(made: Head, tokens: Sequence[int]) -> np.ndarray:
    made.target.show([made])
    made.target.decode(tokens, 1)
    return made.fused(np.concatenate(made.shown(len(tokens)), axis=1)).copy()


@pytest.mark.parametrize("models", CHAINS, indirect=True)
def test_rows_are_the_same_one_by_one_and_together(engine: Engine) -> None:
    """llama.cpp computes EAGLE-3's other rows wrongly if only some rows have logits."""
    made = drafter(engine).head
    text = ids(engine, PROMPTS[2])[:14]
    states = states_of(made, text)
    assert states.shape == (14, made.width)
    following = text[1:]
    single = [made.read(following[i : i + 1], states[i : i + 1], output=True) for i in range(13)]
    for parts in ([13], [5, 8], [3, 1, 9]):
        made.start(0)
        at = 0
        for size in parts:
            row, state = made.read(following[at : at + size], states[at : at + size], output=True)
            at += size
            assert np.abs(row - single[at - 1][0]).max() < 1e-3
            assert np.abs(state - single[at - 1][1]).max() < 1e-2 * np.abs(state).max()


BLOCKS = {
    "dflash": Block(),
    "dspark": Block(anchored=True),
    "dspark, from the place behind": Block(anchored=False),
    "dflash2": Block(candidates=4),
    "of few tokens": Block(own_output=64, d2t=[*range(300, 364)]),
    "dspark of few tokens": Block(own_output=64, d2t=[*range(300, 364)], anchored=True),
    "of one layer, and long": Block(taps=(4,), places=24),
}
MORE_BLOCKS = ("dspark", "dspark, from the place behind", "dflash2", "of few tokens")


@pytest.fixture(
    params=[
        *("dflash", "dspark of few tokens", "of one layer, and long"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE_BLOCKS),
    ]
)
def blocks(request: pytest.FixtureRequest, target_model: Model, tmp_path: Path) -> Iterator[Engine]:
    """An engine whose drafter guesses several tokens in one pass."""
    path = write_dflash(tmp_path / "head.gguf", BLOCKS[request.param])
    head_checks.require_head(gguf.read_model(path), gguf.read_header(target_model.path))
    with (
        Model.load(path, head=True) as model,
        Context(target_model, OPTIONS) as target,
        head_of(model, target, OPTIONS) as made,
    ):
        yield Engine(target, head_drafter(made))


@pytest.mark.few(1)
def test_blocks_of_every_kind_leave_the_text_as_it_is(blocks: Engine) -> None:
    prompt = ids(blocks, PROMPTS[0])
    warm = {"sampling": SamplingParams(temperature=0.8, seed=3), "accept": Accept.COUPLED}
    for how in ({}, warm):
        tokens, drafted = run(blocks, prompt, 5, **how)
        assert tokens == baseline(blocks, prompt, **how)
        assert drafted > 20


def test_a_guess_leaves_nothing_behind(blocks: Engine) -> None:
    """A guess depends only on the states, the newest token and the length of the block."""
    made, text = drafter(blocks).head, ids(blocks, PROMPTS[2])[:14]
    assert isinstance(made, BlockHead)
    assert made.longest == head_checks.block(gguf.read_header(made.model.path))
    states = states_of(made, text)

    def guessed(token: int, n: int, *parts: int) -> np.ndarray:
        made.start(0)
        for start, end in itertools.pairwise((0, *parts, 14)):
            for at in range(start, end, made.n_batch):
                rows = slice(at, min(end, at + made.n_batch))
                made.read(text[rows], states[rows], output=False)
        return again(token, n)

    def again(token: int, n: int) -> np.ndarray:
        behind = made.guess(token, n)
        rows = [behind(token, 0).copy()]
        for at in range(1, n):
            rows.append(behind(int(rows[-1].argmax()), at).copy())
        assert len(made.tokens) == 14
        return np.stack(rows)

    first = guessed(300, 3)
    known = np.isfinite(first)
    for same in (guessed(300, 3, 2, 9), again(300, 3)):
        assert np.array_equal(np.isfinite(same), known)
        assert np.abs(same[known] - first[known]).max() < 0.02
    for other in (again(301, 3), again(300, 4)[:3]):
        assert not np.array_equal(other, first)
    made.start(0)
    made.read(text[:1], states[:1], output=False)
    assert not np.array_equal(made.guess(300, 3)(300, 0), first[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["mtp", "hybrid", "chain"])
def test_mtp_layers_in_a_file_of_their_own_draft_as_those_inside(kind: str, tmp_path: Path) -> None:
    whole = WITHIN[kind](tmp_path / "whole.gguf")
    split_mtp(whole, tmp_path / "trunk.gguf", tmp_path / "mtp-trunk.gguf")
    found = []
    for target, head_of_it in ((whole, whole), (tmp_path / "trunk.gguf", None)):
        with ExitStack() as stack:
            model = stack.enter_context(Model.load(target, mtp=head_of_it is not None))
            alone = Model.load(tmp_path / "mtp-trunk.gguf", mtp=True)
            stack.callback(alone.close)
            context = stack.enter_context(Context(model, OPTIONS))
            layers = model if head_of_it is not None else alone
            made = stack.enter_context(head_of(layers, context, OPTIONS))
            assert made.kind == MTP
            engine = Engine(context, head_drafter(made))
            prompt = ids(engine, PROMPTS[2])
            done = rounds(engine, prompt, 3)
            assert [t for each in done for t in each.tokens] == baseline(engine, prompt)
            found.append([(each.tokens, each.drafted) for each in done])
    assert found[0] == found[1]


def test_an_mtp_file_next_to_a_target_is_found_and_planned(tmp_path: Path) -> None:
    whole = write_mtp(tmp_path / "whole.gguf")
    trunk, head_file = tmp_path / "a" / "t.gguf", tmp_path / "a" / "mtp-t.gguf"
    trunk.parent.mkdir()
    split_mtp(whole, trunk, head_file)
    request = LoadRequest(pair=str(trunk), draft="mtp", ctx_size=256, scan=False)
    checked = check(request)
    (draft,) = checked.drafts
    assert (draft.kind, draft.files.paths, draft.in_target) == (MTP, (head_file,), False)
    plan = load_plan(checked)
    session = load_session(checked, progress=lambda *_: None, cancel=Cancel())
    try:
        memory = session.memory()
        taken = memory.target_weights + memory.draft_weights + memory.buffers
        assert abs(plan.memory.total - taken - memory.target_cache - memory.draft_cache) < 8e6
    finally:
        session.close()
    with pytest.raises(UnsupportedModel, match="is a mtp head"):
        check(replace(request, pair=str(head_file), draft="none"))
    with pytest.raises(UnsupportedModel, match="continues a glm4moe model"):
        check(LoadRequest(pair=str(toy.TARGET), draft=str(head_file), scan=False))


@pytest.mark.parametrize("folder", ["a", "b"])
@pytest.mark.parametrize("asked", ["auto,mtp", "mtp,{head}"])
def test_a_head_that_was_asked_for_in_two_ways_drafts_once(
    asked: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    whole = write_mtp(tmp_path / "whole.gguf")
    trunk, head_file = tmp_path / "a" / "t.gguf", tmp_path / folder / "mtp-t.gguf"
    for file in (trunk, head_file):
        file.parent.mkdir(exist_ok=True)
    split_mtp(whole, trunk, head_file)
    models = [InstalledModel((str(path),)) for path in (trunk, head_file)]
    installed.save(InstalledPair("mine", *models))
    draft = asked.format(head=head_file)
    (known,) = check(LoadRequest(pair="mine", draft=draft, scan=False)).drafts
    assert known.files.paths == (head_file,)
    (shown,) = examine("mine", draft, RetryPolicy(), scan=False).drafts
    assert shown.paths == (head_file,)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Engine]:
    """A target with three MTP layers, each of which predicts one token further ahead."""
    path = write_chain(tmp_path / "chain.gguf")
    head_checks.require_mtp(gguf.read_header(path), "it")
    with (
        Model.load(path, mtp=True) as model,
        Context(model, OPTIONS) as target,
        head_of(model, target, OPTIONS) as made,
    ):
        yield Engine(target, head_drafter(made))


def test_each_of_several_layers_drafts_a_token(chain: Engine) -> None:
    prompt = ids(chain, PROMPTS[2])
    warm = {"sampling": SamplingParams(temperature=0.8, seed=3), "accept": Accept.COUPLED}
    for how in ({}, warm):
        expected = baseline(chain, prompt, **how)
        for gamma in (1, 2, 7):
            tokens, drafted = run(chain, prompt, gamma, **how)
            assert tokens == expected
            assert drafted > 20 * min(gamma, 3)


def test_a_further_layer_reads_what_was_drafted_and_all_before(chain: Engine) -> None:
    """Rows of one layer leave the rows of the others unchanged."""
    made, text = drafter(chain).head, ids(chain, PROMPTS[2])[:14]
    states = states_of(made, text)
    first, state = made.read(text[1:], states[:-1], output=True)
    again = made.tokens[-1:], states[-2:-1]

    def second(*, together: bool) -> np.ndarray:
        made.keep(12)
        if not together:
            made.read(*again, output=False, layer=1)
            return made.read([300], state, output=True, layer=1)[0]
        return made.read([*again[0], 300], np.r_[again[1], state], output=True, layer=1)[0]

    one, other = second(together=False), second(together=True)
    assert np.abs(one - other).max() < 1e-3
    made.keep(12)
    assert np.abs(made.read(*again, output=True, layer=0)[0] - first).max() < 1e-3
    assert np.abs(one - first).max() > 0.1
    made.start(12)
    assert np.abs(second(together=True) - one).max() > 1e-3


def test_several_layers_take_what_was_planned(chain: Engine) -> None:
    made = drafter(chain).head
    sizes = mtp_facts(gguf.read_header(made.model.path))
    planned = need(sizes, ModelSetup(n_ctx=OPTIONS.n_ctx))
    assert planned.host_cache == pytest.approx(made.cache_bytes, rel=0.01, abs=40_000)
    assert sum(1 for each in sizes.layer_weights if each) == made.layers == 3


def test_states_of_a_long_prompt_are_those_of_short_pieces(engine: Engine) -> None:
    made, target = drafter(engine).head, engine.target
    text = (ids(engine, PROMPTS[2]) * 8)[:150]
    whole = states_of(made, text)
    target.clear()
    parts = [states_of(made, text[start : start + 50]) for start in range(0, 150, 50)]
    assert np.abs(np.concatenate(parts) - whole).max() < 0.05 * np.abs(whole).max()


def test_closing_one_head_leaves_the_other_what_it_reads(models: tuple[Model, Model]) -> None:
    with Context(models[0], OPTIONS) as target, head_of(models[1], target, OPTIONS) as made:
        other = head_of(models[1], target, OPTIONS)
        target.show([made, other])
        other.close()
        assert np.abs(states_of(made, [5, 6, 7])).max() > 0


def test_a_head_stopped_while_it_warms_up_leaves_the_next_what_it_reads(
    models: tuple[Model, Model],
) -> None:
    cancel = Cancel()
    cancel.set()
    with Context(models[0], OPTIONS) as target:
        with pytest.raises(Cancelled):
            head_of(models[1], target, OPTIONS, cancel)
        with head_of(models[1], target, OPTIONS) as made:
            assert np.abs(states_of(made, [5, 6, 7])).max() > 0


def test_a_head_leaves_busy_cores_to_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drafter(engine).head
    made.threads.use(2, at_most=True)
    made.threads.hold(False)
    monkeypatch.setattr(ThreadController, "poll", lambda self: 1)
    run(engine, ids(engine, PROMPTS[0]), 3)
    assert made.threads.now == 1


def test_what_a_head_costs_is_kept_apart_from_the_model_in_the_same_file(
    models: tuple[Model, Model],
) -> None:
    with (
        Context(models[0], OPTIONS) as target,
        Context(models[0], OPTIONS) as whole,
        head_of(models[1], target, OPTIONS) as made,
    ):
        head, model = (identity(context, threads=1, draft=True) for context in (made, whole))
        assert head != model


def test_costs_are_kept_under_each_model_s_own_layers_on_accelerators() -> None:
    path, loaded = toy.DRAFT, LoadRecord(ctx_size=256, threads=1)
    for layers in (3, 0):
        with Model.load(path, n_gpu_layers=layers) as model, Context(model, OPTIONS) as context:
            assert identity_of(context, loaded, draft=True)["n_gpu_layers"] == layers


def test_an_installed_head_counts_as_a_head_in_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    files = [toy.TARGET, toy.EAGLE3]
    target, head = (InstalledModel((str(path),), n_bytes=path.stat().st_size) for path in files)
    installed.save(InstalledPair("mine", target, head))
    listed = next(row.fit for row in catalogue.rows() if row.name == "mine")
    whole, own = (gguf.read_header(path) for path in files)
    assert listed.needed == outlook_for(facts(whole), [draft_facts(own)]).fit.needed
    assert listed.needed != outlook_for(facts(whole), [facts(own)]).fit.needed


def test_a_pair_may_have_a_draft_model_and_a_head(hub_world: World) -> None:
    target, draft, head = toy.TARGET, toy.DRAFT, toy.EAGLE3
    both = f"{draft},{head}"
    done = hub_world.run("pull", str(target), "--draft", both, "--name", "mine")
    assert done.code == 0, done.err
    found = resolver.resolve("mine")
    assert found.drafts == (draft, head)
    planned = load_plan(check(LoadRequest(pair="mine", ctx_size=256)))
    assert [each.kind for each in planned.checked.drafts] == [DRAFT, EAGLE3]
    spelt = LoadRequest(pair=str(target), draft=both, ctx_size=256)
    assert planned.memory.total == load_plan(check(spelt)).memory.total
    shown = hub_world.run("show", "mine").out
    assert f"draft       {draft}" in shown
    assert f"head        {head}" in shown
    shown_data = json.loads(hub_world.run("show", "mine", "--json").out)
    assert [each["label"] for each in shown_data["besides"]] == [str(head)]
    row = next(row for row in catalogue.rows() if row.name == "mine")
    assert (row.state, row.draft) == ("installed", f"{draft},{head}")
    assert row.n_bytes == sum(path.stat().st_size for path in (target, draft, head))
    # Naming the target, or the pair as the draft, brings both drafters.
    for how in ({"pair": str(target)}, {"pair": str(target), "draft": "mine"}):
        again = check(LoadRequest(ctx_size=256, **how))
        assert [each.files.paths[0] for each in again.drafts] == [draft, head]
    again = hub_world.run("pull", str(target), "--draft", both, "--name", "mine")
    assert again.code == 0, again.err
    other = hub_world.run("pull", str(target), "--draft", str(draft), "--name", "mine")
    assert other.code != 0
    assert "another pair named mine" in other.err


def test_a_list_s_memory_counts_all_that_drafts(hub_world: World) -> None:
    target, draft, head = toy.TARGET, toy.DRAFT, toy.EAGLE3
    reports = [
        examine(str(target), ",".join(map(str, drafts)), RetryPolicy(), n_ctx=512)
        for drafts in ((draft,), (draft, head))
    ]
    one, both = (report.outlook.fit.needed for report in reports)
    own = need(draft_facts(gguf.read_header(head)), ModelSetup(n_ctx=512)).total
    assert both - one == own > 0


@pytest.mark.parametrize(
    ("named", "says"), [("{0},{0}", "twice"), ("none,{0}", "none together with others")]
)
def test_what_drafts_in_a_pair_is_named_once(hub_world: World, named: str, says: str) -> None:
    target, head = toy.TARGET, toy.EAGLE3
    for command in ("pull", "show"):
        done = hub_world.run(command, str(target), "--draft", named.format(head))
        assert done.code == 2
        assert says in done.err


def test_a_head_for_another_target_is_no_part_of_a_pair(hub_world: World, tmp_path: Path) -> None:
    target, draft = toy.TARGET, toy.DRAFT
    wrong = write_eagle3(tmp_path / "wrong.gguf", Eagle(taps=(1, 2, 99)))
    done = hub_world.run("pull", str(target), "--draft", f"{draft},{wrong}", "--name", "mine")
    assert done.code == 1
    assert "does not fit this target" in done.err
    assert installed.find("mine") is None


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [MTP, "hybrid"])
def test_a_bench_takes_mtp_wherever_it_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 0.0)
    target = WITHIN[kind](tmp_path / "mtp.gguf")
    options = LoadRequest(pair=str(target), draft="lookup", threads=1, ctx_size=256, gamma=2)
    report = short_bench(options, "lookup", "mtp")
    drafted = {run.arm: sum(done.drafted for done in run.stats.rounds) for run in report.runs}
    assert len(drafted) == 3
    assert list(drafted.values())[-1] > 0
    assert report.agreement.same == report.agreement.compared == 2


def test_a_reduced_vocabulary_drafts_its_own_tokens_alone(
    target_model: Model, tmp_path: Path
) -> None:
    known = [*range(300, 364)]
    path = write_eagle3(tmp_path / "e.gguf", Eagle(own_output=64, d2t=known))
    head_checks.require_head(gguf.read_model(path), gguf.read_header(target_model.path))
    with (
        Model.load(path, head=True) as model,
        Context(target_model, OPTIONS) as target,
        head_of(model, target, OPTIONS) as made,
    ):
        engine = Engine(target, head_drafter(made))
        prompt = ids(engine, PROMPTS[0])
        assert run(engine, prompt, 3)[0] == baseline(engine, prompt)
        row, _ = made.read([5], np.zeros((1, made.width), np.float32), output=True)
        assert set(np.flatnonzero(np.isfinite(row))) == set(known)


def test_a_full_context_ends_the_draft(models: tuple[Model, Model]) -> None:
    small = replace(OPTIONS, n_ctx=64)
    with Context(models[0], small) as target, head_of(models[1], target, small) as made:
        engine = Engine(target, head_drafter(made))
        prompt = (ids(engine, PROMPTS[2]) * 4)[:40]
        tokens, _ = run(engine, prompt, 7, n_predict=-1)
        assert len(prompt) + len(tokens) <= 65
        with pytest.raises(EngineError):
            made.decode([0] * 65, 1)


TEXTS = (
    *HELD_OUT[:3],
    "Once upon a time there was a little bird. It could not sing, and the other birds laughed. "
    * 2,
    "def add(a, b):\n    return a + b\n\n\ndef largest(numbers):\n    return max(numbers)\n" * 3,
)


def computed(model: Model, text: Sequence[int], size: int, *, flash: bool, heads: int = 0) -> Rows:
    """Logits of a whole text read `size` tokens at once, with `heads` that read the states."""
    with ExitStack() as stack:
        how = replace(OPTIONS, flash_attention=flash)
        context = stack.enter_context(Context(model, how))
        made = [stack.enter_context(head_of(model, context, how)) for _ in range(heads)]
        context.show(made)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        return np.concatenate([context.decode(part, len(part)).copy() for part in parts])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "flash"),
    [
        *((3, False), (1, True), (64, True)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, False), (3, True), (20, False), (20, True), (64, False))
        ),
    ],
)
def test_a_head_inside_the_target_changes_no_bit_of_what_it_computes(
    size: int, flash: bool
) -> None:
    path = toy.mtp()
    with Model.load(path) as without, Model.load(path, mtp=True) as model:
        for text in TEXTS:
            tokens = model.tokenize(text, add_special=True, parse_special=True)
            expected = computed(without, tokens, size, flash=flash)
            assert np.array_equal(computed(model, tokens, size, flash=flash, heads=1), expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 1])
def test_the_target_with_mtp_computes_what_the_plain_one_does(size: int) -> None:
    """Sums over keys run in another order, which Q8_0 magnifies to hundredths of a logit."""
    files = [toy.TARGET, toy.mtp()]
    with Model.load(files[0]) as plain_one, Model.load(files[1], mtp=True) as model:
        for text, flash in itertools.product(TEXTS, (False, True)):
            tokens = model.tokenize(text, add_special=True, parse_special=True)
            expected = computed(plain_one, tokens, size, flash=flash)
            found = computed(model, tokens, size, flash=flash, heads=1)
            assert np.abs(found - expected).max() < 0.3
            assert np.abs(found - expected).mean() < 0.05


def test_of_a_token_alone_the_target_with_mtp_computes_the_same_bits() -> None:
    """All layers give the same bits, except for the order of sums over several keys."""
    files = [toy.TARGET, toy.mtp()]
    with Model.load(files[0]) as plain_one, Model.load(files[1], mtp=True) as model:
        tokens = {
            t for text in TEXTS for t in model.tokenize(text, add_special=True, parse_special=True)
        }
        with Context(plain_one, OPTIONS) as one, Context(model, OPTIONS) as other:
            for token in tokens:
                rows = []
                for context in (one, other):
                    context.clear()
                    rows.append(context.decode([token], 1))
                assert np.array_equal(*rows)


def test_the_target_with_mtp_holds_the_plain_one_s_weights() -> None:
    """They are equal byte by byte, except that rows rotated in pairs are stored in halves."""
    files = [reader.GGUFReader(path) for path in (toy.TARGET, toy.mtp())]
    plain_one, model = ({each.name: each.data for each in file.tensors} for file in files)
    width = 64  # of a head
    for name, data in plain_one.items():
        found = model[name.replace("ffn_norm", "post_attention_norm")]
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            turned = found.reshape(-1, 2, width // 2, found.shape[-1])
            found = turned.swapaxes(1, 2).reshape(found.shape)
        assert np.array_equal(found, data), name
    assert {name[:6] for name in model.keys() - plain_one.keys() if "post_att" not in name} == {
        "blk.8."
    }


@pytest.mark.parametrize("n_ctx", [512, 4096])
def test_a_head_takes_what_was_planned(models: tuple[Model, Model], n_ctx: int) -> None:
    how = replace(OPTIONS, n_ctx=n_ctx)
    header = gguf.read_header(models[1].path)
    sizes = mtp_facts(header) if models[0] is models[1] else draft_facts(header)
    planned = need(sizes, ModelSetup(n_ctx=n_ctx))
    with Context(models[0], how) as target, head_of(models[1], target, how) as made:
        used = made.cache_bytes + made.buffer_bytes
        used += planned.host_weights if models[0] is models[1] else made.model.weights_bytes
        assert planned.host_cache == pytest.approx(made.cache_bytes, rel=0.01, abs=40_000)
        later = 4 * sizes.shown * (sizes.held * min(n_ctx, 512) + 256) + sizes.table
        assert abs(planned.total - later - used) <= max(2_000_000, 0.05 * used)
    if models[0] is models[1]:
        whole = need(facts(header), ModelSetup(n_ctx=n_ctx)).host_weights + planned.host_weights
        assert whole == pytest.approx(models[0].weights_bytes, rel=0.02)


def taken(target: str, file: str, n_ctx: int) -> int:
    """Bytes that a head and a draft of it add to this process, the target's decodes included."""
    how, process = replace(OPTIONS, n_ctx=n_ctx), psutil.Process()
    with Model.load(Path(target)) as model, Context(model, how) as context:
        text = [300] * 600
        run(Engine(context), text, 0)
        gc.collect()  # Python's garbage does not count
        before = process.memory_full_info().uss
        with Model.load(Path(file), head=True) as own, head_of(own, context, how) as made:
            run(Engine(context, head_drafter(made)), [301, *text], 4)
            assert made.tokens or not made.holds
            gc.collect()
            return process.memory_full_info().uss - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is counted otherwise")
@pytest.mark.parametrize(
    ("vocab", "kind"),
    [
        (0, "eagle3"),
        *(pytest.param(0, kind, marks=pytest.mark.slow) for kind in ("dflash", "assistant")),
        *(
            pytest.param(152_000, kind, marks=pytest.mark.slow)
            for kind in ("eagle3", "dspark", "assistant")
        ),
    ],
)
def test_a_head_takes_no_more_than_was_planned_as_the_system_counts(
    vocab: int, kind: str, tmp_path: Path
) -> None:
    target, own = toy.TARGET, toy.EAGLE3
    eagle, block = Eagle(), replace(BLOCKS.get(kind, Block()), places=16)
    if vocab:
        more = vocabulary_of(vocab)
        sizes = Sizes(n_layer=8, n_embd=128, n_head=2, n_head_kv=2, n_ff=64)
        target = write_llama(tmp_path / "target.gguf", more, sizes, seed=0, type="q8_0")
        eagle = replace(eagle, reads=128, sizes=replace(sizes, n_layer=1), vocabulary=more)
        block = replace(block, sizes=replace(sizes, n_layer=2), vocabulary=more)
    if kind == "assistant":
        known = vocabulary_of(vocab) if vocab else None
        target = write_gemma4(tmp_path / "target.gguf", vocabulary=known)
        own = write_assistant(tmp_path / "head.gguf", Assistant(vocabulary=known))
    elif vocab or kind != "eagle3":
        file = tmp_path / "head.gguf"
        own = write_eagle3(file, eagle) if kind == "eagle3" else write_dflash(file, block)
    asked = f"from tests.test_heads import taken; print(taken({str(target)!r}, {str(own)!r}, 8192))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    used = int(done.stdout)
    planned = need(draft_facts(gguf.read_header(own)), ModelSetup(n_ctx=8192)).total
    assert abs(planned - used) <= max(8_000_000, 0.05 * used)
    assert used < 100_000_000


@pytest.mark.slow
@pytest.mark.drawn
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each is answered with in a fork")
def test_every_wrong_head_ends_the_command_with_one_line(tmp_path: Path) -> None:
    """Each runs in another process, since llama.cpp ends it where a check is missing."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.wrong_heads", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"LOCALSPEC_ENGINE": "inline", "GGML_NO_BACKTRACE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in found] == [
        *wrong_heads.HEADS,
        *wrong_heads.BLOCKS,
        *wrong_heads.ASSISTANTS,
        *wrong_heads.SHARING,
        wrong_heads.ALONE,
        *wrong_heads.TARGETS,
        *wrong_heads.CRAMPED,
        *wrong_heads.LACKING,
    ]
    for each in found:
        error, *remedy = each["said"].splitlines() or [""]
        assert each["code"] == 1, each
        assert error.startswith("error: "), each
        assert len(error) > 27, each
        assert "has a fault" not in error, each
        assert [line[:2] for line in remedy] == ["  "], each
    said = {each["name"]: each["said"] for each in found}
    for name in wrong_heads.CRAMPED:
        assert f"takes 1 ({name.split()[-1]})" in said[name]
    for name in wrong_heads.LACKING:
        assert f"does not export {name.split()[-1]}" in said[name]


@pytest.mark.slow
def test_a_wrong_head_ends_the_engine_s_process_as_well(toy_target: Path, tmp_path: Path) -> None:
    path = write_eagle3(tmp_path / "e.gguf", Eagle(taps=(2, 5, 8)))
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "run", str(toy_target)]  # noqa: RUF005
        + ["--draft", str(path), "-p", "Hello"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "it reads layers [2, 5, 8] of 8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_head_that_was_not_loaded_with_its_target_is_refused() -> None:
    with (
        Model.load(toy.mtp()) as model,
        Context(model, OPTIONS) as target,
        pytest.raises(UnsupportedModel, match="without the head"),
    ):
        head_of(model, target, OPTIONS)


def test_a_build_without_the_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "lib", object())
    head._symbols.cache_clear()
    monkeypatch.setattr(head, "lib", type("Lib", (), {"_lib": object()}))
    with pytest.raises(UnsupportedModel, match="does not export"):
        head._symbols()
    head._symbols.cache_clear()


WINDOWS = {  # src/llama-ext.h, as llvm-undname reads the names
    "void __cdecl llama_set_embeddings_layer_inp(struct llama_context *, unsigned int, bool)",
    "float *__cdecl llama_get_embeddings_layer_inp(struct llama_context *, unsigned int)",
    "int const *__cdecl llama_model_target_layer_ids(struct llama_model const *)",
    "unsigned int __cdecl llama_model_target_layer_ids_n(struct llama_model const *)",
    "void __cdecl llama_set_embeddings_nextn(struct llama_context *, bool, bool)",
    "float *__cdecl llama_get_embeddings_nextn(struct llama_context *)",
    "void __cdecl llama_set_nextn_layer_offset(struct llama_context *, int)",
}


def test_a_build_with_the_names_of_msvc_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such build was seen; only its names are known."""

    class Exports:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> object:
            if not name.startswith("?"):
                raise AttributeError(name)
            self.asked.append(name)
            return SimpleNamespace(name=name)

    exports = Exports()
    head._symbols.cache_clear()
    monkeypatch.setattr(head, "lib", SimpleNamespace(_lib=exports))
    found = head._symbols()
    head._symbols.cache_clear()
    assert found.set_states.argtypes[1:] == (ctypes.c_bool, ctypes.c_bool)
    assert found.get_layer.name.startswith("?llama_get_embeddings_layer_inp@@")
    assert sorted(exports.asked) == sorted(head._MSVC.values())
    bound = Path(llama_cpp_ext.__file__).read_text()  # which names some of them itself
    assert sum(name in bound for name in exports.asked) == 3
    if (undname := shutil.which("llvm-undname")) is not None:
        told = subprocess.run([undname, *exports.asked], capture_output=True, text=True, check=True)
        lines = told.stdout.replace("* __cdecl", "*__cdecl").splitlines()
        assert {line for line in lines if "(" in line} == WINDOWS


@pytest.mark.parametrize("write", [write_mtp, write_random_qwen35, WITHIN["hybrid"]])
def test_before_loading_as_much_memory_is_counted_as_loading_plans(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    """The count includes a head inside the target and the snapshots of a state."""
    path = str(write(tmp_path / "target.gguf"))
    needed = {}
    for draft in (None, "lookup", "none"):
        looked = examine(path, draft, RetryPolicy(), n_ctx=256, scan=False)
        needed[draft] = looked.outlook.fit.needed
        planned = load_plan(check(LoadRequest(pair=path, draft=draft, ctx_size=256, scan=False)))
        assert needed[draft] - PROGRAM == planned.memory.total
    assert needed[None] > needed["none"]


def test_a_head_inside_the_target_can_be_asked_for_by_its_name(tmp_path: Path) -> None:
    path = str(write_mtp(tmp_path / "target.gguf"))
    assert examine(path, "mtp", RetryPolicy(), scan=False).draft is None
    with pytest.raises(UnsupportedModel, match="cannot draft for itself"):
        examine(str(toy.TARGET), "mtp", RetryPolicy(), scan=False)
