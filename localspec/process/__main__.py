"""The engine's process: requests come on standard input, events go to standard output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from localspec.process.channel import Channel
from localspec.process.loader import loader
from localspec.process.messages import Envelope, Request
from localspec.process.server import THREAD, EngineServer
from localspec.signals import ENDING

# For a running decode or load to stop, and for each step of storing caches; then the process ends
# anyway.
_GRACE_S = 5.0
_OOM_SCORE = Path("/proc/self/oom_score_adj")  # Linux only: from -1000 (never killed) to 1000
_MORE_DISPENSABLE = 300


def main() -> None:
    """Serve until the pipe ends, for whatever reason."""
    # A signal to the whole group also ends the process that uses this one, which stops it in order.
    for number in ENDING:
        signal.signal(number, lambda *_: None)  # children would inherit SIG_IGN
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else ggml starts a debugger as it aborts
    _offer_to_the_memory_killer()
    logging.basicConfig(level=logging.INFO)
    threading.excepthook = _end_with_the_engine
    source, sink = _private()
    channel = Channel(source, sink, Envelope[Request])
    server = EngineServer(lambda: loader(echo=sys.stderr.fileno()))
    server.listen(channel.send)
    for envelopes in channel.envelopes():
        for envelope in envelopes:
            server.send(envelope)
    server.shut_down()
    server.join(_GRACE_S)
    sys.stderr.flush()
    os._exit(0)


def _end_with_the_engine(failed: threading.ExceptHookArgs) -> None:
    """End the process if its engine's thread has failed: it would live on and answer nothing."""
    threading.__excepthook__(failed)
    if failed.thread is not None and failed.thread.name == THREAD:
        sys.stderr.flush()
        os._exit(1)


def _offer_to_the_memory_killer() -> None:
    """Make the kernel kill this process when memory runs out, not the one with the screen."""
    with suppress(OSError, ValueError):
        score = int(_OOM_SCORE.read_text("ascii"))
        _OOM_SCORE.write_text(str(min(1000, score + _MORE_DISPENSABLE)), "ascii")


def _private() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes to other descriptors, so that no library reads from or prints into them."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return os.fdopen(source, "rb", buffering=0), os.fdopen(sink, "wb")


if __name__ == "__main__":
    main()
