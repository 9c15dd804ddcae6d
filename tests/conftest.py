"""Fixtures shared by all tests: the toy pair's files and the models loaded from them once."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import pytest
from textual.css.stylesheet import Stylesheet

from localspec.chat.session.session import Session
from localspec.engine.cancel import Cancel
from localspec.engine.llama import Context, ContextOptions, Model
from localspec.loading.load import load_session
from localspec.loading.load_request import LoadRequest
from localspec.pairs.disk import starter
from localspec.pairs.names.reserved_names import STARTER
from tests.support import costs, toy, two_parts
from tests.support.draws import drawn
from tests.support.renderers import renderers_are_kept  # noqa: F401 - a fixture
from tests.support.two_parts import pytest_addoption, pytest_cmdline_main  # noqa: F401 - hooks

if TYPE_CHECKING:
    from textual.css.model import RuleSet

    from tests.support.hub_world import World

# A machine that does something else as well is slow, not wrong. Examples are others in every run.
hypothesis.settings.register_profile("localspec", deadline=None, max_examples=40)
hypothesis.settings.load_profile("localspec")


def pytest_configure() -> None:
    """Notice the signals that tests send: a shell has programs in the background ignore them."""
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


@pytest.fixture(autouse=True, scope="session")
def _own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests away from their user's records, settings and clipboards of X and Wayland."""
    folders = {
        "LOCALSPEC_CACHE": str(tmp_path_factory.mktemp("cache")),
        "LOCALSPEC_DATA": str(tmp_path_factory.mktemp("data")),
        "LOCALSPEC_CONFIG": str(tmp_path_factory.mktemp("config")),
        "WAYLAND_DISPLAY": "",
        "DISPLAY": "",
        # `llm` brings setuptools, which otherwise imports itself whenever Python starts, even
        # in a test that may open no more files.
        "SETUPTOOLS_USE_DISTUTILS": "stdlib",
    }
    toy.install(Path(folders["LOCALSPEC_DATA"]))
    with mock.patch.dict(os.environ, folders):
        costs.keep_toy()
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_naps() -> Iterator[None]:
    """Let Textual's pilot return as soon as a key is sent: `Chat.press` waits for its effect.

    Otherwise the pilot sleeps until the process is idle: 40 ms for each key, and up to two
    seconds while an engine works in a thread.
    """

    async def hop(_least: float) -> None:
        await asyncio.sleep(0)

    with mock.patch("textual.app.wait_for_idle", hop):
        yield


@pytest.fixture(autouse=True, scope="session")
def _fewer_frames() -> Iterator[None]:
    """Draw ten frames a second, not sixty: no test looks at one, for `Chat.screen` draws anew."""
    with mock.patch("textual.screen.UPDATE_PERIOD", 0.1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _styles_are_parsed_once() -> Iterator[None]:
    """Have all apps share the rules of Textual's style sheets: each parsed them for itself, twice.

    A rule depends on its text, on where it stands and on the theme's variables, and never changes.
    """
    parsed: dict[tuple[object, ...], list[RuleSet]] = {}
    parse = Stylesheet._parse_rules

    def known(sheet: Stylesheet, css: str, **where: Any) -> list[RuleSet]:
        key = (css, *where.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, css, **where)
        return parsed[key]

    with mock.patch.object(Stylesheet, "_parse_rules", known):
        yield


@pytest.fixture(scope="session")
def toy_target() -> Path:
    """The toy pair's target file."""
    return toy.TARGET


@pytest.fixture(scope="session")
def toy_draft() -> Path:
    """The toy pair's draft file."""
    return toy.DRAFT


@pytest.fixture(scope="session")
def target_model(toy_target: Path) -> Iterator[Model]:
    """The toy target, loaded once."""
    with Model.load(toy_target) as model:
        yield model


@pytest.fixture(scope="session")
def draft_model(toy_draft: Path) -> Iterator[Model]:
    """The toy draft, loaded once."""
    with Model.load(toy_draft) as model:
        yield model


@pytest.fixture
def target_context(target_model: Model) -> Iterator[Context]:
    """A fresh context of the toy target: one thread, so that batch sizes do not change a bit."""
    options = ContextOptions(n_ctx=1024, threads=1, flash_attention=True)
    with Context(target_model, options) as context:
        yield context


@pytest.fixture
def draft_context(draft_model: Model) -> Iterator[Context]:
    """A fresh context of the toy draft."""
    with Context(draft_model, ContextOptions(n_ctx=1024, threads=1)) as context:
        yield context


@pytest.fixture
def hub_world(tmp_path: Path) -> Iterator[World]:
    """A Hub on loopback, and a cache and records of the test's own."""
    from tests.support.hub_world import world  # noqa: PLC0415 - it takes a second to import

    with world(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def starter_file(_own_data: None) -> Path:
    """The starter's model as it comes, in Q4_1; without its package the test is skipped.

    CI always has it: there a skip would hide that nothing was tested.
    """
    path = starter.packaged()
    if path is None:
        why = f"the package {starter.PACKAGE} is not installed"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    costs.keep_starter(path)
    return path


@pytest.fixture(scope="session")
def starter_session(starter_file: Path) -> Iterator[Session]:
    """The starter loaded as commands load it: one thread, greedy, drafting by lookup."""
    request = LoadRequest(pair=STARTER, threads=1, ctx_size=2048, temp=0.0, gamma=4, n_predict=160)
    session = load_session(request, progress=lambda _step, _share: None, cancel=Cancel())
    yield session
    session.close()


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package with the starter's model is not installed."""
    monkeypatch.setattr(starter, "packaged", lambda: None)
