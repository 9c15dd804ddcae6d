"""Settings of a conversation as JSON, and back: what is unknown or wrong is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from localspec.chat.settings import ChatSettings
from localspec.engine.params import Accept, SamplingParams
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA

_TEXTS = ("system_prompt", "grammar")


def to_document(settings: ChatSettings) -> dict[str, Any]:
    """All that makes the same answers possible again, for `json.dumps`."""
    sampling = {f.name: getattr(settings.sampling, f.name) for f in fields(SamplingParams)}
    # JSON knows neither numbers as keys nor infinity.
    sampling["logit_bias"] = {
        str(token): None if math.isinf(bias) else bias
        for token, bias in settings.sampling.logit_bias.items()
    }
    return {
        "system_prompt": settings.system_prompt,
        "sampling": sampling,
        "accept": settings.accept.value if settings.accept else None,
        "lenience": settings.lenience,
        "grammar": settings.grammar,
        "gamma": settings.gamma,
        "n_predict": settings.n_predict,
        "stop": list(settings.stop),
        "repeatable": settings.repeatable,
    }


def from_document(document: Mapping[str, Any], base: ChatSettings) -> ChatSettings:
    """`base` with everything in `document` that is known and makes sense."""
    found: dict[str, Any] = {
        name: document[name] for name in _TEXTS if isinstance(document.get(name), str)
    }
    found["sampling"] = _sampling(document.get("sampling"), base.sampling)
    gamma = document.get("gamma")
    if gamma == "auto" or (_is_whole(gamma) and gamma in range(MAX_GAMMA + 1)):
        found["gamma"] = gamma
    if _is_whole(document.get("n_predict")):
        found["n_predict"] = max(-1, document["n_predict"])
    stop = document.get("stop")
    if isinstance(stop, list) and all(isinstance(text, str) and text for text in stop):
        found["stop"] = tuple(stop)
    if isinstance(document.get("repeatable"), bool):
        found["repeatable"] = document["repeatable"]
    if "accept" in document:
        with suppress(ValueError):
            accept = document["accept"]
            found["accept"] = None if accept is None else Accept(accept)
    lenience = document.get("lenience", base.lenience)
    if lenience is None or (isinstance(lenience, float | int) and 0 < lenience <= 1):
        found["lenience"] = lenience
    return replace(base, **found)


def _sampling(document: Any, base: SamplingParams) -> SamplingParams:
    if not isinstance(document, Mapping):
        return base
    given = {
        f.name: document[f.name]
        for f in fields(SamplingParams)
        if f.name in document and _of_one_kind(document[f.name], getattr(base, f.name))
    }
    seed = document.get("seed", base.seed)
    if seed is None or _is_whole(seed):
        given["seed"] = seed
    try:
        if "logit_bias" in given:
            given["logit_bias"] = {
                int(token): -math.inf if bias is None else float(bias)
                for token, bias in given["logit_bias"].items()
            }
        return replace(base, **given)
    except (SamplingError, TypeError, ValueError):
        return base


def _of_one_kind(value: Any, example: Any) -> bool:
    if isinstance(example, Mapping):
        return isinstance(value, Mapping)
    if isinstance(example, float):
        return isinstance(value, float) or _is_whole(value)
    return _is_whole(example) and _is_whole(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
