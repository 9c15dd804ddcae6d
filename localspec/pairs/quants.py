"""Choosing one model among the GGUF files of a repository."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from localspec.errors import NotOnHub
from localspec.pairs.gguf.split import SPLIT_NAME, split_names
from localspec.pairs.references import Reference

# What llama.cpp's -hf falls back to, in this order, before it takes the first file.
DEFAULTS: Final = ("Q4_K_M", "Q8_0")
_NOT_A_MODEL: Final = re.compile(r"mmproj|imatrix|(^|/)(mtp|eagle3|dflash|dspark)-", re.I)
_QUANT: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|F16|F32))(?=[-.]|$)", re.I
)


def choose(files: Iterable[str], reference: Reference) -> list[str]:
    """Choose the file that `reference` means among `files`, with all parts if it is split.

    Raises:
        NotOnHub: there is no such file or quant, or no model at all; those there are listed.
    """
    names = sorted(files)
    models = [name for name in names if is_model(name)]
    if reference.file:
        first = _by_name(names, models, reference)
    elif not models:
        raise NotOnHub(
            f"{reference.repo} holds no GGUF model",
            "Look for a repository whose name ends in -GGUF.",
        )
    else:
        first = _by_quant(models, reference)
    parts = parts_of(first)
    missing = [part for part in parts if part not in names]
    if missing:
        raise NotOnHub(
            f"{reference.repo} lacks {missing[0]}, a part of {first}", "Choose another quant."
        )
    return parts


def is_model(name: str) -> bool:
    """Tell whether `name` is a model's file: not a projector, not a head, not a later part."""
    split = SPLIT_NAME.match(name)
    return (
        name.lower().endswith(".gguf")
        and not _NOT_A_MODEL.search(name)
        and (split is None or int(split["no"]) == 1)
    )


def quant_of(name: str) -> str:
    """Read the quant from a file name, such as ``Q4_K_M``; empty when it names none."""
    split = SPLIT_NAME.match(name)
    stem = split["stem"] if split else re.sub(r"\.gguf$", "", name, flags=re.I)
    found = _QUANT.findall(stem)
    return found[-1].upper() if found else ""


def parts_of(first: str) -> list[str]:
    """Name every file of the model that begins with `first`, folders included."""
    folder, slash, name = first.rpartition("/")
    return [f"{folder}{slash}{part}" for part in split_names(name)]


def _by_name(names: list[str], models: list[str], reference: Reference) -> str:
    wanted = reference.file.lower()
    for name in names:
        if wanted in (name.lower(), name.rpartition("/")[2].lower()):
            return parts_of(name)[0]
    raise NotOnHub(f"{reference.repo} has no file {reference.file}", _offer(models))


def _by_quant(models: list[str], reference: Reference) -> str:
    for quant in [reference.quant] if reference.quant else DEFAULTS:
        exact = [name for name in models if quant_of(name) == quant.upper()]
        ending = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?:[-.]|$)", re.I)
        loose = [name for name in models if ending.search(name.rpartition("/")[2])]
        if exact or loose:
            return (exact or loose)[0]
    if reference.quant:
        raise NotOnHub(f"{reference.repo} has no quant {reference.quant}", _offer(models))
    return models[0]


def _offer(models: list[str]) -> str:
    if not models:
        return "It holds no GGUF model at all."
    quants = dict.fromkeys(quant_of(name) or name for name in models)
    return f"It has: {', '.join(list(quants)[:30])}."
