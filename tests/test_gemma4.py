"""Gemma 4's assistant, with random weights: a head that has no cache and reads the target's.

What holds for heads of every kind is in `test_heads.py`, with an assistant among them; files that
do not fit are in `support/wrong_heads.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from localspec.bench import benchmark
from localspec.drafter_names import ASSISTANT
from localspec.engine.cancel import Cancel
from localspec.engine.drafters.head_drafter import SharedDrafter, head_drafter
from localspec.engine.drafters.protocol import Proposal
from localspec.engine.length.profile import (
    DRAFT_SIZES,
    affordable_depth,
    growth,
    measure,
    measure_by_context,
)
from localspec.engine.length.stopping import Plan
from localspec.engine.llama import Context, ContextOptions, Model, SharedHead, head_of
from localspec.engine.round.generate import Engine
from localspec.engine.round.params import Accept, SamplingParams
from localspec.errors import Cancelled, EngineError
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import measured
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf import header as gguf
from localspec.pairs.memory.model_facts import draft_facts
from localspec.pairs.memory.need import ModelSetup, need
from tests.support.short_bench import short_bench

from .support.gemma4 import USUAL, Assistant, Attention, write_assistant, write_gemma4
from .test_heads import PROMPTS, run
from .test_states import STORY, answered, loaded

OPTIONS = ContextOptions(n_ctx=512, threads=1, flash_attention=True)
TEXT = [*range(300, 400)]  # longer than a window
WARM = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    return write_gemma4(folder / "target.gguf"), write_assistant(folder / "assistant.gguf")


@pytest.fixture(scope="module")
def models(files: tuple[Path, Path]) -> Iterator[tuple[Model, Model]]:
    with Model.load(files[0]) as target, Model.load(files[1], head=True) as head:
        yield target, head


@pytest.fixture
def made(models: tuple[Model, Model]) -> Iterator[SharedHead]:
    with Context(models[0], OPTIONS) as target, head_of(models[1], target, OPTIONS) as head:
        assert isinstance(head, SharedHead)
        yield head


def shown(head: SharedHead, tokens: list[int]) -> np.ndarray:
    """Have the target read `tokens` with the head attached; return the last token's state."""
    head.target.show([head])
    head.target.clear()
    head.target.decode(tokens, 0)
    return head.states.get(len(tokens) - 1, 1)


def places(context: Context) -> tuple[int, int]:
    """The first and the last position that llama.cpp knows of in a context's cells."""
    memory = lib.llama_get_memory(context.handle)
    return lib.llama_memory_seq_pos_min(memory, 0), lib.llama_memory_seq_pos_max(memory, 0)


def drafts(head: SharedHead, tokens: list[int], n: int) -> Proposal:
    drafter = head_drafter(head)
    assert isinstance(drafter, SharedDrafter)
    return drafter.propose(tokens, Plan(n, drafter.name))


def test_a_target_says_bit_by_bit_what_it_says_without_a_head(
    made: SharedHead, models: tuple[Model, Model]
) -> None:
    with Context(models[0], OPTIONS) as alone:
        shown(made, TEXT)
        alone.decode(TEXT, 0)
        for token in (300, 7, 512):
            text = [*made.target.tokens, token]
            assert len(drafts(made, text, 5).draft.tokens) == 5
            assert np.array_equal(made.target.decode([token], 1), alone.decode([token], 1))
        # Several tokens at once, and back.
        rows = made.target.decode([5, 6, 7], 3).copy()
        assert np.array_equal(rows, alone.decode([5, 6, 7], 3))
        for context in (made.target, alone):
            context.truncate(len(TEXT) + 4)
        drafts(made, [*made.target.tokens, 9], 3)
        assert np.array_equal(made.target.decode([9], 1), alone.decode([9], 1))
        assert places(made.target) == places(alone) == (0, len(TEXT) + 4)


def test_a_pass_leaves_nothing_and_reads_all_that_the_target_holds(made: SharedHead) -> None:
    state = shown(made, TEXT)
    before = places(made.target)
    first, following = made.read([7], state, output=True)
    assert first.shape == (made.model.n_vocab,)
    assert following.shape == (1, made.width)
    again, _ = made.read([7], state, output=True)
    other, _ = made.read([7], following, output=True)
    assert np.array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert places(made.target) == before == (0, len(TEXT) - 1)
    shown(made, [*TEXT[:-30], 31, *TEXT[-29:]])
    changed, _ = made.read([7], state, output=True)
    assert np.abs(first - changed).max() > 1e-3
    assert (made.tokens, made.cache_bytes) == ([], 0)


def test_the_draft_is_what_llama_cpp_s_own_driver_would_write(made: SharedHead) -> None:
    """As in common/speculative.cpp: each token is read at the newest one's position.

    With it goes the state of the token before.
    """
    state, text = shown(made, TEXT), [*TEXT, 7]
    token, written = text[-1], []
    for _ in range(6):
        row, state = made.read([token], state, output=True)
        token = int(row.argmax())
        written.append(token)
    found = drafts(made, text, 6)
    assert list(found.draft.tokens) == written
    assert (found.read, found.cached, found.decodes) == (1, len(TEXT), 6)


def test_nothing_is_drafted_where_the_target_holds_another_text(made: SharedHead) -> None:
    shown(made, TEXT)
    assert drafts(made, [*TEXT, 7], 3).draft.tokens
    made.target.decode([7], 0)
    assert not drafts(made, [*TEXT, 7], 3).draft.tokens
    made.target.truncate(len(TEXT))
    assert drafts(made, [*TEXT, 7], 3).draft.tokens
    made.clear()
    assert places(made.target)[1] == len(TEXT) - 1  # the target's cache is kept
    assert not drafts(made, [*TEXT, 7], 3).draft.tokens


@pytest.mark.parametrize("stopped", [False, True])
def test_a_head_made_in_the_middle_of_a_text_leaves_the_target_what_it_read(
    models: tuple[Model, Model], stopped: bool
) -> None:
    cancel = Cancel()
    if stopped:
        cancel.set()
    with Context(models[0], OPTIONS) as target, Context(models[0], OPTIONS) as alone:
        for context in (target, alone):
            context.decode(TEXT, 0)
        if stopped:
            with pytest.raises(Cancelled):
                head_of(models[1], target, OPTIONS, cancel)
        else:
            head_of(models[1], target, OPTIONS).close()
        assert target.tokens == TEXT
        assert places(target)[1] == len(TEXT) - 1
        assert np.array_equal(target.decode([9], 1), alone.decode([9], 1))


def test_two_heads_of_one_target_do_not_disturb_each_other(
    made: SharedHead, models: tuple[Model, Model]
) -> None:
    state = shown(made, TEXT)
    first, _ = made.read([7], state, output=True)
    with head_of(models[1], made.target, OPTIONS) as other:
        assert isinstance(other, SharedHead)
        assert np.array_equal(other.read([7], state, output=True)[0], first)
    assert np.array_equal(made.read([7], state, output=True)[0], first)


@pytest.mark.parametrize(
    "how",
    [
        replace(OPTIONS, flash_attention=False),
        replace(OPTIONS, flash_attention=None),
        replace(OPTIONS, cache_k="q8_0", cache_v="q8_0"),
        replace(OPTIONS, cache_k="f32", cache_v="f32"),
    ],
)
def test_cells_are_read_as_the_target_wrote_them(
    models: tuple[Model, Model], made: SharedHead, how: ContextOptions
) -> None:
    """The layout of the cells is the target's, whatever options the head was made with."""
    expected, _ = made.read([7], shown(made, TEXT), output=True)
    with Context(models[0], how) as target, head_of(models[1], target, OPTIONS) as head:
        assert isinstance(head, SharedHead)
        found, _ = head.read([7], shown(head, TEXT), output=True)
        assert np.abs(found - expected).max() < 0.1
        target.decode([1] * (how.n_ctx - len(TEXT)), 0)
        with pytest.raises(EngineError, match="the context is full"):
            head.read([7], np.zeros((1, head.width), np.float32), output=True)


SHAPES = {
    "the last layers share earlier ones' caches": replace(USUAL, shared=2),
    "one width for all layers": replace(USUAL, width_swa=64, kv_swa=1),
    "a longer window": replace(USUAL, window=200),
    "windows in most layers": replace(USUAL, sliding=(True, True, True, True, True, False)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_the_target_s_with_other_shapes(shape: str, tmp_path: Path) -> None:
    attention = SHAPES[shape]
    target_file = write_gemma4(tmp_path / "target.gguf", attention=attention)
    own = replace(attention, sliding=(True, True, False), shared=0)
    head_file = write_assistant(tmp_path / "head.gguf", Assistant(attention=own))
    head_checks.require_head(gguf.read_model(head_file), gguf.read_header(target_file))
    with (
        Model.load(target_file) as model,
        Model.load(head_file, head=True) as head_model,
        Context(model, OPTIONS) as target,
        Context(model, OPTIONS) as alone,
        head_of(head_model, target, OPTIONS) as head,
    ):
        prompt = model.tokenize(PROMPTS[2] * 4, add_special=True, parse_special=True)
        for how in ({}, {"sampling": WARM, "accept": Accept.COUPLED}):
            tokens, drafted = run(Engine(target, head_drafter(head)), prompt, 3, **how)  # type: ignore[arg-type]
            assert tokens == run(Engine(alone), prompt, 0, **how)[0]  # type: ignore[arg-type]
            assert drafted > 60


def test_what_a_shared_layer_reads_is_what_the_earlier_one_cached(tmp_path: Path) -> None:
    """The shared caches of earlier layers have other widths than the last layers' would have."""
    usual = Attention(sliding=(True, False, True, False), shared=2)
    target = gguf.read_header(write_gemma4(tmp_path / "target.gguf", attention=usual))
    head = gguf.read_model(write_assistant(tmp_path / "head.gguf"))
    head_checks.require_head(head, target)
    assert (
        head_checks._cached(target, slides=True),
        head_checks._cached(target, slides=False),
    ) == (0, 1)
    last = replace(target, metadata={**target.metadata, "gemma4.attention.shared_kv_layers": 0})
    assert (head_checks._cached(last, slides=True), head_checks._cached(last, slides=False)) == (
        2,
        3,
    )


def test_what_a_pass_costs_is_measured_without_the_target_s_cells(made: SharedHead) -> None:
    shown(made, TEXT)
    before = places(made.target)
    for found in (
        measure(made, DRAFT_SIZES, budget=0.5, one_row=True).points,
        measure_by_context(made, draft=True, budget=0.5)[0][len(TEXT)],
    ):
        assert found.keys() >= {1, 2, 16}  # what the target has read costs nothing
        assert found[16] < 3 * found[1]
    assert places(made.target) == before
    assert affordable_depth(made, {1: 1e-6}) == 0
    assert affordable_depth(made.target, {1: 1e-6}) == 256
    # Two of the target's four layers are read.
    grown, weights = growth(made, on_device=True), made.model.weights_bytes
    assert grown[1] == pytest.approx(0.5 * made.target.token_bytes / weights)
    assert drafts(made, [*TEXT, 7], 3).draft.tokens


@pytest.mark.parametrize("n_ctx", [512, 8192])
@pytest.mark.parametrize("flash", [True, False])
def test_it_takes_what_was_planned(models: tuple[Model, Model], n_ctx: int, flash: bool) -> None:
    how = replace(OPTIONS, n_ctx=n_ctx, flash_attention=flash)
    sizes = draft_facts(gguf.read_header(models[1].path))
    planned = need(sizes, ModelSetup(n_ctx=n_ctx, flash=flash))
    with Context(models[0], how) as target, head_of(models[1], target, how) as head:
        assert planned.host_cache == head.cache_bytes == 0
        assert planned.host_weights == pytest.approx(head.model.weights_bytes, rel=0.05)
        assert 0 <= planned.host_buffers - head.buffer_bytes < 3_000_000


def request(files: tuple[Path, Path], **how: object) -> LoadRequest:
    pair, draft = map(str, files)
    return LoadRequest(pair=pair, draft=draft, threads=1, ctx_size=512, **how)  # type: ignore[arg-type]


def test_a_pair_with_it_is_planned_loaded_and_measured(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    asked = request(files, temp=0.9, seed=5, n_predict=24)
    assert [each.kind for each in check(asked).drafts] == [ASSISTANT]
    session = load_session(asked, progress=lambda *_: None, cancel=Cancel())
    with closing(session):
        assert list(session.pair.drafts) == [ASSISTANT]
        found = measured(session.pair, repeatable=True, measure=False, announce=lambda: None)
        assert found is not None
        points = found.drafts[ASSISTANT].measured
        assert points.keys() == {0}
        assert points[0].keys() >= {1, 2, 16}
        answered(session, "Tell me a story.")
        assert session.messages[-1].content


@pytest.mark.slow
def test_a_stored_conversation_is_gone_on_with(tmp_path: Path) -> None:
    """The window is longer than the text; of a shorter one only the end would be stored."""
    write_gemma4(tmp_path / "t-Q8_0.gguf", attention=replace(USUAL, window=400))
    pair = str(tmp_path / "t"), str(write_assistant(tmp_path / "assistant.gguf"))
    first = loaded(tmp_path / "states", *pair)
    first.enter("c1")
    answered(first, STORY)
    said = list(first.messages)
    first.enter("")  # the conversation is stored, and the caches stay as they were
    expected = answered(first, "And then?")
    text = first.messages[-1].content
    first.close()
    second = loaded(tmp_path / "states", *pair)
    answered(second, "Something else.")
    second.enter("c1")
    second.open(said)
    found = answered(second, "And then?")
    assert found.prefill_cached == expected.prefill_cached > 60
    assert found.drafted_tokens > 20
    assert second.messages[-1].content == text
    second.close()


@pytest.mark.slow
def test_a_bench_compares_it(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's context is made for a target that another session already uses."""
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(benchmark, "wait_for_calm", lambda *_: 0.0)
    asked = replace(request(files, gamma=2), draft="lookup")
    report = short_bench(asked, "lookup", str(files[1]))
    drafted = {run.arm: sum(done.drafted for done in run.stats.rounds) for run in report.runs}
    assert list(drafted.values())[-1] > 0
    assert report.agreement.same == report.agreement.compared == 2


@pytest.mark.slow
def test_the_command_names_it_in_its_figures(files: tuple[Path, Path], tmp_path: Path) -> None:
    asked = ["run", str(files[0]), "--draft", str(files[1]), "-p", "Hello", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "localspec", *asked, "--gamma", "3", "-n", "12", "--temp", "0"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LOCALSPEC_CACHE": str(tmp_path), "LOCALSPEC_DATA": str(tmp_path)},
    )
    assert json.loads(done.stdout)["drafters"][ASSISTANT]["drafted"] > 12
