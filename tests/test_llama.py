"""`Model` and `Context` on the toy pair: loading, tokens, rollback, interruption."""

from __future__ import annotations

import re
import struct
import sys
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.llama import Context, ContextOptions, Model, default_threads, repacking_works
from localspec.engine.llama.platform import hardware
from localspec.errors import Cancelled, EngineError, ModelFileError, ModelLoadError

from .support.gguf_models import write_other_vocabulary

TEXT = "Once upon a time there was a dog. He said: Grüße, 世界! 🐕 def f(x): return x + 1"


def test_loading_reports_progress_to_the_end(toy_target: Path) -> None:
    seen: list[float] = []
    with Model.load(toy_target, progress=seen.append) as model:
        assert model.n_vocab > 1000
        assert model.weights_bytes > 0.9 * toy_target.stat().st_size * 0.9
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ({}, lib.LLAMA_LOAD_MODE_AUTO),
        ({"mmap": True}, lib.LLAMA_LOAD_MODE_MMAP),
        ({"repack": False}, lib.LLAMA_LOAD_MODE_MMAP),
        ({"mmap": False}, lib.LLAMA_LOAD_MODE_NONE),
        ({"mmap": False, "repack": False}, lib.LLAMA_LOAD_MODE_NONE),
        ({"mlock": True}, lib.LLAMA_LOAD_MODE_MMAP_MLOCK),
        ({"mlock": True, "mmap": False}, lib.LLAMA_LOAD_MODE_MLOCK),
    ],
)
def test_weights_that_stay_on_disk_are_mapped_whatever_the_devices_support(
    monkeypatch: pytest.MonkeyPatch, toy_target: Path, how: dict[str, bool], mode: int
) -> None:
    real, modes = lib.llama_model_load_from_file, []

    def load(path: bytes, params: lib.llama_model_params) -> object:
        modes.append(params.load_mode)
        return real(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    with Model.load(toy_target, devices=(), **how) as model:  # type: ignore[arg-type]
        assert modes == [mode]
        assert model.mapped is how.get("mmap", True)


def test_that_llama_cpp_copied_weights_unasked_is_known(
    monkeypatch: pytest.MonkeyPatch, toy_target: Path
) -> None:
    real = lib.llama_model_load_from_file

    def load(path: bytes, params: lib.llama_model_params) -> object:
        # as where a device cannot read mapped files
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        return real(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    with Model.load(toy_target) as model:
        assert not model.mapped


def test_loading_can_be_cancelled(toy_target: Path) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        Model.load(toy_target, cancel=cancel)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        Model.load(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    ("features", "works"), [(b"AVX2 = 1 | ", True), (b"AMX_INT8 = 1 | ", False)]
)
def test_weights_are_not_rearranged_for_amx(
    monkeypatch: pytest.MonkeyPatch, features: bytes, works: bool
) -> None:
    # A build that has it crashed at the first decode of this very suite.
    monkeypatch.setattr(lib, "llama_print_system_info", lambda: b"CPU : " + features)
    assert repacking_works() is works


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name",
    [
        "x" * 30_000,
        "x " * 15_000,
        " " * 30_000,
        "CPU model buffer size = 1.2.3 MiB",
        "CPU model buffer size = 99999 MiB",
        "x\nllama: CPU model buffer size = 99999 MiB",
    ],
)
def test_whatever_a_model_is_called_its_buffers_are_read_at_once(tmp_path: Path, name: str) -> None:
    plain = write_other_vocabulary(tmp_path / "plain.gguf", name="plain")
    named = write_other_vocabulary(tmp_path / "named.gguf", name=name)
    with Model.load(plain) as model:
        want = model.weights_bytes
    started = time.process_time()
    with Model.load(named) as model, Context(model, ContextOptions(n_ctx=64)) as context:
        assert model.weights_bytes == pytest.approx(want, abs=100_000)
        assert 0 < context.cache_bytes < 1 << 20
    assert time.process_time() - started < 1


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused_with_a_reason(
    tmp_path: Path, toy_draft: Path, share: float
) -> None:
    raw = toy_draft.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(ModelLoadError, match=r"cannot load cut\.gguf: .+"):
        Model.load(path)


def test_tokens_give_the_text_back(target_model: Model) -> None:
    ids = target_model.tokenize(TEXT, add_special=False, parse_special=False)
    assert b"".join(target_model.piece(token) for token in ids).decode().strip() == TEXT
    assert all(0 <= token < target_model.n_vocab for token in ids)


def test_the_text_of_a_control_token_is_that_token_only_when_asked(target_model: Model) -> None:
    end = next(iter(sorted(target_model.end_tokens)))
    text = target_model.piece(end, special=True).decode()
    assert target_model.tokenize(text, add_special=False, parse_special=True) == [end]
    assert end not in target_model.tokenize(text, add_special=False, parse_special=False)
    assert target_model.piece(end) == b""


def test_tokenising_odd_text_never_fails(target_model: Model) -> None:
    for text in ("", "\0", "\ud800", "a" * 10_000, "\n" * 500):
        ids = target_model.tokenize(text, add_special=False, parse_special=True)
        assert len(ids) <= len(text) + 8


def test_logits_are_a_read_only_view(target_context: Context) -> None:
    logits = target_context.decode([1, 2, 3], 2)
    assert logits.shape == (2, target_context.model.n_vocab)
    assert logits.dtype == np.float32
    assert not logits.flags.writeable


def test_decoding_more_than_fits_is_refused_before_llama_cpp_sees_it(target_model: Model) -> None:
    with Context(target_model, ContextOptions(n_ctx=8, threads=1)) as context:
        context.decode([1] * 6, 1)
        with pytest.raises(EngineError, match="2 fit"):
            context.decode([1] * 3, 1)
        assert context.tokens == [1] * 6


@pytest.mark.parametrize("kept", range(6))
def test_logits_after_a_rollback_equal_those_without_the_rejected_tokens(
    target_model: Model, kept: int
) -> None:
    prompt = target_model.tokenize(TEXT, add_special=True, parse_special=True)
    draft = [300, 301, 302, 303, 304]
    options = ContextOptions(n_ctx=256, threads=1, flash_attention=True)
    with Context(target_model, options) as rolled, Context(target_model, options) as straight:
        rolled.decode(prompt, 1)
        rolled.decode([7, *draft], 6)
        rolled.truncate(len(prompt) + 1 + kept)
        straight.decode(prompt, 1)
        straight.decode([7, *draft[:kept]], 1)
        after_rollback = rolled.decode([9, 10], 2).copy()
        assert np.array_equal(after_rollback, straight.decode([9, 10], 2))
        assert rolled.tokens == straight.tokens


def test_a_refused_removal_is_an_error_and_never_ignored(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    target_context.decode([1, 2, 3, 4], 1)
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_memory_seq_rm", lambda *_: False)
    with pytest.raises(EngineError, match="cannot take back"):
        target_context.truncate(2)
    assert target_context.tokens == []


def test_without_partial_removal_a_changed_prefix_is_read_anew(
    target_context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    target_context.decode([1, 2, 3, 4], 1)
    assert target_context.keep_prefix([1, 2, 3, 4, 5]) == 4
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_memory_seq_rm", lambda *_: False)
    assert target_context.keep_prefix([1, 2, 9]) == 0


def decode_until_stopped(context: Context, tokens: list[int]) -> None:
    """Decode the same tokens again and again."""
    held = len(context.tokens)
    while True:
        context.decode(tokens, 1)
        context.truncate(held)


def test_a_running_decode_is_interrupted_and_the_context_stays_usable(
    target_context: Context,
) -> None:
    prompt = list(range(100, 612))
    want = target_context.decode(prompt, 1).copy()
    target_context.clear()
    cancel = Cancel()
    target_context.watch(cancel)
    target_context.decode(prompt[:50], 1)
    timer = threading.Timer(0.005, cancel.set)
    timer.start()
    with pytest.raises(Cancelled):
        decode_until_stopped(target_context, prompt[50:200])
    timer.join()
    assert target_context.tokens == prompt[:50]
    cancel.clear()
    target_context.keep_prefix([])
    assert np.array_equal(target_context.decode(prompt, 1), want)


def test_memory_is_reported(target_context: Context) -> None:
    assert target_context.cache_bytes > 0
    assert target_context.buffer_bytes > 0


def test_default_threads_are_at_least_one() -> None:
    assert default_threads() >= 1


@pytest.mark.parametrize(
    ("kinds", "left_out"),
    [
        ({"Vulkan0": 2, "Vulkan1": 1, "CPU": 0}, ["Vulkan0"]),
        ({"Vulkan0": 2, "CPU": 0}, []),
        ({"Vulkan0": 2, "RPC0": 1}, []),
        ({"CUDA0": 1, "CUDA1": 1}, []),
        ({"CUDA0": 1, "Vulkan0": 1, "Vulkan1": 1}, ["Vulkan0"]),
        ({"CUDA0": 2, "Vulkan0": 2, "Vulkan1": 2}, ["Vulkan0", "Vulkan1"]),
        ({"SYCL0": 1, "SYCL1": 1}, []),
    ],
    ids=[
        "a card and a chip",
        "a chip",
        "a chip and a worker",
        "two cards",
        "a card in two backends",
        "a chip in two backends",
        "cards without ids",
    ],
)
def test_what_llama_cpp_does_not_use_is_left_out(
    kinds: dict[str, int], left_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(kinds)

    def properties(index: int, to: Any) -> None:
        told = {"CUDA0": b"0000:01:00.0", "CUDA1": b"0000:02:00.0", "Vulkan0": b"0000:01:00.0"}
        to._obj.device_id = told.get(names[index])

    registry = SimpleNamespace(
        dev_count=lambda: len(names),
        dev_get=lambda index: index,
        dev_type=lambda index: kinds[names[index]],
        dev_name=lambda index: names[index].encode(),
        dev_description=lambda _index: b"a device",
        dev_memory=lambda *_: None,
        dev_backend_reg=lambda index: names[index][:-1],
        dev_get_props=properties,
    )
    monkeypatch.setattr(hardware, "ggml", lambda: registry)
    for system in ("linux", "darwin"):
        monkeypatch.setattr(hardware.sys, "platform", system)
        assert [each.label for each in hardware.devices() if each.left_out] == left_out


@pytest.mark.parametrize(("free", "left"), [(2**64 - 1, 0), (900, 900), (1000, 1000)])
def test_a_card_that_reports_more_than_it_has_is_full(
    free: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memory(_device: int, its_free: Any, total: Any) -> None:
        its_free._obj.value, total._obj.value = free, 1000

    registry = SimpleNamespace(
        dev_count=lambda: 1,
        dev_get=lambda index: index,
        dev_type=lambda _: 1,
        dev_name=lambda _: b"Vulkan0",
        dev_description=lambda _: b"a card",
        dev_memory=memory,
        dev_get_props=lambda *_: None,
    )
    monkeypatch.setattr(hardware, "ggml", lambda: registry)
    assert [(each.free, each.total) for each in hardware.devices()] == [(left, 1000)]


@pytest.mark.parametrize(
    ("system", "kind", "name", "total", "told", "own"),
    [
        ("win32", 2, "Vulkan0", 112, None, 80),
        ("linux", 2, "Vulkan0", 112, 96, 80),
        ("linux", 2, "Vulkan0", 201, 96, 96),  # more main memory than there is
        ("linux", 2, "Vulkan0", 112, None, 0),  # a container knows of less main memory
        ("linux", 2, "Vulkan0", 32, 1, 0),  # all that it may take is main memory
        ("win32", 2, "CUDA0", 33, None, 0),  # a part that the kernel keeps is counted, too
        ("win32", 1, "CUDA0", 112, None, 0),
        ("win32", 2, "RPC0", 112, None, 0),
    ],
)
def test_what_a_chip_has_beyond_the_machine_s_memory_is_its_own(
    *,
    system: str,
    kind: int,
    name: str,
    total: int,
    told: int | None,
    own: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if told is not None:
        (tmp_path / "card1" / "device").mkdir(parents=True)
        (tmp_path / "card1" / "device" / "mem_info_vram_total").write_text(f"{told << 30}\n")
    monkeypatch.setattr(hardware, "_CARDS", tmp_path)
    monkeypatch.setattr(sys, "platform", system)

    def memory(_device: int, free: Any, whole: Any) -> None:
        free._obj.value, whole._obj.value = total << 30, total << 30

    registry = SimpleNamespace(
        dev_count=lambda: 1,
        dev_get=lambda index: index,
        dev_type=lambda _: kind,
        dev_name=lambda _: name.encode(),
        dev_description=lambda _: b"a device",
        dev_memory=memory,
        dev_backend_reg=lambda _: 0,
        dev_get_props=lambda *_: None,
    )
    monkeypatch.setattr(hardware, "ggml", lambda: registry)
    monkeypatch.setattr(hardware, "physical", lambda: 32 << 30)
    (found,) = hardware.devices()
    assert found.own == own << 30


def cpus(root: Path, siblings: dict[int, str], capacity: dict[int, int] | None = None) -> Path:
    """A machine's folder of processors."""
    for cpu, same_core in siblings.items():
        folder = root / "system" / "cpu" / f"cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology" / "thread_siblings_list").write_text(f"{same_core}\n")
        if capacity:
            (folder / "cpu_capacity").write_text(f"{capacity[cpu]}\n")
    return root


def test_efficiency_cores_are_left_out(tmp_path: Path) -> None:
    # Two performance cores with two threads each, four efficiency cores.
    root = cpus(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5", 6: "6", 7: "7"})
    assert hardware._fast_on_linux(root, None) is None
    (root / "cpu_core").mkdir()
    (root / "cpu_core" / "cpus").write_text("0-3\n")
    assert hardware._fast_on_linux(root, None) == 2
    assert hardware._fast_on_linux(root, {2, 3, 4, 5}) == 1
    assert hardware._fast_on_linux(root, {4, 5}) == 2


def test_threads_of_one_core_count_once_where_a_process_is_bound_to_some(tmp_path: Path) -> None:
    root = cpus(tmp_path, {cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(16)})
    assert hardware._fast_on_linux(root, {0, 1, 2, 3}) == 2
    assert hardware._fast_on_linux(root, {0, 2, 4, 6}) == 4
    assert hardware._fast_on_linux(root, set(range(16))) == 8


def test_cores_of_little_capacity_are_left_out(tmp_path: Path) -> None:
    each = {cpu: str(cpu) for cpu in range(6)}
    root = cpus(tmp_path / "big", each, {0: 400, 1: 400, 2: 400, 3: 400, 4: 1024, 5: 1000})
    assert hardware._fast_on_linux(root, None) == 2
    alike = cpus(tmp_path / "alike", each, dict.fromkeys(range(6), 1024))
    assert hardware._fast_on_linux(alike, None) is None


def windows(*classes: int, other: int = 0) -> bytes:
    """Windows's records of cores of these classes, after records of another kind."""
    core = b"".join(struct.pack("<IIBB38x", 0, 48, 1, each) for each in classes)
    return struct.pack("<IIBB22x", 3, 32, 9, 9) * other + core


def test_efficiency_cores_are_left_out_on_windows() -> None:
    assert hardware._fastest(windows(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)) == 6
    assert hardware._fastest(windows(2, 1, 1, 0, 0, other=2)) == 1
    assert hardware._fastest(windows(0, 0, 0, 0)) is None
    for broken in (b"", b"\0" * 9, bytes(40), windows(1, 1)[:-30]):
        assert hardware._fastest(broken) is None
    assert hardware._cores_on_windows() == b"" or sys.platform == "win32"


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], (1, 2)) == 2
    assert common_prefix([5], [1]) == 0


def test_a_long_text_has_the_ids_that_it_has_as_a_whole(
    target_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Don't say  <|im_end|> \n\nto Lily's dog.\n It is a\tb, 12 x!\n  And 你好 again \r\n" * 9
    whole = {
        how: target_model.tokenize(text, add_special=how[0], parse_special=how[1])
        for how in product((False, True), repeat=2)
    }
    for size in (1, 7, 40):
        monkeypatch.setattr("localspec.engine.llama.model._PART", size)
        assert len(list(target_model._parts(text))) > 9
        for (special, parse), ids in whole.items():
            assert target_model.tokenize(text, add_special=special, parse_special=parse) == ids
    monkeypatch.setattr(
        target_model,
        "_joined",
        frozenset(found.group() for found in re.finditer("[A-Za-z][ \\n]", text)),
    )
    assert list(target_model._parts(text)) == [text]
    cancel = Cancel()
    target_model.watch(cancel)
    cancel.set()
    with pytest.raises(Cancelled):
        target_model.tokenize(text, add_special=False, parse_special=False)
    target_model.watch(None)
