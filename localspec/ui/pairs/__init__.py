"""What the chat does with pairs: list, fetch, remove, measure."""
