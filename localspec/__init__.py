"""localspec: local chat with speculative decoding that never changes what the model says.

From Python: `localspec.load` gives a `localspec.Chat`. Errors are those of `localspec.errors`.
"""

__version__ = "0.1.0"
__all__ = ["Chat", "__version__", "load"]

TYPE_CHECKING = False  # the real one would cost an import
if TYPE_CHECKING:
    from localspec.api import Chat, load


def __getattr__(name: str) -> object:
    """Import the API when it is first used: most commands need neither numpy nor llama.cpp."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import localspec.api  # noqa: PLC0415

    found: object = getattr(localspec.api, name)
    return found
