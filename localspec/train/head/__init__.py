"""The head: its shape, its network in torch, how it learns, and its file."""
