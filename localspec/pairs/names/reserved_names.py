"""Names of pairs with a meaning of their own; this module imports nothing for them."""

from typing import Final

STARTER: Final = "starter"
FORMER_STARTER: Final = "demo"
"""The former starter: wherever a pair is named, this name now means the starter."""
