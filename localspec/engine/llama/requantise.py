"""Requantise a model with llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from localspec.engine.llama.library import lib
from localspec.engine.llama.log import start_backend
from localspec.engine.llama.platform.hardware import default_threads
from localspec.errors import ModelLoadError

_LONGEST_PATH: Final = 32_768  # characters, on Windows


def write_q8_0(source: Path, out: Path, name: str) -> None:
    """Write the model `source` to `out` with all matrices in Q8_0, under the name `name`.

    Other metadata stays the same. Matrices in other block types are dequantised first: within a
    block of 32 weights no error exceeds 1/226 of the largest weight.

    Raises:
        ModelLoadError: llama.cpp cannot read `source` or write `out`; `out` is then unusable.
        OSError: a temporary folder cannot be used, on Windows.
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
    with _writable(out) as path:
        if lib.llama_model_quantize(bytes(source), bytes(path), ctypes.byref(params)):
            raise ModelLoadError(f"{source} cannot be converted: {log.reason()}")


@contextmanager
def _writable(out: Path) -> Iterator[Path]:
    """A path that the quantiser can write; its file is at `out` afterwards.

    On Windows it reads the path in the system's code page, which knows few letters, while it reads
    its source's path, as all of llama.cpp's others, in UTF-8.
    """
    if sys.platform != "win32" or str(out).isascii():
        yield out
    elif str(short := _short(out.parent) / out.name).isascii():
        yield short
    else:
        prefix = out.parent.name  # the next start finds what a killed one left by this name
        with tempfile.TemporaryDirectory(prefix=prefix, dir=os.environ.get("PUBLIC")) as aside:
            written = Path(aside) / out.name
            yield written
            shutil.move(written, out)


def _short(folder: Path) -> Path:
    """The folder by Windows's short names, in ASCII; where the disk has none, by its own."""
    if sys.platform == "win32":
        name = ctypes.create_unicode_buffer(_LONGEST_PATH)
        if ctypes.WinDLL("kernel32").GetShortPathNameW(str(folder), name, len(name)):
            return Path(name.value)
    return folder
