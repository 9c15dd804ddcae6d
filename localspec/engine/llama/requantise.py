"""Requantise a model with llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from localspec.engine.llama.library import lib
from localspec.engine.llama.log import start_backend
from localspec.engine.llama.platform.hardware import default_threads
from localspec.errors import ModelLoadError


def write_q8_0(source: Path, out: Path, name: str) -> None:
    """Write the model `source` to `out` with all matrices in Q8_0, under the name `name`.

    Other metadata stays the same. Matrices in other block types are dequantised first: within a
    block of 32 weights no error exceeds 1/226 of the largest weight.

    Raises:
        ModelLoadError: llama.cpp cannot read `source` or write `out`; `out` is then unusable.
    """
    log = start_backend().section()
    params = lib.llama_model_quantize_default_params()
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q8_0
    params.allow_requantize = True
    params.nthread = default_threads()
    text: Any = lib.llama_model_kv_override_value(val_str=name.encode())
    named = lib.llama_model_kv_override(lib.LLAMA_KV_OVERRIDE_TYPE_STR, b"general.name", text)
    end = lib.llama_model_kv_override()
    params.kv_overrides = (lib.llama_model_kv_override * 2)(named, end)
    if lib.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(params)):
        raise ModelLoadError(f"{source} cannot be converted: {log.reason()}")
