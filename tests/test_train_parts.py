"""The parts of `localspec train` that need no torch."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gguf
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from localspec.chat.conversation import Message, Role
from localspec.chat.dialects import Dialect
from localspec.chat.history.store import Store
from localspec.chat.history.tree import ConversationHeader, MessageNode, PairReference, fresh_id
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.session.session import Session
from localspec.cli.standard_streams import ProgressLine, warn
from localspec.cli.subcommands import cli
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.head_drafter import HeadDrafter
from localspec.engine.length.cost import Curve
from localspec.engine.length.profile import Timing
from localspec.engine.llama import Context, ContextOptions, Head, Model, head_of
from localspec.engine.llama.taps import Taps, TextRow, unpacked
from localspec.errors import (
    Cancelled,
    ConversationError,
    LocalspecError,
    UnsupportedModel,
    UsageError,
    VocabularyMismatch,
    installs_extra,
)
from localspec.formats import duration
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements import head_promise, ranking
from localspec.loading.measurements.head_promise import REACHABLE, expected
from localspec.pairs.disk import installed, remove, starter, trained_heads, trainings
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.gguf_writer import packed, rewritten, write
from localspec.pairs.gguf.header import read_model
from localspec.pairs.hub.retries import RetryPolicy
from localspec.pairs.names import resolver
from localspec.train import pipeline, step_costs, training
from localspec.train.estimate import TrainingCosts, estimate, learn_seconds, tokens_within
from localspec.train.head.head_files import NORMS, ModelWeights, beginning, read_head, write_head
from localspec.train.head.shape import HeadShape, candidates, require_trainable, taps_of
from localspec.train.recording import place, record, replaced
from localspec.train.target import find, target_options
from localspec.train.texts import answers, prompts, token_ids
from localspec.train.texts.answers import (
    LONGEST,
    AnsweredText,
    AnswerFile,
    TargetPrompt,
    finished,
    loop,
    write_answers,
)
from localspec.train.texts.lessons import ROWS, Lessons, batches
from localspec.train.texts.token_ids import prompt_ids
from localspec.train.train_request import TrainRequest
from localspec.train.training_folder import TrainingChoices, TrainingFolder, TrainingTerms
from localspec.train.training_listener import TrainingListener
from localspec.train.verdict import check_head, head_verdict
from localspec.train.verdict.head_verdict import HeadVerdict
from localspec.train.verdict.judging import REPEATS, AcceptedDrafts, judge

from .support import toy
from .support.gemma4 import write_gemma4
from .support.gguf_models import (
    Sizes,
    read_vocabulary,
    vocabulary_of,
    write_llama,
    write_random_gemma3,
    write_random_lfm2,
    write_random_llama,
    write_random_qwen3,
    write_random_qwen35,
)

TARGETS = {
    "llama": write_random_llama,
    "qwen3": write_random_qwen3,
    "gemma4": write_gemma4,
}


def quiet(cancel: Cancel | None = None) -> TrainingListener:
    return TrainingListener(lambda _: None, lambda *_: None, cancel or Cancel())


def untrained(path: Path, target: Path, shape: HeadShape) -> dict[str, np.ndarray]:
    """Write a head that has learnt nothing; give its weights."""
    files = read_model(target)
    weights = ModelWeights(files.paths)
    drafted = list(range(0, shape.vocab, max(1, shape.vocab // shape.drafted)))[: shape.drafted]
    begun = beginning(shape, weights, files.header.architecture, drafted)
    write_head(path, shape, begun, drafted=drafted, target=target, about={})
    return begun


@pytest.mark.parametrize("name", TARGETS)
def test_a_head_of_every_size_loads_beside_its_target(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path / "target.gguf")
    files = read_model(target)
    options = ContextOptions(n_ctx=256, threads=1)
    found = list(candidates(files.header))
    assert found == sorted(found, key=lambda one: -one.weights)
    assert len(found) > 2
    with Model.load(target) as model, Context(model, options) as context:
        for shape in (found[0], found[-1]):
            untrained(tmp_path / "head.gguf", target, shape)
            head_checks.require_head(read_model(tmp_path / "head.gguf"), files.header)
            with (
                Model.load(tmp_path / "head.gguf", head=True) as its,
                head_of(its, context, options) as head,
            ):
                context.clear()
                context.show([head])
                context.decode([1, 2, 3, 4], 1)
                states = head.fused(head.states.get(0, 3))
                logits, _ = head.read([2, 3, 4], states, output=True)
                assert np.isfinite(logits).sum() == shape.drafted


def test_what_is_written_is_what_gguf_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    matrix = random.normal(0, 1, (5, 64)).astype(np.float32)
    matrix[0, :32] = 0
    narrow, ids = matrix[:, :48], np.arange(7, dtype=np.int64)
    tensors = [packed("a", matrix), packed("b", narrow), packed("c", matrix[0]), packed("d", ids)]
    values = {"general.architecture": "eagle3", "n": 3, "x": 0.5, "yes": True, "list": [1, 2]}
    write(tmp_path / "a.gguf", values, tensors)
    rewritten(tmp_path / "a.gguf", tmp_path / "b.gguf", {"n": 4, "more": [0.25, 0.5]})
    read = gguf.GGUFReader(tmp_path / "b.gguf")
    assert {key: read.fields[key].contents() for key in ("n", "x", "yes", "list", "more")} == {
        "n": 4,
        "x": 0.5,
        "yes": True,
        "list": [1, 2],
        "more": [0.25, 0.5],
    }
    by_name = {each.name: each for each in read.tensors}
    q8 = gguf.quantize(matrix, gguf.GGMLQuantizationType.Q8_0)
    assert (by_name["a"].data == q8).all()
    assert by_name["b"].tensor_type == gguf.GGMLQuantizationType.F16
    assert (by_name["c"].data == matrix[0]).all()
    assert (by_name["d"].data == ids).all()


def test_a_head_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync, seen = tmp_path / "h.gguf", os.fsync, list[tuple[bool, int]]()

    def look(handle: int) -> None:
        seen.append((path.exists(), os.fstat(handle).st_size))
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    write(path, {"general.name": "x"}, [])
    assert seen == [(False, path.stat().st_size)]


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q5_1", "BF16"])
def test_weights_are_unpacked_as_gguf_does(kind: str) -> None:
    matrix = np.random.default_rng(1).normal(0, 1, (4, 64)).astype(np.float32)
    number = gguf.GGMLQuantizationType[kind]
    data = gguf.quantize(matrix, number)
    assert np.allclose(
        unpacked(data.tobytes(), int(number), matrix.size),
        gguf.dequantize(data, number).reshape(-1),
        atol=1e-6,
    )


def test_rows_of_weights_are_those_of_the_whole(toy_target: Path) -> None:
    weights = ModelWeights([toy_target])
    whole = weights.whole("token_embd")
    assert (weights.rows("token_embd", [7, 0, 4]) == whole[[7, 0, 4]]).all()
    assert weights.output == "token_embd"
    assert weights.shape("no such") == ()


def test_a_head_is_read_as_it_was_written(tmp_path: Path) -> None:
    target = write_random_llama(tmp_path / "target.gguf")
    shape, *others = candidates(read_model(target).header)
    begun = untrained(tmp_path / "head.gguf", target, shape)
    tensors, ids = read_head(tmp_path / "head.gguf", shape)
    assert len(ids) == shape.drafted == len(tensors["output"])
    for name in (*shape.matrices, *NORMS):
        assert np.abs(tensors[name] - begun[name]).max() < 0.02 * max(1, np.abs(begun[name]).max())
    with pytest.raises(UnsupportedModel, match="not a head of the shape"):
        read_head(tmp_path / "head.gguf", others[-1])
    with pytest.raises(UnsupportedModel, match="not a head of the shape"):
        read_head(target, shape)


def test_a_head_of_llama_begins_as_its_last_layer(toy_target: Path) -> None:
    weights = ModelWeights([toy_target])
    shape = next(candidates(read_model(toy_target).header))
    begun = beginning(shape, weights, "llama", range(shape.drafted))
    assert shape.taps == taps_of(8) == (2, 4, 7)
    assert (begun["blk.0.ffn_down"] == weights.whole("blk.7.ffn_down")).all()
    assert (begun["blk.0.attn_q"][:, shape.width :] == weights.whole("blk.7.attn_q")).all()
    other = beginning(shape, weights, "qwen3", range(shape.drafted))
    assert np.abs(other["blk.0.attn_q"][:, shape.width :]).max() < 0.2  # turned otherwise there
    assert (other["blk.0.attn_v"][:, shape.width :] == weights.whole("blk.7.attn_v")).all()


@pytest.mark.parametrize("writer", [write_random_llama, write_random_lfm2, write_random_qwen35])
def test_many_texts_give_the_rows_of_each_alone(writer: object, tmp_path: Path) -> None:
    assert callable(writer)
    path = writer(tmp_path / "target.gguf")
    random = np.random.default_rng(0)
    texts = [random.integers(3, 300, n).tolist() for n in (9, 30, 17)]
    layers = (0, 1)
    with (
        Model.load(path) as model,
        Taps(model, layers, texts=4, n_ctx=64, n_batch=64, outputs=64, threads=1) as taps,
    ):
        rows = [TextRow(t, n, at) for n, text in enumerate(texts) for at, t in enumerate(text)]
        logits = taps.decode(rows).copy()
        states = [each.copy() for each in taps.states(len(rows))]
        start = 0
        for text in texts:
            taps.clear()
            alone_ = [TextRow(t, 0, at, wanted=at > 2) for at, t in enumerate(text)]
            own = taps.decode(alone_)
            end = start + len(text)
            assert own.shape[0] == len(text) - 3
            assert np.allclose(own, logits[start + 3 : end], atol=0.05)
            for mine, all_ in zip(taps.states(len(text)), states, strict=True):
                assert np.allclose(mine, all_[start:end], atol=0.05)
            start = end


def test_a_failed_decode_is_a_sentence(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "target.gguf")
    with (
        Model.load(path) as model,
        Taps(model, (), texts=1, n_ctx=64, n_batch=64, outputs=8, threads=1) as taps,
        pytest.raises(LocalspecError, match="failed to decode"),
    ):
        taps.decode([TextRow(1, 0, 0), TextRow(2, 0, 5)])


@pytest.mark.parametrize("writer", [write_random_gemma3])
def test_a_target_without_states_is_refused_before_it_is_loaded(
    writer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(writer)
    path = writer(tmp_path / "target.gguf")
    monkeypatch.setattr(pipeline, "load_session", None)
    with pytest.raises(UnsupportedModel, match=r"target\.gguf: llama\.cpp shows no layers of"):
        pipeline.train(TrainRequest(pair=str(path)), quiet())


def test_missing_torch_is_a_sentence(toy_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _: None)
    with pytest.raises(LocalspecError, match="needs PyTorch") as caught:
        pipeline.train(TrainRequest(pair=str(toy_target)), quiet())
    assert installs_extra("train") in caught.value.remedy


def test_a_target_of_one_layer_is_refused(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "target.gguf", n_layer=1)
    with pytest.raises(UnsupportedModel, match=r"it has 1 layer$"):
        require_trainable(read_model(path).header, "x")


@pytest.mark.parametrize(
    ("ids", "said_again"),
    [
        ([*range(40)], 0),
        ([1, 2, 3] * 3, 0),
        ([*range(10), *[7, 8, 9] * 10], 30),
        ([5] * 30, 29),
        ([*range(100), *range(50), *range(50), *range(50)], 100),
    ],
)
def test_a_loop_at_the_end_is_found(ids: list[int], said_again: int) -> None:
    assert loop(ids) == said_again


def test_loops_are_cut_out_of_answers() -> None:
    asked = TargetPrompt(3, (1, 2, 3), 0.0)
    sample = finished(asked, [1, 2, 3, 10, 11, *[7, 8, 9] * 10])
    assert sample == AnsweredText(3, (1, 2, 3, 10, 11, 7, 8, 9), 3, 0.0)
    assert sample.written == 5


def test_answers_are_kept_line_by_line(tmp_path: Path) -> None:
    kept = AnswerFile(tmp_path / "a.jsonl")
    samples = [AnsweredText(n, (1, 2, 3 + n), 2, 0.8) for n in range(3)]
    for one in samples:
        kept.add(one)
    torn = b"\0" * 9 + b"\n" + kept.path.read_bytes() + b'{"prompt":9,"ids":[1,'
    kept.path.write_bytes(torn)
    again = AnswerFile(kept.path)
    assert again.samples == samples
    assert again.written == 3
    again.add(samples[0])
    assert AnswerFile(kept.path).samples == [*samples, samples[0]]


def test_a_prompt_that_is_asked_again_is_answered_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LONGEST", 40)
    path = write_random_llama(tmp_path / "target.gguf")
    _, *asked = islice(token_ids.questions([tuple(range(20, 30))], []), 6)
    assert {one.temperature for one in asked} == {0.8}
    with (
        Model.load(path) as model,
        Taps(model, (), texts=2, n_ctx=80, n_batch=64, outputs=2, threads=1) as taps,
    ):
        said = [each.ids for each in write_answers(taps, 2, iter(asked), Cancel())]
    assert len({*said}) == len(said) == 5


def test_what_was_answered_is_not_asked_again() -> None:
    known: list[tuple[int, ...]] = [(1, 2), (), (3,)]
    asked = [*token_ids.questions(known, [])]
    left = [*token_ids.questions(known, [AnsweredText(2, (3, 4), 1, 0.8, 1)])]
    (done,) = {*asked} - {*left}
    assert (done.prompt, done.turn) == (2, 1)
    assert len(left) == len(asked) - 1


@pytest.mark.slow
def test_answers_written_together_are_those_written_alone(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "target.gguf")
    asked = [TargetPrompt(n, tuple(range(20 + 7 * n, 30 + 9 * n)), 0.8 * (n % 2)) for n in range(5)]
    with Model.load(path) as model:
        found = []
        for texts in (1, 3):
            with Taps(
                model, (), texts=texts, n_ctx=texts * LONGEST, n_batch=64, outputs=3, threads=1
            ) as taps:
                one = write_answers(taps, texts, iter(asked), Cancel())
                found.append({each.prompt: each for each in one})
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 5
    assert all(each.ids[: each.start] == asked[n].ids for n, each in found[0].items())
    same = sum(found[0][n].ids[:40] == found[1][n].ids[:40] for n in found[0])
    assert same >= 4  # passes of other sizes round differently


def test_batches_hold_every_sample_once_and_fit() -> None:
    random = np.random.default_rng(0)
    samples = [
        AnsweredText(n, tuple(range(length)), 2)
        for n, length in enumerate(random.integers(5, LONGEST, 200).tolist())
    ]
    found = batches(samples, 0)
    assert sorted(one.prompt for batch in found for one in batch) == [*range(200)]
    assert all(len(batch) * max(len(one.ids) for one in batch) <= ROWS for batch in found)
    filled = sum(len(one.ids) for one in samples) / sum(
        len(batch) * max(len(one.ids) for one in batch) for batch in found
    )
    assert filled > 0.8
    assert batches(samples, 0) == found
    assert batches(samples, 1) != found


def test_a_lesson_pairs_states_with_the_tokens_after_them(tmp_path: Path) -> None:
    path = write_random_llama(tmp_path / "target.gguf")
    weights = ModelWeights([path])
    samples = [AnsweredText(0, (5, 6, 7, 8, 9), 3), AnsweredText(1, (9, 8, 7), 1)]
    with (
        Model.load(path) as model,
        Taps(model, (0, 1), texts=2, n_ctx=64, n_batch=64, outputs=64, threads=1) as taps,
    ):
        found = Lessons(taps, weights).of(samples)
        logits = found.logits.copy()
        whole = taps.decode([TextRow(t, 0, 5 + at) for at, t in enumerate((1,))])
        assert whole.shape == (1, model.n_vocab)
    table = weights.whole("token_embd")
    assert np.allclose(found.states[0, :5, :64], table[[5, 6, 7, 8, 9]], atol=1e-5)
    assert not found.states[0, 5:].any()
    assert (found.embedded[0, :4] == table[[6, 7, 8, 9]]).all()
    assert (found.embedded[1, :2] == table[[8, 7]]).all()
    assert found.texts.tolist() == [0, 0, 1, 1]
    assert found.places.tolist() == [3, 4, 1, 2]
    assert found.starts.tolist() == [3, 1]
    assert logits.shape[0] == 4


def test_the_commonest_ids_can_be_drafted() -> None:
    samples = [AnsweredText(0, (9, 9, 9, 4, 4, 2), 2), AnsweredText(1, (1, 4), 1)]
    assert token_ids.by_frequency(samples, 12, 5) == [4, 2, 9, 0, 1]
    assert len(set(token_ids.by_frequency(samples, 12, 12))) == 12


def costs(times: dict[int, float], step: float = 0.001) -> TrainingCosts:
    return TrainingCosts(
        target=Curve(times),
        step_s=step,
        read_s=0.002,
        flops=5e10,
        loaded_bytes=2 * 10**8,
        reading_bytes=10**8,
    )


def test_what_it_takes_and_brings_is_told(toy_target: Path) -> None:
    shape = next(candidates(read_model(toy_target).header))
    flat = costs({1: 0.01, 4: 0.012, 8: 0.013, 16: 0.015})
    steep = costs({1: 0.01, 2: 0.018, 4: 0.034, 8: 0.065, 16: 0.13})
    told = estimate(shape, flat, 1_000_000, 2, held=24)
    assert told.pays
    assert told.best > told.speedup > 1.2
    assert told.share == pytest.approx(0.1)
    assert 0.47 < told.acceptance < 0.5
    assert not estimate(shape, steep, 1_000_000, 2, held=24).pays
    assert (
        "no head can make this target faster here" in estimate(shape, steep, 10, 1, held=24).doubt()
    )
    assert "1,000,000 tokens of answers" in told.sentence()
    twice = estimate(shape, flat, 2_000_000, 2, held=0)
    assert twice.seconds == pytest.approx(2 * (told.seconds - told.judging_s))
    assert told.judging_s == pytest.approx(24 * (256 * (0.013 / 8 + 21 * 0.002) + 320 * 0.01))
    given = estimate(shape, flat, 1_000_000, 2, held=24, given=1_000_000)
    assert given.seconds == told.learning_s + told.judging_s  # nothing has to be written
    again = estimate(shape, flat, 10_000, 2, held=24, before=990_000)  # a head that goes on
    assert again.acceptance == told.acceptance
    for one, written in ((told, 0), (given, 1_000_000), (given, 10**9)):
        tokens = tokens_within(one.seconds / 3600, shape, flat, 2, held=24, given=written)
        assert tokens == pytest.approx(1_000_000, rel=0.01)
    assert expected(0) < expected(10**5) < expected(10**6) < expected(10**9) == expected(10**12)


@pytest.mark.parametrize(("width", "feed_forward"), [(1536, 8960), (4096, 14_336)])
def test_a_wide_head_takes_longer_to_update_than_to_learn(width: int, feed_forward: int) -> None:
    shape = HeadShape(
        width=width,
        taps=(2, 4, 7),
        heads=width // 128,
        kv_heads=width // 512,
        head_width=128,
        feed_forward=feed_forward,
        vocab=128_256,
        drafted=32_768,
        epsilon=1e-5,
        rope_base=1e4,
        context=8192,
    )
    products = list[tuple[int, int, int]]()
    for m, n in map(sorted, shape.matrices.values()):
        products += 5 * [(m, n, m), (m, m, m), (m, m, n)]
    update = sum(2 * a * b * c for a, b, c in products)  # whatever the batch
    weights = sum(rows * reads for rows, reads in shape.matrices.values())
    reached = 1 + REACHABLE + REACHABLE**2 + REACHABLE**3
    learnt = ROWS * (4 * 6 * weights + 4 * 32_768 * width * reached)
    here = costs({1: 0.01})
    step = 0.6 * ROWS * learn_seconds(shape, here)
    assert step == pytest.approx(ROWS * here.read_s + 2 * (learnt + update) / here.flops)
    assert update > learnt


@contextmanager
def loaded(target: Path) -> Iterator[Session]:
    options = target_options(read_model(target), "lookup", 1)
    session = load_session(options, progress=lambda *_: None, cancel=Cancel())
    try:
        yield session
    finally:
        session.close()


@pytest.mark.parametrize(("share", "of_largest"), [(0.1, True), (0.2, False)])
def test_a_head_is_as_large_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, of_largest: bool
) -> None:
    """T(1) is measured again with the step: programs that began meanwhile make both look dear."""
    target = write_random_llama(tmp_path / "t.gguf")
    busy = 8.0

    def disturbed(context: Context, *_: object, **__: object) -> Timing:
        return Timing({1: busy * (share * 0.01 if isinstance(context, Head) else 0.01)})

    monkeypatch.setattr(step_costs, "measure", disturbed)
    shapes = list(candidates(read_model(target).header))
    with loaded(target) as session:
        shape, found = step_costs.chosen_shape(
            session,
            target_options(read_model(target), "lookup", 1),
            read_model(target),
            shapes,
            probe=tmp_path / "probe.gguf",
            most=0.1,
            cancel=Cancel(),
        )
    assert found == pytest.approx(share)
    assert shape == shapes[0 if of_largest else -1]


def run_of(target: Path, listener: TrainingListener, **asked: object) -> pipeline._TrainingRun:
    request = TrainRequest(pair=str(target), threads=1, **asked)  # type: ignore[arg-type]
    few = prompts.gather((), ())
    few = replace(few, learnt=few.learnt[:20], held_out=few.held_out[:2])
    return pipeline._TrainingRun(request, listener, find(str(target), scan=False), few)


def test_a_context_that_reads_has_room_for_the_texts_of_a_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each text that it may hold llama.cpp reserves a recurrent state."""
    run = run_of(write_random_llama(tmp_path / "t.gguf"), quiet())
    monkeypatch.setattr(pipeline, "Taps", lambda *_, texts, **__: texts)
    session: Any = SimpleNamespace(pair=SimpleNamespace(target=SimpleNamespace(model=None)))
    short = [AnsweredText(n, (1, 2), 1) for n in range(99)]
    assert run._reading(session) == max(map(len, batches(short, 0)))


def test_a_head_says_what_the_one_that_it_goes_on_with_had_learnt(tmp_path: Path) -> None:
    target = write_random_llama(tmp_path / "t.gguf")
    untrained(tmp_path / "raw.gguf", target, next(candidates(read_model(target).header)))
    about = {trained_heads.TARGET_HASH: "x", trained_heads.PRIVATE: True, trained_heads.TOKENS: 9}
    rewritten(tmp_path / "raw.gguf", tmp_path / "own.gguf", about)
    samples = [AnsweredText(0, (1, 2, 3, 4, 5), 1)]
    for init, private, tokens in (("own.gguf", True, 13), ("raw.gguf", False, 4)):
        about = run_of(target, quiet(), init=tmp_path / init)._about(samples, chosen())
        assert about[trained_heads.PRIVATE] is private
        assert about[trained_heads.TOKENS] == tokens


def test_a_missing_folder_for_the_head_is_told_at_once(tmp_path: Path) -> None:
    target = write_random_llama(tmp_path / "t.gguf")
    asked = TrainRequest(pair=str(target), out=tmp_path / "none" / "head.gguf")
    with pytest.raises(UsageError, match=r"there is no folder .*none"):
        pipeline.train(asked, quiet())


def test_a_pipe_can_be_read_only_once(tmp_path: Path) -> None:
    target, pipe = write_random_llama(tmp_path / "t.gguf"), tmp_path / "pipe"
    os.mkfifo(pipe)
    for given in ({"prompts": (pipe,)}, {"answers": (pipe,)}):
        with pytest.raises(UsageError, match="pipe is not a file"):
            pipeline.train(TrainRequest(pair=str(target), **given), quiet())


def test_the_head_does_not_take_the_place_of_what_is_read(tmp_path: Path) -> None:
    target, asked = write_random_llama(tmp_path / "t.gguf"), tmp_path / "asked.jsonl"
    asked.write_text("")
    (tmp_path / "link.gguf").symlink_to(target)
    for name in ("t.gguf", "link.gguf", "asked.jsonl"):
        given = TrainRequest(pair=str(target), prompts=(asked,), out=tmp_path / name)
        with pytest.raises(UsageError, match=f"would take the place of .*{name}"):
            pipeline.train(given, quiet())


REFUSES = "{{ raise_exception('no') }}"
FIRST_ALONE = "{% if messages|length > 1 %}" + REFUSES + "{% endif %}{{ messages[0]['content'] }}"


def test_prompts_that_are_all_too_long_are_refused_before_hours_are_spent(tmp_path: Path) -> None:
    run = run_of(write_random_llama(tmp_path / "t.gguf"), quiet())
    short, long = run.prompts, (Message(Role.USER, "word " * 999),)
    with loaded(run.target.paths[0]) as session:
        for part in ("learnt", "held_out"):
            run.prompts = replace(short, **{part: (long,)})  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="too long: what t reads of one may have 320"):
                run._asked(session, [])
        run.prompts = replace(short, learnt=(long, *short.learnt))
        asked = run._asked(session, [])
        called = Message(Role.ASSISTANT, "<call>")
        talk = short.learnt[0][0], called, Message(Role.TOOL, "5"), short.learnt[1][0]
        strict = ChatTemplate(session.pair.target.model, written=FIRST_ALONE)
        refused, kept = prompt_ids(strict, [talk, short.learnt[0]], Cancel())
        assert (refused, bool(kept)) == ((), True)
        strict = ChatTemplate(session.pair.target.model, written=REFUSES)
        with pytest.raises(LocalspecError):
            prompt_ids(strict, [talk[:1]], Cancel())
    assert asked.learnt[0] == ()
    assert asked.most == 20 * sum(LONGEST - len(ids) for ids in asked.learnt[1:])


def said(*messages: tuple[str, str]) -> str:
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in messages]})


def test_answers_that_cannot_be_read_are_told_by_their_line(tmp_path: Path) -> None:
    path, fine = tmp_path / "a.jsonl", said(("user", "Hello."), ("assistant", "Good day."))
    with loaded(write_random_llama(tmp_path / "t.gguf")) as session:
        template, model = session.template, session.pair.target.model
        for content, told in (
            ("\n", "there are no answers to learn from in .*a.jsonl"),
            (said(("user", "Hello.")), "there are no answers to learn from in"),
            (f"{fine}\n{said()}", r"line 2 of .*a\.jsonl cannot be read: Expected"),
            (f"{fine}\n{said(('alien', 'x'))}", "line 2 of .* Invalid enum value 'alien'"),
        ):
            path.write_text(content)
            with pytest.raises(LocalspecError, match=told):
                token_ids.given(path, template, model)
        path.write_text(fine, "utf-16")
        (one,) = token_ids.given(path, template, model)
        assert b"".join(map(model.piece, one.ids[one.start : -1])).strip() == b"Good day."
        assert one.ids[-1] == model.end


def test_a_head_for_other_tokens_is_none_to_begin_with(tmp_path: Path) -> None:
    """Its sizes may be the same: what it drafts would mean other words."""
    target = write_random_llama(tmp_path / "t.gguf")
    size = len(read_vocabulary(toy.TARGET).tokens)
    other = write_llama(tmp_path / "o.gguf", vocabulary_of(size), Sizes(), seed=0, type="q8_0")
    for its, fits in ((target, True), (other, False)):
        untrained(tmp_path / "head.gguf", its, next(candidates(read_model(its).header)))
        run = run_of(target, quiet(), init=tmp_path / "head.gguf")
        with nullcontext() if fits else pytest.raises(VocabularyMismatch):
            run._allowed()


def test_a_training_for_a_head_of_a_former_size_is_refused(tmp_path: Path) -> None:
    run = run_of(write_random_llama(tmp_path / "t.gguf"), quiet())
    with pytest.raises(UsageError, match="a size that is not trained any more"):
        run._shape(chosen())


@pytest.mark.slow
def test_answering_tells_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(answers, "LONGEST", 80)
    target, told = write_random_llama(tmp_path / "t.gguf"), list[str]()
    listener = TrainingListener(lambda _: None, lambda text, _: told.append(text), Cancel())
    run = run_of(target, listener)
    run.work.enter(terms(), resume=False, anew=True)
    with loaded(target) as session:
        run._answers(session, chosen(tokens=200), run._asked(session, []), [])
    assert told[-1].startswith("Answering: ")
    assert told[-1].endswith(" left")


def test_the_built_in_prompts_are_many_and_some_are_held_out() -> None:
    found = prompts.gather((), ())
    assert len(found.held_out) == 24
    assert len(found.learnt) > 3000
    assert not {*found.held_out} & {*found.learnt}
    assert found == prompts.gather((), ())
    assert not found.private


def test_own_prompts_and_too_few_of_them(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q {n}"}) + "\n" for n in range(30)))
    found = prompts.gather([path], ())
    assert (len(found.learnt), len(found.held_out)) == (28, 2)
    path.write_text(json.dumps({"prompt": "one"}) + "\n")
    with pytest.raises(UsageError, match="1 different one, 8 are needed"):
        prompts.gather([path], ())


def test_without_a_conversation_none_can_be_trained_on(
    toy_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The built-in prompts are not taken in their place."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    monkeypatch.setattr(pipeline, "_require_torch", lambda: None)
    asked = TrainRequest(pair=str(toy_target), history=True, scan=False)
    with pytest.raises(UsageError, match="no conversations of yours"):
        pipeline.train(asked, quiet())


def store_of(path: Path, *conversations: Sequence[str]) -> Path:
    """Store conversations of these questions, each answered with "yes"."""
    with closing(Store(path)) as store:
        for questions in conversations:
            said = [Message(Role.USER, one) for one in questions for _ in range(2)]
            said[1::2] = [Message(Role.ASSISTANT, "yes")] * len(questions)
            ids = [fresh_id() for _ in said]
            nodes = map(MessageNode, ids, [None, *ids], said)
            header = ConversationHeader(fresh_id(), "title", PairReference(), {}, 1.0, 1.0)
            store.save(header, nodes, ids[-1])
    return path


def test_every_conversation_is_trained_on(tmp_path: Path) -> None:
    """The chat lists the latest ones alone."""
    path = store_of(tmp_path / "kept.db", *([f"first {n}", "then"] for n in range(210)))
    found = token_ids.conversations(path, cancel := Cancel())
    assert [one[0].content for one in found[::2]] == [f"first {n}" for n in range(210)]
    assert {len(one) for one in found[1::2]} == {3}
    cancel.set()
    with pytest.raises(Cancelled):
        token_ids.conversations(path, cancel)


def test_conversations_that_cannot_be_read_are_no_fault_of_localspec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, locked = tmp_path / "damaged.db", store_of(tmp_path / "locked.db", ["one"])
    damaged.write_bytes(b"no data base" * 999)
    with pytest.raises(ConversationError, match=r"damaged\.db cannot be read"):
        token_ids.conversations(damaged, Cancel())
    monkeypatch.setattr("localspec.chat.history.store._BUSY_S", 0.01)
    with closing(sqlite3.connect(locked)) as another:
        another.execute("PRAGMA locking_mode = EXCLUSIVE")
        another.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConversationError, match=r"holds the conversations in .*locked\.db"):
            token_ids.conversations(locked, Cancel())


def test_a_conversation_is_read_until_it_is_too_long() -> None:
    """Else every message of a long one would have all before it rendered again."""
    rendered: list[int] = []

    def render(messages: Sequence[Message], *_: object) -> str:
        rendered.append(len(messages))
        return " ".join(one.content for one in messages)

    template: Any = SimpleNamespace(dialect=Dialect(), render=render, tokenize=str.split)
    long = [Message(Role.USER, f"{n} " + "word " * 19) for n in range(200)]
    other = [Message(Role.USER, "1 word"), *long[:2]]
    asked = [each[: n + 1] for each in (long, other) for n in range(len(each))]
    random.Random(0).shuffle(asked)
    found = prompt_ids(template, asked, cancel := Cancel())
    assert [len(ids) for ids in found] == [
        n if n <= 320 else 0 for n in (len(render(one).split()) for one in asked)
    ]
    assert sorted(rendered[: -len(asked)]) == sorted([*range(1, 18), 1, 2, 3])
    cancel.set()
    with pytest.raises(Cancelled):
        prompt_ids(template, asked, cancel)


def test_a_training_on_one_s_own_conversations_goes_on_with_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    run = run_of(write_random_llama(tmp_path / "t.gguf"), quiet(), history=True, resume=True)
    found, shape = costs({1: 0.01, 4: 0.012}), run._allowed()[0]
    monkeypatch.setattr(pipeline, "wait_for_calm", lambda *_: 0.0)
    monkeypatch.setattr(pipeline, "costs", lambda *_: found)
    monkeypatch.setattr(pipeline, "chosen_shape", lambda *_, **__: (shape, 0.1))
    monkeypatch.setattr(run, "_reading", lambda _: nullcontext())
    monkeypatch.setattr(run, "_require_sense", lambda _: None)
    monkeypatch.setattr(pipeline.token_ids, "conversations", lambda *_: [])  # deleted since
    with pytest.raises(UsageError, match="no conversations of yours"):
        pipeline._prompts(run.request, run.target, quiet())
    run.prompts = replace(run.prompts, private=True)
    asked = token_ids.AskedIds([*[(1,)] * 19, ()], [(1,)] * 2)
    run._begin(None, asked, 0)  # type: ignore[arg-type]
    kept = replace(run.prompts, learnt=(*run.prompts.learnt[:19], ()))
    assert pipeline._prompts(run.request, run.target, quiet()) == kept
    path = run.work.folder / "prompts.json"
    assert os.name == "nt" or path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UsageError, match="the prompts of the training that was stopped cannot"):
        pipeline._prompts(run.request, run.target, quiet())


def terms(**more: object) -> TrainingTerms:
    usual = {"target": "x", "prompts": (), "answers": (), "history": False, "tokens": 5}
    rest = {"passes": 1, "hours": None, "init": ""}
    return TrainingTerms(**{**usual, **rest, **more})  # type: ignore[arg-type]


def chosen(its: TrainingTerms | None = None, *, tokens: int = 5) -> TrainingChoices:
    return TrainingChoices(terms=its or terms(), tokens=tokens, feed_forward=1, drafted=1)


def test_a_training_goes_on_only_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    place_ = TrainingFolder("f" * 64)
    with pytest.raises(UsageError, match="no training of this target"):
        place_.enter(terms(), resume=True, anew=False)
    assert place_.enter(terms(), resume=False, anew=False) is None
    begun = chosen()
    place_.begin(begun)
    assert place_.enter(terms(), resume=True, anew=False) == begun
    with pytest.raises(UsageError, match="stopped before its end") as stopped:
        place_.enter(terms(), resume=False, anew=False)
    assert stopped.value.remedy == "Go on with --resume, or begin anew with --anew."
    with pytest.raises(UsageError, match="other settings: tokens"):
        place_.enter(terms(tokens=6), resume=True, anew=False)
    record = place_.folder / "begun.json"
    whole = record.read_bytes()
    record.write_bytes(whole[:-9])
    for resume in (True, False):
        with pytest.raises(UsageError, match=r"cannot be read; it is kept: .*begun\.json"):
            place_.enter(terms(), resume=resume, anew=False)
    record.write_bytes(whole)
    assert place_.enter(terms(), resume=True, anew=False) == begun
    place_.checkpoint.write_bytes(b"x")
    assert place_.enter(terms(tokens=6), resume=False, anew=True) is None
    place_.close()
    assert place_.begun() == begun  # the new one may be refused, and then the old one stays
    place_.begin(chosen(terms(tokens=6)))
    assert [each.name for each in place_.folder.iterdir()] == ["begun.json"]


@pytest.mark.parametrize(
    ("paused", "judges"), [(0.0, False), (0.0, True), (28_800.0, False), (28_800.0, True)]
)
def test_the_time_that_is_left_counts_long_steps_and_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: float, judges: bool
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    none, work = cast("Any", None), TrainingFolder("f" * 64)
    found = training.Training(work, none, none, [], [], passes=1, common=0)
    found._batches, now, told = [[]] * 40, 0.0, list[str]()

    def step() -> None:
        nonlocal now
        found.standing.step += 1
        now += 150.0 + paused * (found.standing.step == 20 and not judges)

    monkeypatch.setattr(found, "_step", step)
    judged = 0

    def judge(_: Any) -> None:
        nonlocal now, judged
        judged += 1
        # No pause, though longer than many steps.
        now += 2000.0 + paused * (judged == 10)

    monkeypatch.setattr(found, "_judge", judge if judges else lambda _: None)
    monkeypatch.setattr(found, "save", lambda: None)
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    found.run(Cancel(), lambda words, _: told.append(words), lambda: None)
    if judges:
        assert found.standing.seconds == 40 * 150.0 + judged * 2000.0 + (18_001.0 if paused else 0)
        return
    whole = [f"Training: {duration(150.0 * left)} left" for left in reversed(range(40))]
    assert told[:19] == whole[:19]
    assert paused or told == whole
    assert found.standing.seconds < 1.3 * 40 * 150.0


def test_a_training_goes_on_or_is_forgotten() -> None:
    done = CliRunner().invoke(cli, ["train", "any", "--resume", "--anew"])
    assert isinstance(done.exception, UsageError)
    assert "--anew begins another" in done.exception.message


def test_hours_that_are_no_number_are_refused() -> None:
    done = CliRunner().invoke(cli, ["train", "any", "--hours", "nan"])
    assert done.exit_code == 2
    assert "nan is not a number" in done.stderr


def test_what_a_check_would_ignore_is_refused(tmp_path: Path) -> None:
    head = tmp_path / "h.gguf"
    head.touch()
    for typed, said in (
        (("-o", "x.gguf"), "--output"),
        (("--resume",), "--resume"),
        (("--tokens", "9"), "--tokens"),
    ):
        done = CliRunner().invoke(cli, ["train", "any", "--check", str(head), *typed])
        assert isinstance(done.exception, UsageError)
        assert done.exception.message == f"{said} does not go with --check"


def test_what_a_head_is_called_cannot_control_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_pair: str, _head: Path, listener: TrainingListener, **_: object) -> list[str]:
        listener.tell("for \x1b]0;evil\x07")
        return ["made for    another file (\x1b]0;evil\x07)"]

    monkeypatch.setattr(check_head, "check", told)
    head = tmp_path / "h.gguf"
    head.touch()
    done = CliRunner().invoke(cli, ["train", "any", "--check", str(head)])
    assert done.exit_code == 0
    assert "another file (␛]0;evil␇)" in done.stdout
    assert "for ␛]0;evil␇" in done.stderr


def test_a_stop_while_a_finished_head_is_timed_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = Cancel()

    def stopped(*_: object, **__: object) -> object:
        cancel.set()
        return SimpleNamespace(arms=())

    monkeypatch.setattr(head_verdict, "bench", stopped)
    asked = [[Message(Role.USER, "hi")]]
    with pytest.raises(Cancelled):
        head_verdict._timed(cast("Any", None), asked, lambda *_: None, cancel)


def test_progress_that_cannot_be_written_does_not_end_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("click.echo", broken)
    line = ProgressLine()
    line.step("one")
    line.show("two")
    warn("three")


def test_a_signal_that_stops_a_training_is_the_reason_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(_request: TrainRequest, listener: TrainingListener) -> None:
        signal.raise_signal(number)
        listener.cancel.check()

    monkeypatch.setattr(pipeline, "train", step)
    number = signal.SIGTERM
    done = CliRunner().invoke(cli, ["train", "any"], standalone_mode=False)
    assert done.return_value == 128 + signal.SIGTERM
    number = signal.SIGINT
    done = CliRunner().invoke(cli, ["train", "any"], standalone_mode=False)
    assert isinstance(done.exception, Cancelled)


def test_one_training_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    with (
        trainings.alone(),
        pytest.raises(LocalspecError, match="another training is running"),
        trainings.alone(),
    ):
        pass
    with trainings.alone():
        pass


def test_files_of_the_same_size_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    a = write_random_llama(tmp_path / "a.gguf", seed=0)
    b = write_random_llama(tmp_path / "b.gguf", seed=1)
    c = tmp_path / "c.gguf"
    c.write_bytes(a.read_bytes())
    assert a.stat().st_size == b.stat().st_size
    assert fingerprint([a]) == fingerprint([c]) != fingerprint([b])
    assert fingerprint([a, b]) != fingerprint([b, a])


def trained_head(folder: Path, target: Path, accepted: float) -> Path:
    shape = next(candidates(read_model(target).header))
    untrained(folder / "raw.gguf", target, shape)
    out = place(target, None)
    about = {
        trained_heads.TARGET: target.name,
        trained_heads.TARGET_HASH: fingerprint([target]),
        trained_heads.ACCEPTED: accepted,
    }
    rewritten(folder / "raw.gguf", out, about)
    return out


def test_the_target_drafts_with_its_head_and_rm_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "My Model.gguf")
    head = trained_head(tmp_path, target, 0.5)
    name = record((target,), head)
    assert name == "my-model"
    assert resolver.resolve(str(target)).draft == head
    assert record((target,), head) == name  # again, in place of the first
    found = installed.find(name)
    assert found is not None
    assert [each.path for each in found.models] == [target, head]
    removal = remove.remove(name, RetryPolicy())
    assert not head.exists()
    assert target.exists()
    assert removal.freed > 0
    assert resolver.resolve(str(target)).draft is None


def stopped_training(target: Path) -> Path:
    """Record a pair of `target` and a training of it that was stopped; give the folder of that."""
    model = installed.InstalledModel((str(target),), n_bytes=9)
    installed.save(installed.InstalledPair("mine", model, None))
    work = TrainingFolder(fingerprint([target]))
    work.begin(msgspec.structs.replace(chosen(), path=str(target)))
    work.checkpoint.write_bytes(b"x" * 1000)
    return work.folder


@pytest.mark.parametrize("own", [False, True])
def test_rm_takes_an_unfinished_training_away_with_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """If the target is the user's own file, file and training both stay, and rm says so."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "my target.gguf")
    work = stopped_training(target)
    if not own:
        monkeypatch.setattr(remove, "_reason_to_keep", lambda *_: "")
    with trainings.alone(), pytest.raises(LocalspecError, match="training is running"):
        remove.remove("mine", RetryPolicy())
    assert installed.find("mine") is not None
    removal = remove.remove("mine", RetryPolicy())
    assert target.exists() is work.exists() is own
    assert (removal.freed > 1000) is not own
    assert [str(work) in line for line in removal.kept] == [True, False] * own
    way = f"`localspec train '{target}' --resume` goes on"
    assert not own or way in removal.kept[0]


def test_a_training_stays_as_long_as_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal that was stopped while it waited for a file costs no training."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    work = stopped_training(target)
    monkeypatch.setattr(remove, "_reason_to_keep", lambda *_: "")

    def stop(*_: object) -> None:
        raise Cancelled

    with monkeypatch.context() as patch:
        patch.setattr(remove, "_unlink", stop)
        with pytest.raises(Cancelled):
            remove.remove("mine", RetryPolicy())
    assert installed.find("mine") is not None
    assert work.exists()
    remove.remove("mine", RetryPolicy())
    assert not target.exists()
    assert not work.exists()


def test_targets_of_one_name_have_a_head_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    targets, heads = list[Path](), list[Path]()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        targets.append(write_random_llama(tmp_path / name / "model.gguf"))
        heads.append(trained_head(tmp_path, targets[-1], 0.5))
        record((targets[-1],), heads[-1])
    assert [each.name for each in heads] == ["model.head.gguf", "model-2.head.gguf"]
    assert [resolver.resolve(str(each)).draft for each in targets] == heads
    assert [place(each, None) for each in targets] == heads


def test_rm_finds_the_training_of_a_target_that_was_deleted_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    work = stopped_training(target)
    target.unlink()
    assert trainings.unfinished([tmp_path / "another.gguf"]) is None
    assert remove.remove("mine", RetryPolicy()).freed > 1000
    assert not work.exists()


def test_a_training_that_cannot_be_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    work = stopped_training(write_random_llama(tmp_path / "t.gguf"))
    monkeypatch.setattr(remove, "_reason_to_keep", lambda *_: "")

    def fail(*_: object) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", fail)
    with pytest.raises(LocalspecError, match=f"{work.name} cannot be deleted: Permission denied"):
        remove.remove("mine", RetryPolicy())


def test_rm_all_goes_on_after_a_pair_that_it_cannot_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    work = stopped_training(write_random_llama(tmp_path / "t.gguf"))
    for name in ("before", "next"):
        model = installed.InstalledModel((str(tmp_path / f"{name}.gguf"),))
        installed.save(installed.InstalledPair(name, model, None))
    removals = remove.remove_all(RetryPolicy())
    with trainings.alone():
        assert [next(removals).name, next(removals).name] == ["before", "next"]
        with pytest.raises(LocalspecError, match=r"^not removed: mine \(another training is run"):
            next(removals)
    assert [pair.name for pair in installed.all_pairs()] == ["mine"]
    (removal,) = remove.remove_all(RetryPolicy())
    assert str(work) in removal.kept[0]
    assert "delete that folder" in removal.kept[0]
    assert "--anew" not in removal.kept[0]  # it would train again
    assert work.exists()


@pytest.mark.parametrize("begun", [False, True])
def test_rm_all_sweeps_trainings_that_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """One that has begun may belong to a file that was moved."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    work = TrainingFolder("f" * 64)
    work.folder.mkdir(parents=True)
    work.checkpoint.write_bytes(b"x" * 1000)
    if begun:
        work.begin(chosen())
    told = [removal.name for removal in remove.remove_all(RetryPolicy())]
    assert told == ([] if begun else ["trainings that never began"])
    assert work.folder.exists() is begun


def test_rm_deletes_a_training_that_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can go on with it, although the target stays."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    work = stopped_training(target)
    trainings.record_of(work).unlink()
    removal = remove.remove("mine", RetryPolicy())
    assert (removal.freed, work.exists(), len(removal.kept)) == (1000, False, 1)


def test_a_training_that_is_stopped_before_it_began_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))

    def stop(*_: object, **__: object) -> None:
        raise Cancelled

    run, said = run_of(write_random_llama(tmp_path / "t.gguf"), quiet()), list[str]()
    run.listener = replace(run.listener, tell=said.append)
    monkeypatch.setattr(pipeline, "load_session", stop)
    with pytest.raises(Cancelled):
        run.whole()
    assert not run.work.folder.exists()
    assert not said
    run.work.begin(chosen(run._terms()))
    run.request = replace(run.request, resume=True)
    with pytest.raises(Cancelled):
        run.whole()
    assert run.work.begun() is not None
    run.request = replace(run.request, resume=False, anew=True)
    with pytest.raises(Cancelled):
        run.whole()
    run.request = replace(run.request, tokens=9)  # other settings: the earlier training stays
    with pytest.raises(Cancelled):
        run.whole()
    assert said == [
        "stopped: the same command with --resume goes on",
        "stopped: the same command with --resume in place of --anew goes on",
    ]


def test_a_head_is_judged_with_all_that_it_saw_of_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anew it would draft from the answer alone, and be right less often than in use."""
    begun: list[bool] = []
    begin = HeadDrafter.begin

    def watched(*args: Any, anew: bool = False) -> None:
        begun.append(anew)
        begin(*args, anew=anew)

    monkeypatch.setattr(HeadDrafter, "begin", watched)
    draft = str(toy.FOLDER / "eagle3-Q8_0.gguf")
    request = LoadRequest(pair=str(toy.TARGET), draft=draft, ctx_size=512, threads=1)
    with closing(load_session(request, progress=lambda *_: None, cancel=Cancel())) as session:
        text = "one and two"
        prompt = session.pair.target.model.tokenize(text, add_special=True, parse_special=True)
        how: Any = {"common": 0, "cancel": Cancel(), "tokens": 8}
        found = [judge(session, [prompt], temperature=it, **how) for it in (0.0, 0.8)]
    assert all(one.drafts for one in found)
    assert begun == [False] * (1 + REPEATS)


def test_a_better_head_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    head, run = trained_head(tmp_path, target, 0.5), run_of(target, quiet())
    other = write_random_llama(tmp_path / "other.gguf", seed=1)
    assert replaced(head, (target,)) == 0.5
    assert replaced(head, (other,)) == replaced(tmp_path / "none.gguf", (target,)) == 0.0
    whole, samples = head.read_bytes(), [AnsweredText(0, (1, 2, 3, 4, 5), 1)]
    drafts = AcceptedDrafts(drafts=10, firsts=[4] * 4, drafted=40)
    found = HeadVerdict(greedy=drafts, sampled=drafts, reference=drafts, speedup=None)
    monkeypatch.setattr(pipeline.head_verdict, "measure", lambda *_: found)
    run.work.begin(chosen(run._terms()))
    run.work.head.write_bytes(whole)
    with pytest.raises(LocalspecError, match=r"stays: 50 % of its first .* and 40 % of the new"):
        run._end(samples)
    assert head.read_bytes() == whole
    run.request = replace(run.request, out=tmp_path / "mine.gguf")
    assert run._end(samples).head == tmp_path / "mine.gguf"


def test_the_end_of_a_training_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the 32 bits of a head's file 0.3 is a little more, but a head does not lose to itself."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    run, samples = run_of(target, quiet()), [AnsweredText(0, (1, 2, 3, 4, 5), 1)]
    drafts = AcceptedDrafts(drafts=10, firsts=[3] * 4, drafted=40)
    found = HeadVerdict(greedy=drafts, sampled=drafts, reference=drafts, speedup=None)
    monkeypatch.setattr(pipeline.head_verdict, "measure", lambda *_: found)
    run.work.begin(chosen(run._terms()))
    untrained(tmp_path / "raw.gguf", target, next(candidates(read_model(target).header)))
    rewritten(tmp_path / "raw.gguf", run.work.head, run._about(samples, chosen()))

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "record", full)
        with pytest.raises(OSError, match="No space left"):
            run._end(samples)
    head = place(target, None)
    assert replaced(head, (target,)) > 0.3
    assert run._end(samples).head == resolver.resolve(str(target)).draft == head
    assert run.work.begun() is None


def test_a_pair_keeps_its_draft_and_gets_the_head_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    draft = write_random_llama(tmp_path / "d.gguf", seed=1)
    models = [installed.InstalledModel((str(each),)) for each in (target, draft)]
    installed.save(installed.InstalledPair("mine", *models))
    head = trained_head(tmp_path, target, 0.5)
    assert record((target,), head) == "mine"
    assert resolver.resolve("mine").drafts == (head, draft)


@pytest.mark.slow
def test_a_head_for_another_file_is_told_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    target = write_random_llama(tmp_path / "t.gguf")
    other = write_random_llama(tmp_path / "o.gguf", type="f16")
    head = read_model(trained_head(tmp_path, target, 0.5))
    assert trained_heads.notices(head, read_model(target)) == []
    (said,) = trained_heads.notices(head, read_model(other))
    assert "was made for another file (t.gguf)" in said
    assert f"`localspec train {other} --check {head.paths[0]}` measures" in said
    few = prompts.gather((), ())
    few = replace(few, held_out=few.held_out[:2])
    monkeypatch.setattr(head_verdict, "gather", lambda *_: few)
    lines = check_head.check(str(other), head.paths[0], quiet(), scan=False, threads=1)
    assert lines[0].startswith("accepted ")
    assert "another file (t.gguf)" in lines[1]
    (said,) = trained_heads.notices(head, read_model(other))
    assert said.endswith("points less accepted here")
    measured = trained_heads.accepted(head.header, head.paths, [other])
    assert measured is not None
    assert measured != 0.5
    assert trained_heads.accepted(head.header, head.paths, [target]) == 0.5
    assert trained_heads.difference(0.5, 0.38) == "12 points less accepted here"
    assert trained_heads.difference(0.5, 0.5) == "as much is accepted here"


def test_a_head_of_others_says_nothing_of_its_target(tmp_path: Path) -> None:
    target = write_random_llama(tmp_path / "t.gguf")
    untrained(tmp_path / "h.gguf", target, next(candidates(read_model(target).header)))
    assert trained_heads.notices(read_model(tmp_path / "h.gguf"), read_model(target)) == []


def test_a_target_without_a_draft_is_told_that_a_head_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    assert head_promise.line("m.gguf", "m", "gemma3") == ""
    said = head_promise.line("m.gguf", "m", "llama")
    assert said == "`localspec train m.gguf` makes a head for this target"
    flat = (0.0, 0.01, 0.011, 0.0115, 0.012, 0.0125)
    for times, ending in ((flat, "times the speed"), ([0.01 * n for n in range(6)], "not pay")):
        ranking.forget("m")
        ranking.remember("m", ranking.PairCosts(10**8, tuple(times)), None, None)
        assert head_promise.line("m.gguf", "m", "llama").endswith(ending)


def test_the_starter_drafts_with_a_head_that_was_trained_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    target = write_random_llama(tmp_path / "t.gguf")
    pair = installed.InstalledPair("starter", installed.InstalledModel((str(target),)), None)
    monkeypatch.setattr(starter, "pair", lambda: pair)
    assert resolver.resolve("starter").draft is None
    head = trained_head(tmp_path, target, 0.5)
    assert record((target,), head) == "t"
    found = resolver.resolve("starter")
    assert (found.name, found.draft) == ("starter", head)
