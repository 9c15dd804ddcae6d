"""Limits that several rooms share, and the values that llama.cpp accepts."""

from __future__ import annotations

from typing import Any, Final

MAX_GAMMA: Final = 63
"""The most tokens that one round may draft."""

MAX_BATCH_OUTPUTS: Final = MAX_GAMMA + 1
"""The most rows of logits in one decode: a verify pass over the longest draft.

llama.cpp sizes its compute buffer by this number, and so does the memory plan. Rows for a whole
prefill batch would take 300 MB at a vocabulary of 152,000 tokens.
"""

N_BATCH: Final = 512
"""Tokens in one decode of a prompt."""

HEAD_BATCH: Final = 32
"""The most rows in one decode of a draft head.

EAGLE-3 keeps two sets of logits for all of them: 40 MB at a vocabulary of 152,000 tokens.
"""

HEAD_REACH: Final = 256
"""How many of the latest tokens' states are kept for a draft head that is not drafting now.

This exceeds a verify pass, so that they survive one whose draft is rejected.
"""

LARGEST_FILE: Final = 1 << 50
"""Bytes; a file that claims to be larger is taken for damaged."""

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What llama.cpp accepts for `--cache-type-k` and `--cache-type-v`."""

UNQUANTISED: Final = ("f32", "f16", "bf16")
"""The types of cached values that work without flash attention."""

SPLIT_MODES: Final = ("none", "layer", "row", "tensor")
"""What llama.cpp accepts for `--split-mode`, in the order of its `enum llama_split_mode`."""

FLASH_ATTENTION: Final = {"on": True, "off": False, "auto": None}
"""What llama.cpp accepts for `--flash-attn`: whether it is used, None to leave that open."""

MAX_NESTING: Final = 32
"""How deep JSON from a client, a model or a server of tools may be nested."""


def depth(value: object) -> int:
    """The nesting depth of objects and lists."""
    level: list[Any] = [value]
    depth = 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth
