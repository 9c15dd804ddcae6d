"""Limits that more than one room counts with, and what llama.cpp lets one choose from."""

from __future__ import annotations

from typing import Final

MAX_GAMMA: Final = 63
"""Tokens that one round may draft."""

MAX_BATCH_OUTPUTS: Final = MAX_GAMMA + 1
"""Rows of logits that one decode may be asked for: a verify pass over the longest draft.

llama.cpp sizes its compute buffer by it, so the memory plan counts with it as well; rows for a
whole prefill batch would take 300 MB at 152,000 tokens.
"""

HEAD_BATCH: Final = 32
"""Rows that one decode of a draft head may take.

EAGLE-3 keeps logits for all of them, twice: 40 MB at a vocabulary of 152,000.
"""

HEAD_REACH: Final = 256
"""Tokens whose states wait, the latest ones, for a draft head that may be asked to draft.

They outlive a verify pass of which nothing is accepted.
"""

LARGEST_FILE: Final = 1 << 50
"""Bytes of a file that is believed in."""

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What llama.cpp accepts for `--cache-type-k` and `--cache-type-v`."""
