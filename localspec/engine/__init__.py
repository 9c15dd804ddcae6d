"""Tokens in, tokens out: models, sampling, drafts, verification. Knows no text or screen."""
