"""The live figures, and the sentences made from them."""
