"""Whatever fails in the middle of a round, the next answer is right.

Calls of llama.cpp and steps of the engine fail one at a time: before they have done anything, after
they have done everything, or with an error code of llama.cpp's. Then the same engine goes on from
what was emitted, and answers again from the start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import llama_cpp as lib

from localspec.engine.cancel import Cancel
from localspec.engine.drafters.model_drafter import ModelDrafter
from localspec.engine.length.gamma import FixedGamma
from localspec.engine.llama import Context, Model
from localspec.engine.round.generate import Engine
from localspec.engine.round.generate_settings import GenerateSettings
from localspec.errors import Cancelled, LocalspecError

from .fakes import tokens_of
from .support.gguf_models import GENERATORS
from .support.pairwise import usually
from .test_rollback import GAMMA, GREEDY, PROMPT, SNAPSHOTS, Spoilt, generate, options
from .test_rollback import baseline as baseline_tokens

WRITTEN = 40
FAILED, ABORTED = -3, 2


class Broken(Exception):
    """An exception that no code expects."""


def before(_real: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise Broken

    return fail


def after(real: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*given: object, **named: object) -> None:
        real(*given, **named)
        raise Broken

    return fail


def without(code: int) -> Callable[..., Any]:
    """A call that does nothing and returns `code`."""
    return lambda _real: lambda *_, **__: code


def halfway(real: Callable[..., Any]) -> Callable[..., Any]:
    """A decode that has changed the cache when it reports that it was stopped."""

    def stop(*given: object) -> int:
        real(*given)
        return ABORTED

    return stop


FAULTS = [
    (lib, "llama_decode", without(FAILED)),
    (lib, "llama_decode", halfway),
    (lib, "llama_memory_seq_rm", without(0)),
    (lib, "llama_state_seq_get_data_ext", without(0)),
    (lib, "llama_state_seq_set_data_ext", without(0)),
    *((Context, name, how) for name in ("decode", "mark", "rewind") for how in (before, after)),
    *((Context, "truncate", how) for how in (before, after)),
    *((Engine, name, how) for name in ("_commit", "_observe") for how in (before, after)),
    (ModelDrafter, "observe", before),
]


@pytest.fixture(
    scope="module",
    params=[
        "llama",
        "mamba",
        *(pytest.param(it, marks=pytest.mark.slow) for it in ("gemma3", "lfm2")),
    ],
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("faults") / f"{request.param}.gguf"
    with Model.load(GENERATORS[request.param](path)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def want(model: Model) -> list[int]:
    return baseline_tokens(model, 2 * WRITTEN)


@pytest.mark.parametrize("call", usually([5, 13], 5))
@pytest.mark.parametrize("broken", FAULTS)
def test_the_next_answer_is_right(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    want: list[int],
    broken: tuple[Any, str, Callable[..., Any]],
    call: int,
) -> None:
    where, name, fault = broken
    real, calls = getattr(where, name), itertools.count()

    def counted(*given: object, **named: object) -> object:
        chosen = fault(real) if next(calls) == call else real
        return chosen(*given, **named)

    with Context(model, options(snapshots=SNAPSHOTS)) as target, Context(model, options()) as draft:
        engine = Engine(target, Spoilt(draft, model.n_vocab))
        written: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(where, name, counted)
            try:
                list(engine.prefill(PROMPT, Cancel()))
                settings = GenerateSettings(sampling=GREEDY, n_predict=WRITTEN)
                for done in engine.generate(PROMPT, settings, FixedGamma(GAMMA), Cancel()):
                    written += done.tokens
            except (Broken, LocalspecError, Cancelled):
                pass
        assert written == want[: len(written)]
        rest = want[len(written) : len(written) + 30]
        assert tokens_of(generate(engine, [*PROMPT, *written], GAMMA, len(rest))) == rest
        assert tokens_of(generate(engine, PROMPT, GAMMA, WRITTEN)) == want[:WRITTEN]
