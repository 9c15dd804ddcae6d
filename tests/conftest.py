"""How tests are found and run; `tests/support/fixtures.py` has what they share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections import Counter
from collections.abc import Generator

import pytest

from tests.support import two_parts
from tests.support.draws import drawn
from tests.support.two_parts import pytest_addoption, pytest_cmdline_main  # noqa: F401 - hooks


def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures where tests run, and notice the signals that tests send.

    xdist's first process only has others run them; a shell has programs in the background ignore
    signals.
    """
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("tests.support.fixtures")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.name != "nt":
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow all but the first cases of a test that has the mark `few`; draw of the slow."""
    seen = Counter[tuple[object, str]]()
    for item in items:
        few = item.get_closest_marker("few")
        if few is not None and isinstance(item, pytest.Function):
            seen[item.path, item.originalname] += 1
            if seen[item.path, item.originalname] > few.args[0]:
                item.add_marker(pytest.mark.slow)
    if config.option.draw is not None and not config.option.whole:
        taken = drawn(items, config.option.draw)
        config.hook.pytest_deselected(items=[item for item in items if item not in {*taken}])
        items[:] = taken


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep modules and tests, which live to the end of the run, out of garbage collection.

    Otherwise pytest would spend a sixth of its collection time in garbage collection. It is rarer
    afterwards, too, for it took a fifth of the time of the screen's tests.
    """
    gc.disable()
    try:
        two_parts.import_in_turn(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, each in a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
