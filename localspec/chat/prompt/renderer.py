"""Renders chat templates in a killable process, within limits of time and memory."""

from __future__ import annotations

import json
import math
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec import machine
from localspec.chat.conversation import Message
from localspec.engine.cancel import Cancel
from localspec.errors import Cancelled

_PROGRAM = Path(__file__).with_name("renderer_child.py")
_START_S = 20.0  # for a loaded machine, or a virus scanner that checks Python first
_STEP_S = 0.02
_PATIENCE = 4  # how much longer than it may compute a template is waited for
_MEMORY = 300 << 20
_LARGEST = 1 << 20  # characters of a template; real ones have about ten thousand


class TemplateRefused(Exception):
    """The template raised an error for this conversation; the text is that error."""


class TemplateUnusable(Exception):
    """The template cannot be used at all; the text says why, as a clause after its name."""


class TemplateStarved(TemplateUnusable):
    """The machine had no time for the process that renders the template."""


@dataclass(slots=True)
class RenderBudget:
    """The seconds of a processor that a template may still take.

    A machine that is busy or swaps gives a template little of them, so that what is waited for it
    is limited apart. Both are counted in steps of waiting, not by the clock, so that time in which
    the program was suspended does not count.

    Attributes:
        waiting: the seconds for which it is still waited; by default, longer than the others.
    """

    seconds: float = 1.5
    waiting: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        self.waiting = self.waiting or _PATIENCE * self.seconds


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A chat template, and the texts of the control tokens that it may use."""

    template: str
    bos: str
    eos: str


class TemplateRenderer:
    """Renders templates in a child process, which is killed if one takes too long.

    The child starts at once and lives as long as this object; after a kill, the next request starts
    another. It uses no terminal, and ends with the pipe to its parent. Used by one thread at a
    time.

    Args:
        cancel: stops requests that have no flag of their own.
    """

    def __init__(self, cancel: Cancel | None = None) -> None:
        self._cancel = cancel or Cancel()
        self._child: _RenderingProcess | None = None
        with suppress(OSError):  # `render` tries again, and reports the error
            self._start()

    def render(
        self,
        source: TemplateSource,
        messages: Sequence[Message],
        budget: RenderBudget,
        cancel: Cancel | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation, with the beginning of the next answer.

        Args:
            source: the template.
            messages: the conversation.
            budget: the seconds that the template may take; reduced by those it took.
            cancel: stops the rendering within some hundredths of a second.
            variables: further variables of the template, such as ``tools``.

        Raises:
            TemplateRefused: the template raises an error.
            TemplateUnusable: it is not a valid template, or takes too much time, memory or output.
            TemplateStarved: the machine was too busy to render it.
            Cancelled: `cancel` was set meanwhile.
        """
        if len(source.template) > _LARGEST:
            raise TemplateUnusable("is too large")
        plain = [{"role": m.role.value, "content": m.content, **m.more} for m in messages]
        asked = {**asdict(source), "messages": plain, "variables": variables or {}}
        request = json.dumps(asked).encode() + b"\n"
        reply = self._reply(request, budget, cancel or self._cancel)
        if "refused" in reply:
            raise TemplateRefused(reply["refused"])
        if "unusable" in reply:
            raise TemplateUnusable(reply["unusable"])
        return reply["text"]

    def close(self) -> None:
        """Kill the child; a later request starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _reply(self, line: bytes, budget: RenderBudget, cancel: Cancel) -> dict[str, str]:
        for _ in range(2):  # the child may have been killed from outside: try once more
            child = self._running(cancel)
            answer = self._wait(lambda: child.exchange(line), budget, cancel)  # noqa: B023 - at once
            with suppress(ValueError):
                found: dict[str, str] = json.loads(answer)
                return found
            self.close()
        raise TemplateUnusable("ends the process that renders it")

    def _running(self, cancel: Cancel) -> _RenderingProcess:
        """The child, ready for a request; started if necessary."""
        try:
            child = self._child or self._start()
        except OSError as error:
            raise TemplateUnusable(f"cannot be rendered ({error.strerror})") from None
        if not child.ready:
            budget = RenderBudget(math.inf, waiting=_START_S)  # not what a template takes
            said = self._wait(child.exchange, budget, cancel)
            if not said:
                self.close()
                raise TemplateUnusable("cannot be rendered (its process does not start)")
            child.begin(int(said))
        return child

    def _start(self) -> _RenderingProcess:
        child = self._child = _RenderingProcess()
        weakref.finalize(self, child.end)
        return child

    def _worked(self) -> float:
        """The seconds that the child has computed."""
        return self._child.worked() if self._child is not None else 0.0

    def _wait(self, work: Callable[[], bytes], budget: RenderBudget, cancel: Cancel) -> bytes:
        """Return the result of `work`; kill the child if it takes too long or too much memory."""
        came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=lambda: came.put(work()), name="template", daemon=True).start()
        seconds, waiting, waited, worked = budget.seconds, budget.waiting, 0.0, self._worked()
        while True:
            begun = time.monotonic()
            with suppress(queue.Empty):
                return came.get(timeout=_STEP_S)
            waited += min(time.monotonic() - begun, 2 * _STEP_S)
            budget.waiting = waiting - waited
            budget.seconds = seconds - min(waited, max(0.0, self._worked() - worked))
            large = self._child is not None and self._child.resident() > _MEMORY
            if cancel.is_set() or min(budget.seconds, budget.waiting) <= 0 or large:
                self.close()
                if cancel.is_set():
                    raise Cancelled
                if large:
                    raise TemplateUnusable("takes too much memory")
                why = TemplateStarved if budget.seconds > 0 else TemplateUnusable
                raise why("takes too long")


class _RenderingProcess:
    """The child process; a request and its reply are one line each."""

    def __init__(self) -> None:
        self.ready = False
        # -P keeps the current folder out of the search for modules.
        self._process = subprocess.Popen(  # noqa: S603 - this very Python, and a file of ours
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._pid = self._process.pid

    def begin(self, pid: int) -> None:
        """Note that the child is ready; on Windows a launcher may have started it as `pid`."""
        self.ready, self._pid = True, pid

    def exchange(self, line: bytes = b"") -> bytes:
        """Write a line and read one; empty if the child has ended."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            return b""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()
        except (OSError, ValueError):  # the child ended, or was closed, meanwhile
            return b""

    def resident(self) -> int:
        """Resident size of the child in bytes."""
        return machine.resident(self._pid)

    def worked(self) -> float:
        """The seconds that the child has computed."""
        return machine.worked(self._pid)

    def end(self) -> None:
        """Kill the child."""
        self._process.kill()
        with suppress(OSError, ValueError), self._process:
            pass
