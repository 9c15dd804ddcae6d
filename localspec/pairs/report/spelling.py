"""How much of a text two vocabularies spell alike, from the headers alone.

Words are cut by byte-pair merging, joining first the pair whose token has the lowest id: ids mostly
follow the order in which a vocabulary was learned. This is close to what the tokenizers do, and
needs neither their merges nor a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Final

from localspec.pairs.gguf.header import GgufHeader

_SAMPLE: Final = '''\
Speculative decoding lets a small model write a few words ahead, and has a large one check all of \
them at once. Where both agree the answer comes faster; where they do not, nothing is lost but a \
little time. Yesterday's weather was unbelievably pleasant: we walked along the river, talked \
about mathematics, and bought strawberries at the market.

```python
def average(numbers: list[float]) -> float:
    """Return the mean of some numbers."""
    if not numbers:
        raise ValueError("there is nothing to average")
    return sum(numbers) / len(numbers)
```
'''
_WORDS: Final = re.findall(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+", _SAMPLE)
_SPACES: Final = {
    "gpt2": {" ": "\u0120", "\n": "\u010a"},  # GPT-2's letters for these bytes
    "llama": {" ": "\u2581"},
    "gemma4": {" ": "\u2581"},
}
"""How a file writes blanks and line breaks, by the kind of its tokenizer."""


def alike(target: GgufHeader, draft: GgufHeader) -> float | None:
    """The share (0 to 1) of the target's tokens of a sample text that the draft also has.

    None if one of them cannot write the text.
    """
    ours, theirs = _ranks(target), _ranks(draft)
    same = total = 0
    for word in _WORDS:
        mine, its = _cut(word, ours), _cut(word, theirs)
        if mine is None or its is None:
            return None
        total += len(mine)
        same += len(mine & its)
    return same / total


def _ranks(header: GgufHeader) -> dict[str, int]:
    """The ids of all tokens that may occur in the text; empty for an unknown kind of tokenizer."""
    written = _SPACES.get(header.text("tokenizer.ggml.model"))
    if written is None or header.tokens is None:
        return {}
    table = str.maketrans(written)
    parts = {part.translate(table).encode(): part for word in _WORDS for part in _parts(word)}
    parts |= {b"<0x%02X>" % ord(part): part for part in parts.values() if len(part) == 1}
    found: dict[str, int] = {}
    for token, text in enumerate(header.tokens):
        if text in parts:
            found.setdefault(parts[text], token)
    return found


def _parts(word: str) -> Iterator[str]:
    """All substrings of a word, as possible tokens."""
    return (word[start:end] for start, end in combinations(range(len(word) + 1), 2))


def _cut(word: str, ranks: dict[str, int]) -> set[tuple[int, int]] | None:
    """Begin and end of each token of a word; None if the vocabulary cannot write it."""
    edges = list(range(len(word) + 1))
    while True:
        pairs = enumerate(zip(edges, edges[2:], strict=False), 1)
        known = [(ranks[word[a:b]], at) for at, (a, b) in pairs if word[a:b] in ranks]
        if not known:
            break
        del edges[min(known)[1]]
    spans = set(pairwise(edges))
    return spans if all(word[a:b] in ranks for a, b in spans) else None
