"""How a dialect is learnt from a chat template, and stored."""
