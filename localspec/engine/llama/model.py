"""`Model`: the weights and the vocabulary of one GGUF file."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from localspec.engine.cancel import Cancel
from localspec.engine.llama.library import lib
from localspec.engine.llama.log import start_backend
from localspec.engine.llama.platform.hardware import (
    RPC,
    accelerators,
    device_list,
    ggml,
    repacking_works,
)
from localspec.engine.llama.platform.rpc import notice_silence
from localspec.errors import ModelFileError, ModelLoadError, OutOfMemory, UnsupportedModel
from localspec.limits import SPLIT_MODES

_PART = 1 << 16  # characters tokenised per call; takes milliseconds
# Ordinary text, although vocabularies mark it as user-defined: blanks, single letters, and the
# markup in Gemma's vocabulary.
_ORDINARY = re.compile(
    r"\s*\S?\s*|</?(?:table|caption|t(?:head|body|foot|[rhd])|h[1-6]|blockquote|code|strong|em"
    r"|su[bp]|[bisu])>"
)
_COPIED = re.compile(r"load_tensors: loading model tensors[^(]*\(load_mode = (none|mlock)\)")
_GAP, _JOINED = re.compile("[A-Za-z](?=[ \\n])"), re.compile("[A-Za-z][ \\n]")


class _Placement(ctypes.Structure):
    """`llama_model_tensor_buft_override`: where tensors go whose names match a pattern."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _experts_in_main_memory(layers: int) -> ctypes.Array[_Placement]:
    """llama.cpp's list of placements for the experts of the first `layers`; it ends with nulls.

    The patterns are those of ``--n-cpu-moe`` (common/common.h).
    """
    place = ggml().cpu_buffer_type()
    names = rb"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    found = [_Placement(names % layer, place) for layer in range(layers)]
    return (_Placement * (layers + 1))(*found)


@dataclass(frozen=True, slots=True)
class InfillMarks:
    """The tokens by which a model fills in a text; None for those that its vocabulary lacks.

    Attributes:
        prefix, suffix: before the text before the gap, and before the text after it.
        middle: before what fills the gap.
        repository: before the name of a repository, whose other files may follow.
        file: before the name and the text of a file.
    """

    prefix: int | None
    suffix: int | None
    middle: int | None
    repository: int | None
    file: int | None


class Model:
    """A loaded model; free it with `close` or a ``with`` block, after its contexts.

    Attributes:
        file_weights: bytes of all weights in the file.
        weights_bytes: bytes of all weight buffers, mapped or copied, on all devices, with those of
            adapters.
        metadata: the GGUF's scalar metadata as text.
        mtp: whether the multi-token prediction layers were loaded.
        gpu_layers: layers on accelerators as requested, -1 for all.
        remote: whether some of the accelerators are workers.
        mapped: whether the weights in main memory are mapped, not copied.
    """

    def __init__(
        self, path: Path, handle: lib.llama_model_p, weights_bytes: int, mapped: bool = True
    ) -> None:
        self.path, self.mapped = path, mapped
        self.handle: lib.llama_model_p | None = handle
        self._vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab = lib.llama_vocab_n_tokens(self._vocab)
        self.n_params = lib.llama_model_n_params(handle)
        self.file_weights = lib.llama_model_size(handle)
        self.weights_bytes = weights_bytes or self.file_weights
        self.metadata = _metadata(handle)
        self.mtp, self.gpu_layers, self.remote, self.offloaded = False, 0, False, False
        self._adapters: list[tuple[Any, float]] = []  # each with its scale
        # Asked for one token at a time: asking for a whole large vocabulary takes a tenth of a
        # second.
        self._ends: dict[int, bool] = {}
        self._watched: Cancel | None = None
        self._pieces: dict[tuple[int, bool], bytes] = {}

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        cpu_moe: int = 0,
        devices: Sequence[str] | None = None,
        split: Sequence[float] = (),
        split_mode: str = "layer",
        target_devices: Sequence[str] = (),
        mmap: bool | None = None,
        mlock: bool = False,
        repack: bool = True,
        mtp: bool = False,
        head: bool = False,
        adapters: Sequence[tuple[Path, float]] = (),
        progress: Callable[[float], None] | None = None,
        cancel: Cancel | None = None,
    ) -> Self:
        """Load a GGUF.

        Args:
            path: the file, or the first part of a split model.
            n_gpu_layers: layers on accelerators, counted from the last; -1 for all.
            cpu_moe: layers, from the first, whose experts stay in main memory.
            devices: llama.cpp's names of the devices to use; None for all, empty for the CPU alone.
            split: proportions in which the devices share the layers; empty to go by free memory.
            split_mode: one of `SPLIT_MODES`.
            target_devices: devices with tensors of the target that this head reads. Its contexts
                also compute there, but its own layers are not placed there.
            mmap: map the weights into memory, or copy them. None lets llama.cpp choose: it copies
                them where a device cannot read mapped files, as integrated GPUs cannot.
            mlock: keep the weights from being swapped out.
            repack: copy the weights into a layout that suits the processor; otherwise they stay on
                disk and are mapped, unless `mmap` is false.
            mtp: also load the multi-token prediction layers, if any.
            head: the file is a draft head, which writes no text without a target.
            adapters: files of LoRA adapters, each with its scale; they are freed with the model.
            progress: receives the share loaded, 0 to 1.
            cancel: stops the loading.

        Raises:
            ModelFileError: the file does not exist.
            ModelLoadError: llama.cpp refuses it; the message has llama.cpp's reason.
            UnsupportedModel: it loads but generates no text.
            Cancelled: `cancel` was set while loading.
        """
        if not path.is_file():
            raise ModelFileError(f"there is no file {path}", "Check the path for typing errors.")
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.load_mtp = mtp
        params.split_mode = SPLIT_MODES.index(split_mode)  # in the order of llama.cpp's enum
        params.use_extra_bufts = repack and repacking_works()
        either = mmap is None and repack and not mlock
        params.load_mode = lib.LLAMA_LOAD_MODE_AUTO if either else (mmap is not False) + 2 * mlock
        _kept = None if devices is None else _use_devices(params, devices, target_devices, split)
        overrides = _experts_in_main_memory(cpu_moe)  # must live until the model is loaded
        params.tensor_buft_overrides = ctypes.addressof(overrides) if cpu_moe else None
        params.progress_callback = _progress_callback(progress, cancel)
        model = cls(path, *_loaded(path, params, cancel))
        model.mtp, model.gpu_layers = mtp, n_gpu_layers
        names = accelerators() if devices is None else devices
        model.offloaded = n_gpu_layers != 0 and bool(names)
        model.remote = model.offloaded and any(each.startswith(RPC) for each in names)
        notice_silence()
        for file, scale in adapters:
            model._adapt(file, scale)
        if not head and (wrong := model._writes_no_text()):
            model.close()
            raise UnsupportedModel(f"{path.name} {wrong}", "Choose a chat model.")
        return model

    def _adapt(self, path: Path, scale: float) -> None:
        """Load an adapter, which contexts made from now on apply.

        Raises:
            ModelLoadError: llama.cpp refuses it; the model is closed.
        """
        section = start_backend().section()
        adapter = lib.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            self.close()
            raise ModelLoadError(
                f"llama.cpp cannot load the adapter {path.name}: {section.reason()}",
                "Choose an adapter that was made for this model.",
            )
        self._adapters.append((adapter, scale))
        self.weights_bytes += section.allocated("LoRA")

    def apply_adapters(self, context: Any) -> None:
        """Let llama.cpp's `context` of this model apply all adapters."""
        count = len(self._adapters)
        if count:
            handles, scales = zip(*self._adapters, strict=True)
            each = (lib.llama_adapter_lora_p_ctypes * count)(*handles)
            lib.llama_set_adapters_lora(context, each, count, (ctypes.c_float * count)(*scales))

    def _writes_no_text(self) -> str:
        """What kind of model this is if it generates no text; empty if it does."""
        architecture = self.metadata.get("general.architecture", "?")
        pooling = self.metadata.get(f"{architecture}.pooling_type", "0")
        if not lib.llama_model_has_decoder(self.handle) or pooling not in ("0", "-1"):
            return f"is an embedding model ({architecture}): it writes no text"
        if lib.llama_model_has_encoder(self.handle) or lib.llama_model_is_diffusion(self.handle):
            return f"does not write token by token ({architecture})"
        return ""

    @property
    def is_mixture(self) -> bool:
        """Whether this is a mixture of experts, which uses some of its experts per token."""
        architecture = self.metadata.get("general.architecture", "")
        used, count = (
            self.metadata.get(f"{architecture}.expert_{each}", "")
            for each in ("used_count", "count")
        )
        return bool(count) and used != count

    @property
    def partly_offloaded(self) -> bool:
        """Whether some layers are on accelerators, and others are not."""
        predicting = lib.llama_model_n_layer_nextn(self.handle)  # counted apart
        layers = lib.llama_model_n_layer(self.handle) + predicting
        return self.offloaded and 0 < self.gpu_layers <= layers  # the output layer is one more

    @property
    def description(self) -> str:
        """llama.cpp's own: architecture, size and file type, ``qwen2 1.5B Q4_K - Medium``."""
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, text, len(text))
        return text.value.decode(errors="replace")

    @property
    def name(self) -> str:
        """The model's own name, or the file's."""
        return self.metadata.get("general.name") or self.path.stem

    @property
    def shown_name(self) -> str:
        """What it is called on the screen."""
        return shown_name(self.path, self.name)

    @property
    def family(self) -> str:
        """What its makers call the family, or else llama.cpp's name of the architecture."""
        return self.metadata.get("general.basename") or self.metadata.get(
            "general.architecture", ""
        )

    @property
    def chat_template(self) -> str | None:
        """The Jinja chat template in the GGUF without any byte-order mark, or None."""
        text = lib.llama_model_chat_template(self.handle, None)
        return text.decode("utf-8", "replace").removeprefix("\ufeff") if text else None

    @property
    def add_bos(self) -> bool:
        """Whether tokenising with `add_special` puts the BOS token in front."""
        return bool(lib.llama_vocab_get_add_bos(self._vocab))

    @property
    def bos(self) -> int | None:
        """The beginning-of-text token."""
        return _token_or_none(lib.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int | None:
        """The end-of-text token."""
        return _token_or_none(lib.llama_vocab_eos(self._vocab))

    @property
    def infill_marks(self) -> InfillMarks:
        """The tokens by which the model fills in a text."""
        vocab = self._vocab
        return InfillMarks(
            _token_or_none(lib.llama_vocab_fim_pre(vocab)),
            _token_or_none(lib.llama_vocab_fim_suf(vocab)),
            _token_or_none(lib.llama_vocab_fim_mid(vocab)),
            _token_or_none(lib.llama_vocab_fim_rep(vocab)),
            _token_or_none(lib.llama_vocab_fim_sep(vocab)),
        )

    @cached_property
    def end(self) -> int | None:
        """The token that ends a turn: the one that the chat template writes, else end of text.

        If the file names no end-of-turn token, llama.cpp picks one of several candidates, so its
        choice is not used.
        """
        end_of_turn = _token_or_none(lib.llama_vocab_eot(self._vocab))
        for token in (end_of_turn, self.eos, *sorted(self.end_tokens)):
            if token is not None and self.piece(token, special=True).decode("utf-8", "replace") in (
                self.chat_template or ""
            ):
                return token
        return self.eos

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Every id that ends generation (end of text, end of turn, ...)."""
        vocab = self._vocab
        return frozenset(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(vocab, t))

    def is_end(self, token: int) -> bool:
        """Whether `token` ends generation."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(lib.llama_vocab_is_eog(self._vocab, token))
        return known

    def is_user_defined(self, token: int) -> bool:
        """Whether the vocabulary marks `token` as user-defined: the tokenizer matches it first."""
        return bool(
            lib.llama_vocab_get_attr(self._vocab, token) & lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        )

    def is_mark(self, token: int) -> bool:
        """Whether `token` means more than its text: a control token, or a user-defined marker."""
        if not self.piece(token):
            return True
        text = self.piece(token, special=True).decode("utf-8", "replace")
        return self.is_user_defined(token) and not _ORDINARY.fullmatch(text)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenize `text`.

        Args:
            text: any text; lone surrogates are replaced.
            add_special: add BOS (and EOS) if the model asks for it.
            parse_special: read the text of control tokens as those tokens; user-defined tokens are
                always read so.

        Raises:
            Cancelled: the watched flag was set, in the middle of a long text.
        """
        if len(text) <= _PART or (add_special and lib.llama_vocab_get_add_eos(self._vocab)):
            return self._ids(text, add_special, parse_special)
        ids: list[int] = []
        anchor, known = "", 0
        for part in self._parts(text):
            if self._watched is not None:
                self._watched.check()
            ids += self._ids(anchor + part, add_special and not anchor, parse_special)[known:]
            anchor = part[-1]
            known = len(self._ids(anchor, False, parse_special))
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        """Split a long text where tokens cannot cross, so that the parts have the same ids.

        Each part ends with a letter before a blank. No tokenizer looks past the end of a word
        there, and no token holds both that letter and that blank. Each part is tokenised after the
        last letter of the part before.
        """
        start = 0
        while start < len(text):
            gaps = (found.end() for found in _GAP.finditer(text, start + _PART))
            end = next((at for at in gaps if text[at - 1 : at + 1] not in self._joined), len(text))
            yield text[start:end]
            start = end

    @cached_property
    def _joined(self) -> frozenset[str]:
        """Pairs of a letter and a blank that occur next to each other within a token."""
        texts = (self._text(token).decode("utf-8", "replace") for token in range(self.n_vocab))
        return frozenset(pair for text in texts for pair in _JOINED.findall(text))

    def watch(self, cancel: Cancel | None) -> None:
        """Let `cancel` interrupt the tokenizing of long texts from now on."""
        self._watched = cancel

    def _ids(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        while True:
            ids = (lib.llama_token * size)()
            n = lib.llama_tokenize(
                self._vocab, raw, len(raw), ids, size, add_special, parse_special
            )
            if n >= 0:
                return ids[:n]
            size = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of `token`; control tokens are empty unless `special`."""
        key = (token, special)
        known = self._pieces.get(key)
        if known is None:
            known = self._pieces[key] = self._text(token, special=special)
        return known

    def _text(self, token: int, *, special: bool = True) -> bytes:
        return _written(
            lambda to, size: lib.llama_token_to_piece(self._vocab, token, to, size, 0, special)
        )

    def pieces(self) -> list[bytes]:
        """The bytes of every token, empty for control tokens; faster than one by one."""
        size, vocab, write = 512, self._vocab, lib.llama_token_to_piece
        buffer = ctypes.create_string_buffer(size)
        found: list[bytes] = []
        for token in range(self.n_vocab):
            n = write(vocab, token, buffer, size, 0, False)
            found.append(ctypes.string_at(buffer, n) if n >= 0 else self.piece(token))
        return found

    def close(self) -> None:
        """Free the weights. Close all contexts of this model first."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shown_name(path: Path, name: str) -> str:
    """The file's name, without its ending and part; where that is a hash, the model's own `name`.

    Many models are called after the run that made them, such as "135M 8k Lc100K Mix1 Ep2".
    """
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    return name if re.fullmatch(r"(sha256-)?[0-9a-f]{32,}", stem) else stem


def _use_devices(
    params: Any,
    devices: Sequence[str],
    target_devices: Sequence[str],
    split: Sequence[float],
) -> tuple[Any, ...]:
    """Set the devices of `params` (see `Model.load`); return what must live until the load."""
    others = [each for each in target_devices if each not in devices]
    chosen = device_list([*devices, *others])
    params.devices = ctypes.addressof(chosen)
    parts = split or [1.0] * len(devices)
    shares = (ctypes.c_float * lib.llama_max_devices())(*parts)
    if devices and (others or split):
        params.tensor_split = shares
    return chosen, shares


def _token_or_none(token: int) -> int | None:
    return token if token >= 0 else None


def _written(write: Callable[[Any, int], int], size: int = 256) -> bytes:
    """The bytes that `write` puts into a buffer; it returns their number.

    If the buffer is too short, `write` returns the size that it needs, negated for a piece.
    """
    buffer = ctypes.create_string_buffer(size)
    n = write(buffer, size)
    return buffer.raw[:n] if 0 <= n < size else _written(write, abs(n) + 1)


def _metadata(handle: lib.llama_model_p) -> dict[str, str]:
    def read(reader: Callable[..., int], index: int) -> str:
        text = _written(lambda buffer, size: reader(handle, index, buffer, size))
        return text.decode("utf-8", "replace")

    return {
        read(lib.llama_model_meta_key_by_index, i): read(lib.llama_model_meta_val_str_by_index, i)
        for i in range(lib.llama_model_meta_count(handle))
    }


def _progress_callback(progress: Callable[[float], None] | None, cancel: Cancel | None) -> Any:
    def report(share: float, _data: object) -> bool:
        if progress is not None:
            progress(share)
        return cancel is None or not cancel.is_set()

    return lib.llama_progress_callback(report)


def _loaded(
    path: Path, params: lib.llama_model_params, cancel: Cancel | None
) -> tuple[lib.llama_model_p, int, bool]:
    """Load llama.cpp's model.

    Returns:
        It, the bytes allocated for its weights, and whether those in main memory are mapped.
    """
    section = start_backend().section()
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if handle:
        return handle, section.allocated("model"), not _COPIED.search(section.text())
    if cancel is not None:
        cancel.check()
    reason = section.reason()
    if section.lacked_memory():
        raise OutOfMemory(
            f"no memory for {path.name} ({reason})",
            "Close other programs, lower --n-gpu-layers, or choose a smaller pair.",
        )
    raise ModelLoadError(
        f"llama.cpp cannot load {path.name}: {reason}",
        "Check that the download is complete and that llama-cpp-python knows this architecture.",
    )
