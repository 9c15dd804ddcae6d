"""Keeps the process that renders templates from one session to the next."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from unittest import mock

import pytest

from localspec.chat.prompt.renderer import TemplateRenderer, _RenderingProcess


class _Process(_RenderingProcess):
    """Becomes idle when it is ended, or is killed if its answer is still waited for."""

    _works = False

    def exchange(self, line: bytes = b"") -> bytes:
        self._works = True
        answer = super().exchange(line)
        self._works = not answer
        return answer

    def end(self) -> None:
        if not self._works and not _IDLE:
            _IDLE.append(self)
        else:
            super().end()


_IDLE: list[_Process] = []


class _SessionRenderer(TemplateRenderer):
    """Takes the idle process if there is one."""

    def _start(self) -> _RenderingProcess:
        child = self._child = _IDLE.pop() if _IDLE else _Process()
        self._end = weakref.finalize(self, child.end)  # runs once, however often it is called
        return child

    def close(self) -> None:
        if self._child is not None:
            self._end()
            self._child = None


@pytest.fixture(autouse=True, scope="session")
def renderers_are_kept() -> Iterator[None]:
    """Have the renderer of each session take the process that the session before has left.

    It takes a sixth of a second to start, each session has one, and it remembers nothing.
    """
    with mock.patch("localspec.loading.load.TemplateRenderer", _SessionRenderer):
        yield
    while _IDLE:
        _RenderingProcess.end(_IDLE.pop())
