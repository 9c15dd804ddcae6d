"""Heads that cannot draft for the toy target, or targets that cannot draft for themselves.

Run as a program it has `localspec run` answer with every one of them, each in a separate process,
and prints a line of JSON for each: its name, the exit code (that of a signal is negative) and what
was written to standard error.

    LOCALSPEC_ENGINE=inline python -m tests.support.wrong_heads FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

# A command's imports, made once: the processes are forks of this one, so no import may start a
# thread.
from localspec.cli import subcommands
from localspec.cli.answers import answer_output, run  # noqa: F401
from localspec.engine.llama import context_options
from localspec.engine.llama.heads import head as functions
from localspec.limits import HEAD_BATCH
from localspec.loading import one_answer as loaded  # noqa: F401
from localspec.process import engine_client, jobs, server  # noqa: F401
from tests.support import toy
from tests.support.gemma4 import USUAL, Assistant, write_assistant, write_gemma4
from tests.support.gguf_models import (
    Sizes,
    other_vocabulary,
    read_vocabulary,
    write_random_llama,
    write_random_mamba,
    write_random_moe,
    write_random_qwen3,
    write_random_qwen35,
)
from tests.support.heads import Block, Eagle, write_chain, write_dflash, write_eagle3, write_mtp

EAGLE = Eagle()
VOCABULARY = read_vocabulary(toy.TARGET)
KNOWN = len(VOCABULARY.tokens)


def _block(name: str) -> Eagle:
    return replace(EAGLE, without=[f"blk.0.{name}"])


HEADS = {
    "a layer after the last": replace(EAGLE, taps=(2, 5, 8)),
    "a layer far out of range": replace(EAGLE, taps=(2, 5, 800)),
    "a layer below zero": replace(EAGLE, taps=(-1, 2, 5)),
    "two layers to read": replace(EAGLE, taps=(2, 5)),
    "four layers to read": replace(EAGLE, taps=(1, 2, 5, 7)),
    "another target's width": replace(EAGLE, reads=512),
    "a narrower target": replace(EAGLE, reads=32),
    "another width of its own": replace(EAGLE, sizes=replace(EAGLE.sizes, n_embd=192)),
    "two layers": replace(EAGLE, sizes=replace(EAGLE.sizes, n_layer=2)),
    "another vocabulary": replace(EAGLE, vocabulary=other_vocabulary()),
    "a token less": replace(
        EAGLE,
        vocabulary=replace(
            VOCABULARY,
            tokens=VOCABULARY.tokens[:-1],
            types=VOCABULARY.types[:-1],
        ),
    ),
    "two tokens swapped": replace(
        EAGLE,
        vocabulary=replace(
            VOCABULARY,
            tokens=(*VOCABULARY.tokens[:-2], VOCABULARY.tokens[-1], VOCABULARY.tokens[-2]),
        ),
    ),
    "no matrix that fuses": replace(EAGLE, without=["fc"]),
    "no norm of the output": replace(EAGLE, without=["output_norm"]),
    "no queries": _block("attn_q"),
    "no second norm": _block("attn_norm_2"),
    "no way down": _block("ffn_down"),
    "too few embedded tokens": replace(EAGLE, own_embedding=KNOWN - 1),
    "a table without an output": replace(EAGLE, d2t=range(64)),
    "a table of small numbers": replace(EAGLE, own_output=64, d2t=range(64), d2t_type=np.int32),
    "a table beyond the vocabulary": replace(EAGLE, own_output=64, d2t=[*range(63), KNOWN]),
    "a table below zero": replace(EAGLE, own_output=64, d2t=[*range(63), -1]),
    "a table with a token twice": replace(EAGLE, own_output=64, d2t=[*range(63), 0]),
    "an output that the table does not fit": replace(EAGLE, own_output=96, d2t=range(64)),
    "keys wider than values": replace(
        EAGLE, keys={"attention.key_length": 64, "attention.value_length": 32}
    ),
    "other states than its own": replace(EAGLE, keys={"embedding_length_out": 65_535}),
    "nothing that is turned": replace(EAGLE, keys={"rope.dimension_count": 0}),
    "heads that cannot be shared": replace(EAGLE, sizes=Sizes(1, 384, 6, 4, 64, 1024)),
    "a norm in half precision": replace(EAGLE, norm_type=np.float16),
}


BLOCK = Block()
BLOCKS = {
    "a block that reads a layer after the last": replace(BLOCK, taps=(2, 8)),
    "a block that reads a layer below zero": replace(BLOCK, taps=(-1, 2)),
    "a block that reads nothing": replace(BLOCK, taps=()),
    "a block for another width": replace(BLOCK, sizes=replace(BLOCK.sizes, n_embd=192)),
    "a block of one place": replace(BLOCK, places=1),
    "a block that does not say how long": replace(BLOCK, places=0),
    "places that no token stands for": replace(BLOCK, mask=None),
    "places beyond the vocabulary": replace(BLOCK, mask=KNOWN),
    "a block of another vocabulary": replace(BLOCK, vocabulary=other_vocabulary()),
    "a block without its fusing": replace(BLOCK, without=["fc"]),
    "a block without norms of queries": replace(BLOCK, without=["blk.1.attn_q_norm"]),
    "a block's table beyond the vocabulary": replace(BLOCK, own_output=64, d2t=[*range(63), KNOWN]),
    "a block's table without an output": replace(BLOCK, d2t=range(64)),
    "a chain that says nothing": replace(BLOCK, markov=True),
    "a chain that is not there": replace(BLOCK, anchored=True, markov=False),
    "candidates from nowhere": replace(BLOCK, keys={"selector_top_k": 4}),
    "more candidates than there is room for": replace(BLOCK, candidates=20),
    "blocks of deepseek4": replace(BLOCK, keys={"hyper_connection.count": 4}),
    "blocks whose keys are wider": replace(
        BLOCK, keys={"attention.key_length": 64, "attention.value_length": 32}
    ),
    "blocks that turn nothing": replace(BLOCK, keys={"rope.dimension_count": 0}),
}


ASSISTANT = Assistant()
SHORT = ASSISTANT.attention


def _attending(**how: Any) -> Assistant:
    return replace(ASSISTANT, attention=replace(SHORT, **how))


ASSISTANTS = {
    "an assistant for another width": replace(ASSISTANT, reads=96),
    "an assistant that promises its own width": replace(ASSISTANT, promises=32),
    "an assistant that promises no width": replace(ASSISTANT, promises=0),
    "an assistant of another vocabulary": replace(ASSISTANT, vocabulary=other_vocabulary()),
    "an assistant that knows a token less": replace(
        ASSISTANT,
        vocabulary=replace(VOCABULARY, tokens=VOCABULARY.tokens[:-1], types=VOCABULARY.types[:-1]),
    ),
    "an assistant without a window": _attending(sliding=(False, False)),
    "an assistant with nothing but windows": _attending(sliding=(True, True)),
    "an assistant for wider keys": _attending(width=96),
    "an assistant for narrower keys": _attending(width=32),
    "an assistant for wider keys in windows": _attending(width_swa=64),
    "an assistant for more keys": _attending(kv=2),
    "an assistant for fewer keys in windows": _attending(kv_swa=1),
    "an assistant that shares keys unevenly": _attending(heads=3),
    "an assistant with a layer that predicts nothing": replace(ASSISTANT, nextn=1),
    "an assistant that predicts nothing": replace(ASSISTANT, nextn=0),
    "an assistant that turns more than there is": replace(
        ASSISTANT, keys={"rope.dimension_count_swa": 64}
    ),
    "an assistant that turns an odd number": replace(
        ASSISTANT, keys={"rope.dimension_count_swa": 31}
    ),
    "an assistant with values narrower than keys": replace(
        ASSISTANT, keys={"attention.value_length": 32}
    ),
    "an assistant with other values in windows": replace(
        ASSISTANT, keys={"attention.value_length_swa": 64}
    ),
    "a scale in half precision": replace(ASSISTANT, scale_type=np.float16),
    "an assistant without tokens": replace(ASSISTANT, without=["token_embd"]),
    "an assistant without its way in": replace(ASSISTANT, without=["nextn.pre_projection"]),
    "an assistant without its way out": replace(ASSISTANT, without=["nextn.post_projection"]),
    "an assistant without queries": replace(ASSISTANT, without=["blk.1.attn_q"]),
    "an assistant without a norm": replace(ASSISTANT, without=["blk.0.post_ffw_norm"]),
    "an assistant without a scale": replace(ASSISTANT, without=["blk.0.layer_output_scale"]),
    "an assistant without frequencies": replace(ASSISTANT, without=["rope_freqs"]),
}
ALONE = "an assistant without its target"
SHARING = {
    "a target that ends with a window": replace(USUAL, sliding=(True, False, False, True)),
    "a target that ends without windows": replace(USUAL, sliding=(True, True, False, False)),
    "a target of one layer": replace(USUAL, sliding=(True,)),
    "a target whose last layers share narrower keys": replace(
        USUAL, sliding=(True, False, True, False), kv_swa=1
    ),
}


Make = Callable[[Path], Path]
TARGETS: dict[str, tuple[Make, str]] = {
    "a target that shows no layers": (write_random_moe, "head"),
    "a recurrent target": (write_random_mamba, "head"),
    "a target with fewer layers": (write_random_llama, "head"),
    "a target of another kind": (write_random_qwen3, "head"),
    "no layer for more tokens": (lambda path: write_mtp(path, nextn=0), "mtp"),
    "two layers for more tokens": (lambda path: write_mtp(path, nextn=2), "mtp"),
    "two layers behind recurrent ones": (lambda path: write_random_qwen35(path, nextn=2), "mtp"),
    "two layers, of which one lacks a norm": (
        lambda path: write_chain(path, without=["blk.3.nextn.hnorm"]),
        "mtp",
    ),
    "no mixing matrix": (lambda path: write_mtp(path, without=["blk.2.nextn.eh_proj"]), "mtp"),
    "no norm of the state": (lambda path: write_mtp(path, without=["blk.2.nextn.hnorm"]), "mtp"),
    "no experts in the head": (lambda path: write_mtp(path, dense=3), "mtp"),
    "no queries in the head": (lambda path: write_mtp(path, without=["blk.2.attn_q"]), "mtp"),
    "a plain target": (lambda _: toy.TARGET, "mtp"),
    "a head for a target": (write_eagle3, "none"),
    "a target without such a cache": (lambda _: toy.TARGET, "assistant"),
}


class Lacking:
    """llama.cpp's library without one of its functions."""

    def __init__(self, whole: Any, name: str) -> None:
        self._whole, self._lacks = whole, (name, functions._MSVC[name])

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(name)
        return getattr(self._whole, name)


def lack(name: str) -> None:
    """Make the library behave as a build of llama.cpp that does not export this function."""
    lib._lib = Lacking(lib._lib, name)


def cramp(name: str) -> None:
    """Make the contexts of heads, whose batches are small, with room for one row of a pass."""
    usual = context_options.ContextOptions.params

    def params(self: context_options.ContextOptions) -> Any:
        made = usual(self)
        if made.n_batch <= HEAD_BATCH:
            setattr(made, name, 1)
        return made

    context_options.ContextOptions.params = params  # type: ignore[method-assign]


Spoil = Callable[[], None]
EAGLE3, DFLASH, GEMMA4 = "an EAGLE-3 head", "a DFlash head", "an assistant"
CRAMPED = {
    f"{kind} with too small an {name}": (kind, partial(cramp, name))
    for kind in (EAGLE3, DFLASH)
    for name in ("n_ubatch", "n_outputs_max")
}
LACKING = {
    f"{kind} without {name}": (kind, partial(lack, name))
    for kind, names in (
        (EAGLE3, list(functions._MSVC)),
        (DFLASH, list(functions._MSVC)[:1]),
        (GEMMA4, list(functions._MSVC)[-1:]),
    )
    for name in names
}


@dataclass(frozen=True)
class Wrong:
    """A target and a --draft that do not go together, or a build that they do not go with."""

    name: str
    target: Path
    draft: str
    spoil: Spoil = lambda: None


def cases(folder: Path) -> Iterator[Wrong]:
    """Everything that is wrong."""
    for name, head in HEADS.items():
        yield Wrong(name, toy.TARGET, str(write_eagle3(folder / f"{name}.gguf", head)))
    for name, block in BLOCKS.items():
        yield Wrong(name, toy.TARGET, str(write_dflash(folder / f"{name}.gguf", block)))
    target = write_gemma4(folder / "gemma4.gguf")
    for name, its in ASSISTANTS.items():
        yield Wrong(name, target, str(write_assistant(folder / f"{name}.gguf", its)))
    assistant = str(write_assistant(folder / "assistant.gguf"))
    for name, attention in SHARING.items():
        made = write_gemma4(folder / f"{name}.gguf", attention=attention)
        yield Wrong(name, made, assistant)
    yield Wrong(ALONE, Path(assistant), "none")
    head_file = str(write_eagle3(folder / "head.gguf"))
    files = {"head": head_file, "assistant": assistant}
    for name, (make, draft) in TARGETS.items():
        yield Wrong(name, make(folder / f"{name}.gguf"), files.get(draft, draft))
    sound = {
        EAGLE3: (toy.TARGET, head_file),
        DFLASH: (toy.TARGET, str(write_dflash(folder / "block.gguf"))),
        GEMMA4: (target, assistant),
    }
    for name, (kind, spoil) in (CRAMPED | LACKING).items():
        yield Wrong(name, *sound[kind], spoil)


def alone(wrong: Wrong) -> tuple[int, str]:
    """Answer with it in a separate process; return the exit code, and what was written."""
    with tempfile.TemporaryFile() as said:
        if (child := os.fork()) == 0:
            _answer(wrong, said.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode()


def _answer(wrong: Wrong, said: int) -> None:
    """Be the command; never come back."""
    code = 99
    try:
        os.dup2(said, sys.stderr.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        wrong.spoil()
        how = ["--ctx-size=256", "--gamma=4", "--threads=1", "--n-predict=8", "--prompt=Hello"]
        sys.argv = ["localspec", "run", str(wrong.target), "--draft", wrong.draft, *how]
        subcommands.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> None:
    """Answer with all of them."""
    for wrong in cases(folder):
        code, said = alone(wrong)
        print(json.dumps({"name": wrong.name, "code": code, "said": said}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
