"""What sparse attention takes to choose the tokens that it attends to: its indexer.

It follows llama.cpp's caches (src/llama-kv-cache-dsa.cpp, src/llama-kv-cache-msa.cpp,
src/llama-memory-hybrid-idx.cpp) and graphs (src/llama-graph.cpp, src/models).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from localspec.limits import N_BATCH
from localspec.pairs.gguf.header import GgufHeader

Widths = Sequence[tuple[int, int]]
_CHOSEN_GROUP: Final = 4  # tokens of DeepSeek 4 that are chosen together
_GLM_5_2_TRAINED: Final = 1 << 20  # tokens; its files do not say which layers choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """What choosing takes of a batch, in floats.

    Attributes:
        queries: for each token; they are turned, which makes a copy.
        scores: for each token and each of the cache, without and with flash attention.
        chosen: how many tokens each token chooses.
        marks: for each token and each that it chooses.
        masks: how many it has besides those of attention.
    """

    queries: int = 0
    scores: tuple[float, float] = (0, 0)
    chosen: int = 0
    marks: int = 0
    masks: int = 0

    def n_floats(self, n_ctx: int, *, flash: bool) -> int:
        """The floats for one token of a batch over a cache of `n_ctx`."""
        marks = self.marks * min(self.chosen, n_ctx)
        return 2 * self.queries + round(self.scores[flash] * n_ctx) + marks


DENSE: Final = Indexer()
"""That of a model which attends to all tokens."""


def indexer(header: GgufHeader, attending: int) -> Indexer:
    """The indexer of a model in which `attending` layers have attention."""

    def number(name: str) -> int:
        return max(0, header.setting(f"attention.indexer.{name}"))

    heads, chosen = number("head_count"), number("top_k")
    queries = heads * number("key_length")
    blocks = [each for each in header.settings("attention.compress_ratios") if each > 0]
    if not queries or (header.architecture == "qwen4exp" and not blocks):
        return DENSE
    if header.architecture == "deepseek4":
        return Indexer(queries=queries, scores=_scores_of_groups(header))
    if header.architecture == "minimax-m3":  # the mask in F32, and one for each head, also turned
        return Indexer(scores=(0, 2 * heads + 1))
    # Without flash attention the mask of the chosen is in F32, and there twice, when the usual one
    # is added. That of an indexer's own stays in F16.
    if number("kpool"):  # indices, marks, and which of them are valid, before and after a step
        return Indexer(queries=queries, scores=(2, 1), chosen=chosen, marks=4)
    # The marks of all layers are held at once: llama.cpp allocates what no step computes first.
    if blocks:  # scores of blocks by each head, twice, and the keys of which a block's is the mean
        scores = 2 * heads / min(blocks) + 0.5
        return Indexer(queries=queries, scores=(scores, scores), chosen=chosen, marks=attending)
    return Indexer(queries=queries, scores=(1.5, 1), chosen=chosen, marks=attending + 1, masks=1)


def _scores_of_groups(header: GgufHeader) -> tuple[float, float]:
    """The floats of DeepSeek 4 for each token and each of the cache.

    A batch attends to the tokens and to their groups of four: a quarter more, in a mask of both,
    and with flash attention in a copy of both's keys in F16.
    """
    more = 1 / _CHOSEN_GROUP
    heads = max(header.settings("attention.head_count"), default=0)
    keys = header.setting("attention.key_length") / 2 / N_BATCH
    return heads * more + 1 + more, 0.5 + (1 + more) * keys


def with_indexers(
    header: GgufHeader, widths: Widths, heads: Widths, trunk: int
) -> tuple[tuple[int, int], ...]:
    """Elements that each layer caches of a token, with the keys that its indexer scores.

    Args:
        header: the model's.
        widths: the elements without them.
        heads: the widths of each layer's key and value heads.
        trunk: how many layers do not predict more tokens; the others attend to all tokens.
    """
    wide = max(0, header.setting("attention.indexer.key_length"))
    if header.architecture == "deepseek4":
        return _with_groups(header, widths, wide, trunk)
    if header.setting("attention.indexer.kpool") > 0:
        wide *= 3  # with a gate, and what is pooled
    choosing = _choosing(header, trunk)
    return tuple(
        (key + wide, value + (heads[i][1] if header.architecture == "minimax-m3" else 0))
        if wide and key and i < trunk and choosing[i]
        else (key, value)
        for i, (key, value) in enumerate(widths)
    )


def _with_groups(
    header: GgufHeader, widths: Widths, wide: int, trunk: int
) -> tuple[tuple[int, int], ...]:
    """Elements that each layer caches of a token, with its share of what is kept of its group.

    The trunk makes keys and values from one row. Groups of `_CHOSEN_GROUP` also have a row by which
    they are chosen. llama.cpp rounds their number up to 256, which is not counted here.
    """
    groups = header.settings("attention.compress_ratios") + [0] * trunk
    return tuple(
        (key + -(-(key + wide * (groups[i] == _CHOSEN_GROUP)) // groups[i]), 0)
        if i < trunk and groups[i] > 0
        else (key, value * (i >= trunk))
        for i, (key, value) in enumerate(widths)
    )


def _choosing(header: GgufHeader, trunk: int) -> list[int]:
    """Which layers choose tokens; the others attend to those of the one before."""
    every = range(trunk)
    if header.architecture == "minimax-m3":
        dense = header.setting("leading_dense_block_count")
        return [int(i >= dense) for i in every]
    found = header.settings("attention.indexer.types")
    if len(found) > 1:
        return (found + [0] * trunk)[:trunk]
    if not found and header.architecture == "glm-dsa":
        late = header.setting("context_length") >= _GLM_5_2_TRAINED
        return [int(not late or i < 2 or i % 4 == 2) for i in every]
    return [*(found or [1])] * trunk
