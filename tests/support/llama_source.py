"""What llama.cpp's source brings along: real vocabularies without weights, real chat templates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet
from llama_cpp import llama_cpp as lib

from localspec.engine.llama import Model
from localspec.engine.llama.log import start_backend
from tests.support.pairwise import usually


def _compiled(pattern: str, release: str = "*") -> Iterator[Path]:
    """Files of llama.cpp's source where uv compiled it."""
    uv = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache/uv"))
    source = f"sdists-v*/pypi/llama-cpp-python/{release}/*/src/vendor/llama.cpp"
    return uv.glob(f"{source}/{pattern}")


def _found(pattern: str) -> list[Path]:
    """Where uv compiled llama.cpp, or where `.ci/run` put them."""
    kept = Path.home() / ".cache/localspec-vocabularies"
    return [*kept.glob(pattern), *_compiled(f"models/{pattern}")]


def source_file(name: str) -> Path:
    """A file of the llama.cpp that localspec uses; skips a test where it is not on this disk."""
    found = next(_compiled(name, version("llama-cpp-python").partition("+")[0]), None)
    if found is None:
        pytest.skip("llama.cpp's source distribution is not on this disk")
    return found


@cache
def vocabularies() -> dict[str, Path]:
    """Files with a vocabulary alone, by their short names."""
    found = _found("ggml-vocab-*.gguf")
    return {path.stem.removeprefix("ggml-vocab-"): path for path in sorted(found)}


@cache
def templates() -> dict[str, str]:
    """The sources of chat templates, by their files' names."""
    return {path.stem: path.read_text("utf-8") for path in sorted(_found("templates/*.jinja"))}


USUAL: Final = (
    *("Apertus-8B-Instruct", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "GLM-4.6"),
    *("Kimi-K3", "LFM2-8B-A1B", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1"),
    *("google-gemma-2-2b-it", "google-gemma-4-31B-it", "ibm-granite-granite-3.3-2B-Instruct"),
    *("meetkai-functionary-medium-v3.1", "meta-llama-Llama-3.1-8B-Instruct", "moonshotai-Kimi-K2"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "muse-glimmer", "openai-gpt-oss-120b"),
    *("upstage-Solar-Open-100B", "deepseek-ai-DeepSeek-V3.2"),
)
"""One template of every way to write calls and thoughts: with these alone tests run by default."""


def usual_templates() -> list[ParameterSet]:
    """The names of all templates for `parametrize`, those marked slow that are not `USUAL`."""
    names = sorted(templates())
    return usually(names, *(name for name in USUAL if name in names))


LEARNT: Final = Path(__file__).parents[2] / ".pytest_cache" / "dialects"
"""Keeps what is learnt of these templates until the code that learns is another one.

Seventy templates take 20 seconds, in each process that runs tests.
"""


def needed() -> None:
    """Skip a test where they are not on this disk."""
    if not vocabularies() or not templates():
        pytest.skip("llama.cpp's source distribution is not on this disk")


class VocabularyOnly(Model):
    """A file without weights."""

    @classmethod
    def of(cls, path: Path) -> VocabularyOnly:
        start_backend()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        return cls(path, lib.llama_model_load_from_file(os.fsencode(path), params), 1)
