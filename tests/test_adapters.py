"""LoRA adapters: checked, planned, applied as llama.cpp does, and part of every cache's key."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from localspec.chat.events import RoundText
from localspec.chat.session.session import Session
from localspec.cli.shared_options import shared_options
from localspec.engine.cancel import Cancel
from localspec.engine.llama import repacking_works
from localspec.engine.llama.log import start_backend
from localspec.errors import LocalspecError
from localspec.loading.load import check, load_session
from localspec.loading.load_request import LoadRequest
from localspec.loading.measurements.measured_costs import made_by
from localspec.loading.planning import load_plan
from localspec.pairs.gguf.header import read_header
from tests.fakes import tokens_of
from tests.support import toy
from tests.support.adapters import write_adapter
from tests.support.gguf_models import write_random_llama, write_random_moe

EXPERTS = ("attn_q.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_inp.weight")
Files = tuple[Path, Path]


@pytest.fixture(scope="module", params=["toy", pytest.param("moe", marks=pytest.mark.slow)])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A target and an adapter of it."""
    folder = tmp_path_factory.mktemp("adapters")
    if request.param == "toy":
        return toy.TARGET, write_adapter(folder / "adapter.gguf", toy.TARGET)
    target = write_random_moe(folder / "moe.gguf")
    return target, write_adapter(folder / "adapter.gguf", target, changed=EXPERTS)


def session_of(target: Path, **options: Any) -> Session:
    defaults = {"draft": "lookup", "ctx_size": 512, "gamma": 0, "n_predict": 32, "temp": 0.0}
    defaults["flash_attn"] = "on"  # as llama.cpp takes by itself
    request = LoadRequest(
        pair=str(target), threads=1, seed=1, scan=False, past=False, **{**defaults, **options}
    )
    return load_session(request, progress=lambda *_: None, cancel=Cancel())


def said(target: Path, **options: Any) -> tuple[list[int], list[int]]:
    """The ids of a prompt, and those of its answer."""
    with closing(session_of(target, **options)) as session:
        events = [*session.turn("Tell me a story of a dog.", Cancel())]
        rounds = [each.round for each in events if isinstance(each, RoundText)]
        tokens = tokens_of(rounds)
        everything = session.pair.target.tokens
        start = next(n for n in range(len(everything)) if everything[n : n + 4] == tokens[:4])
        return everything[:start], tokens


def greedy(
    target: Path, prompt: Sequence[int], count: int, *adapters: tuple[Path, float]
) -> list[int]:
    """What llama.cpp's own functions write for these ids."""
    start_backend()
    how = lib.llama_model_default_params()
    how.use_extra_bufts = repacking_works()
    model = lib.llama_model_load_from_file(os.fsencode(target), how)
    loaded = [lib.llama_adapter_lora_init(model, os.fsencode(path)) for path, _ in adapters]
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
    context = lib.llama_init_from_model(model, params)
    handles = (lib.llama_adapter_lora_p_ctypes * len(loaded))(*loaded)
    scales = (ctypes.c_float * len(loaded))(*(scale for _, scale in adapters))
    assert lib.llama_set_adapters_lora(context, handles, len(loaded), scales) == 0
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    found: list[int] = []
    part = list(prompt)
    while len(found) < count:
        ids = (lib.llama_token * len(part))(*part)
        assert lib.llama_decode(context, lib.llama_batch_get_one(ids, len(part))) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(n_vocab,))
        part = [int(logits.argmax())]
        found += part
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found


def test_greedy_text_is_llama_cpps_own(files: Files) -> None:
    target, adapter = files
    prompt, tokens = said(target, lora=((str(adapter), 1.0),))
    assert tokens == greedy(target, prompt, len(tokens), (adapter, 1.0))
    assert tokens != greedy(target, prompt, len(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["lookup", str(toy.DRAFT)])
def test_drafting_changes_nothing(files: Files, draft: str) -> None:
    target, adapter = files
    how = {"lora": ((str(adapter), 1.0),), "draft": draft, "draft_anyway": True}
    assert said(target, gamma=4, **how) == said(target, gamma=0, **how)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["mtp", str(toy.EAGLE3)])
def test_a_head_of_the_bare_target_drafts_the_same_text(head: str, tmp_path: Path) -> None:
    target = toy.mtp() if head == "mtp" else toy.TARGET
    adapter = write_adapter(tmp_path / "adapter.gguf", target)
    how = {"lora": ((str(adapter), 1.0),), "draft": head}
    assert said(target, gamma=4, **how) == said(target, gamma=0, **how)


@pytest.mark.slow
def test_several_adapters_and_scales_add_up(tmp_path: Path) -> None:
    first, second = (
        write_adapter(tmp_path / f"{seed}.gguf", toy.TARGET, seed=seed) for seed in (1, 2)
    )
    both = ((str(first), 1.0), (str(second), -0.5))
    prompt, tokens = said(toy.TARGET, lora=both)
    assert tokens == greedy(toy.TARGET, prompt, len(tokens), (first, 1.0), (second, -0.5))
    assert tokens != said(toy.TARGET, lora=both[:1])[1]
    assert said(toy.TARGET, lora=((str(first), 0.0),)) == said(toy.TARGET)


def test_what_is_stored_is_kept_apart_for_every_adapter(tmp_path: Path) -> None:
    """Adapters of equal sizes, names and times are told apart by their contents."""
    keys = set()
    adapter = tmp_path / "adapter.gguf"
    for seed, scale in ((0, 0.0), (1, 1.0), (2, 1.0), (1, 0.5)):
        if seed:
            write_adapter(adapter, toy.TARGET, seed=seed)
            os.utime(adapter, (1, 1))
        lora = ((str(adapter), scale),) if seed else ()
        with closing(session_of(toy.TARGET, lora=lora)) as session:
            keys.add(made_by(session.pair))
            assert [each.scale for each in session.pair.loaded.lora] == [e[1] for e in lora]
    assert len(keys) == 4


@pytest.mark.slow
def test_an_answer_with_another_adapter_reads_its_prompt_anew(tmp_path: Path) -> None:
    first, second = (
        write_adapter(tmp_path / f"{seed}.gguf", toy.TARGET, seed=seed) for seed in (1, 2)
    )
    cached = []
    for adapter in (first, first, second):
        with closing(session_of(toy.TARGET, lora=((str(adapter), 1.0),))) as session:
            session.keep_in(tmp_path / "states", made_by(session.pair))
            session.enter("c1")
            *_, end = session.turn("Tell me a story of a dog and a cat. " * 3, Cancel())
            cached.append(end.stats.prefill_cached)  # type: ignore[union-attr]
            session.enter("")
    assert cached[0] == cached[2] == 0 < cached[1]


@pytest.mark.slow
def test_adapters_are_counted_in_the_plan(tmp_path: Path) -> None:
    target = write_random_llama(tmp_path / "it.gguf", n_layer=4, n_embd=256)
    everything = ("attn_q.weight", "attn_k.weight", "ffn_up.weight", "output.weight")
    adapter = write_adapter(tmp_path / "a.gguf", target, changed=everything, rank=128)
    sizes = []
    for lora in ((), ((str(adapter), 1.0),)):
        request = LoadRequest(pair=str(target), lora=lora, draft="none", ctx_size=512, threads=1)
        planned = load_plan(check(request)).memory
        with closing(session_of(target, lora=lora, draft="none")) as session:
            memory = session.memory()
        assert planned.target_need.parts["weights"] == pytest.approx(
            memory.target_weights, rel=0.02
        )
        taken = memory.target_weights + memory.target_cache + memory.buffers
        assert abs(planned.total - taken) < max(0.05 * taken, 8e6)
        sizes.append(planned.target_need.parts["weights"])
    tensors = read_header(adapter).tensors
    assert sizes[1] - sizes[0] == sum(each.n_bytes for each in tensors) > 1e6


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def nonsense(path: Path) -> None:
    path.write_bytes(b"GGUF" + bytes(range(256)))


WRITE = partial(write_adapter, target=toy.TARGET)


def other_shapes(path: Path) -> None:
    write_adapter(path, write_random_llama(path.with_name("other.gguf"), n_layer=2))


def embedding(path: Path) -> None:
    WRITE(path, changed=["token_embd.weight"])


def activated(writer: gguf.GGUFWriter) -> None:
    writer.add_array("adapter.alora.invocation_tokens", [1, 2, 3])


def double_alpha(writer: gguf.GGUFWriter) -> None:
    writer.add_float64("adapter.lora.alpha", 8.0)


def integers(writer: gguf.GGUFWriter) -> None:
    for ending, shape in ((".lora_a", (4, 384)), (".lora_b", (384, 4))):
        writer.add_tensor(f"blk.0.attn_output.weight{ending}", np.ones(shape, np.int32))


def two_ranks(writer: gguf.GGUFWriter) -> None:
    for ending, shape in ((".lora_a", (4, 384)), (".lora_b", (384, 8))):
        writer.add_tensor(f"blk.0.attn_output.weight{ending}", np.ones(shape, np.float32))


def half(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_k.weight.lora_a", np.ones((4, 384), np.float32))


def unknown(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_k.weight", np.ones((4, 384), np.float32))


FIRST = "blk.0.attn_q.weight"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "does not exist"),
    "cut off": (lambda path: (WRITE(path), cut(path)), "is cut off"),
    "nonsense": (nonsense, "GGUF version|damaged"),
    "a model": (lambda path: path.write_bytes(toy.DRAFT.read_bytes()), "not a LoRA adapter but a"),
    "another kind": (
        lambda path: WRITE(path, keys={"adapter.type": "ia3"}),
        "an adapter of another kind",
    ),
    "another architecture": (lambda path: WRITE(path, architecture="qwen3"), "for qwen3 models"),
    "another model": (other_shapes, "has other sizes"),
    "other tensors": (
        lambda path: WRITE(
            path,
            rename={f"{FIRST}.lora_{each}": f"blk.99.attn_q.weight.lora_{each}" for each in "ab"},
        ),
        "which the target does not have",
    ),
    "half": (lambda path: WRITE(path, more=half), "half of a change"),
    "unknown": (lambda path: WRITE(path, more=unknown), "it has a tensor"),
    "empty": (lambda path: WRITE(path, changed=["no such"]), "changes nothing"),
    "tied": (embedding, "also this target's output"),
    "aLoRA": (lambda path: WRITE(path, more=activated), "switched on within a text"),
    "alpha": (lambda path: WRITE(path, alpha=None, more=double_alpha), "not a 32-bit number"),
    "no alpha": (lambda path: WRITE(path, alpha=math.nan), "adapter.lora.alpha is nan"),
    "two ranks": (
        lambda path: WRITE(path, changed=["attn_q.weight"], more=two_ranks),
        "'blk.0.attn_output.weight' has other sizes",
    ),
    "integers": (
        lambda path: WRITE(path, changed=["attn_q.weight"], more=integers),
        "has the type I32",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_or_foreign_adapter_is_a_sentence(wrong: str, tmp_path: Path) -> None:
    write, sentence = WRONG[wrong]
    path = tmp_path / "adapter.gguf"
    write(path)
    request = LoadRequest(pair=str(toy.TARGET), draft="none", lora=((str(path), 1.0),))
    with pytest.raises(LocalspecError, match=sentence) as refused:
        check(request)
    assert refused.value.remedy
    assert "\n" not in refused.value.message


def test_an_adapter_that_was_never_converted_is_told_how(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    request = LoadRequest(pair=str(toy.TARGET), draft="none", lora=((str(path), 1.0),))
    with pytest.raises(LocalspecError, match="not yet a GGUF file") as refused:
        check(request)
    assert "convert_lora_to_gguf.py" in refused.value.remedy


def test_the_command_line_takes_llama_cpps_names() -> None:
    seen: list[LoadRequest] = []

    def take(options: LoadRequest) -> None:
        seen.append(options)

    command = click.command()(shared_options(take))
    words = "--lora a.gguf,b.gguf --lora-scaled c:d.gguf:0.5 --lora e.gguf --lora-scaled f:-1"
    command.main(words.split(), standalone_mode=False)
    files = (("a.gguf", 1.0), ("b.gguf", 1.0), ("e.gguf", 1.0), ("c:d.gguf", 0.5), ("f", -1.0))
    assert seen[0].lora == files
    for wrong in ("c.gguf", "c.gguf:much", "c.gguf:inf", ":1"):
        with pytest.raises(click.BadParameter, match="FILE:SCALE"):
            command.main(["--lora-scaled", wrong], standalone_mode=False)
