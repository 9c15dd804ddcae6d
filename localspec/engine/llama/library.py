"""llama.cpp's shared library and its Python binding; imported only here.

Importing this module raises EngineError if the library is missing, lacks a dependency or a
function, or was built for another system.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from localspec.errors import EngineError, in_clone, rebuilds
from localspec.safe_text import reason

__all__ = [
    "ggml_library",
    "lib",
    "library_folder",
    "llama_cpp",
    "load_shared_library",
    "rebuild",
]

_PATH = "LLAMA_CPP_LIB_PATH"


def rebuild(*flags: str) -> str:
    """The command that compiles llama.cpp for this system, with these flags for CMake."""
    from importlib.metadata import distributions  # noqa: PLC0415 - takes a moment

    version = next((each.version for each in distributions(name="llama-cpp-python")), "")
    return rebuilds(version, *flags, clone=in_clone(), windows=os.name == "nt")


def _refusal(error: Exception) -> EngineError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
        del sys.modules[name]  # a half-imported module would look complete the next time
    if os.environ.get(_PATH):
        remedy = f"Unset {_PATH}, or have it name a folder with the same version for this system."
    elif "GLIBC" in str(error):
        remedy = f"It was built for a newer system; build it here: {rebuild()}"
    else:
        remedy = f"Build llama-cpp-python again: {rebuild()}"
    return EngineError(f"llama.cpp's library cannot be loaded: {reason(error)}", remedy)


try:
    import llama_cpp
    from llama_cpp import llama_cpp as lib
    from llama_cpp._ctypes_extensions import load_shared_library
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise _refusal(error) from None


def library_folder() -> Path:
    """The folder of llama.cpp's libraries: the package's own, or what LLAMA_CPP_LIB_PATH names."""
    return Path(os.environ.get(_PATH) or Path(llama_cpp.__file__).parent / "lib")


def ggml_library(name: str) -> ctypes.CDLL:
    """The library `name` of llama.cpp, such as ``ggml-base``, in the copy that libllama uses.

    Its functions are looked up through libllama: a build may have each library three times under
    different names, and another copy than libllama's would have its own global state. Windows has
    one copy of each, and must be asked for that library itself.
    """
    found: ctypes.CDLL = load_shared_library(
        name if sys.platform == "win32" else "llama", library_folder()
    )
    return found
