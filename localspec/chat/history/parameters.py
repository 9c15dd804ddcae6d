"""Settings of a conversation as JSON, and back: what is unknown or wrong is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, get_type_hints

import msgspec

from localspec.chat.settings import ChatSettings
from localspec.engine.params import SamplingParams
from localspec.errors import SamplingError
from localspec.limits import MAX_GAMMA


def to_document(settings: ChatSettings) -> dict[str, Any]:
    """All that makes the same answers possible again, for `json.dumps`."""
    document = asdict(settings) | {"stop": list(settings.stop)}
    # JSON knows neither numbers as keys nor infinity.
    document["sampling"]["logit_bias"] = {
        str(token): None if math.isinf(bias) else bias
        for token, bias in settings.sampling.logit_bias.items()
    }
    return document


def from_document(document: Mapping[str, Any], base: ChatSettings) -> ChatSettings:
    """`base` with everything in `document` that is known and makes sense."""
    sampling = document.get("sampling")
    found = _of_its_type({**document, "sampling": None}, ChatSettings)
    if isinstance(sampling, Mapping):
        found["sampling"] = _sampling(sampling, base.sampling)
    if found.get("gamma", "auto") not in ("auto", *range(MAX_GAMMA + 1)):
        del found["gamma"]
    if "n_predict" in found:
        found["n_predict"] = max(-1, found["n_predict"])
    if not all(found.get("stop", ())):
        del found["stop"]
    lenience = found.get("lenience")
    if lenience is not None and not 0 < lenience <= 1:
        del found["lenience"]
    return replace(base, **found)


def _sampling(document: Mapping[str, Any], base: SamplingParams) -> SamplingParams:
    bias = document.get("logit_bias")
    if isinstance(bias, Mapping):
        numbers = {token: -math.inf if one is None else one for token, one in bias.items()}
        document = {**document, "logit_bias": numbers}
    try:
        return replace(base, **_of_its_type(document, SamplingParams))
    except SamplingError:
        return base


def _of_its_type(document: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The values that fields of `kind` can have, by the fields' names."""
    found = {}
    for name, its_type in get_type_hints(kind).items():
        if name in document:
            with suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(document[name], its_type, str_keys=True)
    return found
