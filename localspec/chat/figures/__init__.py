"""The live figures, and the sentences that are made of them."""
