"""The command line: parse, import late, call, and turn errors into exit codes in one place."""

from __future__ import annotations

import errno
import gc
import os
import sys

from localspec.cli.memory_limit import limited

TYPE_CHECKING = False  # typing's would cost an import before Ctrl+C is handled
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    # The built-in module: `signal` itself imports `enum`, which takes milliseconds.
    import _signal as signal


def main() -> NoReturn:
    """Run the `localspec` command and leave with its exit code.

    Ctrl+C ends the process at once, from here to the end, because a KeyboardInterrupt from an
    import or from Python's own shutdown would be a traceback. A command that has something to keep
    or to undo says so (`localspec.cli.interrupt`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored: nohup
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        _run()
    except (MemoryError, SystemError, SyntaxError, ImportError, OSError) as error:
        # While modules were imported, among them what prints errors. Python's compiler may report
        # a lack of memory as a SystemError, or as an error in the text that it reads, the loader
        # of libraries as an ImportError, and the search for a module as one of the system.
        if isinstance(error, SystemError | SyntaxError | ImportError) and not limited():
            raise
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        way = b"Raise the limit (ulimit -v)" if limited() else b"Close other programs"
        os.write(2, b"error: there is not enough memory\n  " + way + b".\n")
        sys.exit(1)


def _run() -> NoReturn:
    from localspec.cli.utf8_mode import ensure_utf8  # noqa: PLC0415 - under the guard
    from localspec.process import spawning  # noqa: PLC0415

    ensure_utf8()
    if sys.argv[1:2] == ["chat"]:
        gc.disable()  # until the first frame (`ui.launch`): everything made before it stays
    if _needs_engine(sys.argv[1:]):
        spawning.begin_ahead()
    try:
        from localspec.cli import subcommands  # noqa: PLC0415

        subcommands.main()
    finally:
        spawning.give_up()


def _needs_engine(words: list[str]) -> bool:
    """Whether a command line will need an engine, as far as a quick look tells.

    False under a limit on memory: whether there is room has to be checked first.
    """
    from localspec.cli.questions import is_question  # noqa: PLC0415 - under the guard

    known = words[:1] in (["chat"], ["run"], ["serve"], ["tune"])
    if not (known or any(map(is_question, words[:1]))) or {"-h", "--help"} & set(words):
        return False
    return os.environ.get("LOCALSPEC_ENGINE") != "inline" and not limited()
