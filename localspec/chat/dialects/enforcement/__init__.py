"""Grammars that restrict calls to a model's notation."""
