"""Models that other programs keep on this disk: Ollama, LM Studio, llama.cpp and the Hub cache.

They are used where they are, and only read. Damaged, foreign or missing files are skipped, and a
search ends after a second, as it may run whenever names are shown or needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from localspec import private
from localspec.errors import LocalspecError
from localspec.pairs.disk import folders, installed, starter
from localspec.pairs.gguf import usable
from localspec.pairs.gguf.cursor import MAX_HEADER_BYTES
from localspec.pairs.gguf.header import MAGIC, SPLIT_NAME, read_model, split_names
from localspec.pairs.hub import cache as hub_cache
from localspec.pairs.memory.model_facts import active_share
from localspec.pairs.memory.outlook import unread
from localspec.pairs.names import catalogue
from localspec.pairs.names.catalogue import ListedPair
from localspec.pairs.names.repository_files import is_model, quant_of
from localspec.safe_text import one_line

WITHIN_S: Final = 0.8
"""Seconds after which a search ends, wherever it is."""

NAMED_WITHIN_S: Final = 10.0
"""The same for a model that was named: a sleeping disk takes several seconds to wake up."""

MOST_BESIDE: Final = 40
"""The most models of a target's folder to look at."""

_DEEPEST: Final = 6  # levels below a store: four in the Hub cache, plus the repository's
_NEVER_WALKED: Final = ("blobs", "refs")  # the same bytes under their hashes, in a Hub cache
_HEAD: Final = 16_384  # bytes that hold the metadata before the vocabulary
_EXPERTS: Final = b".expert_used_count"  # a metadata key that only mixtures have
_STRING: Final = 8  # GGUF's type of a text
_KEY: Final = b"tokenizer.chat_template"
_TEMPLATE: Final = struct.pack(f"<Q{len(_KEY)}sI", len(_KEY), _KEY, _STRING)
_STEP: Final = 1 << 20  # bytes searched at a time
_LARGEST_JSON: Final = 1 << 20
_LONGEST_TEXT: Final = 200
_ODD: Final = re.compile(r"[^A-Za-z0-9._+-]+")
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_LICENCE_LAYER: Final = "application/vnd.ollama.image.license"

_T = TypeVar("_T")
_Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model of another program.

    Attributes:
        name: its name here, different from all pairs and other found models.
        store: the program that keeps it.
        path: its first file.
        n_bytes: size of all its files.
        quant: such as ``Q4_K_M``; empty if unknown.
        licence: from the file or its store; empty if neither names one.
    """

    name: str
    store: str
    path: Path
    n_bytes: int = 0
    quant: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The models that were found, and whether the search was complete."""

    models: tuple[FoundModel, ...]
    complete: bool = True

    def named(self, text: str) -> FoundModel | None:
        """The model that `text` names, ignoring case; Ollama's also without ``:latest``."""
        wanted = text.strip().lower()
        for model in self.models:
            if model.name.lower() in (wanted, f"{wanted}:latest"):
                return model
        return None


def rows(models: Iterable[FoundModel]) -> list[ListedPair]:
    """The models as lists show pairs."""
    return [
        ListedPair(
            name=model.name,
            n_bytes=model.n_bytes,
            target_bytes=model.n_bytes,
            active=_active(model.path),
            fit=unread(model.n_bytes),
            licence=model.licence,
            state="found",
            target=str(model.path),
            draft="none named: Enter looks which would fit",
            notes=_notes(model),
            verified=False,
        )
        for model in models
    ]


def _notes(model: FoundModel) -> str:
    quant = model.quant and f", {model.quant}"
    template = "with" if has_template(model.path) else "without"
    return f"Of {model.store}{quant}, {template} a chat template: used where it is."


def has_template(path: Path) -> bool:
    """Whether the file has a chat template, which comes after the vocabulary, some MB into it."""
    before = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while file.tell() < MAX_HEADER_BYTES and (read := file.read(_STEP)):
            if _TEMPLATE in before + read:
                return True
            before = read[-len(_TEMPLATE) :]
    return False


def _active(path: Path) -> float:
    """Share of the weights that a token reads; only for mixtures is the whole header read."""
    with contextlib.suppress(OSError, LocalspecError):
        if _EXPERTS in _beginning(path):
            return active_share(read_model(path).header)
    return 1.0


def remedy(path: Path) -> str:
    """What to do about a model that llama.cpp refuses; empty if only llama.cpp can say."""
    if not path.name.startswith("sha256-"):
        return ""
    return "Ollama keeps some models in a layout that only it reads: pull this one from the Hub."


class _TimeUp(Exception):
    """The search has taken long enough."""


def scan(within_s: float = WITHIN_S) -> FoundModels:
    """Find models of other programs that do not belong to an installed pair.

    Args:
        within_s: seconds after which the search ends with what it has found.
    """
    end = time.monotonic() + within_s

    def tick() -> None:
        if time.monotonic() > end:
            raise _TimeUp

    names = _UniqueNames()
    seen = _own_files()
    models = []
    try:
        for candidate in _candidates(tick):
            tick()
            completed = _completed(candidate)
            if completed is not None and completed[1] not in seen:
                model, identity = completed
                seen.add(identity)
                models.append(replace(model, name=names.free(model.name)))
    except _TimeUp:
        return FoundModels(tuple(models), complete=False)
    return FoundModels(tuple(models))


class _UniqueNames:
    """Gives every model a unique name: ``x``, then ``x-2``."""

    def __init__(self) -> None:
        pairs = (pair.name for pair in installed.all_pairs())
        self._taken = {*installed.RESERVED, *pairs, *catalogue.pairs()}
        self._next: dict[str, int] = {}

    def free(self, name: str) -> str:
        found, number = name, self._next.get(name.lower(), 2)
        while found.lower() in self._taken:
            found, number = f"{name}-{number}", number + 1
        self._next[name.lower()] = number
        self._taken.add(found.lower())
        return found


_Identity = tuple[int, int]


def _own_files() -> set[_Identity]:
    """The first files of pairs that are listed anyway."""
    found = set()
    for pair in (*starter.pairs_here(), *installed.all_pairs()):
        for model in pair.models:
            with contextlib.suppress(OSError, ValueError):
                status = model.path.stat()
                found.add((status.st_dev, status.st_ino))
    return found


def _completed(candidate: FoundModel) -> tuple[FoundModel, _Identity] | None:
    """Complete `candidate` from its files; None if it cannot chat."""
    path = candidate.path
    try:
        parts = [path.with_name(name).stat() for name in split_names(path.name)]
        if not all(stat.S_ISREG(part.st_mode) for part in parts):  # reading a pipe would never end
            return None
        head = _beginning(path)
    except (OSError, ValueError):
        return None
    writes = usable.may_write(_early(head, "general.architecture"), _early(head, "general.type"))
    if not head.startswith(MAGIC) or not writes:
        return None
    licence = one_line(_early(head, "general.license"), _LONGEST_TEXT) or candidate.licence
    model = replace(candidate, n_bytes=sum(part.st_size for part in parts), licence=licence)
    return model, (parts[0].st_dev, parts[0].st_ino)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _early(head: bytes, key: str) -> str:
    """The text under `key` in the first bytes of a GGUF file; empty if it is not there."""
    mark = struct.pack(f"<Q{len(key)}sI", len(key), key.encode(), _STRING)
    start = head.find(mark) + len(mark)
    if start < len(mark) or start + 8 > len(head):
        return ""
    (length,) = struct.unpack_from("<Q", head, start)
    return head[start + 8 : start + 8 + min(length, _LONGEST_TEXT)].decode("utf-8", "replace")


def _candidates(tick: _Tick) -> Iterator[FoundModel]:
    """All files that look like models, store by store, in the order of names."""
    for folder in _ollama_folders():
        yield from _of_ollama(folder, tick)
    for store, folder in _plain_folders():
        for path in _files(folder, tick):
            if is_model(path.name):
                split = SPLIT_NAME.match(path.name)
                name = _as_name(split["stem"] if split else path.stem)
                yield FoundModel(name, store, path, quant=quant_of(path.name))


def _ollama_folders() -> Iterator[Path]:
    chosen = os.environ.get("OLLAMA_MODELS")
    yield folders.user_path(chosen or "~/.ollama/models")
    if sys.platform == "linux":  # Ollama's service has its own user there
        yield Path("/usr/share/ollama/.ollama/models")


def _plain_folders() -> Iterator[tuple[str, Path]]:
    """Folders with GGUF files under their own names, each with its program."""
    for folder in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        yield "LM Studio", folders.user_path(folder)
    settings = _read_json(folders.user_path("~/.lmstudio/settings.json"), _StudioSettings)
    if settings is not None and settings.downloads_folder:
        yield "LM Studio", folders.user_path(settings.downloads_folder)
    if chosen := os.environ.get("LLAMA_CACHE"):
        yield "llama.cpp", folders.user_path(chosen)
    yield "llama.cpp", _llama_cpp_folder()
    with contextlib.suppress(LocalspecError):  # invalid Hub settings
        yield "Hub cache", hub_cache.cache_folder()


def _llama_cpp_folder() -> Path:
    """The folder of llama.cpp's downloads, before it used the Hub cache."""
    if sys.platform == "win32":
        return folders.user_path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local") / "llama.cpp"
    if sys.platform == "darwin":
        return folders.user_path("~/Library/Caches/llama.cpp")
    return folders.user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "llama.cpp"


def next_to(target: Path) -> list[Path]:
    """The other models in the folder of `target`; the first part of split ones."""
    own = folders.real(target)
    there = (path for path in _files(target.parent, lambda: None, 0) if is_model(path.name))
    here = filter(folders.is_file, there)  # a link may lead nowhere
    return [path for path in islice(here, MOST_BESIDE) if folders.real(path) != own]


def _files(folder: Path, tick: _Tick, deepest: int = _DEEPEST) -> Iterator[Path]:
    """All non-folders in `folder` and below, following links, in the order of names."""
    entries = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                tick()
                entries.append(entry)
    except (OSError, ValueError):  # missing, without access, or an impossible name
        return
    for entry in sorted(entries, key=lambda each: each.name):
        tick()
        if not _is_folder(entry):
            yield Path(entry.path)
        elif deepest and entry.name not in _NEVER_WALKED and not entry.name.startswith("."):
            yield from _files(Path(entry.path), tick, deepest - 1)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _as_name(text: str) -> str:
    """Turn `text` into a name that can be typed, and is neither a path nor a reference."""
    return re.sub(r"(\.gguf)+$", "", _ODD.sub("-", text), flags=re.I).strip("-.") or "model"


class _Layer(msgspec.Struct, rename="camel"):
    """One layer of an Ollama model; its bytes are in the blob with this digest."""

    media_type: str = ""
    digest: str = ""


class _Manifest(msgspec.Struct):
    """The layers of an Ollama model."""

    layers: list[_Layer]
    config: _Layer | None = None


class _Config(msgspec.Struct):
    """Ollama's metadata of a model."""

    model_format: str = "gguf"
    file_type: str = ""


class _StudioSettings(msgspec.Struct, rename="camel"):
    """LM Studio's settings of its folders."""

    downloads_folder: str = ""


def _of_ollama(folder: Path, tick: _Tick) -> Iterator[FoundModel]:
    """Ollama's models: ``manifests/HOST/NAMESPACE/MODEL/TAG`` names blobs by their hashes."""
    manifests = folder / "manifests"
    for path in _files(manifests, tick):
        place = path.relative_to(manifests).parts
        manifest = _read_json(path, _Manifest) if len(place) == 4 else None
        if manifest is None:
            continue
        blobs = {layer.media_type: _blob(folder, layer) for layer in manifest.layers}
        model = blobs.get(_MODEL_LAYER)
        config = _read_json(_blob(folder, manifest.config), _Config) or _Config()
        if model is None or config.model_format != "gguf":
            continue
        name = ":".join(map(_as_name, place[2:]))
        licence = _first_line(blobs.get(_LICENCE_LAYER))
        quant = one_line(config.file_type, _LONGEST_TEXT)
        yield FoundModel(name, "Ollama", model, quant=quant, licence=licence)


def _blob(folder: Path, layer: _Layer | None) -> Path | None:
    """The file of a layer; None if its digest is malformed."""
    digest = _DIGEST.fullmatch(layer.digest) if layer is not None else None
    return folder / "blobs" / f"sha256-{digest[1]}" if digest else None


def _first_line(path: Path | None) -> str:
    """The first line of a licence, which is its name."""
    if path is None or not folders.is_file(path):
        return ""
    with contextlib.suppress(OSError), path.open("rb") as file:
        lines = file.read(_LONGEST_TEXT).decode("utf-8", "replace").split("\n")
        return one_line(next((line.strip() for line in lines if line.strip()), ""), _LONGEST_TEXT)
    return ""


def _read_json(path: Path | None, kind: type[_T]) -> _T | None:
    """Read a small file of another program; None if it is missing, damaged or foreign."""
    size = None if path is None else folders.regular_size(path)
    if path is None or size is None or size > _LARGEST_JSON:
        return None
    return private.read_json(path, kind)
