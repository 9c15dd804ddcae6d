"""A scripted stand-in for `Context`: logits are a function of the tokens before, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.llama import Context, Listener
from localspec.errors import EngineError

Script = Callable[[tuple[int, ...]], NDArray[np.float32]]


@dataclass(frozen=True)
class StubModel:
    """A vocabulary of `n_vocab` ids, of which `ends` end a generation."""

    n_vocab: int
    ends: frozenset[int] = frozenset()
    name: str = "stub"
    remote: bool = False

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"<%d>" % token

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.ends


class Letters(StubModel):
    """A vocabulary of strings; the tokenizer takes the longest one that fits."""

    bos = None
    add_bos = False

    def __init__(self, *pieces: str) -> None:
        """The pieces in the order of their ids; an empty one ends a turn."""
        ends = frozenset(i for i, piece in enumerate(pieces) if not piece)
        super().__init__(len(pieces), ends)
        object.__setattr__(self, "known", [piece.encode() for piece in pieces])

    @property
    def end(self) -> int | None:
        return next(iter(self.ends), None)

    def pieces(self) -> list[bytes]:
        return list(self.known)  # type: ignore[attr-defined]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        found: bytes = self.known[token]  # type: ignore[attr-defined]
        return found

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids: list[int] = []
        known = {piece: i for i, piece in reversed([*enumerate(self.known)])}  # type: ignore[attr-defined]
        at, raw = 0, text.encode()
        while at < len(raw):
            size = max((len(one) for one in known if raw.startswith(one, at)), default=0)
            if not size:
                return []
            ids.append(known[raw[at : at + size]])
            at += size
        return ids


@dataclass
class StubContext:
    """Keeps its tokens as the real one does and is as strict about what fits."""

    script: Script
    model: StubModel
    n_ctx: int = 256
    n_batch: int = 32
    can_truncate: bool = True
    max_rollback: int | None = None
    tokens: list[int] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)
    on_decode: Callable[[], None] = lambda: None
    readers: tuple[Listener, ...] = ()

    holds = True

    @property
    def held(self) -> int:
        return len(self.tokens)

    @property
    def free(self) -> int:
        return self.n_ctx - len(self.tokens)

    def watch(self, cancel: Cancel | None) -> None:
        self.cancel = cancel

    def decode(self, tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        assert 0 < len(tokens) <= min(self.free, self.n_batch)
        self.on_decode()
        if self.cancel is not None:
            self.cancel.check()
        assert all(0 <= token < self.model.n_vocab for token in tokens)
        self.batches.append(list(tokens))
        before = len(self.tokens)
        self.tokens.extend(tokens)
        for reader in self.readers:
            reader.after_decode(tokens, before)
        first = before + len(tokens) - n_logits
        rows = [self.script(tuple(self.tokens[: i + 1])) for i in range(first, len(self.tokens))]
        return np.array(rows, np.float32).reshape(n_logits, self.model.n_vocab)

    show = Context.show
    settles = False

    def familiar(self, n: int, n_logits: int) -> bool:
        return True

    def wait(self) -> None:
        pass

    def mark(self, ahead: int = 0, *, lasting: int = 0, anew: bool = False) -> None:
        self.marked = len(self.tokens)

    def rewind(self, n: int) -> int:
        self.truncate(n)
        return len(self.tokens)

    def clear(self) -> None:
        self.tokens.clear()

    def truncate(self, n: int) -> None:
        if n < len(self.tokens) and not self.can_truncate:
            raise EngineError("cannot truncate")
        del self.tokens[n:]

    def keep_prefix(self, tokens: Sequence[int]) -> int:
        n = common_prefix(self.tokens, tokens)
        del self.tokens[n:]
        return n


def random_script(n_vocab: int, seed: int, *, window: int = 3, sharpness: float = 2.0) -> Script:
    """Logits drawn once for every `window` last tokens: a Markov chain, the same every time."""

    def script(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        key = [seed, *tokens[-window:]]
        row = np.random.default_rng(key).normal(0.0, sharpness, n_vocab)
        return row.astype(np.float32)

    return script


def near(script: Script, noise: float, seed: int) -> Script:
    """A draft's view of `script`: the same logits with normal noise on top."""

    def nearby(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        row = script(tokens)
        extra = np.random.default_rng([seed, *tokens[-3:]]).normal(0.0, noise, len(row))
        return (row + extra).astype(np.float32)

    return nearby
