"""The input: what is typed, pasted, attached and suggested."""
