"""Drafts with another vocabulary: the traps between two tokenizers, and the engine with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from localspec.drafter_names import CROSS_VOCABULARY
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.cross_vocabulary import Spelling, VocabularyMap
from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter
from localspec.engine.drafters.lookup import Lookup
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.drafters.proposer import argmax_proposer
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.drafters.steps import EXCERPT_TOKENS
from localspec.engine.length.calibration import Calibration
from localspec.engine.length.copying import Copying, Survival
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.length.stopping import Askable, Plan, Situation, StoppingPlan
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.engine.record.explain_again import explain_again
from localspec.engine.record.stats import Round
from localspec.engine.round.acceptance import Accept
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.engine.round.params import SamplingParams

from .support.end_alone import EndAlone
from .support.gguf_models import write_other_vocabulary, write_renumbered
from .support.llama_source import VocabularyOnly, vocabularies
from .support.stub_context import Letters, StubContext
from .test_drafters import questions, run, tokens

FOXES = "Grüße 🦊🦊, 你好 мир!\n\n  def f(x):\n\treturn x  # unbelievable…\r\n"
CHAT = "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nOnce upon"


@pytest.fixture(scope="module")
def renumbered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The toy draft with other ids; its text is the same."""
    with Model.load(write_renumbered(tmp_path_factory.mktemp("r") / "r.gguf")) as model:
        yield model


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The toy draft without its last thousand tokens, so that it splits words at other places."""
    path = write_renumbered(tmp_path_factory.mktemp("s") / "s.gguf", fewer=1000)
    with Model.load(path) as model:
        yield model


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Random weights over bytes and a few pairs of letters."""
    with Model.load(write_other_vocabulary(tmp_path_factory.mktemp("o") / "o.gguf")) as model:
        yield model


def spelled(both: VocabularyMap, ids: list[int]) -> Spelling:
    spelling = Spelling(both)
    spelling.follow(ids)
    return spelling


def written(model: Model, ids: list[int]) -> bytes:
    return b"".join(model.piece(token, special=True) for token in ids)


# ---------------------------------------------------------------- the text in other tokens


def test_the_draft_reads_the_very_same_bytes(target_model: Model, smaller: Model) -> None:
    both = VocabularyMap(target_model, smaller)
    ids = target_model.tokenize(FOXES, add_special=False, parse_special=False)
    spelling = spelled(both, ids)
    assert spelling.exact
    assert smaller.bos is not None
    assert spelling.ids[0] == smaller.bos
    assert written(smaller, spelling.ids[1:]) == FOXES.encode()


def test_a_character_that_is_not_whole_yet_is_read_in_bytes(
    target_model: Model, smaller: Model
) -> None:
    """llama.cpp's tokenizer would put U+FFFD there."""
    both = VocabularyMap(target_model, smaller)
    ids = target_model.tokenize(FOXES, add_special=False, parse_special=False)
    spelling = Spelling(both)
    for n in range(1, len(ids) + 1):
        spelling.follow(ids[:n])
        assert written(smaller, spelling.ids[1:]) == written(target_model, ids[:n])
    assert spelling.ids == spelled(both, ids).ids


def test_bytes_that_are_no_text_are_read_one_by_one(target_model: Model, smaller: Model) -> None:
    both = VocabularyMap(target_model, smaller)
    odd = [both.target.ids[bytes([byte])][0] for byte in b"a\xff\xc3(\x80b"]
    assert written(smaller, spelled(both, odd).ids[1:]) == b"a\xff\xc3(\x80b"
    broken = [both.target.ids[b"\xff"][0]] * 3_000  # more than calls can be nested
    assert written(smaller, spelled(both, broken).ids[1:]) == b"\xff" * 3_000


def test_what_stays_is_told(target_model: Model, smaller: Model) -> None:
    both = VocabularyMap(target_model, smaller)
    ids = target_model.tokenize(
        "It was unbelievable, she said.", add_special=False, parse_special=False
    )
    spelling = Spelling(both)
    for n in range(1, len(ids) + 1):
        before = list(spelling.ids)
        kept = spelling.follow(ids[:n])
        assert spelling.ids[:kept] == before[:kept]
        assert len(spelling.ids) > kept


def test_ends_go_by_their_role_and_control_tokens_by_their_names(
    target_model: Model, renumbered: Model, strange: Model
) -> None:
    ids = target_model.tokenize(CHAT, add_special=True, parse_special=True)
    same = spelled(VocabularyMap(target_model, renumbered), ids)
    assert [renumbered.piece(token, special=True) for token in same.ids] == [
        target_model.piece(token, special=True) for token in ids
    ]
    other = spelled(VocabularyMap(target_model, strange), ids)
    in_letters = CHAT.replace("<|im_end|>", "</s>")
    assert written(strange, other.ids) == f"<s>{in_letters}".encode()


# ---------------------------------------------------------------- tokens that both have


def test_a_row_is_renormalised_over_what_both_have(target_model: Model, smaller: Model) -> None:
    both = VocabularyMap(target_model, smaller)
    logits = np.random.default_rng(0).normal(size=smaller.n_vocab).astype(np.float32)
    row = both.row(logits).astype(np.float64)
    mass: dict[bytes, float] = {}
    for token, logit in enumerate(logits):
        piece = b"END" if smaller.is_end(token) else smaller.piece(token)
        mass[piece] = mass.get(piece, 0.0) + float(np.exp(np.float64(logit)))
    for token in range(target_model.n_vocab):
        piece = b"END" if token == target_model.end else target_model.piece(token)
        assert np.exp(row[token]) == pytest.approx(mass.get(piece, 0.0) if piece else 0.0, rel=1e-5)
    shared = np.flatnonzero(row > -np.inf)
    assert 3000 < len(shared) < target_model.n_vocab
    for token in shared:
        if token != target_model.end:
            assert smaller.piece(*both.to_draft(token)) == target_model.piece(token)


def test_text_is_cut_as_the_target_would(target_model: Model, smaller: Model) -> None:
    both = VocabularyMap(target_model, smaller)
    text = "Once upon a time there was an unbelievable elephant, said 'Grandmother'."
    ids = target_model.tokenize(text, add_special=False, parse_special=False)
    right = 0
    for n in range(1, len(ids)):
        rest = written(target_model, ids[n:])
        assert written(target_model, both.followed(ids[:n], rest)) == rest
        right += both.followed(ids[:n], rest) == ids[n:]
    assert right == len(ids) - 1


def test_text_behind_half_a_word_still_follows_it(target_model: Model, smaller: Model) -> None:
    """Tokenizing the whole text anew could merge across the end of the tokens already decided."""
    both = VocabularyMap(target_model, smaller)
    half = [both.target.ids[bytes([byte])][0] for byte in b" th"]
    assert written(target_model, both.followed(half, b"e end")) == b"e end"


# ---------------------------------------------------------------- real vocabularies


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "draft"),
    [("gpt-2", "llama-spm"), ("llama-bpe", "qwen2"), ("phi-3", "qwen2"), ("qwen2", "phi-3")],
)
def test_real_vocabularies(target: str, draft: str) -> None:
    known = vocabularies()
    if not {target, draft} <= known.keys():
        pytest.skip("llama.cpp's source distribution with its vocabularies is not on this disk")
    with VocabularyOnly.of(known[target]) as ours, VocabularyOnly.of(known[draft]) as theirs:
        both = VocabularyMap(ours, theirs)
        ids = both.target.cut(FOXES.encode())
        assert ids is not None
        spelling = Spelling(both)
        for n in range(1, len(ids) + 1):
            spelling.follow(ids[:n])
        assert spelling.exact
        start = spelling.ids[0] == theirs.bos if theirs.add_bos else 0
        assert both.draft.text(spelling.ids[start:]) == FOXES.encode()
        cut = [both.followed(ids[:n], ours_text(ours, ids[n:])) for n in range(len(ids))]
        assert sum(each == ids[n:] for n, each in enumerate(cut)) >= 0.9 * len(ids)
        row = both.row(np.zeros(theirs.n_vocab, np.float32))
        alike = [n for n in map(len, both.draft.ids.values()) if n > 1]
        assert row.max() >= np.log(max([1, *alike])) - 1e-6  # duplicates are added up
        assert np.isfinite(row).sum() > 0.2 * min(ours.n_vocab, theirs.n_vocab)


def ours_text(model: Model, ids: list[int]) -> bytes:
    return b"".join(map(model.piece, ids))


# ---------------------------------------------------------------- the engine


@pytest.fixture(scope="module")
def contexts(
    target_model: Model, draft_model: Model, renumbered: Model, smaller: Model, strange: Model
) -> Iterator[dict[str, Context]]:
    """One thread, flash attention on: batches of every size give the same bits (Q8_0, CPU)."""
    how = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    models = {
        "target": target_model,
        "draft": draft_model,
        "renumbered": renumbered,
        "smaller": smaller,
        "strange": strange,
    }
    made = {name: Context(model, how) for name, model in models.items()}
    yield made
    for context in made.values():
        context.close()


def engine(contexts: dict[str, Context], name: str) -> Engine:
    target, draft = contexts["target"], contexts[name]
    if name == "draft":
        return Engine(target, ModelDrafter(draft, target.model.n_vocab))
    drafter = CrossVocabularyDrafter(draft, VocabularyMap(target.model, draft.model))
    return Engine(target, drafter, lookup=Lookup(target.n_ctx, target.model.is_end))


def accepted(rounds: list[Round]) -> int:
    return sum(done.accepted for done in rounds if done.drafter)


WAYS = ((0.0, False), (0.0, True), (0.7, False), (1.0, False))


@pytest.mark.parametrize(
    ("temperature", "ends", "number", "n"),
    [
        *((*way, 4, 20) for way in WAYS[:1]),
        *(pytest.param(*way, 20, 10, marks=pytest.mark.slow) for way in WAYS),
    ],
)
def test_the_text_is_the_same_with_another_vocabulary(
    contexts: dict[str, Context], temperature: float, ends: bool, number: int, n: int
) -> None:
    """At temperature 0 the draft writes text, which the target's tokenizer cuts into tokens.

    After a bare question, without its template, the target would end at once; so answers that may
    end go on from the start of a story.
    """
    accept = Accept.COUPLED if temperature else Accept.BLOCK
    brought = dict.fromkeys(("draft", "renumbered", "smaller", "strange"), 0)
    engines = {name: engine(contexts, name) for name in brought}
    for question in questions(number):
        text = f"{question}\n\nOnce upon a time" if ends else question

        def answered(of: Engine, gamma: int, text: str = text) -> list[Round]:
            how = FixedGamma(gamma)
            return run(of, text, how, temperature=temperature, accept=accept, n=n, ends=ends)

        baseline = answered(Engine(contexts["target"]), 0)
        for name, of in engines.items():
            rounds = answered(of, 3)
            assert tokens(rounds) == tokens(baseline), (name, text)
            brought[name] += accepted(rounds)
    assert brought["draft"] > 2 * number
    assert brought["renumbered"] == pytest.approx(brought["draft"], rel=0.1)
    assert brought["smaller"] > 0.6 * brought["draft"]


class Unsure(Plan):
    """A plan that lets the draft make a pass and then takes no token."""

    def wants_token(self, confidence: float, *, must_verify: bool) -> bool:
        return False


def test_a_look_that_was_too_unsure_tells_what_it_would_have_drafted(
    contexts: dict[str, Context],
) -> None:
    of = engine(contexts, "renumbered")
    ids = contexts["target"].model.tokenize("Once upon a", add_special=True, parse_special=False)
    drafter = of.drafters[CROSS_VOCABULARY]
    drafter.begin(ids, argmax_proposer, Cancel(), anew=True)
    bold = drafter.propose(ids, Plan(1, CROSS_VOCABULARY, learns=True))
    drafter.observe(ids, 0)
    seen = drafter.propose(ids, Unsure(1, CROSS_VOCABULARY, learns=True))
    assert not seen.draft.tokens
    assert [view.pick()[0] for view in seen.views] == list(bold.draft.tokens)
    assert seen.confidences == pytest.approx(bold.confidences)
    assert seen.decodes == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", [Accept.TOKEN, Accept.BLOCK])
def test_with_a_seed_another_vocabulary_repeats(
    contexts: dict[str, Context], accept: Accept
) -> None:
    of = engine(contexts, "smaller")
    texts = [
        tokens(run(of, text, FixedGamma(3), temperature=0.8, accept=accept))
        for text in questions(2) * 2
    ]
    assert texts[:2] == texts[2:]
    assert {CROSS_VOCABULARY} == of.drafters.keys()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_can_look_inside_its_rounds(contexts: dict[str, Context], temperature: float) -> None:
    """This includes rounds with tokens that the draft lacks and wrote as text."""
    of = engine(contexts, "smaller")
    text = questions(1)[0]
    run(of, text, FixedGamma(3), temperature=temperature, accept=Accept.COUPLED)
    assert of.recorder.generation is not None
    seen = 0
    for number, made in enumerate(of.recorder.generation.rounds, 1):
        if made.own:
            inside = explain_again(of, of.recorder.generation, number, Cancel())
            assert len(inside.guesses) == len(made.drafted)
            seen += 1
    assert seen > 3


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_of_a_long_text_the_end_is_read_or_all(
    contexts: dict[str, Context], temperature: float
) -> None:
    of = engine(contexts, "smaller")
    contexts["smaller"].clear()
    text = "The little boat went out to sea, and the wind was kind to it. " * 9
    how = {"temperature": temperature, "accept": Accept.COUPLED, "n": 60}
    rounds = run(of, text, EndAlone(3), **how)  # type: ignore[arg-type]
    baseline = run(Engine(contexts["target"]), text, FixedGamma(0), **how)  # type: ignore[arg-type]
    assert tokens(rounds) == tokens(baseline)
    first, *later = [done.draft_prefill for done in rounds if done.draft_passes]
    assert EXCERPT_TOKENS < first < 70
    assert max(later) < first
    rounds = run(of, text, FixedGamma(3), **how)  # type: ignore[arg-type]
    assert tokens(rounds) == tokens(baseline)
    assert max(done.draft_prefill for done in rounds) > 140


def test_after_much_that_was_copied_the_draft_keeps_what_it_knows_before(
    contexts: dict[str, Context],
) -> None:
    target, context = contexts["target"].model, contexts["smaller"]
    drafter = CrossVocabularyDrafter(context, VocabularyMap(target, context.model))
    text = "The little boat went out to sea, and the wind was kind to it. " * 20
    ids = target.tokenize(text, add_special=True, parse_special=False)
    known, long, whole = ids[:100], ids[:250], Plan(1, drafter.name, whole=True)
    context.clear()

    def asked(tokens: list[int], plan: Plan) -> Proposal:
        found = drafter.propose(tokens, plan)
        drafter.observe([*tokens, 0], 0)
        return found

    drafter.begin(known, argmax_proposer, Cancel())
    asked(known, whole)
    held = list(context.tokens)
    assert drafter.state(long) == Askable(EXCERPT_TOKENS, 150 - EXCERPT_TOKENS, 150)
    found = asked(long, Plan(1, drafter.name))
    assert len(held) - 4 <= found.cached <= len(held)  # the last word is cut with the next
    assert EXCERPT_TOKENS <= found.read < 2 * EXCERPT_TOKENS
    drafter.begin(ids[:251], argmax_proposer, Cancel())  # the next answer goes on
    assert drafter.state(ids[:251]) == Askable(1, 150 - EXCERPT_TOKENS, 151)
    found = asked(ids[:251], whole)
    assert len(held) - 4 <= found.cached <= len(held)
    assert drafter.state(ids[:251]).left_out == 0
    drafter.begin(ids[:251], argmax_proposer, Cancel(), anew=True)
    asked(ids[:251], whole)
    assert len(context.tokens) == found.cached + found.read  # nothing is read twice


def test_what_was_read_of_another_text_is_not_taken_for_the_next(
    contexts: dict[str, Context],
) -> None:
    """The engine tells of a round in which the draft could not say the text, too."""
    target, context = contexts["target"].model, contexts["smaller"]
    drafter = CrossVocabularyDrafter(context, VocabularyMap(target, context.model))
    one = target.tokenize("The boat went out. " * 9, add_special=True, parse_special=False)
    other = target.tokenize("A cat sat on the mat.", add_special=True, parse_special=False)
    drafter.begin(one, argmax_proposer, Cancel(), anew=True)
    drafter.propose(one, Plan(1, drafter.name, whole=True))
    drafter.begin(other, argmax_proposer, Cancel())
    pending = drafter.state(other).pending
    drafter.observe([*other, 5], 0)
    assert drafter.state([*other, 5]).pending == pending + 1 > 3


@pytest.mark.parametrize("name", ["smaller", "strange"])
@pytest.mark.parametrize("late", [0, 1, 60])
def test_the_mark_of_a_prompt_lies_within_it_however_late_a_draft_is_asked(
    contexts: dict[str, Context], monkeypatch: pytest.MonkeyPatch, name: str, late: int
) -> None:
    """Of a draft with a state the next prompt goes back there."""
    marks: list[int] = []

    def mark(context: Context, _ahead: int = 0, *, lasting: int = 0) -> None:
        marks.extend([context.held] * lasting)

    monkeypatch.setattr(Context, "max_rollback", 0)
    monkeypatch.setattr(Context, "mark", mark)
    target, context = contexts["target"].model, contexts[name]
    both = VocabularyMap(target, context.model)
    drafter = CrossVocabularyDrafter(context, both)
    text = "The little boat went out to sea, and the wind was kind to it. " * 20
    ids = target.tokenize(text, add_special=True, parse_special=False)[: 100 + late]
    drafter.begin(ids[:100], argmax_proposer, Cancel(), anew=True)
    drafter.propose(ids, Plan(1, drafter.name, whole=True))
    prompt = len(spelled(both, ids[:100]).ids)
    assert prompt - 24 < marks[-1] < prompt


def of_a_narrow_draft(
    contexts: dict[str, Context], strange: Model, n_ctx: int, text: str, n: int
) -> list[Round]:
    """The rounds of an answer of `n` tokens; the draft needs more tokens for the same text."""
    target = contexts["target"]
    with Context(strange, ContextOptions(n_ctx=n_ctx, threads=1)) as narrow:
        of = Engine(target, CrossVocabularyDrafter(narrow, VocabularyMap(target.model, strange)))
        rounds = run(of, text, FixedGamma(3), temperature=0.0, accept=Accept.MATCH, n=n)
    assert len(tokens(rounds)) == n
    return rounds


def test_of_a_text_that_its_context_cannot_hold_a_draft_reads_the_end(
    contexts: dict[str, Context], strange: Model
) -> None:
    """Only once the text is spelled with its own tokens is their number known."""
    text = "The little boat went out to sea, and the wind was kind to it. " * 6
    rounds = of_a_narrow_draft(contexts, strange, 256, text, 120)
    drafted = [done for done in rounds if done.drafted]
    assert {done.left_out > 0 for done in drafted} == {True}
    assert len(drafted) > 0.8 * len(rounds)


def test_a_full_context_of_the_draft_drafts_nothing(
    contexts: dict[str, Context], strange: Model
) -> None:
    rounds = of_a_narrow_draft(contexts, strange, 64, "Tell me a story.", 30)
    assert not rounds[-1].drafted


# ---------------------------------------------------------------- a draft with larger tokens

C, AB, END = range(3)


class One(FixedGamma):
    """The same plan in every round with a draft."""

    def __init__(self, planned: Callable[[], Plan]) -> None:
        super().__init__(1)
        self.planned = planned

    def plan(self, situation: Situation) -> Plan:
        return self.planned()


def of_pairs(
    planned: Callable[[], Plan], times: int = 2, bias: Mapping[int, float] | None = None
) -> Round:
    """The first round with a draft that writes a and b as one token: "ab" `times` times."""
    text = [2, 2, *[0, 1] * times, *[3] * 9]

    def likely(token: int, n: int) -> list[float]:
        return [20.0 * (i == token) - i for i in range(n)]

    target = StubContext(lambda held: likely(text[len(held)], 4), Letters("a", "b", "c", ""))
    written = [C, C, *[AB] * times, *[END] * 9]
    draft = StubContext(lambda held: likely(written[len(held)], 3), Letters("c", "ab", ""))
    both = VocabularyMap(target.model, draft.model)  # type: ignore[arg-type]
    of = Engine(target, CrossVocabularyDrafter(draft, both))  # type: ignore[arg-type]
    sampling = SamplingParams(temperature=0, logit_bias=dict(bias or {}))
    settings = GenerateSettings(sampling=sampling, accept=Accept.MATCH, n_predict=2 * times + 4)
    list(of.prefill([2], Cancel()))
    _, done, *_ = of.generate([2], settings, One(planned), Cancel())
    return done


def pays() -> StoppingPlan:
    """A plan in which every token pays."""
    return StoppingPlan(Calibration(), [1.0] * 26, 0.0, 0.1, drafter=CROSS_VOCABULARY)


def test_all_text_that_was_written_is_proposed_with_its_end() -> None:
    done = of_pairs(pays)
    assert (done.draft_passes, done.drafted, done.accepted) == (3, 5, 5)
    assert len(done.confidences) == len(done.chances) == 5


def test_text_that_the_plan_does_not_keep_is_looked_at() -> None:
    class First(StoppingPlan):
        def keep(self) -> int:
            return 1

    done = of_pairs(lambda: First(Calibration(), [1.0] * 26, 0.0, 0.1, drafter=CROSS_VOCABULARY))
    assert (done.draft_passes, done.drafted, done.accepted) == (3, 1, 1)
    assert (len(done.confidences), len(done.chances)) == (5, 2)


@pytest.mark.parametrize("cheap", [3, 6, 8])
def test_no_pass_is_longer_than_the_plan_has_priced(cheap: int) -> None:
    """One pass of the draft brings two tokens of the target, whose passes are dear at a length."""
    times = [1.0] * (cheap + 1) + [99.0] * 9

    def planned() -> StoppingPlan:
        return StoppingPlan(Calibration(), times, 0.0, 0.5, drafter=CROSS_VOCABULARY)

    done = of_pairs(planned, times=9)
    assert done.drafted == done.accepted == cheap - 1 < done.gamma


@pytest.mark.parametrize(("gamma", "passes"), [(1, 1), (2, 1), (3, 2), (4, 2), (9, 5)])
def test_a_fixed_length_is_counted_in_the_tokens_of_the_target(gamma: int, passes: int) -> None:
    done = of_pairs(lambda: Plan(gamma, CROSS_VOCABULARY), times=9)
    assert (done.draft_passes, done.drafted) == (passes, gamma)


def test_copies_are_priced_after_the_tokens_of_the_target() -> None:
    asked: list[int] = []

    class Asked(Plan):
        def copies(self, confidences: Sequence[float], drafted: int) -> int:
            asked.append(drafted)
            return 0

    of_pairs(lambda: Asked(4, CROSS_VOCABULARY), times=9)
    assert asked[0] == 4
    copying = Copying(Survival(), [1.0, 1.0, 1.0, 9.0, 9.0, 9.0], [1.0] * 6, 0.1)
    plan = StoppingPlan(Calibration(), [1.0] * 6, 0.0, 0.1, copying=copying)
    assert plan.wants_token(0.9, must_verify=False)
    assert [plan.copies([0.9], drafted) for drafted in (1, 2)] == [0, 1]


def test_text_that_the_target_cannot_say_makes_no_copy_less_likely() -> None:
    """What was guessed counts only where it is submitted."""
    copying = Copying(Survival(), [1.0, 1.0, 1.3, 9.0, 9.0, 9.0], [1.0] * 6, 0.5)
    plan = StoppingPlan(Calibration(), [1.0] * 6, 0.0, 0.5, copying=copying)
    for _ in range(3):
        assert plan.wants_token(0.5, must_verify=False)
    assert plan.copies([0.9], 0) == 0
    plan.recount([])
    assert (plan.keep(), plan.copies([0.9], 0)) == (0, 1)


def test_text_is_written_where_only_the_end_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CrossVocabularyDrafter, "_shared")
    plan = Plan(6, CROSS_VOCABULARY, learns=True)
    done = of_pairs(lambda: plan, bias={3: -math.inf})
    assert done.drafted == len(done.confidences) == 6  # a b a b c c
    assert done.accepted >= 4


def test_no_pass_is_made_for_text_that_is_forbidden() -> None:
    done = of_pairs(lambda: Plan(6, CROSS_VOCABULARY), bias={1: -math.inf})
    assert done.drafted == done.draft_passes


@pytest.mark.parametrize("bias", [{3: 1.0}, {3: -5.0, 1: -math.inf}, {1: -math.inf}])
def test_where_a_bias_changes_the_best_guess_it_chooses_among_shared_tokens(
    monkeypatch: pytest.MonkeyPatch, bias: Mapping[int, float]
) -> None:
    monkeypatch.delattr(CrossVocabularyDrafter, "_text")
    done = of_pairs(lambda: Plan(6, CROSS_VOCABULARY), bias=bias)
    assert (done.drafted, done.accepted) == (3, 0)  # c c and the end, without any ab
