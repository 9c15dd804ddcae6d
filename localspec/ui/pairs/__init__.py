"""What the chat does with pairs: load, list, fetch, remove, measure."""
