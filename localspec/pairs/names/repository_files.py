"""The files of a repository: which are models, which are draft heads, and which one is meant.

The rules are those of llama.cpp's ``-hf`` (common/download.cpp), without its accidents: a quant is
a whole word of a name, every part of a split model must be there, and a file that cannot chat is no
model. Names only order the candidates; what a file is, its header tells.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from localspec.drafter_names import MTP
from localspec.errors import NotOnHub
from localspec.pairs.gguf.header import GGML_TYPES, SPLIT_NAME, split_names
from localspec.pairs.names.draft_option import HEADS
from localspec.pairs.names.references import Reference

DEFAULTS: Final = ("Q4_K_M", "Q8_0")
"""The quants that llama.cpp's ``-hf`` takes without a tag, in this order."""

LEAST_BITS: Final = 4.0
"""Below this, quality falls fast: only a quant that was asked for is taken."""

_USUAL_HEAD: Final = "Q8_0"  # what publishers recommend for heads
_BITS: Final = {
    "FP16": 16.0,
    "FP32": 32.0,
    **{name: 8 * size / n for name, n, size in GGML_TYPES.values() if "K" not in name},
}
# The type of most weights in quants that are not named after it (llama.cpp's llama-quant.cpp).
_MOSTLY: Final = {
    "FP16": "F16",
    "FP32": "F32",
    "Q8_K": "Q8_0",
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_M": "IQ3_S",
}
_HEAD_WORD: Final = rf"(?:{'|'.join(HEADS)})-"
# Names of files that are not chat models, in whatever folder. A later `mtp-` may also mean a whole
# model with the head in it: its header tells.
_OTHER_NAME: Final = re.compile(
    rf"(?!mtp){_HEAD_WORD}|(?i:^{_HEAD_WORD}|mmproj|^imatrix|^ggml-vocab|^tokenizer-|^vocoder-"
    r"|[-._]projector[-._])"
)
# Folders whose files are not chat models: parts for sound and pictures.
_OTHER_FOLDER: Final = re.compile(
    r"^(?:audio|vision|tts|token2wav.*|mmproj|imatrix|vocabs?|loras?|adapters?)$", re.I
)
_QUANT_IN_NAME: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*?|TQ\d_\d|MXFP4\w*?|NVFP4\w*?|BF16|FP?16|FP?32)"
    r"(?:-\d+\.\d+bpw)?)"
    r"(?=[-./]|_imatrix|$)",
    re.I,
)
# Words of another build of the same quant: with the head inside, quantised by a matrix, a head, or
# with embeddings in 16 bits.
_BUILD: Final = re.compile(
    r"(?:^|[-._])(?:mtp|imat(?:rix)?|assistant|b?f16(?=[-_]i?q\d))(?=[-._]|$)", re.I
)
# A file cut at any byte, which must be joined before anything can read it.
_CUT: Final = re.compile(r"(?P<whole>.+\.gguf)(?:[.-]split-[a-z]+|\.part\d+of\d+|\.\d{3})$", re.I)
_PRESET: Final = "preset.ini"


def quant_of(name: str) -> str:
    """The quant in a file's path, as ``Q4_K_M`` or ``Q4_K_S-3.92BPW``; empty if there is none."""
    split = SPLIT_NAME.match(name)
    stem = split["stem"] if split else re.sub(r"\.gguf$", "", name, flags=re.I)
    found = _QUANT_IN_NAME.findall(stem)
    return found[-1].upper() if found else ""


def quant_bits(quant: str) -> float:
    """Approximate bits per weight of a quant such as ``Q4_K_M``; 0 if unknown.

    A name with a K means a mixture: mostly the type with that digit, plus half a bit for scales,
    and some finer types.
    """
    if re.fullmatch(r"Q\d_\d_\d_\d", quant, re.I):
        return 0.0  # a type that llama.cpp no longer reads
    said = re.search(r"-(\d+\.\d+)BPW$", quant, re.I)
    exact = float(said[1]) if said else _BITS.get(quant.upper())
    digit = re.search(r"(?:Q|FP)(\d)", quant, re.I)
    return exact or (int(digit[1]) + 0.75 if digit else 0.0)


def weight_type(quant: str) -> str:
    """The type of most weights in a file of a quant, as ``Q4_K`` of ``UD-Q4_K_XL``; else empty."""
    words = f"{quant.upper().removeprefix('UD-').partition('-')[0]}_"
    known = {name: name for name, _, _ in GGML_TYPES.values()} | _MOSTLY
    found = max((name for name in known if words.startswith(f"{name}_")), key=len, default="")
    return known.get(found, "")


def is_model(path: str) -> bool:
    """Whether a file's path is that of a model: not a projector, a head or a later part."""
    *folders, name = path.split("/")
    if not _first_of_gguf(name) or _OTHER_NAME.search(name):
        return False
    matrix = "imatrix" in name.lower() and not quant_of(name)
    return not matrix and not any(_OTHER_FOLDER.match(folder) for folder in folders)


def of_model(files: Iterable[str], model: str) -> list[str]:
    """The files of the same model as the file `model`, of any quant and with all parts."""
    return [name for name in files if _without_quant(name) == _without_quant(model)]


def _without_quant(path: str) -> str:
    """A file's name without its quant and the number of its part, in small letters."""
    name = split_names(path)[0].rpartition("/")[2].lower()
    name = re.sub(r"-00001-of-\d{5}", "", name)
    bare = name.removesuffix(".gguf").replace(quant_of(name).lower() or "\0", "")
    return bare.strip("-._")


def choose(files: Iterable[str], reference: Reference) -> list[str]:
    """The first of the `candidates`.

    Raises:
        NotOnHub: as `candidates`.
    """
    return candidates(files, reference)[0]


def first_file(files: Iterable[str], reference: Reference) -> str:
    """The first file that `choose` returns; empty if there is none."""
    try:
        return choose(files, reference)[0]
    except NotOnHub:
        return ""


def candidates(files: Iterable[str], reference: Reference) -> list[list[str]]:
    """The models among `files` that `reference` may mean, best first, each with all its parts.

    More than one is left if their names do not tell them apart; a header may then refuse some.

    Raises:
        NotOnHub: the file or quant does not exist, or the repository has no model; the message
            lists what exists.
    """
    names = sorted(files)
    models = [name for name in names if is_model(name)]
    if reference.file:
        found = [_by_name(names, models, reference)]
    else:
        found = _by_quant(_plain_first(models), reference) if models else []
    whole = [parts for parts in map(split_names, found) if set(parts) <= set(names)]
    if whole:
        return whole
    if found:
        parts = split_names(found[0])
        missing = next(part for part in parts if part not in names)
        raise NotOnHub(
            f"{reference.repo} lacks {missing}, a part of {parts[0]}", "Choose another quant."
        )
    raise _nothing(names, models, reference)


def _first_of_gguf(name: str) -> bool:
    """Whether a file is GGUF, and the first part if the model is split.

    A name that begins with a dot is that of a companion: macOS keeps a file's attributes in
    ``._NAME`` where the disk knows none.
    """
    split = SPLIT_NAME.match(name)
    gguf = name.lower().endswith(".gguf") and not name.startswith(".")
    return gguf and (split is None or int(split["no"]) == 1)


def _plain_first(models: list[str]) -> list[str]:
    """`models` in the order of their names, with the plain build of a quant before others."""
    return sorted(models, key=lambda name: _BUILD.search(PurePosixPath(name).name) is not None)


def _by_name(names: list[str], models: list[str], reference: Reference) -> str:
    wanted = reference.file.lower()
    alike = [name for name in names if wanted in (name.lower(), name.rpartition("/")[2].lower())]
    if alike:
        best = min(alike, key=lambda name: (name != reference.file, name.lower() != wanted))
        return split_names(best)[0]
    raise NotOnHub(f"{reference.repo} has no file {reference.file}", _offer(models))


def _by_quant(models: list[str], reference: Reference) -> list[str]:
    if reference.quant:
        return _with_quant(models, reference.quant)
    found = [name for quant in DEFAULTS for name in _with_quant(models, quant)]
    return list(dict.fromkeys([*found, *_by_bits(models)]))


def _with_quant(models: list[str], quant: str) -> list[str]:
    """The models of a quant: named so exactly, else with a further word before or after it."""
    wanted, own = quant.upper(), quant_of(f"-{quant}")
    exact = [name for name in models if quant_of(name) == wanted]
    ending = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./]|_imatrix|$)", re.I)
    loose = [name for name in models if ending.search(name) and own in quant_of(name)]
    return exact or loose or _of_recipe(models, wanted)


def _of_recipe(models: list[str], quant: str) -> list[str]:
    """The models named ``Q4_K`` where ``Q4_K_M`` is asked for: the same recipe, in older names.

    Where the repository has another file of this family, the name does not say which one is meant.
    """
    bare = quant.removesuffix("_M")
    family = [name for name in models if quant_of(name).startswith(bare)]
    alike = all(quant_of(name) == bare for name in family)
    return family if quant.endswith("_K_M") and alike else []


def _by_bits(models: list[str]) -> list[str]:
    """All models: those nearest to the first default, not below four bits, then the others."""
    usual = quant_bits(DEFAULTS[0])

    def rank(name: str) -> tuple[int, float]:
        bits = quant_bits(quant_of(name))
        return (0 if bits >= LEAST_BITS else 2 if bits else 1), abs(bits - usual)

    return sorted(models, key=rank)


def _nothing(names: list[str], models: list[str], reference: Reference) -> NotOnHub:
    """Why a repository has no model for `reference`."""
    repo, quant = reference.repo, reference.quant
    cut = [name for name in names if (found := _CUT.match(name)) and _cut_of(found, quant)]
    if cut:
        whole = cut[0][: cut[0].lower().rindex(".gguf") + 5]
        windows = sys.platform == "win32"
        join = f"cmd /c copy /b A+B {whole}" if windows else f"cat PIECES > {whole}"
        return NotOnHub(
            f"{repo} has {whole} only in {len(cut)} pieces cut at any byte",
            f"Download {' and '.join(cut[:3])}, join them (`{join}`), and name that file.",
        )
    if models:
        return NotOnHub(f"{repo} has no quant {quant}", _offer(models))
    if _PRESET in names:
        return NotOnHub(
            f"{repo} holds settings of llama-server ({_PRESET}) and no GGUF model",
            "Name the repository of the model itself.",
        )
    return NotOnHub(
        f"{repo} holds no GGUF model", "Look for a repository whose name ends in -GGUF."
    )


def _cut_of(found: re.Match[str], quant: str) -> bool:
    return not quant or quant_of(found["whole"]) == quant.upper()


def _offer(models: list[str]) -> str:
    if not models:
        return "It holds no GGUF model at all."
    quants = dict.fromkeys(quant_of(name) or name for name in models)
    return f"It has: {', '.join(list(quants)[:30])}."


# --- draft heads ------------------------------------------------------------------------------


def heads(
    files: Mapping[str, int], kind: str, *, model: str = "", quant: str = "", far: bool = True
) -> list[str]:
    """The files that may be heads of a kind for a model, best first, by their names.

    llama.cpp takes a head from the model's folder or one above it: the deepest, then the one with
    the requested quant, then the nearest number of bits. Heads in other folders, which it does not
    find, come after these: with the requested quant, then the usual one for heads, then small ones.

    Args:
        files: names with their sizes in bytes.
        kind: one of `HEADS`.
        model: the target's first file; empty if a repository is asked for its heads alone.
        quant: as requested; empty without a request.
        far: whether heads count that llama.cpp does not find next to the model.
    """
    folder = PurePosixPath(model).parent.parts
    exact = f"-{quant.upper()}."
    bits = _whole_bits(quant or quant_of(model))

    def rank(name: str) -> tuple[float, ...]:
        own, named = PurePosixPath(name).parent.parts, not (quant and exact in name.upper())
        if _reached(name, kind) and (not model or folder[: len(own)] == own):
            depth = len(own) if model else 0
            return 0, -depth, named, abs(_whole_bits(quant_of(name)) - bits)
        return 1, named, quant_of(name) != _USUAL_HEAD, files[name]

    hinted = (name for name in sorted(files) if _hints_at(name, kind) and name != model)
    found = sorted(hinted, key=rank)
    return [name for name in found if far or not model or rank(name)[0] == 0]


def _reached(name: str, kind: str) -> bool:
    """Whether llama.cpp looks at this name for a head of the kind."""
    return f"{kind}-" in name


def _hints_at(name: str, kind: str) -> bool:
    """Whether a name has the word of a kind, in whatever spelling."""
    word = "(?:mtp|assistant)" if kind == MTP else kind
    hint = re.search(rf"(?:^|[-._/]){word}(?=[-._/])", name, re.I)
    return _first_of_gguf(name.rpartition("/")[2]) and (hint is not None or _reached(name, kind))


def _whole_bits(quant: str) -> int:
    """The first number in a quant's name, by which llama.cpp compares heads; 0 without one."""
    digits = re.search(r"\d+", quant)
    return int(digits[0]) if digits else 0
