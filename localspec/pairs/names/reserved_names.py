"""Names of pairs that have a meaning of their own; nothing is imported for them."""

from typing import Final

STARTER: Final = "starter"
FORMER_STARTER: Final = "demo"
"""The pair that came before: wherever a pair is named, this name means the starter."""
