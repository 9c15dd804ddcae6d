"""An engine in a thread of the test, over sessions that the test makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localspec.loading.load_request import LoadRequest
from localspec.process.engine_client import EngineClient
from localspec.process.loader import Loader
from localspec.process.server import EngineServer


def inline(
    load: Callable[..., Any],
    check: Callable[[str], object] | None = None,
    first: str = "first",
    *,
    scan: bool = True,
) -> EngineClient:
    """An engine whose sessions `load` makes, of the progress and the flag it is given.

    Args:
        load: called with a third argument, the pair's name, where `check` is given.
        check: called with the name of a pair that is to take another's place.
        first: the name of the pair that is loaded first.
        scan: whether models of other programs count.
    """

    def make(request: Any, progress: Any, cancel: Any) -> Any:
        return load(progress, cancel) if check is None else load(request.pair, progress, cancel)

    def look(request: LoadRequest) -> Any:
        if check is not None:
            check(str(request.pair))
        return request

    loader = Loader(make, look, perform=lambda *_: b"")
    return EngineClient(LoadRequest(pair=first, scan=scan), lambda: EngineServer(lambda: loader))
