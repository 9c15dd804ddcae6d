"""GGUF files with structural damage, and a process that loads them as localspec does.

One or two keys, tokens or tensors of a file are changed, and the rest of it is sound. A file that
passes the check of its header is given to llama.cpp; where that ends the process, `load_all` says
by which signal. One file in five is a draft for a sound target, one in five is a model in parts,
and one in five is a head, in a separate file or inside its target.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support import gemma4, gguf_models, ggufs, heads, toy

SECONDS = 20
MOST_MEMORY = 4 << 30  # of address space: llama.cpp's libraries take one of them

_SCALARS = {**ggufs._CODES, 11: "q", 12: "d"}
_NUMBERS = (0, 1, 2, 3, 7, 31, 33, 255, 256, 511, 512, 513, 65_535, 1 << 20, (1 << 31) - 1)
_ODD = (*_NUMBERS, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1, -1, -2, -(1 << 31))
_FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan"), 0.5)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Parts:
    """A GGUF file in pieces; a key is (name, type, content), an array's content (type, items)."""

    keys: tuple[tuple[str, int, Any], ...]
    tensors: tuple[Tensor, ...]


def take_apart(data: bytes) -> Parts:
    place = 8

    def read(code: str) -> Any:
        nonlocal place
        (found,) = struct.unpack_from("<" + code, data, place)
        place += struct.calcsize("<" + code)
        return found

    def text() -> bytes:
        nonlocal place
        length = read("Q")
        place += length
        return data[place - length : place]

    def value(kind: int) -> Any:
        if kind == ggufs.STRING:
            return text()
        if kind == ggufs.ARRAY:
            element, count = read("I"), read("Q")
            return element, [value(element) for _ in range(count)]
        return read(_SCALARS[kind])

    n_tensors, n_keys = read("Q"), read("Q")
    keys = []
    for _ in range(n_keys):
        name, kind = text().decode(), read("I")
        keys.append((name, kind, value(kind)))
    table = []
    for _ in range(n_tensors):
        name = text().decode()
        shape = tuple(read("Q") for _ in range(read("I")))
        table.append((name, shape, read("I"), read("Q")))
    start = -(-place // 32) * 32
    ends = [offset for *_, offset in table[1:]] + [len(data) - start]
    return Parts(
        tuple(keys),
        tuple(
            Tensor(name, shape, kind, offset, data[start + offset : start + end])
            for (name, shape, kind, offset), end in zip(table, ends, strict=True)
        ),
    )


def put_together(parts: Parts) -> bytes:
    tensors, weights = [], b""
    for each in parts.tensors:
        tensors.append(ggufs.tensor(each.name, each.shape, each.kind, len(weights)))
        weights += each.data + bytes(-len(each.data) % 32)
    return ggufs.header(parts.keys, tensors) + weights


def damage(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """`data` with one to three things wrong, and what they are."""
    if rng.random() < 0.15:
        return _flipped(data, rng)
    parts, said = take_apart(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parts, what = rng.choice(_DAMAGES)(parts, rng)
        said.append(what)
    with contextlib.suppress(struct.error, OverflowError):
        return put_together(parts), "; ".join(said)
    return _flipped(data, rng)


def _flipped(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    changed = bytearray(data)
    end = min(len(data), rng.choice((200, 2_000, 12_000)))
    places = [rng.randrange(24, end) for _ in range(rng.choice((1, 2, 8)))]
    for place in places:
        changed[place] = rng.choice((0, 1, 255, changed[place] ^ (1 << rng.randrange(8))))
    return bytes(changed), f"bytes at {places}"


def _number(rng: random.Random, kind: int) -> Any:
    if kind == ggufs.BOOL:
        return rng.random() < 0.5
    if _SCALARS[kind] in "fd":
        return rng.choice(_FLOATS)
    bits = 8 * struct.calcsize("<" + _SCALARS[kind])
    found = rng.choice(_ODD) & ((1 << bits) - 1)
    return found - (1 << bits) if _SCALARS[kind].islower() and found >> (bits - 1) else found


def _value(rng: random.Random, kind: int, content: Any) -> Any:
    if kind == ggufs.STRING:
        return rng.choice((b"", b"llama", b"gpt2", b"\xff\x00\x1b[2J", content[:-1], content * 3))
    if kind != ggufs.ARRAY:
        return _number(rng, kind)
    element, items = content[0], list(content[1])
    what = rng.randrange(5)
    if what == 0 or not items:
        return element, items[: rng.choice((0, 1, len(items) // 2))]
    if what == 1:
        return element, items + items[: rng.choice((1, 2, len(items)))]
    at, other = rng.randrange(len(items)), rng.randrange(len(items))
    items[at] = items[other] if what == 2 else _value(rng, element, items[at])
    return element, items


def _key_changed(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    at = rng.randrange(len(parts.keys))
    name, kind, content = parts.keys[at]
    new = _value(rng, kind, content)
    return _with_key(parts, at, (name, kind, new)), f"{name} = {str(new)[:40]}"


def _key_retyped(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    at = rng.randrange(len(parts.keys))
    name, kind, content = parts.keys[at]
    if kind not in (ggufs.STRING, ggufs.ARRAY) and rng.random() < 0.5:
        new: tuple[int, Any] = (ggufs.ARRAY, (kind, [content] * rng.choice((0, 1, 2, 600))))
    else:
        number = rng.choice((ggufs.U32, ggufs.I32, ggufs.F32, ggufs.BOOL, ggufs.U64))
        new = (number, _number(rng, number))
    return _with_key(parts, at, (name, *new)), f"{name}: type {new[0]}, {str(new[1])[:40]}"


def _key_gone(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    at = rng.randrange(len(parts.keys))
    return (
        replace(parts, keys=parts.keys[:at] + parts.keys[at + 1 :]),
        f"without {parts.keys[at][0]}",
    )


_MORE = (
    *("nextn_predict_layers", "expert_count", "expert_used_count", "expert_group_count"),
    *("expert_group_used_count", "attention.key_length", "attention.value_length"),
    *(
        "attention.sliding_window",
        "rope.dimension_count",
        "vocab_size",
        "leading_dense_block_count",
    ),
    *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count", "block_count"),
    *("attention.head_count_kv", "attention.shared_kv_layers", "full_attention_interval"),
    *("expert_gating_func", "rope.dimension_count_swa", "attention.sliding_window_pattern"),
    *("attention.key_length_swa", "router_layer", "pooling_type", "attention.group_norm_groups"),
    *("embedding_length_out", "shortconv.l_cache", "wkv.head_size", "attention.q_lora_rank"),
)
_LISTS = (
    *(("attention.sliding_window_pattern", ggufs.BOOL), ("expert_used_count", ggufs.I32)),
    *(("attention.head_count", ggufs.I32), ("attention.head_count_kv", ggufs.I32)),
    *(("feed_forward_length", ggufs.I32), ("rope.dimension_sections", ggufs.I32)),
)
_WORDS = (
    ("rope.scaling.type", (b"none", b"linear", b"yarn", b"longrope", b"dynamic", b"")),
    ("tokenizer.ggml.model", (b"none", b"no_vocab", b"t5", b"bert", b"rwkv", b"plamo2", b"gemma4")),
)
_MORE_GENERAL = (
    *("general.alignment", "split.count", "split.no", "tokenizer.ggml.bos_token_id"),
    *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.token_type_count", "general.file_type"),
)


def _key_more(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    general = rng.random() < 0.25
    name = rng.choice(_MORE_GENERAL if general else _MORE)
    kind = ggufs.U16 if name.startswith("split") else ggufs.U32
    return _with_more(parts, name if general else _own(parts, name), kind, _number(rng, kind))


def _list_more(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    """With a setting of every layer, or of one too few."""
    name, kind = rng.choice(_LISTS)
    layers = next((each[2] for each in parts.keys if each[0].endswith(".block_count")), 2)
    count = layers if isinstance(layers, int) and 0 < layers < 600 else 2
    numbers = (0, 1) if kind == ggufs.BOOL else (-1, 0, 1, 2, 2, 2, 3, 64)
    items = [rng.choice(numbers) for _ in range(count - (rng.random() < 0.1))]
    return _with_more(parts, _own(parts, name), ggufs.ARRAY, (kind, items))


def _word_more(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    name, words = rng.choice(_WORDS)
    full = name if name.startswith("tokenizer.") else _own(parts, name)
    return _with_more(parts, full, ggufs.STRING, rng.choice(words))


def _own(parts: Parts, name: str) -> str:
    """The full key of an architecture's own setting."""
    architecture = next((each[2] for each in parts.keys if each[0].endswith("tecture")), b"llama")
    return f"{_text(architecture)}.{name}"


def _with_more(parts: Parts, name: str, kind: int, content: Any) -> tuple[Parts, str]:
    others = (each for each in parts.keys if each[0] != name)
    changed = replace(parts, keys=(*others, (name, kind, content)))
    return changed, f"{name} = {str(content)[:40]}"


def _text(content: Any) -> str:
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else "llama"


def _with_key(parts: Parts, at: int, key: tuple[str, int, Any]) -> Parts:
    return replace(parts, keys=(*parts.keys[:at], key, *parts.keys[at + 1 :]))


def _tensor_changed(parts: Parts, rng: random.Random) -> tuple[Parts, str]:
    at = rng.randrange(len(parts.tensors))
    old = parts.tensors[at]
    change = rng.randrange(5)
    if change == 0:
        new = replace(old, kind=rng.choice((0, 1, 2, 8, 12, 24, 25, 26, 27, 28, 30, 39)))
        new = replace(new, data=_resized(new, old.data))
    elif change == 1:
        shape = list(old.shape) or [1]
        shape[rng.randrange(len(shape))] = rng.choice((0, 1, 32, 64, 96, 1 << 20, 1 << 40))
        new = replace(old, shape=tuple(shape))
        new = replace(new, data=_resized(new, old.data))
    elif change == 2:
        new = replace(old, shape=(*old.shape, 1) if rng.random() < 0.5 else old.shape[::-1])
    elif change == 3:
        new = replace(old, name=rng.choice(parts.tensors).name + rng.choice(("", ".x")))
    else:
        tensors = parts.tensors[:at] + parts.tensors[at + 1 :]
        return replace(parts, tensors=tensors), f"without {old.name}"
    tensors = (*parts.tensors[:at], new, *parts.tensors[at + 1 :])
    return replace(parts, tensors=tensors), f"{old.name}: {new.name} {new.kind} {new.shape}"


def _resized(tensor: Tensor, data: bytes) -> bytes:
    """The tensor's data with the size that its type and shape need, unless that is too large."""
    from localspec.pairs.gguf.header import GGML_TYPES  # noqa: PLC0415

    _, block, n_bytes = GGML_TYPES[tensor.kind]
    elements = 1
    for length in tensor.shape:
        elements *= length
    wanted = elements // block * n_bytes
    return (data * (wanted // max(1, len(data)) + 1))[:wanted] if wanted < 1 << 22 else data


_DAMAGES: tuple[Callable[[Parts, random.Random], tuple[Parts, str]], ...] = (
    *(_key_changed, _key_changed, _key_changed, _key_more, _key_more),
    *(_list_more, _word_more),
    *(_key_retyped, _key_gone, _tensor_changed, _tensor_changed),
)


def samples(folder: Path) -> list[Path]:
    """One small undamaged file of every architecture, with few tokens."""
    words = gguf_models.write_other_vocabulary(folder / "other.gguf")
    made = [
        gguf_models.GENERATORS[kind](folder / f"{kind}.gguf", like=words, type=weights)
        for kind, weights in zip(
            gguf_models.ARCHITECTURES,
            ("q8_0", "f16", "q8_0", "f32", "f32", "f16", "q8_0"),
            strict=True,
        )
    ]
    known = gguf_models.read_vocabulary(words)
    attention = gemma4.Attention(sliding=(True, False) * 2, shared=2)
    sliding = gemma4.write_gemma4(folder / "gemma4.gguf", attention=attention, vocabulary=known)
    return [words, *made, sliding]


@dataclass(frozen=True)
class Damaged:
    """One damaged model.

    Attributes:
        path: its file, or the first of its parts.
        what: its damage.
        parts: its files, all of them.
        role: ``target``, ``draft``, ``head`` or ``mtp`` (a target with a head inside).
        target: what a draft or head is for.
    """

    path: Path
    what: str
    parts: tuple[Path, ...]
    role: str = "target"
    target: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        what: its damage.
        end: ``refused`` (by its header), ``failed`` (llama.cpp or localspec said why), ``loaded``,
            ``fault`` (an exception that is not an error of localspec's), ``hung``, ``died``.
        detail: the message, or the signal.
    """

    path: Path
    what: str
    end: str
    detail: str


def damaged_files(folder: Path, numbers: range) -> Iterator[Damaged]:
    """Write a damaged model for every number, one after the other."""
    sound = samples(folder)
    eagle3 = heads.write_eagle3(folder / "eagle3.gguf")
    dflash = heads.write_dflash(folder / "dflash.gguf")
    mtp = heads.write_mtp(folder / "mtp.gguf")
    whole = {path: path.read_bytes() for path in (*sound, eagle3, dflash, mtp)}
    targets = {"draft": sound[0], "head": toy.TARGET}  # they know the same tokens
    for number in numbers:
        rng = random.Random(number)
        chosen, kind = rng.choice(sound), rng.random()
        if kind < 0.2:
            yield _damaged_parts(folder, number, whole[chosen], rng)
            continue
        role = (
            "draft" if kind < 0.4 else "head" if kind < 0.5 else "mtp" if kind < 0.6 else "target"
        )
        head = rng.choice((eagle3, dflash))
        data, what = damage(whole[{"head": head, "mtp": mtp}.get(role, chosen)], rng)
        path = folder / f"damaged-{number}.gguf"
        path.write_bytes(data)
        yield Damaged(path, f"as a {role}: {what}", (path,), role, targets.get(role))


def split(parts: Parts, count: int) -> list[Parts]:
    """The same model in `count` files, as ``llama-gguf-split`` writes it."""
    tensors, found = parts.tensors, []
    for number in range(count):
        told = (
            ("split.no", ggufs.U16, number),
            ("split.count", ggufs.U16, count),
            ("split.tensors.count", ggufs.I32, len(tensors)),
        )
        some = tensors[number * len(tensors) // count : (number + 1) * len(tensors) // count]
        found.append(Parts((*(parts.keys if number == 0 else ()), *told), some))
    return found


def write_parts(folder: Path, stem: str, files: Sequence[bytes]) -> tuple[Path, ...]:
    """Write the files of a split model under their names."""
    names = (f"{stem}-{no:05}-of-{len(files):05}.gguf" for no in range(1, len(files) + 1))
    paths = tuple(folder / name for name in names)
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


def _damaged_parts(folder: Path, number: int, data: bytes, rng: random.Random) -> Damaged:
    files = [put_together(one) for one in split(take_apart(data), rng.choice((2, 3)))]
    at, kind = rng.randrange(len(files)), rng.randrange(8)
    if kind == 0:
        files[at] = files[at][: rng.randrange(len(files[at]))]
        what = "cut off"
    elif kind == 1:
        other = rng.randrange(len(files))
        files[at] = files[other]
        what = f"is part {other}"
    elif kind == 2:
        one, before = (take_apart(files[no]) for no in (at, at - 1))
        more = replace(one, tensors=(*one.tensors, *before.tensors[:1]))
        files[at], what = put_together(more), "has a tensor of another part"
    else:
        files[at], what = damage(files[at], rng)
    paths = write_parts(folder, f"damaged-{number}", files)
    if kind == 3 and at:
        paths[at].unlink()
        what = "is missing"
    return Damaged(paths[0], f"part {at} of {len(files)}: {what}", paths)


def load_all(files: Iterable[Damaged], *, keep: bool = False) -> Iterator[Outcome]:
    """Load every model in a child process; a new one is started where that ends or hangs."""
    child: _Child | None = None
    try:
        for each in files:
            child = child or _Child()
            end, detail = child.load(each)
            if end in ("died", "hung"):
                child.close()
                child = None
            if not keep or end not in ("died", "hung", "fault"):
                for path in each.parts:
                    path.unlink(missing_ok=True)
            yield Outcome(each.path, each.what, end, detail)
    finally:
        if child is not None:
            child.close()


class _Child:
    def __init__(self) -> None:
        limit = (MOST_MEMORY, MOST_MEMORY)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.damaged"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),  # noqa: PLW1509
        )

    def load(self, case: Damaged) -> tuple[str, str]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        target = case.target and str(case.target)
        process.stdin.write(json.dumps([str(case.path), case.role, target]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], SECONDS)[0]:
            return "hung", ""
        line = process.stdout.readline()
        if not line:
            return "died", str(-process.wait())
        end, detail = json.loads(line)
        return end, detail

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _load(path: Path, role: str, target: Path | None) -> tuple[str, str]:
    from localspec.errors import LocalspecError  # noqa: PLC0415

    try:
        _examine(path, role, target)
    except LocalspecError as error:
        return "refused", error.message
    try:
        if role == "target":
            _use(path)
        else:
            _draft(path, role, target or path)
    except LocalspecError as error:
        return "failed", error.message
    return "loaded", ""


def _examine(path: Path, role: str, target: Path | None) -> None:
    """What is checked by headers alone before anything is loaded."""
    from localspec.pairs.gguf import head_checks as checks  # noqa: PLC0415
    from localspec.pairs.gguf import header as gguf  # noqa: PLC0415
    from localspec.pairs.gguf import usable  # noqa: PLC0415
    from localspec.pairs.memory.model_facts import draft_facts, facts, mtp_facts  # noqa: PLC0415
    from localspec.pairs.memory.outlook import outlook_for  # noqa: PLC0415
    from localspec.pairs.report import vocabulary  # noqa: PLC0415

    def chat_model(file: Path) -> gguf.ModelFiles:
        read = gguf.read_model(file)
        usable.require_usable(read.header, str(file))
        return read

    found = gguf.read_model(path) if role == "head" else chat_model(path)
    other = chat_model(target) if target else found
    if role == "head":
        checks.require_head(found, other.header)
        drafts = draft_facts(found.header)
    elif role == "mtp":
        checks.require_mtp(found.header, str(path))
        drafts = mtp_facts(found.header)
    else:
        (vocabulary.check if role == "draft" else vocabulary.compare)(other.header, found.header)
        drafts = facts(found.header)
    outlook_for(facts(other.header), [drafts], n_ctx=64)


def _use(path: Path) -> None:
    from localspec.engine.llama import Context, ContextOptions, Model  # noqa: PLC0415

    with (
        Model.load(path) as model,
        Context(model, ContextOptions(n_ctx=64, threads=1)) as context,
    ):
        tokens = model.tokenize("Once upon a time", add_special=True, parse_special=True)
        context.decode((tokens or [0])[:16], 1)
        context.decode([1], 1)
        b"".join(model.piece(token) for token in range(min(model.n_vocab, 400)))


def _draft(path: Path, role: str, target: Path) -> None:
    """Generate with a damaged draft or head, as a chat does."""
    from localspec.engine.cancel import Cancel  # noqa: PLC0415
    from localspec.engine.drafters.cross_vocabulary import VocabularyMap  # noqa: PLC0415
    from localspec.engine.drafters.cross_vocabulary_drafter import CrossVocabularyDrafter  # noqa: PLC0415
    from localspec.engine.drafters.head_drafter import HeadDrafter  # noqa: PLC0415
    from localspec.engine.drafters.model_drafter import ModelDrafter  # noqa: PLC0415
    from localspec.engine.drafters.protocol import Drafter  # noqa: PLC0415
    from localspec.engine.length.gamma import FixedGamma  # noqa: PLC0415
    from localspec.engine.llama import Context, ContextOptions, Model, head_of  # noqa: PLC0415
    from localspec.engine.round.generate import Engine  # noqa: PLC0415
    from localspec.engine.round.generate_settings import GenerateSettings  # noqa: PLC0415
    from localspec.pairs.gguf.header import read_header  # noqa: PLC0415
    from localspec.pairs.report import vocabulary  # noqa: PLC0415

    options = ContextOptions(n_ctx=64, threads=1)
    with contextlib.ExitStack() as stack:
        large = stack.enter_context(Model.load(target, mtp=role == "mtp"))
        decides = stack.enter_context(Context(large, options))
        drafter: Drafter
        if role == "draft":
            small = stack.enter_context(Model.load(path))
            drafts = stack.enter_context(Context(small, options))
            if not drafts.can_truncate:
                return
            drafter = ModelDrafter(drafts, large.n_vocab)
            if not vocabulary.compare(read_header(target), read_header(path)).compatible:
                drafter = CrossVocabularyDrafter(drafts, VocabularyMap(large, small))
        else:
            inside = role == "mtp"
            held = large if inside else stack.enter_context(Model.load(path, head=True))
            drafter = HeadDrafter(stack.enter_context(head_of(held, decides, options)))
        engine, cancel = Engine(decides, drafter), Cancel()
        prompt = large.tokenize("Once upon a time", add_special=True, parse_special=True)
        engine.prefill(prompt, cancel)
        for _ in engine.generate(prompt, GenerateSettings(n_predict=8), FixedGamma(3), cancel):
            pass


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # others may write to standard output
    for line in sys.stdin:
        path, role, target = json.loads(line)
        try:
            outcome = _load(Path(path), role, Path(target) if target else None)
        except Exception as error:
            outcome = ("fault", f"{type(error).__name__}: {error}"[:300])
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main() -> int:
    """Run ``python -m tests.support.damaged SEED COUNT [FOLDER]``: 1,000 files take a minute."""
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    kept = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = kept or Path(folder)
        for outcome in load_all(
            damaged_files(place, range(seed, seed + count)), keep=kept is not None
        ):
            ends[outcome.end] += 1
            if outcome.end in ("died", "hung", "fault"):
                _say(f"{outcome.end} {outcome.detail}: {outcome.path.name}: {outcome.what}")
    _say(str(dict(ends)))
    return int(any(ends[bad] for bad in ("died", "hung", "fault")))


if __name__ == "__main__":
    sys.exit(_main()) if len(sys.argv) > 1 else _serve()
