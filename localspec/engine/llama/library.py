"""Whether llama.cpp's library is there and can be loaded; what to do where it is not."""

from __future__ import annotations

import os
import sys

from localspec.errors import EngineError
from localspec.safe_text import reason

PATH = "LLAMA_CPP_LIB_PATH"
_AGAIN = "install llama-cpp-python again: uv sync --reinstall-package llama-cpp-python"


def require_library() -> None:
    """Load the library.

    Raises:
        EngineError: it is missing, misses another library, or was built for another system.
    """
    try:
        import llama_cpp.llama_cpp  # noqa: F401, PLC0415 - importing loads it
    except (ImportError, OSError, RuntimeError) as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
            del sys.modules[name]  # half imported, it would be taken for whole the next time
        raise EngineError(
            f"llama.cpp's library cannot be loaded: {reason(error)}", _remedy(str(error))
        ) from None


def _remedy(said: str) -> str:
    if os.environ.get(PATH):
        return f"Unset {PATH}, or have it name a folder with a library for this system."
    if "GLIBC" in said:
        return f"It was built for a newer system; to build it here, {_AGAIN}."
    return f"{_AGAIN[0].upper()}{_AGAIN[1:]}."
