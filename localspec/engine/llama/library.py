"""llama.cpp's shared library and its Python binding; imported only here.

Importing this module raises EngineError if the library is missing, lacks a dependency, or was built
for another system.
"""

from __future__ import annotations

import os
import sys

from localspec.errors import EngineError
from localspec.safe_text import reason

__all__ = ["lib", "llama_cpp", "load_shared_library"]

_PATH = "LLAMA_CPP_LIB_PATH"
_AGAIN = "install llama-cpp-python again: uv sync --reinstall-package llama-cpp-python"


def _refusal(error: Exception) -> EngineError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
        del sys.modules[name]  # a half-imported module would look complete the next time
    if os.environ.get(_PATH):
        remedy = f"Unset {_PATH}, or have it name a folder with a library for this system."
    elif "GLIBC" in str(error):
        remedy = f"It was built for a newer system; to build it here, {_AGAIN}."
    else:
        remedy = f"{_AGAIN[0].upper()}{_AGAIN[1:]}."
    return EngineError(f"llama.cpp's library cannot be loaded: {reason(error)}", remedy)


try:
    import llama_cpp
    from llama_cpp import llama_cpp as lib
    from llama_cpp._ctypes_extensions import load_shared_library
except (ImportError, OSError, RuntimeError) as error:
    raise _refusal(error) from None
