"""How much to draft: optimal stopping on measured costs and learnt acceptance."""
