"""Every architecture, as target and as draft: rejected tokens leave no trace in the caches.

Tiny random models on the CPU with one thread and flash attention, where a batch gives the same bits
as its tokens one by one: tokens can be compared with the baseline's, and logits bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from localspec.drafter_names import DRAFT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.proposer import Proposer, argmax_proposer
from localspec.engine.drafters.protocol import Capabilities, Proposal
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma, FixedGamma
from localspec.engine.length.profile import (
    DRAFT_SIZES,
    TARGET_SIZES,
    measure,
    measure_by_context,
)
from localspec.engine.length.stopping import Askable, Plan
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.llama.checkpoint import Checkpoint, Rollback
from localspec.engine.record.stats import Round
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.engine.round.verify import Draft
from localspec.errors import Cancelled

from .fakes import tokens_of
from .support.gguf_models import ARCHITECTURES, GENERATORS, write_random_gemma3
from .support.pairwise import usually

TOKENS = 200
GAMMA = 5
SNAPSHOTS = 8
PROMPT = list(range(300, 340))
GREEDY = SamplingParams(temperature=0)
RECURRENT = ("mamba", "lfm2", "qwen35")
MEMORIES = ("llama", "gemma3", *RECURRENT)
"""One architecture of each way to go back: by removal, with a window too, and to a state."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("architectures")


@pytest.fixture(scope="session")
def loaded(folder: Path) -> Iterator[Callable[[str], Model]]:
    """A tiny model of an architecture, loaded when it is first asked for."""
    with ExitStack() as stack:
        yield cache(
            lambda kind: stack.enter_context(Model.load(GENERATORS[kind](folder / f"{kind}.gguf")))
        )


@pytest.fixture(params=usually(ARCHITECTURES, *MEMORIES))
def model(request: pytest.FixtureRequest, loaded: Callable[[str], Model]) -> Model:
    """A tiny model of each architecture."""
    return loaded(request.param)


def options(*, snapshots: int = 0, n_ctx: int = 512, flash: bool = True) -> ContextOptions:
    return ContextOptions(n_ctx=n_ctx, threads=1, flash_attention=flash, snapshots=snapshots)


class Scripted:
    """Drafts k right tokens, then a wrong one; k runs over every position, round by round."""

    name = "scripted"
    capabilities = Capabilities()

    def __init__(self, text: Sequence[int], gamma: int) -> None:
        self.text = list(text)
        self.gamma = gamma
        self.turn = 0
        self.right = 0

    def begin(
        self, tokens: Sequence[int], proposer: Proposer, cancel: Cancel, *, anew: bool = False
    ) -> None: ...

    def state(self, tokens: Sequence[int]) -> Askable:
        return Askable(1)

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        self.right = self.turn % (self.gamma + 1)
        self.turn += 1
        ahead = self.text[len(tokens) : len(tokens) + min(self.gamma, plan.limit)]
        if self.right < len(ahead):
            ahead[self.right] = (ahead[self.right] + 1) % 200
        return Proposal(self.name, Draft(tuple(ahead)))

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        assert accepted in (self.right, self.gamma) or len(tokens) > len(self.text) - self.gamma


class Watching(Scripted):
    """Sees the target's decodes and checks that they alone tell what its cache contains."""

    def __init__(self, text: Sequence[int], gamma: int) -> None:
        super().__init__(text, gamma)
        self.seen: list[int] = []
        self.decodes = 0
        self.capabilities = Capabilities(listener=self)

    def listen(self, *, wanted: bool) -> None: ...

    def after_decode(self, tokens: Sequence[int], start: int) -> None:
        assert start <= len(self.seen), "what stands before was never shown"
        self.seen[start:] = tokens
        self.decodes += 1

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        assert self.seen[: len(tokens) - 1] == tokens[:-1]
        return super().propose(tokens, plan)

    def observe(self, tokens: Sequence[int], accepted: int) -> None: ...


class Spoilt(ModelDrafter):
    """A model drafter whose drafts have one wrong token, except the last one of each cycle."""

    turn = 0
    wrong = 0

    def propose(self, tokens: Sequence[int], plan: Plan, path: tuple[int, ...] = ()) -> Proposal:
        self.wrong = self.turn % (GAMMA + 1)
        self.turn += 1
        asked = super().propose(tokens, plan, path)
        drafted = list(asked.draft.tokens)
        if self.wrong < len(drafted):
            drafted[self.wrong] = (drafted[self.wrong] + 1) % 200
        return replace(asked, draft=Draft(tuple(drafted)))


class Waiting(FixedGamma):
    """A fixed length whose drafters stay ready even if it is 0."""

    def asks(self, drafters: Sequence[str]) -> Sequence[str]:
        return drafters


def generate(
    engine: Engine, prompt: Sequence[int], gamma: int, n: int, *, waits: bool = False, **how: bool
) -> list[Round]:
    cancel = Cancel()
    list(engine.prefill(prompt, cancel, **how))
    settings = GenerateSettings(sampling=GREEDY, n_predict=n)
    policy = Waiting(gamma) if waits else FixedGamma(gamma)
    return list(engine.generate(prompt, settings, policy, cancel))


@cache
def baseline(model: Model, n: int = TOKENS) -> list[int]:
    with Context(model, options()) as context:
        found = tokens_of(generate(Engine(context), PROMPT, 0, n))
    assert len(found) == n, "the random model ended its text: choose another seed"
    return found


@pytest.mark.parametrize(
    ("model", "gamma", "snapshots"),
    usually(
        [
            *itertools.product(ARCHITECTURES, [GAMMA], [0, SNAPSHOTS]),
            *itertools.product(ARCHITECTURES, [SNAPSHOTS + 3], [SNAPSHOTS]),
        ],
        *itertools.product(["llama", "gemma3", "mamba"], [GAMMA], [0]),
        *[("lfm2", GAMMA, SNAPSHOTS), ("qwen35", SNAPSHOTS + 3, SNAPSHOTS)],
    ),
    indirect=["model"],
)
def test_a_target_that_rejects_at_every_position_says_what_the_baseline_says(
    model: Model, gamma: int, snapshots: int
) -> None:
    want = baseline(model)
    with Context(model, options(snapshots=snapshots)) as context:
        engine = Engine(context, Scripted([*PROMPT, *want], gamma))
        rounds = generate(engine, PROMPT, gamma, TOKENS)
        assert tokens_of(rounds) == want
        assert context.tokens == [*PROMPT, *want][: len(context.tokens)]
    full = [done.accepted for done in rounds if done.drafted == gamma]
    assert set(full) == set(range(gamma + 1))


@pytest.mark.parametrize(
    ("model", "snapshots"),
    usually(
        itertools.product(ARCHITECTURES, [0, SNAPSHOTS]),
        *[("llama", 0), ("mamba", 0), ("qwen35", SNAPSHOTS)],
    ),
    indirect=["model"],
)
def test_a_drafter_sees_every_decode_of_the_target(model: Model, snapshots: int) -> None:
    """Prompts in batches, baseline and drafting rounds, rejected tokens, and decoding again."""
    want = baseline(model, 60)
    how = replace(options(snapshots=snapshots), n_batch=16)
    with Context(model, how) as context:
        drafter = Watching([*PROMPT, *want], GAMMA)
        engine = Engine(context, drafter)
        rounds = generate(engine, PROMPT, GAMMA, 40)
        assert drafter.decodes >= len(rounds) + 3
        assert tokens_of(rounds) == want[:40]
        generate(engine, [*PROMPT, *want[:20]], 0, 10, waits=True)
        generate(engine, PROMPT[:20], 0, 5, waits=True)
        assert drafter.seen[: len(context.tokens)] == context.tokens
        generate(engine, [*PROMPT, *want[:30]], GAMMA, 20)
        seen = drafter.decodes
        generate(Engine(context), PROMPT, 0, 5)
        assert drafter.decodes == seen


@pytest.mark.parametrize("model", usually(ARCHITECTURES, "llama", "gemma3", "mamba"), indirect=True)
def test_a_draft_that_is_rejected_at_every_position_goes_on_as_if_it_had_not_been(
    model: Model,
) -> None:
    want = baseline(model)
    with Context(model, options()) as target, Context(model, options()) as draft:
        drafter = Spoilt(draft, model.n_vocab)
        rounds = generate(Engine(target, drafter), PROMPT, GAMMA, TOKENS)
    assert tokens_of(rounds) == want
    # Draft and target are the same model: a draft whose state is right is wrong only where spoilt.
    full = [done for done in rounds if done.drafted == GAMMA]
    assert [done.accepted for done in full] == [i % (GAMMA + 1) for i in range(len(full))]
    assert len(full) > GAMMA + 1


@pytest.mark.parametrize(
    ("model", "kept", "snapshots"),
    usually(
        itertools.product(ARCHITECTURES, range(GAMMA + 1), [0, SNAPSHOTS]),
        *itertools.product(["llama", "mamba"], [0, 2, GAMMA], [0]),
        *[("gemma3", 3, 0), ("lfm2", 1, SNAPSHOTS), ("qwen35", 4, SNAPSHOTS)],
    ),
    indirect=["model"],
)
def test_logits_after_a_rollback_are_those_without_the_rejected_tokens(
    model: Model, kept: int, snapshots: int
) -> None:
    draft = [300, 301, 302, 303, 304]
    how = options(snapshots=snapshots)
    with Context(model, how) as rolled, Context(model, how) as straight:
        rolled.decode(PROMPT, 1)
        rolled.mark(len(draft) + 1)
        rolled.decode([7, *draft], len(draft) + 1)
        rolled.truncate(len(PROMPT) + 1 + kept)
        straight.decode(PROMPT, 1)
        straight.decode([7, *draft[:kept]], 1)
        assert rolled.tokens == straight.tokens
        after = rolled.decode([9, 10], 2).copy()
        assert np.array_equal(after, straight.decode([9, 10], 2))


@pytest.mark.parametrize("kind", usually(ARCHITECTURES, *MEMORIES))
def test_with_f32_weights_a_rollback_is_close_to_a_fresh_prefill(tmp_path: Path, kind: str) -> None:
    path = GENERATORS[kind](tmp_path / "f32.gguf", type="f32")
    how = options(flash=False)
    with (
        Model.load(path) as model,
        Context(model, how) as rolled,
        Context(model, how) as fresh,
    ):
        for start in range(0, len(PROMPT), 8):
            rolled.mark(8)
            rolled.decode(PROMPT[start : start + 8], 1)
        for kept in range(GAMMA):
            held = len(rolled.tokens)
            rolled.mark(GAMMA + 1)
            rolled.decode(range(60, 61 + GAMMA), GAMMA + 1)
            rolled.truncate(held + 1 + kept)
        after = rolled.decode([9], 1)[0].copy()
        want = fresh.decode(rolled.tokens, 1)[0]
        assert np.abs(after - want).max() < 1e-4


def test_a_second_turn_agrees_with_a_fresh_prefill(
    model: Model, record_property: Callable[[str, object], None]
) -> None:
    want = baseline(model, 60)
    with Context(model, options()) as used, Context(model, options()) as fresh:
        engine = Engine(used, Scripted([*PROMPT, *want], GAMMA))
        generate(engine, PROMPT, GAMMA, 60)
        second = [*PROMPT, *want, *range(500, 520)]
        cancel = Cancel()
        list(engine.prefill(second, cancel))
        list(Engine(fresh).prefill(second, cancel))
        agreed, margins = agreement(used, fresh, second[-1])
    record_property("agreement", agreed)
    record_property("margins_of_disagreements", margins)


def agreement(used: Context, fresh: Context, token: int) -> tuple[float, list[float]]:
    """How often both contexts prefer the same token, and the top-2 margins where they differ.

    A long batch sums in another order than a short one, so near ties may go either way.
    """
    n, agreed, margins = 50, 0, []
    for _ in range(n):
        ours, theirs = (context.decode([token], 1)[0] for context in (used, fresh))
        best = np.sort(theirs)[-2:]
        if ours.argmax() == theirs.argmax():
            agreed += 1
        else:
            margins.append(float(best[1] - best[0]))
        token = int(theirs.argmax())
    assert agreed >= 0.9 * n
    assert all(margin < 0.1 for margin in margins)
    return agreed / n, margins


def test_a_turn_that_changes_what_was_said_is_read_as_if_it_were_the_first(model: Model) -> None:
    changed = [*PROMPT, *range(600, 640)]
    with Context(model, options()) as used, Context(model, options()) as fresh:
        generate(Engine(used), PROMPT, 0, 20)
        for context in (used, fresh):
            list(Engine(context).prefill(changed, Cancel()))
        agreement(used, fresh, changed[-1])


@pytest.mark.parametrize(
    ("model", "gamma", "snapshots"),
    [
        ("mamba", 0, 0),
        ("mamba", GAMMA, 0),
        ("lfm2", GAMMA, 0),
        ("qwen35", SNAPSHOTS + 3, SNAPSHOTS),
    ],
    indirect=["model"],
)
def test_after_any_number_of_rounds_a_prompt_is_gone_back_to(
    model: Model, gamma: int, snapshots: int
) -> None:
    """Neither the target nor the draft reads more than the last piece of it again.

    The target goes back to the result of a call as well as to the question before it.
    """
    want = baseline(model, 60)
    how = replace(options(snapshots=snapshots), n_batch=16)
    with Context(model, how) as target, Context(model, replace(how, snapshots=0)) as draft:
        engine = Engine(target, Spoilt(draft, model.n_vocab))
        for _ in range(2):
            assert tokens_of(generate(engine, PROMPT, gamma, 60)) == want
        engine.drafters[DRAFT].begin(PROMPT, argmax_proposer, Cancel())
        assert len(draft.tokens) == (len(PROMPT) - 16 if gamma else 0)
        result = [*PROMPT, *want, *range(600, 640)]
        generate(engine, result, gamma, 60, goes_on=True)
        assert target.keep_prefix(result[:-1]) == len(result) - 17
        assert target.keep_prefix(PROMPT[:-1]) == len(PROMPT) - 17


@pytest.mark.parametrize("model", ["mamba", "lfm2"], indirect=True)
@pytest.mark.parametrize("other", [False, True])
def test_another_answer_or_another_end_finds_a_drafts_state_in_the_last_prompt(
    model: Model, other: bool
) -> None:
    """The question is short, and the draft may have another vocabulary."""
    with Context(model, options()) as target, Context(model, options()) as draft:
        drafter = (
            CrossVocabularyDrafter(draft, VocabularyMap(model, model))
            if other
            else ModelDrafter(draft, model.n_vocab)
        )
        engine, text, before = Engine(target, drafter), PROMPT, 0
        for i in range(3):
            before, text = len(text), [*text, *range(500 + 20 * i, 520 + 20 * i)]
            rounds = generate(engine, text, GAMMA, 30)
            text += tokens_of(rounds)
        again = generate(engine, text[: before + 20], GAMMA, 30)
        assert tokens_of(again) == tokens_of(rounds)
        following = generate(engine, [*text[: before + 12], *range(600, 612)], GAMMA, 30)
        for answer in (again, following):
            first = next(done for done in answer if done.draft_passes)
            assert first.draft_cached >= before
            assert first.draft_prefill < 30


@pytest.mark.parametrize("snapshots", [0, SNAPSHOTS])
def test_a_decode_that_was_stopped_leaves_no_half_state(model: Model, snapshots: int) -> None:
    want = baseline(model, 40)
    with Context(model, options(snapshots=snapshots)) as context:
        cancel = Cancel()
        context.decode(PROMPT[:20], 0)
        context.mark()
        context.watch(cancel)
        cancel.set()
        with pytest.raises(Cancelled):
            context.decode(PROMPT[20:], 1)
        assert context.tokens == PROMPT[:20]
        assert tokens_of(generate(Engine(context), PROMPT, 0, 40)) == want


@pytest.mark.parametrize("model", ARCHITECTURES, indirect=True)
def test_how_each_architecture_goes_back_is_found_by_trying(model: Model) -> None:
    kind = model.path.stem
    with Context(model, options(snapshots=SNAPSHOTS)) as context:
        if kind not in RECURRENT:
            assert (context.rollback, context.max_rollback) == (Rollback.REMOVAL, None)
        elif kind == "mamba":
            assert (context.rollback, context.max_rollback) == (Rollback.CHECKPOINT, 0)
        else:
            assert (context.rollback, context.max_rollback) == (Rollback.SNAPSHOTS, SNAPSHOTS)


@pytest.mark.parametrize(
    ("model", "snapshots", "draft"),
    usually(
        itertools.product(ARCHITECTURES, [0, SNAPSHOTS], [False, True]),
        *[("llama", 0, False), ("llama", 0, True), ("mamba", 0, False)],
        *[("gemma3", 0, True), ("qwen35", SNAPSHOTS, True)],
    ),
    indirect=["model"],
)
def test_measuring_deep_in_a_context_leaves_no_trace(
    model: Model, snapshots: int, draft: bool
) -> None:
    def seen(context: Context) -> list[np.ndarray]:
        context.decode(PROMPT[:-1], 0)
        return [context.decode([token], 1)[0].copy() for token in (PROMPT[-1], 7, 8)]

    how = options(snapshots=snapshots, n_ctx=1024)
    with Context(model, how) as fresh, Context(model, how) as context:
        now = itertools.count(0, 1e-4)  # a clock on which there is time for all of it
        found, _ = measure_by_context(context, draft=draft, budget=9, clock=lambda: next(now))
        assert list(found) == [0, 512]
        assert context.tokens == []
        assert np.array_equal(seen(context), seen(fresh))


@pytest.mark.few(1)
@pytest.mark.parametrize(("copy_s", "pays"), [(0.3, True), (40.0, False)])
@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_nothing_is_drafted_where_the_copy_of_the_state_costs_more_than_the_draft_brings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, copy_s: float, pays: bool
) -> None:
    """The models are real, the draft is always right, and only their work advances the clock."""
    now = 0.0
    decode, take = Context.decode, Checkpoint.take

    def decoded(context: Context, tokens: Sequence[int], n_logits: int) -> np.ndarray:
        nonlocal now
        now += 1.0 if context is target else 0.05
        return decode(context, tokens, n_logits)

    def taken(checkpoint: Checkpoint, n: int) -> bool:
        nonlocal now
        now += copy_s if checkpoint in target._checkpoints and checkpoint.n != n else 0.0
        return take(checkpoint, n)

    with (
        Model.load(GENERATORS[kind](folder / f"{kind}-copied.gguf")) as model,
        Context(model, options()) as target,
        Context(model, options()) as draft,
    ):
        monkeypatch.setattr(Context, "decode", decoded)
        monkeypatch.setattr(Checkpoint, "take", taken)
        monkeypatch.setattr("localspec.engine.record.recorder.perf_counter", lambda: now)
        curve = measure(target, TARGET_SIZES, budget=1e9, clock=lambda: now).points
        steps = measure(draft, DRAFT_SIZES, budget=1e9, one_row=True, clock=lambda: now).points
        assert curve[1] == pytest.approx(1.0)
        assert curve[4] == pytest.approx(1.0 + copy_s)
        policy = AutoGamma(Costs({0: curve}, {DRAFT: {0: steps}}, target.max_rollback))
        engine, cancel = Engine(target, ModelDrafter(draft, model.n_vocab)), Cancel()
        list(engine.prefill(PROMPT, cancel))
        began = now
        settings = GenerateSettings(sampling=GREEDY, n_predict=TOKENS)
        rounds = list(engine.generate(PROMPT, settings, policy, cancel))
    speed = TOKENS / (now - began)  # the baseline has 1
    assert len(tokens_of(rounds)) == TOKENS
    assert (speed > 2) if pays else (0.97 < speed <= 1)
    assert any(done.drafted for done in rounds) == pays


def test_taking_back_is_timed_apart_from_the_rest_of_the_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, decode = 0.0, Context.decode

    def decoded(context: Context, tokens: Sequence[int], n_logits: int) -> np.ndarray:
        nonlocal now
        now += 1.0
        return decode(context, tokens, n_logits)

    with Model.load(GENERATORS["mamba"](folder / "timed.gguf")) as model:
        want = baseline(model, 60)
        with Context(model, options()) as context:
            monkeypatch.setattr(Context, "decode", decoded)
            monkeypatch.setattr("localspec.engine.record.recorder.perf_counter", lambda: now)
            rounds = generate(Engine(context, Scripted([*PROMPT, *want], GAMMA)), PROMPT, GAMMA, 60)
    full = [done for done in rounds if done.drafted == GAMMA]
    assert [done.rollback_s for done in full] == [float(d.accepted < GAMMA) for d in full]
    assert all(done.verify_s == 1.0 for done in full)


def test_where_going_back_gives_other_logits_nothing_is_drafted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = GENERATORS["mamba"](folder / "broken.gguf")
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_state_seq_set_data_ext", lambda *_: 0)
    with Model.load(path) as model, Context(model, options()) as context:
        assert context.rollback is Rollback.NONE
        assert not Engine(context, Scripted([], 1)).drafts
        assert len(tokens_of(generate(Engine(context), PROMPT, 4, 10))) == 10


@pytest.mark.parametrize("flash_attention", [True, False])
def test_a_windows_logits_do_not_depend_on_how_its_cache_came_about(
    tmp_path: Path, flash_attention: bool
) -> None:
    """A cache cut back, restored from a copy, or begun by another text gives the same bits.

    Another split into passes could change them, so the split is the same here.
    """
    text = [*range(20, 220)]
    options = ContextOptions(n_ctx=512, threads=1, flash_attention=flash_attention)
    path = write_random_gemma3(tmp_path / "window.gguf", window=32)
    with Model.load(path) as model, Context(model, options) as context:
        context.decode(text[:-1], 0)
        state = context.state()
        plain = context.decode(text[-1:], 1)
        context.truncate(len(text) - 1)
        context.decode([*range(300, 312)], 0)  # another end
        assert context.keep_prefix(text[:-1]) == len(text) - 1
        assert (context.decode(text[-1:], 1) == plain).all()
        context.restore(text[:-1], state)
        assert (context.decode(text[-1:], 1) == plain).all()
        context.clear()
        context.decode([*text[:96], *range(300, 420)], 0)  # far more than a window further
        assert context.keep_prefix(text) == 96
        begun = context.decode(text[96:], 1)
        context.clear()
        context.decode(text[:96], 0)
        assert (context.decode(text[96:], 1) == begun).all()
