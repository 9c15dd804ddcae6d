"""Tokens in, tokens out: models, sampling, drafting, verification. Knows no text, files or screens."""
