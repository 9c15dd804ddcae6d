"""Damaged model files: refused with a reason, and never the end of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelFileError, UnsupportedModel
from localspec.pairs.report import model_source
from tests.support import any_model, damaged, gemma4, gguf_models, ggufs, heads, toy
from tests.support.damaged import Damaged, Parts, put_together, split, take_apart, write_parts
from tests.support.gguf_models import read_vocabulary

Change = Callable[[Parts], Parts]


def key(name: str, value: Any, kind: int = ggufs.U32) -> Change:
    """With the key `name` of the architecture, or a general one, as `value`."""

    def change(parts: Parts) -> Parts:
        architecture = next(content for key, _, content in parts.keys if key == ARCHITECTURE)
        full = (
            name
            if name.startswith(("general.", "tokenizer."))
            else f"{architecture.decode()}.{name}"
        )
        others = (each for each in parts.keys if each[0] != full)
        return replace(parts, keys=(*others, (full, kind, value)))

    return change


NONE_SLIDES = "none of its layers has the sliding window"
ARCHITECTURE = "general.architecture"
MODELS: Mapping[str, Callable[..., Path]] = {
    **gguf_models.GENERATORS,
    "gemma4": lambda path, like: gemma4.write_gemma4(path, vocabulary=read_vocabulary(like)),
    "glm4moe": lambda path, like: heads.write_mtp(path),
    "nanbeige": lambda path, like: any_model.write_any(path, "nanbeige", layers=2),
    "eagle3": lambda path, like: heads.write_eagle3(path),
    "dflash": lambda path, like: heads.write_dflash(path),
}


def token(number: int, text: bytes) -> Change:
    def change(parts: Parts) -> Parts:
        tokens = next(content[1] for key, _, content in parts.keys if key.endswith("ggml.tokens"))
        changed = [*tokens[:number], text, *tokens[number + 1 :]]
        return key("tokenizer.ggml.tokens", (ggufs.STRING, changed), ggufs.ARRAY)(parts)

    return change


def array(name: str, items: list[int], kind: int = ggufs.I32) -> Change:
    return key(name, (kind, items), ggufs.ARRAY)


def slide(*layers: bool) -> Change:
    return array("attention.sliding_window_pattern", [*layers], ggufs.BOOL)


def without(name: str) -> Change:
    """Without the key of the architecture whose name ends in `name`."""
    return lambda parts: replace(
        parts, keys=tuple(each for each in parts.keys if not each[0].endswith(f".{name}"))
    )


def both(one: Change, other: Change) -> Change:
    return lambda parts: other(one(parts))


def tensor(name: str, kind: int, n_bytes: int) -> Change:
    def change(parts: Parts) -> Parts:
        tensors = (
            replace(each, kind=kind, data=(each.data * 2)[:n_bytes]) if each.name == name else each
            for each in parts.tensors
        )
        return replace(parts, tensors=tuple(tensors))

    return change


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("qwen3", token(7, b"a"), "'a' is in its vocabulary twice"),
        ("qwen3", token(7, b"a\0b"), "'a' is in its vocabulary twice"),
        ("qwen3", key("general.alignment", 16), "alignment is not a power of two, or is below 32"),
        ("qwen3", key("nextn_predict_layers", 3), "of its 2 layers 3 predict"),
        ("qwen3", key("block_count", 0), "it has 0 layers"),
        ("qwen3", key("block_count", 513), "it has 513 layers"),
        ("moe", key("expert_used_count", 5), "it uses 5 of 4 experts"),
        ("moe", key("expert_count", 0), "it uses 2 of 0 experts"),
        ("moe", array("expert_used_count", [-1, 2]), "its layer 0 uses -1 of 4 experts"),
        ("moe", array("expert_used_count", [1, 2]), "its layer 1 uses 2 of 4 experts"),
        ("moe", array("expert_used_count", [2, 0]), "its layer 1 uses 0 of 4 experts"),
        ("glm4moe", key("expert_gating_func", 9), "are chosen in an unknown way, 9"),
        ("glm4moe", both(without("expert_count"), without("expert_used_count")), "no experts"),
        ("nanbeige", key("num_loops", 0), "its 2 layers are passed 0 times"),
        ("nanbeige", key("num_loops", 600), "its 2 layers are passed 600 times"),
        ("moe", key("expert_group_count", 4), "4 experts are in 4 groups"),
        ("moe", key("expert_group_count", 3), "0 of 3 groups of 4 experts"),
        ("qwen3", tensor("blk.0.attn_norm.weight", 26, 256), "has the type I32"),
        ("qwen3", tensor("output_norm.weight", 1, 128), "has the type F16"),
        ("qwen3", key("rope.dimension_count", 33), "33 are turned"),
        ("qwen3", key("attention.layer_norm_rms_epsilon", -1.0, ggufs.F32), "epsilon is -1.0"),
        ("glm4moe", key("rope.dimension_count", 0), "elements 0 are turned"),
        ("qwen3", key("rope.scaling.type", b"dynamic", ggufs.STRING), "an unknown way, 'dynamic'"),
        ("gemma3", key("attention.sliding_window_pattern", 1), NONE_SLIDES),
        ("gemma3", slide(*[False] * 6), NONE_SLIDES),
        ("gemma4", slide(*[False] * 4), NONE_SLIDES),
        ("qwen35", key("rope.dimension_sections", 31), "in sections of [31, 31, 31, 31]"),
        ("gemma4", key("attention.value_length", 31), "its keys and values differ in width"),
        ("gemma4", tensor("blk.0.layer_output_scale.weight", 1, 2), "has the type F16"),
        ("gemma4", tensor("rope_freqs.weight", 1, 64), "has the type F16"),
        ("gemma4", key("rope.dimension_count_swa", 33), "of its heads' 32 elements 33 are turned"),
        ("gemma4", key("attention.shared_kv_layers", 3), "3 of its 4 layers have no cache"),
        ("gemma4", key("attention.shared_kv_layers", 5), "5 of its 4 layers have no cache"),
        (
            "gemma4",
            both(slide(True, True, True, False), key("attention.shared_kv_layers", 2)),
            "one reads the cache of a layer of another kind",
        ),
        ("dflash", both(slide(False, False), key("attention.sliding_window", 64)), NONE_SLIDES),
        ("eagle3", key("rope.scaling.type", b"mrope", ggufs.STRING), "an unknown way, 'mrope'"),
        ("qwen3", key("attention.head_count_kv", 3), "in its layer 0 2 heads of attention share 3"),
        ("qwen3", array("attention.head_count_kv", [1, 0]), "1 2 heads of attention share 0"),
        ("gemma3", key("attention.sliding_window", 2**31 - 1), "window is 2,147,483,647"),
        ("qwen35", key("ssm.inner_size", 0), "is not made for states of 0"),
        ("qwen35", key("full_attention_interval", 0), "never has full attention"),
        ("qwen3", key("tokenizer.ggml.model", b"llama", ggufs.STRING), "no token for byte"),
        (
            "mamba",
            key("tokenizer.ggml.tokens", (ggufs.STRING, [b"a"]), ggufs.ARRAY),
            "every text begins with a token that it does not have",
        ),
    ],
)
def test_what_llama_cpp_would_die_of_is_said(
    tmp_path: Path, model: str, change: Change, said: str
) -> None:
    words = gguf_models.write_other_vocabulary(tmp_path / "words.gguf")
    path = MODELS[model](tmp_path / "it.gguf", like=words)
    assert model_source.local(path).header.tensors
    path.write_bytes(damaged.put_together(change(damaged.take_apart(path.read_bytes()))))
    with pytest.raises(ModelFileError, match="is damaged") as refused:
        model_source.local(path)
    assert said in refused.value.message


@pytest.mark.parametrize("named", [b"none", b"no_vocab"])
def test_a_model_whose_vocabulary_is_none_is_refused(tmp_path: Path, named: bytes) -> None:
    path = gguf_models.write_other_vocabulary(tmp_path / "it.gguf")
    change = key("tokenizer.ggml.model", named, ggufs.STRING)
    path.write_bytes(put_together(change(take_apart(path.read_bytes()))))
    with pytest.raises(UnsupportedModel, match="has no vocabulary"):
        model_source.local(path)


@pytest.mark.parametrize(("kind", "value"), [(ggufs.BOOL, False), (ggufs.F32, 0.5)])
def test_a_part_that_says_oddly_which_one_it_is_ends_nothing(
    tmp_path: Path, kind: int, value: Any
) -> None:
    path = gguf_models.write_other_vocabulary(tmp_path / "it.gguf")
    parts = split(take_apart(path.read_bytes()), 2)
    odd = replace(parts[1], keys=(("split.no", kind, value), *parts[1].keys[1:]))
    paths = write_parts(tmp_path, "it", [put_together(parts[0]), put_together(odd)])
    with pytest.raises(ModelFileError, match="is damaged: its part number"):
        model_source.local(paths[0])


@pytest.mark.slow
def test_undamaged_files_of_every_architecture_are_loaded(tmp_path: Path) -> None:
    sound = damaged.samples(tmp_path)
    found = [Damaged(path, "", ()) for path in sound]
    found += [Damaged(path, "", (), "draft", sound[0]) for path in sound]
    for write in (heads.write_eagle3, heads.write_dflash):
        head = write(tmp_path / f"{write.__name__}.gguf")
        found.append(Damaged(head, "", (), "head", toy.TARGET))
    found.append(Damaged(heads.write_mtp(tmp_path / "mtp.gguf"), "", (), "mtp"))
    for path in sound:
        files = [put_together(one) for one in split(take_apart(path.read_bytes()), 3)]
        parts = write_parts(tmp_path, path.stem, files)
        found.append(Damaged(parts[0], "", parts))
    assert {each.end for each in damaged.load_all(found)} == {"loaded"}


@pytest.mark.slow
@pytest.mark.drawn
def test_no_damage_ends_the_process(tmp_path: Path) -> None:
    """A sample; ``python -m tests.support.damaged SEED COUNT`` runs more."""
    files = damaged.damaged_files(tmp_path, range(20, 520))
    outcomes = list(damaged.load_all(files))
    assert [each for each in outcomes if each.end in ("died", "hung", "fault")] == []
    ends = {each.end for each in outcomes}
    assert ends == {"refused", "failed", "loaded"}
