"""Limits that more than one room counts with."""

from __future__ import annotations

from typing import Final

MAX_GAMMA: Final = 63
"""Tokens that one round may draft."""

MAX_BATCH_OUTPUTS: Final = MAX_GAMMA + 1
"""Rows of logits that one decode may be asked for: a verify pass over the longest draft.

llama.cpp sizes its compute buffer by it, so the memory plan counts with it as well; rows for a
whole prefill batch would take 300 MB at 152,000 tokens.
"""

LARGEST_FILE: Final = 1 << 50
"""Bytes of a file that is believed in."""
