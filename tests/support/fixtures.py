"""Fixtures shared by all tests: the toy pair's files and the models loaded from them once.

A process that only has others run tests does not import this, see `tests/conftest.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
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
from tests.support import costs, toy
from tests.support.renderers import renderers_are_kept  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from textual.css.model import RuleSet

    from tests.support.hub_world import World

# A machine that does something else as well is slow, not wrong. Examples are others in every run.
hypothesis.settings.register_profile("localspec", deadline=None, max_examples=40)
hypothesis.settings.load_profile("localspec")


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
