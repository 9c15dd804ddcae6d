"""Repositories as they are on the Hub: real names and sizes, with headers that fit them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support import ggufs
from tests.support.ggufs import ARRAY, BOOL, I32, STRING, U16, U32
from tests.support.hub_server import Hollow

DATA = Path(__file__).parent.parent / "data"
WIDTH, LAYERS, VOCABULARY = 64, 4, 300
UNSAID = 1 << 30  # bytes of a file whose size was not noted
TARGETS = {"gemma4-assistant": "gemma4", "dflash": "qwen35"}
"""The targets of heads that are published in separate repositories."""

_Key = tuple[str, int, Any]
_MIXTURES = ("qwen35moe", "qwen3next", "glm4moe")
_HEADS = ("mtp-", "dspark-", "dflash-", "eagle3-")


def layouts(name: str) -> list[dict[str, Any]]:
    """The repositories of a file of `DATA`, each with its questions (`asks`)."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def files(layout: Mapping[str, Any]) -> dict[str, Hollow]:
    """The files of a layout, with contents by their names and by the target's architecture."""
    architecture = layout["target_arch"] or "llama"
    found = {}
    for each in layout["files"]:
        path, size = each["path"], each.get("size") or each.get("approx_bytes") or UNSAID
        made = _AS[each["is"]](architecture) if "is" in each else _beginning(path, architecture)
        found[path] = Hollow(made, size)
    return found


def _beginning(path: str, architecture: str) -> bytes:
    if not path.endswith(".gguf") and ".gguf-split" not in path:
        return b"text"
    kind = next((word[:-1] for word in _HEADS if word in path), "")
    if architecture in TARGETS:
        kind = "mtp" if architecture == "gemma4-assistant" else kind
        architecture = TARGETS[architecture]
    if "ggml-vocab-" in path:
        return model(architecture, tensors=False)
    return head(kind, architecture) if kind else model(architecture)


@cache
def model(
    architecture: str = "llama",
    *,
    tensors: bool = True,
    kind: str = "model",
    parts: int = 1,
    width: int = WIDTH,
) -> bytes:
    """A model's header; without `tensors` that of a vocabulary, or of a first part."""
    own: list[_Key] = [
        ("general.type", STRING, kind),
        (f"{architecture}.attention.sliding_window_pattern", ARRAY, (BOOL, [True, False] * 2)),
    ]
    if parts > 1:
        own += [("split.no", U16, 0), ("split.count", U16, parts)]
    named = ["token_embd", "output_norm", "blk.0.attn_norm"] if tensors else []
    return _header(architecture, LAYERS, width, own, named)


@cache
def head(
    kind: str,
    architecture: str = "llama",
    *,
    width: int = WIDTH,
    layers: tuple[int, ...] = (0, 1, 2),
    words: int = VOCABULARY,
) -> bytes:
    """The header of a head of this kind for a target of that architecture and width."""
    if kind == "mtp" and architecture == "gemma4":
        return _assistant(width, words)
    if kind == "mtp":
        experts = ["ffn_gate_inp"] if architecture in _MIXTURES else []
        last = [f"blk.{LAYERS}.{part}" for part in (*_NEXTN, *experts)]
        own: list[_Key] = [(f"{architecture}.nextn_predict_layers", U32, 1)]
        ends = ["token_embd", "output_norm"]
        return _header(architecture, LAYERS + 1, width, own, [*ends, *last], words=words)
    own = [(f"{_FILE[kind]}.target_layers", ARRAY, (I32, list(layers)))]
    if kind == "eagle3":
        own.append(("eagle3.target_hidden_size", U32, width))
        return _header("eagle3", 1, WIDTH, own, ["fc", "output_norm"], words=words)
    own += [("dflash.block_size", U32, 8), ("tokenizer.ggml.mask_token_id", U32, 3)]
    if kind == "dspark":
        own.append(("dflash.sample_from_anchor", BOOL, True))
    markov = ["markov_w1", "markov_w2"] if kind == "dspark" else []
    return _header("dflash", 2, width, own, ["fc", "output_norm", *markov], words=words)


def with_head() -> dict[str, bytes]:
    """A small model with a head next to it, both whole."""
    target, own = Hollow(model(), 4_000_000), Hollow(head("eagle3"), 900_000)
    return {"a-Q8_0.gguf": target[:], "eagle3-a.gguf": own[:]}


_NEXTN = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
_FILE = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dflash"}


def _assistant(width: int, words: int) -> bytes:
    name = "gemma4-assistant"
    own: list[_Key] = [
        (f"{name}.nextn_predict_layers", U32, 2),
        (f"{name}.embedding_length_out", U32, width),
        (f"{name}.attention.sliding_window_pattern", ARRAY, (BOOL, [True, False])),
        (f"{name}.attention.key_length", U32, WIDTH // 4),
        (f"{name}.attention.value_length", U32, WIDTH // 4),
        (f"{name}.rope.dimension_count", U32, WIDTH // 4),
    ]
    return _header(name, 2, WIDTH // 2, own, ["token_embd", "output_norm"], words=words)


def _header(
    architecture: str,
    layers: int,
    width: int,
    own: Sequence[_Key],
    tensors: Sequence[str],
    *,
    words: int = VOCABULARY,
) -> bytes:
    metadata = [
        ("general.architecture", STRING, architecture),
        (f"{architecture}.block_count", U32, layers),
        (f"{architecture}.embedding_length", U32, width),
        (f"{architecture}.attention.head_count", U32, 4),
        (f"{architecture}.attention.head_count_kv", U32, 2),
        (f"{architecture}.context_length", U32, 32_768),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ggufs.words(words))),
        *ggufs.experts(architecture),
        *own,
    ]
    size = 4 * width * words  # of each tensor: as large as the embedding
    table = [
        ggufs.tensor(f"{name}.weight", [width, words], 0, at * size)
        for at, name in enumerate(tensors)
    ]
    return ggufs.header(metadata, table)


def _picture(architecture: str) -> bytes:
    """The header of a model that makes pictures: it has no vocabulary."""
    metadata = [("general.architecture", STRING, architecture)]
    return ggufs.header(
        metadata, [ggufs.tensor("double_blocks.0.img_mlp.0.weight", [64, 64], 0, 0)]
    )


def _ranker(architecture: str) -> bytes:
    """The header of a model that scores texts."""
    pooled: list[_Key] = [(f"{architecture}.pooling_type", U32, 4)]
    return _header(architecture, LAYERS, WIDTH, pooled, ["token_embd", "blk.0.attn_norm"])


_AS: Mapping[str, Callable[[str], bytes]] = {
    "model": model,
    "mtp": partial(head, "mtp"),
    "adapter": partial(model, kind="adapter"),
    "imatrix": partial(model, kind="imatrix"),
    "clip": lambda _: model("clip"),
    "picture": _picture,
    "ranker": _ranker,
}
"""What a file is (`is`), where its name does not say it: its header for an architecture."""
