"""Losslessness through the real engine on the toy pair: the same text, the same distribution."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafter_names import ASSISTANT, CROSS_VOCABULARY, DFLASH, DRAFT, EAGLE3, LOOKUP, MTP
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.drafters.cross_vocabulary import VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.head_drafter import HeadDrafter, head_drafter
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.proposer import SamplingProposer
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Head, Model, head_of
from localspec.engine.record.stats import Round
from localspec.engine.round import verify
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.noise import CounterNoise, Noise
from localspec.engine.round.sampling import Dist, SamplingParams
from localspec.engine.round.verify import Draft, Verdict
from tests.fakes import tokens_of
from tests.support import toy

from .support.gemma4 import write_assistant, write_gemma4
from .support.gguf_models import (
    Sizes,
    read_vocabulary,
    write_llama,
    write_random_llama,
    write_random_qwen35,
    write_renumbered,
)
from .support.heads import Block, Eagle, write_chain, write_dflash, write_eagle3, write_mtp
from .support.pairwise import usually

PROMPT = "Once upon a time there was a"
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}

Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model.load(write_random_llama(tmp_path_factory.mktemp("random") / "draft.gguf")) as model:
        yield model


def options(n_ctx: int = 512) -> ContextOptions:
    """One thread, flash attention on: batches of every size give the same bits (Q8_0, CPU)."""
    return ContextOptions(n_ctx=n_ctx, threads=1, flash_attention=True)


@pytest.fixture(params=["good", "random", "none"])
def engine(
    request: pytest.FixtureRequest, target_model: Model, draft_model: Model, random_model: Model
) -> Iterator[Engine]:
    draft = {"good": draft_model, "random": random_model, "none": None}[request.param]
    with Context(target_model, options()) as target:
        if draft is None:
            yield Engine(target)
            return
        with Context(draft, options()) as context:
            yield Engine(target, ModelDrafter(context, target_model.n_vocab))


def auto() -> GammaPolicy:
    """The stopping rule over a cost curve that makes drafting pay."""
    target = {0: {n: 10.0 + n for n in range(1, 25)}}
    return AutoGamma(Costs(target, {DRAFT: {0: {1: 1.0}}}))


def run(
    engine: Engine,
    policy: GammaPolicy,
    sampling: SamplingParams,
    accept: Accept,
    *,
    n_predict: int = 32,
) -> tuple[list[int], int]:
    """The tokens generated, none of which ends the text, and how many were drafted."""
    model = engine.target.model
    ids = model.tokenize(PROMPT, add_special=True, parse_special=False)
    cancel = Cancel()
    list(engine.prefill(ids, cancel))
    settings = GenerateSettings(
        sampling=replace(sampling, logit_bias=dict.fromkeys(model.end_tokens, -math.inf)),
        accept=accept,
        n_predict=n_predict,
        repeatable=True,
    )
    rounds = list(engine.generate(ids, settings, policy, cancel))
    return tokens_of(rounds), sum(d.drafted for d in rounds)


@pytest.mark.few(1)
@pytest.mark.parametrize("temperature", usually([0.7, 1.0, 1.5], 1.0))
def test_coupled_text_depends_on_the_seed_alone(
    engine: Engine, temperature: float, target_model: Model
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=round(10 * temperature))
    with Context(target_model, options()) as alone:
        expected, _ = run(Engine(alone), FixedGamma(0), sampling, Accept.COUPLED)
    for policy in (*(FixedGamma(gamma) for gamma in (0, 1, 8)), auto()):
        tokens, drafted = run(engine, policy, sampling, Accept.COUPLED)
        assert tokens == expected
        drafts = not isinstance(policy, FixedGamma) or policy.gamma > 0
        assert (drafted > 0) == (engine.drafts and drafts)


def test_coupled_seeds_differ(target_model: Model) -> None:
    with Context(target_model, options()) as alone:
        texts = {
            tuple(
                run(
                    Engine(alone),
                    FixedGamma(0),
                    SamplingParams(temperature=1.0, seed=seed),
                    Accept.COUPLED,
                )[0]
            )
            for seed in range(5)
        }
    assert len(texts) == 5


@pytest.mark.few(1)
def test_greedy_text_depends_on_nothing(engine: Engine, target_model: Model) -> None:
    sampling = SamplingParams(temperature=0, repeat_penalty=1.1, frequency_penalty=0.1)
    with Context(target_model, options()) as alone:
        expected, _ = run(Engine(alone), FixedGamma(0), sampling, Accept.MATCH)
    for policy in (*(FixedGamma(gamma) for gamma in (0, 1, 5, 20)), auto()):
        assert run(engine, policy, sampling, Accept.BLOCK)[0] == expected


def test_a_rollback_equals_a_fresh_prefill_in_f32(tmp_path: Path) -> None:
    """To 1e-4 with F32 weights and flash attention off; kernels differ by batch size."""
    path = write_random_llama(tmp_path / "f32.gguf", type="f32")
    plain = ContextOptions(n_ctx=128, threads=1, flash_attention=False)
    rng = np.random.default_rng(0)
    with Model.load(path) as model, Context(model, plain) as used, Context(model, plain) as fresh:
        ids = rng.integers(10, model.n_vocab, 60).tolist()
        used.decode(ids[:20], 1)
        for start in range(20, 60, 8):
            used.decode([*ids[start : start + 4], *rng.integers(10, 300, 5).tolist()], 9)
            used.truncate(start + 4)
            used.decode(ids[start + 4 : start + 8], 4)
        rolled = used.decode([7], 1).copy()
        straight = fresh.decode([*ids, 7], 1)
        assert np.abs(rolled - straight).max() < 1e-4


# ---------------------------------------------------------------- chi-square


FIRST = 3  # tokens compared
SEEDS = 1000
RARE = 5.0  # expected counts below this are pooled
Z = 4.27  # of the normal approximation: a false alarm once in 1e5 comparisons


def chi_square_limit(freedom: int) -> float:
    """The quantile of chi-square at `Z` (Wilson and Hilferty, 1931)."""
    k = 2 / (9 * freedom)
    return freedom * (1 - k + Z * math.sqrt(k)) ** 3


class Comparison:
    """Samples of the first tokens against the target's distributions given their prefixes."""

    def __init__(self, target: Context, prompt: list[int], params: SamplingParams) -> None:
        self._target = target
        self._prompt = prompt
        self._temperature = params.temperature
        self._bias = params.logit_bias
        self._known: dict[Tokens, np.ndarray] = {}

    def p(self, prefix: Tokens) -> np.ndarray:
        """(n_vocab,): the softmax of the target's logits after the prompt and `prefix`.

        All ids that end a generation are counted as the first of them.
        """
        if prefix not in self._known:
            tokens = [*self._prompt, *prefix]
            self._target.keep_prefix(tokens[:-1])
            logits = self._target.decode(tokens[len(self._target.tokens) :], 1)[0]
            x = logits.astype(np.float64)
            x[[*self._bias]] += [*self._bias.values()]
            x /= self._temperature
            mass = np.exp(x - x.max())
            # A generation does not tell with which of the ids that end one it ended.
            first, *others = sorted(self._target.model.end_tokens)
            mass[first] += mass[others].sum()
            mass[others] = 0
            self._known[prefix] = mass / mass.sum()
        return self._known[prefix]

    def excess(self, samples: Sequence[Tokens]) -> list[float]:
        """Chi-square over its limit at every position: above 1 is a rejection."""
        found = []
        ends = self._target.model.end_tokens
        for position in range(FIRST):
            following: defaultdict[Tokens, Counter[int]] = defaultdict(Counter)
            for sample in samples:
                following[sample[:position]][sample[position]] += 1
            total, freedom = 0.0, 0
            for prefix, counts in following.items():
                ended = not ends.isdisjoint(prefix)  # what follows an end was never drawn
                if counts.total() >= 50 and not ended:
                    chi2, cells = self._one(counts, self.p(prefix))
                    total, freedom = total + chi2, freedom + cells - 1
            assert freedom > 5
            found.append(total / chi_square_limit(freedom))
        return found

    @staticmethod
    def _one(counts: Counter[int], p: np.ndarray) -> tuple[float, int]:
        n = counts.total()
        common = np.flatnonzero(p * n >= RARE)
        seen = np.array([counts[int(token)] for token in common], float)
        expected = p[common] * n
        rest = n - expected.sum()
        if rest >= RARE:
            seen, expected = np.r_[seen, n - seen.sum()], np.r_[expected, rest]
        elif len(expected):
            smallest = expected.argmin()
            seen[smallest] += n - seen.sum()
            expected[smallest] += rest
        return float(((seen - expected) ** 2 / expected).sum()), max(1, len(expected))


Make = Callable[[Context, Context], Engine]
"""(contexts of the target and the draft) -> what generates."""


def with_model(target: Context, draft: Context) -> Engine:
    return Engine(target, ModelDrafter(draft, target.model.n_vocab))


def samples(
    engine: Engine,
    prompt: list[int],
    accept: Accept,
    n: int,
    policy: GammaPolicy,
    *,
    bias: dict[int, float] | None = None,
) -> list[Tokens]:
    """The first tokens of `n` generations, one seed each."""
    usual = SamplingParams(temperature=1.0, logit_bias=bias or {}, **PLAIN)  # type: ignore[arg-type]
    found = []
    for seed in range(n):
        cancel = Cancel()
        list(engine.prefill(prompt, cancel))
        settings = GenerateSettings(
            sampling=replace(usual, seed=seed),
            accept=accept,
            n_predict=8,  # so that the draft has room
        )
        tokens: list[int] = []
        rounds = engine.generate(prompt, settings, policy, cancel)
        for done in rounds:
            tokens += done.tokens
            if len(tokens) >= FIRST or done.finish is not None:
                break
        # An end of generation is a token like others here; what follows it is not compared.
        ends = sorted(engine.target.model.end_tokens)
        found.append((*tokens, *ends[:1] * FIRST)[:FIRST])
    return found


def bias_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the coupled rule: the same Gumbel variables at every position."""
    pick: Callable[[CounterNoise, Dist, int], int] = CounterNoise.pick
    monkeypatch.setattr(CounterNoise, "pick", lambda self, dist, _position: pick(self, dist, 1))


def compare(
    target_model: Model,
    draft_model: Model,
    accept: Accept,
    n: int,
    *,
    text: str = PROMPT,
    make: Make = with_model,
    policy: GammaPolicy | None = None,
    bias: dict[int, float] | None = None,
) -> list[float]:
    how = ContextOptions(n_ctx=64, threads=1)
    with (
        Context(target_model, how) as target,
        Context(draft_model, how) as draft,
        Context(target_model, how) as reference,
    ):
        prompt = target_model.tokenize(text, add_special=True, parse_special=False)
        policy = policy or FixedGamma(3)
        drawn = samples(make(target, draft), prompt, accept, n, policy, bias=bias)
        params = SamplingParams(temperature=1.0, logit_bias=bias or {})
        return Comparison(reference, prompt, params).excess(drawn)


FEW = dict.fromkeys(range(300, 316), 40.0)  # no others are drawn: few seeds suffice
TINY = Sizes(n_layer=3, n_embd=64, n_head=2, n_head_kv=2, n_ff=64, n_ctx=512)


def _tiny(path: Path) -> Path:
    return write_llama(path, read_vocabulary(toy.TARGET), TINY, seed=0, type="q8_0")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A random target that takes a tenth of the toy's time, and has its vocabulary."""
    with Model.load(_tiny(tmp_path_factory.mktemp("tiny") / "target.gguf")) as model:
        yield model


@pytest.mark.slow
@pytest.mark.drawn
def test_the_first_tokens_have_the_targets_distribution(
    target_model: Model, draft_model: Model
) -> None:
    """4,000 seeds, three positions: a false alarm has probability 1e-5 at each, for a new seed."""
    assert max(compare(target_model, draft_model, Accept.TOKEN, 4000)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK, Accept.COUPLED])
def test_the_first_of_few_tokens_have_the_targets_distribution(
    tiny_model: Model, draft_model: Model, accept: Accept
) -> None:
    """1,000 seeds; a false alarm has the same probability as above."""
    assert max(compare(tiny_model, draft_model, accept, SEEDS, bias=FEW)) < 1


@pytest.mark.slow
@pytest.mark.drawn
def test_with_a_trained_head_the_first_tokens_have_the_targets_distribution() -> None:
    """4,000 seeds; a false alarm has the same probability as above."""
    how = ContextOptions(n_ctx=64, threads=1)
    with (
        Model.load(toy.TARGET, mtp=True) as model,
        Model.load(toy.EAGLE3, head=True) as own,
        Context(model, how) as target,
        Context(model, how) as reference,
        Head(own, target, how) as head,
    ):
        prompt = model.tokenize(PROMPT, add_special=True, parse_special=False)
        engine = Engine(target, HeadDrafter(head))
        drawn = samples(engine, prompt, Accept.TOKEN, 4000, FixedGamma(3))
        comparison = Comparison(reference, prompt, SamplingParams(temperature=1.0))
        assert max(comparison.excess(drawn)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_a_biased_rule_is_rejected(
    tiny_model: Model, draft_model: Model, accept: Accept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: after a rejection the target's own row in place of the residual."""

    def biased(p: Dist, q: Dist, weight: float = 1.0) -> Dist:
        return p

    monkeypatch.setattr(verify, "_residual", biased)
    assert max(compare(tiny_model, draft_model, accept, SEEDS, bias=FEW)) > 1


@pytest.mark.slow
@pytest.mark.drawn
def test_a_biased_draw_is_rejected_under_the_coupled_rule(
    target_model: Model, draft_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same Gumbel variables at every position.

    The bias shows where likely tokens are likely at the next position too: among digits.
    """
    bias_the_draw(monkeypatch)
    assert max(compare(target_model, draft_model, Accept.COUPLED, 2000, text="Call 48151623")) > 1


# ---------------------------------------------------------------- other drafters, the same test

REPEATS = "Call 123123 or 123123 or 12"


class Adding(Plan):
    """A model's tokens, and two more if lookup has them."""

    def copies(self, confidences: Sequence[float], drafted: int) -> int:
        return min(2, len(confidences))


class Counts(FixedGamma):
    """Counts the tokens that lookup proposed, to the target or to a model."""

    copied = 0

    def observe(self, done: Round) -> None:
        self.copied += done.copied + done.path


class Turns(Counts):
    """Drafters in turn, by the length of the text: a copy, or a model's token and then a copy."""

    def __init__(self, *names: str) -> None:
        super().__init__(2)
        self._names = names

    def plan(self, situation: Situation) -> Plan:
        name = self._names[situation.context % len(self._names)]
        if name == LOOKUP:
            return Plan(min(2, len(situation.copies)), LOOKUP)
        return Adding(1, name)


class Reading(Counts):
    """The model reads what lookup would copy, and drafts two tokens."""

    def plan(self, situation: Situation) -> Plan:
        return Plan(min(2, situation.room), DRAFT, reads=len(situation.copies))


def lookup_alone(target: Context, _draft: Context) -> Engine:
    return Engine(target, lookup=Lookup(target.n_ctx, lambda _: False))


def with_lookup(target: Context, draft: Context) -> Engine:
    lookup = Lookup(target.n_ctx, lambda _: False)
    return Engine(target, ModelDrafter(draft, target.model.n_vocab), lookup=lookup)


def cross_vocabulary(target: Context, draft: Context) -> Engine:
    lookup = Lookup(target.n_ctx, lambda _: False)
    drafter = CrossVocabularyDrafter(draft, VocabularyMap(target.model, draft.model))
    return Engine(target, drafter, lookup=lookup)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The toy draft with other ids, and a thousand tokens fewer."""
    path = write_renumbered(tmp_path_factory.mktemp("other") / "draft.gguf", fewer=1000)
    with Model.load(path) as model:
        yield model


COMBINED: dict[str, tuple[Make, Callable[[], Counts]]] = {
    "lookup alone": (lookup_alone, lambda: Turns(LOOKUP)),
    "by turns, lookup goes on": (with_lookup, lambda: Turns(LOOKUP, DRAFT)),
    "the model reads first": (with_lookup, lambda: Reading(2)),
    "cross-vocabulary, lookup goes on": (cross_vocabulary, lambda: Turns(CROSS_VOCABULARY)),
}


def with_copies(
    target: Model, draft: Model, accept: Accept, make: Make, policy: GammaPolicy
) -> list[float]:
    """As `compare`, with a prompt that repeats itself, so that lookup finds copies."""
    return compare(target, draft, accept, SEEDS, text=REPEATS, make=make, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK, Accept.COUPLED])
@pytest.mark.parametrize("how", COMBINED)
def test_combined_drafters_have_the_targets_distribution(
    target_model: Model, draft_model: Model, other_model: Model, how: str, accept: Accept
) -> None:
    """A false alarm has probability 1e-5 at each of three positions: 4e-4 in all, for new seeds."""
    make, new = COMBINED[how]
    draft, policy = other_model if make is cross_vocabulary else draft_model, new()
    found = with_copies(target_model, draft, accept, make, policy)
    assert max(found) < 1
    assert policy.copied > SEEDS // 2


@pytest.mark.slow
@pytest.mark.drawn
def test_copied_tokens_that_count_as_drawn_are_rejected(
    target_model: Model, draft_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: what lookup adds claims to come from a coin of two tokens."""

    def claimed(self: Draft, copied: Tokens) -> Draft:
        rows = tuple(Dist(np.array([token, token + 1]), np.full(2, 0.5)) for token in copied)
        return Draft((*self.tokens, *copied), self.q and (*self.q, *rows), self.must_verify)

    monkeypatch.setattr(Draft, "followed_by", claimed)
    found = with_copies(target_model, draft_model, Accept.BLOCK, with_lookup, Turns(DRAFT))
    assert max(found) > 1


@pytest.mark.slow
@pytest.mark.drawn
def test_copies_alone_under_a_biased_rule_are_rejected(
    target_model: Model, draft_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a rejected copied token may be drawn again at the same position.

    The block rule verifies drafts of copies alone with the same function.
    """
    match = verify.match_rule

    def biased(draft: Draft, p: Sequence[Dist], noise: Noise, position: int) -> Verdict:
        found = match(draft, p, noise, position)
        at = found.accepted
        if at == len(draft.tokens):
            return found
        return Verdict(at, noise.pick(p[at], position + at))

    monkeypatch.setattr(verify, "match_rule", biased)
    found = with_copies(target_model, draft_model, Accept.TOKEN, lookup_alone, Turns(LOOKUP))
    assert max(found) > 1


@pytest.mark.slow
@pytest.mark.drawn
def test_copies_alone_under_a_biased_draw_are_rejected(
    target_model: Model, draft_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the coupled rule: the same Gumbel variables at every position."""
    bias_the_draw(monkeypatch)
    found = with_copies(target_model, draft_model, Accept.COUPLED, lookup_alone, Turns(LOOKUP))
    assert max(found) > 1


@pytest.mark.slow
@pytest.mark.drawn
def test_a_path_whose_other_token_is_dropped_is_rejected(
    target_model: Model, draft_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: only drawn tokens that agree with lookup are submitted."""
    propose = ModelDrafter.propose

    def agreed(self: ModelDrafter, tokens: Any, plan: Plan, path: Tokens = ()) -> Any:
        found = propose(self, tokens, plan, path)
        drawn, same = found.draft, common_prefix(found.draft.tokens, path)
        kept = Draft(drawn.tokens[:same], drawn.q and drawn.q[:same], min(drawn.must_verify, same))
        return replace(found, draft=kept)

    monkeypatch.setattr(ModelDrafter, "propose", agreed)
    found = with_copies(target_model, draft_model, Accept.TOKEN, with_lookup, Reading(2))
    assert max(found) > 1


@pytest.mark.slow
@pytest.mark.drawn
def test_shared_tokens_that_are_not_renormalised_are_rejected(
    target_model: Model, other_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: q keeps mass for draft tokens that the target does not have."""
    sampled = SamplingProposer.__call__

    def unnormalised(self: SamplingProposer, *asked: Any) -> Any:
        view = sampled(self, *asked)
        return replace(view, q=Dist(view.q.ids, 0.6 * view.q.probs))

    monkeypatch.setattr(SamplingProposer, "__call__", unnormalised)
    found = with_copies(
        target_model, other_model, Accept.BLOCK, cross_vocabulary, Turns(CROSS_VOCABULARY)
    )
    assert max(found) > 1


# ---------------------------------------------------------------- heads, the same test


def _eagle3(path: Path) -> Path:
    its = replace(TINY, n_layer=1)
    return write_eagle3(path, Eagle(taps=(0, 1, 2), reads=64, sizes=its), seed=1)


def _dflash(path: Path) -> Path:
    return write_dflash(path, Block(taps=(0, 2), sizes=replace(TINY, n_layer=2)), seed=1)


Write = Callable[[Path], Path]
TINY_HEADS: dict[str, tuple[Write, Write | None]] = {
    EAGLE3: (_tiny, _eagle3),
    DFLASH: (_tiny, _dflash),
    ASSISTANT: (write_gemma4, write_assistant),
    MTP: (write_mtp, None),
    "several layers of mtp": (write_chain, None),
    "mtp beside a state": (partial(write_random_qwen35, nextn=1), None),
}
"""Random targets with a head in a separate file or inside; most of its guesses are rejected."""


class Drafting(FixedGamma):
    """Counts drafted tokens: a head that drafts nothing would have the right distribution, too."""

    drafted = 0

    def observe(self, done: Round) -> None:
        self.drafted += done.drafted


def compare_head(kind: str, accept: Accept, folder: Path) -> list[float]:
    """As `compare`, for a tiny target with its head: 1,000 seeds, and only 16 tokens allowed."""
    how = ContextOptions(n_ctx=64, threads=1, snapshots=4)
    write, write_head = TINY_HEADS[kind]
    with ExitStack() as stack:
        model = stack.enter_context(Model.load(write(folder / "t.gguf"), mtp=write_head is None))
        own = model
        if write_head is not None:
            own = stack.enter_context(Model.load(write_head(folder / "h.gguf"), head=True))
        target, reference = (stack.enter_context(Context(model, how)) for _ in range(2))
        drafter = head_drafter(stack.enter_context(head_of(own, target, how)))
        prompt = model.tokenize(PROMPT, add_special=True, parse_special=False)
        policy = Drafting(3)
        drawn = samples(Engine(target, drafter), prompt, accept, SEEDS, policy, bias=FEW)
        assert policy.drafted > SEEDS
        params = SamplingParams(temperature=1.0, logit_bias=FEW)
        return Comparison(reference, prompt, params).excess(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK, Accept.COUPLED])
@pytest.mark.parametrize("kind", TINY_HEADS)
def test_with_heads_of_every_kind_the_first_tokens_have_the_targets_distribution(
    kind: str, accept: Accept, tmp_path: Path
) -> None:
    """A false alarm has probability 1e-5 at each of three positions, for a new seed."""
    assert max(compare_head(kind, accept, tmp_path)) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "accept"),
    [
        (EAGLE3, Accept.TOKEN),
        (MTP, Accept.BLOCK),
        (DFLASH, Accept.BLOCK),
        (ASSISTANT, Accept.TOKEN),
        (EAGLE3, Accept.COUPLED),
        (MTP, Accept.COUPLED),
    ],
)
def test_a_biased_rule_is_rejected_with_heads(
    kind: str, accept: Accept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative controls: those of a draft model above, the residual's and the noise's."""
    bias_the_draw(monkeypatch)
    monkeypatch.setattr(verify, "_residual", lambda p, _q, _weight=1.0: p)
    assert max(compare_head(kind, accept, tmp_path)) > 1
