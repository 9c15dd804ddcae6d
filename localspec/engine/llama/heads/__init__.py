"""Contexts of draft heads, which read the states of a target."""
