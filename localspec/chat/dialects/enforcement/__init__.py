"""Grammars that hold calls to the notation of a model."""
