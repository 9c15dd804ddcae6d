"""Several drafters in the real engine: which one drafts, what stays the same, what is refused."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

from localspec.bench.prompt_sets import drafters_of
from localspec.chat.events import Origin
from localspec.drafter_names import DRAFT, LOOKUP
from localspec.engine.cancel import Cancel
from localspec.engine.drafters import steps
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.proposer import argmax_proposer
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.drafters.steps import EXCERPT_TOKENS, GAP, Excerpt
from localspec.engine.length.cost import Costs
from localspec.engine.length.gamma import AutoGamma, FixedGamma, GammaPolicy
from localspec.engine.length.stopping import Askable, Plan, Situation
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.record.stats import Round
from localspec.engine.round.acceptance import Accept, verification
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.sampling import SamplingParams
from localspec.errors import LocalspecError, ModelFileError, OutOfMemory, UsageError
from localspec.loading import model_loader
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import identity_of
from localspec.loading.planning import load_plan
from localspec.pairs.disk import installed
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.memory.free import FreeMemory
from localspec.pairs.names import draft_option, resolver
from localspec.pairs.names.draft_option import AllowedDrafters
from localspec.pairs.report.examine import examine
from tests.support import toy

from .fakes import ended, fake_session, tokens_of
from .support.end_alone import EndAlone
from .support.gguf_models import write_random_llama, write_random_mamba
from .support.pairwise import usually
from .support.stub_context import StubContext, StubModel, random_script

RANDOM = "draft 2"
TARGET = {0: {n: 10.0 + n for n in range(1, 65)}}
STEPS = {DRAFT: {0: {1: 1.0}}, RANDOM: {0: {1: 0.5}}}
SETS = ((LOOKUP,), (DRAFT, LOOKUP), (RANDOM, LOOKUP), (DRAFT, RANDOM, LOOKUP))


@pytest.fixture(scope="module")
def contexts(
    target_model: Model, draft_model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Context]]:
    """One thread, flash attention on: batches of every size give the same bits (Q8_0, CPU)."""
    path = write_random_llama(tmp_path_factory.mktemp("random") / "draft.gguf")
    how = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    with (
        Model.load(path) as random,
        Context(target_model, how) as target,
        Context(draft_model, how) as draft,
        Context(random, how) as other,
    ):
        yield {"target": target, DRAFT: draft, RANDOM: other}


def engine(contexts: dict[str, Context], names: tuple[str, ...]) -> Engine:
    target = contexts["target"]
    drafters = [
        ModelDrafter(contexts[name], target.model.n_vocab, name) for name in names if name != LOOKUP
    ]
    copier = Lookup(target.n_ctx, target.model.is_end) if LOOKUP in names else None
    return Engine(target, *drafters, lookup=copier)


def auto(names: tuple[str, ...]) -> AutoGamma:
    return AutoGamma(Costs(TARGET, {name: STEPS[name] for name in names if name != LOOKUP}))


def run(
    of: Engine,
    text: str,
    policy: GammaPolicy,
    *,
    temperature: float,
    accept: Accept,
    n: int = 20,
    ends: bool = False,
) -> list[Round]:
    """The rounds of an answer of `n` tokens, or fewer if it may end."""
    model = of.target.model
    ids = model.tokenize(text, add_special=True, parse_special=False)
    list(of.prefill(ids, Cancel()))
    settings = GenerateSettings(
        sampling=SamplingParams(
            temperature=temperature,
            seed=5,
            logit_bias={} if ends else dict.fromkeys(model.end_tokens, -math.inf),
        ),
        accept=accept,
        n_predict=n,
        repeatable=True,
    )
    return list(of.generate(ids, settings, policy, Cancel()))


def tokens(rounds: list[Round]) -> list[int]:
    return tokens_of(rounds)


class Reads(FixedGamma):
    """A policy that has the model read lookup's tokens, whatever that costs."""

    def plan(self, situation: Situation) -> Plan:
        return Plan(min(3, situation.room), DRAFT, reads=len(situation.copies))


def questions(number: int) -> list[str]:
    """Prompts of all kinds; every second one holds its text twice, so that something repeats."""
    texts = [prompt.text for prompt in toy.questions().prompts]
    chosen = [texts[i * len(texts) // number] for i in range(number)]
    return [f"{text} {text}" if i % 2 else text for i, text in enumerate(chosen)]


@pytest.mark.parametrize(
    ("temperature", "number"),
    usually([(0.7, 2), *((each, 20) for each in (0.0, 0.7, 1.0))], (0.7, 2)),
)
def test_the_text_is_the_same_with_every_set_of_drafters(
    contexts: dict[str, Context], temperature: float, number: int
) -> None:
    drafted: dict[str, int] = {}
    read = 0
    engines = {names: engine(contexts, names) for names in SETS}
    policies: dict[tuple[str, ...], GammaPolicy] = {names: auto(names) for names in SETS}
    accept = Accept.COUPLED if temperature else Accept.BLOCK
    for text in questions(number):
        baseline = run(
            Engine(contexts["target"]), text, FixedGamma(0), temperature=temperature, accept=accept
        )
        for names, policy in (*policies.items(), ((DRAFT, LOOKUP), Reads(3))):
            rounds = run(engines[names], text, policy, temperature=temperature, accept=accept)
            assert tokens(rounds) == tokens(baseline), (names, text)
            for done in rounds:
                read += done.path
                for name, n, _ in done.shares:
                    drafted[name] = drafted.get(name, 0) + n
    assert drafted[LOOKUP] > number
    assert drafted[DRAFT] > 2 * number
    assert read > number // 2


@pytest.mark.slow
@pytest.mark.parametrize("accept", usually([Accept.TOKEN, Accept.BLOCK], Accept.BLOCK))
def test_with_a_seed_every_set_of_drafters_repeats(
    contexts: dict[str, Context], accept: Accept
) -> None:
    for names in SETS:
        texts = [
            tokens(run(engine(contexts, names), text, auto(names), temperature=0.8, accept=accept))
            for text in questions(2) * 2
        ]
        assert texts[:2] == texts[2:]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_is_the_same_whatever_path_it_reads(
    contexts: dict[str, Context], temperature: float
) -> None:
    """Afterwards it knows the accepted part without reading it again."""
    context = contexts[DRAFT]
    ids = context.model.tokenize(LONG, add_special=True, parse_special=False)[-30:]
    drafter = ModelDrafter(context, context.model.n_vocab)

    def drafted(path: tuple[int, ...]) -> Proposal:
        sampling = SamplingParams(temperature=temperature, seed=3)
        how = verification(GenerateSettings(sampling=sampling))
        context.clear()
        drafter.begin(ids, how.proposer, Cancel())
        return drafter.propose(ids, Plan(6, DRAFT, learns=True), path)

    alone = drafted(())
    tokens = alone.draft.tokens
    assert (len(tokens), alone.decodes) == (6, 6)
    for agreed in range(7):
        for more in ((), (17, 18, 19)):
            path = (*tokens[:agreed], *more)
            asked = drafted(path)
            assert asked.draft.tokens == tokens
            assert asked.confidences == pytest.approx(alone.confidences, abs=0.02)
            assert asked.decodes == 6 - min(agreed, 5)
            assert asked.path == min(5, len(path))
            emitted = [*ids, *tokens[:4], 18]
            drafter.observe(emitted, 4)
            assert context.tokens == emitted[: len(context.tokens)]
            assert len(context.tokens) >= len(ids) + 4


# ---------------------------------------------------------------- a long prompt

USUAL = {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.5, 5: 1.6, 8: 2.0, 16: 3.2, 32: 5.0, 64: 9.0}
LONG = 60 * "The little boat went out to sea, and the wind was kind to it all day long. "


def over_baseline(
    contexts: dict[str, Context], name: str, temperature: float, **how: int
) -> tuple[float, int]:
    """The speed-up after a prompt of 900 tokens, by the table of costs, and the tokens read.

    The latter are the tokens that the draft read before it drafted, the most of any seed.
    """
    costs = Costs({0: USUAL}, {name: {0: {n: 0.1 * s for n, s in USUAL.items()}}})
    one = engine(contexts, (name,))
    drafter = one.drafters[name]
    assert isinstance(drafter, ModelDrafter)
    ids = one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-900:]
    never = dict.fromkeys(one.target.model.end_tokens, -math.inf)
    faster, read = [], 0
    for seed in range(5 if temperature else 1):  # when drawn, any draft is sometimes right
        drafter.excerpt, policy = Excerpt(**how), AutoGamma(costs)
        contexts[name].clear()
        list(one.prefill(ids, Cancel()))
        sampling = SamplingParams(temperature=temperature, seed=seed, logit_bias=never)
        settings = GenerateSettings(sampling=sampling, n_predict=100)
        rounds = list(one.generate(ids, settings, policy, Cancel()))
        assert rounds[0].draft_passes == 0  # the first token waits for no draft
        taken = sum(costs.baseline_rounds(done) for done in rounds)
        faster.append(sum(done.emitted for done in rounds) / taken)
        read = max(read, sum(done.draft_prefill for done in rounds))
    return fmean(faster), read


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", usually([DRAFT, RANDOM], RANDOM))
def test_a_long_prompt_and_a_draft_that_is_never_right_cost_a_short_answer_little(
    contexts: dict[str, Context], monkeypatch: pytest.MonkeyPatch, name: str, temperature: float
) -> None:
    monkeypatch.setattr("localspec.engine.length.neighbours.Neighbours.add", lambda *_: None)
    faster, read = over_baseline(contexts, name, temperature)
    assert faster >= 0.97
    assert read > 0
    if name == RANDOM:
        assert read < 250
        # The control: a draft that reads all of the prompt.
        faster, read = over_baseline(contexts, name, temperature, last=4096)
        assert faster < 0.93
        assert read >= 900


@pytest.mark.parametrize(
    ("last", "length", "missing", "read"),
    [
        (EXCERPT_TOKENS, 900, GAP, GAP),  # it held the rest, and a copy was accepted
        (EXCERPT_TOKENS, 900, GAP + 1, EXCERPT_TOKENS),  # after what it knows
        (EXCERPT_TOKENS, 900, 900, 4 + EXCERPT_TOKENS),
        (EXCERPT_TOKENS, GAP, GAP, GAP),
        (64, 66, 66, 66),
        (64, 69, 69, 68),
    ],
)
def test_a_draft_reads_on_over_what_a_copy_leaves_behind(
    last: int, length: int, missing: int, read: int
) -> None:
    excerpt, left_out = Excerpt(last), missing - read
    assert excerpt.state(length, missing) == Askable(read, left_out, missing)
    assert excerpt.cuts(length, missing, whole=False) == (read < missing)
    assert excerpt.left_out == left_out
    assert excerpt.first == (length - left_out - last if left_out else 4)
    assert excerpt.state(length, 1).whole == (length - excerpt.first if left_out else 1)
    assert excerpt.cuts(length, missing, whole=True) == (left_out > 0)
    assert excerpt.left_out == 0


def test_a_draft_keeps_what_it_knows_before_a_message_whose_end_it_reads() -> None:
    excerpt = Excerpt(room=1000)
    assert excerpt.state(900, 100) == Askable(EXCERPT_TOKENS, 100 - EXCERPT_TOKENS, 100)
    assert excerpt.cuts(900, 100, whole=False)
    assert (excerpt.first, excerpt.left_out) == (800, 100 - EXCERPT_TOKENS)
    assert excerpt.state(901, 1) == Askable(1, 100 - EXCERPT_TOKENS, 101)
    # The end of another long message takes the place of this one's.
    assert excerpt.state(920, 80).left_out == 120 - EXCERPT_TOKENS
    # What cannot be cut begins anew.
    fixed = Excerpt(first=800, left_out=100 - EXCERPT_TOKENS, room=1000, cuts_back=False)
    assert fixed.state(901, 1).whole == 901
    assert fixed.state(920, 80) == Askable(4 + EXCERPT_TOKENS, 920 - 4 - EXCERPT_TOKENS, 920)
    # Without room for what is known, the end and an answer, the first few tokens are kept.
    full = 1000 - GAP - EXCERPT_TOKENS + 1
    assert Excerpt(room=1000).state(1100, 1100 - full).left_out == 1100 - 4 - EXCERPT_TOKENS
    assert Excerpt(room=1001).state(1100, 1100 - full).left_out == 1100 - full - EXCERPT_TOKENS
    assert excerpt.cuts(901, 1, whole=True)
    assert excerpt.left_out == 0


def test_a_draft_reads_the_end_of_a_text_that_its_cache_cannot_hold() -> None:
    """All only where there is room for what follows."""
    excerpt, left_out = Excerpt(room=200), 201 - 4 - EXCERPT_TOKENS
    assert excerpt.state(200 - GAP, 1) == Askable(1, 0, 1)
    assert excerpt.state(200, 1) == Askable(1, 0, 0)
    assert excerpt.state(201, 1) == Askable(EXCERPT_TOKENS, left_out, 0)
    assert excerpt.cuts(201, 1, whole=True)
    assert excerpt.left_out == left_out
    assert excerpt.state(202, 1) == Askable(1, left_out, 0)
    assert not excerpt.cuts(202, 1, whole=True)  # it goes on


@pytest.mark.parametrize(
    ("after", "marks"),
    [
        (None, [(16, 0), (32, 0), (48, 0)]),
        (0, [(0, 0), (16, 0), (32, 0), (34, 1)]),
        (34, [(0, 1), (16, 0), (32, 0), (48, 0)]),
        (50, [(16, 0), (32, 0), (48, 0)]),  # none of the prompt is read
    ],
)
def test_the_end_of_a_prompt_is_marked_once(
    monkeypatch: pytest.MonkeyPatch, after: int | None, marks: list[tuple[int, int]]
) -> None:
    """Of a draft with a state each mark is a copy; the first is for a stop in what follows."""
    made: list[tuple[int, int]] = []

    def mark(context: StubContext, *, lasting: int = 0) -> None:
        made.append((context.held, lasting))

    monkeypatch.setattr(StubContext, "mark", mark)
    context = StubContext(random_script(4, 5), StubModel(4), n_batch=16, max_rollback=0)
    context.watch(None)
    steps.read(context, Cancel(), [1] * 50, 1, after=after)  # type: ignore[arg-type]
    assert made == marks


def test_a_round_says_how_much_of_a_long_text_its_drafter_did_not_read(
    contexts: dict[str, Context],
) -> None:
    one = engine(contexts, (DRAFT,))
    one.drafters[DRAFT].excerpt = Excerpt()
    contexts[DRAFT].clear()
    ids = one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-500:]
    list(one.prefill(ids, Cancel()))
    assert (
        one.drafters[DRAFT].state(ids).left_out == 500 - 4 - EXCERPT_TOKENS
    )  # before it read anything
    settings = GenerateSettings(sampling=SamplingParams(temperature=0.0), n_predict=8)
    first, *rounds = one.generate(ids, settings, EndAlone(2), Cancel())
    assert (first.drafter, first.left_out) == ("", 0)
    assert {done.left_out for done in rounds if done.drafter} == {501 - 4 - EXCERPT_TOKENS}
    rounds = [*one.generate(ids, settings, FixedGamma(2), Cancel())]  # the whole text
    assert {done.left_out for done in rounds} == {0}
    assert max(done.draft_prefill for done in rounds) == 501 - 4
    short = ids[:20]
    list(one.prefill(short, Cancel()))
    rounds = [*one.generate(short, settings, EndAlone(2), Cancel())]
    assert {done.left_out for done in rounds} == {0}


def test_a_draft_that_left_something_out_goes_on_from_there(contexts: dict[str, Context]) -> None:
    one, context = engine(contexts, (DRAFT,)), contexts[DRAFT]
    ids = one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-500:]

    def read(text: list[int]) -> int:
        list(one.prefill(text, Cancel()))
        settings = GenerateSettings(sampling=SamplingParams(temperature=0.0), n_predict=12)
        rounds = list(one.generate(text, settings, EndAlone(3), Cancel()))
        text += tokens_of(rounds)
        assert len(context.tokens) <= 4 + EXCERPT_TOKENS + 24
        assert context.tokens[:4] == text[:4]
        end = min(len(context.tokens), 30)
        held = context.tokens[-end:]
        assert any(text[i : i + end] == held for i in range(len(text) - 50, len(text) - end + 1))
        return next(done.draft_prefill for done in rounds if done.draft_passes)

    context.clear()
    assert read(ids) == 4 + EXCERPT_TOKENS
    assert read(ids) <= 2 + 1  # another turn, of which it knows all but the newest tokens
    ids += ids[:200]
    assert read(ids) == EXCERPT_TOKENS  # too much was missed
    del ids[2:]
    ids += [7] * 10
    assert read(ids) <= 11  # another text: from its beginning


def test_a_draft_keeps_the_conversation_before_a_long_message(
    contexts: dict[str, Context],
) -> None:
    one, context = engine(contexts, (DRAFT,)), contexts[DRAFT]
    text = one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-60:]
    never = dict.fromkeys(one.target.model.end_tokens, -math.inf)
    sampling = SamplingParams(temperature=0.0, logit_bias=never)
    settings = GenerateSettings(sampling=sampling, n_predict=12)

    def read(message: list[int], policy: GammaPolicy) -> Round:
        text.extend(message)
        list(one.prefill(text, Cancel()))
        rounds = list(one.generate(text, settings, policy, Cancel()))
        text.extend(tokens_of(rounds))
        return next(done for done in rounds if done.draft_passes)

    context.clear()
    assert read([], EndAlone(3)).left_out == 0
    known, long = len(context.tokens), text[:50] + text[:50]
    for _ in range(2):  # the end of the second message takes the place of the first one's
        before = len(text)
        done = read(long, EndAlone(3))
        assert done.draft_prefill == EXCERPT_TOKENS
        assert done.left_out == before + 100 + 1 - known - EXCERPT_TOKENS
        assert context.tokens[:known] == text[:known]
        end = text[known + done.left_out :]
        assert context.tokens[known:] == end[: len(context.tokens) - known]
    before = len(text)
    assert read([], FixedGamma(3)).draft_prefill == before + 1 - known  # all that it left out
    assert context.tokens == text[: len(context.tokens)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_draft_says_before_what_it_reads_also_where_its_cache_cannot_be_cut(
    contexts: dict[str, Context], tmp_path: Path, whole: bool
) -> None:
    path = write_random_mamba(tmp_path / "mamba.gguf")
    text = contexts["target"].model.tokenize(LONG, add_special=True, parse_special=False)[-600:]
    with Model.load(path) as model, Context(model, ContextOptions(n_ctx=1024, threads=1)) as own:
        for context in (own, contexts[DRAFT]):
            context.clear()
            drafter = ModelDrafter(context, model.n_vocab)
            for end in (60, 180, 181, 300, 600):
                tokens = text[:end]
                drafter.begin(tokens, argmax_proposer, Cancel())
                said = drafter.state(tokens)
                last = whole and end == 600
                asked = drafter.propose(tokens, Plan(1, DRAFT, whole=last))
                assert asked.read == (said.whole if last else said.pending)
                assert drafter.state(tokens).left_out == (0 if last else said.left_out)
                assert (said.left_out > 0) == (end > 60)
                drafter.observe(tokens, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_with_a_seed_a_long_prompt_repeats_whatever_was_saved(
    contexts: dict[str, Context], accept: Accept
) -> None:
    one, policy = engine(contexts, (DRAFT,)), auto((DRAFT,))
    texts = [
        tokens(run(one, LONG[-700:], policy, temperature=0.8, accept=accept, n=40))
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_draft_comes_to_read_it_all_once_it_has_saved_that_time(
    contexts: dict[str, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.engine.length.neighbours.Neighbours.add", lambda *_: None)
    costs = Costs({0: USUAL}, {DRAFT: {0: {n: 0.1 * s for n, s in USUAL.items()}}})
    one, context, policy = engine(contexts, (DRAFT,)), contexts[DRAFT], AutoGamma(costs)
    never = dict.fromkeys(one.target.model.end_tokens, -math.inf)
    sampling = SamplingParams(temperature=0.0, logit_bias=never)

    def answer(text: Sequence[int], n: int) -> list[Round]:
        list(one.prefill(text, Cancel()))
        settings = GenerateSettings(sampling=sampling, n_predict=n)
        return list(one.generate(text, settings, policy, Cancel()))

    def reading(n: int) -> float:
        return costs.drafts[DRAFT].at(0).seconds(n)

    context.clear()
    ids = one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-400:]
    rounds = answer(ids, 150)
    end, whole = (done for done in rounds if done.draft_prefill > 4)
    assert end.draft_prefill == 4 + EXCERPT_TOKENS
    assert whole.draft_prefill > 400  # with what was written meanwhile
    before = [done for done in rounds[: rounds.index(whole)] if done.draft_passes]
    saved = sum(done.emitted - costs.baseline_rounds(done) for done in before)
    assert 0 < reading(whole.draft_prefill) - reading(2) <= 2 + saved
    text = [*ids, *tokens_of(rounds)]
    assert text[: len(context.tokens)] == context.tokens

    text += one.target.model.tokenize(LONG, add_special=True, parse_special=False)[-100:]
    reads = [done.draft_prefill for done in answer(text, 8) if done.draft_passes]
    assert 100 <= reads[0] <= 104  # all of the next message, after a conversation that it knows
    context.clear()
    reads = [done.draft_prefill for done in answer(ids[:150], 8) if done.draft_passes]
    assert reads[0] >= 150  # costs less than two rounds


# ---------------------------------------------------------------- what --draft means


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, AllowedDrafters(own=True, lookup=True)),
        ("auto", AllowedDrafters(own=True, lookup=True)),
        ("AUTO,lookup", AllowedDrafters(own=True, lookup=True)),
        ("lookup", AllowedDrafters(lookup=True)),
        ("none", AllowedDrafters()),
        ("a.gguf", AllowedDrafters(named=("a.gguf",))),
        ("a.gguf, b.gguf,lookup", AllowedDrafters(lookup=True, named=("a.gguf", "b.gguf"))),
        ("auto,b.gguf", AllowedDrafters(own=True, lookup=True, named=("b.gguf",))),
    ],
)
def test_the_words_of_draft(text: str | None, expected: AllowedDrafters) -> None:
    assert draft_option.parse(text) == expected


@pytest.mark.parametrize("text", ["", ",", "a,", "a,a", "none,a", "lookup,LOOKUP"])
def test_what_draft_cannot_mean(text: str) -> None:
    with pytest.raises(UsageError, match="--draft"):
        draft_option.parse(text)


def test_a_file_whose_path_has_a_comma_can_draft(
    toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a,b" / "c,d.gguf"
    file.parent.mkdir()
    file.symlink_to(toy_draft)
    monkeypatch.chdir(tmp_path)
    for text in (str(file), f"lookup, {file}", f"{file},lookup", "a,b/c,d.gguf"):
        (draft,) = check(LoadRequest(pair="toy", draft=text)).drafts
        assert file in (path.absolute() for path in draft.files.paths)
        (known,) = draft_option.parse(text).named
        assert Path(known).absolute() == file
    assert installed.lasting_drafts("lookup,./a,b/c,d.gguf") == f"lookup,{file}"


@pytest.mark.parametrize("look", [resolver.resolve, partial(examine, retries=RetryPolicy())])
def test_a_missing_file_whose_path_has_a_comma_says_what_commas_mean(
    look: Callable[..., object], tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match="a does not exist") as told:
        look("toy", f"{tmp_path}/a,b.gguf")
    assert "Commas separate the names of drafters." in told.value.remedy


def test_a_draft_named_twice_in_two_ways_is_refused_but_auto_may_bring_it(toy_draft: Path) -> None:
    both = f"auto,{toy_draft}"
    assert len(check(LoadRequest(pair="toy", draft=both)).drafts) == 1
    assert len(examine("toy", both, RetryPolicy()).drafts) == 1
    there = os.path.relpath(toy_draft)
    with pytest.raises(UsageError, match="twice"):
        check(LoadRequest(pair="toy", draft=f"{there},{toy_draft}"))


@pytest.mark.parametrize(
    ("known", "unknown", "said"),
    [(b"gpt2", b"gpt9", "unknown tokenizer 'gpt9'"), (b"qwen2", b"qwenX", "unknown pre-tokenizer")],
)
def test_a_draft_whose_tokenizer_llama_cpp_cannot_use_is_refused(
    toy_draft: Path, tmp_path: Path, known: bytes, unknown: bytes, said: str
) -> None:
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(toy_draft.read_bytes().replace(known, unknown, 1))
    with pytest.raises(LocalspecError, match=said):
        loaded(replace(SMALL, draft=str(odd)))


def test_more_drafters_than_memory_are_refused(
    toy_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [shutil.copy(toy_target, tmp_path / f"d{i}.gguf") for i in range(8)]
    free = FreeMemory(ram=150 << 20)
    monkeypatch.setattr("localspec.loading.planning.free_memory", lambda *_, **__: free)

    def planned(number: int) -> int:
        named = ",".join(map(str, drafts[:number]))
        request = LoadRequest(pair=str(toy_target), draft=named, ctx_size=512)
        return len(load_plan(check(request)).memory.drafts)

    assert planned(1) == 1
    with pytest.raises(OutOfMemory, match="the models need about") as refused:
        planned(8)
    assert refused.value.remedy == "With --draft none and --ctx-size 512 the target would."


def test_drafts_of_the_bench_are_joined_by_a_plus(tmp_path: Path) -> None:
    assert drafters_of("a.gguf+lookup") == "a.gguf,lookup"
    odd = tmp_path / "a+b.gguf"
    odd.touch()
    assert drafters_of(str(odd)) == str(odd)
    assert drafters_of("x" * 5_000 + "+lookup") == "x" * 5_000 + ",lookup"  # no name of a file


# ---------------------------------------------------------------- loading


SMALL = LoadRequest(pair="toy", ctx_size=256, threads=1, gamma=3, temp=0, n_predict=8)


def loaded(request: LoadRequest) -> tuple[tuple[str, ...], str]:
    session = load_session(request, progress=lambda *_: None, cancel=Cancel())
    try:
        return session.drafters, session.speculation_note
    finally:
        session.close()


def test_a_target_alone_drafts_by_lookup(toy_target: Path, tmp_path: Path) -> None:
    alone = shutil.copy(toy_target, tmp_path / "alone.gguf")
    assert loaded(replace(SMALL, pair=str(alone))) == ((LOOKUP,), "")
    assert loaded(replace(SMALL, pair=str(alone), draft="none"))[0] == ()


def test_every_draft_s_costs_are_kept_under_its_own_threads(
    toy_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = shutil.copy(toy_draft, tmp_path / "second.gguf")
    threads = {"second.gguf": 2}  # as `tune` found
    monkeypatch.setattr(
        model_loader,
        "chosen_threads",
        lambda context, *_, **__: threads.get(context.model.path.name, 1),
    )
    asked = replace(SMALL, threads=None, draft=f"{toy_draft},{second}")
    session = load_session(asked, progress=lambda *_: None, cancel=Cancel())
    with closing(session):
        its = session.pair.drafts.values()
        found = [identity_of(one, session.pair.loaded, draft=True)["threads"] for one in its]
    assert found == [1, 2]


def test_an_answer_tells_the_models_apart() -> None:
    done = [Round((104, 105), 1, 1, 1, 0.0, 0.1, 0.1, drafter=name) for name in (DRAFT, RANDOM)]
    session, _ = fake_session([*done, ended()])
    session.pair.drafts[RANDOM] = session.pair.drafts[DRAFT]
    list(session.turn("Say hi twice.", Cancel()))
    said = [(span.text, span.origin) for span in session.messages[-1].spans]
    own = ("i", Origin.TARGET)
    assert said == [("h", Origin.DRAFT), own, ("h", Origin.SECOND), own]


def test_several_models_are_planned_loaded_and_freed(toy_draft: Path, tmp_path: Path) -> None:
    second = shutil.copy(toy_draft, tmp_path / "second.gguf")
    asked = replace(SMALL, draft=f"auto,{second}")
    plan = load_plan(check(asked))
    assert [each.files.paths[0].name for each in plan.checked.drafts][1:] == ["second.gguf"]
    assert {each.n_ctx for each in plan.memory.drafts} == {256}
    names, _ = loaded(asked)
    assert len(names) == 3
    assert names[-1] == LOOKUP
