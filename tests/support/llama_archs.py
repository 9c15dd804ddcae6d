"""What llama.cpp's source says of its architectures, read by patterns from the newest copy here."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest


@cache
def _source() -> Path | None:
    """The folder ``src`` of the llama.cpp that uv compiled last."""
    uv = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache" / "uv"))
    folder = "sdists-v*/pypi/llama-cpp-python/*/*/src/vendor/llama.cpp/src"
    return max(uv.glob(folder), key=lambda path: path.stat().st_mtime, default=None)


def needed() -> None:
    """Skip a test if the source is not on this disk."""
    if _source() is None:
        pytest.skip("llama.cpp's source is not on this disk")


def _text(name: str) -> str:
    source = _source()
    return (source / name).read_text("utf-8") if source else ""


@cache
def _models() -> str:
    source = _source()
    return (
        "\n".join(path.read_text("utf-8") for path in sorted(source.glob("models/*.cpp")))
        if source
        else ""
    )


def _classes() -> dict[str, str]:
    """The class of every architecture, by llama.cpp's name of it."""
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+), +\"([^\"]+)\" +\}", _text("llama-arch.cpp")))
    made = re.findall(
        r"case (LLM_ARCH_\w+):\s+return new (llama_model_\w+)\(", _text("llama-model.cpp")
    )
    return {names[arch]: model for arch, model in made}


def _bodies(what: str) -> dict[str, str]:
    """The constructors of the graphs called `what`, by the class of their model."""
    pattern = rf"^(?:template <[^>]*>\n)?(llama_model_\w+)::{what}(?:<\w+>)?::{what}\(.*?^\}}"
    found = re.finditer(pattern, _models(), re.M | re.S)
    return {match[1]: match[0] for match in found}


def _borrowed() -> dict[str, str]:
    """The classes that use the graph of another class, and which."""
    pattern = r"^struct (llama_model_\w+) [^{]*\{(?:(?!^\};).)*?using graph = (llama_model_\w+)::"
    return dict(re.findall(pattern, _text("models/models.h"), re.M | re.S))


def showing() -> set[str]:
    """The architectures that write text and whose graphs show the inputs of layers."""
    graphs, borrowed = _bodies("graph"), _borrowed()
    shown = {model for model, body in graphs.items() if "t_layer_inp[" in body}
    found = {name for name, model in _classes().items() if borrowed.get(model, model) in shown}
    return found - {"llama-embed"}  # it writes no text


def patterned() -> set[str]:
    """The architectures that read which of their layers have a sliding window."""
    bodies = re.finditer(
        r"^void (llama_model_\w+)::load_arch_hparams\(.*?^\}", _models(), re.M | re.S
    )
    reads = {each[1] for each in bodies if re.search(r"load_swa_p|WINDOW_PATTERN", each[0])}
    return {name for name, model in _classes().items() if model in reads}


def predicting() -> dict[str, bool]:
    """The architectures that draft by MTP; whether states are those of wanted rows alone."""
    graphs = _bodies("graph_mtp")
    return {
        name: _wanted_alone(graphs[model]) for name, model in _classes().items() if model in graphs
    }


def _wanted_alone(body: str) -> bool:
    """Whether rows are chosen before the states are output, in every case."""
    before = body[: body.index("t_h_nextn")]
    chosen = re.search(
        r"^( +)(?:ggml_tensor \* \w+|cur) += ggml_get_rows\(ctx0, \w+, +inp_out_ids", before, re.M
    )
    return bool(chosen) and "crop_before_ffn" not in body


def several_layers() -> set[str]:
    """The architectures of which llama.cpp uses more than one MTP layer."""
    graphs = _bodies("graph_mtp")
    return {
        name
        for name, model in _classes().items()
        if model in graphs and "n_layer_nextn == 1" not in graphs[model]
    }
