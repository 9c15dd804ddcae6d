"""Every error a user can meet, and the exit code each one ends in.

::

    LocalspecError                                                exit 1
     ├── UsageError: SchemaError                                  exit 2
     ├── ModelError: ModelFileError, UnsupportedModel, ModelLoadError
     ├── VocabularyMismatch, OutOfMemory, PromptTooLong, SamplingError
     ├── EngineError: EngineDied
     ├── ConversationError
     └── HubError: BadReference, NotOnHub (NotFetched), AccessDenied, HubOffline,
         HubUnavailable, DownloadCorrupt, NotEnoughDisk
    Cancelled                                                     exit 130
    Ended                                                         exit 128 + the signal's number

``Cancelled`` is outside the tree on purpose: it is the user's request, not a failure.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from localspec.safe_text import reason, shortened

_LONGEST: Final = 490  # cells; 500 with what is printed around both
_LONGEST_REMEDY: Final = 350

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LocalspecError(Exception):
    """An error: one line on what went wrong, and one on what the user can do about it.

    Messages quote files, servers and options. The constructor makes them safe to print and cuts
    them: the remedy to 350 cells of a terminal, the message to what its characters leave of 490.

    Args:
        message: what is wrong, without a full stop, to follow ``error:``.
        remedy: what to do, as an imperative sentence; empty if nothing can be done.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = shortened(remedy, _LONGEST_REMEDY)
        self.message = shortened(message, _LONGEST - len(self.remedy))
        super().__init__(self.message)


class UsageError(LocalspecError):
    """The command line or a setting is invalid."""


class SchemaError(UsageError):
    """A JSON schema cannot be enforced.

    Args:
        message, remedy: as for every error.
        place: the keyword's or value's place in the request or the schema.
    """

    def __init__(self, message: str, remedy: str = "", place: str = "") -> None:
        super().__init__(message, remedy)
        self.place = place


class ModelError(LocalspecError):
    """A model cannot be used."""


class ModelFileError(ModelError):
    """A model file is missing, unreadable, truncated or not a GGUF."""


class UnsupportedModel(ModelError):
    """A model that loads but cannot chat."""


class ModelLoadError(ModelError):
    """llama.cpp refused the model."""


class VocabularyMismatch(LocalspecError):
    """The draft's vocabulary does not fit the target's."""


class OutOfMemory(LocalspecError):
    """The models, their caches or their buffers do not fit in memory."""


class PromptTooLong(LocalspecError):
    """The prompt leaves no room in the context."""


class SamplingError(LocalspecError):
    """Sampling parameters are invalid, or logits do not form a distribution."""


class EngineError(LocalspecError):
    """A decode or a cache operation failed."""


class EngineDied(EngineError):
    """The process that runs the models ended by itself.

    A command that waits for it ends with this error; the chat and `serve` start another process.
    """


class ConversationError(LocalspecError):
    """A stored conversation cannot be read or written."""


class HubError(LocalspecError):
    """The Hub, the network or a download failed."""


class BadReference(HubError):
    """The text is not a valid reference to a model."""


class NotOnHub(HubError):
    """There is no such repository, file, quant or revision."""


class NotFetched(NotOnHub):
    """A model that the Hub may have is not on this disk yet."""


class AccessDenied(HubError):
    """The repository is gated or private."""


class HubOffline(HubError):
    """There is no connection, or offline mode is on."""


class HubUnavailable(HubError):
    """The Hub answers with errors, or breaks off."""


class DownloadCorrupt(HubError):
    """The downloaded bytes are not the expected ones."""


class NotEnoughDisk(HubError):
    """The download does not fit on the disk."""


class Cancelled(Exception):
    """The user asked to stop."""


class Ended(KeyboardInterrupt):
    """A signal asked for the end; code that must save or undo something on Ctrl+C catches it.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def lacks_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out.

    The dynamic loader reports it as an `ImportError` of the library that it could not map, and
    torch as a `RuntimeError`.
    """
    match error:
        case MemoryError():
            return True
        case ImportError():
            return "failed to map segment" in str(error)
        case RuntimeError():
            return any(said in str(error) for said in ("out of memory", "CPUAllocator"))
    return False


def in_words(error: Exception) -> tuple[str, str]:
    """An error's message and remedy, even for unexpected errors."""
    if isinstance(error, LocalspecError):
        return error.message, error.remedy
    if lacks_memory(error):
        return "there is not enough memory", "Close other programs, or choose a smaller pair."
    if (said := of_system(error)) is not None:
        return said
    return (
        f"something unforeseen happened ({type(error).__name__}: {error})",
        "This is a fault of localspec; the conversation so far is kept.",
    )


# What the system may lack, and the remedy.
_STRAINS: Final = {
    errno.ENOSPC: "Make room on the disk.",
    errno.EDQUOT: "Make room on the disk.",
    errno.EMFILE: "Allow more open files (ulimit -n).",
    errno.ENFILE: "Close other programs.",
    errno.EAGAIN: "Allow more processes and threads (ulimit -u), or close other programs.",
    errno.ENOMEM: "Close other programs, or choose a smaller pair.",
    errno.EFBIG: "Use a disk of another format, or allow larger files (ulimit -f).",
    errno.EIO: "Check the disk or the terminal: it does not respond.",
}
# Windows has no such limits to raise.
_STRAINS_OF_WINDOWS: Final = {
    errno.EMFILE: "Start localspec again: it holds too many files.",
    errno.EAGAIN: "Close other programs.",
    errno.EFBIG: "Use a disk of another format.",
}
_REFUSED: Final = {
    errno.EACCES: "Check its permissions.",
    errno.EPERM: "Check its permissions.",
    errno.EROFS: "Use a file system that can be written.",
}


def _way(strain: int) -> str:
    own = _STRAINS_OF_WINDOWS.get(strain) if os.name == "nt" else None
    return own or _STRAINS[strain]


def of_system(error: BaseException) -> tuple[str, str] | None:
    """Message and remedy for an error of the system or the installation; None for any other."""
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "no further thread can be started", _way(errno.EAGAIN)
    if isinstance(error, ImportError):
        return of_import(error)
    return _of_os(error) if isinstance(error, OSError) else None


def in_clone() -> bool:
    """Whether localspec runs from a clone of its repository, where uv installs what it needs."""
    return _has_uv() and (Path(__file__).parents[1] / "pyproject.toml").is_file()


def installs(packages: str) -> str:
    """The command that installs packages, written as for pip, for the Python that runs this."""
    if _has_uv():
        return f"uv pip install {packages} --python {_this_python()}"
    return runs(f"-m pip install {packages}")


def runs(arguments: str) -> str:
    """The command that runs the Python that runs this, with these arguments.

    The shell may find another Python: that of an installed tool is not on its path. On Windows the
    command is for PowerShell, which calls a quoted program only after an ampersand.
    """
    return f"{'& ' if os.name == 'nt' else ''}{_this_python()} {arguments}"


def installs_extra(name: str) -> str:
    """The command that installs an extra of localspec next to what is installed."""
    return f"uv sync --inexact --extra {name}" if in_clone() else installs(f'"localspec[{name}]"')


def install_again() -> str:
    """The sentence with the command that replaces all that is installed.

    In a clone llama.cpp stays: it would lose how it was built, such as for a graphics card, and has
    its own command (`rebuilds`). Outside localspec came in a file: no release of it is published.
    """
    if in_clone():
        command = "uv sync --inexact --reinstall --no-install-package llama-cpp-python"
        return f"Install localspec again: {command}"
    return f"Install localspec again from its wheel (FILE): {installs('--force-reinstall FILE')}"


def rebuilds(version: str, *flags: str, clone: bool, windows: bool) -> str:
    """The command that compiles llama-cpp-python again, with `flags` for CMake.

    The version may be empty. It is one of PowerShell for `windows`.
    """
    version, of_wheel, _ = version.partition("+")  # +localspec.1: a wheel of our own
    build = "uv sync --inexact --no-cache --reinstall-package llama-cpp-python"
    if of_wheel:
        # uv's lock file, which only an upgrade changes, knows that version as wheels alone.
        build += " --no-binary-package llama-cpp-python"
        build += f" --upgrade-package llama-cpp-python=={version}"
    if not clone:
        build = installs(
            "--force-reinstall --no-deps --no-cache-dir"
            f' --no-binary llama-cpp-python "llama-cpp-python{version and f"=={version}"}"'
        )
    if not flags:
        return build
    asked = f'CMAKE_ARGS="{" ".join(flags)}"'
    return f"$env:{asked}; {build}" if windows else f"{asked} {build}"


def _has_uv() -> bool:
    return "UV" in os.environ or shutil.which("uv") is not None


def _this_python() -> str:
    """The path of this Python for a shell, without the home folder, which has the user's name."""
    windows, path = os.name == "nt", Path(sys.executable)
    try:
        path = path.relative_to(Path.home())
        home = "$env:USERPROFILE\\" if windows else "~/"
    except (RuntimeError, ValueError):  # the home folder is missing, or elsewhere
        home = ""
    return f'"{home}{path}"' if windows else f"{home}{shlex.quote(str(path))}"


def of_import(error: ImportError) -> tuple[str, str]:
    """Message and remedy where a package is missing, broken, or for another Python."""
    remedy = install_again()
    if os.environ.get("PYTHONPATH"):
        remedy = "Unset PYTHONPATH: packages are looked for there first."
    return f"a package that localspec needs cannot be loaded: {reason(error)}", remedy


def _of_os(error: OSError) -> tuple[str, str] | None:
    said = error.strerror or str(error)
    path = shortened(str(error.filename), 200) if error.filename else ""
    if error.errno in _STRAINS:
        return f"{path}: {said}" if path else said, _way(error.errno)
    if path:
        way = _REFUSED.get(error.errno or 0, "Check that path, and what names it.")
        return f"{path} cannot be used: {said}", way
    if isinstance(error, FileNotFoundError):
        if not _working_folder_is_there():
            return "the folder that this was started in is gone", "Change to another (cd)."
        if "temporary directory" in str(error):
            return "no folder for temporary files can be written", "Set TMPDIR to one that can."
    return None


def _working_folder_is_there() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - nothing is made of it
    except OSError:
        return False
    return True


def exit_code(error: BaseException) -> int:
    """The process's exit code for `error`."""
    if isinstance(error, Ended):
        return 128 + error.number
    if isinstance(error, Cancelled | KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, UsageError):
        return EXIT_USAGE
    return EXIT_FAILED
